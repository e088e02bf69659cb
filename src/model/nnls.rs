//! Non-negative least squares on normal equations (Lawson and Hanson's active set), with linfa's least squares inside.

use linfa::dataset::Dataset;
use linfa::traits::Fit;
use linfa_linear::LinearRegression;
use ndarray::{Array1, Array2};

use crate::features::{COLUMNS, Row};

/// Active-set changes after which the best point so far is taken: far above what twelve columns ever need.
const PIVOTS_MAX: usize = 200;

/// A system `A theta = b` accumulated from weighted rows; the upper triangle of `A` is kept.
#[derive(Clone, Debug)]
pub struct NormalEquations {
    a: [Row; COLUMNS],
    b: Row,
}

impl Default for NormalEquations {
    fn default() -> Self {
        NormalEquations { a: [[0.0; COLUMNS]; COLUMNS], b: [0.0; COLUMNS] }
    }
}

impl NormalEquations {
    /// Adds one row: `weight * (y - row . theta)^2`.
    pub fn add(&mut self, row: &Row, y: f64, weight: f64) {
        for (i, (sums, right)) in self.a.iter_mut().zip(&mut self.b).enumerate() {
            let weighted = weight * row[i];
            if weighted != 0.0 {
                sums.iter_mut().zip(row).skip(i).for_each(|(sum, value)| *sum += weighted * value);
                *right += weighted * y;
            }
        }
    }

    /// Adds `weight * (theta[column] - center)^2`.
    pub fn pull(&mut self, column: usize, center: f64, weight: f64) {
        self.a[column][column] += weight;
        self.b[column] += weight * center;
    }

    /// Least squares under `theta[j] >= 0` for `free[j]`, and `theta[j] = fixed[j]` for the others. `None` when the
    /// numbers are not finite or the inner solve fails.
    pub fn solve(&self, free: &[bool; COLUMNS], fixed: &Row) -> Option<Row> {
        let columns: Vec<usize> = (0..COLUMNS).filter(|&j| free[j]).collect();
        let mut theta = *fixed;
        if columns.is_empty() {
            return Some(theta);
        }
        let entry = |i: usize, j: usize| if i <= j { self.a[i][j] } else { self.a[j][i] };
        // Unit diagonal: columns differ by many orders of magnitude.
        let scale: Vec<f64> = columns.iter().map(|&j| 1.0 / entry(j, j).max(f64::MIN_POSITIVE).sqrt()).collect();
        let size = columns.len();
        let mut scaled = Array2::<f64>::zeros((size, size));
        let mut right = Array1::<f64>::zeros(size);
        for (p, &i) in columns.iter().enumerate() {
            for (q, &j) in columns.iter().enumerate() {
                scaled[(p, q)] = entry(i, j) * scale[p] * scale[q];
            }
            scaled[(p, p)] += 1e-12;
            let from_fixed: f64 = (0..COLUMNS).filter(|&j| !free[j]).map(|j| entry(i, j) * fixed[j]).sum();
            right[p] = (self.b[i] - from_fixed) * scale[p];
        }
        let root = cholesky(&scaled)?;
        let target = forward(&root, &right);
        let solution = lawson_hanson(&scaled, &right, &root, &target)?;
        for (p, &j) in columns.iter().enumerate() {
            theta[j] = solution[p] * scale[p];
        }
        theta.iter().all(|value| value.is_finite()).then_some(theta)
    }
}

/// Upper factor `R` with `R^T R = a`.
fn cholesky(a: &Array2<f64>) -> Option<Array2<f64>> {
    let size = a.nrows();
    let mut root = Array2::<f64>::zeros((size, size));
    for i in 0..size {
        for j in i..size {
            let dot: f64 = (0..i).map(|k| root[(k, i)] * root[(k, j)]).sum();
            let value = a[(i, j)] - dot;
            if i == j {
                if value.is_nan() {
                    return None;
                }
                // Columns that are copies of one another leave rounding noise here; the ridge decides between them.
                root[(i, i)] = value.max(1e-13).sqrt();
            } else {
                root[(i, j)] = value / root[(i, i)];
            }
        }
    }
    Some(root)
}

/// Solves `R^T z = b`.
fn forward(root: &Array2<f64>, b: &Array1<f64>) -> Array1<f64> {
    let mut z = b.clone();
    for i in 0..b.len() {
        let dot: f64 = (0..i).map(|k| root[(k, i)] * z[k]).sum();
        z[i] = (z[i] - dot) / root[(i, i)];
    }
    z
}

