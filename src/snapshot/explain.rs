//! How one prediction came about, in parts whose product is the answer.

use super::{Reader, Snapshot};
use crate::types::{Estimate, Features, Target, TargetEstimate};

/// One term of the base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contribution {
    /// Name of the column.
    pub column: &'static str,
    /// Its value for this row, in the column's unit.
    pub value: f64,
    /// Fitted coefficient, ms per unit.
    pub coefficient_ms: f64,
    /// Their product, ms.
    pub contribution_ms: f64,
}

/// One target's derivation: `value = base * exp(regime + residual * fade + offset + k * spread)`.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetExplanation {
    /// Which.
    pub target: Target,
    /// The base's terms.
    pub columns: Vec<Contribution>,
    /// Sum of the contributions, at least 1 ms.
    pub base_ms: f64,
    /// `no_queue`, `queued` or `all`.
    pub regime: &'static str,
    /// Log correction of the regime at p50 and p90.
    pub regime_log: [f64; 2],
    /// Log correction of the residual model at p50 and p90; 0 while there is none.
    pub residual_log: [f64; 2],
    /// Factor on the residual beyond the trained range, 1 inside it.
    pub fade: f64,
    /// Online log offset at p50 and p90.
    pub offset_log: [f64; 2],
    /// `endpoint`, `pool` or `none`.
    pub offset_from: &'static str,
    /// Added to the log spread because samples are old, 0 when fresh.
    pub widening: f64,
    /// Standardised quantile of what was asked: 0 at p50, 1 at p90.
    pub k: f64,
    /// The answer.
    pub estimate: TargetEstimate,
}

/// Both targets.
#[derive(Clone, Debug, PartialEq)]
pub struct Explanation {
    /// Time to first token.
    pub ttft: TargetExplanation,
    /// Time per output token.
    pub tpot: TargetExplanation,
    /// The same answer that [`Reader::predict`] gives (I9).
    pub estimate: Estimate,
}

impl Reader<'_> {
    /// Explains one row.
    pub fn explain(&self, _features: &Features, _endpoint: Option<&str>) -> Explanation {
        unimplemented!()
    }
}

/// What a fitted model looks like, for `inspect`.
impl Snapshot {}
