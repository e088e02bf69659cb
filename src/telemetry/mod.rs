//! What a process shows of itself to a monitoring system and to a log.

mod calls;
mod exposition;
mod logging;
mod table;

pub use calls::HttpMetrics;
pub use exposition::{Scraped, exposition};
pub use logging::{LogFormat, init as init_logging};
pub use table::{METRICS, Metric, MetricKind};
