//! One role's and target's half of the learner: its samples, corrections and accuracy, and when it wants a fit.

use super::accuracy::{Pair, RollingAccuracy};
use super::fit::TargetJob;
use super::learner::LearnerParams;
use super::report::{FitReason, TargetReport};
use super::screen::{Predicted, TRUSTED_ROWS_MIN};
use super::store::Store;
use crate::calibration::{Alarm, AlarmCause, Judged, Observed, OnlineTarget, TargetTracking};
use crate::model::{SPREAD_MIN, TargetModel, TrainingRow};
use crate::types::{EndpointName, Fingerprint, Role, Sample, Target, UnixMs};

/// After a change of regime a fit comes each time the samples since have grown by this share, but not below the floor:
/// what is newest matters most then.
const REFIT_SHARE: u64 = 3;
const REFIT_SAMPLES_MIN: u64 = 15;

/// While an online offset is in use the model is known to be off: a fit comes after this share of the usual samples.
const WRONG_SHARE: u64 = 4;

/// When things happened to one sample, by the learner's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Times {
    pub(super) dispatched_at: UnixMs,
    pub(super) observed_at: UnixMs,
    pub(super) received_at: UnixMs,
}

pub(super) struct TargetLearner {
    role: Role,
    target: Target,
    pub(super) store: Store,
    pub(super) tracking: TargetTracking,
    pub(super) accuracy: RollingAccuracy,
    pub(super) observed: u64,
    /// Samples since the last fit that took part.
    fresh: u64,
    pub(super) fitted_at: Option<UnixMs>,
    /// Samples since the latest change of regime, while they are few.
    since_change: Option<u64>,
    /// A change of regime was noticed and not yet fitted.
    alarmed: bool,
    alarms: u64,
}

impl TargetLearner {
    pub(super) fn new(
        role: Role,
        target: Target,
        params: &LearnerParams,
        published: &OnlineTarget,
        fitted_at: Option<UnixMs>,
    ) -> Self {
        TargetLearner {
            role,
            target,
            store: Store::new(params.samples_max),
            tracking: TargetTracking::resume(published),
            accuracy: RollingAccuracy::default(),
            observed: 0,
            fresh: 0,
            fitted_at,
            since_change: None,
            alarmed: false,
            alarms: 0,
        }
    }

    pub(super) fn role(&self) -> Role {
        self.role
    }

    pub(super) fn target(&self) -> Target {
        self.target
    }

    /// Takes what the sample's endpoint runs; answers with an alarm when that changed.
    pub(super) fn take_fingerprint(&mut self, sample: &Sample, times: Times) -> Option<Alarm> {
        let fingerprint: &Fingerprint = sample.fingerprint.as_ref()?;
        let endpoint = sample.endpoint.as_ref();
        if !self.tracking.changed(endpoint, fingerprint) {
            return None;
        }
        self.store.retire(endpoint);
        self.raise(0);
        Some(self.alarm(endpoint, times.received_at, times.observed_at, 0, AlarmCause::Fingerprint))
    }

    /// What the serving model said of a sample's request, for the screen.
    pub(super) fn predicted(&self, model: &TargetModel, sample: &Sample, times: Times) -> Predicted {
        let endpoint = sample.endpoint.as_ref();
        let log_scale = endpoint.map_or(0.0, |name| model.log_scale(name));
        let log = model.anchors(&sample.features).log;
        let offsets = self.tracking.offsets_at(endpoint, times.dispatched_at);
        let log_median = log[0] + log_scale + offsets[0];
        let log_spread = (log[1] + log_scale + offsets[1] - log_median).max(SPREAD_MIN);
        let trusted = model.rows >= TRUSTED_ROWS_MIN && self.since_change.is_none();
        Predicted { log_median, log_spread, trusted }
    }

    /// Takes an outcome that was cut short.
    pub(super) fn observe_at_least(&mut self, model: &TargetModel, sample: &Sample, at_least_ms: f64, times: Times) {
        let endpoint = sample.endpoint.as_ref();
        let log_scale = endpoint.map_or(0.0, |name| model.log_scale(name));
        let log_anchors = model.anchors(&sample.features).log.map(|log| log + log_scale);
        let judged = Judged {
            log_actual: at_least_ms.ln(),
            log_anchors,
            dispatched_at: times.dispatched_at,
            observed_at: times.observed_at,
        };
        self.tracking.observe_at_least(endpoint, &judged);
    }

    /// Takes an outcome against the serving model; answers with an alarm when it completes the evidence of a change.
    pub(super) fn observe(
        &mut self,
        model: &TargetModel,
        sample: &Sample,
        actual_ms: f64,
        times: Times,
        borne_out: [bool; 2],
    ) -> Option<Alarm> {
        let endpoint = sample.endpoint.as_ref();
        let anchors = model.anchors(&sample.features);
        let log_scale = endpoint.map_or(0.0, |name| model.log_scale(name));
        let log_anchors = anchors.log.map(|log| log + log_scale);
        let judged = Judged {
            log_actual: actual_ms.ln(),
            log_anchors,
            dispatched_at: times.dispatched_at,
            observed_at: times.observed_at,
        };
        let offsets = self.tracking.offsets_at(endpoint, times.dispatched_at);
        let log50 = log_anchors[0] + offsets[0];
        let spread = (log_anchors[1] + offsets[1] - log50).max(SPREAD_MIN);
        self.accuracy.add(Pair {
            requests_waiting: sample.features.requests_waiting,
            actual_ms,
            q50_ms: log50.exp(),
            q90_ms: (log50 + spread).exp(),
            extrapolating: anchors.extrapolating,
        });
        let promised = match self.target {
            Target::Ttft => sample.promised.ttft_ms,
            Target::Tpot => sample.promised.tpot_ms,
        };
        if let Some(promised_ms) = promised {
            self.accuracy.add_promised(actual_ms, promised_ms);
        }
        let observed = Observed {
            endpoint,
            features: &sample.features,
            judged,
            z: (judged.log_actual - log50) / spread,
            received_at: times.received_at,
        };
        let shift = self.tracking.observe(self.target, &observed, borne_out);
        self.keep(sample, actual_ms);
        let shift = shift?;
        self.store.shift(endpoint, shift.changed_after, shift.observations, shift.log_shift);
        self.tracking.restart(endpoint);
        self.raise(shift.observations);
        let cause = AlarmCause::Shift { log_shift: shift.log_shift };
        Some(self.alarm(endpoint, times.received_at, shift.changed_at, shift.observations, cause))
    }

