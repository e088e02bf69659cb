//! Scores of a replay: pinball, coverage and error, against the running quantile and the incumbent's recorded answers.

use super::read::Recording;
use super::replay::Replayed;
use crate::stats::{Scores, mean};
use crate::types::Target;

/// Which predictions are scored, and which incumbent column stands against each.
pub const SCORED: [(Target, f64, Option<usize>); 4] = [
    (Target::Ttft, 0.9, Some(0)),
    (Target::Ttft, 0.5, Some(1)),
    (Target::Tpot, 0.9, Some(2)),
    (Target::Tpot, 0.5, None),
];

/// First row scored where there is an incumbent to compare with: both have learnt something by then.
const FIRST_ROW_AGAINST_INCUMBENT: usize = 300;

/// First row of a run scored otherwise.
const FIRST_ROW: usize = 20;

/// Rows after a change in the middle of a recording of 6,000.
const AFTER_CHANGE: std::ops::Range<usize> = 3000..3700;

/// Window of the coverage error, rows.
const COVERAGE_WINDOW: usize = 500;

/// Scores of one target and quantile in one file.
#[derive(Clone, Debug, PartialEq)]
pub struct Score {
    /// Which target.
    pub target: Target,
    /// Which quantile.
    pub quantile: f64,
    /// Rows scored.
    pub rows: u64,
    /// Mean pinball loss, ms; `None` without rows.
    pub pinball: Option<f64>,
    /// The incumbent's, over the same rows.
    pub pinball_incumbent: Option<f64>,
    /// Ours over the incumbent's.
    pub ratio: Option<f64>,
    /// The running quantile's, over the rows where it has an answer.
    pub pinball_running: Option<f64>,
    /// Ours over the running quantile's, over the same rows.
    pub ratio_running: Option<f64>,
    /// Share of outcomes at or below the prediction.
    pub coverage: Option<f64>,
    /// Mean distance of the coverage from the quantile, per window of 500 rows.
    pub coverage_error_500: Option<f64>,
    /// Ratio to the incumbent over the 700 rows after row 3000.
    pub first700_ratio: Option<f64>,
    /// Mean of `|prediction - actual| / actual`.
    pub mape: Option<f64>,
}

/// Scores of one file.
#[derive(Clone, Debug, PartialEq)]
pub struct FileScores {
    /// Its name.
    pub file: String,
    /// In the order of [`SCORED`].
    pub scores: Vec<Score>,
}

/// Geometric means of the ratios to the incumbent; `None` where no file has one.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Geomean {
    /// TTFT p90.
    pub ttft_p90: Option<f64>,
    /// TTFT p50.
    pub ttft_p50: Option<f64>,
    /// TPOT p90.
    pub tpot_p90: Option<f64>,
}

/// Scores a replay of a recording.
pub fn score(file: &str, recording: &Recording, replayed: &Replayed) -> FileScores {
    let scores = SCORED
        .iter()
        .map(|&(target, quantile, incumbent)| score_one(recording, replayed, target, quantile, incumbent))
        .collect();
    FileScores { file: file.to_string(), scores }
}

fn score_one(
    recording: &Recording,
    replayed: &Replayed,
    target: Target,
    quantile: f64,
    incumbent: Option<usize>,
) -> Score {
    let index = usize::from(target == Target::Tpot);
    let anchor = usize::from(quantile > 0.5);
    let has_incumbent =
        incumbent.is_some_and(|column| recording.rows.iter().any(|row| row.incumbent_ms[column].is_some()));
    let first = if has_incumbent { FIRST_ROW_AGAINST_INCUMBENT } else { FIRST_ROW };
    let (mut ours, mut theirs) = (Scores::default(), Scores::default());
    let (mut after_ours, mut after_theirs) = (Scores::default(), Scores::default());
    let (mut beside_running, mut running) = (Scores::default(), Scores::default());
    let mut covered = Vec::new();
    for (row, prediction) in recording.rows.iter().zip(&replayed.predictions) {
        let Some(actual) = [row.ttft_ms, row.tpot_ms][index] else { continue };
        let against = incumbent.and_then(|column| row.incumbent_ms[column]);
        if prediction.position < first || (has_incumbent && against.is_none()) {
            continue;
        }
        let predicted = prediction.ours[index][anchor];
        ours.add(actual, predicted, quantile);
        covered.push(actual <= predicted);
        if let Some(against) = against {
            theirs.add(actual, against, quantile);
            if AFTER_CHANGE.contains(&prediction.position) {
                after_ours.add(actual, predicted, quantile);
                after_theirs.add(actual, against, quantile);
            }
        }
        if let Some(plain) = prediction.running[index][anchor] {
            beside_running.add(actual, predicted, quantile);
            running.add(actual, plain, quantile);
        }
    }
    let over = |a: &Scores, b: &Scores| Some(a.pinball()? / b.pinball()?).filter(|ratio| ratio.is_finite());
    let windows = covered.chunks(COVERAGE_WINDOW).filter(|window| window.len() * 2 >= COVERAGE_WINDOW);
    let errors = windows.map(|window| {
        let share = window.iter().filter(|inside| **inside).count() as f64 / window.len() as f64;
        (share - quantile).abs()
    });
    Score {
        target,
        quantile,
        rows: ours.pairs(),
        pinball: ours.pinball(),
        pinball_incumbent: theirs.pinball(),
        ratio: over(&ours, &theirs),
        pinball_running: running.pinball(),
        ratio_running: over(&beside_running, &running),
        coverage: ours.coverage(),
        coverage_error_500: mean(errors),
        first700_ratio: over(&after_ours, &after_theirs),
        mape: ours.mape(),
    }
}

/// Geometric means over files that have an incumbent.
pub fn geomean<'a>(files: impl Iterator<Item = &'a FileScores> + Clone) -> Geomean {
    let of = |scored: usize| {
        let logs = files.clone().filter_map(|file| file.scores.get(scored)?.ratio).map(f64::ln);
        mean(logs).map(f64::exp)
    };
    Geomean { ttft_p90: of(0), ttft_p50: of(1), tpot_p90: of(2) }
}
