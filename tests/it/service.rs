//! The service without its edges: contained panics, disks that are slow, full or read-only, and followers.

use std::process::Command;
use std::time::Duration;

use foretoken::http::HttpParams;
use foretoken::service::{FollowParams, ParamError, Service, ServiceError, ServiceRole};
use serde_json::json;

use crate::support::{Process, Sidecar, row, service_params, training_rows, wait_for};

#[test]
fn i5_fits_that_panic_are_contained_counted_and_said() {
    let mut params = service_params(None);
    params.learner.prior.calibrated = true;
    params.run_fit = |_| panic!("a fit that panics on purpose");
    let sidecar = Sidecar::with(params, HttpParams::default());
    let before = sidecar.post("/predict", &row()).json()["ttft_ms"].clone();
    for _ in 0..3 {
        let seen = sidecar.status()["fits"]["panicked"].clone();
        sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..20) }));
        wait_for("another panicked fit", || sidecar.status()["fits"]["panicked"] != seen);
    }
    wait_for("degraded", || sidecar.status()["state"] == "degraded");
    let status = sidecar.status();
    assert!(
        status["reason"].as_str().unwrap().contains("ttft fits panicked (a fit that panics on purpose)"),
        "{status}"
    );
    assert!(status["not_learning_because"].as_str().unwrap().contains("panicked"));
    let answer = sidecar.post("/predict", &row()).json();
    assert_eq!(answer["state"], "degraded");
    assert_eq!(status["generation"], 0);
    assert!(before.is_number(), "the serving snapshot answered throughout");
}

#[test]
fn a_disk_that_hangs_stalls_neither_learning_nor_serving() {
    let folder = tempfile::tempdir().unwrap();
    let hanging = folder.path().join("snapshot.tmp");
    // Opening a pipe for writing blocks until someone reads: a disk that does not answer.
    assert!(Command::new("mkfifo").arg(&hanging).status().unwrap().success());
    let sidecar = Sidecar::with(service_params(Some(folder.path())), HttpParams::default()).trained(200);
    for _ in 0..5 {
        let generation = sidecar.status()["generation"].as_u64();
        sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..300) }));
        wait_for("the next generation", || sidecar.status()["generation"].as_u64() > generation);
        assert_eq!(sidecar.post("/predict", &row()).status, 200);
    }
    // It answers at last: with an error, since a pipe cannot be flushed to a device. That is said, and it recovers.
    let reader = std::thread::spawn(move || std::fs::read(&hanging).map(|bytes| bytes.len()));
    reader.join().unwrap().unwrap();
    sidecar.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..300) }));
    wait_for("a written snapshot", || {
        std::fs::read_dir(folder.path())
            .unwrap()
            .any(|entry| entry.unwrap().file_name().to_string_lossy().ends_with(".snapshot"))
    });
    wait_for("the failure in the account", || sidecar.status()["persistence"]["failures"].as_u64() > Some(0));
    wait_for("the recovery", || sidecar.status()["persistence"]["ok"] == true);
}

#[test]
fn a_full_disk_is_said_and_serving_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    // Files of this process may not grow beyond 8 kB: the write fails as on a full disk.
    let mut command = Command::new("bash");
    command.args(["-c", "trap '' XFSZ; ulimit -f 8; exec \"$0\" serve --listen 127.0.0.1:0 --state-dir \"$1\""]);
    command.arg(env!("CARGO_BIN_EXE_foretoken")).arg(folder.path());
    let process = Process::spawn(command);
    for _ in 0..10 {
        assert_eq!(process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) })).status, 202);
    }
    wait_for("the failure in the account", || process.status()["persistence"]["ok"] == false);
    let status = process.status();
    assert!(status["persistence"]["error"].as_str().unwrap().contains("cannot write the sample log"), "{status}");
    assert!(status["persistence"]["failures"].as_u64() > Some(0));
    wait_for("a fit", || process.status()["trained"] == true);
    assert_eq!(process.post("/predict", &row()).status, 200);
    assert!(process.log().contains("serving goes on"));
}

#[test]
fn a_state_directory_that_cannot_be_made_is_said_and_serving_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let blocked = folder.path().join("file");
    std::fs::write(&blocked, "in the way").unwrap();
    let sidecar = Sidecar::with(service_params(Some(&blocked.join("state"))), HttpParams::default()).trained(200);
    let persistence = sidecar.status()["persistence"].clone();
    assert_eq!((&persistence["ok"], &persistence["state_dir_set"]), (&json!(false), &json!(true)));
    assert!(sidecar.get("/metrics").text().contains("foretoken_state_dir_ok 0"));
}

