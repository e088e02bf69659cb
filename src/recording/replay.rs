//! Replay: predict each request when it was dispatched, observe each outcome when it became visible, fit by the schedule
//! in the recording's time. The learner is the one that serves.

use super::read::{RecordedRequest, Recording};
use super::yardstick::RunningQuantile;
use crate::snapshot::Snapshot;
use crate::training::{Alarm, FitReport, Learner, LearnerParams};
use crate::types::{
    Ask, Estimate, Generation, Lineage, Manner, Observation, Promised, Quantile, Sample, State, Target, UnixMs,
};

/// Virtual spacing of rows in a recording without times, ms.
const ROW_MS: i64 = 1000;

/// Rows after which an outcome becomes visible in a recording without times. Real delays may be longer, so scores on
/// such recordings are optimistic.
const ROWS_DELAY: i64 = 2;

/// What was predicted for one row at its dispatch, ms.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RowPrediction {
    /// Median and p90, by `Target::ALL`.
    pub ours: [[f64; 2]; 2],
    /// The running quantile's, by target; `None` while it has none.
    pub running: [[Option<f64>; 2]; 2],
    /// Position of the row within its run.
    pub position: usize,
    /// Whether an input lay beyond the trained range, by target.
    pub extrapolating: [bool; 2],
    /// How far each target's answer could be trusted; `None` before the row was reached.
    pub states: [Option<State>; 2],
    /// The fit that answered.
    pub generation: Generation,
}

impl RowPrediction {
    /// Notes one target of an estimate whose value is p90.
    pub(super) fn take(&mut self, target: Target, estimate: &Estimate) {
        let of = [estimate.ttft, estimate.tpot][target.index()];
        self.ours[target.index()] = [of.q50_ms, of.value_ms];
        self.extrapolating[target.index()] = of.extrapolating;
        self.states[target.index()] = Some(of.state);
    }
}

/// A whole replay.
#[derive(Clone, Debug)]
pub struct Replayed {
    /// In the order of the recording's rows.
    pub predictions: Vec<RowPrediction>,
    /// Every fit, in order, with the run it belongs to.
    pub fits: Vec<(usize, FitReport)>,
    /// Every change of regime that was noticed, in order, with the run it belongs to.
    pub alarms: Vec<(usize, Alarm)>,
    /// The snapshot at the end of the last run.
    pub last: Snapshot,
}

/// When things happen to one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// An outcome becomes visible; before dispatches of the same moment.
    Seen(usize),
    /// The row is dispatched.
    Dispatched,
}

/// Replays every run with a learner of its own. `progress` is told how many events are done and how many there are.
pub fn replay(recording: &Recording, params: LearnerParams, mut progress: impl FnMut(usize, usize)) -> Replayed {
    let mut predictions = vec![RowPrediction::default(); recording.rows.len()];
    let mut fits = Vec::new();
    let mut alarms = Vec::new();
    let mut last = Snapshot::prior(&params.prior, Lineage(0), UnixMs(0));
    let total: usize = recording.rows.len() * 3;
    let mut done = 0;
    for run in 0..recording.runs.len() {
        let members: Vec<usize> = (0..recording.rows.len()).filter(|&row| recording.rows[row].run == run).collect();
        let mut events = Vec::with_capacity(members.len() * 3);
        for (position, &row) in members.iter().enumerate() {
            predictions[row].position = position;
            let times = times_of(&recording.rows[row], position);
            events.push((times.dispatched, Event::Dispatched, row));
            events.push((times.first_token, Event::Seen(0), row));
            events.push((times.finished, Event::Seen(1), row));
        }
        events.sort();
        let mut learner = Learner::new(params, Snapshot::prior(&params.prior, Lineage(0), UnixMs(0)));
        let mut yardsticks = [RunningQuantile::default(), RunningQuantile::default()];
        for (now, event, row) in events {
            done += 1;
            if done % 512 == 0 {
                progress(done, total);
            }
            let request = &recording.rows[row];
            match event {
                Event::Dispatched => predict(&mut learner, &yardsticks, request, now, &mut predictions[row]),
                Event::Seen(index) => {
                    let position = predictions[row].position;
                    let times = times_of(request, position);
                    let Some(sample) = sample_of(request, Target::ALL[index], times.dispatched, now) else { continue };
                    let outcome = [sample.observation.ttft_ms, sample.observation.tpot_ms][index];
                    outcome.into_iter().for_each(|ms| yardsticks[index].observe(ms));
                    learner.observe(&sample, now);
                    fits.extend(learner.step(now).map(|fit| (run, fit)));
                }
            }
        }
        alarms.extend(learner.report().alarms.into_iter().map(|alarm| (run, alarm)));
        last = learner.snapshot(last.provenance.made_at);
    }
    progress(total, total);
    Replayed { predictions, fits, alarms, last }
}

