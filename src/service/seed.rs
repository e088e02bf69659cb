//! The snapshot of another sidecar that a new one starts from, and for which targets it still answers.
//!
//! A seed serves at once, under a history of its own, as the model that every later fit is judged against. A state
//! directory keeps a copy, so that a restart knows which answers are still the seed's and not learnt here.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::model_dir::{self, Number};
use super::state_dir::write_whole;
use crate::snapshot::{DecodeError, SNAPSHOT_BYTES_MAX, Snapshot, decode, encode};
use crate::types::{Generation, Lineage, Role, Target, Version};

/// The copy in a state directory: one line with the name of the file it was, then the snapshot's bytes.
const COPY: &str = "foretoken.seed";

/// How the copy's line begins.
const COPY_WORDS: &str = "foretoken seed ";

/// Characters of a file's name that are kept.
const NAME_CHARS_MAX: usize = 100;

/// Generations from which a number was not counted up to; a history does not go on from there.
const GENERATION_MAX: u64 = 1 << 48;

/// Why a file is no seed.
#[derive(Debug, thiserror::Error)]
pub enum SeedError {
    /// It cannot be read.
    #[error(
        "seed_snapshot {file} cannot be read: {source}; give the file that GET /model/export of a warm sidecar answered"
    )]
    Unreadable {
        /// Which.
        file: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It is no snapshot, not whole, or of another version.
    #[error(
        "seed_snapshot {file} cannot be used: {source}; export it again with GET /model/export of a warm sidecar of this \
         version, or start without seed_snapshot"
    )]
    Unusable {
        /// Which.
        file: PathBuf,
        /// Why.
        source: DecodeError,
    },
    /// There is nothing in it that was learnt.
    #[error(
        "seed_snapshot {file} holds no fitted model; export it from a sidecar whose /status says trained, or start \
         without seed_snapshot"
    )]
    Unfitted {
        /// Which.
        file: PathBuf,
    },
}

/// Whether a model is the seed's, by role and target in the order of their `ALL`.
pub(super) type Seeded = [[bool; 2]; 3];

/// A seed that was checked.
#[derive(Clone, Debug)]
pub(super) struct Seed {
    /// Name of the file, without the directories before it.
    pub(super) name: String,
    snapshot: Snapshot,
}

impl Seed {
    /// Reads a seed.
    ///
    /// # Errors
    /// [`SeedError`].
    pub(super) fn read(file: &Path) -> Result<Seed, SeedError> {
        let snapshot = match model_dir::read(file) {
            Ok(Ok(snapshot)) => snapshot,
            Ok(Err(source)) => return Err(SeedError::Unusable { file: file.to_path_buf(), source }),
            Err(source) => return Err(SeedError::Unreadable { file: file.to_path_buf(), source }),
        };
        let fitted = snapshot.models.rows() != [0; 2];
        if !fitted || snapshot.provenance.fitted_at.is_none() {
            return Err(SeedError::Unfitted { file: file.to_path_buf() });
        }
        let name = file.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Seed { name: one_line(&name), snapshot })
    }

    /// Keeps a copy in a state directory.
    ///
    /// # Errors
    /// Whatever the disk says.
    pub(super) fn keep(&self, dir: &Path) -> io::Result<()> {
        let mut bytes = format!("{COPY_WORDS}{}\n", self.name).into_bytes();
        bytes.extend_from_slice(&encode(&self.snapshot));
        write_whole(dir, COPY, "foretoken.seed.tmp", &bytes)
    }

    /// The copy in a state directory. One that is not whole is as good as none: it only says how a model began.
    pub(super) fn kept(dir: &Path) -> Option<Seed> {
        let file = dir.join(COPY);
        if fs::metadata(&file).ok()?.len() > (SNAPSHOT_BYTES_MAX + 1024) as u64 {
            return None;
        }
        let bytes = fs::read(file).ok()?;
        let end = bytes.iter().position(|byte| *byte == b'\n')?;
        let name = std::str::from_utf8(bytes.get(..end)?).ok()?.strip_prefix(COPY_WORDS)?;
        Some(Seed { name: one_line(name), snapshot: decode(bytes.get(end + 1..)?).ok()? })
    }

    /// The snapshot to begin with: the seed's models and corrections, in a history of its own that goes on counting
    /// from the seed's generation, and above every number that was given before (I1).
    pub(super) fn begin(&self, lineage: Lineage, newest: Option<Number>) -> Snapshot {
        let own = self.origin().generation.0;
        let own = if own < GENERATION_MAX { own.max(1) } else { 1 };
        let generation = Generation(newest.map_or(own, |(generation, _)| own.max(generation + 1)));
        let mut snapshot = self.snapshot.clone();
        snapshot.version = Version { lineage, generation, revision: 0 };
        // Samples are counted by history, and this one begins.
        snapshot.provenance.samples_accepted = 0;
        snapshot
    }

    /// Which models of a serving snapshot are still the seed's.
    pub(super) fn answers(&self, serving: &Snapshot) -> Seeded {
        Role::ALL.map(|role| {
            Target::ALL.map(|target| {
                let model = self.snapshot.models.of(role, target);
                model.rows > 0 && model == serving.models.of(role, target)
            })
        })
    }

    /// What it was called where it came from.
    pub(super) fn origin(&self) -> Version {
        self.snapshot.version
    }

    /// The snapshot as it came.
    pub(super) fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }
}

