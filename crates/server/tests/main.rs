//! The command as its users meet it: the built program, run with arguments, judged by its exit code and its two streams.

// A helper of a test fails by panicking, like the test itself.
#![allow(clippy::unwrap_used)]

mod bulk;
mod config;
mod demo;
mod doctor;
mod faults;
mod migrate;
mod operating;
mod operators;
mod refusals;
mod round_trip;
mod screens;
mod silent;
mod story;
mod streams;
mod support;
