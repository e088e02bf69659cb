//! The learner: store, schedule, fit, gate. Pure: samples and time come in, snapshots come out.

mod learner;
mod report;
mod survey;

pub use learner::{FitJob, FitResult, Learner, LearnerParams};
pub use report::{
    Accuracy, FitOutcome, FitReason, FitReport, LOAD_BANDS, LearnerReport, PromisedAccuracy, TargetReport, load_band,
};
pub use survey::{Bucket, Survey, SurveyTarget};
