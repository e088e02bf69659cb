//! What a sample may teach. Not every measured latency is one: an answer that was not streamed, a failure, a request that
//! was given up, the same row twice, seconds sent as milliseconds. Each outcome gets a verdict and, where it is not
//! simply learnt from, a reason that is counted. Pure; bounded memory; one verdict takes about a microsecond.
//!
//! The rules, first to last (`docs/samples.md` says them for those who send samples):
//!
//! | what | TTFT | TPOT | reason |
//! | --- | --- | --- | --- |
//! | the same sample again, by all its content and a precise time | ignored | ignored | `duplicate` |
//! | the request failed | ignored | ignored | `failed` |
//! | the answer was not streamed | ignored | ignored | `not_streamed` |
//! | it came in one chunk with several tokens | ignored | ignored | `single_chunk` |
//! | whoever waited gave up | at least that long; real if a chunk had come | ignored | `timeout` |
//! | the client went away | real if a token had come, else at least that long | real from 8 tokens on | `aborted` |
//! | TPOT is per chunk, as the row's own times prove | | divided | `tpot_per_chunk` |
//! | TPOT is per chunk, as the prediction suggests | | ignored | `tpot_per_chunk` |
//! | a factor of 1000 off the prediction or the row's own times, or faster than any engine | ignored | ignored | `likely_unit_error` |
//! | more than 6 spreads and a factor of 20 off the prediction | taught | taught | `outlier` |
//!
//! Times that cannot be right are left out and the latency is taught all the same (`clock`). What only a prediction tells
//! is never used to refuse for long: once most of the latest 50 outcomes look alike, it is the engine or the sender that
//! changed, so they are taught and [`Suspicion`] says so.

pub use super::evidence::Suspicion;
use super::evidence::{Remembered, Senders, Watch, suspicions, too_fast};
use crate::types::{Ending, LATENCY_MS_MIN, Sample, Target, UnixMs};

/// Rows behind a model from which its prediction can show that an outcome is wrong.
pub const TRUSTED_ROWS_MIN: usize = 100;

/// Tokens or chunks from which the TPOT of a request that was broken off is one.
const TOKENS_MIN: u32 = 8;

/// A sender's clock may be ahead of ours by this much, ms; what is beyond is no time at all.
const AHEAD_MS_MAX: i64 = 5 * 60_000;

/// An outcome may be this old when it comes, and a request may have taken this long, ms: a day.
const OLD_MS_MAX: i64 = 86_400_000;

/// Outcomes older than this are taken as they are and count as the mark of a wrong time zone, ms: a little less than the
/// smallest step between two of them.
const LATE_MS: i64 = 55 * 60_000;

/// `ln 1000`, and how close to it `|ln(outcome / prediction)|` has to be: this many spreads, but at least within a factor
/// of 2 and at most within one of 5.
const LN_1000: f64 = 6.907_755;
const LN_1000_SPREADS: f64 = 1.5;
const LN_1000_TOLERANCE: [f64; 2] = [0.7, 1.6];

/// An outcome longer than what passed by the row's own times, and by more than they are coarse, contradicts them.
const COARSE_MS: f64 = 1000.0;
const COARSE_FACTOR: f64 = 1.1;

/// Time passed, ms, from which the row's own times are fine enough to show a factor of 1000.
const SPAN_MS_MIN: f64 = 10.0;

/// Tokens per chunk from which a TPOT per chunk can be told from one per token.
const TOKENS_PER_CHUNK_MIN: f64 = 1.5;

/// How well a TPOT per chunk has to agree with the row's own times, as a log ratio.
const PER_CHUNK_TOLERANCE: f64 = 0.05;

/// Spreads off the prediction from which a TPOT is compared with one per chunk.
const PER_CHUNK_SPREADS: f64 = 3.0;

/// What is called an outlier: this many spreads and `ln 20` off the prediction.
const OUTLIER_SPREADS: f64 = 6.0;
const OUTLIER_LOG: f64 = 2.995_732;

/// The serving model's prediction for a sample's request, with the offset that was in force at its dispatch.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Predicted {
    /// `ln Q50`, ms.
    pub log_median: f64,
    /// `ln Q90 - ln Q50`.
    pub log_spread: f64,
    /// Whether it can show that an outcome is wrong: fitted on at least [`TRUSTED_ROWS_MIN`] rows, and no change of
    /// regime is being learnt.
    pub trusted: bool,
}

