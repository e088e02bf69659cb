//! Liveness, readiness, status, metrics, and the front page.

use std::time::Duration;

use axum::extract::State;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::auth::{Access, authorize, is_admin};
use super::error::{Problem, json_answer};
use super::state::AppState;
use super::times::rfc3339;
use super::{ENGINE, MODEL_TYPE};
use crate::service::ServiceStatus;
use crate::telemetry::{Scraped, exposition};
use crate::training::{
    ACCURACY_WINDOWS, Accuracy, Alarm, AlarmCause, FitOutcome, FitReport, LOAD_BANDS, LearnerReport, Reason,
    ScreenReport, TargetReport,
};
use crate::types::{Role, Target};

/// How long a scrape waits for the trainer thread to say what its store holds.
const SURVEY_TIME: Duration = Duration::from_millis(500);

/// Liveness: the process answers. Says nothing about models.
#[utoipa::path(get, path = "/healthz", tag = "health", responses((status = 200, description = "alive")))]
pub async fn healthz() -> Response {
    json_answer(StatusCode::OK, &json!({ "status": "ok", "service": "http-based-latency-predictor", "engine": ENGINE }))
}

/// Readiness: answers are usable. A prior counts only if the operator gave a calibration.
#[utoipa::path(get, path = "/readyz", tag = "health", responses(
    (status = 200, description = "answers are usable"),
    (status = 503, description = "not yet, and why"),
))]
pub async fn readyz(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let mut status = account(&state, &headers);
    if state.stopping.is_cancelled() {
        status.ready = false;
        status.ready_reason = "this process is stopping".to_string();
    }
    let model_state = status.state.name();
    if status.ready {
        let answer = json!({
            "status": "ready", "model_type": MODEL_TYPE, "objective_type": state.params.objective_type(),
            "quantile": state.params.quantile.get(), "engine": ENGINE, "state": model_state,
            "reason": status.ready_reason, "generation": status.version.generation.0,
        });
        json_answer(StatusCode::OK, &answer)
    } else {
        let answer = json!({
            "detail": format!("Models are not ready: {}", status.ready_reason),
            "state": model_state, "reason": status.ready_reason,
        });
        json_answer(StatusCode::SERVICE_UNAVAILABLE, &answer)
    }
}

/// Who answers here.
#[utoipa::path(get, path = "/", tag = "health", responses((status = 200, description = "both servers' greeting")))]
pub async fn root(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let status = account(&state, &headers);
    let quantile = state.params.quantile.get();
    let description = match state.params.objective_type() {
        "mean" => "Predicting mean TTFT and TPOT latencies".to_string(),
        _ => format!("Predicting {:.0}% quantile for TTFT and TPOT latencies", quantile * 100.0),
    };
    let answer = json!({
        "message": "Latency Predictor is running.", "model_type": MODEL_TYPE,
        "objective_type": state.params.objective_type(), "quantile": quantile, "description": description,
        "is_ready": status.ready, "sync_interval": state.params.sync_interval_s,
        "training_server": training_server(&status), "engine": ENGINE, "version": env!("CARGO_PKG_VERSION"),
        "generation": status.version.generation.0, "state": status.state.name(), "reason": status.reason,
    });
    json_answer(StatusCode::OK, &answer)
}

/// The whole account of this process.
#[utoipa::path(get, path = "/status", tag = "health", responses((status = 200, description = "state, reason, counters, accuracy")))]
pub async fn status(State(state): State<AppState>, headers: HeaderMap) -> Response {
    let status = account(&state, &headers);
    json_answer(StatusCode::OK, &status_json(&state, &status))
}

/// Asks the trainer now (predict role); elsewhere there is nothing to fetch.
#[utoipa::path(post, path = "/reload", tag = "prediction", responses(
    (status = 200, description = "whether something newer came, and what serves"),
    (status = 401, description = "the admin token is missing or wrong"),
))]
pub async fn reload(State(state): State<AppState>, headers: HeaderMap) -> Result<Response, Problem> {
    authorize(&headers, Access::Admin, &state.params)?;
    let synced = state.service.sync_now().await;
    let status = account(&state, &headers);
    let answer = json!({
        "synced": synced, "loaded": status.ready, "is_ready": status.ready, "model_type": MODEL_TYPE,
        "objective_type": state.params.objective_type(), "quantile": state.params.quantile.get(),
        "last_load_time": status.fitted_at.map(rfc3339), "engine": ENGINE,
        "generation": status.version.generation.0, "state": status.state.name(), "reason": status.reason,
    });
    Ok(json_answer(StatusCode::OK, &answer))
}

