//! What tests of the service without its edges need: samples, waiting with a deadline, and a port when it is asked for.

use std::time::{Duration, Instant};

use foretoken::http::{AppState, HttpParams, router, serve};
use foretoken::service::{Service, now};
use foretoken::types::{Ask, Features, Manner, Observation, Promised, Quantile, Role, Sample};
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes; reached only when it never comes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Features of the `i`th request of a stream.
pub fn features(i: u32) -> Features {
    Features {
        kv_cache_usage: f64::from(i % 7) / 10.0,
        input_tokens: 200 + i * 389 % 5000,
        requests_waiting: (i % 5).saturating_sub(3),
        requests_running: i % 11,
        prefix_cache_score: 0.0,
        prefill_tokens_in_flight: i * 211 % 4000,
        decode_tokens_in_flight: 0,
        encoder_matched_size: 0,
        encoder_input_size: 0,
        role: Role::Both,
    }
}

fn ttft_ms(i: u32) -> f64 {
    30.0 + f64::from(features(i).input_tokens) * 0.06 + f64::from(i * 7 % 10)
}

fn tpot_ms(i: u32) -> f64 {
    15.0 + f64::from(i % 11)
}

/// What came of that request.
pub fn sample(i: u32) -> Sample {
    Sample::try_new(Sample {
        features: features(i),
        observation: Observation { ttft_ms: Some(ttft_ms(i)), tpot_ms: Some(tpot_ms(i)), output_tokens: 50 },
        endpoint: None,
        observed_at: now(),
        dispatched_at: None,
        promised: Promised::default(),
        manner: Manner::default(),
        fingerprint: None,
    })
    .expect("a good sample")
}

pub fn samples(range: std::ops::Range<u32>) -> Vec<Sample> {
    range.map(sample).collect()
}

/// The median TTFT that a service predicts for one and the same request.
pub fn median_ttft_ms(service: &Service) -> f64 {
    let conditions = service.conditions(Ask::Quantile(Quantile::P50), now());
    service.snapshot().read(conditions).predict(&features(700), None).ttft.value_ms
}

/// Polls until `done`; the message says what never came.
pub async fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < until, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A service behind real sockets in this process.
pub struct Served {
    pub url: String,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    /// Serves on a port of loopback; 0 lets the system choose.
    pub async fn start(service: Service, port: u16) -> Served {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a port on loopback");
        let url = format!("http://{}", listener.local_addr().expect("the bound address"));
        let cancel = CancellationToken::new();
        let params = HttpParams { answer_prior: true, drain_timeout: Duration::ZERO, ..HttpParams::default() };
        let app = router(AppState::new(service, params.clone()));
        let task = tokio::spawn({
            let cancel = cancel.clone();
            async move { serve(vec![listener], app, &params, cancel).await }
        });
        Served { url, cancel, task }
    }

    /// Closes the port and every connection.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("the server ends in order");
    }
}
