//! One function call on the caller's transaction: the only thing a driver's adapter must know how to do.

use posthouse_core::Error;
use std::future::Future;
use tokio_postgres::types::{ToSql, Type};
use uuid::Uuid;

use crate::{Schema, error::from_driver};

/// A call of one SQL function, with arguments of a few plain types, that answers one array of texts (or NULL).
///
/// Public, so that a driver we do not know works too: run [`Call::sql`] with [`Call::args`] on the transaction, read the
/// one column `answer` of the one row as `text[]`, and turn errors into ours with [`from_sqlstate`](crate::from_sqlstate).
/// The statement casts every argument, so a driver that cannot bind arrays binds [`Arg::literal`] as text.
#[derive(Clone, Debug)]
pub struct Call {
    /// The statement, with `$1`, `$2`, ...
    pub sql: String,
    /// Its arguments, in order.
    pub args: Vec<Arg>,
    /// Whether the statement may be kept prepared on the connection, for the next call: see [`Outbox::keep_statements`](crate::Outbox::keep_statements).
    pub keep: bool,
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
/// | driver | feature | pass |
/// |---|---|---|
/// | tokio-postgres, deadpool-postgres | | `&mut tx`, their `Transaction` |
/// | sqlx 0.9 | `sqlx` | `&mut tx`, a `sqlx::Transaction<Postgres>` |
/// | SeaORM 2 | `sea-orm` | `&mut tx`, a `DatabaseTransaction` |
/// | diesel-async 0.9 | `diesel-async` | the `&mut AsyncPgConnection` inside `connection.transaction(...)`; of a pool, `&mut **connection` |
/// | another | | your own: see [`Call`], and the example `examples/drivers/sqlx-0.8` |
///
/// Diesel has no type for a transaction, so its connection is asked whether one is open, and refused if not. It also hides the
/// SQLSTATE: of errors that neither Diesel nor Posthouse knows by other marks only the text is left, in [`Error::Internal`].
///
/// For the others this is implemented for transactions only:
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
    /// Its type in PostgreSQL.
    pub fn type_name(&self) -> &'static str {
        match self {
            Self::Uuids(_) => "uuid[]",
            Self::Texts(_) => "text[]",
            Self::Blobs(_) => "bytea[]",
            Self::Longs(_) => "bigint[]",
            Self::Flags(_) => "boolean[]",
            Self::Flag(_) => "boolean",
        }
    }

    /// The argument as PostgreSQL writes it in text, such as `{"a",NULL}`; `None` is NULL.
    pub fn literal(&self) -> Option<String> {
        match self {
            Self::Uuids(v) => array(v.as_deref()?, |uuid| uuid.map(|uuid| uuid.to_string())),
            Self::Texts(v) => array(v.as_deref()?, Clone::clone),
            Self::Blobs(v) => array(v.as_deref()?, |bytes| Some(hex(bytes))),
            Self::Longs(v) => array(v.as_deref()?, |long| long.map(|long| long.to_string())),
            Self::Flags(v) => array(v.as_deref()?, |flag| Some(flag.to_string())),
            Self::Flag(v) => Some(v.to_string()),
        }
    }

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

fn array<T>(values: &[T], text: impl Fn(&T) -> Option<String>) -> Option<String> {
    let element = |value| match text(value) {
        Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
        None => "NULL".into(),
    };
    Some(format!(
        "{{{}}}",
        values.iter().map(element).collect::<Vec<_>>().join(",")
    ))
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    std::iter::once("\\x".to_owned()).chain(digits).collect()
}

impl Call {
    /// The call of a function of ours. Types are written out, so that also a text is taken for what it stands for.
    pub(crate) fn new(schema: &Schema, function: &str, args: Vec<Arg>) -> Self {
        let place = |(at, arg): (usize, &Arg)| format!("${}::{}", at + 1, arg.type_name());
        let places = args.iter().enumerate().map(place).collect::<Vec<_>>().join(", ");
        let sql = format!("SELECT {schema}.{function}({places})::text[] AS answer");
        Self { sql, args, keep: false }
    }

    pub(crate) fn kept(self, keep: bool) -> Self {
        Self { keep, ..self }
    }

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
        let rows = if call.keep {
            let (values, types): (Vec<_>, Vec<_>) = call.typed().into_iter().unzip();
            let statement = self
                .prepare_typed_cached(&call.sql, &types)
                .await
                .map_err(from_driver)?;
            self.query(&statement, &values).await
        } else {
            self.query_typed(&call.sql, &call.typed()).await
        };
        answer(rows.map_err(from_driver)?)
    }
}

/// The one column of the one row.
pub(crate) fn answer(rows: Vec<tokio_postgres::Row>) -> Result<Answer, Error> {
    let row = rows
        .first()
        .ok_or_else(|| Error::Internal("the function answered no row".into()))?;
    row.try_get(0).map_err(from_driver)
}