#[test]
fn a_flood_is_dropped_and_counted_never_waited_for() {
    let mut params = service_params(None);
    params.queue_samples_max = 100;
    let sidecar = Sidecar::with(params, HttpParams::default());
    let rows = json!({ "entries": training_rows(0..5000) });
    let receipt = sidecar.post("/add_training_data_bulk", &rows).json();
    let (accepted, dropped) = (receipt["accepted"].as_u64().unwrap(), receipt["dropped"].as_u64().unwrap());
    assert_eq!(accepted + dropped, 5000);
    assert!(accepted <= 100 && dropped >= 4900);
    let status = sidecar.status();
    assert_eq!(status["samples_dropped"].as_u64(), Some(dropped));
    assert_eq!(status["samples_accepted"].as_u64(), Some(accepted));
}

fn follow(trainer: &str, state_dir: Option<&std::path::Path>) -> Sidecar {
    let mut params = service_params(state_dir);
    params.role = ServiceRole::Predict;
    params.follow = Some(FollowParams {
        trainer_url: format!("http://{trainer}"),
        retry_max: Duration::from_millis(100),
        stale_after: Duration::from_millis(0),
    });
    Sidecar::with(params, HttpParams::default())
}

#[test]
fn followers_serve_each_generation_outlive_the_trainer_and_start_from_disk() {
    let folder = tempfile::tempdir().unwrap();
    let trainer = Sidecar::start().trained(100);
    let followers = [follow(&trainer.address, None), follow(&trainer.address, Some(folder.path()))];
    for _ in 0..3 {
        let before = trainer.status()["generation"].as_u64();
        trainer.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..300) }));
        wait_for("a new generation", || trainer.status()["generation"].as_u64() > before);
        for follower in &followers {
            wait_for("the follower to serve it", || follower.status()["generation"] == trainer.status()["generation"]);
        }
    }
    wait_for("the same corrections", || {
        let [ours, theirs] = [&trainer, &followers[0]].map(|sidecar| sidecar.status()["revision"].clone());
        ours == theirs
    });
    assert_eq!(
        trainer.post("/predict", &row()).json()["ttft_ms"],
        followers[0].post("/predict", &row()).json()["ttft_ms"],
        "i9: trainer and follower answer alike"
    );
    let refused = followers[0].post("/add_training_data_bulk", &json!({ "entries": training_rows(0..3) }));
    assert_eq!(refused.status, 503);
    assert_eq!(refused.json()["detail"], "this instance only predicts; ask its trainer");
    assert_eq!(followers[0].post_text("/reload", "").json()["loaded"], true);
    let address = trainer.address.clone();
    let generation = trainer.status()["generation"].clone();
    trainer.stop();
    wait_for("stale", || followers[0].status()["state"] == "stale");
    let status = followers[0].status();
    assert!(status["reason"].as_str().unwrap().contains("does not answer"), "{status}");
    assert_eq!((&status["sync"]["connected"], &status["generation"]), (&json!(false), &generation));
    let answer = followers[0].post("/predict", &row()).json();
    assert_eq!((&answer["state"], &answer["generation"]), (&json!("stale"), &generation));
    let [_, kept] = followers;
    kept.stop();
    let restarted = follow(&address, Some(folder.path()));
    assert_eq!(restarted.status()["generation"], generation);
    assert_eq!(restarted.post("/predict", &row()).status, 200);
}

#[test]
fn a_follower_needs_a_trainer_it_can_call() {
    let start = |url: Option<&str>| {
        let mut params = service_params(None);
        params.role = ServiceRole::Predict;
        params.follow = url.map(|url| FollowParams {
            trainer_url: url.to_string(),
            retry_max: Duration::from_secs(1),
            stale_after: Duration::from_secs(1),
        });
        Service::start(params).err()
    };
    assert!(matches!(start(None), Some(ServiceError::Params(ParamError::TrainerMissing))));
    for url in ["https://trainer", "trainer:8000", "ftp://x", "http://"] {
        let error = start(Some(url)).unwrap().to_string();
        assert!(error.contains("is not a URL of the form http://host:port"), "{url}: {error}");
    }
}
