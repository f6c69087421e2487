//! What SQLite says, by what the caller can do about it.

use posthouse_core::{BoxError, Error, schema::MIGRATE};
use rusqlite::{Error as Sqlite, ErrorCode, ffi};
use std::path::Path;

/// The meaning of an error of a statement: SQLite's code (plain or extended) and text.
///
/// Public, so that an adapter for a driver that we do not know answers the same errors.
pub fn from_code(code: i32, text: &str, source: BoxError) -> Error {
    if text.contains("no such table: posthouse_") || text.contains("no such table: main.posthouse_") {
        return Error::Schema(format!("the database has no Posthouse schema ({text}); {MIGRATE}"));
    }
    match ffi::Error::new(code).code {
        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => Error::Contention(source),
        ErrorCode::CannotOpen
        | ErrorCode::SystemIoFailure
        | ErrorCode::DiskFull
        | ErrorCode::ReadOnly
        | ErrorCode::PermissionDenied
        | ErrorCode::FileLockingProtocolFailed
        | ErrorCode::OutOfMemory => Error::Unavailable(source),
        _ => Error::Internal(source),
    }
}

/// Maps an error of a statement that has nothing to do with a file's opening.
pub(crate) fn plain(error: Sqlite) -> Error {
    let code = error.sqlite_error().map_or(ffi::SQLITE_ERROR, |e| e.extended_code);
    from_code(code, &error.to_string(), error.into())
}

/// Maps an error that is about the file, and names it.
pub(crate) fn of_file(path: &Path, error: Sqlite) -> Error {
    let shown = path.display();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::Schema(format!(
            "{shown} is not a SQLite database (or is encrypted); name another file"
        )),
        Some(ErrorCode::DatabaseCorrupt) => {
            Error::Schema(format!("{shown} is damaged ({error}); restore it from a backup"))
        }
        _ => match plain(error) {
            Error::Unavailable(source) => Error::Unavailable(format!("{shown}: {source}").into()),
            Error::Schema(_) => Error::Schema(format!("{shown} has no Posthouse schema; {MIGRATE}")),
            other => other,
        },
    }
}

/// A state of the database that this program does not know.
pub(crate) fn internal(problem: impl Into<BoxError>) -> Error {
    Error::Internal(problem.into())
}

/// Whether somebody else holds the database, and waiting helps.
pub(crate) fn is_busy(error: &Sqlite) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked)
    )
}
