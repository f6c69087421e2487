//! What SurrealDB says, by what the caller can do about it.

use posthouse_core::{BoxError, Error, schema::MIGRATE};
use surrealdb::types::{AuthError, ErrorDetails, NotAllowedError, QueryError};

/// The meaning of an error of SurrealDB. A conflict with another transaction is [`Error::Contention`]: run the transaction again.
pub fn from_surreal(error: surrealdb::Error) -> Error {
    let text = error.to_string();
    // Of a commit that lost, embedded engines tell by their words alone.
    let words = [
        "Transaction conflict",
        "transaction can be retried",
        "Transaction retry required",
    ];
    let lost = words.iter().any(|words| text.contains(words));
    if lost || error.query_details() == Some(&QueryError::TransactionConflict) {
        return Error::Contention(error.into());
    }
    let lacks = |what: &str| text.contains(what) && text.contains("posthouse_");
    if lacks("does not exist") || lacks("not found") {
        return Error::Schema(format!(
            "the database has no usable Posthouse schema ({text}); {MIGRATE}"
        ));
    }
    if has_expired(&error) || is_passing(&error, &text) {
        return Error::Unavailable(error.into());
    }
    match error.details() {
        ErrorDetails::Query(Some(QueryError::TimedOut { .. })) => Error::Timeout(error.into()),
        ErrorDetails::NotAllowed(_) => Error::Denied(text),
        ErrorDetails::Connection(_) => Error::Unavailable(error.into()),
        _ => Error::Internal(error.into()),
    }
}

/// The same of a commit. If its connection was lost on the way, whether it has happened is not known.
pub(crate) fn from_commit(error: surrealdb::Error) -> Error {
    match from_surreal(error) {
        Error::Unavailable(source) => Error::Timeout(source),
        other => other,
    }
}

/// What a server says of more sessions than it lets one connection have.
pub(crate) const TOO_MANY_SESSIONS: &str = "Method not allowed";

/// What a server says that is short of something, or ends, or has lost the connection that a transaction was on.
fn is_passing(error: &surrealdb::Error, text: &str) -> bool {
    let words = [
        "Transaction not found",
        "Session not found",
        "unable to handle the request",
        "shutting down",
        "WebSocket is closing",
        "Connection reset",
        TOO_MANY_SESSIONS,
    ];
    let cancelled = error.query_details() == Some(&QueryError::Cancelled);
    cancelled || words.iter().any(|words| text.contains(words))
}

fn has_expired(error: &surrealdb::Error) -> bool {
    let expired = [AuthError::SessionExpired, AuthError::TokenExpired];
    matches!(error.not_allowed_details(), Some(NotAllowedError::Auth(auth)) if expired.contains(auth))
}

/// Whether a session has become too old: another one, of the same user, goes on.
pub(crate) fn is_expiry(error: &Error) -> bool {
    match error {
        Error::Unavailable(source) => source.downcast_ref().is_some_and(has_expired),
        _ => false,
    }
}

/// A server that was not reached.
pub(crate) fn unavailable(error: surrealdb::Error) -> Error {
    Error::Unavailable(error.into())
}

/// A state of the database that this program does not know.
pub(crate) fn internal(problem: impl Into<BoxError>) -> Error {
    Error::Internal(problem.into())
}
