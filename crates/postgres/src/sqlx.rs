//! The application's transaction when its driver is sqlx.

use posthouse_core::Error;
use sqlx::{Row, postgres::PgArguments, postgres::PgDatabaseError, query::Query};

use crate::{Arg, Call, Run, call::Answer, error::from_sqlstate};

impl Run for sqlx::Transaction<'_, sqlx::Postgres> {
    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        let statement = sqlx::AssertSqlSafe(call.sql.as_str());
        let query = sqlx::query(statement).persistent(call.keep);
        let query = call.args.iter().fold(query, bind);
        let row = query.fetch_one(&mut **self).await;
        row.and_then(|row| row.try_get(0)).map_err(|e| from_sqlx(&e))
    }
}

fn bind<'q>(query: Query<'q, sqlx::Postgres, PgArguments>, arg: &'q Arg) -> Query<'q, sqlx::Postgres, PgArguments> {
    match arg {
        Arg::Uuids(v) => query.bind(v),
        Arg::Texts(v) => query.bind(v),
        Arg::Blobs(v) => query.bind(v),
        Arg::Longs(v) => query.bind(v),
        Arg::Flags(v) => query.bind(v),
        Arg::Flag(v) => query.bind(v),
    }
}

/// The meaning of an error of sqlx.
pub(crate) fn from_sqlx(e: &sqlx::Error) -> Error {
    let source = e.to_string().into();
    match e {
        sqlx::Error::Database(db) => {
            let pg = db.try_downcast_ref::<PgDatabaseError>();
            let (detail, hint) = (pg.and_then(|p| p.detail()), pg.and_then(|p| p.hint()));
            from_sqlstate(&db.code().unwrap_or_default(), db.message(), detail, hint, source)
        }
        sqlx::Error::Io(_) | sqlx::Error::PoolClosed | sqlx::Error::PoolTimedOut => Error::Unavailable(source),
        _ => Error::Internal(source),
    }
}
