//! What a process shows of itself to a monitoring system and to a log.

mod logging;
mod metrics;

pub use logging::{LogFormat, init as init_logging};
pub use metrics::{HttpMetrics, METRICS, Metric, MetricKind, exposition};
