//! Why answers are in the state they are in: everything that applies now, worst first. Pure.
//!
//! The wire has one word for the state, the worst that applies; the reason names all of them, so that a bad state never
//! hides another behind it.

use super::account::duration_words;
use super::health::Health;
use super::seed::Seed;
use crate::model::Prior;
use crate::snapshot::Snapshot;
use crate::types::{Lineage, State, Target, UnixMs};

/// Rows below which a fitted model is called warming, as the snapshot does.
const WARM_ROWS: usize = 100;

/// What can be said of all answers of a snapshot, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Fits fail, or the trainer thread is gone.
    Broken,
    /// A target has no fit.
    Unfitted,
    /// A target was fitted on few rows.
    FewRows,
    /// A target is answered by the seed.
    Seeded,
    /// A follower has lost step with its trainer.
    OutOfStep,
    /// No samples lately.
    Silent,
}

impl Cause {
    pub(super) fn state(self) -> State {
        match self {
            Cause::Broken => State::Degraded,
            Cause::Unfitted => State::Prior,
            Cause::FewRows | Cause::Seeded => State::Warming,
            Cause::OutOfStep | Cause::Silent => State::Stale,
        }
    }
}

/// The prior in words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PriorWords(String);

impl PriorWords {
    /// A calibration is told with its constants; what is shipped is in the settings page.
    pub(super) fn new(name: &str, prior: &Prior) -> Self {
        PriorWords(match prior.calibrated {
            true => format!(
                "{name} ({} tokens/s, {} ms per million token pairs, floor {} ms, decode step {} ms)",
                figure(prior.prefill_tokens_per_s),
                figure(prior.attention_ms_per_mtoken2),
                figure(prior.ttft_floor_ms),
                figure(prior.decode_step_ms)
            ),
            false => name.to_string(),
        })
    }
}

/// Four significant digits, as short as that is.
fn figure(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// Why the rows of one call are in their state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowReasons {
    /// For rows within the trained range.
    pub inside: String,
    /// For rows beyond it.
    pub beyond: String,
}

/// Where the serving snapshot stands: what the causes are read off.
#[derive(Clone, Copy)]
pub(super) struct Standing<'a> {
    pub(super) now: UnixMs,
    pub(super) snapshot: &'a Snapshot,
    pub(super) health: &'a Health,
    pub(super) prior: &'a PriorWords,
    pub(super) seed: Option<&'a Seed>,
    /// Whether snapshots come from a trainer in another process.
    pub(super) follows: bool,
}

impl Standing<'_> {
    fn rows(&self, target: Target) -> usize {
        self.snapshot.models.of(target).rows
    }

    /// Everything that applies to all answers, worst first.
    pub(super) fn causes(&self) -> Vec<Cause> {
        let any = |what: &dyn Fn(Target) -> bool| Target::ALL.into_iter().any(what);
        let silent = |target| self.rows(target) > 0 && self.snapshot.online.of(target).widening(self.now).is_some();
        [
            (Cause::Broken, self.health.is_learning_broken()),
            (Cause::Unfitted, any(&|target| self.rows(target) == 0)),
            (Cause::FewRows, any(&|target| (1..WARM_ROWS).contains(&self.rows(target)))),
            (Cause::Seeded, self.health.seeded() != [false; 2]),
            // Where nothing ever came from the trainer, that is the reason already.
            (Cause::OutOfStep, self.health.is_out_of_step(self.now) && self.snapshot.provenance.fitted_at.is_some()),
            (Cause::Silent, any(&silent)),
        ]
        .into_iter()
        .filter_map(|(cause, applies)| applies.then_some(cause))
        .collect()
    }

    /// The same for the rows of a call, in words without anything that only administrators may know.
    pub(super) fn row_reasons(&self) -> RowReasons {
        let extrapolating = State::Extrapolating.reason();
        let causes = self.causes();
        if causes.is_empty() {
            return RowReasons { inside: State::Ready.reason().to_string(), beyond: extrapolating.to_string() };
        }
        let inside = joined(causes.into_iter().map(|cause| (cause.state(), self.brief(cause))));
        RowReasons { beyond: format!("{inside}; also extrapolating: {extrapolating}"), inside }
    }

    fn brief(&self, cause: Cause) -> String {
        match cause {
            Cause::Unfitted => self.physics_words(),
            Cause::Seeded => self.seed_words().unwrap_or_else(|| State::Warming.reason().to_string()),
            Cause::OutOfStep => {
                let age_ms = self.health.out_of_step_ms(self.now).unwrap_or_default();
                format!("out of step with the trainer for {}", duration_words(age_ms))
            }
            Cause::Broken | Cause::FewRows | Cause::Silent => cause.state().reason().to_string(),
        }
    }

    /// That there is no fit yet, and for what if not for all.
    pub(super) fn unfitted_words(&self) -> String {
        let unfitted: Vec<&str> =
            Target::ALL.iter().filter(|target| self.rows(**target) == 0).map(|target| target.name()).collect();
        if unfitted.len() == 1 { format!("no fit yet for {}", unfitted.concat()) } else { "no fit yet".to_string() }
    }

    /// The same, and which constants stand in.
    pub(super) fn physics_words(&self) -> String {
        // A follower's own constants belong to no history.
        let own = self.snapshot.version.lineage == Lineage::default() || !self.follows;
        let constants = match (own, self.snapshot.calibrated) {
            (true, _) => self.prior.0.as_str(),
            (false, true) => "the trainer's calibration",
            (false, false) => "the trainer's default constants",
        };
        format!("{}: physics with {constants}", self.unfitted_words())
    }

    /// Which seed answers, where it came from, and until when.
    pub(super) fn seed_words(&self) -> Option<String> {
        let seed = self.seed?;
        let answered = self.health.seeded();
        let targets: Vec<&str> =
            Target::ALL.iter().zip(answered).filter(|(_, by_seed)| *by_seed).map(|(target, _)| target.name()).collect();
        let origin = seed.origin();
        let rows =
            Target::ALL.map(|target| format!("{} {} rows", seed.snapshot().models.of(target).rows, target.name()));
        let age = seed.snapshot().provenance.fitted_at.map(|at| duration_words(self.now.since(at)));
        Some(format!(
            "{} from the seed {} (generation {} of lineage {:016x}, fitted {} ago on {}) until own samples replace it",
            targets.join(" and "),
            seed.name,
            origin.generation.0,
            origin.lineage.0,
            age.unwrap_or_default(),
            rows.join(" and ")
        ))
    }
}

