//! What a sample may teach: examples and laws of the screen.

use foretoken::training::{May, Predicted, Reason, Screen, SentTimes, Suspicion, Verdict};
use foretoken::types::{
    Ending, EndpointName, Features, Fingerprint, Manner, Observation, Promised, Role, Sample, Target, UnixMs,
};
use proptest::prelude::*;

/// 2026 and some ms, so that no time is a whole second.
pub const NOW: UnixMs = UnixMs(1_767_225_600_123);

pub fn sample(ttft_ms: Option<f64>, tpot_ms: Option<f64>) -> Sample {
    Sample {
        features: Features {
            kv_cache_usage: 0.3,
            input_tokens: 1000,
            requests_waiting: 0,
            requests_running: 4,
            prefix_cache_score: 0.0,
            prefill_tokens_in_flight: 0,
            decode_tokens_in_flight: 0,
            encoder_matched_size: 0,
            encoder_input_size: 0,
            role: Role::Both,
        },
        observation: Observation { ttft_ms, tpot_ms, output_tokens: 0 },
        endpoint: None,
        observed_at: NOW,
        dispatched_at: None,
        promised: Promised::default(),
        manner: Manner::default(),
        fingerprint: None,
    }
}

/// What a model fitted on enough rows says of [`sample`]: 100 ms and 20 ms, a third above it at p90.
pub const PREDICTED: [Option<Predicted>; 2] = [
    Some(Predicted { log_median: 4.605_17, log_spread: 0.3, trusted: true }),
    Some(Predicted { log_median: 2.995_73, log_spread: 0.3, trusted: true }),
];

fn judge(sample: &Sample) -> [Option<Verdict>; 2] {
    Screen::default().judge(sample, PREDICTED, NOW)
}

pub fn brief(verdicts: [Option<Verdict>; 2]) -> [Option<(May, Option<Reason>)>; 2] {
    verdicts.map(|verdict| verdict.map(|verdict| (verdict.may, verdict.reason)))
}

pub const TAUGHT: Option<(May, Option<Reason>)> = Some((May::Teach, None));

pub fn ignored(reason: Reason) -> Option<(May, Option<Reason>)> {
    Some((May::Ignore, Some(reason)))
}

pub fn with(change: impl Fn(&mut Sample)) -> Sample {
    let mut sample = sample(Some(110.0), Some(21.0));
    change(&mut sample);
    sample
}

#[test]
fn counts_are_kept_in_the_order_of_their_names() {
    for (place, reason) in Reason::ALL.into_iter().enumerate() {
        assert_eq!(reason as usize, place, "{}", reason.name());
    }
}

#[test]
fn what_the_sender_says_decides_first() {
    assert_eq!(brief(judge(&with(|_| ()))), [TAUGHT, TAUGHT]);
    let failed = with(|sample| sample.manner.ending = Ending::Failed);
    assert_eq!(brief(judge(&failed)), [ignored(Reason::Failed); 2]);
    let whole = with(|sample| sample.manner.streamed = Some(false));
    assert_eq!(brief(judge(&whole)), [ignored(Reason::NotStreamed); 2]);
    let streamed = with(|sample| sample.manner.streamed = Some(true));
    assert_eq!(brief(judge(&streamed)), [TAUGHT, TAUGHT]);
    let at_once = with(|sample| (sample.manner.chunks, sample.observation.output_tokens) = (Some(1), 30));
    assert_eq!(brief(judge(&at_once)), [ignored(Reason::SingleChunk); 2]);
    let one_token = with(|sample| (sample.manner.chunks, sample.observation.output_tokens) = (Some(1), 1));
    assert_eq!(brief(judge(&one_token)), [TAUGHT, TAUGHT]);
}

