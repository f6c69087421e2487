//! The SurrealDB store of Posthouse: embedded, in memory or on disk, or a server's.
//!
//! ```no_run
//! use posthouse_core::Message;
//! use posthouse_surreal::{Database, Outbox, SurrealDb};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let db = Database::connect("surrealkv://shop.db").await?; // or surrealdb://user:password@host/namespace/database
//! SurrealDb::migrate(&db).await?;
//!
//! let tx = db.begin().await?; // your transaction
//! tx.query("UPDATE order:42 SET state = 'placed'").await?.check()?; // your change
//! Outbox::default().enqueue(&tx, Message::json("order.placed", &42)?).await?;
//! db.commit(tx).await?; // both, or neither; it may be told of a conflict (`Contention`), and is run again then
//! # Ok(())
//! # }
//! ```
//!
//! SurrealDB itself is under the Business Source License 1.1, not under ours: this crate is never part of a default build.
//!
//! **Conflicts.** A transaction sees the database as it was when it began, and two that write the same record conflict when the second one commits. In the
//! store's own verbs that is run again inside; in the application's transaction it is the application's to run again ([`Database::commit`] tells it as `Contention`).
//!
//! **Records** are found by ids that are lists, and stand in their order: see `migrations/0001_tables.surql`, which explains each table.

mod address;
mod admin;
mod claim;
mod condition;
mod database;
mod error;
mod insert;
mod ledger;
mod message;
mod migrate;
mod outbox;
mod presence;
mod records;
mod saga;
mod settings;
mod settle;
mod store;
mod tls;
mod wake;
mod work;

pub use address::Address;
pub use database::Database;
pub use error::from_surreal;
pub use outbox::Outbox;
pub use records::Run;
pub use settings::Options;
pub use store::SurrealDb;
