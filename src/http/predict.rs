//! The prediction routes: one row, all or nothing, and row by row.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde::ser::{SerializeMap, Serializer};

use super::body::JsonBody;
use super::error::{ListWrong, Problem, fault_item, json_answer, json_bytes};
use super::openapi::{BulkPrediction, BulkPredictionRequest, PredictionRow, SinglePrediction};
use super::rows::{Call, Fault, Limits, ListField, PredictRow, RawRow, Rows, read_call};
use super::state::AppState;
use super::times::rfc3339;
use super::{ENGINE, MODEL_TYPE, json};
use crate::service::now;
use crate::snapshot::{Conditions, Reader, Snapshot};
use crate::types::{Estimate, Quantile, Target, TargetEstimate};

/// Rows per prediction call.
pub const ROWS_MAX: usize = 10_000;

/// Bodies above which a call is computed off the async threads: some 2,000 rows, which would hold everything else up for
/// milliseconds.
const INLINE_BYTES_MAX: usize = 512 * 1024;

/// What all rows of a call share.
struct Shared {
    predicted_at: String,
    last_model_load: Option<String>,
    objective_type: &'static str,
    quantile: f64,
    quantiles: Vec<Quantile>,
}

impl Shared {
    fn new(state: &AppState, snapshot: &Snapshot, quantiles: Vec<Quantile>) -> Self {
        Shared {
            predicted_at: rfc3339(now()),
            last_model_load: snapshot.provenance.fitted_at.map(rfc3339),
            objective_type: state.params.objective_type(),
            quantile: state.params.quantile.get(),
            quantiles,
        }
    }
}

/// One prediction on the wire: the incumbent's fields, then ours.
#[derive(Serialize)]
struct WirePrediction<'a> {
    ttft_ms: f64,
    tpot_ms: f64,
    predicted_at: &'a str,
    model_type: &'static str,
    objective_type: &'static str,
    quantile: f64,
    last_model_load: Option<&'a str>,
    generation: u64,
    state: &'static str,
    reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    quantiles: Option<WireQuantiles<'a>>,
}

/// `{"ttft_ms": {"0.5": ..}, "tpot_ms": {..}}`, in the order asked for.
struct WireQuantiles<'a> {
    asked: &'a [Quantile],
    reader: &'a Reader<'a>,
    estimate: Estimate,
}

struct OneTarget<'a>(&'a WireQuantiles<'a>, Target);

impl Serialize for WireQuantiles<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(2))?;
        map.serialize_entry("ttft_ms", &OneTarget(self, Target::Ttft))?;
        map.serialize_entry("tpot_ms", &OneTarget(self, Target::Tpot))?;
        map.end()
    }
}

impl Serialize for OneTarget<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let estimate = match self.1 {
            Target::Ttft => &self.0.estimate.ttft,
            Target::Tpot => &self.0.estimate.tpot,
        };
        let mut map = serializer.serialize_map(Some(self.0.asked.len()))?;
        for quantile in self.0.asked {
            map.serialize_entry(&quantile.get().to_string(), &self.0.reader.quantile_ms(self.1, estimate, *quantile))?;
        }
        map.end()
    }
}

fn wire<'a>(reader: &'a Reader<'a>, shared: &'a Shared, row: &PredictRow) -> WirePrediction<'a> {
    let estimate = reader.predict(&row.features, row.endpoint.as_ref().map(|name| name.as_str()));
    WirePrediction {
        ttft_ms: estimate.ttft.value_ms,
        tpot_ms: estimate.tpot.value_ms,
        predicted_at: &shared.predicted_at,
        model_type: MODEL_TYPE,
        objective_type: shared.objective_type,
        quantile: shared.quantile,
        last_model_load: shared.last_model_load.as_deref(),
        generation: estimate.generation.0,
        state: estimate.state.name(),
        reason: estimate.state.reason(),
        quantiles: (!shared.quantiles.is_empty()).then_some(WireQuantiles {
            asked: &shared.quantiles,
            reader,
            estimate,
        }),
    }
}

