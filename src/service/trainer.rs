//! The trainer: one operating-system thread at low priority that owns the learner, and the only publisher of what it learns.

use std::any::Any;
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use arc_swap::ArcSwap;
use tokio::sync::oneshot;

use super::cell::{NotInstalled, SnapshotCell};
use super::health::Health;
use super::ingest::Budget;
use super::persist::Disk;
use super::seed::Seed;
use super::{Flush, Flushed, now};
use crate::training::{FitJob, FitOutcome, FitReport, FitResult, Learner, LearnerReport, Survey};
use crate::types::{Sample, Target, UnixMs};

/// Corrections are published at most this often; a new generation never waits for it.
const REVISION_INTERVAL: Duration = Duration::from_millis(100);

/// How often the schedule is asked when nothing comes in.
const IDLE_INTERVAL: Duration = Duration::from_secs(1);

/// How often a trainer that is stopping looks for the rest of its queue.
const STOPPING_INTERVAL: Duration = Duration::from_millis(5);

/// Samples taken from the queue before the schedule is asked again: enough that a flood is learnt in large bites,
/// small enough that a generation is never long in coming.
const SAMPLES_PER_TURN_MAX: usize = 8_192;

/// Failed fits of one target in a row from which learning is called broken.
pub(super) const FITS_FAILED_MAX: u32 = 3;

/// Added to the thread's nice value, so that predictions win where cores are short.
const NICE: i32 = 19;

/// What the trainer's queue carries.
pub(super) enum ToTrainer {
    /// Good samples and when they were received. Their places in the budget are given back once they are observed.
    Samples(Arc<Vec<Sample>>, UnixMs),
    /// What does the store hold?
    Survey(oneshot::Sender<Survey>),
    /// Forget. Skipped when nobody waits for the answer any more.
    Flush(Flush, oneshot::Sender<Flushed>),
    /// Take what is still queued, then end. The queue is closed before.
    Stop,
}

/// Fits of one target in a row that changed nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Streak {
    /// Failed, panicked or came out non-finite.
    pub(super) failed: u32,
    /// Came out worse than the serving model.
    pub(super) rejected: u32,
    /// The latest outcome.
    pub(super) last: Option<FitOutcome>,
}

impl Streak {
    fn add(&mut self, outcome: FitOutcome) {
        self.last = Some(outcome);
        match outcome {
            FitOutcome::Accepted => (self.failed, self.rejected) = (0, 0),
            FitOutcome::RejectedWorse => (self.failed, self.rejected) = (0, self.rejected + 1),
            FitOutcome::RejectedNotFinite | FitOutcome::Failed | FitOutcome::Panicked => {
                (self.failed, self.rejected) = (self.failed + 1, 0);
            }
        }
    }
}

/// What the trainer says of itself, replaced as a whole.
#[derive(Clone, Debug)]
pub(super) struct TrainerView {
    pub(super) report: LearnerReport,
    /// In the order of [`Target::ALL`].
    pub(super) streaks: [Streak; 2],
    pub(super) last_fit_duration_ms: Option<f64>,
    /// When the latest sample of this life was received.
    pub(super) last_received_at: Option<UnixMs>,
    /// What the latest panicking fit said.
    pub(super) panic: Option<String>,
    /// Why the thread ended, when it was not asked to.
    pub(super) died: Option<String>,
}

impl TrainerView {
    pub(super) fn new(report: LearnerReport) -> Self {
        TrainerView {
            report,
            streaks: [Streak::default(); 2],
            last_fit_duration_ms: None,
            last_received_at: None,
            panic: None,
            died: None,
        }
    }

    /// Whether some target's fits have failed too often in a row.
    pub(super) fn fits_fail(&self) -> bool {
        self.streaks.iter().any(|streak| streak.failed >= FITS_FAILED_MAX)
    }
}

/// What the trainer shares with the rest of the service.
pub(super) struct Shared {
    pub(super) cell: Arc<SnapshotCell>,
    pub(super) health: Arc<Health>,
    pub(super) view: Arc<ArcSwap<TrainerView>>,
    /// Places of the queue.
    pub(super) budget: Arc<Budget>,
    pub(super) disk: Option<Disk>,
    /// The seed that this history began with.
    pub(super) seed: Option<Arc<Seed>>,
}

