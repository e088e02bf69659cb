//! The wall clock, read here and nowhere deeper: everything below the shell takes the time as an argument.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::types::UnixMs;

/// The time now. Before 1970 it is 0; the far future saturates.
pub fn now() -> UnixMs {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    UnixMs(i64::try_from(since.as_millis()).unwrap_or(i64::MAX))
}
