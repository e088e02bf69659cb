//! The shell round the learner: the snapshot cell, the ingest queue, the trainer thread, the state directory and the
//! link between a trainer and its followers. Handlers of every edge talk to [`Service`] and to nothing behind it.

mod status;

pub use status::{IngestCounts, PersistenceStatus, ServiceRole, ServiceStatus, SyncStatus};

use std::sync::Arc;
use std::time::Duration;

use crate::snapshot::{Conditions, Snapshot};
use crate::training::Survey;
use crate::types::{Ask, Sample, UnixMs, Version};

/// A cheap handle, one per process, cloned into every handler.
#[derive(Clone)]
pub struct Service {}

/// What became of good rows that were offered: `accepted + dropped` = rows offered (I4).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Offered {
    /// Queued for the trainer.
    pub accepted: usize,
    /// The queue was full.
    pub dropped: usize,
}

/// Why an operation is not possible here and now.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Unavailable {
    /// This process follows a trainer and keeps no samples.
    #[error("this instance only predicts; send samples to the trainer at {trainer_url}")]
    PredictOnly {
        /// Where to send them.
        trainer_url: String,
    },
    /// The trainer did not answer in time (a long fit), or it has stopped.
    #[error("the trainer thread did not answer within {0} ms; try again")]
    TrainerBusy(u64),
}

/// What to forget.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flush {
    /// Stored samples (the store and the log).
    pub samples: bool,
    /// Rolling accuracy.
    pub accuracy: bool,
    /// The fitted models and corrections: back to the prior, as a new generation.
    pub models: bool,
}

/// What was forgotten, per target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Flushed {
    /// Stored samples dropped, in the order of `Target::ALL`.
    pub samples: [usize; 2],
}

/// A snapshot in its byte form, encoded once per version.
#[derive(Clone, Debug)]
pub struct EncodedSnapshot {
    /// Which.
    pub version: Version,
    /// Strong entity tag, with its quotes: lineage-generation-revision, hexadecimal lineage.
    pub etag: String,
    /// The bytes of `snapshot::encode`.
    pub bytes: Arc<[u8]>,
}

impl Service {
    /// The snapshot that serves now. Load it once per request, so that a batch has one generation (I1).
    pub fn snapshot(&self) -> Arc<Snapshot> {
        unimplemented!()
    }

    /// Conditions for reading the snapshot now: the question plus this process's health.
    pub fn conditions(&self, _ask: Ask, _now: UnixMs) -> Conditions {
        unimplemented!()
    }

    /// Queues good rows for the trainer. Never waits: a full queue is a counted drop.
    ///
    /// # Errors
    /// [`Unavailable::PredictOnly`] on a follower.
    pub fn offer(&self, _samples: Vec<Sample>) -> Result<Offered, Unavailable> {
        unimplemented!()
    }

    /// Counts rows refused before they could be offered.
    pub fn refuse(&self, _reason: &'static str, _rows: u64) {
        unimplemented!()
    }

    /// The account of this process.
    pub fn status(&self) -> ServiceStatus {
        unimplemented!()
    }

    /// What the store holds, by bucket.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long.
    pub async fn survey(&self) -> Result<Survey, Unavailable> {
        unimplemented!()
    }

    /// Forgets what was asked for.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long.
    pub async fn flush(&self, _what: Flush) -> Result<Flushed, Unavailable> {
        unimplemented!()
    }

    /// Follower: asks the trainer now instead of at the next turn; returns whether a newer snapshot came.
    /// Other roles: returns false at once.
    pub async fn sync_now(&self) -> bool {
        unimplemented!()
    }

    /// The serving snapshot in its byte form.
    pub fn encoded(&self) -> EncodedSnapshot {
        unimplemented!()
    }

    /// Waits until the serving version is not `seen`, or until `timeout`; returns whether it changed.
    pub async fn changed(&self, _seen: Version, _timeout: Duration) -> bool {
        unimplemented!()
    }
}
