//! The plainest predictor there is: the running quantile of what was seen lately. Whoever does worse has learnt nothing.

use std::collections::VecDeque;

use crate::stats::quantile_of_sorted;

/// Latest outcomes it remembers.
const WINDOW: usize = 1000;

/// Outcomes below which it has no answer.
const OUTCOMES_MIN: usize = 10;

/// Running empirical quantile over the latest outcomes.
#[derive(Clone, Debug, Default)]
pub struct RunningQuantile {
    order: VecDeque<f64>,
    sorted: Vec<f64>,
}

impl RunningQuantile {
    /// Adds an outcome, finite.
    pub fn observe(&mut self, outcome: f64) {
        if self.order.len() == WINDOW
            && let Some(oldest) = self.order.pop_front()
        {
            let at = self.sorted.partition_point(|value| *value < oldest);
            if at < self.sorted.len() {
                self.sorted.remove(at);
            }
        }
        self.order.push_back(outcome);
        self.sorted.insert(self.sorted.partition_point(|value| *value < outcome), outcome);
    }

    /// The `q`-quantile; `None` while there are fewer than ten outcomes.
    pub fn quantile(&self, q: f64) -> Option<f64> {
        (self.sorted.len() >= OUTCOMES_MIN).then(|| quantile_of_sorted(&self.sorted, q)).flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_remembers_the_latest_thousand() {
        let mut running = RunningQuantile::default();
        (0..9).for_each(|_| running.observe(1.0));
        assert_eq!(running.quantile(0.9), None);
        (0..5000).for_each(|i| running.observe(f64::from(i % 7)));
        (0..1000).for_each(|i| running.observe(f64::from(i)));
        assert_eq!(running.sorted.len(), 1000);
        assert!((running.quantile(0.9).unwrap() - 899.1).abs() < 1e-9);
    }
}
