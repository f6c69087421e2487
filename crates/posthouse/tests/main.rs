//! The stories of `examples/`, as tests: the same pieces, on a real server, with a clock that stands still until it is moved.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod limits;
mod payments;
mod receipts;
mod relay;
mod writeback;
