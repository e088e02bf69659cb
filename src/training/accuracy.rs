//! Rolling accuracy: the latest predictions against what came of them, over all loads and by load band.

use std::collections::VecDeque;

use super::report::{ACCURACY_WINDOWS, Accuracy, LOAD_BANDS, PromisedAccuracy, load_band};
use crate::stats::Scores;

/// Pairs in the window.
const WINDOW: usize = 1000;

/// One prediction and its outcome.
#[derive(Clone, Copy, Debug)]
pub struct Pair {
    /// Queue at dispatch.
    pub requests_waiting: u32,
    /// What came, ms.
    pub actual_ms: f64,
    /// Predicted median, ms.
    pub q50_ms: f64,
    /// Predicted p90, ms.
    pub q90_ms: f64,
    /// Whether an input lay beyond the trained range.
    pub extrapolating: bool,
}

/// The latest pairs of one target.
#[derive(Clone, Debug, Default)]
pub struct RollingAccuracy {
    pairs: VecDeque<Pair>,
    promised: VecDeque<(f64, f64)>,
}

impl RollingAccuracy {
    /// Adds a prediction and its outcome.
    pub fn add(&mut self, pair: Pair) {
        push_bounded(&mut self.pairs, pair);
    }

    /// Adds what the sender says it had been promised, ms, and what came.
    pub fn add_promised(&mut self, actual_ms: f64, promised_ms: f64) {
        push_bounded(&mut self.promised, (actual_ms, promised_ms));
    }

    /// Forgets all pairs.
    pub fn clear(&mut self) {
        *self = RollingAccuracy::default();
    }

    /// Over all loads.
    pub fn overall(&self) -> Accuracy {
        accuracy(self.pairs.iter())
    }

    /// Over the latest few pairs, in the order of [`ACCURACY_WINDOWS`].
    pub fn recent(&self) -> [Accuracy; ACCURACY_WINDOWS.len()] {
        ACCURACY_WINDOWS.map(|window| accuracy(self.pairs.iter().rev().take(window)))
    }

    /// By load band.
    pub fn by_load(&self) -> [Accuracy; LOAD_BANDS.len()] {
        std::array::from_fn(|band| accuracy(self.pairs.iter().filter(|pair| load_band(pair.requests_waiting) == band)))
    }

    /// Share of pairs whose inputs lay beyond the trained range; `None` before the first pair.
    pub fn extrapolating_share(&self) -> Option<f64> {
        let beyond = self.pairs.iter().filter(|pair| pair.extrapolating).count();
        (!self.pairs.is_empty()).then(|| beyond as f64 / self.pairs.len() as f64)
    }

    /// Of what senders reported back.
    pub fn promised(&self) -> PromisedAccuracy {
        let mut scores = Scores::default();
        self.promised.iter().for_each(|&(actual, promised)| scores.add(actual, promised, 0.5));
        PromisedAccuracy { pairs: scores.pairs(), mape: scores.mape(), coverage: scores.coverage() }
    }
}

fn push_bounded<T>(window: &mut VecDeque<T>, value: T) {
    if window.len() == WINDOW {
        window.pop_front();
    }
    window.push_back(value);
}

fn accuracy<'a>(pairs: impl Iterator<Item = &'a Pair>) -> Accuracy {
    let (mut median, mut upper) = (Scores::default(), Scores::default());
    for pair in pairs {
        median.add(pair.actual_ms, pair.q50_ms, 0.5);
        upper.add(pair.actual_ms, pair.q90_ms, 0.9);
    }
    Accuracy {
        pairs: median.pairs(),
        mape: median.mape(),
        coverage_p50: median.coverage(),
        coverage_p90: upper.coverage(),
        pinball_p50_ms: median.pinball(),
        pinball_p90_ms: upper.pinball(),
    }
}
