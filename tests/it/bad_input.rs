//! Every kind of bad input gets a typed error with field, row and range, at most 2 kB, never a 500, and costs no good row.

use std::io::Write;
use std::net::TcpStream;
use std::time::Duration;

use foretoken::http::HttpParams;
use serde_json::{Value, json};

use crate::support::{Sidecar, call, read_answer, row, service_params, training_rows};

fn with(field: &str, value: Value) -> Value {
    let mut row = row();
    row[field] = value;
    row
}

#[test]
fn wrong_fields_are_named_with_row_and_range() {
    let sidecar = Sidecar::start().trained(200);
    let cases = [
        ("prefix_cache_score", json!(1.0001), "less_than_equal"),
        ("kv_cache_percentage", json!(42), "less_than_equal"),
        ("kv_cache_percentage", json!(-0.1), "greater_than_equal"),
        ("num_request_waiting", json!(-1), "greater_than_equal"),
        ("input_token_length", json!(1e30), "less_than_equal"),
        ("input_token_length", json!(10.5), "int_from_float"),
        ("input_token_length", json!(null), "int_type"),
        ("input_token_length", json!([1]), "int_type"),
        ("num_request_running", json!("many"), "int_parsing"),
        ("kv_cache_percentage", json!("NaN"), "finite_number"),
        ("kv_cache_percentage", json!("-Infinity"), "finite_number"),
        ("pod_type", json!(3), "string_type"),
        ("endpoint", json!("a\u{0}b"), "string_pattern_mismatch"),
    ];
    for (field, value, kind) in cases {
        let answer = sidecar.post("/predict/bulk/strict", &json!({ "requests": [row(), with(field, value.clone())] }));
        let text = answer.text();
        assert_eq!(answer.status, 422, "{field} {value}: {text}");
        let item = &answer.json()["detail"][0];
        assert_eq!(item["type"], kind, "{field} {value}: {text}");
        assert_eq!(item["loc"], json!(["body", "requests", 1, field]));
        assert!(!text.contains("NaN") && !text.contains("Infinity") || item["input"].is_null(), "{text}");
        // The same row is refused alike everywhere (I9).
        let single = sidecar.post("/predict", &with(field, value.clone()));
        assert_eq!((single.status, &single.json()["detail"][0]["type"]), (422, &json!(kind)), "{field} {value}");
        assert_eq!(sidecar.post("/explain", &with(field, value)).status, 422);
    }
    let mut missing = row();
    missing.as_object_mut().unwrap().remove("num_request_running");
    let answer = sidecar.post("/predict/bulk/strict", &json!({ "requests": [missing] })).json();
    assert_eq!(answer["detail"][0]["type"], "missing");
}

#[test]
fn frames_that_are_wrong_say_so() {
    let sidecar = Sidecar::start().trained(200);
    let path = "/predict/bulk/strict";
    for (body, kind) in [
        ("{\"requests\": [", "json_invalid"),
        ("", "missing"),
        ("[]", "model_attributes_type"),
        ("3", "model_attributes_type"),
        ("{}", "missing"),
        ("{\"requests\": 7}", "list_type"),
        ("{\"requests\": []}", "too_short"),
        ("{\"requests\": [7]}", "model_attributes_type"),
        ("{\"requests\": [{}], \"quantiles\": [2]}", "less_than_equal"),
        ("{\"requests\": [{}]}", "missing"),
    ] {
        let answer = sidecar.post_text(path, body);
        assert_eq!((answer.status, &answer.json()["detail"][0]["type"]), (422, &json!(kind)), "{body}");
    }
    let mut good = json!({ "requests": [row()], "quantiles": [1.5] });
    assert_eq!(sidecar.post(path, &good).json()["detail"][0]["loc"], json!(["body", "quantiles"]));
    good["quantiles"] = json!(vec![0.5; 17]);
    assert_eq!(sidecar.post(path, &good).status, 422);
    let plain = call(&sidecar.address, "POST", path, &[("content-type", "text/plain")], good.to_string().as_bytes());
    assert_eq!((plain.status, &plain.json()["detail"][0]["type"]), (422, &json!("model_attributes_type")));
    let binary = call(&sidecar.address, "POST", path, &[("content-type", "application/json")], &[0xff, 0xfe, 0x80]);
    assert_eq!(binary.status, 400);
    let encoded = [("content-type", "application/json"), ("content-encoding", "br")];
    assert_eq!(call(&sidecar.address, "POST", path, &encoded, b"{}").status, 415);
    let broken = [("content-type", "application/json"), ("content-encoding", "gzip")];
    assert_eq!(call(&sidecar.address, "POST", path, &broken, b"{}").status, 400);
    let nested = format!("{{\"requests\": {}{}}}", "[".repeat(5000), "]".repeat(5000));
    assert_eq!(sidecar.post_text(path, &nested).status, 422);
    assert_eq!(sidecar.get("/readyz").status, 200, "and it goes on");
}

