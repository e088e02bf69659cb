//! The state directory as a place: its marker, its lock, and writing a file so that it is either whole or not there.

use std::fs::{self, File, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::types::Lineage;

/// Says that a directory is ours, in which format, and which history of generations it holds.
const MARKER: &str = "foretoken.state";
const LOCK: &str = "foretoken.lock";

/// How a marker begins.
const MARKER_WORDS: &str = "foretoken state ";

/// How long and how often a lock is tried: a process that is just ending holds it for a moment longer.
const LOCK_PATIENCE: Duration = Duration::from_millis(500);
const LOCK_INTERVAL: Duration = Duration::from_millis(10);

/// Layout of the directory that this build reads and writes.
const FORMAT: u32 = 1;

/// Damaged files kept for whoever wants to look at them.
const DAMAGED_FILES_MAX: usize = 8;
const DAMAGED: &str = "damaged";

/// What keeps a directory from being used.
#[derive(Debug, thiserror::Error)]
pub enum StateDirError {
    /// Two processes would overwrite each other's state.
    #[error("state directory {dir} is in use by another process; stop it, or give this one a directory of its own")]
    InUse {
        /// The directory.
        dir: PathBuf,
    },
    /// The path is something else.
    #[error("state directory {dir} is not a directory; choose another path")]
    NotADirectory {
        /// The path.
        dir: PathBuf,
    },
    /// The marker is not ours.
    #[error("{file} is not a foretoken state marker ({problem}); choose an empty directory")]
    Foreign {
        /// The marker.
        file: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Written by another version.
    #[error(
        "state directory {dir} has format={found}, this version supports format={FORMAT}; use the version that wrote it, or \
         another directory"
    )]
    Format {
        /// The directory.
        dir: PathBuf,
        /// Format in the marker.
        found: u32,
    },
    /// A follower's copy is no place to learn in, nor the other way round: two histories would share one number line.
    #[error("state directory {dir} belongs to a {found}, not a {wanted}; choose another directory for this role")]
    OtherKind {
        /// The directory.
        dir: PathBuf,
        /// What it belongs to.
        found: String,
        /// What this process is.
        wanted: &'static str,
    },
}

/// Whose state it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Roles `all` and `train`.
    Learner,
    /// Role `predict`.
    Follower,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Learner => "learner",
            Kind::Follower => "follower",
        }
    }
}

/// The marker's one line.
fn marker_line(kind: Kind, lineage: Lineage) -> String {
    format!("{MARKER_WORDS}format={FORMAT} kind={} lineage={:016x}\n", kind.name(), lineage.0)
}

/// An open state directory. The lock is held until this is dropped.
#[derive(Debug)]
pub(super) struct StateDir {
    path: PathBuf,
    kind: Kind,
    lineage: Lineage,
    /// Whether the marker on disk says what is said here.
    marked: bool,
    lock: Option<File>,
}

