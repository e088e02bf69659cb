//! The learner: store, schedule, fit, gate, and what becomes of a change of regime. Pure: samples and time come in, snapshots come out.

mod accuracy;
mod evidence;
mod fit;
mod learner;
mod report;
mod screen;
mod store;
mod survey;
mod target;

pub use crate::calibration::{ALARMS_KEPT, Alarm, AlarmCause};
pub use fit::{FitJob, FitResult};
pub use learner::{Learner, LearnerParams};
pub use report::{
    ACCURACY_WINDOWS, Accuracy, FitOutcome, FitPart, FitReason, FitReport, LOAD_BANDS, LearnerReport, PromisedAccuracy,
    TargetReport, load_band,
};
pub use screen::{
    May, Predicted, Reason, Screen, ScreenReport, SentTimes, Suspicion, TRUSTED_ROWS_MIN, Tally, Verdict, may_be_stored,
};
pub use survey::{Bucket, Survey, SurveyTarget};
