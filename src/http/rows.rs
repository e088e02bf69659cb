//! Rows of a request: the one builder from the wire to [`Features`] and [`Sample`], for every route (I9).
//!
//! A call is read in one pass. Each row is checked as soon as it is complete; good rows are kept, of the bad ones only
//! what an answer can say, so that a body full of bad rows costs no more memory than a good one.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

use super::lax::{Lax, Wrong};
use super::times;
use crate::types::{
    EndpointName, Features, LATENCY_MS_MAX, LATENCY_MS_MIN, LIMITS, Observation, Promised, Quantile, Role, Sample,
    UnixMs,
};

/// Bad rows whose faults are kept to be told.
pub const BAD_ROWS_TOLD: usize = 20;

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
    pub input: serde_json::Value,
}

/// All faults of one row.
#[derive(Clone, Debug, PartialEq)]
pub struct BadRow {
    /// Position in the call, from 0.
    pub index: usize,
    /// At least one.
    pub faults: Vec<Fault>,
}

/// One row to predict.
#[derive(Clone, Debug, PartialEq)]
pub struct PredictRow {
    /// Checked inputs.
    pub features: Features,
    /// Which endpoint, when said.
    pub endpoint: Option<EndpointName>,
    /// `num_tokens_generated`; checked for the wire's sake, unknown at dispatch and so no input.
    pub tokens_generated: u32,
}

/// A row as it stands on the wire, training and prediction fields alike; unknown fields are ignored, of duplicates the
/// last wins.
#[derive(Clone, Debug, Default)]
pub struct RawRow {
    not_an_object: bool,
    kv_cache_percentage: Lax,
    input_token_length: Lax,
    num_request_waiting: Lax,
    num_request_running: Lax,
    actual_ttft_ms: Lax,
    actual_tpot_ms: Lax,
    num_tokens_generated: Lax,
    prefix_cache_score: Lax,
    pod_type: Lax,
    prefill_tokens_in_flight: Lax,
    decode_tokens_in_flight: Lax,
    encoder_matched_size: Lax,
    encoder_input_size: Lax,
    timestamp: Lax,
    endpoint: Lax,
    dispatched_at: Lax,
    predicted_ttft_ms: Lax,
    predicted_tpot_ms: Lax,
    quantiles: Option<Vec<Lax>>,
}

impl<'de> Deserialize<'de> for RawRow {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = RawRow;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a row")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<RawRow, A::Error> {
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
                        Key::Quantiles => {
                            row.quantiles = Some(entries.next_value::<ShortList>()?.0);
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
            fn visit_unit<E>(self) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_bool<E>(self, _: bool) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_i64<E>(self, _: i64) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_u64<E>(self, _: u64) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_f64<E>(self, _: f64) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_str<E>(self, _: &str) -> Result<RawRow, E> {
                Ok(RawRow::not_an_object())
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<RawRow, A::Error> {
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
    Quantiles,
    #[serde(other)]
    Unknown,
}

/// At most [`QUANTILES_MAX`] + 1 values of an array (one more, so that excess is noticed); anything else is one value.
struct ShortList(Vec<Lax>);

impl<'de> Deserialize<'de> for ShortList {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Items;
        impl<'de> Visitor<'de> for Items {
            type Value = ShortList;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a list of quantiles")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ShortList, A::Error> {
                let mut kept = Vec::new();
                while let Some(item) = items.next_element::<Lax>()? {
                    if kept.len() <= QUANTILES_MAX {
                        kept.push(item);
                    }
                }
                Ok(ShortList(kept))
            }
            fn visit_unit<E>(self) -> Result<ShortList, E> {
                Ok(ShortList(Vec::new()))
            }
        }
        deserializer.deserialize_any(Items)
    }
}

/// Collects a row's fields and faults.
struct Checker {
    faults: Vec<Fault>,
}

impl Checker {
    fn take<T: Default>(&mut self, field: &'static str, value: &Lax, read: Result<T, Wrong>) -> T {
        read.unwrap_or_else(|wrong| {
            // A number JSON cannot hold must not come back in an answer.
            let input = if wrong == Wrong::NotFinite { serde_json::Value::Null } else { value.echo() };
            self.faults.push(Fault { field, wrong, input });
            T::default()
        })
    }

    fn required<T: Default>(&mut self, field: &'static str, value: &Lax, read: Result<Option<T>, Wrong>) -> T {
        self.take(field, value, read.and_then(|found| found.ok_or(Wrong::Missing)))
    }

    fn optional<T: Default>(&mut self, field: &'static str, value: &Lax, read: Result<Option<T>, Wrong>) -> T {
        self.take(field, value, read.map(Option::unwrap_or_default))
    }
}

impl RawRow {
    fn not_an_object() -> Self {
        RawRow { not_an_object: true, ..RawRow::default() }
    }

    /// Quantiles asked for beside the configured one.
    ///
    /// # Errors
    /// The first that is not a number in `Quantile::MIN..=Quantile::MAX`, or too many of them.
    pub fn quantiles(&self) -> Result<Vec<Quantile>, Fault> {
        read_quantiles(self.quantiles.as_deref())
    }

