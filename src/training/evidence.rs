//! What the latest samples show together that no single one of them shows: repetitions, a factor of 1000, gauges that
//! never move, a sender's clock. Bounded, and cheap per sample.

use std::collections::{BTreeSet, VecDeque};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};

use crate::types::{Role, Sample, Target, UnixMs};

/// Samples whose repetition is recognised.
const REMEMBERED_MAX: usize = 8192;

/// Latest answers to one question; more than half of them make a majority.
pub(super) const RECENT: u32 = 50;

/// Samples in a row from which it is no chance that a gauge is 0, or that no TPOT comes.
const RUN_MIN: u64 = 200;

/// Time that a run of zero gauges must cover, ms: less says little about how much was going on.
const RUN_MS_MIN: i64 = 10_000;

/// Requests under way at once, on average over a run, from which an endpoint cannot have been idle at each dispatch.
const BUSY_MIN: f64 = 2.0;

/// Latencies that no engine reaches, ms, in the order of [`Target::ALL`]: a network and a step lie in each TTFT, and
/// ten thousand tokens a second for one request are beyond any accelerator. Seconds sent as ms lie below.
const TOO_FAST_MS: [f64; 2] = [1.0, 0.1];

/// Whether no engine is that fast.
pub(super) fn too_fast(target: Target, actual_ms: f64) -> bool {
    actual_ms < TOO_FAST_MS[target.index()]
}

/// Samples sent already, by their content. Deterministic: the hash has no random key.
#[derive(Clone, Debug, Default)]
pub(super) struct Remembered {
    order: VecDeque<u64>,
    known: BTreeSet<u64>,
}

impl Remembered {
    /// Remembers a sample; `true` when it was there. Only samples with a precise time of their own can be recognised:
    /// without one, or with whole seconds, two requests may well look the same.
    pub(super) fn is_repeated(&mut self, sample: &Sample) -> bool {
        let precise = |at: UnixMs| at.0 % 1000 != 0;
        let observed_at = sample.manner.timed.then_some(sample.observed_at);
        if !observed_at.is_some_and(precise) && !sample.dispatched_at.is_some_and(precise) {
            return false;
        }
        let content = content(sample, observed_at);
        if !self.known.insert(content) {
            return true;
        }
        if self.order.len() == REMEMBERED_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.known.remove(&oldest);
        }
        self.order.push_back(content);
        false
    }
}

/// A hash of everything in a sample, to the bit.
fn content(sample: &Sample, observed_at: Option<UnixMs>) -> u64 {
    let Sample { features, observation, endpoint, dispatched_at, promised, manner, fingerprint, .. } = sample;
    let mut hash = DefaultHasher::new();
    (features.kv_cache_usage.to_bits(), features.prefix_cache_score.to_bits(), features.input_tokens).hash(&mut hash);
    (features.requests_waiting, features.requests_running, features.role).hash(&mut hash);
    (features.prefill_tokens_in_flight, features.decode_tokens_in_flight).hash(&mut hash);
    (features.encoder_matched_size, features.encoder_input_size).hash(&mut hash);
    (observation.ttft_ms.map(f64::to_bits), observation.tpot_ms.map(f64::to_bits)).hash(&mut hash);
    (promised.ttft_ms.map(f64::to_bits), promised.tpot_ms.map(f64::to_bits)).hash(&mut hash);
    (observation.output_tokens, endpoint, observed_at, dispatched_at).hash(&mut hash);
    (manner.ending, manner.streamed, manner.chunks, fingerprint).hash(&mut hash);
    hash.finish()
}

/// The latest [`RECENT`] answers to a yes-or-no question.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Recent(u64);

impl Recent {
    pub(super) fn add(&mut self, yes: bool) {
        self.0 = (self.0 << 1 | u64::from(yes)) & ((1 << RECENT) - 1);
    }

