//! Bytes of a segment of the sample log. Pure: what to write, and what can be read of what is there.
//!
//! Segment, little-endian: 8 bytes magic, u32 format, u32 schema, u64 samples accepted before this segment, u32 CRC32C
//! of the header so far; then records: u32 payload length, u32 CRC32C of the payload, payload (postcard).

use serde::{Deserialize, Serialize};

use crate::types::{Ending, EndpointName, Features, Fingerprint, Manner, Observation, Promised, Role, Sample, UnixMs};

const MAGIC: [u8; 8] = *b"foretklg";
/// Framing of segments that this build reads and writes.
const FORMAT: u32 = 1;
/// Fields of a record that are written. Rises whenever a field is added or changes its meaning.
const SCHEMA: u32 = 2;
/// The schema before how a request went was told. Its segments are read as if nothing had been said.
const SCHEMA_WITHOUT_MANNER: u32 = 1;
/// Bytes of a segment's header.
pub(super) const HEADER_BYTES: usize = 28;
/// Bytes in front of a record's payload.
const FRAME_BYTES: usize = 8;
/// A payload is far smaller; a greater length is damage.
const PAYLOAD_BYTES_MAX: usize = 4096;

/// What every sample has, as it stands in the log: all of schema 1.
#[derive(Serialize, Deserialize)]
struct Record<'a> {
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
    endpoint: Option<&'a str>,
    observed_at: i64,
    dispatched_at: Option<i64>,
    promised_ttft_ms: Option<f64>,
    promised_tpot_ms: Option<f64>,
}

/// What schema 2 adds behind it.
#[derive(Default, Serialize, Deserialize)]
struct Manners<'a> {
    ending: u8,
    streamed: Option<bool>,
    chunks: Option<u32>,
    timed: bool,
    fingerprint: Option<&'a str>,
}

const ENDINGS: [Ending; 4] = [Ending::Completed, Ending::Failed, Ending::TimedOut, Ending::Aborted];

impl<'a> Manners<'a> {
    fn of(sample: &'a Sample) -> Self {
        let manner = &sample.manner;
        Manners {
            ending: ENDINGS.iter().position(|ending| *ending == manner.ending).unwrap_or(0) as u8,
            streamed: manner.streamed,
            chunks: manner.chunks,
            timed: manner.timed,
            fingerprint: sample.fingerprint.as_ref().map(Fingerprint::as_str),
        }
    }

    fn read(&self) -> Option<(Manner, Option<Fingerprint>)> {
        let fingerprint = match self.fingerprint {
            Some(text) => Some(Fingerprint::try_new(text)?),
            None => None,
        };
        let ending = *ENDINGS.get(usize::from(self.ending))?;
        Some((Manner { ending, streamed: self.streamed, chunks: self.chunks, timed: self.timed }, fingerprint))
    }
}

const ROLES: [Role; 3] = [Role::Both, Role::Prefill, Role::Decode];

impl<'a> Record<'a> {
    fn of(sample: &'a Sample) -> Self {
        let Sample { features, observation, .. } = sample;
        Record {
            kv_cache_usage: features.kv_cache_usage,
            input_tokens: features.input_tokens,
            requests_waiting: features.requests_waiting,
            requests_running: features.requests_running,
            prefix_cache_score: features.prefix_cache_score,
            prefill_tokens_in_flight: features.prefill_tokens_in_flight,
            decode_tokens_in_flight: features.decode_tokens_in_flight,
            encoder_matched_size: features.encoder_matched_size,
            encoder_input_size: features.encoder_input_size,
            role: ROLES.iter().position(|role| *role == features.role).unwrap_or(0) as u8,
            ttft_ms: observation.ttft_ms,
            tpot_ms: observation.tpot_ms,
            output_tokens: observation.output_tokens,
            endpoint: sample.endpoint.as_ref().map(EndpointName::as_str),
            observed_at: sample.observed_at.0,
            dispatched_at: sample.dispatched_at.map(|at| at.0),
            promised_ttft_ms: sample.promised.ttft_ms,
            promised_tpot_ms: sample.promised.tpot_ms,
        }
    }

    /// The sample, checked like one from the wire.
    fn sample(&self, manners: &Manners<'_>) -> Option<Sample> {
        let (manner, fingerprint) = manners.read()?;
        let endpoint = match self.endpoint {
            Some(name) => Some(EndpointName::try_new(name)?),
            None => None,
        };
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
            role: *ROLES.get(usize::from(self.role))?,
        };
        let observation =
            Observation { ttft_ms: self.ttft_ms, tpot_ms: self.tpot_ms, output_tokens: self.output_tokens };
        let promised = Promised { ttft_ms: self.promised_ttft_ms, tpot_ms: self.promised_tpot_ms };
        let (observed_at, dispatched_at) = (UnixMs(self.observed_at), self.dispatched_at.map(UnixMs));
        Sample::try_new(Sample {
            features,
            observation,
            endpoint,
            observed_at,
            dispatched_at,
            promised,
            manner,
            fingerprint,
        })
        .ok()
    }
}

