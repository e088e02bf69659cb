//! From values as given to parameters that can be used: every value is checked, and every error is reported at once.

use std::path::PathBuf;
use std::time::Duration;

use super::calibration::{self, CALIBRATED};
use super::raw::{Given, Raw, Source};
use super::table::{Kind, SETTINGS, Setting};
use crate::http::HttpParams;
use crate::model::{Monotone, Prior};
use crate::service::{DEFAULT_PRIOR_NAME, FollowParams, LogLimits, ServiceParams, ServiceRole, WriteParams};
use crate::telemetry::LogFormat;
use crate::training::{FitJob, LearnerParams};
use crate::types::{Ask, Quantile};

/// The whole configuration of `serve`.
#[derive(Clone, Debug)]
pub struct Config {
    /// Addresses to listen on.
    pub listen: Vec<String>,
    /// The service.
    pub service: ServiceParams,
    /// The HTTP edge.
    pub http: HttpParams,
    /// Threads that answer calls.
    pub threads: usize,
    /// Log filter.
    pub log_level: String,
    /// Log format.
    pub log_format: LogFormat,
    /// Things worth saying that are no errors.
    pub warnings: Vec<String>,
    /// Every setting with its value and source, in the order of the table.
    pub effective: Vec<Effective>,
}

/// One line of `config --print`.
#[derive(Clone, Debug, PartialEq)]
pub struct Effective {
    /// Which.
    pub setting: &'static str,
    /// Its value as text; empty when unset.
    pub value: String,
    /// Where it came from.
    pub source: Source,
}

/// Why a configuration cannot be used: every reason.
#[derive(Debug, thiserror::Error)]
#[error("{}", .0.join("\n"))]
pub struct ConfigErrors(pub Vec<String>);

struct Values {
    raw: Raw,
    effective: Vec<Effective>,
}

impl Values {
    fn items(&self, setting: &Setting) -> (Vec<String>, Source) {
        match self.raw.given.get(setting.key) {
            Some(Given { items, source }) => (items.clone(), source.clone()),
            None if setting.default.is_empty() => (Vec::new(), Source::Default),
            None if setting.kind == Kind::List => {
                (setting.default.split(',').map(str::to_string).collect(), Source::Default)
            }
            None => (vec![setting.default.to_string()], Source::Default),
        }
    }