/// Predicts every row, or refuses the whole call.
#[utoipa::path(post, path = "/predict/bulk/strict", tag = "prediction", request_body = BulkPredictionRequest, responses(
    (status = 200, description = "one prediction per row, in order", body = BulkPrediction),
    (status = 422, description = "which rows and fields are wrong, and the allowed range"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn bulk_strict(State(state): State<AppState>, JsonBody(body): JsonBody) -> Result<Response, Problem> {
    let opened = state.open()?;
    run(body, move |body| strict(&state, opened, body)).await
}

/// Predicts the good rows; each bad one answers null and has an entry in `errors`.
#[utoipa::path(post, path = "/predict/bulk", tag = "prediction", request_body = BulkPredictionRequest, responses(
    (status = 200, description = "one prediction or null per row, in order, and the errors", body = BulkPrediction),
    (status = 422, description = "the list itself is wrong"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn bulk(State(state): State<AppState>, JsonBody(body): JsonBody) -> Result<Response, Problem> {
    let opened = state.open()?;
    run(body, move |body| lenient(&state, opened, body)).await
}

/// Computes where it hurts nobody: small bodies at once, large ones on a thread for blocking work.
async fn run(
    body: Vec<u8>,
    compute: impl FnOnce(&[u8]) -> Result<Response, Problem> + Send + 'static,
) -> Result<Response, Problem> {
    if body.len() <= INLINE_BYTES_MAX {
        return compute(&body);
    }
    tokio::task::spawn_blocking(move || compute(&body))
        .await
        .unwrap_or_else(|_| Err(Problem::NotReady("the call was cancelled".to_string())))
}

fn strict(
    state: &AppState,
    (snapshot, conditions): (Arc<Snapshot>, Conditions),
    body: &[u8],
) -> Result<Response, Problem> {
    let started = Instant::now();
    let (rows, quantiles) = read_rows(body, 4)?;
    if !rows.all_good() {
        return Err(Problem::Rows { field: Some("requests"), bad: rows.bad, bad_total: rows.bad_total });
    }
    let reader = snapshot.read(conditions);
    let shared = Shared::new(state, &snapshot, quantiles);
    let mut out = Vec::with_capacity(160 + rows.good.len() * 400);
    out.extend_from_slice(b"{\"predictions\":[");
    for (position, (_, row)) in rows.good.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        write(&mut out, &wire(&reader, &shared, row))?;
    }
    finish(&mut out, rows.total, 0, started);
    state.metrics.predicted(rows.total as u64);
    Ok(json_bytes(StatusCode::OK, out))
}

fn lenient(
    state: &AppState,
    (snapshot, conditions): (Arc<Snapshot>, Conditions),
    body: &[u8],
) -> Result<Response, Problem> {
    let started = Instant::now();
    let (rows, quantiles) = read_rows(body, ROWS_MAX)?;
    let reader = snapshot.read(conditions);
    let shared = Shared::new(state, &snapshot, quantiles);
    let mut out = Vec::with_capacity(160 + rows.total * 400);
    out.extend_from_slice(b"{\"predictions\":[");
    let mut good = rows.good.iter().peekable();
    for index in 0..rows.total {
        if index > 0 {
            out.push(b',');
        }
        match good.next_if(|(at, _)| *at == index) {
            Some((_, row)) => write(&mut out, &wire(&reader, &shared, row))?,
            None => out.extend_from_slice(b"null"),
        }
    }
    out.extend_from_slice(b"],\"errors\":[");
    for (position, row) in rows.bad.iter().enumerate() {
        if position > 0 {
            out.push(b',');
        }
        let items: Vec<_> =
            row.faults.iter().take(3).map(|fault| fault_item(Some("requests"), row.index, fault)).collect();
        let error = row.faults.first().map(|fault| format!("{}: {}", fault.field, fault.wrong)).unwrap_or_default();
        write(&mut out, &serde_json::json!({ "index": row.index, "error": error, "detail": items }))?;
    }
    finish(&mut out, rows.total, rows.bad_total, started);
    state.metrics.predicted((rows.total - rows.bad_total) as u64);
    Ok(json_bytes(StatusCode::OK, out))
}

fn finish(out: &mut Vec<u8>, total: usize, failed: usize, started: Instant) {
    let ms = started.elapsed().as_secs_f64() * 1e3;
    let tail = format!(
        "],\"engine\":\"{ENGINE}\",\"total_requests\":{total},\"successful_predictions\":{},\"failed_predictions\":{failed},\"processing_time_ms\":{ms:.3}}}",
        total - failed
    );
    out.extend_from_slice(tail.as_bytes());
}

fn write(out: &mut Vec<u8>, value: &impl Serialize) -> Result<(), Problem> {
    serde_json::to_writer(out, value).map_err(|error| Problem::UnreadableBody(error.to_string()))
}

fn read_rows(body: &[u8], told_max: usize) -> Result<(Rows<PredictRow>, Vec<Quantile>), Problem> {
    let limits = Limits { rows_max: ROWS_MAX, told_max };
    let Call { is_object, rows, quantiles } = read_call(body, "requests", limits, RawRow::predict)?;
    let rows = list_of("requests", is_object, rows)?;
    match rows.total {
        0 => Err(Problem::List { field: "requests", wrong: ListWrong::TooShort }),
        total if total > ROWS_MAX => {
            Err(Problem::List { field: "requests", wrong: ListWrong::TooLong { max: ROWS_MAX, rows: total } })
        }
        _ => Ok((rows, quantiles.map_err(Problem::Field)?)),
    }
}

/// The rows of a body, or what is wrong with its frame.
pub(super) fn list_of<T>(field: &'static str, is_object: bool, rows: ListField<T>) -> Result<Rows<T>, Problem> {
    if !is_object {
        return Err(Problem::NotAnObject("the body should be an object with a list of rows"));
    }
    match rows {
        ListField::Absent => Err(Problem::List { field, wrong: ListWrong::Missing }),
        ListField::NotAList => Err(Problem::List { field, wrong: ListWrong::NotAList }),
        ListField::List(rows) => Ok(rows),
    }
}

/// A single row and the quantiles it asks for.
pub(super) fn read_single(body: &[u8]) -> Result<(PredictRow, Vec<Quantile>), Problem> {
    let raw: RawRow = json::parse(body)?;
    let single = |faults: Vec<Fault>| Problem::Rows {
        field: None,
        bad: vec![super::rows::BadRow { index: 0, faults }],
        bad_total: 1,
    };
    let row = raw.predict().map_err(single)?;
    let quantiles = raw.quantiles().map_err(Problem::Field)?;
    Ok((row, quantiles))
}

/// The single answer: both servers' fields.
#[derive(Serialize)]
struct WireSingle<'a> {
    #[serde(flatten)]
    prediction: WirePrediction<'a>,
    ttft_uncertainty: f64,
    tpot_uncertainty: f64,
    ttft_prediction_bounds: [f64; 2],
    tpot_prediction_bounds: [f64; 2],
    engine: &'static str,
}

