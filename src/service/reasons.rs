//! Why answers are in the state they are in: everything that applies now, worst first. Pure.
//!
//! The wire has one word for the state, the worst that applies; the reason names all of them, so that a bad state never
//! hides another behind it.

use super::account::duration_words;
use super::health::Health;
use super::seed::Seed;
use crate::model::Prior;
use crate::snapshot::Snapshot;
use crate::types::{Estimate, Features, Lineage, Role, State, Target, UnixMs};

/// Rows below which a fitted model is called warming, as the snapshot does.
const WARM_ROWS: usize = 100;

/// What can be said of an answer, worst first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cause {
    /// Fits fail, or the trainer thread is gone.
    Broken,
    /// A target has no fit, of whatever role.
    Unfitted,
    /// A target was fitted on few rows.
    FewRows,
    /// A target of this role is answered by another role's model.
    Borrowed,
    /// A target is answered by the seed.
    Seeded,
    /// What the endpoint runs changed lately.
    EndpointChanged,
    /// A follower has lost step with its trainer.
    OutOfStep,
    /// No samples lately.
    Silent,
    /// An input lies beyond the trained range.
    Beyond,
}

impl Cause {
    pub(super) fn state(self) -> State {
        match self {
            Cause::Broken => State::Degraded,
            Cause::Unfitted => State::Prior,
            Cause::FewRows | Cause::Borrowed | Cause::Seeded | Cause::EndpointChanged => State::Warming,
            Cause::OutOfStep | Cause::Silent => State::Stale,
            Cause::Beyond => State::Extrapolating,
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
    /// Whose models answer for a role, in the order of [`Target::ALL`].
    fn answering(&self, role: Role) -> [Role; 2] {
        Target::ALL.map(|target| self.snapshot.models.answering(role, target))
    }

    /// Rows of the models that answer for a role.
    fn rows(&self, role: Role) -> [usize; 2] {
        let answering = self.answering(role);
        Target::ALL.map(|target| self.snapshot.models.of(answering[target.index()], target).rows)
    }

    /// Everything that applies to all answers for a role, worst first.
    pub(super) fn causes(&self, role: Role) -> Vec<Cause> {
        let (answering, rows) = (self.answering(role), self.rows(role));
        let any = |what: &dyn Fn(Target, Role, usize) -> bool| {
            Target::ALL.into_iter().any(|target| what(target, answering[target.index()], rows[target.index()]))
        };
        let seeded = self.seeded_for(role);
        let silent = |target, of, rows| rows > 0 && self.snapshot.online.of(of, target).widening(self.now).is_some();
        [
            (Cause::Broken, self.health.is_learning_broken()),
            (Cause::Unfitted, any(&|_, _, rows| rows == 0)),
            (Cause::FewRows, any(&|_, _, rows| (1..WARM_ROWS).contains(&rows))),
            (Cause::Borrowed, any(&|_, of, rows| rows > 0 && of != role)),
            (Cause::Seeded, seeded != [false; 2]),
            // Where nothing ever came from the trainer, that is the reason already.
            (Cause::OutOfStep, self.health.is_out_of_step(self.now) && self.snapshot.provenance.fitted_at.is_some()),
            (Cause::Silent, any(&silent)),
        ]
        .into_iter()
        .filter_map(|(cause, applies)| applies.then_some(cause))
        .collect()
    }

    /// The state that every answer for a role has at least.
    pub(super) fn state(&self, role: Role) -> State {
        self.causes(role).first().map_or(State::Ready, |cause| cause.state())
    }

    /// The role whose answers are in the mildest state: what is true of them is true of all.
    pub(super) fn mildest_role(&self) -> Role {
        Role::ALL.into_iter().min_by_key(|role| self.state(*role)).unwrap_or_default()
    }

    /// For which targets the seed's model answers for a role.
    fn seeded_for(&self, role: Role) -> [bool; 2] {
        let (seeded, answering) = (self.health.seeded(), self.answering(role));
        Target::ALL.map(|target| seeded[answering[target.index()].index()][target.index()])
    }

    /// Roles and targets whose model is the seed's.
    pub(super) fn seeded(&self) -> Vec<(Role, Target)> {
        let seeded = self.health.seeded();
        let all = Role::ALL.into_iter().flat_map(|role| Target::ALL.map(|target| (role, target)));
        all.filter(|(role, target)| seeded[role.index()][target.index()]).collect()
    }

    /// One cause in words without anything that only administrators may know.
    pub(super) fn brief(&self, cause: Cause, role: Role) -> String {
        match cause {
            Cause::Unfitted => self.physics_words(role),
            Cause::Borrowed => {
                let answering = self.answering(role);
                let other = answering.into_iter().find(|other| *other != role).unwrap_or_default();
                format!("no fit yet for role {}: the model of role {} answers", role.name(), other.name())
            }
            Cause::Seeded => self.seed_words(role).unwrap_or_else(|| State::Warming.reason().to_string()),
            Cause::EndpointChanged => "what the endpoint runs changed lately".to_string(),
            Cause::OutOfStep => {
                let age_ms = self.health.out_of_step_ms(self.now).unwrap_or_default();
                format!("out of step with the trainer for {}", duration_words(age_ms))
            }
            Cause::Broken | Cause::FewRows | Cause::Silent | Cause::Beyond => cause.state().reason().to_string(),
        }
    }

    /// That there is no fit yet, and for what if not for all.
    pub(super) fn unfitted_words(&self, role: Role) -> String {
        let rows = self.rows(role);
        let unfitted: Vec<&str> =
            Target::ALL.iter().filter(|target| rows[target.index()] == 0).map(|target| target.name()).collect();
        if unfitted.len() == 1 { format!("no fit yet for {}", unfitted.concat()) } else { "no fit yet".to_string() }
    }

    /// The same, and which constants stand in.
    pub(super) fn physics_words(&self, role: Role) -> String {
        // A follower's own constants belong to no history.
        let own = self.snapshot.version.lineage == Lineage::default() || !self.follows;
        let constants = match (own, self.snapshot.calibrated) {
            (true, _) => self.prior.0.as_str(),
            (false, true) => "the trainer's calibration",
            (false, false) => "the trainer's default constants",
        };
        format!("{}: physics with {constants}", self.unfitted_words(role))
    }

    /// Which seed answers for a role, where it came from, and until when.
    pub(super) fn seed_words(&self, role: Role) -> Option<String> {
        let seed = self.seed?;
        let targets: Vec<&str> = Target::ALL
            .iter()
            .zip(self.seeded_for(role))
            .filter(|(_, by_seed)| *by_seed)
            .map(|(target, _)| target.name())
            .collect();
        let origin = seed.origin();
        let [ttft, tpot] = seed.snapshot().models.rows();
        let age = seed.snapshot().provenance.fitted_at.map(|at| duration_words(self.now.since(at)));
        Some(format!(
            "{} from the seed {} (generation {} of lineage {:016x}, fitted {} ago on {ttft} ttft rows and {tpot} tpot \
             rows) until own samples replace it",
            targets.join(" and "),
            seed.name,
            origin.generation.0,
            origin.lineage.0,
            age.unwrap_or_default(),
        ))
    }
}

/// A state, and why.
type Line = (State, String);

/// In which state the answers of one call are and why, in words that any caller may read.
pub struct RowReasons<'a> {
    standing: Standing<'a>,
    /// By role: whether some endpoint changed lately.
    changed: [bool; 3],
    /// By role, whether the endpoint changed, and whether an input lies beyond the range: made when first needed.
    lines: [[[Option<Line>; 2]; 2]; 3],
}

impl<'a> RowReasons<'a> {
    pub(super) fn new(standing: Standing<'a>) -> Self {
        let changed = Role::ALL.map(|role| {
            let answering = standing.answering(role);
            Target::ALL.into_iter().any(|target| {
                let online = standing.snapshot.online.of(answering[target.index()], target);
                online.pool_warming || online.endpoints.iter().any(|endpoint| endpoint.warming)
            })
        });
        RowReasons { standing, changed, lines: Default::default() }
    }