#[test]
fn s7_errors_are_short_however_many_rows_are_bad() {
    let sidecar = Sidecar::start().trained(200);
    let too_many = json!({ "requests": vec![row(); 10_001] });
    let answer = sidecar.post("/predict/bulk/strict", &too_many);
    assert_eq!(answer.status, 422);
    assert_eq!(answer.json()["detail"][0]["type"], "too_long");
    assert!(answer.body.len() <= 2_000);
    for bad in [
        with("prefix_cache_score", json!(2)),
        json!({}),
        with("pod_type", json!("\u{1}".repeat(5000))),
        json!({"input_token_length": "x".repeat(100_000)}),
    ] {
        let answer = sidecar.post("/predict/bulk/strict", &json!({ "requests": vec![bad.clone(); 100] }));
        if answer.status == 422 {
            assert!(answer.body.len() <= 2_000, "{} bytes", answer.body.len());
        }
        let answer = sidecar.post("/add_training_data_bulk", &json!({ "entries": vec![bad; 100] }));
        assert_eq!(answer.status, 422);
        assert!(answer.body.len() <= 2_000, "{} bytes", answer.body.len());
    }
}

#[test]
fn s3_bare_words_that_json_lacks_name_their_field() {
    let sidecar = Sidecar::start().trained(200);
    for word in ["NaN", "Infinity", "-Infinity", "1e999"] {
        let body = json!({ "requests": [row()] }).to_string().replace("0.42", word);
        let answer = sidecar.post_text("/predict/bulk/strict", &body);
        assert_eq!(answer.status, 422, "{word}");
        assert_eq!(answer.json()["detail"][0]["loc"][3], "kv_cache_percentage");
        assert!(!answer.text().contains(word), "{}", answer.text());
        let rows = json!({ "entries": training_rows(0..3) }).to_string().replacen("0.5151", word, 1);
        let receipt = sidecar.post_text("/add_training_data_bulk", &rows);
        assert_eq!((receipt.status, &receipt.json()["accepted"]), (202, &json!(2)), "{}", receipt.text());
    }
}