/// Predicts one row, with the central 80 % of its distribution.
#[utoipa::path(post, path = "/predict", tag = "prediction", request_body = PredictionRow, responses(
    (status = 200, description = "the prediction", body = SinglePrediction),
    (status = 422, description = "which fields are wrong, and the allowed range"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn single(State(state): State<AppState>, JsonBody(body): JsonBody) -> Result<Response, Problem> {
    let (snapshot, conditions) = state.open()?;
    let (row, quantiles) = read_single(&body)?;
    let reader = snapshot.read(conditions);
    let shared = Shared::new(&state, &snapshot, quantiles);
    let estimate = reader.predict(&row.features, row.endpoint.as_ref().map(|name| name.as_str()));
    // Measured, not a fixed share: the central 80 % of the learnt distribution, and half its width.
    let bounds = |target: Target, of: &TargetEstimate| {
        let at = |q: f64| Quantile::try_new(q).map_or(of.q50_ms, |q| reader.quantile_ms(target, of, q));
        [at(0.1), at(0.9)]
    };
    let ttft_bounds = bounds(Target::Ttft, &estimate.ttft);
    let tpot_bounds = bounds(Target::Tpot, &estimate.tpot);
    state.metrics.predicted(1);
    let answer = WireSingle {
        prediction: wire(&reader, &shared, &row),
        ttft_uncertainty: (ttft_bounds[1] - ttft_bounds[0]) / 2.0,
        tpot_uncertainty: (tpot_bounds[1] - tpot_bounds[0]) / 2.0,
        ttft_prediction_bounds: ttft_bounds,
        tpot_prediction_bounds: tpot_bounds,
        engine: ENGINE,
    };
    Ok(json_answer(StatusCode::OK, &answer))
}
