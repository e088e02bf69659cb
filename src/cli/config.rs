//! `foretoken config`: what `serve` would use, and where each value came from.

use std::process::ExitCode;

use anyhow::anyhow;
use clap::Args;
use serde_json::{Value, json};

use super::USAGE;
use super::output::{self, Format, Table};
use super::settings::SettingsArgs;
use crate::config::{CALIBRATED, Calibration, Config, Setting, shipped_calibrations};

/// Arguments.
#[derive(Args)]
pub struct ConfigArgs {
    /// Print every setting: value, unit, default and where it came from (the default action)
    #[arg(long)]
    print: bool,
    /// Only check: print nothing, exit with 0 if the configuration is good
    #[arg(long, conflicts_with = "print")]
    check: bool,
    /// List the rows that --calibration takes: what was measured, and the constants that follow
    #[arg(long, conflicts_with_all = ["print", "check"])]
    list_calibrations: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
    if args.list_calibrations {
        let rows = shipped_calibrations().map_err(|errors| anyhow!(errors.join("; ")))?;
        match args.format {
            Format::Json => output::json(&calibrations_json(&rows))?,
            Format::Text => output::line(&calibrations_text(&rows))?,
        }
        return Ok(ExitCode::SUCCESS);
    }
    let config = match args.settings.config() {
        Ok(config) => config,
        Err(errors) => {
            errors.0.iter().for_each(|error| eprintln!("foretoken: {error}"));
            return Ok(ExitCode::from(USAGE));
        }
    };
    config.warnings.iter().for_each(|line| eprintln!("foretoken: warning: {line}"));
    if !args.check {
        match args.format {
            Format::Json => output::json(&as_json(&config))?,
            Format::Text => output::line(&as_table(&config))?,
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn shown(setting: &str, value: &str) -> String {
    match value {
        "" => "-".to_string(),
        _ if setting.ends_with("_token") => "(set)".to_string(),
        value => value.to_string(),
    }
}

fn calibrations_text(rows: &[Calibration]) -> String {
    let header = ["name", "peak tokens/s", "chunk", "tokens/s", "ms per Mtoken pairs", "floor ms", "decode step ms"];
    let mut table = Table::new(&header);
    let known = |value: Option<f64>| value.map_or("-".to_string(), |value| value.to_string());
    for row in rows {
        let mut cells = vec![row.name.clone(), known(row.peak_prefill_tokens_per_s), known(row.chunk_tokens)];
        let mark = |estimated| if estimated { "~" } else { "" };
        cells.extend(row.constants.iter().map(|constant| format!("{}{}", mark(constant.estimated), constant.value)));
        table.row(cells);
    }
    let sources: String =
        rows.iter().map(|row| format!("\n{}: {}, {}; {}", row.name, row.model, row.accelerator, row.source)).collect();
    format!(
        "{}\n\n~ estimated: scaled from the default constants so that one chunk takes the time that was measured; right \
         within a factor of 2.\nMeasured by their sources. A row holds for its chunk, tensor parallelism and quantisation \
         only; for others write a file of your own\n(serve --calibration FILE.toml, in the form of models/calibrations.toml).\n{sources}",
        table.render()
    )
}

fn calibrations_json(rows: &[Calibration]) -> Value {
    let row_json = |row: &Calibration| {
        let mut entry = json!({
            "name": row.name, "model": row.model, "accelerator": row.accelerator, "engine": row.engine,
            "tensor_parallel": row.tensor_parallel, "chunk_tokens": row.chunk_tokens,
            "peak_prefill_tokens_per_s": row.peak_prefill_tokens_per_s, "source": row.source,
        });
        for (key, constant) in CALIBRATED.into_iter().zip(&row.constants) {
            entry[key] = json!({ "value": constant.value, "estimated": constant.estimated });
        }
        entry
    };
    json!({ "calibrations": rows.iter().map(row_json).collect::<Vec<_>>() })
}

fn as_table(config: &Config) -> String {
    let mut table = Table::new(&["setting", "value", "unit", "default", "from"]);
    for effective in &config.effective {
        let Some(setting) = Setting::find(effective.setting) else { continue };
        table.row(vec![
            setting.key.to_string(),
            shown(setting.key, &effective.value),
            if setting.unit.is_empty() { "-".to_string() } else { setting.unit.to_string() },
            shown(setting.key, setting.default),
            effective.source.to_string(),
        ]);
    }
    table.render()
}

fn as_json(config: &Config) -> Value {
    let settings: Vec<Value> = config
        .effective
        .iter()
        .filter_map(|effective| {
            let setting = Setting::find(effective.setting)?;
            Some(json!({
                "setting": setting.key, "value": shown(setting.key, &effective.value), "unit": setting.unit,
                "default": setting.default, "values": setting.values(), "from": effective.source.to_string(),
                "variable": setting.variable(), "also": setting.also, "help": setting.help,
            }))
        })
        .collect();
    json!({ "settings": settings, "warnings": config.warnings })
}
