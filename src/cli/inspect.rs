//! `foretoken inspect`: what a snapshot has learnt.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Map, Value, json};

use super::files;
use super::output::{self, Format, Table, number};
use crate::calibration::SHAPE_POINTS;
use crate::features::{RANGED, REGIMES, SCHEMA, regime_name, residual_names};
use crate::model::Forest;
use crate::snapshot::Snapshot;
use crate::types::{Role, Target};

/// Arguments.
#[derive(Args)]
pub struct InspectArgs {
    /// Snapshot: a file of a state directory, of train, or of /model/export
    #[arg(value_name = "SNAPSHOT")]
    snapshot: PathBuf,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub fn run(args: &InspectArgs) -> anyhow::Result<ExitCode> {
    let snapshot = files::snapshot(&args.snapshot)?;
    match args.format {
        Format::Json => output::json(&as_json(&snapshot))?,
        Format::Text => print_text(&snapshot)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Regimes a target really has.
fn regimes(target: Target) -> usize {
    if target == Target::Ttft { REGIMES } else { 1 }
}

fn print_text(snapshot: &Snapshot) -> anyhow::Result<()> {
    let version = snapshot.version;
    output::line(&format!(
        "generation {}, revision {}, lineage {:016x}, schema {SCHEMA}, made by foretoken {}",
        version.generation.0, version.revision, version.lineage.0, snapshot.provenance.made_by
    ))?;
    let accepted = snapshot.provenance.samples_accepted;
    let prior = if snapshot.calibrated { "the operator's calibration" } else { "shipped default constants" };
    output::line(&format!("samples accepted: {accepted}; prior: {prior}"))?;
    for target in Target::ALL {
        let model = snapshot.models.common(target);
        output::line("")?;
        output::line(&format!("{} (fitted on {} rows)", target.name().to_uppercase(), model.rows))?;
        let mut table = Table::new(&["column", "regime", "p50 ms/unit", "p90 ms/unit"]);
        for (index, regime) in model.regimes.iter().take(regimes(target)).enumerate() {
            let name = regime_name(target, index);
            for (column, [middle, upper]) in model.coefficients(index) {
                if middle != 0.0 || upper != 0.0 {
                    table.row(vec![column.into(), name.into(), number(Some(middle), 4), number(Some(upper), 4)]);
                }
            }
            let factors = regime.log_quantiles.map(|log| number(Some(log.exp()), 4));
            let [middle, upper] = factors;
            table.row(vec!["(factor on the base)".into(), name.into(), middle, upper]);
        }
        output::line(&table.render())?;
        for (forest, anchor) in model.residuals.iter().zip(["p50", "p90"]) {
            let gains = gains_of(target, forest);
            let shares = gains.iter().map(|(name, gain)| format!("{name} {:.0} %", 100.0 * gain)).collect::<Vec<_>>();
            let removed =
                if shares.is_empty() { String::new() } else { format!("; loss removed by {}", shares.join(", ")) };
            output::line(&format!("residual trees {anchor}: {}{removed}", forest.trees.len()))?;
        }
        for scale in &model.scales {
            let factor = number(Some(scale.log_scale.exp()), 3);
            output::line(&format!("endpoint {}: x {factor} ({} samples)", scale.endpoint.as_str(), scale.rows))?;
        }
        if model.rows > 0 {
            let range = RANGED.iter().zip(model.range_top).map(|(name, top)| format!("{name} {top:.0}"));
            output::line(&format!("trained range (99 %): {}", range.collect::<Vec<_>>().join(", ")))?;
        }
        let online = snapshot.online.of(Role::Both, target);
        let [middle, upper] = online.pool.map(|log| number(Some(log.exp()), 3));
        let endpoints = online.endpoints.len();
        output::line(&format!("online factor: p50 {middle}, p90 {upper}; endpoints with their own: {endpoints}"))?;
    }
    Ok(())
}

fn forest_json(target: Target, forest: &Forest) -> Value {
    let gains: Map<String, Value> =
        gains_of(target, forest).into_iter().map(|(name, gain)| (name.to_string(), json!(gain))).collect();
    json!({ "trees": forest.trees.len(), "constant_log": forest.constant, "gains": gains })
}

/// Residual features by the share of loss that splits on them removed, greatest first; unused ones are left out.
fn gains_of(target: Target, forest: &Forest) -> Vec<(&'static str, f64)> {
    let named = residual_names(target).zip(forest.gains);
    let mut gains: Vec<(&'static str, f64)> =
        named.filter(|(_, gain)| *gain > 0.0).map(|(name, gain)| (name, f64::from(gain))).collect();
    gains.sort_by(|a, b| b.1.total_cmp(&a.1));
    gains
}

fn as_json(snapshot: &Snapshot) -> Value {
    let targets: Map<String, Value> = Target::ALL
        .iter()
        .map(|&target| {
            let model = snapshot.models.common(target);
            let online = snapshot.online.of(Role::Both, target);
            let regimes: Map<String, Value> = model
                .regimes
                .iter()
                .take(regimes(target))
                .enumerate()
                .map(|(index, regime)| {
                    let coefficients: Map<String, Value> = model
                        .coefficients(index)
                        .map(|(column, [middle, upper])| (column.to_string(), json!({ "p50": middle, "p90": upper })))
                        .collect();
                    let entry = json!({
                        "rows": regime.rows, "coefficients_ms": coefficients,
                        "log_quantiles": { "p50": regime.log_quantiles[0], "p90": regime.log_quantiles[1] },
                    });
                    (regime_name(target, index).to_string(), entry)
                })
                .collect();
            let range: Map<String, Value> = RANGED
                .iter()
                .zip(model.range_top)
                .map(|(name, top)| (name.to_string(), if model.rows > 0 { json!(top) } else { Value::Null }))
                .collect();
            let shape: Map<String, Value> =
                SHAPE_POINTS.iter().zip(online.shape.table()).map(|(q, k)| (q.to_string(), json!(k))).collect();
            let endpoints: Map<String, Value> = online
                .endpoints
                .iter()
                .map(|entry| {
                    (
                        entry.endpoint.as_str().to_string(),
                        json!(entry.offsets.map(|offsets| offsets.map(|offset| (entry.log_scale + offset).exp()))),
                    )
                })
                .collect();
            let entry = json!({
                "rows": model.rows, "regimes": regimes, "range_top": range, "shape": shape,
                "residual": {
                    "p50": forest_json(target, &model.residuals[0]), "p90": forest_json(target, &model.residuals[1]),
                },
                "endpoint_scales": model.scales.iter()
                    .map(|scale| (scale.endpoint.as_str().to_string(), json!(scale.log_scale.exp())))
                    .collect::<Map<String, Value>>(),
                "offset_factor": { "p50": online.pool[0].exp(), "p90": online.pool[1].exp() },
                "endpoint_factors": endpoints,
            });
            (target.name().to_string(), entry)
        })
        .collect();
    json!({
        "generation": snapshot.version.generation.0, "revision": snapshot.version.revision,
        "lineage": format!("{:016x}", snapshot.version.lineage.0), "schema": SCHEMA,
        "calibrated": snapshot.calibrated, "made_by": snapshot.provenance.made_by,
        "samples_accepted": snapshot.provenance.samples_accepted, "targets": targets,
    })
}
