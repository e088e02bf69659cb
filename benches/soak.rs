//! A minute of mixed work on the real sidecar: predictions, samples, bad rows, flushes and clients that vanish, with a state
//! directory. It fails when a call is answered with anything unexpected, when the books do not balance, or when memory
//! keeps growing. `SOAK_SECONDS` sets another length.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::Value;

const ROW: &str = r#""kv_cache_percentage":0.3,"num_request_waiting":1,"num_request_running":4,"num_tokens_generated":120,"prefix_cache_score":0.1,"prefill_tokens_in_flight":500"#;

fn call(address: &str, method: &str, path: &str, body: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).expect("connect");
    let head = format!(
        "{method} {path} HTTP/1.1\r\nhost: soak\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(head.as_bytes()).expect("write");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("read");
    let status = answer.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("status");
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body.to_string()).unwrap_or_default();
    (status, body)
}

fn status(address: &str) -> Value {
    serde_json::from_str(&call(address, "GET", "/status", "").1).expect("status")
}

fn resident_mb(address: &str) -> f64 {
    let metrics = call(address, "GET", "/metrics", "").1;
    let line = metrics.lines().find(|line| line.starts_with("foretoken_resident_memory_bytes")).expect("metric");
    line.split(' ').nth(1).and_then(|value| value.parse::<f64>().ok()).expect("number") / 1e6
}

struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn main() {
    let seconds = std::env::var("SOAK_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let folder = tempfile::tempdir().expect("folder");
    let address = "127.0.0.1:18471";
    let server = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--listen", address, "--log-level", "error", "--state-dir"])
        .arg(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("server");
    let _server = Server(server);
    let begin = Instant::now();
    while TcpStream::connect(address).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(10), "the server does not start");
        std::thread::yield_now();
    }
    let (accepted, refused, predicted) =
        (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let until = Instant::now() + Duration::from_secs(seconds);
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let (accepted, refused, predicted) = (Arc::clone(&accepted), Arc::clone(&refused), Arc::clone(&predicted));
            std::thread::spawn(move || {
                let mut i = worker;
                while Instant::now() < until {
                    i += 4;
                    let length = 100 + i * 37 % 9_000;
                    match i % 40 {
                        0..=9 => {
                            let rows: Vec<String> = (0..20)
                                .map(|k| {
                                    let ttft = if k == 7 { -1.0 } else { 30.0 + (length + k) as f64 * 0.05 };
                                    format!("{{{ROW},\"input_token_length\":{},\"actual_ttft_ms\":{ttft},\"actual_tpot_ms\":{}}}", length + k, 15 + k % 5)
                                })
                                .collect();
                            let (code, body) = call(address, "POST", "/add_training_data_bulk", &format!("{{\"entries\":[{}]}}", rows.join(",")));
                            assert_eq!(code, 202, "{body}");
                            let receipt: Value = serde_json::from_str(&body).expect("receipt");
                            assert_eq!(receipt["accepted"].as_u64().unwrap_or(0) + receipt["dropped"].as_u64().unwrap_or(0), 19);
                            accepted.fetch_add(receipt["accepted"].as_u64().unwrap_or(0), Ordering::Relaxed);
                            refused.fetch_add(1, Ordering::Relaxed);
                        }
                        10 => assert_eq!(call(address, "POST", "/predict/bulk/strict", "{\"requests\": [NaN").0, 422),
                        11 if worker == 0 && i % 4_000 == 11 => {
                            assert_eq!(call(address, "POST", "/flush", "{\"flush_metrics\":true,\"flush_training_data\":false}").0, 200);
                        }
                        12 => {
                            // A client that vanishes in the middle.
                            let mut stream = TcpStream::connect(address).expect("connect");
                            stream.write_all(b"POST /predict HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{").expect("write");
                        }
                        _ => {
                            let (code, body) = call(address, "POST", "/predict/bulk/strict", &format!("{{\"requests\":[{{{ROW},\"input_token_length\":{length}}}]}}"));
                            assert!(code == 200 || (code == 503 && body.contains("not ready")), "{code} {body}");
                            predicted.fetch_add(u64::from(code == 200), Ordering::Relaxed);
                        }
                    }
                }
            })
        })
        .collect();
    let mut early = 0.0;
    while Instant::now() < until {
        std::thread::park_timeout(Duration::from_secs(1));
        if early == 0.0 && Instant::now() + Duration::from_secs(seconds * 2 / 3) > until {
            early = resident_mb(address);
        }
    }
    workers.into_iter().for_each(|worker| worker.join().expect("worker"));
    let end = Instant::now() + Duration::from_secs(10);
    while status(address)["samples_queued"] != 0 && Instant::now() < end {
        std::thread::yield_now();
    }
    let (account, late) = (status(address), resident_mb(address));
    let (accepted, refused) = (accepted.load(Ordering::Relaxed), refused.load(Ordering::Relaxed));
    assert_eq!(account["samples_accepted"].as_u64(), Some(accepted), "every accepted sample is on the books");
    assert_eq!(account["samples_refused"]["out_of_range"].as_u64(), Some(refused));
    assert!(late < early * 1.3 + 5.0, "memory grew from {early:.1} to {late:.1} MB");
    assert!(!["degraded", "prior"].contains(&account["state"].as_str().unwrap_or("?")), "{account}");
    println!(
        "soak: {seconds} s, {} predictions, {accepted} samples, {refused} refused, generation {}, resident {early:.1} -> {late:.1} MB",
        predicted.load(Ordering::Relaxed),
        account["generation"]
    );
}
