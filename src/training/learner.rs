//! The learner: observe samples, fit when due, judge, publish.

use std::sync::Arc;

use super::accuracy::RollingAccuracy;
use super::fit::{FitJob, FitResult, TargetJob, judge};
use super::report::{FitOutcome, FitReason, FitReport, LearnerReport, TargetReport};
use super::store::Store;
use super::survey::{Survey, survey_target};
use crate::calibration::{Judged, Online, TargetTracking};
use crate::model::{Prior, SPREAD_MIN, TargetModel, TrainingRow};
use crate::snapshot::{Models, Snapshot};
use crate::types::{Generation, Sample, Target, UnixMs};

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

/// One target's half of the learner.
struct TargetLearner {
    target: Target,
    store: Store,
    tracking: TargetTracking,
    accuracy: RollingAccuracy,
    observed: u64,
    /// Samples since the last fit that took part.
    fresh: u64,
    fitted_at: Option<UnixMs>,
}

impl TargetLearner {
    fn new(target: Target, params: &LearnerParams, snapshot: &Snapshot) -> Self {
        TargetLearner {
            target,
            store: Store::new(params.samples_max),
            tracking: TargetTracking::resume(snapshot.online.of(target)),
            accuracy: RollingAccuracy::default(),
            observed: 0,
            fresh: 0,
            fitted_at: snapshot.provenance.fitted_at,
        }
    }

    /// New samples that start the next fit: a quarter of the last fit's rows, between the two limits.
    fn next_fit_at(&self, params: &LearnerParams, fitted_rows: usize) -> u64 {
        (fitted_rows as u64 / 4).min(params.fit_every_samples_max).max(params.fit_min_samples)
    }

    fn due(&self, params: &LearnerParams, fitted_rows: usize, now: UnixMs) -> Option<FitReason> {
        if self.fresh >= self.next_fit_at(params, fitted_rows) {
            return Some(FitReason::Samples);
        }
        let waited = self.fitted_at.is_some_and(|at| now.since(at) >= params.fit_every_ms);
        (waited && self.fresh >= params.fit_min_samples).then_some(FitReason::Interval)
    }

    fn keep(&mut self, row: TrainingRow) {
        self.store.push(row);
        self.observed += 1;
        self.fresh += 1;
    }
}

/// The learner of one lineage. Everything it does depends on its arguments alone.
pub struct Learner {
    params: LearnerParams,
    snapshot: Snapshot,
    targets: [TargetLearner; 2],
    /// Whether corrections are newer than the last snapshot handed out.
    corrected: bool,
    /// The fit handed out and not yet concluded.
    running: Option<(FitReason, [Option<usize>; 2])>,
    last_fit: Option<FitReport>,
    fits: [u64; FitOutcome::ALL.len()],
    last_observed_at: Option<UnixMs>,
}

impl Learner {
    /// Starts from a snapshot: the prior, or one read back from disk. A snapshot that was never fitted takes the
    /// prior of `params`, which may have changed since.
    pub fn new(params: LearnerParams, mut snapshot: Snapshot) -> Self {
        if Target::ALL.iter().all(|&target| snapshot.models.of(target).rows == 0) {
            snapshot.models = Arc::new(Models {
                ttft: TargetModel::prior(Target::Ttft, &params.prior),
                tpot: TargetModel::prior(Target::Tpot, &params.prior),
            });
        }
        snapshot.calibrated = params.prior.calibrated;
        Learner {
            targets: Target::ALL.map(|target| TargetLearner::new(target, &params, &snapshot)),
            params,
            last_observed_at: snapshot.provenance.last_observed_at,
            snapshot,
            corrected: false,
            running: None,
            last_fit: None,
            fits: [0; FitOutcome::ALL.len()],
        }
    }

