//! `foretoken demo`: a sidecar on loopback learns from real measured requests, over real HTTP, before one's eyes.

use std::collections::VecDeque;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::Args;
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::files;
use super::output::{self, Format, Table, number};
use crate::http::{AppState, HttpParams, router, serve};
use crate::recording::{RecordedRequest, Recording, RunningQuantile, read};
use crate::service::{Client, LogLimits, Service, ServiceParams, ServiceRole, WriteParams, now};
use crate::stats::Scores;
use crate::training::LearnerParams;
use crate::types::{Target, UnixMs};

/// The bundled recording: see models/demo/README.md for what it is and where it comes from.
const BUNDLED: &[u8] = include_bytes!("../../models/demo/llama70b_a100.csv.gz");

/// Requests before scoring begins: both yardsticks need a few outcomes first.
const UNSCORED: usize = 20;

/// Outcomes the live line looks back on.
const RECENT: usize = 200;

/// Limit of one call on loopback.
const CALL_MAX: Duration = Duration::from_secs(10);

/// Arguments.
#[derive(Args)]
#[command(
    after_help = "Each request is first predicted (POST /predict/bulk/strict), then, when its first token and its end came in the
recording, reported as a sample (POST /add_training_data_bulk). Time is compressed: the recording is streamed evenly over
--duration-s, in its own order. The sidecar starts from nothing: the first answers come from physics with default constants."
)]
pub struct DemoArgs {
    /// Stream this recording instead of the bundled one (it needs times; see replay --help)
    #[arg(long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// How long to take, s
    #[arg(long, default_value_t = 25.0)]
    duration_s: f64,
    /// Leave the sidecar running afterwards, and print calls to try
    #[arg(long)]
    keep: bool,
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

pub fn run(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    if !(0.1..=3600.0).contains(&args.duration_s) {
        bail!("--duration-s is {}, outside 0.1 to 3600", args.duration_s);
    }
    let recording = match &args.file {
        Some(path) => files::recording(path)?,
        None => read(BUNDLED).context("the bundled recording")?,
    };
    if recording.rows.iter().any(|row| row.dispatched_at.is_none()) {
        bail!(
            "the recording has no times (dispatched_ms or arrival_s), so it cannot be streamed in order; try foretoken replay"
        );
    }
    let runtime = tokio::runtime::Runtime::new().context("cannot start the async runtime")?;
    runtime.block_on(show(args, &recording))
}

/// What happens next in the recording.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    Seen(usize),
    Dispatched,
}

/// Scores of one target.
#[derive(Default)]
struct Tally {
    median: Scores,
    upper: Scores,
    median_running: Scores,
    upper_running: Scores,
    upper_incumbent: Scores,
    upper_beside_incumbent: Scores,
    running: RunningQuantile,
    extrapolated: u64,
    /// The latest scored outcomes, for the live line.
    recent: VecDeque<Recent>,
}

/// One scored outcome, ms.
#[derive(Clone, Copy)]
struct Recent {
    actual: f64,
    median: f64,
    upper: f64,
    upper_running: f64,
    upper_incumbent: Option<f64>,
}

/// Rolling scores of the live line.
#[derive(Default)]
struct Rolling {
    median: Scores,
    upper: Scores,
    running: Scores,
    incumbent: Scores,
}

impl Tally {
    fn rolling(&self) -> Rolling {
        let mut rolling = Rolling::default();
        for pair in &self.recent {
            rolling.median.add(pair.actual, pair.median, 0.5);
            rolling.upper.add(pair.actual, pair.upper, 0.9);
            rolling.running.add(pair.actual, pair.upper_running, 0.9);
            pair.upper_incumbent.into_iter().for_each(|ms| rolling.incumbent.add(pair.actual, ms, 0.9));
        }
        rolling
    }
}

/// One request's answer, and the yardsticks' at the same moment.
#[derive(Clone, Copy, Default)]
struct Promise {
    ours: [[f64; 2]; 2],
    running: [[Option<f64>; 2]; 2],
}

