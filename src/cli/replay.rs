//! `foretoken replay`: how well would it have predicted these recordings?

use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::files;
use super::output::{self, Format, Table, number};
use super::trace;
use crate::model::Monotone;
use crate::recording::{FileScores, Geomean, Replayed, geomean, replay, score};
use crate::training::{Alarm, AlarmCause, LearnerParams};
use crate::types::Target;

/// How monotone answers must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum MonotoneArg {
    /// Exactly in the base, as a tendency in the whole
    Tendency,
    /// p50 and p90 never fall when load rises
    Strict,
}

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "A recording is CSV or JSON lines, plain, gzip or zstd. Columns are the wire's names (input_token_length,
num_request_waiting, actual_ttft_ms, ...) with dispatched_ms, first_token_ms and finished_ms where times are known, or
those of a load generator (run_id, arrival_s, prompt_tokens, output_tokens, ttft_ms, tpot_ms, e2e_ms, ...). Each run of
a file is replayed by a learner of its own. An outcome is learnt from only once it was visible; in files without times
that is two rows later, which is optimistic. Columns incumbent_ttft_p90_ms, incumbent_ttft_p50_ms and
incumbent_tpot_p90_ms, if present, are scored beside ours from row 300 on.

ratio        our mean pinball loss / the incumbent's (below 1: ours is better)
vs running   our mean pinball loss / that of the running quantile of the latest 1,000 outcomes
cov error    mean distance of the coverage from the quantile, per window of 500 rows
first 700    ratio over rows 3000 to 3699"
)]
pub struct ReplayArgs {
    /// Recordings
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    /// Write each prediction as CSV: to this file, or for several recordings to a file each in this directory
    #[arg(long, value_name = "PATH")]
    trace: Option<PathBuf>,
    /// Hold answers to be exactly monotone in load, at some cost in accuracy
    #[arg(long, value_enum, default_value_t = MonotoneArg::Tendency)]
    monotone: MonotoneArg,
    /// Latest samples kept per target
    #[arg(long, default_value_t = 5000, value_parser = clap::value_parser!(u32).range(100..=1_000_000))]
    samples_max: u32,
}

