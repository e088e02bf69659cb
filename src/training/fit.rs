//! One fit from start to verdict: rows are copied out, fitted, and judged against the serving model.

use crate::model::{ANCHORS, FitSettings, TargetModel, TrainingRow};
use crate::stats::{mean, pinball};
use crate::types::{EndpointName, Target};

use super::report::FitOutcome;

/// Latest observations a challenger is judged on.
const JUDGED_ROWS: usize = 200;

/// How much worse a challenger's mean loss may be.
const TOLERANCE: f64 = 1.05;

/// Paired t statistic from which a difference is not noise.
const T_MIN: f64 = 2.0;

/// Rows of one role and target that take part in a fit.
#[derive(Clone, Debug)]
pub(super) struct TargetJob {
    pub(super) target: Target,
    pub(super) rows: Vec<TrainingRow>,
    pub(super) endpoints: Vec<Option<EndpointName>>,
}

/// A fit that is due: owns copies of its rows, so that it can run (and panic) without touching the learner.
#[derive(Clone, Debug)]
pub struct FitJob {
    pub(super) settings: FitSettings,
    pub(super) parts: Vec<TargetJob>,
}

/// What a [`FitJob`] came to: each part's challenger, which is absent when the numerics failed.
#[derive(Clone, Debug)]
pub struct FitResult {
    pub(super) challengers: Vec<Option<TargetModel>>,
}

impl FitJob {
    /// Runs the fit. Pure and deterministic: same rows, same bytes.
    pub fn run(self) -> FitResult {
        let fit = |part: &TargetJob| TargetModel::fit(part.target, &part.rows, &part.endpoints, &self.settings);
        FitResult { challengers: self.parts.iter().map(fit).collect() }
    }
}

/// Whether a challenger may serve. It has seen the rows it is judged on, so a clear loss there is a bug or a bad fit.
pub(super) fn judge<'a>(
    champion: &TargetModel,
    challenger: &TargetModel,
    rows: impl DoubleEndedIterator<Item = &'a TrainingRow>,
    endpoints: &[Option<EndpointName>],
) -> FitOutcome {
    if !challenger.is_sound() {
        return FitOutcome::RejectedNotFinite;
    }
    let losses: Vec<(f64, f64)> = rows
        .rev()
        .take(JUDGED_ROWS)
        .map(|row| {
            let name = (row.endpoint as usize).checked_sub(1).and_then(|index| endpoints.get(index)?.as_ref());
            (loss(champion, row, name), loss(challenger, row, name))
        })
        .collect();
    let (Some(old), Some(new)) = (mean(losses.iter().map(|pair| pair.0)), mean(losses.iter().map(|pair| pair.1)))
    else {
        return FitOutcome::Accepted;
    };
    let count = losses.len() as f64;
    let difference = new - old;
    let variance =
        losses.iter().map(|pair| (pair.1 - pair.0 - difference).powi(2)).sum::<f64>() / (count - 1.0).max(1.0);
    let error = (variance / count).sqrt();
    if new > TOLERANCE * old && difference > T_MIN * error { FitOutcome::RejectedWorse } else { FitOutcome::Accepted }
}

/// Mean pinball loss of both anchors in log ms.
fn loss(model: &TargetModel, row: &TrainingRow, endpoint: Option<&EndpointName>) -> f64 {
    let log = model.anchors(&row.features).log;
    let log_actual = row.actual_ms.ln() - endpoint.map_or(0.0, |name| model.log_scale(name));
    (pinball(log_actual, log[0], ANCHORS[0]) + pinball(log_actual, log[1], ANCHORS[1])) / 2.0
}
