//! The sample log: append-only segments of checksummed records, so that a restarted learner has its samples back.
//!
//! A segment is `samples-<sequence>.log`: a 32-byte header (magic, format, schema, samples accepted before it, checksum
//! of the header), then records of u32 length, u32 CRC32C, payload (postcard). A torn tail is cut at start; a damaged
//! segment is read up to the damage and set aside. Compaction is the removal of the oldest segments by size and age.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use super::state_dir::file_name;
use crate::types::{EndpointName, Features, Observation, Promised, Role, Sample, UnixMs};

const MAGIC: [u8; 8] = *b"ftsample";
const FORMAT: u32 = 1;
const SCHEMA: u32 = 1;
const HEADER_BYTES: usize = 32;
const RECORD_HEADER_BYTES: usize = 8;
/// A record is some 60 bytes and a name of at most 253: anything longer is damage.
const RECORD_BYTES_MAX: usize = 4096;
/// Segments the size limit is divided into: removing one removes at most this share of the history.
const SEGMENTS: u64 = 8;
const SEGMENT_BYTES_MIN: u64 = 64 * 1024;

/// Limits of a log.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogLimits {
    /// Bytes of all segments together.
    pub bytes_max: u64,
    /// Age beyond which a segment is removed.
    pub age_max: Duration,
}

/// What was read back at start.
#[derive(Debug, Default)]
pub struct Recovered {
    /// Samples, oldest first.
    pub samples: Vec<Sample>,
    /// Samples accepted since the directory began, as far as written.
    pub accepted_total: u64,
    /// What was cut or set aside, one line each.
    pub notices: Vec<String>,
}

/// The log, open for appending.
#[derive(Debug)]
pub struct SampleLog {
    dir: PathBuf,
    limits: LogLimits,
    /// Closed segments, oldest first: sequence and size.
    closed: Vec<(u64, u64)>,
    open: Option<Segment>,
    next_sequence: u64,
    accepted_total: u64,
}

#[derive(Debug)]
struct Segment {
    sequence: u64,
    file: File,
    bytes: u64,
    dirty: bool,
}

/// A sample in the log; the wire form of [`Sample`], so that the vocabulary itself knows no bytes.
#[derive(Serialize, Deserialize)]
struct Stored {
    kv_cache_usage: f64,
    input_tokens: u32,
    requests_waiting: u32,
    requests_running: u32,
    prefix_cache_score: f64,
    prefill_tokens_in_flight: u32,
    decode_tokens_in_flight: u32,
    encoder_matched_size: u32,
    encoder_input_size: u32,
    role: u8,
    ttft_ms: Option<f64>,
    tpot_ms: Option<f64>,
    output_tokens: u32,
    endpoint: Option<String>,
    observed_at: i64,
    dispatched_at: Option<i64>,
}

impl Stored {
    fn of(sample: &Sample) -> Self {
        let Features {
            kv_cache_usage,
            input_tokens,
            requests_waiting,
            requests_running,
            prefix_cache_score,
            prefill_tokens_in_flight,
            decode_tokens_in_flight,
            encoder_matched_size,
            encoder_input_size,
            role,
        } = sample.features;
        Stored {
            kv_cache_usage,
            input_tokens,
            requests_waiting,
            requests_running,
            prefix_cache_score,
            prefill_tokens_in_flight,
            decode_tokens_in_flight,
            encoder_matched_size,
            encoder_input_size,
            role: match role {
                Role::Both => 0,
                Role::Prefill => 1,
                Role::Decode => 2,
            },
            ttft_ms: sample.observation.ttft_ms,
            tpot_ms: sample.observation.tpot_ms,
            output_tokens: sample.observation.output_tokens,
            endpoint: sample.endpoint.as_ref().map(|name| name.as_str().to_string()),
            observed_at: sample.observed_at.0,
            dispatched_at: sample.dispatched_at.map(|at| at.0),
        }
    }

