//! Words for what a service knows of itself: the state that applies, why, and what stands in the way of learning. Pure.

use std::collections::BTreeMap;

use super::health::Health;
use super::trainer::{FITS_FAILED_MAX, TrainerView, streak_words};
use super::{IngestCounts, SyncStatus};
use crate::calibration::STALE_AFTER_MS;
use crate::snapshot::{Conditions, Snapshot};
use crate::types::{Ask, Quantile, State, Target, UnixMs};

/// Rejections of one target in a row from which they count as not learning: one or two are the gate at work.
const REJECTED_MAX: u32 = 3;

/// Everything the words are made of.
pub(super) struct Facts<'a> {
    pub(super) now: UnixMs,
    pub(super) snapshot: &'a Snapshot,
    pub(super) health: &'a Health,
    pub(super) ingest: &'a IngestCounts,
    /// Samples before which no first fit starts.
    pub(super) fit_min_samples: u64,
    /// Absent on a follower.
    pub(super) trainer: Option<&'a TrainerView>,
    /// Present on a follower.
    pub(super) sync: Option<&'a SyncStatus>,
}

impl Facts<'_> {
    /// The worst state that applies to every answer now.
    pub(super) fn state(&self) -> State {
        let conditions =
            Conditions { ask: Ask::Quantile(Quantile::P50), now: self.now, at_least: self.health.at_least(self.now) };
        self.snapshot.read(conditions).state()
    }

    /// Why it is in that state, in one sentence with figures.
    pub(super) fn reason(&self, state: State) -> String {
        let words = match state {
            State::Ready | State::Extrapolating => Some(self.fitted_words()),
            State::Warming => Some(format!("{}: {}", state.reason(), self.rows_words())),
            State::Stale => Some(self.out_of_step_words().unwrap_or_else(|| self.silence_words())),
            State::Prior => self.prior_words(true),
            State::Degraded => self.broken_words().map(|words| format!("{words}; {}", self.serving_words())),
        };
        words.unwrap_or_else(|| state.reason().to_string())
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
        let age_ms = self.now.since(trainer.last_received_at?);
        (age_ms > STALE_AFTER_MS).then(|| {
            let refused = refused_words(&self.ingest.refused).map_or(String::new(), |words| format!("; {words}"));
            format!("the latest sample came {} ago{refused}", duration_words(age_ms))
        })
    }

    /// Whether answers are usable, and why or why not.
    pub(super) fn readiness(&self) -> (bool, String) {
        match (is_ready(self.snapshot), self.snapshot.provenance.fitted_at) {
            (true, Some(_)) => return (true, self.fitted_words()),
            (true, None) => return (true, "no fit yet; the operator's calibration answers".to_string()),
            (false, _) => {}
        }
        let why = self.prior_words(false).unwrap_or_else(|| State::Prior.reason().to_string());
        (false, format!("{why}; set prefill_tokens_per_s to be ready without samples"))
    }

    fn fitted_words(&self) -> String {
        let age_ms = self.snapshot.provenance.fitted_at.map_or(0, |at| self.now.since(at));
        let generation = self.snapshot.version.generation.0;
        format!("generation {generation}, fitted {} ago on {}", duration_words(age_ms), self.rows_words())
    }

    fn rows_words(&self) -> String {
        let rows =
            Target::ALL.map(|target| format!("{} {} rows", self.snapshot.models.common(target).rows, target.name()));
        rows.join(" and ")
    }

    fn serving_words(&self) -> String {
        match self.snapshot.provenance.fitted_at {
            Some(_) => format!("generation {} goes on answering", self.snapshot.version.generation.0),
            None => "the prior goes on answering".to_string(),
        }
    }

    /// A follower that lost step with its trainer.
    fn out_of_step_words(&self) -> Option<String> {
        let age_ms = self.health.out_of_step_ms(self.now)?;
        let sync = self.sync?;
        let error = sync.error.as_deref().unwrap_or("no answer yet");
        let link = if sync.connected { "answers, but" } else { "does not answer:" };
        Some(format!("last snapshot is {} old; trainer at {} {link} {error}", duration_words(age_ms), sync.trainer_url))
    }

    /// A model that has seen no samples for long.
    fn silence_words(&self) -> String {
        match self.snapshot.provenance.last_observed_at {
            Some(at) => {
                let age = duration_words(self.now.since(at));
                format!("fewer than 10 samples in the last 10 min, the latest {age} old, so the spread is widened")
            }
            None => State::Stale.reason().to_string(),
        }
    }

    /// A target without a fit.
    fn prior_words(&self, answers: bool) -> Option<String> {
        if let Some(sync) = self.sync
            && self.snapshot.provenance.fitted_at.is_none()
        {
            let link = sync.error.clone().map_or(String::new(), |error| format!(": {error}"));
            return Some(format!(
                "no fit yet: nothing fitted came from the trainer at {} so far{link}",
                sync.trainer_url
            ));
        }
        let why = self.trainer.and_then(|_| self.not_learning_because());
        let unfitted: Vec<&str> = Target::ALL
            .iter()
            .filter(|target| self.snapshot.models.common(**target).rows == 0)
            .map(|target| target.name())
            .collect();
        let what = if unfitted.len() == 1 { format!(" for {}", unfitted.concat()) } else { String::new() };
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        let answering = if answers { ", prior constants answer" } else { "" };
        Some(format!("no fit yet{what}{answering}{why}"))
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
    use crate::service::trainer::Streak;
    use crate::training::{FitOutcome, Learner, LearnerParams};
    use crate::types::{Generation, Lineage};

    const NOW: UnixMs = UnixMs(10_000_000);

    /// What the facts are taken from, healthy: 200 rows of each target fitted 50 s ago.
    struct World {
        snapshot: Snapshot,
        health: Health,
        ingest: IngestCounts,
        trainer: TrainerView,
        sync: Option<SyncStatus>,
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
            World { snapshot, health: Health::new(5_000), ingest: IngestCounts::default(), trainer, sync: None }
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
                now: NOW,
                snapshot: &self.snapshot,
                health: &self.health,
                ingest: &self.ingest,
                fit_min_samples: 10,
                trainer: self.sync.is_none().then_some(&self.trainer),
                sync: self.sync.as_ref(),
            }
        }

        fn state(&self) -> (State, String) {
            let facts = self.facts();
            let state = facts.state();
            (state, facts.reason(state))
        }

        fn not_learning(&self) -> String {
            self.facts().not_learning_because().unwrap_or_else(|| "all is well".to_string())
        }
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
        let prior = |why: &str| said(State::Prior, &format!("no fit yet, prior constants answer: {why}"));
        assert_eq!(world.state(), prior("no sample was ever received"));
        let (ready, why) = world.facts().readiness();
        assert!(!ready && why.ends_with("set prefill_tokens_per_s to be ready without samples"), "{why}");

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
        let words = "no fit yet; the operator's calibration answers";
        assert_eq!(world.facts().readiness(), (true, words.to_string()));
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

    #[test]
    fn a_follower_in_step_learns_through_its_trainer() {
        let world = World::following(None);
        assert_eq!((world.state().0, world.not_learning()), said(State::Ready, "all is well"));
    }

    #[test]
    fn a_follower_with_nothing_says_whom_it_waits_for() {
        let mut world = World::following(Some("no answer within 2000 ms"));
        world.snapshot = World::prior();
        let words =
            "no fit yet: nothing fitted came from the trainer at http://t:8000 so far: no answer within 2000 ms";
        assert_eq!(world.state(), said(State::Prior, words));
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
