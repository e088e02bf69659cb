//! The predict role's link to its trainer: a long poll that brings every new snapshot, and says so when it does not.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use hyper::StatusCode;
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::cell::{NotInstalled, SnapshotCell, etag, lock};
use super::client::{Client, ClientError};
use super::health::Health;
use super::params::FollowParams;
use super::persist::Disk;
use super::{SyncStatus, now};
use crate::snapshot::{DecodeError, SNAPSHOT_BYTES_MAX, decode};

/// How long the trainer is asked to hold a poll while nothing changes.
const WAIT: Duration = Duration::from_secs(25);

/// Time for the answer beyond what the trainer may wait.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(10);

/// First pause after a failure; it doubles up to the parameter's limit.
const RETRY_INTERVAL_MIN: Duration = Duration::from_millis(100);

/// Exchanges begin at least this far apart, so that an address with two trainers behind it is not asked in a tight loop.
const EXCHANGE_INTERVAL_MIN: Duration = Duration::from_millis(50);

/// Why an exchange brought nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
enum ExchangeError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("it answered {status} to GET /model/snapshot; is it a foretoken trainer?")]
    Status { status: u16 },
    #[error("its snapshot was not taken: {0}")]
    Snapshot(#[from] DecodeError),
}

/// The link. One task runs it; a request may hurry it.
pub(super) struct Follower {
    params: FollowParams,
    client: Client,
    cell: Arc<SnapshotCell>,
    health: Arc<Health>,
    disk: Option<Disk>,
    link: Mutex<Link>,
    hurry: Notify,
}

/// What is known of the link.
struct Link {
    status: SyncStatus,
    /// Tag of the latest snapshot that was looked at, taken or not: no other answer is wanted.
    seen: String,
    /// Why the latest snapshot was not taken.
    refused: Option<String>,
}

impl Follower {
    /// A link that has not been tried yet.
    ///
    /// # Errors
    /// The trainer's URL cannot be used.
    pub(super) fn new(
        params: FollowParams,
        cell: Arc<SnapshotCell>,
        health: Arc<Health>,
        disk: Option<Disk>,
    ) -> Result<Self, ClientError> {
        let client = Client::try_new(&params.trainer_url, SNAPSHOT_BYTES_MAX)?;
        let status = SyncStatus { trainer_url: params.trainer_url.clone(), ..SyncStatus::default() };
        let link = Mutex::new(Link { status, seen: etag(&cell.version()), refused: None });
        Ok(Follower { params, client, cell, health, disk, link, hurry: Notify::new() })
    }

    pub(super) fn trainer_url(&self) -> &str {
        &self.params.trainer_url
    }

    pub(super) fn status(&self) -> SyncStatus {
        lock(&self.link).status.clone()
    }

    /// Follows until told to stop.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let _ = stop.run_until_cancelled(self.follow()).await;
    }

    async fn follow(&self) {
        let mut pause = RETRY_INTERVAL_MIN;
        loop {
            let began = Instant::now();
            // Over a link that is not known to work, first an answer at once: waiting would tell nothing for long.
            let wait = if self.status().connected { WAIT } else { Duration::ZERO };
            if self.exchange(wait).await.is_ok() {
                pause = RETRY_INTERVAL_MIN;
                tokio::time::sleep(EXCHANGE_INTERVAL_MIN.saturating_sub(began.elapsed())).await;
            } else {
                let jittered = pause.mul_f64(rand::random_range(0.5..=1.0)).min(self.params.retry_max);
                let _ = tokio::time::timeout(jittered, self.hurry.notified()).await;
                pause = (pause * 2).min(self.params.retry_max);
            }
        }
    }

    /// Asks now; returns whether a newer snapshot came.
    pub(super) async fn sync_now(&self) -> bool {
        let before = self.cell.version();
        let answered = self.exchange(Duration::ZERO).await.is_ok();
        if answered {
            self.hurry.notify_one();
        }
        self.cell.version() != before
    }

    /// One question to the trainer, with its outcome in the books.
    async fn exchange(&self, wait: Duration) -> Result<(), ExchangeError> {
        let outcome = self.ask(wait).await;
        let now = now();
        let mut link = lock(&self.link);
        let was_connected = link.status.connected;
        let trainer = &self.params.trainer_url;
        match &outcome {
            Ok(()) => {
                link.status.connected = true;
                link.status.last_success_at = Some(now);
                link.status.error = link.refused.clone();
                match &link.refused {
                    None => self.health.set_in_step(),
                    Some(_) => self.health.set_out_of_step(now),
                }
                if !was_connected {
                    tracing::info!(trainer, "the trainer is in reach");
                }
            }
            Err(error) => {
                let error = error.to_string();
                if was_connected || link.status.failures == 0 {
                    tracing::warn!(trainer, %error, "the trainer is out of reach; the last snapshot goes on answering");
                }
                link.status.connected = false;
                link.status.failures += 1;
                link.status.error = Some(error);
                self.health.set_out_of_step(now);
            }
        }
        outcome
    }

    async fn ask(&self, wait: Duration) -> Result<(), ExchangeError> {
        let seen = lock(&self.link).seen.clone();
        let path = format!("/model/snapshot?wait_ms={}", wait.as_millis());
        let answer = self.client.get(&path, &[("if-none-match", &seen)], wait + ANSWER_TIMEOUT).await?;
        match answer.status {
            StatusCode::NOT_MODIFIED => Ok(()),
            StatusCode::OK => {
                // A peer's bytes are untrusted; the decoder checks all of them.
                self.take(decode(&answer.body)?);
                Ok(())
            }
            status => Err(ExchangeError::Status { status: status.as_u16() }),
        }
    }

    fn take(&self, snapshot: crate::snapshot::Snapshot) {
        let version = snapshot.version;
        let serving = self.cell.version();
        let outcome = self.cell.publish(snapshot);
        let refused = match &outcome {
            Ok(()) => None,
            Err(NotInstalled::NotNewer { offered, serving }) if offered == serving => None,
            Err(error) => Some(error.to_string()),
        };
        if outcome.is_ok() && (version.lineage, version.generation) != (serving.lineage, serving.generation) {
            tracing::info!(generation = version.generation.0, "a new generation of the trainer serves");
            if version.lineage != serving.lineage && serving.generation.0 > 0 {
                tracing::warn!(trainer = %self.params.trainer_url, "the trainer began a new history");
            }
            if let Some(disk) = &self.disk {
                disk.keep_snapshot();
            }
        }
        let mut link = lock(&self.link);
        // Said once: an unfitted trainer offers another such snapshot with every correction.
        if let Some(why) = &refused
            && link.refused.is_none()
        {
            tracing::warn!(trainer = %self.params.trainer_url, %why, "the trainer's snapshot was not taken");
        }
        link.seen = etag(&version);
        link.refused = refused;
    }
}
