//! The sample log: append-only segments within a bound of bytes and of age. A life never writes into a segment of an
//! earlier one, so whatever a crash left behind is only ever read, cut or set aside.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::params::LogLimits;
use super::sample_files::{Earlier, file_name, read_and_heal, sequences};
use super::sample_record::{HEADER_BYTES, append, header};
use super::state_dir::sync_dir;
use crate::types::Sample;

/// The log is made of about this many segments, so that its bounds are kept to a sixteenth.
const SEGMENTS: u64 = 16;

/// A segment is closed beyond this many bytes.
fn segment_bytes_max(limits: &LogLimits) -> u64 {
    (limits.bytes_max / SEGMENTS).clamp(4 << 10, 4 << 20)
}

/// A segment is closed beyond this age.
fn segment_age_max(limits: &LogLimits) -> Duration {
    limits.age_max / 7
}

/// A segment that is being written.
#[derive(Debug)]
struct Open {
    file: File,
    sequence: u64,
    bytes: u64,
    began: SystemTime,
    /// Whether something was written and not flushed.
    unflushed: bool,
}

/// A segment that is not written any more.
#[derive(Clone, Copy, Debug)]
struct Closed {
    sequence: u64,
    bytes: u64,
    /// When it was last written.
    written: SystemTime,
}

/// The writing side of the log.
#[derive(Debug)]
pub(super) struct SampleLog {
    dir: PathBuf,
    limits: LogLimits,
    /// Samples accepted before the next record.
    accepted: u64,
    /// Oldest first.
    closed: Vec<Closed>,
    open: Option<Open>,
    next_sequence: u64,
}

impl SampleLog {
    /// Looks at what there is, healing the newest segments until one tells how many samples were ever accepted.
    pub(super) fn new(dir: &Path, limits: LogLimits, notices: &mut Vec<String>) -> SampleLog {
        let mut accepted = 0;
        for sequence in sequences(dir).into_iter().rev() {
            if let Some(segment) = read_and_heal(dir, sequence, notices) {
                accepted = segment.accepted_before + segment.records;
                break;
            }
        }
        // Those set aside are gone from this list, those of another version are in it: their numbers are taken.
        let sequences = sequences(dir);
        let closed = sequences.iter().filter_map(|&sequence| {
            let metadata = fs::metadata(dir.join(file_name(sequence))).ok()?;
            Some(Closed { sequence, bytes: metadata.len(), written: metadata.modified().ok()? })
        });
        SampleLog {
            dir: dir.to_path_buf(),
            limits,
            accepted,
            closed: closed.collect(),
            open: None,
            next_sequence: sequences.last().map_or(1, |last| last + 1),
        }
    }

    /// The segments of earlier lives; to be asked for before anything is written.
    pub(super) fn earlier(&self) -> Earlier {
        Earlier { dir: self.dir.clone(), sequences: self.closed.iter().map(|segment| segment.sequence).collect() }
    }

    /// Samples accepted so far, in all lives.
    pub(super) fn accepted(&self) -> u64 {
        self.accepted
    }

    /// Samples were accepted that this log does not know of (a snapshot counted further).
    pub(super) fn accepted_at_least(&mut self, accepted: u64) {
        self.accepted = self.accepted.max(accepted);
    }

    /// Bytes on disk.
    pub(super) fn bytes(&self) -> u64 {
        self.closed.iter().map(|segment| segment.bytes).sum::<u64>() + self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Samples were accepted that will never be in the log. The next record begins a new segment, whose header counts
    /// them.
    pub(super) fn skip(&mut self, samples: u64) {
        if samples > 0 {
            self.accepted += samples;
            self.close();
        }
    }

    /// Writes samples, all with one call to the operating system, or none: on an error they are still the caller's.
    ///
    /// # Errors
    /// What the disk says. The segment is closed, so that the next write begins a new one.
    pub(super) fn write<'a>(&mut self, samples: impl Iterator<Item = &'a Sample>) -> io::Result<()> {
        let mut bytes = Vec::new();
        let mut records = 0;
        for sample in samples {
            append(&mut bytes, sample).map_err(io::Error::other)?;
            records += 1;
        }
        self.write_bytes(&bytes).inspect_err(|_| self.close())?;
        self.accepted += records;
        Ok(())
    }

