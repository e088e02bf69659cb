//! The hot path: features on the stack, base, regime table, residual trees, endpoint scale, offset, quantile.

use super::Snapshot;
use crate::calibration::{Correction, OnlineTarget};
use crate::model::{Anchors, CORRECTION_MAX, SPREAD_MIN, TargetModel};
use crate::types::{Ask, Estimate, Features, Generation, Quantile, Role, State, Target, TargetEstimate, UnixMs};

/// Rows below which a fitted model is still called warming.
const WARM_ROWS: usize = 100;

/// `ln Q90 - ln Q50` of a normal distribution with standard deviation 1.
const SPREAD_PER_SIGMA: f64 = 1.2816;

/// Largest log distance of the mean from the median: beyond it the log-normal's mean is a matter of its tail alone.
const MEAN_LOG_MAX: f64 = 2.0;

/// Log distance of a quantile from the median; bounded, so that a heavy tail never makes an answer infinite.
#[inline]
fn log_distance(k: f64, spread: f64) -> f64 {
    (k * spread).clamp(-2.0 * CORRECTION_MAX, 2.0 * CORRECTION_MAX)
}

/// What is common to all rows of a batch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Conditions {
    /// Which number to answer with.
    pub ask: Ask,
    /// The caller's time, for staleness.
    pub now: UnixMs,
    /// The mildest state that may be said: a shell whose trainer is gone passes [`State::Stale`] or worse here.
    pub at_least: State,
}

impl Conditions {
    /// A healthy shell.
    pub fn new(ask: Ask, now: UnixMs) -> Self {
        Conditions { ask, now, at_least: State::Ready }
    }
}

/// One target's part of a [`Reader`].
pub(super) struct TargetReader<'a> {
    pub(super) model: &'a TargetModel,
    pub(super) online: &'a OnlineTarget,
    /// Whose model this is: the role's own, or another's while it has none.
    pub(super) answering: Role,
    /// Added to the spread because samples are old.
    pub(super) widening: f64,
    /// Standardised quantile of what was asked; `None` for the mean.
    pub(super) k: Option<f64>,
    state: State,
}

/// One row's numbers between the anchors and the answer.
pub(super) struct Parts {
    pub(super) anchors: Anchors,
    pub(super) correction: Correction,
    pub(super) log50: f64,
}

/// A snapshot opened for one batch.
pub struct Reader<'a> {
    /// By role, then target.
    targets: [[TargetReader<'a>; 2]; 3],
    generation: Generation,
}

impl<'a> Reader<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, conditions: Conditions) -> Self {
        Reader {
            targets: Role::ALL
                .map(|role| Target::ALL.map(|target| TargetReader::new(snapshot, role, target, conditions))),
            generation: snapshot.version.generation,
        }
    }

    /// Predicts one row. `endpoint` selects that endpoint's scale and offset; unknown or absent means the pool's.
    #[inline]
    pub fn predict(&self, features: &Features, endpoint: Option<&str>) -> Estimate {
        let [ttft, tpot] = &self.targets[features.role.index()];
        let ttft = ttft.predict(features, endpoint).0;
        let tpot = tpot.predict(features, endpoint).0;
        Estimate { ttft, tpot, state: ttft.state.max(tpot.state), generation: self.generation }
    }

    /// The state every row of the batch has at least, of whatever role.
    pub fn state(&self) -> State {
        let of_role = |both: &[TargetReader<'_>; 2]| both[0].state.max(both[1].state);
        self.targets.iter().map(of_role).min().unwrap_or(State::Prior)
    }

    /// Any other quantile of an estimate this reader gave, ms. Non-decreasing in `q`.
    pub fn quantile_ms(&self, role: Role, target: Target, estimate: &TargetEstimate, q: Quantile) -> f64 {
        let shape = &self.of(role, target).online.shape;
        (estimate.q50_ms.ln() + log_distance(shape.k(q.get()), estimate.spread)).exp()
    }

    pub(super) fn of(&self, role: Role, target: Target) -> &TargetReader<'a> {
        &self.targets[role.index()][target.index()]
    }
}

impl<'a> TargetReader<'a> {
    fn new(snapshot: &'a Snapshot, role: Role, target: Target, conditions: Conditions) -> Self {
        let answering = snapshot.models.answering(role, target);
        let model = snapshot.models.of(answering, target);
        let online = snapshot.online.of(answering, target);
        let widening = online.widening(conditions.now);
        let own = match (model.rows, widening) {
            (0, _) => State::Prior,
            _ if answering != role => State::Warming,
            (rows, _) if rows < WARM_ROWS => State::Warming,
            (_, Some(_)) => State::Stale,
            (_, None) => State::Ready,
        };
        let k = match conditions.ask {
            Ask::Quantile(q) => Some(online.shape.k(q.get())),
            Ask::Mean => None,
        };
        let state = own.max(conditions.at_least);
        TargetReader { model, online, answering, widening: widening.unwrap_or(0.0), k, state }
    }

    #[inline]
    pub(super) fn predict(&self, features: &Features, endpoint: Option<&str>) -> (TargetEstimate, Parts) {
        let anchors = self.model.anchors(features);
        let correction = self.online.correction(endpoint);
        let corrected = |anchor: usize| {
            let log_base = anchors.base_ms[anchor].ln();
            let log = anchors.log[anchor] + correction.log_scale + correction.offsets[anchor];
            log.clamp(log_base - CORRECTION_MAX, log_base + CORRECTION_MAX)
        };
        let log50 = corrected(0);
        let spread = (corrected(1) - log50).max(SPREAD_MIN) + self.widening;
        let log_value = match self.k {
            Some(k) => log50 + log_distance(k, spread),
            None => log50 + ((spread / SPREAD_PER_SIGMA).powi(2) / 2.0).min(MEAN_LOG_MAX),
        };
        let mut state = self.state;
        if anchors.extrapolating {
            state = state.max(State::Extrapolating);
        }
        if correction.warming {
            state = state.max(State::Warming);
        }
        let q50_ms = log50.exp();
        let extrapolating = anchors.extrapolating;
        let estimate = TargetEstimate { value_ms: log_value.exp(), q50_ms, spread, extrapolating, state };
        (estimate, Parts { anchors, correction, log50 })
    }
}
