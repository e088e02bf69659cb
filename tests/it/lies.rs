//! Samples that say how their request went: each field taken or refused by name, and never at the cost of a good row.

use proptest::prelude::*;
use serde_json::{Value, json};

use crate::support::{Sidecar, call, service_params, training_rows, wait_for};

const PATH: &str = "/add_training_data_bulk";

/// A good training row with other values in some fields.
fn row(changes: Value) -> Value {
    let mut row = training_rows(0..1).remove(0);
    for (field, value) in changes.as_object().unwrap() {
        row[field] = value.clone();
    }
    row
}

fn entries(rows: &[Value]) -> Value {
    json!({ "entries": rows })
}

#[test]
fn what_is_said_of_how_it_went_is_taken() {
    let sidecar = Sidecar::start();
    let rows = [
        row(json!({})),
        row(json!({ "streaming": true, "outcome": "completed", "num_chunks": 762, "fingerprint": "vllm 0.11, H100" })),
        row(json!({ "streaming": null, "outcome": null, "num_chunks": null, "fingerprint": null })),
        row(json!({ "streaming": "false", "outcome": "", "num_chunks": "12", "fingerprint": "" })),
        row(json!({ "outcome": "timeout", "actual_ttft_ms": 30_000, "actual_tpot_ms": 0 })),
        row(json!({ "outcome": "aborted", "num_chunks": 0, "actual_ttft_ms": 0, "actual_tpot_ms": 0 })),
        row(json!({ "outcome": "failed", "actual_ttft_ms": 0, "actual_tpot_ms": 0 })),
        row(json!({ "fingerprint": { "model": "qwen3-32b", "engine": "vllm 0.11", "gpus": 2 } })),
    ];
    let receipt = sidecar.post(PATH, &entries(&rows));
    assert_eq!((receipt.status, &receipt.json()["accepted"]), (202, &json!(rows.len())), "{}", receipt.text());
    wait_for("all to arrive", || sidecar.status()["samples_queued"] == 0);
    assert_eq!(sidecar.status()["samples_accepted"], rows.len());
}

#[test]
fn what_cannot_be_understood_is_refused_by_name_beside_good_rows() {
    let sidecar = Sidecar::start();
    let cases = [
        ("outcome", json!("cancelled"), "literal_error", "unknown_outcome"),
        ("outcome", json!("Completed"), "literal_error", "unknown_outcome"),
        ("outcome", json!(1), "string_type", "wrong_type"),
        ("streaming", json!("maybe"), "bool_parsing", "wrong_type"),
        ("streaming", json!([]), "bool_type", "wrong_type"),
        ("num_chunks", json!(-1), "greater_than_equal", "out_of_range"),
        ("num_chunks", json!(1.5), "int_from_float", "wrong_type"),
        ("num_chunks", json!(1e12), "less_than_equal", "out_of_range"),
        ("fingerprint", json!({ "gpu": "H100" }), "fingerprint", "bad_fingerprint"),
        ("fingerprint", json!({ "model": ["a"] }), "fingerprint", "bad_fingerprint"),
        ("fingerprint", json!("x".repeat(600)), "fingerprint", "bad_fingerprint"),
    ];
    let mut refused = std::collections::BTreeMap::new();
    for (field, value, kind, reason) in cases {
        let bad = row(json!({ field: value }));
        let receipt = sidecar.post(PATH, &entries(&[row(json!({})), bad.clone(), row(json!({}))]));
        let text = receipt.text();
        assert_eq!(receipt.status, 202, "{text}");
        let receipt = receipt.json();
        assert_eq!((&receipt["accepted"], &receipt["refused"]), (&json!(2), &json!(1)), "{text}");
        let error = &receipt["errors"][0];
        assert_eq!(
            (&error["index"], &error["field"], &error["type"]),
            (&json!(1), &json!(field), &json!(kind)),
            "{text}"
        );
        *refused.entry(reason).or_insert(0) += 1;
        // Alone, the same row is a call in vain.
        let alone = sidecar.post(PATH, &entries(&[bad]));
        assert_eq!((alone.status, &alone.json()["detail"][0]["type"]), (422, &json!(kind)), "{}", alone.text());
        *refused.entry(reason).or_insert(0) += 1;
    }
    assert_eq!(sidecar.status()["samples_refused"], json!(refused));
    let unknown = sidecar.post(PATH, &entries(&[row(json!({ "outcome": "gone" }))])).json();
    let message = unknown["detail"][0]["msg"].as_str().unwrap();
    assert!(message.contains("'completed', 'failed', 'timeout' or 'aborted'"), "{message}");
    assert_eq!(unknown["detail"][0]["input"], "gone");
}

