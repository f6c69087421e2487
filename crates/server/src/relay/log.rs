//! Lines about what happens, on standard error.

use std::io;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use crate::{config::Log, exit::Failure};

/// Begins to write them. Our own by the level that was asked for, other crates' from warnings on: they do not know what is secret.
pub fn begin(log: &Log) -> Result<(), Failure> {
    let level: LevelFilter = log.level.parse().unwrap_or(LevelFilter::INFO);
    let filter = Targets::new()
        .with_target("posthouse", level)
        // A client whose connection is gone cannot take back what it listened to there. The store listens anew, and nothing is lost.
        .with_target("surrealdb::method::live", level.min(LevelFilter::ERROR))
        .with_default(level.min(LevelFilter::WARN));
    let lines = fmt::layer().with_writer(io::stderr).with_ansi(false);
    let lines = if log.json { lines.json().boxed() } else { lines.boxed() };
    let begun = tracing_subscriber::registry()
        .with(lines.with_filter(filter))
        .try_init();
    begun.map_err(|error| Failure::new(format!("nothing can be logged: {error}")))
}
