//! What is asked of a predictive distribution.

/// A probability strictly between 0 and 1, within [`Quantile::MIN`]..=[`Quantile::MAX`].
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub struct Quantile(f64);

impl Quantile {
    /// Lowest quantile that is answered.
    pub const MIN: f64 = 0.01;
    /// Highest quantile that is answered.
    pub const MAX: f64 = 0.99;
    /// The median.
    pub const P50: Quantile = Quantile(0.5);
    /// The upper anchor of the model.
    pub const P90: Quantile = Quantile(0.9);

    /// Takes a finite value in `MIN..=MAX`.
    pub fn try_new(q: f64) -> Option<Self> {
        (Self::MIN..=Self::MAX).contains(&q).then_some(Quantile(q))
    }

    /// The probability.
    pub fn get(self) -> f64 {
        self.0
    }
}

/// Which number a prediction answers with.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ask {
    /// The given quantile of the latency.
    Quantile(Quantile),
    /// The mean of a log-normal with the predicted median and spread.
    Mean,
}
