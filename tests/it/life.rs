//! Real processes: orderly stops, kill -9 in the middle of ingest, damaged state, a trainer and its followers.

use std::path::{Path, PathBuf};

use serde_json::json;

use crate::support::{Process, call, row, training_rows, wait_for};

fn serve(dir: &Path, more: &[&str]) -> Process {
    let mut arguments = vec!["--state-dir", dir.to_str().unwrap(), "--flush-interval-ms", "20"];
    arguments.extend_from_slice(more);
    Process::serve(&arguments)
}

fn snapshots(dir: &Path) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = std::fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "snapshot"))
        .collect();
    found.sort();
    found
}

#[test]
fn sigterm_stops_in_order_and_a_restart_goes_on_where_it_was() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve(folder.path(), &[]);
    process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    wait_for("a fit", || process.status()["trained"] == true);
    let generation = process.status()["generation"].as_u64().unwrap();
    assert_eq!(process.terminate(), Some(0));
    let process = serve(folder.path(), &[]);
    let answer = process.post("/predict", &row());
    assert_eq!(answer.status, 200, "it answers from its model at once");
    wait_for("its samples", || process.status()["samples_accepted"] == 200);
    wait_for("the restored account", || process.status()["persistence"]["samples_restored"] == 200);
    assert!(process.status()["generation"].as_u64().unwrap() >= generation);
    process.post("/add_training_data_bulk", &json!({ "entries": training_rows(200..210) }));
    wait_for("the count to go on", || process.status()["samples_accepted"] == 210);
}

#[test]
fn kill_9_in_the_middle_of_ingest_loses_only_what_was_not_written() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve(folder.path(), &[]);
    process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    wait_for("a snapshot on disk", || {
        snapshots(folder.path()).iter().any(|path| !path.to_string_lossy().contains("/000000000000-"))
    });
    wait_for("the samples on disk", || process.status()["persistence"]["log_bytes"].as_u64() > Some(200 * 40));
    let address = process.address.clone();
    let feeder = std::thread::spawn(move || {
        let body = json!({ "entries": training_rows(0..50) }).to_string();
        let mut sent = 200u64;
        while let Ok(mut stream) = std::net::TcpStream::connect(&address) {
            let head = format!(
                "POST /add_training_data_bulk HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                body.len()
            );
            let wrote = std::io::Write::write_all(&mut stream, format!("{head}{body}").as_bytes()).is_ok();
            let mut answer = String::new();
            let read = std::io::Read::read_to_string(&mut stream, &mut answer).is_ok();
            if wrote && read && answer.contains("202") {
                sent += 50;
            }
        }
        sent
    });
    wait_for("ingest under way", || process.status()["samples_accepted"].as_u64() > Some(1000));
    let flushed = snapshots(folder.path());
    process.kill();
    let acknowledged = feeder.join().unwrap();
    let process = serve(folder.path(), &[]);
    wait_for("the restored samples", || process.status()["persistence"]["samples_restored"].as_u64() > Some(0));
    let status = process.status();
    let accepted = status["samples_accepted"].as_u64().unwrap();
    assert!((200..=acknowledged + 50).contains(&accepted), "{accepted} of {acknowledged}");
    let newest: u64 =
        flushed.last().unwrap().file_stem().unwrap().to_string_lossy().split('-').next().unwrap().parse().unwrap();
    assert!(status["generation"].as_u64().unwrap() >= newest, "{status} {newest}");
    assert_eq!(process.post("/predict", &row()).status, 200);
}

/// Whole records in the sample log: behind each segment's header of 28 bytes a length, a checksum and the payload.
fn records(dir: &Path) -> u64 {
    let mut records = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let bytes = std::fs::read(path).unwrap();
        let mut at = 28;
        while let Some(length) = bytes.get(at..at + 4) {
            at += 8 + u32::from_le_bytes(length.try_into().unwrap()) as usize;
            records += u64::from(at <= bytes.len());
        }
    }
    records
}

fn newest_generation(dir: &Path) -> u64 {
    let newest = snapshots(dir).pop();
    let name = newest.map_or("0-0".to_string(), |path| path.file_stem().unwrap().to_string_lossy().into_owned());
    name.split('-').next().unwrap().parse().unwrap()
}

#[test]
fn i1_life_after_life_ended_by_kill_9_counts_every_written_sample_and_numbers_only_rise() {
    let folder = tempfile::tempdir().unwrap();
    let (mut written, mut generation) = (0, 0);
    for life in 0..4 {
        let process = serve(folder.path(), &[]);
        let status = process.status();
        assert_eq!(status["samples_accepted"], written, "life {life}: {status}");
        assert!(status["generation"].as_u64().unwrap() >= generation, "life {life}: {status}");
        for _ in 0..5 {
            process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..100) }));
        }
        wait_for("the samples on disk", || records(folder.path()) == written + 500);
        wait_for("a newer generation on disk", || newest_generation(folder.path()) > generation);
        process.kill();
        written += 500;
        generation = newest_generation(folder.path());
    }
    let process = serve(folder.path(), &[]);
    assert_eq!(process.status()["samples_accepted"], written);
    wait_for("the samples in the store", || process.status()["persistence"]["samples_restored"] == written);
}

#[test]
fn sigterm_writes_every_accepted_sample() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve(folder.path(), &[]);
    for _ in 0..5 {
        process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    }
    assert_eq!(process.terminate(), Some(0));
    assert_eq!(records(folder.path()), 1_000);
}

