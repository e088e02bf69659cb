//! What a service says of its own health: state, reason, readiness, and why it is not learning.

use super::trainer::Life;
use super::{IngestCounts, Service, ServiceStatus, SyncStatus, Work, now};
use crate::snapshot::Snapshot;
use crate::training::{FitOutcome, LearnerReport};
use crate::types::{Ask, Quantile, State, Target, UnixMs};

impl Service {
    /// The account of this process.
    pub fn status(&self) -> ServiceStatus {
        let now = now();
        let inner = &self.0;
        let snapshot = inner.cell.load();
        let state = snapshot.read(self.conditions(Ask::Quantile(Quantile::P90), now)).state();
        let (ingest, learner, last_fit_duration_ms, life, bad_fits, sync) = match &inner.work {
            Work::Trainer { ingest, view } => {
                (ingest.counts(), view.report(), view.fit_ms(), view.life(), view.bad_fits(), None)
            }
            Work::Follower { link } => (IngestCounts::default(), None, None, Life::Running, 0, Some(link.status())),
        };
        let trained = Target::ALL.iter().any(|&target| snapshot.models.of(target).rows > 0);
        let (ready, ready_reason) = readiness(trained, snapshot.calibrated);
        ServiceStatus {
            role: inner.role,
            state,
            reason: reason(state, &snapshot, life, bad_fits, sync.as_ref(), now),
            not_learning_because: not_learning(&ingest, learner.as_ref(), life, sync.as_ref()),
            ready,
            ready_reason: ready_reason.to_string(),
            version: snapshot.version,
            fitted_at: snapshot.provenance.fitted_at,
            made_at: snapshot.provenance.made_at,
            trained_rows: Target::ALL.map(|target| snapshot.models.of(target).rows),
            ingest,
            learner,
            last_fit_duration_ms,
            persistence: inner.disk.read(),
            sync,
            started_at: inner.started_at,
        }
    }

    /// Whether answers are usable, for the prediction routes: cheaper than the whole status.
    pub fn is_ready(&self) -> bool {
        let snapshot = self.0.cell.load();
        let trained = Target::ALL.iter().any(|&target| snapshot.models.of(target).rows > 0);
        readiness(trained, snapshot.calibrated).0
    }
}

fn readiness(trained: bool, calibrated: bool) -> (bool, &'static str) {
    match (trained, calibrated) {
        (true, _) => (true, "a fitted model serves"),
        (false, true) => (true, "no fit yet; the operator's calibration serves"),
        (false, false) => (
            false,
            "no fit yet and no calibration given: send samples, or set prefill_tokens_per_s; until then answers come from shipped default constants, marked prior",
        ),
    }
}

fn reason(
    state: State,
    snapshot: &Snapshot,
    life: Life,
    bad_fits: u32,
    sync: Option<&SyncStatus>,
    now: UnixMs,
) -> String {
    let rows = Target::ALL.map(|target| snapshot.models.of(target).rows);
    match state {
        State::Degraded if life == Life::Died => "the trainer thread died; the last good model answers".to_string(),
        State::Degraded => format!("the last {bad_fits} fits did not serve; the last good model answers"),
        State::Prior if rows == [0, 0] && snapshot.calibrated => {
            "no fit yet: physics with the operator's calibration".to_string()
        }
        State::Prior if rows == [0, 0] => "no fit yet: physics with shipped default constants".to_string(),
        State::Prior => {
            format!("no fit yet for {}: physics with prior constants", if rows[0] == 0 { "ttft" } else { "tpot" })
        }
        State::Warming => format!("fitted on few samples so far: {} for ttft, {} for tpot", rows[0], rows[1]),
        State::Stale => {
            let age_s = now.since(snapshot.provenance.made_at) / 1000;
            match sync {
                Some(SyncStatus { connected: false, trainer_url, error, .. }) => format!(
                    "the snapshot is {age_s} s old and the trainer at {trainer_url} does not answer: {}",
                    error.as_deref().unwrap_or("not tried yet")
                ),
                _ => "fewer than 10 samples in the last 10 minutes, so the spread is widened".to_string(),
            }
        }
        State::Ready | State::Extrapolating => {
            format!("fitted on {} ttft and {} tpot samples", rows[0], rows[1])
        }
    }
}

/// Why nothing is being learnt, or `None` while all is as it should be.
fn not_learning(
    ingest: &IngestCounts,
    learner: Option<&LearnerReport>,
    life: Life,
    sync: Option<&SyncStatus>,
) -> Option<String> {
    if let Some(sync) = sync {
        return (!sync.connected).then(|| {
            format!(
                "the trainer at {} does not answer: {}",
                sync.trainer_url,
                sync.error.as_deref().unwrap_or("not tried yet")
            )
        });
    }
    match life {
        Life::Died => return Some("the trainer thread died; restart this process".to_string()),
        Life::Stopped => return Some("this process is stopping".to_string()),
        Life::Running => {}
    }
    let refused: u64 = ingest.refused.values().sum();
    if ingest.accepted == 0 {
        return Some(match ingest.refused.iter().max_by_key(|(_, count)| **count) {
            Some((reason, _)) => format!("all {refused} samples received so far were refused, most as {reason}"),
            None => "no sample was ever received".to_string(),
        });
    }
    let report = learner?;
    if let Some(fit) = &report.last_fit
        && !fit.published()
        && let Some(outcome) = fit.outcome.iter().flatten().find(|outcome| **outcome != FitOutcome::Accepted)
    {
        return Some(format!("the last fit was not taken: {}", outcome.name()));
    }
    let waiting: Vec<String> = report
        .targets
        .iter()
        .filter(|target| target.fitted_rows == 0)
        .map(|target| {
            format!(
                "{} of {} samples for the first {} fit",
                target.new_samples,
                target.next_fit_at,
                target.target.name()
            )
        })
        .collect();
    (!waiting.is_empty()).then(|| waiting.join(", "))
}
