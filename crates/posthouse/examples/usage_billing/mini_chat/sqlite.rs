//! The service on SQLite.

use sqlx::Sqlite as Database;

type Outbox = posthouse::sqlite::AsyncOutbox;
/// Whoever will write says so at once: one that has read first may find another writer before it.
const BEGIN: &str = "BEGIN IMMEDIATE";

// The same text for both databases; each has transactions of its own type.
#[allow(clippy::duplicate_mod)]
#[path = "service.rs"]
mod service;
pub use service::Service;
