//! What an SQLSTATE means to our users. The one table for every driver.

use deadpool_postgres::{PoolError, TimeoutType};
use posthouse_core::{BoxError, Error, Invalid, MessageId, State};

use crate::reach::Target;

/// The meaning of a database error. `detail` and `hint` carry what our functions put there: an id, a state, a field.
///
/// Public, so that an adapter for a driver that we do not know answers the same errors.
pub fn from_sqlstate(state: &str, message: &str, detail: Option<&str>, hint: Option<&str>, source: BoxError) -> Error {
    match state {
        "P7003" => illegal(message, detail, hint).unwrap_or(Error::Internal(source)),
        "P7004" => match (detail.and_then(|d| d.parse().ok()), hint) {
            (Some(existing), Some("id")) => Error::DedupeConflict { key: "id", existing },
            (Some(existing), _) => Error::DedupeConflict {
                key: "dedupe_key",
                existing,
            },
            _ => Error::Internal(source),
        },
        "P7011" => of_saga(message, detail, hint).unwrap_or(Error::Internal(source)),
        "P7002" => last_id(message).map_or(Error::Internal(source), Error::LeaseLost),
        "P7005" => last_id(message).map_or(Error::Internal(source), Error::NotFound),
        "P7006" => Error::Invalid(invalid(message)),
        // Deadlock, serialisation failure, lock not available; a rival with the same id committed first; the lock table is full; a deadline passed before
        // a settlement had its locks; a claim took longer than half of its lease.
        "40001" | "40P01" | "55P03" | "23505" | "53200" | "P7010" | "P7012" => Error::Contention(source),
        "57014" => Error::Timeout(source),
        // The schema, a table or a function is missing, or has other arguments.
        "3F000" | "42P01" | "42883" => Error::Schema(format!(
            "the database has no usable Posthouse schema ({message}); run `posthouse migrate`"
        )),
        "42501" => Error::Denied(message.to_owned()),
        // Shut down, cannot connect now, too many connections, read-only standby; not allowed in.
        "57P01" | "57P02" | "57P03" | "53300" | "25006" => Error::Unavailable(source),
        s if s.starts_with("08") || s.starts_with("28") || s.starts_with("3D") => Error::Unavailable(source),
        _ => Error::Internal(source),
    }
}

/// The meaning of an error of tokio-postgres.
pub(crate) fn from_driver(e: tokio_postgres::Error) -> Error {
    match e.as_db_error() {
        Some(db) => {
            let (state, message) = (db.code().code().to_owned(), db.message().to_owned());
            let (detail, hint) = (db.detail().map(str::to_owned), db.hint().map(str::to_owned));
            let source = format!("{message} (SQLSTATE {state})").into();
            from_sqlstate(&state, &message, detail.as_deref(), hint.as_deref(), source)
        }
        None if e.is_closed() || std::error::Error::source(&e).is_some_and(|s| s.is::<std::io::Error>()) => {
            Error::Unavailable(with_causes(&e))
        }
        None => Error::Internal(with_causes(&e)),
    }
}

/// The meaning of an error of the pool.
pub(crate) fn from_pool(e: PoolError, target: &Target) -> Error {
    match e {
        PoolError::Timeout(TimeoutType::Create) => target.silent(),
        PoolError::Backend(e) => match from_driver(e) {
            Error::Internal(source) => Error::Unavailable(source),
            other => other,
        },
        other => Error::Unavailable(other.into()),
    }
}

/// Drivers hide their causes; people need them.
fn with_causes(e: &dyn std::error::Error) -> BoxError {
    let mut text = e.to_string();
    let mut next = e.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text.into()
}

fn illegal(message: &str, detail: Option<&str>, hint: Option<&str>) -> Option<Error> {
    let id = message
        .split_whitespace()
        .find_map(|word| word.trim_end_matches(':').parse().ok())?;
    let state = detail?.parse::<State>().ok()?;
    let verb = VERBS.into_iter().find(|v| Some(*v) == hint)?;
    Some(Error::IllegalState { id, state, verb })
}

/// The verbs of operators.
const VERBS: [&str; 5] = ["replay", "quarantine", "cancel", "resolve", "discard"];

fn of_saga(message: &str, detail: Option<&str>, hint: Option<&str>) -> Option<Error> {
    let id = message
        .split_whitespace()
        .find_map(|word| word.trim_end_matches(':').parse().ok())?;
    let saga = detail?.parse().ok()?;
    let verb = VERBS.into_iter().find(|v| Some(*v) == hint)?;
    Some(Error::OfSaga { id, saga, verb })
}

fn last_id(message: &str) -> Option<MessageId> {
    message.split_whitespace().find_map(|word| word.parse().ok())
}

/// The arguments of the public functions, which a refusal begins with.
const FIELDS: [&str; 62] = [
    "actor",
    "audit",
    "batch_size",
    "checkpoint",
    "code",
    "consumer",
    "content_type",
    "dedupe_key",
    "definition",
    "delay",
    "deliver_in",
    "destination",
    "digest",
    "dry_run",
    "error",
    "fingerprint",
    "hash",
    "headers",
    "http_status",
    "id",
    "keep_bytes",
    "keep_receipt",
    "key",
    "kind",
    "lease_seconds",
    "lease_token",
    "log",
    "lost_epoch",
    "max_attempts",
    "max_bytes",
    "max_rows",
    "message_id",
    "messages",
    "name",
    "namespace",
    "namespaces",
    "not_topics",
    "note",
    "older_than",
    "on_dead",
    "on_duplicate",
    "order_key",
    "ordering",
    "outcome",
    "parent",
    "payload",
    "reason",
    "receipt",
    "result",
    "retention_seconds",
    "retry_after",
    "retryable",
    "roll",
    "scope",
    "snapshot",
    "state",
    "tenant",
    "token",
    "topic",
    "transaction",
    "version",
    "worker_id",
];

fn invalid(message: &str) -> Invalid {
    let (place, problem) = message.split_once(": ").unwrap_or(("", message));
    if let Some(field) = FIELDS.into_iter().find(|f| *f == place) {
        return Invalid::new(field, problem);
    }
    // An element of a batch: the batch is the argument, and the text goes on with which one and what of it.
    let element = FIELDS
        .into_iter()
        .find_map(|f| Some((f, message.strip_prefix(f)?)).filter(|(_, rest)| rest.starts_with('[')));
    let (field, problem) = element.unwrap_or(("argument", message));
    Invalid::new(field, problem)
}
