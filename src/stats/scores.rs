//! Scores of predictions: pinball loss, coverage, mean absolute percentage error.

/// Pinball loss of predicting the `q`-quantile as `predicted` when `actual` happened, in their unit:
/// `max(q * e, (q - 1) * e)` with `e = actual - predicted`. Its mean is least for the true quantile.
pub fn pinball(actual: f64, predicted: f64, q: f64) -> f64 {
    let error = actual - predicted;
    (q * error).max((q - 1.0) * error)
}

/// Arithmetic mean; `None` of nothing.
pub fn mean(values: impl IntoIterator<Item = f64>) -> Option<f64> {
    let (sum, count) = values.into_iter().fold((0.0, 0u64), |(sum, count), value| (sum + value, count + 1));
    (count > 0).then(|| sum / count as f64)
}

/// Running sums of the scores of one predicted quantile. All means are `None` before the first pair.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Scores {
    pairs: u64,
    pinball: f64,
    covered: u64,
    absolute_share: f64,
}

impl Scores {
    /// Adds one pair; `actual` > 0.
    pub fn add(&mut self, actual: f64, predicted: f64, q: f64) {
        self.pairs += 1;
        self.pinball += pinball(actual, predicted, q);
        self.covered += u64::from(actual <= predicted);
        self.absolute_share += (predicted - actual).abs() / actual;
    }

    /// Pairs added.
    pub fn pairs(&self) -> u64 {
        self.pairs
    }

    /// Mean pinball loss, in the unit of the values.
    pub fn pinball(&self) -> Option<f64> {
        self.over(self.pinball)
    }

    /// Share of outcomes at or below the prediction, 0..=1 (equality counts as covered).
    pub fn coverage(&self) -> Option<f64> {
        self.over(self.covered as f64)
    }

    /// Mean of `|predicted - actual| / actual`, as a ratio.
    pub fn mape(&self) -> Option<f64> {
        self.over(self.absolute_share)
    }

    fn over(&self, sum: f64) -> Option<f64> {
        (self.pairs > 0).then(|| sum / self.pairs as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::{Scores, mean, pinball};

    #[test]
    fn worked_numbers() {
        let mut scores = Scores::default();
        assert_eq!(scores.pinball(), None);
        scores.add(100.0, 110.0, 0.9);
        scores.add(120.0, 110.0, 0.9);
        assert!((scores.pinball().unwrap() - 5.0).abs() < 1e-12);
        scores.add(110.0, 110.0, 0.9);
        assert!((scores.coverage().unwrap() - 2.0 / 3.0).abs() < 1e-12);
        assert!((pinball(120.0, 110.0, 0.9) - 9.0).abs() < 1e-12);
        assert_eq!(mean([]), None);
        assert_eq!(mean([1.0, 3.0]), Some(2.0));
    }
}
