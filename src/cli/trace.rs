//! Each prediction of a replay as a CSV file, for plotting and for other tools to score.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::recording::{Recording, Replayed};
use crate::types::State;

/// The header. `row` is the position in the recording, from 0; a value that is absent is empty.
const HEADER: &str = "row,run,dispatched_ms,endpoint,ttft_ms,ttft_p50_ms,ttft_p90_ms,ttft_state,tpot_ms,tpot_p50_ms,\
                      tpot_p90_ms,tpot_state,generation";

/// Where a recording's trace goes: the path itself for one recording, a file in that directory for each of several.
pub fn path_for(out: &Path, name: &str, recordings: usize) -> anyhow::Result<PathBuf> {
    if recordings == 1 {
        return Ok(out.to_path_buf());
    }
    std::fs::create_dir_all(out).with_context(|| format!("cannot make the directory {}", out.display()))?;
    Ok(out.join(format!("{name}.csv")))
}

/// Writes the trace.
pub fn write(path: &Path, recording: &Recording, replayed: &Replayed) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", path.display());
    let mut file = BufWriter::new(File::create(path).with_context(failed)?);
    writeln!(file, "{HEADER}").with_context(failed)?;
    for (request, prediction) in recording.rows.iter().zip(&replayed.predictions) {
        let run = recording.runs.get(request.run).map_or("", String::as_str);
        let dispatched_ms = request.dispatched_at.map(|at| at.0.to_string()).unwrap_or_default();
        let endpoint = request.endpoint.as_ref().map_or("", |name| name.as_str());
        let mut fields = vec![request.row.to_string(), quoted(run), dispatched_ms, quoted(endpoint)];
        for (target, actual) in [request.ttft_ms, request.tpot_ms].into_iter().enumerate() {
            let [p50, p90] = prediction.ours[target];
            fields.push(actual.map(|ms| ms.to_string()).unwrap_or_default());
            fields.extend([p50.to_string(), p90.to_string()]);
            fields.push(prediction.states[target].map(State::name).unwrap_or_default().to_string());
        }
        fields.push(prediction.generation.0.to_string());
        writeln!(file, "{}", fields.join(",")).with_context(failed)?;
    }
    file.flush().with_context(failed)
}

/// A CSV field; quoted where it must be.
fn quoted(text: &str) -> String {
    if text.contains([',', '"', '\n', '\r']) { format!("\"{}\"", text.replace('"', "\"\"")) } else { text.to_string() }
}
