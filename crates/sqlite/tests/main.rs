//! The SQLite store under the suite that every store passes, and what is SQLite's own.

// A test fails by panicking, and so do the helpers of tests.
#![allow(clippy::unwrap_used)]

mod caller;
mod documentation;
mod drivers;
mod files;
mod fixture;
mod measures;
mod plain_sql;
mod processes;
mod ranges;
mod scale;
mod settings;
mod sources;
mod transactions;
mod upgrade;

posthouse_testkit::conformance!(crate::fixture::fresh);
