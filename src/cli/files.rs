//! Files named on the command line: recordings and snapshots.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::recording::{Recording, read};
use crate::snapshot::{SNAPSHOT_BYTES_MAX, Snapshot, decode};

/// Reads a recording and says on standard error what was left out.
pub fn recording(path: &Path) -> anyhow::Result<Recording> {
    let shown = path.display();
    let file = File::open(path).with_context(|| format!("cannot open {shown}"))?;
    let recording = read(file).with_context(|| shown.to_string())?;
    for notice in &recording.notices {
        eprintln!("foretoken: {shown}: {notice}");
    }
    if recording.skipped > recording.notices.len() {
        eprintln!("foretoken: {shown}: {} rows skipped in all", recording.skipped);
    }
    Ok(recording)
}

/// A file's last part, for tables.
pub fn short_name(path: &Path) -> String {
    let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let stem = name.trim_end_matches(".gz").trim_end_matches(".zst");
    stem.trim_end_matches(".csv").trim_end_matches(".jsonl").to_string()
}

/// Reads a snapshot.
pub fn snapshot(path: &PathBuf) -> anyhow::Result<Snapshot> {
    use std::io::Read;
    let shown = path.display();
    let mut bytes = Vec::new();
    File::open(path)
        .with_context(|| format!("cannot open {shown}"))?
        .take(SNAPSHOT_BYTES_MAX as u64 + 1)
        .read_to_end(&mut bytes)
        .with_context(|| format!("cannot read {shown}"))?;
    decode(&bytes).with_context(|| shown.to_string())
}
