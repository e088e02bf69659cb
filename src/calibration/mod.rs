//! What runs between fits.

/// Online corrections as published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Online {}
