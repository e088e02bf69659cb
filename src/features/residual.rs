//! Inputs of the residual trees: what was known at dispatch, two ratios that speak of the load per slot, and the base.

use crate::types::{Features, Target};

/// Width of a row of residual features, padded so that a feature number can be masked instead of checked.
pub const RESIDUAL_WIDTH: usize = 16;

/// One request's residual features; unused trailing ones are 0. Single precision is what the trees compare in.
pub type ResidualRow = [f32; RESIDUAL_WIDTH];

/// Names and monotone signs of the TTFT features, in order: by default, and where monotonicity is strict. `+1`: more of
/// it never makes the answer smaller; `None`: the feature is not used in that mode.
const TTFT: [(&str, i8, Option<i8>); 11] = [
    ("uncached_tokens", 1, Some(1)),
    ("prefill_tokens_in_flight", 1, Some(1)),
    ("requests_waiting", 1, Some(1)),
    ("requests_running", 0, Some(1)),
    ("kv_cache_usage", 0, Some(1)),
    ("input_tokens", 0, Some(1)),
    ("prefix_cache_score", -1, Some(-1)),
    ("decode_tokens_in_flight", 0, Some(1)),
    ("prefill_tokens_in_flight_per_waiting", 0, None),
    ("log_base", 0, Some(1)),
    ("prefill_tokens_per_running", 0, None),
];

/// The same for TPOT.
const TPOT: [(&str, i8, Option<i8>); 8] = [
    ("requests_running", 0, Some(1)),
    ("kv_cache_usage", 0, Some(1)),
    ("prefill_tokens_in_flight", 0, Some(1)),
    ("requests_waiting", 0, Some(1)),
    ("input_tokens", 0, Some(1)),
    ("uncached_tokens", 0, Some(1)),
    ("decode_tokens_in_flight", 0, Some(1)),
    ("log_base", 0, Some(1)),
];

/// Names of a target's residual features, in the order of [`residual_row`].
pub fn residual_names(target: Target) -> impl ExactSizeIterator<Item = &'static str> {
    table(target).iter().map(|(name, _, _)| *name)
}

/// Direction each feature is held to: `+1`, `-1`, or 0 for free. `None`: not used.
pub fn residual_signs(target: Target, strict: bool) -> impl ExactSizeIterator<Item = Option<i8>> {
    table(target).iter().map(move |(_, usual, in_strict)| if strict { *in_strict } else { Some(*usual) })
}

fn table(target: Target) -> &'static [(&'static str, i8, Option<i8>)] {
    match target {
        Target::Ttft => &TTFT,
        Target::Tpot => &TPOT,
    }
}

/// A target's residual features for one request, `log_base` being `ln` of the base of the median in ms. Finite for every
/// checked [`Features`].
#[inline]
pub fn residual_row(target: Target, features: &Features, log_base: f64) -> ResidualRow {
    let prompt = features.input_tokens as f32;
    let uncached = features.uncached_tokens() as f32;
    let waiting = features.requests_waiting as f32;
    let running = features.requests_running as f32;
    let kv = features.kv_cache_usage as f32;
    let prefill = features.prefill_tokens_in_flight as f32;
    let decode = features.decode_tokens_in_flight as f32;
    let log_base = log_base as f32;
    let mut row = [0.0; RESIDUAL_WIDTH];
    match target {
        Target::Ttft => {
            row[0] = uncached;
            row[1] = prefill;
            row[2] = waiting;
            row[3] = running;
            row[4] = kv;
            row[5] = prompt;
            row[6] = features.prefix_cache_score as f32;
            row[7] = decode;
            row[8] = prefill / (waiting + 1.0);
            row[9] = log_base;
            row[10] = (uncached + prefill) / (running + 1.0);
        }
        Target::Tpot => {
            row[0] = running;
            row[1] = kv;
            row[2] = prefill;
            row[3] = waiting;
            row[4] = prompt;
            row[5] = uncached;
            row[6] = decode;
            row[7] = log_base;
        }
    }
    row
}
