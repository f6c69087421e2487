//! The PostgreSQL store: the shared suite, and what is PostgreSQL's own.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod arguments;
mod attack;
mod batch;
mod beside;
mod condition;
mod contract;
mod controls;
mod cost;
mod documentation;
mod drivers;
mod emptied;
mod entrances;
mod failover;
mod fixture;
// A rule without a database, tested where it stands.
#[path = "../src/floors.rs"]
#[allow(dead_code)]
mod floors;
mod lanes;
mod late;
mod measures;
mod migrating;
mod pooler;
mod roles;
mod schema;
mod settings;
mod silence;
mod tidy;
#[cfg(feature = "tls")]
mod tls;
mod upgrade;
mod wake;

/// The same through PgBouncer in transaction mode, and with leases that stand together.
mod pooled {
    posthouse_testkit::conformance!(crate::fixture::PostgresFixture::pooled);
}

mod suite {
    posthouse_testkit::conformance!(crate::fixture::PostgresFixture::emptied);
}
