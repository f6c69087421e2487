//! Programs and schemas of different versions: side by side where they can, a clear refusal where they cannot. Newer ones are
//! played by changing what the schema says of itself; an older one is made as an older program made it.

use posthouse_core::{Admin, Claim, Error, Filter, Fit, Message, Settlement, Store};
use posthouse_sqlite::Sqlite;
use rusqlite::Connection;
use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};
use tempfile::TempDir;

use crate::fixture::connect;

/// The version that this program knows.
const KNOWS: i64 = 3;

fn migrated() -> (TempDir, PathBuf) {
    let (dir, path) = empty();
    Sqlite::migrate(&path).unwrap();
    (dir, path)
}

fn empty() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    (dir, path)
}

/// A database as the second version left it, with a message in it.
fn second_version() -> (TempDir, PathBuf) {
    let (dir, path) = empty();
    let db = Connection::open(&path).unwrap();
    db.execute_batch(include_str!("../migrations/0001_tables.sql")).unwrap();
    db.execute_batch(include_str!("../migrations/0002_enqueue.sql"))
        .unwrap();
    db.execute_batch(
        "INSERT INTO posthouse_schema (only_one, version, oldest) VALUES (1, 2, 2);
         INSERT INTO posthouse_enqueue (topic, payload) VALUES ('old', '{}')",
    )
    .unwrap();
    (dir, path)
}

fn says(path: &Path, version: i64, oldest: i64) {
    let set = "UPDATE posthouse_schema SET version = ?1, oldest = ?2";
    connect(path).execute(set, [version, oldest]).unwrap();
}

/// Everything that is defined in the database, and what it says of itself.
fn shape(path: &Path) -> Vec<String> {
    let db = connect(path);
    let sql =
        "SELECT coalesce(sql, name) FROM sqlite_schema UNION ALL SELECT version || ' ' || oldest FROM posthouse_schema";
    let mut statement = db.prepare(sql).unwrap();
    let lines = statement.query_map([], |row| row.get(0)).unwrap();
    lines.map(Result::unwrap).collect()
}