/// A name without anything that breaks a line.
fn one_line(name: &str) -> String {
    name.chars().map(|c| if c.is_control() { '?' } else { c }).take(NAME_CHARS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Prior;
    use crate::types::UnixMs;

    fn fitted() -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(7), UnixMs(5));
        snapshot.version = Version { lineage: Lineage(7), generation: Generation(12), revision: 3 };
        snapshot.provenance.fitted_at = Some(UnixMs(4));
        snapshot.provenance.samples_accepted = 900;
        let models = Arc::make_mut(&mut snapshot.models);
        (models.0[0][0].rows, models.0[0][1].rows, models.0[2][1].rows) = (200, 300, 40);
        snapshot
    }

    fn written(dir: &Path, bytes: &[u8]) -> PathBuf {
        let file = dir.join("warm.snapshot");
        fs::write(&file, bytes).unwrap();
        file
    }

    #[test]
    fn a_seed_begins_a_history_that_counts_on_from_its_generation() {
        let temp = tempfile::tempdir().unwrap();
        let seed = Seed::read(&written(temp.path(), &encode(&fitted()))).unwrap();
        let begun = seed.begin(Lineage(9), None);
        assert_eq!(begun.version, Version { lineage: Lineage(9), generation: Generation(12), revision: 0 });
        assert_eq!((begun.provenance.samples_accepted, begun.provenance.fitted_at), (0, Some(UnixMs(4))));
        assert_eq!(begun.models, fitted().models);
        assert_eq!(
            seed.begin(Lineage(9), Some((40, 2))).version.generation,
            Generation(41),
            "i1: never a number again"
        );
        assert_eq!(seed.begin(Lineage(9), Some((4, 2))).version.generation, Generation(12));
        let mut absurd = fitted();
        absurd.version.generation = Generation(u64::MAX);
        let seed = Seed::read(&written(temp.path(), &encode(&absurd))).unwrap();
        assert_eq!(seed.begin(Lineage(9), None).version.generation, Generation(1));
    }

    #[test]
    fn each_target_is_the_seeds_until_its_own_fit_replaces_it_also_after_a_restart() {
        let temp = tempfile::tempdir().unwrap();
        let seed = Seed::read(&written(temp.path(), &encode(&fitted()))).unwrap();
        seed.keep(temp.path()).unwrap();
        let seed = Seed::kept(temp.path()).unwrap();
        assert_eq!(seed.name, "warm.snapshot");
        let mut serving = seed.begin(Lineage(9), None);
        assert_eq!(seed.answers(&serving), [[true, true], [false, false], [false, true]]);
        Arc::make_mut(&mut serving.models).0[0][0].rows = 10;
        assert_eq!(seed.answers(&serving), [[false, true], [false, false], [false, true]]);
    }

    #[test]
    fn a_target_that_the_seed_never_learnt_is_not_answered_by_it() {
        let temp = tempfile::tempdir().unwrap();
        let mut half = fitted();
        Arc::make_mut(&mut half.models).0.iter_mut().for_each(|both| both[1].rows = 0);
        let seed = Seed::read(&written(temp.path(), &encode(&half))).unwrap();
        assert_eq!(seed.answers(&seed.begin(Lineage(9), None)), [[true, false], [false; 2], [false; 2]]);
    }

    #[test]
    fn a_bad_file_says_what_where_and_what_to_do() {
        let temp = tempfile::tempdir().unwrap();
        let whole = encode(&fitted());
        let mut flipped = whole.clone();
        flipped[60] ^= 4;
        let unfitted = encode(&Snapshot::prior(&Prior::default(), Lineage(7), UnixMs(5)));
        for (bytes, words) in [
            (b"nonsense, and then some more of it".to_vec(), "not a foretoken snapshot"),
            (Vec::new(), "not a foretoken snapshot"),
            (whole[..whole.len() - 9].to_vec(), "are expected"),
            (flipped, "checksum does not match"),
            (vec![0; SNAPSHOT_BYTES_MAX + 1], "are expected"),
            (unfitted, "holds no fitted model"),
        ] {
            let file = written(temp.path(), &bytes);
            let said = Seed::read(&file).unwrap_err().to_string();
            assert!(said.contains(&file.display().to_string()) && said.contains(words), "{said}");
            assert!(said.contains("start without seed_snapshot"), "{said}");
        }
        let said = Seed::read(&temp.path().join("absent")).unwrap_err().to_string();
        assert!(said.contains("absent cannot be read: ") && said.contains("GET /model/export"), "{said}");
        assert!(Seed::read(temp.path()).is_err(), "a directory");
    }

    #[test]
    fn a_damaged_copy_is_as_good_as_none() {
        let temp = tempfile::tempdir().unwrap();
        assert!(Seed::kept(temp.path()).is_none());
        let mut bytes = format!("{COPY_WORDS}warm\n").into_bytes();
        bytes.extend_from_slice(&encode(&fitted()));
        for cut in 0..bytes.len() {
            fs::write(temp.path().join(COPY), &bytes[..cut]).unwrap();
            assert!(Seed::kept(temp.path()).is_none(), "{cut}");
        }
        fs::write(temp.path().join(COPY), &bytes).unwrap();
        assert_eq!(Seed::kept(temp.path()).unwrap().name, "warm");
    }
}