#[test]
fn large_bodies_are_refused_before_they_are_read_and_bombs_before_they_explode() {
    let params = HttpParams { body_bytes_max: 1 << 20, ..HttpParams::default() };
    let sidecar = Sidecar::with(service_params(None), params);
    let mut stream = TcpStream::connect(&sidecar.address).unwrap();
    stream.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 104857600\r\n\r\n{").unwrap();
    let answer = read_answer(&mut stream);
    assert_eq!(answer.status, 413);
    assert!(answer.json()["detail"].as_str().unwrap().contains("1048576"));
    let zeros = vec![b' '; 20 << 20];
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    gz.write_all(&zeros).unwrap();
    let bomb = gz.finish().unwrap();
    let headers = [("content-type", "application/json"), ("content-encoding", "gzip")];
    assert_eq!(call(&sidecar.address, "POST", "/add_training_data_bulk", &headers, &bomb).status, 413);
    // zstd is read, too.
    let body = json!({ "entries": training_rows(0..5) }).to_string();
    let zst = ruzstd::encoding::compress_to_vec(body.as_bytes(), ruzstd::encoding::CompressionLevel::Fastest);
    let headers = [("content-type", "application/json"), ("content-encoding", "zstd")];
    let receipt = call(&sidecar.address, "POST", "/add_training_data_bulk", &headers, &zst);
    assert_eq!((receipt.status, &receipt.json()["accepted"]), (202, &json!(5)));
}

#[test]
fn slow_clients_and_half_requests_hold_up_nobody_and_are_let_go() {
    let params = HttpParams {
        call_timeout: Duration::from_millis(300),
        idle_timeout: Duration::from_millis(600),
        ..HttpParams::default()
    };
    let sidecar = Sidecar::with(service_params(None), params).trained(200);
    let mut half_body = TcpStream::connect(&sidecar.address).unwrap();
    half_body
        .write_all(
            b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 500\r\n\r\n{\"kv",
        )
        .unwrap();
    let mut half_head = TcpStream::connect(&sidecar.address).unwrap();
    half_head.write_all(b"POST /pre").unwrap();
    let answer = sidecar.post("/predict", &row());
    assert_eq!(answer.status, 200, "others are served meanwhile");
    assert_eq!(read_answer(&mut half_body).status, 408);
    half_head.set_read_timeout(Some(crate::support::PATIENCE)).unwrap();
    let mut rest = Vec::new();
    // Closed by the server, with or without a last word.
    let _ = std::io::Read::read_to_end(&mut half_head, &mut rest);
    assert_eq!(sidecar.post("/predict", &row()).status, 200);
}

#[test]
fn hundreds_of_idle_connections_do_not_hurt() {
    let sidecar = Sidecar::start().trained(200);
    // The soft limit of descriptors is often 1024 for both ends together.
    let idle: Vec<TcpStream> = (0..400).map(|_| TcpStream::connect(&sidecar.address).unwrap()).collect();
    for _ in 0..20 {
        assert_eq!(sidecar.post("/predict", &row()).status, 200);
    }
    drop(idle);
    assert_eq!(sidecar.get("/healthz").status, 200);
}

#[test]
fn too_many_calls_at_once_are_shed_with_a_time_to_come_back() {
    let params = HttpParams { calls_max: 0, ..HttpParams::default() };
    let sidecar = Sidecar::with(service_params(None), params);
    let shed = sidecar.post("/predict", &row());
    assert_eq!((shed.status, shed.header("retry-after").as_deref()), (503, Some("1")));
    assert_eq!(sidecar.get("/healthz").status, 200, "an overloaded process is alive");
    assert_eq!(sidecar.get("/status").status, 200, "and tells how it is");
}

#[test]
fn half_a_body_takes_no_room_from_others() {
    let params = HttpParams { calls_max: 1, ..HttpParams::default() };
    let sidecar = Sidecar::with(service_params(None), params).trained(200);
    let half = b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{";
    let held: Vec<TcpStream> = (0..20)
        .map(|_| {
            let mut stream = TcpStream::connect(&sidecar.address).unwrap();
            stream.write_all(half).unwrap();
            stream
        })
        .collect();
    for _ in 0..20 {
        assert_eq!(sidecar.post("/predict", &row()).status, 200);
    }
    drop(held);
}

#[test]
fn traceparent_comes_back() {
    let sidecar = Sidecar::start();
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let answer = call(&sidecar.address, "GET", "/healthz", &[("traceparent", trace)], b"");
    assert_eq!(answer.header("traceparent").as_deref(), Some(trace));
}

#[test]
fn unknown_routes_and_wrong_methods_are_answered_in_kind() {
    let sidecar = Sidecar::start();
    for (method, path, status) in [
        ("GET", "/predict/bulk", 405),
        ("DELETE", "/status", 405),
        ("POST", "/healthz", 405),
        ("GET", "/../etc/passwd", 404),
        ("GET", "/model/nope/info", 404),
        ("GET", "/model/%00/info", 404),
        ("GET", "//evil.example/", 404),
        ("PUT", "/", 405),
    ] {
        let answer = call(&sidecar.address, method, path, &[], b"");
        assert_eq!(answer.status, status, "{method} {path}");
        assert!(answer.json()["detail"].is_string(), "{method} {path}");
    }
}
