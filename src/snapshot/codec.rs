//! Bytes of a snapshot: magic, format, length, checksum, then bincode. The only place bincode is used.
//!
//! Layout, little-endian: 8 bytes magic, u32 format, u32 schema, u32 content length, u32 CRC32C of the content, content.
//! Everything in front of the content is checked before a byte of it is decoded: snapshots come from disks and peers.

use std::sync::Arc;

use bincode::{Decode, Encode};

use super::{Models, Provenance, Snapshot};
use crate::calibration::{
    ALARMS_KEPT, Alarm, AlarmCause, ENDPOINTS_MAX, EndpointCorrection, Online, OnlineTarget, QuantileShape,
    SHAPE_POINTS,
};
use crate::features::{COLUMNS, REGIMES, RESIDUAL_WIDTH, SCHEMA};
use crate::model::{
    CORRECTION_MAX, EndpointScale, Forest, LEAVES, Monotone, Prior, Regime, TREES_MAX, TargetModel, Tree,
};
use crate::types::{EndpointName, Generation, Lineage, Role, Target, UnixMs, Version};

/// Largest snapshot that is read, bytes; far above any real one and small enough to buffer.
pub const SNAPSHOT_BYTES_MAX: usize = 4 << 20;

const MAGIC: [u8; 8] = *b"foretokn";
const FORMAT: u32 = 2;
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
    /// By role, then target.
    targets: [[WireTarget; 2]; 3],
    alarms: Vec<WireAlarm>,
}

#[derive(Encode, Decode)]
struct WireTarget {
    regimes: [WireRegime; REGIMES],
    residuals: [WireForest; 2],
    scales: Vec<(String, f64, u64)>,
    range_top: [f64; 4],
    rows: u64,
    strict: bool,
    pool: [f64; 2],
    pool_warming: bool,
    endpoints: Vec<WireCorrection>,
    shape: [f64; SHAPE_POINTS.len()],
    tenth_latest_at: Option<i64>,
}

#[derive(Encode, Decode)]
struct WireRegime {
    thetas: [[f64; COLUMNS]; 2],
    log_quantiles: [f64; 2],
    rows: u64,
}

#[derive(Encode, Decode)]
struct WireForest {
    constant: f64,
    gains: [f32; RESIDUAL_WIDTH],
    trees: Vec<WireTree>,
}

#[derive(Encode, Decode)]
struct WireTree {
    features: [u8; LEAVES],
    thresholds: [f32; LEAVES],
    leaves: [f32; LEAVES],
}

#[derive(Encode, Decode)]
struct WireCorrection {
    endpoint: String,
    log_scale: f64,
    offsets: Option<[f64; 2]>,
    warming: bool,
}

#[derive(Encode, Decode)]
struct WireAlarm {
    at: i64,
    changed_at: i64,
    observations: u64,
    role: u8,
    target: u8,
    endpoint: Option<String>,
    /// `None`: the fingerprint changed.
    log_shift: Option<f64>,
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
        targets: Role::ALL.map(|role| {
            Target::ALL.map(|target| wire_target(snapshot.models.of(role, target), snapshot.online.of(role, target)))
        }),
        alarms: snapshot.alarms.iter().map(wire_alarm).collect(),
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
    let wire_forest = |forest: &Forest| WireForest {
        constant: forest.constant,
        gains: forest.gains,
        trees: forest
            .trees
            .iter()
            .map(|tree| WireTree { features: tree.features, thresholds: tree.thresholds, leaves: tree.leaves })
            .collect(),
    };
    let wire_scale = |entry: &EndpointScale| (entry.endpoint.as_str().to_string(), entry.log_scale, entry.rows as u64);
    let wire_correction = |entry: &EndpointCorrection| WireCorrection {
        endpoint: entry.endpoint.as_str().to_string(),
        log_scale: entry.log_scale,
        offsets: entry.offsets,
        warming: entry.warming,
    };
    WireTarget {
        regimes: model.regimes.map(|regime| WireRegime {
            thetas: regime.thetas,
            log_quantiles: regime.log_quantiles,
            rows: regime.rows as u64,
        }),
        residuals: [wire_forest(&model.residuals[0]), wire_forest(&model.residuals[1])],
        scales: model.scales.iter().map(wire_scale).collect(),
        range_top: model.range_top,
        rows: model.rows as u64,
        strict: model.monotone == Monotone::Strict,
        pool: online.pool,
        pool_warming: online.pool_warming,
        endpoints: online.endpoints.iter().map(wire_correction).collect(),
        shape: *online.shape.table(),
        tenth_latest_at: online.tenth_latest_at.map(|at| at.0),
    }
}

