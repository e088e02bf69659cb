//! Bytes of a snapshot: magic, format, length, checksum, then bincode. The only place bincode is used.
//!
//! Layout, little-endian: 8 bytes magic, u32 format, u32 schema, u32 content length, u32 CRC32C of the content, content.
//! Everything in front of the content is checked before a byte of it is decoded: snapshots come from disks and peers.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{Models, Provenance, Snapshot};
use crate::calibration::{ENDPOINTS_MAX, EndpointOffsets, Online, OnlineTarget, QuantileShape, SHAPE_POINTS};
use crate::features::{COLUMNS, REGIMES, SCHEMA};
use crate::model::{CORRECTION_MAX, Regime, TargetModel};
use crate::types::{EndpointName, Generation, Lineage, Target, UnixMs, Version};

/// Largest snapshot that is read, bytes; far above any real one and small enough to buffer.
pub const SNAPSHOT_BYTES_MAX: usize = 4 << 20;

const MAGIC: [u8; 8] = *b"foretokn";
const FORMAT: u32 = 1;
const HEADER_BYTES: usize = 24;
const NAME_BYTES_MAX: usize = 64;

/// Why bytes are not a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// Does not begin with the magic.
    #[error("not a foretoken snapshot (wrong first bytes)")]
    Foreign,
    /// Made by a newer or retired format.
    #[error("snapshot format {found} is not {supported}; use the foretoken version that wrote it, or start without it")]
    Format {
        /// Format number in the file.
        found: u32,
        /// The one this build reads.
        supported: u32,
    },
    /// Made for other feature columns.
    #[error("snapshot schema {found} is not {supported}; it must be fitted again by this version")]
    Schema {
        /// Schema number in the file.
        found: u32,
        /// The one this build reads.
        supported: u32,
    },
    /// Shorter or longer than it says, or over the limit.
    #[error("snapshot is {found} bytes where {expected} are expected")]
    Length {
        /// Bytes there are.
        found: usize,
        /// Bytes there should be.
        expected: usize,
    },
    /// Bits changed.
    #[error("snapshot checksum does not match")]
    Checksum,
    /// The checksum holds but the content breaks a rule (a non-finite number, an impossible size).
    #[error("snapshot content is invalid: {0}")]
    Content(&'static str),
}

#[derive(Encode, Decode)]
struct Wire {
    lineage: u64,
    generation: u64,
    revision: u64,
    calibrated: bool,
    fitted_at: Option<i64>,
    made_at: i64,
    samples_accepted: u64,
    last_observed_at: Option<i64>,
    made_by: String,
    targets: [WireTarget; 2],
}

#[derive(Encode, Decode)]
struct WireTarget {
    regimes: [WireRegime; REGIMES],
    range_top: [f64; 4],
    rows: u64,
    pool: [f64; 2],
    endpoints: Vec<(String, [f64; 2])>,
    shape: [f64; SHAPE_POINTS.len()],
    tenth_latest_at: Option<i64>,
}

#[derive(Encode, Decode)]
struct WireRegime {
    thetas: [[f64; COLUMNS]; 2],
    log_quantiles: [f64; 2],
    rows: u64,
}

fn config() -> impl bincode::config::Config {
    bincode::config::standard().with_limit::<SNAPSHOT_BYTES_MAX>()
}

/// Encodes. Same snapshot, same bytes.
pub fn encode(snapshot: &Snapshot) -> Vec<u8> {
    let wire = Wire {
        lineage: snapshot.version.lineage.0,
        generation: snapshot.version.generation.0,
        revision: snapshot.version.revision,
        calibrated: snapshot.calibrated,
        fitted_at: snapshot.provenance.fitted_at.map(|at| at.0),
        made_at: snapshot.provenance.made_at.0,
        samples_accepted: snapshot.provenance.samples_accepted,
        last_observed_at: snapshot.provenance.last_observed_at.map(|at| at.0),
        made_by: snapshot.provenance.made_by.clone(),
        targets: Target::ALL.map(|target| wire_target(snapshot.models.of(target), snapshot.online.of(target))),
    };
    // Encoding plain data into memory has no way to fail; an empty content would be refused by every reader.
    let content = bincode::encode_to_vec(wire, config()).unwrap_or_default();
    let mut bytes = Vec::with_capacity(HEADER_BYTES + content.len());
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&FORMAT.to_le_bytes());
    bytes.extend_from_slice(&SCHEMA.to_le_bytes());
    bytes.extend_from_slice(&u32::try_from(content.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&crc32c::crc32c(&content).to_le_bytes());
    bytes.extend_from_slice(&content);
    bytes
}

