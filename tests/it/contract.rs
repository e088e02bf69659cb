//! The recorded exchanges, replayed against the real server over real sockets. What is normative is compared (status,
//! field names and JSON types of success answers); a recorded fault is compared with what is right instead.

use foretoken::http::HttpParams;
use serde_json::{Value, json};

use crate::support::{Answer, Sidecar, call, service_params, training_rows};

/// What we answer where the recording shows a fault or another engine's particulars.
const INSTEAD: &[(&str, u16, &str)] = &[
    ("training_fresh_readyz", 503, "readiness means something"),
    ("training_fresh_predict", 503, "no invented 10 ms"),
    ("training_add_gzip_body", 202, "compressed bodies are read when they say so"),
    ("training_add_nan", 422, "the field is named"),
    ("training_add_one_bad_of_three", 202, "the good rows are kept"),
    ("prediction_bulk_one_bad", 200, "the bad row answers for itself"),
    ("prediction_cold_bulk", 503, "an outage is not hidden"),
    ("prediction_strict_nan", 422, "the field is named"),
    ("prediction_strict_huge_int", 422, "integers have limits"),
    ("prediction_predict_huge_int", 422, "integers have limits"),
    ("prediction_unknown_path", 200, "one server has the routes of both"),
    ("prediction_head_strict", 503, "it trains, or says that it has not"),
    ("training_model_ttft_xgb_json", 404, "the model is not XGBoost"),
    ("training_lightgbm_ttft_importances", 200, "plain numbers"),
];

/// Answers whose body is another engine's or another server's business: status only.
const STATUS_ONLY: &[&str] = &[
    "training_metrics",
    "training_openapi",
    "prediction_openapi",
    "training_model_download_ttft",
    "training_model_export",
    "training_model_ttft_lgb_txt_wrong_type",
    "prediction_wrong_method",
    "prediction_cold_readyz",
    "prediction_cold_strict",
    "training_debug_prefix_distribution",
    "training_trained_model_download_info",
];

fn exchanges() -> Vec<(String, Value)> {
    let mut all: Vec<(String, Value)> = std::fs::read_dir("tests/contract")
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "json"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap())
        })
        .collect();
    all.sort_by(|a, b| a.0.cmp(&b.0));
    all
}

/// Puts stand-ins back.
fn expand(value: &Value) -> Value {
    match value {
        Value::Array(items) => match items.as_slice() {
            [Value::String(word), from, to] if word == "$rows_of_training_rows.jsonl" => {
                json!(training_rows(from.as_u64().unwrap() as usize..to.as_u64().unwrap() as usize))
            }
            [Value::String(word), count, item] if word == "$repeat" => {
                json!(vec![expand(item); count.as_u64().unwrap() as usize])
            }
            items => Value::Array(items.iter().map(expand).collect()),
        },
        Value::Object(fields) => fields.iter().map(|(name, value)| (name.clone(), expand(value))).collect(),
        other => other.clone(),
    }
}

fn send(sidecar: &Sidecar, exchange: &Value) -> Answer {
    let mut headers: Vec<(String, String)> = exchange["request_headers"]
        .as_object()
        .map(|headers| {
            headers.iter().map(|(name, value)| (name.clone(), value.as_str().unwrap().to_string())).collect()
        })
        .unwrap_or_default();
    let body = match &exchange["request_body"] {
        Value::Null => Vec::new(),
        Value::String(text) => match text.strip_prefix("$gzip of ") {
            Some(plain) => {
                use std::io::Write;
                if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("content-encoding")) {
                    headers.push(("content-encoding".to_string(), "gzip".to_string()));
                }
                let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
                gz.write_all(plain.as_bytes()).unwrap();
                gz.finish().unwrap()
            }
            None => text.clone().into_bytes(),
        },
        body => expand(body).to_string().into_bytes(),
    };
    let borrowed: Vec<(&str, &str)> = headers.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    call(&sidecar.address, exchange["method"].as_str().unwrap(), exchange["path"].as_str().unwrap(), &borrowed, &body)
}

/// Whether `ours` has every field of `theirs` with the same JSON type (null may stand for a value not there yet).
fn same_shape(path: &str, theirs: &Value, ours: &Value, faults: &mut Vec<String>) {
    match (theirs, ours) {
        (Value::Object(theirs), Value::Object(ours)) => {
            for (name, value) in theirs {
                // Buckets are data, and a path on the server is nobody's business.
                if path.ends_with(".bucket_distribution") || name == "ctx" {
                    continue;
                }
                match ours.get(name) {
                    Some(mine) => same_shape(&format!("{path}.{name}"), value, mine, faults),
                    None => faults.push(format!("{path}.{name} is missing")),
                }
            }
        }
        (Value::Array(theirs), Value::Array(ours)) => {
            if let (Some(theirs), Some(ours)) = (theirs.first(), ours.first()) {
                same_shape(&format!("{path}[0]"), theirs, ours, faults);
            }
        }
        (Value::Null, _) | (_, Value::Null) => {}
        (Value::Number(_), Value::Number(_))
        | (Value::String(_), Value::String(_))
        | (Value::Bool(_), Value::Bool(_)) => {}
        (theirs, ours) => faults.push(format!("{path} is {ours} where {theirs} was recorded")),
    }
}

