//! The hot path: features on the stack, base, regime table, offset, quantile.

use super::Snapshot;
use crate::calibration::OnlineTarget;
use crate::model::{Anchors, CORRECTION_MAX, SPREAD_MIN, TargetModel};
use crate::types::{Ask, Estimate, Features, Generation, Quantile, State, Target, TargetEstimate, UnixMs};

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
    /// Added to the spread because samples are old.
    pub(super) widening: f64,
    /// Standardised quantile of what was asked; `None` for the mean.
    pub(super) k: Option<f64>,
    state: State,
}

/// One row's numbers between the anchors and the answer.
pub(super) struct Parts {
    pub(super) anchors: Anchors,
    pub(super) offsets: [f64; 2],
    pub(super) offsets_own: bool,
    pub(super) fade: f64,
    pub(super) log50: f64,
}

/// A snapshot opened for one batch.
pub struct Reader<'a> {
    pub(super) ttft: TargetReader<'a>,
    pub(super) tpot: TargetReader<'a>,
    generation: Generation,
}

impl<'a> Reader<'a> {
    pub(super) fn new(snapshot: &'a Snapshot, conditions: Conditions) -> Self {
        Reader {
            ttft: TargetReader::new(snapshot, Target::Ttft, conditions),
            tpot: TargetReader::new(snapshot, Target::Tpot, conditions),
            generation: snapshot.version.generation,
        }
    }

    /// Predicts one row. `endpoint` selects that endpoint's offset; unknown or absent means the pool's.
    #[inline]
    pub fn predict(&self, features: &Features, endpoint: Option<&str>) -> Estimate {
        let ttft = self.ttft.predict(features, endpoint).0;
        let tpot = self.tpot.predict(features, endpoint).0;
        Estimate { ttft, tpot, state: ttft.state.max(tpot.state), generation: self.generation }
    }

    /// The state every row of the batch has at least.
    pub fn state(&self) -> State {
        self.ttft.state.max(self.tpot.state)
    }

    /// Any other quantile of an estimate this reader gave, ms. Non-decreasing in `q`.
    pub fn quantile_ms(&self, target: Target, estimate: &TargetEstimate, q: Quantile) -> f64 {
        let shape = &self.of(target).online.shape;
        (estimate.q50_ms.ln() + log_distance(shape.k(q.get()), estimate.spread)).exp()
    }

    pub(super) fn of(&self, target: Target) -> &TargetReader<'a> {
        match target {
            Target::Ttft => &self.ttft,
            Target::Tpot => &self.tpot,
        }
    }
}

impl<'a> TargetReader<'a> {
    fn new(snapshot: &'a Snapshot, target: Target, conditions: Conditions) -> Self {
        let model = snapshot.models.of(target);
        let online = snapshot.online.of(target);
        let widening = online.widening(conditions.now);
        let own = match (model.rows, widening) {
            (0, _) => State::Prior,
            (rows, _) if rows < WARM_ROWS => State::Warming,
            (_, Some(_)) => State::Stale,
            (_, None) => State::Ready,
        };
        let k = match conditions.ask {
            Ask::Quantile(q) => Some(online.shape.k(q.get())),
            Ask::Mean => None,
        };
        TargetReader { model, online, widening: widening.unwrap_or(0.0), k, state: own.max(conditions.at_least) }
    }

    #[inline]
    pub(super) fn predict(&self, features: &Features, endpoint: Option<&str>) -> (TargetEstimate, Parts) {
        let anchors = self.model.anchors(features);
        let (offsets, offsets_own) = self.online.offsets(endpoint);
        let fade = self.model.fade(features);
        let corrected = |anchor: usize| {
            let log_base = anchors.base_ms[anchor].ln();
            (anchors.log[anchor] + offsets[anchor]).clamp(log_base - CORRECTION_MAX, log_base + CORRECTION_MAX)
        };
        let log50 = corrected(0);
        let spread = (corrected(1) - log50).max(SPREAD_MIN) + self.widening;
        let log_value = match self.k {
            Some(k) => log50 + log_distance(k, spread),
            None => log50 + ((spread / SPREAD_PER_SIGMA).powi(2) / 2.0).min(MEAN_LOG_MAX),
        };
        let extrapolating = fade < 1.0;
        let state = if extrapolating { self.state.max(State::Extrapolating) } else { self.state };
        let q50_ms = log50.exp();
        let estimate = TargetEstimate { value_ms: log_value.exp(), q50_ms, spread, extrapolating, state };
        (estimate, Parts { anchors, offsets, offsets_own, fade, log50 })
    }
}
