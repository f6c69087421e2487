//! Opening a database file, and waiting for its one writer.

use posthouse_core::{Error, schema::MIGRATE};
use rusqlite::{Connection, OpenFlags, Transaction, TransactionBehavior, config::DbConfig};
use std::{
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};
use uuid::Uuid;

use crate::error::{is_busy, of_file, plain};

/// Every statement of this crate, with room: a statement is prepared once for each connection.
const STATEMENTS: usize = 128;

/// The waits between two tries for the write lock grow from the first to the second of these.
const SHORTEST_WAIT: Duration = Duration::from_micros(250);
const LONGEST_WAIT: Duration = Duration::from_millis(5);

/// Opens an existing file.
pub(crate) fn open(path: &Path, busy: Duration) -> Result<Connection, Error> {
    if is_missing(path) {
        let shown = path.display();
        return Err(Error::Schema(format!("there is no database {shown}; {MIGRATE}")));
    }
    connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE, busy)
}

/// Where SQLite keeps the log of this file.
pub(crate) fn log_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push("-wal");
    name.into()
}

/// Whether there is no such file, in a directory that is there.
pub(crate) fn is_missing(path: &Path) -> bool {
    let in_place = |parent: &Path| parent.as_os_str().is_empty() || parent.is_dir();
    !path.exists() && path.parent().is_none_or(in_place)
}

/// Opens an existing file to look at it as it is: nothing is configured, so nothing in it changes.
pub(crate) fn look(path: &Path, busy: Duration) -> Result<Connection, Error> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let opened = Connection::open_with_flags(path, flags).and_then(|db| db.busy_timeout(busy).map(|()| db));
    opened.map_err(|error| of_file(path, error))
}

/// Opens a file, and creates it if it is not there. Its directory must be.
pub(crate) fn create(path: &Path, busy: Duration) -> Result<Connection, Error> {
    connect(
        path,
        OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE,
        busy,
    )
}

fn connect(path: &Path, flags: OpenFlags, busy: Duration) -> Result<Connection, Error> {
    // Each connection is used by one thread at a time, so SQLite's own mutexes would only cost.
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(path, flags).map_err(|error| of_file(path, error))?;
    let journal = patiently(busy, || configure(&db)).map_err(|error| of_file(path, error))?;
    if journal != "wal" {
        let problem = format!(
            "{}: cannot be used with a write-ahead log, only with {journal}",
            path.display()
        );
        return Err(Error::Unavailable(problem.into()));
    }
    db.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(db)
}

/// WAL lets readers go on beside the writer, FULL makes a commit survive a crash of the machine. Several processes that
/// open the file at once meet here, because changing the journal mode needs it alone. Answers the journal mode.
fn configure(db: &Connection) -> rusqlite::Result<String> {
    db.busy_timeout(Duration::ZERO)?;
    // A plan depends on no value, or SQLite would prepare a statement again for each new LIMIT.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.pragma_update(None, "synchronous", "FULL")?;
    db.pragma_update(None, "foreign_keys", false)?;
    db.pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
}

/// Whether the file can be written: SQLite opens one that cannot without a word. One that somebody else writes just now
/// can be.
pub(crate) fn check_writable(path: &Path, db: &mut Connection) -> Result<(), Error> {
    match begin(db, Duration::ZERO).map(drop) {
        Err(Error::Unavailable(source)) => Err(Error::Unavailable(format!("{}: {source}", path.display()).into())),
        Err(Error::Contention(_)) => Ok(()),
        answer => answer,
    }
}

/// Begins a transaction that holds the write lock. Whoever holds it meanwhile is waited for, for as long as `busy`.
pub(crate) fn begin(db: &mut Connection, busy: Duration) -> Result<Transaction<'_>, Error> {
    let db: &Connection = db;
    patiently(busy, || Transaction::new_unchecked(db, TransactionBehavior::Immediate)).map_err(plain)
}

/// Tries again while the database is busy, after waits that grow and that chance spreads, so that several processes do
/// not come back in step.
pub(crate) fn patiently<T>(at_most: Duration, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let (since, mut wait) = (Instant::now(), SHORTEST_WAIT);
    // Ends: at the first other answer, or when the time is up.
    loop {
        match attempt() {
            Err(error) if is_busy(&error) && since.elapsed() < at_most => {
                thread::sleep(wait.mul_f64(0.5 + chance()));
                wait = (wait * 2).min(LONGEST_WAIT);
            }
            answer => return answer,
        }
    }
}

/// From 0 to 1.
fn chance() -> f64 {
    f64::from(Uuid::new_v4().as_fields().0) / f64::from(u32::MAX)
}
