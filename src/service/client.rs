//! A small HTTP/1 client with a connection pool, a limit on every body and a deadline on every call: what a follower
//! asks its trainer with, and the demo its sidecar. No TLS.

use std::error::Error;
use std::time::Duration;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};

/// Longest time to establish a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);

/// A silent connection is asked for a sign of life after this time, then as often and as long as the next two say: a
/// peer that vanished without a word is noticed within about ten seconds.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_RETRIES: u32 = 3;

/// How long an unused connection is kept.
const POOL_IDLE_TIMEOUT: Duration = Duration::from_secs(60);

/// Why a call came to nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClientError {
    /// Not a URL this client can call.
    #[error("{url} is not a URL of the form http://host:port ({reason})")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer: connection refused, reset, an answer that is not HTTP. In the words of the innermost cause.
    #[error("{0}")]
    Transport(String),
    /// No answer within the limit.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// An answer over the limit.
    #[error("the answer is longer than {0} bytes")]
    TooLong(usize),
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// The client; cheap to clone, connections are shared. Calls need a tokio runtime.
#[derive(Clone, Debug)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
    body_bytes_max: usize,
}

impl Client {
    /// A client for one server, `http://host[:port]`, with a path in front of every other if need be. It reads answers
    /// up to `body_bytes_max` bytes.
    ///
    /// # Errors
    /// [`ClientError::Url`].
    pub fn try_new(base: &str, body_bytes_max: usize) -> Result<Self, ClientError> {
        let base = base.trim().trim_end_matches('/').to_string();
        let refuse = |reason: &str| ClientError::Url { url: base.clone(), reason: reason.to_string() };
        let uri: Uri = base.parse().map_err(|error: hyper::http::uri::InvalidUri| refuse(&error.to_string()))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => return Err(refuse("https is not spoken here; put a mesh or a tunnel in between")),
            _ => return Err(refuse("the scheme is missing or unknown")),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(refuse("the host is missing"));
        }
        if uri.query().is_some() {
            return Err(refuse("it has a query"));
        }
        let mut connector = HttpConnector::new();
        connector.set_connect_timeout(Some(CONNECT_TIMEOUT));
        connector.set_nodelay(true);
        connector.set_keepalive(Some(KEEPALIVE_AFTER));
        connector.set_keepalive_interval(Some(KEEPALIVE_INTERVAL));
        connector.set_keepalive_retries(Some(KEEPALIVE_RETRIES));
        let pool = Pool::builder(TokioExecutor::new())
            .pool_idle_timeout(POOL_IDLE_TIMEOUT)
            .pool_timer(TokioTimer::new())
            .build(connector);
        Ok(Client { pool, base, body_bytes_max })
    }

    /// The server's URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET with extra headers and a limit on the time of the whole call.
    ///
    /// # Errors
    /// See [`ClientError`]; any status is an answer.
    pub async fn get(&self, path: &str, headers: &[(&str, &str)], timeout: Duration) -> Result<Answer, ClientError> {
        self.call(Method::GET, path, headers, Bytes::new(), timeout).await
    }

    /// POST of a JSON body.
    ///
    /// # Errors
    /// See [`ClientError`]; any status is an answer.
    pub async fn post_json(&self, path: &str, body: Vec<u8>, timeout: Duration) -> Result<Answer, ClientError> {
        self.call(Method::POST, path, &[("content-type", "application/json")], Bytes::from(body), timeout).await
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&str, &str)],
        body: Bytes,
        timeout: Duration,
    ) -> Result<Answer, ClientError> {
        let url = format!("{}{path}", self.base);
        let mut request = Request::builder().method(method).uri(&url);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request =
            request.body(Full::new(body)).map_err(|error| ClientError::Url { url, reason: error.to_string() })?;
        tokio::time::timeout(timeout, self.exchange(request)).await.map_err(|_| ClientError::Timeout(timeout))?
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Answer, ClientError> {
        let answer = self.pool.request(request).await.map_err(|error| ClientError::Transport(root_cause(&error)))?;
        let (head, body) = answer.into_parts();
        let body = Limited::new(body, self.body_bytes_max).collect().await.map_err(|error| {
            if error.downcast_ref::<LengthLimitError>().is_some() {
                ClientError::TooLong(self.body_bytes_max)
            } else {
                ClientError::Transport(root_cause(&*error))
            }
        })?;
        Ok(Answer { status: head.status, headers: head.headers, body: body.to_bytes() })
    }
}

