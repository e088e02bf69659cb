//! Snapshots on disk: one file each, the latest generations kept, and only what verifies is ever loaded.

use std::fs;
use std::io;
use std::path::Path;

use super::state_dir::{files, set_aside, write_whole};
use crate::snapshot::{DecodeError, SNAPSHOT_BYTES_MAX, Snapshot, decode, encode};
use crate::types::Lineage;

/// Generation and revision, as a file's name gives them.
pub(super) type Number = (u64, u64);

/// What was found at start.
#[derive(Debug, Default)]
pub(super) struct Loaded {
    /// The newest snapshot that verifies.
    pub(super) snapshot: Option<Snapshot>,
    /// The newest number of any file, whether or not it verifies: numbers must rise from there.
    pub(super) newest: Option<Number>,
    /// What was skipped and why.
    pub(super) notices: Vec<String>,
}

fn file_name((generation, revision): Number) -> String {
    format!("{generation:012}-{revision:08}.snapshot")
}

fn number_of(file: &str) -> Option<Number> {
    let (generation, revision) = file.strip_suffix(".snapshot")?.split_once('-')?;
    // Numbers near the end of their range were not counted up to; they must not stop us from counting on.
    let counted = |text: &str| text.parse().ok().filter(|number| *number < u64::MAX / 2);
    Some((counted(generation)?, counted(revision)?))
}

/// Numbers of the files in the directory, newest first.
fn numbers(dir: &Path) -> Vec<Number> {
    let mut numbers: Vec<Number> = files(dir).iter().filter_map(|file| number_of(file)).collect();
    numbers.sort_unstable_by(|a, b| b.cmp(a));
    numbers
}

/// Loads the newest snapshot of `lineage`, or of any if none is given, that verifies. A damaged one is set aside; one of another version or lineage
/// is left where it is.
pub(super) fn load_newest(dir: &Path, lineage: Option<Lineage>) -> Loaded {
    let numbers = numbers(dir);
    let mut loaded = Loaded { newest: numbers.first().copied(), ..Loaded::default() };
    for number in numbers {
        let name = file_name(number);
        match read(&dir.join(&name)) {
            Ok(Ok(snapshot)) if lineage.is_none_or(|lineage| snapshot.version.lineage == lineage) => {
                loaded.snapshot = Some(snapshot);
                break;
            }
            Ok(Ok(_)) => loaded.notices.push(format!("skipped {name}: it belongs to another history")),
            Ok(Err(error @ (DecodeError::Format { .. } | DecodeError::Schema { .. }))) => {
                loaded.notices.push(format!("skipped {name}: {error}"));
            }
            Ok(Err(error)) => {
                let aside = match set_aside(&dir.join(&name)) {
                    Ok(()) => format!("set aside as {name}.damaged"),
                    Err(error) => format!("it could not be set aside: {error}"),
                };
                loaded.notices.push(format!("skipped {name}: {error}; {aside}"));
            }
            Err(error) => loaded.notices.push(format!("skipped {name}: it cannot be read: {error}")),
        }
    }
    loaded
}

/// Reads one snapshot, no more than a snapshot can have.
///
/// # Errors
/// Outside: the file cannot be read. Inside: it is no snapshot.
pub(super) fn read(file: &Path) -> io::Result<Result<Snapshot, DecodeError>> {
    let size = usize::try_from(fs::metadata(file)?.len()).unwrap_or(usize::MAX);
    if size > SNAPSHOT_BYTES_MAX {
        return Ok(Err(DecodeError::Length { found: size, expected: SNAPSHOT_BYTES_MAX }));
    }
    Ok(decode(&fs::read(file)?))
}

/// Writes a snapshot.
///
/// # Errors
/// Whatever the disk says; what was there before is then still there.
pub(super) fn write(dir: &Path, snapshot: &Snapshot) -> io::Result<()> {
    // One temporary name for all of them, so that a crash never leaves more than one behind.
    write_whole(dir, &file_name(number(snapshot)), "snapshot.tmp", &encode(snapshot))
}

/// Removes older revisions of each generation, and generations beyond the latest `generations_max`, counted from the
/// given snapshot, which was just written. With `alone` all other files go: it begins another history, beside which
/// their numbers mean nothing.
pub(super) fn prune(dir: &Path, written: &Snapshot, generations_max: usize, alone: bool) {
    let written = number(written);
    let mut kept = vec![written.0];
    // A newer number is not ours to judge: another version may have written it.
    for other in numbers(dir).into_iter().filter(|other| *other < written || (alone && *other != written)) {
        if alone || kept.contains(&other.0) || kept.len() >= generations_max {
            let _ = fs::remove_file(dir.join(file_name(other)));
        } else {
            kept.push(other.0);
        }
    }
}

