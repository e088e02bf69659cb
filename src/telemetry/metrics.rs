//! Metrics: one documented table, rendered from the service's account and the edge's counters at each scrape.

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

use crate::service::ServiceStatus;
use crate::training::{Accuracy, FitOutcome};
use crate::types::{State, Target};

/// Kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only rises; exposed with the suffix `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Counts by size.
    Histogram,
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// Name, without a counter's `_total`.
    pub name: &'static str,
    /// Kind.
    pub kind: MetricKind,
    /// Labels, each with a bounded set of values.
    pub labels: &'static [&'static str],
    /// What it says.
    pub help: &'static str,
}

const fn metric(name: &'static str, kind: MetricKind, labels: &'static [&'static str], help: &'static str) -> Metric {
    Metric { name, kind, labels, help }
}

use MetricKind::{Counter as C, Gauge as G, Histogram as H};

/// Every metric there is.
pub const METRICS: &[Metric] = &[
    metric("foretoken_build", G, &["version"], "1, with the version as label"),
    metric("foretoken_state", G, &["state"], "1 for the state every answer has at least, 0 for the others"),
    metric("foretoken_ready", G, &[], "1 when answers are usable"),
    metric("foretoken_trained", G, &["target"], "1 when a fitted model serves"),
    metric("foretoken_learning", G, &[], "1 while learning goes on as it should; status says why not"),
    metric("foretoken_generation", G, &[], "number of the serving fit"),
    metric("foretoken_revision", G, &[], "corrections published since that fit"),
    metric("foretoken_snapshot_age_seconds", G, &[], "time since the serving snapshot was made"),
    metric("foretoken_samples_accepted", C, &[], "good samples since the state directory began"),
    metric("foretoken_samples_dropped", C, &[], "good samples dropped because the queue was full"),
    metric("foretoken_samples_refused", C, &["reason"], "samples refused"),
    metric("foretoken_samples_queued", G, &[], "good samples waiting for the trainer"),
    metric("foretoken_samples_stored", G, &["target"], "samples in the store"),
    metric("foretoken_samples_unlogged", C, &[], "accepted samples that are not on disk"),
    metric("foretoken_unknown_roles", C, &[], "rows whose role word is unknown, taken as serving both"),
    metric("foretoken_fits", C, &["outcome"], "fits, by how they ended"),
    metric("foretoken_fit_duration_seconds", G, &[], "duration of the latest fit"),
    metric("foretoken_mape_ratio", G, &["target"], "rolling mean of |median - actual| / actual"),
    metric(
        "foretoken_coverage_ratio",
        G,
        &["target", "quantile"],
        "rolling share of outcomes at or below the quantile",
    ),
    metric("foretoken_pinball_ms", G, &["target", "quantile"], "rolling mean pinball loss"),
    metric("foretoken_promised_mape_ratio", G, &["target"], "the same of what senders say they were promised"),
    metric("foretoken_offset_factor", G, &["target", "quantile"], "online correction in use, as a factor"),
    metric("foretoken_state_dir_ok", G, &[], "1 while the state directory can be written"),
    metric("foretoken_state_dir_failures", C, &[], "failed writes to the state directory"),
    metric("foretoken_sample_log_bytes", G, &[], "size of the sample log"),
    metric("foretoken_sync_connected", G, &[], "predict role: 1 while the trainer answers"),
    metric("foretoken_sync_failures", C, &[], "predict role: failed exchanges with the trainer"),
    metric("foretoken_http_calls", C, &["route", "status"], "calls answered"),
    metric("foretoken_http_call_seconds", H, &[], "duration of POST calls, all routes"),
    metric("foretoken_rows_predicted", C, &[], "rows answered with a prediction"),
    metric("foretoken_resident_memory_bytes", G, &[], "resident memory of this process"),
    metric("model_type", G, &["type"], "1, with the wire's model type as label"),
    metric("objective_type", G, &["type"], "1, with quantile or mean as label"),
    metric("model_quantile", G, &[], "the quantile answered"),
    metric("training_samples_count", G, &["model"], "samples in the store, by target"),
    metric("ttft_coverage_percent", G, &["idx"], "rolling coverage of TTFT p90; idx is always 0"),
    metric("tpot_coverage_percent", G, &["idx"], "rolling coverage of TPOT p90; idx is always 0"),
    metric("ttft_violation_rate_percent", G, &["idx"], "100 - coverage; idx is always 0"),
    metric("tpot_violation_rate_percent", G, &["idx"], "100 - coverage; idx is always 0"),
    metric("ttft_quantile_loss", G, &["idx"], "rolling pinball loss of TTFT p90; idx is always 0"),
    metric("tpot_quantile_loss", G, &["idx"], "rolling pinball loss of TPOT p90; idx is always 0"),
    metric("target_coverage_percent", G, &[], "what coverage of p90 should be"),
    metric("target_violation_rate_percent", G, &[], "what its violation rate should be"),
];

/// Routes that are counted by name; all other paths are one.
const ROUTES: &[&str] = &[
    "/predict",
    "/predict/bulk",
    "/predict/bulk/strict",
    "/explain",
    "/add_training_data_bulk",
    "/flush",
    "/reload",
    "/status",
    "/metrics",
    "/healthz",
    "/readyz",
    "/model/snapshot",
    "/model/download/info",
    "/data/status",
];

const STATUSES: [&str; 6] = ["1xx", "2xx", "3xx", "4xx", "5xx", "other"];

/// Counters of the HTTP edge; updating one takes no lock.
pub struct HttpMetrics {
    calls: Vec<[AtomicU64; STATUSES.len()]>,
    seconds: Histogram,
    rows: AtomicU64,
    unknown_roles: AtomicU64,
}

impl Default for HttpMetrics {
    fn default() -> Self {
        HttpMetrics {
            calls: (0..=ROUTES.len()).map(|_| Default::default()).collect(),
            seconds: Histogram::new(exponential_buckets(0.000_05, 2.0, 18)),
            rows: AtomicU64::new(0),
            unknown_roles: AtomicU64::new(0),
        }
    }
}

impl HttpMetrics {
    /// Counts one answered call, with its duration where that is of interest.
    pub fn call(&self, path: &str, status: u16, took: Option<Duration>) {
        let route = ROUTES.iter().position(|route| *route == path).unwrap_or(ROUTES.len());
        let class = match status / 100 {
            class @ 1..=5 => usize::from(class) - 1,
            _ => STATUSES.len() - 1,
        };
        if let Some(counter) = self.calls.get(route).and_then(|route| route.get(class)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
        if let Some(took) = took {
            self.seconds.observe(took.as_secs_f64());
        }
    }

    /// Counts predicted rows.
    pub fn predicted(&self, rows: u64) {
        self.rows.fetch_add(rows, Ordering::Relaxed);
    }

    /// Counts rows with an unknown role word.
    pub fn unknown_roles(&self, rows: u64) {
        self.unknown_roles.fetch_add(rows, Ordering::Relaxed);
    }
}

type Labels = Vec<(&'static str, String)>;

/// One scrape's registry: the table's metrics, filled from what is known now.
struct Scrape {
    registry: Registry,
}

impl Scrape {
    fn help(name: &str) -> &'static str {
        METRICS.iter().find(|metric| metric.name == name).map_or("", |metric| metric.help)
    }

    fn gauge(&mut self, name: &'static str, series: Vec<(Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, Self::help(name), family);
    }

    fn counter(&mut self, name: &'static str, series: Vec<(Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, Self::help(name), family);
    }

    fn one(&mut self, name: &'static str, value: f64) {
        self.gauge(name, vec![(Vec::new(), value)]);
    }

    fn count(&mut self, name: &'static str, value: u64) {
        self.counter(name, vec![(Vec::new(), value)]);
    }
}

/// The text of one scrape, in the OpenMetrics format.
pub fn exposition(status: &ServiceStatus, http: &HttpMetrics, objective: &'static str, quantile: f64) -> String {
    let mut scrape = Scrape { registry: Registry::default() };
    service_metrics(&mut scrape, status);
    learner_metrics(&mut scrape, status);
    http_metrics(&mut scrape, http);
    wire_metrics(&mut scrape, status, objective, quantile);
    let mut text = String::new();
    let encoded = encode_registry(&mut text, &scrape.registry).and_then(|()| encode_eof(&mut text));
    if encoded.is_err() {
        // Writing into a string has no way to fail; a scrape that says so is still better than a broken one.
        text.clear();
        let _ = writeln!(text, "# EOF");
    }
    text
}

fn flag(value: bool) -> f64 {
    f64::from(u8::from(value))
}

fn label(name: &'static str, value: impl Into<String>) -> Labels {
    vec![(name, value.into())]
}

fn service_metrics(scrape: &mut Scrape, status: &ServiceStatus) {
    scrape.gauge("foretoken_build", vec![(label("version", env!("CARGO_PKG_VERSION")), 1.0)]);
    let states = State::ALL.iter().filter(|state| **state != State::Extrapolating);
    scrape.gauge(
        "foretoken_state",
        states.map(|state| (label("state", state.name()), flag(*state == status.state))).collect(),
    );
    scrape.one("foretoken_ready", flag(status.ready));
    let trained = Target::ALL.iter().zip(status.trained_rows);
    scrape.gauge(
        "foretoken_trained",
        trained.map(|(target, rows)| (label("target", target.name()), flag(rows > 0))).collect(),
    );
    scrape.one("foretoken_learning", flag(status.not_learning_because.is_none()));
    scrape.one("foretoken_generation", status.version.generation.0 as f64);
    scrape.one("foretoken_revision", status.version.revision as f64);
    let age_ms = crate::service::now().since(status.made_at);
    scrape.one("foretoken_snapshot_age_seconds", age_ms as f64 / 1e3);
    scrape.count("foretoken_samples_accepted", status.ingest.accepted);
    scrape.count("foretoken_samples_dropped", status.ingest.dropped);
    let refused = status.ingest.refused.iter();
    scrape.counter(
        "foretoken_samples_refused",
        refused.map(|(reason, count)| (label("reason", *reason), *count)).collect(),
    );
    scrape.one("foretoken_samples_queued", status.ingest.queued as f64);
    scrape.count("foretoken_samples_unlogged", status.persistence.samples_unlogged);
    scrape.one("foretoken_state_dir_ok", flag(status.persistence.ok));
    scrape.count("foretoken_state_dir_failures", status.persistence.failures);
    scrape.one("foretoken_sample_log_bytes", status.persistence.log_bytes as f64);
    let (connected, failures) =
        status.sync.as_ref().map_or((Vec::new(), 0), |sync| (vec![(Vec::new(), flag(sync.connected))], sync.failures));
    scrape.gauge("foretoken_sync_connected", connected);
    scrape.count("foretoken_sync_failures", failures);
    let resident = resident_bytes().map(|bytes| (Vec::new(), bytes)).into_iter().collect();
    scrape.gauge("foretoken_resident_memory_bytes", resident);
}

fn learner_metrics(scrape: &mut Scrape, status: &ServiceStatus) {
    let learner = status.learner.as_ref();
    let targets: Vec<_> = learner.iter().flat_map(|report| report.targets.iter()).collect();
    let by_target = |value: fn(&Accuracy) -> Option<f64>| -> Vec<(Labels, f64)> {
        let rows = targets.iter();
        rows.filter_map(|row| Some((label("target", row.target.name()), value(&row.accuracy)?))).collect()
    };
    let stored = targets.iter().map(|row| (label("target", row.target.name()), row.stored as f64)).collect();
    scrape.gauge("foretoken_samples_stored", stored);
    let fits = learner.map(|report| report.fits).unwrap_or_default();
    scrape.counter(
        "foretoken_fits",
        FitOutcome::ALL.iter().zip(fits).map(|(outcome, count)| (label("outcome", outcome.name()), count)).collect(),
    );
    let duration = status.last_fit_duration_ms.map(|ms| (Vec::new(), ms / 1e3)).into_iter().collect();
    scrape.gauge("foretoken_fit_duration_seconds", duration);
    scrape.gauge("foretoken_mape_ratio", by_target(|accuracy| accuracy.mape));
    let by_quantile = |p50: fn(&Accuracy) -> Option<f64>, p90: fn(&Accuracy) -> Option<f64>| {
        let mut series = Vec::new();
        for row in &targets {
            for (name, value) in [("0.5", p50(&row.accuracy)), ("0.9", p90(&row.accuracy))] {
                let labels = vec![("target", row.target.name().to_string()), ("quantile", name.to_string())];
                series.extend(value.map(|value| (labels, value)));
            }
        }
        series
    };
    scrape.gauge("foretoken_coverage_ratio", by_quantile(|of| of.coverage_p50, |of| of.coverage_p90));
    scrape.gauge("foretoken_pinball_ms", by_quantile(|of| of.pinball_p50_ms, |of| of.pinball_p90_ms));
    let promised = targets.iter();
    scrape.gauge(
        "foretoken_promised_mape_ratio",
        promised.filter_map(|row| Some((label("target", row.target.name()), row.promised.mape?))).collect(),
    );
    let mut offsets = Vec::new();
    for row in &targets {
        for (name, factor) in [("0.5", row.offset_factor[0]), ("0.9", row.offset_factor[1])] {
            offsets.push((vec![("target", row.target.name().to_string()), ("quantile", name.to_string())], factor));
        }
    }
    scrape.gauge("foretoken_offset_factor", offsets);
}

fn http_metrics(scrape: &mut Scrape, http: &HttpMetrics) {
    let mut calls = Vec::new();
    for (route, counters) in http.calls.iter().enumerate() {
        let name = ROUTES.get(route).copied().unwrap_or("other");
        for (class, counter) in STATUSES.iter().zip(counters) {
            let count = counter.load(Ordering::Relaxed);
            if count > 0 {
                calls.push((vec![("route", name.to_string()), ("status", class.to_string())], count));
            }
        }
    }
    scrape.counter("foretoken_http_calls", calls);
    let name = "foretoken_http_call_seconds";
    scrape.registry.register(name, Scrape::help(name), http.seconds.clone());
    scrape.count("foretoken_rows_predicted", http.rows.load(Ordering::Relaxed));
    scrape.count("foretoken_unknown_roles", http.unknown_roles.load(Ordering::Relaxed));
}

fn wire_metrics(scrape: &mut Scrape, status: &ServiceStatus, objective: &'static str, quantile: f64) {
    scrape.gauge("model_type", vec![(label("type", "lightgbm"), 1.0)]);
    scrape.gauge("objective_type", vec![(label("type", objective), 1.0)]);
    scrape.one("model_quantile", quantile);
    let targets: Vec<_> = status.learner.iter().flat_map(|report| report.targets.iter()).collect();
    let stored = targets.iter().map(|row| (label("model", row.target.name()), row.stored as f64)).collect();
    scrape.gauge("training_samples_count", stored);
    for (target, [coverage, violation, loss]) in [
        (Target::Ttft, ["ttft_coverage_percent", "ttft_violation_rate_percent", "ttft_quantile_loss"]),
        (Target::Tpot, ["tpot_coverage_percent", "tpot_violation_rate_percent", "tpot_quantile_loss"]),
    ] {
        let accuracy = targets.iter().find(|row| row.target == target).map(|row| row.accuracy).unwrap_or_default();
        let series = |value: Option<f64>| value.map(|value| (label("idx", "0"), value)).into_iter().collect();
        scrape.gauge(coverage, series(accuracy.coverage_p90.map(|share| 100.0 * share)));
        scrape.gauge(violation, series(accuracy.coverage_p90.map(|share| 100.0 * (1.0 - share))));
        scrape.gauge(loss, series(accuracy.pinball_p90_ms));
    }
    scrape.one("target_coverage_percent", 90.0);
    scrape.one("target_violation_rate_percent", 10.0);
}

/// Resident memory, where the system says it (Linux: the second field of statm, in pages).
fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}
