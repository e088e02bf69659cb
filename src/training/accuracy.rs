//! Rolling accuracy: the latest predictions against what came of them, over all loads and by load band.

use std::collections::VecDeque;

use super::report::{Accuracy, LOAD_BANDS, PromisedAccuracy, load_band};
use crate::stats::Scores;

/// Pairs in the window.
const WINDOW: usize = 1000;

/// One prediction and its outcome.
#[derive(Clone, Copy, Debug)]
struct Pair {
    band: usize,
    actual_ms: f64,
    q50_ms: f64,
    q90_ms: f64,
}

/// The latest pairs of one target.
#[derive(Clone, Debug, Default)]
pub struct RollingAccuracy {
    pairs: VecDeque<Pair>,
    promised: VecDeque<(f64, f64)>,
}

impl RollingAccuracy {
    /// Adds a prediction's anchors and its outcome, ms.
    pub fn add(&mut self, requests_waiting: u32, actual_ms: f64, q50_ms: f64, q90_ms: f64) {
        push_bounded(&mut self.pairs, Pair { band: load_band(requests_waiting), actual_ms, q50_ms, q90_ms });
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

    /// By load band.
    pub fn by_load(&self) -> [Accuracy; LOAD_BANDS.len()] {
        std::array::from_fn(|band| accuracy(self.pairs.iter().filter(|pair| pair.band == band)))
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
