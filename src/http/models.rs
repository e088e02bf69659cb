//! The model routes: descriptions for old clients, the snapshot for followers, and how one prediction came about.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Map, Value, json};

use super::auth::Access;
use super::body::Call;
use super::error::{Problem, json_answer};
use super::openapi::PredictionRow;
use super::predict::read_single;
use super::state::AppState;
use super::times::rfc3339;
use super::{ENGINE, MODEL_TYPE};
use crate::snapshot::TargetExplanation;
use crate::types::Target;

/// Longest a follower may have its question held open.
const WAIT_MS_MAX: u64 = 60_000;

/// Names the incumbent knows. Only the first two exist here.
const NAMES: [&str; 6] = ["ttft", "tpot", "ttft_scaler", "tpot_scaler", "ttft_gated", "tpot_gated"];

fn target_of(name: &str) -> Option<Target> {
    Target::ALL.into_iter().find(|target| target.name() == name)
}

/// What kind of model this is, for clients that would fetch one.
#[utoipa::path(get, path = "/model/download/info", tag = "model", responses((status = 200, description = "description")))]
pub async fn download_info(State(state): State<AppState>) -> Response {
    let status = state.service.status();
    let answer = json!({
        "model_type": MODEL_TYPE, "quantile": state.params.quantile.get(),
        "available_endpoints": { "snapshot": "/model/snapshot" },
        "model_status": {
            "ttft_model_ready": status.trained_rows[0] > 0, "tpot_model_ready": status.trained_rows[1] > 0,
        },
        "evaluation_info": {
            "quantile_loss": "mean pinball loss over the latest predictions",
            "coverage_percent": "share of outcomes at or below the predicted quantile",
            "violation_rate_percent": "share of outcomes above the predicted quantile",
        },
        "engine": ENGINE, "generation": status.version.generation.0, "state": status.state.name(),
    });
    json_answer(StatusCode::OK, &answer)
}

fn info(state: &AppState, name: &str) -> Option<Value> {
    let target = target_of(name)?;
    let snapshot = state.service.snapshot();
    if snapshot.models.common(target).rows == 0 {
        return None;
    }
    let encoded = state.service.encoded();
    Some(json!({
        "model_name": name, "path": format!("{name}.snapshot"), "size_bytes": encoded.bytes.len(),
        "last_modified": snapshot.provenance.fitted_at.map(rfc3339), "exists": true,
        "model_type": MODEL_TYPE, "quantile": state.params.quantile.get(), "engine": ENGINE,
        "generation": snapshot.version.generation.0, "rows": snapshot.models.common(target).rows,
        "etag": encoded.etag,
    }))
}

fn not_found(name: &str) -> Problem {
    let known = NAMES.contains(&name);
    let name: String = name.chars().take(60).collect();
    Problem::NotFound(if known { format!("Model {name} not found") } else { format!("Unknown model: {name}") })
}

/// Facts about one model.
#[utoipa::path(get, path = "/model/{name}/info", tag = "model", params(("name" = String, Path, description = "ttft or tpot")), responses(
    (status = 200, description = "facts"), (status = 404, description = "unknown, or not fitted yet"),
))]
pub async fn model_info(State(state): State<AppState>, Path(name): Path<String>) -> Result<Response, Problem> {
    info(&state, &name).map(|answer| json_answer(StatusCode::OK, &answer)).ok_or_else(|| not_found(&name))
}

/// The snapshot that holds the model (both targets in one bundle).
#[utoipa::path(get, path = "/model/{name}/download", tag = "model", params(("name" = String, Path, description = "ttft or tpot")), responses(
    (status = 200, description = "snapshot bytes"), (status = 404, description = "unknown, or not fitted yet"),
))]
pub async fn download(State(state): State<AppState>, Path(name): Path<String>) -> Result<Response, Problem> {
    let target = target_of(&name).ok_or_else(|| not_found(&name))?;
    if state.service.snapshot().models.common(target).rows == 0 {
        return Err(not_found(&name));
    }
    Ok(snapshot_answer(&state, Some(&format!("{name}.snapshot"))))
}

