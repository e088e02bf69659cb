//! Reading a JSON body that may contain what JSON does not have: `NaN`, `Infinity`, and numbers beyond a double.
//!
//! The parser is serde_json. Bodies it refuses are looked at once more with such tokens rewritten as quoted sentinels,
//! so that the answer can name the field; this costs nothing on the good path.

use std::marker::PhantomData;

use serde::de::{Deserialize, DeserializeOwned, DeserializeSeed, Deserializer};

/// Where and why a body is not JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Byte offset of the first thing that does not fit.
    pub offset: usize,
    /// What the parser says.
    pub reason: String,
}

/// Parses `body`, or its rewritten form.
///
/// # Errors
/// [`Malformed`] with the offset in the body as it was sent.
pub fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Malformed> {
    parse_seed(body, || Whole(PhantomData))
}

/// The same with a seed, made anew for each of the at most two attempts.
///
/// # Errors
/// As [`parse`].
pub fn parse_seed<T, S>(body: &[u8], seed: impl Fn() -> S) -> Result<T, Malformed>
where
    S: for<'de> DeserializeSeed<'de, Value = T>,
{
    attempt(body, seed()).or_else(|error| {
        if let Some(rewritten) = quote_impossible_numbers(body)
            && let Ok(value) = attempt(&rewritten, seed())
        {
            return Ok(value);
        }
        Err(malformed(body, &error))
    })
}

fn attempt<T>(body: &[u8], seed: impl for<'de> DeserializeSeed<'de, Value = T>) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_slice(body);
    let value = seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

struct Whole<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de>> DeserializeSeed<'de> for Whole<T> {
    type Value = T;
    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<T, D::Error> {
        T::deserialize(deserializer)
    }
}

/// Translates serde_json's line and column into a byte offset.
fn malformed(body: &[u8], error: &serde_json::Error) -> Malformed {
    let line_start = match error.line() {
        0 | 1 => 0,
        line => body
            .iter()
            .enumerate()
            .filter(|(_, byte)| **byte == b'\n')
            .nth(line - 2)
            .map_or(0, |(position, _)| position + 1),
    };
    let text = error.to_string();
    let reason = text.split(" at line ").next().unwrap_or("not JSON").chars().take(120).collect();
    Malformed { offset: (line_start + error.column()).min(body.len()), reason }
}

/// The same text with bare `NaN`, `Infinity`, `-Infinity` and numbers that overflow a double put in quotes; `None` when
/// there are none, so that nothing would change.
fn quote_impossible_numbers(body: &[u8]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(body.len() + 16);
    let mut changed = false;
    let mut at = 0;
    while let Some(&byte) = body.get(at) {
        let end = match byte {
            b'"' => string_end(body, at),
            b'-' | b'+' | b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' => token_end(body, at),
            _ => at + 1,
        };
        let token = body.get(at..end).unwrap_or_default();
        if byte != b'"' && is_impossible(token) {
            out.push(b'"');
            out.extend_from_slice(token);
            out.push(b'"');
            changed = true;
        } else {
            out.extend_from_slice(token);
        }
        at = end;
    }
    changed.then_some(out)
}

fn string_end(body: &[u8], start: usize) -> usize {
    let mut at = start + 1;
    while let Some(&byte) = body.get(at) {
        match byte {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    body.len()
}

fn token_end(body: &[u8], start: usize) -> usize {
    let part = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'+' | b'.');
    let length = body.get(start..).unwrap_or_default().iter().take_while(|byte| part(byte)).count();
    start + length.max(1)
}

fn is_impossible(token: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(token) else { return false };
    match text {
        "NaN" | "Infinity" | "-Infinity" => true,
        _ => {
            text.starts_with(|first: char| first == '-' || first.is_ascii_digit())
                && text.parse::<f64>().is_ok_and(f64::is_infinite)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn s3_words_and_numbers_that_json_lacks_reach_the_field_they_stand_in() {
        let body = br#"{"a": NaN, "b":[-Infinity,1e999,-2e400], "c": "NaN, \" NaN", "d": 1.5}"#;
        let value: Value = parse(body).unwrap();
        assert_eq!(value["a"], "NaN");
        assert_eq!(value["b"][1], "1e999");
        assert_eq!(value["c"], "NaN, \" NaN");
        assert_eq!(value["d"], 1.5);
    }

    #[test]
    fn what_is_not_json_says_where() {
        let error = parse::<Value>(b"{\"requests\": [").unwrap_err();
        assert_eq!(error.offset, 14);
        let error = parse::<Value>(b"{\n\"a\": nan}").unwrap_err();
        assert!(error.offset > 2 && error.offset <= 10, "{error:?}");
    }

    proptest! {
        #[test]
        fn any_bytes_are_answered(body in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Err(error) = parse::<Value>(&body) {
                prop_assert!(error.offset <= body.len());
            }
        }

        #[test]
        fn json_like_noise_is_answered(body in "[\\[\\]{}\",:NaInfinty0-9eE+\\-. \\\\]{0,80}") {
            let _ = parse::<Value>(body.as_bytes());
        }
    }
}
