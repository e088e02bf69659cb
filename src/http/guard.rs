//! Round every call: methods, panics, the trace header, and the counters.

use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::pin;
use std::task::Poll;
use std::time::Instant;

use axum::extract::{Request, State};
use axum::http::{HeaderName, HeaderValue, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::error::Problem;
use super::state::AppState;
use super::{redirect, route_of};

const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Passes a call on and accounts for it.
pub async fn guard(State(state): State<AppState>, request: Request, next: Next) -> Response {
    let started = Instant::now();
    let trace = request.headers().get(TRACE_PARENT).cloned();
    let route = route_of(request.uri().path());
    let timed = request.method() == Method::POST;
    // The wire has no HEAD; the router would answer it as a GET.
    let mut response = match route {
        None => redirect(request.uri()).unwrap_or_else(|| Problem::NotFound("Not Found".to_string()).into_response()),
        Some(_) if request.method() == Method::HEAD => Problem::MethodNotAllowed.into_response(),
        Some(_) => caught(next.run(request)).await,
    };
    if response.status() == StatusCode::METHOD_NOT_ALLOWED
        && let Some((_, method)) = route
    {
        response.headers_mut().insert(header::ALLOW, HeaderValue::from_static(method));
    }
    if let Some(trace) = trace {
        response.headers_mut().insert(TRACE_PARENT, trace);
    }
    let route = route.map_or("other", |(path, _)| path);
    state.metrics.call(route, response.status().as_u16(), timed.then(|| started.elapsed()));
    response
}

/// A panic costs the call it happened in, and nothing else.
async fn caught(call: impl Future<Output = Response>) -> Response {
    let mut call = pin!(call);
    std::future::poll_fn(|context| {
        catch_unwind(AssertUnwindSafe(|| call.as_mut().poll(context)))
            .unwrap_or_else(|_| Poll::Ready(Problem::Internal.into_response()))
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_answer() {
        let response = caught(async { panic!("a fault of ours") }).await;
        assert_eq!(response.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }
}
