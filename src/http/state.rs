//! What every handler is given, and what the edge is configured with.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::service::{Service, now};
use crate::snapshot::{Conditions, Snapshot};
use crate::telemetry::HttpMetrics;
use crate::types::{Ask, Quantile};

use super::body::BodyBudget;
use super::error::Problem;
use super::health::discreet;

/// How many bodies of the largest size may be in memory at once.
const LARGEST_BODIES: usize = 8;

/// Checked parameters of the HTTP edge.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpParams {
    /// The number answers carry: a quantile, or the mean.
    pub ask: Ask,
    /// The quantile reported as `quantile`, also when the mean is answered.
    pub quantile: Quantile,
    /// Whether to answer from shipped default constants before anything was learnt.
    pub answer_prior: bool,
    /// Largest request body, before and after decompression, bytes.
    pub body_bytes_max: usize,
    /// Calls in progress beyond which new ones are shed.
    pub calls_max: usize,
    /// Longest a call may take, its body included.
    pub call_timeout: Duration,
    /// How long an idle connection is kept.
    pub idle_timeout: Duration,
    /// Open connections beyond which new ones wait.
    pub connections_max: usize,
    /// How long calls in progress may take to end at shutdown.
    pub drain_timeout: Duration,
    /// Token that state-changing calls need, if any.
    pub admin_token: Option<String>,
    /// Token that samples need, if any.
    pub ingest_token: Option<String>,
    /// How often a follower asks its trainer, as reported to old clients, s.
    pub sync_interval_s: f64,
}

impl Default for HttpParams {
    fn default() -> Self {
        HttpParams {
            ask: Ask::Quantile(Quantile::P90),
            quantile: Quantile::P90,
            answer_prior: false,
            body_bytes_max: 32 << 20,
            calls_max: 1024,
            call_timeout: Duration::from_secs(30),
            idle_timeout: Duration::from_secs(120),
            connections_max: 20_000,
            drain_timeout: Duration::from_secs(10),
            admin_token: None,
            ingest_token: None,
            sync_interval_s: 10.0,
        }
    }
}

impl HttpParams {
    /// `quantile` or `mean`, the wire's `objective_type`.
    pub fn objective_type(&self) -> &'static str {
        match self.ask {
            Ask::Quantile(_) => "quantile",
            Ask::Mean => "mean",
        }
    }
}

/// Shared by all handlers.
#[derive(Clone)]
pub struct AppState {
    /// The service behind the edge.
    pub service: Service,
    /// Parameters.
    pub params: Arc<HttpParams>,
    /// Counters of the edge.
    pub metrics: Arc<HttpMetrics>,
    /// Room for calls in progress.
    pub room: Arc<Semaphore>,
    /// Threads for large bodies: as many as there are cores, so that a few large calls do not starve the many small.
    pub heavy: Arc<Semaphore>,
    /// Memory for bodies.
    pub bodies: Arc<BodyBudget>,
    /// Fires when the process begins to stop: it is not ready any more, and no question is held open.
    pub stopping: CancellationToken,
    /// The API's description, rendered once.
    pub openapi: Arc<str>,
}

impl AppState {
    /// Wires the edge to a service.
    pub fn new(service: Service, params: HttpParams) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        AppState {
            service,
            heavy: Arc::new(Semaphore::new(cores)),
            bodies: Arc::new(BodyBudget::new(params.body_bytes_max.saturating_mul(LARGEST_BODIES))),
            stopping: CancellationToken::new(),
            room: Arc::new(Semaphore::new(params.calls_max)),
            params: Arc::new(params),
            metrics: Arc::new(HttpMetrics::new(super::ROUTES)),
            openapi: Arc::from(super::openapi::document()),
        }
    }

    /// The snapshot for one call and the conditions to read it under, or why nothing can be answered yet.
    ///
    /// # Errors
    /// When there is no fitted model and no prior that may answer.
    pub fn open(&self) -> Result<(Arc<Snapshot>, Conditions), Problem> {
        if !self.params.answer_prior && !self.service.is_ready() {
            return Err(Problem::NotReady(discreet(self.service.status()).ready_reason));
        }
        Ok((self.service.snapshot(), self.service.conditions(self.params.ask, now())))
    }
}
