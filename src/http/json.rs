//! Reading a JSON body that may contain what JSON does not have: `NaN`, `Infinity`, and numbers beyond a double.
//!
//! The parser is serde_json. Bodies it refuses are looked at once more with such tokens rewritten as quoted sentinels,
//! so that the answer can name the field; this costs nothing on the good path.

use serde::de::DeserializeSeed;

/// Where and why a body is not JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Malformed {
    /// Byte offset of the first thing that does not fit.
    pub offset: usize,
    /// What the parser says.
    pub reason: String,
}

/// Parses `body`, or its rewritten form, with a seed that is made anew for each of the at most two attempts.
///
/// # Errors
/// [`Malformed`] with the offset in the body as it was sent.
pub fn parse<T, S>(body: &str, seed: impl Fn() -> S) -> Result<T, Malformed>
where
    S: for<'de> DeserializeSeed<'de, Value = T>,
{
    attempt(body, seed()).or_else(|error| {
        if let Some(rewritten) = quote_impossible_numbers(body)
            && let Ok(value) = attempt(&rewritten, seed())
        {
            return Ok(value);
        }
        Err(malformed(body.as_bytes(), &error))
    })
}

fn attempt<T>(body: &str, seed: impl for<'de> DeserializeSeed<'de, Value = T>) -> Result<T, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(body);
    let value = seed.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
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
fn quote_impossible_numbers(body: &str) -> Option<String> {
    let body = body.as_bytes();
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
            // The mark, so that no field takes the token for text.
            out.extend_from_slice(b"\"\\u0000");
            out.extend_from_slice(token);
            out.push(b'"');
            changed = true;
        } else {
            out.extend_from_slice(token);
        }
        at = end;
    }
    // Only ASCII was put in, and only between tokens: this cannot fail.
    changed.then_some(out).and_then(|out| String::from_utf8(out).ok())
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
    use std::marker::PhantomData;

    fn value(body: &str) -> Result<Value, Malformed> {
        parse(body, || PhantomData::<Value>)
    }

    #[test]
    fn s3_words_and_numbers_that_json_lacks_reach_the_field_they_stand_in() {
        let body = r#"{"a": NaN, "b":[-Infinity,1e999,-2e400], "c": "NaN, \" NaN", "d": 1.5}"#;
        let value = value(body).unwrap();
        assert_eq!(value["a"], "\u{0}NaN");
        assert_eq!(value["b"][1], "\u{0}1e999");
        assert_eq!(value["c"], "NaN, \" NaN");
        assert_eq!(value["d"], 1.5);
    }

    #[test]
    fn what_is_not_json_says_where() {
        assert_eq!(value("{\"requests\": [").unwrap_err().offset, 14);
        let error = value("{\n\"a\": nan}").unwrap_err();
        assert!(error.offset > 2 && error.offset <= 10, "{error:?}");
    }

    proptest! {
        #[test]
        fn any_text_is_answered(body in "\\PC{0,300}") {
            if let Err(error) = value(&body) {
                prop_assert!(error.offset <= body.len());
            }
        }

        #[test]
        fn json_like_noise_is_answered(body in "[\\[\\]{}\",:NaInfinty0-9eE+\\-. \\\\]{0,80}") {
            let _ = value(&body);
        }
    }
}
