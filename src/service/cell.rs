//! The one place the serving snapshot lives: readers load, one writer publishes, nobody locks.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::sync::watch;

use super::EncodedSnapshot;
use crate::snapshot::{Snapshot, encode};
use crate::types::Version;

/// The cell. One `publish` is one store of one `Arc`.
pub struct SnapshotCell {
    current: ArcSwap<Snapshot>,
    encoded: ArcSwapOption<EncodedSnapshot>,
    changed: watch::Sender<Version>,
}

impl SnapshotCell {
    /// A cell that serves `snapshot`.
    pub fn new(snapshot: Snapshot) -> Self {
        let (changed, _) = watch::channel(snapshot.version);
        SnapshotCell { current: ArcSwap::from_pointee(snapshot), encoded: ArcSwapOption::empty(), changed }
    }

    /// The snapshot that serves now.
    pub fn load(&self) -> Arc<Snapshot> {
        self.current.load_full()
    }

    /// Serves `snapshot` from now on, unless it is not newer within its lineage (I1); returns whether it serves. There
    /// is one writer per process, so the check and the store cannot interleave with another.
    pub fn publish(&self, snapshot: Snapshot) -> bool {
        let version = snapshot.version;
        let serving = self.current.load().version;
        if serving.lineage == version.lineage && !version.is_after(&serving) {
            return false;
        }
        self.current.store(Arc::new(snapshot));
        self.changed.send_replace(version);
        true
    }

    /// A receiver that is told of every publication.
    pub fn subscribe(&self) -> watch::Receiver<Version> {
        self.changed.subscribe()
    }

    /// The serving snapshot's bytes, encoded at most once per version and reader race.
    pub fn encoded(&self) -> EncodedSnapshot {
        let snapshot = self.load();
        if let Some(cached) = self.encoded.load().as_deref()
            && cached.version == snapshot.version
        {
            return cached.clone();
        }
        let fresh = EncodedSnapshot {
            version: snapshot.version,
            etag: etag(&snapshot.version),
            bytes: Arc::from(encode(&snapshot)),
        };
        self.encoded.store(Some(Arc::new(fresh.clone())));
        fresh
    }
}

/// Strong entity tag of a version.
pub fn etag(version: &Version) -> String {
    format!("\"{:x}-{}-{}\"", version.lineage.0, version.generation.0, version.revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use crate::types::{Generation, Lineage, UnixMs};

    #[test]
    fn i1_what_is_not_newer_is_never_served() {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(1), UnixMs(0));
        snapshot.version.generation = Generation(5);
        let cell = SnapshotCell::new(snapshot.clone());
        assert!(!cell.publish(snapshot.clone()));
        let mut older = snapshot.clone();
        older.version.generation = Generation(4);
        older.version.revision = 9;
        assert!(!cell.publish(older));
        let mut newer = snapshot.clone();
        newer.version.revision = 1;
        let before = cell.encoded();
        assert!(cell.publish(newer));
        assert_ne!(cell.encoded().etag, before.etag);
        assert_eq!(cell.encoded().etag, "\"1-5-1\"");
    }
}