    /// Whether more than half of the latest [`RECENT`] were a yes; never with fewer answers than that takes.
    pub(super) fn majority(self) -> bool {
        self.0.count_ones() > RECENT / 2
    }
}

/// What is asked of each outcome of one role and target.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Watch {
    /// About a thousand times the prediction?
    pub(super) high: Recent,
    /// About a thousandth of it?
    pub(super) low: Recent,
    /// Per chunk instead of per token?
    pub(super) per_chunk: Recent,
    too_fast: Recent,
}

impl Watch {
    /// Asks what needs no prediction.
    pub(super) fn add(&mut self, target: Target, actual_ms: f64) {
        self.too_fast.add(too_fast(target, actual_ms));
    }
}

/// Samples in a row whose gauges are all 0.
#[derive(Clone, Copy, Debug)]
struct IdleRun {
    samples: u64,
    began: UnixMs,
    latest: UnixMs,
    /// Time that their requests were under way, summed, ms.
    busy_ms: f64,
}

impl IdleRun {
    /// By Little's law: as many requests under way as their time adds up to per time that passed.
    fn is_impossible(&self) -> bool {
        let passed_ms = self.latest.since(self.began);
        self.samples >= RUN_MIN && passed_ms >= RUN_MS_MIN && self.busy_ms > BUSY_MIN * passed_ms as f64
    }
}

/// What is asked of samples as a whole.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Senders {
    idle: Option<IdleRun>,
    running_without_kv: u64,
    ttft_without_tpot: u64,
    pub(super) clock: Recent,
}

impl Senders {
    /// Takes a sample of a request that was answered; `usable` are its outcomes that mean what they say.
    pub(super) fn add(&mut self, sample: &Sample, usable: [Option<f64>; 2], observed_at: UnixMs) {
        let features = &sample.features;
        let in_flight = features.prefill_tokens_in_flight.max(features.decode_tokens_in_flight);
        let requests = features.requests_running.max(features.requests_waiting);
        if features.kv_cache_usage > 0.0 || requests > 0 || in_flight > 0 {
            self.idle = None;
        } else {
            let run =
                self.idle.get_or_insert(IdleRun { samples: 0, began: observed_at, latest: observed_at, busy_ms: 0.0 });
            let decode_ms = usable[1].map_or(0.0, |tpot| tpot * f64::from(sample.observation.output_tokens.max(1) - 1));
            run.samples += 1;
            run.latest = run.latest.max(observed_at);
            run.busy_ms += usable[0].unwrap_or(0.0) + decode_ms;
        }
        if features.kv_cache_usage > 0.0 {
            self.running_without_kv = 0;
        } else if features.requests_running > 0 {
            self.running_without_kv += 1;
        }
        if usable[1].is_some() {
            self.ttft_without_tpot = 0;
        } else if usable[0].is_some() && features.role != Role::Prefill && sample.manner.streamed != Some(true) {
            self.ttft_without_tpot += 1;
        }
    }
}

/// Something that samples show about whoever sends them. It goes as soon as the latest samples no longer show it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Suspicion {
    /// Most outcomes are too fast to be in ms.
    LooksLikeSeconds {
        /// Whose samples.
        role: Role,
        /// Which outcome.
        target: Target,
    },
    /// Most outcomes are off by a factor of 1000 from what was predicted.
    Factor {
        /// Whose samples.
        role: Role,
        /// Which outcome.
        target: Target,
        /// 1000 or 0.001: outcome by prediction.
        factor: f64,
    },
    /// Most TPOT outcomes of engines that send several tokens at once are per chunk.
    TpotPerChunk,
    /// TTFT comes and TPOT never does.
    NeverTpot,
    /// Every gauge is 0 although requests overlap.
    GaugesZero,
    /// The KV gauge is 0 although requests run.
    KvZero,
    /// Most times disagree with the time of receipt or with one another.
    Clock,
}