    /// Takes one sample: store, online corrections, rolling accuracy. `now` is the time of receipt.
    ///
    /// The prediction it is judged by is the serving model's, which has never seen this sample, with the offset that
    /// was in force when the request was dispatched.
    pub fn observe(&mut self, sample: &Sample, now: UnixMs) {
        let dispatched_at = dispatched_at(sample, &self.snapshot.models);
        for (learner, actual_ms) in self.targets.iter_mut().zip(outcomes(sample)) {
            let Some(actual_ms) = actual_ms else { continue };
            let model = self.snapshot.models.of(learner.target);
            let anchors = model.anchors(&sample.features);
            let judged = Judged {
                log_actual: actual_ms.ln(),
                log_anchors: anchors.log,
                dispatched_at,
                observed_at: sample.observed_at,
            };
            let endpoint = sample.endpoint.as_ref();
            let offsets = learner.tracking.offsets_at(endpoint, dispatched_at);
            let log50 = anchors.log[0] + offsets[0];
            let spread = (anchors.log[1] + offsets[1] - log50).max(SPREAD_MIN);
            let waiting = sample.features.requests_waiting;
            learner.accuracy.add(waiting, actual_ms, log50.exp(), (log50 + spread).exp());
            let promised = match learner.target {
                Target::Ttft => sample.promised.ttft_ms,
                Target::Tpot => sample.promised.tpot_ms,
            };
            if let Some(promised_ms) = promised {
                learner.accuracy.add_promised(actual_ms, promised_ms);
            }
            learner.tracking.observe(endpoint, &judged, (judged.log_actual - log50) / spread, now);
            learner.keep(TrainingRow { features: sample.features, actual_ms });
            self.corrected = true;
        }
        self.last_observed_at = self.last_observed_at.max(Some(sample.observed_at));
        self.snapshot.provenance.samples_accepted += 1;
    }

    /// Takes back a sample read from disk at start: it enters the store but neither accuracy nor corrections,
    /// which must judge only what was predicted in this life.
    pub fn restore(&mut self, sample: &Sample) {
        for (learner, actual_ms) in self.targets.iter_mut().zip(outcomes(sample)) {
            if let Some(actual_ms) = actual_ms {
                learner.keep(TrainingRow { features: sample.features, actual_ms });
            }
        }
        self.last_observed_at = self.last_observed_at.max(Some(sample.observed_at));
    }

    /// The fit that is due now, if any. Until it is concluded no other is handed out (I5).
    pub fn prepare(&mut self, now: UnixMs) -> Option<FitJob> {
        if self.running.is_some() {
            return None;
        }
        let due =
            |learner: &TargetLearner| learner.due(&self.params, self.snapshot.models.of(learner.target).rows, now);
        let reasons = [due(&self.targets[0]), due(&self.targets[1])];
        let reason = reasons.iter().flatten().copied().next()?;
        let mut targets = [None, None];
        let mut rows = [None, None];
        for (index, learner) in self.targets.iter_mut().enumerate() {
            if reasons[index].is_some() {
                rows[index] = Some(learner.store.len());
                targets[index] = Some(TargetJob { rows: learner.store.rows().copied().collect() });
                learner.fresh = 0;
                learner.fitted_at = Some(now);
            }
        }
        self.running = Some((reason, rows));
        Some(FitJob { prior: self.params.prior, targets })
    }

    /// Judges a finished fit (`None`: it panicked) and installs what passes. Without a fit handed out it reports
    /// one that took no part.
    pub fn conclude(&mut self, result: Option<FitResult>, now: UnixMs) -> FitReport {
        let (reason, rows) = self.running.take().unwrap_or((FitReason::Samples, [None, None]));
        let mut challengers = result.map(|result| result.challengers);
        let mut outcome = [None, None];
        let mut models = (*self.snapshot.models).clone();
        for (index, learner) in self.targets.iter().enumerate() {
            if rows[index].is_none() {
                continue;
            }
            let slot = challengers.as_mut().and_then(|both| both[index].take());
            let verdict = match slot {
                None => FitOutcome::Panicked,
                Some(None) => FitOutcome::Failed,
                Some(Some(challenger)) => {
                    let champion = self.snapshot.models.of(learner.target);
                    let verdict = judge(champion, &challenger, learner.store.rows());
                    if verdict == FitOutcome::Accepted {
                        match learner.target {
                            Target::Ttft => models.ttft = challenger,
                            Target::Tpot => models.tpot = challenger,
                        }
                    }
                    verdict
                }
            };
            outcome[index] = Some(verdict);
            if let Some(count) = FitOutcome::ALL.iter().position(|kind| *kind == verdict) {
                self.fits[count] += 1;
            }
        }
        if outcome.contains(&Some(FitOutcome::Accepted)) {
            self.install(models, Some(now), now);
        }
        let report = FitReport {
            at: now,
            reason,
            rows: rows.map(|count| count.unwrap_or(0)),
            outcome,
            generation: self.snapshot.version.generation,
        };
        self.last_fit = Some(report.clone());
        report
    }

    /// `prepare`, `run`, `conclude` in one, for callers in virtual time.
    pub fn step(&mut self, now: UnixMs) -> Option<FitReport> {
        let job = self.prepare(now)?;
        Some(self.conclude(Some(job.run()), now))
    }

