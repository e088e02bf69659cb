//! foretoken predicts time to first token (TTFT) and time per output token (TPOT) for every LLM request and endpoint.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod app;
pub mod calibration;
pub mod cli;
pub mod config;
pub mod features;
pub mod http;
pub mod model;
pub mod recording;
pub mod service;
pub mod snapshot;
pub mod stats;
pub mod telemetry;
pub mod training;
pub mod types;
