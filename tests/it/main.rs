//! Integration tests: real sockets, real processes, recorded exchanges, golden files, and the rules of the house.

mod bad_input;
mod cli;
mod contract;
mod dependencies;
mod durability;
mod edge;
mod faults;
mod following;
mod layers;
mod learning;
mod lies;
mod life;
mod screen;
mod seeding;
mod service;
mod shell;
mod support;
mod suspicions;
