//! One row: the one builder from the wire to [`Features`] and [`Sample`], for every route (I9).

use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::{Value, json};

use super::lax::{Lax, Wrong, scalars};
use super::manner::{self, RawFingerprint};
use super::times;
use crate::types::{
    EndpointName, Features, LATENCY_MS_MAX, LATENCY_MS_MIN, LIMITS, Manner, Observation, Promised, Quantile, Role,
    Sample, UnixMs,
};

/// Further quantiles one call may ask for.
pub const QUANTILES_MAX: usize = 16;

/// One fault of one field.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Wire name of the field; empty when the row itself is the fault.
    pub field: &'static str,
    /// What is wrong.
    pub wrong: Wrong,
    /// What was sent, cut.
    pub input: Value,
}

/// Lowest and highest value of a field, where it has a range.
pub fn allowed(field: &str) -> Option<[f64; 2]> {
    let max = match field {
        "kv_cache_percentage" | "prefix_cache_score" => 1.0,
        "input_token_length" => f64::from(LIMITS.input_tokens_max),
        "num_request_waiting" | "num_request_running" => f64::from(LIMITS.requests_max),
        "num_tokens_generated" | "num_chunks" => f64::from(LIMITS.output_tokens_max),
        "prefill_tokens_in_flight" | "decode_tokens_in_flight" => f64::from(LIMITS.tokens_in_flight_max),
        "encoder_matched_size" | "encoder_input_size" => f64::from(LIMITS.encoder_size_max),
        "actual_ttft_ms" | "actual_tpot_ms" | "predicted_ttft_ms" | "predicted_tpot_ms" => LATENCY_MS_MAX,
        "quantiles" => return Some([Quantile::MIN, Quantile::MAX]),
        _ => return None,
    };
    Some([0.0, max])
}

/// One row to predict.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictRow {
    /// Checked inputs.
    pub features: Features,
    /// Which endpoint, when said.
    pub endpoint: Option<EndpointName>,
}

/// A row as it stands on the wire, training and prediction fields alike; unknown fields are ignored, of duplicates the
/// last wins.
#[derive(Clone, Debug, Default)]
pub struct RawRow<'a> {
    not_an_object: bool,
    kv_cache_percentage: Lax<'a>,
    input_token_length: Lax<'a>,
    num_request_waiting: Lax<'a>,
    num_request_running: Lax<'a>,
    actual_ttft_ms: Lax<'a>,
    actual_tpot_ms: Lax<'a>,
    num_tokens_generated: Lax<'a>,
    prefix_cache_score: Lax<'a>,
    pod_type: Lax<'a>,
    prefill_tokens_in_flight: Lax<'a>,
    decode_tokens_in_flight: Lax<'a>,
    encoder_matched_size: Lax<'a>,
    encoder_input_size: Lax<'a>,
    timestamp: Lax<'a>,
    endpoint: Lax<'a>,
    dispatched_at: Lax<'a>,
    predicted_ttft_ms: Lax<'a>,
    predicted_tpot_ms: Lax<'a>,
    streaming: Lax<'a>,
    outcome: Lax<'a>,
    num_chunks: Lax<'a>,
    fingerprint: RawFingerprint<'a>,
    quantiles: Quantiles<'a>,
}

