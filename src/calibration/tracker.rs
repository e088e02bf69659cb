//! One stream's log offset: four trackers of different speed, judged by what each would have cost.

use std::collections::VecDeque;

use crate::model::ANCHORS;
use crate::stats::pinball;
use crate::types::UnixMs;

/// Speeds of the trackers, share of the residual taken per observation. The first never moves: "no offset".
const GAINS: [f64; 4] = [0.0, 0.01, 0.03, 0.10];

/// Forgetting of the losses, per observation.
const DECAY: f64 = 0.99;

/// A tracker is used only when its loss is below this share of the resting one's.
const MARGIN: f64 = 0.9;

/// Least standard deviation of `ln actual` that residuals are measured in.
const SIGMA_MIN: f64 = 0.06;

/// Standard deviations a single residual may pull by, and the loss it may add, both limits on outliers.
const PULL_MAX: f64 = 2.5;
const LOSS_MAX: f64 = 4.0;

/// `ln Q90 - ln Q50` of a normal distribution with standard deviation 1.
const SPREAD_PER_SIGMA: f64 = 1.2816;

/// How far back the offsets that were in force at dispatch can be looked up.
const HISTORY_MAX: usize = 512;

/// Offsets closer in time than this share one entry of the history, ms.
const HISTORY_SPACING_MS: i64 = 20;

/// One observation as a tracker sees it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Judged {
    /// `ln actual`.
    pub log_actual: f64,
    /// `ln Q50` and `ln Q90` of the serving model, without offset.
    pub log_anchors: [f64; 2],
    /// When the request was dispatched.
    pub dispatched_at: UnixMs,
    /// When the outcome was seen.
    pub observed_at: UnixMs,
}

impl Judged {
    /// `ln actual - ln Q50`, the offset not counted.
    pub fn residual(&self) -> f64 {
        self.log_actual - self.log_anchors[0]
    }

    /// Standard deviation of `ln actual` that the serving model expects, from its spread; at least 0.06.
    pub fn sigma(&self) -> f64 {
        ((self.log_anchors[1] - self.log_anchors[0]) / SPREAD_PER_SIGMA).max(SIGMA_MIN)
    }
}

/// Offsets of one stream of outcomes.
#[derive(Clone, Debug, Default)]
pub struct Tracker {
    offsets: [f64; GAINS.len()],
    losses: [[f64; GAINS.len()]; ANCHORS.len()],
    history: VecDeque<(UnixMs, [f64; GAINS.len()])>,
    observations: u64,
}

impl Tracker {
    /// Observations so far.
    pub fn observations(&self) -> u64 {
        self.observations
    }

    /// The offset to add to `ln Q50` and to `ln Q90` now: 0 unless a tracker has earned it.
    pub fn offsets(&self) -> [f64; 2] {
        std::array::from_fn(|anchor| self.offsets[self.leader(anchor)])
    }

    /// The offset that a prediction dispatched at `at` was given, as far as remembered.
    pub fn offsets_at(&self, at: UnixMs) -> [f64; 2] {
        let then = self.remembered(at);
        std::array::from_fn(|anchor| then[self.leader(anchor)])
    }

    /// Speed of the tracker in use at each anchor, share of the residual per observation; 0: no offset has earned it.
    pub fn gains(&self) -> [f64; 2] {
        std::array::from_fn(|anchor| GAINS[self.leader(anchor)])
    }

    /// Whether some offset has earned its use at either anchor.
    pub fn leads(&self) -> bool {
        self.gains().iter().any(|gain| *gain > 0.0)
    }

    /// Forgets everything but how many observations there were: what it had learnt is in the model now.
    pub fn reset(&mut self) {
        *self = Tracker { observations: self.observations, ..Tracker::default() };
    }

