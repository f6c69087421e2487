//! Applies the functions, views and triggers of the schema: only those that differ from this program's, because replacing a view locks it against its
//! readers.
//!
//! The table `applied` keeps two hashes of each object: of the statement that made it, and of the object as the catalogue showed it afterwards. An object
//! differs if either hash does: the statement after an upgrade, the catalogue after a change by hand.

use posthouse_core::Error;
use std::{
    collections::HashMap,
    time::{Duration, Instant},
};
use tokio_postgres::{Row, Transaction, types::Type};

use crate::{Schema, error::from_driver, migrate::FUNCTIONS, store::Args};

/// How long a migration that holds a lock waits for the others that it needs. Shorter than the server's `deadlock_timeout` (1 s by default), so that in a
/// deadlock the migration gives up before the server aborts a session. For its first lock it may wait longer, because no session waits for it yet.
pub(crate) const LOCKS: Duration = Duration::from_millis(300);

/// One object of the schema.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Object {
    /// Kind and name, as in `function enqueue`.
    name: String,
    /// The statement that makes it.
    sql: String,
}

/// Every object, in the order in which they are made.
fn objects(schema: &Schema) -> Vec<Object> {
    let statements = FUNCTIONS.iter().flat_map(|(_, text)| statements(text));
    let object = |sql: &str| Object {
        name: name_of(sql),
        sql: schema.apply(sql),
    };
    statements.map(object).collect()
}

const BEGINS: &str = "CREATE OR REPLACE ";

/// The statements of a file: each begins a line.
fn statements(text: &str) -> impl Iterator<Item = &str> {
    let starts = text.match_indices(BEGINS).map(|(at, _)| at);
    let mut starts: Vec<_> = starts
        .filter(|at| *at == 0 || text.as_bytes()[at - 1] == b'\n')
        .collect();
    starts.push(text.len());
    let ends = starts.clone().into_iter().skip(1);
    starts.into_iter().zip(ends).map(|(from, to)| &text[from..to])
}

fn name_of(sql: &str) -> String {
    let mut words = sql[BEGINS.len()..].split([' ', '(', '\n']);
    let (kind, name) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let name = name.trim_start_matches("posthouse.");
    format!("{} {name}", kind.to_lowercase())
}

/// An object as it was when it was applied.
#[derive(PartialEq, Eq)]
struct Applied {
    /// The hash of the statement that made it.
    source: Vec<u8>,
    /// The hash of it as the catalogue showed it then.
    shown: Vec<u8>,
}

/// Applies the objects that the database does not have as this program does. Answers how many that were. The caller has set how long the first lock is
/// waited for.
pub(crate) async fn apply(tx: &Transaction<'_>, schema: &Schema) -> Result<usize, Error> {
    let (shown, applied) = (shown(tx, schema).await?, applied(tx, schema).await?);
    let is_as_made = |object: &Object| match (shown.get(&object.name), applied.get(&object.name)) {
        (Some(shown), Some(applied)) => applied.shown == *shown && applied.source == hash(&object.sql),
        _ => false,
    };
    let all = objects(schema).into_iter();
    let differing: Vec<_> = all.filter(|object| !is_as_made(object)).collect();
    if differing.is_empty() {
        return Ok(0);
    }
    // Lock the views before changing anything, in the order in which their readers lock them: a view before the views that it reads.
    let there = differing.iter().rev().filter(|object| shown.contains_key(&object.name));
    let mut since: Option<Instant> = None;
    for sql in there.filter_map(|object| lock(object, schema)) {
        tx.batch_execute(&sql).await.map_err(from_driver)?;
        let since = since.get_or_insert_with(Instant::now);
        wait_at_most(tx, LOCKS.saturating_sub(since.elapsed())).await?;
    }
    for object in &differing {
        tx.batch_execute(&object.sql).await.map_err(from_driver)?;
    }
    record(tx, schema, &differing).await?;
    Ok(differing.len())
}

/// Each object of the schema as the catalogue shows it, as a hash.
async fn shown(tx: &Transaction<'_>, schema: &Schema) -> Result<HashMap<String, Vec<u8>>, Error> {
    let sql = schema.apply(include_str!("../sql/migrate_shown.sql"));
    let rows = tx.query_typed(&sql, &[]).await.map_err(from_driver)?;
    let read = |row: &Row| Ok((row.try_get(0)?, row.try_get(1)?));
    rows.iter().map(|row| read(row).map_err(from_driver)).collect()
}

async fn applied(tx: &Transaction<'_>, schema: &Schema) -> Result<HashMap<String, Applied>, Error> {
    let sql = schema.apply("SELECT name, source, shown FROM posthouse.applied");
    let rows = tx.query_typed(&sql, &[]).await.map_err(from_driver)?;
    let read = |row: &Row| {
        let (source, shown) = (row.try_get(1)?, row.try_get(2)?);
        Ok((row.try_get(0)?, Applied { source, shown }))
    };
    rows.iter().map(|row| read(row).map_err(from_driver)).collect()
}

/// Records the hashes of these objects.
async fn record(tx: &Transaction<'_>, schema: &Schema, made: &[Object]) -> Result<(), Error> {
    let shown = shown(tx, schema).await?;
    let names: Vec<_> = made.iter().map(|object| object.name.as_str()).collect();
    let sources: Vec<_> = made.iter().map(|object| hash(&object.sql)).collect();
    let shown: Vec<_> = names
        .iter()
        .map(|name| shown.get(*name).cloned().unwrap_or_default())
        .collect();
    let args: Args<'_> = &[
        (&names, Type::TEXT_ARRAY),
        (&sources, Type::BYTEA_ARRAY),
        (&shown, Type::BYTEA_ARRAY),
    ];
    let sql = schema.apply(include_str!("../sql/migrate_applied.sql"));
    tx.query_typed(&sql, args).await.map(drop).map_err(from_driver)
}

/// The statement that locks a view as replacing it does, by giving it the owner that it has. LOCK TABLE would also lock the tables that the view reads.
fn lock(object: &Object, schema: &Schema) -> Option<String> {
    let view = object.name.strip_prefix("view ")?;
    Some(format!(
        "DO $$ BEGIN EXECUTE (SELECT format('ALTER VIEW %s OWNER TO %I', c.oid::regclass, pg_get_userbyid(c.relowner)) FROM pg_class c WHERE c.oid = '{schema}.{view}'::regclass); END $$"
    ))
}

fn hash(text: &str) -> Vec<u8> {
    posthouse_core::Digest::of_fields(&[text.as_bytes()])
        .as_bytes()
        .to_vec()
}

/// Limits how long the transaction waits for each lock from now on.
pub(crate) async fn wait_at_most(tx: &Transaction<'_>, time: Duration) -> Result<(), Error> {
    // Zero would set no limit.
    let sql = format!("SET LOCAL lock_timeout = {}", time.as_millis().max(1));
    tx.batch_execute(&sql).await.map_err(from_driver)
}
