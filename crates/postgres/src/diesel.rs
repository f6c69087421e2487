//! The application's transaction when its driver is diesel-async.

use diesel::{
    pg::Pg,
    query_builder::BoxedSqlQuery,
    result::{DatabaseErrorInformation, DatabaseErrorKind, Error as DieselError},
    sql_types::{Array, BigInt, Binary, Bool, Nullable, Text, Uuid},
};
use diesel_async::{AsyncConnection, AsyncPgConnection, RunQueryDsl, TransactionManager};
use posthouse_core::{Error, Invalid};

use crate::{Arg, Call, Run, call::Answer, error::from_sqlstate};

/// Diesel has no type of its own for a transaction: inside `connection.transaction(...)` it hands out the connection. So whether
/// one is open is asked at run time, and a connection without one is refused before anything is written.
impl Run for AsyncPgConnection {
    async fn run(&mut self, call: &Call) -> Result<Answer, Error> {
        let status = <Self as AsyncConnection>::TransactionManager::transaction_manager_status_mut(self);
        if status.transaction_depth().map_err(from_diesel)?.is_none() {
            let problem = "is not open; call this inside `connection.transaction(...)`, so that the message commits with your change";
            return Err(Error::Invalid(Invalid::new("transaction", problem)));
        }
        let query = diesel::sql_query(&call.sql).into_boxed();
        let query = call.args.iter().cloned().fold(query, bind);
        let row: Row = query.get_result(self).await.map_err(from_diesel)?;
        Ok(row.answer)
    }
}

#[derive(diesel::QueryableByName)]
struct Row {
    #[diesel(sql_type = Nullable<Array<Nullable<Text>>>)]
    answer: Answer,
}

type Query = BoxedSqlQuery<'static, Pg, diesel::query_builder::SqlQuery>;

fn bind(query: Query, arg: Arg) -> Query {
    match arg {
        Arg::Uuids(v) => query.bind::<Nullable<Array<Nullable<Uuid>>>, _>(v),
        Arg::Texts(v) => query.bind::<Nullable<Array<Nullable<Text>>>, _>(v),
        Arg::Blobs(v) => query.bind::<Nullable<Array<Binary>>, _>(v),
        Arg::Longs(v) => query.bind::<Nullable<Array<Nullable<BigInt>>>, _>(v),
        Arg::Flags(v) => query.bind::<Nullable<Array<Bool>>, _>(v),
        Arg::Flag(v) => query.bind::<Bool, _>(v),
    }
}

fn from_diesel(e: DieselError) -> Error {
    let state = match &e {
        DieselError::DatabaseError(kind, info) => sqlstate(kind, info.as_ref()),
        DieselError::BrokenTransactionManager => "08006",
        _ => "",
    };
    match &e {
        DieselError::DatabaseError(_, info) => {
            from_sqlstate(state, info.message(), info.details(), info.hint(), e.to_string().into())
        }
        _ => from_sqlstate(state, "", None, None, e.into()),
    }
}

/// Diesel does not hand on the SQLSTATE. Its own kind tells some, and what our functions put beside a message tells ours; for the
/// rest there is only the text, in the server's language.
fn sqlstate(kind: &DatabaseErrorKind, info: &dyn DatabaseErrorInformation) -> &'static str {
    match kind {
        DatabaseErrorKind::UniqueViolation => "23505",
        DatabaseErrorKind::SerializationFailure => "40001",
        DatabaseErrorKind::ReadOnlyTransaction => "25006",
        DatabaseErrorKind::ClosedConnection | DatabaseErrorKind::UnableToSendCommand => "08006",
        _ if matches!(info.hint(), Some("id" | "dedupe_key")) && info.details().is_some() => "P7004",
        _ if info.message() == "deadlock detected" => "40P01",
        _ => "",
    }
}
