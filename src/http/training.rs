//! The training routes: samples in, samples out, and what the store holds.

use std::collections::BTreeMap;
use std::marker::PhantomData;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::auth::Access;
use super::batch::{self, Limits};
use super::body::Call;
use super::error::{ERROR_BYTES_MAX, Problem, json_answer, told};
use super::json;
use super::lax::Lax;
use super::openapi::{TrainingBatch, TrainingReceipt};
use super::rows::{Fault, RawRow};
use super::state::AppState;
use super::times::rfc3339;
use crate::service::{Flush, now};
use crate::stats::{mean, quantile_of};
use crate::training::SurveyTarget;

/// Bad rows that are told of a batch whose good rows were taken.
const BAD_ROWS_TOLD: usize = 20;

/// Bytes of a receipt beside its list of bad rows.
const RECEIPT_FRAME_BYTES: usize = 200;

/// Longest reason of a flush that is kept.
const REASON_CHARS_MAX: usize = 200;

/// Takes samples: good rows are queued for the trainer, bad ones are listed.
#[utoipa::path(post, path = "/add_training_data_bulk", tag = "training", request_body = TrainingBatch, responses(
    (status = 202, description = "the good rows were taken", body = TrainingReceipt),
    (status = 401, description = "the ingest token is missing or wrong"),
    (status = 422, description = "there were rows and not one is good"),
    (status = 503, description = "this instance only predicts, or the process is overloaded"),
))]
pub async fn add(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Samples).await?;
    let received_at = now();
    let limits = Limits { rows_max: usize::MAX, told_max: BAD_ROWS_TOLD, echo: false };
    let read = move |body: &str| batch::read(body, "entries", limits, |raw: &RawRow<'_>| raw.sample(received_at));
    // Nothing is taken before all is read: a call whose time is up has changed nothing.
    let (rows, _) = call.compute(read).await?;
    for (reason, count) in &rows.reasons {
        state.service.refuse(reason, *count);
    }
    state.metrics.unknown_roles(rows.unknown_roles);
    if rows.total > 0 && rows.good.is_empty() {
        return Err(Problem::Rows { field: Some("entries"), bad: rows.bad, bad_total: rows.bad_total });
    }
    let offered = state.service.offer(rows.good.into_iter().map(|(_, sample)| sample).collect())?;
    let receipt = json!({
        "message": format!("Accepted {} training samples.", offered.accepted),
        "accepted": offered.accepted,
        "refused": rows.bad_total,
        "dropped": offered.dropped,
        "errors": told("entries", &rows.bad, ERROR_BYTES_MAX - RECEIPT_FRAME_BYTES),
    });
    Ok(json_answer(StatusCode::ACCEPTED, &receipt))
}

/// Body of `/flush`; every field is optional, and so is the body.
#[derive(Debug, PartialEq, utoipa::ToSchema)]
pub struct FlushRequest {
    /// Forget stored samples.
    #[schema(required = false, default = true)]
    flush_training_data: bool,
    /// Taken for old clients; no rows are set aside for testing here.
    #[schema(required = false, default = true)]
    flush_test_data: bool,
    /// Forget rolling accuracy.
    #[schema(required = false, default = true)]
    flush_metrics: bool,
    /// Forget the fitted models too: back to the prior, as a new generation.
    #[schema(required = false, default = false)]
    flush_models: bool,
    /// For the log.
    reason: Option<String>,
}

impl Default for FlushRequest {
    fn default() -> Self {
        FlushRequest {
            flush_training_data: true,
            flush_test_data: true,
            flush_metrics: true,
            flush_models: false,
            reason: None,
        }
    }
}

