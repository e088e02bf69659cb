//! Fields of a training row that say how the request went and what its endpoint runs. All are optional; null and an
//! empty text say as little as an absent field.

use std::fmt;

use serde::Serialize;
use serde::de::{Deserialize, Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::lax::{Lax, Wrong};
use crate::types::{Ending, Fingerprint, LIMITS};

/// The field `outcome`. Absent means completed, as with senders that do not know the field; an unknown word does not.
pub fn ending(value: &Lax<'_>) -> Result<Ending, Wrong> {
    Ending::from_wire(value.text()?.unwrap_or_default()).ok_or(Wrong::Outcome)
}

/// The field `streaming`.
pub fn flag(value: &Lax<'_>) -> Result<Option<bool>, Wrong> {
    if *value == Lax::Null { Ok(None) } else { value.flag() }
}

/// The field `num_chunks`.
pub fn count(value: &Lax<'_>) -> Result<Option<u32>, Wrong> {
    if *value == Lax::Null { Ok(None) } else { value.count(LIMITS.output_tokens_max) }
}

/// The field `fingerprint` as it stood in the body.
#[derive(Clone, Debug)]
pub enum RawFingerprint<'a> {
    /// Anything but an object.
    One(Lax<'a>),
    /// An object; of unknown parts only their absence matters.
    Parts(Box<Parts<'a>>),
}

/// The parts of a fingerprint.
#[derive(Clone, Debug, Default)]
pub struct Parts<'a> {
    model: Lax<'a>,
    engine: Lax<'a>,
    flags: Lax<'a>,
    accelerator: Lax<'a>,
}

impl Default for RawFingerprint<'_> {
    fn default() -> Self {
        RawFingerprint::One(Lax::Absent)
    }
}

impl RawFingerprint<'_> {
    /// The fingerprint; an object becomes one text, the same for the same parts in any order and with any other parts.
    ///
    /// # Errors
    /// [`Wrong::Fingerprint`]: it says something that would be lost.
    pub fn read(&self) -> Result<Option<Fingerprint>, Wrong> {
        let canonical;
        let text = match self {
            RawFingerprint::One(value) => value.text().map_err(|_| Wrong::Fingerprint)?.unwrap_or_default(),
            RawFingerprint::Parts(parts) => {
                canonical = parts.canonical()?;
                &canonical
            }
        };
        match text {
            "" => Ok(None),
            text => Fingerprint::try_new(text).map(Some).ok_or(Wrong::Fingerprint),
        }
    }

    /// What was sent, cut.
    pub fn echo(&self) -> Value {
        match self {
            RawFingerprint::One(value) => value.echo(),
            RawFingerprint::Parts(_) => Lax::Object.echo(),
        }
    }
}

/// The one text of several parts: JSON, since there no part can be taken for the beginning of another.
#[derive(Serialize)]
struct Canonical<'a> {
    #[serde(skip_serializing_if = "str::is_empty")]
    model: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    engine: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    flags: &'a str,
    #[serde(skip_serializing_if = "str::is_empty")]
    accelerator: &'a str,
}

