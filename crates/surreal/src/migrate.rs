//! The schema: embedded, numbered migrations, applied in one transaction.
//!
//! The database keeps its version and the oldest program that can still work with it; [`posthouse_core::schema`] has the rule.

use posthouse_core::{Error, Migration, SchemaVersion, Upgrade};
use surrealdb::types::SurrealValue;

use crate::records::{self, Run, Writes, name};

const SCHEMA: &str = "posthouse_schema";

/// Every migration, by its number, with its name. They are never changed once released; a new one is added.
const MIGRATIONS: [(i64, &str, &str); 1] = [(1, "tables", include_str!("../migrations/0001_tables.surql"))];

/// The schema that this program makes.
const TARGET: SchemaVersion = SchemaVersion { version: 1, oldest: 1 };

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Kept {
    version: i64,
    oldest: i64,
}

/// Brings the schema up to date.
pub(crate) async fn migrate(tx: &dyn Run, place: &str) -> Result<Upgrade, Error> {
    let upgrade = plan(tx, place).await?;
    for wanted in &upgrade.migrations {
        for (_, _, sql) in MIGRATIONS.iter().filter(|(version, ..)| *version == wanted.version) {
            tx.run(sql, Vec::new()).await?;
        }
    }
    if !upgrade.migrations.is_empty() {
        let SchemaVersion { version, oldest } = upgrade.target;
        let kept = Kept { version, oldest };
        Writes::of(name!(SCHEMA, "only"), kept).write(tx).await?;
    }
    Ok(upgrade)
}

/// What a migration would do. Changes nothing.
pub(crate) async fn plan(tx: &dyn Run, place: &str) -> Result<Upgrade, Error> {
    planned(place, found(tx).await?)
}

/// What a migration would do where there is no database yet.
pub(crate) fn from_nothing(place: &str) -> Result<Upgrade, Error> {
    planned(place, None)
}

fn planned(place: &str, found: Option<SchemaVersion>) -> Result<Upgrade, Error> {
    let all = MIGRATIONS.map(|(version, name, _)| Migration { version, name });
    Upgrade::plan(place, found, TARGET, all, 0)
}

/// Refuses a database that this program cannot work with, and says what to do.
pub(crate) async fn check(tx: &dyn Run, place: &str) -> Result<(), Error> {
    TARGET.check(place, found(tx).await?)
}

/// The version of the schema; none when there is no schema.
async fn found(tx: &dyn Run) -> Result<Option<SchemaVersion>, Error> {
    let kept = match records::get_one::<Kept>(tx, name!(SCHEMA, "only")).await {
        Err(Error::Schema(_)) => None,
        kept => kept?,
    };
    Ok(kept.map(|Kept { version, oldest }| SchemaVersion { version, oldest }))
}
