//! How one prediction came about, in parts whose product is the answer.

use super::Reader;
use crate::features;
use crate::types::{Estimate, Features, Target, TargetEstimate};

/// One term of the base.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Contribution {
    /// Name of the column.
    pub column: &'static str,
    /// Its value for this row, in the column's unit.
    pub value: f64,
    /// Fitted coefficient at p50 and p90, ms per unit.
    pub coefficient_ms: [f64; 2],
    /// Their products, ms.
    pub contribution_ms: [f64; 2],
}

/// One target's derivation. Each anchor is `log = ln base + regime + residual * fade + offset`; with the spread
/// `s = log90 - log50 + widening` the answer is `exp(log50 + k * s)`.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetExplanation {
    /// Which.
    pub target: Target,
    /// The base's terms.
    pub columns: Vec<Contribution>,
    /// Sum of the contributions at p50 and p90, each at least 1 ms.
    pub base_ms: [f64; 2],
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
    /// Standardised quantile of what was asked: 0 at p50, 1 at p90. For the mean, the factor that gives it.
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
    pub fn explain(&self, features: &Features, endpoint: Option<&str>) -> Explanation {
        Explanation {
            ttft: self.explain_target(Target::Ttft, features, endpoint),
            tpot: self.explain_target(Target::Tpot, features, endpoint),
            estimate: self.predict(features, endpoint),
        }
    }

    fn explain_target(&self, target: Target, features: &Features, endpoint: Option<&str>) -> TargetExplanation {
        let reader = self.of(target);
        let (estimate, parts) = reader.predict(features, endpoint);
        let row = features::columns(target, features);
        let columns = reader
            .model
            .coefficients(parts.anchors.regime)
            .zip(row)
            .map(|((column, coefficient_ms), value)| Contribution {
                column,
                value,
                coefficient_ms,
                contribution_ms: coefficient_ms.map(|coefficient| coefficient * value),
            })
            .collect();
        let [base50, base90] = parts.anchors.base_ms;
        let offset_from = match parts {
            _ if parts.offsets == [0.0; 2] => "none",
            _ if parts.offsets_own => "endpoint",
            _ => "pool",
        };
        TargetExplanation {
            target,
            columns,
            base_ms: parts.anchors.base_ms,
            regime: features::regime_name(target, parts.anchors.regime),
            regime_log: [parts.anchors.log[0] - base50.ln(), parts.anchors.log[1] - base90.ln()],
            residual_log: [0.0; 2],
            fade: parts.fade,
            offset_log: parts.offsets,
            offset_from,
            widening: reader.widening,
            k: reader.k.unwrap_or((estimate.value_ms.ln() - parts.log50) / estimate.spread),
            estimate,
        }
    }
}
