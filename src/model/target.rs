//! One target's model: the base of each regime, the regime's log-ratio quantiles, and the range it was trained on.

use super::base::{self, TrainingRow, base_ms};
use super::prior::{PRIOR_SPREAD, Prior};
use crate::features::{self, RANGE_FLOOR, REGIMES, Row};
use crate::stats::{mean, quantile_of};
use crate::types::{Features, Target};

/// The two quantiles that are modelled; every other one is derived from them.
pub const ANCHORS: [f64; 2] = [0.5, 0.9];

/// Least distance between the anchors in log ms, so that quantiles never cross.
pub const SPREAD_MIN: f64 = 0.03;

/// Largest log correction around the base: with the base at least 1 ms, answers stay finite and positive.
pub const CORRECTION_MAX: f64 = 4.0;

/// Largest coefficient taken as possible, ms per unit: a day and more per request or per 1000 tokens.
const COEFFICIENT_MAX: f64 = 1e9;

/// Pull of the prior and of the pool in the regime table, in samples.
const PRIOR_ROWS: f64 = 10.0;
const POOL_ROWS: f64 = 20.0;

/// Samples from which a regime has log-ratio quantiles of its own.
const REGIME_QUANTILE_ROWS_MIN: usize = 5;

/// Share of training rows inside the watched range.
const RANGE_QUANTILE: f64 = 0.99;

/// One regime of a target.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Regime {
    /// Coefficients of the base of each anchor, ms per unit, never negative.
    pub thetas: [Row; 2],
    /// Each anchor's quantile of `ln(actual / its base)`, shrunk towards the pool and the prior.
    pub log_quantiles: [f64; 2],
    /// Training rows in this regime.
    pub rows: usize,
}

/// A target's fitted model.
#[derive(Clone, Debug, PartialEq)]
pub struct TargetModel {
    /// What it predicts.
    pub target: Target,
    /// By [`features::regime`]; both equal where the target has one regime.
    pub regimes: [Regime; REGIMES],
    /// 99 % quantiles of the watched inputs over the training rows, in the order of [`features::RANGED`].
    pub range_top: [f64; 4],
    /// Training rows; 0 for the prior.
    pub rows: usize,
}

/// A prediction before online corrections: the two anchors in log ms.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Anchors {
    /// Base of each anchor, ms.
    pub base_ms: [f64; 2],
    /// Which regime.
    pub regime: usize,
    /// `ln Q50` and `ln Q90`, ms.
    pub log: [f64; 2],
}

impl Anchors {
    /// `ln Q90 - ln Q50`, at least [`SPREAD_MIN`].
    pub fn spread(&self) -> f64 {
        self.log[1] - self.log[0]
    }
}

impl TargetModel {
    /// Physics with prior constants, no rows behind it.
    pub fn prior(target: Target, prior: &Prior) -> Self {
        let regime = Regime { thetas: [prior.theta(target); 2], log_quantiles: [0.0, PRIOR_SPREAD], rows: 0 };
        // Physics extrapolates by construction, so nothing is beyond the range of a model that has none.
        TargetModel { target, regimes: [regime; REGIMES], range_top: [f64::MAX; 4], rows: 0 }
    }

