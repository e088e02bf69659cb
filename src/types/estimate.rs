//! What a prediction answers with.

use super::Generation;

/// How far an answer can be trusted. Ordered: later is worse, and the worst that applies is said.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    /// Learnt from enough samples of its own, recently, inside the trained range.
    Ready,
    /// Inputs beyond the range of the training samples.
    Extrapolating,
    /// The model has not seen new samples for a while, or its trainer is out of reach.
    Stale,
    /// Fitted, but from few samples.
    Warming,
    /// No fit yet: physics with prior constants.
    Prior,
    /// Learning is broken (fits fail, trainer gone); the last good model answers.
    Degraded,
}

impl State {
    /// All states, mildest first.
    pub const ALL: [State; 6] =
        [State::Ready, State::Extrapolating, State::Stale, State::Warming, State::Prior, State::Degraded];

    /// The wire's word.
    pub fn name(self) -> &'static str {
        match self {
            State::Ready => "ready",
            State::Extrapolating => "extrapolating",
            State::Stale => "stale",
            State::Warming => "warming",
            State::Prior => "prior",
            State::Degraded => "degraded",
        }
    }

    /// One sentence for people, without a full stop.
    pub fn reason(self) -> &'static str {
        match self {
            State::Ready => "fitted on recent samples of this deployment",
            State::Extrapolating => "an input lies beyond the range of the training samples",
            State::Stale => "few or no new samples lately, so the spread is widened",
            State::Warming => "fitted on fewer than 100 samples so far",
            State::Prior => "no fit yet: physics with prior constants",
            State::Degraded => "learning is failing; the last good model answers",
        }
    }
}

/// Prediction of one target: a distribution given by its median and log spread, and the number asked for.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct TargetEstimate {
    /// The quantile or mean that was asked for, ms, > 0 and finite (I3).
    pub value_ms: f64,
    /// Median, ms.
    pub q50_ms: f64,
    /// `ln Q90 - ln Q50`, > 0.
    pub spread: f64,
    /// Whether an input lies beyond the trained range.
    pub extrapolating: bool,
    /// How far this target's answer can be trusted.
    pub state: State,
}

/// Prediction for one request at one endpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Estimate {
    /// Time to first token.
    pub ttft: TargetEstimate,
    /// Time per output token.
    pub tpot: TargetEstimate,
    /// The worse of the two targets' states.
    pub state: State,
    /// The fit that answered.
    pub generation: Generation,
}
