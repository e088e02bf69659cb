//! One JSON value read leniently, as the wire's clients expect: `2000`, `2000.0`, `"2000"` and `true` are numbers.
//!
//! Reading never fails on a wrong type: the value keeps what it was, and the field that needs it says what is wrong.

use std::borrow::Cow;
use std::fmt;

use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// First character of a string that stands for a number JSON cannot hold (see `json`): no client sends it.
pub const IMPOSSIBLE_MARK: char = '\0';

/// Longest text kept for an error's `input`.
const INPUT_CHARS_MAX: usize = 40;

/// The visitor methods of everything but arrays and objects (and, with `no unit`, null), all with one answer.
macro_rules! scalars {
    ($value:ty, $answer:expr) => {
        fn visit_unit<E>(self) -> Result<$value, E> {
            Ok($answer)
        }
        scalars!(no unit, $value, $answer);
    };
    (no unit, $value:ty, $answer:expr) => {
        fn visit_bool<E>(self, _: bool) -> Result<$value, E> {
            Ok($answer)
        }
        fn visit_i64<E>(self, _: i64) -> Result<$value, E> {
            Ok($answer)
        }
        fn visit_u64<E>(self, _: u64) -> Result<$value, E> {
            Ok($answer)
        }
        fn visit_f64<E>(self, _: f64) -> Result<$value, E> {
            Ok($answer)
        }
        fn visit_str<E>(self, _: &str) -> Result<$value, E> {
            Ok($answer)
        }
    };
}
pub(super) use scalars;

/// A value as it stood in the body; text without escapes is borrowed from it.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Lax<'a> {
    /// The field was not there.
    #[default]
    Absent,
    /// `null`.
    Null,
    /// `true` or `false`.
    Bool(bool),
    /// A whole number that fits.
    Integer(i64),
    /// Any other number.
    Float(f64),
    /// A string.
    Text(Cow<'a, str>),
    /// `NaN`, an infinity, or a number beyond a double.
    Impossible,
    /// An array.
    Array,
    /// An object.
    Object,
}

/// What is wrong with a field, in the wire's words.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Wrong {
    /// Required and not there.
    Missing,
    /// Below the range.
    Below(f64),
    /// Above the range.
    Above(f64),
    /// Not a number where a whole one is needed.
    IntegerType,
    /// Not a number.
    FloatType,
    /// Not a string.
    StringType,
    /// A string that is not a whole number.
    IntegerParsing,
    /// A string that is not a number.
    FloatParsing,
    /// A number with a fraction.
    IntegerFromFloat,
    /// NaN or infinite.
    NotFinite,
    /// Not a time.
    TimeType,
    /// A string that is not a time.
    TimeParsing,
    /// Empty, too long, or with control characters.
    EndpointName,
    /// Neither outcome present.
    NoOutcome,
    /// An outcome that is no latency.
    Latency,
    /// A word that is no way for a request to end.
    Outcome,
    /// Neither a text that fits nor an object of such texts.
    Fingerprint,
    /// The row is not an object.
    NotAnObject,
    /// Not an array.
    ListType,
    /// More items than this.
    ListTooLong(usize),
    /// Not a boolean.
    BoolType,
    /// A string or number that is not a boolean.
    BoolParsing,
}

