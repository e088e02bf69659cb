//! `foretoken evaluate`: a fixed snapshot on recordings, by load band.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::files;
use super::output::{self, Format, Table, number};
use super::trace;
use crate::recording::{Recording, RowPrediction, predict_frozen};
use crate::stats::Scores;
use crate::training::{LOAD_BANDS, load_band};
use crate::types::Target;

/// Arguments.
#[derive(Args)]
pub struct EvaluateArgs {
    /// Snapshot
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,
    /// Recordings (see replay --help for the columns)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Write each prediction as CSV: to this file, or for several recordings to a file each in this directory
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
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
    let traces = args.trace.as_deref().map(|out| trace::plan(out, &args.files)).transpose()?;
    let mut table =
        Table::new(&["file", "target", "waiting", "rows", "MAPE", "cov p50", "cov p90", "pinball p50", "pinball p90"]);
    let mut documents = Vec::new();
    for (index, path) in args.files.iter().enumerate() {
        let recording = files::recording(path)?;
        let name = files::short_name(path);
        let predictions = predict_frozen(&recording, &snapshot);
        if let Some(traces) = &traces {
            trace::write(&traces[index], &recording, &predictions)?;
        }
        for target in Target::ALL {
            let bands = by_band(&recording, &predictions, target);
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

fn by_band(recording: &Recording, predictions: &[RowPrediction], target: Target) -> Bands {
    let mut bands = Bands::default();
    for (row, prediction) in recording.rows.iter().zip(predictions) {
        let Some(actual) = [row.ttft_ms, row.tpot_ms][target.index()] else { continue };
        let [median, upper] = prediction.ours[target.index()];
        for band in [0, 1 + load_band(row.features.requests_waiting)] {
            bands[band].median.add(actual, median, 0.5);
            bands[band].upper.add(actual, upper, 0.9);
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
