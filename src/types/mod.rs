//! The vocabulary every other room speaks. Imports nothing of ours, no clock, no bytes format.

mod endpoint;
mod estimate;
mod features;
mod fingerprint;
mod generation;
mod quantile;
mod role;
mod sample;
mod time;

pub use endpoint::{ENDPOINT_NAME_BYTES_MAX, EndpointName};
pub use estimate::{Estimate, State, TargetEstimate};
pub use features::{FeatureError, Features, LIMITS, Limits};
pub use fingerprint::{FINGERPRINT_BYTES_MAX, Fingerprint};
pub use generation::{Generation, Lineage, Version};
pub use quantile::{Ask, Quantile};
pub use role::Role;
pub use sample::{Ending, LATENCY_MS_MAX, LATENCY_MS_MIN, Manner, Observation, Promised, Sample, SampleError};
pub use time::UnixMs;

/// What is predicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Time to first token: dispatch of the request to its first generated token, ms. Contains queueing.
    Ttft,
    /// Time per output token: (end - first token) / (output tokens - 1), ms per token.
    Tpot,
}

impl Target {
    /// Both targets, in the order used wherever they are listed.
    pub const ALL: [Target; 2] = [Target::Ttft, Target::Tpot];

    /// Position in [`Target::ALL`].
    pub fn index(self) -> usize {
        match self {
            Target::Ttft => 0,
            Target::Tpot => 1,
        }
    }

    /// Lower-case name as it stands in files, metrics labels and tables.
    pub fn name(self) -> &'static str {
        match self {
            Target::Ttft => "ttft",
            Target::Tpot => "tpot",
        }
    }
}
