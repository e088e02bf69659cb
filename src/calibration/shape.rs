//! From the two modelled quantiles to any other: a standardised table, learnt from recent outcomes.
//!
//! `z = (ln actual - ln Q50) / (ln Q90 - ln Q50)`; its empirical `q`-quantile is the factor `k(q)` on the spread. The
//! table is forced through `k(.5) = 0` and `k(.9) = 1` and made non-decreasing, so quantiles never cross.

use std::collections::VecDeque;

use crate::stats::{normal_quantile, quantile_of_sorted};

/// Quantiles at which the table is kept; between them it is linear.
pub const SHAPE_POINTS: [f64; 13] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.4, 0.5, 0.6, 0.75, 0.9, 0.95, 0.975, 0.99];
const MEDIAN: usize = 6;
const UPPER: usize = 9;

/// Observations the table is learnt from.
const WINDOW: usize = 1000;

/// Observations below which the normal distribution's table is used.
const OBSERVATIONS_MIN: usize = 100;

/// `k` at each of [`SHAPE_POINTS`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QuantileShape {
    k: [f64; SHAPE_POINTS.len()],
}

impl Default for QuantileShape {
    /// A normal distribution's.
    fn default() -> Self {
        let upper = normal_quantile(SHAPE_POINTS[UPPER]);
        let mut k = std::array::from_fn(|i| normal_quantile(SHAPE_POINTS[i]) / upper);
        k[MEDIAN] = 0.0;
        k[UPPER] = 1.0;
        QuantileShape { k }
    }
}

impl QuantileShape {
    /// Takes a table if it is finite, non-decreasing and passes through both anchors.
    pub fn try_new(k: [f64; SHAPE_POINTS.len()]) -> Option<Self> {
        let sound = k.iter().all(|value| value.is_finite())
            && k.windows(2).all(|pair| pair[0] <= pair[1])
            && k[MEDIAN] == 0.0
            && k[UPPER] == 1.0;
        sound.then_some(QuantileShape { k })
    }

    /// The table, in the order of [`SHAPE_POINTS`].
    pub fn table(&self) -> &[f64; SHAPE_POINTS.len()] {
        &self.k
    }

    /// Factor on the spread for quantile `q`; non-decreasing in `q`, constant beyond the table's ends.
    pub fn k(&self, q: f64) -> f64 {
        let above = SHAPE_POINTS.iter().position(|&point| q <= point).unwrap_or(SHAPE_POINTS.len() - 1);
        if above == 0 {
            return self.k[0];
        }
        let (left, right) = (SHAPE_POINTS[above - 1], SHAPE_POINTS[above]);
        let share = ((q - left) / (right - left)).clamp(0.0, 1.0);
        self.k[above - 1] + (self.k[above] - self.k[above - 1]) * share
    }
}

/// The latest standardised residuals.
#[derive(Clone, Debug, Default)]
pub struct ShapeWindow {
    z: VecDeque<f64>,
}

impl ShapeWindow {
    /// Adds one finite standardised residual.
    pub fn add(&mut self, z: f64) {
        if self.z.len() == WINDOW {
            self.z.pop_front();
        }
        self.z.push_back(z);
    }

    /// The table of the window, or the normal's while there are too few.
    pub fn shape(&self) -> QuantileShape {
        if self.z.len() < OBSERVATIONS_MIN {
            return QuantileShape::default();
        }
        let mut sorted: Vec<f64> = self.z.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        let mut k = [0.0; SHAPE_POINTS.len()];
        for (i, &point) in SHAPE_POINTS.iter().enumerate() {
            let raw = quantile_of_sorted(&sorted, point).unwrap_or(0.0);
            k[i] = match i {
                _ if i < MEDIAN => raw.min(0.0),
                MEDIAN => 0.0,
                _ if i < UPPER => raw.clamp(0.0, 1.0),
                UPPER => 1.0,
                _ => raw.max(1.0),
            };
        }
        QuantileShape { k }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn i3_quantiles_never_cross(z in prop::collection::vec(-50.0..50.0f64, 0..300), a in 0.01..0.99f64, b in 0.01..0.99f64) {
            let mut window = ShapeWindow::default();
            z.iter().for_each(|&value| window.add(value));
            let shape = window.shape();
            prop_assert!(QuantileShape::try_new(*shape.table()).is_some());
            prop_assert!(shape.k(a.min(b)) <= shape.k(a.max(b)));
            prop_assert_eq!(shape.k(0.5), 0.0);
            prop_assert_eq!(shape.k(0.9), 1.0);
        }
    }

    #[test]
    fn the_normal_until_there_is_evidence_and_the_window_after() {
        let mut window = ShapeWindow::default();
        (0..99).for_each(|_| window.add(0.0));
        assert_eq!(window.shape(), QuantileShape::default());
        assert!((QuantileShape::default().k(0.95) - 1.6449 / 1.2816).abs() < 1e-3);
        (0..1000).for_each(|i| window.add(f64::from(i) / 1000.0 * 4.0 - 2.0));
        assert!((window.shape().k(0.25) + 1.0).abs() < 0.01);
    }
}
