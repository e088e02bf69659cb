//! The incumbent's known faults, each with a test that would catch it here. S3, S7 and the limits of S25 and S26 are in
//! `bad_input`; S9 to S11 (one bundle per generation) and S22 also in `life`.

use foretoken::http::HttpParams;
use serde_json::{Value, json};

use crate::support::{Sidecar, call, row, service_params, training_rows, wait_for};

#[test]
fn s1_untrained_is_not_ready_and_says_so_and_rows_do_train() {
    let sidecar = Sidecar::start();
    let ready = sidecar.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.json()["reason"].as_str().unwrap().contains("no fit yet"));
    let status = sidecar.status();
    assert_eq!(
        (&status["trained"], &status["state"], &status["generation"]),
        (&json!(false), &json!("prior"), &json!(0))
    );
    assert_eq!(status["not_learning_because"], "no sample was ever received");
    sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..5) }));
    wait_for("the count towards the first fit", || {
        sidecar.status()["not_learning_because"]
            .as_str()
            .is_some_and(|why| why.contains("5 of 10 samples for the first ttft fit"))
    });
    let sidecar = sidecar.trained(200);
    let status = sidecar.status();
    assert_eq!((&status["trained"], &status["not_learning_because"]), (&json!(true), &Value::Null));
    assert_eq!(sidecar.get("/readyz").status, 200);
    let ttft = sidecar.post("/predict", &row()).json()["ttft_ms"].as_f64().unwrap();
    assert!(ttft > 20.0, "learnt, not an invented 10 ms: {ttft}");
}

#[test]
fn s2_i9_every_route_answers_the_same_row_alike() {
    let sidecar = Sidecar::start().trained(200);
    let single = sidecar.post("/predict", &row()).json();
    let strict = sidecar.post("/predict/bulk/strict", &json!({ "requests": [row()] })).json()["predictions"][0].clone();
    let lenient = sidecar.post("/predict/bulk", &json!({ "requests": [row()] })).json()["predictions"][0].clone();
    let explained = sidecar.post("/explain", &row()).json();
    for target in ["ttft", "tpot"] {
        let field = format!("{target}_ms");
        assert_eq!(single[&field], strict[&field]);
        assert_eq!(single[&field], lenient[&field]);
        assert_eq!(single[&field], explained[target]["answer_ms"]);
    }
    let mut busier = row();
    busier["prefill_tokens_in_flight"] = json!(30_000);
    assert!(
        sidecar.post("/predict", &busier).json()["ttft_ms"].as_f64() > single["ttft_ms"].as_f64(),
        "tokens in flight count"
    );
}

#[test]
fn the_explanation_multiplies_up_to_the_answer() {
    let sidecar = Sidecar::start().trained(200);
    let explained = sidecar.post("/explain", &row()).json();
    for target in ["ttft", "tpot"] {
        let part = &explained[target];
        let number = |value: &Value| value.as_f64().unwrap();
        let log = |anchor: &str| {
            let columns = part["base"]["columns"].as_array().unwrap();
            let sum: f64 = columns.iter().map(|column| number(&column["contribution_ms"][anchor])).sum();
            assert!((sum.max(1.0) - number(&part["base"]["base_ms"][anchor])).abs() < 1e-6);
            sum.max(1.0).ln()
                + number(&part["regime"]["log"][anchor])
                + number(&part["residual"]["fade"]) * number(&part["residual"]["log"][anchor])
                + number(&part["offset"]["log"][anchor])
        };
        let answer = (log("p50") + number(&part["k"]) * number(&part["spread_log"])).exp();
        assert!((answer / number(&part["answer_ms"]) - 1.0).abs() < 1e-6, "{target}: {answer} {part}");
        assert!((log("p90") - log("p50") + number(&part["widening_log"]) - number(&part["spread_log"])).abs() < 1e-6);
    }
}

#[test]
fn s4_s5_odd_rows_are_refused_or_mapped_and_learning_goes_on() {
    let sidecar = Sidecar::start();
    let mut rows = training_rows(0..60);
    rows[1]["actual_ttft_ms"] = json!("Infinity");
    rows[2]["pod_type"] = json!("both of them");
    rows[3]["pod_type"] = Value::Null;
    rows[4]["actual_ttft_ms"] = json!(1e12);
    rows[5]["actual_ttft_ms"] = json!(0);
    rows[5]["actual_tpot_ms"] = json!(0);
    let receipt = sidecar.post("/add_training_data_bulk", &json!({ "entries": rows })).json();
    assert_eq!((&receipt["accepted"], &receipt["refused"]), (&json!(57), &json!(3)), "{receipt}");
    let sidecar = sidecar.trained(0);
    let refused = sidecar.status()["samples_refused"].clone();
    assert_eq!(refused, json!({ "no_outcome": 1, "not_finite": 1, "out_of_range": 1 }));
    assert!(sidecar.get("/metrics").text().contains("foretoken_unknown_roles_total 1"));
    assert_eq!(sidecar.status()["fits"]["failed"], 0);
}

