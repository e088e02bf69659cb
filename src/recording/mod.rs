//! Recorded requests: reading them, and replaying them as they happened. Pure but for the reader it is handed.

mod frozen;
mod read;
mod replay;
mod score;
mod yardstick;

pub use frozen::predict_frozen;
pub use read::{ReadError, RecordedRequest, Recording, read};
pub use replay::{Replayed, RowPrediction, replay, sample_of};
pub use score::{FileScores, Geomean, SCORED, Score, geomean, score};
pub use yardstick::RunningQuantile;
