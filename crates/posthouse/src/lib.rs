//! A transactional outbox: your data and the message that tells of it are committed together, or not at all.
//!
//! With sqlx on PostgreSQL (feature `sqlx`), in the transaction that you have anyway:
//!
//! ```no_run
//! use posthouse::{Message, postgres::Outbox};
//!
//! # async fn example(pool: sqlx::PgPool) -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = Outbox::default();
//! let mut tx = pool.begin().await?;
//! sqlx::query("update orders set state = 'placed' where id = $1").bind(42).execute(&mut *tx).await?;
//! let placed = Message::json("order.placed", &serde_json::json!({ "order": 42 }))?;
//! outbox.enqueue(&mut tx, placed.order_key("order-42")).await?;
//! tx.commit().await?;
//! # Ok(()) }
//! ```
//!
//! With rusqlite, in the file that your application has anyway:
//!
//! ```no_run
//! use posthouse::{Message, sqlite::Outbox};
//! use rusqlite::TransactionBehavior::Immediate;
//!
//! # fn example(mut db: rusqlite::Connection) -> Result<(), Box<dyn std::error::Error>> {
//! let outbox = Outbox::default();
//! let tx = db.transaction_with_behavior(Immediate)?;
//! tx.execute("update orders set state = 'placed' where id = ?1", [42])?;
//! let placed = Message::json("order.placed", &serde_json::json!({ "order": 42 }))?;
//! outbox.enqueue(&tx, &placed.order_key("order-42"))?;
//! tx.commit()?;
//! # Ok(()) }
//! ```
//!
//! Before the first message, make the schema: `posthouse --store URL migrate`, or [`AnyStore::migrate`].
//!
//! # What happens to it then
//!
//! A relay claims the message under a lease, sends it, and settles it with evidence of the attempt. A relay that dies
//! loses its lease, and another takes over; one that comes back too late is refused by its token and changes nothing.
//! What fails is tried again with growing waits, and ends in `dead`, from where a person may replay it.
//!
//! ```no_run
//! use posthouse::{AnyStore, Claim, Settlement};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), posthouse::Error> {
//! let store = AnyStore::open("sqlite://shop.db").await?.store();
//! for claimed in store.claim(&Claim::new("worker-1", 10, Duration::from_secs(15))).await? {
//!     println!("sending {} ({} bytes)", claimed.delivery.topic, claimed.delivery.payload.len());
//!     let verdicts = store.settle(&[Settlement::delivered(&claimed.lease, None)]).await?;
//!     assert!(verdicts[0].is_settled(), "somebody else has the lease now");
//! }
//! # Ok(()) }
//! ```
//!
//! Delivery is at least once: a receiver is given the message's id, which never changes, and an epoch, which rises with
//! each grant. Exactly-once delivery and an order across keys are not promised.
//!
//! # Where to read on
//!
//! | for | see |
//! |---|---|
//! | what may be enqueued | [`Message`], [`Limits`]; for everybody, [`StoreSettings`] |
//! | PostgreSQL | [`postgres`]: an [`Outbox`](postgres::Outbox) for your transactions, a [`Postgres`](postgres::Postgres) for a relay |
//! | SQLite | [`sqlite`]: the same two |
//! | SurrealDB, with the feature `surreal` | `surreal`: the same two |
//! | a store by its URL | [`AnyStore`] |
//! | delivering, inside your program | [`Relay`]: functions ([`relay::local`]), and handlers that settle in their own transaction ([`relay::transactional`]) |
//! | steps that are all done, or undone | [`saga`] |
//! | doing something once | [`ledger`]; an HTTP request, with the feature `axum` or `tower`: `idempotency` |
//! | claiming and settling | [`Store`], [`Claim`], [`Lease`], [`Settlement`] |
//! | looking and operating | [`Admin`], [`MessageView`], [`Attempt`], [`AuditEntry`], [`bulk`] |
//! | delivering | [`Relay`], [`relay`]; to a URL, with the feature `http`: `http` and `webhook` |
//! | what may go wrong | [`Error`], [`Code`] |
//!
//! Features: `postgres`, `sqlite` and `tls` (all by default); `surreal`, which brings SurrealDB along, under its own licence; `sqlx`, `sea-orm` and `diesel-async` for the transactions of these drivers;
//! `http` for webhooks, `webhook` for verifying them alone; `axum`, or `tower` alone, for HTTP services that do a request once.

/// The page on handlers: its examples are compiled.
#[cfg(all(doctest, feature = "postgres", feature = "sqlite", feature = "sqlx"))]
#[doc = include_str!("../../../docs/handlers.md")]
struct HandlersPage;

/// The page on sagas: its example is compiled.
#[cfg(all(doctest, feature = "postgres", feature = "sqlx"))]
#[doc = include_str!("../../../docs/sagas.md")]
struct SagasPage;

/// The page on SurrealDB: its examples are compiled.
#[cfg(all(doctest, feature = "surreal"))]
#[doc = include_str!("../../../docs/surrealdb.md")]
struct SurrealPage;

/// The page on the ledger: its example is compiled.
#[cfg(all(doctest, feature = "sqlite", feature = "sqlx", feature = "axum"))]
#[doc = include_str!("../../../docs/ledger.md")]
struct LedgerPage;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
mod any;
pub mod bulk;
#[cfg(feature = "tower")]
pub mod idempotency;
pub mod ledger;
pub mod relay;
mod retention;
pub mod saga;
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
mod url;

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
pub use any::AnyStore;
pub use posthouse_core::*;
pub use relay::Relay;
pub use retention::prune_all;

/// The PostgreSQL store, and the outbox for an application's own transactions.
#[cfg(feature = "postgres")]
pub use posthouse_postgres as postgres;
/// The SQLite store, and the outbox for an application's own transactions.
#[cfg(feature = "sqlite")]
pub use posthouse_sqlite as sqlite;
/// The SurrealDB store, and the outbox for an application's own transactions.
#[cfg(feature = "surreal")]
pub use posthouse_surreal as surreal;
/// Webhooks: a URL as a destination.
#[cfg(feature = "http")]
pub use posthouse_transports::http;
/// Signatures of webhooks, for those who send and those who receive.
#[cfg(feature = "webhook")]
pub use posthouse_transports::webhook;