async fn show(args: &DemoArgs, recording: &Recording) -> anyhow::Result<ExitCode> {
    let listener = TcpListener::bind("127.0.0.1:0").await.context("cannot listen on loopback")?;
    let address = listener.local_addr()?;
    let (service, handle) = Service::start(in_memory())?;
    let cancel = CancellationToken::new();
    let params = HttpParams { answer_prior: true, ..HttpParams::default() };
    let state = AppState::new(service, params.clone());
    let serving = tokio::spawn({
        let cancel = cancel.clone();
        async move { serve(vec![listener], router(state), &params, cancel).await }
    });
    let client = Client::try_new(&format!("http://{address}"), 1 << 20)?;
    if args.format == Format::Text {
        let source = args
            .file
            .as_ref()
            .map_or("real requests to Llama-70B on A100 (bundled)".to_string(), |file| file.display().to_string());
        output::line(&format!("a sidecar listens on http://{address} and knows nothing yet"))?;
        output::line(&format!("streaming {} {source} at it over {:.0} s", recording.rows.len(), args.duration_s))?;
    }
    let tallies = stream(args, recording, &client).await?;
    let status = get_status(&client).await?;
    match args.format {
        Format::Json => output::json(&as_json(&tallies, &status, recording))?,
        Format::Text => print_table(&tallies, &status)?,
    }
    if args.keep {
        keep(&address.to_string()).await?;
    }
    cancel.cancel();
    serving.await.context("the server panicked")?;
    handle.shutdown(Duration::from_secs(10)).await?;
    Ok(ExitCode::SUCCESS)
}

fn in_memory() -> ServiceParams {
    ServiceParams {
        role: ServiceRole::All,
        learner: LearnerParams::default(),
        queue_samples_max: 65_536,
        state_dir: None,
        write: WriteParams {
            flush_interval: Duration::from_secs(1),
            log: LogLimits { bytes_max: 1 << 20, age_max: Duration::from_secs(3600) },
            snapshots_kept: 1,
        },
        follow: None,
        ..ServiceParams::default()
    }
}

async fn stream(args: &DemoArgs, recording: &Recording, client: &Client) -> anyhow::Result<[Tally; 2]> {
    let mut events = Vec::new();
    for (row, request) in recording.rows.iter().enumerate() {
        let dispatched = request.dispatched_at.unwrap_or_default();
        events.push((dispatched, Event::Dispatched, row));
        if request.ttft_ms.is_some() {
            events.push((request.first_token_at.unwrap_or(dispatched), Event::Seen(0), row));
        }
        if request.tpot_ms.is_some() {
            events.push((request.finished_at.unwrap_or(dispatched), Event::Seen(1), row));
        }
    }
    events.sort();
    // Recorded times are told as if the recording ended now: a sidecar takes no sample from the future.
    let end = events.last().map_or(0, |(at, _, _)| at.0);
    let epoch = now().plus_ms(-end);
    let mut tallies = [Tally::default(), Tally::default()];
    let mut promises = vec![Promise::default(); recording.rows.len()];
    let mut positions = vec![0; recording.rows.len()];
    let mut dispatched_rows = 0;
    let view = View::new(args.format, events.len());
    let started = Instant::now();
    let pace = Duration::from_secs_f64(args.duration_s / events.len().max(1) as f64);
    let mut shown_at = Instant::now();
    for (index, (_, event, row)) in events.iter().enumerate() {
        tokio::time::sleep_until((started + pace * index as u32).into()).await;
        let request = &recording.rows[*row];
        match event {
            Event::Dispatched => {
                positions[*row] = dispatched_rows;
                dispatched_rows += 1;
                promises[*row] = predict(client, request, &mut tallies).await?;
            }
            Event::Seen(target) => {
                report(client, request, *target, epoch).await?;
                score(&mut tallies[*target], request, *target, &promises[*row], positions[*row]);
            }
        }
        if view.wants(index + 1 == events.len(), &shown_at) {
            shown_at = Instant::now();
            view.show(index + 1, dispatched_rows, &tallies, &get_status(client).await?)?;
        }
    }
    view.finish();
    // The last samples are learnt from within moments; the closing table should know them.
    let deadline = Instant::now() + Duration::from_secs(5);
    while get_status(client).await?["samples_queued"] != 0 && Instant::now() < deadline {
        tokio::task::yield_now().await;
    }
    Ok(tallies)
}

fn wire_row(request: &RecordedRequest) -> Value {
    let features = &request.features;
    json!({
        "kv_cache_percentage": features.kv_cache_usage, "input_token_length": features.input_tokens,
        "num_request_waiting": features.requests_waiting, "num_request_running": features.requests_running,
        "num_tokens_generated": request.output_tokens, "prefix_cache_score": features.prefix_cache_score,
        "prefill_tokens_in_flight": features.prefill_tokens_in_flight,
        "decode_tokens_in_flight": features.decode_tokens_in_flight,
    })
}