/// The header of a segment.
pub(super) fn header(accepted_before: u64) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    bytes.extend(FORMAT.to_le_bytes());
    bytes.extend(SCHEMA.to_le_bytes());
    bytes.extend(accepted_before.to_le_bytes());
    bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
    bytes
}

/// Appends one record.
///
/// # Errors
/// What the encoder says; nothing was appended then.
pub(super) fn append(bytes: &mut Vec<u8>, sample: &Sample) -> Result<(), postcard::Error> {
    let payload = postcard::to_stdvec(&(Record::of(sample), Manners::of(sample)))?;
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(crc32c::crc32c(&payload).to_le_bytes());
    bytes.extend(payload);
    Ok(())
}

/// Why nothing of a segment can be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SegmentError {
    #[error("its header is incomplete")]
    HeaderTorn,
    #[error("it is not a foretoken sample log (wrong first bytes)")]
    Foreign,
    #[error("its header is damaged")]
    HeaderDamaged,
    #[error("its format {found} is not {FORMAT}; use the foretoken version that wrote it to read it")]
    Format { found: u32 },
    #[error(
        "its record schema {found} is not one of {SCHEMA_WITHOUT_MANNER} to {SCHEMA}; use the foretoken version that wrote it to read it"
    )]
    Schema { found: u32 },
}

/// How a segment ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// With a whole record.
    Whole,
    /// With part of a record, as a crash leaves it: so many bytes are to be cut.
    Torn { bytes: usize },
    /// Bytes in the middle do not verify: so many of them.
    Damaged { bytes: usize },
}

/// What could be read of a segment.
#[derive(Debug, PartialEq)]
pub(super) struct Segment {
    pub(super) accepted_before: u64,
    pub(super) samples: Vec<Sample>,
    /// Records there are, those that did not verify included.
    pub(super) records: u64,
    pub(super) end: End,
}

/// Reads what there is. Never panics, whatever the bytes.
///
/// # Errors
/// [`SegmentError`]: the header is not one that this build reads.
pub(super) fn parse(bytes: &[u8]) -> Result<Segment, SegmentError> {
    let (schema, accepted_before) = parse_header(bytes)?;
    let mut segment = Segment { accepted_before, samples: Vec::new(), records: 0, end: End::Whole };
    let mut damaged = 0;
    let mut rest = bytes.get(HEADER_BYTES..).unwrap_or_default();
    while !rest.is_empty() {
        // A power cut may leave zeros where the file had grown and its content had not come.
        if rest.iter().all(|byte| *byte == 0) {
            segment.end = End::Torn { bytes: rest.len() };
            break;
        }
        let (Some(length), Some(checksum)) = (word(rest, 0), word(rest, 4)) else {
            segment.end = End::Torn { bytes: rest.len() };
            break;
        };
        let length = length as usize;
        if !(1..=PAYLOAD_BYTES_MAX).contains(&length) {
            damaged += rest.len();
            break;
        }
        let Some(payload) = rest.get(FRAME_BYTES..FRAME_BYTES + length) else {
            segment.end = End::Torn { bytes: rest.len() };
            break;
        };
        let next = rest.get(FRAME_BYTES + length..).unwrap_or_default();
        match read_record(schema, payload, checksum) {
            Some(sample) => segment.samples.push(sample),
            None if next.is_empty() => {
                segment.end = End::Torn { bytes: rest.len() };
                break;
            }
            // Its length may still be right: the next record tells.
            None => damaged += FRAME_BYTES + length,
        }
        segment.records += 1;
        rest = next;
    }
    if damaged > 0 {
        let torn = if let End::Torn { bytes } = segment.end { bytes } else { 0 };
        segment.end = End::Damaged { bytes: damaged + torn };
    }
    Ok(segment)
}