fn number(snapshot: &Snapshot) -> Number {
    (snapshot.version.generation.0, snapshot.version.revision)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use crate::types::{Generation, UnixMs};

    const LINEAGE: Lineage = Lineage(7);

    fn snapshot(generation: u64, revision: u64) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), LINEAGE, UnixMs(5));
        snapshot.version.generation = Generation(generation);
        snapshot.version.revision = revision;
        snapshot
    }

    fn write(dir: &Path, snapshot: &Snapshot, generations_max: usize, alone: bool) -> io::Result<()> {
        super::write(dir, snapshot)?;
        prune(dir, snapshot, generations_max, alone);
        Ok(())
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names = files(dir);
        names.sort();
        names
    }

    #[test]
    fn the_latest_generations_are_kept_each_in_its_newest_revision() {
        let temp = tempfile::tempdir().unwrap();
        for (generation, revision) in [(8, 0), (9, 0), (9, 4), (10, 0), (11, 0), (11, 2), (11, 31)] {
            write(temp.path(), &snapshot(generation, revision), 3, false).unwrap();
        }
        assert_eq!(
            names(temp.path()),
            ["000000000009-00000004.snapshot", "000000000010-00000000.snapshot", "000000000011-00000031.snapshot"]
        );
        let loaded = load_newest(temp.path(), Some(LINEAGE));
        assert_eq!(loaded.snapshot.unwrap(), snapshot(11, 31));
        assert_eq!((loaded.newest, loaded.notices), (Some((11, 31)), vec![]));
    }

    #[test]
    fn a_damaged_newest_snapshot_is_named_set_aside_and_skipped() {
        let damages: [fn(&mut Vec<u8>); 4] = [
            |bytes| bytes[100] ^= 1,
            |bytes| bytes.truncate(50),
            |bytes| bytes.clear(),
            |bytes| bytes.resize(SNAPSHOT_BYTES_MAX + 1, 0),
        ];
        for damage in damages {
            let temp = tempfile::tempdir().unwrap();
            write(temp.path(), &snapshot(1, 3), 5, false).unwrap();
            write(temp.path(), &snapshot(2, 0), 5, false).unwrap();
            let newest = temp.path().join("000000000002-00000000.snapshot");
            let mut bytes = fs::read(&newest).unwrap();
            damage(&mut bytes);
            fs::write(&newest, bytes).unwrap();
            let loaded = load_newest(temp.path(), Some(LINEAGE));
            assert_eq!(loaded.snapshot.unwrap(), snapshot(1, 3));
            assert_eq!(loaded.newest, Some((2, 0)));
            assert!(loaded.notices[0].starts_with("skipped 000000000002-00000000.snapshot: "), "{:?}", loaded.notices);
            assert_eq!(
                names(temp.path()),
                ["000000000001-00000003.snapshot", "000000000002-00000000.snapshot.damaged"]
            );
        }
    }

    #[test]
    fn a_snapshot_of_another_version_or_history_is_left_alone_and_named() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), &snapshot(1, 0), 5, false).unwrap();
        let mut newer = encode(&snapshot(4, 0));
        newer[8] = 9;
        fs::write(temp.path().join("000000000004-00000000.snapshot"), newer).unwrap();
        let mut schema = encode(&snapshot(3, 0));
        schema[12] = 77;
        fs::write(temp.path().join("000000000003-00000000.snapshot"), schema).unwrap();
        let mut stranger = snapshot(2, 0);
        stranger.version.lineage = Lineage(8);
        fs::write(temp.path().join("000000000002-00000000.snapshot"), encode(&stranger)).unwrap();
        let loaded = load_newest(temp.path(), Some(LINEAGE));
        assert_eq!(loaded.snapshot.unwrap(), snapshot(1, 0));
        assert_eq!(loaded.newest, Some((4, 0)));
        assert!(
            loaded.notices[0].contains("skipped 000000000004-00000000.snapshot: snapshot format 9 is not "),
            "{:?}",
            loaded.notices
        );
        assert!(
            loaded.notices[1].contains("skipped 000000000003-00000000.snapshot: snapshot schema 77"),
            "{:?}",
            loaded.notices
        );
        assert!(loaded.notices[2].contains("skipped 000000000002-00000000.snapshot: it belongs to another history"));
        assert_eq!(files(temp.path()).len(), 4);
        write(temp.path(), &snapshot(2, 0), 1, false).unwrap();
        assert_eq!(
            names(temp.path()),
            ["000000000002-00000000.snapshot", "000000000003-00000000.snapshot", "000000000004-00000000.snapshot"],
            "newer ones stay"
        );
    }

    #[test]
    fn a_new_lineage_replaces_all_files_of_the_old() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), &snapshot(50, 0), 5, false).unwrap();
        write(temp.path(), &snapshot(2, 0), 5, true).unwrap();
        assert_eq!(names(temp.path()), ["000000000002-00000000.snapshot"]);
    }

    #[test]
    fn a_write_that_fails_half_way_leaves_what_was_there() {
        let temp = tempfile::tempdir().unwrap();
        write(temp.path(), &snapshot(1, 0), 5, false).unwrap();
        fs::create_dir(temp.path().join("snapshot.tmp")).unwrap();
        assert!(write(temp.path(), &snapshot(2, 0), 5, false).is_err());
        assert_eq!(load_newest(temp.path(), Some(LINEAGE)).snapshot.unwrap(), snapshot(1, 0));
    }
}
