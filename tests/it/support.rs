//! What several tests need: samples, waiting with a deadline, a served service, and a real process.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use foretoken::http::{AppState, HttpParams, router, serve};
use foretoken::service::{Client, Service, now};
use foretoken::types::{Ask, Features, Observation, Promised, Quantile, Role, Sample};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Far beyond what anything here takes; reached only when it never comes.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Features of the `i`th request of a stream.
pub fn features(i: u32) -> Features {
    Features {
        kv_cache_usage: f64::from(i % 7) / 10.0,
        input_tokens: 200 + i * 389 % 5000,
        requests_waiting: (i % 5).saturating_sub(3),
        requests_running: i % 11,
        prefix_cache_score: 0.0,
        prefill_tokens_in_flight: i * 211 % 4000,
        decode_tokens_in_flight: 0,
        encoder_matched_size: 0,
        encoder_input_size: 0,
        role: Role::Both,
    }
}

fn ttft_ms(i: u32) -> f64 {
    30.0 + f64::from(features(i).input_tokens) * 0.06 + f64::from(i * 7 % 10)
}

fn tpot_ms(i: u32) -> f64 {
    15.0 + f64::from(i % 11)
}

/// What came of that request.
pub fn sample(i: u32) -> Sample {
    Sample::try_new(Sample {
        features: features(i),
        observation: Observation { ttft_ms: Some(ttft_ms(i)), tpot_ms: Some(tpot_ms(i)), output_tokens: 50 },
        endpoint: None,
        observed_at: now(),
        dispatched_at: None,
        promised: Promised::default(),
    })
    .expect("a good sample")
}

pub fn samples(range: std::ops::Range<u32>) -> Vec<Sample> {
    range.map(sample).collect()
}

/// The same samples as a body for `/add_training_data_bulk`.
pub fn entries(range: std::ops::Range<u32>) -> Vec<u8> {
    let entries: Vec<Value> = range
        .map(|i| {
            let features = features(i);
            json!({
                "kv_cache_percentage": features.kv_cache_usage, "input_token_length": features.input_tokens,
                "num_request_waiting": features.requests_waiting, "num_request_running": features.requests_running,
                "actual_ttft_ms": ttft_ms(i), "actual_tpot_ms": tpot_ms(i), "num_tokens_generated": 50,
                "prefix_cache_score": 0.0,
            })
        })
        .collect();
    json!({ "entries": entries }).to_string().into_bytes()
}

/// The median TTFT that a service predicts for one and the same request.
pub fn median_ttft_ms(service: &Service) -> f64 {
    let conditions = service.conditions(Ask::Quantile(Quantile::P50), now());
    service.snapshot().read(conditions).predict(&features(700), None).ttft.value_ms
}

/// Polls until `done`; the message says what never came.
pub async fn poll(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + DEADLINE;
    while !done() {
        assert!(Instant::now() < until, "never came: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// A service behind real sockets in this process.
pub struct Served {
    pub url: String,
    cancel: CancellationToken,
    task: tokio::task::JoinHandle<()>,
}

impl Served {
    /// Serves on a port of loopback; 0 lets the system choose.
    pub async fn start(service: Service, port: u16) -> Served {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", port)).await.expect("a port on loopback");
        let url = format!("http://{}", listener.local_addr().expect("the bound address"));
        let cancel = CancellationToken::new();
        let params = HttpParams { answer_prior: true, drain_timeout: Duration::ZERO, ..HttpParams::default() };
        let app = router(AppState::new(service, params.clone()));
        let task = tokio::spawn({
            let cancel = cancel.clone();
            async move { serve(vec![listener], app, &params, cancel).await }
        });
        Served { url, cancel, task }
    }

    /// Closes the port and every connection.
    pub async fn stop(self) {
        self.cancel.cancel();
        self.task.await.expect("the server ends in order");
    }
}

/// A real `foretoken serve`, killed when dropped.
pub struct Process {
    child: Child,
    pub url: String,
    log: Arc<Mutex<String>>,
}

impl Process {
    /// Starts it on a free port, with more arguments, and waits until it listens.
    pub async fn start(args: &[&str]) -> Process {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command.args(["serve", "--listen", "127.0.0.1:0"]).args(args);
        Process::spawn(command).await
    }

    /// The same with a state directory, under a limit on the size of every file it writes, in units of 512 bytes.
    pub async fn start_with_file_limit(dir: &Path, blocks: u32) -> Process {
        let mut command = Command::new("sh");
        // The signal is ignored, so that a write beyond the limit is an error like that of a full disk.
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        command.args(["-c", &script, env!("CARGO_BIN_EXE_foretoken")]);
        command.args(["serve", "--listen", "127.0.0.1:0", "--state-dir"]).arg(dir);
        Process::spawn(command).await
    }

    async fn spawn(mut command: Command) -> Process {
        command.env_remove("RUST_LOG").stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the process starts");
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        std::thread::spawn({
            let log = log.clone();
            move || {
                for line in lines.map_while(Result::ok) {
                    let mut log = log.lock().expect("the log");
                    log.push_str(&line);
                    log.push('\n');
                }
            }
        });
        let mut process = Process { child, url: String::new(), log };
        let until = Instant::now() + DEADLINE;
        while process.url.is_empty() {
            let log = process.log();
            let address = log.split("listening on ").nth(1).and_then(|rest| rest.split_whitespace().next());
            match address {
                Some(url) => process.url = url.to_string(),
                None => {
                    assert!(Instant::now() < until, "it never listened:\n{log}");
                    assert!(process.child.try_wait().expect("its state").is_none(), "it ended:\n{log}");
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
        process
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().expect("the log").clone()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        self.child.kill().expect("it can be killed");
        self.child.wait().expect("it is gone");
    }

    /// SIGTERM, and its exit code.
    pub async fn terminate(&mut self) -> Option<i32> {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it can be told");
        let until = Instant::now() + DEADLINE;
        loop {
            if let Some(status) = self.child.try_wait().expect("its state") {
                return status.code();
            }
            assert!(Instant::now() < until, "it never ended:\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Its `/status`.
    pub async fn status(&self) -> Value {
        get_json(&self.url, "/status").await
    }

    /// Polls its `/status` until `done`.
    pub async fn poll(&self, what: &str, done: impl Fn(&Value) -> bool) -> Value {
        let until = Instant::now() + DEADLINE;
        loop {
            let status = self.status().await;
            if done(&status) {
                return status;
            }
            assert!(Instant::now() < until, "never came: {what}: {status:#}\n{}", self.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    /// Sends samples; returns how many were accepted.
    pub async fn send(&self, range: std::ops::Range<u32>) -> u64 {
        let client = Client::try_new(&self.url, 1 << 20).expect("a URL");
        let answer = client.post_json("/add_training_data_bulk", entries(range), DEADLINE).await.expect("an answer");
        assert_eq!(answer.status.as_u16(), 202, "{:?}", answer.body);
        let receipt: Value = serde_json::from_slice(&answer.body).expect("JSON");
        receipt["accepted"].as_u64().expect("a count")
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A JSON answer.
pub async fn get_json(url: &str, path: &str) -> Value {
    let client = Client::try_new(url, 1 << 20).expect("a URL");
    let answer = client.get(path, &[], DEADLINE).await.expect("an answer");
    serde_json::from_slice(&answer.body).expect("JSON")
}
