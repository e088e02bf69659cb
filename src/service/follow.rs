//! A follower: long-polls its trainer for the newest snapshot, keeps the last one when the trainer is gone, and says so.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cell::{SnapshotCell, etag};
use super::client::{Client, ClientError};
use super::persist::Persister;
use super::{SyncStatus, now};
use crate::snapshot::{SNAPSHOT_BYTES_MAX, Snapshot, decode};
use crate::types::{State, UnixMs};

/// How long the trainer may hold a question open.
const WAIT_MS: u64 = 25_000;

/// How much longer than that an answer may take.
const GRACE: Duration = Duration::from_secs(5);

/// First pause after a failure; doubled up to the configured maximum.
const RETRY_FIRST: Duration = Duration::from_millis(100);

/// Checked parameters of a follower.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowParams {
    /// `http://host:port` of the trainer.
    pub trainer_url: String,
    /// Longest pause between tries while the trainer is away.
    pub retry_max: Duration,
    /// How long the link may be down before answers are marked stale.
    pub stale_after: Duration,
}

/// The link as others see it.
pub struct Link {
    url: String,
    stale_after: Duration,
    /// Unix ms of the last successful exchange; `i64::MIN` before the first.
    last_success_ms: AtomicI64,
    started_at: UnixMs,
    failures: AtomicU64,
    /// Whether the last exchange failed; beside `error` so that predictions need no lock.
    down: AtomicBool,
    error: Mutex<Option<String>>,
    asked: Notify,
    exchanged: Notify,
}

impl Link {
    /// A link that has not been tried yet.
    pub fn new(params: &FollowParams, started_at: UnixMs) -> Self {
        Link {
            url: params.trainer_url.clone(),
            stale_after: params.stale_after,
            last_success_ms: AtomicI64::new(i64::MIN),
            started_at,
            failures: AtomicU64::new(0),
            down: AtomicBool::new(false),
            error: Mutex::new(None),
            asked: Notify::new(),
            exchanged: Notify::new(),
        }
    }

    /// The mildest state answers may have at `now`: a link that is down for too long makes them stale. A question held
    /// open counts as contact, so a quiet trainer is not a lost one.
    pub fn floor(&self, now: UnixMs) -> State {
        let since = match self.last_success_ms.load(Ordering::Relaxed) {
            i64::MIN => self.started_at,
            at => UnixMs(at),
        };
        let down = self.down.load(Ordering::Relaxed);
        if down && now.since(since) > self.stale_after.as_millis() as i64 { State::Stale } else { State::Ready }
    }

    /// The account.
    pub fn status(&self) -> SyncStatus {
        let last = self.last_success_ms.load(Ordering::Relaxed);
        let error = self.error.lock().unwrap_or_else(PoisonError::into_inner).clone();
        SyncStatus {
            trainer_url: self.url.clone(),
            connected: error.is_none() && last != i64::MIN,
            last_success_at: (last != i64::MIN).then_some(UnixMs(last)),
            failures: self.failures.load(Ordering::Relaxed),
            error,
        }
    }

    /// Asks for an exchange now and waits for it to end, well or not.
    pub async fn exchange_now(&self) {
        let done = self.exchanged.notified();
        self.asked.notify_one();
        // A trainer that does not answer at all is the follower's own limit to notice.
        let _ = tokio::time::timeout(Duration::from_secs(5), done).await;
    }

    fn succeeded(&self) {
        self.last_success_ms.store(now().0, Ordering::Relaxed);
        self.down.store(false, Ordering::Relaxed);
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if error.take().is_some() {
            tracing::info!("the trainer at {} answers again", self.url);
        }
        drop(error);
        self.exchanged.notify_waiters();
    }

    fn failed(&self, reason: String) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        self.down.store(true, Ordering::Relaxed);
        let mut error = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        if error.is_none() {
            tracing::warn!("the trainer at {} does not answer: {reason}; the last snapshot goes on serving", self.url);
        }
        *error = Some(reason);
        drop(error);
        self.exchanged.notify_waiters();
    }
}