#[test]
fn s6_one_bad_row_costs_only_itself() {
    let sidecar = Sidecar::start().trained(200);
    let mut rows = training_rows(0..3);
    rows[1]["kv_cache_percentage"] = json!(1.01);
    let receipt = sidecar.post("/add_training_data_bulk", &json!({ "entries": rows }));
    assert_eq!(receipt.status, 202);
    let receipt = receipt.json();
    assert_eq!((&receipt["accepted"], &receipt["refused"], &receipt["dropped"]), (&json!(2), &json!(1), &json!(0)));
    assert_eq!(receipt["errors"][0]["loc"], json!(["body", "entries", 1, "kv_cache_percentage"]));
    let mut bad = row();
    bad["prefix_cache_score"] = json!(1.0001);
    let lenient = sidecar.post("/predict/bulk", &json!({ "requests": [row(), bad, row()] })).json();
    assert!(lenient["predictions"][0].is_object() && lenient["predictions"][2].is_object());
    assert!(lenient["predictions"][1].is_null());
    assert_eq!(lenient["errors"][0]["index"], 1);
    assert!(lenient["errors"][0]["error"].as_str().unwrap().contains("prefix_cache_score"));
    assert_eq!((&lenient["successful_predictions"], &lenient["failed_predictions"]), (&json!(2), &json!(1)));
}

#[test]
fn s8_an_outage_is_503_on_every_route() {
    let sidecar = Sidecar::start();
    for path in ["/predict/bulk", "/predict/bulk/strict"] {
        let answer = sidecar.post(path, &json!({ "requests": [row()] }));
        assert_eq!(answer.status, 503);
        assert!(answer.json()["detail"].as_str().unwrap().starts_with("Models not ready"));
    }
    assert_eq!(sidecar.post("/predict", &row()).status, 503);
}

#[test]
fn s9_s11_one_generation_per_answer_and_per_target() {
    let sidecar = Sidecar::start().trained(200);
    for _ in 0..20 {
        sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..100) }));
        let answer = sidecar.post("/predict/bulk/strict", &json!({ "requests": vec![row(); 50] })).json();
        let predictions = answer["predictions"].as_array().unwrap();
        assert!(predictions.iter().all(|one| one["generation"] == predictions[0]["generation"]));
        assert!(predictions.iter().all(|one| one["ttft_ms"] == predictions[0]["ttft_ms"]));
    }
}

#[test]
fn s10_s12_s28_the_bundle_is_tagged_checked_and_the_only_export() {
    let sidecar = Sidecar::start().trained(200);
    let first = sidecar.get("/model/snapshot");
    let tag = first.header("etag").unwrap();
    foretoken::snapshot::decode(&first.body).unwrap();
    let again = call(&sidecar.address, "GET", "/model/snapshot", &[("if-none-match", &tag)], b"");
    assert_eq!((again.status, again.body.len()), (304, 0));
    let export = sidecar.get("/model/export");
    assert!(export.header("content-disposition").unwrap().contains("foretoken.snapshot"));
    assert_eq!(
        foretoken::snapshot::decode(&export.body).unwrap().version.lineage,
        foretoken::snapshot::decode(&first.body).unwrap().version.lineage
    );
    // A question held open is answered as soon as there is something newer.
    let address = sidecar.address.clone();
    let serving = sidecar.get("/model/snapshot").header("etag").unwrap();
    let held = std::thread::spawn(move || {
        call(&address, "GET", "/model/snapshot?wait_ms=20000", &[("if-none-match", &serving)], b"")
    });
    sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..100) }));
    let pushed = held.join().unwrap();
    assert_eq!(pushed.status, 200);
    assert_ne!(pushed.header("etag"), Some(tag));
}

#[test]
fn s13_s14_importances_are_named_by_the_columns_they_belong_to() {
    let sidecar = Sidecar::start().trained(200);
    for target in ["ttft", "tpot"] {
        let answer = sidecar.get(&format!("/model/{target}/lgb/importances"));
        assert_eq!(answer.status, 200);
        let importances = answer.json();
        let explained = sidecar.post("/explain", &json!({
            "kv_cache_percentage": 0.4, "input_token_length": 2000, "num_request_waiting": 0, "num_request_running": 7,
            "num_tokens_generated": 1, "prefix_cache_score": 0.6
        })).json();
        for column in explained[target]["base"]["columns"].as_array().unwrap() {
            assert_eq!(importances[column["column"].as_str().unwrap()], column["coefficient_ms"]["p50"]);
        }
    }
    let metrics = sidecar.get("/metrics").text();
    assert!(!metrics.contains("_coef"), "no coefficient that a client might compute with");
}

