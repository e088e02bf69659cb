//! The persister thread: writes samples and snapshots, so that a slow disk stalls neither learning nor serving.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use super::PersistenceStatus;
use super::sample_log::{LogLimits, SampleLog};
use super::state_dir::StateDir;
use crate::snapshot::Snapshot;
use crate::types::Sample;

/// Samples that may wait for the disk; beyond it they are learnt from but not logged, and counted.
const PENDING_SAMPLES_MAX: usize = 65_536;

/// Pause before a log that could not be opened is tried again.
const REOPEN_AFTER: Duration = Duration::from_secs(5);

/// Longest list of notices kept for `/status`.
const NOTICES_MAX: usize = 20;

/// How and how often to write.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteParams {
    /// Longest time between a sample's arrival and its flush to the device.
    pub flush_interval: Duration,
    /// Limits of the sample log.
    pub log: LogLimits,
    /// Snapshots kept.
    pub snapshots_kept: usize,
}

/// The shared account of the disk.
#[derive(Clone, Debug, Default)]
pub struct DiskAccount(Arc<Mutex<PersistenceStatus>>);

impl DiskAccount {
    /// Starts an account for a directory.
    pub fn new(state_dir: Option<String>) -> Self {
        DiskAccount(Arc::new(Mutex::new(PersistenceStatus { state_dir, ok: true, ..PersistenceStatus::default() })))
    }

    /// A copy for readers.
    pub fn read(&self) -> PersistenceStatus {
        self.lock().clone()
    }

    /// Adds a line about something skipped, and logs it.
    pub fn notice(&self, line: String) {
        tracing::warn!("{line}");
        let mut status = self.lock();
        if status.notices.len() < NOTICES_MAX {
            status.notices.push(line);
        }
    }

    /// Counts samples read back.
    pub fn restored(&self, samples: u64) {
        self.lock().samples_restored += samples;
    }

    /// Counts samples that will not be on disk.
    pub fn unlogged(&self, samples: u64) {
        self.lock().samples_unlogged += samples;
    }

