//! Words for what a service knows of itself: the state that applies, why, and what stands in the way of learning. Pure.

use std::collections::BTreeMap;

use super::reasons::{Cause, Standing, joined};
use super::trainer::{FITS_FAILED_MAX, TrainerView, streak_words};
use super::{IngestCounts, SyncStatus};
use crate::calibration::STALE_AFTER_MS;
use crate::snapshot::Snapshot;
use crate::types::{State, Target};

/// Rejections of one target in a row from which they count as not learning: one or two are the gate at work.
const REJECTED_MAX: u32 = 3;

/// Everything the words are made of.
pub(super) struct Facts<'a> {
    pub(super) standing: Standing<'a>,
    pub(super) ingest: &'a IngestCounts,
    /// Samples before which no first fit starts.
    pub(super) fit_min_samples: u64,
    /// Absent on a follower.
    pub(super) trainer: Option<&'a TrainerView>,
    /// Present on a follower.
    pub(super) sync: Option<&'a SyncStatus>,
}

impl Facts<'_> {
    /// The state that every answer has at least now, of whatever role.
    pub(super) fn state(&self) -> State {
        self.standing.state(self.standing.mildest_role())
    }

    /// Why it is in that state: everything that applies, worst first, with figures.
    pub(super) fn reason(&self) -> String {
        let causes = self.standing.causes(self.standing.mildest_role());
        if causes.is_empty() {
            return self.fitted_words();
        }
        joined(causes.into_iter().map(|cause| (cause.state(), self.words(cause))))
    }

    fn words(&self, cause: Cause) -> String {
        let words = match cause {
            Cause::Broken => self.broken_words().map(|words| format!("{words}; {}", self.serving_words())),
            Cause::Unfitted => {
                let why = self.unfitted_because().map_or(String::new(), |why| format!("; {why}"));
                Some(format!("{}{why}", self.standing.physics_words(self.standing.mildest_role())))
            }
            Cause::FewRows => Some(format!("{}: {}", State::Warming.reason(), self.rows_words())),
            Cause::Seeded => self.standing.seed_words(self.standing.mildest_role()),
            Cause::OutOfStep => self.out_of_step_words(),
            Cause::Silent => self.silence_words(),
            Cause::Borrowed | Cause::EndpointChanged | Cause::Beyond => None,
        };
        words.unwrap_or_else(|| self.standing.brief(cause, self.standing.mildest_role()))
    }

    /// Why nothing is being learnt; `None` while learning goes on as it should.
    pub(super) fn not_learning_because(&self) -> Option<String> {
        let Some(trainer) = self.trainer else {
            let sync = self.sync.filter(|sync| !sync.connected)?;
            let error = sync.error.as_deref().unwrap_or("not connected yet");
            return Some(format!("the trainer at {} is out of reach: {error}", sync.trainer_url));
        };
        if let Some(words) = self.broken_words() {
            return Some(words);
        }
        let report = &trainer.report;
        if report.targets.iter().all(|target| target.observed == 0) {
            return Some(match refused_words(&self.ingest.refused) {
                _ if self.ingest.queued > 0 => format!("{} samples wait for the trainer", self.ingest.queued),
                Some(refused) => format!("no sample was ever taken: {refused}"),
                None if self.ingest.dropped > 0 => format!("all {} samples were dropped", self.ingest.dropped),
                None => "no sample was ever received".to_string(),
            });
        }
        let waiting: Vec<String> = report
            .targets
            .iter()
            .filter(|target| target.fitted_rows == 0 && target.new_samples < self.fit_min_samples)
            .map(|target| {
                let name = target.target.name();
                format!("{} of {} samples for the first {name} fit", target.new_samples, self.fit_min_samples)
            })
            .collect();
        if !waiting.is_empty() {
            return Some(waiting.join(", "));
        }
        let streaks = self.streaks_words(1, REJECTED_MAX);
        if !streaks.is_empty() {
            return Some(streaks);
        }
        let age_ms = self.standing.now.since(trainer.last_received_at?);
        (age_ms > STALE_AFTER_MS).then(|| {
            let refused = refused_words(&self.ingest.refused).map_or(String::new(), |words| format!("; {words}"));
            format!("the latest sample came {} ago{refused}", duration_words(age_ms))
        })
    }

    /// Whether answers are usable, and why or why not.
    pub(super) fn readiness(&self) -> (bool, String) {
        match (is_ready(self.standing.snapshot), self.standing.snapshot.provenance.fitted_at) {
            (true, Some(_)) => return (true, self.fitted_words()),
            (true, None) => return (true, self.standing.physics_words(self.standing.mildest_role())),
            (false, _) => {}
        }
        let unfitted = self.standing.unfitted_words(self.standing.mildest_role());
        let why = self.unfitted_because().map_or(String::new(), |why| format!(": {why}"));
        let place = if self.sync.is_some() { " here or at the trainer" } else { "" };
        (false, format!("{unfitted}{why}; set calibration or prefill_tokens_per_s{place} to be ready without samples"))
    }

    fn fitted_words(&self) -> String {
        let age_ms = self.standing.snapshot.provenance.fitted_at.map_or(0, |at| self.standing.now.since(at));
        let generation = self.standing.snapshot.version.generation.0;
        format!("generation {generation}, fitted {} ago on {}", duration_words(age_ms), self.rows_words())
    }

    fn rows_words(&self) -> String {
        let rows = Target::ALL
            .map(|target| format!("{} {} rows", self.standing.snapshot.models.common(target).rows, target.name()));
        rows.join(" and ")
    }

    fn serving_words(&self) -> String {
        match self.standing.snapshot.provenance.fitted_at {
            Some(_) => format!("generation {} goes on answering", self.standing.snapshot.version.generation.0),
            None => "the prior goes on answering".to_string(),
        }
    }

    /// A follower that lost step with its trainer.
    fn out_of_step_words(&self) -> Option<String> {
        let age_ms = self.standing.health.out_of_step_ms(self.standing.now)?;
        let sync = self.sync?;
        let error = sync.error.as_deref().unwrap_or("no answer yet");
        let link = if sync.connected { "answers, but" } else { "does not answer:" };
        Some(format!("last snapshot is {} old; trainer at {} {link} {error}", duration_words(age_ms), sync.trainer_url))
    }

    /// A model that has seen no samples for long.
    fn silence_words(&self) -> Option<String> {
        let age = duration_words(self.standing.now.since(self.standing.snapshot.provenance.last_observed_at?));
        Some(format!("fewer than 10 samples in the last 10 min, the latest {age} old, so the spread is widened"))
    }

    /// Why a target has no fit.
    fn unfitted_because(&self) -> Option<String> {
        if let Some(sync) = self.sync
            && self.standing.snapshot.provenance.fitted_at.is_none()
        {
            let link = sync.error.clone().map_or(String::new(), |error| format!(": {error}"));
            return Some(format!("nothing fitted came from the trainer at {} so far{link}", sync.trainer_url));
        }
        self.trainer.and_then(|_| self.not_learning_because())
    }

    /// A learner that is broken.
    fn broken_words(&self) -> Option<String> {
        let trainer = self.trainer?;
        if let Some(died) = &trainer.died {
            return Some(format!("the trainer thread stopped: {died}"));
        }
        trainer.fits_fail().then(|| self.streaks_words(FITS_FAILED_MAX, u32::MAX))
    }

    /// The targets whose fits failed or were rejected at least so many times in a row.
    fn streaks_words(&self, failed_min: u32, rejected_min: u32) -> String {
        let Some(trainer) = self.trainer else { return String::new() };
        let words: Vec<String> = Target::ALL
            .iter()
            .zip(&trainer.streaks)
            .filter(|(_, streak)| streak.failed >= failed_min || streak.rejected >= rejected_min)
            .filter_map(|(target, streak)| streak_words(*target, streak, trainer.panic.as_deref()))
            .collect();
        words.join("; ")
    }
}

