//! The regressors.

use crate::types::Target;

/// Constants of the physics before anything was learnt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prior {
    /// Whether an operator gave these constants (a calibration), or they are the shipped defaults.
    pub calibrated: bool,
    /// Peak prefill throughput at small prompts, tokens per s.
    pub prefill_tokens_per_s: f64,
    /// Attention work: ms per million token pairs of the uncached part.
    pub attention_ms_per_mtoken2: f64,
    /// TTFT of an idle endpoint for an empty prompt, ms.
    pub ttft_floor_ms: f64,
    /// Decode step of an idle endpoint, ms.
    pub decode_step_ms: f64,
}

impl Default for Prior {
    fn default() -> Self {
        Prior {
            calibrated: false,
            prefill_tokens_per_s: 1e6 / 42.5,
            attention_ms_per_mtoken2: 0.443,
            ttft_floor_ms: 22.0,
            decode_step_ms: 16.0,
        }
    }
}

/// One target's model.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetModel {}

impl TargetModel {
    /// Physics with prior constants.
    pub fn prior(_target: Target, _prior: &Prior) -> Self {
        TargetModel {}
    }
}
