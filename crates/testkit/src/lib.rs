//! What proves a store: a reference in memory, and one suite that every store passes.
//!
//! A store joins by implementing [`Fixture`] and writing `posthouse_testkit::conformance!(my_fixture);` in a test file:
//! that makes one named test for each case of [`suite`].

// The suite is test code that happens to be a library: a case fails by panicking.
#![allow(clippy::unwrap_used)]

pub mod fixture;
pub mod memory;
pub mod page;
pub mod proxy;
pub mod samples;
pub mod simulation;
pub mod suite;
pub mod wrapped;

pub use fixture::{Caller, Fixture};
pub use memory::{Flaw, Memory, MemoryFixture};
pub use wrapped::Wrapped;