/// Why an outcome was not simply learnt from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Reason {
    /// The same sample came before.
    Duplicate,
    /// The request failed.
    Failed,
    /// The answer was not streamed: its TTFT is the time of the whole answer.
    NotStreamed,
    /// All tokens came at once.
    SingleChunk,
    /// Whoever waited gave up.
    Timeout,
    /// The client went away.
    Aborted,
    /// TPOT counted in chunks of several tokens.
    TpotPerChunk,
    /// Off by a factor of 1000, alone among others.
    LikelyUnitError,
    /// Far off the prediction; learnt from, with the bounded pull of the loss.
    Outlier,
    /// Sent times that cannot be right; the latency was learnt from without them.
    Clock,
}

impl Reason {
    /// All, in the order in which counts are kept.
    pub const ALL: [Reason; 10] = [
        Reason::Duplicate,
        Reason::Failed,
        Reason::NotStreamed,
        Reason::SingleChunk,
        Reason::Timeout,
        Reason::Aborted,
        Reason::TpotPerChunk,
        Reason::LikelyUnitError,
        Reason::Outlier,
        Reason::Clock,
    ];

    /// Stable word for metrics and `/status`.
    pub fn name(self) -> &'static str {
        match self {
            Reason::Duplicate => "duplicate",
            Reason::Failed => "failed",
            Reason::NotStreamed => "not_streamed",
            Reason::SingleChunk => "single_chunk",
            Reason::Timeout => "timeout",
            Reason::Aborted => "aborted",
            Reason::TpotPerChunk => "tpot_per_chunk",
            Reason::LikelyUnitError => "likely_unit_error",
            Reason::Outlier => "outlier",
            Reason::Clock => "clock",
        }
    }
}

/// What may be done with an outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum May {
    /// Everything: store, trackers, accuracy.
    Teach,
    /// Trackers only, as `ln y = max(ln actual, ln predicted)`: the real one is at least that long.
    AtLeast,
    /// Nothing.
    Ignore,
}

/// One outcome's verdict.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Verdict {
    /// What may be done with it.
    pub may: May,
    /// The latency to use, ms: as sent, or put right.
    pub actual_ms: f64,
    /// Why it is not simply learnt from.
    pub reason: Option<Reason>,
}

/// A sample's times by the learner's clock, as far as they can be right.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SentTimes {
    /// When the outcome was seen; the time of receipt when the sent one is impossible. Never after it.
    pub observed_at: UnixMs,
    /// When the request was dispatched, if said and possible. Never after `observed_at`.
    pub dispatched_at: Option<UnixMs>,
    /// Whether something sent was left out.
    pub left_out: bool,
    /// Dispatch to outcome by the sender's own clock, ms, when it told both.
    span_ms: Option<f64>,
}

impl SentTimes {
    /// Reads a sample's times. `now` is the time of receipt.
    pub fn of(sample: &Sample, now: UnixMs) -> Self {
        let sent = sample.observed_at;
        let (ahead_ms, behind_ms) = (sent.since(now), now.since(sent));
        if ahead_ms > AHEAD_MS_MAX || behind_ms > OLD_MS_MAX {
            return SentTimes { observed_at: now, dispatched_at: None, left_out: true, span_ms: None };
        }
        let possible = |at: &UnixMs| *at <= sent && sent.since(*at) <= OLD_MS_MAX;
        let dispatched_at = sample.dispatched_at.filter(possible);
        let span_ms = dispatched_at.filter(|_| sample.manner.timed).map(|at| sent.since(at) as f64);
        let longest_ms = Target::ALL.into_iter().filter_map(|target| whole_ms(sample, target)).fold(0.0, f64::max);
        let contradicts = |span_ms: f64| longest_ms > COARSE_FACTOR * span_ms + COARSE_MS;
        let dispatched_at = dispatched_at.filter(|_| !span_ms.is_some_and(contradicts));
        SentTimes {
            observed_at: sent.min(now),
            // The same clock told both times: what it is ahead by comes off both.
            dispatched_at: dispatched_at.map(|at| at.plus_ms(-ahead_ms)),
            left_out: sample.dispatched_at.is_some() && dispatched_at.is_none(),
            span_ms,
        }
    }
}