#[test]
fn a_timeout_is_at_least_that_long_and_says_nothing_below_the_prediction() {
    let waited = |ttft_ms, chunks| {
        let mut sample = sample(Some(ttft_ms), None);
        (sample.manner.ending, sample.manner.chunks) = (Ending::TimedOut, chunks);
        brief(judge(&sample))[0]
    };
    // 30 s against 100 ms: not a unit mistake but a wait, and far from it being 1000 times the prediction.
    for ttft_ms in [150.0, 30_000.0, 100_000.0] {
        assert_eq!(waited(ttft_ms, None), Some((May::AtLeast, Some(Reason::Timeout))), "{ttft_ms}");
    }
    assert_eq!(waited(80.0, None), ignored(Reason::Timeout));
    assert_eq!(waited(80.0, Some(3)), TAUGHT, "the first token had come");
    let both = with(|sample| sample.manner.ending = Ending::TimedOut);
    assert_eq!(brief(judge(&both))[1], ignored(Reason::Timeout));
    let unpredicted = Screen::default().judge(&both, [None, None], NOW);
    assert_eq!(brief(unpredicted)[0], Some((May::AtLeast, Some(Reason::Timeout))));
}

#[test]
fn of_an_aborted_request_counts_what_was_seen() {
    let aborted = |tokens, chunks, tpot_ms| {
        let mut sample = sample(Some(110.0), tpot_ms);
        sample.manner = Manner { ending: Ending::Aborted, chunks, ..Manner::default() };
        sample.observation.output_tokens = tokens;
        brief(judge(&sample))
    };
    assert_eq!(aborted(0, None, None), [Some((May::AtLeast, Some(Reason::Aborted))), None]);
    assert_eq!(aborted(0, Some(0), None), [Some((May::AtLeast, Some(Reason::Aborted))), None]);
    assert_eq!(aborted(1, None, None), [TAUGHT, None]);
    assert_eq!(aborted(7, Some(2), Some(20.0)), [TAUGHT, ignored(Reason::Aborted)]);
    assert_eq!(aborted(8, None, Some(20.0)), [TAUGHT, TAUGHT]);
    assert_eq!(aborted(0, Some(8), Some(20.0)), [TAUGHT, TAUGHT]);
}

#[test]
fn what_never_came_to_a_latency_is_counted_all_the_same() {
    let mut screen = Screen::default();
    let mut failed = sample(None, None);
    failed.manner.ending = Ending::Failed;
    assert_eq!(screen.judge(&failed, PREDICTED, NOW), [None, None]);
    let report = screen.report();
    assert_eq!((report.samples, report.count(Reason::Failed)), (1, 1));
}

#[test]
fn the_same_sample_again_is_ignored_and_counted() {
    let mut screen = Screen::default();
    let sample = with(|sample| {
        (sample.dispatched_at, sample.endpoint) = (Some(UnixMs(NOW.0 - 900)), EndpointName::try_new("a"))
    });
    assert_eq!(brief(screen.judge(&sample, PREDICTED, NOW)), [TAUGHT, TAUGHT]);
    for again in 1..4 {
        assert_eq!(brief(screen.judge(&sample, PREDICTED, NOW)), [ignored(Reason::Duplicate); 2]);
        assert_eq!(screen.report().count(Reason::Duplicate), again);
    }
    let mut other = sample.clone();
    other.observation.tpot_ms = Some(21.000_001);
    assert_eq!(brief(screen.judge(&other, PREDICTED, NOW)), [TAUGHT, TAUGHT]);
    // Where the learner forgets what it was taught, it may be taught the same again.
    screen.forget();
    assert_eq!(brief(screen.judge(&sample, PREDICTED, NOW)), [TAUGHT, TAUGHT]);
    assert_eq!((screen.report().samples, screen.report().count(Reason::Duplicate)), (6, 3));
}

#[test]
fn rows_without_a_precise_time_may_look_the_same() {
    let plain = with(|_| ());
    let whole_seconds = with(|sample| (sample.manner.timed, sample.observed_at) = (true, UnixMs(NOW.0 / 1000 * 1000)));
    for sample in [plain, whole_seconds] {
        let mut screen = Screen::default();
        for _ in 0..3 {
            assert_eq!(brief(screen.judge(&sample, PREDICTED, NOW)), [TAUGHT, TAUGHT]);
        }
    }
}

