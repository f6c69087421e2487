//! One function call on the caller's transaction: the only thing a driver's adapter must know how to do.

use posthouse_core::Error;
use std::future::Future;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::error::from_driver;

/// A call of one SQL function, with arguments of a few plain types, that answers one array of texts (or NULL).
///
/// Public, so that a driver we do not know works too: run [`Call::sql`] with [`Call::args`] on the transaction, read the
/// one column of the one row as `text[]`, and turn errors into ours with [`from_sqlstate`](crate::from_sqlstate).
#[derive(Clone, Debug)]
pub struct Call {
    /// The statement, with `$1`, `$2`, ...
    pub sql: String,
    /// Its arguments, in order.
    pub args: Vec<Arg>,
}

/// An argument. `None` for a whole array means the default for every message.
#[derive(Clone, Debug)]
pub enum Arg {
    /// `uuid[]`
    Uuids(Option<Vec<Option<Uuid>>>),
    /// `text[]`
    Texts(Option<Vec<Option<String>>>),
    /// `bytea[]`
    Blobs(Option<Vec<Vec<u8>>>),
    /// `bigint[]`
    Longs(Option<Vec<Option<i64>>>),
    /// `boolean[]`
    Flags(Option<Vec<bool>>),
    /// `boolean`
    Flag(bool),
}

/// What a `Call` answers.
pub type Answer = Option<Vec<Option<String>>>;

/// A transaction of the application's own driver.
///
/// Implemented for transactions only:
///
/// ```no_run
/// # async fn example(outbox: posthouse_postgres::Outbox, client: &mut tokio_postgres::Client, message: posthouse_core::Message) {
/// let mut tx = client.transaction().await.unwrap();
/// outbox.enqueue(&mut tx, message).await.unwrap();
/// # }
/// ```
///
/// A connection or a pool would commit the message on its own, apart from the change that it tells of. Passing one does
/// not compile:
///
/// ```compile_fail,E0277
/// # async fn example(outbox: posthouse_postgres::Outbox, client: &mut tokio_postgres::Client, message: posthouse_core::Message) {
/// outbox.enqueue(client, message).await.unwrap();
/// # }
/// ```
///
/// ```compile_fail,E0277
/// # async fn example(outbox: posthouse_postgres::Outbox, pool: &mut deadpool_postgres::Pool, message: posthouse_core::Message) {
/// outbox.enqueue(pool, message).await.unwrap();
/// # }
/// ```
#[cfg_attr(feature = "sqlx", doc = "```compile_fail,E0277")]
#[cfg_attr(
    feature = "sqlx",
    doc = "# async fn example(outbox: posthouse_postgres::Outbox, pool: &mut sqlx::PgPool, message: posthouse_core::Message) {"
)]
#[cfg_attr(feature = "sqlx", doc = "outbox.enqueue(pool, message).await.unwrap();")]
#[cfg_attr(feature = "sqlx", doc = "# }")]
#[cfg_attr(feature = "sqlx", doc = "```")]
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    note = "begin a transaction and pass `&mut tx`: the message must commit or roll back with your own change"
)]
pub trait Run: Send {
    /// Runs the call in this transaction.
    fn run(&mut self, call: &Call) -> impl Future<Output = Result<Answer, Error>> + Send;
}

impl Arg {
    fn typed(&self) -> (&(dyn ToSql + Sync), Type) {
        match self {
            Self::Uuids(v) => (v, Type::UUID_ARRAY),
            Self::Texts(v) => (v, Type::TEXT_ARRAY),
            Self::Blobs(v) => (v, Type::BYTEA_ARRAY),
            Self::Longs(v) => (v, Type::INT8_ARRAY),
            Self::Flags(v) => (v, Type::BOOL_ARRAY),
            Self::Flag(v) => (v, Type::BOOL),
        }
    }
}

impl Call {
    /// The arguments as tokio-postgres takes them. With their types given, the statement needs no name on the server, which
    /// is what lets it pass through a pooler in transaction mode.
    pub(crate) fn typed(&self) -> Vec<(&(dyn ToSql + Sync), Type)> {
        self.args.iter().map(Arg::typed).collect()
    }
}

impl Run for tokio_postgres::Transaction<'_> {
    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        answer(self.query_typed(&call.sql, &call.typed()).await.map_err(from_driver)?)
    }
}

impl Run for deadpool_postgres::Transaction<'_> {
    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        answer(self.query_typed(&call.sql, &call.typed()).await.map_err(from_driver)?)
    }
}

/// The one column of the one row.
pub(crate) fn answer(rows: Vec<tokio_postgres::Row>) -> Result<Answer, Error> {
    let row = rows
        .first()
        .ok_or_else(|| Error::Internal("the function answered no row".into()))?;
    row.try_get(0).map_err(from_driver)
}