    /// Checks it like any other sample: a log is a file, and files can be edited.
    fn sample(self) -> Option<Sample> {
        let features = Features {
            kv_cache_usage: self.kv_cache_usage,
            input_tokens: self.input_tokens,
            requests_waiting: self.requests_waiting,
            requests_running: self.requests_running,
            prefix_cache_score: self.prefix_cache_score,
            prefill_tokens_in_flight: self.prefill_tokens_in_flight,
            decode_tokens_in_flight: self.decode_tokens_in_flight,
            encoder_matched_size: self.encoder_matched_size,
            encoder_input_size: self.encoder_input_size,
            role: match self.role {
                1 => Role::Prefill,
                2 => Role::Decode,
                _ => Role::Both,
            },
        };
        Sample::try_new(Sample {
            features,
            observation: Observation {
                ttft_ms: self.ttft_ms,
                tpot_ms: self.tpot_ms,
                output_tokens: self.output_tokens,
            },
            endpoint: self.endpoint.as_deref().and_then(EndpointName::try_new),
            observed_at: UnixMs(self.observed_at),
            dispatched_at: self.dispatched_at.map(UnixMs),
            promised: Promised::default(),
        })
        .ok()
    }
}

impl SampleLog {
    /// Opens the log in `dir` and reads it back. Damage costs the damaged records only and is named in the notices.
    ///
    /// # Errors
    /// When the directory cannot be listed.
    pub fn open(dir: &Path, limits: LogLimits) -> std::io::Result<(SampleLog, Recovered)> {
        let mut log = SampleLog {
            dir: dir.to_path_buf(),
            limits,
            closed: Vec::new(),
            open: None,
            next_sequence: 1,
            accepted_total: 0,
        };
        let mut recovered = Recovered::default();
        let mut segments = Vec::new();
        for entry in fs::read_dir(dir)? {
            let path = entry?.path();
            let name = file_name(&path);
            let sequence = name
                .strip_prefix("samples-")
                .and_then(|rest| rest.strip_suffix(".log"))
                .and_then(|number| number.parse::<u64>().ok());
            if let Some(sequence) = sequence {
                segments.push((sequence, path));
            }
        }
        segments.sort();
        let newest = segments.last().map(|(sequence, _)| *sequence);
        for (sequence, path) in segments {
            log.next_sequence = sequence + 1;
            match read_segment(&path, &mut recovered) {
                Ok(Reading::Whole { bytes }) => log.closed.push((sequence, bytes)),
                Ok(Reading::Torn { good, bytes }) if Some(sequence) == newest => {
                    let cut = OpenOptions::new().write(true).open(&path).and_then(|file| file.set_len(good));
                    let how = if cut.is_ok() { "cut" } else { "ignored" };
                    recovered.notices.push(format!(
                        "{how} a torn tail of {} bytes in {}",
                        bytes - good,
                        file_name(&path)
                    ));
                    log.closed.push((sequence, good));
                }
                Ok(Reading::Torn { good, .. }) => {
                    let aside = path.with_extension("damaged");
                    let kept = fs::rename(&path, &aside).is_ok();
                    let where_to = if kept { format!(", set aside as {}", file_name(&aside)) } else { String::new() };
                    recovered
                        .notices
                        .push(format!("{} is damaged at byte {good}: read up to there{where_to}", file_name(&path)));
                }
                Err(reason) => recovered.notices.push(format!("skipped {}: {reason}", file_name(&path))),
            }
        }
        log.accepted_total = recovered.accepted_total;
        Ok((log, recovered))
    }

    /// Bytes of all segments.
    pub fn bytes(&self) -> u64 {
        self.closed.iter().map(|(_, bytes)| bytes).sum::<u64>() + self.open.as_ref().map_or(0, |open| open.bytes)
    }