#[test]
fn repetitions_are_recognised_across_a_restart_and_within_a_bound() {
    let at = |i: i64| with(|sample| (sample.manner.timed, sample.observed_at) = (true, UnixMs(NOW.0 - 1000 * i)));
    let mut screen = Screen::default();
    assert_eq!(screen.recall(&at(0)), [Some(110.0), Some(21.0)]);
    assert_eq!(screen.recall(&at(0)), [None, None]);
    assert_eq!(brief(screen.judge(&at(0), PREDICTED, NOW)), [ignored(Reason::Duplicate); 2]);
    for i in 1..=8192 {
        screen.judge(&at(i), PREDICTED, NOW);
    }
    assert_eq!(brief(screen.judge(&at(1), PREDICTED, NOW)), [ignored(Reason::Duplicate); 2]);
    assert_eq!(brief(screen.judge(&at(0), PREDICTED, NOW)), [TAUGHT, TAUGHT], "the oldest is forgotten");
}

#[test]
fn what_is_read_back_is_only_what_may_be_stored() {
    let recall = |change: &dyn Fn(&mut Sample)| Screen::default().recall(&with(change));
    assert_eq!(recall(&|sample| sample.manner.ending = Ending::Failed), [None, None]);
    assert_eq!(recall(&|sample| sample.manner.ending = Ending::TimedOut), [None, None]);
    assert_eq!(recall(&|sample| sample.manner.streamed = Some(false)), [None, None]);
    let mut screen = Screen::default();
    screen.recall(&with(|sample| sample.manner.ending = Ending::Failed));
    assert_eq!(screen.report().samples, 0, "it was counted when it came");
}

#[test]
fn impossible_times_are_left_out_and_the_latency_is_taught() {
    let hour = 3_600_000;
    let times = |observed: i64, dispatched: Option<i64>| {
        let sample = with(|sample| {
            sample.observed_at = UnixMs(NOW.0 + observed);
            sample.dispatched_at = dispatched.map(|at| UnixMs(NOW.0 + at));
            sample.manner.timed = true;
        });
        assert_eq!(brief(judge(&sample)), [TAUGHT, TAUGHT]);
        let times = SentTimes::of(&sample, NOW);
        (times.observed_at.0 - NOW.0, times.dispatched_at.map(|at| at.0 - NOW.0), times.left_out)
    };
    assert_eq!(times(-300, Some(-900)), (-300, Some(-900), false));
    assert_eq!(times(2000, Some(1400)), (0, Some(-600), false), "a clock that is a little ahead");
    assert_eq!(times(hour, Some(hour - 600)), (0, None, true), "ahead by an hour");
    assert_eq!(times(-1_000 * hour, Some(-1_001 * hour)), (0, None, true), "a clock that was never set");
    assert_eq!(times(-300, Some(-100)), (-300, None, true), "it stepped back in between");
    assert_eq!(times(-300, Some(-30 * hour)), (-300, None, true));
    let extreme =
        with(|sample| (sample.observed_at, sample.dispatched_at) = (UnixMs(i64::MIN), Some(UnixMs(i64::MAX))));
    assert_eq!(SentTimes::of(&extreme, UnixMs(i64::MAX)).observed_at, UnixMs(i64::MAX));
}

/// Judges a stream of TTFTs against the steady prediction.
fn stream(screen: &mut Screen, ttfts: impl Iterator<Item = f64>) -> Vec<(May, Option<Reason>)> {
    ttfts.filter_map(|ttft_ms| brief(screen.judge(&sample(Some(ttft_ms), None), PREDICTED, NOW))[0]).collect()
}

#[test]
fn a_single_factor_of_1000_is_ignored() {
    let mut screen = Screen::default();
    let ttfts = (0..200).map(|i| {
        if i % 7 == 3 {
            0.1
        } else if i % 31 == 5 {
            120_000.0
        } else {
            105.0
        }
    });
    for (i, verdict) in stream(&mut screen, ttfts).into_iter().enumerate() {
        let odd = i % 7 == 3 || i % 31 == 5;
        assert_eq!(verdict.1, odd.then_some(Reason::LikelyUnitError), "{i}");
        assert_eq!(verdict.0 == May::Ignore, odd);
    }
    assert!(!screen.report().suspicions.iter().any(|suspicion| suspicion.name() == "factor_1000"));
    let untrusted = PREDICTED.map(|predicted| predicted.map(|predicted| Predicted { trusted: false, ..predicted }));
    assert_eq!(brief(Screen::default().judge(&sample(Some(120_000.0), None), untrusted, NOW)), [TAUGHT, None]);
    let too_fast = ignored(Reason::LikelyUnitError);
    assert_eq!(brief(Screen::default().judge(&sample(Some(0.1), None), [None, None], NOW)), [too_fast, None]);
    assert_eq!(brief(Screen::default().judge(&sample(None, Some(0.02)), [None, None], NOW)), [None, too_fast]);
}