    /// Records how a write ended; logs only the change.
    pub fn wrote(&self, what: &str, result: &std::io::Result<()>) {
        let mut status = self.lock();
        match result {
            Ok(()) => {
                if !status.ok {
                    tracing::info!("the state directory can be written again");
                }
                status.ok = true;
                status.error = None;
            }
            Err(error) => {
                let line = format!("cannot write {what}: {error}");
                if status.ok {
                    tracing::error!("{line}; serving goes on, what is learnt now may not survive a restart");
                }
                status.ok = false;
                status.failures += 1;
                status.error = Some(line);
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, PersistenceStatus> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

enum Work {
    Samples(Vec<Sample>),
    Snapshot(Arc<Snapshot>),
    ClearSamples,
    Stop,
}

/// The sending side of the persister thread.
pub struct Persister {
    sender: Sender<Work>,
    pending: Arc<AtomicUsize>,
    account: DiskAccount,
    thread: Option<JoinHandle<()>>,
}

impl Persister {
    /// Starts the thread. `log` is absent when it could not be opened or none is kept (`keeps_log` false).
    ///
    /// # Errors
    /// When the thread cannot be started.
    pub fn start(
        dir: StateDir,
        log: Option<SampleLog>,
        keeps_log: bool,
        params: WriteParams,
        account: DiskAccount,
    ) -> std::io::Result<Self> {
        let (sender, receiver) = channel();
        let pending = Arc::new(AtomicUsize::new(0));
        let mut writer = Writer {
            dir,
            log,
            keeps_log,
            params,
            account: account.clone(),
            pending: Arc::clone(&pending),
            opened_at: Instant::now(),
            flushed_at: Instant::now(),
        };
        let thread = std::thread::Builder::new().name("persister".to_string()).spawn(move || writer.run(&receiver))?;
        Ok(Persister { sender, pending, account, thread: Some(thread) })
    }

    /// Hands samples over; never waits. Too many pending: they are counted as unlogged.
    pub fn samples(&self, samples: Vec<Sample>) {
        let count = samples.len();
        if self.pending.load(Ordering::Relaxed) + count > PENDING_SAMPLES_MAX {
            self.account.unlogged(count as u64);
            return;
        }
        self.pending.fetch_add(count, Ordering::Relaxed);
        if self.sender.send(Work::Samples(samples)).is_err() {
            self.account.unlogged(count as u64);
        }
    }

    /// Hands a snapshot over; never waits.
    pub fn snapshot(&self, snapshot: Arc<Snapshot>) {
        // A writer that is gone has already said so in the account.
        let _ = self.sender.send(Work::Snapshot(snapshot));
    }

    /// Forgets logged samples; never waits.
    pub fn clear_samples(&self) {
        let _ = self.sender.send(Work::ClearSamples);
    }

    /// Writes what is pending and ends the thread.
    pub fn stop(&mut self) {
        let _ = self.sender.send(Work::Stop);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the persister thread panicked");
        }
    }
}

struct Writer {
    dir: StateDir,
    log: Option<SampleLog>,
    keeps_log: bool,
    params: WriteParams,
    account: DiskAccount,
    pending: Arc<AtomicUsize>,
    opened_at: Instant,
    flushed_at: Instant,
}

impl Writer {
    fn run(&mut self, receiver: &Receiver<Work>) {
        let mut stop = false;
        while !stop {
            let mut next = match receiver.recv_timeout(self.params.flush_interval) {
                Ok(work) => Some(work),
                Err(RecvTimeoutError::Timeout) => None,
                Err(RecvTimeoutError::Disconnected) => Some(Work::Stop),
            };
            // Of several snapshots that have piled up behind a slow disk only the newest is worth writing.
            let mut newest = None;
            while let Some(work) = next.take() {
                match work {
                    Work::Samples(samples) => self.append(&samples),
                    Work::Snapshot(snapshot) => newest = Some(snapshot),
                    Work::ClearSamples => self.clear(),
                    Work::Stop => {
                        stop = true;
                        break;
                    }
                }
                if self.flushed_at.elapsed() < self.params.flush_interval {
                    next = receiver.try_recv().ok();
                }
            }
            if let Some(snapshot) = newest {
                let saved = self.dir.save(&snapshot, self.params.snapshots_kept);
                self.account.wrote("a snapshot", &saved);
            }
            if stop || self.flushed_at.elapsed() >= self.params.flush_interval {
                self.flush();
            }
        }
    }

    fn clear(&mut self) {
        if let Some(log) = &mut self.log {
            let cleared = log.clear();
            self.account.wrote("the sample log", &cleared);
        }
    }

    fn append(&mut self, samples: &[Sample]) {
        self.pending.fetch_sub(samples.len(), Ordering::Relaxed);
        if self.log.is_none() && self.keeps_log && self.opened_at.elapsed() >= REOPEN_AFTER {
            self.opened_at = Instant::now();
            match SampleLog::open(self.dir.path(), self.params.log) {
                Ok((log, _)) => self.log = Some(log),
                Err(error) => self.account.wrote("the sample log", &Err(error)),
            }
        }
        let Some(log) = &mut self.log else {
            if self.keeps_log {
                self.account.unlogged(samples.len() as u64);
            }
            return;
        };
        let appended = log.append(samples, SystemTime::now());
        if appended.is_err() {
            self.account.unlogged(samples.len() as u64);
        }
        self.account.wrote("the sample log", &appended);
    }

    fn flush(&mut self) {
        self.flushed_at = Instant::now();
        if let Some(log) = &mut self.log {
            let flushed = log.flush().and_then(|()| log.compact(SystemTime::now()));
            if flushed.is_err() {
                self.account.wrote("the sample log", &flushed);
            }
            self.account.lock().log_bytes = log.bytes();
        }
    }
}
