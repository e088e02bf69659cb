//! Starting a service and stopping it in order.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::cell::SnapshotCell;
use super::follow::Follower;
use super::health::Health;
use super::ingest::{Budget, Ingest, Refusals};
use super::params::{FollowParams, ParamError, ServiceParams};
use super::persist::{self, Disk};
use super::reasons::PriorWords;
use super::resume::{BeginError, Beginning};
use super::seed::{Seed, SeedError};
use super::state_dir::StateDirError;
use super::trainer::{self, Running, Shared, ToTrainer, TrainerView};
use super::{Inner, Part, Service, ServiceRole, now};
use crate::training::Learner;
use crate::types::{Lineage, UnixMs};

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A parameter that does not work.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// The state directory must not be used.
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    /// The seed cannot be used.
    #[error(transparent)]
    Seed(#[from] SeedError),
    /// The operating system gave no thread.
    #[error("cannot start the {name} thread: {source}; raise the limit on threads")]
    Thread {
        /// Which.
        name: &'static str,
        /// Why.
        source: std::io::Error,
    },
    /// The predict role was started outside a tokio runtime.
    #[error("role predict follows its trainer on a tokio runtime; start it inside one")]
    NoRuntime,
}

impl From<BeginError> for ServiceError {
    fn from(error: BeginError) -> Self {
        match error {
            BeginError::StateDir(error) => ServiceError::StateDir(error),
            BeginError::Seed(error) => ServiceError::Seed(error),
        }
    }
}

/// What did not end in time at shutdown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    /// The trainer was still at work.
    #[error("the trainer did not end within {deadline_ms} ms; {queued} samples were still queued")]
    Trainer {
        /// Time the whole shutdown was given.
        deadline_ms: u64,
        /// Samples it had not learnt from.
        queued: usize,
    },
    /// The disk was still being written.
    #[error("the state directory was not fully written within {deadline_ms} ms")]
    Persister {
        /// Time the whole shutdown was given.
        deadline_ms: u64,
    },
    /// The disk took not everything.
    #[error("the last state was not written: {error}")]
    Unwritten {
        /// Why.
        error: String,
    },
}

/// The right to stop a service. Dropping it leaves the service running.
pub struct ServiceHandle {
    service: Service,
    trainer: Option<Running>,
    persister: Option<Running>,
    follower: Option<(CancellationToken, JoinHandle<()>)>,
}

impl Service {
    /// Starts the parts of `params.role`. Answers are served as soon as this returns; samples of earlier lives come
    /// back in the background.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn start(params: ServiceParams) -> Result<(Service, ServiceHandle), ServiceError> {
        params.check()?;
        match (params.role, params.follow.clone()) {
            (ServiceRole::Predict, Some(follow)) => start_follower(params, follow, now()),
            (ServiceRole::Predict, None) => Err(ParamError::TrainerMissing.into()),
            (ServiceRole::All | ServiceRole::Train, _) => start_learner(params, now()),
        }
    }
}

fn start_learner(params: ServiceParams, now: UnixMs) -> Result<(Service, ServiceHandle), ServiceError> {
    let lineage = Lineage(rand::random());
    let prior = &params.learner.prior;
    let mut beginning = match &params.state_dir {
        Some(dir) => Beginning::of_learner(dir, params.write.log, prior, params.seed_snapshot.as_ref(), lineage, now)?,
        None => Beginning::in_memory(prior, params.seed_snapshot.as_ref(), lineage, now)?,
    };
    let seed = beginning.seed.take().map(Arc::new);
    say_seed(&beginning, seed.as_deref());
    let earlier = beginning.log.as_ref().map(|log| log.earlier());
    let mut learner = Learner::new(params.learner, beginning.snapshot.clone());
    let cell = Arc::new(SnapshotCell::new(learner.snapshot(now)));
    let (disk, persister) = start_persister(&params, &mut beginning, &cell)?;
    let health = Arc::new(Health::new(0));
    health.set_seeded(seed.as_ref().map_or([[false; 2]; 3], |seed| seed.answers(&cell.load())));
    let view = Arc::new(ArcSwap::from_pointee(TrainerView::new(learner.report())));
    let budget = Arc::new(Budget::new(params.queue_samples_max));
    let (sender, inbox) = mpsc::channel();
    let shared = Shared {
        cell: cell.clone(),
        health: health.clone(),
        view: view.clone(),
        budget: budget.clone(),
        disk: disk.clone(),
        seed: seed.clone(),
    };
    let samples_max = params.learner.samples_max;
    let restored = {
        let disk = disk.clone();
        move || {
            let (Some(earlier), Some(disk)) = (earlier, disk) else { return Vec::new() };
            let mut notices = Vec::new();
            let samples = earlier.read_latest(samples_max, &mut notices);
            disk.restored(samples.len() as u64, notices);
            samples
        }
    };
    let trainer = trainer::spawn(learner, shared, inbox, restored, params.run_fit)
        .map_err(|source| ServiceError::Thread { name: "trainer", source })?;
    let ingest = Ingest::new(budget, sender, disk.clone(), beginning.accepted);
    let part = Part::Learner { ingest, view, fit_min_samples: params.learner.fit_min_samples };
    let inner = Inner {
        role: params.role,
        cell,
        health,
        refusals: Refusals::default(),
        part,
        disk,
        prior: PriorWords::new(&params.prior_name, &params.learner.prior),
        seed,
        seed_ignored: beginning.seed_ignored,
        started_at: now,
    };
    let service = Service { inner: Arc::new(inner) };
    Ok((service.clone(), ServiceHandle { service, trainer: Some(trainer), persister, follower: None }))
}

