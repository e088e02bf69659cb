//! What runs between fits: online offsets chosen by evidence, and the shape of the distribution around the median.

mod online;
mod shape;
mod tracker;

pub use online::{ENDPOINTS_MAX, EndpointOffsets, Online, OnlineTarget, STALE_AFTER_MS, TargetTracking};
pub use shape::{QuantileShape, SHAPE_POINTS, ShapeWindow};
pub use tracker::{Judged, Tracker};
