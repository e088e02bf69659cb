//! The persister: one thread between learning and the disk, so that a slow, full or absent disk costs nobody but itself.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

use super::cell::{SnapshotCell, lock};
use super::ingest::Budget;
use super::model_dir;
use super::params::WriteParams;
use super::sample_log::SampleLog;
use super::state_dir::StateDir;
use super::status::PersistenceStatus;
use super::trainer::{Running, panic_message};
use crate::types::{Sample, Version};

/// Samples that may wait for the disk; beyond it they are counted as not logged.
const QUEUE_SAMPLES_MAX: usize = 65_536;

/// Samples written with one call.
const SAMPLES_PER_WRITE: usize = 4_096;

/// Pause before a failed write is tried again.
const RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// How often the newest corrections are written; a new generation is written at once.
const SNAPSHOT_INTERVAL: Duration = Duration::from_secs(10);

/// Longest time between two looks at what is due.
const TICK_MAX: Duration = Duration::from_secs(1);

/// Lines kept of what was skipped at start.
const NOTICES_MAX: usize = 20;

enum ToDisk {
    /// The first so many of a batch.
    Samples(Arc<Vec<Sample>>, usize),
    /// A new generation serves.
    Snapshot,
    /// Remove all samples.
    Forget,
    /// Write what is still queued, then end.
    Stop,
}

/// A cheap handle to the persister. Nothing here waits for the disk.
#[derive(Clone)]
pub(super) struct Disk {
    sender: mpsc::Sender<ToDisk>,
    shared: Arc<Shared>,
}

struct Shared {
    budget: Budget,
    /// Samples that found the queue full.
    overflowed: AtomicU64,
    status: Mutex<PersistenceStatus>,
}

impl Disk {
    /// Queues a batch for the sample log; what finds no room is counted.
    pub(super) fn log(&self, batch: &Arc<Vec<Sample>>) {
        let room = self.shared.budget.reserve(batch.len());
        let mut lost = batch.len() - room;
        if room > 0 && self.sender.send(ToDisk::Samples(batch.clone(), room)).is_err() {
            self.shared.budget.release(room);
            lost += room;
        }
        self.shared.overflowed.fetch_add(lost as u64, Ordering::Relaxed);
    }

    /// Says that a new generation serves.
    pub(super) fn keep_snapshot(&self) {
        let _ = self.sender.send(ToDisk::Snapshot);
    }

    /// Removes all samples.
    pub(super) fn forget_samples(&self) {
        let _ = self.sender.send(ToDisk::Forget);
    }

    /// Asks for the end, after what is queued.
    pub(super) fn stop(&self) {
        self.shared.budget.close();
        let _ = self.sender.send(ToDisk::Stop);
    }

    /// Samples of earlier lives are back.
    pub(super) fn restored(&self, samples: u64, notices: Vec<String>) {
        notices.iter().for_each(|notice| tracing::warn!(%notice, "the sample log was not whole"));
        let mut status = lock(&self.shared.status);
        status.samples_restored = samples;
        for notice in notices {
            if status.notices.len() < NOTICES_MAX && !status.notices.contains(&notice) {
                status.notices.push(notice);
            }
        }
    }

    pub(super) fn status(&self) -> PersistenceStatus {
        let mut status = lock(&self.shared.status).clone();

        status.samples_unlogged = self.shared.overflowed.load(Ordering::Relaxed);
        status
    }
}

