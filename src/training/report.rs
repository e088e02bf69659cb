//! What the learner says of itself: everything `/status`, the metrics and the tables of the offline tools show.

use crate::types::{EndpointName, Generation, Role, Target, UnixMs, Version};

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
}

impl FitReason {
    /// Stable word for metrics and logs.
    pub fn name(self) -> &'static str {
        match self {
            FitReason::Samples => "samples",
            FitReason::Interval => "interval",
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

/// Alarms that are remembered.
pub const ALARMS_KEPT: usize = 100;

/// One finished fit.
#[derive(Clone, Debug, PartialEq)]
pub struct FitReport {
    /// When it was concluded.
    pub at: UnixMs,
    /// What started it.
    pub reason: FitReason,
    /// Rows it was fitted on, per target in the order of [`Target::ALL`].
    pub rows: [usize; 2],
    /// How it ended, per target; `None` where the target had too few samples to take part.
    pub outcome: [Option<FitOutcome>; 2],
    /// The generation that serves after it.
    pub generation: Generation,
}

impl FitReport {
    /// Whether at least one target's new model serves.
    pub fn published(&self) -> bool {
        self.outcome.contains(&Some(FitOutcome::Accepted))
    }
}

/// Why an endpoint's past is no longer its present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlarmCause {
    /// Outcomes left the predictions for good: `exp(log_shift)` times as long as before.
    Shift {
        /// `ln` of the factor by which latencies changed.
        log_shift: f64,
    },
    /// The sender says that the endpoint runs something else now.
    Fingerprint,
}

impl AlarmCause {
    /// Stable word for metrics, `/status` and files.
    pub fn name(self) -> &'static str {
        match self {
            AlarmCause::Shift { .. } => "shift",
            AlarmCause::Fingerprint => "fingerprint",
        }
    }
}

/// A change of regime that was noticed.
#[derive(Clone, Debug, PartialEq)]
pub struct Alarm {
    /// When it was raised.
    pub at: UnixMs,
    /// When things changed, as far as can be told afterwards.
    pub changed_at: UnixMs,
    /// Observations from the change to the alarm.
    pub observations: u64,
    /// Which target.
    pub target: Target,
    /// Which role's learner.
    pub role: Role,
    /// Which endpoint; `None` where samples do not name one.
    pub endpoint: Option<EndpointName>,
    /// What changed.
    pub cause: AlarmCause,
}

/// One target's side of [`LearnerReport`].
#[derive(Clone, Debug, PartialEq)]
pub struct TargetReport {
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
    /// Accuracy over the latest pairs, all loads.
    pub accuracy: Accuracy,
    /// Accuracy by load band, in the order of [`LOAD_BANDS`].
    pub by_load: [Accuracy; 5],
    /// Accuracy of what senders say they had been promised, where they do.
    pub promised: PromisedAccuracy,
    /// Samples since this target's last fit.
    pub new_samples: u64,
    /// New samples that start its next fit.
    pub next_fit_at: u64,
    /// Online offset in use at p50 and p90, as a factor on ms (1 = none).
    pub offset_factor: [f64; 2],
}

/// The learner's whole account.
#[derive(Clone, Debug, PartialEq)]
pub struct LearnerReport {
    /// What serves.
    pub version: Version,
    /// The latest fit, if any since start.
    pub last_fit: Option<FitReport>,
    /// Fits since start, by outcome in the order of [`FitOutcome::ALL`], both targets together.
    pub fits: [u64; 5],
    /// Latest observation, if any.
    pub last_observed_at: Option<UnixMs>,
    /// The latest alarms, oldest first, at most [`ALARMS_KEPT`].
    pub alarms: Vec<Alarm>,
    /// Per target, in the order of [`Target::ALL`].
    pub targets: [TargetReport; 2],
}
