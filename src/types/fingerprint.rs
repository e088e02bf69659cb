//! What an endpoint runs, as far as it matters for its speed.

use std::sync::Arc;

/// Longest fingerprint that is taken, in bytes.
pub const FINGERPRINT_BYTES_MAX: usize = 512;

/// Model, engine version, flags and accelerator of an endpoint in one text, compared only for equality: 1 to
/// [`FINGERPRINT_BYTES_MAX`] bytes without control characters. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Fingerprint(Arc<str>);

impl Fingerprint {
    /// Takes a text if it is not empty, not too long and free of control characters.
    pub fn try_new(text: &str) -> Option<Self> {
        let fits = !text.is_empty() && text.len() <= FINGERPRINT_BYTES_MAX && !text.chars().any(char::is_control);
        fits.then(|| Fingerprint(Arc::from(text)))
    }

    /// The fingerprint as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
