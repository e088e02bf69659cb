//! What a life begins with: the state directory of the lives before it, a seed, or nothing.

use std::path::{Path, PathBuf};

use super::model_dir::{self, Loaded};
use super::params::LogLimits;
use super::sample_log::SampleLog;
use super::seed::{Seed, SeedError};
use super::state_dir::{Kind, StateDir, StateDirError};
use crate::model::Prior;
use crate::snapshot::Snapshot;
use crate::types::{Generation, Lineage, UnixMs, Version};

/// Revisions a new life leaves out. A crash loses the latest revisions, which followers may have seen; numbering them
/// again would give one number to two contents. Far more than ten a second can make before the next one is written.
const REVISIONS_SKIPPED: u64 = 1 << 20;

/// What a life begins with.
pub(super) struct Beginning {
    pub(super) snapshot: Snapshot,
    /// The version that the directory holds, as it is called there.
    pub(super) persisted: Option<Version>,
    /// Whether the snapshot came from the directory.
    pub(super) loaded: bool,
    /// Samples accepted in earlier lives.
    pub(super) accepted: u64,
    pub(super) dir: Option<StateDir>,
    pub(super) log: Option<SampleLog>,
    /// What was skipped, one line each.
    pub(super) notices: Vec<String>,
    /// The seed that this history began with.
    pub(super) seed: Option<Seed>,
    /// Why a seed that was given is not used.
    pub(super) seed_ignored: Option<String>,
}

/// Why a life cannot begin.
#[derive(Debug, thiserror::Error)]
pub(super) enum BeginError {
    #[error(transparent)]
    StateDir(#[from] StateDirError),
    #[error(transparent)]
    Seed(#[from] SeedError),
}

impl Beginning {
    /// Nothing is kept, nothing is left from before but what a seed brings.
    ///
    /// # Errors
    /// [`SeedError`].
    pub(super) fn in_memory(
        prior: &Prior,
        seed: Option<&PathBuf>,
        lineage: Lineage,
        now: UnixMs,
    ) -> Result<Self, SeedError> {
        let seed = seed.map(|file| Seed::read(file)).transpose()?;
        let snapshot = seed.as_ref().map(|seed| seed.begin(lineage, None));
        Ok(Beginning {
            snapshot: snapshot.unwrap_or_else(|| Snapshot::prior(prior, lineage, now)),
            persisted: None,
            loaded: false,
            accepted: 0,
            dir: None,
            log: None,
            notices: Vec::new(),
            seed,
            seed_ignored: None,
        })
    }

    /// Opens a learner's directory. A new one gets `lineage`; one without a snapshot starts from the seed, if there is
    /// one.
    ///
    /// # Errors
    /// [`BeginError`]: the directory must not be used, or the seed cannot be.
    pub(super) fn of_learner(
        path: &Path,
        limits: LogLimits,
        prior: &Prior,
        seed_file: Option<&PathBuf>,
        lineage: Lineage,
        now: UnixMs,
    ) -> Result<Self, BeginError> {
        let dir = StateDir::open(path, Kind::Learner, lineage)?;
        let mut loaded = model_dir::load_newest(dir.path(), (!dir.is_new()).then(|| dir.lineage()));
        let mut log = SampleLog::new(dir.path(), limits, &mut loaded.notices);
        if dir.is_new()
            && let Some(seed) = &mut loaded.snapshot
        {
            // A snapshot that was put into a new directory begins a history of its own: the trainer that it came from
            // may go on with the other.
            seed.version.lineage = dir.lineage();
            seed.provenance.samples_accepted = 0;
        }
        let persisted = loaded.snapshot.as_ref().filter(|_| !dir.is_new()).map(|snapshot| snapshot.version);
        let found = loaded.snapshot.is_some();
        let mut notices = std::mem::take(&mut loaded.notices);
        let seed = match seed_file {
            Some(file) if !found => Some(Seed::read(file)?),
            _ => Seed::kept(dir.path()),
        };
        let mut snapshot = Snapshot::prior(prior, dir.lineage(), now);
        let (mut notice, mut seed_ignored) = (None, None);
        match (&seed, seed_file) {
            (Some(seed), Some(_)) if !found => {
                snapshot = seed.begin(dir.lineage(), loaded.newest);
                // Without the copy only a restart loses something: it would call the seed's model its own.
                if let Err(error) = seed.keep(dir.path()) {
                    notices.push(format!("the seed could not be copied into the state directory: {error}"));
                }
            }
            _ => {
                let generation = loaded.snapshot.as_ref().map_or(0, |snapshot| snapshot.version.generation.0);
                seed_ignored = seed_file.map(|file| {
                    let file = file.display();
                    format!(
                        "seed_snapshot {file} is ignored: the state directory holds generation {generation} already"
                    )
                });
                (snapshot, notice) = renumbered(loaded, snapshot);
            }
        }
        notices.extend(notice);
        log.accepted_at_least(snapshot.provenance.samples_accepted);
        snapshot.provenance.samples_accepted = log.accepted();
        Ok(Beginning {
            snapshot,
            loaded: found,
            persisted,
            accepted: log.accepted(),
            dir: Some(dir),
            log: Some(log),
            notices,
            seed,
            seed_ignored,
        })
    }

    /// Opens a follower's directory: the copy it made of its trainer's snapshots.
    ///
    /// # Errors
    /// [`StateDirError`]: the directory must not be used.
    pub(super) fn of_follower(path: &Path, prior: &Prior, now: UnixMs) -> Result<Self, StateDirError> {
        let mut dir = StateDir::open(path, Kind::Follower, Lineage::default())?;
        let loaded = model_dir::load_newest(dir.path(), (!dir.is_new()).then(|| dir.lineage()));
        if let Some(copy) = &loaded.snapshot {
            dir.begin(copy.version.lineage);
        }
        let persisted = loaded.snapshot.as_ref().map(|snapshot| snapshot.version);
        Ok(Beginning {
            // The trainer numbers; a follower only repeats.
            snapshot: loaded.snapshot.unwrap_or_else(|| Snapshot::prior(prior, Lineage::default(), now)),
            persisted,
            loaded: persisted.is_some(),
            accepted: 0,
            dir: Some(dir),
            log: None,
            notices: loaded.notices,
            seed: None,
            seed_ignored: None,
        })
    }
}

/// The snapshot to begin with, under a number that was never given before (I1), and a line when that needs one.
fn renumbered(loaded: Loaded, prior: Snapshot) -> (Snapshot, Option<String>) {
    let Some(newest) = loaded.newest else { return (prior, None) };
    let found = loaded.snapshot.is_some();
    let mut snapshot = loaded.snapshot.unwrap_or(prior);
    let own = (snapshot.version.generation.0, snapshot.version.revision);
    if found && own >= newest {
        snapshot.version.revision = snapshot.version.revision.saturating_add(REVISIONS_SKIPPED);
        return (snapshot, None);
    }
    snapshot.version.generation = Generation(newest.0).next();
    snapshot.version.revision = 0;
    let what = if found { format!("generation {}", own.0) } else { "the prior".to_string() };
    let now = snapshot.version.generation.0;
    (snapshot, Some(format!("{what} serves as generation {now}, so that numbers only rise")))
}
