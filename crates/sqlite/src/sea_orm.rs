//! The application's transaction when its driver is SeaORM.

use posthouse_core::{Error, Invalid};
use sea_orm::{ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr, Statement};

use crate::{
    call::{Call, Row, Run, Value},
    sqlx::{from_sqlx, values},
};

impl Run for DatabaseTransaction {
    async fn run(&mut self, call: &Call<'_>) -> Result<Row, Error> {
        let backend = self.get_database_backend();
        if backend != DbBackend::Sqlite {
            let problem = format!("is one of {backend:?}, and this outbox is in SQLite");
            return Err(Error::Invalid(Invalid::new("transaction", problem)));
        }
        let statement = Statement::from_sql_and_values(backend, call.sql, call.values.iter().map(value));
        let row = self.query_one_raw(statement).await.map_err(from_sea_orm)?;
        let row = row.as_ref().and_then(QueryResult::try_as_sqlite_row);
        row.map(values).transpose().map_err(|e| from_sqlx(&e))
    }
}

fn value(value: &Value<'_>) -> sea_orm::Value {
    match value {
        Value::Null => sea_orm::Value::BigInt(None),
        Value::Integer(integer) => (*integer).into(),
        Value::Text(text) => text.as_ref().into(),
        Value::Blob(blob) => blob.as_ref().into(),
    }
}

fn from_sea_orm(e: DbErr) -> Error {
    match &e {
        DbErr::Conn(RuntimeErr::SqlxError(e))
        | DbErr::Exec(RuntimeErr::SqlxError(e))
        | DbErr::Query(RuntimeErr::SqlxError(e)) => from_sqlx(e),
        DbErr::ConnectionAcquire(_) | DbErr::Conn(_) => Error::Unavailable(e.into()),
        _ => Error::Internal(e.into()),
    }
}
