//! The one table of settings: flags, variables, file keys, `config --print` and the reference page all come from it.

/// What values a setting takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// Any text.
    Text,
    /// One of the words.
    Choice(&'static [&'static str]),
    /// `true` or `false`.
    Flag,
    /// A whole number within a range.
    Integer(u64, u64),
    /// A number within a range.
    Number(f64, f64),
    /// A number within a range; a value outside is moved to the nearer end, with a warning.
    Interval(f64, f64),
    /// Comma-separated in variables and flags (a flag may be repeated), an array in a file.
    List,
}

/// One setting.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Key in the file; the flag is the same with dashes, the variable `FORETOKEN_` and the key in capitals.
    pub key: &'static str,
    /// Values it takes.
    pub kind: Kind,
    /// Unit of the value, empty where there is none.
    pub unit: &'static str,
    /// Default as text; empty means unset.
    pub default: &'static str,
    /// The incumbent's variables that mean the same.
    pub also: &'static [&'static str],
    /// What it does.
    pub help: &'static str,
}

const fn setting(
    key: &'static str,
    kind: Kind,
    unit: &'static str,
    default: &'static str,
    also: &'static [&'static str],
    help: &'static str,
) -> Setting {
    Setting { key, kind, unit, default, also, help }
}

use Kind::{Choice, Flag, Integer, Interval, List, Number, Text};

/// Every setting of `serve`.
pub const SETTINGS: &[Setting] = &[
    setting(
        "role",
        Choice(&["all", "train", "predict"]),
        "",
        "all",
        &[],
        "all: learn and predict in one process; train: the same, for followers; predict: follow a trainer",
    ),
    setting(
        "listen",
        List,
        "address:port",
        "0.0.0.0:8000,0.0.0.0:8001",
        &[],
        "Addresses to listen on, every route on each; port 0 lets the system choose",
    ),
    setting(
        "state_dir",
        Text,
        "path",
        "auto",
        &[],
        "Where samples and snapshots are kept; auto: $XDG_STATE_HOME/foretoken, or ~/.local/state/foretoken, or ./foretoken-state (role predict: predict-PORT in there); none: memory only",
    ),
    setting(
        "trainer_url",
        Text,
        "URL",
        "",
        &["TRAINING_SERVER_URL"],
        "Trainer to follow, http://host:port; needed for role predict",
    ),
    setting(
        "sync_interval_s",
        Interval(0.1, 3600.0),
        "s",
        "10",
        &["MODEL_SYNC_INTERVAL_SEC"],
        "Longest pause between tries while the trainer is away; a new model is pushed at once",
    ),
    setting(
        "stale_after_s",
        Number(0.0, 86400.0),
        "s",
        "5",
        &[],
        "How long the trainer may be out of reach before answers are marked stale",
    ),
    setting("quantile", Number(0.01, 0.99), "", "0.9", &["LATENCY_QUANTILE_ALPHA"], "The quantile that answers carry"),
    setting(
        "objective",
        Choice(&["quantile", "mean"]),
        "",
        "quantile",
        &["LATENCY_OBJECTIVE_TYPE"],
        "Whether answers carry that quantile or the mean",
    ),
    setting(
        "answer_prior",
        Flag,
        "",
        "false",
        &[],
        "Answer from shipped default constants before anything was learnt (marked prior), instead of 503; not needed with a calibration or a seed",
    ),
    setting(
        "seed_snapshot",
        Text,
        "path",
        "",
        &[],
        "Snapshot of another sidecar (GET /model/export) to start from while the state directory holds none; answers say warming until own samples replaced it",
    ),
    setting(
        "calibration",
        Text,
        "name or path",
        "",
        &[],
        "Measured row to start from: a name of foretoken config --list-calibrations, FILE.toml, or FILE.toml#NAME; it counts as ready; the four settings below override its values",
    ),
    setting(
        "prefill_tokens_per_s",
        Number(1.0, 1e9),
        "tokens/s",
        "",
        &[],
        "Measured peak prefill throughput at small prompts; setting it makes the prior a calibration that counts as ready",
    ),
    setting(
        "attention_ms_per_mtoken2",
        Number(0.0, 1e6),
        "ms",
        "0.443",
        &[],
        "Attention work of the prior: ms per million token pairs of the uncached part",
    ),
    setting(
        "ttft_floor_ms",
        Number(0.0, 1e6),
        "ms",
        "22",
        &[],
        "TTFT of an idle endpoint for an empty prompt, for the prior",
    ),
    setting("decode_step_ms", Number(0.0, 1e6), "ms", "16", &[], "Decode step of an idle endpoint, for the prior"),
    setting(
        "samples_max",
        Integer(100, 1_000_000),
        "samples",
        "5000",
        &[],
        "Latest samples kept per target; each fit uses all of them",
    ),
    setting(
        "fit_every_samples_max",
        Integer(10, 1_000_000),
        "samples",
        "250",
        &[],
        "New samples that always start a fit; fewer suffice while little was learnt",
    ),
    setting(
        "fit_every_s",
        Interval(1.0, 86400.0),
        "s",
        "60",
        &["LATENCY_RETRAINING_INTERVAL_SEC"],
        "Time after which a few new samples start a fit",
    ),
    setting(
        "monotone",
        Choice(&["tendency", "strict"]),
        "",
        "tendency",
        &[],
        "strict: p50 and p90 never fall when load rises, exactly, at some cost in accuracy; tendency: exactly in the base only",
    ),
    setting("fit_min_samples", Integer(10, 100_000), "samples", "10", &[], "New samples below which no fit starts"),
    setting(
        "queue_samples_max",
        Integer(100, 10_000_000),
        "samples",
        "65536",
        &[],
        "Samples that may wait for the trainer; beyond it they are dropped and counted",
    ),
    setting("log_mib", Integer(1, 10_240), "MiB", "16", &[], "Size of the sample log"),
    setting("log_age_days", Number(0.01, 365.0), "days", "7", &[], "Age beyond which logged samples are removed"),
    setting(
        "flush_interval_ms",
        Interval(10.0, 60_000.0),
        "ms",
        "1000",
        &[],
        "Longest time between a sample's arrival and its flush to the disk",
    ),
    setting("snapshots_kept", Integer(1, 1000), "", "5", &[], "Snapshots kept in the state directory"),
    setting("body_mib", Integer(1, 1024), "MiB", "32", &[], "Largest request body, before and after decompression"),
    setting(
        "calls_max",
        Integer(1, 1_000_000),
        "calls",
        "1024",
        &[],
        "Calls in progress beyond which new ones get 503 and Retry-After",
    ),
    setting("call_timeout_s", Number(0.1, 3600.0), "s", "30", &[], "Longest a call may take, its body included"),
    setting("idle_timeout_s", Number(1.0, 3600.0), "s", "120", &[], "How long an idle connection is kept"),
    setting(
        "connections_max",
        Integer(1, 1_000_000),
        "",
        "20000",
        &[],
        "Open connections beyond which new ones wait to be accepted",
    ),
    setting("drain_s", Number(0.0, 600.0), "s", "10", &[], "How long calls in progress may take to end at shutdown"),
    setting("admin_token", Text, "", "", &[], "Bearer token that /flush and /reload need, if set"),
    setting("ingest_token", Text, "", "", &[], "Bearer token that /add_training_data_bulk needs, if set"),
    setting("threads", Integer(0, 256), "", "0", &[], "Threads that answer calls; 0: one per core, at most 4"),
    setting("log_level", Text, "", "info", &[], "error, warn, info, debug, trace, or a filter such as foretoken=debug"),
    setting("log_format", Choice(&["text", "json"]), "", "text", &[], "How log lines look"),
];