    /// Takes one outcome. Losses judge each tracker by the offset it had when the request was dispatched: judging by
    /// the newest value would credit a tracker with what it learnt while the label was on its way.
    pub fn observe(&mut self, judged: &Judged) {
        let sigma = judged.sigma();
        let then = self.remembered(judged.dispatched_at);
        for (anchor, losses) in self.losses.iter_mut().enumerate() {
            for (loss, offset) in losses.iter_mut().zip(then) {
                let cost = pinball(judged.log_actual, judged.log_anchors[anchor] + offset, ANCHORS[anchor]);
                *loss = DECAY * *loss + cost.min(LOSS_MAX * sigma);
            }
        }
        let residual = judged.residual();
        for (offset, gain) in self.offsets.iter_mut().zip(GAINS) {
            let pull = ((residual - *offset) / sigma).clamp(-PULL_MAX, PULL_MAX);
            *offset += gain * sigma * pull;
        }
        self.observations += 1;
        self.remember(judged.observed_at);
    }

    fn leader(&self, anchor: usize) -> usize {
        let losses = &self.losses[anchor];
        let mut best = 0;
        for (index, loss) in losses.iter().enumerate() {
            if *loss < losses[best] {
                best = index;
            }
        }
        if losses[best] < MARGIN * losses[0] { best } else { 0 }
    }

    fn remember(&mut self, at: UnixMs) {
        // A clock that steps back must not unsort the history.
        let at = self.history.back().map_or(at, |(latest, _)| at.max(*latest));
        let before = self.history.len().checked_sub(2).and_then(|index| self.history.get(index));
        if before.is_some_and(|(when, _)| at.since(*when) < HISTORY_SPACING_MS) {
            self.history.pop_back();
        }
        if self.history.len() == HISTORY_MAX {
            self.history.pop_front();
        }
        self.history.push_back((at, self.offsets));
    }

    /// Offsets in force at `at`; before the first observation all were 0.
    fn remembered(&self, at: UnixMs) -> [f64; GAINS.len()] {
        let later = self.history.partition_point(|(when, _)| *when <= at);
        match later.checked_sub(1) {
            Some(index) => self.history.get(index).map_or([0.0; GAINS.len()], |(_, offsets)| *offsets),
            // Older than what is remembered: the oldest entry, unless that is the beginning itself.
            None if self.history.len() == HISTORY_MAX => {
                self.history.front().map_or([0.0; GAINS.len()], |(_, offsets)| *offsets)
            }
            None => [0.0; GAINS.len()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(log_actual: f64, dispatched: i64, observed: i64) -> Judged {
        Judged { log_actual, log_anchors: [4.0, 4.3], dispatched_at: UnixMs(dispatched), observed_at: UnixMs(observed) }
    }

    #[test]
    fn a_steady_shift_is_followed_and_noise_around_zero_is_not() {
        let mut shifted = Tracker::default();
        let mut noisy = Tracker::default();
        for i in 0..200i64 {
            shifted.observe(&judged(5.0, i * 100, i * 100 + 90));
            noisy.observe(&judged(4.0 + if i % 2 == 0 { 0.2 } else { -0.2 }, i * 100, i * 100 + 90));
        }
        assert!((shifted.offsets()[0] - 1.0).abs() < 0.05, "{:?}", shifted.offsets());
        assert_eq!(noisy.offsets(), [0.0, 0.0]);
    }

    #[test]
    fn late_labels_are_judged_by_the_offset_at_dispatch() {
        // All were dispatched before anything was observed, so no tracker can have helped any of them.
        let mut tracker = Tracker::default();
        for i in 0..100 {
            tracker.observe(&judged(5.0, 0, 1000 + i * 100));
        }
        assert_eq!(tracker.offsets_at(UnixMs(0)), [0.0, 0.0]);
        assert_eq!(tracker.leader(0), 0);
    }

    #[test]
    fn one_outlier_moves_little_and_a_clock_step_back_keeps_order() {
        let mut tracker = Tracker::default();
        tracker.observe(&judged(400.0, 100, 200));
        assert!(tracker.offsets[3] < 0.1);
        tracker.observe(&judged(4.0, 10, 50));
        assert!(tracker.history.iter().zip(tracker.history.iter().skip(1)).all(|(a, b)| a.0 <= b.0));
    }
}
