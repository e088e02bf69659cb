//! Physics before anything was learnt: the constants of the base columns.

use crate::features::{COLUMNS, Row};
use crate::types::Target;

/// Spread of the prior: `ln Q90 - ln Q50` before anything was observed.
pub const PRIOR_SPREAD: f64 = 0.35;

/// Constants of the physics before anything was learnt. The defaults are those of an 8-billion to 32-billion parameter
/// model on one datacentre accelerator; `foretoken serve` takes measured ones.
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

impl Prior {
    /// Coefficients of the base columns, ms per unit, in the order of [`crate::features::column_names`]. Columns that
    /// physics alone says nothing about start at 0.
    pub fn theta(&self, target: Target) -> Row {
        let mut theta = [0.0; COLUMNS];
        match target {
            Target::Ttft => {
                let ms_per_ktoken = 1e6 / self.prefill_tokens_per_s;
                theta[0] = self.ttft_floor_ms;
                theta[1] = ms_per_ktoken;
                theta[2] = self.attention_ms_per_mtoken2;
                theta[3] = ms_per_ktoken;
                theta[4] = 0.1;
                theta[5] = 8.0;
            }
            Target::Tpot => {
                theta[0] = self.decode_step_ms;
                theta[1] = 0.1;
                theta[2] = 11.0;
            }
        }
        theta
    }
}
