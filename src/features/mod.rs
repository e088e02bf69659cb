//! From what was known at dispatch to the inputs of the models: the one builder for training and for every answer.
//!
//! Every column is non-decreasing in uncached tokens, prefill tokens in flight, waiting, running and KV use, so that
//! a fit with non-negative coefficients is monotone in all of them.

mod residual;

pub use residual::{RESIDUAL_WIDTH, ResidualRow, residual_names, residual_row, residual_signs};

use crate::types::{Features, Target};

/// Number of this set of columns. It rises whenever a column changes; a snapshot of another schema is refused.
pub const SCHEMA: u32 = 2;

/// Columns of the base, both targets padded to the same width so that the hot loop has one shape.
pub const COLUMNS: usize = 12;

/// One target's column values; unused trailing columns are 0.
pub type Row = [f64; COLUMNS];

/// Names of the TTFT columns, in order.
const TTFT_NAMES: [&str; 12] = [
    "constant",
    "uncached_ktokens",
    "attention_mtokens2",
    "prefill_ktokens_in_flight",
    "requests_running",
    "kv_cache_usage",
    "requests_waiting",
    "requests_waiting_kv_blocked",
    "prefill_in_flight_times_running",
    "input_ktokens",
    "encoder_unmatched_k",
    "queued",
];

/// Names of the TPOT columns, in order.
const TPOT_NAMES: [&str; 9] = [
    "constant",
    "requests_running",
    "kv_cache_usage",
    "prefill_ktokens_in_flight",
    "requests_waiting_up_to_8",
    "uncached_ktokens",
    "input_ktokens",
    "decode_ktokens_in_flight",
    "prefill_ktokens_in_flight_up_to_8",
];

/// Index of the encoder column among the TTFT columns: optional input, so it is fitted only with evidence.
pub const TTFT_ENCODER_COLUMN: usize = 10;

/// Names of a target's columns.
pub fn column_names(target: Target) -> &'static [&'static str] {
    match target {
        Target::Ttft => &TTFT_NAMES,
        Target::Tpot => &TPOT_NAMES,
    }
}

/// A target's columns for one request. Finite for every checked [`Features`].
pub fn columns(target: Target, features: &Features) -> Row {
    let prompt = f64::from(features.input_tokens);
    let uncached = features.uncached_tokens();
    let waiting = f64::from(features.requests_waiting);
    let running = f64::from(features.requests_running);
    let kv = features.kv_cache_usage;
    let in_flight_k = f64::from(features.prefill_tokens_in_flight) / 1e3;
    match target {
        Target::Ttft => {
            let cached = prompt - uncached;
            // 0 up to 85 % of the cache, 1 when it is full: how much of the queue waits for KV space, not for prefill.
            let blocked = ((kv - 0.85) / 0.15).clamp(0.0, 1.0);
            let encoder =
                f64::from(features.encoder_input_size - features.encoder_matched_size.min(features.encoder_input_size));
            [
                1.0,
                uncached / 1e3,
                (prompt * prompt - cached * cached) / 1e6,
                in_flight_k,
                running,
                kv,
                waiting,
                waiting * blocked,
                in_flight_k * running / 10.0,
                prompt / 1e3,
                encoder / 1e3,
                // A queue costs something whatever its length; without this its length would be charged for it.
                f64::from(features.requests_waiting.min(1)),
            ]
        }
        Target::Tpot => [
            1.0,
            running,
            kv,
            in_flight_k,
            // A queue means that every step carries a full share of prefill; how long it is changes nothing more.
            waiting.min(8.0),
            uncached / 1e3,
            prompt / 1e3,
            f64::from(features.decode_tokens_in_flight) / 1e3,
            in_flight_k.min(8.0),
            0.0,
            0.0,
            0.0,
        ],
    }
}

/// Regimes with fits of their own: TTFT with an empty queue and with a queue; TPOT has one.
pub const REGIMES: usize = 2;

/// Which regime a request falls into: 1 only for TTFT behind a queue.
pub fn regime(target: Target, features: &Features) -> usize {
    match target {
        Target::Ttft => usize::from(features.requests_waiting > 0),
        Target::Tpot => 0,
    }
}

/// Name of a regime for people.
pub fn regime_name(target: Target, regime: usize) -> &'static str {
    match (target, regime) {
        (Target::Tpot, _) => "all",
        (Target::Ttft, 0) => "no_queue",
        (Target::Ttft, _) => "queued",
    }
}

/// Inputs whose trained range is watched.
pub const RANGED: [&str; 4] = ["uncached_tokens", "prefill_tokens_in_flight", "requests_waiting", "requests_running"];

/// Floors of the trained range: below these nothing counts as extrapolation.
pub const RANGE_FLOOR: [f64; 4] = [64.0, 64.0, 1.0, 4.0];

/// The watched inputs of one request, in the order of [`RANGED`].
pub fn ranged(features: &Features) -> [f64; 4] {
    [
        features.uncached_tokens(),
        f64::from(features.prefill_tokens_in_flight),
        f64::from(features.requests_waiting),
        f64::from(features.requests_running),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Role;

    #[test]
    fn names_match_the_columns_in_use() {
        let features = Features {
            kv_cache_usage: 0.9,
            input_tokens: 2000,
            requests_waiting: 3,
            requests_running: 7,
            prefix_cache_score: 0.5,
            prefill_tokens_in_flight: 9000,
            decode_tokens_in_flight: 4000,
            encoder_matched_size: 0,
            encoder_input_size: 576,
            role: Role::Both,
        };
        for target in Target::ALL {
            let row = columns(target, &features);
            let used = column_names(target).len();
            assert!(row[..used].iter().all(|&value| value > 0.0), "{target:?} {row:?}");
            assert!(row[used..].iter().all(|&value| value == 0.0));
        }
        let row = columns(Target::Ttft, &features);
        assert_eq!((row[1], row[2]), (1.0, 3.0));
        assert!((row[7] - 1.0).abs() < 1e-9);
    }
}