/// All models the wire knows, and whether they exist.
#[utoipa::path(get, path = "/models/list", tag = "model", responses((status = 200, description = "the list")))]
pub async fn list(State(state): State<AppState>) -> Response {
    let models: Map<String, Value> = NAMES
        .iter()
        .map(|name| {
            let found = info(&state, name);
            let entry = json!({
                "exists": found.is_some(),
                "size_bytes": found.as_ref().map_or(json!(0), |info| info["size_bytes"].clone()),
                "last_modified": found.as_ref().map_or(Value::Null, |info| info["last_modified"].clone()),
            });
            (name.to_string(), entry)
        })
        .collect();
    let target = state.params.quantile.get() * 100.0;
    let answer = json!({
        "models": models, "model_type": MODEL_TYPE, "quantile": state.params.quantile.get(),
        "server_time": rfc3339(crate::service::now()),
        "evaluation_metrics": {
            "quantile_loss": "Lower is better", "coverage_percent": format!("Target: {target:.1}%"),
            "violation_rate_percent": format!("Target: {:.1}%", 100.0 - target),
        },
        "engine": ENGINE,
    });
    json_answer(StatusCode::OK, &answer)
}

/// Trees of another engine: there are none here.
#[utoipa::path(get, path = "/model/{name}/xgb/json", tag = "model", params(("name" = String, Path, description = "ttft or tpot")), responses(
    (status = 404, description = "the model is not XGBoost"),
))]
pub async fn xgb_trees(Path(name): Path<String>) -> Problem {
    match target_of(&name) {
        Some(target) => Problem::NotFound(format!("{} model is not XGBoost", target.name().to_uppercase())),
        None => not_found(&name),
    }
}

/// LightGBM's text form: there is none; the snapshot is the only export.
#[utoipa::path(get, path = "/model/{name}/lgb/txt", tag = "model", params(("name" = String, Path, description = "ttft or tpot")), responses(
    (status = 404, description = "there is no such export; use /model/snapshot"),
))]
pub async fn lgb_text(Path(name): Path<String>) -> Problem {
    match target_of(&name) {
        Some(target) => Problem::NotFound(format!(
            "{} has no LightGBM text form; the model is exported by /model/snapshot",
            target.name().to_uppercase()
        )),
        None => not_found(&name),
    }
}

/// Each base column's coefficient at the median, ms per unit: what stands in for importances.
#[utoipa::path(get, path = "/model/{name}/lgb/importances", tag = "model", params(("name" = String, Path, description = "ttft or tpot")), responses(
    (status = 200, description = "column to coefficient"), (status = 404, description = "unknown, or not fitted yet"),
))]
pub async fn importances(State(state): State<AppState>, Path(name): Path<String>) -> Result<Response, Problem> {
    let target = target_of(&name).ok_or_else(|| not_found(&name))?;
    let snapshot = state.service.snapshot();
    let model = snapshot.models.common(target);
    if model.rows == 0 {
        return Err(not_found(&name));
    }
    let answer: Map<String, Value> =
        model.coefficients(0).map(|(column, [middle, _])| (column.to_string(), json!(middle))).collect();
    Ok(json_answer(StatusCode::OK, &answer))
}

/// The serving snapshot in its byte form, with an entity tag; 304 while a tag in `if-none-match` is the newest, after
/// waiting up to `wait_ms` for a newer one.
#[utoipa::path(get, path = "/model/snapshot", tag = "model", params(("wait_ms" = Option<u64>, Query, description = "longest wait for something newer, ms, at most 60,000")), responses(
    (status = 200, description = "snapshot bytes"), (status = 304, description = "nothing newer"),
    (status = 422, description = "wait_ms is no whole number"),
))]
pub async fn snapshot(State(state): State<AppState>, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let limit = wait(uri.query().unwrap_or_default())?;
    let serving = state.service.encoded();
    if is_known(&headers, &serving.etag) {
        let changed = tokio::select! {
            changed = state.service.changed(serving.version, limit) => changed,
            // A process that stops holds no question open.
            () = state.stopping.cancelled() => false,
        };
        if !changed {
            return Ok((StatusCode::NOT_MODIFIED, [(header::ETAG, header_text(&serving.etag))]).into_response());
        }
    }
    Ok(snapshot_answer(&state, None))
}

/// `wait_ms` of a query; absent means no wait.
fn wait(query: &str) -> Result<Duration, Problem> {
    let Some(text) = query.split('&').find_map(|pair| pair.strip_prefix("wait_ms=")) else {
        return Ok(Duration::ZERO);
    };
    let ms: u64 = text.parse().map_err(|_| Problem::Query { field: "wait_ms", hint: "a whole number of ms" })?;
    Ok(Duration::from_millis(ms.min(WAIT_MS_MAX)))
}