/// A thread that was started, and the end of it.
pub(super) struct Running {
    pub(super) thread: std::thread::JoinHandle<()>,
    /// Resolves when the thread has done its work.
    pub(super) ended: oneshot::Receiver<()>,
}

/// Starts the trainer. `restored` yields the samples of earlier lives, oldest first; it is called on the thread, before
/// any new sample is observed. `run_fit` is [`FitJob::run`].
pub(super) fn spawn(
    learner: Learner,
    shared: Shared,
    inbox: mpsc::Receiver<ToTrainer>,
    restored: impl FnOnce() -> Vec<Sample> + Send + 'static,
    run_fit: fn(FitJob) -> FitResult,
) -> io::Result<Running> {
    let (ended_sender, ended) = oneshot::channel();
    let thread = std::thread::Builder::new().name("trainer".to_string()).spawn(move || {
        let (health, view, budget) = (shared.health.clone(), shared.view.clone(), shared.budget.clone());
        let mut trainer = Trainer {
            view: TrainerView::clone(&view.load()),
            learner,
            shared,
            inbox,
            run_fit,
            unpublished: false,
            published_at: Instant::now(),
            stopping: false,
        };
        let outcome = catch_unwind(AssertUnwindSafe(move || {
            lower_priority();
            trainer.restore(restored());
            trainer.run();
        }));
        if let Err(panic) = outcome {
            let why = panic_message(&*panic);
            tracing::error!(reason = %why, "the trainer thread stopped; the last good model goes on answering");
            budget.close();
            health.set_learning_broken(true);
            view.rcu(|view| TrainerView { died: Some(why.clone()), ..TrainerView::clone(view) });
        }
        let _ = ended_sender.send(());
    })?;
    Ok(Running { thread, ended })
}

struct Trainer {
    learner: Learner,
    shared: Shared,
    inbox: mpsc::Receiver<ToTrainer>,
    run_fit: fn(FitJob) -> FitResult,
    view: TrainerView,
    /// Whether something was learnt that is not published.
    unpublished: bool,
    published_at: Instant,
    stopping: bool,
}

impl Trainer {
    fn restore(&mut self, samples: Vec<Sample>) {
        if samples.is_empty() {
            return;
        }
        samples.iter().for_each(|sample| self.learner.restore(sample));
        tracing::info!(samples = samples.len(), "samples of earlier lives are back in the store");
        self.fit_if_due();
        self.publish();
    }

    fn run(&mut self) {
        loop {
            match self.inbox.recv_timeout(self.patience()) {
                Ok(message) => self.take_turn(message),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => break,
            }
            if self.stopping {
                if self.shared.budget.taken() == 0 {
                    break;
                }
                continue;
            }
            self.fit_if_due();
            if self.unpublished && self.published_at.elapsed() >= REVISION_INTERVAL {
                self.publish();
            }
        }
        self.publish();
    }

    /// How long to wait for the next message.
    fn patience(&self) -> Duration {
        if self.stopping {
            STOPPING_INTERVAL
        } else if self.unpublished {
            REVISION_INTERVAL.saturating_sub(self.published_at.elapsed())
        } else {
            IDLE_INTERVAL
        }
    }

    /// Takes a message and what is queued behind it, up to a limit.
    fn take_turn(&mut self, first: ToTrainer) {
        let mut taken = self.take(first);
        while taken < SAMPLES_PER_TURN_MAX {
            match self.inbox.try_recv() {
                Ok(message) => taken += self.take(message),
                Err(_) => break,
            }
        }
    }

    fn take(&mut self, message: ToTrainer) -> usize {
        match message {
            ToTrainer::Samples(batch, received_at) => {
                batch.iter().for_each(|sample| self.learner.observe(sample, received_at));
                self.view.last_received_at = Some(received_at);
                self.unpublished = true;
                self.shared.budget.release(batch.len());
                batch.len()
            }
            ToTrainer::Survey(reply) => {
                let _ = reply.send(self.learner.survey());
                0
            }
            ToTrainer::Flush(what, reply) => {
                if !reply.is_closed() {
                    let _ = reply.send(self.flush(what));
                }
                0
            }
            ToTrainer::Stop => {
                self.stopping = true;
                0
            }
        }
    }