    /// A prediction row.
    ///
    /// # Errors
    /// Every fault, in the order of the schema.
    pub fn predict(&self) -> Result<PredictRow, Vec<Fault>> {
        self.object()?;
        let mut check = Checker { faults: Vec::new() };
        let (features, tokens_generated) = self.features(&mut check);
        let endpoint = self.endpoint_name(&mut check);
        if check.faults.is_empty() {
            Ok(PredictRow { features, endpoint, tokens_generated })
        } else {
            Err(check.faults)
        }
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
        if check.faults.is_empty() && ttft == 0.0 && tpot == 0.0 {
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
        };
        if check.faults.is_empty() { Ok(sample) } else { Err(check.faults) }
    }

    /// The word of `pod_type`, and whether it is one we know.
    pub fn role_is_known(&self) -> bool {
        !matches!(self.pod_type.text(), Ok(Some(word)) if !Role::from_wire(word).1)
    }

    fn object(&self) -> Result<(), Vec<Fault>> {
        if self.not_an_object {
            Err(vec![Fault { field: "", wrong: Wrong::NotAnObject, input: serde_json::Value::Null }])
        } else {
            Ok(())
        }
    }

    fn features(&self, check: &mut Checker) -> (Features, u32) {
        let share = |value: &Lax| value.number_within(0.0, 1.0);
        let tokens = LIMITS.tokens_in_flight_max;
        let kv_cache_usage =
            check.required("kv_cache_percentage", &self.kv_cache_percentage, share(&self.kv_cache_percentage));
        let mut required = |field, value: &Lax, max| check.required(field, value, value.count(max));
        let input_tokens = required("input_token_length", &self.input_token_length, LIMITS.input_tokens_max);
        let requests_waiting = required("num_request_waiting", &self.num_request_waiting, LIMITS.requests_max);
        let requests_running = required("num_request_running", &self.num_request_running, LIMITS.requests_max);
        let generated = required("num_tokens_generated", &self.num_tokens_generated, LIMITS.output_tokens_max);
        let prefix_cache_score =
            check.required("prefix_cache_score", &self.prefix_cache_score, share(&self.prefix_cache_score));
        let role = self.pod_type.text().map(|word| Role::from_wire(word.unwrap_or_default()).0);
        let role = check.take("pod_type", &self.pod_type, role);
        let mut optional = |field, value: &Lax, max| check.optional(field, value, value.count(max));
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
fn latency(value: &Lax) -> Result<Option<f64>, Wrong> {
    match value.number()? {
        Some(ms) if ms < 0.0 => Err(Wrong::Below(0.0)),
        Some(ms) if ms != 0.0 && !(LATENCY_MS_MIN..=LATENCY_MS_MAX).contains(&ms) => Err(Wrong::Latency),
        other => Ok(other),
    }
}

fn promise(value: &Lax) -> Result<Option<f64>, Wrong> {
    match value {
        Lax::Null => Ok(None),
        _ => latency(value).map(|ms| ms.filter(|ms| *ms > 0.0)),
    }
}

fn optional_time(value: &Lax) -> Result<Option<UnixMs>, Wrong> {
    if *value == Lax::Null { Ok(None) } else { times::read(value) }
}

fn read_quantiles(values: Option<&[Lax]>) -> Result<Vec<Quantile>, Fault> {
    let mut quantiles = Vec::new();
    for value in values.unwrap_or_default() {
        let read = value.number_within(Quantile::MIN, Quantile::MAX);
        match read.map(|found| found.and_then(Quantile::try_new)) {
            Ok(Some(quantile)) if quantiles.len() < QUANTILES_MAX => quantiles.push(quantile),
            Ok(_) => {
                return Err(Fault {
                    field: "quantiles",
                    wrong: Wrong::Above(QUANTILES_MAX as f64),
                    input: "a longer list".into(),
                });
            }
            Err(wrong) => return Err(Fault { field: "quantiles", wrong, input: value.echo() }),
        }
    }
    Ok(quantiles)
}

/// What a list of rows came to.
#[derive(Debug)]
pub struct Rows<T> {
    /// Good rows with their positions, in order.
    pub good: Vec<(usize, T)>,
    /// Bad rows, at most `told_max` of them.
    pub bad: Vec<BadRow>,
    /// Bad rows, all.
    pub bad_total: usize,
    /// Rows refused, by reason (each bad row once, by its first fault).
    pub reasons: Vec<(&'static str, u64)>,
    /// Rows with a role word we do not know; taken as serving both.
    pub unknown_roles: u64,
    /// Rows there were.
    pub total: usize,
}

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Rows { good: Vec::new(), bad: Vec::new(), bad_total: 0, reasons: Vec::new(), unknown_roles: 0, total: 0 }
    }
}

impl<T> Rows<T> {
    /// Whether every row is good.
    pub fn all_good(&self) -> bool {
        self.bad_total == 0
    }

