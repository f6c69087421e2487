//! What SurrealDB says, by what the caller can do about it.

use posthouse_core::{BoxError, Error, schema::MIGRATE};
use surrealdb::types::{ErrorDetails, QueryError};

/// The meaning of an error of SurrealDB. A conflict with another transaction is [`Error::Contention`]: run the transaction again.
pub fn from_surreal(error: surrealdb::Error) -> Error {
    let text = error.to_string();
    // Of a commit that lost, embedded engines tell by their words alone.
    let lost = text.contains("Transaction conflict") || text.contains("transaction can be retried");
    if lost || error.query_details() == Some(&QueryError::TransactionConflict) {
        return Error::Contention(error.into());
    }
    let lacks = |what: &str| text.contains(what) && text.contains("posthouse_");
    if lacks("does not exist") || lacks("not found") {
        return Error::Schema(format!(
            "the database has no usable Posthouse schema ({text}); {MIGRATE}"
        ));
    }
    match error.details() {
        ErrorDetails::Query(Some(QueryError::TimedOut { .. })) => Error::Timeout(error.into()),
        ErrorDetails::NotAllowed(_) => Error::Denied(text),
        ErrorDetails::Connection(_) => Error::Unavailable(error.into()),
        _ => Error::Internal(error.into()),
    }
}

/// A state of the database that this program does not know.
pub(crate) fn internal(problem: impl Into<BoxError>) -> Error {
    Error::Internal(problem.into())
}