pub fn run(args: &ReplayArgs) -> anyhow::Result<ExitCode> {
    let monotone = match args.monotone {
        MonotoneArg::Tendency => Monotone::Tendency,
        MonotoneArg::Strict => Monotone::Strict,
    };
    let params = LearnerParams { samples_max: args.samples_max as usize, monotone, ..LearnerParams::default() };
    let traces = args.trace.as_deref().map(|out| trace::plan(out, &args.files)).transpose()?;
    let mut all = Vec::new();
    let mut found = Vec::new();
    let mut scales = Vec::new();
    let mut absent: Vec<(String, Vec<&'static str>)> = Vec::new();
    for (index, path) in args.files.iter().enumerate() {
        let recording = files::recording(path)?;
        let name = files::short_name(path);
        let bar = progress(&format!("{name} ({} of {})", index + 1, args.files.len()));
        let replayed = replay(&recording, params, |done, total| {
            bar.set_length(total as u64);
            bar.set_position(done as u64);
        });
        bar.finish_and_clear();
        if !recording.absent.is_empty() {
            absent.push((name.clone(), recording.absent.clone()));
        }
        if let Some(traces) = &traces {
            trace::write(&traces[index], &recording, &replayed.predictions)?;
        }
        let run_name = |run: usize| recording.runs.get(run).cloned().unwrap_or_default();
        found.extend(replayed.alarms.iter().map(|(run, alarm)| (name.clone(), run_name(*run), alarm.clone())));
        scales_of(&name, &replayed, &mut scales);
        all.push(score(&name, &recording, &replayed));
    }
    match args.format {
        Format::Json => output::json(&as_json(&all, &absent, &found, &scales))?,
        Format::Text => {
            print_text(&all, &absent)?;
            print_alarms(&found)?;
            print_scales(&scales)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// What the last model of a replay says of each endpoint: file, target, endpoint, times the pool's median, samples.
type ScaleRow = (String, Target, String, f64, usize);

fn scales_of(file: &str, replayed: &Replayed, out: &mut Vec<ScaleRow>) {
    for target in Target::ALL {
        for scale in &replayed.last.models.common(target).scales {
            let endpoint = scale.endpoint.as_str().to_string();
            out.push((file.to_string(), target, endpoint, scale.log_scale.exp(), scale.rows));
        }
    }
}

fn print_scales(scales: &[ScaleRow]) -> anyhow::Result<()> {
    if scales.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["endpoint", "file", "target", "times the pool's median", "samples"]);
    for (file, target, endpoint, factor, samples) in scales {
        let factor = number(Some(*factor), 3);
        table.row(vec![endpoint.clone(), file.clone(), target.name().into(), factor, samples.to_string()]);
    }
    output::line("")?;
    output::line(&table.render())
}

/// A change of regime with the file and the run it was noticed in.
type FoundAlarm = (String, String, Alarm);

fn print_alarms(found: &[FoundAlarm]) -> anyhow::Result<()> {
    if found.is_empty() {
        return Ok(());
    }
    let mut table =
        Table::new(&["change of regime in", "run", "target", "endpoint", "changed at s", "after outcomes", "factor"]);
    for (file, run, alarm) in found {
        let factor = match alarm.cause {
            AlarmCause::Shift { log_shift } => number(Some(log_shift.exp()), 2),
            AlarmCause::Fingerprint => "fingerprint".to_string(),
        };
        table.row(vec![
            file.clone(),
            run.clone(),
            alarm.target.name().to_string(),
            alarm.endpoint.as_ref().map_or(String::new(), |name| name.as_str().to_string()),
            number(Some(alarm.changed_at.0 as f64 / 1e3), 1),
            alarm.observations.to_string(),
            factor,
        ]);
    }
    output::line("")?;
    output::line(&table.render())
}

/// A bar on a terminal, nothing elsewhere.
fn progress(name: &str) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{msg} {bar:30} {percent}% {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::new(1).with_style(style).with_message(name.to_string())
}

/// Files that share the prefix before the first dash, where there is more than one such prefix.
fn groups(all: &[FileScores]) -> Vec<(String, Vec<&FileScores>)> {
    let mut groups: Vec<(String, Vec<&FileScores>)> = Vec::new();
    for file in all.iter().filter(|file| file.scores.iter().any(|score| score.ratio.is_some())) {
        let Some((prefix, _)) = file.file.split_once('-') else { continue };
        match groups.iter_mut().find(|(name, _)| name == prefix) {
            Some((_, members)) => members.push(file),
            None => groups.push((prefix.to_string(), vec![file])),
        }
    }
    groups
}

fn print_text(all: &[FileScores], absent: &[(String, Vec<&'static str>)]) -> anyhow::Result<()> {
    let mut table = Table::new(&[
        "file",
        "target",
        "rows",
        "pinball ms",
        "ratio",
        "vs running",
        "coverage",
        "cov error",
        "first 700",
        "MAPE",
    ]);
    for file in all {
        for score in &file.scores {
            if score.rows == 0 {
                continue;
            }
            table.row(vec![
                file.file.clone(),
                format!("{} p{:.0}", score.target.name(), score.quantile * 100.0),
                score.rows.to_string(),
                number(score.pinball, 2),
                number(score.ratio, 3),
                number(score.ratio_running, 3),
                number(score.coverage, 3),
                number(score.coverage_error_500, 3),
                number(score.first700_ratio, 3),
                number(score.mape, 3),
            ]);
        }
    }
    output::line(&table.render())?;
    for (file, columns) in absent {
        output::line(&format!("{file}: no column for {}; left out", columns.join(", ")))?;
    }
    let overall = geomean(all.iter());
    if overall != Geomean::default() {
        let mut table = Table::new(&["geometric mean of ratios", "ttft p90", "ttft p50", "tpot p90"]);
        let row = |name: String, of: Geomean| {
            vec![name, number(of.ttft_p90, 3), number(of.ttft_p50, 3), number(of.tpot_p90, 3)]
        };
        for (prefix, members) in groups(all) {
            table.row(row(prefix, geomean(members.iter().copied())));
        }
        table.row(row("all".to_string(), overall));
        output::line("")?;
        output::line(&table.render())?;
    }
    Ok(())
}

fn geomean_json(of: Geomean) -> Value {
    json!({ "ttft_p90": of.ttft_p90, "ttft_p50": of.ttft_p50, "tpot_p90": of.tpot_p90 })
}

fn as_json(
    all: &[FileScores],
    absent: &[(String, Vec<&'static str>)],
    found: &[FoundAlarm],
    scales: &[ScaleRow],
) -> Value {
    let alarms: Vec<Value> = found
        .iter()
        .map(|(file, run, alarm)| {
            let log_shift = match alarm.cause {
                AlarmCause::Shift { log_shift } => Some(log_shift),
                AlarmCause::Fingerprint => None,
            };
            json!({
                "file": file, "run": run, "target": alarm.target.name(), "role": alarm.role.name(),
                "endpoint": alarm.endpoint.as_ref().map(|name| name.as_str()), "cause": alarm.cause.name(),
                "at_ms": alarm.at.0, "changed_at_ms": alarm.changed_at.0, "observations": alarm.observations,
                "factor": log_shift.map(f64::exp),
            })
        })
        .collect();
    let scales: Vec<Value> = scales
        .iter()
        .map(|(file, target, endpoint, factor, samples)| {
            json!({ "file": file, "target": target.name(), "endpoint": endpoint, "factor": factor, "samples": samples })
        })
        .collect();
    let mut files = Vec::new();
    for file in all {
        for score in &file.scores {
            files.push(json!({
                "file": file.file, "target": score.target.name(), "quantile": score.quantile, "rows": score.rows,
                "pinball": score.pinball, "pinball_incumbent": score.pinball_incumbent, "ratio": score.ratio,
                "coverage": score.coverage, "coverage_error_500": score.coverage_error_500,
                "first700_ratio": score.first700_ratio, "mape": score.mape,
                "pinball_running": score.pinball_running, "ratio_running": score.ratio_running,
            }));
        }
    }
    let by_group: Map<String, Value> = groups(all)
        .into_iter()
        .map(|(prefix, members)| (prefix, geomean_json(geomean(members.iter().copied()))))
        .collect();
    let absent: Map<String, Value> = absent.iter().map(|(file, columns)| (file.clone(), json!(columns))).collect();
    json!({
        "files": files, "geomean": geomean_json(geomean(all.iter())), "geomean_by_prefix": by_group,
        "absent_columns": absent, "alarms": alarms, "endpoint_scales": scales,
    })
}