impl Parts<'_> {
    fn canonical(&self) -> Result<String, Wrong> {
        let all = [&self.model, &self.engine, &self.flags, &self.accelerator];
        if all.iter().all(|part| **part == Lax::Absent) {
            // Nothing, or only parts of other names: taken as a fingerprint it would never change.
            return Err(Wrong::Fingerprint);
        }
        let mut texts = [""; 4];
        for (text, part) in texts.iter_mut().zip(all) {
            *text = part.text().map_err(|_| Wrong::Fingerprint)?.unwrap_or_default();
        }
        let [model, engine, flags, accelerator] = texts;
        if texts.iter().all(|text| text.is_empty()) {
            return Ok(String::new());
        }
        serde_json::to_string(&Canonical { model, engine, flags, accelerator }).map_err(|_| Wrong::Fingerprint)
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for RawFingerprint<'a> {
    #[inline]
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Any;
        impl<'de> Visitor<'de> for Any {
            type Value = RawFingerprint<'de>;
            fn expecting(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str("a fingerprint")
            }
            fn visit_unit<E>(self) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::Null))
            }
            fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<Self::Value, A::Error> {
                let mut parts = Box::<Parts<'de>>::default();
                while let Some(key) = entries.next_key::<Key>()? {
                    let slot = match key {
                        Key::Model => &mut parts.model,
                        Key::Engine => &mut parts.engine,
                        Key::Flags => &mut parts.flags,
                        Key::Accelerator => &mut parts.accelerator,
                        Key::Unknown => {
                            entries.next_value::<IgnoredAny>()?;
                            continue;
                        }
                    };
                    *slot = entries.next_value()?;
                }
                Ok(RawFingerprint::Parts(parts))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
                while items.next_element::<IgnoredAny>()?.is_some() {}
                Ok(RawFingerprint::One(Lax::Array))
            }
            fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::Bool(value)))
            }
            fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::Integer(value)))
            }
            fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::Float(value as f64)))
            }
            fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::Float(value)))
            }
            fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::of_text(value.to_string().into())))
            }
            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(RawFingerprint::One(Lax::of_text(value.into())))
            }
        }
        deserializer.deserialize_any(Any)
    }
}

#[derive(serde::Deserialize)]
#[serde(field_identifier, rename_all = "snake_case")]
enum Key {
    Model,
    Engine,
    Flags,
    Accelerator,
    #[serde(other)]
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fingerprint(json: &str) -> Result<Option<String>, Wrong> {
        let raw: RawFingerprint<'_> = serde_json::from_str(json).unwrap();
        raw.read().map(|read| read.map(|fingerprint| fingerprint.as_str().to_string()))
    }

    #[test]
    fn an_unknown_outcome_is_not_taken_as_completed() {
        let read = |json| ending(&serde_json::from_str(json).unwrap());
        assert_eq!(read("\"timeout\""), Ok(Ending::TimedOut));
        assert_eq!((read("null"), read("\"\"")), (Ok(Ending::Completed), Ok(Ending::Completed)));
        for unknown in ["\"Completed\"", "\"error\"", "\" \"", "\"completed \""] {
            assert_eq!(read(unknown), Err(Wrong::Outcome), "{unknown}");
        }
        assert_eq!(read("true"), Err(Wrong::StringType));
    }

    #[test]
    fn a_fingerprint_is_a_text_or_its_parts_in_any_order() {
        assert_eq!(fingerprint("\"vllm 0.11, H100\""), Ok(Some("vllm 0.11, H100".to_string())));
        for nothing in ["null", "\"\"", r#"{"model": null, "engine": ""}"#] {
            assert_eq!(fingerprint(nothing), Ok(None), "{nothing}");
        }
        let canonical = r#"{"model":"qwen3","flags":"--tp 2"}"#;
        for same in [canonical, r#"{"flags": "--tp 2", "engine": null, "model": "qwen3", "pod": {"a": [1]}}"#] {
            assert_eq!(fingerprint(same), Ok(Some(canonical.to_string())), "{same}");
        }
        assert_ne!(fingerprint(r#"{"model":"a\",\"engine\":\"b"}"#), fingerprint(r#"{"model":"a","engine":"b"}"#));
    }

    #[test]
    fn a_fingerprint_that_would_be_lost_is_refused() {
        let long = format!("\"{}\"", "x".repeat(513));
        for lost in
            ["3", "true", "[]", "{}", r#"{"gpu": "H100"}"#, r#"{"model": 3}"#, r#""a\nb""#, r#""\u0000NaN""#, &long]
        {
            assert_eq!(fingerprint(lost), Err(Wrong::Fingerprint), "{lost}");
        }
        let raw: RawFingerprint<'_> = serde_json::from_str(&long).unwrap();
        assert!(raw.echo().to_string().len() < 60);
    }
}
