//! The sidecar's HTTP API: both servers of the incumbent on one set of routes, and our own beside them.
//!
//! Handlers load the snapshot once per call; the connection loop is in [`serve`].

mod body;
mod error;
mod health;
mod json;
mod lax;
mod models;
mod openapi;
mod predict;
mod rows;
mod server;
mod state;
mod times;
mod training;

pub use models::explanation_json;
pub use openapi::document as openapi_document;
pub use server::serve;
pub use state::{AppState, HttpParams};

use std::time::Instant;

use axum::Router;
use axum::extract::{Request, State};
use axum::http::{HeaderValue, Method, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};

use self::error::Problem;

/// The wire's `model_type`: with it the incumbent's clients fetch no model and stay on HTTP.
pub const MODEL_TYPE: &str = "lightgbm";

/// The wire's `engine`: who really answers.
pub const ENGINE: &str = "foretoken";

/// The route whose question may be held open, and so is exempt from limits on time and number.
const LONG_POLL: &str = "/model/snapshot";

/// All routes over the given state.
pub fn router(state: AppState) -> Router {
    let description = state.openapi.clone();
    Router::new()
        .route("/", get(health::root))
        .route("/healthz", get(health::healthz))
        .route("/readyz", get(health::readyz))
        .route("/status", get(health::status))
        .route("/metrics", get(health::metrics))
        .route("/reload", post(health::reload))
        .route("/predict", post(predict::single))
        .route("/predict/bulk", post(predict::bulk))
        .route("/predict/bulk/strict", post(predict::bulk_strict))
        .route("/explain", post(models::explain))
        .route("/add_training_data_bulk", post(training::add))
        .route("/flush", post(training::flush))
        .route("/data/status", get(training::data_status))
        .route("/debug/prefix_distribution", get(training::prefix_distribution))
        .route("/models/list", get(models::list))
        .route("/model/download/info", get(models::download_info))
        .route("/model/export", get(models::export))
        .route(LONG_POLL, get(models::snapshot))
        .route("/model/{name}/info", get(models::model_info))
        .route("/model/{name}/download", get(models::download))
        .route("/model/{name}/xgb/json", get(models::xgb_trees))
        .route("/model/{name}/lgb/txt", get(models::lgb_text))
        .route("/model/{name}/lgb/importances", get(models::importances))
        .route("/openapi.json", get(move || async move { json_text(description.to_string()) }))
        .fallback(unknown)
        .method_not_allowed_fallback(|| async { Problem::MethodNotAllowed })
        .layer(from_fn_with_state(state.clone(), guard))
        .with_state(state)
}

fn json_text(text: String) -> Response {
    error::json_bytes(StatusCode::OK, text.into_bytes())
}

/// Unknown paths; one with a trailing slash is sent to the path without it.
async fn unknown(request: Request) -> Response {
    let path = request.uri().path();
    let trimmed = path.trim_end_matches('/');
    if trimmed.len() < path.len()
        && !trimmed.is_empty()
        && !trimmed.starts_with("//")
        && let Ok(location) = HeaderValue::from_str(trimmed)
    {
        return (StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response();
    }
    Problem::NotFound("Not Found".to_string()).into_response()
}

/// Round every call: room or shedding, a time limit, the trace header, and the counters.
async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let trace = request.headers().get("traceparent").cloned();
    let route = request.uri().path().to_string();
    let counted = request.method() == Method::POST;
    let mut response = if route == LONG_POLL {
        next.run(request).await
    } else {
        match state.room.try_acquire() {
            Err(_) => Problem::Overloaded.into_response(),
            Ok(_held) => match tokio::time::timeout(state.params.call_timeout, next.run(request)).await {
                Ok(response) => response,
                Err(_) => Problem::TimedOut { limit_ms: state.params.call_timeout.as_millis() as u64 }.into_response(),
            },
        }
    };
    if let Some(trace) = trace {
        response.headers_mut().insert("traceparent", trace);
    }
    state.metrics.call(&route, response.status().as_u16(), counted.then(|| started.elapsed()));
    response
}
