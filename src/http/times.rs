//! Times on the wire: RFC 3339 out; RFC 3339 with or without zone, a date, or epoch seconds or milliseconds in.

use jiff::Timestamp;
use jiff::civil::{Date, DateTime};
use jiff::tz::TimeZone;

use super::lax::{Lax, Wrong};
use crate::types::UnixMs;

/// Numbers above this are epoch milliseconds, not seconds: the year 2603 in seconds, 1970 in milliseconds.
const SECONDS_MAX: f64 = 2e10;

/// Unix milliseconds as RFC 3339 in UTC with milliseconds, for example `2026-01-01T00:00:00.5Z`.
pub fn rfc3339(at: UnixMs) -> String {
    // Out of jiff's range (beyond the year 9999) there is no such time to print.
    Timestamp::from_millisecond(at.0).map_or_else(|_| "1970-01-01T00:00:00Z".to_string(), |time| time.to_string())
}

/// Reads a time field; `None` when absent.
///
/// # Errors
/// [`Wrong::TimeType`] for null and structures, [`Wrong::TimeParsing`] for text that is no time.
pub fn read(value: &Lax<'_>) -> Result<Option<UnixMs>, Wrong> {
    match value {
        Lax::Absent => Ok(None),
        Lax::Integer(number) => epoch(*number as f64).map(Some),
        Lax::Float(number) => epoch(*number).map(Some),
        Lax::Text(text) => read_text(text.trim()).map(Some),
        Lax::Impossible => Err(Wrong::NotFinite),
        Lax::Null | Lax::Bool(_) | Lax::Array | Lax::Object => Err(Wrong::TimeType),
    }
}

fn read_text(text: &str) -> Result<UnixMs, Wrong> {
    if let Ok(number) = text.parse::<f64>() {
        return epoch(number);
    }
    if let Ok(time) = text.parse::<Timestamp>() {
        return Ok(UnixMs(time.as_millisecond()));
    }
    let naive = text.parse::<DateTime>().or_else(|_| text.parse::<Date>().map(|date| date.at(0, 0, 0, 0)));
    naive
        .and_then(|time| TimeZone::UTC.to_timestamp(time))
        .map(|time| UnixMs(time.as_millisecond()))
        .map_err(|_| Wrong::TimeParsing)
}

fn epoch(number: f64) -> Result<UnixMs, Wrong> {
    if !number.is_finite() {
        return Err(Wrong::NotFinite);
    }
    let ms = if number.abs() <= SECONDS_MAX { number * 1e3 } else { number };
    // Within jiff's years; anything beyond is a unit mistake.
    if ms.abs() <= 2.5e14 { Ok(UnixMs(ms.round() as i64)) } else { Err(Wrong::TimeParsing) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_recorded_form_is_read() {
        let at = |text: &str| read(&serde_json::from_str::<Lax<'_>>(text).unwrap());
        let new_year = Ok(Some(UnixMs(1_767_225_600_000)));
        for form in [
            "\"2026-01-01T00:00:00\"",
            "\"2026-01-01T02:00:00+02:00\"",
            "1767225600",
            "1767225600000",
            "\"1767225600\"",
            "\"2026-01-01\"",
            "\"2026-01-01T00:00:00.000000001Z\"",
            "\"2026-01-01 00:00:00Z\"",
        ] {
            assert_eq!(at(form), new_year, "{form}");
        }
        assert_eq!(at("\"yesterday\""), Err(Wrong::TimeParsing));
        assert_eq!(at("null"), Err(Wrong::TimeType));
        assert_eq!(at("1e300"), Err(Wrong::TimeParsing));
        assert_eq!(rfc3339(UnixMs(1_767_225_600_500)), "2026-01-01T00:00:00.5Z");
    }
}
