//! The service on PostgreSQL.

use sqlx::Postgres as Database;

type Outbox = posthouse::postgres::Outbox;
const BEGIN: &str = "BEGIN";

#[path = "service.rs"]
mod service;
pub use service::Service;
