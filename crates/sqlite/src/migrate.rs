//! The schema: embedded, numbered migrations, applied in one transaction under the write lock.
//!
//! The database keeps its version and the oldest program that can still work with it, so an older relay runs on beside a
//! newer one where it can, and refuses clearly where it cannot.

use posthouse_core::Error;
use rusqlite::{Connection, OptionalExtension, params};
use std::{path::Path, time::Duration};

use crate::{
    connect,
    error::{MIGRATE, of_file, plain},
};

const SCHEMA: &str = include_str!("../sql/schema.sql");
const SCHEMA_EXISTS: &str = include_str!("../sql/schema_exists.sql");
const SCHEMA_SET: &str = include_str!("../sql/schema_set.sql");
const TOUCH: &str = include_str!("../sql/touch.sql");

/// Every migration, by its number. They are never changed once released; a new one is added.
const MIGRATIONS: [&str; 3] = [
    include_str!("../migrations/0001_tables.sql"),
    include_str!("../migrations/0002_enqueue.sql"),
    include_str!("../migrations/0003_messages.sql"),
];

/// The schema that this program writes.
pub(crate) const VERSION: i64 = MIGRATIONS.len() as i64;

/// The oldest program, by the schema it wrote, that can work with that schema.
const OLDEST: i64 = 3;

/// Creates the file if it is not there, and brings its schema up to date. Two that do it at once take turns.
pub(crate) fn migrate(path: &Path, busy: Duration) -> Result<(), Error> {
    let mut db = connect::create(path, busy)?;
    connect::check_writable(path, &mut db)?;
    let tx = connect::begin(&mut db, busy)?;
    let found = version(&tx).map_err(|error| of_file(path, error))?;
    let (version, oldest) = found.unwrap_or((0, 0));
    refuse_newer(path, version, oldest)?;
    let done = usize::try_from(version).unwrap_or(0);
    if done < MIGRATIONS.len() {
        for migration in &MIGRATIONS[done..] {
            tx.execute_batch(migration).map_err(plain)?;
        }
        tx.execute(SCHEMA_SET, params![VERSION, OLDEST]).map_err(plain)?;
    }
    tx.commit().map_err(plain)
}

/// Refuses a database that this program cannot work with, and says what to do.
pub(crate) fn check(path: &Path, db: &Connection) -> Result<(), Error> {
    let shown = path.display();
    match version(db).map_err(|error| of_file(path, error))? {
        None => return Err(Error::Schema(format!("{shown} has no Posthouse schema; {MIGRATE}"))),
        Some((version, _)) if version < VERSION => {
            return Err(Error::Schema(format!(
                "the schema of {shown} has version {version}, this program needs {VERSION}; {MIGRATE}"
            )));
        }
        Some((version, oldest)) => refuse_newer(path, version, oldest)?,
    }
    db.query_row(TOUCH, [], |_| Ok(()))
        .map_err(|error| of_file(path, error))
}

fn refuse_newer(path: &Path, version: i64, oldest: i64) -> Result<(), Error> {
    if oldest <= VERSION {
        return Ok(());
    }
    Err(Error::Schema(format!(
        "the schema of {} has version {version} and needs a program that knows at least {oldest}, this one knows \
         {VERSION}; upgrade this program",
        path.display()
    )))
}

/// The version of the schema and the oldest program for it; none when there is no schema.
fn version(db: &Connection) -> rusqlite::Result<Option<(i64, i64)>> {
    if db.query_row(SCHEMA_EXISTS, [], |row| row.get::<_, u32>(0))? == 0 {
        return Ok(None);
    }
    db.query_row(SCHEMA, [], |row| Ok((row.get(0)?, row.get(1)?)))
        .optional()
}