impl Wrong {
    /// The wire's `type`.
    pub fn kind(self) -> &'static str {
        match self {
            Wrong::Missing => "missing",
            Wrong::Below(_) => "greater_than_equal",
            Wrong::Above(_) => "less_than_equal",
            Wrong::IntegerType => "int_type",
            Wrong::FloatType => "float_type",
            Wrong::StringType => "string_type",
            Wrong::IntegerParsing => "int_parsing",
            Wrong::FloatParsing => "float_parsing",
            Wrong::IntegerFromFloat => "int_from_float",
            Wrong::NotFinite => "finite_number",
            Wrong::TimeType => "datetime_type",
            Wrong::TimeParsing => "datetime_from_date_parsing",
            Wrong::EndpointName => "string_pattern_mismatch",
            Wrong::NoOutcome => "no_outcome",
            Wrong::Latency => "latency_range",
            Wrong::Outcome => "literal_error",
            Wrong::Fingerprint => "fingerprint",
            Wrong::NotAnObject => "model_attributes_type",
            Wrong::ListType => "list_type",
            Wrong::ListTooLong(_) => "too_long",
            Wrong::BoolType => "bool_type",
            Wrong::BoolParsing => "bool_parsing",
        }
    }

    /// Stable word for metrics and `/status`.
    pub fn reason(self) -> &'static str {
        match self {
            Wrong::Missing => "missing_field",
            Wrong::Below(_) | Wrong::Above(_) | Wrong::Latency => "out_of_range",
            Wrong::NotFinite => "not_finite",
            Wrong::TimeType | Wrong::TimeParsing => "bad_timestamp",
            Wrong::EndpointName => "bad_endpoint",
            Wrong::NoOutcome => "no_outcome",
            Wrong::Outcome => "unknown_outcome",
            Wrong::Fingerprint => "bad_fingerprint",
            _ => "wrong_type",
        }
    }
}

impl fmt::Display for Wrong {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Wrong::Missing => out.write_str("Field required"),
            Wrong::Below(min) => write!(out, "Input should be greater than or equal to {min}"),
            Wrong::Above(max) => write!(out, "Input should be less than or equal to {max}"),
            Wrong::IntegerType => out.write_str("Input should be a valid integer"),
            Wrong::FloatType => out.write_str("Input should be a valid number"),
            Wrong::StringType => out.write_str("Input should be a valid string"),
            Wrong::IntegerParsing => {
                out.write_str("Input should be a valid integer, unable to parse string as an integer")
            }
            Wrong::FloatParsing => out.write_str("Input should be a valid number, unable to parse string as a number"),
            Wrong::IntegerFromFloat => {
                out.write_str("Input should be a valid integer, got a number with a fractional part")
            }
            Wrong::NotFinite => out.write_str("Input should be a finite number"),
            Wrong::TimeType => out.write_str("Input should be a valid datetime (RFC 3339, a date, or epoch seconds)"),
            Wrong::TimeParsing => {
                out.write_str("Input should be a valid datetime or date (RFC 3339, a date, or epoch seconds)")
            }
            Wrong::EndpointName => out.write_str("Endpoint should be 1 to 253 bytes without control characters"),
            Wrong::NoOutcome => out
                .write_str("Both outcomes are 0, so there is nothing to learn: send actual_ttft_ms or actual_tpot_ms"),
            Wrong::Latency => {
                out.write_str("Input should be 0 (not observed) or a latency of at least 0.001 ms; check the unit")
            }
            Wrong::Outcome => out.write_str("Input should be 'completed', 'failed', 'timeout' or 'aborted'"),
            Wrong::Fingerprint => out.write_str(
                "Fingerprint should be a text of 1 to 512 bytes without control characters, or an object with model, \
                 engine, flags or accelerator as texts",
            ),
            Wrong::NotAnObject => out.write_str("Input should be a valid dictionary or object to extract fields from"),
            Wrong::ListType => out.write_str("Input should be a valid list"),
            Wrong::ListTooLong(max) => write!(out, "List should have at most {max} items after validation"),
            Wrong::BoolType => out.write_str("Input should be a valid boolean"),
            Wrong::BoolParsing => out.write_str("Input should be a valid boolean, unable to interpret input"),
        }
    }
}

impl<'a> Lax<'a> {
    /// A string of the body.
    pub fn of_text(text: Cow<'a, str>) -> Self {
        if text.starts_with(IMPOSSIBLE_MARK) { Lax::Impossible } else { Lax::Text(text) }
    }

