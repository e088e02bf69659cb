//! One immutable snapshot and the hot path through it.
//!
//! [`Snapshot::read`] fixes everything that is common to a batch (the question, the time, the widening); then
//! [`Reader::predict`] answers one row after another: no lock, no I/O, no allocation (I7).

mod codec;
mod explain;
mod predict;

pub use codec::{DecodeError, SNAPSHOT_BYTES_MAX, decode, encode};
pub use explain::{Contribution, Explanation, TargetExplanation};
pub use predict::{Conditions, Reader};

use std::sync::Arc;

use crate::calibration::{Alarm, Online};
use crate::model::{Prior, TargetModel};
use crate::types::{Ask, Estimate, Features, Lineage, Role, Target, UnixMs, Version};

/// Where a snapshot came from.
#[derive(Clone, Debug, PartialEq)]
pub struct Provenance {
    /// When the serving models were fitted; `None` for the prior.
    pub fitted_at: Option<UnixMs>,
    /// When this snapshot (with its online corrections) was made.
    pub made_at: UnixMs,
    /// Samples accepted by the learner's lineage when it was made.
    pub samples_accepted: u64,
    /// Observation time of the newest sample it knows.
    pub last_observed_at: Option<UnixMs>,
    /// Version of foretoken that made it.
    pub made_by: String,
}

/// Rows from which a role's own model answers for it. Until then its samples teach the common model too.
const ROLE_ROWS_MIN: usize = 100;

/// The fitted models by role and target, shared between the revisions of one generation.
#[derive(Clone, Debug, PartialEq)]
pub struct Models(pub [[TargetModel; 2]; 3]);

impl Models {
    /// Physics alone.
    pub fn prior(prior: &Prior) -> Self {
        Models(Role::ALL.map(|_| Target::ALL.map(|target| TargetModel::prior(target, prior))))
    }

    /// One of them.
    pub fn of(&self, role: Role, target: Target) -> &TargetModel {
        &self.0[role.index()][target.index()]
    }

    /// Whether a role's model stands on samples enough of its own; role `both` is the common one and needs none.
    pub fn stands_alone(&self, role: Role, target: Target) -> bool {
        role == Role::Both || self.of(role, target).rows >= ROLE_ROWS_MIN
    }

    /// Whose model answers for a role: its own once it stands alone, the common one until then, or whichever is fitted.
    pub fn answering(&self, role: Role, target: Target) -> Role {
        let fitted = |role: &Role| self.of(*role, target).rows > 0;
        if fitted(&role) && self.stands_alone(role, target) {
            return role;
        }
        Role::ALL.into_iter().find(fitted).unwrap_or(role)
    }

    /// The model that answers where no role is given.
    pub fn common(&self, target: Target) -> &TargetModel {
        self.of(self.answering(Role::Both, target), target)
    }

    /// Rows the models that answer for role `both` were fitted on, in the order of [`Target::ALL`].
    pub fn rows(&self) -> [usize; 2] {
        Target::ALL.map(|target| self.common(target).rows)
    }
}

/// What answers predictions. Never mutated once published (I2).
#[derive(Clone, Debug, PartialEq)]
pub struct Snapshot {
    /// Lineage, generation and revision.
    pub version: Version,
    /// What was fitted; changes with the generation.
    pub models: Arc<Models>,
    /// What runs between fits (offsets, the quantile table); changes with the revision.
    pub online: Arc<Online>,
    /// Changes of regime that were noticed, oldest first, at most [`crate::calibration::ALARMS_KEPT`].
    pub alarms: Arc<[Alarm]>,
    /// Whether the prior's constants were given by the operator (a calibration) rather than the shipped defaults.
    pub calibrated: bool,
    /// Where it came from.
    pub provenance: Provenance,
}

impl Snapshot {
    /// Generation 0: physics with the prior's constants.
    pub fn prior(prior: &Prior, lineage: Lineage, now: UnixMs) -> Snapshot {
        Snapshot {
            version: Version { lineage, ..Version::default() },
            models: Arc::new(Models::prior(prior)),
            online: Arc::new(Online::default()),
            alarms: Arc::default(),
            calibrated: prior.calibrated,
            provenance: Provenance {
                fitted_at: None,
                made_at: now,
                samples_accepted: 0,
                last_observed_at: None,
                made_by: env!("CARGO_PKG_VERSION").to_string(),
            },
        }
    }

    /// Opens the snapshot for a batch of rows under the same conditions.
    pub fn read(&self, conditions: Conditions) -> Reader<'_> {
        Reader::new(self, conditions)
    }

    /// One row; for a batch use [`Snapshot::read`] once.
    pub fn predict(&self, features: &Features, endpoint: Option<&str>, ask: Ask, now: UnixMs) -> Estimate {
        self.read(Conditions::new(ask, now)).predict(features, endpoint)
    }
}
