//! Instants as values. Nobody in the core reads a clock; the caller says what time it is.

/// Milliseconds since 1970-01-01 UTC, or since the start of a recording. May be negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnixMs(pub i64);

impl UnixMs {
    /// Milliseconds from `earlier` to `self`; 0 when the clock stepped back.
    pub fn since(self, earlier: UnixMs) -> i64 {
        self.0.saturating_sub(earlier.0).max(0)
    }

    /// `self` moved by `ms`.
    pub fn plus_ms(self, ms: i64) -> UnixMs {
        UnixMs(self.0.saturating_add(ms))
    }
}
