//! The HTTP edge's cost, end to end over loopback: `/predict/bulk/strict` against a no-op handler that parses the same
//! body and answers a body of the same size, in one run, as ratios.
//!
//! Three conditions: idle, while fits of 20,000 samples run back to back, and while 1,000 samples/s come in. The load
//! driver has a thread of its own; on two cores it shares them with the server, in the same way for both servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use axum::Json;
use axum::response::IntoResponse;
use axum::routing::post;
use foretoken::http::{AppState, HttpParams, router, serve};
use foretoken::service::{LogLimits, Service, ServiceHandle, ServiceParams, ServiceRole, WriteParams};
use foretoken::training::LearnerParams;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::sync::CancellationToken;

const SAMPLES: usize = 20_000;
const ROUND: Duration = Duration::from_millis(1_200);
const ROUNDS: usize = 3;

/// The no-op handler's row: what any axum service would declare for this body.
#[derive(Deserialize)]
#[allow(dead_code)]
struct PlainRow {
    kv_cache_percentage: f64,
    input_token_length: u64,
    num_request_waiting: u64,
    num_request_running: u64,
    num_tokens_generated: u64,
    prefix_cache_score: f64,
    prefill_tokens_in_flight: u64,
    decode_tokens_in_flight: u64,
    encoder_matched_size: u64,
    encoder_input_size: u64,
}

#[derive(Deserialize)]
#[allow(dead_code)]
struct PlainBatch {
    requests: Vec<PlainRow>,
}

fn row(i: usize) -> String {
    format!(
        r#"{{"kv_cache_percentage":0.{:02},"input_token_length":{},"num_request_waiting":{},"num_request_running":{},"num_tokens_generated":1,"prefix_cache_score":0.{},"prefill_tokens_in_flight":{},"decode_tokens_in_flight":{},"encoder_matched_size":0,"encoder_input_size":0}}"#,
        i * 37 % 100,
        50 + i * 7919 % 16_000,
        i % 4,
        i * 13 % 60,
        i * 17 % 10,
        i * 4409 % 30_000,
        i * 97 % 9_000
    )
}

fn training_row(i: usize) -> String {
    let length = 50 + i * 7919 % 16_000;
    let ttft = 22.0 + 0.0425 * length as f64 * (1.0 + (i * 29 % 40) as f64 / 50.0);
    let row = row(i);
    format!(r#"{},"actual_ttft_ms":{ttft:.3},"actual_tpot_ms":{:.3}}}"#, &row[..row.len() - 1], 16.0 + (i % 30) as f64)
}

fn request(path: &str, body: &str) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends one request and reads the whole answer; returns its status and body length.
async fn call(stream: &mut TcpStream, request: &[u8], buffer: &mut Vec<u8>) -> (u16, usize) {
    stream.write_all(request).await.expect("write");
    buffer.clear();
    loop {
        let mut chunk = [0u8; 16 * 1024];
        let read = stream.read(&mut chunk).await.expect("read");
        assert!(read > 0, "the server closed the connection");
        buffer.extend_from_slice(&chunk[..read]);
        let Some(end) = buffer.windows(4).position(|window| window == b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&buffer[..end]).expect("ascii head").to_ascii_lowercase();
        let length: usize = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|length| length.trim().parse().ok())
            .expect("content-length");
        if buffer.len() >= end + 4 + length {
            let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).expect("status");
            return (status, length);
        }
    }
}

struct Measured {
    calls_per_s: f64,
    p50_us: f64,
    p99_us: f64,
    body_bytes: usize,
}