/// Starts the persister. `log` is absent on a follower; `persisted` is the version that the directory holds already.
pub(super) fn spawn(
    params: WriteParams,
    dir: StateDir,
    log: Option<SampleLog>,
    persisted: Option<Version>,
    cell: Arc<SnapshotCell>,
    notices: Vec<String>,
) -> io::Result<(Disk, Running)> {
    let status = PersistenceStatus {
        state_dir: Some(dir.path().display().to_string()),
        ok: true,
        log_bytes: log.as_ref().map_or(0, SampleLog::bytes),
        notices: notices.into_iter().take(NOTICES_MAX).collect(),
        ..PersistenceStatus::default()
    };
    let shared = Arc::new(Shared {
        budget: Budget::new(QUEUE_SAMPLES_MAX),
        overflowed: AtomicU64::new(0),
        status: Mutex::new(status),
    });
    let (sender, inbox) = mpsc::channel();
    let (ended_sender, ended) = oneshot::channel();
    let mut persister = Persister {
        params,
        dir,
        log,
        cell,
        persisted,
        inbox,
        shared: shared.clone(),
        pending: Vec::new(),
        overflow_seen: 0,
        forget: false,
        stopping: false,
        flushed_at: Instant::now(),
        snapshot_at: Instant::now(),
        trouble: [const { None }; 2],
        failures: 0,
    };
    let thread = std::thread::Builder::new().name("persister".to_string()).spawn(move || {
        let shared = persister.shared.clone();
        if let Err(panic) = catch_unwind(AssertUnwindSafe(move || persister.run())) {
            let error = format!("the persister thread stopped: {}", panic_message(&*panic));
            tracing::error!(%error, "nothing more is written to the state directory");
            shared.budget.close();
            let mut status = lock(&shared.status);
            (status.ok, status.error) = (false, Some(error));
            status.failures += 1;
        }
        let _ = ended_sender.send(());
    })?;
    Ok((Disk { sender, shared }, Running { thread, ended }))
}

/// What fails and when to try again.
struct Trouble {
    error: String,
    retry_at: Instant,
}

/// The two things that are written, as indices of [`Persister::trouble`].
const LOG: usize = 0;
const SNAPSHOT: usize = 1;

struct Persister {
    params: WriteParams,
    dir: StateDir,
    log: Option<SampleLog>,
    cell: Arc<SnapshotCell>,
    persisted: Option<Version>,
    inbox: mpsc::Receiver<ToDisk>,
    shared: Arc<Shared>,
    /// Received and not written yet; their places in the budget are still taken.
    pending: Vec<(Arc<Vec<Sample>>, usize)>,
    overflow_seen: u64,
    forget: bool,
    stopping: bool,
    flushed_at: Instant,
    snapshot_at: Instant,
    trouble: [Option<Trouble>; 2],
    failures: u64,
}

impl Persister {
    fn run(&mut self) {
        // A directory that cannot be written is said at once, not when the first sample comes.
        let prepared = self.dir.prepare();
        self.note(if self.log.is_some() { LOG } else { SNAPSHOT }, prepared);
        self.account();
        let tick = self.params.flush_interval.min(TICK_MAX);
        loop {
            let mut gone = false;
            match self.inbox.recv_timeout(tick) {
                Ok(message) => {
                    self.take(message);
                    // One write for all that has come in the meantime.
                    while let Ok(message) = self.inbox.try_recv() {
                        self.take(message);
                    }
                }
                Err(mpsc::RecvTimeoutError::Timeout) => {}
                Err(mpsc::RecvTimeoutError::Disconnected) => gone = true,
            }
            let last = self.stopping || gone;
            if last {
                // The last chance: no pause between attempts.
                self.trouble.iter_mut().flatten().for_each(|trouble| trouble.retry_at = Instant::now());
            }
            self.write_samples(last);
            self.write_snapshot(last);
            self.account();
            if last {
                break;
            }
        }
        // What a failing disk did not take is lost now, and counted.
        let lost: usize = self.pending.drain(..).map(|(_, count)| count).sum();
        self.shared.budget.release(lost);
        self.shared.overflowed.fetch_add(lost as u64, Ordering::Relaxed);
    }

    fn take(&mut self, message: ToDisk) {
        match message {
            ToDisk::Samples(batch, count) => self.pending.push((batch, count)),
            ToDisk::Snapshot => {}
            ToDisk::Forget => {
                let forgotten: usize = self.pending.drain(..).map(|(_, count)| count).sum();
                self.shared.budget.release(forgotten);
                if let Some(log) = &mut self.log {
                    log.skip(forgotten as u64);
                }
                self.forget = true;
            }
            ToDisk::Stop => self.stopping = true,
        }
    }

    /// Whether something that failed is to be left alone for now.
    fn resting(&self, what: usize) -> bool {
        self.trouble.get(what).and_then(Option::as_ref).is_some_and(|trouble| Instant::now() < trouble.retry_at)
    }

    fn failing(&self, what: usize) -> bool {
        self.trouble.get(what).is_some_and(Option::is_some)
    }