#[test]
fn a_snapshot_put_into_a_new_directory_serves_from_the_start_and_begins_a_history_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let origin = serve(&folder.path().join("origin"), &[]);
    origin.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    wait_for("a fit", || origin.status()["trained"] == true);
    let export = call(&origin.address, "GET", "/model/export", &[], b"");
    let place = folder.path().join("copy");
    std::fs::create_dir(&place).unwrap();
    std::fs::write(place.join("000000000001-00000000.snapshot"), export.body).unwrap();
    let copy = serve(&place, &[]);
    let status = copy.status();
    assert_eq!((&status["trained"].to_string()[..], &status["samples_accepted"]), ("true", &json!(0)));
    assert_ne!(status["lineage"], origin.status()["lineage"]);
    assert_eq!(copy.post("/predict", &row()).status, 200);
    let lineage = status["lineage"].clone();
    wait_for("its own snapshot on disk", || newest_generation(&place) >= 1 && place.join("foretoken.state").exists());
    assert_eq!(copy.terminate(), Some(0));
    assert_eq!(serve(&place, &[]).status()["lineage"], lineage);
}

#[test]
fn a_damaged_newest_snapshot_is_named_set_aside_and_skipped() {
    let folder = tempfile::tempdir().unwrap();
    let process = serve(folder.path(), &[]);
    for round in 0..3 {
        process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
        wait_for("snapshots", || snapshots(folder.path()).len() > round);
    }
    wait_for("several generations", || snapshots(folder.path()).len() >= 3);
    process.kill();
    let all = snapshots(folder.path());
    let newest = all.last().unwrap();
    let mut bytes = std::fs::read(newest).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x10;
    std::fs::write(newest, bytes).unwrap();
    let process = serve(folder.path(), &[]);
    let name = newest.file_name().unwrap().to_string_lossy().into_owned();
    assert!(process.log().contains(&format!("skipped {name}")), "{}", process.log());
    assert!(process.status()["persistence"]["notices"][0].as_str().unwrap().contains(&name));
    assert_eq!(process.post("/predict", &row()).status, 200, "the one before it serves");
    assert!(!newest.exists() || newest.with_extension("damaged").exists());
}

#[test]
fn one_directory_one_process_and_no_foreign_state() {
    let folder = tempfile::tempdir().unwrap();
    let first = serve(folder.path(), &[]);
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--listen", "127.0.0.1:0", "--state-dir", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&second.stderr).contains("in use by another process"));
    drop(first);
    std::fs::write(folder.path().join("foretoken.state"), "foretoken state format=99 lineage=0\n").unwrap();
    let third = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--listen", "127.0.0.1:0", "--state-dir", folder.path().to_str().unwrap()])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&third.stderr).contains("format=99"), "a newer format is named");
}

#[test]
fn an_address_in_use_says_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let first = serve(folder.path(), &[]);
    let second = std::process::Command::new(env!("CARGO_BIN_EXE_foretoken"))
        .args(["serve", "--listen", &first.address, "--state-dir", "none"])
        .output()
        .unwrap();
    assert_eq!(second.status.code(), Some(1));
    let said = String::from_utf8_lossy(&second.stderr).into_owned();
    assert!(said.contains(&format!("cannot listen on {}", first.address)) && said.contains("--listen"), "{said}");
}

#[test]
fn a_trainer_and_two_predictors_as_processes() {
    let trainer = Process::serve(&["--role", "train", "--state-dir", "none"]);
    let url = format!("http://{}", trainer.address);
    let predictors: Vec<Process> = (0..2)
        .map(|_| {
            Process::serve(&[
                "--role",
                "predict",
                "--trainer-url",
                &url,
                "--state-dir",
                "none",
                "--stale-after-s",
                "0.2",
            ])
        })
        .collect();
    assert_eq!(call(&predictors[0].address, "GET", "/readyz", &[], b"").status, 503);
    trainer.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    wait_for("a fit", || trainer.status()["trained"] == true);
    for predictor in &predictors {
        wait_for("the generation at the predictor", || {
            predictor.status()["generation"] == trainer.status()["generation"]
        });
        assert_eq!(predictor.post("/predict", &row()).status, 200);
    }
    let generation = trainer.status()["generation"].clone();
    trainer.kill();
    for predictor in &predictors {
        wait_for("stale", || predictor.status()["state"] == "stale");
        let answer = predictor.post("/predict", &row()).json();
        assert_eq!((&answer["generation"], &answer["state"]), (&generation, &json!("stale")));
    }
}

#[test]
fn s22_one_process_one_snapshot_behind_every_listener() {
    let process = Process::serve(&["--listen", "127.0.0.1:0", "--state-dir", "none"]);
    process.post("/add_training_data_bulk", &json!({ "entries": training_rows(0..200) }));
    wait_for("both addresses in the log", || process.log().matches("listening on").count() == 2);
    let log = process.log();
    let addresses: Vec<&str> =
        log.lines().filter_map(|line| line.split("listening on http://").nth(1)).map(str::trim).collect();
    wait_for("a fit", || process.status()["trained"] == true);
    wait_for("the same answer from both", || {
        let [first, second] =
            [addresses[0], addresses[1]].map(|address| call(address, "GET", "/status", &[], b"").json());
        first["lineage"] == second["lineage"]
            && first["generation"] == second["generation"]
            && first["samples_accepted"] == second["samples_accepted"]
    });
}
