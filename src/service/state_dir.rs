//! The state directory: its marker and lock, and the snapshots in it.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use crate::snapshot::{DecodeError, SNAPSHOT_BYTES_MAX, Snapshot, decode, encode};
use crate::types::Lineage;

const MARKER: &str = "foretoken.state";
const MARKER_FORMAT: u32 = 1;
const SNAPSHOT_SUFFIX: &str = ".snapshot";

/// Why a state directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// The file system says no.
    #[error("state directory {}: {source}", path.display())]
    Io {
        /// Which path.
        path: PathBuf,
        /// What it said.
        source: std::io::Error,
    },
    /// Another process works in it.
    #[error("state directory {} is in use by another process; stop it, or give this one a directory of its own", path.display())]
    Locked {
        /// The directory.
        path: PathBuf,
    },
    /// Its marker was written by something else, or by a newer version.
    #[error("{} is not a state directory of this version ({found}); use another directory, or the version that wrote it", path.display())]
    Foreign {
        /// The marker.
        path: PathBuf,
        /// What the marker says.
        found: String,
    },
}

/// An open, locked state directory.
#[derive(Debug)]
pub struct StateDir {
    path: PathBuf,
    /// Identity of the history kept here.
    pub lineage: Lineage,
    /// Holds the lock for as long as it lives.
    _lock: File,
}

/// What was found at start.
#[derive(Debug, Default)]
pub struct Found {
    /// The newest snapshot that verifies.
    pub snapshot: Option<Snapshot>,
    /// What was skipped and why, one line each.
    pub notices: Vec<String>,
}

impl StateDir {
    /// Opens `path`, creating it with `new_lineage` if it is not there yet, and locks it.
    ///
    /// # Errors
    /// See [`StateDirError`].
    pub fn open(path: &Path, new_lineage: Lineage) -> Result<Self, StateDirError> {
        let io = |path: &Path| {
            let path = path.to_path_buf();
            move |source| StateDirError::Io { path, source }
        };
        fs::create_dir_all(path).map_err(io(path))?;
        let marker = path.join(MARKER);
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&marker)
            .map_err(io(&marker))?;
        rustix::fs::flock(&lock, rustix::fs::FlockOperation::NonBlockingLockExclusive)
            .map_err(|_| StateDirError::Locked { path: path.to_path_buf() })?;
        let mut text = String::new();
        (&mut lock).take(1024).read_to_string(&mut text).map_err(io(&marker))?;
        let lineage = if text.is_empty() {
            let line = format!("foretoken state format={MARKER_FORMAT} lineage={:016x}\n", new_lineage.0);
            lock.write_all(line.as_bytes()).and_then(|()| lock.sync_all()).map_err(io(&marker))?;
            new_lineage
        } else {
            parse_marker(&text).ok_or_else(|| StateDirError::Foreign {
                path: marker.clone(),
                found: text.trim().chars().take(80).collect(),
            })?
        };
        Ok(StateDir { path: path.to_path_buf(), lineage, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Loads the newest snapshot that verifies. A damaged one is named, set aside with the suffix `.damaged` and
    /// skipped; one of another format or schema is named and left where it is.
    pub fn load_newest(&self) -> Found {
        let mut found = Found::default();
        let mut names = self.snapshot_files().unwrap_or_else(|error| {
            found.notices.push(format!("cannot list snapshots in {}: {error}", self.path.display()));
            Vec::new()
        });
        while let Some((_, path)) = names.pop() {
            match read_bounded(&path).map_err(|error| error.to_string()).and_then(|bytes| {
                decode(&bytes).map_err(|error| {
                    let set_aside = !matches!(error, DecodeError::Format { .. } | DecodeError::Schema { .. });
                    let aside = path.with_extension("damaged");
                    if set_aside && fs::rename(&path, &aside).is_ok() {
                        format!("{error}; set aside as {}", file_name(&aside))
                    } else {
                        error.to_string()
                    }
                })
            }) {
                Ok(snapshot) => {
                    found.snapshot = Some(snapshot);
                    break;
                }
                Err(reason) => found.notices.push(format!("skipped {}: {reason}", file_name(&path))),
            }
        }
        found
    }

    /// Writes a snapshot: temporary file, flush, rename, flush of the directory; then removes all but the newest
    /// `keep`.
    ///
    /// # Errors
    /// What the file system says; nothing that was readable before is lost.
    pub fn save(&self, snapshot: &Snapshot, keep: usize) -> std::io::Result<()> {
        let version = snapshot.version;
        let name = format!("{:012}-{:08}{SNAPSHOT_SUFFIX}", version.generation.0, version.revision);
        let temporary = self.path.join("snapshot.tmp");
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(&encode(snapshot))?;
            file.sync_all()
        });
        if let Err(error) = written {
            // Best effort: on a full disk the fragment is what stands in the way.
            let _ = fs::remove_file(&temporary);
            return Err(error);
        }
        fs::rename(&temporary, self.path.join(name))?;
        File::open(&self.path)?.sync_all()?;
        let files = self.snapshot_files()?;
        let surplus = files.len().saturating_sub(keep.max(1));
        for (_, path) in files.into_iter().take(surplus) {
            fs::remove_file(path)?;
        }
        Ok(())
    }