impl FlushRequest {
    /// Reads the body; an empty one, or null, means the defaults.
    fn read(body: &str) -> Result<Self, Problem> {
        let mut request = FlushRequest::default();
        let sent = if body.is_empty() { Value::Null } else { json::parse(body, || PhantomData::<Value>)? };
        let fields = match sent {
            Value::Null => return Ok(request),
            Value::Object(fields) => fields,
            _ => return Err(Problem::NotAnObject("flags are true or false, reason is a string")),
        };
        for (field, flag) in [
            ("flush_training_data", &mut request.flush_training_data),
            ("flush_test_data", &mut request.flush_test_data),
            ("flush_metrics", &mut request.flush_metrics),
            ("flush_models", &mut request.flush_models),
        ] {
            let value = lax(&fields, field);
            let read = value.flag().map_err(|wrong| Problem::Field(Fault { field, wrong, input: value.echo() }))?;
            *flag = read.unwrap_or(*flag);
        }
        let reason = lax(&fields, "reason");
        let read = reason.text().map_err(|wrong| Fault { field: "reason", wrong, input: reason.echo() });
        let clean =
            |reason: &str| reason.chars().filter(|letter| !letter.is_control()).take(REASON_CHARS_MAX).collect();
        request.reason = read.map_err(Problem::Field)?.map(clean);
        Ok(request)
    }
}

fn lax<'a>(fields: &'a Map<String, Value>, field: &str) -> Lax<'a> {
    fields.get(field).map_or(Lax::Absent, |value| Lax::deserialize(value).unwrap_or_default())
}

#[derive(Serialize)]
struct FlushResponse {
    success: bool,
    flushed_at: String,
    reason: Option<String>,
    ttft_training_samples_flushed: usize,
    tpot_training_samples_flushed: usize,
    ttft_test_samples_flushed: usize,
    tpot_test_samples_flushed: usize,
    metrics_cleared: bool,
    models_flushed: bool,
    message: String,
}

/// Forgets samples, accuracy, or models.
#[utoipa::path(post, path = "/flush", tag = "training", request_body = Option<FlushRequest>, responses(
    (status = 200, description = "what was forgotten"),
    (status = 401, description = "the admin token is missing or wrong"),
    (status = 503, description = "this instance only predicts, or its trainer is busy"),
))]
pub async fn flush(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Admin).await?;
    let request = call.compute(FlushRequest::read).await?;
    let what =
        Flush { samples: request.flush_training_data, accuracy: request.flush_metrics, models: request.flush_models };
    let flushed = state.service.flush(what).await?;
    let reason = request.reason;
    tracing::warn!(reason = reason.as_deref().unwrap_or("none given"), "flushed {what:?}");
    let [ttft, tpot] = flushed.samples;
    let mut parts = Vec::new();
    if what.samples {
        parts.push(format!("{ttft} TTFT and {tpot} TPOT training samples"));
    }
    if what.accuracy {
        parts.push("rolling accuracy".to_string());
    }
    if what.models {
        parts.push("models".to_string());
    }
    let message = if parts.is_empty() {
        "No data flushed".to_string()
    } else {
        format!("Successfully flushed: {}", parts.join(", "))
    };
    let answer = FlushResponse {
        success: true,
        flushed_at: rfc3339(now()),
        reason,
        ttft_training_samples_flushed: ttft,
        tpot_training_samples_flushed: tpot,
        ttft_test_samples_flushed: 0,
        tpot_test_samples_flushed: 0,
        metrics_cleared: what.accuracy,
        models_flushed: what.models,
        message,
    };
    Ok(json_answer(StatusCode::OK, &answer))
}