/// `connections` closed loops for one round, on a thread of their own.
fn drive(address: SocketAddr, request: Vec<u8>, connections: usize) -> Measured {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let request = Arc::new(request);
            let mut tasks = Vec::new();
            for _ in 0..connections {
                let request = Arc::clone(&request);
                tasks.push(tokio::spawn(async move {
                    let mut stream = TcpStream::connect(address).await.expect("connect");
                    stream.set_nodelay(true).expect("nodelay");
                    let (mut buffer, mut latencies, mut bytes) = (Vec::new(), Vec::new(), 0);
                    let begin = Instant::now();
                    while begin.elapsed() < ROUND {
                        let sent = Instant::now();
                        let (status, length) = call(&mut stream, &request, &mut buffer).await;
                        assert_eq!(status, 200);
                        latencies.push(sent.elapsed().as_secs_f64() * 1e6);
                        bytes = length;
                    }
                    (latencies, bytes)
                }));
            }
            let (mut all, mut bytes) = (Vec::new(), 0);
            for task in tasks {
                let (latencies, length) = task.await.expect("task");
                all.extend(latencies);
                bytes = length;
            }
            all.sort_by(f64::total_cmp);
            let at = |q: f64| all[((all.len() - 1) as f64 * q) as usize];
            Measured {
                calls_per_s: all.len() as f64 / ROUND.as_secs_f64(),
                p50_us: at(0.5),
                p99_us: at(0.99),
                body_bytes: bytes,
            }
        })
    };
    std::thread::spawn(run).join().expect("driver")
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// The no-op server: same body parsed by serde, an answer of the same size that was made beforehand.
fn start_no_op(runtime: &tokio::runtime::Runtime, answer: Vec<u8>) -> SocketAddr {
    let answer = axum::body::Bytes::from(answer);
    let handler = move |Json(batch): Json<PlainBatch>| {
        let answer = answer.clone();
        async move {
            std::hint::black_box(batch.requests.len());
            ([("content-type", "application/json")], answer).into_response()
        }
    };
    let router = axum::Router::new().route("/predict/bulk/strict", post(handler));
    runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        // The same connection loop for both, so that only the handlers differ.
        let params = HttpParams::default();
        tokio::spawn(async move { serve(vec![listener], router, &params, CancellationToken::new()).await });
        address
    })
}

fn start_sidecar(runtime: &tokio::runtime::Runtime) -> (SocketAddr, Service, ServiceHandle) {
    let params = ServiceParams {
        role: ServiceRole::All,
        // Every ten samples a fit of all 20,000: fits run back to back while a few samples keep coming.
        learner: LearnerParams { samples_max: SAMPLES, fit_every_samples_max: 10, ..LearnerParams::default() },
        queue_samples_max: 100_000,
        state_dir: None,
        write: WriteParams {
            flush_interval: Duration::from_secs(1),
            log: LogLimits { bytes_max: 1 << 20, age_max: Duration::from_secs(60) },
            snapshots_kept: 1,
        },
        follow: None,
        ..ServiceParams::default()
    };
    let _entered = runtime.enter();
    let (service, handle) = Service::start(params).expect("service");
    let state = AppState::new(service.clone(), HttpParams::default());
    let address = runtime.block_on(async move {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let address = listener.local_addr().expect("address");
        let params = HttpParams::default();
        tokio::spawn(async move { serve(vec![listener], router(state), &params, CancellationToken::new()).await });
        address
    });
    (address, service, handle)
}

/// Sends samples at a pace until told to stop.
fn feed(address: SocketAddr, samples_per_s: usize, stop: Arc<AtomicBool>) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        runtime.block_on(async move {
            let mut stream = TcpStream::connect(address).await.expect("connect");
            let mut buffer = Vec::new();
            let (begin, mut sent) = (Instant::now(), 0);
            let batch = (samples_per_s / 20).max(1);
            while !stop.load(Ordering::Relaxed) {
                let rows: Vec<String> = (sent..sent + batch).map(training_row).collect();
                let body = format!("{{\"entries\":[{}]}}", rows.join(","));
                let (status, _) = call(&mut stream, &request("/add_training_data_bulk", &body), &mut buffer).await;
                assert_eq!(status, 202);
                sent += batch;
                let due = begin + Duration::from_secs_f64(sent as f64 / samples_per_s as f64);
                tokio::time::sleep_until(due.into()).await;
            }
            sent
        })
    })
}

