//! `foretoken train`: a snapshot from recordings, with the fit that serves.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, bail};
use clap::Args;

use super::files;
use super::output;
use crate::model::Prior;
use crate::recording::sample_of;
use crate::service::now;
use crate::snapshot::{Snapshot, encode};
use crate::training::{Learner, LearnerParams};
use crate::types::{Lineage, Target, UnixMs};

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "The snapshot is fitted on the latest --samples-max rows of each target, in file order. Start a sidecar from it with
foretoken serve --seed-snapshot, or look at it with inspect, explain and evaluate."
)]
pub struct TrainArgs {
    /// Recordings (see replay --help for the columns)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Where to write the snapshot
    #[arg(long, value_name = "SNAPSHOT")]
    out: PathBuf,
    /// Latest samples used per target
    #[arg(long, default_value_t = 20_000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    samples_max: u32,
}

pub fn run(args: &TrainArgs) -> anyhow::Result<ExitCode> {
    let prior = Prior::default();
    let params = LearnerParams { samples_max: args.samples_max as usize, ..LearnerParams::default() };
    let made_at = now();
    let mut learner = Learner::new(params, Snapshot::prior(&prior, Lineage(rand::random()), made_at));
    for path in &args.files {
        for request in &files::recording(path)?.rows {
            let dispatched = request.dispatched_at.unwrap_or(UnixMs(0));
            for target in Target::ALL {
                if let Some(sample) = sample_of(request, target, dispatched, request.finished_at.unwrap_or(dispatched))
                {
                    learner.restore(&sample);
                }
            }
        }
    }
    let Some(report) = learner.step(made_at) else {
        bail!("too few rows: at least {} outcomes of one target are needed for a fit", params.fit_min_samples);
    };
    let outcome =
        |index: usize| report.of(Target::ALL[index]).next().map_or("too few rows", |part| part.outcome.name());
    if !report.published() {
        bail!("no fit was accepted: ttft {}, tpot {}", outcome(0), outcome(1));
    }
    let bytes = encode(&learner.snapshot(made_at));
    std::fs::write(&args.out, &bytes).with_context(|| format!("cannot write {}", args.out.display()))?;
    output::line(&format!(
        "wrote {} ({} bytes): ttft {} rows ({}), tpot {} rows ({})",
        args.out.display(),
        bytes.len(),
        report.rows()[0],
        outcome(0),
        report.rows()[1],
        outcome(1)
    ))?;
    Ok(ExitCode::SUCCESS)
}