    /// State and reason of one answer.
    pub fn of(&mut self, features: &Features, endpoint: Option<&str>, estimate: &Estimate) -> (State, &str) {
        let (role, standing) = (features.role, &self.standing);
        let answering = |target: Target| standing.snapshot.models.answering(role, target);
        let correction = |target| standing.snapshot.online.of(answering(target), target).correction(endpoint);
        let changed = self.changed[role.index()] && Target::ALL.into_iter().any(|target| correction(target).warming);
        let beyond = estimate.ttft.extrapolating || estimate.tpot.extrapolating;
        let line = &mut self.lines[role.index()][usize::from(changed)][usize::from(beyond)];
        let (worst, words) = line.get_or_insert_with(|| standing.line(role, changed, beyond));
        // The core decides; the shell only adds what the core cannot know.
        ((*worst).max(estimate.state), words)
    }
}

impl Standing<'_> {
    fn line(&self, role: Role, changed: bool, beyond: bool) -> Line {
        let mut causes = self.causes(role);
        causes.extend(changed.then_some(Cause::EndpointChanged).into_iter().chain(beyond.then_some(Cause::Beyond)));
        causes.sort_by_key(|cause| std::cmp::Reverse(cause.state()));
        let worst = causes.first().map_or(State::Ready, |cause| cause.state());
        if causes.is_empty() {
            return (worst, worst.reason().to_string());
        }
        (worst, joined(causes.into_iter().map(|cause| (cause.state(), self.brief(cause, role)))))
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

    fn snapshot(rows: [[usize; 2]; 3], silent: bool, changed: bool) -> Snapshot {
        let mut snapshot = Snapshot::prior(&Prior::default(), Lineage(1), NOW);
        let models = Arc::make_mut(&mut snapshot.models);
        for (model, rows) in models.0.iter_mut().flatten().zip(rows.into_iter().flatten()) {
            model.rows = rows;
        }
        snapshot.provenance.fitted_at = (rows != [[0; 2]; 3]).then_some(NOW);
        let at = UnixMs(NOW.0 - if silent { 3 * STALE_AFTER_MS } else { 0 });
        for online in Arc::make_mut(&mut snapshot.online).0.iter_mut().flatten() {
            (online.tenth_latest_at, online.pool_warming) = (Some(at), changed);
        }
        snapshot
    }

    fn features(role: Role, input_tokens: u32) -> Features {
        Features {
            kv_cache_usage: 0.1,
            input_tokens,
            requests_waiting: 0,
            requests_running: 1,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: 0,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role,
        }
    }

    proptest! {
        /// The word of the wire is the worst of the causes: the words say what the core decided, leave nothing out, and
        /// only a seed, of which the core knows nothing, can make it worse.
        #[test]
        fn the_state_is_the_worst_cause(
            rows in prop::array::uniform3(prop::array::uniform2(prop::sample::select(vec![0usize, 1, 99, 100, 5000]))),
            (silent, broken, away, changed) in any::<(bool, bool, bool, bool)>(),
            seeded in prop::option::of(any::<[[bool; 2]; 3]>()),
            role in prop::sample::select(Role::ALL.to_vec()),
            (named, tokens) in (any::<bool>(), prop::sample::select(vec![10u32, 900_000])),
        ) {
            let health = Health::new(5_000);
            health.set_learning_broken(broken);
            health.set_seeded(seeded.unwrap_or_default());
            if away {
                health.set_out_of_step(UnixMs(NOW.0 - 60_000));
            }
            let snapshot = snapshot(rows, silent, changed);
            let prior = PriorWords::new(DEFAULT_PRIOR_NAME, &Prior::default());
            let standing =
                Standing { now: NOW, snapshot: &snapshot, health: &health, prior: &prior, seed: None, follows: away };
            let conditions = Conditions { ask: Ask::Quantile(Quantile::P50), now: NOW, at_least: health.at_least(NOW) };
            let reader = snapshot.read(conditions);
            let (features, endpoint) = (features(role, tokens), named.then_some("some"));
            let estimate = reader.predict(&features, endpoint);
            let mut reasons = RowReasons::new(standing);
            let (state, words) = reasons.of(&features, endpoint, &estimate);
            let worst = standing.line(role, changed && !named, estimate.ttft.extrapolating || estimate.tpot.extrapolating);
            prop_assert_eq!((worst.0, worst.1.as_str()), (state, words));
            if seeded.is_none() {
                prop_assert_eq!(state, estimate.state);
                prop_assert_eq!(standing.state(standing.mildest_role()), reader.state());
            }
            let causes = standing.causes(role);
            for cause in causes.iter().skip(1) {
                let named = format!("; also {}: ", cause.state().name());
                prop_assert!(words.contains(&named), "{named} in {words}");
            }
            prop_assert!(words.matches("; also ").count() + 1 >= causes.len());
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
