//! Everything a running service says of itself, as plain data: `/status`, `/metrics` and the log read this.

use std::collections::BTreeMap;

use crate::training::LearnerReport;
use crate::types::{Role, State, Target, UnixMs, Version};

/// Which part of the work a process does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServiceRole {
    /// Learns and predicts in one process.
    All,
    /// Learns, and hands snapshots to followers. Also answers predictions.
    Train,
    /// Follows a trainer and predicts.
    Predict,
}

impl ServiceRole {
    /// The word of `--role`.
    pub fn name(self) -> &'static str {
        match self {
            ServiceRole::All => "all",
            ServiceRole::Train => "train",
            ServiceRole::Predict => "predict",
        }
    }
}

/// Where samples went since the process began. `offered = accepted + dropped`; refused rows were never offered.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct IngestCounts {
    /// Good rows taken since the state directory began, restarts included.
    pub accepted: u64,
    /// Good rows dropped since this process began, because the queue was full.
    pub dropped: u64,
    /// Rows refused since this process began, by reason.
    pub refused: BTreeMap<&'static str, u64>,
    /// Good rows waiting for the trainer.
    pub queued: usize,
}

/// Whether what is learnt survives a restart.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PersistenceStatus {
    /// The state directory, as configured; `None` when state is kept in memory only.
    pub state_dir: Option<String>,
    /// Whether the latest write and flush succeeded.
    pub ok: bool,
    /// Why not, if not.
    pub error: Option<String>,
    /// Failed writes since this process began.
    pub failures: u64,
    /// Accepted samples that never reached the disk, because writes failed or the disk was slower than the stream.
    pub samples_unlogged: u64,
    /// Bytes of the sample log now.
    pub log_bytes: u64,
    /// Samples read back at start.
    pub samples_restored: u64,
    /// What was skipped at start (damaged snapshots, torn log tails), one line each, at most 20.
    pub notices: Vec<String>,
}

impl PersistenceStatus {
    /// Nothing is kept, so nothing fails.
    pub(super) fn in_memory() -> Self {
        PersistenceStatus { ok: true, ..PersistenceStatus::default() }
    }
}

/// A follower's link to its trainer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SyncStatus {
    /// The trainer's URL.
    pub trainer_url: String,
    /// Whether the last exchange succeeded.
    pub connected: bool,
    /// When the last exchange succeeded.
    pub last_success_at: Option<UnixMs>,
    /// Failed exchanges since this process began.
    pub failures: u64,
    /// What went wrong last, if the link is down.
    pub error: Option<String>,
}

/// The snapshot of another sidecar that this history began with.
#[derive(Clone, Debug, PartialEq)]
pub struct SeedStatus {
    /// Name of the file it was, without directories.
    pub file: String,
    /// What it was called where it came from.
    pub origin: Version,
    /// When its models were fitted there.
    pub fitted_at: Option<UnixMs>,
    /// Roles and targets whose model is still the seed's.
    pub answers: Vec<(Role, Target)>,
}

/// The whole account of one process.
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceStatus {
    /// What this process does.
    pub role: ServiceRole,
    /// The worst state that applies to every answer right now (never `Extrapolating`, which is per row).
    pub state: State,
    /// Why, worst first and with figures where there are any: everything that applies.
    pub reason: String,
    /// When nothing is being learnt: why. `None` while learning goes on as it should.
    pub not_learning_because: Option<String>,
    /// Whether answers are usable: a fitted model, or a prior the operator calibrated.
    pub ready: bool,
    /// Why not ready, for `/readyz`.
    pub ready_reason: String,
    /// What serves.
    pub version: Version,
    /// When the serving model was fitted; `None` for the prior.
    pub fitted_at: Option<UnixMs>,
    /// When the serving snapshot, with its corrections, was made.
    pub made_at: UnixMs,
    /// Rows the serving models were fitted on, in the order of `Target::ALL`; 0 for the prior.
    pub trained_rows: [usize; 2],
    /// Sample accounting.
    pub ingest: IngestCounts,
    /// The learner's account; `None` in the predict role.
    pub learner: Option<LearnerReport>,
    /// How long the latest fit took, ms of wall clock.
    pub last_fit_duration_ms: Option<f64>,
    /// Disk.
    pub persistence: PersistenceStatus,
    /// What this history began with; `None` without a seed.
    pub seed: Option<SeedStatus>,
    /// Why the seed that was given is not used, if it is not.
    pub seed_ignored: Option<String>,
    /// Link to the trainer; `None` outside the predict role.
    pub sync: Option<SyncStatus>,
    /// When this process began.
    pub started_at: UnixMs,
}
