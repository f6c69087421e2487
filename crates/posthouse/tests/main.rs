//! The relay, and the stories of `examples/` as tests: the same pieces, on real databases.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod billing;
mod bound;
mod budgets;
mod effects;
mod explicit;
#[cfg(feature = "axum")]
mod http;
mod late;
mod ledger;
mod limits;
mod measures;
#[cfg(all(feature = "http", feature = "axum"))]
mod orders;
mod pace;
mod payments;
mod readme;
mod receipts;
mod relay;
mod reports;
mod sagas;
mod simulation;
mod tenants;
mod transactional;
#[cfg(all(feature = "http", feature = "axum"))]
mod trip_saga;
mod waking;
#[cfg(feature = "http")]
mod webhooks;
mod writeback;
