//! One target's online state: the pool's offset, each endpoint's, the quantile table, and how fresh all this is.

use std::collections::{BTreeMap, VecDeque};

use super::shape::{QuantileShape, ShapeWindow};
use super::tracker::{Judged, Tracker};
use crate::types::{EndpointName, UnixMs};

/// Endpoints with an offset of their own; beyond it the one heard of least recently is forgotten.
pub const ENDPOINTS_MAX: usize = 1024;

/// Observations from which an endpoint's own offset is used instead of the pool's.
const ENDPOINT_OBSERVATIONS_MIN: u64 = 20;

/// Fewer than this many samples within [`STALE_AFTER_MS`] is called stale.
const RECENT: usize = 10;

/// Window of staleness, ms.
pub const STALE_AFTER_MS: i64 = 600_000;

/// Widening of the log spread per window of staleness, and its limit.
const WIDENING_STEP: f64 = 0.05;
const WIDENING_MAX: f64 = 0.5;

/// Offset of one endpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointOffsets {
    /// Which.
    pub endpoint: EndpointName,
    /// Added to `ln Q50` and `ln Q90`.
    pub offsets: [f64; 2],
}

/// One target's corrections as published.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct OnlineTarget {
    /// For requests without a known endpoint: added to `ln Q50` and `ln Q90`.
    pub pool: [f64; 2],
    /// Ascending by name.
    pub endpoints: Vec<EndpointOffsets>,
    /// From the anchors to other quantiles.
    pub shape: QuantileShape,
    /// When the tenth-latest sample was received; `None` while there are fewer than ten.
    pub tenth_latest_at: Option<UnixMs>,
}

impl OnlineTarget {
    /// The offsets for an endpoint and whether they are its own.
    #[inline]
    pub fn offsets(&self, endpoint: Option<&str>) -> ([f64; 2], bool) {
        let own = endpoint.filter(|_| !self.endpoints.is_empty()).and_then(|name| {
            let index = self.endpoints.binary_search_by(|entry| entry.endpoint.as_str().cmp(name)).ok()?;
            self.endpoints.get(index)
        });
        own.map_or((self.pool, false), |entry| (entry.offsets, true))
    }

    /// What to add to the log spread at `now` because samples are old; 0 while they are fresh. `None`: not stale.
    pub fn widening(&self, now: UnixMs) -> Option<f64> {
        let age = now.since(self.tenth_latest_at?);
        (age > STALE_AFTER_MS).then(|| ((age / STALE_AFTER_MS) as f64 * WIDENING_STEP).min(WIDENING_MAX))
    }
}

/// Both targets' corrections as published; replaced as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Online {
    /// Time to first token.
    pub ttft: OnlineTarget,
    /// Time per output token.
    pub tpot: OnlineTarget,
}

impl Online {
    /// One of the two.
    pub fn of(&self, target: crate::types::Target) -> &OnlineTarget {
        match target {
            crate::types::Target::Ttft => &self.ttft,
            crate::types::Target::Tpot => &self.tpot,
        }
    }
}

/// The learner's side of [`OnlineTarget`].
#[derive(Clone, Debug, Default)]
pub struct TargetTracking {
    pool: Tracker,
    endpoints: BTreeMap<EndpointName, (Tracker, UnixMs)>,
    shape: ShapeWindow,
    received: VecDeque<UnixMs>,
    restored: OnlineTarget,
}

impl TargetTracking {
    /// Continues from published corrections (after a restart): they serve until this life has its own.
    pub fn resume(published: &OnlineTarget) -> Self {
        TargetTracking { restored: published.clone(), ..TargetTracking::default() }
    }

    /// The offsets a request to `endpoint` dispatched at `at` was given, as far as remembered.
    pub fn offsets_at(&self, endpoint: Option<&EndpointName>, at: UnixMs) -> [f64; 2] {
        match endpoint.and_then(|name| self.endpoints.get(name)) {
            Some((tracker, _)) if tracker.observations() >= ENDPOINT_OBSERVATIONS_MIN => tracker.offsets_at(at),
            _ => self.pool.offsets_at(at),
        }
    }

