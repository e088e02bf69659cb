//! What was known about a request and an endpoint when the request was dispatched.

use super::Role;

/// Inputs of a prediction, checked: every float is finite and every value within [`LIMITS`] (I3).
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Features {
    /// Share of the endpoint's KV cache in use, 0..=1.
    pub kv_cache_usage: f64,
    /// Prompt length, tokens.
    pub input_tokens: u32,
    /// Requests queued at the endpoint, not yet scheduled.
    pub requests_waiting: u32,
    /// Requests being computed at the endpoint.
    pub requests_running: u32,
    /// Share of the prompt expected in the endpoint's prefix cache, 0..=1.
    pub prefix_cache_score: f64,
    /// Uncached prompt tokens dispatched to the endpoint and not yet past their first token, this request excluded.
    pub prefill_tokens_in_flight: u32,
    /// Tokens of requests past their first token at the endpoint; 0 when unknown.
    pub decode_tokens_in_flight: u32,
    /// Encoder input already cached, in the router's unit; at most `encoder_input_size`.
    pub encoder_matched_size: u32,
    /// Encoder input of the request, in the router's unit; 0 for text.
    pub encoder_input_size: u32,
    /// Role of the endpoint.
    pub role: Role,
}

/// Upper limits of the integer inputs: far above anything real, so that a unit mistake is refused and sums of
/// products stay exact in a double.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Prompt length, tokens.
    pub input_tokens_max: u32,
    /// Waiting or running requests.
    pub requests_max: u32,
    /// Tokens in flight.
    pub tokens_in_flight_max: u32,
    /// Encoder sizes.
    pub encoder_size_max: u32,
    /// Output length, tokens.
    pub output_tokens_max: u32,
}

/// The limits in force.
pub const LIMITS: Limits = Limits {
    input_tokens_max: 100_000_000,
    requests_max: 1_000_000,
    tokens_in_flight_max: 1_000_000_000,
    encoder_size_max: 1_000_000_000,
    output_tokens_max: 100_000_000,
};

/// A value outside its range. `field` is the name of the field of [`Features`].
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("{field} is {value}, outside {min}..={max}")]
pub struct FeatureError {
    /// Which input.
    pub field: &'static str,
    /// What it was.
    pub value: f64,
    /// Lowest value taken.
    pub min: f64,
    /// Highest value taken.
    pub max: f64,
}

impl Features {
    /// Checks every range and clamps an encoder match larger than its input (harmless excess).
    ///
    /// # Errors
    /// The first field outside its range, in declaration order.
    pub fn try_new(mut raw: Features) -> Result<Self, FeatureError> {
        let limit = LIMITS;
        share("kv_cache_usage", raw.kv_cache_usage)?;
        count("input_tokens", raw.input_tokens, limit.input_tokens_max)?;
        count("requests_waiting", raw.requests_waiting, limit.requests_max)?;
        count("requests_running", raw.requests_running, limit.requests_max)?;
        share("prefix_cache_score", raw.prefix_cache_score)?;
        count("prefill_tokens_in_flight", raw.prefill_tokens_in_flight, limit.tokens_in_flight_max)?;
        count("decode_tokens_in_flight", raw.decode_tokens_in_flight, limit.tokens_in_flight_max)?;
        count("encoder_input_size", raw.encoder_input_size, limit.encoder_size_max)?;
        raw.encoder_matched_size = raw.encoder_matched_size.min(raw.encoder_input_size);
        Ok(raw)
    }

    /// Prompt tokens that must be computed: `input_tokens * (1 - prefix_cache_score)`.
    pub fn uncached_tokens(&self) -> f64 {
        f64::from(self.input_tokens) * (1.0 - self.prefix_cache_score)
    }
}

fn share(field: &'static str, value: f64) -> Result<(), FeatureError> {
    if (0.0..=1.0).contains(&value) { Ok(()) } else { Err(FeatureError { field, value, min: 0.0, max: 1.0 }) }
}

fn count(field: &'static str, value: u32, max: u32) -> Result<(), FeatureError> {
    if value <= max {
        Ok(())
    } else {
        Err(FeatureError { field, value: f64::from(value), min: 0.0, max: f64::from(max) })
    }
}