    /// Checks one setting's value and notes what is in force; returns its items.
    fn check(&mut self, setting: &'static Setting) {
        let (items, source) = self.items(setting);
        let mut value = items.join(",");
        let refuse = |raw: &mut Raw, why: String| {
            raw.errors.push(format!("{source}: {} is {value:?}, {why}", setting.key));
        };
        match setting.kind {
            Kind::Text | Kind::List => {}
            Kind::Choice(words) if words.contains(&value.as_str()) => {}
            Kind::Choice(words) => refuse(&mut self.raw, format!("not one of {}", words.join(", "))),
            Kind::Flag => match value.to_ascii_lowercase().as_str() {
                "true" | "false" => value = value.to_ascii_lowercase(),
                _ => refuse(&mut self.raw, "neither true nor false".to_string()),
            },
            Kind::Integer(min, max) => match value.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => {}
                _ => refuse(&mut self.raw, format!("not a whole number from {min} to {max}")),
            },
            Kind::Number(min, max) => match value.parse::<f64>() {
                Ok(number) if (min..=max).contains(&number) => {}
                _ if value.is_empty() && setting.default.is_empty() => {}
                _ => refuse(&mut self.raw, format!("not a number from {min} to {max}")),
            },
            Kind::Interval(min, max) => match value.parse::<f64>() {
                Ok(number) if (min..=max).contains(&number) => {}
                Ok(number) if number.is_finite() => {
                    let used = number.clamp(min, max);
                    self.raw.warnings.push(format!("{source}: {} is {number}, {used} is used", setting.key));
                    value = used.to_string();
                }
                _ => refuse(&mut self.raw, format!("not a number from {min} to {max}")),
            },
        }
        self.effective.push(Effective { setting: setting.key, value, source });
    }

    fn text(&self, key: &str) -> &str {
        self.effective.iter().find(|effective| effective.setting == key).map_or("", |effective| &effective.value)
    }

    fn optional(&self, key: &str) -> Option<String> {
        Some(self.text(key)).filter(|value| !value.is_empty()).map(str::to_string)
    }

    fn number(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(0.0)
    }

    fn integer(&self, key: &str) -> usize {
        self.text(key).parse().unwrap_or(0)
    }

    /// Puts a calibration's values where nobody gave one. Returns what the prior's constants are then called.
    fn calibrate(&mut self) -> String {
        let Some(asked) = self.optional("calibration") else {
            let given = self.optional("prefill_tokens_per_s").is_some();
            return if given { "the operator's calibration" } else { DEFAULT_PRIOR_NAME }.to_string();
        };
        let row = match calibration::find(&asked) {
            Ok(row) => row,
            Err(errors) => {
                let source = self.source("calibration");
                self.raw.errors.extend(errors.into_iter().map(|error| format!("{source}: {error}")));
                return DEFAULT_PRIOR_NAME.to_string();
            }
        };
        let mut overridden = false;
        for (key, constant) in CALIBRATED.into_iter().zip(row.constants) {
            if self.raw.given.contains_key(key) {
                overridden = true;
            } else if let Some(effective) = self.effective.iter_mut().find(|effective| effective.setting == key) {
                effective.value = constant.value.to_string();
                effective.source = Source::Calibration { name: row.name.clone(), estimated: constant.estimated };
            }
        }
        format!("calibration {}{}", row.name, if overridden { " with values of the operator's" } else { "" })
    }

    fn source(&self, key: &str) -> String {
        let of = self.effective.iter().find(|effective| effective.setting == key);
        of.map_or(String::new(), |effective| effective.source.to_string())
    }

    fn seconds(&self, key: &str) -> Duration {
        Duration::from_secs_f64(self.number(key).max(0.0))
    }
}