fn wire_alarm(alarm: &Alarm) -> WireAlarm {
    WireAlarm {
        at: alarm.at.0,
        changed_at: alarm.changed_at.0,
        observations: alarm.observations,
        role: alarm.role.index() as u8,
        target: alarm.target.index() as u8,
        endpoint: alarm.endpoint.as_ref().map(|name| name.as_str().to_string()),
        log_shift: match alarm.cause {
            AlarmCause::Shift { log_shift } => Some(log_shift),
            AlarmCause::Fingerprint => None,
        },
    }
}

fn from_wire(wire: Wire) -> Result<Snapshot, DecodeError> {
    if wire.made_by.len() > NAME_BYTES_MAX {
        return Err(DecodeError::Content("the maker's name is too long"));
    }
    if wire.alarms.len() > ALARMS_KEPT {
        return Err(DecodeError::Content("too many alarms"));
    }
    let alarms = wire.alarms.into_iter().map(from_wire_alarm).collect::<Result<Vec<_>, _>>()?;
    let mut targets = Vec::with_capacity(6);
    for (both, role) in wire.targets.into_iter().zip(Role::ALL) {
        for (wire, target) in both.into_iter().zip(Target::ALL) {
            targets.push((role, target, from_wire_target(target, wire)?));
        }
    }
    let mut models = Models::prior(&Prior::default());
    let mut online = Online::default();
    for (role, target, (model, corrections)) in targets {
        models.0[role.index()][target.index()] = model;
        online.0[role.index()][target.index()] = corrections;
    }
    Ok(Snapshot {
        version: Version {
            lineage: Lineage(wire.lineage),
            generation: Generation(wire.generation),
            revision: wire.revision,
        },
        models: Arc::new(models),
        online: Arc::new(online),
        alarms: alarms.into(),
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

fn from_wire_name(name: &str) -> Result<EndpointName, DecodeError> {
    EndpointName::try_new(name).ok_or(DecodeError::Content("an endpoint name is invalid"))
}

fn from_wire_alarm(wire: WireAlarm) -> Result<Alarm, DecodeError> {
    let invalid = DecodeError::Content("an alarm is invalid");
    let role = *Role::ALL.get(usize::from(wire.role)).ok_or(invalid.clone())?;
    let target = *Target::ALL.get(usize::from(wire.target)).ok_or(invalid.clone())?;
    let cause = match wire.log_shift {
        Some(log_shift) if !log_shift.is_finite() => return Err(invalid),
        Some(log_shift) => AlarmCause::Shift { log_shift },
        None => AlarmCause::Fingerprint,
    };
    let endpoint = wire.endpoint.as_deref().map(from_wire_name).transpose()?;
    let (at, changed_at) = (UnixMs(wire.at), UnixMs(wire.changed_at));
    Ok(Alarm { at, changed_at, observations: wire.observations, target, role, endpoint, cause })
}

fn from_wire_forest(wire: WireForest) -> Result<Forest, DecodeError> {
    if wire.trees.len() > TREES_MAX {
        return Err(DecodeError::Content("too many trees"));
    }
    let trees = wire.trees.into_iter();
    let trees =
        trees.map(|tree| Tree { features: tree.features, thresholds: tree.thresholds, leaves: tree.leaves }).collect();
    Ok(Forest { trees, constant: wire.constant, gains: wire.gains })
}

fn from_wire_target(target: Target, wire: WireTarget) -> Result<(TargetModel, OnlineTarget), DecodeError> {
    let sound_log = |value: &f64| value.is_finite() && value.abs() <= 100.0 * CORRECTION_MAX;
    if wire.endpoints.len() > ENDPOINTS_MAX {
        return Err(DecodeError::Content("too many endpoints"));
    }
    let [middle, upper] = wire.residuals;
    let scales = wire.scales.into_iter().map(|(name, log_scale, rows)| {
        let rows = usize::try_from(rows).unwrap_or(usize::MAX);
        Ok(EndpointScale { endpoint: from_wire_name(&name)?, log_scale, rows })
    });
    let model = TargetModel {
        target,
        regimes: wire.regimes.map(|regime| Regime {
            thetas: regime.thetas,
            log_quantiles: regime.log_quantiles,
            rows: usize::try_from(regime.rows).unwrap_or(usize::MAX),
        }),
        residuals: [from_wire_forest(middle)?, from_wire_forest(upper)?],
        scales: scales.collect::<Result<Vec<_>, DecodeError>>()?,
        range_top: wire.range_top,
        rows: usize::try_from(wire.rows).unwrap_or(usize::MAX),
        monotone: if wire.strict { Monotone::Strict } else { Monotone::Tendency },
    };
    if !model.is_sound() || !model.scales.iter().all(|entry| sound_log(&entry.log_scale)) {
        return Err(DecodeError::Content("a model number is not finite or not possible"));
    }
    if !wire.pool.iter().all(sound_log) {
        return Err(DecodeError::Content("an offset is not a log ratio"));
    }
    let mut endpoints = Vec::with_capacity(wire.endpoints.len());
    for entry in wire.endpoints {
        let endpoint = from_wire_name(&entry.endpoint)?;
        if !sound_log(&entry.log_scale) || !entry.offsets.iter().flatten().all(sound_log) {
            return Err(DecodeError::Content("an endpoint's correction is not a log ratio"));
        }
        endpoints.push(EndpointCorrection {
            endpoint,
            log_scale: entry.log_scale,
            offsets: entry.offsets,
            warming: entry.warming,
        });
    }
    if !endpoints.windows(2).all(|pair| pair[0].endpoint < pair[1].endpoint) {
        return Err(DecodeError::Content("endpoints are not in order"));
    }
    let shape = QuantileShape::try_new(wire.shape).ok_or(DecodeError::Content("the quantile table is not in order"))?;
    let online = OnlineTarget {
        pool: wire.pool,
        pool_warming: wire.pool_warming,
        endpoints,
        shape,
        tenth_latest_at: wire.tenth_latest_at.map(UnixMs),
    };
    Ok((model, online))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sample_snapshot() -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(7), UnixMs(1_000));
        snapshot.version.generation = Generation(12);
        snapshot.version.revision = 3;
        let online = OnlineTarget {
            pool: [0.1, 0.2],
            pool_warming: true,
            endpoints: ["a", "b"]
                .map(|name| EndpointCorrection {
                    endpoint: EndpointName::try_new(name).unwrap(),
                    log_scale: 0.7,
                    offsets: Some([-0.5, 0.5]),
                    warming: false,
                })
                .to_vec(),
            shape: QuantileShape::default(),
            tenth_latest_at: Some(UnixMs(-5)),
        };
        let mut all = Online::default();
        all.0[1][0] = online;
        snapshot.online = Arc::new(all);
        let mut models = (*snapshot.models).clone();
        let model = &mut models.0[0][1];
        model.residuals[1] =
            Forest { trees: vec![Tree::constant(0.25); 3], constant: 0.5, gains: [0.1; RESIDUAL_WIDTH] };
        *model = model.clone().shifted(EndpointName::try_new("z").as_ref(), 0.3);
        snapshot.models = Arc::new(models);
        let alarm = |cause, endpoint: Option<&str>| Alarm {
            at: UnixMs(9),
            changed_at: UnixMs(7),
            observations: 31,
            target: Target::Tpot,
            role: Role::Decode,
            endpoint: endpoint.and_then(EndpointName::try_new),
            cause,
        };
        snapshot.alarms =
            [alarm(AlarmCause::Shift { log_shift: 1.1 }, None), alarm(AlarmCause::Fingerprint, Some("a"))].into();
        snapshot
    }

    #[test]
    fn round_trip_and_same_bytes() {
        let snapshot = sample_snapshot();
        let bytes = encode(&snapshot);
        assert_eq!(decode(&bytes).unwrap(), snapshot);
        assert_eq!(encode(&decode(&bytes).unwrap()), bytes);
        assert!(bytes.len() < 8192, "{}", bytes.len());
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
        assert_eq!(decode(&newer), Err(DecodeError::Format { found: 9, supported: FORMAT }));
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