    /// Adds a sample to the store alone.
    pub(super) fn keep(&mut self, sample: &Sample, actual_ms: f64) {
        let endpoint = sample.endpoint.as_ref();
        let observation = self.tracking.observations(endpoint);
        self.store.push(TrainingRow { features: sample.features, actual_ms, endpoint: 0 }, endpoint, observation);
        self.observed += 1;
        self.fresh += 1;
        self.since_change = self.since_change.map(|samples| samples + 1);
    }

    fn raise(&mut self, observations: u64) {
        self.alarms += 1;
        self.since_change = Some(observations);
        self.alarmed = true;
    }

    fn alarm(
        &self,
        endpoint: Option<&EndpointName>,
        at: UnixMs,
        changed_at: UnixMs,
        observations: u64,
        cause: AlarmCause,
    ) -> Alarm {
        Alarm { at, changed_at, observations, target: self.target, role: self.role, endpoint: endpoint.cloned(), cause }
    }

    /// Asks for a fit because another target noticed a change.
    pub(super) fn alarmed_by_other(&mut self) {
        self.alarmed = true;
    }

    /// New samples that start the next fit: a quarter of the last fit's rows between the two limits, less after a
    /// change and while an offset says that the model is off.
    pub(super) fn next_fit_at(&self, params: &LearnerParams, fitted_rows: usize) -> u64 {
        let usual = (fitted_rows as u64 / 4).min(params.fit_every_samples_max).max(params.fit_min_samples);
        let least = REFIT_SAMPLES_MIN.max(params.fit_min_samples);
        match self.since_change {
            Some(samples) => (samples / REFIT_SHARE).max(least).min(usual),
            None if self.tracking.gains().iter().any(|gain| *gain > 0.0) => (usual / WRONG_SHARE).max(least).min(usual),
            None => usual,
        }
    }

    pub(super) fn due(&self, params: &LearnerParams, fitted_rows: usize, now: UnixMs) -> Option<FitReason> {
        if self.alarmed && self.store.len() as u64 >= params.fit_min_samples {
            return Some(FitReason::Alarm);
        }
        if self.fresh >= self.next_fit_at(params, fitted_rows) {
            return Some(FitReason::Samples);
        }
        // A model that came with more rows than the store holds (a seed, a restart without samples) is not given up for
        // a handful.
        let enough = self.store.len() as u64 >= (fitted_rows as u64 / 4).min(params.fit_every_samples_max);
        let waited = self.fitted_at.is_some_and(|at| now.since(at) >= params.fit_every_ms);
        (waited && enough && self.fresh >= params.fit_min_samples).then_some(FitReason::Interval)
    }

    /// Copies out what a fit needs, and counts from here to the next.
    pub(super) fn job(&mut self, params: &LearnerParams, now: UnixMs) -> TargetJob {
        self.fresh = 0;
        self.alarmed = false;
        self.fitted_at = Some(now);
        if self.since_change.is_some_and(|samples| samples / REFIT_SHARE >= params.fit_every_samples_max) {
            self.since_change = None;
        }
        TargetJob {
            target: self.target,
            rows: self.store.rows().copied().collect(),
            endpoints: self.store.names().to_vec(),
        }
    }

    /// Drops all stored samples; returns how many of them were this role's own, copies in the common store aside.
    pub(super) fn forget_samples(&mut self) -> usize {
        self.fresh = 0;
        let own = self.store.rows().filter(|row| row.features.role == self.role).count();
        self.store.clear();
        own
    }

    /// Back to before anything was learnt, but for the samples.
    pub(super) fn forget_model(&mut self) {
        self.tracking = TargetTracking::default();
        self.fitted_at = None;
        (self.since_change, self.alarmed) = (None, false);
    }

    pub(super) fn report(&self, params: &LearnerParams, model: &TargetModel) -> TargetReport {
        TargetReport {
            role: self.role,
            target: self.target,
            observed: self.observed,
            stored: self.store.len(),
            evicted: self.store.evicted(),
            fitted_rows: model.rows,
            trees: [model.residuals[0].trees.len(), model.residuals[1].trees.len()],
            accuracy: self.accuracy.overall(),
            recent: self.accuracy.recent(),
            by_load: self.accuracy.by_load(),
            extrapolating_share: self.accuracy.extrapolating_share(),
            promised: self.accuracy.promised(),
            new_samples: self.fresh,
            next_fit_at: self.next_fit_at(params, model.rows),
            offset_factor: self.tracking.published(&[]).pool.map(f64::exp),
            tracker_gain: self.tracking.gains(),
            scales: model.scales.clone(),
            alarms: self.alarms,
        }
    }
}