impl StateDir {
    /// Opens a directory and takes its lock, or begins one with `lineage`. A disk that cannot be written now is not an
    /// error: [`StateDir::prepare`] goes on trying.
    ///
    /// # Errors
    /// [`StateDirError`]: the directory must not be used.
    pub(super) fn open(path: &Path, kind: Kind, lineage: Lineage) -> Result<StateDir, StateDirError> {
        let mut dir = StateDir { path: path.to_path_buf(), kind, lineage, marked: false, lock: None };
        if path.exists() && !path.is_dir() {
            return Err(StateDirError::NotADirectory { dir: path.to_path_buf() });
        }
        // What cannot be written cannot be written by another process either, so only a held lock is a refusal.
        let _ = fs::create_dir_all(path);
        dir.take_lock()?;
        if let Some(lineage) = dir.read_marker()? {
            dir.lineage = lineage;
            dir.marked = true;
        }
        Ok(dir)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn lineage(&self) -> Lineage {
        self.lineage
    }

    /// Whether a history begins here. What lies in the directory then was put there to begin it with.
    pub(super) fn is_new(&self) -> bool {
        !self.marked
    }

    /// Begins the history with this lineage; without effect when there is one already.
    pub(super) fn begin(&mut self, lineage: Lineage) {
        if !self.marked {
            self.lineage = lineage;
        }
    }

    /// Makes sure that directory, lock and marker are there before anything else is written.
    ///
    /// # Errors
    /// Whatever keeps them from being written, and [`StateDirError`] when the directory turns out to be another's.
    pub(super) fn prepare(&mut self) -> io::Result<()> {
        if self.marked {
            return Ok(());
        }
        fs::create_dir_all(&self.path)?;
        self.take_lock().map_err(io::Error::other)?;
        match self.read_marker().map_err(io::Error::other)? {
            Some(found) if found == self.lineage => {}
            Some(_) => {
                return Err(io::Error::other("the directory appeared with other state in it; restart to load it"));
            }
            None => self.write_marker(self.lineage)?,
        }
        self.marked = true;
        Ok(())
    }

    /// A write failed: the next [`StateDir::prepare`] looks again whether all is there.
    pub(super) fn doubt(&mut self) {
        self.marked = false;
    }

    /// A follower's trainer began a new history: the directory now holds that one.
    ///
    /// # Errors
    /// Whatever keeps the marker from being written; the old one then stands.
    pub(super) fn change_lineage(&mut self, lineage: Lineage) -> io::Result<()> {
        self.write_marker(lineage)?;
        self.lineage = lineage;
        Ok(())
    }

    fn write_marker(&self, lineage: Lineage) -> io::Result<()> {
        write_whole(&self.path, MARKER, "foretoken.state.tmp", marker_line(self.kind, lineage).as_bytes())
    }

    fn take_lock(&mut self) -> Result<(), StateDirError> {
        if self.lock.is_some() {
            return Ok(());
        }
        let Ok(file) = File::options().create(true).append(true).open(self.path.join(LOCK)) else { return Ok(()) };
        let until = Instant::now() + LOCK_PATIENCE;
        let locked = loop {
            match file.try_lock() {
                Err(TryLockError::WouldBlock) if Instant::now() < until => std::thread::park_timeout(LOCK_INTERVAL),
                outcome => break outcome,
            }
        };
        match locked {
            Ok(()) => self.lock = Some(file),
            Err(TryLockError::WouldBlock) => return Err(StateDirError::InUse { dir: self.path.clone() }),
            // A file system without locks: nothing can be said, and refusing to work would help nobody.
            Err(TryLockError::Error(error)) => {
                tracing::warn!(dir = %self.path.display(), %error, "the state directory cannot be locked");
            }
        }
        Ok(())
    }

    fn read_marker(&self) -> Result<Option<Lineage>, StateDirError> {
        let file = self.path.join(MARKER);
        let foreign = |problem: String| StateDirError::Foreign { file: file.clone(), problem };
        let text = match fs::read(&file) {
            Ok(text) => text,
            Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
                return Ok(None);
            }
            Err(error) => return Err(foreign(error.to_string())),
        };
        let text = String::from_utf8_lossy(&text).trim_end().to_string();
        let words = text.strip_prefix(MARKER_WORDS).ok_or_else(|| foreign("its first words are others".to_string()))?;
        let word = |key: &str| {
            let value = words.split(' ').find_map(|word| word.strip_prefix(key)?.strip_prefix('='));
            value.ok_or_else(|| foreign(format!("it has no {key}")))
        };
        // The format first: a newer one may have other words.
        let found = word("format")?.parse().map_err(|_| foreign("its format is no number".to_string()))?;
        if found != FORMAT {
            return Err(StateDirError::Format { dir: self.path.clone(), found });
        }
        let kind = word("kind")?;
        if kind != self.kind.name() {
            let wanted = self.kind.name();
            return Err(StateDirError::OtherKind { dir: self.path.clone(), found: kind.to_string(), wanted });
        }
        let lineage = u64::from_str_radix(word("lineage")?, 16);
        lineage.map(|lineage| Some(Lineage(lineage))).map_err(|_| foreign("its lineage is no number".to_string()))
    }
}

