//! How one prediction came about, in parts whose product is the answer.

use super::Reader;
use crate::features;
use crate::types::{Estimate, Features, Role, Target, TargetEstimate};

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

/// One target's derivation. Each anchor is
/// `log = ln base + regime + residual * fade + endpoint scale + offset`; with the spread
/// `s = log90 - log50 + widening` the answer is `exp(log50 + k * s)`.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetExplanation {
    /// Which.
    pub target: Target,
    /// Whose model answers: the role's own, or another's while it has none.
    pub answered_by: Role,
    /// The base's terms.
    pub columns: Vec<Contribution>,
    /// Sum of the contributions at p50 and p90, each at least 1 ms.
    pub base_ms: [f64; 2],
    /// `no_queue`, `queued` or `all`.
    pub regime: &'static str,
    /// Log correction of the regime at p50 and p90.
    pub regime_log: [f64; 2],
    /// Log correction of the residual trees at p50 and p90; 0 while there are none.
    pub residual_log: [f64; 2],
    /// Residual trees at p50 and p90.
    pub trees: [usize; 2],
    /// Factor on the residual beyond the trained range, 1 inside it.
    pub fade: f64,
    /// The endpoint's log scale against the pool's median endpoint, at both anchors.
    pub endpoint_log: f64,
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
        let reader = self.of(features.role, target);
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
        let offset_from = match parts.correction {
            correction if correction.offsets == [0.0; 2] => "none",
            correction if correction.offsets_own => "endpoint",
            _ => "pool",
        };
        TargetExplanation {
            target,
            answered_by: reader.answering,
            columns,
            base_ms: parts.anchors.base_ms,
            regime: features::regime_name(target, parts.anchors.regime),
            regime_log: parts.anchors.regime_log,
            residual_log: parts.anchors.residual_log,
            trees: [reader.model.residuals[0].trees.len(), reader.model.residuals[1].trees.len()],
            fade: parts.anchors.fade,
            endpoint_log: parts.correction.log_scale,
            offset_log: parts.correction.offsets,
            offset_from,
            widening: reader.widening,
            k: reader.k.unwrap_or((estimate.value_ms.ln() - parts.log50) / estimate.spread),
            estimate,
        }
    }
}
