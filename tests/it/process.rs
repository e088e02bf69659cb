//! The real process: killed in the middle of its work, on a full disk, as a trainer with followers, told to stop.

use std::fs;
use std::path::Path;

use serde_json::Value;

use crate::support::{Process, poll};

fn number(status: &Value, field: &str) -> u64 {
    status[field].as_u64().unwrap_or_else(|| panic!("{field} in {status:#}"))
}

/// Whole records in the sample log: behind each segment's header of 28 bytes, a length, a checksum and the payload.
fn records_on_disk(dir: &Path) -> u64 {
    let mut records = 0;
    for entry in fs::read_dir(dir).into_iter().flatten() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "log") {
            continue;
        }
        let bytes = fs::read(path).unwrap_or_default();
        let mut at = 28;
        while let Some(length) = bytes.get(at..at + 4) {
            at += 8 + u32::from_le_bytes(length.try_into().unwrap()) as usize;
            records += u64::from(at <= bytes.len());
        }
    }
    records
}

/// The highest generation among the snapshot files.
fn generation_on_disk(dir: &Path) -> u64 {
    let names =
        fs::read_dir(dir).into_iter().flatten().filter_map(|entry| entry.unwrap().file_name().into_string().ok());
    let generations = names.filter_map(|name| name.strip_prefix("snapshot-")?.split('-').next()?.parse().ok());
    generations.max().unwrap_or(0)
}

#[tokio::test]
async fn kill_9_in_the_middle_of_ingest_costs_only_what_was_not_written() {
    let temp = tempfile::tempdir().unwrap();
    let dir = temp.path().join("state");
    let args = ["--state-dir", dir.to_str().unwrap()];
    let (mut written, mut generation) = (0, 0);
    for _ in 0..3 {
        let mut process = Process::start(&args).await;
        let status = process.status().await;
        let begun = number(&status, "samples_accepted");
        assert!(begun >= written, "{begun} after {written}: {status:#}");
        assert!(number(&status, "generation") >= generation, "{generation}: {status:#}");
        for round in 0..5 {
            assert_eq!(process.send(round * 100..(round + 1) * 100).await, 100);
        }
        poll("the samples are on disk", || records_on_disk(&dir) >= begun + 500).await;
        let before = generation;
        poll("a newer generation is on disk", || generation_on_disk(&dir) > before).await;
        // More is on its way when the end comes.
        process.send(500..600).await;
        process.kill();
        written = begun + 500;
        generation = generation_on_disk(&dir);
        assert!(generation > before);
    }
    let process = Process::start(&args).await;
    let status = process.status().await;
    let accepted = number(&status, "samples_accepted");
    assert!((written..=written + 100).contains(&accepted), "{accepted} after {written}");
    assert!(number(&status, "generation") >= generation);
    process.poll("the samples are back", |status| number(&status["persistence"], "samples_restored") == accepted).await;
}

#[tokio::test]
async fn a_damaged_newest_snapshot_is_skipped_with_its_name_in_the_log() {
    let temp = tempfile::tempdir().unwrap();
    let args = ["--state-dir", temp.path().to_str().unwrap()];
    let mut process = Process::start(&args).await;
    for round in 0..4 {
        process.send(round * 100..(round + 1) * 100).await;
        poll("a newer generation is on disk", || generation_on_disk(temp.path()) > u64::from(round)).await;
    }
    assert_eq!(process.terminate().await, Some(0), "{}", process.log());
    let newest = generation_on_disk(temp.path());
    let prefix = format!("snapshot-{newest}-");
    let entry = fs::read_dir(temp.path())
        .unwrap()
        .map(|entry| entry.unwrap())
        .find(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)));
    let path = entry.unwrap().path();
    let mut bytes = fs::read(&path).unwrap();
    bytes[60] ^= 1;
    fs::write(&path, bytes).unwrap();

    let process = Process::start(&args).await;
    let name = path.file_name().unwrap().to_str().unwrap();
    let log = process.log();
    assert!(log.contains(&format!("{name} is damaged and was skipped")), "{log}");
    let status = process.status().await;
    assert!(number(&status, "generation") > newest, "{status:#}");
    assert_eq!(number(&status, "samples_accepted"), 400);
}

#[tokio::test]
async fn a_full_disk_is_said_and_served_around() {
    let temp = tempfile::tempdir().unwrap();
    // Room for the marker, not for a snapshot nor for many samples.
    let process = Process::start_with_file_limit(temp.path(), 1).await;
    process.send(0..300).await;
    let status = process.poll("it is said", |status| status["persistence"]["ok"] == false).await;
    assert!(status["persistence"]["error"].as_str().unwrap().starts_with("cannot write the "), "{status:#}");
    assert!(number(&status["persistence"], "failures") > 0);
    process.poll("learning and serving go on", |status| number(status, "generation") >= 1).await;
    assert_eq!(process.send(300..310).await, 10);
    assert!(process.log().contains("serving goes on and it is tried again"), "{}", process.log());
}

#[tokio::test]
async fn one_trainer_process_feeds_two_predict_processes_and_is_outlived_by_them() {
    let mut trainer = Process::start(&["--role", "train", "--state-dir", "none"]).await;
    let url = trainer.url.clone();
    let args = ["--role", "predict", "--trainer-url", &url, "--stale-after-s", "0", "--state-dir", "none"];
    let followers = [Process::start(&args).await, Process::start(&args).await];
    for round in 1..=3 {
        trainer.send((round - 1) * 300..round * 300).await;
        let status = trainer.poll("a new generation", |status| number(status, "generation") >= u64::from(round)).await;
        let generation = number(&status, "generation");
        for follower in &followers {
            follower.poll("it is live", |status| number(status, "generation") >= generation).await;
        }
    }
    trainer.kill();
    for follower in &followers {
        let status = follower.poll("it says so", |status| status["state"] == "stale").await;
        let reason = status["reason"].as_str().unwrap();
        assert!(reason.starts_with("last snapshot is ") && reason.contains(&url), "{reason}");
        assert!(number(&status, "generation") >= 3);
        assert_eq!(status["is_ready"], true);
    }
}

#[tokio::test]
async fn sigterm_puts_everything_away() {
    let temp = tempfile::tempdir().unwrap();
    let args = ["--state-dir", temp.path().to_str().unwrap()];
    let mut process = Process::start(&args).await;
    process.send(0..1_000).await;
    assert_eq!(process.terminate().await, Some(0), "{}", process.log());
    assert_eq!(records_on_disk(temp.path()), 1_000);
    let process = Process::start(&args).await;
    assert_eq!(number(&process.status().await, "samples_accepted"), 1_000);
}
