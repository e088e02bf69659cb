//! The regressors: prior, non-negative base, and one target's whole model.

mod base;
mod nnls;
mod prior;
mod target;

pub use base::{BASE_MS_MIN, TrainingRow};
pub use prior::{PRIOR_SPREAD, Prior};
pub use target::{ANCHORS, Anchors, CORRECTION_MAX, Regime, SPREAD_MIN, TargetModel};
