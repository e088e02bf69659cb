//! Cold start over real sockets: export and seed between real processes, and calibrations.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::support::{Process, call, row, wait_for};

/// Recorded rows, all of one role.
fn rows(range: std::ops::Range<usize>) -> Vec<Value> {
    let mut rows = crate::support::training_rows(range);
    rows.iter_mut().for_each(|row| row["pod_type"] = json!(""));
    rows
}

/// A sidecar that has learnt, and what `GET /model/export` of it answers, in a file.
fn warm(folder: &Path) -> (Process, String) {
    let origin = Process::serve(&["--state-dir", "none"]);
    origin.post("/add_training_data_bulk", &json!({ "entries": rows(0..200) }));
    wait_for("a fit of both targets", || {
        let rows = &origin.status()["trained_rows"];
        rows["ttft"].as_u64() > Some(100) && rows["tpot"].as_u64() > Some(100)
    });
    let export = call(&origin.address, "GET", "/model/export", &[], b"");
    assert_eq!(export.status, 200);
    let file = folder.join("warm.snapshot");
    std::fs::write(&file, export.body).unwrap();
    (origin, file.to_str().unwrap().to_string())
}

fn seeded(dir: &Path, file: &str) -> Process {
    Process::serve(&["--state-dir", dir.to_str().unwrap(), "--flush-interval-ms", "20", "--seed-snapshot", file])
}

fn start_fails(arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_foretoken"));
    let output = command.args(["serve", "--listen", "127.0.0.1:0"]).args(arguments).output().unwrap();
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

fn text(value: &Value) -> String {
    value.as_str().unwrap().to_string()
}

#[test]
fn an_exported_snapshot_seeds_a_new_sidecar_which_says_so_until_its_own_samples_replaced_it() {
    let folder = tempfile::tempdir().unwrap();
    let (origin, file) = warm(folder.path());
    let dir = folder.path().join("state");
    let copy = seeded(&dir, &file);
    let (theirs, ours) = (origin.status(), copy.status());

    let [promised, answer] = [&origin, &copy].map(|process| process.post("/predict", &row()).json());
    assert_eq!(answer["ttft_ms"], promised["ttft_ms"], "the very same model");
    assert_eq!(answer["state"], "warming");
    let origin_words = format!(
        "from the seed warm.snapshot (generation {} of lineage {}",
        theirs["generation"],
        text(&theirs["lineage"])
    );
    for reason in [&answer["reason"], &ours["reason"]] {
        let reason = text(reason);
        assert!(reason.contains(&format!("ttft and tpot {origin_words}")), "{reason}");
        assert!(reason.contains("until own samples replace it"), "{reason}");
    }
    assert_eq!((&ours["state"], &ours["is_ready"]), (&json!("warming"), &json!(true)));
    assert_eq!(call(&copy.address, "GET", "/readyz", &[], b"").status, 200);
    assert_ne!(ours["lineage"], theirs["lineage"], "a history of its own");
    assert_eq!((&ours["generation"], &ours["samples_accepted"]), (&theirs["generation"], &json!(0)));
    let seed = &ours["seed"];
    assert_eq!((&seed["file"], &seed["generation"]), (&json!("warm.snapshot"), &theirs["generation"]));
    assert_eq!(
        (&seed["lineage"], &seed["answers"]),
        (&theirs["lineage"], &json!([{ "role": "both", "target": "ttft" }, { "role": "both", "target": "tpot" }]))
    );

    // A restart before it learnt anything knows that the model is still the seed's.
    wait_for("the copy on disk", || std::fs::read_dir(&dir).unwrap().count() >= 4);
    assert_eq!(copy.terminate(), Some(0));
    let copy = seeded(&dir, &file);
    let status = copy.status();
    assert_eq!((&status["state"], &status["lineage"]), (&json!("warming"), &ours["lineage"]));
    assert!(text(&status["seed_ignored"]).contains("is ignored: the state directory holds generation"), "{status}");
    assert!(copy.log().contains("is ignored: the state directory holds generation"), "{}", copy.log());

    // Only TTFTs come: TPOT goes on being the seed's, and says so.
    let mut only_ttft = rows(0..300);
    only_ttft.iter_mut().for_each(|row| row["actual_tpot_ms"] = json!(0));
    copy.post("/add_training_data_bulk", &json!({ "entries": only_ttft }));
    wait_for("a fit of TTFT", || copy.status()["seed"]["answers"][0]["target"] == "tpot");
    let status = copy.status();
    assert!(status["generation"].as_u64() > ours["generation"].as_u64());
    assert_eq!((&status["state"], &status["seed"]["answers"][1]), (&json!("warming"), &Value::Null));
    assert!(text(&status["reason"]).contains(&format!("tpot {origin_words}")), "{status}");
    // Other outcomes than the seed learnt from: the same ones would give the very same model.
    let mut slower = rows(0..200);
    slower.iter_mut().for_each(|row| row["actual_tpot_ms"] = json!(row["actual_tpot_ms"].as_f64().unwrap() * 1.5));
    copy.post("/add_training_data_bulk", &json!({ "entries": slower }));
    wait_for("a fit of TPOT", || copy.status()["seed"]["answers"] == json!([]));
    wait_for("ready", || copy.status()["state"] == "ready");
    assert!(!text(&copy.post("/predict", &row()).json()["reason"]).contains("seed"));
}

#[test]
fn a_state_directory_with_a_snapshot_of_its_own_ignores_the_seed_even_an_unreadable_one() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("state");
    let own = Process::serve(&["--state-dir", dir.to_str().unwrap()]);
    own.post("/add_training_data_bulk", &json!({ "entries": rows(0..200) }));
    wait_for("a fit", || own.status()["trained"] == true);
    let lineage = own.status()["lineage"].clone();
    assert_eq!(own.terminate(), Some(0));
    let again = seeded(&dir, "/nowhere/gone.snapshot");
    let status = again.status();
    assert_eq!((&status["lineage"], &status["seed"]), (&lineage, &Value::Null));
    let why = text(&status["seed_ignored"]);
    assert!(why.starts_with("seed_snapshot /nowhere/gone.snapshot is ignored: the state directory holds"), "{why}");
    assert!(again.log().contains(&why), "{}", again.log());
}