/// Decodes and checks; never panics, whatever the bytes.
///
/// # Errors
/// See [`DecodeError`].
pub fn decode(bytes: &[u8]) -> Result<Snapshot, DecodeError> {
    if bytes.get(..MAGIC.len()) != Some(&MAGIC[..]) {
        return Err(DecodeError::Foreign);
    }
    let number = |at: usize| {
        let word: Option<[u8; 4]> = bytes.get(at..at + 4).and_then(|part| part.try_into().ok());
        word.map(u32::from_le_bytes).ok_or(DecodeError::Length { found: bytes.len(), expected: HEADER_BYTES })
    };
    let format = number(8)?;
    if format != FORMAT {
        return Err(DecodeError::Format { found: format, supported: FORMAT });
    }
    let schema = number(12)?;
    if schema != SCHEMA {
        return Err(DecodeError::Schema { found: schema, supported: SCHEMA });
    }
    let length = number(16)? as usize;
    let checksum = number(20)?;
    let content = bytes.get(HEADER_BYTES..).unwrap_or_default();
    if content.len() != length || bytes.len() > SNAPSHOT_BYTES_MAX {
        let expected = HEADER_BYTES.saturating_add(length).min(SNAPSHOT_BYTES_MAX);
        return Err(DecodeError::Length { found: bytes.len(), expected });
    }
    if crc32c::crc32c(content) != checksum {
        return Err(DecodeError::Checksum);
    }
    let (wire, used): (Wire, usize) =
        bincode::decode_from_slice(content, config()).map_err(|_| DecodeError::Content("it does not parse"))?;
    if used != content.len() {
        return Err(DecodeError::Content("there are bytes behind the end"));
    }
    from_wire(wire)
}

fn wire_target(model: &TargetModel, online: &OnlineTarget) -> WireTarget {
    WireTarget {
        regimes: model.regimes.map(|regime| WireRegime {
            thetas: regime.thetas,
            log_quantiles: regime.log_quantiles,
            rows: regime.rows as u64,
        }),
        range_top: model.range_top,
        rows: model.rows as u64,
        pool: online.pool,
        endpoints: online.endpoints.iter().map(|entry| (entry.endpoint.as_str().to_string(), entry.offsets)).collect(),
        shape: *online.shape.table(),
        tenth_latest_at: online.tenth_latest_at.map(|at| at.0),
    }
}

fn from_wire(wire: Wire) -> Result<Snapshot, DecodeError> {
    if wire.made_by.len() > NAME_BYTES_MAX {
        return Err(DecodeError::Content("the maker's name is too long"));
    }
    let [ttft, tpot] = wire.targets;
    let (ttft_model, ttft_online) = from_wire_target(Target::Ttft, ttft)?;
    let (tpot_model, tpot_online) = from_wire_target(Target::Tpot, tpot)?;
    Ok(Snapshot {
        version: Version {
            lineage: Lineage(wire.lineage),
            generation: Generation(wire.generation),
            revision: wire.revision,
        },
        models: Arc::new(Models { ttft: ttft_model, tpot: tpot_model }),
        online: Arc::new(Online { ttft: ttft_online, tpot: tpot_online }),
        calibrated: wire.calibrated,
        provenance: Provenance {
            fitted_at: wire.fitted_at.map(UnixMs),
            made_at: UnixMs(wire.made_at),
            samples_accepted: wire.samples_accepted,
            last_observed_at: wire.last_observed_at.map(UnixMs),
            made_by: wire.made_by,
        },
    })
}

