//! The stories of `examples/`, as tests: the same pieces, on a real server, with a clock that stands still until it is moved.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod effects;
mod explicit;
mod limits;
mod payments;
mod relay;
mod simulation;
mod tenants;
mod transactional;
#[cfg(feature = "http")]
mod webhooks;
