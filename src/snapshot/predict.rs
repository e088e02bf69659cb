//! The hot path: features on the stack, base, regime table, offset, quantile.

use super::Snapshot;
use crate::types::{Ask, Estimate, Features, Quantile, State, Target, TargetEstimate, UnixMs};

/// What is common to all rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Which number to answer with.
    pub ask: Ask,
    /// The caller's time, for staleness.
    pub now: UnixMs,
    /// The mildest state that may be said: a shell whose trainer is gone passes [`State::Stale`] or worse here.
    pub at_least: State,
}

impl Conditions {
    /// A healthy shell.
    pub fn new(ask: Ask, now: UnixMs) -> Self {
        Conditions { ask, now, at_least: State::Ready }
    }
}

/// A snapshot opened for one batch.
pub struct Reader<'a> {
    snapshot: &'a Snapshot,
}

impl<'a> Reader<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, _conditions: Conditions) -> Self {
        Reader { snapshot }
    }

    /// Predicts one row. `endpoint` selects that endpoint's offset; unknown or absent means the pool's.
    pub fn predict(&self, _features: &Features, _endpoint: Option<&str>) -> Estimate {
        let _ = self.snapshot;
        unimplemented!()
    }

    /// Any other quantile of an estimate this reader gave, ms. Non-decreasing in `q`.
    pub fn quantile_ms(&self, _target: Target, _estimate: &TargetEstimate, _q: Quantile) -> f64 {
        unimplemented!()
    }
}