fn from_wire_target(target: Target, wire: WireTarget) -> Result<(TargetModel, OnlineTarget), DecodeError> {
    let sound_offsets = |offsets: &[f64; 2]| offsets.iter().all(|value| value.is_finite());
    let model = TargetModel {
        target,
        regimes: wire.regimes.map(|regime| Regime {
            thetas: regime.thetas,
            log_quantiles: regime.log_quantiles,
            rows: usize::try_from(regime.rows).unwrap_or(usize::MAX),
        }),
        range_top: wire.range_top,
        rows: usize::try_from(wire.rows).unwrap_or(usize::MAX),
    };
    if !model.is_sound() {
        return Err(DecodeError::Content("a model number is not finite or not possible"));
    }
    if !sound_offsets(&wire.pool) || wire.pool.iter().any(|offset| offset.abs() > 100.0 * CORRECTION_MAX) {
        return Err(DecodeError::Content("an offset is not a log ratio"));
    }
    if wire.endpoints.len() > ENDPOINTS_MAX {
        return Err(DecodeError::Content("too many endpoints"));
    }
    let mut endpoints = Vec::with_capacity(wire.endpoints.len());
    for (name, offsets) in wire.endpoints {
        let endpoint = EndpointName::try_new(&name).ok_or(DecodeError::Content("an endpoint name is invalid"))?;
        if !sound_offsets(&offsets) {
            return Err(DecodeError::Content("an endpoint's offset is not finite"));
        }
        endpoints.push(EndpointOffsets { endpoint, offsets });
    }
    if !endpoints.windows(2).all(|pair| pair[0].endpoint < pair[1].endpoint) {
        return Err(DecodeError::Content("endpoints are not in order"));
    }
    let shape = QuantileShape::try_new(wire.shape).ok_or(DecodeError::Content("the quantile table is not in order"))?;
    let online = OnlineTarget { pool: wire.pool, endpoints, shape, tenth_latest_at: wire.tenth_latest_at.map(UnixMs) };
    Ok((model, online))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::Prior;
    use proptest::prelude::*;

    fn sample_snapshot() -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(7), UnixMs(1_000));
        snapshot.version.generation = Generation(12);
        snapshot.version.revision = 3;
        let online = OnlineTarget {
            pool: [0.1, 0.2],
            endpoints: ["a", "b"]
                .map(|name| EndpointOffsets { endpoint: EndpointName::try_new(name).unwrap(), offsets: [-0.5, 0.5] })
                .to_vec(),
            shape: QuantileShape::default(),
            tenth_latest_at: Some(UnixMs(-5)),
        };
        snapshot.online = Arc::new(Online { ttft: online, tpot: OnlineTarget::default() });
        snapshot
    }

    #[test]
    fn round_trip_and_same_bytes() {
        let snapshot = sample_snapshot();
        let bytes = encode(&snapshot);
        assert_eq!(decode(&bytes).unwrap(), snapshot);
        assert_eq!(encode(&decode(&bytes).unwrap()), bytes);
        assert!(bytes.len() < 4096, "{}", bytes.len());
    }

    #[test]
    fn every_changed_bit_is_noticed() {
        let bytes = encode(&sample_snapshot());
        for position in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[position] ^= 1 << bit;
                assert!(decode(&changed).is_err(), "byte {position} bit {bit}");
            }
        }
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn a_newer_format_and_another_schema_say_so() {
        let mut newer = encode(&sample_snapshot());
        newer[8] = 9;
        assert_eq!(decode(&newer), Err(DecodeError::Format { found: 9, supported: 1 }));
        let mut other = encode(&sample_snapshot());
        other[12] = 77;
        assert_eq!(decode(&other), Err(DecodeError::Schema { found: 77, supported: SCHEMA }));
        assert_eq!(decode(b"PK\x03\x04"), Err(DecodeError::Foreign));
    }

    proptest! {
        #[test]
        fn never_panics_on_content_behind_a_right_checksum(content in prop::collection::vec(any::<u8>(), 0..2000)) {
            let mut bytes = MAGIC.to_vec();
            bytes.extend(FORMAT.to_le_bytes());
            bytes.extend(SCHEMA.to_le_bytes());
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend(crc32c::crc32c(&content).to_le_bytes());
            bytes.extend(&content);
            let _ = decode(&bytes);
        }

        #[test]
        fn a_poisoned_content_behind_a_right_checksum_is_refused_or_sound(position in 0..400usize, byte in any::<u8>()) {
            let mut bytes = encode(&sample_snapshot());
            let at = HEADER_BYTES + position % (bytes.len() - HEADER_BYTES);
            bytes[at] = byte;
            let sum = crc32c::crc32c(&bytes[HEADER_BYTES..]).to_le_bytes();
            bytes[20..24].copy_from_slice(&sum);
            if let Ok(snapshot) = decode(&bytes) {
                let features = crate::types::Features {
                    kv_cache_usage: 0.5, input_tokens: 1000, requests_waiting: 2, requests_running: 3,
                    prefix_cache_score: 0.1, prefill_tokens_in_flight: 10, decode_tokens_in_flight: 0,
                    encoder_matched_size: 0, encoder_input_size: 0, role: crate::types::Role::Both,
                };
                let estimate = snapshot.predict(&features, Some("a"), crate::types::Ask::Mean, UnixMs(0));
                prop_assert!(estimate.ttft.value_ms.is_finite() && estimate.ttft.value_ms > 0.0);
                prop_assert!(estimate.tpot.value_ms.is_finite() && estimate.tpot.value_ms > 0.0);
            }
        }
    }
}
