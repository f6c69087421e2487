//! The SurrealDB store under the suite that every store passes, and what is SurrealDB's own.

// A test fails by panicking, and so do the helpers of tests.
#![allow(clippy::unwrap_used)]

mod fixture;

posthouse_testkit::conformance!(crate::fixture::fresh);