    fn add(&mut self, raw: &RawRow, read: Result<T, Vec<Fault>>, limits: Limits) {
        let index = self.total;
        self.total += 1;
        match read {
            Ok(row) => {
                self.unknown_roles += u64::from(!raw.role_is_known());
                if index < limits.rows_max {
                    self.good.push((index, row));
                }
            }
            Err(faults) => {
                self.bad_total += 1;
                let reason = faults.first().map_or("wrong_type", |fault| fault.wrong.reason());
                match self.reasons.iter_mut().find(|(known, _)| *known == reason) {
                    Some((_, count)) => *count += 1,
                    None => self.reasons.push((reason, 1)),
                }
                if self.bad.len() < limits.told_max {
                    self.bad.push(BadRow { index, faults });
                }
            }
        }
    }
}

/// How much of a list is kept.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Rows beyond this are counted only.
    pub rows_max: usize,
    /// Bad rows beyond this are counted only.
    pub told_max: usize,
}

/// The field that holds the list.
#[derive(Debug)]
pub enum ListField<T> {
    /// Not there.
    Absent,
    /// Something else than an array.
    NotAList,
    /// The rows.
    List(Rows<T>),
}

/// A whole body.
#[derive(Debug)]
pub struct Call<T> {
    /// False: the body is JSON but no object.
    pub is_object: bool,
    /// The rows.
    pub rows: ListField<T>,
    /// Quantiles asked for beside the configured one.
    pub quantiles: Result<Vec<Quantile>, Fault>,
}

/// Reads a body whose rows stand under `list`, building each with `build`.
///
/// # Errors
/// When the body is not JSON, even after impossible numbers were put in quotes.
pub fn read_call<T>(
    body: &[u8],
    list: &'static str,
    limits: Limits,
    build: impl Fn(&RawRow) -> Result<T, Vec<Fault>>,
) -> Result<Call<T>, super::json::Malformed> {
    super::json::parse_seed(body, || CallSeed { list, limits, build: &build })
}

struct CallSeed<'b, F> {
    list: &'static str,
    limits: Limits,
    build: &'b F,
}

impl<'de, T, F: Fn(&RawRow) -> Result<T, Vec<Fault>>> DeserializeSeed<'de> for CallSeed<'_, F> {
    type Value = Call<T>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Call<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T, F: Fn(&RawRow) -> Result<T, Vec<Fault>>> Visitor<'de> for CallSeed<'_, F> {
    type Value = Call<T>;
    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("an object")
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Call<T>, A::Error> {
        let mut call = Call { is_object: true, rows: ListField::Absent, quantiles: Ok(Vec::new()) };
        while let Some(key) = entries.next_key::<std::borrow::Cow<'de, str>>()? {
            if key == self.list {
                call.rows = entries.next_value_seed(ListSeed { limits: self.limits, build: self.build })?;
            } else if key == "quantiles" {
                call.quantiles = read_quantiles(Some(&entries.next_value::<ShortList>()?.0));
            } else {
                entries.next_value::<IgnoredAny>()?;
            }
        }
        Ok(call)
    }
    fn visit_unit<E>(self) -> Result<Call<T>, E> {
        Ok(Call { is_object: false, rows: ListField::Absent, quantiles: Ok(Vec::new()) })
    }
    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<Call<T>, E> {
        self.visit_unit()
    }
    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<Call<T>, E> {
        self.visit_unit()
    }
    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<Call<T>, E> {
        self.visit_unit()
    }
    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<Call<T>, E> {
        self.visit_unit()
    }
    fn visit_str<E: serde::de::Error>(self, _: &str) -> Result<Call<T>, E> {
        self.visit_unit()
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Call<T>, A::Error> {
        while items.next_element::<IgnoredAny>()?.is_some() {}
        self.visit_unit()
    }
}

struct ListSeed<'b, F> {
    limits: Limits,
    build: &'b F,
}

impl<'de, T, F: Fn(&RawRow) -> Result<T, Vec<Fault>>> DeserializeSeed<'de> for ListSeed<'_, F> {
    type Value = ListField<T>;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<ListField<T>, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de, T, F: Fn(&RawRow) -> Result<T, Vec<Fault>>> Visitor<'de> for ListSeed<'_, F> {
    type Value = ListField<T>;
    fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str("a list of rows")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<ListField<T>, A::Error> {
        let mut rows = Rows::default();
        while let Some(raw) = items.next_element::<RawRow>()? {
            let read = (self.build)(&raw);
            rows.add(&raw, read, self.limits);
        }
        Ok(ListField::List(rows))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<ListField<T>, A::Error> {
        while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
        Ok(ListField::NotAList)
    }
    fn visit_unit<E>(self) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
    fn visit_bool<E>(self, _: bool) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
    fn visit_i64<E>(self, _: i64) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
    fn visit_u64<E>(self, _: u64) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
    fn visit_f64<E>(self, _: f64) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
    fn visit_str<E>(self, _: &str) -> Result<ListField<T>, E> {
        Ok(ListField::NotAList)
    }
}
