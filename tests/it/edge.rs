//! The HTTP edge's own promises: what the recorded exchanges do not show.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use foretoken::http::{AppState, ERROR_BYTES_MAX, HttpParams, ROUTES, openapi_document, router, serve};
use foretoken::service::{FollowParams, Service, ServiceRole};
use proptest::prelude::*;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::support::{PATIENCE, Sidecar, call, read_answer, row, service_params, training_rows, wait_for};

const JSON: (&str, &str) = ("content-type", "application/json");

fn with(field: &str, value: Value) -> Value {
    let mut row = row();
    row[field] = value;
    row
}

#[test]
fn the_description_lists_exactly_the_routes_there_are() {
    let document: Value = serde_json::from_str(&openapi_document()).unwrap();
    let mut described: Vec<(String, String)> = Vec::new();
    for (path, methods) in document["paths"].as_object().unwrap() {
        described.extend(methods.as_object().unwrap().keys().map(|method| (path.clone(), method.to_uppercase())));
    }
    // Those that describe are not described.
    let meta = ["/openapi.json", "/docs", "/redoc"];
    let mut routes: Vec<(String, String)> = ROUTES
        .iter()
        .filter(|(path, _)| !meta.contains(path))
        .map(|(path, method)| (path.to_string(), method.to_string()))
        .collect();
    described.sort();
    routes.sort();
    assert_eq!(described, routes);
}

#[test]
fn every_route_answers_and_names_its_one_method_to_all_others() {
    let sidecar = Sidecar::start().trained(200);
    for (route, method) in ROUTES {
        let path = route.replace("{name}", "ttft");
        let answer = call(&sidecar.address, method, &path, &[JSON], b"");
        assert!(answer.status != 404 || path.ends_with("/txt") || path.ends_with("/json"), "{path}: {}", answer.text());
        assert!(answer.status < 500, "{path}: {}", answer.text());
        for other in ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS"] {
            if other == *method {
                continue;
            }
            let refused = call_without_body(&sidecar.address, other, &path);
            assert_eq!(refused.0, 405, "{other} {path}");
            assert_eq!(refused.1.as_deref(), Some(*method), "{other} {path}");
        }
        if path != "/" {
            let redirected = call(&sidecar.address, method, &format!("{path}/?a=1"), &[JSON], b"");
            assert_eq!((redirected.status, redirected.header("location")), (307, Some(format!("{path}?a=1"))));
        }
    }
    for page in ["/docs", "/redoc"] {
        let page = sidecar.get(page);
        assert!(page.header("content-type").unwrap().starts_with("text/html"));
        assert!(page.text().contains("/predict/bulk/strict"));
    }
    assert_eq!(call_without_body(&sidecar.address, "HEAD", "/nope").0, 404);
}

/// Status and `allow` of a call whose answer may have no body, whatever its length says.
fn call_without_body(address: &str, method: &str, path: &str) -> (u16, Option<String>) {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(format!("{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    let allow = answer.lines().find_map(|line| line.strip_prefix("allow: ")).map(str::to_string);
    (status, allow)
}

#[test]
fn s29_where_things_are_is_told_to_a_known_administrator_only() {
    let folder = tempfile::tempdir().unwrap();
    // A port nobody listens on: bound, then freed.
    let trainer_url = {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", listener.local_addr().unwrap())
    };
    let mut params = service_params(Some(folder.path()));
    params.role = ServiceRole::Predict;
    params.follow = Some(FollowParams {
        trainer_url: trainer_url.clone(),
        retry_max: Duration::from_millis(50),
        stale_after: Duration::from_millis(1),
    });
    let http = HttpParams { admin_token: Some("sesame".into()), ..HttpParams::default() };
    let sidecar = Sidecar::with(params, http);
    wait_for("the link to be down", || sidecar.status()["sync"]["failures"].as_u64() > Some(0));
    let state_dir = folder.path().to_string_lossy().into_owned();
    for path in ["/", "/status", "/readyz", "/data/status", "/model/ttft/info", "/models/list", "/model/download/info"]
    {
        let text = sidecar.get(path).text();
        assert!(!text.contains(&trainer_url) && !text.contains(&state_dir), "{path}: {text}");
    }
    let refused = sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..1) })).text();
    assert!(!refused.contains(&trainer_url), "{refused}");
    let status = sidecar.status();
    assert!(status["training_server_url"].is_string());
    assert!(status["not_learning_because"].as_str().unwrap().starts_with("the trainer is out of reach: "), "{status}");
    let admin = [("authorization", "Bearer sesame")];
    let told = call(&sidecar.address, "GET", "/status", &admin, b"").json();
    assert_eq!(told["training_server_url"], json!(trainer_url));
}

