//! One file for each command.

pub mod audit;
pub mod config;
pub mod dead;
pub mod demo;
pub mod destinations;
pub mod doctor;
pub mod enqueue;
pub mod ledger;
pub mod messages;
pub mod migrate;
pub mod saga;
pub mod stats;
pub mod upkeep;
