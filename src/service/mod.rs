//! The shell round the learner: the snapshot cell, the ingest queue, the trainer thread, the state directory and the
//! link between a trainer and its followers. Handlers of every edge talk to [`Service`] and to nothing behind it.

mod account;
mod cell;
mod client;
mod follow;
mod health;
mod ingest;
mod model_dir;
mod params;
mod persist;
mod reasons;
mod resume;
mod sample_files;
mod sample_log;
mod sample_record;
mod seed;
mod start;
mod state_dir;
mod status;
mod trainer;

pub use client::{Answer, Client, ClientError};
pub use params::{DEFAULT_PRIOR_NAME, FollowParams, LogLimits, ParamError, ServiceParams, WriteParams};
pub use reasons::RowReasons;
pub use seed::SeedError;
pub use start::{ServiceError, ServiceHandle, ShutdownError};
pub use state_dir::StateDirError;
pub use status::{IngestCounts, PersistenceStatus, SeedStatus, ServiceRole, ServiceStatus, SyncStatus};

use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use self::account::Facts;
use self::cell::SnapshotCell;
use self::follow::Follower;
use self::health::Health;
use self::ingest::{Ingest, Refusals};
use self::persist::Disk;
use self::reasons::{PriorWords, Standing};
use self::seed::Seed;
use self::trainer::{ToTrainer, TrainerView};
use crate::snapshot::{Conditions, Snapshot};
use crate::training::Survey;
use crate::types::{Ask, Sample, UnixMs, Version};

/// How long a question to the trainer may take: longer than any fit.
const TRAINER_ANSWER_MAX: Duration = Duration::from_secs(5);

/// The wall clock. The core is told the time; this is where it is read.
pub fn now() -> UnixMs {
    UnixMs(jiff::Timestamp::now().as_millisecond())
}

/// A cheap handle, one per process, cloned into every handler.
#[derive(Clone)]
pub struct Service {
    inner: Arc<Inner>,
}

struct Inner {
    role: ServiceRole,
    cell: Arc<SnapshotCell>,
    health: Arc<Health>,
    refusals: Refusals,
    part: Part,
    /// Absent when state is kept in memory only.
    disk: Option<Disk>,
    prior: PriorWords,
    seed: Option<Arc<Seed>>,
    seed_ignored: Option<String>,
    started_at: UnixMs,
}

/// What stands behind the cell.
enum Part {
    /// A learner in this process.
    Learner { ingest: Ingest, view: Arc<ArcSwap<TrainerView>>, fit_min_samples: u64 },
    /// A trainer in another process.
    Follower(Arc<Follower>),
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
    #[inline]
    pub fn snapshot(&self) -> Arc<Snapshot> {
        self.inner.cell.load()
    }

    /// Conditions for reading the snapshot now: the question plus this process's health. Takes no lock (I7).
    #[inline]
    pub fn conditions(&self, ask: Ask, now: UnixMs) -> Conditions {
        Conditions { ask, now, at_least: self.inner.health.at_least(now) }
    }

    /// Says of each answer of this snapshot at `now` in which state it is and why.
    pub fn row_reasons<'a>(&'a self, snapshot: &'a Snapshot, now: UnixMs) -> RowReasons<'a> {
        RowReasons::new(self.standing(snapshot, now))
    }

    fn standing<'a>(&'a self, snapshot: &'a Snapshot, now: UnixMs) -> Standing<'a> {
        let Inner { health, prior, seed, .. } = &*self.inner;
        let follows = matches!(self.inner.part, Part::Follower(_));
        Standing { now, snapshot, health, prior, seed: seed.as_deref(), follows }
    }

    /// What this process does.
    pub fn role(&self) -> ServiceRole {
        self.inner.role
    }

    /// Queues good rows for the trainer. Never waits: a full queue is a counted drop.
    ///
    /// # Errors
    /// [`Unavailable::PredictOnly`] on a follower.
    pub fn offer(&self, samples: Vec<Sample>) -> Result<Offered, Unavailable> {
        Ok(self.ingest()?.offer(samples))
    }

    /// Counts rows refused before they could be offered.
    pub fn refuse(&self, reason: &'static str, rows: u64) {
        self.inner.refusals.add(reason, rows);
    }