async fn predict(client: &Client, request: &RecordedRequest, tallies: &mut [Tally; 2]) -> anyhow::Result<Promise> {
    let body = json!({ "requests": [wire_row(request)], "quantiles": [0.5, 0.9] }).to_string().into_bytes();
    let answer = post(client, "/predict/bulk/strict", body, 200).await?;
    let prediction = &answer["predictions"][0];
    let mut promise = Promise::default();
    for (index, name) in ["ttft_ms", "tpot_ms"].into_iter().enumerate() {
        for (anchor, quantile) in ["0.5", "0.9"].into_iter().enumerate() {
            promise.ours[index][anchor] =
                prediction["quantiles"][name][quantile].as_f64().context("an answer without quantiles")?;
        }
        promise.running[index] = [0.5, 0.9].map(|q| tallies[index].running.quantile(q));
        tallies[index].extrapolated += u64::from(prediction["state"] == "extrapolating");
    }
    Ok(promise)
}

async fn report(client: &Client, request: &RecordedRequest, target: usize, epoch: UnixMs) -> anyhow::Result<()> {
    let mut row = wire_row(request);
    let at = |time: Option<UnixMs>| time.map(|time| epoch.plus_ms(time.0).0);
    row["actual_ttft_ms"] = if target == 0 { json!(request.ttft_ms) } else { json!(0.0) };
    row["actual_tpot_ms"] = if target == 1 { json!(request.tpot_ms) } else { json!(0.0) };
    row["timestamp"] = json!(at(if target == 0 { request.first_token_at } else { request.finished_at }));
    row["dispatched_at"] = json!(at(request.dispatched_at));
    let body = json!({ "entries": [row] }).to_string().into_bytes();
    post(client, "/add_training_data_bulk", body, 202).await?;
    Ok(())
}

fn score(tally: &mut Tally, request: &RecordedRequest, target: usize, promise: &Promise, position: usize) {
    let Some(actual) = [request.ttft_ms, request.tpot_ms][target] else { return };
    if position >= UNSCORED {
        let [median, upper] = promise.ours[target];
        let incumbent = [request.incumbent_ms[0], request.incumbent_ms[2]][target];
        if let [Some(median_running), Some(upper_running)] = promise.running[target] {
            tally.median.add(actual, median, 0.5);
            tally.upper.add(actual, upper, 0.9);
            tally.median_running.add(actual, median_running, 0.5);
            tally.upper_running.add(actual, upper_running, 0.9);
            if tally.recent.len() == RECENT {
                tally.recent.pop_front();
            }
            tally.recent.push_back(Recent { actual, median, upper, upper_running, upper_incumbent: incumbent });
        }
        if let Some(incumbent) = incumbent {
            tally.upper_incumbent.add(actual, incumbent, 0.9);
            tally.upper_beside_incumbent.add(actual, upper, 0.9);
        }
    }
    tally.running.observe(actual);
}

async fn post(client: &Client, path: &str, body: Vec<u8>, expected: u16) -> anyhow::Result<Value> {
    let answer = client.post_json(path, body, CALL_MAX).await.with_context(|| format!("POST {path}"))?;
    if answer.status.as_u16() != expected {
        bail!("POST {path} answered {}: {}", answer.status, String::from_utf8_lossy(&answer.body));
    }
    serde_json::from_slice(&answer.body).with_context(|| format!("the answer to POST {path} is not JSON"))
}

async fn get_status(client: &Client) -> anyhow::Result<Value> {
    let answer = client.get("/status", &[], CALL_MAX).await.context("GET /status")?;
    serde_json::from_slice(&answer.body).context("the answer to GET /status is not JSON")
}

/// One live line on a terminal, a line every few seconds elsewhere, nothing for programs.
struct View {
    bar: Option<ProgressBar>,
    every: Duration,
    plain: bool,
}

impl View {
    fn new(format: Format, events: usize) -> Self {
        let terminal = std::io::stdout().is_terminal();
        let bar = (format == Format::Text && terminal).then(|| {
            let style = ProgressStyle::with_template("{bar:10} {percent:>3}% {wide_msg}");
            ProgressBar::new(events as u64).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
        });
        let every = if terminal { Duration::from_millis(200) } else { Duration::from_secs(5) };
        View { bar, every, plain: format == Format::Text && !terminal }
    }

    fn wants(&self, last: bool, shown_at: &Instant) -> bool {
        (self.bar.is_some() || self.plain) && (last || shown_at.elapsed() >= self.every)
    }

