//! The one table of metrics: what there is, of which kind, with which labels. The exposition is checked against it.

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
    metric("foretoken_residual_trees", G, &["target", "quantile"], "residual trees of the serving model of role both"),
    metric("foretoken_tracker_gain", G, &["target", "quantile"], "speed of the online correction in use; 0: none"),
    metric("foretoken_extrapolating_ratio", G, &["target"], "rolling share of requests beyond the trained range"),
    metric("foretoken_alarms", C, &["target", "role"], "changes of regime noticed"),
    metric("foretoken_endpoint_scale", G, &["target", "endpoint"], "times as slow as the pool's median endpoint"),
    metric("foretoken_samples_doubted", C, &["reason"], "samples that were not simply learnt from"),
    metric("foretoken_state_dir_ok", G, &[], "1 while the state directory can be written"),
    metric("foretoken_state_dir_failures", C, &[], "failed writes to the state directory"),
    metric("foretoken_sample_log_bytes", G, &[], "size of the sample log"),
    metric("foretoken_sync_connected", G, &[], "predict role: 1 while the trainer answers"),
    metric("foretoken_sync_failures", C, &[], "predict role: failed exchanges with the trainer"),
    metric("foretoken_http_calls", C, &["route", "status"], "calls answered"),
    metric("foretoken_http_call_seconds", H, &["route"], "duration of POST calls"),
    metric("foretoken_rows_predicted", C, &[], "rows answered with a prediction"),
    metric("foretoken_resident_memory_bytes", G, &[], "resident memory of this process"),
    metric("model_type", G, &["type"], "1, with the wire's model type as label"),
    metric("objective_type", G, &["type"], "1, with quantile or mean as label"),
    metric("model_quantile", G, &[], "the quantile answered"),
    metric("training_samples_count", G, &["model"], "samples in the store, by target"),
    metric("training_samples_queue_total", G, &["model", "queue_bucket"], "samples in the store, by waiting requests"),
    metric("training_samples_cache_total", G, &["model", "cache_bucket"], "samples in the store, by KV use"),
    metric(
        "training_samples_prefix_total",
        G,
        &["model", "prefix_bucket", "range"],
        "samples in the store, by prefix score",
    ),
    metric("ttft_coverage_percent", G, &["idx"], "rolling coverage of the quantile answered; idx is always 0"),
    metric("tpot_coverage_percent", G, &["idx"], "rolling coverage of the quantile answered; idx is always 0"),
    metric("ttft_violation_rate_percent", G, &["idx"], "100 - coverage; idx is always 0"),
    metric("tpot_violation_rate_percent", G, &["idx"], "100 - coverage; idx is always 0"),
    metric("ttft_quantile_loss", G, &["idx"], "rolling pinball loss of the quantile answered; idx is always 0"),
    metric("tpot_quantile_loss", G, &["idx"], "rolling pinball loss of the quantile answered; idx is always 0"),
    metric("target_coverage_percent", G, &[], "what coverage should be"),
    metric("target_violation_rate_percent", G, &[], "what the violation rate should be"),
];

/// What a metric of the table says.
pub(super) fn help(name: &str) -> &'static str {
    METRICS.iter().find(|metric| metric.name == name).map_or("", |metric| metric.help)
}