#[test]
fn a_stream_that_truly_became_1000_times_slower_is_soon_taught_and_suspected() {
    for factor in [1e3, 1e-3] {
        let mut screen = Screen::default();
        stream(&mut screen, (0..300).map(|_| 100.0));
        let verdicts = stream(&mut screen, (0..200).map(|_| 100.0 * factor));
        let first = verdicts.iter().position(|verdict| verdict.0 == May::Teach).unwrap();
        assert_eq!(first, 26);
        assert!(verdicts[first..].iter().all(|verdict| verdict.0 == May::Teach));
        let (role, target) = (Role::Both, Target::Ttft);
        // 0.1 ms is not only off the prediction but faster than any engine.
        let expected = match factor < 1.0 {
            true => Suspicion::LooksLikeSeconds { role, target },
            false => Suspicion::Factor { role, target, factor },
        };
        assert!(screen.report().suspicions.contains(&expected));
        // The mark comes off when the stream is as it was.
        stream(&mut screen, (0..50).map(|_| 100.0));
        assert!(!screen.report().suspicions.contains(&expected));
    }
}

#[test]
fn the_rows_own_times_tell_a_long_wait_from_a_wrong_unit() {
    let timed = |ttft_ms: f64, span_ms: i64, predicted| {
        let mut sample = sample(Some(ttft_ms), None);
        sample.manner.timed = true;
        sample.dispatched_at = Some(UnixMs(NOW.0 - span_ms));
        brief(Screen::default().judge(&sample, predicted, NOW))[0]
    };
    assert_eq!(timed(100_000.0, 100_000, PREDICTED), Some((May::Teach, Some(Reason::Outlier))));
    assert_eq!(timed(100_000.0, 200, PREDICTED), ignored(Reason::LikelyUnitError));
    // Without any model: a hundred seconds did not pass within 100 ms.
    assert_eq!(timed(100_000.0, 100, [None, None]), ignored(Reason::LikelyUnitError));
    // Both times told at once say nothing of the latency.
    assert_eq!(timed(5_000.0, 1, [None, None]), TAUGHT);
}

#[test]
fn a_dispatch_that_contradicts_the_latency_is_left_out() {
    let left_out = |tpot_ms, tokens, span_ms| {
        let mut sample = sample(Some(110.0), tpot_ms);
        (sample.observation.output_tokens, sample.manner.timed) = (tokens, true);
        sample.dispatched_at = Some(UnixMs(NOW.0 - span_ms));
        let mut screen = Screen::default();
        assert_eq!(brief(screen.judge(&sample, PREDICTED, NOW))[0], TAUGHT);
        assert_eq!(screen.report().count(Reason::Clock), u64::from(SentTimes::of(&sample, NOW).left_out));
        SentTimes::of(&sample, NOW).left_out
    };
    assert!(!left_out(None, 0, 0), "times may be as coarse as whole seconds");
    assert!(!left_out(Some(20.0), 101, 2_150));
    assert!(left_out(Some(20.0), 101, 200), "two seconds of tokens did not pass in 200 ms");
    assert!(!left_out(Some(20.0), 0, 200), "how many tokens there were was not told");
}

#[test]
fn an_outlier_is_counted_and_taught() {
    let mut screen = Screen::default();
    assert_eq!(stream(&mut screen, [5_000.0].into_iter()), [(May::Teach, Some(Reason::Outlier))]);
    assert_eq!(screen.report().count(Reason::Outlier), 1);
}

/// A speculative engine: 3 tokens per chunk, 20 ms per token.
fn speculative(tpot_ms: f64, timed: bool) -> Sample {
    let mut sample = sample(timed.then_some(100.0), Some(tpot_ms));
    sample.observation.output_tokens = 61;
    sample.manner.chunks = Some(21);
    sample.manner.timed = timed;
    sample.dispatched_at = timed.then_some(UnixMs(NOW.0 - 1300));
    sample
}

