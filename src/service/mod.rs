//! The shell round the learner: the snapshot cell, the ingest queue, the trainer thread, the state directory and the
//! link between a trainer and its followers. Handlers of every edge talk to [`Service`] and to nothing behind it.

mod cell;
mod client;
mod follow;
mod health;
mod ingest;
mod persist;
mod sample_log;
mod start;
mod state_dir;
mod status;
mod trainer;

pub use client::{Answer, Client, ClientError};
pub use follow::FollowParams;
pub use persist::WriteParams;
pub use sample_log::LogLimits;
pub use start::{ServiceError, ServiceHandle, ServiceParams};
pub use state_dir::StateDirError;
pub use status::{IngestCounts, PersistenceStatus, ServiceRole, ServiceStatus, SyncStatus};

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use self::cell::SnapshotCell;
use self::follow::Link;
use self::ingest::{Command, Ingest};
use self::persist::DiskAccount;
use self::trainer::TrainerView;
use crate::snapshot::{Conditions, Snapshot};
use crate::training::Survey;
use crate::types::{Ask, Sample, State, UnixMs, Version};

/// How long a question to the trainer thread may wait behind a fit.
const TRAINER_ANSWER_MAX: Duration = Duration::from_secs(5);

/// The wall clock. The core is told the time; this is where it is read.
pub fn now() -> UnixMs {
    UnixMs(jiff::Timestamp::now().as_millisecond())
}

/// A cheap handle, one per process, cloned into every handler.
#[derive(Clone)]
pub struct Service(Arc<Inner>);

struct Inner {
    role: ServiceRole,
    cell: Arc<SnapshotCell>,
    started_at: UnixMs,
    disk: DiskAccount,
    work: Work,
}

/// What stands behind the cell.
enum Work {
    /// A trainer thread of this process.
    Trainer { ingest: Ingest, view: Arc<TrainerView> },
    /// A link to another process's trainer.
    Follower { link: Arc<Link> },
}

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
        self.0.cell.load()
    }

    /// Conditions for reading the snapshot now: the question plus this process's health. Takes no lock.
    pub fn conditions(&self, ask: Ask, now: UnixMs) -> Conditions {
        Conditions { at_least: self.floor(now), ..Conditions::new(ask, now) }
    }

    /// What this process does.
    pub fn role(&self) -> ServiceRole {
        self.0.role
    }

    /// Queues good rows for the trainer. Never waits: a full queue is a counted drop.
    ///
    /// # Errors
    /// [`Unavailable::PredictOnly`] on a follower.
    pub fn offer(&self, samples: Vec<Sample>) -> Result<Offered, Unavailable> {
        let (ingest, _) = self.trainer()?;
        Ok(ingest.offer(samples, now()))
    }

    /// Counts rows refused before they could be offered.
    pub fn refuse(&self, reason: &'static str, rows: u64) {
        if let Work::Trainer { ingest, .. } = &self.0.work {
            ingest.refuse(reason, rows);
        }
    }

    /// What the store holds, by bucket.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long.
    pub async fn survey(&self) -> Result<Survey, Unavailable> {
        self.ask_trainer(Command::Survey).await
    }

    /// Forgets what was asked for.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long.
    pub async fn flush(&self, what: Flush) -> Result<Flushed, Unavailable> {
        self.ask_trainer(|reply| Command::Flush(what, reply)).await
    }

    /// Follower: asks the trainer now instead of at the next turn; returns whether a newer snapshot came.
    /// Other roles: returns false at once.
    pub async fn sync_now(&self) -> bool {
        let Work::Follower { link } = &self.0.work else { return false };
        let before = self.0.cell.load().version;
        link.exchange_now().await;
        self.0.cell.load().version != before
    }

    /// The serving snapshot in its byte form.
    pub fn encoded(&self) -> EncodedSnapshot {
        self.0.cell.encoded()
    }

    /// Waits until the serving version is not `seen`, or until `timeout`; returns whether it changed.
    pub async fn changed(&self, seen: Version, timeout: Duration) -> bool {
        let mut receiver = self.0.cell.subscribe();
        let differs = async { receiver.wait_for(|version| *version != seen).await.is_ok() };
        tokio::time::timeout(timeout, differs).await.unwrap_or(false)
    }

    fn floor(&self, now: UnixMs) -> State {
        match &self.0.work {
            Work::Trainer { view, .. } => view.floor(),
            Work::Follower { link } => link.floor(now),
        }
    }

    fn trainer(&self) -> Result<(&Ingest, &Arc<TrainerView>), Unavailable> {
        match &self.0.work {
            Work::Trainer { ingest, view } => Ok((ingest, view)),
            Work::Follower { link } => Err(Unavailable::PredictOnly { trainer_url: link.status().trainer_url }),
        }
    }

    async fn ask_trainer<T>(&self, command: impl FnOnce(oneshot::Sender<T>) -> Command) -> Result<T, Unavailable> {
        let (ingest, _) = self.trainer()?;
        let (sender, receiver) = oneshot::channel();
        let busy = || Unavailable::TrainerBusy(TRAINER_ANSWER_MAX.as_millis() as u64);
        if !ingest.send(command(sender)) {
            return Err(busy());
        }
        tokio::time::timeout(TRAINER_ANSWER_MAX, receiver).await.ok().and_then(Result::ok).ok_or_else(busy)
    }
}
