//! The regressors: prior, non-negative base, residual trees, endpoint scales, and one target's whole model.

mod base;
mod bins;
mod boost;
mod forest;
mod nnls;
mod prior;
mod scale;
mod target;

pub use base::{BASE_MS_MIN, TrainingRow};
pub use forest::{DEPTH, Forest, LEAVES, TREES_MAX, Tree};
pub use prior::{PRIOR_SPREAD, Prior};
pub use scale::EndpointScale;
pub use target::{
    ANCHORS, Anchors, CORRECTION_MAX, FitSettings, Monotone, RESIDUAL_ROWS_MIN, Regime, SPREAD_MIN, TargetModel,
};