#[test]
fn tpot_per_chunk_is_divided_where_the_rows_own_times_prove_it() {
    let mut screen = Screen::default();
    let [_, per_chunk] = screen.judge(&speculative(60.0, true), PREDICTED, NOW);
    assert_eq!(screen.report().count(Reason::Clock), 0, "the times are right, the count is not");
    let per_chunk = per_chunk.unwrap();
    assert_eq!((per_chunk.may, per_chunk.reason), (May::Teach, Some(Reason::TpotPerChunk)));
    assert!((per_chunk.actual_ms - 20.0).abs() < 1e-9, "{}", per_chunk.actual_ms);
    let [_, per_token] = judge(&speculative(20.0, true));
    assert_eq!(
        per_token.map(|verdict| (verdict.may, verdict.actual_ms, verdict.reason)),
        Some((May::Teach, 20.0, None))
    );
}

#[test]
fn tpot_per_chunk_is_ignored_where_the_prediction_suggests_it_unless_most_are() {
    // A third above p90: 60 ms against 20 ms is 3.7 spreads, and just the tokens per chunk.
    assert_eq!(brief(judge(&speculative(60.0, false)))[1], ignored(Reason::TpotPerChunk));
    assert_eq!(brief(judge(&speculative(20.0, false)))[1], TAUGHT);
    assert_eq!(brief(judge(&speculative(35.0, false)))[1], TAUGHT, "slow, but not by that");
    let mut screen = Screen::default();
    let verdicts: Vec<_> =
        (0..60).map(|_| brief(screen.judge(&speculative(60.0, false), PREDICTED, NOW))[1].unwrap()).collect();
    assert_eq!(verdicts.iter().position(|verdict| verdict.0 == May::Teach), Some(26));
    assert!(screen.report().suspicions.contains(&Suspicion::TpotPerChunk));
}

fn any_ms() -> impl Strategy<Value = Option<f64>> {
    prop_oneof![
        1 => Just(None),
        2 => (-6.9..18.2f64).prop_map(|log| Some(log.exp())),
        2 => (4.0..5.0f64).prop_map(|log| Some(log.exp())),
    ]
}

fn any_time() -> impl Strategy<Value = i64> {
    prop_oneof![any::<i64>(), -90_000_000..90_000_000i64, -2000..2000i64].prop_map(|by| NOW.0.saturating_add(by))
}

prop_compose! {
    fn any_sample()(
        outcomes in (any_ms(), any_ms()),
        counts in (0..40u32, prop::option::of(0..40u32)),
        manner in (0..4usize, prop::option::of(any::<bool>()), any::<bool>()),
        times in (any_time(), prop::option::of(any_time())),
        gauges in (0..3u32, 0..3u32),
        role in 0..3usize,
        fingerprint in prop::option::of("[a-c]"),
    ) -> Sample {
        let mut sample = sample(outcomes.0, outcomes.1);
        sample.observation.output_tokens = counts.0;
        let endings = [Ending::Completed, Ending::Failed, Ending::TimedOut, Ending::Aborted];
        sample.manner = Manner { ending: endings[manner.0], streamed: manner.1, chunks: counts.1, timed: manner.2 };
        (sample.observed_at, sample.dispatched_at) = (UnixMs(times.0), times.1.map(UnixMs));
        (sample.features.requests_running, sample.features.requests_waiting) = gauges;
        sample.features.role = Role::ALL[role];
        sample.fingerprint = fingerprint.and_then(|text| Fingerprint::try_new(&text));
        sample
    }
}

fn any_predicted() -> impl Strategy<Value = Option<Predicted>> {
    prop::option::of((prop::num::f64::ANY, prop::num::f64::ANY, 0.0..5.0f64, any::<bool>(), any::<bool>()).prop_map(
        |(log_median, log_spread, near, trusted, odd)| match odd {
            true => Predicted { log_median, log_spread, trusted },
            false => Predicted { log_median: near, log_spread: 0.2, trusted },
        },
    ))
}

