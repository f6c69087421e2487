//! The relay, and the stories of `examples/` as tests: the same pieces, on real databases.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod billing;
mod limits;
mod payments;
mod readme;
mod relay;
