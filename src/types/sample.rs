//! A finished request: what was known at dispatch and what came of it.

use super::{EndpointName, FeatureError, Features, Fingerprint, LIMITS, UnixMs};

/// Longest latency that is taken as real, ms: a day. Beyond it a unit mistake is likelier than a request.
pub const LATENCY_MS_MAX: f64 = 86_400_000.0;

/// Shortest latency that is taken as real, ms: a microsecond. Below it a unit mistake is likelier than a token.
pub const LATENCY_MS_MIN: f64 = 0.001;

/// What was observed. At least one outcome is present unless the request failed or was aborted, each within [`LATENCY_MS_MIN`]..=[`LATENCY_MS_MAX`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Observation {
    /// Dispatch to first token, ms.
    pub ttft_ms: Option<f64>,
    /// (end - first token) / (output tokens - 1), ms per token.
    pub tpot_ms: Option<f64>,
    /// Output tokens when the sample was taken; 0 when unknown. Never an input of a prediction: unknown at dispatch.
    pub output_tokens: u32,
}

/// What the router had been told and acted on, when it sends that back.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Promised {
    /// TTFT promised, ms.
    pub ttft_ms: Option<f64>,
    /// TPOT promised, ms.
    pub tpot_ms: Option<f64>,
}

/// How a request ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Ending {
    /// It was answered in full.
    #[default]
    Completed,
    /// It was answered with an error: its latencies say nothing of the engine's speed.
    Failed,
    /// Whoever waited gave up after the stated latency: the real one is at least that long.
    TimedOut,
    /// The client went away in between: what was seen until then is real.
    Aborted,
}

impl Ending {
    /// Reads the wire's `outcome`; `None` for a word that is none of its own. Empty means that nothing was said.
    pub fn from_wire(word: &str) -> Option<Self> {
        match word {
            "" | "completed" => Some(Ending::Completed),
            "failed" => Some(Ending::Failed),
            "timeout" => Some(Ending::TimedOut),
            "aborted" => Some(Ending::Aborted),
            _ => None,
        }
    }
}

/// How a request went, as far as the sender says.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Manner {
    /// How it ended.
    pub ending: Ending,
    /// Whether the answer was streamed. Without streaming the first token is seen with the last, so a TTFT is the
    /// time of the whole answer. `None`: unknown, taken as streamed.
    pub streamed: Option<bool>,
    /// Parts the answer arrived in. Fewer than output tokens: an engine that sends several tokens at once.
    pub chunks: Option<u32>,
    /// Whether the sender said when the outcome was seen; otherwise `observed_at` is the time of receipt.
    pub timed: bool,
}

impl Manner {
    /// Whether a sample without any outcome says nothing: that a request failed or was aborted is something to count.
    pub fn needs_outcome(&self) -> bool {
        matches!(self.ending, Ending::Completed | Ending::TimedOut)
    }
}

/// One training example, checked by [`Sample::try_new`].
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// Known at dispatch.
    pub features: Features,
    /// Known afterwards.
    pub observation: Observation,
    /// Which endpoint served it, when the sender says so.
    pub endpoint: Option<EndpointName>,
    /// When the outcome was seen.
    pub observed_at: UnixMs,
    /// When the request was dispatched, when the sender says so.
    pub dispatched_at: Option<UnixMs>,
    /// What had been promised, when the sender says so.
    pub promised: Promised,
    /// How the request went, as far as the sender says.
    pub manner: Manner,
    /// What the endpoint ran, when the sender says so.
    pub fingerprint: Option<Fingerprint>,
}

/// Why a sample was refused.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum SampleError {
    /// An input outside its range.
    #[error(transparent)]
    Feature(#[from] FeatureError),
    /// An outcome that is not a latency.
    #[error("{field} is {value}, neither 0 (not observed) nor within {LATENCY_MS_MIN}..={LATENCY_MS_MAX} ms")]
    Outcome {
        /// Which outcome.
        field: &'static str,
        /// What it was; may be non-finite.
        value: f64,
    },
    /// More output tokens than the limit.
    #[error("output_tokens is {0}, above the limit")]
    OutputTokens(u32),
    /// More chunks than the limit.
    #[error("num_chunks is {0}, above the limit")]
    Chunks(u32),
    /// Neither outcome present: there is nothing to learn.
    #[error("both outcomes are absent or 0, so there is nothing to learn from this row")]
    NoOutcome,
}

impl SampleError {
    /// Stable word for metrics and `/status`.
    pub fn reason(&self) -> &'static str {
        match self {
            SampleError::Feature(_) => "feature_out_of_range",
            SampleError::Outcome { .. } => "outcome_out_of_range",
            SampleError::OutputTokens(_) => "output_tokens_out_of_range",
            SampleError::Chunks(_) => "chunks_out_of_range",
            SampleError::NoOutcome => "no_outcome",
        }
    }
}

impl Sample {
    /// Checks features, outcomes and counts. An outcome of 0 means "not observed" (the wire's convention) and becomes `None`.
    ///
    /// # Errors
    /// The first thing wrong, see [`SampleError`].
    pub fn try_new(mut raw: Sample) -> Result<Self, SampleError> {
        raw.features = Features::try_new(raw.features)?;
        raw.observation.ttft_ms = outcome("ttft_ms", raw.observation.ttft_ms)?;
        raw.observation.tpot_ms = outcome("tpot_ms", raw.observation.tpot_ms)?;
        if raw.observation.output_tokens > LIMITS.output_tokens_max {
            return Err(SampleError::OutputTokens(raw.observation.output_tokens));
        }
        raw.promised.ttft_ms = outcome("promised ttft_ms", raw.promised.ttft_ms)?;
        raw.promised.tpot_ms = outcome("promised tpot_ms", raw.promised.tpot_ms)?;
        if let Some(chunks) = raw.manner.chunks.filter(|chunks| *chunks > LIMITS.output_tokens_max) {
            return Err(SampleError::Chunks(chunks));
        }
        if raw.observation.ttft_ms.is_none() && raw.observation.tpot_ms.is_none() && raw.manner.needs_outcome() {
            return Err(SampleError::NoOutcome);
        }
        Ok(raw)
    }
}

fn outcome(field: &'static str, value: Option<f64>) -> Result<Option<f64>, SampleError> {
    match value {
        None => Ok(None),
        Some(0.0) => Ok(None),
        Some(v) if (LATENCY_MS_MIN..=LATENCY_MS_MAX).contains(&v) => Ok(Some(v)),
        Some(value) => Err(SampleError::Outcome { field, value }),
    }
}