fn during(condition: &str, address: SocketAddr, measure: impl FnOnce() -> Measured) -> Measured {
    let stop = Arc::new(AtomicBool::new(false));
    let feeder = match condition {
        "fits" => Some(feed(address, 200, Arc::clone(&stop))),
        "1,000 samples/s" => Some(feed(address, 1_000, Arc::clone(&stop))),
        _ => None,
    };
    let measured = measure();
    stop.store(true, Ordering::Relaxed);
    if let Some(feeder) = feeder {
        feeder.join().expect("feeder");
    }
    measured
}

fn main() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("runtime");
    let (sidecar, service, handle) = start_sidecar(&runtime);
    let body = |rows: usize| {
        let all: Vec<String> = (0..rows).map(row).collect();
        request("/predict/bulk/strict", &format!("{{\"requests\":[{}]}}", all.join(",")))
    };
    // Fill the store.
    let rows: Vec<String> = (0..SAMPLES).map(training_row).collect();
    for chunk in rows.chunks(2_000) {
        let sent =
            drive_once(sidecar, request("/add_training_data_bulk", &format!("{{\"entries\":[{}]}}", chunk.join(","))));
        assert_eq!(sent, 202);
    }
    while service.status().learner.is_none_or(|report| report.targets[0].stored < SAMPLES) {
        std::thread::yield_now();
    }
    println!(
        "{:>5} {:>5}  {:>16} {:>12} {:>9} {:>9}  {:>14} {:>12}",
        "rows", "conns", "condition", "calls/s", "p50 us", "p99 us", "calls / no-op", "p99 / idle"
    );
    for rows in [1, 10, 100] {
        for connections in [1, 8] {
            let probe = drive(sidecar, body(rows), 1);
            let no_op = start_no_op(&runtime, vec![b' '; probe.body_bytes]);
            let mut calls: [Vec<f64>; 4] = Default::default();
            let mut p50s: [Vec<f64>; 4] = Default::default();
            let mut p99s: [Vec<f64>; 4] = Default::default();
            const CONDITIONS: [&str; 4] = ["no-op handler", "idle", "fits", "1,000 samples/s"];
            // Interleaved, so that a noisy moment of the machine hits all alike.
            for _ in 0..ROUNDS {
                for (index, condition) in CONDITIONS.into_iter().enumerate() {
                    let address = if index == 0 { no_op } else { sidecar };
                    let measured = during(condition, sidecar, || drive(address, body(rows), connections));
                    calls[index].push(measured.calls_per_s);
                    p50s[index].push(measured.p50_us);
                    p99s[index].push(measured.p99_us);
                }
            }
            let calls = calls.map(median);
            let p99s = p99s.map(median);
            for (index, (condition, p50)) in CONDITIONS.into_iter().zip(p50s.map(median)).enumerate() {
                println!(
                    "{rows:>5} {connections:>5}  {condition:>16} {:>12.0} {p50:>9.0} {:>9.0}  {:>14.2} {:>12.2}",
                    calls[index],
                    p99s[index],
                    calls[index] / calls[0],
                    p99s[index] / p99s[1]
                );
            }
        }
    }
    let status = service.status();
    println!(
        "fits while measuring: {}, latest took {:.1} ms of {} rows",
        status.learner.as_ref().map_or(0, |report| report.fits.iter().sum::<u64>()),
        status.last_fit_duration_ms.unwrap_or(0.0),
        status.trained_rows[0]
    );
    if let Err(error) = runtime.block_on(handle.shutdown(Duration::from_secs(10))) {
        println!("shutdown: {error}");
    }
}

/// One call; returns its status.
fn drive_once(address: SocketAddr, request: Vec<u8>) -> u16 {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
    runtime.block_on(async move {
        let mut stream = TcpStream::connect(address).await.expect("connect");
        call(&mut stream, &request, &mut Vec::new()).await.0
    })
}