#[test]
fn s15_the_label_is_what_is_answered() {
    let params = HttpParams {
        ask: foretoken::types::Ask::Quantile(foretoken::types::Quantile::P50),
        quantile: foretoken::types::Quantile::P50,
        ..HttpParams::default()
    };
    let sidecar = Sidecar::with(service_params(None), params).trained(200);
    let mut asked = row();
    asked["quantiles"] = json!([0.5, 0.9, 0.99]);
    let answer = sidecar.post("/predict", &asked).json();
    assert_eq!(answer["quantile"], 0.5);
    assert_eq!(answer["ttft_ms"], answer["quantiles"]["ttft_ms"]["0.5"]);
    assert!(answer["quantiles"]["ttft_ms"]["0.9"].as_f64() > answer["ttft_ms"].as_f64());
    let params = HttpParams { ask: foretoken::types::Ask::Mean, ..HttpParams::default() };
    let sidecar = Sidecar::with(service_params(None), params).trained(200);
    let answer = sidecar.post("/predict", &asked).json();
    assert_eq!((&answer["objective_type"], &answer["quantile"]), (&json!("mean"), &json!(0.9)));
    assert!(answer["ttft_ms"].as_f64() > answer["quantiles"]["ttft_ms"]["0.5"].as_f64());
}

#[test]
fn s16_bounds_are_measured_and_in_order() {
    let sidecar = Sidecar::start().trained(200);
    let answer = sidecar.post("/predict", &row()).json();
    for target in ["ttft", "tpot"] {
        let bounds = answer[format!("{target}_prediction_bounds")].as_array().unwrap();
        let (low, high) = (bounds[0].as_f64().unwrap(), bounds[1].as_f64().unwrap());
        assert!(0.0 < low && low < high);
        let half = answer[format!("{target}_uncertainty")].as_f64().unwrap();
        assert!((half - (high - low) / 2.0).abs() < 1e-9);
        let fixed_share = half / answer[format!("{target}_ms")].as_f64().unwrap();
        assert!((fixed_share - 0.1).abs() > 1e-3, "not a fixed tenth: {fixed_share}");
    }
}

#[test]
fn s17_s20_scores_are_of_predictions_made_before_and_fits_are_judged() {
    let sidecar = Sidecar::start().trained(200);
    // The account follows the model that serves by a moment.
    wait_for("scores", || sidecar.status()["targets"]["ttft"]["accuracy"]["pairs"].as_u64() > Some(0));
    let status = sidecar.status();
    let accuracy = &status["targets"]["ttft"]["accuracy"];
    assert!(accuracy["pairs"].as_u64() > Some(0) && accuracy["coverage_p90"].is_number());
    let bands = status["targets"]["ttft"]["accuracy_by_load"].as_object().unwrap();
    let sum: u64 = bands.values().map(|band| band["pairs"].as_u64().unwrap()).sum();
    assert_eq!(Some(sum), accuracy["pairs"].as_u64());
    assert!(status["last_fit"]["ttft"]["outcome"].is_string() || status["last_fit"]["tpot"]["outcome"].is_string());
    assert!(status["fits"]["rejected_worse"].is_number());
}

#[test]
fn s18_s27_flush_is_two_things_and_guarded() {
    let params =
        HttpParams { admin_token: Some("sesame".into()), ingest_token: Some("in".into()), ..HttpParams::default() };
    let guarded = Sidecar::with(service_params(None), params);
    for (path, token, status) in [
        ("/flush", "", 401),
        ("/flush", "Bearer sesam", 401),
        ("/flush", "Bearer sesame", 200),
        ("/reload", "", 401),
        ("/reload", "Bearer sesame", 200),
        ("/add_training_data_bulk", "", 401),
        ("/add_training_data_bulk", "Bearer in", 202),
    ] {
        let headers = [("content-type", "application/json"), ("authorization", token)];
        let body: &[u8] = if path == "/add_training_data_bulk" { b"{\"entries\":[]}" } else { b"" };
        assert_eq!(call(&guarded.address, "POST", path, &headers, body).status, status, "{path} {token}");
    }
    let sidecar = Sidecar::start().trained(200);
    let generation = sidecar.status()["generation"].as_u64().unwrap();
    let flushed = sidecar.post_text("/flush", "").json();
    assert_eq!((&flushed["success"], &flushed["ttft_training_samples_flushed"]), (&json!(true), &json!(200)));
    assert_eq!(sidecar.get("/data/status").json()["training_data"]["total_samples"], 0);
    assert_eq!(sidecar.get("/readyz").status, 200, "samples are forgotten, the model is not");
    let flushed = sidecar.post("/flush", &json!({ "flush_models": true, "reason": "new engine" })).json();
    assert_eq!((&flushed["models_flushed"], &flushed["reason"]), (&json!(true), &json!("new engine")));
    assert_eq!(sidecar.get("/readyz").status, 503);
    assert!(sidecar.status()["generation"].as_u64().unwrap() > generation, "generations only rise");
    let refused = sidecar.post("/flush", &json!({ "flush_metrics": "perhaps" }));
    assert_eq!((refused.status, &refused.json()["detail"][0]["loc"]), (422, &json!(["body", "flush_metrics"])));
}

