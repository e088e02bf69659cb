//! The text of one scrape, in the OpenMetrics format, from the service's account and the edge's counters.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;

use super::calls::HttpMetrics;
use super::table::help;
use crate::service::ServiceStatus;
use crate::training::{Accuracy, FitOutcome, Reason, Survey, TargetReport};
use crate::types::{Role, State, Target};

/// Everything a scrape shows.
pub struct Scraped<'a> {
    /// The service's account.
    pub status: &'a ServiceStatus,
    /// What the store holds; `None` on a follower, or while the trainer is busy.
    pub survey: Option<&'a Survey>,
    /// The edge's counters.
    pub http: &'a HttpMetrics,
    /// The wire's `model_type`.
    pub model_type: &'static str,
    /// The wire's `objective_type`, `quantile` or `mean`.
    pub objective_type: &'static str,
    /// The quantile answered.
    pub quantile: f64,
}

impl Scraped<'_> {
    /// Coverage and pinball loss of what is answered, where it is one of the two quantiles that are scored.
    fn of_the_answered_quantile(&self, accuracy: &Accuracy) -> (Option<f64>, Option<f64>) {
        match (self.objective_type, self.quantile) {
            ("quantile", 0.9) => (accuracy.coverage_p90, accuracy.pinball_p90_ms),
            ("quantile", 0.5) => (accuracy.coverage_p50, accuracy.pinball_p50_ms),
            _ => (None, None),
        }
    }
}

/// The text of one scrape.
pub fn exposition(scraped: &Scraped<'_>) -> String {
    let mut scrape = Scrape { registry: Registry::default() };
    service_metrics(&mut scrape, scraped.status);
    learner_metrics(&mut scrape, scraped.status);
    http_metrics(&mut scrape, scraped.http);
    wire_metrics(&mut scrape, scraped);
    let mut text = String::new();
    let encoded = encode_registry(&mut text, &scrape.registry).and_then(|()| encode_eof(&mut text));
    if encoded.is_err() {
        // Writing into a string has no way to fail; a scrape that is empty is still better than a broken one.
        text = "# EOF\n".to_string();
    }
    text
}

type Labels = Vec<(&'static str, String)>;

/// One scrape's registry: the table's metrics, filled from what is known now.
struct Scrape {
    registry: Registry,
}

impl Scrape {
    fn gauge(&mut self, name: &'static str, series: Vec<(Labels, f64)>) {
        let family = Family::<Labels, Gauge<f64, AtomicU64>>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).set(value);
        }
        self.registry.register(name, help(name), family);
    }

    fn counter(&mut self, name: &'static str, series: Vec<(Labels, u64)>) {
        let family = Family::<Labels, Counter>::default();
        for (labels, value) in series {
            family.get_or_create(&labels).inc_by(value);
        }
        self.registry.register(name, help(name), family);
    }

    fn one(&mut self, name: &'static str, value: f64) {
        self.gauge(name, vec![(Vec::new(), value)]);
    }

    fn count(&mut self, name: &'static str, value: u64) {
        self.counter(name, vec![(Vec::new(), value)]);
    }
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
    let all: Vec<_> = learner.iter().flat_map(|report| report.targets.iter()).collect();
    // Series by target are those of role both, which is every deployment that does not split prefill from decode.
    let targets: Vec<_> = all.iter().copied().filter(|row| row.role == Role::Both).collect();
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
    let pairs = |value: fn(&TargetReport) -> [f64; 2]| -> Vec<(Labels, f64)> {
        let each =
            targets.iter().flat_map(|row| ["0.5", "0.9"].into_iter().zip(value(row)).map(|pair| (row.target, pair)));
        each.map(|(target, (quantile, value))| {
            (vec![("target", target.name().to_string()), ("quantile", quantile.to_string())], value)
        })
        .collect()
    };
    scrape.gauge("foretoken_residual_trees", pairs(|row| row.trees.map(|trees| trees as f64)));
    scrape.gauge("foretoken_tracker_gain", pairs(|row| row.tracker_gain));
    let beyond = targets.iter();
    scrape.gauge(
        "foretoken_extrapolating_ratio",
        beyond.filter_map(|row| Some((label("target", row.target.name()), row.extrapolating_share?))).collect(),
    );
    let alarms = all.iter().map(|row| {
        (vec![("target", row.target.name().to_string()), ("role", row.role.name().to_string())], row.alarms)
    });
    scrape.counter("foretoken_alarms", alarms.collect());
    let scales = targets.iter().flat_map(|row| row.scales.iter().map(|scale| (row.target, scale)));
    let scales = scales.map(|(target, scale)| {
        let endpoint = scale.endpoint.as_str().to_string();
        (vec![("target", target.name().to_string()), ("endpoint", endpoint)], scale.log_scale.exp())
    });
    scrape.gauge("foretoken_endpoint_scale", scales.collect());
    let doubted = Reason::ALL
        .iter()
        .map(|reason| (label("reason", reason.name()), learner.map_or(0, |report| report.screen.count(*reason))));
    scrape.counter("foretoken_samples_doubted", doubted.collect());
}