impl Suspicion {
    /// Every name, in the order of the variants.
    pub const NAMES: [&'static str; 7] =
        ["looks_like_seconds", "factor_1000", "tpot_per_chunk", "never_tpot", "gauges_zero", "kv_zero", "clock"];

    /// Stable word for metrics and `/status`.
    pub fn name(self) -> &'static str {
        let place = match self {
            Suspicion::LooksLikeSeconds { .. } => 0,
            Suspicion::Factor { .. } => 1,
            Suspicion::TpotPerChunk => 2,
            Suspicion::NeverTpot => 3,
            Suspicion::GaugesZero => 4,
            Suspicion::KvZero => 5,
            Suspicion::Clock => 6,
        };
        Suspicion::NAMES[place]
    }
}

impl fmt::Display for Suspicion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of =
            |role: &Role| if *role == Role::Both { String::new() } else { format!(" (pod_type {})", role.as_wire()) };
        match self {
            Suspicion::LooksLikeSeconds { role, target } => write!(
                out,
                "actual_{0}_ms{1} looks like seconds: most of the latest {RECENT} are below {2} ms; send milliseconds",
                target.name(),
                of(role),
                TOO_FAST_MS[target.index()]
            ),
            Suspicion::Factor { role, target, factor } => write!(
                out,
                "most of the latest {RECENT} actual_{0}_ms{1} are about {factor} times what was predicted: check the \
                 unit at the sender; they are learnt from, since most say the same",
                target.name(),
                of(role)
            ),
            Suspicion::TpotPerChunk => out.write_str(
                "actual_tpot_ms seems to be per chunk where the engine sends several tokens at once: divide the decode \
                 time by num_tokens_generated - 1",
            ),
            Suspicion::NeverTpot => write!(
                out,
                "{RUN_MIN} TTFT outcomes and more came without one TPOT: if answers are not streamed, their TTFT is the \
                 time of the whole answer; measure the first token, and say streaming true or false in each sample"
            ),
            Suspicion::GaugesZero => write!(
                out,
                "KV use, running, waiting and tokens in flight were 0 in the latest {RUN_MIN} samples and more, although \
                 requests overlapped: the gauges seem to be absent, and load cannot be learnt without them"
            ),
            Suspicion::KvZero => write!(
                out,
                "kv_cache_percentage was 0 in the latest {RUN_MIN} samples and more, although requests were running: \
                 the gauge seems to be absent"
            ),
            Suspicion::Clock => write!(
                out,
                "most of the latest {RECENT} sent times are ahead of or far behind the time of receipt, or an outcome \
                 is older than its dispatch: check the sender's clock and time zone"
            ),
        }
    }
}

/// Everything suspected now.
pub(super) fn suspicions(watches: &[[Watch; 2]; 3], senders: &Senders) -> Vec<Suspicion> {
    let mut found = Vec::new();
    for (role, both) in Role::ALL.into_iter().zip(watches) {
        for (target, watch) in Target::ALL.into_iter().zip(both) {
            found.extend(watch.too_fast.majority().then_some(Suspicion::LooksLikeSeconds { role, target }));
            found.extend(watch.high.majority().then_some(Suspicion::Factor { role, target, factor: 1e3 }));
            found.extend((watch.low.majority() && !watch.too_fast.majority()).then_some(Suspicion::Factor {
                role,
                target,
                factor: 1e-3,
            }));
        }
    }
    let per_chunk = watches.iter().flatten().any(|watch| watch.per_chunk.majority());
    found.extend(per_chunk.then_some(Suspicion::TpotPerChunk));
    found.extend((senders.ttft_without_tpot >= RUN_MIN).then_some(Suspicion::NeverTpot));
    found.extend(senders.idle.is_some_and(|run| run.is_impossible()).then_some(Suspicion::GaugesZero));
    found.extend((senders.running_without_kv >= RUN_MIN).then_some(Suspicion::KvZero));
    found.extend(senders.clock.majority().then_some(Suspicion::Clock));
    found
}
