//! Segments of the sample log as files: their names, reading them back, and putting right what a crash left behind.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use super::sample_record::{End, Segment, SegmentError, append, header, parse};
use super::state_dir::{files, set_aside, write_whole};
use crate::training::may_be_stored;
use crate::types::Sample;

/// Larger files are none of ours.
const SEGMENT_FILE_BYTES_MAX: u64 = 64 << 20;

/// Name of a segment's file.
pub(super) fn file_name(sequence: u64) -> String {
    format!("samples-{sequence:010}.log")
}

fn sequence_of(file: &str) -> Option<u64> {
    file.strip_prefix("samples-")?.strip_suffix(".log")?.parse().ok()
}

/// Sequence numbers of the segments in the directory, oldest first.
pub(super) fn sequences(dir: &Path) -> Vec<u64> {
    let mut sequences: Vec<u64> = files(dir).iter().filter_map(|file| sequence_of(file)).collect();
    sequences.sort_unstable();
    sequences
}

/// Reads one segment; `None` when there is no such file (any more).
fn read(path: &Path) -> io::Result<Option<Result<Segment, SegmentError>>> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    if size > SEGMENT_FILE_BYTES_MAX {
        return Ok(Some(Err(SegmentError::Foreign)));
    }
    Ok(Some(parse(&fs::read(path)?)))
}

/// Reads one segment and puts its file right: a torn tail is cut; a damaged file is set aside and what could be read of
/// it takes its place. What was done is added to `notices`.
pub(super) fn read_and_heal(dir: &Path, sequence: u64, notices: &mut Vec<String>) -> Option<Segment> {
    let name = file_name(sequence);
    let path = dir.join(&name);
    let outcome = |done: io::Result<()>| done.err().map_or(String::new(), |error| format!(", which failed: {error}"));
    let segment = match read(&path) {
        Ok(None) => return None,
        Ok(Some(Ok(segment))) => segment,
        Ok(Some(Err(error @ (SegmentError::Format { .. } | SegmentError::Schema { .. })))) => {
            notices.push(format!("skipped {name}: {error}"));
            return None;
        }
        Ok(Some(Err(error))) => {
            let done = outcome(set_aside(&path));
            notices.push(format!("skipped {name}: {error}; set aside as {name}.damaged{done}"));
            return None;
        }
        Err(error) => {
            notices.push(format!("skipped {name}: it cannot be read: {error}"));
            return None;
        }
    };
    match segment.end {
        End::Whole => {}
        End::Torn { bytes } => {
            let done = outcome(cut(&path, bytes));
            notices.push(format!("{name}: a torn tail of {bytes} bytes was cut{done}"));
        }
        End::Damaged { bytes } => {
            let done = outcome(replace(dir, &name, &segment));
            let read = segment.samples.len();
            notices.push(format!(
                "{name}: {bytes} bytes are damaged; set aside as {name}.damaged, {read} readable samples kept{done}"
            ));
        }
    }
    Some(segment)
}

/// Cuts the last bytes off a file.
pub(super) fn cut(path: &Path, tail_bytes: usize) -> io::Result<()> {
    let file = File::options().write(true).open(path)?;
    let length = file.metadata()?.len();
    file.set_len(length.saturating_sub(tail_bytes as u64))?;
    file.sync_all()
}

fn replace(dir: &Path, name: &str, segment: &Segment) -> io::Result<()> {
    let mut bytes = header(segment.accepted_before);
    for sample in &segment.samples {
        append(&mut bytes, sample).map_err(io::Error::other)?;
    }
    set_aside(&dir.join(name))?;
    write_whole(dir, name, "samples.tmp", &bytes)
}

/// The segments of earlier lives.
#[derive(Debug)]
pub(super) struct Earlier {
    pub(super) dir: PathBuf,
    /// Oldest first.
    pub(super) sequences: Vec<u64>,
}

impl Earlier {
    /// Their latest samples, as many as give each target `samples_per_target` or all there are, oldest first; those of
    /// failed requests and the like teach nothing, and stay where they are. No more than one segment beyond that is ever in memory.
    pub(super) fn read_latest(&self, samples_per_target: usize, notices: &mut Vec<String>) -> Vec<Sample> {
        let mut latest = Vec::new();
        let mut missing = [samples_per_target; 2];
        for &sequence in self.sequences.iter().rev() {
            if missing == [0, 0] {
                break;
            }
            let Some(segment) = read_and_heal(&self.dir, sequence, notices) else { continue };
            for sample in segment.samples.into_iter().rev() {
                let has = may_be_stored(&sample);
                let mut wanted = false;
                for (missing, has) in missing.iter_mut().zip(has) {
                    wanted |= has && *missing > 0;
                    *missing -= usize::from(has && *missing > 0);
                }
                if wanted {
                    latest.push(sample);
                }
            }
        }
        latest.reverse();
        latest
    }
}
