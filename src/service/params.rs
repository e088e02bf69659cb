//! What a service is started with, and the checks on it.

use std::path::PathBuf;
use std::time::Duration;

use hyper::Uri;

use super::ServiceRole;
use crate::training::LearnerParams;

/// Parameters of [`super::Service::start`]. Raw: start checks them, see [`ParamError`].
#[derive(Clone, Debug, PartialEq)]
pub struct ServiceParams {
    /// What this process does.
    pub role: ServiceRole,
    /// The learner; on a follower only its prior is used, until the first snapshot comes.
    pub learner: LearnerParams,
    /// Samples that may wait for the trainer; beyond it they are dropped and counted. At least 1.
    pub queue_samples_max: usize,
    /// Where state is kept; `None` keeps it in memory only.
    pub state: Option<StateParams>,
    /// Whom to follow: given in the predict role and in no other.
    pub follow: Option<FollowParams>,
}

impl Default for ServiceParams {
    fn default() -> Self {
        ServiceParams {
            role: ServiceRole::All,
            learner: LearnerParams::default(),
            queue_samples_max: 65_536,
            state: None,
            follow: None,
        }
    }
}

/// The state directory and its bounds.
#[derive(Clone, Debug, PartialEq)]
pub struct StateParams {
    /// The directory; made if it is absent.
    pub dir: PathBuf,
    /// Longest time an accepted sample is written but not flushed to the disk. At least 1 ms.
    pub flush_interval: Duration,
    /// How often the newest corrections are written; a new generation is written at once. At least 1 ms.
    pub snapshot_interval: Duration,
    /// Generations kept on disk. At least 1.
    pub snapshots_max: usize,
    /// Bytes of the sample log; beyond it the oldest samples leave. At least [`LOG_BYTES_MIN`].
    pub log_bytes_max: u64,
    /// Age from which samples leave the log, to about a seventh of it. At least 1 s.
    pub log_age_max: Duration,
}

/// Least size of a sample log, bytes.
pub const LOG_BYTES_MIN: u64 = 64 << 10;

impl StateParams {
    /// The defaults for a directory.
    pub fn new(dir: PathBuf) -> Self {
        StateParams {
            dir,
            flush_interval: Duration::from_secs(1),
            snapshot_interval: Duration::from_secs(10),
            snapshots_max: 5,
            log_bytes_max: 16 << 20,
            log_age_max: Duration::from_secs(7 * 86_400),
        }
    }
}

/// The link to a trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowParams {
    /// Base URL of the trainer, `http://host:port`, with a path if a proxy adds one.
    pub trainer_url: String,
    /// Longest pause between attempts while the trainer is out of reach. At least 1 ms.
    pub retry_interval_max: Duration,
    /// Time out of step with the trainer after which answers are called stale.
    pub stale_after: Duration,
}

impl FollowParams {
    /// The defaults for a trainer.
    pub fn new(trainer_url: &str) -> Self {
        FollowParams {
            trainer_url: trainer_url.to_string(),
            retry_interval_max: Duration::from_secs(10),
            stale_after: Duration::from_secs(5),
        }
    }
}

/// A parameter that does not work.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ParamError {
    /// A number below its range.
    #[error("{name} is {value}, but must be at least {min}")]
    TooSmall {
        /// Which, with its unit.
        name: &'static str,
        /// What it was.
        value: u64,
        /// The least that works.
        min: u64,
    },
    /// A follower without a trainer.
    #[error("role predict follows a trainer, but no trainer URL is given; set TRAINING_SERVER_URL or use role all")]
    TrainerMissing,
    /// A trainer URL outside the predict role.
    #[error(
        "role {role} learns by itself, but a trainer to follow is given ({trainer_url}); use role predict or leave it out"
    )]
    TrainerUnwanted {
        /// The role.
        role: &'static str,
        /// The URL.
        trainer_url: String,
    },
    /// A trainer URL that cannot be used.
    #[error("trainer URL {trainer_url:?} {problem}; expected http://host:port")]
    TrainerUrl {
        /// The URL.
        trainer_url: String,
        /// What is wrong with it.
        problem: &'static str,
    },
}

