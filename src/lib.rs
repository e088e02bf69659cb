//! foretoken predicts time to first token (TTFT) and time per output token (TPOT) for every LLM request and every endpoint
//! that could serve it, and learns online from what came of them.
//!
//! # The map
//!
//! Decisions are pure functions of their arguments; sockets, files, threads and clocks live in a shell around them. Innermost
//! first:
//!
//! | room | what it is for |
//! | --- | --- |
//! | [`types`] | the vocabulary: features, samples, estimates, generations, instants as values |
//! | [`stats`] | quantiles and scores that know nothing of requests |
//! | [`features`] | from what was known at dispatch to the inputs of the models |
//! | [`model`] | the regressors: prior, non-negative base, regime table, residual trees, endpoint scales |
//! | [`calibration`] | what runs between fits: offsets, the quantile table, staleness, the watch for changes of regime |
//! | [`snapshot`] | one immutable snapshot: the hot path, its explanation, its bytes |
//! | [`training`] | the learner: screen, store, schedule, fit, gate |
//! | [`recording`] | recorded requests, and replaying them through the same learner |
//! | [`service`] | the shell round the learner: cell, queue, trainer thread, state directory, followers |
//! | [`telemetry`] | metrics and log |
//! | [`http`] | the sidecar's API |
//! | [`config`] | settings: one table, every error at once |
//! | [`cli`], [`app`] | subcommands; the composition root of `serve` |
//!
//! A room uses only rooms above it in this table (`tests/it/layers.rs` checks it); those down to `recording` touch no
//! runtime, clock, file, socket, log or generator.
//!
//! # Invariants
//!
//! - I1 Generations only rise within a lineage; a batch is answered by one.
//! - I2 A published snapshot is never mutated; its schema is the encoder's.
//! - I3 Every float of a sample, a feature or an estimate is finite; quantiles never cross; a predicted latency is > 0.
//! - I4 Stores and queues never exceed their capacity; offered = accepted + dropped, taught = stored + evicted.
//! - I5 One fit at a time; one that fails or panics leaves the serving snapshot untouched, is counted, and shows.
//! - I7 Predicting takes no lock and allocates nothing per row.
//! - I8 The same recording gives the same bytes.
//! - I9 Every route gives the same answer to the same row.
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
