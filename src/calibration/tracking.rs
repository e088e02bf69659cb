//! The learner's side of one target's corrections: a tracker and a detector for each endpoint and for the pool.

use std::collections::{BTreeMap, VecDeque};

use super::drift::{Drift, Shift};
use super::online::{Correction, ENDPOINTS_MAX, EndpointCorrection, OnlineTarget};
use super::shape::ShapeWindow;
use super::tracker::{Judged, Tracker};
use crate::model::EndpointScale;
use crate::types::{EndpointName, Features, Fingerprint, Target, UnixMs};

/// Observations from which an endpoint's own offset is used instead of the pool's, and from which an endpoint that
/// runs something new is no longer called warming.
const ENDPOINT_OBSERVATIONS_MIN: u64 = 20;

/// Fewer than this many samples within the window of staleness is called stale.
const RECENT: usize = 10;

/// One stream of outcomes: an endpoint's, or those that name none.
#[derive(Clone, Debug, Default)]
struct Stream {
    tracker: Tracker,
    drift: Drift,
    fingerprint: Option<Fingerprint>,
    /// Observations since the fingerprint changed; `None` when it never did.
    since_change: Option<u64>,
    heard_at: UnixMs,
}

impl Stream {
    fn warming(&self) -> bool {
        self.since_change.is_some_and(|observations| observations < ENDPOINT_OBSERVATIONS_MIN)
    }
}

/// One outcome with everything it is judged by.
#[derive(Clone, Copy, Debug)]
pub struct Observed<'a> {
    /// Which endpoint, where the sample names one.
    pub endpoint: Option<&'a EndpointName>,
    /// Known at dispatch.
    pub features: &'a Features,
    /// The outcome against the serving model, the endpoint's scale counted, its offset not.
    pub judged: Judged,
    /// Standardised residual of the prediction, the offset counted.
    pub z: f64,
    /// The learner's own time.
    pub received_at: UnixMs,
}

