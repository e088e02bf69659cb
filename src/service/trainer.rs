//! The trainer: one OS thread at low priority that owns the learner. Nothing it does can block a prediction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::RecvTimeoutError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::cell::SnapshotCell;
use super::ingest::{Command, Intake};
use super::persist::{DiskAccount, Persister, WriteParams};
use super::sample_log::SampleLog;
use super::state_dir::StateDir;
use super::{Flush, Flushed, now};
use crate::training::{FitJob, FitResult, Learner, LearnerReport};
use crate::types::State;

/// Corrections without a new fit are published at most this often.
const CORRECTIONS_EVERY: Duration = Duration::from_millis(100);

/// Corrections without a new fit are written to disk at most this often.
const SAVE_EVERY: Duration = Duration::from_secs(10);

/// Longest sleep without a command: the interval trigger of a fit needs a look at the clock.
const IDLE_LOOK: Duration = Duration::from_secs(1);

/// Fits that end badly in a row before answers are marked degraded.
const BAD_FITS_IN_A_ROW: u32 = 3;

/// Nice value added to the trainer thread: predictions come first.
const NICE: i32 = 10;

/// What the thread shows of itself.
pub struct TrainerView {
    /// The learner's latest account.
    report: Mutex<Option<LearnerReport>>,
    /// Duration of the latest fit in microseconds; 0 before the first.
    fit_us: AtomicU64,
    /// Fits in a row that failed, panicked or were rejected.
    bad_fits: AtomicU32,
    /// Whether the thread runs: 0 not started, 1 running, 2 stopped in order, 3 died.
    life: AtomicU8,
}

/// Whether a trainer thread is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    /// It works, or is about to.
    Running,
    /// It was told to stop.
    Stopped,
    /// It panicked outside a fit.
    Died,
}

impl Default for TrainerView {
    fn default() -> Self {
        TrainerView {
            report: Mutex::new(None),
            fit_us: AtomicU64::new(0),
            bad_fits: AtomicU32::new(0),
            life: AtomicU8::new(1),
        }
    }
}

impl TrainerView {
    /// The learner's latest account; `None` until it has restored its samples.
    pub fn report(&self) -> Option<LearnerReport> {
        self.report.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Duration of the latest fit, ms.
    pub fn fit_ms(&self) -> Option<f64> {
        match self.fit_us.load(Ordering::Relaxed) {
            0 => None,
            us => Some(us as f64 / 1e3),
        }
    }

    /// Fits in a row that did not serve.
    pub fn bad_fits(&self) -> u32 {
        self.bad_fits.load(Ordering::Relaxed)
    }

    /// Whether the thread is there.
    pub fn life(&self) -> Life {
        match self.life.load(Ordering::Relaxed) {
            2 => Life::Stopped,
            3 => Life::Died,
            _ => Life::Running,
        }
    }

    /// The mildest state answers may have.
    pub fn floor(&self) -> State {
        if self.life() == Life::Died || self.bad_fits() >= BAD_FITS_IN_A_ROW { State::Degraded } else { State::Ready }
    }
}

/// Where the thread keeps its state.
pub struct TrainerDisk {
    /// The directory.
    pub dir: StateDir,
    /// How to write.
    pub params: WriteParams,
    /// The account.
    pub account: DiskAccount,
}

/// Everything the thread owns.
pub struct Trainer {
    /// The learner, already resumed from a snapshot.
    pub learner: Learner,
    /// Its queue.
    pub intake: Intake,
    /// Where it publishes.
    pub cell: Arc<SnapshotCell>,
    /// What it shows.
    pub view: Arc<TrainerView>,
    /// How a fit is run; a plain call in production, a panic in the test that contains one.
    pub run_fit: fn(FitJob) -> FitResult,
}

/// Marks the view when the thread ends without being told to.
struct DeathNote(Arc<TrainerView>);

impl Drop for DeathNote {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.life.store(3, Ordering::Relaxed);
            tracing::error!("the trainer thread panicked; the last snapshot goes on serving, marked degraded");
        }
    }
}