#[test]
fn without_any_latency_only_a_request_that_was_broken_off_says_something() {
    let sidecar = Sidecar::start();
    for (outcome, status) in [("completed", 422), ("timeout", 422), ("failed", 202), ("aborted", 202)] {
        let nothing = row(json!({ "outcome": outcome, "actual_ttft_ms": 0, "actual_tpot_ms": 0 }));
        let answer = sidecar.post(PATH, &entries(&[nothing]));
        assert_eq!(answer.status, status, "{outcome}: {}", answer.text());
        if status == 422 {
            assert_eq!(answer.json()["detail"][0]["type"], "no_outcome");
        }
    }
    // The wire requires both fields all the same.
    let mut short = row(json!({ "outcome": "failed" }));
    short.as_object_mut().unwrap().remove("actual_tpot_ms");
    assert_eq!(sidecar.post(PATH, &entries(&[short])).json()["detail"][0]["type"], "missing");
}

#[test]
fn the_fields_of_a_sample_mean_nothing_to_a_prediction() {
    let sidecar = Sidecar::start().trained(200);
    let odd = row(json!({ "outcome": 7, "streaming": {}, "num_chunks": "x", "fingerprint": [[]] }));
    assert_eq!(sidecar.post("/predict", &odd).status, 200);
    assert_eq!(sidecar.post("/predict/bulk/strict", &json!({ "requests": [odd] })).status, 200);
}

#[test]
fn how_it_went_survives_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::with(service_params(Some(folder.path())), Default::default());
    let mut rows = training_rows(0..30);
    rows.extend((0..20).map(|_| row(json!({ "outcome": "failed", "fingerprint": "a" }))));
    rows.extend((0..10).map(|_| row(json!({ "outcome": "failed", "actual_ttft_ms": 0, "actual_tpot_ms": 0 }))));
    assert_eq!(sidecar.post(PATH, &entries(&rows)).json()["accepted"], 60);
    wait_for("all to arrive", || sidecar.status()["samples_queued"] == 0);
    sidecar.stop();
    let again = Sidecar::with(service_params(Some(folder.path())), Default::default());
    assert_eq!(again.status()["samples_accepted"], 60);
    wait_for("those that teach to come back, and no others", || {
        again.status()["persistence"]["samples_restored"] == 30
    });
}

/// Any JSON at all, as text: with numbers that JSON does not have among it.
fn any_json() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_string()),
        any::<bool>().prop_map(|flag| flag.to_string()),
        any::<i64>().prop_map(|number| number.to_string()),
        any::<u64>().prop_map(|number| number.to_string()),
        any::<f64>().prop_map(|number| json!(number).to_string()),
        prop::sample::select(vec!["NaN", "-Infinity", "1e999", "\"\"", "\"failed\"", "\"timeout\"", "\"completed\""])
            .prop_map(str::to_string),
        any::<String>().prop_map(|text| json!(text).to_string()),
    ];
    leaf.prop_recursive(3, 20, 4, |inner| {
        let key = prop::sample::select(vec!["model", "engine", "flags", "accelerator", "a", "\\u0000"]);
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(|items| format!("[{}]", items.join(","))),
            prop::collection::vec((key, inner), 0..4).prop_map(|entries| {
                let entries: Vec<String> = entries.iter().map(|(key, value)| format!("\"{key}\": {value}")).collect();
                format!("{{{}}}", entries.join(","))
            }),
        ]
    })
}

#[test]
fn whatever_stands_in_these_fields_costs_no_good_row() {
    let sidecar = Sidecar::start();
    let field = prop::sample::select(vec!["streaming", "outcome", "num_chunks", "fingerprint", "dispatched_at"]);
    let odd = prop::collection::vec((field, any_json()), 1..8);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(200)
    });
    let good = row(json!({})).to_string();
    let result = runner.run(&odd, |odd| {
        let mut rows = vec![good.clone()];
        for (field, value) in &odd {
            rows.push(good.replacen('{', &format!("{{\"{field}\": {value}, "), 1));
            rows.push(good.clone());
        }
        let body = format!("{{\"entries\": [{}]}}", rows.join(","));
        let receipt = call(&sidecar.address, "POST", PATH, &[("content-type", "application/json")], body.as_bytes());
        prop_assert_eq!(receipt.status, 202, "{}", receipt.text());
        let receipt = receipt.json();
        let count = |field: &str| receipt[field].as_u64().unwrap() as usize;
        prop_assert_eq!(count("accepted") + count("refused"), rows.len());
        prop_assert!(count("refused") <= odd.len());
        for error in receipt["errors"].as_array().unwrap() {
            prop_assert_eq!(error["index"].as_u64().unwrap() % 2, 1, "a good row was refused");
        }
        Ok(())
    });
    result.unwrap();
}