/// Reasons in one line: the worst, and behind it each other with its state.
pub(super) fn joined(reasons: impl Iterator<Item = (State, String)>) -> String {
    let mut line = String::new();
    for (state, words) in reasons {
        if line.is_empty() {
            line = words;
        } else {
            line.push_str(&format!("; also {}: {words}", state.name()));
        }
    }
    line
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;

    use super::*;
    use crate::calibration::STALE_AFTER_MS;
    use crate::service::DEFAULT_PRIOR_NAME;
    use crate::snapshot::Conditions;
    use crate::types::{Ask, Quantile};

    const NOW: UnixMs = UnixMs(10_000_000);

    fn snapshot(rows: [usize; 2], silent: bool) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(1), NOW);
        let models = Arc::make_mut(&mut snapshot.models);
        (models.ttft.rows, models.tpot.rows) = (rows[0], rows[1]);
        snapshot.provenance.fitted_at = (rows != [0; 2]).then_some(NOW);
        let at = UnixMs(NOW.0 - if silent { 3 * STALE_AFTER_MS } else { 0 });
        let online = Arc::make_mut(&mut snapshot.online);
        (online.ttft.tenth_latest_at, online.tpot.tenth_latest_at) = (Some(at), Some(at));
        snapshot
    }

    proptest! {
        /// The word of the wire is the worst of the causes: nothing is said that does not apply, and nothing is left out.
        #[test]
        fn the_state_is_the_worst_cause(
            rows in prop::array::uniform2(prop::sample::select(vec![0usize, 1, 50, 99, 100, 5000])),
            (silent, broken, away) in any::<(bool, bool, bool)>(),
            seeded in any::<[bool; 2]>(),
        ) {
            let health = Health::new(5_000);
            health.set_learning_broken(broken);
            health.set_seeded(seeded);
            if away {
                health.set_out_of_step(UnixMs(NOW.0 - 60_000));
            }
            let snapshot = snapshot(rows, silent);
            let prior = PriorWords::new(DEFAULT_PRIOR_NAME, &Prior::default());
            let standing = Standing { now: NOW, snapshot: &snapshot, health: &health, prior: &prior, seed: None, follows: away };
            let conditions = Conditions { ask: Ask::Quantile(Quantile::P50), now: NOW, at_least: health.at_least(NOW) };
            let causes = standing.causes();
            let worst = causes.first().map_or(State::Ready, |cause| cause.state());
            prop_assert_eq!(worst, snapshot.read(conditions).state());
            prop_assert!(causes.is_sorted_by(|a, b| a.state() >= b.state()));
            let reasons = standing.row_reasons();
            prop_assert!(reasons.beyond.contains("an input lies beyond"));
            for cause in causes.iter().skip(1) {
                let named = format!("; also {}: ", cause.state().name());
                prop_assert!(reasons.inside.contains(&named), "{named} in {}", reasons.inside);
            }
            prop_assert_eq!(reasons.inside.matches("; also ").count(), causes.len().saturating_sub(1));
        }
    }

    #[test]
    fn constants_are_called_by_their_name_and_told_when_an_operator_gave_them() {
        let given = Prior { calibrated: true, prefill_tokens_per_s: 18_299.54, ..Prior::default() };
        assert_eq!(
            PriorWords::new("calibration some-row", &given).0,
            "calibration some-row (18300 tokens/s, 0.443 ms per million token pairs, floor 22 ms, decode step 16 ms)"
        );
        assert_eq!(PriorWords::new(DEFAULT_PRIOR_NAME, &Prior::default()).0, DEFAULT_PRIOR_NAME);
    }
}
