//! The command line: one file per subcommand, flags to parameters to one call.

mod config;
mod demo;
mod evaluate;
mod explain;
mod files;
mod inspect;
mod output;
mod replay;
mod serve;
mod settings;
mod trace;
mod train;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Predicts time to first token (TTFT) and time per output token (TPOT) for every LLM request and endpoint, and learns
/// online from what came of them.
#[derive(Parser)]
#[command(
    name = "foretoken",
    version,
    max_term_width = 110,
    after_help = "Examples:
  foretoken demo                                  see it learn from real measured requests, in half a minute
  foretoken serve                                 the sidecar, on ports 8000 and 8001
  foretoken serve --role train --listen 0.0.0.0:8000
  foretoken serve --role predict --trainer-url http://trainer:8000 --listen 0.0.0.0:8001
  foretoken config --print                        every setting, its value, unit and source
  foretoken replay recording.csv.gz               how well would it have predicted this recording?"
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run the sidecar: collect samples, learn, and answer predictions over HTTP
    Serve(settings::SettingsArgs),
    /// Show or check the configuration that `serve` would use
    Config(config::ConfigArgs),
    /// Watch a sidecar learn from real measured requests, over real HTTP, on this machine
    Demo(demo::DemoArgs),
    /// Replay recordings as they happened: predict, then observe, and score against yardsticks
    Replay(replay::ReplayArgs),
    /// Fit a snapshot from recordings
    Train(train::TrainArgs),
    /// Score a snapshot on recordings it has not seen
    Evaluate(evaluate::EvaluateArgs),
    /// Show what a snapshot has learnt
    Inspect(inspect::InspectArgs),
    /// Show how a snapshot's prediction for one request comes about
    Explain(explain::ExplainArgs),
}

/// Exit code for wrong usage or configuration.
const USAGE: u8 = 2;

/// Parses the arguments and runs the subcommand: 0 is success, 1 a failure, 2 wrong usage or configuration.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let outcome = match cli.command {
        Command::Serve(args) => serve::run(&args),
        Command::Config(args) => config::run(&args),
        Command::Demo(args) => demo::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Train(args) => train::run(&args),
        Command::Evaluate(args) => evaluate::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Explain(args) => explain::run(&args),
    };
    match outcome {
        Ok(code) => code,
        Err(error) if is_broken_pipe(&error) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("foretoken: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A reader like `head` that has seen enough is no failure.
fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<std::io::Error>())
        .any(|error| error.kind() == std::io::ErrorKind::BrokenPipe)
}