/// Schema, and samples accepted before.
fn parse_header(bytes: &[u8]) -> Result<(u32, u64), SegmentError> {
    if bytes.len() < HEADER_BYTES {
        return Err(if MAGIC.starts_with(bytes.get(..MAGIC.len().min(bytes.len())).unwrap_or_default()) {
            SegmentError::HeaderTorn
        } else {
            SegmentError::Foreign
        });
    }
    if !bytes.starts_with(&MAGIC) {
        return Err(SegmentError::Foreign);
    }
    let format = word(bytes, 8).ok_or(SegmentError::HeaderTorn)?;
    if format != FORMAT {
        return Err(SegmentError::Format { found: format });
    }
    let schema = word(bytes, 12).ok_or(SegmentError::HeaderTorn)?;
    let sum = bytes.get(..HEADER_BYTES - 4).map(crc32c::crc32c);
    if word(bytes, HEADER_BYTES - 4) != sum {
        return Err(SegmentError::HeaderDamaged);
    }
    if !(SCHEMA_WITHOUT_MANNER..=SCHEMA).contains(&schema) {
        return Err(SegmentError::Schema { found: schema });
    }
    let count: Option<[u8; 8]> = bytes.get(16..24).and_then(|part| part.try_into().ok());
    count.map(|count| (schema, u64::from_le_bytes(count))).ok_or(SegmentError::HeaderTorn)
}