impl<'de: 'a, 'a> Deserialize<'de> for RawRow<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = RawRow<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a row")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawRow<'de>, A::Error> {
                let mut row = RawRow::default();
                while let Some(key) = entries.next_key::<Key>()? {
                    let slot = match key {
                        Key::KvCachePercentage => &mut row.kv_cache_percentage,
                        Key::InputTokenLength => &mut row.input_token_length,
                        Key::NumRequestWaiting => &mut row.num_request_waiting,
                        Key::NumRequestRunning => &mut row.num_request_running,
                        Key::ActualTtftMs => &mut row.actual_ttft_ms,
                        Key::ActualTpotMs => &mut row.actual_tpot_ms,
                        Key::NumTokensGenerated => &mut row.num_tokens_generated,
                        Key::PrefixCacheScore => &mut row.prefix_cache_score,
                        Key::PodType => &mut row.pod_type,
                        Key::PrefillTokensInFlight => &mut row.prefill_tokens_in_flight,
                        Key::DecodeTokensInFlight => &mut row.decode_tokens_in_flight,
                        Key::EncoderMatchedSize => &mut row.encoder_matched_size,
                        Key::EncoderInputSize => &mut row.encoder_input_size,
                        Key::Timestamp => &mut row.timestamp,
                        Key::Endpoint => &mut row.endpoint,
                        Key::DispatchedAt => &mut row.dispatched_at,
                        Key::PredictedTtftMs => &mut row.predicted_ttft_ms,
                        Key::PredictedTpotMs => &mut row.predicted_tpot_ms,
                        Key::Streaming => &mut row.streaming,
                        Key::Outcome => &mut row.outcome,
                        Key::NumChunks => &mut row.num_chunks,
                        Key::Fingerprint => {
                            row.fingerprint = entries.next_value()?;
                            continue;
                        }
                        Key::Quantiles => {
                            row.quantiles = entries.next_value()?;
                            continue;
                        }
                        Key::Unknown => {
                            entries.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = entries.next_value()?;
                }
                Ok(row)
            }
            scalars!(RawRow<'de>, RawRow::not_an_object());
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawRow<'de>, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(RawRow::not_an_object())
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    KvCachePercentage,
    InputTokenLength,
    NumRequestWaiting,
    NumRequestRunning,
    ActualTtftMs,
    ActualTpotMs,
    NumTokensGenerated,
    PrefixCacheScore,
    PodType,
    PrefillTokensInFlight,
    DecodeTokensInFlight,
    EncoderMatchedSize,
    EncoderInputSize,
    Timestamp,
    Endpoint,
    DispatchedAt,
    PredictedTtftMs,
    PredictedTpotMs,
    Streaming,
    Outcome,
    NumChunks,
    Fingerprint,
    Quantiles,
    #[serde(other)]
    Unknown,
}

/// Quantiles asked for beside the configured one, as they stood in the body.
#[derive(Clone, Debug, Default)]
pub enum Quantiles<'a> {
    /// Not there, or null.
    #[default]
    Absent,
    /// At most [`QUANTILES_MAX`] + 1 values: one more, so that excess is noticed.
    List(Vec<Lax<'a>>),
    /// No list.
    Other,
}

impl<'de: 'a, 'a> Deserialize<'de> for Quantiles<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Quantiles<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list of quantiles")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Quantiles<'de>, A::Error> {
                let mut kept = Vec::new();
                while let Some(item) = items.next_element::<Lax<'de>>()? {
                    if kept.len() <= QUANTILES_MAX {
                        kept.push(item);
                    }
                }
                Ok(Quantiles::List(kept))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Quantiles<'de>, A::Error> {
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Quantiles::Other)
            }
            fn visit_unit<E>(self) -> Result<Quantiles<'de>, E> {
                Ok(Quantiles::Absent)
            }
            scalars!(no unit, Quantiles<'de>, Quantiles::Other);
        }
        deserializer.deserialize_any(Any)
    }
}

impl Quantiles<'_> {
    /// The quantiles, checked.
    ///
    /// # Errors
    /// No list, more than [`QUANTILES_MAX`] of them, or the first that is not in `Quantile::MIN..=Quantile::MAX`.
    pub fn read(&self) -> Result<Vec<Quantile>, Fault> {
        let fault = |wrong, input| Fault { field: "quantiles", wrong, input };
        let values = match self {
            Quantiles::Absent => return Ok(Vec::new()),
            Quantiles::Other => return Err(fault(Wrong::ListType, Value::Null)),
            Quantiles::List(values) if values.len() > QUANTILES_MAX => {
                return Err(fault(Wrong::ListTooLong(QUANTILES_MAX), Value::Null));
            }
            Quantiles::List(values) => values,
        };
        let read = |value: &Lax<'_>| {
            let found = value.number_within(Quantile::MIN, Quantile::MAX)?;
            found.and_then(Quantile::try_new).ok_or(Wrong::FloatType)
        };
        values.iter().map(|value| read(value).map_err(|wrong| fault(wrong, value.echo()))).collect()
    }
}

/// Collects a row's fields and faults.
struct Checker {
    faults: Vec<Fault>,
}

impl Checker {
    fn take<T: Default>(&mut self, field: &'static str, value: &Lax<'_>, read: Result<T, Wrong>) -> T {
        read.unwrap_or_else(|wrong| {
            // A number JSON cannot hold must not come back in an answer.
            let input = if wrong == Wrong::NotFinite { Value::Null } else { value.echo() };
            self.faults.push(Fault { field, wrong, input });
            T::default()
        })
    }

