//! What the learner says of itself: everything `/status`, the metrics and the tables of the offline tools show.

use super::screen::ScreenReport;
use crate::calibration::Alarm;
use crate::model::EndpointScale;
use crate::types::{Generation, Role, Target, UnixMs, Version};

/// Rolling accuracy of predictions against what came of them. `None` where nothing was scored yet (absent is not 0).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Accuracy {
    /// Predictions paired with an outcome in the window.
    pub pairs: u64,
    /// Mean of `|predicted median - actual| / actual`, as a ratio.
    pub mape: Option<f64>,
    /// Share of outcomes at or below the predicted median; 0.5 is right.
    pub coverage_p50: Option<f64>,
    /// Share of outcomes at or below the predicted p90; 0.9 is right.
    pub coverage_p90: Option<f64>,
    /// Mean pinball loss of the median, ms.
    pub pinball_p50_ms: Option<f64>,
    /// Mean pinball loss of p90, ms.
    pub pinball_p90_ms: Option<f64>,
}

/// Rolling accuracy of values that senders report back as what they acted on, at whatever quantile they asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct PromisedAccuracy {
    /// Promises paired with an outcome in the window.
    pub pairs: u64,
    /// Mean of `|promised - actual| / actual`, as a ratio.
    pub mape: Option<f64>,
    /// Share of outcomes at or below the promise.
    pub coverage: Option<f64>,
}

/// Load bands by waiting requests at dispatch, the same edges as the wire's queue buckets.
pub const LOAD_BANDS: [&str; 5] = ["0", "1-2", "3-5", "6-10", "11+"];

/// Index into [`LOAD_BANDS`].
pub fn load_band(requests_waiting: u32) -> usize {
    match requests_waiting {
        0 => 0,
        1..=2 => 1,
        3..=5 => 2,
        6..=10 => 3,
        _ => 4,
    }
}

/// Why a fit was started.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FitReason {
    /// Enough new samples since the last fit.
    Samples,
    /// Enough time passed with a few new samples.
    Interval,
    /// A change of regime.
    Alarm,
}

impl FitReason {
    /// Stable word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            FitReason::Samples => "samples",
            FitReason::Interval => "interval",
            FitReason::Alarm => "alarm",
        }
    }
}

/// How a fit ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FitOutcome {
    /// It serves now.
    Accepted,
    /// It was worse than the serving model on the latest observations; the serving model stays.
    RejectedWorse,
    /// It produced a non-finite number; the serving model stays.
    RejectedNotFinite,
    /// The numerics failed; the serving model stays.
    Failed,
    /// The fit panicked; the serving model stays.
    Panicked,
}

impl FitOutcome {
    /// All outcomes, in the order of the metric's documentation.
    pub const ALL: [FitOutcome; 5] = [
        FitOutcome::Accepted,
        FitOutcome::RejectedWorse,
        FitOutcome::RejectedNotFinite,
        FitOutcome::Failed,
        FitOutcome::Panicked,
    ];

    /// Stable word for metrics and `/status`.
    pub fn name(self) -> &'static str {
        match self {
            FitOutcome::Accepted => "accepted",
            FitOutcome::RejectedWorse => "rejected_worse",
            FitOutcome::RejectedNotFinite => "rejected_not_finite",
            FitOutcome::Failed => "failed",
            FitOutcome::Panicked => "panicked",
        }
    }
}

/// One target's part in a finished fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FitPart {
    /// Whose samples.
    pub role: Role,
    /// Which target.
    pub target: Target,
    /// Rows it was fitted on.
    pub rows: usize,
    /// Residual trees of the challenger at p50 and p90; 0 where they did not help.
    pub trees: [usize; 2],
    /// How it ended.
    pub outcome: FitOutcome,
}

/// One finished fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FitReport {
    /// When it was concluded.
    pub at: UnixMs,
    /// What started it.
    pub reason: FitReason,
    /// Those that took part.
    pub parts: Vec<FitPart>,
    /// The generation that serves after it.
    pub generation: Generation,
}

impl FitReport {
    /// Whether at least one target's new model serves.
    pub fn published(&self) -> bool {
        self.parts.iter().any(|part| part.outcome == FitOutcome::Accepted)
    }

    /// Rows per target in the order of [`Target::ALL`], all roles together; 0 where the target took no part.
    pub fn rows(&self) -> [usize; 2] {
        Target::ALL.map(|target| self.of(target).map(|part| part.rows).sum())
    }

    /// A target's parts.
    pub fn of(&self, target: Target) -> impl Iterator<Item = &FitPart> {
        self.parts.iter().filter(move |part| part.target == target)
    }
}

/// Latest pairs over which accuracy is said beside the whole window, fewest first: an error that began lately shows
/// in the short one first.
pub const ACCURACY_WINDOWS: [usize; 2] = [100, 300];

/// One role's and target's side of [`LearnerReport`].
#[derive(Clone, Debug, PartialEq)]
pub struct TargetReport {
    /// Whose samples.
    pub role: Role,
    /// Which.
    pub target: Target,
    /// Samples observed since the learner began.
    pub observed: u64,
    /// Samples in the store now.
    pub stored: usize,
    /// Samples that left the store to make room.
    pub evicted: u64,
    /// Rows the serving model was fitted on; 0 for the prior.
    pub fitted_rows: usize,
    /// Residual trees of the serving model at p50 and p90.
    pub trees: [usize; 2],
    /// Accuracy over the latest pairs, all loads.
    pub accuracy: Accuracy,
    /// Accuracy over the latest few pairs, in the order of [`ACCURACY_WINDOWS`].
    pub recent: [Accuracy; 2],
    /// Accuracy by load band, in the order of [`LOAD_BANDS`].
    pub by_load: [Accuracy; 5],
    /// Share of the latest pairs whose inputs lay beyond the trained range; `None` before the first pair.
    pub extrapolating_share: Option<f64>,
    /// Accuracy of what senders say they had been promised, where they do.
    pub promised: PromisedAccuracy,
    /// Samples since this target's last fit.
    pub new_samples: u64,
    /// New samples that start its next fit.
    pub next_fit_at: u64,
    /// Online offset in use at p50 and p90, as a factor on ms (1 = none).
    pub offset_factor: [f64; 2],
    /// Speed of the tracker behind the offset at p50 and p90, share of the residual per observation; 0 = none in use.
    pub tracker_gain: [f64; 2],
    /// How far each endpoint departs from the pool's median endpoint, ascending by name.
    pub scales: Vec<EndpointScale>,
    /// Alarms since the learner began.
    pub alarms: u64,
}

/// The learner's whole account.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerReport {
    /// What serves.
    pub version: Version,
    /// The latest fit, if any since start.
    pub last_fit: Option<FitReport>,
    /// Fits since start, by outcome in the order of [`FitOutcome::ALL`], all targets together.
    pub fits: [u64; 5],
    /// Latest observation, if any.
    pub last_observed_at: Option<UnixMs>,
    /// What became of samples that do not simply teach.
    pub screen: ScreenReport,
    /// The latest alarms, oldest first, at most [`crate::calibration::ALARMS_KEPT`].
    pub alarms: Vec<Alarm>,
    /// Per role that has samples (role `both` always) and target: by role, then in the order of [`Target::ALL`].
    pub targets: Vec<TargetReport>,
}

impl LearnerReport {
    /// One target of one role, if that role has samples.
    pub fn target(&self, role: Role, target: Target) -> Option<&TargetReport> {
        self.targets.iter().find(|report| report.role == role && report.target == target)
    }
}
