//! The SQLite store of Posthouse: the outbox in the file that the application already has.
//!
//! ```no_run
//! use posthouse_core::Message;
//! use posthouse_sqlite::{Options, Outbox, Sqlite};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! Sqlite::migrate("shop.db")?;
//! let outbox = Outbox::new(Options::default());
//! let mut db = rusqlite::Connection::open("shop.db")?;
//!
//! let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
//! tx.execute("update orders set state = 'placed' where id = 42", [])?;
//! outbox.enqueue(&tx, Message::json("order.placed", &serde_json::json!({ "order": 42 }))?)?;
//! tx.commit()?;
//!
//! let store = Sqlite::open("shop.db")?; // what a relay works with
//! # Ok(())
//! # }
//! ```
//!
//! **Opening.** [`Sqlite::migrate`] creates or upgrades a database, [`Sqlite::open`] opens one that is up to date; a file
//! that is missing, not migrated, too new, damaged or no database is refused there, not in the middle of the work.
//!
//! **One writer.** WAL, `synchronous=FULL`, `BEGIN IMMEDIATE` for every write. Any number of processes may share the file;
//! whoever finds it busy waits, with growing and spread waits, for at most [`Options::busy_timeout`]. In the caller's own
//! transaction a busy database comes back as `Contention`.
//!
//! **State** is the table that a message's live record is in: see `migrations/0001_tables.sql`, which explains each.
//!
//! **Other languages** enqueue with one INSERT: see [`enqueue`]. Everything that they touch works with SQLite 3.40.

mod admin;
mod call;
mod claim;
mod clock;
mod condition;
mod connect;
mod counts;
mod end;
pub mod enqueue;
mod error;
mod floors;
mod insert;
mod lanes;
mod ledger;
mod list;
mod migrate;
mod options;
mod place;
mod presence;
mod prune;
mod rows;
mod saga;
#[cfg(feature = "sea-orm")]
mod sea_orm;
mod settings;
mod settle;
#[cfg(feature = "sqlx")]
mod sqlx;
mod store;
mod wake;

pub use call::{Call, Row, Run, Value};
pub use enqueue::{AsyncOutbox, Outbox};
pub use error::from_code;
pub use options::Options;
pub use store::Sqlite;