/// Checks everything.
///
/// # Errors
/// All that is wrong, names and values alike.
pub fn check(raw: Raw, home: &HomeDirs) -> Result<Config, ConfigErrors> {
    let mut values = Values { raw, effective: Vec::new() };
    SETTINGS.iter().for_each(|setting| values.check(setting));
    let role = match values.text("role") {
        "train" => ServiceRole::Train,
        "predict" => ServiceRole::Predict,
        _ => ServiceRole::All,
    };
    let trainer_url = values.optional("trainer_url");
    if role == ServiceRole::Predict && trainer_url.is_none() {
        values
            .raw
            .errors
            .push("role is predict and trainer_url is unset: say which trainer to follow, http://host:port".into());
    }
    if role != ServiceRole::Predict && trainer_url.is_some() {
        values
            .raw
            .warnings
            .push(format!("trainer_url has no effect in role {}: only role predict follows a trainer", role.name()));
    }
    let listen: Vec<String> =
        values.text("listen").split(',').filter(|item| !item.is_empty()).map(str::to_string).collect();
    if listen.is_empty() {
        values.raw.errors.push("listen is empty: give at least one address:port".to_string());
    }
    for address in &listen {
        let port =
            address.rsplit_once(':').and_then(|(host, port)| (!host.is_empty()).then(|| port.parse::<u16>().ok())?);
        if port.is_none() {
            values.raw.errors.push(format!("listen {address:?} is not address:port, for example 0.0.0.0:8000"));
        }
    }
    let seed_snapshot = values.optional("seed_snapshot").map(PathBuf::from);
    if role == ServiceRole::Predict && seed_snapshot.is_some() {
        let why = "seed_snapshot has no effect in role predict: seed the trainer that it follows";
        values.raw.warnings.push(why.to_string());
    }
    let prior_name = values.calibrate();
    if !values.raw.errors.is_empty() {
        return Err(ConfigErrors(values.raw.errors));
    }
    let quantile = Quantile::try_new(values.number("quantile")).unwrap_or(Quantile::P90);
    let ask = if values.text("objective") == "mean" { Ask::Mean } else { Ask::Quantile(quantile) };
    let default_prior = Prior::default();
    let prior = Prior {
        // A calibration always says how fast prefill is.
        calibrated: values.optional("prefill_tokens_per_s").is_some(),
        prefill_tokens_per_s: values
            .optional("prefill_tokens_per_s")
            .and_then(|value| value.parse().ok())
            .unwrap_or(default_prior.prefill_tokens_per_s),
        attention_ms_per_mtoken2: values.number("attention_ms_per_mtoken2"),
        ttft_floor_ms: values.number("ttft_floor_ms"),
        decode_step_ms: values.number("decode_step_ms"),
    };
    let service = ServiceParams {
        role,
        learner: LearnerParams {
            samples_max: values.integer("samples_max"),
            fit_every_samples_max: values.integer("fit_every_samples_max") as u64,
            fit_every_ms: (values.number("fit_every_s") * 1e3) as i64,
            fit_min_samples: values.integer("fit_min_samples") as u64,
            prior,
            monotone: if values.text("monotone") == "strict" { Monotone::Strict } else { Monotone::Tendency },
        },
        queue_samples_max: values.integer("queue_samples_max"),
        state_dir: home.state_dir(values.text("state_dir"), role, &listen),
        write: WriteParams {
            flush_interval: Duration::from_secs_f64(values.number("flush_interval_ms") / 1e3),
            log: LogLimits {
                bytes_max: (values.integer("log_mib") as u64) << 20,
                age_max: Duration::from_secs_f64(values.number("log_age_days") * 86_400.0),
            },
            snapshots_kept: values.integer("snapshots_kept"),
        },
        follow: trainer_url.map(|trainer_url| FollowParams {
            trainer_url,
            retry_max: values.seconds("sync_interval_s"),
            stale_after: values.seconds("stale_after_s"),
        }),
        prior_name,
        seed_snapshot,
        run_fit: FitJob::run,
    };
    let http = HttpParams {
        ask,
        quantile,
        answer_prior: values.text("answer_prior") == "true",
        body_bytes_max: values.integer("body_mib") << 20,
        calls_max: values.integer("calls_max"),
        call_timeout: values.seconds("call_timeout_s"),
        idle_timeout: values.seconds("idle_timeout_s"),
        connections_max: values.integer("connections_max"),
        drain_timeout: values.seconds("drain_s"),
        admin_token: values.optional("admin_token"),
        ingest_token: values.optional("ingest_token"),
        sync_interval_s: values.number("sync_interval_s"),
    };
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let threads = match values.integer("threads") {
        0 => cores.min(4),
        threads => threads,
    };
    let log_format = if values.text("log_format") == "json" { LogFormat::Json } else { LogFormat::Text };
    Ok(Config {
        listen,
        service,
        http,
        threads,
        log_level: values.text("log_level").to_string(),
        log_format,
        warnings: values.raw.warnings,
        effective: values.effective,
    })
}

/// Directories of the user, as the environment says.
#[derive(Clone, Debug, Default)]
pub struct HomeDirs {
    /// `XDG_STATE_HOME`.
    pub xdg_state_home: Option<PathBuf>,
    /// `HOME`.
    pub home: Option<PathBuf>,
}

impl HomeDirs {
    /// Reads the environment.
    pub fn from_env() -> Self {
        let path = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        HomeDirs { xdg_state_home: path("XDG_STATE_HOME"), home: path("HOME") }
    }

    fn state_dir(&self, value: &str, role: ServiceRole, listen: &[String]) -> Option<PathBuf> {
        let own = match (&self.xdg_state_home, &self.home) {
            (Some(state), _) => state.join("foretoken"),
            (None, Some(home)) => home.join(".local/state/foretoken"),
            (None, None) => PathBuf::from("foretoken-state"),
        };
        match value {
            "none" | "" => None,
            // Followers on the trainer's machine must not ask for its directory, nor for each other's.
            "auto" if role == ServiceRole::Predict => {
                let port = listen.first().and_then(|address| address.rsplit_once(':')).map_or("0", |(_, port)| port);
                Some(own.join(format!("predict-{port}")))
            }
            "auto" => Some(own),
            path => Some(PathBuf::from(path)),
        }
    }
}