    /// Fits base and regime table. `None` when the numbers do not allow it.
    pub fn fit(target: Target, rows: &[TrainingRow], prior: &Prior) -> Option<Self> {
        let thetas = [base::fit(target, rows, prior, ANCHORS[0])?, base::fit(target, rows, prior, ANCHORS[1])?];
        let mut ratios: [[Vec<f64>; REGIMES]; 2] = Default::default();
        let mut watched: [Vec<f64>; 4] = Default::default();
        for row in rows {
            let regime = features::regime(target, &row.features);
            let columns = features::columns(target, &row.features);
            for (ratios, thetas) in ratios.iter_mut().zip(&thetas) {
                ratios[regime].push((row.actual_ms / base_ms(&columns, &thetas[regime])).ln());
            }
            for (values, value) in watched.iter_mut().zip(features::ranged(&row.features)) {
                values.push(value);
            }
        }
        // How far the upper base already leans above the middle one: that much of the prior's spread is spent.
        let lean = mean(ratios[0].iter().flatten().zip(ratios[1].iter().flatten()).map(|(mid, top)| mid - top));
        let priors = [0.0, PRIOR_SPREAD - lean.unwrap_or(0.0)];
        let pool = |anchor: usize| {
            let mut all: Vec<f64> = ratios[anchor].iter().flatten().copied().collect();
            let count = all.len() as f64;
            quantile_of(&mut all, ANCHORS[anchor])
                .map_or(priors[anchor], |own| (count * own + PRIOR_ROWS * priors[anchor]) / (count + PRIOR_ROWS))
        };
        let pooled = [pool(0), pool(1)];
        let regimes = std::array::from_fn(|regime| {
            let count = ratios[0][regime].len();
            let log_quantiles = std::array::from_fn(|anchor| {
                let own = quantile_of(&mut ratios[anchor][regime], ANCHORS[anchor]);
                match own {
                    Some(own) if count >= REGIME_QUANTILE_ROWS_MIN => {
                        (count as f64 * own + POOL_ROWS * pooled[anchor]) / (count as f64 + POOL_ROWS)
                    }
                    _ => pooled[anchor],
                }
            });
            Regime { thetas: [thetas[0][regime], thetas[1][regime]], log_quantiles, rows: count }
        });
        let range_top =
            std::array::from_fn(|j| quantile_of(&mut watched[j], RANGE_QUANTILE).unwrap_or(0.0).max(RANGE_FLOOR[j]));
        let model = TargetModel { target, regimes, range_top, rows: rows.len() };
        model.is_sound().then_some(model)
    }

    /// Whether every number in it is finite and a possible one, so that every answer is finite and positive.
    pub fn is_sound(&self) -> bool {
        self.range_top.iter().all(|value| value.is_finite() && *value > 0.0)
            && self.regimes.iter().all(|regime| {
                regime.thetas.iter().flatten().all(|value| (0.0..=COEFFICIENT_MAX).contains(value))
                    && regime.log_quantiles.iter().all(|value| value.is_finite())
            })
    }

    /// The anchors of one request, without online corrections.
    #[inline]
    pub fn anchors(&self, features: &Features) -> Anchors {
        let row = features::columns(self.target, features);
        let index = features::regime(self.target, features);
        let regime = &self.regimes[index.min(REGIMES - 1)];
        let bases = [base_ms(&row, &regime.thetas[0]), base_ms(&row, &regime.thetas[1])];
        let correct =
            |anchor: usize| bases[anchor].ln() + regime.log_quantiles[anchor].clamp(-CORRECTION_MAX, CORRECTION_MAX);
        let log50 = correct(0);
        Anchors { base_ms: bases, regime: index, log: [log50, correct(1).max(log50 + SPREAD_MIN)] }
    }

    /// Factor that fades learnt corrections beyond the trained range: 1 inside it, `1 / max(x_j / top_j)` outside.
    #[inline]
    pub fn fade(&self, features: &Features) -> f64 {
        let mut beyond = 1.0f64;
        for (value, top) in features::ranged(features).iter().zip(&self.range_top) {
            beyond = beyond.max(value / top);
        }
        1.0 / beyond
    }

