//! The application's transaction when its driver is SeaORM.

use posthouse_core::{Error, Invalid};
use sea_orm::{
    ConnectionTrait, DatabaseTransaction, DbBackend, DbErr, QueryResult, RuntimeErr, Statement, Value,
    sea_query::ArrayType, sqlx::Row,
};

use crate::{Arg, Call, Run, call::Answer, sqlx::from_sqlx};

impl Run for DatabaseTransaction {
    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        let backend = self.get_database_backend();
        if backend != DbBackend::Postgres {
            let problem = format!("is one of {backend:?}, and this outbox is in PostgreSQL");
            return Err(Error::Invalid(Invalid::new("transaction", problem)));
        }
        let statement = Statement::from_sql_and_values(backend, &call.sql, call.args.iter().map(value));
        let row = self.query_one_raw(statement).await.map_err(from_sea_orm)?;
        let row = row.as_ref().and_then(QueryResult::try_as_pg_row);
        let row = row.ok_or_else(|| Error::Internal("the function answered no row".into()))?;
        row.try_get(0).map_err(|e| from_sqlx(&e))
    }
}

/// SeaORM binds no array that has a NULL in it, so most go as text. Payloads go as they are: as text they would be twice as long.
fn value(arg: &Arg) -> Value {
    match arg {
        Arg::Blobs(Some(blobs)) => {
            let bytes = blobs.iter().map(|blob| Value::from(blob.as_slice())).collect();
            Value::Array(ArrayType::Bytes, Some(Box::new(bytes)))
        }
        other => Value::String(other.literal()),
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
