//! Golden files for every public surface, and the commands as a user runs them.

use std::process::{Command, Output};

use serde_json::{Value, json};

fn foretoken(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", "/home/someone")
        .output()
        .unwrap()
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Compares with `tests/golden/NAME`; with UPDATE_GOLDEN set, writes it instead.
pub fn golden(name: &str, actual: &str) {
    golden_at(&format!("tests/golden/{name}"), actual);
}

fn golden_at(path: &str, actual: &str) {
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(path, actual).unwrap();
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == actual,
        "{path} differs; run the tests with UPDATE_GOLDEN=1 and look at the difference\n{actual}"
    );
}

#[test]
fn help_of_every_subcommand() {
    golden("help.txt", &stdout(&foretoken(&["--help"])));
    for command in ["serve", "config", "demo", "replay", "train", "evaluate", "inspect", "explain"] {
        let output = foretoken(&[command, "--help"]);
        assert!(output.status.success());
        golden(&format!("help-{command}.txt"), &stdout(&output));
    }
}

#[test]
fn the_openapi_document() {
    golden_at("proto/openapi.json", &format!("{}\n", foretoken::http::openapi_document()));
}

#[test]
fn config_print_and_the_settings_page() {
    golden("config-print.txt", &stdout(&foretoken(&["config", "--print"])));
    let document: Value =
        serde_json::from_slice(&foretoken(&["config", "--print", "--format", "json"]).stdout).unwrap();
    let mut page = String::from(
        "# Settings\n\nEvery setting of `foretoken serve`. File (TOML, keys as below) < variable < flag (the key with dashes).\n\n\
         | key | values | unit | default | variables | what it does |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for setting in document["settings"].as_array().unwrap() {
        let text = |field: &str| setting[field].as_str().unwrap().to_string();
        let also: String =
            setting["also"].as_array().unwrap().iter().map(|name| format!(", `{}`", name.as_str().unwrap())).collect();
        let default = if text("default").is_empty() { "unset".to_string() } else { format!("`{}`", text("default")) };
        page.push_str(&format!(
            "| `{}` | {} | {} | {default} | `{}`{also} | {} |\n",
            text("setting"),
            text("values"),
            text("unit"),
            text("variable"),
            text("help").replace('|', "\\|")
        ));
    }
    page.push_str("\n## Variables of the incumbent that have no effect\n\n| variable | instead |\n| --- | --- |\n");
    for (name, instead) in foretoken::config::RETIRED {
        page.push_str(&format!("| `{name}` | {instead} |\n"));
    }
    page.push_str("\n## Metrics\n\n| metric | kind | labels | what it says |\n| --- | --- | --- | --- |\n");
    for metric in foretoken::telemetry::METRICS {
        let suffix = if metric.kind == foretoken::telemetry::MetricKind::Counter { "_total" } else { "" };
        page.push_str(&format!(
            "| `{}{suffix}` | {} | {} | {} |\n",
            metric.name,
            format!("{:?}", metric.kind).to_lowercase(),
            metric.labels.join(", "),
            metric.help.replace('|', "\\|")
        ));
    }
    golden_at("docs/settings.md", &page);
}

#[test]
fn every_configuration_error_at_once_with_its_source_and_the_nearest_name() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("foretoken.toml");
    std::fs::write(&file, "quantle = 0.5\nsamples_max = 3\nlisten = [\"127.0.0.1:1\"]\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--config", file.to_str().unwrap(), "--role", "boss", "--listen", "nonsense"])
        .env("FORETOKEN_QUEUE_SAMPLE_MAX", "1")
        .env("FORETOKEN_SERVICE_HOST", "10.0.0.1")
        .env("FORETOKEN_PORT_8000_TCP_ADDR", "10.0.0.1")
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    for part in [
        "foretoken.toml:1: there is no setting quantle; did you mean quantile?",
        "foretoken.toml:2: samples_max is \"3\", not a whole number from 100 to 1000000",
        "variable FORETOKEN_QUEUE_SAMPLE_MAX: there is no such setting; did you mean FORETOKEN_QUEUE_SAMPLES_MAX?",
        "flag --role: role is \"boss\", not one of all, train, predict",
        "listen \"nonsense\" is not address:port",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert!(!said.contains("SERVICE_HOST") && !said.contains("PORT_8000"), "service links are not ours: {said}");
    let unknown = foretoken(&["serve", "--quantil", "0.5"]);
    assert_eq!(unknown.status.code(), Some(2));
    assert!(stderr(&unknown).contains("--quantile"));
}

