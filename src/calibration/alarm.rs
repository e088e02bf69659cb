//! A change of regime that was noticed, as a fact to keep: it corrects stored samples, it is shown, it survives restarts.

use crate::types::{EndpointName, Role, Target, UnixMs};

/// Alarms that are remembered.
pub const ALARMS_KEPT: usize = 100;

/// Why an endpoint's past is no longer its present.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum AlarmCause {
    /// Outcomes left the predictions for good: `exp(log_shift)` times as long as before.
    Shift {
        /// `ln` of the factor by which latencies changed.
        log_shift: f64,
    },
    /// The sender says that the endpoint runs something else now; by how much it changed must show.
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