/// Whether a snapshot's answers are usable: a fitted model, or a prior that the operator calibrated.
pub(super) fn is_ready(snapshot: &Snapshot) -> bool {
    snapshot.provenance.fitted_at.is_some() || snapshot.calibrated
}

fn refused_words(refused: &BTreeMap<&'static str, u64>) -> Option<String> {
    let total: u64 = refused.values().sum();
    let reasons: Vec<String> = refused.iter().map(|(reason, rows)| format!("{reason} {rows}")).collect();
    (total > 0).then(|| format!("{total} rows were refused ({})", reasons.join(", ")))
}

/// A duration for people: `42 s`, `12 min`, `3 h`, `2 d`.
pub(super) fn duration_words(ms: i64) -> String {
    let s = ms.max(0) / 1000;
    match s {
        0..=119 => format!("{s} s"),
        120..=7199 => format!("{} min", s / 60),
        7200..=172_799 => format!("{} h", s / 3600),
        _ => format!("{} d", s / 86_400),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::model::Prior;
    use crate::service::DEFAULT_PRIOR_NAME;
    use crate::service::health::Health;
    use crate::service::reasons::PriorWords;
    use crate::service::trainer::Streak;
    use crate::training::{FitOutcome, Learner, LearnerParams};
    use crate::types::{Generation, Lineage, Role, UnixMs};

    const NOW: UnixMs = UnixMs(10_000_000);

    /// What the facts are taken from, healthy: 200 rows of each target fitted 50 s ago.
    struct World {
        snapshot: Snapshot,
        health: Health,
        ingest: IngestCounts,
        trainer: TrainerView,
        sync: Option<SyncStatus>,
        prior: PriorWords,
    }

    impl World {
        fn new() -> Self {
            let mut snapshot = World::prior();
            snapshot.version.generation = Generation(7);
            snapshot.provenance.fitted_at = Some(UnixMs(NOW.0 - 50_000));
            let models = Arc::make_mut(&mut snapshot.models);
            models.0[0].iter_mut().for_each(|model| model.rows = 200);
            let mut trainer = TrainerView::new(Learner::new(LearnerParams::default(), snapshot.clone()).report());
            trainer.report.targets.iter_mut().for_each(|target| (target.observed, target.fitted_rows) = (200, 200));
            trainer.last_received_at = Some(NOW);
            let prior = PriorWords::new(DEFAULT_PRIOR_NAME, &Prior::default());
            World { snapshot, health: Health::new(5_000), ingest: IngestCounts::default(), trainer, sync: None, prior }
        }

        fn prior() -> Snapshot {
            Snapshot::prior(&LearnerParams::default().prior, Lineage(1), NOW)
        }

        fn unlearnt() -> Self {
            let mut world = World::new();
            world.snapshot = World::prior();
            world.trainer.report.targets.iter_mut().for_each(|target| (target.observed, target.fitted_rows) = (0, 0));
            world.trainer.last_received_at = None;
            world
        }

        fn following(error: Option<&str>) -> Self {
            let mut world = World::new();
            world.sync = Some(SyncStatus {
                trainer_url: "http://t:8000".to_string(),
                connected: error.is_none(),
                error: error.map(str::to_string),
                ..SyncStatus::default()
            });
            world
        }

        fn facts(&self) -> Facts<'_> {
            Facts {
                standing: Standing {
                    now: NOW,
                    snapshot: &self.snapshot,
                    health: &self.health,
                    prior: &self.prior,
                    seed: None,
                    follows: self.sync.is_some(),
                },
                ingest: &self.ingest,
                fit_min_samples: 10,
                trainer: self.sync.is_none().then_some(&self.trainer),
                sync: self.sync.as_ref(),
            }
        }

        fn state(&self) -> (State, String) {
            let facts = self.facts();
            (facts.state(), facts.reason())
        }

        fn not_learning(&self) -> String {
            self.facts().not_learning_because().unwrap_or_else(|| "all is well".to_string())
        }
    }

    /// What a row within the trained range is told.
    fn brief(world: &World) -> String {
        let standing = world.facts().standing;
        joined(standing.causes(Role::Both).into_iter().map(|cause| (cause.state(), standing.brief(cause, Role::Both))))
    }

    fn said(state: State, reason: &str) -> (State, String) {
        (state, reason.to_string())
    }

    #[test]
    fn a_healthy_service_says_what_it_learnt_from() {
        let world = World::new();
        let words = "generation 7, fitted 50 s ago on 200 ttft rows and 200 tpot rows";
        assert_eq!(world.state(), said(State::Ready, words));
        assert_eq!(world.not_learning(), "all is well");
        assert_eq!(world.facts().readiness(), (true, words.to_string()));
    }

    #[test]
    fn few_rows_are_warming_with_their_figures() {
        let mut world = World::new();
        Arc::make_mut(&mut world.snapshot.models).0[0][1].rows = 40;
        let words = "fitted on fewer than 100 samples so far: 200 ttft rows and 40 tpot rows";
        assert_eq!(world.state(), said(State::Warming, words));
    }

    #[test]
    fn nothing_learnt_says_what_is_missing() {
        let mut world = World::unlearnt();
        let prior =
            |why: &str| said(State::Prior, &format!("no fit yet: physics with shipped default constants; {why}"));
        assert_eq!(world.state(), prior("no sample was ever received"));
        let (ready, why) = world.facts().readiness();
        assert!(!ready);
        let missing = "no fit yet: no sample was ever received";
        assert_eq!(why, format!("{missing}; set calibration or prefill_tokens_per_s to be ready without samples"));

        world.ingest.refused = BTreeMap::from([("feature_out_of_range", 12), ("no_outcome", 3)]);
        let refused = "no sample was ever taken: 15 rows were refused (feature_out_of_range 12, no_outcome 3)";
        assert_eq!(world.state(), prior(refused));
        world.ingest.refused.clear();
        world.ingest.dropped = 9;
        assert_eq!(world.not_learning(), "all 9 samples were dropped");
        world.ingest.queued = 4;
        assert_eq!(world.not_learning(), "4 samples wait for the trainer");

        world.trainer.report.targets[0].observed = 6;
        world.trainer.report.targets[0].new_samples = 6;
        let counts = "6 of 10 samples for the first ttft fit, 0 of 10 samples for the first tpot fit";
        assert_eq!(world.state(), prior(counts));
    }

    #[test]
    fn a_calibrated_prior_is_ready_and_still_says_prior() {
        let mut world = World::unlearnt();
        world.snapshot.calibrated = true;
        assert_eq!(world.state().0, State::Prior);
        let given = Prior { calibrated: true, prefill_tokens_per_s: 15_928.0, ..Prior::default() };
        world.prior = PriorWords::new("calibration some-row", &given);
        let words = "no fit yet: physics with calibration some-row (15930 tokens/s, 0.443 ms per million token pairs, \
                     floor 22 ms, decode step 16 ms)";
        assert_eq!(world.facts().readiness(), (true, words.to_string()));
        assert_eq!(brief(&world), words, "every route says it in the same words");
        assert_eq!(world.state().1, format!("{words}; no sample was ever received"));
    }

    #[test]
    fn a_follower_out_of_step_says_since_when_and_why() {
        let world = World::following(Some("connection refused"));
        world.health.set_out_of_step(UnixMs(NOW.0 - 42_000));
        let words = "last snapshot is 42 s old; trainer at http://t:8000 does not answer: connection refused";
        assert_eq!(world.state(), said(State::Stale, words));
        assert_eq!(world.not_learning(), "the trainer at http://t:8000 is out of reach: connection refused");
        assert!(world.facts().readiness().0, "the last snapshot is still usable");
    }

    /// A predictor whose trainer went away while its model was warming said nothing of the trainer.
    #[test]
    fn a_bad_state_hides_no_other() {
        let mut world = World::following(Some("connection refused"));
        world.health.set_out_of_step(UnixMs(NOW.0 - 42_000));
        Arc::make_mut(&mut world.snapshot.models).0[0][1].rows = 40;
        let old = UnixMs(NOW.0 - 4 * STALE_AFTER_MS);
        Arc::make_mut(&mut world.snapshot.online).0[0][0].tenth_latest_at = Some(old);
        world.snapshot.provenance.last_observed_at = Some(old);
        let words = "fitted on fewer than 100 samples so far: 200 ttft rows and 40 tpot rows; \
                     also stale: last snapshot is 42 s old; trainer at http://t:8000 does not answer: connection refused; \
                     also stale: fewer than 10 samples in the last 10 min, the latest 40 min old, so the spread is widened";
        assert_eq!(world.state(), said(State::Warming, words));
        let words = "fitted on fewer than 100 samples so far; also stale: out of step with the trainer for 42 s; \
                     also stale: few or no new samples lately, so the spread is widened";
        assert_eq!(brief(&world), words);
    }

    #[test]
    fn a_follower_in_step_learns_through_its_trainer() {
        let world = World::following(None);
        assert_eq!((world.state().0, world.not_learning()), said(State::Ready, "all is well"));
    }

    #[test]
    fn a_follower_with_nothing_says_whom_it_waits_for() {
        let mut world = World::following(Some("no answer within 2000 ms"));
        world.snapshot = World::prior();
        let why = "nothing fitted came from the trainer at http://t:8000 so far: no answer within 2000 ms";
        let physics = "no fit yet: physics with the trainer's default constants";
        assert_eq!(world.state(), said(State::Prior, &format!("{physics}; {why}")));
        let setting = "set calibration or prefill_tokens_per_s here or at the trainer to be ready without samples";
        assert_eq!(world.facts().readiness(), (false, format!("no fit yet: {why}; {setting}")));
        world.snapshot.version.lineage = Lineage::default();
        assert!(world.state().1.starts_with("no fit yet: physics with shipped default constants; "), "its own");
    }

    #[test]
    fn failing_fits_are_degraded_and_come_off_again() {
        let mut world = World::new();
        let failed = |failed, last| Streak { failed, rejected: 0, last: Some(last) };
        world.trainer.streaks[1] = failed(1, FitOutcome::RejectedNotFinite);
        assert_eq!(world.not_learning(), "the latest tpot fit came out non-finite");
        assert_eq!(world.state().0, State::Ready, "once is no state");
        world.trainer.streaks[1] = failed(3, FitOutcome::Failed);
        world.health.set_learning_broken(true);
        let words = "the latest 3 tpot fits failed; generation 7 goes on answering";
        assert_eq!(world.state(), said(State::Degraded, words));
        world.trainer.died = Some("index out of bounds".to_string());
        let words = "the trainer thread stopped: index out of bounds; generation 7 goes on answering";
        assert_eq!(world.state(), said(State::Degraded, words));
    }

    #[test]
    fn the_gate_at_work_is_no_fault_until_it_only_refuses() {
        let mut world = World::new();
        let rejected = |rejected| Streak { failed: 0, rejected, last: Some(FitOutcome::RejectedWorse) };
        world.trainer.streaks[0] = rejected(2);
        assert_eq!(world.not_learning(), "all is well");
        world.trainer.streaks[0] = rejected(3);
        assert_eq!(world.not_learning(), "the latest 3 ttft fits were worse than the serving model and refused");
    }

    #[test]
    fn samples_that_stopped_coming_are_missed() {
        let mut world = World::new();
        world.trainer.last_received_at = Some(UnixMs(NOW.0 - STALE_AFTER_MS - 1));
        world.ingest.refused = BTreeMap::from([("no_outcome", 3)]);
        assert_eq!(world.not_learning(), "the latest sample came 10 min ago; 3 rows were refused (no_outcome 3)");
        let old = UnixMs(NOW.0 - 4 * STALE_AFTER_MS);
        Arc::make_mut(&mut world.snapshot.online).0[0][0].tenth_latest_at = Some(old);
        world.snapshot.provenance.last_observed_at = Some(old);
        let words = "fewer than 10 samples in the last 10 min, the latest 40 min old, so the spread is widened";
        assert_eq!(world.state(), said(State::Stale, words));
    }

    #[test]
    fn durations_have_one_unit() {
        for (ms, words) in
            [(-5, "0 s"), (119_999, "119 s"), (120_000, "2 min"), (7_200_000, "2 h"), (172_800_000, "2 d")]
        {
            assert_eq!(duration_words(ms), words);
        }
    }
}