/// Whether a follower should serve `offered` instead of `serving`. Within a lineage only what is newer; another
/// lineage (the trainer began anew) only once it has learnt something, or while we have nothing learnt ourselves.
fn worth_serving(serving: &Snapshot, offered: &Snapshot) -> bool {
    if serving.version.lineage == offered.version.lineage {
        offered.version.is_after(&serving.version)
    } else {
        offered.version.generation.0 > 0 || serving.version.generation.0 == 0
    }
}

/// Follows until cancelled.
pub async fn follow(
    client: Client,
    cell: Arc<SnapshotCell>,
    link: Arc<Link>,
    retry_max: Duration,
    persister: Option<Persister>,
    cancel: CancellationToken,
) {
    let mut pause = RETRY_FIRST;
    let mut hurry = true;
    let mut persister = persister;
    while !cancel.is_cancelled() {
        let wait_ms = if hurry { 0 } else { WAIT_MS };
        let outcome = tokio::select! {
            () = cancel.cancelled() => break,
            () = link.asked.notified(), if !hurry => { hurry = true; continue; }
            outcome = exchange(&client, &cell, wait_ms) => outcome,
        };
        match outcome {
            Ok(snapshot) => {
                hurry = false;
                pause = RETRY_FIRST;
                if let Some(snapshot) = snapshot {
                    let version = snapshot.version;
                    let new_generation = cell.load().version.generation != version.generation;
                    if cell.publish(snapshot) && new_generation {
                        tracing::info!(generation = version.generation.0, "a new generation serves");
                        if let Some(persister) = &persister {
                            persister.snapshot(cell.load());
                        }
                    }
                }
                link.succeeded();
            }
            Err(reason) => {
                hurry = true;
                link.failed(reason);
                tokio::select! {
                    () = cancel.cancelled() => break,
                    () = link.asked.notified() => {}
                    () = tokio::time::sleep(pause.min(retry_max)) => {}
                }
                pause = (pause * 2).min(retry_max);
            }
        }
    }
    if let Some(persister) = &mut persister {
        persister.snapshot(cell.load());
        persister.stop();
    }
}

/// One question; `None` when the trainer has nothing newer.
async fn exchange(client: &Client, cell: &SnapshotCell, wait_ms: u64) -> Result<Option<Snapshot>, String> {
    let serving = cell.load();
    let tag = etag(&serving.version);
    let path = format!("/model/snapshot?wait_ms={wait_ms}");
    let timeout = Duration::from_millis(wait_ms) + GRACE;
    let answer =
        client.get(&path, &[("if-none-match", &tag)], timeout).await.map_err(|error: ClientError| error.to_string())?;
    match answer.status.as_u16() {
        304 => Ok(None),
        200 => {
            let snapshot = decode(&answer.body).map_err(|error| error.to_string())?;
            Ok(worth_serving(&serving, &snapshot).then_some(snapshot))
        }
        status => Err(format!("it answered {status} to {path}; is it a foretoken trainer?")),
    }
}

/// Largest answer a follower reads.
pub const ANSWER_BYTES_MAX: usize = SNAPSHOT_BYTES_MAX;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use crate::types::{Generation, Lineage};

    fn snapshot(lineage: u64, generation: u64, revision: u64) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(lineage), UnixMs(0));
        snapshot.version.generation = Generation(generation);
        snapshot.version.revision = revision;
        snapshot
    }

    #[test]
    fn a_trainer_that_lost_its_state_does_not_take_ours() {
        let serving = snapshot(1, 7, 2);
        assert!(worth_serving(&serving, &snapshot(1, 7, 3)));
        assert!(worth_serving(&serving, &snapshot(1, 8, 0)));
        assert!(!worth_serving(&serving, &snapshot(1, 7, 2)));
        assert!(!worth_serving(&serving, &snapshot(1, 6, 9)));
        assert!(!worth_serving(&serving, &snapshot(2, 0, 5)), "an untrained stranger");
        assert!(worth_serving(&serving, &snapshot(2, 1, 0)), "a trained one");
        assert!(worth_serving(&snapshot(1, 0, 0), &snapshot(2, 0, 0)), "we have nothing either");
    }
}