    /// Appends samples in one write. They survive a crash of this process from here on, and a crash of the machine
    /// once [`SampleLog::flush`] has returned.
    ///
    /// # Errors
    /// What the file system says; the samples are counted as accepted but not logged, and the log stays readable.
    pub fn append(&mut self, samples: &[Sample], now: SystemTime) -> std::io::Result<()> {
        let before = self.accepted_total;
        self.accepted_total += samples.len() as u64;
        if self.open.as_ref().is_some_and(|open| open.bytes >= self.segment_bytes()) {
            self.close_segment()?;
            self.compact(now)?;
        }
        let mut bytes = Vec::with_capacity(samples.len() * 96);
        for sample in samples {
            let payload = postcard::to_stdvec(&Stored::of(sample)).map_err(std::io::Error::other)?;
            bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
            bytes.extend_from_slice(&crc32c::crc32c(&payload).to_le_bytes());
            bytes.extend_from_slice(&payload);
        }
        let segment = match &mut self.open {
            Some(segment) => segment,
            empty => empty.insert(Segment::create(&self.dir, self.next_sequence, before)?),
        };
        self.next_sequence = segment.sequence + 1;
        if let Err(error) = segment.file.write_all(&bytes) {
            // Half a record at the end would hide every later one: cut it, or go on in a new segment.
            if segment.file.set_len(segment.bytes).is_err() {
                self.open = None;
            }
            return Err(error);
        }
        segment.bytes += bytes.len() as u64;
        segment.dirty = true;
        Ok(())
    }

    /// Flushes to the device what was appended since the last flush.
    ///
    /// # Errors
    /// What the file system says.
    pub fn flush(&mut self) -> std::io::Result<()> {
        if let Some(segment) = self.open.as_mut().filter(|segment| segment.dirty) {
            segment.file.sync_data()?;
            segment.dirty = false;
        }
        Ok(())
    }

    /// Removes the oldest segments beyond the limits of size and age.
    ///
    /// # Errors
    /// What the file system says.
    pub fn compact(&mut self, now: SystemTime) -> std::io::Result<()> {
        while let Some(&(sequence, _)) = self.closed.first() {
            let path = segment_path(&self.dir, sequence);
            let age =
                fs::metadata(&path).and_then(|meta| meta.modified()).ok().and_then(|at| now.duration_since(at).ok());
            let too_old = age.is_some_and(|age| age > self.limits.age_max);
            if !too_old && self.bytes() <= self.limits.bytes_max {
                break;
            }
            remove_if_there(&path)?;
            self.closed.remove(0);
        }
        Ok(())
    }

    /// Removes all samples; the count of accepted ones goes on.
    ///
    /// # Errors
    /// What the file system says.
    pub fn clear(&mut self) -> std::io::Result<()> {
        self.close_segment()?;
        while let Some((sequence, _)) = self.closed.pop() {
            remove_if_there(&segment_path(&self.dir, sequence))?;
        }
        // An empty segment carries the count over a restart.
        self.open = Some(Segment::create(&self.dir, self.next_sequence, self.accepted_total)?);
        self.next_sequence += 1;
        Ok(())
    }

    fn segment_bytes(&self) -> u64 {
        (self.limits.bytes_max / SEGMENTS).max(SEGMENT_BYTES_MIN)
    }

    fn close_segment(&mut self) -> std::io::Result<()> {
        self.flush()?;
        if let Some(segment) = self.open.take() {
            self.closed.push((segment.sequence, segment.bytes));
        }
        Ok(())
    }
}

impl Segment {
    fn create(dir: &Path, sequence: u64, accepted_before: u64) -> std::io::Result<Self> {
        let mut header = Vec::with_capacity(HEADER_BYTES);
        header.extend_from_slice(&MAGIC);
        header.extend_from_slice(&FORMAT.to_le_bytes());
        header.extend_from_slice(&SCHEMA.to_le_bytes());
        header.extend_from_slice(&accepted_before.to_le_bytes());
        header.extend_from_slice(&[0; 4]);
        header.extend_from_slice(&crc32c::crc32c(&header).to_le_bytes());
        let path = segment_path(dir, sequence);
        let mut file = OpenOptions::new().append(true).create_new(true).open(&path)?;
        if let Err(error) = file.write_all(&header) {
            // Best effort: a fragment would only be skipped with a notice at the next start.
            let _ = fs::remove_file(&path);
            return Err(error);
        }
        Ok(Segment { sequence, file, bytes: HEADER_BYTES as u64, dirty: true })
    }
}