/// Metrics in the OpenMetrics text format.
#[utoipa::path(get, path = "/metrics", tag = "health", responses((status = 200, description = "OpenMetrics text")))]
pub async fn metrics(State(state): State<AppState>) -> Response {
    // What the store holds is the trainer's to say. While it is busy those series are absent, not zero.
    let survey = tokio::time::timeout(SURVEY_TIME, state.service.survey()).await.ok().and_then(Result::ok);
    let scraped = Scraped {
        status: &state.service.status(),
        survey: survey.as_ref(),
        http: &state.metrics,
        model_type: MODEL_TYPE,
        objective_type: state.params.objective_type(),
        quantile: state.params.quantile.get(),
    };
    let kind = HeaderValue::from_static("application/openmetrics-text; version=1.0.0; charset=utf-8");
    (StatusCode::OK, [(header::CONTENT_TYPE, kind)], exposition(&scraped)).into_response()
}

/// The account of this process as this caller may see it: where the trainer and the state directory are is told to a
/// known administrator only.
fn account(state: &AppState, headers: &HeaderMap) -> ServiceStatus {
    let status = state.service.status();
    if is_admin(headers, &state.params) { status } else { discreet(status) }
}

/// The account for everybody.
pub(super) fn discreet(mut status: ServiceStatus) -> ServiceStatus {
    let mut secrets = Vec::new();
    if let Some(sync) = &mut status.sync {
        let url = std::mem::take(&mut sync.trainer_url);
        secrets.push((format!(" at {url}"), ""));
        secrets.push((url, "the trainer"));
    }
    if let Some(dir) = &mut status.persistence.state_dir {
        secrets.push((std::mem::take(dir), "the state directory"));
    }
    let texts = [&mut status.reason, &mut status.ready_reason].into_iter();
    let texts = texts.chain(&mut status.not_learning_because);
    let texts = texts.chain(&mut status.persistence.error).chain(&mut status.persistence.notices);
    for text in texts.chain(status.sync.as_mut().and_then(|sync| sync.error.as_mut())) {
        for (secret, words) in secrets.iter().filter(|(secret, _)| !secret.trim().is_empty()) {
            *text = text.replace(secret.as_str(), words);
        }
    }
    status
}

/// Whom this process learns from; empty for callers who may not know.
fn training_server(status: &ServiceStatus) -> &str {
    status.sync.as_ref().map_or("in-process", |sync| &sync.trainer_url)
}

fn status_json(state: &AppState, status: &ServiceStatus) -> Value {
    let [ttft_rows, tpot_rows] = status.trained_rows;
    let mut answer = json!({
        "is_ready": status.ready, "model_type": MODEL_TYPE, "objective_type": state.params.objective_type(),
        "quantile": state.params.quantile.get(), "last_model_load": status.fitted_at.map(rfc3339),
        "training_server_url": training_server(status),
        "models_exist": {
            "ttft_model": ttft_rows > 0, "tpot_model": tpot_rows > 0, "ttft_gated": false, "tpot_gated": false,
        },
        "ensemble_active": false,
        "engine": ENGINE, "version": env!("CARGO_PKG_VERSION"), "role": status.role.name(),
        "state": status.state.name(), "reason": status.reason, "ready_reason": status.ready_reason,
        "trained": ttft_rows > 0 || tpot_rows > 0,
        "not_learning_because": status.not_learning_because,
        "lineage": format!("{:016x}", status.version.lineage.0),
        "generation": status.version.generation.0, "revision": status.version.revision,
        "snapshot_made_at": rfc3339(status.made_at),
        "trained_rows": { "ttft": ttft_rows, "tpot": tpot_rows },
        "samples_accepted": status.ingest.accepted,
        "samples_refused": status.ingest.refused,
        "samples_dropped": status.ingest.dropped,
        "samples_queued": status.ingest.queued,
        "last_fit": status.learner.as_ref().and_then(|report| report.last_fit.as_ref())
            .map(|fit| fit_json(fit, status.last_fit_duration_ms)),
        "fits": status.learner.as_ref().map(fits_json),
        "persistence": {
            "state_dir_set": status.persistence.state_dir.is_some(), "ok": status.persistence.ok,
            "error": status.persistence.error, "failures": status.persistence.failures,
            "samples_unlogged": status.persistence.samples_unlogged, "log_bytes": status.persistence.log_bytes,
            "samples_restored": status.persistence.samples_restored, "notices": status.persistence.notices,
        },
        "seed": status.seed.as_ref().map(|seed| json!({
            "file": seed.file, "lineage": format!("{:016x}", seed.origin.lineage.0),
            "generation": seed.origin.generation.0, "fitted_at": seed.fitted_at.map(rfc3339),
            "answers": seed.answers.iter().map(|(role, target)| json!({ "role": role.name(), "target": target.name() }))
                .collect::<Vec<_>>(),
        })),
        "seed_ignored": status.seed_ignored,
        "sync": status.sync.as_ref().map(|sync| json!({
            "trainer_url": sync.trainer_url, "connected": sync.connected,
            "last_success_at": sync.last_success_at.map(rfc3339), "failures": sync.failures, "error": sync.error,
        })),
        "started_at": rfc3339(status.started_at),
    });
    if let Some(report) = &status.learner {
        answer["targets"] = report
            .targets
            .iter()
            .filter(|target| target.role == Role::Both)
            .map(|target| (target.target.name().to_string(), target_json(target)))
            .collect::<serde_json::Map<_, _>>()
            .into();
        // Roles that are learnt apart; those without samples are absent.
        for role in [Role::Prefill, Role::Decode] {
            for target in report.targets.iter().filter(|target| target.role == role) {
                answer["roles"][role.name()][target.target.name()] = target_json(target);
            }
        }
        answer["alarms"] = report.alarms.iter().map(alarm_json).collect();
        answer["screen"] = screen_json(&report.screen);
    }
    answer
}

