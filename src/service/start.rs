//! Starting a service in one of its roles, and stopping it in order.

use std::path::PathBuf;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio_util::sync::CancellationToken;

use super::cell::SnapshotCell;
use super::client::{Client, ClientError};
use super::follow::{ANSWER_BYTES_MAX, FollowParams, Link, follow};
use super::ingest::{Command, Ingest};
use super::persist::{DiskAccount, Persister, WriteParams};
use super::state_dir::{StateDir, StateDirError};
use super::trainer::{Trainer, TrainerDisk, TrainerView};
use super::{Inner, Service, ServiceRole, Work, now};
use crate::snapshot::Snapshot;
use crate::training::{FitJob, FitResult, Learner, LearnerParams};
use crate::types::Lineage;

/// Checked parameters of a service.
#[derive(Clone, Debug)]
pub struct ServiceParams {
    /// What this process does.
    pub role: ServiceRole,
    /// The learner's parameters; a follower uses its prior only.
    pub learner: LearnerParams,
    /// Samples that may wait for the trainer.
    pub queue_samples_max: usize,
    /// Where to keep state; `None` keeps it in memory only.
    pub state_dir: Option<PathBuf>,
    /// How to write there.
    pub write: WriteParams,
    /// Whom to follow; required for [`ServiceRole::Predict`], unused otherwise.
    pub follow: Option<FollowParams>,
    /// How a fit is run: `FitJob::run`, unless a test wants one that panics.
    pub run_fit: fn(FitJob) -> FitResult,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The state directory is someone else's, or in use.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The trainer's URL cannot be called.
    #[error("trainer_url: {0}")]
    TrainerUrl(#[from] ClientError),
    /// A follower without a trainer.
    #[error("role predict needs trainer_url, the URL of the trainer to follow")]
    NoTrainer,
    /// The operating system gave no thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
}

/// What must be stopped in order.
pub struct ServiceHandle {
    service: Service,
    cancel: CancellationToken,
    trainer: Option<JoinHandle<()>>,
    follower: Option<tokio::task::JoinHandle<()>>,
}

impl Service {
    /// Starts in the given role. It answers at once: from the newest snapshot of its state directory, or from the
    /// prior; stored samples are read back behind that.
    ///
    /// # Errors
    /// See [`ServiceError`]. A directory that cannot be written is not an error: it is said in the status instead.
    ///
    /// # Panics
    /// In the predict role, outside a tokio runtime.
    pub fn start(params: ServiceParams) -> Result<(Service, ServiceHandle), ServiceError> {
        let started_at = now();
        let disk = DiskAccount::new(params.state_dir.as_ref().map(|dir| dir.display().to_string()));
        let fresh_lineage = Lineage(rand::random());
        let dir = match &params.state_dir {
            None => None,
            Some(path) => match StateDir::open(path, fresh_lineage) {
                Ok(dir) => Some(dir),
                Err(StateDirError::Io { path, source }) => {
                    disk.wrote(&path.display().to_string(), &Err(source));
                    None
                }
                Err(error) => return Err(error.into()),
            },
        };
        let found = dir.as_ref().map(StateDir::load_newest).unwrap_or_default();
        found.notices.into_iter().for_each(|line| disk.notice(line));
        let lineage = dir.as_ref().map_or(fresh_lineage, |dir| dir.lineage);
        let snapshot = found.snapshot.unwrap_or_else(|| Snapshot::prior(&params.learner.prior, lineage, started_at));
        match params.role {
            ServiceRole::All | ServiceRole::Train => Self::start_trainer(params, snapshot, dir, disk),
            ServiceRole::Predict => Self::start_follower(params, snapshot, dir, disk),
        }
    }

    fn start_trainer(
        params: ServiceParams,
        snapshot: Snapshot,
        dir: Option<StateDir>,
        disk: DiskAccount,
    ) -> Result<(Service, ServiceHandle), ServiceError> {
        let mut learner = Learner::new(params.learner, snapshot);
        let cell = Arc::new(SnapshotCell::new(learner.snapshot(now())));
        let (ingest, intake) = Ingest::new(params.queue_samples_max);
        let view = Arc::new(TrainerView::default());
        let trainer =
            Trainer { learner, intake, cell: Arc::clone(&cell), view: Arc::clone(&view), run_fit: params.run_fit };
        let trainer_disk = dir.map(|dir| TrainerDisk { dir, params: params.write, account: disk.clone() });
        let thread = std::thread::Builder::new()
            .name("trainer".to_string())
            .spawn(move || trainer.run(trainer_disk))
            .map_err(ServiceError::Thread)?;
        let inner = Inner { role: params.role, cell, started_at: now(), disk, work: Work::Trainer { ingest, view } };
        let service = Service(Arc::new(inner));
        let handle = ServiceHandle {
            service: service.clone(),
            cancel: CancellationToken::new(),
            trainer: Some(thread),
            follower: None,
        };
        Ok((service, handle))
    }

    fn start_follower(
        params: ServiceParams,
        snapshot: Snapshot,
        dir: Option<StateDir>,
        disk: DiskAccount,
    ) -> Result<(Service, ServiceHandle), ServiceError> {
        let follow_params = params.follow.ok_or(ServiceError::NoTrainer)?;
        let client = Client::try_new(&follow_params.trainer_url, ANSWER_BYTES_MAX)?;
        let persister = match dir {
            Some(dir) => {
                Some(Persister::start(dir, None, false, params.write, disk.clone()).map_err(ServiceError::Thread)?)
            }
            None => None,
        };
        let cell = Arc::new(SnapshotCell::new(snapshot));
        let link = Arc::new(Link::new(&follow_params, now()));
        let cancel = CancellationToken::new();
        let task = tokio::spawn(follow(
            client,
            Arc::clone(&cell),
            Arc::clone(&link),
            follow_params.retry_max,
            persister,
            cancel.clone(),
        ));
        let inner = Inner { role: params.role, cell, started_at: now(), disk, work: Work::Follower { link } };
        let service = Service(Arc::new(inner));
        let handle = ServiceHandle { service: service.clone(), cancel, trainer: None, follower: Some(task) };
        Ok((service, handle))
    }
}

impl ServiceHandle {
    /// Stops in order: what was accepted is learnt from, the last snapshot and samples are written, threads end.
    pub async fn shutdown(mut self) {
        self.cancel.cancel();
        if let Work::Trainer { ingest, .. } = &self.service.0.work {
            // A trainer that is gone needs no telling.
            let _ = ingest.send(Command::Stop);
        }
        if let Some(thread) = self.trainer.take() {
            let joined = tokio::task::spawn_blocking(move || thread.join()).await;
            if !matches!(joined, Ok(Ok(()))) {
                tracing::error!("the trainer thread did not end in order");
            }
        }
        if let Some(task) = self.follower.take()
            && task.await.is_err()
        {
            tracing::error!("the follower did not end in order");
        }
    }
}