fn start_follower(
    params: ServiceParams,
    follow: FollowParams,
    now: UnixMs,
) -> Result<(Service, ServiceHandle), ServiceError> {
    let runtime = tokio::runtime::Handle::try_current().map_err(|_| ServiceError::NoRuntime)?;
    let prior = &params.learner.prior;
    let mut beginning = match &params.state_dir {
        Some(dir) => Beginning::of_follower(dir, prior, now)?,
        None => Beginning::in_memory(prior, None, Lineage::default(), now)?,
    };
    let health = Arc::new(Health::new(i64::try_from(follow.stale_after.as_millis()).unwrap_or(i64::MAX)));
    // A copy was the trainer's newest when it was made, as far as anybody knows.
    health.set_out_of_step(if beginning.loaded { beginning.snapshot.provenance.made_at.min(now) } else { now });
    let cell = Arc::new(SnapshotCell::new(beginning.snapshot.clone()));
    let (disk, persister) = start_persister(&params, &mut beginning, &cell)?;
    let follower =
        Arc::new(Follower::new(follow, cell.clone(), health.clone(), disk.clone()).map_err(ParamError::from)?);
    let stop = CancellationToken::new();
    let task = runtime.spawn(follower.clone().run(stop.clone()));
    let part = Part::Follower(follower);
    let inner = Inner {
        role: params.role,
        cell,
        health,
        refusals: Refusals::default(),
        part,
        disk,
        prior: PriorWords::new(&params.prior_name, &params.learner.prior),
        seed: None,
        seed_ignored: None,
        started_at: now,
    };
    let service = Service { inner: Arc::new(inner) };
    Ok((service.clone(), ServiceHandle { service, trainer: None, persister, follower: Some((stop, task)) }))
}

/// Says in the log what became of a seed.
fn say_seed(beginning: &Beginning, seed: Option<&Seed>) {
    if let Some(why) = &beginning.seed_ignored {
        tracing::info!("{why}");
    } else if let Some(seed) = seed.filter(|seed| seed.answers(&beginning.snapshot) != [[false; 2]; 3]) {
        let generation = beginning.snapshot.version.generation.0;
        tracing::info!(seed = seed.name, generation, "a seed answers until own samples have replaced it");
    }
}

fn start_persister(
    params: &ServiceParams,
    beginning: &mut Beginning,
    cell: &Arc<SnapshotCell>,
) -> Result<(Option<Disk>, Option<Running>), ServiceError> {
    let Some(dir) = beginning.dir.take() else { return Ok((None, None)) };
    for notice in &beginning.notices {
        tracing::warn!(dir = %dir.path().display(), %notice, "the state directory was not whole");
    }
    let version = cell.version();
    tracing::info!(
        dir = %dir.path().display(),
        generation = version.generation.0,
        samples_accepted = beginning.accepted,
        "the state directory is open"
    );
    let notices = std::mem::take(&mut beginning.notices);
    persist::spawn(params.write, dir, beginning.log.take(), beginning.persisted, cell.clone(), notices)
        .map(|(disk, running)| (Some(disk), Some(running)))
        .map_err(|source| ServiceError::Thread { name: "persister", source })
}

impl ServiceHandle {
    /// Stops in order: the queue closes, the trainer learns what is queued, the last snapshot and the last samples are
    /// written, the threads end. What is not done at the deadline goes on without being waited for.
    ///
    /// # Errors
    /// [`ShutdownError`]: the first thing that was not done.
    pub async fn shutdown(self, deadline: Duration) -> Result<(), ShutdownError> {
        let until = tokio::time::Instant::from_std(Instant::now() + deadline);
        let deadline_ms = u64::try_from(deadline.as_millis()).unwrap_or(u64::MAX);
        let mut outcome = Ok(());
        if let Some((stop, task)) = self.follower {
            stop.cancel();
            // A task that was cancelled holds nothing up.
            let _ = tokio::time::timeout_at(until, task).await;
        }
        if let (Some(trainer), Part::Learner { ingest, .. }) = (self.trainer, &self.service.inner.part) {
            ingest.close();
            ingest.ask(ToTrainer::Stop);
            if !ended(trainer, until).await {
                outcome = Err(ShutdownError::Trainer { deadline_ms, queued: ingest.counts().queued });
            }
        }
        if let (Some(persister), Some(disk)) = (self.persister, &self.service.inner.disk) {
            disk.stop();
            if !ended(persister, until).await {
                return outcome.and(Err(ShutdownError::Persister { deadline_ms }));
            }
            if let Some(error) = disk.status().error {
                return outcome.and(Err(ShutdownError::Unwritten { error }));
            }
        }
        outcome
    }
}

/// Waits for a thread to end; `false` when it does not in time.
async fn ended(running: Running, until: tokio::time::Instant) -> bool {
    if tokio::time::timeout_at(until, running.ended).await.is_err() {
        return false;
    }
    // It has done its work and is returning; how it ended is in the status.
    let _ = running.thread.join();
    true
}
