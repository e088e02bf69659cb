//! `foretoken config`: what `serve` would use, and where each value came from.

use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::USAGE;
use super::output::{self, Format, Table};
use super::settings::SettingsArgs;
use crate::config::{Config, Setting};

/// Arguments.
#[derive(Args)]
pub struct ConfigArgs {
    /// Print every setting: value, unit, default and where it came from (the default action)
    #[arg(long)]
    print: bool,
    /// Only check: print nothing, exit with 0 if the configuration is good
    #[arg(long, conflicts_with = "print")]
    check: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
    #[command(flatten)]
    settings: SettingsArgs,
}

pub fn run(args: &ConfigArgs) -> anyhow::Result<ExitCode> {
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
