//! `foretoken explain`: how a snapshot's prediction for one request comes about.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, anyhow};
use clap::Args;
use serde_json::json;

use super::files;
use super::output::{self, Format, Table, number};
use crate::http::explanation_json;
use crate::model::Prior;
use crate::service::now;
use crate::snapshot::{Conditions, Snapshot, TargetExplanation};
use crate::types::{Ask, Features, Lineage, Quantile, Role, UnixMs};

/// Arguments.
#[derive(Args)]
pub struct ExplainArgs {
    /// Snapshot; without one the shipped prior is explained
    #[arg(value_name = "SNAPSHOT")]
    snapshot: Option<PathBuf>,
    /// Prompt tokens
    #[arg(long, default_value_t = 1000)]
    input_token_length: u32,
    /// Share of the prompt expected in the endpoint's prefix cache, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    prefix_cache_score: f64,
    /// Requests queued at the endpoint
    #[arg(long, default_value_t = 0)]
    num_request_waiting: u32,
    /// Requests being computed at the endpoint
    #[arg(long, default_value_t = 0)]
    num_request_running: u32,
    /// Share of the KV cache in use, 0 to 1
    #[arg(long, default_value_t = 0.0)]
    kv_cache_percentage: f64,
    /// Uncached prompt tokens in flight to the endpoint
    #[arg(long, default_value_t = 0)]
    prefill_tokens_in_flight: u32,
    /// Tokens of requests past their first token
    #[arg(long, default_value_t = 0)]
    decode_tokens_in_flight: u32,
    /// Name of the endpoint
    #[arg(long)]
    endpoint: Option<String>,
    /// Quantile to answer with, 0.01 to 0.99
    #[arg(long, default_value_t = 0.9)]
    quantile: f64,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub fn run(args: &ExplainArgs) -> anyhow::Result<ExitCode> {
    let snapshot = match &args.snapshot {
        Some(path) => files::snapshot(path)?,
        None => Snapshot::prior(&Prior::default(), Lineage(0), UnixMs(0)),
    };
    let features = Features::try_new(Features {
        kv_cache_usage: args.kv_cache_percentage,
        input_tokens: args.input_token_length,
        requests_waiting: args.num_request_waiting,
        requests_running: args.num_request_running,
        prefix_cache_score: args.prefix_cache_score,
        prefill_tokens_in_flight: args.prefill_tokens_in_flight,
        decode_tokens_in_flight: args.decode_tokens_in_flight,
        encoder_matched_size: 0,
        encoder_input_size: 0,
        role: Role::Both,
    })
    .context("the request is not possible")?;
    let quantile = Quantile::try_new(args.quantile)
        .ok_or_else(|| anyhow!("--quantile is {}, outside 0.01 to 0.99", args.quantile))?;
    let reader = snapshot.read(Conditions::new(Ask::Quantile(quantile), now()));
    let explanation = reader.explain(&features, args.endpoint.as_deref());
    match args.format {
        Format::Json => output::json(&json!({
            "generation": snapshot.version.generation.0, "state": explanation.estimate.state.name(),
            "ttft": explanation_json(&explanation.ttft), "tpot": explanation_json(&explanation.tpot),
        }))?,
        Format::Text => {
            print_target(&explanation.ttft, args.quantile)?;
            output::line("")?;
            print_target(&explanation.tpot, args.quantile)?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn print_target(of: &TargetExplanation, quantile: f64) -> anyhow::Result<()> {
    output::line(&format!(
        "{} p{:.0} = {:.2} ms ({}; median {:.2} ms)",
        of.target.name().to_uppercase(),
        quantile * 100.0,
        of.estimate.value_ms,
        of.estimate.state.name(),
        of.estimate.q50_ms
    ))?;
    let mut table = Table::new(&["  part", "value", "p50 ms", "p90 ms"]);
    for column in &of.columns {
        if column.contribution_ms != [0.0; 2] {
            table.row(vec![
                format!("  {}", column.column),
                number(Some(column.value), 3),
                number(Some(column.contribution_ms[0]), 2),
                number(Some(column.contribution_ms[1]), 2),
            ]);
        }
    }
    let factor = |values: [f64; 2]| values.map(|log| format!("x {:.4}", log.exp()));
    let mut add = |name: String, [middle, upper]: [String; 2]| {
        table.row(vec![format!("  {name}"), String::new(), middle, upper]);
    };
    add("base".into(), of.base_ms.map(|ms| number(Some(ms), 2)));
    add(format!("regime {}", of.regime), factor(of.regime_log));
    let [middle, upper] = of.trees;
    add(format!("residual ({middle} and {upper} trees, fade {:.2})", of.fade), factor(of.residual_log));
    add("endpoint scale".into(), factor([of.endpoint_log; 2]));
    add(format!("online offset ({})", of.offset_from), factor(of.offset_log));
    output::line(&table.render())?;
    output::line(&format!(
        "  answer = median x exp({:.4} x {:.4}): k of the quantile times the log spread{}",
        of.k,
        of.estimate.spread,
        if of.widening > 0.0 { format!(", widened by {:.2} for age", of.widening) } else { String::new() }
    ))
}
