//! The API's description, from the handlers' annotations. The types here document the wire; rows are read by `rows`,
//! which is more lenient than a schema can say.

use axum::http::StatusCode;
use axum::response::Response;
use utoipa::{OpenApi, ToSchema};

use super::ROUTES;
use super::error::json_bytes;

/// One request at one endpoint, as known at dispatch.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct PredictionRow {
    /// Share of the KV cache in use, a fraction.
    #[schema(minimum = 0.0, maximum = 1.0)]
    kv_cache_percentage: f64,
    /// Prompt tokens.
    #[schema(minimum = 0, maximum = 100_000_000)]
    input_token_length: u32,
    /// Requests queued at the endpoint.
    #[schema(minimum = 0, maximum = 1_000_000)]
    num_request_waiting: u32,
    /// Requests being computed at the endpoint.
    #[schema(minimum = 0, maximum = 1_000_000)]
    num_request_running: u32,
    /// Required by the wire; unknown at dispatch and no input of the model.
    #[schema(minimum = 0, maximum = 100_000_000)]
    num_tokens_generated: u32,
    /// Share of the prompt expected in the endpoint's prefix cache.
    #[schema(minimum = 0.0, maximum = 1.0)]
    prefix_cache_score: f64,
    /// Role: empty, `prefill` or `decode`; other words count as empty.
    pod_type: Option<String>,
    /// Uncached prompt tokens dispatched and not yet past their first token, this request excluded.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    prefill_tokens_in_flight: Option<u32>,
    /// Tokens of requests past their first token.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    decode_tokens_in_flight: Option<u32>,
    /// Encoder input already cached.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    encoder_matched_size: Option<u32>,
    /// Encoder input.
    #[schema(minimum = 0, maximum = 1_000_000_000)]
    encoder_input_size: Option<u32>,
    /// Name of the endpoint: selects its own learnt offset.
    #[schema(min_length = 1, max_length = 253)]
    endpoint: Option<String>,
    /// Further quantiles to answer (single route only).
    quantiles: Option<Vec<f64>>,
}

/// A batch of rows to predict.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct BulkPredictionRequest {
    /// 1 to 10,000 rows.
    #[schema(min_items = 1, max_items = 10_000)]
    requests: Vec<PredictionRow>,
    /// Further quantiles to answer for every row, each 0.01 to 0.99, at most 16.
    quantiles: Option<Vec<f64>>,
}

/// One prediction.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct Prediction {
    /// Time to first token, ms.
    ttft_ms: f64,
    /// Time per output token, ms.
    tpot_ms: f64,
    /// When it was made.
    predicted_at: String,
    /// `lightgbm`, so that old clients fetch no model.
    model_type: String,
    /// `quantile` or `mean`.
    objective_type: String,
    /// The quantile answered.
    quantile: f64,
    /// When the serving model was fitted; null for the prior.
    last_model_load: Option<String>,
    /// Number of the fit that answered.
    generation: u64,
    /// `ready`, `extrapolating`, `stale`, `warming`, `prior` or `degraded`.
    state: String,
    /// The state in words.
    reason: String,
    /// Further quantiles, if asked for: target to quantile to ms.
    quantiles: Option<std::collections::BTreeMap<String, std::collections::BTreeMap<String, f64>>>,
}

/// Answers of a batch.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct BulkPrediction {
    /// One per row, in order; null for a bad row on the lenient route.
    predictions: Vec<Option<Prediction>>,
    /// Bad rows, lenient route only.
    errors: Option<Vec<RowError>>,
    /// Rows received.
    total_requests: u64,
    /// Rows predicted.
    successful_predictions: u64,
    /// Rows refused.
    failed_predictions: u64,
    /// Time spent, ms.
    processing_time_ms: f64,
    /// `foretoken`.
    engine: String,
}

/// One bad row.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct RowError {
    /// Its position.
    index: u64,
    /// What is wrong, in one line.
    error: String,
}

/// Answer of the single route: the prediction and its spread.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct SinglePrediction {
    #[schema(inline)]
    #[serde(flatten)]
    prediction: Prediction,
    /// Half the width of the central 80 %, ms.
    ttft_uncertainty: f64,
    /// Half the width of the central 80 %, ms per token.
    tpot_uncertainty: f64,
    /// 10 % and 90 % quantile, ms.
    ttft_prediction_bounds: [f64; 2],
    /// 10 % and 90 % quantile, ms per token.
    tpot_prediction_bounds: [f64; 2],
}