#[test]
fn a_bad_seed_stops_the_start_with_what_where_and_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let bad = folder.path().join("bad.snapshot");
    std::fs::write(&bad, "<html>").unwrap();
    let dir = folder.path().join("state");
    for state_dir in ["none", dir.to_str().unwrap()] {
        let (code, said) = start_fails(&["--state-dir", state_dir, "--seed-snapshot", bad.to_str().unwrap()]);
        assert_eq!(code, Some(1));
        for part in ["bad.snapshot cannot be used: not a foretoken snapshot", "GET /model/export", "start without"] {
            assert!(said.contains(part), "{part} is not in {said}");
        }
    }
    let (code, said) = start_fails(&["--state-dir", "none", "--seed-snapshot", "/nowhere/x"]);
    assert!(code == Some(1) && said.contains("seed_snapshot /nowhere/x cannot be read: No such file"), "{said}");
    let cold = Process::serve(&["--state-dir", "none"]);
    let unfitted = call(&cold.address, "GET", "/model/snapshot", &[], b"");
    std::fs::write(&bad, unfitted.body).unwrap();
    let (_, said) = start_fails(&["--state-dir", "none", "--seed-snapshot", bad.to_str().unwrap()]);
    assert!(said.contains("holds no fitted model; export it from a sidecar whose /status says trained"), "{said}");
}

#[test]
fn flushing_the_models_ends_the_seed() {
    let folder = tempfile::tempdir().unwrap();
    let (_origin, file) = warm(folder.path());
    let copy = seeded(&folder.path().join("state"), &file);
    let before = copy.status();
    copy.post("/flush", &json!({ "flush_models": true, "flush_training_data": false, "flush_test_data": false }));
    wait_for("the prior", || copy.status()["state"] == "prior");
    let status = copy.status();
    assert_eq!(status["seed"]["answers"], json!([]));
    assert!(status["generation"].as_u64() > before["generation"].as_u64());
}