    /// Takes one outcome. `received_at` is the learner's own time; `z` the standardised residual of the prediction.
    pub fn observe(&mut self, endpoint: Option<&EndpointName>, judged: &Judged, z: f64, received_at: UnixMs) {
        self.pool.observe(judged);
        if let Some(name) = endpoint {
            self.make_room_for(name);
            let (tracker, heard_at) = self.endpoints.entry(name.clone()).or_default();
            tracker.observe(judged);
            *heard_at = received_at;
        }
        self.shape.add(z);
        if self.received.len() == RECENT {
            self.received.pop_front();
        }
        self.received.push_back(received_at);
    }

    /// What to publish.
    pub fn published(&self) -> OnlineTarget {
        if self.received.is_empty() {
            return self.restored.clone();
        }
        let endpoints = self
            .endpoints
            .iter()
            .filter(|(_, (tracker, _))| tracker.observations() >= ENDPOINT_OBSERVATIONS_MIN)
            .map(|(name, (tracker, _))| EndpointOffsets { endpoint: name.clone(), offsets: tracker.offsets() })
            .collect();
        let tenth_latest_at = if self.received.len() == RECENT { self.received.front().copied() } else { None };
        OnlineTarget {
            pool: self.pool.offsets(),
            endpoints,
            shape: self.shape.shape(),
            tenth_latest_at: tenth_latest_at.or(self.restored.tenth_latest_at),
        }
    }

    fn make_room_for(&mut self, name: &EndpointName) {
        if self.endpoints.len() >= ENDPOINTS_MAX && !self.endpoints.contains_key(name) {
            let silent = self.endpoints.iter().min_by_key(|(_, (_, heard_at))| *heard_at).map(|(name, _)| name.clone());
            if let Some(silent) = silent {
                self.endpoints.remove(&silent);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(log_actual: f64, at: i64) -> Judged {
        Judged { log_actual, log_anchors: [4.0, 4.3], dispatched_at: UnixMs(at), observed_at: UnixMs(at + 50) }
    }

    #[test]
    fn a_slow_endpoint_gets_its_own_offset_and_a_stranger_the_pools() {
        let mut tracking = TargetTracking::default();
        let slow = EndpointName::try_new("slow").unwrap();
        let fast = EndpointName::try_new("fast").unwrap();
        for i in 0..100 {
            tracking.observe(Some(&slow), &judged(4.7, i * 100), 0.0, UnixMs(i * 100 + 50));
            tracking.observe(Some(&fast), &judged(4.0, i * 100), 0.0, UnixMs(i * 100 + 50));
        }
        let published = tracking.published();
        let (slow_offset, own) = published.offsets(Some("slow"));
        assert!(own && slow_offset[0] > 0.6, "{slow_offset:?}");
        assert!(published.offsets(Some("fast")).0[0].abs() < 0.1);
        assert_eq!(published.offsets(Some("stranger")), (published.pool, false));
    }

    #[test]
    fn endpoints_are_bounded_and_the_most_silent_leaves() {
        let mut tracking = TargetTracking::default();
        for i in 0..(ENDPOINTS_MAX as i64 + 5) {
            let name = EndpointName::try_new(&format!("endpoint-{i}")).unwrap();
            tracking.observe(Some(&name), &judged(4.0, i), 0.0, UnixMs(i));
        }
        assert_eq!(tracking.endpoints.len(), ENDPOINTS_MAX);
        assert!(!tracking.endpoints.contains_key(&EndpointName::try_new("endpoint-0").unwrap()));
    }

    #[test]
    fn staleness_widens_in_steps_up_to_its_limit() {
        let mut tracking = TargetTracking::default();
        for _ in 0..RECENT {
            tracking.observe(None, &judged(4.0, 0), 0.0, UnixMs(0));
        }
        let published = tracking.published();
        assert_eq!(published.widening(UnixMs(STALE_AFTER_MS)), None);
        assert_eq!(published.widening(UnixMs(STALE_AFTER_MS + 1)), Some(WIDENING_STEP));
        assert_eq!(published.widening(UnixMs(STALE_AFTER_MS * 1000)), Some(WIDENING_MAX));
    }
}