    /// Snapshots, oldest first.
    fn snapshot_files(&self) -> std::io::Result<Vec<((u64, u64), PathBuf)>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            let name = file_name(&path);
            let version = name
                .strip_suffix(SNAPSHOT_SUFFIX)
                .and_then(|stem| stem.split_once('-'))
                .and_then(|(generation, revision)| Some((generation.parse().ok()?, revision.parse().ok()?)));
            if let Some(version) = version {
                files.push((version, path));
            }
        }
        files.sort();
        Ok(files)
    }
}

fn parse_marker(text: &str) -> Option<Lineage> {
    let rest = text.strip_prefix("foretoken state format=")?;
    let (format, lineage) = rest.trim_end().split_once(" lineage=")?;
    (format.parse() == Ok(MARKER_FORMAT)).then_some(())?;
    u64::from_str_radix(lineage, 16).ok().map(Lineage)
}

fn read_bounded(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(SNAPSHOT_BYTES_MAX as u64 + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A path's last part as text.
pub fn file_name(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use crate::types::{Generation, UnixMs};

    fn snapshot(generation: u64) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(3), UnixMs(0));
        snapshot.version.generation = Generation(generation);
        snapshot
    }

    #[test]
    fn the_newest_that_verifies_is_loaded_and_a_damaged_one_is_named_and_set_aside() {
        let folder = tempfile::tempdir().unwrap();
        let dir = StateDir::open(folder.path(), Lineage(3)).unwrap();
        for generation in 1..=9 {
            dir.save(&snapshot(generation), 3).unwrap();
        }
        assert_eq!(dir.snapshot_files().unwrap().len(), 3);
        let newest = folder.path().join("000000000009-00000000.snapshot");
        let mut bytes = fs::read(&newest).unwrap();
        bytes[40] ^= 1;
        fs::write(&newest, bytes).unwrap();
        let found = dir.load_newest();
        assert_eq!(found.snapshot.unwrap().version.generation, Generation(8));
        assert!(
            found.notices[0].contains("000000000009") && found.notices[0].contains("checksum"),
            "{found_notices}",
            found_notices = found.notices[0]
        );
        assert!(!newest.exists() && newest.with_extension("damaged").exists());
    }

    #[test]
    fn a_second_process_a_foreign_marker_and_a_newer_format_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let first = StateDir::open(folder.path(), Lineage(3)).unwrap();
        assert!(matches!(StateDir::open(folder.path(), Lineage(4)), Err(StateDirError::Locked { .. })));
        drop(first);
        assert_eq!(StateDir::open(folder.path(), Lineage(4)).unwrap().lineage, Lineage(3));
        for marker in ["something else", "foretoken state format=2 lineage=0000000000000003\n"] {
            fs::write(folder.path().join(MARKER), marker).unwrap();
            let error = StateDir::open(folder.path(), Lineage(4)).unwrap_err();
            assert!(matches!(error, StateDirError::Foreign { .. }), "{error}");
        }
    }
}