#[test]
fn a_calibration_answers_from_the_first_request_in_the_same_words_everywhere() {
    let process = Process::serve(&["--state-dir", "none", "--calibration", "qwen3-32b-h100-vllm-tp2"]);
    let answer = process.post("/predict", &row()).json();
    let words = "no fit yet: physics with calibration qwen3-32b-h100-vllm-tp2 (";
    let ready = call(&process.address, "GET", "/readyz", &[], b"");
    let explained = process.post("/explain", &row()).json();
    assert_eq!((&answer["state"], ready.status), (&json!("prior"), 200));
    assert!(text(&answer["reason"]).starts_with(words) && text(&answer["reason"]).contains("tokens/s, "), "{answer}");
    assert_eq!(answer["reason"], ready.json()["reason"]);
    assert_eq!(answer["reason"], explained["reason"]);
    assert!(text(&process.status()["reason"]).starts_with(&text(&answer["reason"])));

    // A row of twice the throughput answers faster; an explicit setting wins over the row.
    let ttft = |process: &Process| process.post("/predict", &row()).json()["ttft_ms"].as_f64().unwrap();
    let fast = Process::serve(&["--state-dir", "none", "--calibration", "gpt-oss-120b-h100-vllm-tp1"]);
    assert!(ttft(&fast) < 0.7 * ttft(&process));
    let floor = ["--calibration", "gpt-oss-120b-h100-vllm-tp1", "--ttft-floor-ms", "5000"];
    let slow = Process::serve(&[&["--state-dir", "none"][..], &floor].concat());
    let answer = slow.post("/predict", &row()).json();
    assert!(answer["ttft_ms"].as_f64() > Some(5000.0));
    assert!(text(&answer["reason"]).contains("gpt-oss-120b-h100-vllm-tp1 with values of the operator's ("), "{answer}");

    let given = Process::serve(&["--state-dir", "none", "--prefill-tokens-per-s", "23500"]);
    let words = "no fit yet: physics with the operator's calibration (23500 tokens/s, ";
    assert!(text(&given.post("/predict", &row()).json()["reason"]).starts_with(words));
}

/// What was said before: a literal placeholder instead of words, and constants that answer where none do.
#[test]
fn before_a_fit_nobody_is_told_of_placeholders_or_of_constants_that_do_not_answer() {
    let cold = Process::serve(&["--state-dir", "none"]);
    let refused = cold.post("/predict", &row());
    let detail = text(&refused.json()["detail"]);
    assert_eq!(refused.status, 503);
    let settings = "set calibration or prefill_tokens_per_s to be ready without samples";
    assert_eq!(detail, format!("Models not ready: no fit yet: no sample was ever received; {settings}"));
    assert!(!text(&cold.status()["reason"]).contains("answer"), "{}", cold.status());

    let url = "http://127.0.0.1:9";
    let predictor = Process::serve(&["--role", "predict", "--trainer-url", url, "--state-dir", "none"]);
    wait_for("a try", || predictor.status()["sync"]["failures"].as_u64() > Some(0));
    let readiness = call(&predictor.address, "GET", "/readyz", &[], b"").json();
    for said in [
        text(&readiness["reason"]),
        text(&readiness["detail"]),
        text(&predictor.status()["reason"]),
        text(&predictor.status()["not_learning_because"]),
        text(&predictor.post("/predict", &row()).json()["detail"]),
    ] {
        assert!(!said.contains('<') && !said.contains(url), "{said}");
        assert!(said.contains("the trainer"), "{said}");
    }
    assert!(text(&readiness["reason"]).contains("nothing fitted came from the trainer so far"), "{readiness}");
    assert!(text(&readiness["reason"]).contains("set calibration or prefill_tokens_per_s here or at the trainer"));
}

/// `stale` used to hide behind `warming`, and `extrapolating` behind `stale`.
#[test]
fn a_predictor_that_is_warming_says_that_its_trainer_is_gone_and_that_a_row_extrapolates() {
    let trainer = Process::serve(&["--role", "train", "--state-dir", "none"]);
    let url = format!("http://{}", trainer.address);
    let more = ["--trainer-url", &url, "--state-dir", "none", "--stale-after-s", "0.2"];
    let predictor = Process::serve(&[&["--role", "predict"][..], &more].concat());
    trainer.post("/add_training_data_bulk", &json!({ "entries": rows(0..60) }));
    wait_for("a fit of both targets at the predictor", || {
        let rows = &predictor.status()["trained_rows"];
        rows["ttft"].as_u64() > Some(0) && rows["tpot"].as_u64() > Some(0)
    });
    trainer.kill();
    wait_for("the link to be missed", || text(&predictor.status()["reason"]).contains("also stale: last snapshot is"));
    let status = predictor.status();
    assert_eq!(status["state"], "warming", "the worst stays the word");
    assert!(text(&status["reason"]).starts_with("fitted on fewer than 100 samples so far: "), "{status}");
    let mut far = row();
    far["input_token_length"] = json!(500_000);
    let [near, far] = [row(), far].map(|row| text(&predictor.post("/predict", &row).json()["reason"]));
    assert!(near.contains("also stale: out of step with the trainer for "), "{near}");
    let beyond = "; also extrapolating: an input lies beyond the range of the training samples";
    assert!(far.ends_with(beyond) && far.contains("also stale: "), "{far}");
}
