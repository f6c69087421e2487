//! One statement on the caller's transaction: the only thing a driver's adapter must know how to do.

use posthouse_core::Error;
use rusqlite::{
    Connection, ToSql,
    types::{ToSqlOutput, ValueRef},
};
use std::{
    borrow::Cow,
    future::Future,
    pin::pin,
    task::{Context, Poll, Waker},
};

use crate::error::plain;

/// A statement of ours with its values.
///
/// Public, so that a driver we do not know works too: run [`Call::sql`] with [`Call::values`] on the transaction, answer the
/// first row if there is one, and turn errors into ours with [`from_code`](crate::from_code).
#[derive(Clone, Debug)]
pub struct Call<'a> {
    /// The statement, with `?1`, `?2`, ...
    pub sql: &'static str,
    /// Its values, in order.
    pub values: Vec<Value<'a>>,
}

/// What SQLite stores, of which we need these kinds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value<'a> {
    /// `NULL`
    Null,
    /// `INTEGER`
    Integer(i64),
    /// `TEXT`
    Text(Cow<'a, str>),
    /// `BLOB`
    Blob(Cow<'a, [u8]>),
}

/// The first row, if there is one.
pub type Row = Option<Vec<Value<'static>>>;

/// A transaction of the application's own driver, when that is an asynchronous one.
///
/// Implemented for transactions only: a connection or a pool would commit the message on its own, apart from the change that
/// it tells of.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not an open transaction",
    note = "begin a transaction and pass `&mut tx`: the message must commit or roll back with your own change"
)]
pub trait Run {
    /// Runs the call in this transaction.
    fn run(&mut self, call: &Call<'_>) -> impl Future<Output = Result<Row, Error>>;
}

/// A connection of the store's own driver, which never waits.
pub(crate) struct Here<'a>(pub &'a Connection);

impl Run for Here<'_> {
    async fn run(&mut self, call: &Call<'_>) -> Result<Row, Error> {
        self.first_row(call).map_err(plain)
    }
}

impl Here<'_> {
    fn first_row(&self, call: &Call<'_>) -> rusqlite::Result<Row> {
        let mut statement = self.0.prepare_cached(call.sql)?;
        let columns = statement.column_count();
        let mut rows = statement.query(rusqlite::params_from_iter(&call.values))?;
        let Some(row) = rows.next()? else { return Ok(None) };
        let value = |at| row.get_ref(at).map(owned);
        (0..columns).map(value).collect::<rusqlite::Result<_>>().map(Some)
    }
}

/// The answer of work that only uses [`Here`], and so never waits.
pub(crate) fn at_once<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    match pin!(work).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(answer) => answer,
        Poll::Pending => Err(Error::Internal("a call that never waits has waited".into())),
    }
}

impl ToSql for Value<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            Self::Null => ValueRef::Null,
            Self::Integer(integer) => ValueRef::Integer(*integer),
            Self::Text(text) => ValueRef::Text(text.as_bytes()),
            Self::Blob(blob) => ValueRef::Blob(blob),
        }))
    }
}

fn owned(value: ValueRef<'_>) -> Value<'static> {
    match value {
        ValueRef::Integer(integer) => Value::Integer(integer),
        ValueRef::Text(text) => Value::Text(String::from_utf8_lossy(text).into_owned().into()),
        ValueRef::Blob(blob) => Value::Blob(blob.to_vec().into()),
        // No answer of ours is a fraction.
        ValueRef::Null | ValueRef::Real(_) => Value::Null,
    }
}

impl From<i64> for Value<'_> {
    fn from(integer: i64) -> Self {
        Self::Integer(integer)
    }
}

impl<'a> From<&'a str> for Value<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text.into())
    }
}

impl From<String> for Value<'_> {
    fn from(text: String) -> Self {
        Self::Text(text.into())
    }
}

impl<'a> From<&'a [u8]> for Value<'a> {
    fn from(blob: &'a [u8]) -> Self {
        Self::Blob(blob.into())
    }
}

impl<'a, T: Into<Value<'a>>> From<Option<T>> for Value<'a> {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}
