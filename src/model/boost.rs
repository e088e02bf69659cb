//! Growing the residual trees of one anchor: pinball gradients, histogram splits, monotone constraints, leaves refitted
//! to the quantile; the number of trees by blocked cross-validation, none unless they help.
//!
//! The method is gradient boosting as in J. Friedman, "Greedy function approximation" (2001), with quantile leaves. Two
//! facts keep it fast: the gradient of the pinball loss has two values, so a histogram needs two counts, which share one
//! 64-bit word; and the larger child's histogram is its parent's minus its sibling's.

use super::bins::{BINS, BinnedRows};
use super::forest::{DEPTH, Forest, LEAVES, TREES_MAX, Tree};
use crate::features::{RESIDUAL_WIDTH, ResidualRow};
use crate::stats::{pinball, quantile_of};

/// Share of a leaf's quantile that is taken per tree.
const LEARNING_RATE: f64 = 0.12;

/// Pull of zero in gains and leaves, in rows.
const SHRINKAGE_ROWS: f64 = 5.0;

/// Folds of the cross-validation, each made of every third of nine consecutive blocks: neighbours share a queue, so
/// random folds would leak.
const FOLDS: usize = 3;
const BLOCKS: usize = 9;

/// Held-out loss that the trees must remove before any is kept, as a share.
const EVIDENCE: f64 = 0.01;

/// Least gain of a split.
const GAIN_MIN: f64 = 1e-9;

/// What to fit.
pub(super) struct BoostTask<'a> {
    /// Residual features, oldest row first.
    pub(super) rows: &'a [ResidualRow],
    /// The same, binned.
    pub(super) binned: &'a BinnedRows,
    /// Log residuals of the base, one a row.
    pub(super) residuals: &'a [f64],
    /// The anchor's quantile.
    pub(super) quantile: f64,
    /// Direction per feature; `None` leaves it unused.
    pub(super) signs: &'a [Option<i8>],
}

/// Fits a forest; without trees when they do not remove at least one hundredth of the held-out loss.
pub(super) fn fit(task: &BoostTask<'_>) -> Forest {
    let count = task.rows.len();
    let block = |index: usize| index * BLOCKS / count.max(1) % FOLDS;
    let q = task.quantile;
    let mut losses = vec![0.0; TREES_MAX + 1];
    let mut held_residuals: Vec<Vec<f64>> = vec![Vec::new(); TREES_MAX + 1];
    for fold in 0..FOLDS {
        let members: Vec<u32> = (0..count as u32).filter(|&index| block(index as usize) != fold).collect();
        let held: Vec<usize> = (0..count).filter(|&index| block(index) == fold).collect();
        let trees = grow_forest(task, members, TREES_MAX).0;
        let mut left: Vec<f64> = held.iter().map(|&index| task.residuals[index]).collect();
        for used in 0..=TREES_MAX {
            if let Some(tree) = used.checked_sub(1).and_then(|index| trees.get(index)) {
                for (left, &index) in left.iter_mut().zip(&held) {
                    *left -= f64::from(tree.value(&task.rows[index]));
                }
            }
            losses[used] += left.iter().map(|&residual| pinball(residual, 0.0, q)).sum::<f64>();
            held_residuals[used].extend_from_slice(&left);
        }
    }
    let mut best = 0;
    for used in 1..=TREES_MAX {
        if losses[used] < losses[best] {
            best = used;
        }
    }
    if best == 0 || losses[best] > (1.0 - EVIDENCE) * losses[0] {
        return Forest::default();
    }
    let (trees, gains) = grow_forest(task, (0..count as u32).collect(), best);
    let constant = quantile_of(&mut held_residuals[best], q).unwrap_or(0.0);
    Forest { trees, constant, gains }
}

/// Grows up to `trees_max` trees on the rows `members`; stops early when a tree has no split.
fn grow_forest(task: &BoostTask<'_>, members: Vec<u32>, trees_max: usize) -> (Vec<Tree>, [f32; RESIDUAL_WIDTH]) {
    let count = members.len();
    let mut grower = Grower {
        task,
        order: members,
        spare: Vec::with_capacity(count),
        left: task.residuals.to_vec(),
        scratch: Vec::with_capacity(count),
        leaf_rows_min: (count / 50).clamp(10, 30),
        gains: [0.0; RESIDUAL_WIDTH],
    };
    let mut trees = Vec::with_capacity(trees_max);
    for _ in 0..trees_max {
        match grower.grow() {
            Some(tree) => trees.push(tree),
            None => break,
        }
    }
    let total: f64 = grower.gains.iter().sum();
    let gains = grower.gains.map(|gain| if total > 0.0 { (gain / total) as f32 } else { 0.0 });
    (trees, gains)
}

/// Rows (upper half) and rows above the current prediction (lower half) of each bin.
type Histogram = [[u64; BINS]; RESIDUAL_WIDTH];

const ROW: u64 = 1 << 32;

/// A node being grown: its rows are `order[start..end]`.
#[derive(Clone, Copy)]
struct Node {
    number: usize,
    depth: usize,
    start: usize,
    end: usize,
    low: f64,
    high: f64,
}

