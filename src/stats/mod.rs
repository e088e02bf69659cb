//! Small statistics that know nothing of requests: scores, quantiles, the normal distribution.

mod normal;
mod quantile;
mod scores;

pub use normal::normal_quantile;
pub use quantile::{quantile_of, quantile_of_sorted};
pub use scores::{Scores, mean, pinball};
