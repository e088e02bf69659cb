//! How far each endpoint of a pool departs from the others: one log factor an endpoint, shrunk by evidence.

use super::base::{self, TrainingRow, base_ms};
use super::target::{FitSettings, Monotone};
use crate::features;
use crate::types::{EndpointName, Target};

/// Rounds of fitting the base to what the scales leave, and the scales to what the base leaves.
const ROUNDS: usize = 3;

/// Log ratio beyond which one sample pulls no further.
const RATIO_MAX: f64 = 1.5;

/// Bounds of the pull of the pool on one endpoint, in samples. Where endpoints differ clearly it is the lower one.
const POOL_ROWS_MIN: f64 = 1.0;
const POOL_ROWS_MAX: f64 = 1e6;

/// One endpoint's departure from the pool.
#[derive(Clone, Debug, PartialEq)]
pub struct EndpointScale {
    /// Which.
    pub endpoint: EndpointName,
    /// `ln` of how many times slower than the pool's median endpoint it is.
    pub log_scale: f64,
    /// Samples behind it.
    pub rows: usize,
}

/// Scales by endpoint number; number 0 are the samples that name none.
pub(super) struct Scales {
    log: Vec<f64>,
    rows: Vec<usize>,
}

impl Scales {
    /// Of an endpoint number.
    pub(super) fn log_of(&self, endpoint: u32) -> f64 {
        self.log.get(endpoint as usize).copied().unwrap_or(0.0)
    }

    /// Those of endpoints that have a name and samples, ascending.
    pub(super) fn named(&self, endpoints: &[Option<EndpointName>]) -> Vec<EndpointScale> {
        if self.log.iter().all(|log| *log == 0.0) {
            return Vec::new();
        }
        let numbered = endpoints.iter().zip(self.log.iter().zip(&self.rows).skip(1));
        let mut named: Vec<EndpointScale> = numbered
            .filter(|(_, (_, rows))| **rows > 0)
            .filter_map(|(name, (log, rows))| {
                name.clone().map(|endpoint| EndpointScale { endpoint, log_scale: *log, rows: *rows })
            })
            .collect();
        named.sort_by(|a, b| a.endpoint.cmp(&b.endpoint));
        named.dedup_by(|a, b| a.endpoint == b.endpoint);
        named
    }
}

/// Fits the scales of `endpoints` numbered ones; all 0 unless two groups have samples. `None` when the numbers do not
/// allow it.
///
/// Each endpoint's mean log ratio is shrunk by `variance within / variance between` samples (the best linear estimate
/// when both are normal): endpoints that differ by noise alone get 0, endpoints of two speeds keep theirs. Samples that
/// name no endpoint have scale 0; where there are none, the pool's (lower) median endpoint has.
pub(super) fn fit(target: Target, rows: &[TrainingRow], endpoints: usize, settings: &FitSettings) -> Option<Scales> {
    let mut counts = vec![0usize; endpoints + 1];
    for row in rows {
        if let Some(count) = counts.get_mut(row.endpoint as usize) {
            *count += 1;
        }
    }
    let mut scales = Scales { log: vec![0.0; counts.len()], rows: counts };
    if scales.rows.iter().filter(|count| **count > 0).count() < 2 {
        return Some(scales);
    }
    let strict = settings.monotone == Monotone::Strict;
    let mut scaled = rows.to_vec();
    for _ in 0..ROUNDS {
        for (scaled, row) in scaled.iter_mut().zip(rows) {
            scaled.actual_ms = row.actual_ms * (-scales.log_of(row.endpoint)).exp();
        }
        let thetas = base::fit(target, &scaled, settings, 0.5)?;
        let mut sums = vec![0.0; scales.log.len()];
        let mut squares = 0.0;
        for row in rows {
            let Some(sum) = sums.get_mut(row.endpoint as usize) else { continue };
            let regime = if strict { 0 } else { features::regime(target, &row.features) };
            let base = base_ms(&features::columns(target, &row.features), &thetas[regime]);
            // Clipped around what the endpoint's scale was, so that a slow endpoint's own samples are not the outliers.
            let scale = scales.log_of(row.endpoint);
            let beyond = ((row.actual_ms / base).ln() - scale).clamp(-RATIO_MAX, RATIO_MAX);
            *sum += scale + beyond;
            squares += beyond * beyond;
        }
        scales.log = shrunk(&sums, &scales.rows, squares);
    }
    Some(scales)
}

/// Means pulled towards their own centre, then set against the reference.
fn shrunk(sums: &[f64], counts: &[usize], squares: f64) -> Vec<f64> {
    let means: Vec<Option<(f64, f64)>> = sums
        .iter()
        .zip(counts)
        .map(|(sum, count)| (*count > 0).then(|| (*sum / *count as f64, *count as f64)))
        .collect();
    let rows: f64 = means.iter().flatten().map(|(_, count)| count).sum();
    let centre = means.iter().flatten().map(|(mean, count)| mean * count).sum::<f64>() / rows;
    let within = squares / rows;
    let noise = within * means.iter().flatten().count() as f64 / rows;
    let between =
        means.iter().flatten().map(|(mean, count)| count * (mean - centre).powi(2)).sum::<f64>() / rows - noise;
    let pool_rows = if between > 0.0 { (within / between).clamp(POOL_ROWS_MIN, POOL_ROWS_MAX) } else { f64::INFINITY };
    let pulled: Vec<Option<f64>> =
        means.iter().map(|group| group.map(|(mean, count)| (mean - centre) * count / (count + pool_rows))).collect();
    let reference = pulled[0].unwrap_or_else(|| {
        let mut known: Vec<f64> = pulled.iter().flatten().copied().collect();
        known.sort_by(f64::total_cmp);
        // The lower of two middle ones: half the pool slow leaves the fast half at 1.
        known.get(known.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
    });
    pulled.iter().map(|value| value.map_or(0.0, |value| value - reference)).collect()
}
