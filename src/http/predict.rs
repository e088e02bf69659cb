//! The prediction routes: one row, all or nothing, and row by row.
//!
//! Answers are written straight into one buffer: what all rows of a call share is rendered once and copied.

use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use serde_json::json;

use super::auth::Access;
use super::batch::{self, BadRow, Limits, Rows};
use super::body::Call;
use super::error::{ListWrong, Problem, fault_item, json_bytes, message};
use super::openapi::{BulkPrediction, BulkPredictionRequest, PredictionRow, SinglePrediction};
use super::rows::{PredictRow, RawRow};
use super::state::AppState;
use super::times::rfc3339;
use super::{ENGINE, MODEL_TYPE};
use crate::service::{RowReasons, now};
use crate::snapshot::{Reader, Snapshot};
use crate::types::{Estimate, Quantile, Role, Target, TargetEstimate, UnixMs};

/// Rows per prediction call.
pub const ROWS_MAX: usize = 10_000;

/// Bytes reserved per answered row; measured answers have 330 to 380.
const ROW_BYTES: usize = 400;

/// Bad rows of a strict call that are kept to be told.
const STRICT_TOLD: usize = 6;

/// Faults told per row of the lenient route.
const FAULTS_TOLD: usize = 3;

/// The answer being written.
struct Answer<'a> {
    out: Vec<u8>,
    reader: &'a Reader<'a>,
    quantiles: &'a [Quantile],
    /// What every row says between its numbers and its state.
    shared: Vec<u8>,
    /// In which state rows are, and why.
    reasons: RowReasons<'a>,
}

impl<'a> Answer<'a> {
    fn new(
        state: &'a AppState,
        snapshot: &'a Snapshot,
        at: UnixMs,
        reader: &'a Reader<'a>,
        quantiles: &'a [Quantile],
        rows: usize,
    ) -> Result<Self, Problem> {
        let params = &state.params;
        let mut shared = Vec::with_capacity(256);
        text(&mut shared, ",\"predicted_at\":", &rfc3339(now()))?;
        text(&mut shared, ",\"model_type\":", MODEL_TYPE)?;
        text(&mut shared, ",\"objective_type\":", params.objective_type())?;
        text(&mut shared, ",\"quantile\":", &params.quantile.get())?;
        text(&mut shared, ",\"last_model_load\":", &snapshot.provenance.fitted_at.map(rfc3339))?;
        text(&mut shared, ",\"generation\":", &snapshot.version.generation.0)?;
        let reasons = state.service.row_reasons(snapshot, at);
        let row_bytes = ROW_BYTES + quantiles.len() * 60;
        Ok(Answer { out: Vec::with_capacity(200 + rows * row_bytes), reader, quantiles, shared, reasons })
    }

    fn literal(&mut self, literal: &str) {
        self.out.extend_from_slice(literal.as_bytes());
    }

    /// One prediction, without its closing brace.
    fn prediction(&mut self, row: &PredictRow) -> Result<Estimate, Problem> {
        let endpoint = row.endpoint.as_ref().map(|name| name.as_str());
        let estimate = self.reader.predict(&row.features, endpoint);
        text(&mut self.out, "{\"ttft_ms\":", &estimate.ttft.value_ms)?;
        text(&mut self.out, ",\"tpot_ms\":", &estimate.tpot.value_ms)?;
        self.out.extend_from_slice(&self.shared);
        let (standing, reason) = self.reasons.of(&row.features, endpoint, &estimate);
        text(&mut self.out, ",\"state\":", standing.name())?;
        text(&mut self.out, ",\"reason\":", reason)?;
        if !self.quantiles.is_empty() {
            self.literal(",\"quantiles\":{\"ttft_ms\":");
            self.asked(row.features.role, Target::Ttft, &estimate.ttft)?;
            self.literal(",\"tpot_ms\":");
            self.asked(row.features.role, Target::Tpot, &estimate.tpot)?;
            self.literal("}");
        }
        Ok(estimate)
    }

