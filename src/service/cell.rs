//! The one place where the serving snapshot lives: readers load it without a lock, publishers only ever make it newer.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio::sync::watch;

use super::EncodedSnapshot;
use crate::snapshot::{Snapshot, encode};
use crate::types::Version;

/// Why a snapshot was not installed (I1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotInstalled {
    /// Same history, but not newer.
    #[error("{} is not newer than {}, which serves", etag(offered), etag(serving))]
    NotNewer {
        /// What was offered.
        offered: Version,
        /// What serves.
        serving: Version,
    },
    /// Another history, whose model is not fitted while the serving one is.
    #[error(
        "the trainer began a new history ({}) and has no fitted model yet, so {} goes on serving",
        etag(offered),
        etag(serving)
    )]
    NewLineageUnfitted {
        /// What was offered.
        offered: Version,
        /// What serves.
        serving: Version,
    },
}

/// Strong entity tag of a version, with its quotes: lineage (hexadecimal), generation, revision.
pub fn etag(version: &Version) -> String {
    format!("\"{:016x}-{}-{}\"", version.lineage.0, version.generation.0, version.revision)
}

/// Locks a mutex of which no holder leaves broken data behind, so that a panic elsewhere does not spread.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The serving snapshot. One store per publication; readers take no lock.
pub struct SnapshotCell {
    current: ArcSwap<Snapshot>,
    /// Keeps publishers apart; no reader takes it.
    publishing: Mutex<()>,
    versions: watch::Sender<Version>,
    /// The latest encoding that somebody asked for.
    encoded: Mutex<Option<EncodedSnapshot>>,
}

impl SnapshotCell {
    /// A cell that serves `snapshot`.
    pub fn new(snapshot: Snapshot) -> Self {
        SnapshotCell {
            publishing: Mutex::new(()),
            versions: watch::Sender::new(snapshot.version),
            encoded: Mutex::new(None),
            current: ArcSwap::from_pointee(snapshot),
        }
    }

    /// The serving snapshot.
    #[inline]
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Version of the serving snapshot.
    pub fn version(&self) -> Version {
        self.current.load().version
    }

    /// Installs a newer snapshot of the same history, or one of another history unless that means giving up a fitted
    /// model for an unfitted one.
    ///
    /// # Errors
    /// [`NotInstalled`]; the serving snapshot stays.
    pub fn publish(&self, next: Snapshot) -> Result<(), NotInstalled> {
        let _one_at_a_time = lock(&self.publishing);
        let current = self.current.load();
        let (offered, serving) = (next.version, current.version);
        if offered.lineage == serving.lineage {
            if !offered.is_after(&serving) {
                return Err(NotInstalled::NotNewer { offered, serving });
            }
        } else if next.provenance.fitted_at.is_none() && current.provenance.fitted_at.is_some() {
            return Err(NotInstalled::NewLineageUnfitted { offered, serving });
        }
        self.current.store(Arc::new(next));
        self.versions.send_replace(offered);
        Ok(())
    }

    /// Waits until the serving version is not `seen`, or until `timeout`; returns whether it differs.
    pub async fn changed(&self, seen: Version, timeout: Duration) -> bool {
        let mut versions = self.versions.subscribe();
        // The cell owns the sender, so waiting can only end by a change or by the timeout.
        tokio::time::timeout(timeout, versions.wait_for(|version| *version != seen))
            .await
            .is_ok_and(|seen| seen.is_ok())
    }

    /// The serving snapshot in its byte form, encoded at most once per version.
    pub fn encoded(&self) -> EncodedSnapshot {
        let mut cache = lock(&self.encoded);
        let snapshot = self.load();
        match &*cache {
            Some(ready) if ready.version == snapshot.version => ready.clone(),
            _ => {
                let version = snapshot.version;
                let fresh =
                    EncodedSnapshot { version, etag: etag(&version), bytes: Arc::from(encode(&snapshot).as_slice()) };
                *cache = Some(fresh.clone());
                fresh
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use crate::snapshot::decode;
    use crate::types::{Generation, Lineage, UnixMs};

    fn snapshot(lineage: u64, generation: u64, revision: u64) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(lineage), UnixMs(0));
        snapshot.version = Version { lineage: Lineage(lineage), generation: Generation(generation), revision };
        snapshot.provenance.fitted_at = (generation > 0).then_some(UnixMs(1));
        snapshot
    }

    #[test]
    fn i1_only_a_newer_version_of_the_lineage_is_installed() {
        let cell = SnapshotCell::new(snapshot(1, 3, 5));
        for (generation, revision) in [(3, 5), (3, 4), (2, 9), (0, 0)] {
            let refused = cell.publish(snapshot(1, generation, revision));
            assert!(matches!(refused, Err(NotInstalled::NotNewer { .. })), "{generation}-{revision}");
        }
        assert_eq!((cell.version().generation.0, cell.version().revision), (3, 5));
        cell.publish(snapshot(1, 3, 6)).unwrap();
        cell.publish(snapshot(1, 4, 0)).unwrap();
    }

    #[test]
    fn another_lineage_is_taken_unless_it_would_cost_a_fitted_model() {
        let cell = SnapshotCell::new(snapshot(1, 0, 0));
        cell.publish(snapshot(2, 0, 0)).unwrap();
        cell.publish(snapshot(3, 9, 0)).unwrap();
        let refused = cell.publish(snapshot(4, 0, 7)).unwrap_err();
        assert!(refused.to_string().contains("has no fitted model yet"), "{refused}");
        cell.publish(snapshot(4, 1, 0)).unwrap();
        assert_eq!(cell.version().lineage, Lineage(4));
    }

    #[test]
    fn the_byte_form_is_of_the_serving_version_and_made_once() {
        let cell = SnapshotCell::new(snapshot(0xabc, 3, 5));
        let first = cell.encoded();
        assert_eq!(first.etag, "\"0000000000000abc-3-5\"");
        assert_eq!(decode(&first.bytes).unwrap(), *cell.load());
        assert!(Arc::ptr_eq(&first.bytes, &cell.encoded().bytes));
        cell.publish(snapshot(0xabc, 4, 0)).unwrap();
        assert_eq!(cell.encoded().version, cell.version());
    }

    #[tokio::test]
    async fn a_waiter_wakes_on_a_change_and_gives_up_without_one() {
        let cell = Arc::new(SnapshotCell::new(snapshot(1, 1, 0)));
        assert!(!cell.changed(cell.version(), Duration::ZERO).await);
        let waiter = tokio::spawn({
            let (cell, seen) = (cell.clone(), cell.version());
            async move { cell.changed(seen, Duration::from_secs(600)).await }
        });
        cell.publish(snapshot(1, 2, 0)).unwrap();
        assert!(waiter.await.unwrap());
        assert!(cell.changed(snapshot(1, 1, 0).version, Duration::ZERO).await, "already different");
    }

    #[test]
    fn i1_a_reader_never_sees_a_version_fall() {
        let cell = SnapshotCell::new(snapshot(1, 0, 0));
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for generation in 1..200 {
                        let _ = cell.publish(snapshot(1, generation, 0));
                    }
                });
            }
            scope.spawn(|| {
                let mut last = cell.version();
                while last.generation.0 < 199 {
                    let now = cell.load().version;
                    assert!(now == last || now.is_after(&last));
                    last = now;
                }
            });
        });
    }
}