impl Trainer {
    /// The thread's body: restores, then works until it is told to stop.
    pub fn run(mut self, disk: Option<TrainerDisk>) {
        let _note = DeathNote(Arc::clone(&self.view));
        if let Err(error) = lower_priority() {
            tracing::info!("cannot lower the trainer thread's priority: {error}");
        }
        let mut persister = disk.and_then(|disk| self.restore(disk));
        let mut published_at = Instant::now();
        let mut saved_at = Instant::now();
        self.fit_if_due(persister.as_ref());
        self.show();
        let mut unpublished = false;
        loop {
            let wait = if unpublished {
                CORRECTIONS_EVERY.saturating_sub(published_at.elapsed()).max(Duration::from_millis(1))
            } else {
                IDLE_LOOK
            };
            match self.intake.receiver.recv_timeout(wait) {
                Ok(Command::Samples(samples, received_at)) => {
                    for sample in &samples {
                        self.learner.observe(sample, received_at);
                    }
                    self.intake.taken(samples.len());
                    if let Some(persister) = &persister {
                        persister.samples(samples);
                    }
                    unpublished = true;
                }
                Ok(Command::Survey(reply)) => {
                    // The asker may have given up; there is nobody else to tell.
                    let _ = reply.send(self.learner.survey());
                }
                Ok(Command::Flush(what, reply)) => {
                    let flushed = self.flush(what, persister.as_ref());
                    self.show();
                    let _ = reply.send(flushed);
                }
                Ok(Command::Stop) | Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if self.fit_if_due(persister.as_ref()) {
                (published_at, saved_at, unpublished) = (Instant::now(), Instant::now(), false);
                self.show();
            } else if unpublished && published_at.elapsed() >= CORRECTIONS_EVERY {
                self.publish();
                (published_at, unpublished) = (Instant::now(), false);
                self.show();
            }
            if saved_at.elapsed() >= SAVE_EVERY {
                saved_at = Instant::now();
                self.save(persister.as_ref());
            }
        }
        self.publish();
        self.show();
        self.save(persister.as_ref());
        if let Some(persister) = &mut persister {
            persister.stop();
        }
        self.view.life.store(2, Ordering::Relaxed);
    }

    fn restore(&mut self, disk: TrainerDisk) -> Option<Persister> {
        let TrainerDisk { dir, params, account } = disk;
        let log = match SampleLog::open(dir.path(), params.log) {
            Ok((log, recovered)) => {
                recovered.samples.iter().for_each(|sample| self.learner.restore(sample));
                self.intake.accepted_before(recovered.accepted_total);
                account.restored(recovered.samples.len() as u64);
                recovered.notices.into_iter().for_each(|line| account.notice(line));
                Some(log)
            }
            Err(error) => {
                account.wrote("the sample log", &Err(error));
                None
            }
        };
        match Persister::start(dir, log, true, params, account.clone()) {
            Ok(persister) => Some(persister),
            Err(error) => {
                account.wrote("anything", &Err(error));
                None
            }
        }
    }

    /// Runs the fit that is due, if any; returns whether a new generation serves.
    fn fit_if_due(&mut self, persister: Option<&Persister>) -> bool {
        let Some(job) = self.learner.prepare(now()) else { return false };
        let started = Instant::now();
        let run_fit = self.run_fit;
        // The job owns its rows: a panic can leave nothing half-done behind (I5).
        let result = catch_unwind(AssertUnwindSafe(|| run_fit(job))).ok();
        self.view.fit_us.store((started.elapsed().as_micros() as u64).max(1), Ordering::Relaxed);
        let report = self.learner.conclude(result, now());
        let outcomes = report.outcome.map(|outcome| outcome.map_or("none", |outcome| outcome.name()));
        tracing::info!(
            generation = report.generation.0,
            reason = report.reason.name(),
            rows_ttft = report.rows[0],
            rows_tpot = report.rows[1],
            ttft = outcomes[0],
            tpot = outcomes[1],
            "fit concluded"
        );
        if report.published() {
            self.view.bad_fits.store(0, Ordering::Relaxed);
            self.publish();
            self.save(persister);
            true
        } else {
            self.view.bad_fits.fetch_add(1, Ordering::Relaxed);
            self.show();
            false
        }
    }

    fn flush(&mut self, what: Flush, persister: Option<&Persister>) -> Flushed {
        let mut flushed = Flushed::default();
        if what.samples {
            flushed.samples = self.learner.forget_samples();
            if let Some(persister) = persister {
                persister.clear_samples();
            }
        }
        if what.accuracy {
            self.learner.forget_accuracy();
        }
        if what.models {
            self.learner.forget_models(now());
            self.publish();
            self.save(persister);
        }
        flushed
    }

    fn publish(&mut self) {
        self.cell.publish(self.learner.snapshot(now()));
    }

    fn save(&self, persister: Option<&Persister>) {
        if let Some(persister) = persister {
            persister.snapshot(self.cell.load());
        }
    }

    fn show(&self) {
        *self.view.report.lock().unwrap_or_else(PoisonError::into_inner) = Some(self.learner.report());
    }
}

/// Lowers this thread's priority, so that fits never take time from predictions.
fn lower_priority() -> std::io::Result<()> {
    let thread = rustix::thread::gettid();
    let nice = rustix::process::getpriority_process(Some(thread))?;
    rustix::process::setpriority_process(Some(thread), (nice + NICE).min(19))?;
    Ok(())
}