#[test]
fn every_recorded_exchange_is_answered_as_it_should_be() {
    let fresh = Sidecar::start();
    // The gated, mean and other states differ in the model behind the same wire; one trained server stands for all.
    let trained = Sidecar::start().trained(600);
    let mut faults = Vec::new();
    let mut compared = 0;
    // Feeding and flushing come last, so that they do not change what others are compared with.
    let (first, last): (Vec<_>, Vec<_>) = exchanges()
        .into_iter()
        .partition(|(name, _)| !name.starts_with("training_flush") && !name.starts_with("training_add"));
    for (name, exchange) in first.into_iter().chain(last) {
        let state = exchange["state"].as_str().unwrap();
        let sidecar = if matches!(state, "cold" | "fresh" | "v090") { &fresh } else { &trained };
        let answer = send(sidecar, &exchange);
        let instead = INSTEAD.iter().find(|(known, _, _)| *known == name);
        let expected = instead.map_or(exchange["status"].as_u64().unwrap() as u16, |(_, status, _)| *status);
        compared += 1;
        if answer.status != expected {
            faults.push(format!(
                "{name}: {} instead of {expected}: {}",
                answer.status,
                &answer.text()[..answer.text().len().min(200)]
            ));
            continue;
        }
        let kind = answer.header("content-type").unwrap_or_default();
        if answer.status >= 400 && !kind.starts_with("application/json") {
            faults.push(format!("{name}: an error of type {kind}"));
        }
        if answer.status == 422 {
            let item = answer.json()["detail"][0].clone();
            for field in ["type", "loc", "msg", "input"] {
                if item.get(field).is_none() {
                    faults.push(format!("{name}: the 422 item has no {field}"));
                }
            }
            if instead.is_none()
                && let Some(theirs) = exchange["response_body"]["detail"].get(0)
                && (theirs["type"] != item["type"] || theirs["loc"] != item["loc"])
            {
                faults.push(format!("{name}: {item} where {theirs} was recorded"));
            }
        }
        let comparable = answer.status < 300 && exchange["response_body"].is_object() && instead.is_none();
        if comparable && !STATUS_ONLY.contains(&name.as_str()) {
            same_shape(&name, &exchange["response_body"], &answer.json(), &mut faults);
        }
    }
    assert!(compared >= 70, "only {compared} exchanges were found");
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn recorded_details_hold() {
    let sidecar = Sidecar::start().trained(200);
    let strict = sidecar.post("/predict/bulk/strict", &json!({ "requests": vec![row_of(1000), row_of(4000)] })).json();
    let predictions = strict["predictions"].as_array().unwrap();
    assert_eq!(predictions.len(), 2);
    assert!(predictions[0]["ttft_ms"].as_f64() < predictions[1]["ttft_ms"].as_f64(), "order is the request's");
    assert_eq!((&strict["total_requests"], &strict["failed_predictions"]), (&json!(2), &json!(0)));
    for field in ["predicted_at", "last_model_load"] {
        let text = predictions[0][field].as_str().unwrap();
        assert!(text.parse::<jiff::Timestamp>().is_ok(), "{field} {text}");
    }
    assert_eq!(predictions[0]["model_type"], "lightgbm");
    assert_eq!(sidecar.get("/model/download/info").json()["model_type"], "lightgbm");
    let redirect = sidecar.get("/readyz/");
    assert_eq!((redirect.status, redirect.header("location").as_deref()), (307, Some("/readyz")));
    let refused = sidecar.get("/predict");
    assert_eq!((refused.status, refused.header("allow").as_deref()), (405, Some("POST")));
    assert_eq!(refused.json()["detail"], "Method Not Allowed");
    assert_eq!(sidecar.get("/nope").json()["detail"], "Not Found");
}

fn row_of(length: u32) -> Value {
    let mut row = crate::support::row();
    row["input_token_length"] = json!(length);
    row
}

#[test]
fn a_calibrated_prior_answers_and_is_marked() {
    let mut params = service_params(None);
    params.learner.prior.calibrated = true;
    let sidecar = Sidecar::with(params, HttpParams::default());
    assert_eq!(sidecar.get("/readyz").status, 200);
    let answer = sidecar.post("/predict/bulk/strict", &json!({ "requests": [row_of(1000)] })).json();
    assert_eq!(answer["predictions"][0]["state"], "prior");
    assert_eq!(answer["predictions"][0]["generation"], 0);
}
