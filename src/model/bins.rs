//! Binned training rows: each residual feature cut at quantiles, so that a split is a number from 0 to 63.

use crate::features::{RESIDUAL_WIDTH, ResidualRow};

/// Bins of a feature.
pub(super) const BINS: usize = 64;

/// Rows as bin numbers, and the edges between the bins.
pub(super) struct BinnedRows {
    /// Bin of each feature of each row: the number of edges below its value.
    pub(super) bins: Vec<[u8; RESIDUAL_WIDTH]>,
    /// Ascending edges of each feature; a feature with one value has none.
    pub(super) edges: Vec<Vec<f32>>,
}

impl BinnedRows {
    /// Cuts the first `width` features of finite rows.
    pub(super) fn new(rows: &[ResidualRow], width: usize) -> Self {
        let mut bins = vec![[0; RESIDUAL_WIDTH]; rows.len()];
        let mut values: Vec<f32> = Vec::with_capacity(rows.len());
        let edges: Vec<Vec<f32>> = (0..width)
            .map(|feature| {
                values.clear();
                values.extend(rows.iter().map(|row| row[feature]));
                values.sort_unstable_by(f32::total_cmp);
                let edges = edges_of(&values);
                for (bins, row) in bins.iter_mut().zip(rows) {
                    bins[feature] = edges.partition_point(|edge| *edge < row[feature]) as u8;
                }
                edges
            })
            .collect();
        BinnedRows { bins, edges }
    }
}

/// At most `BINS - 1` edges halfway between neighbouring values: all of them where there are few, quantiles otherwise.
fn edges_of(sorted: &[f32]) -> Vec<f32> {
    let between = |index: usize| halfway(sorted[index - 1], sorted[index]);
    let starts: Vec<usize> = (1..sorted.len()).filter(|&index| sorted[index - 1] < sorted[index]).collect();
    if starts.len() < BINS {
        return starts.into_iter().map(between).collect();
    }
    let mut edges = Vec::with_capacity(BINS - 1);
    let mut latest = 0;
    for cut in 1..BINS {
        let wanted = cut * sorted.len() / BINS;
        // The first change of value at or after the quantile.
        let at = starts.partition_point(|&start| start < wanted.max(latest + 1));
        let Some(&start) = starts.get(at) else { break };
        edges.push(between(start));
        latest = start;
    }
    edges
}

/// A number above `low` that is not above `high`.
fn halfway(low: f32, high: f32) -> f32 {
    let middle = low + (high - low) / 2.0;
    if middle > low { middle } else { high }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn bins_are_in_the_order_of_values_and_within_bounds(values in prop::collection::vec(-1e9..1e9f32, 1..400)) {
            let rows: Vec<ResidualRow> = values.iter().map(|&value| { let mut row = [0.0; RESIDUAL_WIDTH]; row[0] = value; row }).collect();
            let binned = BinnedRows::new(&rows, 2);
            prop_assert!(binned.edges[0].len() < BINS && binned.edges[1].is_empty());
            prop_assert!(binned.edges[0].windows(2).all(|pair| pair[0] < pair[1]));
            for (a, bins_a) in values.iter().zip(&binned.bins) {
                for (b, bins_b) in values.iter().zip(&binned.bins) {
                    prop_assert!(!(a < b && bins_a[0] > bins_b[0]));
                }
                let bin = usize::from(bins_a[0]);
                // The same comparison that the finished tree makes on the raw value.
                for (edge_number, edge) in binned.edges[0].iter().enumerate() {
                    prop_assert_eq!(*a > *edge, bin > edge_number);
                }
            }
        }
    }

    #[test]
    fn few_values_are_kept_apart_exactly() {
        let values = [0.0, 0.0, 1.0, 1.0, 5.0];
        assert_eq!(edges_of(&values), [0.5, 3.0]);
        assert_eq!(halfway(1.0, f32::from_bits(1.0f32.to_bits() + 1)), f32::from_bits(1.0f32.to_bits() + 1));
    }
}