fn alarm_json(alarm: &Alarm) -> Value {
    let factor = match alarm.cause {
        AlarmCause::Shift { log_shift } => Some(log_shift.exp()),
        AlarmCause::Fingerprint => None,
    };
    json!({
        "at": rfc3339(alarm.at), "changed_at": rfc3339(alarm.changed_at), "observations": alarm.observations,
        "role": alarm.role.name(), "target": alarm.target.name(),
        "endpoint": alarm.endpoint.as_ref().map(|name| name.as_str()), "cause": alarm.cause.name(), "factor": factor,
    })
}

fn screen_json(screen: &ScreenReport) -> Value {
    let reasons: serde_json::Map<String, Value> = Reason::ALL
        .iter()
        .filter(|reason| screen.count(**reason) > 0)
        .map(|reason| (reason.name().to_string(), json!(screen.count(*reason))))
        .collect();
    let suspicions: Vec<Value> = screen
        .suspicions
        .iter()
        .map(|suspicion| json!({ "name": suspicion.name(), "says": suspicion.to_string() }))
        .collect();
    json!({ "samples": screen.samples, "reasons": reasons, "suspicions": suspicions })
}

fn fit_json(fit: &FitReport, duration_ms: Option<f64>) -> Value {
    let by_target = |target: Target| {
        json!({ "rows": fit.of(target).map(|part| part.rows).sum::<usize>(),
            "outcome": fit.of(target).next().map(|part| part.outcome.name()),
            "trees": fit.of(target).next().map(|part| json!({ "p50": part.trees[0], "p90": part.trees[1] })) })
    };
    json!({
        "at": rfc3339(fit.at), "started_by": fit.reason.name(), "duration_ms": duration_ms,
        "generation": fit.generation.0, "published": fit.published(),
        "ttft": by_target(Target::Ttft), "tpot": by_target(Target::Tpot),
    })
}

fn fits_json(report: &LearnerReport) -> Value {
    FitOutcome::ALL.iter().zip(report.fits).map(|(outcome, count)| (outcome.name(), count)).collect()
}

fn target_json(target: &TargetReport) -> Value {
    let by_load: serde_json::Map<String, Value> = LOAD_BANDS
        .iter()
        .zip(&target.by_load)
        .map(|(band, accuracy)| (format!("waiting {band}"), accuracy_json(accuracy)))
        .collect();
    let recent: serde_json::Map<String, Value> = ACCURACY_WINDOWS
        .iter()
        .zip(&target.recent)
        .map(|(window, accuracy)| (window.to_string(), accuracy_json(accuracy)))
        .collect();
    let scales: serde_json::Map<String, Value> = target
        .scales
        .iter()
        .map(|scale| {
            let entry = json!({ "factor": scale.log_scale.exp(), "samples": scale.rows });
            (scale.endpoint.as_str().to_string(), entry)
        })
        .collect();
    json!({
        "observed": target.observed, "stored": target.stored, "evicted": target.evicted,
        "fitted_rows": target.fitted_rows, "new_samples": target.new_samples, "next_fit_at": target.next_fit_at,
        "trees": { "p50": target.trees[0], "p90": target.trees[1] },
        "accuracy": accuracy_json(&target.accuracy), "accuracy_by_load": by_load, "accuracy_of_latest": recent,
        "extrapolating_share": target.extrapolating_share, "alarms": target.alarms,
        "tracker_gain": { "p50": target.tracker_gain[0], "p90": target.tracker_gain[1] },
        "endpoint_scales": scales,
        "promised": {
            "pairs": target.promised.pairs, "mape": target.promised.mape, "coverage": target.promised.coverage,
        },
        "offset_factor": { "p50": target.offset_factor[0], "p90": target.offset_factor[1] },
    })
}

fn accuracy_json(accuracy: &Accuracy) -> Value {
    json!({
        "pairs": accuracy.pairs, "mape": accuracy.mape,
        "coverage_p50": accuracy.coverage_p50, "coverage_p90": accuracy.coverage_p90,
        "pinball_p50_ms": accuracy.pinball_p50_ms, "pinball_p90_ms": accuracy.pinball_p90_ms,
    })
}
