//! Integration tests: real sockets, real processes, recorded exchanges, golden files, and the rules of the house.

mod bad_input;
mod cli;
mod contract;
mod dependencies;
mod faults;
mod layers;
mod life;
mod service;
mod support;