#[track_caller]
fn refused<T>(answer: Result<T, Error>, path: &Path, parts: &[&str]) {
    let name = path.display().to_string();
    match answer {
        Err(Error::Schema(text)) => {
            for part in parts.iter().chain([&name.as_str()]) {
                assert!(text.contains(part), "{part:?} is missing: {text}");
            }
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

/// One message, the whole way.
async fn deliver(store: &Sqlite) {
    let message = Message::bytes("t", "text/plain", "x");
    store.enqueue_now(vec![message]).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(9))).await.unwrap();
    let settled = store.settle(&[Settlement::delivered(&claimed[0].lease, None)]).await;
    assert!(settled.unwrap()[0].is_settled());
    assert!(!store.list(&Filter::default()).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn an_older_program_works_on_a_newer_schema_that_admits_it() {
    let (_dir, path) = migrated();
    says(&path, KNOWS + 1, KNOWS);
    deliver(&Sqlite::open(&path).unwrap()).await;
    let before = shape(&path);
    let upgrade = Sqlite::migrate(&path).unwrap();
    assert_eq!((upgrade.fit, upgrade.migrations.len()), (Fit::Newer, 0));
    assert_eq!(Sqlite::plan_migration(&path).unwrap(), upgrade);
    assert_eq!(shape(&path), before);
}

#[test]
fn an_older_program_is_refused_by_a_schema_that_does_not_admit_it() {
    let (_dir, path) = migrated();
    says(&path, 99, 98);
    let before = shape(&path);
    let knows = format!("this one knows {KNOWS}");
    let parts = ["version 99", "version 98 or later", &knows, "upgrade this program"];
    refused(Sqlite::open(&path), &path, &parts);
    refused(Sqlite::migrate(&path), &path, &parts);
    refused(Sqlite::plan_migration(&path), &path, &parts);
    assert_eq!(shape(&path), before);
}

#[tokio::test]
async fn a_newer_program_asks_for_a_migration_of_an_older_schema_and_makes_it() {
    let (_dir, path) = second_version();
    let parts = ["version 2", "needs version 3", "run `posthouse migrate`"];
    refused(Sqlite::open(&path), &path, &parts);
    let plan = Sqlite::plan_migration(&path).unwrap();
    let names: Vec<_> = plan.migrations.iter().map(|m| m.name).collect();
    assert_eq!((plan.fit, names), (Fit::Older, vec!["messages"]));
    assert_eq!(Sqlite::migrate(&path).unwrap(), plan);
    let store = Sqlite::open(&path).unwrap();
    let kept = store.list(&Filter::default()).await.unwrap().messages;
    assert_eq!(kept[0].topic, "old");
    let (_dir, fresh) = migrated();
    assert_eq!(shape(&path), shape(&fresh));
}

/// Not even the file, nor the way in which an application's own database keeps its journal.
#[test]
fn a_plan_changes_nothing() {
    let (dir, path) = empty();
    assert_eq!(Sqlite::plan_migration(&path).unwrap().fit, Fit::Absent);
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE orders (id)")
        .unwrap();
    for made in [path, second_version().1, migrated().1] {
        let Ok(before) = fs::read(&made) else { continue };
        Sqlite::plan_migration(&made).unwrap();
        assert_eq!(fs::read(&made).unwrap(), before, "{}", made.display());
    }
}

#[test]
fn of_two_migrators_at_once_one_waits_and_both_succeed() {
    let (_dir, path) = second_version();
    // A third holds the write lock until both have come.
    let holder = connect(&path);
    holder
        .execute_batch("PRAGMA journal_mode = WAL; BEGIN IMMEDIATE")
        .unwrap();
    let found: Vec<_> = std::thread::scope(|scope| {
        let migrators = [0, 1].map(|_| scope.spawn(|| Sqlite::migrate(&path).unwrap().fit));
        holder.execute_batch("COMMIT").unwrap();
        migrators.map(|one| one.join().unwrap()).into()
    });
    assert!(
        found.contains(&Fit::Older) && found.contains(&Fit::Current),
        "{found:?}"
    );
    Sqlite::open(&path).unwrap();
}

#[tokio::test]
async fn a_migration_that_fails_halfway_leaves_the_schema_as_it_was() {
    let (_dir, path) = second_version();
    // The last thing that the third version makes cannot be made: somebody's own has the name.
    let db = connect(&path);
    db.execute_batch("CREATE TABLE posthouse_attempts (mine)").unwrap();
    let before = shape(&path);
    let failed = Sqlite::migrate(&path).unwrap_err();
    assert!(failed.to_string().contains("posthouse_attempts"), "{failed}");
    assert_eq!(shape(&path), before);
    db.execute_batch("INSERT INTO posthouse_enqueue (topic, payload) VALUES ('old', '{}')")
        .unwrap();
    db.execute_batch("DROP TABLE posthouse_attempts").unwrap();
    drop(db);
    Sqlite::migrate(&path).unwrap();
    let store = Sqlite::open(&path).unwrap();
    assert_eq!(store.list(&Filter::default()).await.unwrap().messages.len(), 2);
}

#[tokio::test]
async fn a_handle_that_was_opened_before_an_upgrade_works_on_where_it_is_admitted() {
    let (_dir, path) = migrated();
    let store = Sqlite::open(&path).unwrap();
    deliver(&store).await;
    // A newer program has added to a table.
    connect(&path)
        .execute_batch("ALTER TABLE posthouse_message ADD COLUMN newer TEXT")
        .unwrap();
    says(&path, 99, KNOWS);
    deliver(&store).await;
}

/// Every write asks under the write lock, so nothing of an old program is written into what it does not know.
#[tokio::test]
async fn a_handle_that_was_opened_before_an_upgrade_is_told_where_it_is_not() {
    let (_dir, path) = migrated();
    let store = Sqlite::open(&path).unwrap();
    deliver(&store).await;
    let message = || vec![Message::bytes("t", "text/plain", "x")];
    store.enqueue_now(message()).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(9))).await.unwrap();
    store.enqueue_now(message()).await.unwrap();
    says(&path, 99, 98);
    let parts = ["version 99", "version 98 or later", "upgrade this program"];
    let settled = store.settle(&[Settlement::delivered(&claimed[0].lease, None)]).await;
    refused(settled, &path, &parts);
    refused(store.enqueue_now(message()).await, &path, &parts);
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(9))).await;
    refused(claimed, &path, &parts);
    refused(store.list(&Filter::default()).await, &path, &parts);
    refused(store.counts().await, &path, &parts);
    refused(store.relays().await, &path, &parts);
    let id = posthouse_core::MessageId(uuid::Uuid::new_v4());
    refused(store.replay(id, "anna", "", None).await, &path, &parts);
}