fn segment_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("samples-{sequence:010}.log"))
}

fn remove_if_there(path: &Path) -> std::io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

enum Reading {
    Whole { bytes: u64 },
    Torn { good: u64, bytes: u64 },
}

fn read_segment(path: &Path, recovered: &mut Recovered) -> Result<Reading, String> {
    let mut bytes = Vec::new();
    File::open(path).and_then(|mut file| file.read_to_end(&mut bytes)).map_err(|error| error.to_string())?;
    let number = |at: usize| bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_le_bytes);
    let header = bytes.get(..HEADER_BYTES).ok_or("its header is cut short")?;
    if header.get(..8) != Some(&MAGIC[..]) {
        return Err("not a sample log".to_string());
    }
    if number(28) != Some(crc32c::crc32c(&header[..28])) {
        return Err("its header is damaged".to_string());
    }
    let (format, schema) = (number(8).unwrap_or(0), number(12).unwrap_or(0));
    if (format, schema) != (FORMAT, SCHEMA) {
        return Err(format!("format {format} schema {schema} where this version reads {FORMAT} and {SCHEMA}"));
    }
    let before = header.get(16..24).and_then(|part| part.try_into().ok()).map_or(0, u64::from_le_bytes);
    let mut accepted = before;
    let mut at = HEADER_BYTES;
    let mut whole = true;
    while at < bytes.len() {
        let length = number(at).map_or(usize::MAX, |length| length as usize);
        let payload = at
            .checked_add(RECORD_HEADER_BYTES)
            .filter(|_| length <= RECORD_BYTES_MAX)
            .and_then(|start| bytes.get(start..start + length));
        let sample = payload
            .filter(|payload| number(at + 4) == Some(crc32c::crc32c(payload)))
            .and_then(|payload| postcard::from_bytes::<Stored>(payload).ok());
        let Some(stored) = sample else {
            whole = false;
            break;
        };
        accepted += 1;
        recovered.samples.extend(stored.sample());
        at += RECORD_HEADER_BYTES + length;
    }
    recovered.accepted_total = recovered.accepted_total.max(accepted);
    let total = bytes.len() as u64;
    Ok(if whole { Reading::Whole { bytes: total } } else { Reading::Torn { good: at as u64, bytes: total } })
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: LogLimits = LogLimits { bytes_max: 1 << 20, age_max: Duration::from_secs(3600) };

    fn sample(i: u32) -> Sample {
        Sample::try_new(Sample {
            features: Features {
                kv_cache_usage: 0.25,
                input_tokens: i,
                requests_waiting: 1,
                requests_running: 2,
                prefix_cache_score: 0.5,
                prefill_tokens_in_flight: 3,
                decode_tokens_in_flight: 4,
                encoder_matched_size: 0,
                encoder_input_size: 0,
                role: Role::Decode,
            },
            observation: Observation { ttft_ms: Some(1.5 + f64::from(i)), tpot_ms: None, output_tokens: 9 },
            endpoint: EndpointName::try_new("endpoint-a"),
            observed_at: UnixMs(i64::from(i)),
            dispatched_at: Some(UnixMs(-1)),
            promised: Promised::default(),
        })
        .unwrap()
    }

    fn samples(range: std::ops::Range<u32>) -> Vec<Sample> {
        range.map(sample).collect()
    }

    #[test]
    fn what_was_appended_comes_back_and_the_count_goes_on() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for (round, expected) in [(0u32, 0u64), (1, 50), (2, 100)] {
            let (mut log, recovered) = SampleLog::open(folder.path(), LIMITS).unwrap();
            assert_eq!((recovered.accepted_total, recovered.samples.len() as u64), (expected, expected));
            assert_eq!(recovered.samples, samples(0..round * 50));
            log.append(&samples(round * 50..round * 50 + 50), now).unwrap();
        }
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_only_the_last_record() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        let (mut log, _) = SampleLog::open(folder.path(), LIMITS).unwrap();
        log.append(&samples(0..3), now).unwrap();
        let good = log.bytes() as usize;
        log.append(&samples(3..4), now).unwrap();
        drop(log);
        let path = segment_path(folder.path(), 1);
        let whole = fs::read(&path).unwrap();
        for length in good + 1..whole.len() {
            fs::write(&path, &whole[..length]).unwrap();
            let (mut log, recovered) = SampleLog::open(folder.path(), LIMITS).unwrap();
            assert_eq!(recovered.samples, samples(0..3), "cut at {length}");
            assert_eq!(recovered.notices.len(), 1);
            log.append(&samples(3..5), now).unwrap();
            drop(log);
            let (_, again) = SampleLog::open(folder.path(), LIMITS).unwrap();
            assert_eq!((again.samples.len(), again.accepted_total), (5, 5));
            fs::remove_file(segment_path(folder.path(), 2)).unwrap();
        }
    }

    #[test]
    fn damage_in_an_older_segment_is_named_and_costs_no_other_segment() {
        let folder = tempfile::tempdir().unwrap();
        let now = SystemTime::now();
        for round in 0..3u32 {
            let (mut log, _) = SampleLog::open(folder.path(), LIMITS).unwrap();
            log.append(&samples(round * 10..round * 10 + 10), now).unwrap();
        }
        let path = segment_path(folder.path(), 2);
        let mut bytes = fs::read(&path).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 0xff;
        fs::write(&path, bytes).unwrap();
        let (_, recovered) = SampleLog::open(folder.path(), LIMITS).unwrap();
        assert!(recovered.samples.len() >= 20 && recovered.samples.len() < 30);
        assert_eq!(recovered.accepted_total, 30);
        assert!(recovered.notices[0].contains("samples-0000000002.log"), "{:?}", recovered.notices);
        assert!(path.with_extension("damaged").exists());
    }

    #[test]
    fn size_and_age_are_bounded_by_whole_segments() {
        let folder = tempfile::tempdir().unwrap();
        let limits = LogLimits { bytes_max: 4 * SEGMENT_BYTES_MIN, age_max: Duration::from_secs(3600) };
        let (mut log, _) = SampleLog::open(folder.path(), limits).unwrap();
        let now = SystemTime::now();
        for round in 0..40u32 {
            log.append(&samples(round * 500..round * 500 + 500), now).unwrap();
            assert!(log.bytes() <= limits.bytes_max + 2 * SEGMENT_BYTES_MIN, "{}", log.bytes());
        }
        log.compact(now + Duration::from_secs(7200)).unwrap();
        assert!(log.closed.is_empty());
        drop(log);
        let (_, recovered) = SampleLog::open(folder.path(), limits).unwrap();
        assert_eq!(recovered.accepted_total, 20_000);
    }

    #[test]
    fn clearing_keeps_the_count() {
        let folder = tempfile::tempdir().unwrap();
        let (mut log, _) = SampleLog::open(folder.path(), LIMITS).unwrap();
        log.append(&samples(0..7), SystemTime::now()).unwrap();
        log.clear().unwrap();
        drop(log);
        let (_, recovered) = SampleLog::open(folder.path(), LIMITS).unwrap();
        assert_eq!((recovered.samples.len(), recovered.accepted_total), (0, 7));
    }

    #[test]
    fn a_foreign_and_a_newer_segment_are_named_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(segment_path(folder.path(), 1), vec![7u8; 100]).unwrap();
        let (mut log, recovered) = SampleLog::open(folder.path(), LIMITS).unwrap();
        assert!(recovered.notices[0].contains("not a sample log"));
        log.append(&samples(0..1), SystemTime::now()).unwrap();
        assert!(segment_path(folder.path(), 2).exists());
    }
}