/// Variables of the incumbent that have no meaning here, and what stands in their place.
pub const RETIRED: &[(&str, &str)] = &[
    ("LATENCY_MODEL_TYPE", "there is one engine; answers say model_type lightgbm so that clients fetch no model"),
    ("LATENCY_ENSEMBLE_MODE", "empty and queued regimes are always fitted apart"),
    ("LATENCY_MIN_SAMPLES_FOR_ENSEMBLE_SPLIT", "a regime has its own fit from 10 samples"),
    ("LATENCY_MIN_SAMPLES_FOR_RETRAIN", "fits start by evidence; see fit_min_samples and fit_every_samples_max"),
    ("LATENCY_MIN_SAMPLES_FOR_RETRAIN_FRESH", "the first fit comes at fit_min_samples"),
    ("LATENCY_MAX_TRAINING_DATA_SIZE_PER_BUCKET", "the latest samples_max samples are kept, without buckets"),
    ("LATENCY_TEST_TRAIN_RATIO", "every sample is scored before it is learnt from; none is set aside"),
    ("LATENCY_MAX_TEST_DATA_SIZE", "every sample is scored before it is learnt from; none is set aside"),
    ("LATENCY_SAMPLE_WEIGHTING_FOR_PREFIX_CACHE", "the loss is relative, so rare prefixes need no weights"),
    ("LATENCY_TPOT_ZERO_TOKEN_COUNT", "generated tokens are unknown at dispatch and never an input"),
    ("LATENCY_ENABLE_TOKEN_IN_FLIGHT_FEATURES", "tokens in flight are always inputs"),
    ("LATENCY_ENABLE_ENCODER_FEATURES", "encoder sizes become an input once they have been seen"),
    ("LATENCY_TTFT_MODEL_PATH", "snapshots live in state_dir"),
    ("LATENCY_TPOT_MODEL_PATH", "snapshots live in state_dir"),
    ("LATENCY_TTFT_SCALER_PATH", "there is no scaler"),
    ("LATENCY_TPOT_SCALER_PATH", "there is no scaler"),
    ("LATENCY_TTFT_GATED_MODEL_PATH", "there is no gated model"),
    ("LATENCY_TPOT_GATED_MODEL_PATH", "there is no gated model"),
    ("LOCAL_TTFT_MODEL_PATH", "snapshots live in state_dir"),
    ("LOCAL_TPOT_MODEL_PATH", "snapshots live in state_dir"),
    ("LOCAL_TTFT_SCALER_PATH", "there is no scaler"),
    ("LOCAL_TPOT_SCALER_PATH", "there is no scaler"),
    ("LOCAL_TTFT_GATED_MODEL_PATH", "there is no gated model"),
    ("LOCAL_TPOT_GATED_MODEL_PATH", "there is no gated model"),
    ("HTTP_TIMEOUT", "questions to the trainer have limits of their own"),
    ("DOWNLOAD_RETRIES", "a follower tries until it is told to stop"),
    ("UVICORN_WORKERS", "one process with threads; see threads"),
];

