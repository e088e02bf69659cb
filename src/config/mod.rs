//! Configuration: one table of settings; file, then variables, then flags; all errors at once.

mod checked;
mod raw;
mod table;

pub use checked::{Config, ConfigErrors, Effective, HomeDirs, check};
pub use raw::{Given, Raw, Source};
pub use table::{Kind, RETIRED, SETTINGS, Setting, nearest};
