//! The residual trees as they are evaluated: complete binary trees of one depth in flat arrays, descended without a
//! branch. An unsplit node sends everything to the left, where all leaves below it hold the same value.

use crate::features::{RESIDUAL_WIDTH, ResidualRow};

/// Splits from the root to a leaf.
pub const DEPTH: usize = 4;

/// Leaves of a tree.
pub const LEAVES: usize = 1 << DEPTH;

/// Most trees of one forest.
pub const TREES_MAX: usize = 60;

const _: () = assert!(RESIDUAL_WIDTH == LEAVES, "one mask serves features, nodes and leaves");
const MASK: usize = LEAVES - 1;

/// One tree. Node `i` has its children at `2 i + 1` and `2 i + 2`; the last of the 16 entries is padding.
#[derive(Clone, Debug, PartialEq)]
pub struct Tree {
    /// Feature each node looks at.
    pub features: [u8; LEAVES],
    /// A row goes right where its feature exceeds this; infinite where the node is not split.
    pub thresholds: [f32; LEAVES],
    /// Log ms, left to right.
    pub leaves: [f32; LEAVES],
}

impl Tree {
    /// A tree without splits.
    pub fn constant(value: f32) -> Self {
        Tree { features: [0; LEAVES], thresholds: [f32::INFINITY; LEAVES], leaves: [value; LEAVES] }
    }

    /// Log ms for one row.
    #[inline]
    pub fn value(&self, row: &ResidualRow) -> f32 {
        let mut node = 0usize;
        for _ in 0..DEPTH {
            let feature = usize::from(self.features[node & MASK]) & MASK;
            node = 2 * node + 1 + usize::from(row[feature] > self.thresholds[node & MASK]);
        }
        // Nodes of the last level are numbered 15 to 30: one more than a multiple of 16 is leaf 0.
        self.leaves[(node + 1) & MASK]
    }

    /// Whether it can be evaluated and answers finite numbers: thresholds are numbers, leaves finite.
    pub fn is_sound(&self) -> bool {
        self.features.iter().all(|feature| usize::from(*feature) < RESIDUAL_WIDTH)
            && self.thresholds.iter().all(|threshold| !threshold.is_nan())
            && self.leaves.iter().all(|leaf| leaf.is_finite())
    }

    /// Nodes that are split, each as (feature, threshold).
    pub fn splits(&self) -> impl Iterator<Item = (usize, f32)> + '_ {
        let nodes = self.features.iter().zip(&self.thresholds).take(LEAVES - 1);
        nodes
            .filter(|(_, threshold)| threshold.is_finite())
            .map(|(feature, threshold)| (usize::from(*feature), *threshold))
    }
}

/// The residual of one anchor: trees and a constant, in log ms. Without trees it is 0.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Forest {
    /// Summed in order.
    pub trees: Vec<Tree>,
    /// What held-out rows lay above the trees at this anchor's quantile; 0 without trees.
    pub constant: f64,
    /// Loss removed by the splits of each residual feature, as a share of all; 0 for unused ones.
    pub gains: [f32; RESIDUAL_WIDTH],
}

impl Forest {
    /// Log ms for one row.
    #[inline]
    pub fn value(&self, row: &ResidualRow) -> f64 {
        let mut sum = self.constant;
        for tree in &self.trees {
            sum += f64::from(tree.value(row));
        }
        sum
    }

    /// Whether every number in it is possible.
    pub fn is_sound(&self) -> bool {
        self.trees.len() <= TREES_MAX
            && self.constant.is_finite()
            && self.gains.iter().all(|gain| gain.is_finite())
            && self.trees.iter().all(Tree::is_sound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_leaf_is_reached_by_its_own_path() {
        let mut tree = Tree::constant(0.0);
        for node in 0..LEAVES - 1 {
            // Level d looks at feature d.
            tree.features[node] = (usize::BITS - 1 - (node + 1).leading_zeros()) as u8;
            tree.thresholds[node] = 0.5;
        }
        tree.leaves = std::array::from_fn(|leaf| leaf as f32);
        for leaf in 0..LEAVES {
            let mut row = [0.0; RESIDUAL_WIDTH];
            for (level, value) in row.iter_mut().enumerate().take(DEPTH) {
                *value = f32::from(u8::from(leaf >> (DEPTH - 1 - level) & 1 == 1));
            }
            assert_eq!(tree.value(&row), leaf as f32);
        }
        assert_eq!(tree.splits().count(), LEAVES - 1);
        assert_eq!(Tree::constant(3.0).value(&[9.0; RESIDUAL_WIDTH]), 3.0);
    }
}