#[test]
fn s6_a_receipt_names_twenty_bad_rows_in_two_thousand_bytes() {
    let sidecar = Sidecar::start();
    let mut rows = training_rows(0..1);
    rows.extend((0..5_000).map(|_| {
        let mut bad = with("prefill_tokens_in_flight", json!(-1));
        bad["actual_ttft_ms"] = json!(100);
        bad["actual_tpot_ms"] = json!(0);
        bad
    }));
    let receipt = sidecar.post("/add_training_data_bulk", &json!({ "entries": rows }));
    assert_eq!(receipt.status, 202);
    assert!(receipt.body.len() <= ERROR_BYTES_MAX, "{} bytes", receipt.body.len());
    let receipt = receipt.json();
    assert_eq!((&receipt["accepted"], &receipt["refused"]), (&json!(1), &json!(5_000)));
    let errors = receipt["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 20);
    for (position, error) in errors.iter().enumerate() {
        assert_eq!((&error["index"], &error["field"]), (&json!(position + 1), &json!("prefill_tokens_in_flight")));
        assert_eq!(error["type"], "greater_than_equal");
    }
    assert_eq!(errors[0]["ctx"], json!({ "ge": 0.0, "le": 1e9 }), "the first ones in full");
}

#[test]
fn s26_a_percentage_where_a_fraction_belongs_is_explained() {
    let sidecar = Sidecar::start();
    let item = sidecar.post("/predict", &with("kv_cache_percentage", json!(42))).json()["detail"][0].clone();
    assert_eq!(item["ctx"], json!({ "ge": 0.0, "le": 1.0 }));
    let message = item["msg"].as_str().unwrap();
    assert!(message.contains("allowed: 0 to 1") && message.contains("fraction"), "{message}");
}

#[test]
fn the_lenient_route_shows_bad_rows_as_they_were_understood() {
    let sidecar = Sidecar::start().trained(200);
    let mut short = with("kv_cache_percentage", json!("most of it"));
    short.as_object_mut().unwrap().remove("encoder_input_size");
    let mut rows = vec![row()];
    rows.resize(1_001, short);
    let answer = sidecar.post("/predict/bulk", &json!({ "requests": rows })).json();
    let errors = answer["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 1_000, "each bad row answers with its own error");
    assert_eq!(errors[0]["request"]["encoder_input_size"], 0, "defaults are filled in");
    assert_eq!(errors[0]["request"]["input_token_length"], 2000);
    assert_eq!(errors[0]["detail"][0]["type"], "float_parsing");
    assert_eq!((&errors[999]["index"], &errors[999]["request"]), (&json!(1_000), &Value::Null));
    assert!(errors[999]["error"].as_str().unwrap().starts_with("kv_cache_percentage: "));
}

#[test]
fn what_is_wrong_is_said_before_that_nothing_is_ready() {
    let sidecar = Sidecar::start();
    assert_eq!(sidecar.post("/predict", &with("num_request_waiting", json!(-1))).status, 422);
    assert_eq!(sidecar.post_text("/predict/bulk/strict", "{").status, 422);
    assert_eq!(sidecar.post("/predict", &row()).status, 503);
}

#[test]
fn a_whole_body_beyond_the_limit_is_answered_even_if_the_client_sends_all_of_it_first() {
    let sidecar = Sidecar::start();
    let mut stream = TcpStream::connect(&sidecar.address).unwrap();
    let head = format!(
        "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
        100 << 20
    );
    stream.write_all(head.as_bytes()).unwrap();
    let piece = vec![b' '; 1 << 20];
    for _ in 0..100 {
        stream.write_all(&piece).unwrap();
    }
    assert_eq!(read_answer(&mut stream).status, 413);
    // The same without saying the length beforehand.
    let mut stream = TcpStream::connect(&sidecar.address).unwrap();
    stream.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n").unwrap();
    for _ in 0..40 {
        stream.write_all(b"100000\r\n").unwrap();
        stream.write_all(&piece).unwrap();
        stream.write_all(b"\r\n").unwrap();
    }
    stream.write_all(b"0\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut stream).status, 413);
    // One who asks first is told at once.
    let mut stream = TcpStream::connect(&sidecar.address).unwrap();
    stream.write_all(head.replace("\r\n\r\n", "\r\nexpect: 100-continue\r\n\r\n").as_bytes()).unwrap();
    assert_eq!(read_answer(&mut stream).status, 413);
}

#[test]
fn one_connection_carries_good_and_bad_calls_one_after_another() {
    let sidecar = Sidecar::start().trained(200);
    let mut stream = TcpStream::connect(&sidecar.address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut ask = |body: &str| {
        let head = "POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
        // In pieces, as a slow network would bring it.
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(format!("content-length: {}\r\n\r\n", body.len()).as_bytes()).unwrap();
        let (first, second) = body.split_at(body.len() / 2);
        stream.write_all(first.as_bytes()).unwrap();
        stream.flush().unwrap();
        stream.write_all(second.as_bytes()).unwrap();
        read_answer(&mut stream).status
    };
    let good = row().to_string();
    for (body, status) in
        [(good.as_str(), 200), ("{", 422), ("{}", 422), (good.as_str(), 200), ("[]", 422), (good.as_str(), 200)]
    {
        assert_eq!(ask(body), status, "{body}");
    }
}

#[test]
fn a_thousand_idle_connections_do_not_hurt() {
    let limit = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let descriptors: usize = limit
        .lines()
        .find(|line| line.starts_with("Max open files"))
        .and_then(|line| line.split_whitespace().nth(3)?.parse().ok())
        .unwrap_or(1_024);
    // Both ends are in this process, beside what other tests hold.
    let count = 1_000.min(descriptors.saturating_sub(400) / 2);
    let sidecar = Sidecar::start().trained(200);
    let idle: Vec<TcpStream> = (0..count).map(|_| TcpStream::connect(&sidecar.address).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(sidecar.post("/predict", &row()).status, 200);
    }
    drop(idle);
}

#[test]
fn connections_beyond_the_limit_wait_and_are_served_when_there_is_room() {
    let http = HttpParams { connections_max: 2, ..HttpParams::default() };
    let sidecar = Sidecar::with(service_params(None), http);
    let idle: Vec<TcpStream> = (0..2).map(|_| TcpStream::connect(&sidecar.address).unwrap()).collect();
    let mut waiting = TcpStream::connect(&sidecar.address).unwrap();
    waiting.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    drop(idle);
    assert_eq!(read_answer(&mut waiting).status, 200);
}

#[test]
fn stopping_holds_no_question_open_and_is_not_ready() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let (service, handle) = {
        let _entered = runtime.enter();
        Service::start(service_params(None)).unwrap()
    };
    let cancel = CancellationToken::new();
    // Long enough that a drain in vain would be noticed as a failure, not as a slow test.
    let http = HttpParams { drain_timeout: PATIENCE, ..HttpParams::default() };
    let state = AppState { stopping: cancel.clone(), ..AppState::new(service, http.clone()) };
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let token = cancel.clone();
    let serving = runtime.spawn(async move { serve(vec![listener], router(state), &http, token).await });
    let tag = call(&address, "GET", "/model/snapshot", &[], b"").header("etag").unwrap();
    let mut held = TcpStream::connect(&address).unwrap();
    held.set_read_timeout(Some(PATIENCE)).unwrap();
    let question =
        format!("GET /model/snapshot?wait_ms=60000 HTTP/1.1\r\nhost: x\r\nif-none-match: W/\"a\", {tag}\r\n\r\n");
    held.write_all(question.as_bytes()).unwrap();
    // A connection that has asked for nothing yet is idle and simply closed.
    let mut kept = TcpStream::connect(&address).unwrap();
    kept.set_read_timeout(Some(PATIENCE)).unwrap();
    kept.write_all(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n").unwrap();
    assert_eq!(read_answer(&mut kept).status, 200);
    let began = Instant::now();
    cancel.cancel();
    runtime.block_on(serving).unwrap();
    assert!(began.elapsed() < PATIENCE, "the drain ended by itself");
    let mut answer = String::new();
    held.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 304"), "{answer}");
    runtime.block_on(handle.shutdown(PATIENCE)).unwrap();
}

#[test]
fn a_wait_that_is_no_number_is_named() {
    let sidecar = Sidecar::start();
    let refused = sidecar.get("/model/snapshot?wait_ms=soon");
    assert_eq!((refused.status, &refused.json()["detail"][0]["loc"]), (422, &json!(["query", "wait_ms"])));
    let any = call(&sidecar.address, "GET", "/model/snapshot", &[("if-none-match", "*")], b"");
    assert_eq!(any.status, 304);
}

fn any_row() -> impl Strategy<Value = Value> {
    let field = prop::sample::select(vec![
        "kv_cache_percentage",
        "input_token_length",
        "num_request_waiting",
        "num_tokens_generated",
        "prefix_cache_score",
        "pod_type",
        "encoder_input_size",
        "endpoint",
        "timestamp",
        "actual_ttft_ms",
        "predicted_ttft_ms",
        "streaming",
        "outcome",
        "num_chunks",
        "fingerprint",
        "quantiles",
    ]);
    let value = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        "\\PC{0,80}".prop_map(Value::from),
        Just(json!([[]])),
        Just(json!({ "a": { "b": 1 } })),
    ];
    (field, value, any::<bool>()).prop_map(|(field, value, whole)| {
        let mut row = if whole { with(field, value.clone()) } else { json!({}) };
        row["actual_ttft_ms"] = json!(100);
        row["actual_tpot_ms"] = json!(0);
        row[field] = value;
        row
    })
}

/// Property tests share one sidecar: each case is a call.
fn check(cases: u32, strategy: impl Strategy<Value = Vec<u8>>) {
    let sidecar = Sidecar::start().trained(200);
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(cases)
    });
    let result = runner.run(&strategy, |body| {
        for path in
            ["/predict", "/predict/bulk", "/predict/bulk/strict", "/explain", "/add_training_data_bulk", "/flush"]
        {
            let answer = call(&sidecar.address, "POST", path, &[JSON], &body);
            prop_assert!(answer.status < 500, "{path}: {} {}", answer.status, answer.text());
            prop_assert!(answer.status < 300 || answer.body.len() <= ERROR_BYTES_MAX, "{path}: {}", answer.body.len());
            prop_assert!(answer.status != 202 || answer.body.len() <= ERROR_BYTES_MAX, "{path}: {}", answer.body.len());
            prop_assert!(serde_json::from_slice::<Value>(&answer.body).is_ok(), "{path}: {}", answer.text());
        }
        // Whatever was flushed or taught, it still answers.
        prop_assert!(call(&sidecar.address, "GET", "/healthz", &[], b"").status == 200);
        Ok(())
    });
    result.unwrap();
}

#[test]
fn s25_odd_rows_are_never_a_500_and_errors_stay_short() {
    let rows = prop::collection::vec(any_row(), 1..40);
    check(40, rows.prop_map(|rows| json!({ "requests": rows, "entries": rows }).to_string().into_bytes()));
}

#[test]
fn arbitrary_bytes_are_never_a_500() {
    check(40, prop::collection::vec(any::<u8>(), 0..200));
}
