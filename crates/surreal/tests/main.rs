//! The SurrealDB store under the suite that every store passes, and what is SurrealDB's own.

// A test fails by panicking, and so do the helpers of tests.
#![allow(clippy::unwrap_used)]

mod addresses;
mod beside;
mod conflicts;
mod crews;
mod falling_due;
mod fixture;
mod folders;
mod interleaved;
mod invariants;
mod left;
mod program;
mod remote;
mod schema;
mod trips;
mod unreadable;

posthouse_testkit::conformance!(crate::fixture::fresh);

/// The same suite on the engine that writes to the disk.
mod on_disk {
    posthouse_testkit::conformance!(crate::fixture::on_disk);
}
