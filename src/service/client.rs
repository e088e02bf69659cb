//! A small pooled HTTP/1 client: what a follower asks its trainer with, and the demo its sidecar.

use std::time::Duration;

use http_body_util::{BodyExt, Full, Limited};
use hyper::body::Bytes;
use hyper::{HeaderMap, Method, Request, StatusCode, Uri};
use hyper_util::client::legacy::Client as Pool;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;

/// Why a call came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Not a URL this client can call.
    #[error("{url} is not a URL of the form http://host:port ({reason})")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        reason: String,
    },
    /// No answer: connection refused, reset, an answer that is not HTTP.
    #[error("{0}")]
    Transport(String),
    /// No answer within the limit.
    #[error("no answer within {} ms", .0.as_millis())]
    Timeout(Duration),
    /// An answer larger than the limit, or cut short.
    #[error("cannot read the answer: {0}")]
    Body(String),
}

/// An answer.
#[derive(Clone, Debug)]
pub struct Answer {
    /// Status.
    pub status: StatusCode,
    /// Headers.
    pub headers: HeaderMap,
    /// Body.
    pub body: Bytes,
}

/// The client; cheap to clone, connections are shared.
#[derive(Clone)]
pub struct Client {
    pool: Pool<HttpConnector, Full<Bytes>>,
    base: String,
    body_bytes_max: usize,
}

impl Client {
    /// A client for one server, `http://host[:port]`, without a path.
    ///
    /// # Errors
    /// [`ClientError::Url`].
    pub fn try_new(base: &str, body_bytes_max: usize) -> Result<Self, ClientError> {
        let base = base.trim_end_matches('/').to_string();
        let refuse = |reason: String| ClientError::Url { url: base.clone(), reason };
        let uri: Uri = base.parse().map_err(|error| refuse(format!("{error}")))?;
        match uri.scheme_str() {
            Some("http") => {}
            Some("https") => {
                return Err(refuse(
                    "https is not spoken between a trainer and its followers; use a mesh or a tunnel for that".into(),
                ));
            }
            _ => return Err(refuse("the scheme is missing or unknown".into())),
        }
        if uri.host().is_none_or(str::is_empty) {
            return Err(refuse("the host is missing".into()));
        }
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(Duration::from_secs(3)));
        let pool = Pool::builder(TokioExecutor::new()).pool_idle_timeout(Duration::from_secs(60)).build(connector);
        Ok(Client { pool, base, body_bytes_max })
    }

    /// The server's URL.
    pub fn base(&self) -> &str {
        &self.base
    }

    /// GET with optional extra headers.
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
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request
            .body(Full::new(body))
            .map_err(|error| ClientError::Url { url: format!("{}{path}", self.base), reason: error.to_string() })?;
        let exchange = async {
            let response =
                self.pool.request(request).await.map_err(|error| ClientError::Transport(root_cause(&error)))?;
            let (head, body) = response.into_parts();
            let body = Limited::new(body, self.body_bytes_max)
                .collect()
                .await
                .map_err(|error| ClientError::Body(error.to_string()))?
                .to_bytes();
            Ok(Answer { status: head.status, headers: head.headers, body })
        };
        tokio::time::timeout(timeout, exchange).await.map_err(|_| ClientError::Timeout(timeout))?
    }
}

/// The innermost error says what happened ("connection refused"); the outer ones only that something did.
fn root_cause(error: &dyn std::error::Error) -> String {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    cause.to_string()
}
