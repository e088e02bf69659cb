//! Words for what a service knows of itself: the state that applies, why, and what stands in the way of learning. Pure.

use std::collections::BTreeMap;

use super::health::Health;
use super::trainer::{FITS_FAILED_MAX, TrainerView, streak_words};
use super::{IngestCounts, SyncStatus};
use crate::calibration::STALE_AFTER_MS;
use crate::snapshot::{Conditions, Snapshot};
use crate::types::{Ask, Quantile, State, Target, UnixMs};

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
            State::Prior => self.prior_words(),
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
                None => "no samples were ever received".to_string(),
            });
        }
        let waiting: Vec<String> = report
            .targets
            .iter()
            .filter(|target| target.fitted_rows == 0 && target.new_samples < self.fit_min_samples)
            .map(|target| {
                let name = target.target.name().to_uppercase();
                format!("{} of {} samples needed for the first {name} fit", target.new_samples, self.fit_min_samples)
            })
            .collect();
        if !waiting.is_empty() {
            return Some(waiting.join(", "));
        }
        let streaks = self.streaks_words(1);
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
        let why = self.prior_words().unwrap_or_else(|| State::Prior.reason().to_string());
        (false, format!("{why}; give a calibration to be ready without samples"))
    }

    fn fitted_words(&self) -> String {
        let age_ms = self.snapshot.provenance.fitted_at.map_or(0, |at| self.now.since(at));
        let generation = self.snapshot.version.generation.0;
        format!("generation {generation}, fitted {} ago on {}", duration_words(age_ms), self.rows_words())
    }

    fn rows_words(&self) -> String {
        let rows = Target::ALL
            .map(|target| format!("{} {} rows", self.snapshot.models.of(target).rows, target.name().to_uppercase()));
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
            Some(at) => format!(
                "{}; the latest is {} old and the spread is widened",
                "fewer than 10 samples in the last 10 min",
                duration_words(self.now.since(at))
            ),
            None => State::Stale.reason().to_string(),
        }
    }

    /// A target without a fit.
    fn prior_words(&self) -> Option<String> {
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
        let unfitted: Vec<String> = Target::ALL
            .iter()
            .filter(|target| self.snapshot.models.of(**target).rows == 0)
            .map(|target| target.name().to_uppercase())
            .collect();
        let what = if unfitted.len() == 1 { format!(" for {}", unfitted.concat()) } else { String::new() };
        let why = why.map_or(String::new(), |why| format!(": {why}"));
        Some(format!("no fit yet{what}, prior constants answer{why}"))
    }

    /// A learner that is broken.
    fn broken_words(&self) -> Option<String> {
        let trainer = self.trainer?;
        if let Some(died) = &trainer.died {
            return Some(format!("the trainer thread stopped: {died}"));
        }
        trainer.fits_fail().then(|| self.streaks_words(FITS_FAILED_MAX))
    }

    /// The targets whose fits changed nothing at least `floor` times in a row.
    fn streaks_words(&self, floor: u32) -> String {
        let Some(trainer) = self.trainer else { return String::new() };
        let words: Vec<String> = Target::ALL
            .iter()
            .zip(&trainer.streaks)
            .filter(|(_, streak)| streak.failed.max(streak.rejected) >= floor)
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
