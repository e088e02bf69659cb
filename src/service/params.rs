//! What a service is started with, and the checks on it.

use std::path::PathBuf;
use std::time::Duration;

use super::ServiceRole;
use super::client::{Client, ClientError};
use crate::training::{FitJob, FitResult, LearnerParams};

/// What the constants of `Prior::default()` are called.
pub const DEFAULT_PRIOR_NAME: &str = "shipped default constants";

/// Parameters of [`super::Service::start`]. Raw: start checks them, see [`ParamError`].
#[derive(Clone, Debug)]
pub struct ServiceParams {
    /// What this process does.
    pub role: ServiceRole,
    /// The learner; a follower only uses its prior, until the first snapshot comes.
    pub learner: LearnerParams,
    /// Samples that may wait for the trainer; beyond it they are dropped and counted. At least 1.
    pub queue_samples_max: usize,
    /// Where state is kept, made if it is absent; `None` keeps it in memory only.
    pub state_dir: Option<PathBuf>,
    /// How it is written there.
    pub write: WriteParams,
    /// Whom to follow: needed in the predict role, not used in the others.
    pub follow: Option<FollowParams>,
    /// What the prior's constants are called in what is said of them, such as `calibration NAME`.
    pub prior_name: String,
    /// Snapshot to start from while the state directory holds none. Not used in the predict role.
    pub seed_snapshot: Option<PathBuf>,
    /// How a fit is run: [`FitJob::run`], unless a test wants one that panics.
    pub run_fit: fn(FitJob) -> FitResult,
}

impl Default for ServiceParams {
    /// Learns and predicts, in memory only.
    fn default() -> Self {
        ServiceParams {
            role: ServiceRole::All,
            learner: LearnerParams::default(),
            queue_samples_max: 65_536,
            state_dir: None,
            write: WriteParams::default(),
            follow: None,
            prior_name: DEFAULT_PRIOR_NAME.to_string(),
            seed_snapshot: None,
            run_fit: FitJob::run,
        }
    }
}

/// How often and how much is written to the state directory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct WriteParams {
    /// Longest time an accepted sample is written but not flushed to the disk. At least 1 ms.
    pub flush_interval: Duration,
    /// Bounds of the sample log.
    pub log: LogLimits,
    /// Generations kept as snapshots. At least 1.
    pub snapshots_kept: usize,
}

impl Default for WriteParams {
    fn default() -> Self {
        WriteParams { flush_interval: Duration::from_secs(1), log: LogLimits::default(), snapshots_kept: 5 }
    }
}

/// Bounds of the sample log; the oldest samples leave when one is exceeded.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LogLimits {
    /// Bytes of all segments together. At least [`LogLimits::BYTES_MIN`].
    pub bytes_max: u64,
    /// Age of a sample, kept to about a seventh of it. At least 1 s.
    pub age_max: Duration,
}

impl LogLimits {
    /// Least size of a sample log, bytes.
    pub const BYTES_MIN: u64 = 64 << 10;
}

impl Default for LogLimits {
    fn default() -> Self {
        LogLimits { bytes_max: 16 << 20, age_max: Duration::from_secs(7 * 86_400) }
    }
}

/// The link to a trainer.
#[derive(Clone, Debug, PartialEq)]
pub struct FollowParams {
    /// Base URL of the trainer, `http://host:port`, with a path if a proxy adds one.
    pub trainer_url: String,
    /// Longest pause between attempts while the trainer is out of reach. At least 1 ms.
    pub retry_max: Duration,
    /// Time out of step with the trainer after which answers are called stale.
    pub stale_after: Duration,
}

impl FollowParams {
    /// The defaults for a trainer.
    pub fn new(trainer_url: &str) -> Self {
        FollowParams {
            trainer_url: trainer_url.to_string(),
            retry_max: Duration::from_secs(10),
            stale_after: Duration::from_secs(5),
        }
    }
}

/// A parameter that does not work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// A trainer URL that cannot be called.
    #[error("trainer_url: {0}")]
    TrainerUrl(#[from] ClientError),
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
        at_least("flush_interval_ms", self.write.flush_interval.as_millis() as u64, 1)?;
        at_least("snapshots_kept", self.write.snapshots_kept as u64, 1)?;
        at_least("log_bytes_max", self.write.log.bytes_max, LogLimits::BYTES_MIN)?;
        at_least("log_age_max_s", self.write.log.age_max.as_secs(), 1)?;
        match (self.role, &self.follow) {
            (ServiceRole::Predict, None) => Err(ParamError::TrainerMissing),
            (ServiceRole::Predict, Some(follow)) => {
                at_least("retry_max_ms", follow.retry_max.as_millis() as u64, 1)?;
                Client::try_new(&follow.trainer_url, 0)?;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}

fn at_least(name: &'static str, value: u64, min: u64) -> Result<(), ParamError> {
    if value >= min { Ok(()) } else { Err(ParamError::TooSmall { name, value, min }) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_parameter_out_of_range_is_named() {
        ServiceParams::default().check().unwrap();
        let broken = |change: fn(&mut ServiceParams)| {
            let mut params = ServiceParams::default();
            change(&mut params);
            params.check().unwrap_err().to_string()
        };
        for (message, text) in [
            (broken(|params| params.queue_samples_max = 0), "queue_samples_max is 0, but must be at least 1"),
            (broken(|params| params.learner.samples_max = 0), "samples_max is 0"),
            (broken(|params| params.learner.fit_min_samples = 0), "fit_min_samples is 0"),
            (broken(|params| params.write.log.bytes_max = 100), "log_bytes_max is 100, but must be at least 65536"),
            (broken(|params| params.write.log.age_max = Duration::ZERO), "log_age_max_s is 0"),
            (broken(|params| params.write.flush_interval = Duration::ZERO), "flush_interval_ms is 0"),
            (broken(|params| params.write.snapshots_kept = 0), "snapshots_kept is 0"),
            (broken(|params| params.role = ServiceRole::Predict), "no trainer URL is given"),
            (
                broken(|params| {
                    params.role = ServiceRole::Predict;
                    params.follow = Some(FollowParams::new("https://trainer:8000"));
                }),
                "trainer_url: https://trainer:8000 is not a URL of the form http://host:port",
            ),
        ] {
            assert!(message.contains(text), "{message}");
        }
    }
}