fn predict(
    learner: &mut Learner,
    yardsticks: &[RunningQuantile; 2],
    request: &RecordedRequest,
    now: UnixMs,
    out: &mut RowPrediction,
) {
    let endpoint = request.endpoint.as_ref().map(|name| name.as_str());
    let snapshot = learner.snapshot(now);
    let estimate = snapshot.predict(&request.features, endpoint, Ask::Quantile(Quantile::P90), now);
    out.generation = estimate.generation;
    for target in Target::ALL {
        out.take(target, &estimate);
        out.running[target.index()] = [0.5, 0.9].map(|q| yardsticks[target.index()].quantile(q));
    }
}

struct Times {
    dispatched: UnixMs,
    first_token: UnixMs,
    finished: UnixMs,
}

fn times_of(request: &RecordedRequest, position: usize) -> Times {
    match request.dispatched_at {
        Some(dispatched) => {
            let first_token = request.first_token_at.unwrap_or(dispatched).max(dispatched);
            Times { dispatched, first_token, finished: request.finished_at.unwrap_or(first_token).max(first_token) }
        }
        None => {
            let dispatched = UnixMs(position as i64 * ROW_MS);
            let visible = dispatched.plus_ms(ROWS_DELAY * ROW_MS - ROW_MS / 2);
            Times { dispatched, first_token: visible, finished: visible }
        }
    }
}

/// The sample that one target's outcome of a row makes; `None` when it was not observed.
pub fn sample_of(request: &RecordedRequest, target: Target, dispatched: UnixMs, seen: UnixMs) -> Option<Sample> {
    let only = |of: Target, value: Option<f64>| value.filter(|_| of == target);
    Sample::try_new(Sample {
        features: request.features,
        observation: Observation {
            ttft_ms: only(Target::Ttft, request.ttft_ms),
            tpot_ms: only(Target::Tpot, request.tpot_ms),
            output_tokens: request.output_tokens,
        },
        endpoint: request.endpoint.clone(),
        observed_at: seen,
        dispatched_at: Some(dispatched),
        promised: Promised::default(),
        manner: Manner::default(),
        fingerprint: None,
    })
    .ok()
}

#[cfg(test)]
mod tests {
    use super::super::read::read;
    use super::*;

    fn recording(rows: usize, change: usize, delay_ms: u64) -> Recording {
        let mut text =
            "dispatched_ms,first_token_ms,finished_ms,input_token_length,actual_ttft_ms,actual_tpot_ms\n".to_string();
        for i in 0..rows {
            let at = i * 100;
            let ttft = if i < change { 50 + i % 17 } else { 5000 + i % 17 };
            let seen = at as u64 + delay_ms;
            text.push_str(&format!("{at},{seen},{},{},{ttft},20\n", seen + 10, 100 + i % 31));
        }
        read(text.as_bytes()).unwrap()
    }

    #[test]
    fn no_prediction_knows_an_outcome_before_it_was_visible() {
        // The same past, another future: predictions may differ only for rows dispatched after the first changed
        // outcome became visible, 3 s after row 300 was dispatched.
        let calm = replay(&recording(400, 400, 3000), LearnerParams::default(), |_, _| {});
        let shock = replay(&recording(400, 300, 3000), LearnerParams::default(), |_, _| {});
        for row in 0..330 {
            assert_eq!(calm.predictions[row], shock.predictions[row], "row {row}");
        }
        assert!(calm.predictions[399] != shock.predictions[399], "and then they must differ");
    }

    #[test]
    fn i8_the_same_recording_gives_the_same_bytes() {
        let recording = recording(300, 200, 500);
        let first = replay(&recording, LearnerParams::default(), |_, _| {});
        let second = replay(&recording, LearnerParams::default(), |_, _| {});
        assert_eq!(first.predictions, second.predictions);
        assert_eq!(crate::snapshot::encode(&first.last), crate::snapshot::encode(&second.last));
        assert_eq!(first.fits.first().map(|(_, fit)| fit.rows()), Some([10, 0]));
    }

    #[test]
    fn rows_without_times_see_outcomes_two_rows_later() {
        let mut text = "input_token_length,actual_ttft_ms,actual_tpot_ms\n".to_string();
        (0..40).for_each(|i| text.push_str(&format!("{},{},0\n", 100 + i, 900 + i)));
        let replayed = replay(&read(text.as_bytes()).unwrap(), LearnerParams::default(), |_, _| {});
        // Ten outcomes are visible before row 11 is dispatched, nine before row 10.
        assert_eq!(replayed.predictions[10].running[0][0], None);
        assert!(replayed.predictions[11].running[0][0].is_some());
    }
}
