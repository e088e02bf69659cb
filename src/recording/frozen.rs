//! A fixed snapshot on a recording: every row predicted as if it were dispatched at the snapshot's own time.

use super::read::Recording;
use super::replay::RowPrediction;
use crate::snapshot::Snapshot;
use crate::types::{Ask, Quantile, Target, UnixMs};

/// What a snapshot that learns nothing more predicts for each row of a recording, in the order of its rows.
pub fn predict_frozen(recording: &Recording, snapshot: &Snapshot) -> Vec<RowPrediction> {
    let mut positions = vec![0; recording.runs.len()];
    let mut predictions = Vec::with_capacity(recording.rows.len());
    for request in &recording.rows {
        let endpoint = request.endpoint.as_ref().map(|name| name.as_str());
        let mut prediction = RowPrediction { position: positions[request.run], ..RowPrediction::default() };
        positions[request.run] += 1;
        for target in Target::ALL {
            // The snapshot's own time: its age is no matter when it is judged on a recording.
            let now = snapshot.online.of(request.features.role, target).tenth_latest_at.unwrap_or(UnixMs(0));
            let estimate = snapshot.predict(&request.features, endpoint, Ask::Quantile(Quantile::P90), now);
            prediction.generation = estimate.generation;
            prediction.take(target, &estimate);
        }
        predictions.push(prediction);
    }
    predictions
}