/// Lawson and Hanson, "Solving Least Squares Problems" (1974), chapter 23: columns enter by the steepest gradient and
/// leave at the boundary; the objective falls with every change, so it ends.
fn lawson_hanson(a: &Array2<f64>, b: &Array1<f64>, root: &Array2<f64>, target: &Array1<f64>) -> Option<Vec<f64>> {
    let size = b.len();
    let mut point = vec![0.0; size];
    let mut active: Vec<usize> = Vec::new();
    let tolerance = 1e-10 * b.iter().fold(f64::MIN_POSITIVE, |most, value| most.max(value.abs()));
    for _ in 0..PIVOTS_MAX {
        let gradient = |j: usize| b[j] - (0..size).map(|k| a[(j, k)] * point[k]).sum::<f64>();
        let entering = (0..size)
            .filter(|j| !active.contains(j))
            .map(|j| (j, gradient(j)))
            .filter(|&(_, slope)| slope > tolerance)
            .fold(None, |best: Option<(usize, f64)>, next| match best {
                Some(kept) if kept.1 >= next.1 => Some(kept),
                _ => Some(next),
            });
        let Some((column, _)) = entering else { break };
        active.push(column);
        active.sort_unstable();
        loop {
            let trial = least_squares(root, target, &active)?;
            if trial.iter().all(|&value| value > 0.0) {
                point.fill(0.0);
                active.iter().zip(&trial).for_each(|(&j, &value)| point[j] = value);
                break;
            }
            // Walk towards the trial until the first coefficient hits 0, and let that one go.
            let mut step = 1.0f64;
            for (&j, &value) in active.iter().zip(&trial) {
                if value <= 0.0 {
                    step = step.min(point[j] / (point[j] - value).max(f64::MIN_POSITIVE));
                }
            }
            let mut most_negative = (0usize, f64::INFINITY);
            for (&j, &value) in active.iter().zip(&trial) {
                point[j] += step * (value - point[j]);
                if value <= 0.0 && point[j] < most_negative.1 {
                    most_negative = (j, point[j]);
                }
            }
            point[most_negative.0] = 0.0;
            active.retain(|&j| point[j] > 0.0);
            if active.is_empty() {
                break;
            }
        }
    }
    Some(point)
}

/// Least squares of the factor's active columns against the transformed right side: the same minimum as the normal
/// equations of those columns, solved by QR and so at half the condition number.
fn least_squares(root: &Array2<f64>, target: &Array1<f64>, active: &[usize]) -> Option<Vec<f64>> {
    let design = root.select(ndarray::Axis(1), active);
    let dataset = Dataset::new(design, target.clone());
    let fitted = LinearRegression::default().with_intercept(false).fit(&dataset).ok()?;
    let solution = fitted.params().to_vec();
    solution.iter().all(|value| value.is_finite()).then_some(solution)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn objective(rows: &[(Row, f64)], theta: &Row) -> f64 {
        rows.iter()
            .map(|(row, y)| {
                let error = y - row.iter().zip(theta).map(|(a, b)| a * b).sum::<f64>();
                error * error
            })
            .sum()
    }

    proptest! {
        #[test]
        fn meets_the_optimality_conditions(
            raw in prop::collection::vec(prop::collection::vec(0.0..10.0f64, 5), 8..40),
            noise in prop::collection::vec(-3.0..3.0f64, 40),
            truth in prop::collection::vec(-2.0..4.0f64, 5),
        ) {
            let rows: Vec<(Row, f64)> = raw.iter().zip(&noise).map(|(values, error)| {
                let mut row = [0.0; COLUMNS];
                row[..5].copy_from_slice(values);
                let y = values.iter().zip(&truth).map(|(a, b)| a * b).sum::<f64>() + error;
                (row, y)
            }).collect();
            let mut equations = NormalEquations::default();
            rows.iter().for_each(|(row, y)| equations.add(row, *y, 1.0));
            let mut free = [false; COLUMNS];
            free[..5].fill(true);
            let theta = equations.solve(&free, &[0.0; COLUMNS]).unwrap();
            prop_assert!(theta.iter().all(|&value| value >= 0.0));
            let at = objective(&rows, &theta);
            for j in 0..5 {
                for step in [1e-3, -1e-3] {
                    let mut moved = theta;
                    moved[j] = (moved[j] + step).max(0.0);
                    prop_assert!(objective(&rows, &moved) >= at - 1e-6 * (1.0 + at), "column {} {:?}", j, theta);
                }
            }
        }
    }

    #[test]
    fn fixed_columns_stay_and_copies_are_shared_out() {
        let mut equations = NormalEquations::default();
        for x in 1..20 {
            let x = f64::from(x);
            let mut row = [0.0; COLUMNS];
            row[0] = 1.0;
            row[1] = x;
            row[2] = x;
            equations.add(&row, 5.0 + 3.0 * x, 1.0);
        }
        let mut free = [false; COLUMNS];
        free[1] = true;
        free[2] = true;
        let mut fixed = [0.0; COLUMNS];
        fixed[0] = 5.0;
        let theta = equations.solve(&free, &fixed).unwrap();
        assert_eq!(theta[0], 5.0);
        assert!((theta[1] + theta[2] - 3.0).abs() < 1e-4, "{theta:?}");
    }

    #[test]
    fn not_a_number_is_refused() {
        let mut equations = NormalEquations::default();
        equations.add(&[f64::NAN; COLUMNS], 1.0, 1.0);
        assert!(equations.solve(&[true; COLUMNS], &[0.0; COLUMNS]).is_none());
    }
}