    /// The current snapshot, with the newest corrections: a new revision if anything changed since the last call.
    pub fn snapshot(&mut self, now: UnixMs) -> Snapshot {
        if self.corrected {
            self.corrected = false;
            self.snapshot.version.revision += 1;
            self.refresh(now);
        }
        self.snapshot.clone()
    }

    /// The account.
    pub fn report(&self) -> LearnerReport {
        let report_of = |learner: &TargetLearner| {
            let fitted_rows = self.snapshot.models.of(learner.target).rows;
            TargetReport {
                target: learner.target,
                observed: learner.observed,
                stored: learner.store.len(),
                evicted: learner.store.evicted(),
                fitted_rows,
                accuracy: learner.accuracy.overall(),
                by_load: learner.accuracy.by_load(),
                promised: learner.accuracy.promised(),
                new_samples: learner.fresh,
                next_fit_at: learner.next_fit_at(&self.params, fitted_rows),
                offset_factor: learner.tracking.published().pool.map(f64::exp),
            }
        };
        LearnerReport {
            version: self.snapshot.version,
            last_fit: self.last_fit.clone(),
            fits: self.fits,
            last_observed_at: self.last_observed_at,
            targets: [report_of(&self.targets[0]), report_of(&self.targets[1])],
        }
    }

    /// What the store holds.
    pub fn survey(&self) -> Survey {
        Survey {
            targets: [survey_target(self.targets[0].store.rows()), survey_target(self.targets[1].store.rows())],
            prefix_ttft: self.targets[0]
                .store
                .rows()
                .map(|row| (row.features.prefix_cache_score, row.actual_ms))
                .collect(),
        }
    }

    /// Drops all stored samples; returns how many per target.
    pub fn forget_samples(&mut self) -> [usize; 2] {
        let mut dropped = [0; 2];
        for (count, learner) in dropped.iter_mut().zip(&mut self.targets) {
            *count = learner.store.clear();
            learner.fresh = 0;
        }
        dropped
    }

    /// Clears rolling accuracy.
    pub fn forget_accuracy(&mut self) {
        self.targets.iter_mut().for_each(|learner| learner.accuracy.clear());
    }

    /// Back to the prior, as the next generation.
    pub fn forget_models(&mut self, now: UnixMs) {
        let prior = &self.params.prior;
        let models =
            Models { ttft: TargetModel::prior(Target::Ttft, prior), tpot: TargetModel::prior(Target::Tpot, prior) };
        for learner in &mut self.targets {
            learner.tracking = TargetTracking::default();
            learner.fitted_at = None;
        }
        self.install(models, None, now);
    }

    fn install(&mut self, models: Models, fitted_at: Option<UnixMs>, now: UnixMs) {
        self.snapshot.models = Arc::new(models);
        self.snapshot.version.generation = self.snapshot.version.generation.next();
        self.snapshot.version.revision = 0;
        self.snapshot.provenance.fitted_at = fitted_at;
        self.corrected = false;
        self.refresh(now);
    }

    fn refresh(&mut self, now: UnixMs) {
        self.snapshot.online =
            Arc::new(Online { ttft: self.targets[0].tracking.published(), tpot: self.targets[1].tracking.published() });
        self.snapshot.provenance.made_at = now;
        self.snapshot.provenance.last_observed_at = self.last_observed_at;
        self.snapshot.provenance.made_by = env!("CARGO_PKG_VERSION").to_string();
    }

    /// The generation that serves.
    pub fn generation(&self) -> Generation {
        self.snapshot.version.generation
    }
}

fn outcomes(sample: &Sample) -> [Option<f64>; 2] {
    [sample.observation.ttft_ms, sample.observation.tpot_ms]
}

/// When the request was dispatched: as the sender says, or reckoned back from the moment its outcome was seen. A row
/// with a TPOT was seen at its end, so its decode time and its TTFT (predicted, if not in the row) lie in between.
fn dispatched_at(sample: &Sample, models: &Models) -> UnixMs {
    if let Some(at) = sample.dispatched_at {
        return at.min(sample.observed_at);
    }
    let tokens = f64::from(sample.observation.output_tokens);
    let decode_ms = sample.observation.tpot_ms.map_or(0.0, |tpot_ms| tpot_ms * tokens);
    let ttft_ms = sample.observation.ttft_ms.unwrap_or_else(|| models.ttft.anchors(&sample.features).log[0].exp());
    sample.observed_at.plus_ms(-((ttft_ms + decode_ms).clamp(0.0, 1e15) as i64))
}
