//! A small HTTP/1 client with a connection pool, a limit on every body and a deadline on every call. No TLS.

use std::error::Error;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::header::{HeaderMap, HeaderName, HeaderValue};
use hyper::{Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Longest time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// An idle connection is asked for a sign of life after this time, then as often and as long as the next two say: a
/// peer that vanished without a word is noticed within about ten seconds.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;

/// How long an unused connection is kept.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(90);

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// The URL is not one this client can call.
    #[error("cannot call {0}: only http://host[:port]/path is supported")]
    Url(String),
    /// A header value with forbidden bytes.
    #[error("header {0} has a value that HTTP does not allow")]
    Header(&'static str),
    /// No answer in time.
    #[error("no answer within {0} ms")]
    Timeout(u64),
    /// The answer is longer than the limit, bytes.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
    /// The connection failed; the innermost cause, in the operating system's words where it has some.
    #[error("{0}")]
    Connection(String),
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Reply {
    /// Status code.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

impl Reply {
    /// A header's value, when it is there and is text.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

/// The client. Cheap to clone; clones share the pool. Needs a tokio runtime when called.
#[derive(Clone, Debug)]
pub struct HttpClient {
    inner: Client<HttpConnector, Full<Bytes>>,
    body_bytes_max: usize,
}

impl HttpClient {
    /// A client that reads answers up to `body_bytes_max` bytes.
    pub fn new(body_bytes_max: usize) -> Self {
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let inner = Client::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        HttpClient { inner, body_bytes_max }
    }

    /// `GET`, with extra headers and a deadline for the whole call.
    ///
    /// # Errors
    /// [`ClientError`]. Any status is an answer and not an error.
    pub async fn get(
        &self,
        uri: &Uri,
        headers: &[(&'static str, &str)],
        deadline: Duration,
    ) -> Result<Reply, ClientError> {
        self.call(Method::GET, uri, headers, Bytes::new(), deadline).await
    }

    /// `POST` of a body, with extra headers (the content type is one of them) and a deadline for the whole call.
    ///
    /// # Errors
    /// [`ClientError`]. Any status is an answer and not an error.
    pub async fn post(
        &self,
        uri: &Uri,
        headers: &[(&'static str, &str)],
        body: impl Into<Bytes>,
        deadline: Duration,
    ) -> Result<Reply, ClientError> {
        self.call(Method::POST, uri, headers, body.into(), deadline).await
    }

    async fn call(
        &self,
        method: Method,
        uri: &Uri,
        headers: &[(&'static str, &str)],
        body: Bytes,
        deadline: Duration,
    ) -> Result<Reply, ClientError> {
        if uri.scheme_str() != Some("http") {
            return Err(ClientError::Url(uri.to_string()));
        }
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = method;
        *request.uri_mut() = uri.clone();
        for &(name, value) in headers {
            let value = HeaderValue::from_str(value).map_err(|_| ClientError::Header(name))?;
            request.headers_mut().insert(HeaderName::from_static(name), value);
        }
        match tokio::time::timeout(deadline, self.exchange(request)).await {
            Ok(outcome) => outcome,
            Err(_) => Err(ClientError::Timeout(u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX))),
        }
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Reply, ClientError> {
        let answer = self.inner.request(request).await.map_err(|error| ClientError::Connection(innermost(&error)))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, self.body_bytes_max).collect().await.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                ClientError::TooLong(self.body_bytes_max)
            } else {
                ClientError::Connection(innermost(&*error))
            }
        })?;
        Ok(Reply { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

/// The innermost cause, which names what happened; the outer layers only say that something did.
fn innermost(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    let text = cause.to_string();
    // "Connection refused (os error 111)": the number helps nobody.
    let words = text.split(" (os error").next().unwrap_or_default().to_string();
    let mut letters = words.chars();
    letters.next().map_or(words.clone(), |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::{get, post};

    const DEADLINE: Duration = Duration::from_secs(30);

    async fn serve() -> String {
        let app = Router::new()
            .route("/long", get(|| async { "x".repeat(1_001) }))
            .route("/fits", get(|| async { "x".repeat(1_000) }))
            .route("/never", get(std::future::pending::<String>))
            .route(
                "/echo",
                post(|headers: HeaderMap, body: String| async move {
                    let said =
                        headers.get("x-said").and_then(|value| value.to_str().ok()).unwrap_or("nothing").to_string();
                    (StatusCode::CREATED, [("x-heard", said)], body)
                }),
            );
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}")
    }

    fn uri(base: &str, path: &str) -> Uri {
        format!("{base}{path}").parse().unwrap()
    }

    #[tokio::test]
    async fn a_call_brings_status_headers_and_body() {
        let base = serve().await;
        let client = HttpClient::new(1_000);
        for _ in 0..3 {
            let reply = client.post(&uri(&base, "/echo"), &[("x-said", "hello")], "body", DEADLINE).await.unwrap();
            assert_eq!(
                (reply.status, reply.header("x-heard"), &*reply.body),
                (StatusCode::CREATED, Some("hello"), &b"body"[..])
            );
        }
        assert_eq!(client.get(&uri(&base, "/nowhere"), &[], DEADLINE).await.unwrap().status, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read_to_its_end() {
        let base = serve().await;
        let client = HttpClient::new(1_000);
        assert_eq!(client.get(&uri(&base, "/fits"), &[], DEADLINE).await.unwrap().body.len(), 1_000);
        assert_eq!(client.get(&uri(&base, "/long"), &[], DEADLINE).await.unwrap_err(), ClientError::TooLong(1_000));
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_at_its_deadline() {
        let base = serve().await;
        let outcome = HttpClient::new(9).get(&uri(&base, "/never"), &[], Duration::from_millis(20)).await;
        assert_eq!(outcome.unwrap_err(), ClientError::Timeout(20));
    }

    #[tokio::test]
    async fn what_went_wrong_is_said_in_plain_words() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let client = HttpClient::new(9);
        let refused = client.get(&uri(&format!("http://{free}"), "/"), &[], DEADLINE).await.unwrap_err();
        assert_eq!(refused.to_string(), "connection refused");
        let tls = client.get(&uri("https://localhost", "/"), &[], DEADLINE).await.unwrap_err();
        assert!(tls.to_string().starts_with("cannot call https://localhost/"), "{tls}");
        let header = client.get(&uri("http://localhost:1", "/"), &[("x-said", "a\nb")], DEADLINE).await.unwrap_err();
        assert_eq!(header, ClientError::Header("x-said"));
    }
}
