//! The PostgreSQL store of Posthouse (14 and later).
//!
//! The operations are SQL functions, one file each in `sql/`, applied by [`Postgres::migrate`]: they are the public contract
//! for every language, and what this crate itself calls. So there is one implementation, fenced in the database.
//!
//! An application enqueues in its own transaction, with its own driver, through [`Outbox`]; a relay works through
//! [`Postgres`], which is a [`Store`](posthouse_core::Store) and an [`Admin`](posthouse_core::Admin).

mod admin;
mod below;
mod call;
mod claim;
mod condition;
#[cfg(feature = "diesel-async")]
mod diesel;
mod enqueue;
mod error;
mod floors;
mod ledger;
mod lent;
mod migrate;
mod objects;
mod reach;
mod rows;
#[cfg(feature = "tls")]
mod rustls;
mod saga;
mod schema;
#[cfg(feature = "sea-orm")]
mod sea_orm;
mod settle;
#[cfg(feature = "sqlx")]
mod sqlx;
mod store;
mod tls;
mod wake;

pub use call::{Arg, Call, Run};
pub use enqueue::Outbox;
pub use error::from_sqlstate;
pub use migrate::{Report, SCHEMA_VERSION};
pub use schema::Schema;
pub use store::{Options, Postgres};

/// The SQL files that [`Postgres::migrate`] applies, by name, with the schema as it is written in them.
pub mod sql {
    pub use crate::migrate::{FUNCTIONS, MIGRATIONS};
}
