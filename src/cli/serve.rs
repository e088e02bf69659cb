//! `foretoken serve`.

use std::process::ExitCode;

use super::USAGE;
use super::settings::SettingsArgs;
use crate::{app, telemetry};

pub fn run(args: &SettingsArgs) -> anyhow::Result<ExitCode> {
    match args.config() {
        Ok(config) => {
            telemetry::init_logging(&config.log_level, config.log_format);
            app::run(config)?;
            Ok(ExitCode::SUCCESS)
        }
        Err(errors) => {
            for error in &errors.0 {
                eprintln!("foretoken: {error}");
            }
            eprintln!("foretoken: see foretoken config --print, or foretoken serve --help");
            Ok(ExitCode::from(USAGE))
        }
    }
}
