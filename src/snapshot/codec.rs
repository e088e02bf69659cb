//! Bytes of a snapshot: magic, version, length, checksum, then bincode. The only place bincode is used.

use super::Snapshot;

/// Largest snapshot that is read, bytes; far above any real one and small enough to buffer.
pub const SNAPSHOT_BYTES_MAX: usize = 4 << 20;

/// Why bytes are not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Does not begin with the magic.
    #[error("not a foretoken snapshot (wrong first bytes)")]
    Foreign,
    /// Made by a newer or retired format.
    #[error("snapshot format {found} is not {supported}; use the foretoken version that wrote it, or start without it")]
    Format {
        /// Format number in the file.
        found: u32,
        /// The one this build reads.
        supported: u32,
    },
    /// Made for other feature columns.
    #[error("snapshot schema {found} is not {supported}; it must be fitted again by this version")]
    Schema {
        /// Schema number in the file.
        found: u32,
        /// The one this build reads.
        supported: u32,
    },
    /// Shorter or longer than it says, or over the limit.
    #[error("snapshot is {found} bytes where its header says {expected}")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// Bits changed.
    #[error("snapshot checksum does not match")]
    Checksum,
    /// The checksum holds but the content breaks a rule (a non-finite number, an impossible size).
    #[error("snapshot content is invalid: {0}")]
    Content(&'static str),
}

/// Encodes.
pub fn encode(_snapshot: &Snapshot) -> Vec<u8> {
    unimplemented!()
}

/// Decodes and checks; never panics, whatever the bytes.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(_bytes: &[u8]) -> Result<Snapshot, DecodeError> {
    unimplemented!()
}