/// Outcomes of one target by what became of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Learnt from.
    pub taught: u64,
    /// Taken as "at least that long".
    pub at_least: u64,
    /// Ignored.
    pub ignored: u64,
}

/// The screen's account since the learner began.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ScreenReport {
    /// Samples judged.
    pub samples: u64,
    /// Samples by reason, in the order of [`Reason::ALL`]; one sample may have several.
    pub reasons: [u64; Reason::ALL.len()],
    /// Outcomes per target, in the order of [`Target::ALL`].
    pub tallies: [Tally; 2],
    /// What the latest samples show about their senders.
    pub suspicions: Vec<Suspicion>,
}

impl ScreenReport {
    /// Samples with a reason.
    pub fn count(&self, reason: Reason) -> u64 {
        self.reasons[reason as usize]
    }
}

/// The judge of samples of one learner.
#[derive(Clone, Debug, Default)]
pub struct Screen {
    remembered: Remembered,
    /// By role, then target.
    watches: [[Watch; 2]; 3],
    senders: Senders,
    samples: u64,
    reasons: [u64; Reason::ALL.len()],
    tallies: [Tally; 2],
}

impl Screen {
    /// Judges one sample by what was predicted for it, per target in the order of [`Target::ALL`], and counts it. `now`
    /// is the time of receipt. The answer has a verdict for every outcome that the sample has.
    pub fn judge(&mut self, sample: &Sample, predicted: [Option<Predicted>; 2], now: UnixMs) -> [Option<Verdict>; 2] {
        let times = SentTimes::of(sample, now);
        let repeated = self.remembered.is_repeated(sample);
        let verdicts = self.decide(sample, predicted, &times, repeated);
        if !repeated && (sample.manner.timed || sample.dispatched_at.is_some()) {
            self.senders.clock.add(times.left_out || now.since(times.observed_at) > LATE_MS);
        }
        self.samples += 1;
        let mut found = [false; Reason::ALL.len()];
        found[Reason::Duplicate as usize] = repeated;
        found[Reason::Clock as usize] = times.left_out && !repeated;
        if let Some(reason) = reason_without_outcome(sample).filter(|_| !repeated) {
            found[reason as usize] = true;
        }
        for (tally, verdict) in self.tallies.iter_mut().zip(&verdicts) {
            let Some(verdict) = verdict else { continue };
            match verdict.may {
                May::Teach => tally.taught += 1,
                May::AtLeast => tally.at_least += 1,
                May::Ignore => tally.ignored += 1,
            }
            if let Some(reason) = verdict.reason {
                found[reason as usize] = true;
            }
        }
        self.reasons.iter_mut().zip(found).for_each(|(count, found)| *count += u64::from(found));
        verdicts
    }

    /// What of a sample that is read back at start may be stored, ms per target. It was counted when it came, and there
    /// is no prediction to judge it by; its repetition is recognised from here on.
    pub fn recall(&mut self, sample: &Sample) -> [Option<f64>; 2] {
        let times = SentTimes::of(sample, sample.observed_at);
        let repeated = self.remembered.is_repeated(sample);
        let verdicts = self.decide(sample, [None, None], &times, repeated);
        verdicts.map(|verdict| verdict.filter(|verdict| verdict.may == May::Teach).map(|verdict| verdict.actual_ms))
    }

    /// Forgets which samples came and what they show, because the learner forgets its samples; counts go on.
    pub fn forget(&mut self) {
        let Screen { samples, reasons, tallies, .. } = *self;
        *self = Screen { samples, reasons, tallies, ..Screen::default() };
    }

    /// The account.
    pub fn report(&self) -> ScreenReport {
        ScreenReport {
            samples: self.samples,
            reasons: self.reasons,
            tallies: self.tallies,
            suspicions: suspicions(&self.watches, &self.senders),
        }
    }

