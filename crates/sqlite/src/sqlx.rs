//! The application's transaction when its driver is sqlx.

use posthouse_core::Error;
use sqlx::{
    Row as _, TypeInfo, ValueRef,
    query::Query,
    sqlite::{Sqlite, SqliteArguments, SqliteRow},
};

use crate::{
    call::{Call, Row, Run, Value},
    error::from_code,
};

impl Run for sqlx::Transaction<'_, Sqlite> {
    async fn run(&mut self, call: &Call<'_>) -> Result<Row, Error> {
        let query = call.values.iter().fold(sqlx::query(call.sql), bind);
        let row = query.fetch_optional(&mut **self).await;
        let row = row.and_then(|row| row.as_ref().map(values).transpose());
        row.map_err(|e| from_sqlx(&e))
    }
}

fn bind<'q>(query: Query<'q, Sqlite, SqliteArguments>, value: &'q Value<'_>) -> Query<'q, Sqlite, SqliteArguments> {
    match value {
        Value::Null => query.bind(None::<i64>),
        Value::Integer(integer) => query.bind(integer),
        Value::Text(text) => query.bind(text.as_ref()),
        Value::Blob(blob) => query.bind(blob.as_ref()),
    }
}

/// The columns of a row, each of the kind that it has there.
pub(crate) fn values(row: &SqliteRow) -> Result<Vec<Value<'static>>, sqlx::Error> {
    let value = |at| {
        let raw = row.try_get_raw(at)?;
        Ok(match raw.type_info().name() {
            _ if raw.is_null() => Value::Null,
            "TEXT" => row.try_get::<String, _>(at)?.into(),
            "BLOB" => Value::Blob(row.try_get::<Vec<u8>, _>(at)?.into()),
            _ => Value::Integer(row.try_get(at)?),
        })
    };
    (0..row.len()).map(value).collect()
}

/// The meaning of an error of sqlx.
pub(crate) fn from_sqlx(e: &sqlx::Error) -> Error {
    let source = e.to_string().into();
    match e {
        sqlx::Error::Database(db) => {
            let code = db.code().and_then(|code| code.parse().ok());
            from_code(code.unwrap_or(rusqlite::ffi::SQLITE_ERROR), db.message(), source)
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut => Error::Unavailable(source),
        _ => Error::Internal(source),
    }
}
