//! Samples for the tests of this room.

use std::time::{Duration, Instant};

use crate::types::{Features, Observation, Promised, Role, Sample, UnixMs};

/// A plausible sample, the `i`th of a stream: an engine with a fixed overhead and a prefill rate.
pub(crate) fn sample(i: u32) -> Sample {
    let input_tokens = 200 + i * 389 % 5000;
    Sample::try_new(Sample {
        features: Features {
            kv_cache_usage: f64::from(i % 7) / 10.0,
            input_tokens,
            requests_waiting: (i % 5).saturating_sub(3),
            requests_running: i % 11,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: i * 211 % 4000,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role: Role::Both,
        },
        observation: Observation {
            ttft_ms: Some(30.0 + f64::from(input_tokens) * 0.06 + f64::from(i * 7 % 10)),
            tpot_ms: Some(15.0 + f64::from(i % 11)),
            output_tokens: 50,
        },
        endpoint: None,
        observed_at: UnixMs(1_700_000_000_000 + i64::from(i) * 1000),
        dispatched_at: None,
        promised: Promised::default(),
    })
    .expect("a good sample")
}

/// Polls until `done`, for at most a minute; the message says what never came.
pub(crate) fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !done() {
        assert!(Instant::now() < deadline, "never came: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}
