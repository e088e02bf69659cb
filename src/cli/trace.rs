//! Each prediction for a recording as a CSV file, for plotting and for other tools to score.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};

use super::files;
use crate::recording::{Recording, RowPrediction};
use crate::types::State;

/// The header. `row` counts the recording's rows from 0, skipped ones too; a value that is absent is empty.
const HEADER: [&str; 13] = [
    "row",
    "run",
    "dispatched_ms",
    "endpoint",
    "ttft_ms",
    "ttft_p50_ms",
    "ttft_p90_ms",
    "ttft_state",
    "tpot_ms",
    "tpot_p50_ms",
    "tpot_p90_ms",
    "tpot_state",
    "generation",
];

/// Where the traces of recordings go: to the path itself for one recording, to a file each in that directory for
/// several. Makes the directory.
///
/// # Errors
/// Two recordings would share a file, a recording would be overwritten, or there can be no such directory.
pub fn plan(out: &Path, recordings: &[PathBuf]) -> anyhow::Result<Vec<PathBuf>> {
    let traces: Vec<PathBuf> = match recordings {
        [_] => vec![out.to_path_buf()],
        several => {
            std::fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
            several.iter().map(|path| out.join(format!("{}.csv", files::short_name(path)))).collect()
        }
    };
    for (index, trace) in traces.iter().enumerate() {
        if let Some(before) = traces[..index].iter().position(|earlier| earlier == trace) {
            let (first, second) = (recordings[before].display(), recordings[index].display());
            bail!("{first} and {second} would both be traced to {}; trace them one at a time", trace.display());
        }
        let place = std::fs::canonicalize(trace).ok();
        if place.is_some() && recordings.iter().any(|path| std::fs::canonicalize(path).ok() == place) {
            bail!("--trace would overwrite the recording {}; name another place", trace.display());
        }
    }
    Ok(traces)
}

/// Writes the trace of one recording.
///
/// # Errors
/// The file cannot be written.
pub fn write(path: &Path, recording: &Recording, predictions: &[RowPrediction]) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut csv = csv::Writer::from_writer(File::create(path).with_context(failed)?);
    csv.write_record(HEADER).with_context(failed)?;
    for (request, prediction) in recording.rows.iter().zip(predictions) {
        let run = recording.runs.get(request.run).cloned().unwrap_or_default();
        let dispatched_ms = request.dispatched_at.map(|at| at.0.to_string()).unwrap_or_default();
        let endpoint = request.endpoint.as_ref().map_or("", |name| name.as_str()).to_string();
        let mut fields = vec![request.row.to_string(), run, dispatched_ms, endpoint];
        for (target, actual) in [request.ttft_ms, request.tpot_ms].into_iter().enumerate() {
            let [p50, p90] = prediction.ours[target];
            fields.push(actual.map(|ms| ms.to_string()).unwrap_or_default());
            fields.extend([p50.to_string(), p90.to_string()]);
            fields.push(prediction.states[target].map(State::name).unwrap_or_default().to_string());
        }
        fields.push(prediction.generation.0.to_string());
        csv.write_record(&fields).with_context(failed)?;
    }
    csv.flush().with_context(failed)
}
