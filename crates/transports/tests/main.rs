//! Destinations against real sockets, signatures against the standard, and the rules of the guard.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod documentation;
mod faults;
mod headers;
mod names;
mod receiver;
mod secrecy;
mod spellings;
mod tls;
mod webhook;