    /// The quantiles asked for beside the configured one: `{"0.5":93.1,..}`.
    fn asked(&mut self, role: Role, target: Target, estimate: &TargetEstimate) -> Result<(), Problem> {
        for (position, quantile) in self.quantiles.iter().enumerate() {
            self.literal(if position == 0 { "{" } else { "," });
            text(&mut self.out, "", &quantile.get().to_string())?;
            text(&mut self.out, ":", &self.reader.quantile_ms(role, target, estimate, *quantile))?;
        }
        self.literal("}");
        Ok(())
    }

    fn finish(mut self, total: usize, failed: usize, started: Instant) -> Result<Response, Problem> {
        text(&mut self.out, ",\"engine\":", ENGINE)?;
        text(&mut self.out, ",\"total_requests\":", &total)?;
        text(&mut self.out, ",\"successful_predictions\":", &(total - failed))?;
        text(&mut self.out, ",\"failed_predictions\":", &failed)?;
        text(&mut self.out, ",\"processing_time_ms\":", &(started.elapsed().as_secs_f64() * 1e3))?;
        self.literal("}");
        Ok(json_bytes(StatusCode::OK, self.out))
    }
}

/// Appends a key (with its punctuation) and a value.
fn text<T: Serialize + ?Sized>(out: &mut Vec<u8>, key: &str, value: &T) -> Result<(), Problem> {
    out.extend_from_slice(key.as_bytes());
    // Numbers, strings and plain objects always serialise.
    serde_json::to_writer(out, value).map_err(|_| Problem::Internal)
}

/// Predicts every row, or refuses the whole call.
#[utoipa::path(post, path = "/predict/bulk/strict", tag = "prediction", request_body = BulkPredictionRequest, responses(
    (status = 200, description = "one prediction per row, in order", body = BulkPrediction),
    (status = 422, description = "which rows and fields are wrong, and the allowed range"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn bulk_strict(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Open).await?;
    let state = state.clone();
    call.compute(move |body| strict(&state, body)).await
}

/// Predicts the good rows; each bad one answers null and has an entry in `errors`.
#[utoipa::path(post, path = "/predict/bulk", tag = "prediction", request_body = BulkPredictionRequest, responses(
    (status = 200, description = "one prediction or null per row, in order, and the errors", body = BulkPrediction),
    (status = 422, description = "the list itself is wrong"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn bulk(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Open).await?;
    let state = state.clone();
    call.compute(move |body| lenient(&state, body)).await
}

fn strict(state: &AppState, body: &str) -> Result<Response, Problem> {
    let started = Instant::now();
    let (rows, quantiles) = read_rows(state, body, STRICT_TOLD, false)?;
    if !rows.all_good() {
        return Err(Problem::Rows { field: Some("requests"), bad: rows.bad, bad_total: rows.bad_total });
    }
    let (snapshot, conditions) = state.open()?;
    let reader = snapshot.read(conditions);
    let mut answer = Answer::new(state, &snapshot, conditions.now, &reader, &quantiles, rows.total)?;
    answer.literal("{\"predictions\":[");
    for (index, row) in &rows.good {
        answer.literal(if *index == 0 { "" } else { "," });
        answer.prediction(row)?;
        answer.literal("}");
    }
    answer.literal("]");
    state.metrics.predicted(rows.total as u64);
    answer.finish(rows.total, 0, started)
}

fn lenient(state: &AppState, body: &str) -> Result<Response, Problem> {
    let started = Instant::now();
    let (rows, quantiles) = read_rows(state, body, ROWS_MAX, true)?;
    let (snapshot, conditions) = state.open()?;
    let reader = snapshot.read(conditions);
    let mut answer = Answer::new(state, &snapshot, conditions.now, &reader, &quantiles, rows.total)?;
    answer.literal("{\"predictions\":[");
    let mut good = rows.good.iter().peekable();
    for index in 0..rows.total {
        answer.literal(if index == 0 { "" } else { "," });
        match good.next_if(|(at, _)| *at == index) {
            Some((_, row)) => {
                answer.prediction(row)?;
                answer.literal("}");
            }
            None => answer.literal("null"),
        }
    }
    answer.literal("],\"errors\":[");
    for (position, bad) in rows.bad.iter().enumerate() {
        answer.literal(if position == 0 { "" } else { "," });
        text(&mut answer.out, "", &row_error(bad))?;
    }
    answer.literal("]");
    state.metrics.predicted((rows.total - rows.bad_total) as u64);
    answer.finish(rows.total, rows.bad_total, started)
}

