//! The learner: store, schedule, fit, gate. Pure: samples and time come in, snapshots come out.

mod accuracy;
mod fit;
mod learner;
mod report;
mod store;
mod survey;

pub use fit::{FitJob, FitResult};
pub use learner::{Learner, LearnerParams};
pub use report::{
    ALARMS_KEPT, Accuracy, Alarm, AlarmCause, FitOutcome, FitReason, FitReport, LOAD_BANDS, LearnerReport,
    PromisedAccuracy, TargetReport, load_band,
};
pub use survey::{Bucket, Survey, SurveyTarget};
