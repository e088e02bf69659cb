//! The sidecar's HTTP API: both servers of the incumbent on one set of routes, and our own beside them.
//!
//! Handlers load the snapshot once per call; the connection loop is in [`serve`].

mod auth;
mod batch;
mod body;
mod error;
mod guard;
mod health;
mod json;
mod lax;
mod manner;
mod models;
mod openapi;
mod patience;
mod predict;
mod rows;
mod server;
mod state;
mod times;
mod training;

pub use error::ERROR_BYTES_MAX;
pub use models::explanation_json;
pub use openapi::document as openapi_document;
pub use server::serve;
pub use state::{AppState, HttpParams};

use axum::Router;
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::middleware::from_fn_with_state;
use axum::response::{Html, IntoResponse, Response};
use axum::routing::{get, post};

use self::error::Problem;

/// The wire's `model_type`: with it the incumbent's clients fetch no model and stay on HTTP.
pub const MODEL_TYPE: &str = "lightgbm";

/// The wire's `engine`: who really answers.
pub const ENGINE: &str = "foretoken";

/// Every route and its one method, the busiest first.
pub const ROUTES: &[(&str, &str)] = &[
    ("/predict/bulk/strict", "POST"),
    ("/predict", "POST"),
    ("/predict/bulk", "POST"),
    ("/add_training_data_bulk", "POST"),
    ("/", "GET"),
    ("/healthz", "GET"),
    ("/readyz", "GET"),
    ("/status", "GET"),
    ("/metrics", "GET"),
    ("/reload", "POST"),
    ("/explain", "POST"),
    ("/flush", "POST"),
    ("/data/status", "GET"),
    ("/debug/prefix_distribution", "GET"),
    ("/models/list", "GET"),
    ("/model/download/info", "GET"),
    ("/model/export", "GET"),
    ("/model/snapshot", "GET"),
    ("/model/{name}/info", "GET"),
    ("/model/{name}/download", "GET"),
    ("/model/{name}/xgb/json", "GET"),
    ("/model/{name}/lgb/txt", "GET"),
    ("/model/{name}/lgb/importances", "GET"),
    ("/openapi.json", "GET"),
    ("/docs", "GET"),
    ("/redoc", "GET"),
];

/// All routes over the given state.
pub fn router(state: AppState) -> Router {
    let description = state.openapi.clone();
    let page = || async { Html(openapi::page()) };
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
        .route("/model/snapshot", get(models::snapshot))
        .route("/model/{name}/info", get(models::model_info))
        .route("/model/{name}/download", get(models::download))
        .route("/model/{name}/xgb/json", get(models::xgb_trees))
        .route("/model/{name}/lgb/txt", get(models::lgb_text))
        .route("/model/{name}/lgb/importances", get(models::importances))
        .route("/openapi.json", get(move || async move { openapi::answer(&description) }))
        .route("/docs", get(page))
        .route("/redoc", get(page))
        .method_not_allowed_fallback(|| async { Problem::MethodNotAllowed })
        .layer(from_fn_with_state(state.clone(), guard::guard))
        .with_state(state)
}

/// The route a path belongs to, and its method.
fn route_of(path: &str) -> Option<(&'static str, &'static str)> {
    ROUTES.iter().find(|(route, _)| matches(route, path)).copied()
}

/// Sends a known path with a trailing slash to the path without it, whatever the method.
fn redirect(uri: &Uri) -> Option<Response> {
    let path = uri.path().strip_suffix('/').filter(|path| path.len() > 1)?;
    route_of(path)?;
    let location = match uri.query() {
        Some(query) => format!("{path}?{query}"),
        None => path.to_string(),
    };
    let location = HeaderValue::from_str(&location).ok()?;
    Some((StatusCode::TEMPORARY_REDIRECT, [(header::LOCATION, location)]).into_response())
}

fn matches(route: &str, path: &str) -> bool {
    if !route.contains('{') {
        return route == path;
    }
    let same = |(route, path): (&str, &str)| route == path || (route.starts_with('{') && !path.is_empty());
    route.split('/').count() == path.split('/').count() && route.split('/').zip(path.split('/')).all(same)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_known_paths_lose_their_slash() {
        let location = |uri: &str| {
            let response = redirect(&uri.parse().unwrap())?;
            Some(response.headers()[header::LOCATION].to_str().unwrap().to_string())
        };
        assert_eq!(location("/readyz/").as_deref(), Some("/readyz"));
        assert_eq!(location("/model/ttft/info/?a=b").as_deref(), Some("/model/ttft/info?a=b"));
        for unknown in ["/nope/", "//", "//evil.example/", "/readyz//", "/model//info/", "/"] {
            assert_eq!(location(unknown), None, "{unknown}");
        }
    }
}