    fn decide(
        &mut self,
        sample: &Sample,
        predicted: [Option<Predicted>; 2],
        times: &SentTimes,
        repeated: bool,
    ) -> [Option<Verdict>; 2] {
        let outcomes = outcomes(sample);
        if repeated {
            return outcomes.map(|outcome| outcome.map(|ms| ignore(ms, Reason::Duplicate)));
        }
        let mut usable = [None, None];
        let verdicts = std::array::from_fn(|index| {
            let target = Target::ALL[index];
            let actual_ms = outcomes[index]?;
            let predicted = predicted[index].filter(|predicted| {
                predicted.log_median.is_finite() && predicted.log_spread.is_finite() && predicted.log_spread > 0.0
            });
            let verdict = match by_manner(sample, target) {
                Seen::Real => {
                    let watch = &mut self.watches[sample.features.role.index()][index];
                    let verdict = by_evidence(watch, sample, target, actual_ms, predicted, times.span_ms);
                    usable[index] = (verdict.may == May::Teach).then_some(verdict.actual_ms);
                    verdict
                }
                Seen::AtLeast(reason) => {
                    // Below the prediction it says nothing: a request may well be given up before its time.
                    let says_nothing = predicted.is_some_and(|predicted| actual_ms.ln() <= predicted.log_median);
                    let may = if says_nothing { May::Ignore } else { May::AtLeast };
                    Verdict { may, actual_ms, reason: Some(reason) }
                }
                Seen::Unreal(reason) => ignore(actual_ms, reason),
            };
            Some(verdict)
        });
        if sample.manner.ending == Ending::Completed {
            self.senders.add(sample, usable, times.observed_at);
        }
        verdicts
    }
}

/// Which outcomes of a sample may be stored by what its sender says of them, in the order of [`Target::ALL`].
pub fn may_be_stored(sample: &Sample) -> [bool; 2] {
    let outcomes = outcomes(sample);
    Target::ALL.map(|target| outcomes[target.index()].is_some() && matches!(by_manner(sample, target), Seen::Real))
}

fn outcomes(sample: &Sample) -> [Option<f64>; 2] {
    [sample.observation.ttft_ms, sample.observation.tpot_ms]
}

fn ignore(actual_ms: f64, reason: Reason) -> Verdict {
    Verdict { may: May::Ignore, actual_ms, reason: Some(reason) }
}

/// What is counted of a request that was broken off before there was anything to measure.
fn reason_without_outcome(sample: &Sample) -> Option<Reason> {
    if outcomes(sample) != [None, None] {
        return None;
    }
    match sample.manner.ending {
        Ending::Completed => None,
        Ending::Failed => Some(Reason::Failed),
        Ending::TimedOut => Some(Reason::Timeout),
        Ending::Aborted => Some(Reason::Aborted),
    }
}

/// What an outcome is, by how the request went.
enum Seen {
    Real,
    AtLeast(Reason),
    Unreal(Reason),
}

fn by_manner(sample: &Sample, target: Target) -> Seen {
    let manner = &sample.manner;
    let tokens = sample.observation.output_tokens;
    let chunks = manner.chunks.unwrap_or(0);
    if manner.ending == Ending::Failed {
        return Seen::Unreal(Reason::Failed);
    }
    if manner.streamed == Some(false) {
        return Seen::Unreal(Reason::NotStreamed);
    }
    match (manner.ending, target) {
        (Ending::Completed, _) if chunks == 1 && tokens > 1 => Seen::Unreal(Reason::SingleChunk),
        (Ending::Completed | Ending::Failed, _) => Seen::Real,
        (Ending::TimedOut, Target::Ttft) if chunks > 0 => Seen::Real,
        (Ending::TimedOut, Target::Ttft) => Seen::AtLeast(Reason::Timeout),
        (Ending::TimedOut, Target::Tpot) => Seen::Unreal(Reason::Timeout),
        (Ending::Aborted, Target::Ttft) if chunks.max(tokens) > 0 || sample.observation.tpot_ms.is_some() => Seen::Real,
        (Ending::Aborted, Target::Ttft) => Seen::AtLeast(Reason::Aborted),
        (Ending::Aborted, Target::Tpot) if chunks.max(tokens) >= TOKENS_MIN => Seen::Real,
        (Ending::Aborted, Target::Tpot) => Seen::Unreal(Reason::Aborted),
    }
}