/// Whether one of the tags the caller holds is this one (weak comparison, as `if-none-match` wants it).
fn is_known(headers: &HeaderMap, etag: &str) -> bool {
    let lists = headers.get_all(header::IF_NONE_MATCH).iter().filter_map(|list| list.to_str().ok());
    lists.flat_map(|list| list.split(',')).map(str::trim).any(|tag| tag == "*" || tag.trim_start_matches("W/") == etag)
}

/// The same snapshot as a file to keep: `foretoken inspect` reads it, `serve --seed-snapshot` starts from it.
#[utoipa::path(get, path = "/model/export", tag = "model", responses(
    (status = 200, description = "snapshot bytes, as an attachment; serve --seed-snapshot starts another sidecar from them"), (status = 503, description = "nothing was fitted yet"),
))]
pub async fn export(State(state): State<AppState>) -> Result<Response, Problem> {
    let snapshot = state.service.snapshot();
    if Target::ALL.iter().all(|&target| snapshot.models.common(target).rows == 0) {
        return Err(Problem::NotReady("nothing was fitted yet".to_string()));
    }
    Ok(snapshot_answer(&state, Some("foretoken.snapshot")))
}

fn snapshot_answer(state: &AppState, file_name: Option<&str>) -> Response {
    let encoded = state.service.encoded();
    let mut response = Response::new(Body::from(Bytes::from_owner(encoded.bytes)));
    let headers = response.headers_mut();
    headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/octet-stream"));
    headers.insert(header::ETAG, header_text(&encoded.etag));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Some(name) = file_name {
        headers.insert(header::CONTENT_DISPOSITION, header_text(&format!("attachment; filename=\"{name}\"")));
    }
    response
}

/// Tags and file names of ours are plain ASCII.
fn header_text(text: &str) -> HeaderValue {
    HeaderValue::from_str(text).unwrap_or(HeaderValue::from_static(""))
}

/// Shows how one prediction came about, in parts that make up the answer.
#[utoipa::path(post, path = "/explain", tag = "prediction", request_body = PredictionRow, responses(
    (status = 200, description = "the derivation of both targets"),
    (status = 422, description = "which fields are wrong, and the allowed range"),
    (status = 503, description = "nothing can be predicted yet"),
))]
pub async fn explain(State(state): State<AppState>, request: Request) -> Result<Response, Problem> {
    let call = Call::read(&state, request, Access::Open).await?;
    let state = state.clone();
    call.compute(move |body| derivation(&state, body)).await
}

fn derivation(state: &AppState, body: &str) -> Result<Response, Problem> {
    let (row, _) = read_single(state, body)?;
    let (snapshot, conditions) = state.open()?;
    let endpoint = row.endpoint.as_ref().map(|name| name.as_str());
    let explanation = snapshot.read(conditions).explain(&row.features, endpoint);
    let mut reasons = state.service.row_reasons(&snapshot, conditions.now);
    let (standing, reason) = reasons.of(&row.features, endpoint, &explanation.estimate);
    let answer = json!({
        "generation": snapshot.version.generation.0, "revision": snapshot.version.revision,
        "state": standing.name(), "reason": reason,
        "engine": ENGINE,
        "formula": "log(q) = ln base + regime + fade * residual + endpoint + offset; answer = exp(log(p50) + k * spread)",
        "ttft": explanation_json(&explanation.ttft), "tpot": explanation_json(&explanation.tpot),
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// One target's derivation as JSON, the same for the route and for the command.
pub fn explanation_json(of: &TargetExplanation) -> Value {
    let pair = |values: [f64; 2]| json!({ "p50": values[0], "p90": values[1] });
    let columns: Vec<Value> = of
        .columns
        .iter()
        .map(|column| {
            json!({
                "column": column.column, "value": column.value,
                "coefficient_ms": pair(column.coefficient_ms), "contribution_ms": pair(column.contribution_ms),
            })
        })
        .collect();
    json!({
        "answer_ms": of.estimate.value_ms, "p50_ms": of.estimate.q50_ms, "spread_log": of.estimate.spread,
        "state": of.estimate.state.name(), "extrapolating": of.estimate.extrapolating,
        "base": { "columns": columns, "base_ms": pair(of.base_ms) },
        "regime": { "name": of.regime, "log": pair(of.regime_log) },
        "answered_by_role": of.answered_by.name(),
        "residual": { "log": pair(of.residual_log), "fade": of.fade, "trees": { "p50": of.trees[0], "p90": of.trees[1] } },
        "endpoint": { "log": of.endpoint_log, "factor": of.endpoint_log.exp() },
        "offset": { "log": pair(of.offset_log), "from": of.offset_from },
        "widening_log": of.widening, "k": of.k,
    })
}
