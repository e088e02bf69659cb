//! Tests of the whole: the library's parts together, and the real process.

mod durability;
mod following;
mod process;
mod support;
