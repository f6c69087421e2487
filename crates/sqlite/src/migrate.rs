//! The schema: embedded, numbered migrations, applied in one transaction under the write lock.
//!
//! The database keeps its version and the oldest program that can still work with it; [`posthouse_core::schema`] has the rule.

use posthouse_core::{Error, Migration, SchemaVersion, Upgrade};
use rusqlite::{Connection, OptionalExtension, params};
use std::{path::Path, time::Duration};

use crate::{
    connect,
    error::{of_file, plain},
};

const SCHEMA: &str = include_str!("../sql/schema.sql");
const SCHEMA_EXISTS: &str = include_str!("../sql/schema_exists.sql");
const SCHEMA_SET: &str = include_str!("../sql/schema_set.sql");
const TOUCH: &str = include_str!("../sql/touch.sql");

/// Every migration, by its number, with its name. They are never changed once released; a new one is added.
const MIGRATIONS: [(i64, &str, &str); 3] = [
    (1, "tables", include_str!("../migrations/0001_tables.sql")),
    (2, "enqueue", include_str!("../migrations/0002_enqueue.sql")),
    (3, "messages", include_str!("../migrations/0003_messages.sql")),
];

/// The schema that this program makes.
const TARGET: SchemaVersion = SchemaVersion { version: 3, oldest: 3 };

/// Creates the file if it is not there, and brings its schema up to date. Two that do it at once take turns.
pub(crate) fn migrate(path: &Path, busy: Duration) -> Result<Upgrade, Error> {
    let mut db = connect::create(path, busy)?;
    connect::check_writable(path, &mut db)?;
    let tx = connect::begin(&mut db, busy)?;
    let upgrade = upgrade(path, found(&tx).map_err(|error| of_file(path, error))?)?;
    for wanted in &upgrade.migrations {
        for (_, _, sql) in MIGRATIONS.iter().filter(|(version, ..)| *version == wanted.version) {
            tx.execute_batch(sql).map_err(plain)?;
        }
    }
    if !upgrade.migrations.is_empty() {
        let SchemaVersion { version, oldest } = upgrade.target;
        tx.execute(SCHEMA_SET, params![version, oldest]).map_err(plain)?;
    }
    tx.commit().map_err(plain)?;
    Ok(upgrade)
}

/// What a migration would do. Changes nothing, and creates no file.
pub(crate) fn plan(path: &Path, busy: Duration) -> Result<Upgrade, Error> {
    if connect::is_missing(path) {
        return upgrade(path, None);
    }
    let db = connect::look(path, busy)?;
    upgrade(path, found(&db).map_err(|error| of_file(path, error))?)
}

fn upgrade(path: &Path, found: Option<SchemaVersion>) -> Result<Upgrade, Error> {
    let all = MIGRATIONS.map(|(version, name, _)| Migration { version, name });
    Upgrade::plan(&path.display().to_string(), found, TARGET, all, 0)
}

/// Refuses a database that this program cannot work with, and says what to do.
pub(crate) fn check(path: &Path, db: &Connection) -> Result<(), Error> {
    let found = found(db).map_err(|error| of_file(path, error))?;
    TARGET.check(&path.display().to_string(), found)?;
    db.query_row(TOUCH, [], |_| Ok(()))
        .map_err(|error| of_file(path, error))
}

/// Refuses a database that has been upgraded, since it was opened, to what this program cannot work with.
pub(crate) fn still_fits(path: &Path, db: &Connection) -> Result<(), Error> {
    let found = stored(db).map_err(|error| of_file(path, error))?;
    match found {
        Some(found) if found.version == TARGET.version => Ok(()),
        _ => TARGET.check(&path.display().to_string(), found),
    }
}

/// The version of the schema; none when there is no schema.
fn found(db: &Connection) -> rusqlite::Result<Option<SchemaVersion>> {
    if db.query_row(SCHEMA_EXISTS, [], |row| row.get::<_, u32>(0))? == 0 {
        return Ok(None);
    }
    stored(db)
}

fn stored(db: &Connection) -> rusqlite::Result<Option<SchemaVersion>> {
    let version = |row: &rusqlite::Row<'_>| {
        Ok(SchemaVersion {
            version: row.get(0)?,
            oldest: row.get(1)?,
        })
    };
    db.prepare_cached(SCHEMA)?.query_row([], version).optional()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_migration_makes_the_version() {
        let numbers: Vec<_> = MIGRATIONS.iter().map(|(version, ..)| *version).collect();
        assert_eq!(numbers, (1..=TARGET.version).collect::<Vec<_>>());
    }
}
