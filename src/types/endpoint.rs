//! The name of one model server.

use std::sync::Arc;

/// Longest endpoint name that is taken, in bytes: host names end at 253.
pub const ENDPOINT_NAME_BYTES_MAX: usize = 253;

/// Name of an endpoint as the router gives it: 1 to [`ENDPOINT_NAME_BYTES_MAX`] bytes without control characters.
/// Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EndpointName(Arc<str>);

impl EndpointName {
    /// Takes a name if it is not empty, not too long and free of control characters.
    pub fn try_new(name: &str) -> Option<Self> {
        let fits = !name.is_empty() && name.len() <= ENDPOINT_NAME_BYTES_MAX && !name.chars().any(char::is_control);
        fits.then(|| EndpointName(Arc::from(name)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}