/// What the store holds, by bucket.
#[utoipa::path(get, path = "/data/status", tag = "training", responses(
    (status = 200, description = "counts by target and bucket"),
    (status = 503, description = "this instance only predicts, or its trainer is busy"),
))]
pub async fn data_status(State(state): State<AppState>) -> Result<Response, Problem> {
    let survey = state.service.survey().await?;
    let status = state.service.status();
    let [ttft, tpot] = &survey.targets;
    let buckets: BTreeMap<String, usize> = ttft
        .buckets
        .iter()
        .map(|(bucket, count)| {
            (format!("queue_{}_cache_{}_prefix_{}", bucket.queue, bucket.cache, bucket.prefix), *count)
        })
        .collect();
    let counts =
        |ttft: usize, tpot: usize| json!({ "ttft_samples": ttft, "tpot_samples": tpot, "total_samples": ttft + tpot });
    let pairs = |index: usize| status.learner.as_ref().map_or(0, |report| report.targets[index].accuracy.pairs);
    let answer = json!({
        "training_data": counts(ttft.stored, tpot.stored),
        "test_data": counts(0, 0),
        "ensemble": ensemble(ttft, tpot),
        "metrics": { "ttft_scores_count": pairs(0), "tpot_scores_count": pairs(1) },
        "bucket_distribution": buckets,
        "model_ready": status.ready,
        "last_retrain": status.fitted_at.map(rfc3339),
        "generation": status.version.generation.0,
        "state": status.state.name(),
        "reason": status.reason,
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Kept for old readers: the two regimes are one model here, so there is no gate to be active.
fn ensemble(ttft: &SurveyTarget, tpot: &SurveyTarget) -> Value {
    json!({
        "ensemble_mode": false,
        "ensemble_active": false,
        "min_samples_for_split": 10,
        "ttft_noqueue_samples": ttft.no_queue,
        "ttft_queued_samples": ttft.queued,
        "tpot_noqueue_samples": tpot.no_queue,
        "tpot_queued_samples": tpot.queued,
    })
}

/// How TTFT depends on the prefix score in the store.
#[utoipa::path(get, path = "/debug/prefix_distribution", tag = "training", responses(
    (status = 200, description = "statistics by quarter of the prefix score; absent where there is nothing to compute from"),
    (status = 503, description = "this instance only predicts, or its trainer is busy"),
))]
pub async fn prefix_distribution(State(state): State<AppState>) -> Result<Response, Problem> {
    let pairs = state.service.survey().await?.prefix_ttft;
    if pairs.is_empty() {
        return Ok(json_answer(StatusCode::OK, &json!({ "error": "No training samples available" })));
    }
    let scores: Vec<f64> = pairs.iter().map(|pair| pair.0).collect();
    let latencies: Vec<f64> = pairs.iter().map(|pair| pair.1).collect();
    let mut ranges = Map::new();
    for (quarter, name) in ["0-0.25", "0.25-0.5", "0.5-0.75", "0.75-1.0"].into_iter().enumerate() {
        let inside: Vec<(f64, f64)> =
            pairs.iter().copied().filter(|pair| ((pair.0 * 4.0).floor() as usize).min(3) == quarter).collect();
        if inside.is_empty() {
            continue;
        }
        let mut values: Vec<f64> = inside.iter().map(|pair| pair.1).collect();
        let summary = json!({
            "count": values.len(),
            "mean_ttft_ms": mean(values.iter().copied()),
            "median_ttft_ms": quantile_of(&mut values, 0.5),
            "std_ttft_ms": deviation(&values),
            "mean_prefix_score": mean(inside.iter().map(|pair| pair.0)),
            "min_ttft_ms": quantile_of(&mut values, 0.0),
            "max_ttft_ms": quantile_of(&mut values, 1.0),
        });
        ranges.insert(name.to_string(), summary);
    }
    let mut sorted = scores.clone();
    let answer = json!({
        "overall_stats": {
            "total_samples": pairs.len(),
            "prefix_score_mean": mean(scores.iter().copied()),
            "prefix_score_std": deviation(&scores),
            "prefix_score_min": quantile_of(&mut sorted, 0.0),
            "prefix_score_max": quantile_of(&mut sorted, 1.0),
            "ttft_mean": mean(latencies.iter().copied()),
            "ttft_std": deviation(&latencies),
            "correlation": correlation(&pairs),
        },
        "distribution_by_prefix_range": ranges,
        "interpretation": {
            "correlation": "Pearson correlation of prefix score and TTFT; null when one of them does not vary",
            "expected": "negative where prefix hits are real",
            "action": "near zero with high scores: the promised hits may not happen",
        },
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

fn deviation(values: &[f64]) -> Option<f64> {
    let center = mean(values.iter().copied())?;
    mean(values.iter().map(|value| (value - center).powi(2))).map(f64::sqrt)
}

/// `None` where it is undefined: fewer than two rows, or one side constant.
fn correlation(pairs: &[(f64, f64)]) -> Option<f64> {
    let x = mean(pairs.iter().map(|pair| pair.0))?;
    let y = mean(pairs.iter().map(|pair| pair.1))?;
    let both: f64 = pairs.iter().map(|pair| (pair.0 - x) * (pair.1 - y)).sum();
    let scale = pairs.iter().map(|pair| (pair.0 - x).powi(2)).sum::<f64>()
        * pairs.iter().map(|pair| (pair.1 - y).powi(2)).sum::<f64>();
    (scale > 0.0).then(|| both / scale.sqrt())
}
