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
        // A sender's clock may be ahead; a time in the future would hide every later one from the trackers' memory.
        let observed_at = sample.observed_at.min(now);
        let dispatched_at = dispatched_at(sample, observed_at, &self.snapshot.models);
        for (learner, actual_ms) in self.targets.iter_mut().zip(outcomes(sample)) {
            let Some(actual_ms) = actual_ms else { continue };
            let model = self.snapshot.models.of(learner.target);
            let anchors = model.anchors(&sample.features);
            let judged = Judged { log_actual: actual_ms.ln(), log_anchors: anchors.log, dispatched_at, observed_at };
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
        self.last_observed_at = self.last_observed_at.max(Some(observed_at));
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
            alarms: Vec::new(),
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
fn dispatched_at(sample: &Sample, observed_at: UnixMs, models: &Models) -> UnixMs {
    if let Some(at) = sample.dispatched_at {
        // The same clock told both times: what it is ahead by comes off both.
        let ahead_ms = sample.observed_at.since(observed_at);
        return at.plus_ms(-ahead_ms).min(observed_at);
    }
    let tokens = f64::from(sample.observation.output_tokens);
    let decode_ms = sample.observation.tpot_ms.map_or(0.0, |tpot_ms| tpot_ms * tokens);
    let ttft_ms = sample.observation.ttft_ms.unwrap_or_else(|| models.ttft.anchors(&sample.features).log[0].exp());
    observed_at.plus_ms(-((ttft_ms + decode_ms).clamp(0.0, 1e15) as i64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{Ask, Features, Lineage, Manner, Observation, Promised, Quantile, Role};
    use proptest::prelude::*;

    fn learner() -> Learner {
        Learner::new(LearnerParams::default(), Snapshot::prior(&Prior::default(), Lineage(1), UnixMs(0)))
    }

    fn features(i: u32) -> Features {
        Features {
            kv_cache_usage: f64::from(i % 7) / 10.0,
            input_tokens: 200 + i * 389 % 5000,
            requests_waiting: (i % 5).saturating_sub(3),
            requests_running: i % 11,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: i * 211 % 4000,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role: Role::Both,
        }
    }

    /// An engine `slower` times slower than the prior says.
    fn sample(i: u32, slower: f64) -> Sample {
        let features = features(i);
        let ttft = TargetModel::prior(Target::Ttft, &Prior::default()).anchors(&features).base_ms[0];
        let noise = 1.0 + f64::from(i * 7 % 10) / 50.0;
        Sample::try_new(Sample {
            features,
            observation: Observation {
                ttft_ms: Some(ttft * slower * noise),
                tpot_ms: Some(20.0 * slower * noise),
                output_tokens: 50,
            },
            endpoint: None,
            observed_at: UnixMs(i64::from(i) * 1000),
            dispatched_at: None,
            promised: Promised { ttft_ms: Some(ttft), tpot_ms: None },
            manner: Manner::default(),
            fingerprint: None,
        })
        .unwrap()
    }

    fn feed(learner: &mut Learner, range: std::ops::Range<u32>, slower: f64) -> Vec<FitReport> {
        range
            .filter_map(|i| {
                let now = UnixMs(i64::from(i) * 1000);
                learner.observe(&sample(i, slower), now);
                learner.step(now)
            })
            .collect()
    }

    #[test]
    fn i1_generations_rise_by_one_and_the_first_fit_comes_at_ten_samples() {
        let mut learner = learner();
        let fits = feed(&mut learner, 0..600, 2.0);
        assert_eq!(fits[0].rows, [10, 10]);
        let generations: Vec<u64> = fits.iter().map(|fit| fit.generation.0).collect();
        assert_eq!(generations, (1..=fits.len() as u64).collect::<Vec<_>>());
        // A quarter of the last fit's rows: far fewer fits than one per ten samples.
        assert!(fits.len() < 25, "{}", fits.len());
    }

    #[test]
    fn it_learns_an_engine_twice_as_slow_and_says_how_well() {
        let mut learner = learner();
        feed(&mut learner, 0..600, 2.0);
        let snapshot = learner.snapshot(UnixMs(600_000));
        let estimate = snapshot.predict(&features(700), None, Ask::Quantile(Quantile::P50), UnixMs(600_000));
        let actual = sample(700, 2.0).observation.ttft_ms.unwrap();
        assert!((estimate.ttft.value_ms / actual).ln().abs() < 0.2, "{} {actual}", estimate.ttft.value_ms);
        let report = learner.report();
        let ttft = &report.targets[0];
        assert_eq!((ttft.observed, ttft.stored, ttft.accuracy.pairs), (600, 600, 600));
        assert!(ttft.accuracy.mape.unwrap() < 0.2);
        assert!(ttft.promised.mape.unwrap() > 0.4, "promises of the prior were half of what came");
        assert_eq!(ttft.by_load.iter().map(|band| band.pairs).sum::<u64>(), 600);
    }

    #[test]
    fn i5_a_panicked_fit_leaves_the_serving_snapshot_and_is_counted() {
        let mut learner = learner();
        feed(&mut learner, 0..9, 2.0);
        learner.observe(&sample(9, 2.0), UnixMs(9_000));
        let before = learner.snapshot(UnixMs(9_000));
        assert!(learner.prepare(UnixMs(9_000)).is_some());
        assert!(learner.prepare(UnixMs(9_000)).is_none(), "one fit at a time");
        let report = learner.conclude(None, UnixMs(9_000));
        assert_eq!(report.outcome, [Some(FitOutcome::Panicked); 2]);
        assert_eq!(learner.snapshot(UnixMs(9_000)), before);
        assert_eq!(learner.report().fits[4], 2);
        // It goes on: the next samples start the next fit.
        assert!(feed(&mut learner, 10..40, 2.0)[0].published());
    }

    #[test]
    fn a_challenger_that_is_clearly_worse_is_refused() {
        let mut learner = learner();
        feed(&mut learner, 0..400, 1.0);
        let before = learner.snapshot(UnixMs(400_000));
        let job = loop {
            let i = learner.targets[0].observed as u32;
            learner.observe(&sample(i, 1.0), UnixMs(i64::from(i) * 1000));
            if let Some(job) = learner.prepare(UnixMs(i64::from(i) * 1000)) {
                break job;
            }
        };
        let mut result = job.run();
        let slow = Prior { prefill_tokens_per_s: 10.0, ttft_floor_ms: 9e5, ..Prior::default() };
        result.challengers[0] = Some(Some(TargetModel::prior(Target::Ttft, &slow)));
        let report = learner.conclude(Some(result), UnixMs(500_000));
        assert_eq!(report.outcome[0], Some(FitOutcome::RejectedWorse));
        assert_eq!(learner.snapshot(UnixMs(500_000)).models.ttft, before.models.ttft);
    }

    #[test]
    fn a_clock_that_jumps_far_ahead_does_not_blind_the_trackers() {
        let mut jumped = learner();
        feed(&mut jumped, 0..100, 1.0);
        let mut late = sample(100, 1.0);
        late.observed_at = UnixMs(i64::MAX);
        jumped.observe(&late, UnixMs(100_000));
        // The engine becomes three times slower; the offset must follow although one time was absurd.
        (101..250).for_each(|i| jumped.observe(&sample(i, 3.0), UnixMs(i64::from(i) * 1000)));
        let factor = jumped.report().targets[0].offset_factor[0];
        assert!(factor > 2.0, "{factor}");
    }

    #[test]
    fn restored_samples_teach_but_are_not_scored() {
        let mut learner = learner();
        (0..300).for_each(|i| learner.restore(&sample(i, 2.0)));
        assert_eq!(learner.report().targets[0].accuracy.pairs, 0);
        let report = learner.step(UnixMs(300_000)).unwrap();
        assert_eq!((report.rows, report.published()), ([300, 300], true));
    }

    #[test]
    fn a_resumed_learner_keeps_its_generation_and_its_model() {
        let mut first = learner();
        feed(&mut first, 0..300, 2.0);
        let snapshot = first.snapshot(UnixMs(300_000));
        let mut second = Learner::new(LearnerParams::default(), snapshot.clone());
        assert_eq!(second.snapshot(UnixMs(301_000)).models, snapshot.models);
        let fits = feed(&mut second, 300..400, 2.0);
        assert!(fits[0].generation > snapshot.version.generation);
    }

    #[test]
    fn flushing_forgets_what_was_asked_for_and_nothing_else() {
        let mut learner = learner();
        feed(&mut learner, 0..300, 2.0);
        let generation = learner.generation();
        assert_eq!(learner.forget_samples(), [300, 300]);
        assert_eq!(learner.generation(), generation);
        learner.forget_accuracy();
        assert_eq!(learner.report().targets[0].accuracy.pairs, 0);
        learner.forget_models(UnixMs(300_000));
        assert_eq!(learner.generation(), generation.next());
        assert_eq!(learner.snapshot(UnixMs(300_000)).models.ttft.rows, 0);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(16))]
        #[test]
        fn same_samples_same_bytes(order in prop::collection::vec(0..2000u32, 1..200)) {
            let run = || {
                let mut learner = learner();
                for &i in &order {
                    learner.observe(&sample(i, 1.5), UnixMs(i64::from(i)));
                    learner.step(UnixMs(i64::from(i)));
                }
                crate::snapshot::encode(&learner.snapshot(UnixMs(9)))
            };
            prop_assert_eq!(run(), run());
        }
    }
}