    fn required<T: Default>(&mut self, field: &'static str, value: &Lax<'_>, read: Result<Option<T>, Wrong>) -> T {
        self.take(field, value, read.and_then(|found| found.ok_or(Wrong::Missing)))
    }

    fn optional<T: Default>(&mut self, field: &'static str, value: &Lax<'_>, read: Result<Option<T>, Wrong>) -> T {
        self.take(field, value, read.map(Option::unwrap_or_default))
    }
}

impl RawRow<'_> {
    fn not_an_object() -> Self {
        RawRow { not_an_object: true, ..RawRow::default() }
    }

    /// Quantiles asked for beside the configured one.
    ///
    /// # Errors
    /// See [`Quantiles::read`].
    pub fn quantiles(&self) -> Result<Vec<Quantile>, Fault> {
        self.quantiles.read()
    }

    /// The prediction fields as they were understood: defaults filled in, values cut.
    pub fn echo(&self) -> Value {
        let or_zero = |value: &Lax<'_>| if *value == Lax::Absent { json!(0) } else { value.echo() };
        let pod_type = if self.pod_type == Lax::Absent { json!("") } else { self.pod_type.echo() };
        json!({
            "kv_cache_percentage": self.kv_cache_percentage.echo(),
            "input_token_length": self.input_token_length.echo(),
            "num_request_waiting": self.num_request_waiting.echo(),
            "num_request_running": self.num_request_running.echo(),
            "num_tokens_generated": self.num_tokens_generated.echo(),
            "prefix_cache_score": self.prefix_cache_score.echo(),
            "pod_type": pod_type,
            "prefill_tokens_in_flight": or_zero(&self.prefill_tokens_in_flight),
            "decode_tokens_in_flight": or_zero(&self.decode_tokens_in_flight),
            "encoder_matched_size": or_zero(&self.encoder_matched_size),
            "encoder_input_size": or_zero(&self.encoder_input_size),
        })
    }

    /// A prediction row.
    ///
    /// # Errors
    /// Every fault, in the order of the schema.
    pub fn predict(&self) -> Result<PredictRow, Vec<Fault>> {
        self.object()?;
        let mut check = Checker { faults: Vec::new() };
        // `num_tokens_generated` is checked for the wire's sake; unknown at dispatch, it is no input.
        let (features, _) = self.features(&mut check);
        let endpoint = self.endpoint_name(&mut check);
        if check.faults.is_empty() { Ok(PredictRow { features, endpoint }) } else { Err(check.faults) }
    }

    /// A training row; `received_at` stands in for an absent timestamp.
    ///
    /// # Errors
    /// Every fault, in the order of the schema.
    pub fn sample(&self, received_at: UnixMs) -> Result<Sample, Vec<Fault>> {
        self.object()?;
        let mut check = Checker { faults: Vec::new() };
        let (features, output_tokens) = self.features(&mut check);
        let ttft = check.required("actual_ttft_ms", &self.actual_ttft_ms, latency(&self.actual_ttft_ms));
        let tpot = check.required("actual_tpot_ms", &self.actual_tpot_ms, latency(&self.actual_tpot_ms));
        let observed_at = check.take("timestamp", &self.timestamp, times::read(&self.timestamp));
        let endpoint = self.endpoint_name(&mut check);
        let dispatched_at = check.take("dispatched_at", &self.dispatched_at, optional_time(&self.dispatched_at));
        let promised = Promised {
            ttft_ms: check.take("predicted_ttft_ms", &self.predicted_ttft_ms, promise(&self.predicted_ttft_ms)),
            tpot_ms: check.take("predicted_tpot_ms", &self.predicted_tpot_ms, promise(&self.predicted_tpot_ms)),
        };
        let manner = Manner {
            ending: check.take("outcome", &self.outcome, manner::ending(&self.outcome)),
            streamed: check.take("streaming", &self.streaming, manner::flag(&self.streaming)),
            chunks: check.take("num_chunks", &self.num_chunks, manner::count(&self.num_chunks)),
            timed: observed_at.is_some(),
        };
        let fingerprint = match self.fingerprint.read() {
            Ok(fingerprint) => fingerprint,
            Err(wrong) => {
                check.faults.push(Fault { field: "fingerprint", wrong, input: self.fingerprint.echo() });
                None
            }
        };
        if check.faults.is_empty() && ttft == 0.0 && tpot == 0.0 && manner.needs_outcome() {
            check.faults.push(Fault { field: "actual_ttft_ms", wrong: Wrong::NoOutcome, input: 0.into() });
        }
        let sample = Sample {
            features,
            observation: Observation {
                ttft_ms: (ttft > 0.0).then_some(ttft),
                tpot_ms: (tpot > 0.0).then_some(tpot),
                output_tokens,
            },
            endpoint,
            observed_at: observed_at.unwrap_or(received_at),
            dispatched_at,
            promised,
            manner,
            fingerprint,
        };
        if check.faults.is_empty() { Ok(sample) } else { Err(check.faults) }
    }

    /// Whether the word of `pod_type`, if there is one, is one we know.
    pub fn role_is_known(&self) -> bool {
        !matches!(self.pod_type.text(), Ok(Some(word)) if !Role::from_wire(word).1)
    }

    fn object(&self) -> Result<(), Vec<Fault>> {
        if self.not_an_object {
            Err(vec![Fault { field: "", wrong: Wrong::NotAnObject, input: Value::Null }])
        } else {
            Ok(())
        }
    }

    fn features(&self, check: &mut Checker) -> (Features, u32) {
        let share = |value: &Lax<'_>| value.number_within(0.0, 1.0);
        let tokens = LIMITS.tokens_in_flight_max;
        let kv_cache_usage =
            check.required("kv_cache_percentage", &self.kv_cache_percentage, share(&self.kv_cache_percentage));
        let mut required = |field, value: &Lax<'_>, max| check.required(field, value, value.count(max));
        let input_tokens = required("input_token_length", &self.input_token_length, LIMITS.input_tokens_max);
        let requests_waiting = required("num_request_waiting", &self.num_request_waiting, LIMITS.requests_max);
        let requests_running = required("num_request_running", &self.num_request_running, LIMITS.requests_max);
        let generated = required("num_tokens_generated", &self.num_tokens_generated, LIMITS.output_tokens_max);
        let prefix_cache_score =
            check.required("prefix_cache_score", &self.prefix_cache_score, share(&self.prefix_cache_score));
        let role = self.pod_type.text().map(|word| Role::from_wire(word.unwrap_or_default()).0);
        let role = check.take("pod_type", &self.pod_type, role);
        let mut optional = |field, value: &Lax<'_>, max| check.optional(field, value, value.count(max));
        let prefill = optional("prefill_tokens_in_flight", &self.prefill_tokens_in_flight, tokens);
        let decode = optional("decode_tokens_in_flight", &self.decode_tokens_in_flight, tokens);
        let matched = optional("encoder_matched_size", &self.encoder_matched_size, LIMITS.encoder_size_max);
        let encoder = optional("encoder_input_size", &self.encoder_input_size, LIMITS.encoder_size_max);
        let features = Features {
            kv_cache_usage,
            input_tokens,
            requests_waiting,
            requests_running,
            prefix_cache_score,
            prefill_tokens_in_flight: prefill,
            decode_tokens_in_flight: decode,
            // More matched than there is input is harmless excess.
            encoder_matched_size: matched.min(encoder),
            encoder_input_size: encoder,
            role,
        };
        (features, generated)
    }

    fn endpoint_name(&self, check: &mut Checker) -> Option<EndpointName> {
        let read = match self.endpoint.text() {
            Ok(None | Some("")) => Ok(None),
            Ok(Some(name)) => EndpointName::try_new(name).map(Some).ok_or(Wrong::EndpointName),
            Err(wrong) => Err(wrong),
        };
        check.take("endpoint", &self.endpoint, read)
    }
}

/// 0 (not observed) or a latency.
fn latency(value: &Lax<'_>) -> Result<Option<f64>, Wrong> {
    match value.number()? {
        Some(ms) if ms < 0.0 => Err(Wrong::Below(0.0)),
        Some(ms) if ms > LATENCY_MS_MAX => Err(Wrong::Above(LATENCY_MS_MAX)),
        Some(ms) if ms > 0.0 && ms < LATENCY_MS_MIN => Err(Wrong::Latency),
        other => Ok(other),
    }
}

fn promise(value: &Lax<'_>) -> Result<Option<f64>, Wrong> {
    match value {
        Lax::Null => Ok(None),
        _ => latency(value).map(|ms| ms.filter(|ms| *ms > 0.0)),
    }
}

fn optional_time(value: &Lax<'_>) -> Result<Option<UnixMs>, Wrong> {
    if *value == Lax::Null { Ok(None) } else { times::read(value) }
}
