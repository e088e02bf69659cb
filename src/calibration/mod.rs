//! What runs between fits: online offsets chosen by evidence, the shape of the distribution around the median, and the
//! watch for a change of regime.

mod alarm;
mod drift;
mod online;
mod shape;
mod tracker;
mod tracking;

pub use alarm::{ALARMS_KEPT, Alarm, AlarmCause};
pub use drift::{Drift, Shift};
pub use online::{Correction, ENDPOINTS_MAX, EndpointCorrection, Online, OnlineTarget, STALE_AFTER_MS};
pub use shape::{QuantileShape, SHAPE_POINTS, ShapeWindow};
pub use tracker::{Judged, Tracker};
pub use tracking::{Observed, TargetTracking};