impl ServiceParams {
    /// Checks every parameter.
    ///
    /// # Errors
    /// The first that does not work.
    pub fn check(&self) -> Result<(), ParamError> {
        at_least("queue_samples_max", self.queue_samples_max as u64, 1)?;
        at_least("samples_max", self.learner.samples_max as u64, 1)?;
        at_least("fit_min_samples", self.learner.fit_min_samples, 1)?;
        if let Some(state) = &self.state {
            at_least("flush_interval_ms", state.flush_interval.as_millis() as u64, 1)?;
            at_least("snapshot_interval_ms", state.snapshot_interval.as_millis() as u64, 1)?;
            at_least("snapshots_max", state.snapshots_max as u64, 1)?;
            at_least("log_bytes_max", state.log_bytes_max, LOG_BYTES_MIN)?;
            at_least("log_age_max_s", state.log_age_max.as_secs(), 1)?;
        }
        match (self.role, &self.follow) {
            (ServiceRole::Predict, None) => Err(ParamError::TrainerMissing),
            (ServiceRole::Predict, Some(follow)) => {
                at_least("retry_interval_max_ms", follow.retry_interval_max.as_millis() as u64, 1)?;
                snapshot_uri(&follow.trainer_url).map(|_| ())
            }
            (role, Some(follow)) => {
                Err(ParamError::TrainerUnwanted { role: role.name(), trainer_url: follow.trainer_url.clone() })
            }
            (_, None) => Ok(()),
        }
    }
}

/// Where a trainer hands out its snapshot.
pub(super) fn snapshot_uri(trainer_url: &str) -> Result<Uri, ParamError> {
    let wrong = |problem| ParamError::TrainerUrl { trainer_url: trainer_url.to_string(), problem };
    let base: Uri = trainer_url.trim().parse().map_err(|_| wrong("is not a URL"))?;
    match base.scheme_str() {
        Some("http") => {}
        Some("https") => {
            return Err(wrong("asks for TLS, which this link does not speak; put a mesh or a tunnel in between"));
        }
        Some(_) => return Err(wrong("has a scheme other than http")),
        None => return Err(wrong("has no scheme")),
    }
    if base.host().is_none_or(str::is_empty) {
        return Err(wrong("has no host"));
    }
    if base.query().is_some() {
        return Err(wrong("has a query"));
    }
    format!("{}/model/snapshot", trainer_url.trim().trim_end_matches('/')).parse().map_err(|_| wrong("is not a URL"))
}

fn at_least(name: &'static str, value: u64, min: u64) -> Result<(), ParamError> {
    if value >= min { Ok(()) } else { Err(ParamError::TooSmall { name, value, min }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_trainer_url_is_joined_with_the_route() {
        for (base, uri) in [
            ("http://trainer:8000", "http://trainer:8000/model/snapshot"),
            ("http://trainer:8000/", "http://trainer:8000/model/snapshot"),
            (" http://10.0.0.1/a/b/ ", "http://10.0.0.1/a/b/model/snapshot"),
            ("http://[::1]:8000", "http://[::1]:8000/model/snapshot"),
        ] {
            assert_eq!(snapshot_uri(base).unwrap().to_string(), uri);
        }
    }

    #[test]
    fn a_trainer_url_that_cannot_work_is_refused_with_its_reason() {
        for (url, problem) in [
            ("https://trainer", "asks for TLS"),
            ("ftp://trainer", "scheme other than http"),
            ("trainer:8000", "has no scheme"),
            ("/trainer", "has no scheme"),
            ("http://trainer?x=1", "has a query"),
            ("", "is not a URL"),
            ("http://tr ainer", "is not a URL"),
        ] {
            let refused = snapshot_uri(url).unwrap_err().to_string();
            assert!(refused.contains(problem), "{url}: {refused}");
        }
    }

    #[test]
    fn each_parameter_out_of_range_is_named() {
        let base = ServiceParams { state: Some(StateParams::new("x".into())), ..ServiceParams::default() };
        base.check().unwrap();
        let broken = |change: fn(&mut ServiceParams)| {
            let mut params = base.clone();
            change(&mut params);
            params.check().unwrap_err().to_string()
        };
        for (message, text) in [
            (broken(|params| params.queue_samples_max = 0), "queue_samples_max is 0"),
            (broken(|params| params.learner.samples_max = 0), "samples_max is 0"),
            (broken(|params| params.learner.fit_min_samples = 0), "fit_min_samples is 0"),
            (broken(|params| params.role = ServiceRole::Predict), "no trainer URL is given"),
            (broken(|params| params.follow = Some(FollowParams::new("http://t"))), "role all learns by itself"),
            (
                broken(|params| params.state.iter_mut().for_each(|state| state.log_bytes_max = 100)),
                "log_bytes_max is 100, but must be at least 65536",
            ),
            (
                broken(|params| params.state.iter_mut().for_each(|state| state.flush_interval = Duration::ZERO)),
                "flush_interval_ms is 0",
            ),
            (broken(|params| params.state.iter_mut().for_each(|state| state.snapshots_max = 0)), "snapshots_max is 0"),
        ] {
            assert!(message.contains(text), "{message}");
        }
    }
}
