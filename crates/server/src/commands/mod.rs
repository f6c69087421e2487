//! One file for each command.

pub mod demo;
pub mod enqueue;
pub mod messages;
pub mod migrate;