struct Split {
    feature: usize,
    bin: u8,
    gain: f64,
}

struct Grower<'a> {
    task: &'a BoostTask<'a>,
    /// Row numbers; a node's rows are contiguous, and stay in order.
    order: Vec<u32>,
    spare: Vec<u32>,
    /// What the trees so far leave of each residual.
    left: Vec<f64>,
    scratch: Vec<f64>,
    leaf_rows_min: usize,
    gains: [f64; RESIDUAL_WIDTH],
}

impl Grower<'_> {
    /// One tree; `None` when even the root has no split worth making.
    fn grow(&mut self) -> Option<Tree> {
        let root =
            Node { number: 0, depth: 0, start: 0, end: self.order.len(), low: f64::NEG_INFINITY, high: f64::INFINITY };
        let histogram = self.histogram(root.start, root.end);
        let mut tree = Tree::constant(0.0);
        self.divide(root, histogram, &mut tree);
        (tree.thresholds[0] < f32::INFINITY).then_some(tree)
    }

    fn divide(&mut self, node: Node, mut histogram: Box<Histogram>, tree: &mut Tree) {
        let split = if node.depth < DEPTH { self.best_split(&node, &histogram) } else { None };
        let Some(split) = split else {
            self.settle(&node, tree);
            return;
        };
        self.gains[split.feature] += split.gain;
        tree.features[node.number] = split.feature as u8;
        tree.thresholds[node.number] = self.task.binned.edges[split.feature][usize::from(split.bin)];
        let middle = self.partition(&node, &split);
        let mut left = Node { number: 2 * node.number + 1, depth: node.depth + 1, end: middle, ..node };
        let mut right = Node { number: 2 * node.number + 2, depth: node.depth + 1, start: middle, ..node };
        let sign = self.task.signs[split.feature].unwrap_or(0);
        if sign != 0 {
            let between = ((self.leaf_value(&left) + self.leaf_value(&right)) / 2.0).clamp(node.low, node.high);
            let (lower, upper) = if sign > 0 { (&mut left, &mut right) } else { (&mut right, &mut left) };
            lower.high = between;
            upper.low = between;
        }
        if node.depth + 1 == DEPTH {
            self.settle(&left, tree);
            self.settle(&right, tree);
            return;
        }
        let left_is_smaller = middle - node.start <= node.end - middle;
        let smaller = if left_is_smaller { &left } else { &right };
        let of_smaller = self.histogram(smaller.start, smaller.end);
        for (whole, part) in histogram.iter_mut().flatten().zip(of_smaller.iter().flatten()) {
            *whole -= part;
        }
        let (of_left, of_right) = if left_is_smaller { (of_smaller, histogram) } else { (histogram, of_smaller) };
        self.divide(left, of_left, tree);
        self.divide(right, of_right, tree);
    }

    fn histogram(&self, start: usize, end: usize) -> Box<Histogram> {
        let mut histogram = Box::new([[0u64; BINS]; RESIDUAL_WIDTH]);
        let width = self.task.signs.len();
        for &row in &self.order[start..end] {
            let entry = ROW | u64::from(self.left[row as usize] > 0.0);
            let bins = &self.task.binned.bins[row as usize];
            for (counts, bin) in histogram.iter_mut().zip(bins).take(width) {
                counts[usize::from(*bin) & (BINS - 1)] += entry;
            }
        }
        histogram
    }

    /// The split that removes most loss, the lowest feature and bin among equals.
    fn best_split(&self, node: &Node, histogram: &Histogram) -> Option<Split> {
        let rows = node.end - node.start;
        if rows < 2 * self.leaf_rows_min {
            return None;
        }
        let whole: u64 = histogram[0].iter().sum();
        // Gradient sum: q for each row above the prediction, q - 1 for each other.
        let gradient = |counts: u64| {
            let (all, above) = ((counts >> 32) as f64, (counts & (ROW - 1)) as f64);
            (above - (1.0 - self.task.quantile) * all, all)
        };
        let worth = |(sum, all): (f64, f64)| sum * sum / (all + SHRINKAGE_ROWS);
        let undivided = worth(gradient(whole));
        let mut best: Option<Split> = None;
        for (feature, (counts, sign)) in histogram.iter().zip(self.task.signs).enumerate() {
            let Some(sign) = sign else { continue };
            let edges = self.task.binned.edges[feature].len();
            let mut lower = 0u64;
            for (bin, count) in counts.iter().enumerate().take(edges) {
                lower += count;
                let lower_rows = (lower >> 32) as usize;
                if lower_rows < self.leaf_rows_min {
                    continue;
                }
                if rows - lower_rows < self.leaf_rows_min {
                    break;
                }
                let (below, above) = (gradient(lower), gradient(whole - lower));
                let slope = above.0 / above.1 - below.0 / below.1;
                if f64::from(*sign) * slope < 0.0 {
                    continue;
                }
                let gain = worth(below) + worth(above) - undivided;
                if gain > best.as_ref().map_or(GAIN_MIN, |best| best.gain) {
                    best = Some(Split { feature, bin: bin as u8, gain });
                }
            }
        }
        best
    }

    /// Moves the node's rows with a greater bin behind the others; returns where they begin.
    fn partition(&mut self, node: &Node, split: &Split) -> usize {
        self.spare.clear();
        let mut middle = node.start;
        for index in node.start..node.end {
            let row = self.order[index];
            if self.task.binned.bins[row as usize][split.feature] > split.bin {
                self.spare.push(row);
            } else {
                self.order[middle] = row;
                middle += 1;
            }
        }
        self.order[middle..node.end].copy_from_slice(&self.spare);
        middle
    }

    /// The quantile of what is left in a node, shrunk towards 0.
    fn leaf_value(&mut self, node: &Node) -> f64 {
        self.scratch.clear();
        let left = &self.left;
        self.scratch.extend(self.order[node.start..node.end].iter().map(|&row| left[row as usize]));
        let rows = self.scratch.len() as f64;
        quantile_of(&mut self.scratch, self.task.quantile).unwrap_or(0.0) * rows / (rows + SHRINKAGE_ROWS)
    }

    /// Makes a node a leaf: every leaf below it gets its value, and its rows are corrected by it.
    fn settle(&mut self, node: &Node, tree: &mut Tree) {
        let value = (self.leaf_value(node).clamp(node.low, node.high) * LEARNING_RATE) as f32;
        let levels = DEPTH - node.depth;
        let first = ((node.number + 1) << levels) - LEAVES;
        tree.leaves[first..first + (1 << levels)].fill(value);
        for &row in &self.order[node.start..node.end] {
            self.left[row as usize] -= f64::from(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn rows(values: &[(f32, f32)]) -> Vec<ResidualRow> {
        values
            .iter()
            .map(|&(a, b)| {
                let mut row = [0.0; RESIDUAL_WIDTH];
                (row[0], row[1]) = (a, b);
                row
            })
            .collect()
    }

    fn fitted(rows: &[ResidualRow], residuals: &[f64], quantile: f64, signs: &[Option<i8>]) -> Forest {
        let binned = BinnedRows::new(rows, signs.len());
        fit(&BoostTask { rows, binned: &binned, residuals, quantile, signs })
    }

    #[test]
    fn a_step_is_learnt_and_noise_is_not() {
        let points: Vec<(f32, f32)> = (0..900).map(|i| ((i * 37 % 100) as f32, (i * 53 % 71) as f32)).collect();
        let noise = |i: usize| ((i * 7919 % 101) as f64 / 101.0 - 0.5) * 0.2;
        let rows = rows(&points);
        let step: Vec<f64> =
            points.iter().enumerate().map(|(i, (a, _))| noise(i) + if *a > 60.0 { 0.8 } else { 0.0 }).collect();
        let forest = fitted(&rows, &step, 0.5, &[Some(0), Some(0)]);
        assert!(!forest.trees.is_empty() && forest.gains[0] > 0.9, "{:?}", forest.gains);
        let at = |a: f32| forest.value(&self::rows(&[(a, 10.0)])[0]);
        assert!((at(90.0) - 0.8).abs() < 0.1 && at(10.0).abs() < 0.1, "{} {}", at(90.0), at(10.0));
        let nothing: Vec<f64> = (0..900).map(noise).collect();
        assert_eq!(fitted(&rows, &nothing, 0.5, &[Some(0), Some(0)]), Forest::default());
    }

    #[test]
    fn an_unused_feature_is_not_split_on() {
        let points: Vec<(f32, f32)> = (0..500).map(|i| ((i % 50) as f32, (i % 50) as f32)).collect();
        let residuals: Vec<f64> = points.iter().map(|(a, _)| f64::from(*a) / 25.0).collect();
        let forest = fitted(&rows(&points), &residuals, 0.5, &[None, Some(0)]);
        assert!(!forest.trees.is_empty());
        assert!(forest.trees.iter().flat_map(Tree::splits).all(|(feature, _)| feature == 1));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]
        #[test]
        fn constraints_hold_everywhere_and_everything_is_finite(
            points in prop::collection::vec((0..40u8, 0..40u8, -3.0..3.0f64), 100..400),
            slope in -1.0..1.0f64,
            quantile in prop::sample::select(vec![0.5, 0.9]),
            at in (-10.0..50.0f32, -10.0..50.0f32),
            more in 0.0..30.0f32,
        ) {
            let values: Vec<(f32, f32)> = points.iter().map(|&(a, b, _)| (f32::from(a), f32::from(b))).collect();
            let residuals: Vec<f64> = points.iter().map(|&(a, b, noise)| slope * f64::from(a) * f64::from(b) / 40.0 + noise).collect();
            let rows = rows(&values);
            let forest = fitted(&rows, &residuals, quantile, &[Some(1), Some(-1)]);
            prop_assert!(forest.is_sound());
            let value = |a: f32, b: f32| forest.value(&self::rows(&[(a, b)])[0]);
            prop_assert!(value(at.0 + more, at.1) >= value(at.0, at.1));
            prop_assert!(value(at.0, at.1 + more) <= value(at.0, at.1));
            prop_assert_eq!(forest, fitted(&rows, &residuals, quantile, &[Some(1), Some(-1)]));
        }
    }
}