    fn write_samples(&mut self, last: bool) {
        if self.log.is_none() || self.resting(LOG) {
            return;
        }
        let due = last || self.flushed_at.elapsed() >= self.params.flush_interval;
        if self.pending.is_empty() && !self.forget && !due && !self.failing(LOG) {
            return;
        }
        let outcome = self.try_write_samples(due);
        self.note(LOG, outcome);
    }

    fn try_write_samples(&mut self, flush: bool) -> io::Result<()> {
        let recovering = self.failing(LOG);
        let Some(log) = &mut self.log else { return Ok(()) };
        let overflowed = self.shared.overflowed.load(Ordering::Relaxed);
        log.skip(overflowed - self.overflow_seen);
        self.overflow_seen = overflowed;
        if self.pending.is_empty() && !self.forget && !recovering {
            log.expire(SystemTime::now())?;
            log.flush()?;
            self.flushed_at = Instant::now();
            return Ok(());
        }
        self.dir.prepare()?;
        if self.forget {
            log.forget()?;
            self.forget = false;
        }
        while !self.pending.is_empty() {
            let (mut batches, mut samples) = (0, 0);
            for (_, count) in &self.pending {
                if samples >= SAMPLES_PER_WRITE {
                    break;
                }
                batches += 1;
                samples += count;
            }
            let written = self.pending.iter().take(batches).flat_map(|(batch, count)| batch.iter().take(*count));
            log.write(written)?;
            self.pending.drain(..batches);
            self.shared.budget.release(samples);
        }
        if recovering {
            // Also without new samples: is the disk back?
            log.write(std::iter::empty())?;
        }
        if flush || recovering {
            log.flush()?;
            self.flushed_at = Instant::now();
        }
        Ok(())
    }

    fn write_snapshot(&mut self, last: bool) {
        let version = self.cell.version();
        if self.resting(SNAPSHOT) {
            return;
        }
        // A prior that nothing was learnt on can be made again.
        let untouched = version.generation.0 == 0 && version.revision == 0;
        let generation = |version: Version| (version.lineage, version.generation);
        let new_generation = self.persisted.map(generation) != Some(generation(version));
        let due = self.snapshot_at.elapsed() >= SNAPSHOT_INTERVAL;
        let unwritten = self.persisted != Some(version) && !untouched;
        if unwritten && (last || due || new_generation || self.failing(SNAPSHOT)) {
            let outcome = self.try_write_snapshot();
            self.note(SNAPSHOT, outcome);
        } else if self.failing(SNAPSHOT) {
            let prepared = self.dir.prepare();
            self.note(SNAPSHOT, prepared);
        }
    }

    fn try_write_snapshot(&mut self) -> io::Result<()> {
        self.snapshot_at = Instant::now();
        let snapshot = self.cell.load();
        self.dir.prepare()?;
        let path: PathBuf = self.dir.path().to_path_buf();
        model_dir::write(&path, &snapshot)?;
        let new_lineage = snapshot.version.lineage != self.dir.lineage();
        if new_lineage {
            self.dir.change_lineage(snapshot.version.lineage)?;
        }
        model_dir::prune(&path, &snapshot, self.params.snapshots_kept, new_lineage);
        self.persisted = Some(snapshot.version);
        Ok(())
    }

    /// Keeps the books of failures; the log has a line when something begins to fail and one when it is over.
    fn note(&mut self, what: usize, outcome: io::Result<()>) {
        if outcome.is_err() {
            self.dir.doubt();
        }
        let Some(trouble) = self.trouble.get_mut(what) else { return };
        let name = if what == LOG { "sample log" } else { "snapshot" };
        let dir = self.dir.path().display();
        match outcome {
            Ok(()) => {
                if trouble.take().is_some() {
                    tracing::info!(%dir, "writing the {name} works again");
                }
            }
            Err(error) => {
                self.failures += 1;
                if trouble.is_none() {
                    tracing::warn!(%dir, %error, "writing the {name} fails; serving goes on and it is tried again");
                }
                let error = format!("cannot write the {name}: {error}");
                *trouble = Some(Trouble { error, retry_at: Instant::now() + RETRY_INTERVAL });
            }
        }
    }

    fn account(&self) {
        let mut status = lock(&self.shared.status);
        status.error = self.trouble.iter().flatten().next().map(|trouble| trouble.error.clone());
        status.ok = status.error.is_none();
        status.failures = self.failures;
        status.log_bytes = self.log.as_ref().map_or(0, SampleLog::bytes);
    }
}