    /// A whole number in `0..=max`; `None` when absent.
    pub fn count(&self, max: u32) -> Result<Option<u32>, Wrong> {
        let value = match self {
            Lax::Absent => return Ok(None),
            Lax::Bool(flag) => i64::from(*flag),
            Lax::Integer(value) => *value,
            Lax::Float(value) => return whole(*value, max).map(Some),
            Lax::Text(text) => match text.trim().parse::<i64>() {
                Ok(value) => value,
                Err(_) => {
                    let value = text.trim().parse::<f64>().map_err(|_| Wrong::IntegerParsing)?;
                    return whole(value, max).map(Some);
                }
            },
            Lax::Impossible => return Err(Wrong::NotFinite),
            Lax::Null | Lax::Array | Lax::Object => return Err(Wrong::IntegerType),
        };
        match u32::try_from(value) {
            Ok(value) if value <= max => Ok(Some(value)),
            _ if value < 0 => Err(Wrong::Below(0.0)),
            _ => Err(Wrong::Above(f64::from(max))),
        }
    }

    /// A finite number; `None` when absent.
    pub fn number(&self) -> Result<Option<f64>, Wrong> {
        let value = match self {
            Lax::Absent => return Ok(None),
            Lax::Bool(flag) => f64::from(u8::from(*flag)),
            Lax::Integer(value) => *value as f64,
            Lax::Float(value) => *value,
            Lax::Text(text) => text.trim().parse::<f64>().map_err(|_| Wrong::FloatParsing)?,
            Lax::Impossible => return Err(Wrong::NotFinite),
            Lax::Null | Lax::Array | Lax::Object => return Err(Wrong::FloatType),
        };
        if value.is_finite() { Ok(Some(value)) } else { Err(Wrong::NotFinite) }
    }

    /// A finite number in `min..=max`; `None` when absent.
    pub fn number_within(&self, min: f64, max: f64) -> Result<Option<f64>, Wrong> {
        match self.number()? {
            Some(value) if value < min => Err(Wrong::Below(min)),
            Some(value) if value > max => Err(Wrong::Above(max)),
            other => Ok(other),
        }
    }

    /// A string; `None` when absent or null.
    pub fn text(&self) -> Result<Option<&str>, Wrong> {
        match self {
            Lax::Absent | Lax::Null => Ok(None),
            Lax::Text(text) => Ok(Some(text)),
            _ => Err(Wrong::StringType),
        }
    }

    /// A boolean or a word or number that stands for one; `None` when absent.
    pub fn flag(&self) -> Result<Option<bool>, Wrong> {
        match self {
            Lax::Absent => Ok(None),
            Lax::Bool(flag) => Ok(Some(*flag)),
            Lax::Integer(0) => Ok(Some(false)),
            Lax::Integer(1) => Ok(Some(true)),
            Lax::Text(word) => match word.to_ascii_lowercase().as_str() {
                "true" | "t" | "yes" | "y" | "on" | "1" => Ok(Some(true)),
                "false" | "f" | "no" | "n" | "off" | "0" => Ok(Some(false)),
                _ => Err(Wrong::BoolParsing),
            },
            Lax::Integer(_) | Lax::Float(_) => Err(Wrong::BoolParsing),
            Lax::Impossible | Lax::Null | Lax::Array | Lax::Object => Err(Wrong::BoolType),
        }
    }

    /// What was sent, as JSON, cut to a few characters and never a non-finite number.
    pub fn echo(&self) -> serde_json::Value {
        match self {
            Lax::Absent | Lax::Null | Lax::Impossible => serde_json::Value::Null,
            Lax::Bool(flag) => (*flag).into(),
            Lax::Integer(value) => (*value).into(),
            Lax::Float(value) => (*value).into(),
            Lax::Text(text) if text.chars().nth(INPUT_CHARS_MAX).is_some() => {
                let cut: String = text.chars().take(INPUT_CHARS_MAX).collect();
                format!("{cut}...").into()
            }
            Lax::Text(text) => text.as_ref().into(),
            Lax::Array => "[...]".into(),
            Lax::Object => "{...}".into(),
        }
    }
}