impl Setting {
    /// Its variable.
    pub fn variable(&self) -> String {
        format!("FORETOKEN_{}", self.key.to_ascii_uppercase())
    }

    /// Its flag, without the leading dashes.
    pub fn flag(&self) -> String {
        self.key.replace('_', "-")
    }

    /// Which values it takes, for people.
    pub fn values(&self) -> String {
        match self.kind {
            Text => "text".to_string(),
            Choice(words) => words.join(", "),
            Flag => "true, false".to_string(),
            Integer(min, max) => format!("{min} to {max}"),
            Number(min, max) => format!("{min} to {max}"),
            Interval(min, max) => format!("{min} to {max}, clamped"),
            List => "a list".to_string(),
        }
    }

    /// The setting with this key.
    pub fn find(key: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.key == key)
    }
}

/// Likeness (Jaro-Winkler) from which a name may have been meant.
const LIKENESS_MIN: f64 = 0.85;

/// Prefixes that many names share: they say nothing of which one was meant.
const PREFIXES: [&str; 3] = ["FORETOKEN_", "LATENCY_", "LOCAL_"];

/// What people look for under another name, and what it is called here.
pub const ELSEWHERE: &[(&str, &str)] = &[
    ("port", "listen, for example 0.0.0.0:8000 (give it again for a second address)"),
    ("host", "listen, for example 127.0.0.1:8000"),
    ("address", "listen, for example 0.0.0.0:8000"),
    ("bind", "listen, for example 0.0.0.0:8000"),
];

/// The known name nearest to `unknown`, if it is near enough to be meant.
pub fn nearest<'a>(unknown: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let own = |name: &str| PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name).to_string();
    let unknown = own(unknown);
    known
        .map(|name| (strsim::jaro_winkler(&unknown, &own(name)), name))
        .filter(|(likeness, _)| *likeness > LIKENESS_MIN)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `LATENCY_BOGUS` was answered with a name that shares nothing with it but the prefix.
    #[test]
    fn a_name_is_suggested_only_when_it_is_near() {
        let known: Vec<&str> = SETTINGS
            .iter()
            .flat_map(|setting| setting.also)
            .chain(RETIRED.iter().map(|(name, _)| name))
            .copied()
            .collect();
        let near = |unknown| nearest(unknown, known.iter().copied());
        for unknown in ["LATENCY_BOGUS", "LATENCY_", "LATENCY_FOO_BAR", "LATENCY_COLOUR"] {
            assert_eq!(near(unknown), None, "{unknown}");
        }
        assert_eq!(near("LATENCY_QUANTIL_ALPHA"), Some("LATENCY_QUANTILE_ALPHA"));
        assert_eq!(near("LATENCY_OBJECTIV_TYPE"), Some("LATENCY_OBJECTIVE_TYPE"));
        let settings = |unknown| nearest(unknown, SETTINGS.iter().map(|setting| setting.key));
        assert_eq!(settings("quantle"), Some("quantile"));
        assert_eq!(settings("sample_max"), Some("samples_max"));
        assert_eq!(settings("statedir"), Some("state_dir"));
        assert_eq!(settings("bogus"), None);
    }
}