fn read_record(schema: u32, payload: &[u8], checksum: u32) -> Option<Sample> {
    if crc32c::crc32c(payload) != checksum {
        return None;
    }
    let (record, rest) = postcard::take_from_bytes::<Record<'_>>(payload).ok()?;
    let (manners, rest) = match schema {
        SCHEMA_WITHOUT_MANNER => (Manners::default(), rest),
        _ => postcard::take_from_bytes::<Manners<'_>>(rest).ok()?,
    };
    if rest.is_empty() { record.sample(&manners) } else { None }
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at + 4).and_then(|part| part.try_into().ok()).map(u32::from_le_bytes)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A plausible sample, the `i`th of a stream: an engine with a fixed overhead and a prefill rate.
    pub(in crate::service) fn sample(i: u32) -> Sample {
        let input_tokens = 200 + i * 389 % 5000;
        Sample::try_new(Sample {
            features: Features {
                kv_cache_usage: f64::from(i % 7) / 10.0,
                input_tokens,
                requests_waiting: (i % 5).saturating_sub(3),
                requests_running: i % 11,
                prefix_cache_score: 0.0,
                prefill_tokens_in_flight: i * 211 % 4000,
                decode_tokens_in_flight: 0,
                encoder_matched_size: 0,
                encoder_input_size: 0,
                role: Role::Both,
            },
            observation: Observation {
                ttft_ms: Some(30.0 + f64::from(input_tokens) * 0.06 + f64::from(i * 7 % 10)),
                tpot_ms: Some(15.0 + f64::from(i % 11)),
                output_tokens: 50,
            },
            endpoint: None,
            observed_at: UnixMs(1_700_000_000_000 + i64::from(i) * 1000),
            dispatched_at: None,
            promised: Promised::default(),
            manner: Manner::default(),
            fingerprint: None,
        })
        .expect("a good sample")
    }

    fn segment(accepted_before: u64, samples: &[Sample]) -> Vec<u8> {
        let mut bytes = header(accepted_before);
        samples.iter().for_each(|sample| append(&mut bytes, sample).unwrap());
        bytes
    }

    fn full_sample(i: u32) -> Sample {
        let mut sample = sample(i);
        sample.endpoint = EndpointName::try_new("10.0.0.7:8000");
        sample.dispatched_at = Some(UnixMs(-3));
        sample.promised = Promised { ttft_ms: Some(12.5), tpot_ms: None };
        sample.features.role = Role::Decode;
        sample.observation.ttft_ms = None;
        sample.manner = Manner { ending: Ending::Aborted, streamed: Some(true), chunks: Some(7), timed: true };
        sample.fingerprint = Fingerprint::try_new("qwen3-32b on two H100");
        sample
    }

    #[test]
    fn segments_of_schema_1_are_read_as_if_nothing_were_said_of_how_it_went() {
        // Written by a version with that schema.
        let bytes = std::fs::read("tests/golden/samples-schema-1.log").unwrap();
        let mut expected = [sample(0), full_sample(1), sample(2)];
        (expected[1].manner, expected[1].fingerprint) = (Manner::default(), None);
        let read = parse(&bytes).unwrap();
        assert_eq!(read, Segment { accepted_before: 41, samples: expected.to_vec(), records: 3, end: End::Whole });
    }

    #[test]
    fn every_way_to_end_is_written_and_read() {
        let all: Vec<Sample> = ENDINGS
            .iter()
            .map(|ending| {
                let mut sample = sample(3);
                sample.manner.ending = *ending;
                sample
            })
            .collect();
        assert_eq!(parse(&segment(0, &all)).unwrap().samples, all);
        // A failed request need not have a latency.
        let mut failed = all[1].clone();
        (failed.observation.ttft_ms, failed.observation.tpot_ms) = (None, None);
        assert_eq!(parse(&segment(0, &[failed.clone()])).unwrap().samples, [failed]);
    }

    #[test]
    fn what_is_written_is_read() {
        let samples = [sample(0), full_sample(1), sample(2)];
        let read = parse(&segment(41, &samples)).unwrap();
        assert_eq!(read, Segment { accepted_before: 41, samples: samples.to_vec(), records: 3, end: End::Whole });
        assert_eq!(parse(&segment(0, &[])).unwrap().records, 0);
    }

    #[test]
    fn a_tail_torn_at_any_byte_costs_only_its_record() {
        let samples = [sample(0), full_sample(1)];
        let whole = segment(0, &samples[..1]).len();
        let bytes = segment(0, &samples);
        for length in whole + 1..bytes.len() {
            let read = parse(&bytes[..length]).unwrap();
            assert_eq!(read.samples, samples[..1], "cut at {length}");
            assert_eq!((read.records, read.end), (1, End::Torn { bytes: length - whole }));
            // The same where the file had grown but the content had not come.
            let mut zeros = bytes[..length].to_vec();
            zeros.resize(bytes.len(), 0);
            if zeros != bytes {
                assert_eq!(parse(&zeros).unwrap().samples, samples[..1], "zeros from {length}");
            }
        }
        for extra in 1..40 {
            let mut zeros = bytes.clone();
            zeros.resize(bytes.len() + extra, 0);
            let read = parse(&zeros).unwrap();
            assert_eq!((read.samples.len(), read.end), (2, End::Torn { bytes: extra }), "{extra} zeros");
        }
    }

    #[test]
    fn a_changed_bit_anywhere_costs_no_record_in_front_and_is_never_taken_for_a_sample() {
        let samples: Vec<Sample> = (1..5).map(full_sample).collect();
        let bytes = segment(0, &samples);
        let record = (bytes.len() - HEADER_BYTES) / 4;
        for position in HEADER_BYTES..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << bit;
                let read = parse(&changed).unwrap();
                let hit = (position - HEADER_BYTES) / record;
                assert!(read.samples.starts_with(&samples[..hit]), "byte {position} bit {bit}");
                assert!(read.samples.iter().all(|sample| samples.contains(sample)));
                assert!(read.samples.len() < 4 && read.end != End::Whole);
                let in_payload = (position - HEADER_BYTES) % record >= FRAME_BYTES;
                if in_payload && hit < 3 {
                    assert_eq!((read.samples.len(), read.end), (3, End::Damaged { bytes: record }), "skipped past it");
                }
            }
        }
    }

    #[test]
    fn a_newer_format_a_newer_schema_and_strange_bytes_are_told_apart() {
        let bytes = segment(0, &[]);
        let mut format = bytes.clone();
        format[8] = 2;
        assert_eq!(parse(&format), Err(SegmentError::Format { found: 2 }));
        let mut schema = bytes[..HEADER_BYTES - 4].to_vec();
        schema[12] = 5;
        schema.extend(crc32c::crc32c(&schema).to_le_bytes());
        assert_eq!(parse(&schema), Err(SegmentError::Schema { found: 5 }));
        let mut count = bytes.clone();
        count[17] ^= 1;
        assert_eq!(parse(&count), Err(SegmentError::HeaderDamaged));
        assert_eq!(parse(b"PK\x03\x04"), Err(SegmentError::Foreign));
        for length in 0..HEADER_BYTES {
            assert_eq!(parse(&bytes[..length]), Err(SegmentError::HeaderTorn));
        }
    }

    #[test]
    fn a_record_with_a_right_checksum_and_a_wrong_value_is_no_sample() {
        let mut wrong = sample(0);
        wrong.features.kv_cache_usage = f64::NAN;
        let bytes = segment(0, &[sample(1), wrong, sample(2)]);
        let read = parse(&bytes).unwrap();
        assert_eq!((read.samples, read.records), (vec![sample(1), sample(2)], 3));
        assert!(matches!(read.end, End::Damaged { .. }));
    }

    proptest! {
        #[test]
        fn any_bytes_behind_a_good_header_are_read_without_a_panic(
            tail in prop::collection::vec(any::<u8>(), 0..600),
            good in 0..3u32,
        ) {
            let samples: Vec<Sample> = (0..good).map(sample).collect();
            let mut bytes = segment(9, &samples);
            bytes.extend(tail);
            let read = parse(&bytes).unwrap();
            prop_assert!(read.samples.starts_with(&samples));
        }

        #[test]
        fn any_bytes_at_all_are_read_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..600)) {
            let _ = parse(&bytes);
        }
    }
}