#[test]
fn file_below_variable_below_flag_and_the_incumbents_names() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("foretoken.toml");
    std::fs::write(&file, "quantile = 0.5\nsamples_max = 300\nfit_min_samples = 20\nlog_level = \"debug\"\n").unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["config", "--print", "--format", "json", "--samples-max", "400"])
        .env_clear()
        .env("FORETOKEN_CONFIG", &file)
        .env("LATENCY_QUANTILE_ALPHA", "0.8")
        .env("LATENCY_OBJECTIVE_TYPE", "mean")
        .env("FORETOKEN_SAMPLES_MAX", "350")
        .env("FORETOKEN_FIT_MIN_SAMPLES", "30")
        .env("PREDICT_PORT", "9001")
        .env("MODEL_SYNC_INTERVAL_SEC", "0.001")
        .env("LATENCY_ENSEMBLE_MODE", "true")
        .env("LATENCY_QUANTIL_ALPHA", "0.8")
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| {
        let settings = document["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["setting"] == key).unwrap();
        (setting["value"].as_str().unwrap().to_string(), setting["from"].as_str().unwrap().to_string())
    };
    let pair = |value: &str, from: &str| (value.to_string(), from.to_string());
    assert_eq!(of("samples_max"), pair("400", "flag --samples-max"));
    assert_eq!(of("fit_min_samples"), pair("30", "variable FORETOKEN_FIT_MIN_SAMPLES"));
    assert_eq!(of("quantile"), pair("0.8", "variable LATENCY_QUANTILE_ALPHA"));
    assert_eq!(of("objective"), pair("mean", "variable LATENCY_OBJECTIVE_TYPE"));
    assert_eq!(of("log_level").0, "debug");
    assert_eq!(of("listen").0, "0.0.0.0:8000,0.0.0.0:9001");
    assert_eq!(of("sync_interval_s").0, "0.1");
    let said = stderr(&output);
    for part in [
        "sync_interval_s is 0.001, 0.1 is used",
        "LATENCY_ENSEMBLE_MODE has no effect: empty and queued regimes are always fitted apart",
        "LATENCY_QUANTIL_ALPHA is unknown and has no effect; did you mean LATENCY_QUANTILE_ALPHA?",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
}

#[test]
fn a_calibration_fills_what_nobody_gave_and_each_value_names_its_source() {
    let arguments = ["config", "--format", "json", "--calibration", "qwen3-32b-h100-vllm-tp2-single-fit"];
    let output = foretoken(&[&arguments[..], &["--decode-step-ms", "21"]].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let of = |key: &str| {
        let settings = document["settings"].as_array().unwrap();
        let setting = settings.iter().find(|setting| setting["setting"] == key).unwrap();
        (setting["value"].as_str().unwrap().to_string(), setting["from"].as_str().unwrap().to_string())
    };
    let row = "calibration qwen3-32b-h100-vllm-tp2-single-fit";
    assert_eq!(of("prefill_tokens_per_s"), ("23529.4".to_string(), row.to_string()));
    assert_eq!(of("attention_ms_per_mtoken2"), ("0.44322".to_string(), row.to_string()));
    assert_eq!(of("ttft_floor_ms"), ("22.01".to_string(), format!("{row}, estimated")));
    assert_eq!(of("decode_step_ms"), ("21".to_string(), "flag --decode-step-ms".to_string()));
    golden("list-calibrations.txt", &stdout(&foretoken(&["config", "--list-calibrations"])));
    let rows: Value =
        serde_json::from_slice(&foretoken(&["config", "--list-calibrations", "--format", "json"]).stdout).unwrap();
    assert_eq!(rows["calibrations"].as_array().unwrap().len(), 9);
    assert_eq!(rows["calibrations"][4]["decode_step_ms"]["estimated"], true);
}

#[test]
fn names_that_are_none_get_a_hint_only_where_one_fits() {
    let output = foretoken(&["serve", "--calibration", "qwen3-32b-h100-vlm-tp2", "--port", "9000", "--quantile", "7"]);
    assert_eq!(output.status.code(), Some(2));
    let said = stderr(&output);
    for part in [
        "flag --calibration: there is no calibration \"qwen3-32b-h100-vlm-tp2\"; did you mean qwen3-32b-h100-vllm-tp2?",
        "foretoken config --list-calibrations names all",
        "flag --port: there is no such setting; it is --listen, for example 0.0.0.0:8000",
        "flag --quantile: quantile is \"7\", not a number from 0.01 to 0.99",
    ] {
        assert!(said.contains(part), "{part} is not in\n{said}");
    }
    assert!(stderr(&foretoken(&["serve", "--host=1.2.3.4"])).contains("it is --listen, for example 127.0.0.1:8000"));
    let output = Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["config", "--check"])
        .env("LATENCY_BOGUS", "1")
        .output()
        .unwrap();
    assert!(stderr(&output).contains("variable LATENCY_BOGUS is unknown and has no effect\n"), "{}", stderr(&output));
}

fn small_recording(dir: &std::path::Path) -> String {
    let mut text = "dispatched_ms,first_token_ms,finished_ms,input_token_length,num_request_waiting,num_request_running,actual_ttft_ms,actual_tpot_ms\n".to_string();
    for i in 0..400u32 {
        let (at, length, waiting, running) = (i * 200, 100 + i * 37 % 3000, (i % 9).saturating_sub(6), i % 13);
        let ttft = 25.0 + f64::from(length) * 0.05 + f64::from(waiting) * 90.0 + f64::from(i * 7 % 11);
        let tpot = 15.0 + f64::from(running) * 0.4 + f64::from(i * 5 % 7) / 10.0;
        let first = f64::from(at) + ttft;
        text.push_str(&format!("{at},{first},{},{length},{waiting},{running},{ttft},{tpot}\n", first + tpot * 50.0));
    }
    let path = dir.join("small.csv");
    std::fs::write(&path, text).unwrap();
    path.to_str().unwrap().to_string()
}

#[test]
fn train_inspect_evaluate_explain_and_replay_on_the_same_file() {
    let folder = tempfile::tempdir().unwrap();
    let recording = small_recording(folder.path());
    let snapshot = folder.path().join("small.snapshot").to_str().unwrap().to_string();
    let trained = foretoken(&["train", &recording, "--out", &snapshot]);
    assert!(trained.status.success(), "{}", stderr(&trained));
    assert!(stdout(&trained).contains("ttft 400 rows (accepted), tpot 400 rows (accepted)"));
    let inspected: Value =
        serde_json::from_slice(&foretoken(&["inspect", &snapshot, "--format", "json"]).stdout).unwrap();
    let per_ktoken =
        inspected["targets"]["ttft"]["regimes"]["no_queue"]["coefficients_ms"]["uncached_ktokens"]["p50"].as_f64();
    assert!(per_ktoken.unwrap() > 20.0 && per_ktoken.unwrap() < 60.0, "{per_ktoken:?}");
    assert!(stdout(&foretoken(&["inspect", &snapshot])).contains("TTFT (fitted on 400 rows)"));
    let evaluated: Value =
        serde_json::from_slice(&foretoken(&["evaluate", &snapshot, &recording, "--format", "json"]).stdout).unwrap();
    let bands: Vec<&str> =
        evaluated["scores"].as_array().unwrap().iter().map(|score| score["waiting"].as_str().unwrap()).collect();
    assert_eq!(bands, ["all", "0", "1-2", "all", "0", "1-2"]);
    assert!(evaluated["scores"][0]["mape"].as_f64().unwrap() < 0.1, "{evaluated}");
    let explained =
        stdout(&foretoken(&["explain", &snapshot, "--input-token-length", "2000", "--num-request-waiting", "1"]));
    assert!(explained.contains("TTFT p90 =") && explained.contains("regime queued"), "{explained}");
    let replayed = foretoken(&["replay", &recording, "--format", "json"]);
    let document: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let first = &document["files"][0];
    assert_eq!((&first["file"], &first["target"], &first["quantile"]), (&json!("small"), &json!("ttft"), &json!(0.9)));
    assert_eq!(
        (&first["ratio"], &first["pinball_incumbent"], &first["first700_ratio"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
    assert!(first["ratio_running"].as_f64().unwrap() < 0.5, "{first}");
    assert_eq!(document["geomean"], json!({ "ttft_p90": null, "ttft_p50": null, "tpot_p90": null }));
    assert_eq!(
        foretoken(&["replay", &recording, "--format", "json"]).stdout,
        replayed.stdout,
        "same input, same bytes"
    );
}

#[test]
fn replay_scores_against_the_incumbents_columns() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("steady-one.csv");
    let mut text =
        "input_token_length,actual_ttft_ms,incumbent_ttft_p90_ms,incumbent_ttft_p50_ms,incumbent_tpot_p90_ms\n"
            .to_string();
    for i in 0..600u32 {
        let length = 100 + i * 37 % 3000;
        let ttft = 25.0 + f64::from(length) * 0.05 + f64::from(i * 7 % 11);
        // An incumbent that is always 50 ms too high.
        text.push_str(&format!("{length},{ttft},{},{},\n", ttft + 50.0, ttft + 50.0));
    }
    std::fs::write(&path, text).unwrap();
    let output = foretoken(&["replay", path.to_str().unwrap(), "--format", "json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    let first = &document["files"][0];
    assert_eq!(first["rows"], 300);
    assert!((first["pinball_incumbent"].as_f64().unwrap() - 5.0).abs() < 1e-6);
    let ratio = first["pinball"].as_f64().unwrap() / 5.0;
    assert!((first["ratio"].as_f64().unwrap() - ratio).abs() < 1e-6);
    assert!((document["geomean"]["ttft_p90"].as_f64().unwrap() - ratio).abs() < 1e-6);
    assert!(document["geomean_by_prefix"]["steady"]["ttft_p90"].is_number());
}

#[test]
fn files_that_cannot_be_used_say_why_and_exit_with_1() {
    let folder = tempfile::tempdir().unwrap();
    let wrong = folder.path().join("wrong.csv");
    std::fs::write(&wrong, "input_token_lenght,ttft_ms\n1,2\n").unwrap();
    for (arguments, part) in [
        (vec!["replay", "/nowhere.csv"], "cannot open /nowhere.csv"),
        (
            vec!["replay", wrong.to_str().unwrap()],
            "line 1: unknown column \"input_token_lenght\"; did you mean input_token_length?",
        ),
        (vec!["inspect", wrong.to_str().unwrap()], "not a foretoken snapshot"),
        (vec!["explain", "--quantile", "2"], "outside 0.01 to 0.99"),
        (vec!["explain", "--prefix-cache-score", "1.5"], "prefix_cache_score is 1.5, outside 0..=1"),
    ] {
        let output = foretoken(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
    assert_eq!(foretoken(&["replay"]).status.code(), Some(2));
}

#[test]
fn the_demo_learns_over_real_http() {
    let output = foretoken(&["demo", "--duration-s", "3", "--format", "json"]);
    assert!(output.status.success(), "{}", stderr(&output));
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["requests"], 1512);
    assert!(document["samples_accepted"].as_u64().unwrap() > 3000);
    assert!(document["generation"].as_u64().unwrap() > 3);
    let ttft_p90 = &document["scores"][1];
    assert_eq!((&ttft_p90["target"], &ttft_p90["quantile"]), (&json!("ttft"), &json!(0.9)));
    assert!(ttft_p90["pinball"].as_f64().unwrap() < ttft_p90["pinball_running"].as_f64().unwrap(), "{ttft_p90}");
    // Sped up this much, labels and fits come late by the recording's clock: what is checked is that it learns at all.
    assert!((0.6..=1.0).contains(&ttft_p90["coverage"].as_f64().unwrap()), "{ttft_p90}");
    let text = stdout(&foretoken(&["demo", "--duration-s", "1"]));
    assert!(text.contains("running quantile") && text.contains("coverage"), "{text}");
}

/// A trace's rows, each as a map from column to text.
fn trace_rows(path: &std::path::Path) -> Vec<std::collections::BTreeMap<String, String>> {
    let mut reader = csv::Reader::from_path(path).unwrap();
    reader.deserialize().map(|row| row.unwrap()).collect()
}

const TRACE_COLUMNS: &str = "row,run,dispatched_ms,endpoint,ttft_ms,ttft_p50_ms,ttft_p90_ms,ttft_state,tpot_ms,tpot_p50_ms,tpot_p90_ms,tpot_state,generation\n";

#[test]
fn a_trace_can_be_joined_with_the_file_row_by_row() {
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("odd.csv");
    let mut text = "run_id,dispatched_ms,endpoint,input_token_length,actual_ttft_ms,actual_tpot_ms\n".to_string();
    for i in 0..60u32 {
        let length = if i == 3 { "many".to_string() } else { (100 + i * 10).to_string() };
        let tpot = if i == 7 { "" } else { "20.125" };
        text.push_str(&format!("\"a, \"\"b\"\"\",{},pod-{},{length},{}.1,{tpot}\n", i * 50, i % 2, 40 + i % 5));
    }
    std::fs::write(&recording, text).unwrap();
    let recording = recording.to_str().unwrap();
    let trace = folder.path().join("trace.csv");
    let output = foretoken(&["replay", recording, "--trace", trace.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(std::fs::read_to_string(&trace).unwrap().starts_with(TRACE_COLUMNS));
    let rows = trace_rows(&trace);
    assert_eq!(rows.len(), 59);
    let row = |row: &str| rows.iter().find(|of| of["row"] == row).unwrap();
    assert!(!rows.iter().any(|of| of["row"] == "3"), "a row that was skipped has no prediction");
    assert_eq!((row("4")["dispatched_ms"].as_str(), row("4")["ttft_ms"].as_str()), ("200", "44.1"));
    assert_eq!((row("7")["tpot_ms"].as_str(), row("8")["tpot_ms"].as_str()), ("", "20.125"));
    assert_eq!((row("5")["run"].as_str(), row("5")["endpoint"].as_str()), ("a, \"b\"", "pod-1"));
    assert_eq!((row("0")["ttft_state"].as_str(), row("0")["generation"].as_str()), ("prior", "0"));
    assert!(row("59")["generation"].parse::<u64>().unwrap() > 0);
    let p90: f64 = row("59")["ttft_p90_ms"].parse().unwrap();
    assert_eq!(p90.to_string(), row("59")["ttft_p90_ms"], "shortest digits that read back the same");

    // The same for a fixed snapshot, whose answers are those of `explain`.
    let snapshot = folder.path().join("a.snapshot").to_str().unwrap().to_string();
    assert!(foretoken(&["train", recording, "--out", &snapshot]).status.success());
    let output = foretoken(&["evaluate", &snapshot, recording, "--trace", trace.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    let rows = trace_rows(&trace);
    let last = rows.last().unwrap();
    let explained = foretoken(&[
        "explain",
        &snapshot,
        "--input-token-length",
        "690",
        "--endpoint",
        last["endpoint"].as_str(),
        "--format",
        "json",
    ]);
    let explained: Value = serde_json::from_slice(&explained.stdout).unwrap();
    assert_eq!(last["row"], "59");
    assert!(explained.to_string().contains(&last["ttft_p50_ms"]), "{} is not in {explained}", last["ttft_p50_ms"]);
}

#[test]
fn several_traces_are_a_file_each_and_none_overwrites_another_or_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let small = small_recording(folder.path());
    let other = folder.path().join("other.csv");
    std::fs::copy(&small, &other).unwrap();
    let other = other.to_str().unwrap();
    let out = folder.path().join("traces");
    let output = foretoken(&["replay", &small, other, "--trace", out.to_str().unwrap()]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(trace_rows(&out.join("small.csv")).len(), 400);
    assert_eq!(trace_rows(&out.join("small.csv")), trace_rows(&out.join("other.csv")));
    for (arguments, part) in [
        (vec!["replay", &small, &small, "--trace", out.to_str().unwrap()], "would both be traced to"),
        (vec!["replay", &small, "--trace", &small], "would overwrite the recording"),
        (vec!["replay", &small, other, "--trace", folder.path().to_str().unwrap()], "would overwrite the recording"),
        (vec!["replay", &small, "--trace", out.to_str().unwrap()], "cannot write"),
    ] {
        let output = foretoken(&arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(stderr(&output).contains(part), "{arguments:?}: {}", stderr(&output));
    }
}