    fn write_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let now = SystemTime::now();
        let full = self.open.as_ref().is_some_and(|open| {
            let age = now.duration_since(open.began).unwrap_or_default();
            open.bytes >= segment_bytes_max(&self.limits) || age >= segment_age_max(&self.limits)
        });
        if full {
            self.flush()?;
            self.close();
        }
        if self.open.is_none() {
            self.open = Some(self.begin(now)?);
        }
        let Some(open) = &mut self.open else { return Ok(()) };
        if let Err(error) = open.file.write_all(bytes) {
            // Part of it may be there. What cannot be cut now is cut by the next life, as a torn tail.
            let _ = open.file.set_len(open.bytes);
            return Err(error);
        }
        open.bytes += bytes.len() as u64;
        open.unflushed = true;
        Ok(())
    }

    /// Removes samples that are too old, also while no new ones come.
    ///
    /// # Errors
    /// What the disk says.
    pub(super) fn expire(&mut self, now: SystemTime) -> io::Result<()> {
        let oldest_kept = now.checked_sub(self.limits.age_max).unwrap_or(SystemTime::UNIX_EPOCH);
        if self.closed.first().is_some_and(|segment| segment.written < oldest_kept) {
            self.compact(now);
            if self.open.is_none() && self.closed.is_empty() {
                // The count of those accepted lives on in the header of a new segment.
                self.open = Some(self.begin(now)?);
            }
        }
        Ok(())
    }

    /// The compaction: the oldest segments go until the bounds are kept.
    fn compact(&mut self, now: SystemTime) {
        let oldest_kept = now.checked_sub(self.limits.age_max).unwrap_or(SystemTime::UNIX_EPOCH);
        let room = self.limits.bytes_max.saturating_sub(segment_bytes_max(&self.limits));
        let mut bytes = self.bytes();
        let mut surplus = 0;
        for segment in &self.closed {
            if bytes <= room && segment.written >= oldest_kept {
                break;
            }
            let _ = fs::remove_file(self.dir.join(file_name(segment.sequence)));
            bytes -= segment.bytes;
            surplus += 1;
        }
        self.closed.drain(..surplus);
    }

    /// Begins a segment, with the compaction that is due.
    fn begin(&mut self, now: SystemTime) -> io::Result<Open> {
        self.compact(now);
        let sequence = self.next_sequence;
        self.next_sequence += 1;
        let path = self.dir.join(file_name(sequence));
        let mut file = File::options().append(true).create_new(true).open(&path)?;
        file.write_all(&header(self.accepted)).inspect_err(|_| {
            let _ = fs::remove_file(&path);
        })?;
        sync_dir(&self.dir)?;
        Ok(Open { file, sequence, bytes: HEADER_BYTES as u64, began: now, unflushed: true })
    }

    /// Flushes what was written to the disk.
    ///
    /// # Errors
    /// What the disk says; what was written since the last flush may then be lost in a power cut.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        let Some(open) = self.open.as_mut().filter(|open| open.unflushed) else { return Ok(()) };
        open.unflushed = false;
        open.file.sync_data().inspect_err(|_| self.close())
    }

    /// Removes all samples. The count of those accepted lives on in the header of a new segment.
    ///
    /// # Errors
    /// What the disk says; some samples may then still be there.
    pub(super) fn forget(&mut self) -> io::Result<()> {
        self.close();
        while let Some(segment) = self.closed.last() {
            match fs::remove_file(self.dir.join(file_name(segment.sequence))) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.closed.pop(),
            };
        }
        self.open = Some(self.begin(SystemTime::now())?);
        self.flush()
    }

    fn close(&mut self) {
        if let Some(open) = self.open.take() {
            self.closed.push(Closed { sequence: open.sequence, bytes: open.bytes, written: SystemTime::now() });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::sample_files::cut;
    use super::super::sample_record::tests::sample;
    use super::*;
    use crate::types::Ending;

    const LIMITS: LogLimits = LogLimits { bytes_max: 64 << 10, age_max: Duration::from_secs(86_400) };

    fn open(dir: &Path) -> (SampleLog, Vec<String>) {
        let mut notices = Vec::new();
        (SampleLog::new(dir, LIMITS, &mut notices), notices)
    }

    fn write(log: &mut SampleLog, range: std::ops::Range<u32>) {
        log.write(samples(range).iter()).unwrap();
    }

    fn all(log: &SampleLog) -> (Vec<Sample>, Vec<String>) {
        let mut notices = Vec::new();
        (log.earlier().read_latest(usize::MAX, &mut notices), notices)
    }

    fn samples(range: std::ops::Range<u32>) -> Vec<Sample> {
        range.map(sample).collect()
    }

    #[test]
    fn lives_follow_one_another_and_the_count_goes_on() {
        let temp = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let (mut log, notices) = open(temp.path());
            assert_eq!((log.accepted(), notices.len()), (u64::from(life) * 10, 0));
            write(&mut log, life * 10..life * 10 + 4);
            write(&mut log, life * 10 + 4..(life + 1) * 10);
            log.flush().unwrap();
        }
        let (log, _) = open(temp.path());
        assert_eq!(all(&log), (samples(0..30), vec![]));
        assert_eq!(sequences(temp.path()), [1, 2, 3], "a life without samples leaves no file");
    }

    #[test]
    fn samples_that_never_reached_the_log_are_counted_all_the_same() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        write(&mut log, 0..5);
        log.skip(100);
        write(&mut log, 5..7);
        let (mut log, _) = open(temp.path());
        assert_eq!(log.accepted(), 107);
        log.accepted_at_least(200);
        write(&mut log, 7..8);
        let (log, _) = open(temp.path());
        assert_eq!(log.accepted(), 201);
        assert_eq!(all(&log).0, samples(0..8));
    }

    #[test]
    fn a_torn_tail_is_cut_counted_and_told() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        write(&mut log, 0..5);
        let path = temp.path().join(file_name(1));
        cut(&path, 3).unwrap();
        let (log, notices) = open(temp.path());
        assert_eq!(log.accepted(), 4);
        assert!(notices[0].starts_with("samples-0000000001.log: a torn tail of "), "{notices:?}");
        assert_eq!(all(&log), (samples(0..4), vec![]), "told once");
    }

    #[test]
    fn a_damaged_segment_in_the_middle_is_named_set_aside_and_its_readable_samples_are_kept() {
        let temp = tempfile::tempdir().unwrap();
        for life in 0..3 {
            let (mut log, _) = open(temp.path());
            write(&mut log, life * 10..(life + 1) * 10);
        }
        let path = temp.path().join(file_name(2));
        let mut bytes = fs::read(&path).unwrap();
        bytes[HEADER_BYTES + 20] ^= 1;
        fs::write(&path, &bytes).unwrap();
        let (log, notices) = open(temp.path());
        assert_eq!((log.accepted(), notices.len()), (30, 0), "only the newest is read at start");
        let (read, notices) = all(&log);
        assert_eq!(read, [samples(0..10), samples(11..30)].concat());
        assert!(notices[0].starts_with("samples-0000000002.log: "), "{notices:?}");
        assert!(notices[0].contains("set aside as samples-0000000002.log.damaged, 9 readable samples kept"));
        assert_eq!(fs::read(temp.path().join("samples-0000000002.log.damaged")).unwrap(), bytes);
        assert_eq!(all(&log), ([samples(0..10), samples(11..30)].concat(), vec![]), "healed");
    }

    #[test]
    fn a_segment_without_a_readable_header_is_set_aside_and_the_others_are_read() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        write(&mut log, 0..10);
        fs::write(temp.path().join(file_name(2)), b"").unwrap();
        fs::write(temp.path().join(file_name(3)), b"a shopping list").unwrap();
        let mut newer = header(77);
        newer[8] = 9;
        fs::write(temp.path().join(file_name(4)), &newer).unwrap();
        let (mut log, notices) = open(temp.path());
        assert_eq!((log.accepted(), notices.len()), (10, 3));
        assert!(notices[0].contains("skipped samples-0000000004.log: its format 9 is not 1"), "{notices:?}");
        assert!(notices[1].contains("skipped samples-0000000003.log: it is not a foretoken sample log"));
        assert!(notices[2].contains("skipped samples-0000000002.log: its header is incomplete"));
        assert_eq!(fs::read(temp.path().join(file_name(4))).unwrap(), newer, "another version's is left alone");
        write(&mut log, 10..12);
        assert_eq!(all(&open(temp.path()).0).0, samples(0..12));
    }

    #[test]
    fn i4_the_log_keeps_its_bound_of_bytes_and_the_newest_samples() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        for i in 0..400 {
            write(&mut log, i * 10..(i + 1) * 10);
            assert!(log.bytes() <= LIMITS.bytes_max + 1_000, "{}", log.bytes());
        }
        let on_disk: u64 = sequences(temp.path())
            .iter()
            .map(|sequence| fs::metadata(temp.path().join(file_name(*sequence))).unwrap().len())
            .sum();
        assert_eq!(log.bytes(), on_disk);
        let (log, _) = open(temp.path());
        assert_eq!(log.accepted(), 4_000);
        let read = all(&log).0;
        assert!(read.len() > 400, "{}", read.len());
        assert_eq!(read, samples(4_000 - read.len() as u32..4_000));
    }

    fn age_segment(dir: &Path, sequence: u64) {
        let old = SystemTime::now() - LIMITS.age_max - Duration::from_secs(60);
        File::options().append(true).open(dir.join(file_name(sequence))).unwrap().set_modified(old).unwrap();
    }

    #[test]
    fn samples_beyond_the_age_leave_also_while_no_new_ones_come() {
        let temp = tempfile::tempdir().unwrap();
        for life in 0..3 {
            write(&mut open(temp.path()).0, life * 10..(life + 1) * 10);
        }
        age_segment(temp.path(), 1);
        let (mut log, _) = open(temp.path());
        log.expire(SystemTime::now()).unwrap();
        assert_eq!(sequences(temp.path()), [2, 3]);
        (2..=3).for_each(|sequence| age_segment(temp.path(), sequence));
        let (mut log, _) = open(temp.path());
        log.expire(SystemTime::now()).unwrap();
        log.expire(SystemTime::now()).unwrap();
        let (log, _) = open(temp.path());
        assert_eq!((log.accepted(), all(&log).0, sequences(temp.path())), (30, vec![], vec![4]));
    }

    #[test]
    fn a_target_that_is_seldom_observed_is_searched_for_further_back() {
        let temp = tempfile::tempdir().unwrap();
        for life in 0..4u32 {
            let mut samples = samples(life * 10..(life + 1) * 10);
            // Both outcomes in the two older lives, one in the two newer.
            samples.iter_mut().filter(|_| life >= 2).for_each(|sample| sample.observation.tpot_ms = None);
            open(temp.path()).0.write(samples.iter()).unwrap();
        }
        let read = open(temp.path()).0.earlier().read_latest(5, &mut Vec::new());
        let inputs: Vec<u32> = read.iter().map(|sample| sample.features.input_tokens).collect();
        let expected: Vec<u32> = (15..20).chain(35..40).map(|i| sample(i).features.input_tokens).collect();
        assert_eq!(inputs, expected);
    }

    #[test]
    fn samples_that_may_not_be_stored_take_no_room() {
        let temp = tempfile::tempdir().unwrap();
        let mut mixed = samples(0..20);
        mixed.iter_mut().skip(10).for_each(|sample| sample.manner.ending = Ending::Failed);
        open(temp.path()).0.write(mixed.iter()).unwrap();
        let (log, _) = open(temp.path());
        assert_eq!((log.accepted(), log.earlier().read_latest(5, &mut Vec::new())), (20, samples(5..10)));
    }

    #[test]
    fn segments_beyond_the_age_leave_when_the_next_begins() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        write(&mut log, 0..10);
        age_segment(temp.path(), 1);
        let (mut log, _) = open(temp.path());
        write(&mut log, 10..20);
        assert_eq!(sequences(temp.path()), [2]);
        assert_eq!(open(temp.path()).0.accepted(), 20);
    }

    #[test]
    fn only_as_many_samples_are_read_back_as_the_store_has_room_for() {
        let temp = tempfile::tempdir().unwrap();
        for life in 0..5 {
            let (mut log, _) = open(temp.path());
            write(&mut log, life * 10..(life + 1) * 10);
        }
        let (log, _) = open(temp.path());
        assert_eq!(log.earlier().read_latest(15, &mut Vec::new()), samples(35..50));
    }

    #[test]
    fn forgetting_removes_the_samples_and_keeps_the_count() {
        let temp = tempfile::tempdir().unwrap();
        let (mut log, _) = open(temp.path());
        write(&mut log, 0..10);
        log.skip(5);
        write(&mut log, 10..20);
        log.forget().unwrap();
        let (log, _) = open(temp.path());
        assert_eq!((log.accepted(), all(&log).0), (25, vec![]));
    }

    #[test]
    fn a_failed_write_leaves_the_samples_with_the_caller_and_recovers_in_a_new_segment() {
        let temp = tempfile::tempdir().unwrap();
        let dir = temp.path().join("state");
        fs::create_dir(&dir).unwrap();
        let (mut log, _) = open(&dir);
        write(&mut log, 0..3);
        log.skip(1);
        fs::rename(&dir, temp.path().join("away")).unwrap();
        let lost = [sample(3)];
        assert!(log.write(lost.iter()).is_err());
        assert_eq!(log.accepted(), 4);
        fs::rename(temp.path().join("away"), &dir).unwrap();
        log.write(lost.iter()).unwrap();
        let (log, _) = open(&dir);
        assert_eq!((log.accepted(), all(&log).0), (5, samples(0..4)));
    }
}
