//! The base: physics-shaped, linear in its columns, coefficients never negative; fitted in a symmetric relative loss.

use super::nnls::NormalEquations;
use super::target::{FitSettings, Monotone};
use crate::features::{self, COLUMNS, REGIMES, Row, TTFT_ENCODER_COLUMN};
use crate::stats::quantile_of;
use crate::types::{Features, Target};

/// Samples from which a regime gets a fit of its own.
pub const REGIME_ROWS_MIN: usize = 10;

/// Rounds of reweighting.
const ROUNDS: usize = 6;

/// Pull of the prior in the pooled fit, in samples of typical size.
const LAMBDA_POOLED: f64 = 1.0;

/// Pull of the pooled fit in a regime's fit, in samples of typical size.
const LAMBDA_REGIME: f64 = 3.0;

/// Log ratio beyond which a sample's pull stops growing.
const ROBUST_LOG_RATIO: f64 = 0.5;

/// Share of the prediction below which a low outcome weighs no more.
const LOW_OUTCOME: f64 = 4.0;

/// Non-zero encoder inputs from which their column is fitted.
const ENCODER_ROWS_MIN: usize = 30;

/// Lowest base, ms.
pub const BASE_MS_MIN: f64 = 1.0;

/// Value of a base, ms: `max(columns . theta, 1)`.
#[inline]
pub fn base_ms(row: &Row, theta: &Row) -> f64 {
    let mut sum = 0.0;
    for j in 0..COLUMNS {
        sum += row[j] * theta[j];
    }
    sum.max(BASE_MS_MIN)
}

/// Weight of a row whose outcome is `actual` where the base so far says `predicted`. `tilt` is the anchor's.
///
/// For the median of TTFT: the weight under which least squares is stationary where the clipped log ratio is, so the base is a
/// robust centre in log ms and an outcome a thousand times too small or too large pulls like one twice as far off.
/// Elsewhere (`low`): `1 / (actual * predicted)`, which stays near the lower outcomes and leaves what lies above to the
/// regime table and the trees; measured better there than the log ratio's (TTFT p90 of changed streams 0.50 against 0.54
/// of the incumbent's loss, TPOT p90 of steady ones 0.85 against 0.87). Floored, so that outcomes near 0 do not rule.
fn weight(actual: f64, predicted: f64, tilt: f64, low: bool) -> f64 {
    let log_ratio = (actual / predicted).ln();
    let side = 2.0 * if actual > predicted { tilt } else { 1.0 - tilt };
    if low {
        let robust = if log_ratio.abs() > ROBUST_LOG_RATIO { ROBUST_LOG_RATIO / log_ratio.abs() } else { 1.0 };
        return side * robust / (actual.max(predicted / LOW_OUTCOME) * predicted);
    }
    let difference = actual - predicted;
    if difference.abs() < 1e-6 * predicted {
        return side / (predicted * predicted);
    }
    side * log_ratio.clamp(-ROBUST_LOG_RATIO, ROBUST_LOG_RATIO) / (predicted * difference)
}

/// A training row of one target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TrainingRow {
    /// Known at dispatch.
    pub features: Features,
    /// Observed, ms, > 0.
    pub actual_ms: f64,
    /// Number of the endpoint among those of the fit, from 1; 0 where the sample names none.
    pub endpoint: u32,
}

/// Fits the coefficients of every regime for one anchor. `tilt` is the share of weight on rows above the base: 0.5
/// fits the middle, 0.9 leans on the slow outcomes (an expectile). `None` when the numbers do not allow it.
pub fn fit(target: Target, rows: &[TrainingRow], settings: &FitSettings, tilt: f64) -> Option<[Row; REGIMES]> {
    let prior_theta = settings.prior.theta(target);
    let design: Vec<(Row, f64, usize)> = rows
        .iter()
        .map(|row| (features::columns(target, &row.features), row.actual_ms, features::regime(target, &row.features)))
        .collect();
    let pooled = fit_one(target, &design, None, &prior_theta, LAMBDA_POOLED, tilt)?;
    let mut thetas = [pooled; REGIMES];
    // Where monotonicity is strict there is one regime, since two fits may step down between them.
    if target == Target::Ttft && settings.monotone == Monotone::Tendency {
        for (regime, theta) in thetas.iter_mut().enumerate() {
            if design.iter().filter(|(_, _, of)| *of == regime).count() >= REGIME_ROWS_MIN {
                *theta = fit_one(target, &design, Some(regime), &pooled, LAMBDA_REGIME, tilt)?;
            }
        }
    }
    Some(thetas)
}

/// Minimises `sum W (y - C theta)^2 + lambda sum (s_j / y_median)^2 (theta_j - center_j)^2`, `theta >= 0`, reweighted
/// from round to round.
fn fit_one(
    target: Target,
    design: &[(Row, f64, usize)],
    only: Option<usize>,
    center: &Row,
    lambda: f64,
    tilt: f64,
) -> Option<Row> {
    let members = || design.iter().filter(move |(_, _, of)| only.is_none_or(|regime| regime == *of));
    let mut square_sums = [0.0; COLUMNS];
    let mut outcomes = Vec::with_capacity(design.len());
    let mut log_ratios = Vec::with_capacity(design.len());
    let mut encoder_rows = 0usize;
    for (row, actual, _) in members() {
        for j in 0..COLUMNS {
            square_sums[j] += row[j] * row[j];
        }
        encoder_rows += usize::from(target == Target::Ttft && row[TTFT_ENCODER_COLUMN] > 0.0);
        outcomes.push(*actual);
        log_ratios.push((actual / base_ms(row, center)).ln());
    }
    let count = outcomes.len() as f64;
    let median = quantile_of(&mut outcomes, 0.5)?;
    // A column that was always 0 says nothing: its coefficient stays where it was.
    let mut free: [bool; COLUMNS] = std::array::from_fn(|j| square_sums[j] > 0.0);
    if target == Target::Ttft && encoder_rows < ENCODER_ROWS_MIN {
        free[TTFT_ENCODER_COLUMN] = false;
    }
    // The first weights come from the centre at the outcomes' median speed, so that no single outcome sets them.
    let speed = quantile_of(&mut log_ratios, 0.5)?.exp();
    let mut theta = center.map(|value| value * speed);
    let low = target == Target::Tpot || tilt > 0.5;
    for _ in 0..ROUNDS {
        let mut equations = NormalEquations::default();
        for (row, actual, _) in members() {
            equations.add(row, *actual, weight(*actual, base_ms(row, &theta), tilt, low));
        }
        for j in 0..COLUMNS {
            if free[j] {
                let size = square_sums[j] / count;
                equations.pull(j, center[j], lambda * size / (median * median));
            }
        }
        theta = equations.solve(&free, center)?;
    }
    Some(theta)
}