/// The innermost error says what happened ("connection refused"); the outer ones only that something did.
fn root_cause(error: &(dyn Error + 'static)) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    // "Connection refused (os error 111)": neither the capital nor the number helps.
    let text = cause.to_string();
    let words = text.split(" (os error").next().unwrap_or_default();
    let mut letters = words.chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::Router;
    use axum::routing::{get, post};

    const LIMIT: Duration = Duration::from_secs(30);

    async fn serve() -> String {
        let echo = async |headers: HeaderMap, body: String| {
            let kind = headers.get("content-type").and_then(|value| value.to_str().ok()).unwrap_or("none").to_string();
            (StatusCode::CREATED, [("x-kind", kind)], body)
        };
        let app = Router::new()
            .route("/long", get(async || "x".repeat(1_001)))
            .route("/fits", get(async || "x".repeat(1_000)))
            .route("/never", get(std::future::pending::<String>))
            .route("/below/echo", post(echo));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move { axum::serve(listener, app).await });
        format!("http://{address}")
    }

    #[tokio::test]
    async fn a_call_brings_status_headers_and_body() {
        let base = serve().await;
        let client = Client::try_new(&format!(" {base}/below/ "), 1_000).unwrap();
        for _ in 0..3 {
            let answer = client.post_json("/echo", b"{}".to_vec(), LIMIT).await.unwrap();
            assert_eq!((answer.status, &*answer.body), (StatusCode::CREATED, &b"{}"[..]));
            assert_eq!(answer.headers["x-kind"], "application/json");
        }
        assert_eq!(client.get("/nowhere", &[], LIMIT).await.unwrap().status, StatusCode::NOT_FOUND);
    }

    #[tokio::test]
    async fn a_body_over_the_limit_is_not_read_to_its_end() {
        let client = Client::try_new(&serve().await, 1_000).unwrap();
        assert_eq!(client.get("/fits", &[], LIMIT).await.unwrap().body.len(), 1_000);
        assert_eq!(client.get("/long", &[], LIMIT).await.unwrap_err(), ClientError::TooLong(1_000));
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_at_its_limit() {
        let client = Client::try_new(&serve().await, 1_000).unwrap();
        let limit = Duration::from_millis(20);
        assert_eq!(client.get("/never", &[], limit).await.unwrap_err(), ClientError::Timeout(limit));
    }

    #[tokio::test]
    async fn what_went_wrong_is_said_in_plain_words() {
        let free = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let client = Client::try_new(&format!("http://{free}"), 9).unwrap();
        assert_eq!(client.get("/", &[], LIMIT).await.unwrap_err().to_string(), "connection refused");
        let header = client.get("/", &[("x-said", "a\nb")], LIMIT).await.unwrap_err();
        assert!(matches!(header, ClientError::Url { .. }), "{header}");
    }

    #[test]
    fn a_url_that_cannot_work_is_refused_with_its_reason() {
        for (url, reason) in [
            ("https://trainer", "https is not spoken here"),
            ("ftp://trainer", "the scheme is missing or unknown"),
            ("trainer:8000", "the scheme is missing or unknown"),
            ("/trainer", "the scheme is missing or unknown"),
            ("http://trainer?x=1", "it has a query"),
            ("", "empty"),
            ("http://tr ainer", "invalid"),
        ] {
            let refused = Client::try_new(url, 0).unwrap_err().to_string();
            assert!(refused.contains(reason), "{url}: {refused}");
        }
    }
}