proptest! {
    #[test]
    fn any_samples_get_a_verdict_and_the_counts_add_up(
        samples in prop::collection::vec((any_sample(), any_predicted(), any_predicted()), 0..150),
    ) {
        let mut screen = Screen::default();
        let mut outcomes = [0; 2];
        for (sample, ttft, tpot) in &samples {
            let before = screen.report();
            let verdicts = screen.judge(sample, [*ttft, *tpot], NOW);
            let present = [sample.observation.ttft_ms, sample.observation.tpot_ms];
            prop_assert_eq!(verdicts.map(|verdict| verdict.is_some()), present.map(|ms| ms.is_some()));
            for ((count, verdict), sent_ms) in outcomes.iter_mut().zip(verdicts).zip(present) {
                let Some(verdict) = verdict else { continue };
                *count += 1;
                prop_assert!(verdict.actual_ms > 0.0 && Some(verdict.actual_ms) <= sent_ms);
                prop_assert!(verdict.may == May::Teach || verdict.reason.is_some());
            }
            let after = screen.report();
            for (before, after) in before.reasons.iter().zip(after.reasons) {
                prop_assert!(after == *before || after == before + 1);
            }
            let times = SentTimes::of(sample, NOW);
            prop_assert!(times.observed_at <= NOW);
            prop_assert!(times.dispatched_at.is_none_or(|at| at <= times.observed_at));
        }
        let report = screen.report();
        prop_assert_eq!(report.samples, samples.len() as u64);
        prop_assert!(report.reasons.iter().all(|count| *count <= report.samples));
        let tallied = report.tallies.map(|tally| tally.taught + tally.at_least + tally.ignored);
        prop_assert_eq!(tallied, outcomes);
    }

    #[test]
    fn i8_the_same_samples_get_the_same_verdicts(
        samples in prop::collection::vec((any_sample(), any_predicted()), 0..80),
    ) {
        let run = || {
            let mut screen = Screen::default();
            let verdicts: Vec<_> =
                samples.iter().map(|(sample, predicted)| screen.judge(sample, [*predicted; 2], NOW)).collect();
            (format!("{verdicts:?}"), screen.report())
        };
        prop_assert_eq!(run(), run());
    }

    #[test]
    fn a_repetition_changes_nothing_but_its_own_count(samples in prop::collection::vec(any_sample(), 1..60)) {
        let mut once = Screen::default();
        let mut twice = Screen::default();
        let mut repeated = 0;
        for sample in &samples {
            let first = once.judge(sample, PREDICTED, NOW);
            prop_assert_eq!(first, twice.judge(sample, PREDICTED, NOW));
            let precise = sample.manner.timed && sample.observed_at.0 % 1000 != 0
                || sample.dispatched_at.is_some_and(|at| at.0 % 1000 != 0);
            if precise {
                let again = twice.judge(sample, PREDICTED, NOW);
                prop_assert!(again.iter().flatten().all(|verdict| verdict.reason == Some(Reason::Duplicate)));
                repeated += 1;
            }
        }
        let (once, twice) = (once.report(), twice.report());
        prop_assert_eq!(&once.suspicions, &twice.suspicions);
        prop_assert_eq!(twice.count(Reason::Duplicate), once.count(Reason::Duplicate) + repeated);
        for reason in Reason::ALL.into_iter().filter(|reason| *reason != Reason::Duplicate) {
            prop_assert_eq!(once.count(reason), twice.count(reason));
        }
    }

    #[test]
    fn no_level_that_lasts_is_refused_for_long(log_factor in -9.0..9.0f64, trusted_from in 0..100usize) {
        let mut screen = Screen::default();
        let mut refused = 0;
        for i in 0..400 {
            let trusted = i >= trusted_from;
            let predicted = PREDICTED.map(|predicted| predicted.map(|predicted| Predicted { trusted, ..predicted }));
            let sample = sample(Some((4.605_17 + log_factor).exp()), None);
            let [verdict, _] = screen.judge(&sample, predicted, NOW);
            refused += u32::from(verdict.is_some_and(|verdict| verdict.may != May::Teach));
        }
        prop_assert!(refused <= 26, "{refused}");
    }
}
