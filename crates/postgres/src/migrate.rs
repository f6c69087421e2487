//! Making and upgrading the schema.

use posthouse_core::{Error, Invalid};
use tokio_postgres::types::Type;

use crate::{Postgres, error::from_driver};

/// The schema version that this library makes and needs.
pub const SCHEMA_VERSION: i32 = 1;
/// The oldest library version (by its `SCHEMA_VERSION`) that can work on the schema this one makes.
const OLDEST_COMPATIBLE: i32 = 1;

/// Changes of the tables, in order. Never edited once released.
pub const MIGRATIONS: [(i32, &str); 1] = [(1, include_str!("../migrations/0001_tables.sql"))];

/// The functions and views, applied whole by every migration: there is one text of each, not a history.
pub const FUNCTIONS: [(&str, &str); 29] = [
    ("clock", include_str!("../sql/clock.sql")),
    ("words", include_str!("../sql/words.sql")),
    ("lane", include_str!("../sql/lane.sql")),
    ("messages", include_str!("../sql/messages.sql")),
    ("take_turns", include_str!("../sql/take_turns.sql")),
    ("ring", include_str!("../sql/ring.sql")),
    ("find_twins", include_str!("../sql/find_twins.sql")),
    ("enqueue_many", include_str!("../sql/enqueue_many.sql")),
    ("enqueue", include_str!("../sql/enqueue.sql")),
    ("promote", include_str!("../sql/promote.sql")),
    ("lanes", include_str!("../sql/lanes.sql")),
    ("grant_leases", include_str!("../sql/grant_leases.sql")),
    ("pick_ready", include_str!("../sql/pick_ready.sql")),
    ("pick_keyed", include_str!("../sql/pick_keyed.sql")),
    ("sample_floor", include_str!("../sql/sample_floor.sql")),
    ("settle", include_str!("../sql/settle.sql")),
    ("check_dedup", include_str!("../sql/check_dedup.sql")),
    (
        "complete_outbox_attempt",
        include_str!("../sql/complete_outbox_attempt.sql"),
    ),
    ("renew_lease", include_str!("../sql/renew_lease.sql")),
    ("expired", include_str!("../sql/expired.sql")),
    ("claim_outbox_batch", include_str!("../sql/claim_outbox_batch.sql")),
    ("record_conflict", include_str!("../sql/record_conflict.sql")),
    ("operator", include_str!("../sql/operator.sql")),
    ("prune", include_str!("../sql/prune.sql")),
    ("find_messages", include_str!("../sql/find_messages.sql")),
    ("counts", include_str!("../sql/counts.sql")),
    ("presence", include_str!("../sql/presence.sql")),
    ("roles", include_str!("../sql/roles.sql")),
    ("import_history", include_str!("../sql/import_history.sql")),
];

/// What a migration did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Migrated {
    /// The version before; 0 when there was none.
    pub from: i32,
    /// The version now.
    pub to: i32,
}

impl Postgres {
    /// Makes the schema, or brings it up to this version: one transaction, guarded against a second migrator.
    pub async fn migrate(&self) -> Result<Migrated, Error> {
        let mut client = self.client().await?;
        let encoding = self.check_name(&client).await?;
        if encoding != "UTF8" {
            return Err(Error::Schema(format!(
                "the database has the encoding {encoding}, which has not every character; make another one: \
                 CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
            )));
        }
        let tx = client.transaction().await.map_err(from_driver)?;
        tx.batch_execute(&self.schema.apply(include_str!("../sql/migrate_begin.sql")))
            .await
            .map_err(from_driver)?;
        let found = tx
            .query_typed(
                &self
                    .schema
                    .apply("SELECT version, oldest FROM posthouse.schema_version"),
                &[],
            )
            .await
            .map_err(from_driver)?;
        let from = match found.first() {
            Some(row) => row.try_get(0).map_err(from_driver)?,
            None => 0,
        };
        if from > SCHEMA_VERSION {
            return Err(newer(from));
        }
        for (_, sql) in MIGRATIONS.iter().filter(|(version, _)| *version > from) {
            tx.batch_execute(&self.schema.apply(sql)).await.map_err(from_driver)?;
        }
        for (_, sql) in FUNCTIONS {
            tx.batch_execute(&self.schema.apply(sql)).await.map_err(from_driver)?;
        }
        let end = self.schema.apply(include_str!("../sql/migrate_end.sql"));
        tx.query_typed(&end, &[(&SCHEMA_VERSION, Type::INT4), (&OLDEST_COMPATIBLE, Type::INT4)])
            .await
            .map_err(from_driver)?;
        tx.batch_execute(&self.schema.apply(include_str!("../sql/migrate_grants.sql")))
            .await
            .map_err(from_driver)?;
        tx.commit().await.map_err(from_driver)?;
        Ok(Migrated {
            from,
            to: SCHEMA_VERSION,
        })
    }

    /// Makes the roles of the schema (`posthouse_owner`, `_producer`, `_relay`, `_operator`, `_viewer`), or brings their rights up
    /// to date, and answers their names. Nobody can log in as one of them: grant them to those who can.
    pub async fn make_roles(&self) -> Result<Vec<String>, Error> {
        let sql = self.schema.apply("SELECT posthouse.make_roles()");
        let rows = self.query(&sql, &[]).await?;
        rows.iter().map(|row| row.try_get(0).map_err(from_driver)).collect()
    }

    /// Refuses a schema whose name would need quotes. Answers the encoding of the database.
    async fn check_name(&self, client: &tokio_postgres::Client) -> Result<String, Error> {
        let (sql, name) = (include_str!("../sql/server.sql"), self.schema.as_str());
        let rows = client
            .query_typed(sql, &[(&name, Type::TEXT)])
            .await
            .map_err(from_driver)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::Internal("the server says nothing about itself".into()))?;
        if row.try_get(0).map_err(from_driver)? {
            return row.try_get(1).map_err(from_driver);
        }
        let problem = format!("{name:?} is a reserved word of PostgreSQL; choose another name");
        Err(Invalid::new("schema", problem).into())
    }

    /// Refuses a schema that is missing, older than this library, or newer than it can work with.
    pub(crate) async fn check_schema(&self) -> Result<(), Error> {
        let client = self.client().await?;
        self.check_name(&client).await?;
        let sql = self
            .schema
            .apply("SELECT version, oldest FROM posthouse.schema_version");
        let rows = client.query_typed(&sql, &[]).await.map_err(from_driver)?;
        let (version, oldest): (i32, i32) = match rows.first() {
            Some(row) => (
                row.try_get(0).map_err(from_driver)?,
                row.try_get(1).map_err(from_driver)?,
            ),
            None => (0, 0),
        };
        if version < SCHEMA_VERSION {
            return Err(Error::Schema(format!(
                "the schema has version {version} and this program needs {SCHEMA_VERSION}; run `posthouse migrate`"
            )));
        }
        if oldest > SCHEMA_VERSION {
            Err(newer(version))
        } else {
            Ok(())
        }
    }
}

fn newer(found: i32) -> Error {
    Error::Schema(format!(
        "the schema has version {found} and this program knows {SCHEMA_VERSION} at most; upgrade the program"
    ))
}