/// Offsets, detectors and the quantile table of one target.
#[derive(Clone, Debug, Default)]
pub struct TargetTracking {
    pool: Tracker,
    unnamed: Stream,
    endpoints: BTreeMap<EndpointName, Stream>,
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
            Some(stream) if stream.tracker.observations() >= ENDPOINT_OBSERVATIONS_MIN => stream.tracker.offsets_at(at),
            _ => self.pool.offsets_at(at),
        }
    }

    /// Takes what an endpoint says it runs. `true`: it ran something else before.
    pub fn changed(&mut self, endpoint: Option<&EndpointName>, fingerprint: &Fingerprint) -> bool {
        let stream = self.stream(endpoint);
        let changed = stream.fingerprint.as_ref().is_some_and(|before| before != fingerprint);
        stream.fingerprint = Some(fingerprint.clone());
        if changed {
            stream.since_change = Some(0);
            self.restart(endpoint);
        }
        changed
    }

    /// Takes one outcome; answers with a change of regime when it shows one.
    /// `borne_out` is other evidence for a slower and for a faster endpoint, see [`Drift::observe`].
    pub fn observe(&mut self, target: Target, observed: &Observed<'_>, borne_out: [bool; 2]) -> Option<Shift> {
        self.pool.observe(&observed.judged);
        self.shape.add(observed.z);
        if self.received.len() == RECENT {
            self.received.pop_front();
        }
        self.received.push_back(observed.received_at);
        let stream = self.stream(observed.endpoint);
        stream.heard_at = observed.received_at;
        stream.tracker.observe(&observed.judged);
        stream.since_change = stream.since_change.map(|observations| observations + 1);
        let leads = stream.tracker.leads();
        stream.drift.observe(target, observed.features, &observed.judged, leads, borne_out)
    }

    /// Takes an outcome that was cut short: at least this long. It may raise an offset and teaches nothing else.
    pub fn observe_at_least(&mut self, endpoint: Option<&EndpointName>, judged: &Judged) {
        self.pool.observe(judged);
        self.stream(endpoint).tracker.observe(judged);
    }

    /// Whether an endpoint's detector speaks for a slower and for a faster endpoint.
    pub fn leanings(&self, endpoint: Option<&EndpointName>) -> [bool; 2] {
        match endpoint {
            None => self.unnamed.drift.leanings(),
            Some(name) => self.endpoints.get(name).map_or([false; 2], |stream| stream.drift.leanings()),
        }
    }

    /// Number of the latest observation in an endpoint's stream, from 1.
    pub fn observations(&self, endpoint: Option<&EndpointName>) -> u64 {
        match endpoint {
            None => self.unnamed.drift.observations(),
            Some(name) => self.endpoints.get(name).map_or(0, |stream| stream.drift.observations()),
        }
    }

    /// Starts an endpoint's offset anew: what it had learnt is in the model now, or no longer true.
    pub fn restart(&mut self, endpoint: Option<&EndpointName>) {
        self.pool.reset();
        let stream = self.stream(endpoint);
        stream.tracker.reset();
        stream.drift.restart();
    }

    /// What to publish, joined with the scales of the serving model.
    pub fn published(&self, scales: &[EndpointScale]) -> OnlineTarget {
        if self.received.is_empty() {
            return self.restored.clone();
        }
        let mut endpoints: BTreeMap<&EndpointName, Correction> = BTreeMap::new();
        for entry in scales {
            endpoints.entry(&entry.endpoint).or_default().log_scale = entry.log_scale;
        }
        for (name, stream) in &self.endpoints {
            let own = stream.tracker.observations() >= ENDPOINT_OBSERVATIONS_MIN;
            if own || stream.warming() {
                let entry = endpoints.entry(name).or_default();
                (entry.offsets, entry.offsets_own) = (stream.tracker.offsets(), own);
                entry.warming = stream.warming();
            }
        }
        let endpoints = endpoints
            .into_iter()
            .take(ENDPOINTS_MAX)
            .map(|(name, entry)| EndpointCorrection {
                endpoint: name.clone(),
                log_scale: entry.log_scale,
                offsets: entry.offsets_own.then_some(entry.offsets),
                warming: entry.warming,
            })
            .collect();
        let tenth_latest_at = if self.received.len() == RECENT { self.received.front().copied() } else { None };
        OnlineTarget {
            pool: self.pool.offsets(),
            pool_warming: self.unnamed.warming(),
            endpoints,
            shape: self.shape.shape(),
            tenth_latest_at: tenth_latest_at.or(self.restored.tenth_latest_at),
        }
    }

    /// Speed of the pool's tracker in use at each anchor; 0: none.
    pub fn gains(&self) -> [f64; 2] {
        self.pool.gains()
    }

    fn stream(&mut self, endpoint: Option<&EndpointName>) -> &mut Stream {
        let Some(name) = endpoint else { return &mut self.unnamed };
        if self.endpoints.len() >= ENDPOINTS_MAX && !self.endpoints.contains_key(name) {
            let silent = self.endpoints.iter().min_by_key(|(_, stream)| stream.heard_at).map(|(name, _)| name.clone());
            if let Some(silent) = silent {
                self.endpoints.remove(&silent);
            }
        }
        self.endpoints.entry(name.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Role;

    const IDLE: Features = Features {
        kv_cache_usage: 0.1,
        input_tokens: 100,
        requests_waiting: 0,
        requests_running: 1,
        prefix_cache_score: 0.0,
        prefill_tokens_in_flight: 0,
        decode_tokens_in_flight: 0,
        encoder_matched_size: 0,
        encoder_input_size: 0,
        role: Role::Both,
    };

    fn observe(tracking: &mut TargetTracking, endpoint: &EndpointName, log_actual: f64, at: i64) -> Option<Shift> {
        let judged =
            Judged { log_actual, log_anchors: [4.0, 4.3], dispatched_at: UnixMs(at), observed_at: UnixMs(at + 50) };
        let observed =
            Observed { endpoint: Some(endpoint), features: &IDLE, judged, z: 0.0, received_at: UnixMs(at + 50) };
        tracking.observe(Target::Ttft, &observed, [true; 2])
    }

    #[test]
    fn a_slow_endpoint_gets_its_own_offset_and_a_stranger_the_pools() {
        let mut tracking = TargetTracking::default();
        let slow = EndpointName::try_new("slow").unwrap();
        let fast = EndpointName::try_new("fast").unwrap();
        for i in 0..100 {
            observe(&mut tracking, &slow, 4.3, i * 100);
            observe(&mut tracking, &fast, 4.0, i * 100);
        }
        let published = tracking.published(&[]);
        let own = published.correction(Some("slow"));
        assert!(own.offsets_own && own.offsets[0] > 0.25, "{own:?}");
        assert!(published.correction(Some("fast")).offsets[0].abs() < 0.1);
        assert_eq!(published.correction(Some("stranger")).offsets, published.pool);
    }

    #[test]
    fn endpoints_are_bounded_and_the_most_silent_leaves() {
        let mut tracking = TargetTracking::default();
        for i in 0..(ENDPOINTS_MAX as i64 + 5) {
            let name = EndpointName::try_new(&format!("endpoint-{i}")).unwrap();
            observe(&mut tracking, &name, 4.0, i);
        }
        assert_eq!(tracking.endpoints.len(), ENDPOINTS_MAX);
        assert!(!tracking.endpoints.contains_key(&EndpointName::try_new("endpoint-0").unwrap()));
    }

    #[test]
    fn a_lasting_change_is_found_with_its_size_and_noise_is_not() {
        let mut tracking = TargetTracking::default();
        let name = EndpointName::try_new("a").unwrap();
        let noise = |i: i64| ((i * 37) % 21 - 10) as f64 / 50.0;
        for i in 0..500 {
            assert_eq!(observe(&mut tracking, &name, 4.0 + noise(i), i * 100), None);
        }
        let found = (500..560).find_map(|i| observe(&mut tracking, &name, 5.1 + noise(i), i * 100));
        let shift = found.expect("within 60 observations");
        assert!((shift.log_shift - 1.1).abs() < 0.1 && shift.changed_after >= 498, "{shift:?}");
    }

    #[test]
    fn a_new_fingerprint_is_a_change_and_warms_until_it_has_its_own_samples() {
        let mut tracking = TargetTracking::default();
        let name = EndpointName::try_new("a").unwrap();
        let [first, second] = ["v1", "v2"].map(|text| Fingerprint::try_new(text).unwrap());
        assert!(!tracking.changed(Some(&name), &first));
        for i in 0..50 {
            observe(&mut tracking, &name, 4.5, i * 100);
        }
        assert!(!tracking.changed(Some(&name), &first));
        assert!(!tracking.published(&[]).correction(Some("a")).warming);
        assert!(tracking.changed(Some(&name), &second));
        assert!(tracking.published(&[]).correction(Some("a")).warming);
        for i in 50..70 {
            observe(&mut tracking, &name, 4.5, i * 100);
        }
        assert!(!tracking.published(&[]).correction(Some("a")).warming);
    }
}
