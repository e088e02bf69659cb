//! The rules of the house, read off the sources: who may know whom, what the core must not touch, and how files begin.

use std::path::{Path, PathBuf};

/// Rooms of the core, innermost first, and the rooms of ours each may use.
const MAY_USE: &[(&str, &[&str])] = &[
    ("types", &[]),
    ("stats", &["types"]),
    ("features", &["types", "stats"]),
    ("model", &["types", "stats", "features"]),
    ("calibration", &["types", "stats", "features", "model"]),
    ("snapshot", &["types", "stats", "features", "model", "calibration"]),
    ("training", &["types", "stats", "features", "model", "calibration", "snapshot"]),
    ("recording", &["types", "stats", "features", "model", "calibration", "snapshot", "training"]),
    ("service", &["types", "stats", "features", "model", "calibration", "snapshot", "training"]),
    ("telemetry", &["types", "training", "service"]),
    ("http", &["types", "stats", "features", "model", "calibration", "snapshot", "training", "service", "telemetry"]),
    ("config", &["types", "model", "training", "service", "http", "telemetry"]),
];

/// Rooms that decide: no clock, no file, no socket, no log, no generator of their own.
const PURE: &[&str] = &["types", "stats", "features", "model", "calibration", "snapshot", "training", "recording"];

const IMPURE: &[&str] = &[
    "tokio",
    "axum",
    "hyper",
    "tonic",
    "arc_swap",
    "tracing",
    "prometheus",
    "std::fs",
    "std::net",
    "std::env",
    "SystemTime",
    "Instant::now",
    "Timestamp::now",
    "rand::",
    "println!",
    "eprintln!",
];

fn sources(dir: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn all(dir: &str) -> Vec<(PathBuf, String)> {
    let mut found = Vec::new();
    sources(Path::new(dir), &mut found);
    assert!(!found.is_empty());
    found.into_iter().map(|path| (path.clone(), std::fs::read_to_string(path).unwrap())).collect()
}

/// The product's part of a file: without comments and without its tests.
fn product(text: &str) -> String {
    let end = text.find("#[cfg(test)]").unwrap_or(text.len());
    text[..end].lines().map(|line| line.split("//").next().unwrap_or("")).collect::<Vec<_>>().join("\n")
}

fn room(path: &Path) -> String {
    path.components().nth(1).unwrap().as_os_str().to_string_lossy().trim_end_matches(".rs").to_string()
}

#[test]
fn every_room_uses_only_the_rooms_below_it() {
    let mut faults = Vec::new();
    for (path, text) in all("src") {
        let Some((_, allowed)) = MAY_USE.iter().find(|(name, _)| *name == room(&path)) else { continue };
        for part in product(&text).split("crate::").skip(1) {
            let used: String = part.chars().take_while(|c| c.is_ascii_lowercase() || *c == '_').collect();
            if used != room(&path) && !allowed.contains(&used.as_str()) {
                faults.push(format!("{} uses {used}", path.display()));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn rooms_that_decide_touch_nothing_outside() {
    let mut faults = Vec::new();
    for (path, text) in all("src") {
        if PURE.contains(&room(&path).as_str()) {
            let text = product(&text);
            let words = IMPURE.iter().filter(|word| text.contains(*word));
            faults.extend(words.map(|word| format!("{} mentions {word}", path.display())));
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn only_the_codec_knows_bincode_and_only_edges_know_serde() {
    for (path, text) in all("src") {
        let shown = path.display().to_string();
        let text = product(&text);
        assert!(!text.contains("bincode") || shown == "src/snapshot/codec.rs", "{shown} uses bincode");
        let room = room(&path);
        let inner = ["types", "stats", "features", "model", "calibration", "training"].contains(&room.as_str());
        assert!(!(inner && text.contains("serde")), "{shown} uses serde");
    }
}

#[test]
fn every_file_says_what_it_is_for_and_nothing_can_panic_on_purpose() {
    let mut faults = Vec::new();
    for (path, text) in all("src").into_iter().chain(all("tests")).chain(all("benches")) {
        if !text.starts_with("//! ") {
            faults.push(format!("{} does not begin with what it is for", path.display()));
        }
        if path.starts_with("src") {
            let text = product(&text);
            for word in [".unwrap()", ".expect(", "panic!(", "todo!(", "unimplemented!(", "unreachable!(", "dbg!("] {
                if text.contains(word) {
                    faults.push(format!("{} has {word}", path.display()));
                }
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}
