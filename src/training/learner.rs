//! The learner: observe samples, fit when due, judge, publish.

use super::{FitReport, LearnerReport, Survey};
use crate::model::Prior;
use crate::snapshot::Snapshot;
use crate::types::{Sample, UnixMs};

/// Checked parameters of a [`Learner`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LearnerParams {
    /// Samples kept per target.
    pub samples_max: usize,
    /// New samples that always start a fit; fewer suffice while the last fit was small.
    pub fit_every_samples_max: u64,
    /// Time after which a few new samples start a fit, ms.
    pub fit_every_ms: i64,
    /// New samples below which no fit starts.
    pub fit_min_samples: u64,
    /// Constants of the physics before anything was learnt, and where the fit leans without evidence.
    pub prior: Prior,
}

impl Default for LearnerParams {
    fn default() -> Self {
        LearnerParams {
            samples_max: 5000,
            fit_every_samples_max: 250,
            fit_every_ms: 60_000,
            fit_min_samples: 10,
            prior: Prior::default(),
        }
    }
}

/// A fit that is due: owns copies of its rows, so that it can run (and panic) without touching the learner.
pub struct FitJob {}

/// What a [`FitJob`] came to.
pub struct FitResult {}

impl FitJob {
    /// Runs the fit. Pure and deterministic: same rows, same bytes.
    pub fn run(self) -> FitResult {
        unimplemented!()
    }
}

/// The learner.
pub struct Learner {}

impl Learner {
    /// Starts from a snapshot: the prior, or one read back from disk.
    pub fn new(_params: LearnerParams, _snapshot: Snapshot) -> Self {
        unimplemented!()
    }

    /// Takes one sample: store, online corrections, rolling accuracy. `now` is the time of receipt.
    pub fn observe(&mut self, _sample: &Sample, _now: UnixMs) {
        unimplemented!()
    }

    /// Takes back a sample read from disk at start: it enters the store but neither accuracy nor corrections,
    /// which must judge only what was predicted in this life.
    pub fn restore(&mut self, _sample: &Sample) {
        unimplemented!()
    }

    /// The fit that is due now, if any. Until it is concluded no other is handed out (I5).
    pub fn prepare(&mut self, _now: UnixMs) -> Option<FitJob> {
        unimplemented!()
    }

    /// Judges a finished fit (`None`: it panicked) and installs what passes.
    pub fn conclude(&mut self, _result: Option<FitResult>, _now: UnixMs) -> FitReport {
        unimplemented!()
    }

    /// `prepare`, `run`, `conclude` in one, for callers in virtual time.
    pub fn step(&mut self, _now: UnixMs) -> Option<FitReport> {
        unimplemented!()
    }

    /// The current snapshot, with the newest corrections: a new revision if anything changed since the last call.
    pub fn snapshot(&mut self, _now: UnixMs) -> Snapshot {
        unimplemented!()
    }

    /// The account.
    pub fn report(&self) -> LearnerReport {
        unimplemented!()
    }

    /// What the store holds.
    pub fn survey(&self) -> Survey {
        unimplemented!()
    }

    /// Drops all stored samples; returns how many per target.
    pub fn forget_samples(&mut self) -> [usize; 2] {
        unimplemented!()
    }

    /// Clears rolling accuracy.
    pub fn forget_accuracy(&mut self) {
        unimplemented!()
    }

    /// Back to the prior, as the next generation.
    pub fn forget_models(&mut self, _now: UnixMs) {
        unimplemented!()
    }
}