/// The verdict on an outcome that the sender calls real.
fn by_evidence(
    watch: &mut Watch,
    sample: &Sample,
    target: Target,
    sent_ms: f64,
    predicted: Option<Predicted>,
    span_ms: Option<f64>,
) -> Verdict {
    watch.add(target, sent_ms);
    let trusted = predicted.filter(|predicted| predicted.trusted);
    let taught = |reason| Verdict { may: May::Teach, actual_ms: sent_ms, reason };

    let tokens_per_chunk = if target == Target::Tpot { tokens_per_chunk(sample) } else { None };
    if let Some(ratio) = tokens_per_chunk {
        if let Some(proven) = span_ms.and_then(|span_ms| is_per_chunk(sample, sent_ms, span_ms)) {
            watch.per_chunk.add(proven);
            if proven {
                return Verdict {
                    may: May::Teach,
                    actual_ms: (sent_ms / ratio).max(LATENCY_MS_MIN),
                    reason: Some(Reason::TpotPerChunk),
                };
            }
        } else if let Some(predicted) = trusted {
            let off = sent_ms.ln() - predicted.log_median;
            let suggested =
                off > PER_CHUNK_SPREADS * predicted.log_spread && (off - ratio.ln()).abs() < predicted.log_spread;
            let most = watch.per_chunk.majority();
            watch.per_chunk.add(suggested);
            if suggested && !most {
                return ignore(sent_ms, Reason::TpotPerChunk);
            }
        }
    }

    let off = trusted.map(|predicted| sent_ms.ln() - predicted.log_median);
    let is_too_fast = too_fast(target, sent_ms);
    if off.is_some() || span_ms.is_some() || is_too_fast {
        let [least, most] = LN_1000_TOLERANCE;
        let tolerance = trusted.map_or(least, |by| (LN_1000_SPREADS * by.log_spread).clamp(least, most));
        let near = |log: f64| (log - LN_1000).abs() < tolerance;
        let whole_ms = whole_ms(sample, target).unwrap_or(sent_ms);
        let by_times = span_ms.is_some_and(|span_ms| span_ms >= SPAN_MS_MIN && near((whole_ms / span_ms).ln()));
        // That much time did pass, so a long one is no mistake.
        let passed = span_ms.is_some_and(|span_ms| whole_ms * 0.9 <= span_ms);
        let high = by_times || (off.is_some_and(near) && !passed);
        let low = is_too_fast || off.is_some_and(|off| near(-off));
        let most = (watch.high.majority(), watch.low.majority());
        watch.high.add(high);
        watch.low.add(low);
        if (high && !most.0) || (low && !most.1) {
            return ignore(sent_ms, Reason::LikelyUnitError);
        }
    }

    let outlier =
        |predicted: Predicted, off: f64| off.abs() > (OUTLIER_SPREADS * predicted.log_spread).max(OUTLIER_LOG);
    let is_outlier = trusted.zip(off).is_some_and(|(predicted, off)| outlier(predicted, off));
    taught(is_outlier.then_some(Reason::Outlier))
}

/// Dispatch to first token, or first to last, ms: what must have passed at least for an outcome to be right, be it per
/// token or per chunk.
fn whole_ms(sample: &Sample, target: Target) -> Option<f64> {
    let tokens = sample.observation.output_tokens.min(sample.manner.chunks.unwrap_or(u32::MAX)).max(2);
    match target {
        Target::Ttft => sample.observation.ttft_ms,
        Target::Tpot => sample.observation.tpot_ms.map(|tpot_ms| tpot_ms * f64::from(tokens - 1)),
    }
}

/// Tokens per chunk after the first, where both counts were sent and a chunk holds clearly more than one.
fn tokens_per_chunk(sample: &Sample) -> Option<f64> {
    let chunks = sample.manner.chunks.filter(|chunks| *chunks > 1)?;
    let tokens = sample.observation.output_tokens;
    let ratio = f64::from(tokens.max(1) - 1) / f64::from(chunks - 1);
    (ratio >= TOKENS_PER_CHUNK_MIN).then_some(ratio)
}

/// Whether the row's own times prove that its TPOT is per chunk, or that it is not; `None` when they prove neither.
fn is_per_chunk(sample: &Sample, tpot_ms: f64, span_ms: f64) -> Option<bool> {
    let decode_ms = span_ms - sample.observation.ttft_ms?;
    let chunks = sample.manner.chunks?;
    let by = |parts: u32| (tpot_ms * f64::from(parts.max(2) - 1) / decode_ms).ln();
    if decode_ms <= 0.0 {
        None
    } else if by(chunks).abs() <= PER_CHUNK_TOLERANCE {
        Some(true)
    } else {
        (by(sample.observation.output_tokens).abs() <= PER_CHUNK_TOLERANCE).then_some(false)
    }
}