    /// The account of this process.
    pub fn status(&self) -> ServiceStatus {
        let inner = &*self.inner;
        let now = now();
        let snapshot = inner.cell.load();
        let mut ingest = IngestCounts::default();
        let (mut view, mut sync, mut fit_min) = (None, None, 0);
        match &inner.part {
            Part::Learner { ingest: queue, view: latest, fit_min_samples } => {
                ingest = queue.counts();
                view = Some(latest.load_full());
                fit_min = *fit_min_samples;
            }
            Part::Follower(follower) => sync = Some(follower.status()),
        }
        ingest.refused = inner.refusals.counts();
        let facts = Facts {
            standing: self.standing(&snapshot, now),
            ingest: &ingest,
            fit_min_samples: fit_min,
            trainer: view.as_deref(),
            sync: sync.as_ref(),
        };
        let state = facts.state();
        let reason = facts.reason();
        let seed = inner.seed.as_ref().map(|seed| SeedStatus {
            file: seed.name.clone(),
            origin: seed.origin(),
            fitted_at: seed.snapshot().provenance.fitted_at,
            answers: self.standing(&snapshot, now).seeded(),
        });
        let not_learning_because = facts.not_learning_because();
        let (ready, ready_reason) = facts.readiness();
        ServiceStatus {
            role: inner.role,
            state,
            reason,
            not_learning_because,
            ready,
            ready_reason,
            version: snapshot.version,
            fitted_at: snapshot.provenance.fitted_at,
            made_at: snapshot.provenance.made_at,
            trained_rows: snapshot.models.rows(),
            ingest,
            last_fit_duration_ms: view.as_ref().and_then(|view| view.last_fit_duration_ms),
            learner: view.map(|view| view.report.clone()),
            persistence: inner.disk.as_ref().map_or_else(PersistenceStatus::in_memory, Disk::status),
            seed,
            seed_ignored: inner.seed_ignored.clone(),
            sync,
            started_at: inner.started_at,
        }
    }

    /// Whether answers are usable (see [`ServiceStatus::ready`]), for the prediction routes: cheaper than the status.
    pub fn is_ready(&self) -> bool {
        account::is_ready(&self.inner.cell.load())
    }

    /// What the store holds, by bucket.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long.
    pub async fn survey(&self) -> Result<Survey, Unavailable> {
        self.ask_trainer(ToTrainer::Survey).await
    }

    /// Forgets what was asked for.
    ///
    /// # Errors
    /// [`Unavailable`] on a follower, or when the trainer is busy for too long; nothing is forgotten then.
    pub async fn flush(&self, what: Flush) -> Result<Flushed, Unavailable> {
        self.ask_trainer(|reply| ToTrainer::Flush(what, reply)).await
    }

    /// Follower: asks the trainer now instead of at the next turn; returns whether a newer snapshot came.
    /// Other roles: returns false at once.
    pub async fn sync_now(&self) -> bool {
        match &self.inner.part {
            Part::Follower(follower) => follower.sync_now().await,
            Part::Learner { .. } => false,
        }
    }

    /// The serving snapshot in its byte form.
    pub fn encoded(&self) -> EncodedSnapshot {
        self.inner.cell.encoded()
    }

    /// Waits until the serving version is not `seen`, or until `timeout`; returns whether it changed.
    pub async fn changed(&self, seen: Version, timeout: Duration) -> bool {
        self.inner.cell.changed(seen, timeout).await
    }

    fn ingest(&self) -> Result<&Ingest, Unavailable> {
        match &self.inner.part {
            Part::Learner { ingest, .. } => Ok(ingest),
            Part::Follower(follower) => {
                Err(Unavailable::PredictOnly { trainer_url: follower.trainer_url().to_string() })
            }
        }
    }

    async fn ask_trainer<T>(&self, question: impl FnOnce(oneshot::Sender<T>) -> ToTrainer) -> Result<T, Unavailable> {
        let busy = Unavailable::TrainerBusy(TRAINER_ANSWER_MAX.as_millis() as u64);
        let (reply, answer) = oneshot::channel();
        if !self.ingest()?.ask(question(reply)) {
            return Err(busy);
        }
        match tokio::time::timeout(TRAINER_ANSWER_MAX, answer).await {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(_)) | Err(_) => Err(busy),
        }
    }
}