/// What the lenient route says of a bad row: all of it for the first ones, later only what is wrong.
fn row_error(bad: &BadRow) -> serde_json::Value {
    let error = match bad.faults.first() {
        Some(fault) if fault.field.is_empty() => message(fault),
        Some(fault) => format!("{}: {}", fault.field, message(fault)),
        None => String::new(),
    };
    let mut entry = json!({ "index": bad.index, "error": error, "request": bad.row });
    if bad.row.is_some() {
        let faults = bad.faults.iter().take(FAULTS_TOLD);
        entry["detail"] = faults.map(|fault| fault_item(Some("requests"), bad.index, fault)).collect();
    }
    entry
}

fn read_rows(
    state: &AppState,
    body: &str,
    told_max: usize,
    echo: bool,
) -> Result<(Rows<PredictRow>, Vec<Quantile>), Problem> {
    let limits = Limits { rows_max: ROWS_MAX, told_max, echo };
    let (rows, quantiles) = batch::read(body, "requests", limits, |raw: &RawRow<'_>| raw.predict())?;
    state.metrics.unknown_roles(rows.unknown_roles);
    match rows.total {
        0 => Err(Problem::List { field: "requests", wrong: ListWrong::TooShort }),
        total if total > ROWS_MAX => {
            Err(Problem::List { field: "requests", wrong: ListWrong::TooLong { max: ROWS_MAX, rows: total } })
        }
        _ => Ok((rows, quantiles.map_err(Problem::Field)?)),
    }
}

/// A single row and the quantiles it asks for.
pub(super) fn read_single(state: &AppState, body: &str) -> Result<(PredictRow, Vec<Quantile>), Problem> {
    let read = |raw: &RawRow<'_>| (raw.predict(), raw.quantiles(), raw.role_is_known());
    let (row, quantiles, role_is_known) = batch::read_one(body, read)?;
    let refuse =
        |faults| Problem::Rows { field: None, bad: vec![BadRow { index: 0, faults, row: None }], bad_total: 1 };
    let row = row.map_err(refuse)?;
    state.metrics.unknown_roles(u64::from(!role_is_known));
    Ok((row, quantiles.map_err(Problem::Field)?))
}

/// Predicts one row, with the central 80 % of its distribution.
#[utoipa::path(post, path = "/predict", tag = "prediction", request_body = PredictionRow, responses(
    (status = 200, description = "the prediction", body = SinglePrediction),
    (status = 422, description = "which fields are wrong, and the allowed range"),
    (status = 503, description = "nothing can be predicted yet, or the process is overloaded"),
))]
pub async fn single(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Open).await?;
    let state = state.clone();
    call.compute(move |body| one(&state, body)).await
}

fn one(state: &AppState, body: &str) -> Result<Response, Problem> {
    let (row, quantiles) = read_single(state, body)?;
    let (snapshot, conditions) = state.open()?;
    let reader = snapshot.read(conditions);
    let mut answer = Answer::new(state, &snapshot, conditions.now, &reader, &quantiles, 2)?;
    let estimate = answer.prediction(&row)?;
    for (target, of) in [(Target::Ttft, &estimate.ttft), (Target::Tpot, &estimate.tpot)] {
        let [low, high] = central(&reader, row.features.role, target, of);
        let name = target.name();
        text(&mut answer.out, &format!(",\"{name}_uncertainty\":"), &((high - low) / 2.0))?;
        text(&mut answer.out, &format!(",\"{name}_prediction_bounds\":"), &[low, high])?;
    }
    text(&mut answer.out, ",\"engine\":", ENGINE)?;
    answer.literal("}");
    state.metrics.predicted(1);
    Ok(json_bytes(StatusCode::OK, answer.out))
}

/// The central 80 % of the learnt distribution: measured, not a fixed share of the answer. Reaches to the answer where
/// that lies outside.
fn central(reader: &Reader<'_>, role: Role, target: Target, of: &TargetEstimate) -> [f64; 2] {
    let at = |q: f64| Quantile::try_new(q).map_or(of.value_ms, |q| reader.quantile_ms(role, target, of, q));
    [at(0.1).min(of.value_ms), at(0.9).max(of.value_ms)]
}
