//! Configuration: one table of settings; file, then variables, then flags; all errors at once.

mod calibration;
mod checked;
mod raw;
mod table;

pub use calibration::{
    CALIBRATED, Calibration, Constant, parse as parse_calibrations, shipped as shipped_calibrations,
};
pub use checked::{Config, ConfigErrors, Effective, HomeDirs, check};
pub use raw::{Given, Raw, Source};
pub use table::{ELSEWHERE, Kind, RETIRED, SETTINGS, Setting, nearest};