#[test]
fn s19_the_first_fit_needs_no_timer() {
    let sidecar = Sidecar::start().trained(10);
    assert_eq!(sidecar.status()["last_fit"]["started_by"], "samples");
    let generation = sidecar.status()["generation"].clone();
    // Without new rows there is no new fit.
    sidecar.get("/data/status");
    assert_eq!(sidecar.status()["generation"], generation);
}

#[test]
fn s21_a_big_batch_is_computed_off_the_threads_that_answer_others() {
    let sidecar = Sidecar::start().trained(200);
    let big = json!({ "requests": vec![row(); 10_000] }).to_string();
    let address = sidecar.address.clone();
    let batches: Vec<_> = (0..4)
        .map(|_| {
            let (address, big) = (address.clone(), big.clone());
            std::thread::spawn(move || {
                call(&address, "POST", "/predict/bulk/strict", &[("content-type", "application/json")], big.as_bytes())
            })
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(sidecar.get("/healthz").status, 200);
    }
    for batch in batches {
        assert_eq!(batch.join().unwrap().json()["successful_predictions"], 10_000);
    }
}

#[test]
fn s23_generated_tokens_are_never_an_input() {
    let sidecar = Sidecar::start().trained(200);
    let mut long = row();
    long["num_tokens_generated"] = json!(5000);
    assert_eq!(sidecar.post("/predict", &long).json()["tpot_ms"], sidecar.post("/predict", &row()).json()["tpot_ms"]);
}

#[test]
fn s24_metrics_are_typed_bounded_and_as_the_table_says() {
    let sidecar = Sidecar::start().trained(200);
    sidecar.get("/some/unknown/path");
    // Series appear with their first event: a refusal and a promise.
    let mut rows = training_rows(0..2);
    rows[0]["kv_cache_percentage"] = json!(2);
    rows[1]["predicted_ttft_ms"] = json!(50);
    sidecar.post("/add_training_data_bulk", &json!({ "entries": rows }));
    wait_for("the promise in the account", || sidecar.status()["targets"]["ttft"]["promised"]["pairs"] == 1);
    let answer = sidecar.get("/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("application/openmetrics-text"));
    let text = answer.text();
    assert!(text.ends_with("# EOF\n"));
    let table: std::collections::BTreeMap<&str, &str> = foretoken::telemetry::METRICS
        .iter()
        .map(|metric| {
            let kind = match metric.kind {
                foretoken::telemetry::MetricKind::Counter => "counter",
                foretoken::telemetry::MetricKind::Gauge => "gauge",
                foretoken::telemetry::MetricKind::Histogram => "histogram",
            };
            (metric.name, kind)
        })
        .collect();
    let exposed: std::collections::BTreeMap<&str, &str> =
        text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' ')).collect();
    for (name, kind) in &table {
        // Only a follower has a link, and only a pool of endpoints has scales.
        let absent = ["foretoken_sync_connected", "foretoken_endpoint_scale"].contains(name);
        let expected = if absent { None } else { Some(kind) };
        assert_eq!(exposed.get(name), expected, "{name}");
    }
    assert!(exposed.keys().all(|name| table.contains_key(name)), "{exposed:?}");
    assert!(text.lines().count() < 400, "no hundreds of zero lines");
    assert!(text.contains("foretoken_http_calls_total{route=\"other\",status=\"4xx\"} 1"));
    assert!(text.contains("ttft_coverage_percent{idx=\"0\"}"));
    crate::cli::golden("metrics.txt", &names(&table));
}

fn names(table: &std::collections::BTreeMap<&str, &str>) -> String {
    table.iter().map(|(name, kind)| format!("{name} {kind}\n")).collect()
}

#[test]
fn s29_no_path_of_this_machine_and_no_url_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let sidecar = Sidecar::with(service_params(Some(folder.path())), HttpParams::default()).trained(200);
    let secret = folder.path().to_string_lossy().into_owned();
    for path in ["/", "/status", "/models/list", "/model/ttft/info", "/model/download/info", "/metrics", "/data/status"]
    {
        assert!(!sidecar.get(path).text().contains(&secret), "{path}");
    }
    assert_eq!(sidecar.get("/model/ttft/info").json()["path"], "ttft.snapshot");
}
