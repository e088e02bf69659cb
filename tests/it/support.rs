//! A sidecar in this process on a port of its own, a child process of the real binary, and what tests share.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use foretoken::http::{AppState, HttpParams, router, serve};
use foretoken::service::{LogLimits, Service, ServiceHandle, ServiceParams, ServiceRole, WriteParams};
use foretoken::training::LearnerParams;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

/// Longest a condition is waited for.
pub const PATIENCE: Duration = Duration::from_secs(30);

pub fn service_params(state_dir: Option<&Path>) -> ServiceParams {
    ServiceParams {
        role: ServiceRole::All,
        learner: LearnerParams::default(),
        queue_samples_max: 65_536,
        state_dir: state_dir.map(Path::to_path_buf),
        write: WriteParams {
            flush_interval: Duration::from_millis(20),
            log: LogLimits { bytes_max: 16 << 20, age_max: Duration::from_secs(3600) },
            snapshots_kept: 3,
        },
        follow: None,
        ..ServiceParams::default()
    }
}

/// A sidecar in this process.
pub struct Sidecar {
    pub address: String,
    runtime: Option<tokio::runtime::Runtime>,
    handle: Option<ServiceHandle>,
    cancel: CancellationToken,
}

impl Sidecar {
    pub fn start() -> Self {
        Self::with(service_params(None), HttpParams::default())
    }

    pub fn with(service: ServiceParams, http: HttpParams) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        let guard = runtime.enter();
        let (service, handle) = Service::start(service).unwrap();
        let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let cancel = CancellationToken::new();
        let state = AppState::new(service.clone(), http.clone());
        let token = cancel.clone();
        runtime.spawn(async move { serve(vec![listener], router(state), &http, token).await });
        drop(guard);
        Sidecar { address, runtime: Some(runtime), handle: Some(handle), cancel }
    }

    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.cancel.cancel();
        if let (Some(runtime), Some(handle)) = (self.runtime.take(), self.handle.take()) {
            // A test that breaks the disk on purpose has its last state unwritten on purpose.
            let _ = runtime.block_on(handle.shutdown(PATIENCE));
        }
    }

    pub fn get(&self, path: &str) -> Answer {
        call(&self.address, "GET", path, &[], b"")
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        self.post_text(path, &body.to_string())
    }

    pub fn post_text(&self, path: &str, body: &str) -> Answer {
        call(&self.address, "POST", path, &[("content-type", "application/json")], body.as_bytes())
    }

    pub fn status(&self) -> Value {
        self.get("/status").json()
    }

    /// Feeds `count` good rows and waits until a fit of both targets serves.
    pub fn trained(self, count: usize) -> Self {
        let receipt = self.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..count) }));
        assert_eq!(receipt.status, 202, "{}", receipt.text());
        wait_for("a fit of both targets", || {
            let rows = &self.status()["trained_rows"];
            rows["ttft"].as_u64() > Some(0) && rows["tpot"].as_u64() > Some(0)
        });
        self
    }
}

impl Drop for Sidecar {
    fn drop(&mut self) {
        self.end();
    }
}

/// An HTTP answer.
#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub head: String,
    pub body: Vec<u8>,
}

impl Answer {
    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error} in {}", self.text()))
    }

    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    pub fn header(&self, name: &str) -> Option<String> {
        let prefix = format!("{name}: ");
        self.head
            .lines()
            .find_map(|line| line.to_ascii_lowercase().starts_with(&prefix).then(|| line[prefix.len()..].to_string()))
    }
}

/// One call on a connection of its own, written byte by byte as given.
pub fn call(address: &str, method: &str, path: &str, headers: &[(&str, &str)], body: &[u8]) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut head =
        format!("{method} {path} HTTP/1.1\r\nhost: test\r\nconnection: close\r\ncontent-length: {}\r\n", body.len());
    headers.iter().for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
    head.push_str("\r\n");
    stream.write_all(head.as_bytes()).unwrap();
    // A server may answer and close before it has read all of a body it refuses.
    let _ = stream.write_all(body);
    read_answer(&mut stream)
}

pub fn read_answer(stream: &mut TcpStream) -> Answer {
    let mut bytes = Vec::new();
    let mut chunk = [0u8; 64 * 1024];
    loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
            let length = head
                .to_ascii_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ").and_then(|length| length.parse().ok()))
                .unwrap_or(0);
            if bytes.len() >= end + 4 + length {
                let status = head.split(' ').nth(1).and_then(|status| status.parse().ok()).unwrap();
                return Answer { status, head, body: bytes[end + 4..end + 4 + length].to_vec() };
            }
        }
        match stream.read(&mut chunk) {
            Ok(0) => panic!("the connection ended after {} bytes: {}", bytes.len(), String::from_utf8_lossy(&bytes)),
            Ok(read) => bytes.extend_from_slice(&chunk[..read]),
            Err(error) if bytes.is_empty() => panic!("no answer: {error}"),
            Err(error) => panic!("{error} after {}", String::from_utf8_lossy(&bytes)),
        }
    }
}

/// Polls until `condition` holds.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain for {what}");
        std::thread::park_timeout(Duration::from_millis(5));
    }
}

/// A prediction row.
pub fn row() -> Value {
    json!({
        "kv_cache_percentage": 0.42, "input_token_length": 2000, "num_request_waiting": 3, "num_request_running": 7,
        "num_tokens_generated": 1, "prefix_cache_score": 0.6, "pod_type": "", "prefill_tokens_in_flight": 3500,
        "decode_tokens_in_flight": 0, "encoder_matched_size": 0, "encoder_input_size": 0,
    })
}

/// Rows of the recorded training set, the first 200 of which carry both outcomes.
pub fn training_rows(range: std::ops::Range<usize>) -> Vec<Value> {
    let text = std::fs::read_to_string("tests/contract/training_rows.jsonl").unwrap();
    let rows: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    range.map(|index| rows[index % rows.len()].clone()).collect()
}

/// The real binary, serving as a child process on a port of its own.
pub struct Process {
    pub child: Child,
    pub address: String,
    log: std::sync::Arc<std::sync::Mutex<String>>,
}

impl Process {
    pub fn serve(arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
        command.arg("serve").args(["--listen", "127.0.0.1:0"]).args(arguments);
        Self::spawn(command)
    }

    pub fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).stdin(Stdio::null()).spawn().unwrap();
        let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
        let log = std::sync::Arc::new(std::sync::Mutex::new(String::new()));
        let mut address = None;
        while address.is_none() {
            let line = lines.next().unwrap_or_else(|| panic!("it ended at once: {}", log.lock().unwrap())).unwrap();
            address = line.split("listening on http://").nth(1).map(|rest| rest.trim().to_string());
            log.lock().unwrap().push_str(&format!("{line}\n"));
        }
        let shared = std::sync::Arc::clone(&log);
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                shared.lock().unwrap().push_str(&format!("{line}\n"));
            }
        });
        Process { child, address: address.unwrap(), log }
    }

    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    pub fn status(&self) -> Value {
        call(&self.address, "GET", "/status", &[], b"").json()
    }

    pub fn post(&self, path: &str, body: &Value) -> Answer {
        call(&self.address, "POST", path, &[("content-type", "application/json")], body.to_string().as_bytes())
    }

    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").arg(format!("-{name}")).arg(self.child.id().to_string()).status().unwrap();
        assert!(sent.success());
    }

    /// SIGTERM, and the exit code.
    pub fn terminate(mut self) -> Option<i32> {
        self.signal("TERM");
        self.child.wait().unwrap().code()
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Already gone in most tests; one that failed must not leave a process behind.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