/// Names of the files in a directory; empty when it cannot be read.
pub(super) fn files(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Writes a file so that after a crash it has either all of the new content or all of the old: temporary file, flush,
/// rename, flush of the directory.
///
/// # Errors
/// Whatever the disk says; the old content is then still there.
pub(super) fn write_whole(dir: &Path, name: &str, temporary: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join(temporary);
    let written = (|| {
        let mut file = File::create(&temporary)?;
        file.write_all(content)?;
        file.sync_all()?;
        fs::rename(&temporary, dir.join(name))
    })();
    if written.is_err() {
        let _ = fs::remove_file(&temporary);
    }
    written?;
    sync_dir(dir)
}

/// Flushes a directory, so that the names in it survive a power cut.
pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Renames a damaged file out of the way. The latest few are kept, so that repeated damage cannot fill the disk.
///
/// # Errors
/// Whatever the disk says.
pub(super) fn set_aside(file: &Path) -> io::Result<()> {
    let mut name = file.as_os_str().to_owned();
    name.push(".");
    name.push(DAMAGED);
    fs::rename(file, &name)?;
    let Some(dir) = file.parent() else { return Ok(()) };
    let mut aside: Vec<_> = fs::read_dir(dir)?
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|extension| extension == DAMAGED))
        .filter_map(|entry| Some((entry.metadata().ok()?.modified().ok()?, entry.path())))
        .collect();
    aside.sort();
    let surplus = aside.len().saturating_sub(DAMAGED_FILES_MAX);
    for (_, path) in aside.into_iter().take(surplus) {
        let _ = fs::remove_file(path);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(dir: &Path) -> Result<StateDir, StateDirError> {
        StateDir::open(dir, Kind::Learner, Lineage(7))
    }

    #[test]
    fn the_lineage_is_drawn_once_and_kept() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("a/b");
        let mut dir = open(&path).unwrap();
        dir.prepare().unwrap();
        drop(dir);
        let again = StateDir::open(&path, Kind::Learner, Lineage(99)).unwrap();
        assert_eq!(again.lineage(), Lineage(7));
    }

    #[test]
    fn two_processes_never_share_a_directory() {
        let temp = tempfile::tempdir().unwrap();
        let first = open(temp.path()).unwrap();
        let refused = open(temp.path()).unwrap_err().to_string();
        assert!(refused.contains("in use by another process"), "{refused}");
        drop(first);
        open(temp.path()).unwrap();
    }

    #[test]
    fn a_newer_or_foreign_directory_is_refused_with_what_to_do() {
        for (content, message) in [
            ("foretoken state format=2 shards=4\n", "has format=2, this version supports format=1"),
            ("hello", "is not a foretoken state marker (its first words are others)"),
            ("", "is not a foretoken state marker (its first words are others)"),
            ("foretoken state kind=learner", "is not a foretoken state marker (it has no format)"),
            ("foretoken state format=1 kind=learner lineage=x", "(its lineage is no number)"),
            ("foretoken state format=1 kind=follower lineage=1", "belongs to a follower, not a learner"),
        ] {
            let temp = tempfile::tempdir().unwrap();
            fs::write(temp.path().join(MARKER), content).unwrap();
            let refused = open(temp.path()).unwrap_err().to_string();
            assert!(refused.contains(message), "{refused}");
            assert_eq!(fs::read_to_string(temp.path().join(MARKER)).unwrap(), content, "left as it was");
        }
        let temp = tempfile::tempdir().unwrap();
        let file = temp.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(open(&file).unwrap_err().to_string().contains("is not a directory"));
    }

    #[test]
    fn a_directory_that_cannot_be_made_now_is_made_later() {
        let temp = tempfile::tempdir().unwrap();
        let blocked = temp.path().join("blocked");
        fs::write(&blocked, "a file where a directory should be").unwrap();
        let mut dir = open(&blocked.join("state")).unwrap();
        assert!(dir.prepare().is_err());
        fs::remove_file(&blocked).unwrap();
        dir.prepare().unwrap();
        assert!(open(&blocked.join("state")).is_err(), "locked by now");
    }

    #[test]
    fn state_that_appears_late_is_never_overwritten() {
        let temp = tempfile::tempdir().unwrap();
        let path = temp.path().join("mount");
        fs::write(&path, "").unwrap();
        let mut dir = open(&path.join("state")).unwrap();
        fs::remove_file(&path).unwrap();
        StateDir::open(&path.join("state"), Kind::Learner, Lineage(1)).unwrap().prepare().unwrap();
        assert!(dir.prepare().unwrap_err().to_string().contains("restart to load it"));
        drop(dir);
        assert_eq!(open(&path.join("state")).unwrap().lineage(), Lineage(1));
    }

    #[test]
    fn damaged_files_are_set_aside_within_a_bound() {
        let temp = tempfile::tempdir().unwrap();
        for i in 0..DAMAGED_FILES_MAX + 3 {
            let file = temp.path().join(format!("snapshot-{i}-0.ft"));
            fs::write(&file, "x").unwrap();
            set_aside(&file).unwrap();
        }
        let left = files(temp.path());
        assert_eq!(left.len(), DAMAGED_FILES_MAX);
        assert!(left.iter().all(|name| name.ends_with(".ft.damaged")));
    }

    #[test]
    fn a_file_is_whole_or_not_there() {
        let temp = tempfile::tempdir().unwrap();
        write_whole(temp.path(), "x", "x.tmp", b"old").unwrap();
        // The temporary name is taken by a directory, so that writing fails half way.
        fs::create_dir(temp.path().join("x.tmp")).unwrap();
        assert!(write_whole(temp.path(), "x", "x.tmp", b"new").is_err());
        assert_eq!(fs::read(temp.path().join("x")).unwrap(), b"old");
    }
}
