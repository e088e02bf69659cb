//! Starting a service and stopping it in order.

use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;

use super::cell::SnapshotCell;
use super::clock::unix_now;
use super::health::Health;
use super::ingest::{Budget, Ingest, Refusals};
use super::params::{ParamError, ServiceParams};
use super::trainer::{self, Running, Shared, ToTrainer, TrainerView};
use super::{Inner, Part, Service};
use crate::snapshot::Snapshot;
use crate::training::{FitJob, Learner};
use crate::types::Lineage;

/// Why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// A parameter outside its range.
    #[error(transparent)]
    Params(#[from] ParamError),
    /// The operating system gave no thread.
    #[error("cannot start the {name} thread: {source}; raise the limit on threads")]
    Thread {
        /// Which.
        name: &'static str,
        /// Why.
        source: std::io::Error,
    },
}

/// What did not end in time at shutdown.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ShutdownError {
    /// The trainer was still at work.
    #[error("the trainer did not end within {deadline_ms} ms; {queued} samples were still queued")]
    Trainer {
        /// Time it was given.
        deadline_ms: u64,
        /// Samples it had not learnt from.
        queued: usize,
    },
}

/// The right to stop a service.
pub struct ServiceHandle {
    service: Service,
    trainer: Option<Running>,
}

impl Service {
    /// Starts the parts of `params.role`. Answers are served as soon as this returns.
    ///
    /// # Errors
    /// [`ServiceError`].
    pub fn start(params: ServiceParams) -> Result<(Service, ServiceHandle), ServiceError> {
        start_with(params, FitJob::run)
    }
}

/// [`Service::start`] with the function that runs a fit, so that a test can hand in one that panics.
pub(super) fn start_with(
    params: ServiceParams,
    run_fit: fn(FitJob) -> crate::training::FitResult,
) -> Result<(Service, ServiceHandle), ServiceError> {
    params.check()?;
    let now = unix_now();
    let prior = Snapshot::prior(&params.learner.prior, Lineage(rand::random()), now);
    let mut learner = Learner::new(params.learner, prior);
    let cell = Arc::new(SnapshotCell::new(learner.snapshot(now), now));
    let health = Arc::new(Health::new(0));
    let view = Arc::new(ArcSwap::from_pointee(TrainerView::new(learner.report())));
    let budget = Arc::new(Budget::new(params.queue_samples_max));
    let (sender, inbox) = mpsc::channel();
    let shared =
        Shared { cell: cell.clone(), health: health.clone(), view: view.clone(), budget: budget.clone(), disk: None };
    let trainer = trainer::spawn(learner, shared, inbox, Vec::new, run_fit)
        .map_err(|source| ServiceError::Thread { name: "trainer", source })?;
    let ingest = Ingest::new(budget, sender, None, 0);
    let part = Part::Learner { ingest, view, fit_min_samples: params.learner.fit_min_samples };
    let inner = Inner { role: params.role, cell, health, refusals: Refusals::default(), part, started_at: now };
    let service = Service { inner: Arc::new(inner) };
    Ok((service.clone(), ServiceHandle { service, trainer: Some(trainer) }))
}

impl ServiceHandle {
    /// Stops in order: the queue closes, the trainer learns what is queued, the threads end. What is not done at the
    /// deadline goes on without being waited for.
    ///
    /// # Errors
    /// [`ShutdownError`]: what was not done in time.
    pub async fn shutdown(mut self, deadline: Duration) -> Result<(), ShutdownError> {
        let until = Instant::now() + deadline;
        let left = || until.saturating_duration_since(Instant::now());
        let Part::Learner { ingest, .. } = &self.service.inner.part;
        ingest.close();
        ingest.ask(ToTrainer::Stop);
        if let Some(trainer) = self.trainer.take() {
            if tokio::time::timeout(left(), trainer.ended).await.is_err() {
                let queued = ingest.counts().queued;
                return Err(ShutdownError::Trainer { deadline_ms: deadline.as_millis() as u64, queued });
            }
            let _ = trainer.thread.join();
        }
        Ok(())
    }
}
