//! `foretoken evaluate`: a fixed snapshot on recordings, by load band.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::files;
use super::output::{self, Format, Table, number};
use crate::recording::Recording;
use crate::snapshot::Snapshot;
use crate::stats::Scores;
use crate::training::{LOAD_BANDS, load_band};
use crate::types::{Ask, Quantile, Target, UnixMs};

/// Arguments.
#[derive(Args)]
pub struct EvaluateArgs {
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,
    /// Recordings (see replay --help for the columns)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Scores of median and p90.
#[derive(Clone, Copy, Default)]
struct Both {
    median: Scores,
    upper: Scores,
}

/// All rows first, then by load band.
type Bands = [Both; 1 + LOAD_BANDS.len()];

pub fn run(args: &EvaluateArgs) -> anyhow::Result<ExitCode> {
    let snapshot = files::snapshot(&args.snapshot)?;
    let mut table =
        Table::new(&["file", "target", "waiting", "rows", "MAPE", "cov p50", "cov p90", "pinball p50", "pinball p90"]);
    let mut documents = Vec::new();
    for path in &args.files {
        let recording = files::recording(path)?;
        let name = files::short_name(path);
        for target in Target::ALL {
            let bands = evaluate(&snapshot, &recording, target);
            for (both, band) in bands.iter().zip(["all"].iter().chain(&LOAD_BANDS)) {
                if both.median.pairs() == 0 {
                    continue;
                }
                table.row(vec![
                    name.clone(),
                    target.name().to_string(),
                    band.to_string(),
                    both.median.pairs().to_string(),
                    number(both.median.mape(), 3),
                    number(both.median.coverage(), 3),
                    number(both.upper.coverage(), 3),
                    number(both.median.pinball(), 2),
                    number(both.upper.pinball(), 2),
                ]);
                documents.push(as_json(&name, target, band, both));
            }
        }
    }
    match args.format {
        Format::Json => {
            output::json(&json!({ "generation": snapshot.version.generation.0, "scores": documents }))?;
        }
        Format::Text => output::line(&table.render())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn evaluate(snapshot: &Snapshot, recording: &Recording, target: Target) -> Bands {
    let mut bands = Bands::default();
    for row in &recording.rows {
        let actual = match target {
            Target::Ttft => row.ttft_ms,
            Target::Tpot => row.tpot_ms,
        };
        let Some(actual) = actual else { continue };
        let endpoint = row.endpoint.as_ref().map(|name| name.as_str());
        // The snapshot's own time: its age is no matter when it is judged on a recording.
        let now = snapshot.online.of(row.features.role, target).tenth_latest_at.unwrap_or(UnixMs(0));
        let estimate = snapshot.predict(&row.features, endpoint, Ask::Quantile(Quantile::P90), now);
        let of = match target {
            Target::Ttft => estimate.ttft,
            Target::Tpot => estimate.tpot,
        };
        for band in [0, 1 + load_band(row.features.requests_waiting)] {
            bands[band].median.add(actual, of.q50_ms, 0.5);
            bands[band].upper.add(actual, of.value_ms, 0.9);
        }
    }
    bands
}

fn as_json(file: &str, target: Target, band: &str, both: &Both) -> Value {
    json!({
        "file": file, "target": target.name(), "waiting": band, "rows": both.median.pairs(),
        "mape": both.median.mape(), "coverage_p50": both.median.coverage(), "coverage_p90": both.upper.coverage(),
        "pinball_p50_ms": both.median.pinball(), "pinball_p90_ms": both.upper.pinball(),
    })
}
