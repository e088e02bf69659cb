//! What the latest samples show about their senders: raised with enough evidence, gone as soon as it is.

use foretoken::training::{Reason, Screen, Suspicion};
use foretoken::types::{Role, Sample};

use crate::screen::{NOW, PREDICTED, TAUGHT, brief, ignored, sample, with};

fn suspected(screen: &Screen) -> Vec<&'static str> {
    screen.report().suspicions.into_iter().map(Suspicion::name).collect()
}

#[test]
fn seconds_from_the_very_start_are_suspected_and_soon_taught() {
    let mut screen = Screen::default();
    for i in 0..40 {
        let sample = sample(Some(0.11 + f64::from(i) / 1000.0), Some(0.02));
        let expected = if i < 26 { ignored(Reason::LikelyUnitError) } else { TAUGHT };
        assert_eq!(brief(screen.judge(&sample, [None, None], NOW)), [expected; 2], "{i}");
    }
    assert_eq!(suspected(&screen), ["looks_like_seconds", "looks_like_seconds"]);
    assert!(screen.report().suspicions[1].to_string().starts_with("actual_tpot_ms looks like seconds"));
    // The fastest there is: 2000 tokens a second.
    let mut fast = Screen::default();
    (0..60).for_each(|_| _ = fast.judge(&sample(Some(8.0), Some(0.5)), [None, None], NOW));
    assert_eq!(suspected(&fast), Vec::<&str>::new());
}

/// A second apart, all gauges 0, as many requests at once as `busy`.
fn gauges(count: i64, busy: f64, kv: f64, running: u32) -> Screen {
    let mut screen = Screen::default();
    for i in 0..count {
        let now = NOW.plus_ms(i * 1000);
        let mut sample = sample(Some(200.0), Some((busy * 1000.0 - 200.0) / 9.0));
        sample.observation.output_tokens = 10;
        sample.observed_at = now;
        (sample.features.kv_cache_usage, sample.features.requests_running) = (kv, running);
        screen.judge(&sample, [None, None], now);
    }
    screen
}

#[test]
fn gauges_that_are_always_0_are_suspected_only_while_requests_overlap() {
    assert_eq!(suspected(&gauges(300, 5.0, 0.0, 0)), ["gauges_zero"]);
    assert_eq!(suspected(&gauges(300, 0.9, 0.0, 0)), Vec::<&str>::new(), "an idle endpoint");
    assert_eq!(suspected(&gauges(150, 5.0, 0.0, 0)), Vec::<&str>::new(), "too early to say");
    assert_eq!(suspected(&gauges(300, 5.0, 0.1, 2)), Vec::<&str>::new());
    assert_eq!(suspected(&gauges(300, 5.0, 0.0, 2)), ["kv_zero"]);
    let mut screen = gauges(300, 5.0, 0.0, 0);
    screen.judge(&sample(Some(200.0), Some(20.0)), [None, None], NOW.plus_ms(400_000));
    assert_eq!(suspected(&screen), Vec::<&str>::new(), "one look at a gauge that moves");
}

#[test]
fn ttft_without_tpot_is_suspected_unless_it_is_explained() {
    let run = |change: &dyn Fn(&mut Sample)| {
        let mut screen = Screen::default();
        let mut sample = sample(Some(100.0), None);
        change(&mut sample);
        (0..250).for_each(|_| _ = screen.judge(&sample, PREDICTED, NOW));
        screen
    };
    let mut screen = run(&|_| ());
    assert_eq!(suspected(&screen), ["never_tpot"]);
    screen.judge(&sample(None, Some(20.0)), PREDICTED, NOW);
    assert_eq!(suspected(&screen), Vec::<&str>::new());
    assert_eq!(suspected(&run(&|sample| sample.manner.streamed = Some(true))), Vec::<&str>::new());
    assert_eq!(suspected(&run(&|sample| sample.manner.streamed = Some(false))), Vec::<&str>::new());
    assert_eq!(suspected(&run(&|sample| sample.features.role = Role::Prefill)), Vec::<&str>::new());
}

#[test]
fn a_wrong_clock_is_suspected_until_it_is_right() {
    let mut screen = Screen::default();
    let mut send = |count: i64, late_ms: i64| {
        for i in 0..count {
            let now = NOW.plus_ms(i * 10);
            let sample = with(|sample| (sample.observed_at, sample.manner.timed) = (now.plus_ms(-late_ms), true));
            screen.judge(&sample, PREDICTED, now);
        }
        (suspected(&screen), screen.report().count(Reason::Clock))
    };
    // An hour behind is a time zone, and the times are kept; two days are no time at all.
    assert_eq!(send(60, 3_600_000), (vec!["clock"], 0));
    assert_eq!(send(60, 20), (vec![], 0));
    assert_eq!(send(60, 200_000_000), (vec!["clock"], 60));
}