fn whole(value: f64, max: u32) -> Result<u32, Wrong> {
    if !value.is_finite() {
        Err(Wrong::NotFinite)
    } else if value < 0.0 {
        Err(Wrong::Below(0.0))
    } else if value > f64::from(max) {
        Err(Wrong::Above(f64::from(max)))
    } else if value.fract() != 0.0 {
        Err(Wrong::IntegerFromFloat)
    } else {
        Ok(value as u32)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Lax<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = Lax<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("any value")
            }
            fn visit_unit<E>(self) -> Result<Lax<'de>, E> {
                Ok(Lax::Null)
            }
            fn visit_bool<E>(self, value: bool) -> Result<Lax<'de>, E> {
                Ok(Lax::Bool(value))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Lax<'de>, E> {
                Ok(Lax::Integer(value))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Lax<'de>, E> {
                Ok(i64::try_from(value).map_or(Lax::Float(value as f64), Lax::Integer))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Lax<'de>, E> {
                Ok(Lax::Float(value))
            }
            fn visit_str<E>(self, value: &str) -> Result<Lax<'de>, E> {
                Ok(Lax::of_text(Cow::Owned(value.to_string())))
            }
            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Lax<'de>, E> {
                Ok(Lax::of_text(Cow::Borrowed(value)))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Lax<'de>, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(Lax::Array)
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Lax<'de>, A::Error> {
                while entries.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                Ok(Lax::Object)
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lax(text: &str) -> Lax<'_> {
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn lenient_numbers_as_recorded() {
        for text in ["2000", "2000.0", "\"2000\"", "\"2000.0\"", "2e3"] {
            assert_eq!(lax(text).count(u32::MAX), Ok(Some(2000)), "{text}");
        }
        assert_eq!(lax("true").count(9), Ok(Some(1)));
        assert_eq!(lax("\"0.42\"").number(), Ok(Some(0.42)));
    }

    #[test]
    fn s25_s26_limits_and_units_are_refused_with_their_range() {
        assert_eq!(lax("1000000000000000000000000000000").count(10), Err(Wrong::Above(10.0)));
        assert_eq!(lax("18446744073709551615").count(10), Err(Wrong::Above(10.0)));
        assert_eq!(lax("-1").count(10), Err(Wrong::Below(0.0)));
        assert_eq!(lax("10.5").count(20), Err(Wrong::IntegerFromFloat));
        assert_eq!(lax("null").count(20), Err(Wrong::IntegerType));
        assert_eq!(lax("\"many\"").count(20), Err(Wrong::IntegerParsing));
        assert_eq!(lax("\"NaN\"").count(20), Err(Wrong::NotFinite));
        assert_eq!(lax("\"Infinity\"").number(), Err(Wrong::NotFinite));
        assert_eq!(lax("\"\\u0000NaN\"").text(), Err(Wrong::StringType));
        assert_eq!(lax("1.0001").number_within(0.0, 1.0), Err(Wrong::Above(1.0)));
        assert_eq!(lax("[1]").number(), Err(Wrong::FloatType));
    }

    #[test]
    fn flags_are_read_as_leniently_as_numbers() {
        for (text, expected) in [("true", true), ("\"Yes\"", true), ("0", false), ("\"off\"", false)] {
            assert_eq!(lax(text).flag(), Ok(Some(expected)), "{text}");
        }
        assert_eq!(lax("\"maybe\"").flag(), Err(Wrong::BoolParsing));
        assert_eq!(lax("2").flag(), Err(Wrong::BoolParsing));
        assert_eq!(lax("null").flag(), Err(Wrong::BoolType));
    }

    #[test]
    fn echoes_are_short() {
        let long = format!("\"{}\"", "x".repeat(10_000));
        assert!(lax(&long).echo().to_string().len() < 60);
        assert_eq!(lax("{\"a\":[1,2]}").echo(), "{...}");
        assert_eq!(lax("\"\\u0000NaN\"").echo(), serde_json::Value::Null);
    }
}