    fn flush(&mut self, what: Flush) -> Flushed {
        let mut flushed = Flushed::default();
        if what.samples {
            flushed.samples = self.learner.forget_samples();
            if let Some(disk) = &self.shared.disk {
                disk.forget_samples();
            }
        }
        if what.accuracy {
            self.learner.forget_accuracy();
        }
        if what.models {
            self.learner.forget_models(now());
            self.view.streaks = [Streak::default(); 2];
        }
        tracing::info!(samples = what.samples, accuracy = what.accuracy, models = what.models, "forgot, as asked");
        self.publish();
        flushed
    }

    fn fit_if_due(&mut self) {
        let Some(job) = self.learner.prepare(now()) else { return };
        let began = Instant::now();
        let run_fit = self.run_fit;
        // The job owns copies of its rows, so a panic leaves nothing half done behind.
        let result = catch_unwind(AssertUnwindSafe(move || run_fit(job)));
        self.view.last_fit_duration_ms = Some(began.elapsed().as_secs_f64() * 1e3);
        self.view.panic = result.as_ref().err().map(|panic| panic_message(&**panic));
        let report = self.learner.conclude(result.ok(), now());
        for part in &report.parts {
            self.view.streaks[part.target.index()].add(part.outcome);
        }
        self.log_fit(&report);
        self.publish();
    }

    /// Publishes what the learner knows, if it is newer than what serves, and renews the account.
    fn publish(&mut self) {
        let snapshot = self.learner.snapshot(now());
        let serving = self.shared.cell.version();
        let version = snapshot.version;
        match self.shared.cell.publish(snapshot) {
            Ok(()) => {
                if version.generation != serving.generation {
                    if let Some(disk) = &self.shared.disk {
                        disk.keep_snapshot();
                    }
                    if let Some(seed) = &self.shared.seed {
                        self.shared.health.set_seeded(seed.answers(&self.shared.cell.load()));
                    }
                }
            }
            Err(NotInstalled::NotNewer { offered, serving }) if offered == serving => {}
            Err(error) => tracing::error!(%error, "a snapshot was not published"),
        }
        self.view.report = self.learner.report();
        self.shared.health.set_learning_broken(self.view.fits_fail());
        self.shared.view.store(Arc::new(self.view.clone()));
        self.unpublished = false;
        self.published_at = Instant::now();
    }

    fn log_fit(&self, report: &FitReport) {
        let word = |target: Target| report.of(target).next().map_or("not due", |part| part.outcome.name());
        let (ttft, tpot) = (word(Target::Ttft), word(Target::Tpot));
        let generation = report.generation.0;
        let duration_ms = self.view.last_fit_duration_ms.unwrap_or_default();
        if report.parts.iter().all(|part| part.outcome == FitOutcome::Accepted) {
            tracing::info!(generation, ttft, tpot, rows = ?report.rows(), duration_ms, "fitted");
        } else {
            let panic = self.view.panic.as_deref();
            tracing::warn!(generation, ttft, tpot, rows = ?report.rows(), duration_ms, panic, "a fit was refused or failed; the serving model stays");
        }
    }
}

/// Lets the serving side win where cores are short. A sidecar that may not do so works all the same.
fn lower_priority() {
    if let Err(error) = rustix::process::nice(NICE) {
        tracing::warn!(%error, "the trainer thread could not lower its priority");
    }
}

/// What a panic said.
pub(super) fn panic_message(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("a panic without a message").to_string()
}

/// Words for one target's streak, when there is something to say.
pub(super) fn streak_words(target: Target, streak: &Streak, panic: Option<&str>) -> Option<String> {
    let target = target.name();
    let fits = |count: u32| if count == 1 { "latest".to_string() } else { format!("latest {count}") };
    let plural = |count: u32| if count == 1 { "fit" } else { "fits" };
    if streak.failed > 0 {
        let how = match streak.last {
            Some(FitOutcome::Panicked) => format!("panicked ({})", panic.unwrap_or("no message")),
            Some(FitOutcome::RejectedNotFinite) => "came out non-finite".to_string(),
            _ => "failed".to_string(),
        };
        return Some(format!("the {} {target} {} {how}", fits(streak.failed), plural(streak.failed)));
    }
    (streak.rejected > 0).then(|| {
        let were = if streak.rejected == 1 { "was" } else { "were" };
        format!(
            "the {} {target} {} {were} worse than the serving model and refused",
            fits(streak.rejected),
            plural(streak.rejected)
        )
    })
}