    fn show(&self, done: usize, requests: usize, tallies: &[Tally; 2], status: &Value) -> anyhow::Result<()> {
        let rolling = tallies[0].rolling();
        let incumbent = rolling.incumbent.pinball().map_or(String::new(), |loss| format!(", incumbent {loss:.1}"));
        let text = format!(
            "{requests} requests, {} samples, generation {} ({}); latest 200 TTFT: MAPE {}, p90 covers {}, pinball {} (running quantile {}{incumbent})",
            status["samples_accepted"],
            status["generation"],
            status["state"].as_str().unwrap_or("?"),
            number(rolling.median.mape(), 2),
            number(rolling.upper.coverage(), 2),
            number(rolling.upper.pinball(), 1),
            number(rolling.running.pinball(), 1),
        );
        match &self.bar {
            Some(bar) => {
                bar.set_position(done as u64);
                bar.set_message(text);
                Ok(())
            }
            None => output::line(&text),
        }
    }

    fn finish(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// (label, quantile, ours, running) of every scored line.
fn lines(tallies: &[Tally; 2]) -> Vec<(Target, f64, Scores, Scores)> {
    let of = |target: Target, tally: &Tally| {
        [(target, 0.5, tally.median, tally.median_running), (target, 0.9, tally.upper, tally.upper_running)]
    };
    of(Target::Ttft, &tallies[0]).into_iter().chain(of(Target::Tpot, &tallies[1])).collect()
}

fn print_table(tallies: &[Tally; 2], status: &Value) -> anyhow::Result<()> {
    let has_incumbent = tallies.iter().any(|tally| tally.upper_incumbent.pairs() > 0);
    let mut header = vec!["prediction", "requests", "pinball ms", "running quantile", "ratio", "coverage", "MAPE"];
    if has_incumbent {
        header.push("vs incumbent");
    }
    let mut table = Table::new(&header);
    for (index, (target, quantile, ours, running)) in lines(tallies).into_iter().enumerate() {
        let ratio = ours.pinball().zip(running.pinball()).map(|(ours, running)| ours / running);
        let mut row = vec![
            format!("{} p{:.0}", target.name().to_uppercase(), quantile * 100.0),
            ours.pairs().to_string(),
            number(ours.pinball(), 2),
            number(running.pinball(), 2),
            number(ratio, 3),
            number(ours.coverage(), 3),
            number(ours.mape(), 3),
        ];
        if has_incumbent {
            let tally = &tallies[index / 2];
            let against = tally.upper_beside_incumbent.pinball().zip(tally.upper_incumbent.pinball());
            row.push(number(against.filter(|_| quantile > 0.5).map(|(ours, theirs)| ours / theirs), 3));
        }
        table.row(row);
    }
    output::line("")?;
    output::line(&table.render())?;
    output::line("")?;
    output::line(&format!(
        "{} samples learnt, generation {} serves: {} ({})",
        status["samples_accepted"],
        status["generation"],
        status["state"].as_str().unwrap_or("?"),
        status["reason"].as_str().unwrap_or("?")
    ))?;
    output::line(
        "pinball: mean loss of the predicted quantile, lower is better; the running quantile of the latest 1,000",
    )?;
    output::line("outcomes is the yardstick (ratio below 1: better than it). coverage should be near the quantile.")?;
    output::line("Next: foretoken serve, and point the router at it; or foretoken replay YOUR-RECORDING.csv")
}

fn as_json(tallies: &[Tally; 2], status: &Value, recording: &Recording) -> Value {
    let scores: Vec<Value> = lines(tallies)
        .into_iter()
        .map(|(target, quantile, ours, running)| {
            json!({
                "target": target.name(), "quantile": quantile, "rows": ours.pairs(), "pinball": ours.pinball(),
                "pinball_running": running.pinball(), "coverage": ours.coverage(), "mape": ours.mape(),
            })
        })
        .collect();
    json!({
        "requests": recording.rows.len(), "samples_accepted": status["samples_accepted"],
        "generation": status["generation"], "state": status["state"], "reason": status["reason"], "scores": scores,
        "extrapolated_predictions": tallies[0].extrapolated,
    })
}

async fn keep(address: &str) -> anyhow::Result<()> {
    output::line("")?;
    output::line("the sidecar goes on; try, and stop it with ctrl-c:")?;
    output::line(&format!("  curl -s http://{address}/status"))?;
    let row = r#"{"kv_cache_percentage":0.3,"input_token_length":800,"num_request_waiting":0,"num_request_running":12,"num_tokens_generated":0,"prefix_cache_score":0,"quantiles":[0.5,0.99]}"#;
    output::line(&format!("  curl -s http://{address}/predict -H 'content-type: application/json' -d '{row}'"))?;
    output::line(&format!("  curl -s http://{address}/explain -H 'content-type: application/json' -d '{row}'"))?;
    tokio::signal::ctrl_c().await.context("cannot wait for ctrl-c")
}