/// A finished request: the prediction row's fields and what came of it, see `docs/samples.md`.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct TrainingRow {
    #[schema(inline)]
    #[serde(flatten)]
    features: PredictionRow,
    /// Observed time to first token, ms; 0 when not observed.
    #[schema(minimum = 0.0, maximum = 86_400_000.0)]
    actual_ttft_ms: f64,
    /// Observed time per output token, ms; 0 when not observed.
    #[schema(minimum = 0.0, maximum = 86_400_000.0)]
    actual_tpot_ms: f64,
    /// When the outcome was seen; absent means now.
    timestamp: Option<String>,
    /// When the request was dispatched; reckoned back from the outcome when absent.
    dispatched_at: Option<String>,
    /// The TTFT that had been promised, ms, for live accuracy.
    predicted_ttft_ms: Option<f64>,
    /// The TPOT that had been promised, ms.
    predicted_tpot_ms: Option<f64>,
    /// Whether the answer was streamed; one that was not teaches neither TTFT nor TPOT. Absent: unknown, taken as true.
    streaming: Option<bool>,
    /// How the request ended: `completed` (also when absent), `failed` (its latencies teach nothing), `timeout`
    /// (`actual_ttft_ms` is how long was waited) or `aborted` (by the client; what was seen until then counts). Both
    /// outcomes may be 0 when it failed or was aborted.
    outcome: Option<Outcome>,
    /// Parts the answer came in; 0 when none came. Fewer than tokens when an engine sends several at once:
    /// `actual_tpot_ms` is per token all the same.
    #[schema(minimum = 0, maximum = 100_000_000)]
    num_chunks: Option<u32>,
    /// What the endpoint runs; a change starts a new regime.
    fingerprint: Option<FingerprintField>,
}

/// How a request ended.
#[derive(ToSchema)]
#[allow(dead_code)]
#[schema(rename_all = "snake_case")]
pub enum Outcome {
    Completed,
    Failed,
    Timeout,
    Aborted,
}

/// What an endpoint runs, compared only for equality: one text of at most 512 bytes, or its parts.
#[derive(ToSchema)]
#[allow(dead_code)]
#[serde(untagged)]
pub enum FingerprintField {
    Text(String),
    Parts { model: Option<String>, engine: Option<String>, flags: Option<String>, accelerator: Option<String> },
}

/// A batch of samples.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct TrainingBatch {
    /// Any number of rows within the body limit; may be empty.
    entries: Vec<TrainingRow>,
}

/// What became of a batch of samples.
#[derive(ToSchema)]
#[allow(dead_code)]
pub struct TrainingReceipt {
    /// For people.
    message: String,
    /// Rows queued for the trainer.
    accepted: u64,
    /// Rows refused.
    refused: u64,
    /// Good rows dropped because the queue was full.
    dropped: u64,
    /// The first 20 bad rows.
    errors: Vec<RowError>,
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "foretoken",
        description = "Predicts TTFT and TPOT for every LLM request and endpoint, and learns online."
    ),
    paths(
        super::predict::single,
        super::predict::bulk_strict,
        super::predict::bulk,
        super::models::explain,
        super::training::add,
        super::training::flush,
        super::training::data_status,
        super::training::prefix_distribution,
        super::health::root,
        super::health::status,
        super::health::healthz,
        super::health::readyz,
        super::health::reload,
        super::health::metrics,
        super::models::download_info,
        super::models::list,
        super::models::model_info,
        super::models::download,
        super::models::snapshot,
        super::models::export,
        super::models::xgb_trees,
        super::models::lgb_text,
        super::models::importances,
    )
)]
struct Api;

/// The document as an answer.
pub fn answer(document: &str) -> Response {
    json_bytes(StatusCode::OK, document.as_bytes().to_vec())
}

/// A page for people: every route, and where the document is. It loads nothing from elsewhere.
pub fn page() -> String {
    let rows: String =
        ROUTES.iter().map(|(path, method)| format!("<tr><td>{method}</td><td><code>{path}</code></td></tr>")).collect();
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>foretoken</title></head><body>\
         <h1>foretoken</h1><p>Described in full by <a href=\"/openapi.json\">/openapi.json</a>.</p>\
         <table>{rows}</table></body></html>"
    )
}

/// The document, as pretty JSON.
pub fn document() -> String {
    // Plain data always serialises; an empty document would fail the golden test.
    Api::openapi().to_pretty_json().unwrap_or_default()
}