fn http_metrics(scrape: &mut Scrape, http: &HttpMetrics) {
    let label_pair = |route: &str, class: &str| vec![("route", route.to_string()), ("status", class.to_string())];
    let calls = http.counts().map(|(route, class, count)| (label_pair(route, class), count)).collect();
    scrape.counter("foretoken_http_calls", calls);
    let name = "foretoken_http_call_seconds";
    let routes: BTreeMap<&'static str, Histogram> =
        http.durations().map(|(route, histogram)| (route, histogram.clone())).collect();
    scrape.registry.register_collector(Box::new(Durations { name, routes }));
    scrape.count("foretoken_rows_predicted", http.rows());
    scrape.count("foretoken_unknown_roles", http.roles());
}

/// The incumbent's names that dashboards read.
fn wire_metrics(scrape: &mut Scrape, scraped: &Scraped<'_>) {
    scrape.gauge("model_type", vec![(label("type", scraped.model_type), 1.0)]);
    scrape.gauge("objective_type", vec![(label("type", scraped.objective_type), 1.0)]);
    scrape.one("model_quantile", scraped.quantile);
    let targets: Vec<_> = scraped.status.learner.iter().flat_map(|report| report.targets.iter()).collect();
    for (target, [coverage, violation, loss]) in [
        (Target::Ttft, ["ttft_coverage_percent", "ttft_violation_rate_percent", "ttft_quantile_loss"]),
        (Target::Tpot, ["tpot_coverage_percent", "tpot_violation_rate_percent", "tpot_quantile_loss"]),
    ] {
        let accuracy = targets.iter().find(|row| row.target == target).map(|row| row.accuracy).unwrap_or_default();
        let (share, pinball) = scraped.of_the_answered_quantile(&accuracy);
        let series = |value: Option<f64>| value.map(|value| (label("idx", "0"), value)).into_iter().collect();
        scrape.gauge(coverage, series(share.map(|share| 100.0 * share)));
        scrape.gauge(violation, series(share.map(|share| 100.0 * (1.0 - share))));
        scrape.gauge(loss, series(pinball));
    }
    if scraped.objective_type == "quantile" {
        scrape.one("target_coverage_percent", 100.0 * scraped.quantile);
        scrape.one("target_violation_rate_percent", 100.0 - 100.0 * scraped.quantile);
    }
    store_metrics(scrape, scraped.survey);
}

fn store_metrics(scrape: &mut Scrape, survey: Option<&Survey>) {
    const RANGES: [&str; 4] = ["0.00-0.25", "0.25-0.50", "0.50-0.75", "0.75-1.00"];
    let [mut all, mut queue, mut cache, mut prefix] = [(); 4].map(|()| BTreeMap::<Labels, usize>::new());
    for (target, stored) in Target::ALL.iter().zip(survey.iter().flat_map(|survey| &survey.targets)) {
        for (bucket, count) in &stored.buckets {
            let model = ("model", target.name().to_string());
            let by_queue = ("queue_bucket", bucket.queue.to_string());
            let by_cache = ("cache_bucket", bucket.cache.to_string());
            let by_prefix = ("prefix_bucket", bucket.prefix.to_string());
            let range = RANGES.get(usize::from(bucket.prefix)).copied().unwrap_or_default();
            *all.entry(vec![model.clone()]).or_default() += count;
            *queue.entry(vec![model.clone(), by_queue]).or_default() += count;
            *cache.entry(vec![model.clone(), by_cache]).or_default() += count;
            *prefix.entry(vec![model, by_prefix, ("range", range.to_string())]).or_default() += count;
        }
    }
    for (name, series) in [
        ("training_samples_count", all),
        ("training_samples_queue_total", queue),
        ("training_samples_cache_total", cache),
        ("training_samples_prefix_total", prefix),
    ] {
        scrape.gauge(name, series.into_iter().map(|(labels, count)| (labels, count as f64)).collect());
    }
}

/// The edge's histograms, one series per route.
#[derive(Debug)]
struct Durations {
    name: &'static str,
    routes: BTreeMap<&'static str, Histogram>,
}

impl Collector for Durations {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut family = encoder.encode_descriptor(self.name, help(self.name), None, MetricType::Histogram)?;
        for (route, histogram) in &self.routes {
            histogram.encode(family.encode_family(&[("route", *route)])?)?;
        }
        Ok(())
    }
}

/// Resident memory, where the system says it (Linux: the second field of statm, in pages).
fn resident_bytes() -> Option<f64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: f64 = text.split_whitespace().nth(1)?.parse().ok()?;
    Some(pages * rustix::param::page_size() as f64)
}