    /// Columns in use and their coefficients at each anchor in a regime, for people.
    pub fn coefficients(&self, regime: usize) -> impl Iterator<Item = (&'static str, [f64; 2])> + '_ {
        let [middle, upper] = self.regimes[regime.min(REGIMES - 1)].thetas;
        let pairs = middle.into_iter().zip(upper).map(|(middle, upper)| [middle, upper]);
        features::column_names(self.target).iter().copied().zip(pairs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Role;
    use proptest::prelude::*;

    fn any_features() -> impl Strategy<Value = Features> {
        (0.0..=1.0f64, 0..200_000u32, 0..60u32, 0..300u32, 0.0..=1.0f64, 0..500_000u32, 0..500_000u32).prop_map(
            |(kv, input, waiting, running, prefix, prefill, decode)| Features {
                kv_cache_usage: kv,
                input_tokens: input,
                requests_waiting: waiting,
                requests_running: running,
                prefix_cache_score: prefix,
                prefill_tokens_in_flight: prefill,
                decode_tokens_in_flight: decode,
                encoder_matched_size: 0,
                encoder_input_size: 0,
                role: Role::Both,
            },
        )
    }

    fn any_rows() -> impl Strategy<Value = Vec<TrainingRow>> {
        prop::collection::vec(
            (any_features(), -3.0..14.0f64).prop_map(|(features, log)| TrainingRow { features, actual_ms: log.exp() }),
            1..60,
        )
    }

    proptest! {
        #[test]
        fn i3_any_rows_give_a_finite_model_that_never_crosses(rows in any_rows(), at in any_features()) {
            for target in Target::ALL {
                let model = TargetModel::fit(target, &rows, &Prior::default()).unwrap();
                let anchors = model.anchors(&at);
                prop_assert!(anchors.base_ms.iter().all(|base| *base >= 1.0) && anchors.log.iter().all(|value| value.is_finite()));
                prop_assert!(anchors.spread() >= SPREAD_MIN * 0.999);
            }
        }

        #[test]
        fn the_base_never_falls_when_load_rises_within_a_regime(rows in any_rows(), at in any_features(), which in 0..5usize, more in 1..5000u32) {
            let mut worse = at;
            match which {
                0 => worse.prefill_tokens_in_flight += more,
                1 => worse.requests_running += more,
                2 => worse.input_tokens += more,
                3 => worse.kv_cache_usage = (at.kv_cache_usage + f64::from(more) / 5000.0).min(1.0),
                _ => worse.requests_waiting += u32::from(at.requests_waiting > 0) * more,
            }
            for target in Target::ALL {
                let model = TargetModel::fit(target, &rows, &Prior::default()).unwrap();
                let (more, less) = (model.anchors(&worse).base_ms, model.anchors(&at).base_ms);
                prop_assert!(more.iter().zip(less).all(|(more, less)| *more >= less * (1.0 - 1e-12)));
            }
        }
    }

    #[test]
    fn same_rows_same_model_and_constants_are_recovered() {
        let rows: Vec<TrainingRow> = (0..400u32)
            .map(|i| {
                let features = Features {
                    kv_cache_usage: f64::from(i % 10) / 20.0,
                    input_tokens: 100 + (i * 37) % 9000,
                    requests_waiting: 0,
                    requests_running: i % 17,
                    prefix_cache_score: f64::from(i % 3) * 0.3,
                    prefill_tokens_in_flight: (i * 91) % 7000,
                    decode_tokens_in_flight: 0,
                    encoder_matched_size: 0,
                    encoder_input_size: 0,
                    role: Role::Both,
                };
                let columns = features::columns(Target::Ttft, &features);
                let actual_ms = 30.0 + 80.0 * columns[1] + 60.0 * columns[3] + 0.4 * columns[4];
                TrainingRow { features, actual_ms }
            })
            .collect();
        let first = TargetModel::fit(Target::Ttft, &rows, &Prior::default()).unwrap();
        assert_eq!(first, TargetModel::fit(Target::Ttft, &rows, &Prior::default()).unwrap());
        for row in &rows {
            let anchors = first.anchors(&row.features);
            assert!((anchors.base_ms[0] / row.actual_ms).ln().abs() < 0.03, "{:?} {}", anchors.base_ms, row.actual_ms);
        }
        assert!((first.regimes[0].thetas[0][1] - 80.0).abs() < 4.0, "{:?}", first.regimes[0].thetas);
    }
}
