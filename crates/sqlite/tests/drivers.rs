//! The application's own drivers when they are asynchronous, on a real file: each commits and rolls back the message with its own
//! change, and writes what the store's own driver writes.

use posthouse_core::{Enqueued, Error, Message};
use posthouse_sqlite::{AsyncOutbox, Outbox, Run};
use posthouse_testkit::{
    Fixture,
    samples::{NASTY, one_of_everything},
};
use rusqlite::TransactionBehavior;
use std::future::Future;

use crate::fixture::SqliteFixture;

const CHANGE: &str = "INSERT INTO test_note VALUES (?1)";

/// An application with its driver.
trait Application {
    /// Begins, writes `note`, enqueues; then commits if it is to, and rolls back if not or if that failed.
    fn transact(
        &mut self,
        note: &str,
        messages: Vec<Message>,
        commit: bool,
    ) -> impl Future<Output = Result<Vec<Enqueued>, Error>>;
}

/// What every driver must do. Answers what it has written.
async fn story(fx: &SqliteFixture, mut app: impl Application) -> String {
    let ids: Vec<_> = one_of_everything().into_iter().filter_map(|m| m.id).collect();
    let new: Vec<_> = ids.iter().copied().map(Enqueued::New).collect();
    let untouched = fx.dump().await;
    assert_eq!(
        app.transact("rolled back", one_of_everything(), false).await.unwrap(),
        new
    );
    assert_eq!(fx.dump().await, untouched);
    assert_eq!(app.transact("committed", one_of_everything(), true).await.unwrap(), new);
    let again: Vec<_> = ids.iter().copied().map(Enqueued::Duplicate).collect();
    assert_eq!(app.transact("again", one_of_everything(), true).await.unwrap(), again);

    let other = Message {
        payload: b"other".to_vec(),
        ..one_of_everything().remove(NASTY)
    };
    // The first is written, then undone with the second.
    let both = vec![Message::json("new", &1).unwrap(), other.clone()];
    let conflict = app.transact("same id", both, true).await;
    let known = matches!(&conflict, Err(Error::DedupeConflict { key: "id", existing }) if *existing == ids[NASTY]);
    assert!(known, "{conflict:?}");
    let conflict = app
        .transact("same key", vec![Message { id: None, ..other }], true)
        .await;
    let known =
        matches!(&conflict, Err(Error::DedupeConflict { key: "dedupe_key", existing }) if *existing == ids[NASTY]);
    assert!(known, "{conflict:?}");
    let bad = app
        .transact("no topic", vec![Message::bytes("", "text/plain", "")], true)
        .await;
    assert!(matches!(&bad, Err(Error::Invalid(e)) if e.field == "topic"), "{bad:?}");
    assert_eq!(fx.notes().await, ["committed", "again"]);
    fx.dump().await
}

struct Rusqlite<'a>(&'a SqliteFixture);

impl Application for Rusqlite<'_> {
    async fn transact(&mut self, note: &str, messages: Vec<Message>, commit: bool) -> Result<Vec<Enqueued>, Error> {
        let mut db = self.0.connect();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute(CHANGE, [note]).unwrap();
        let answers = Outbox::default().enqueue_all(&tx, &messages)?;
        if commit {
            tx.commit().unwrap();
        }
        Ok(answers)
    }
}

async fn rusqlite_story() -> String {
    let fx = SqliteFixture::new();
    story(&fx, Rusqlite(&fx)).await
}

/// In a task that may move between threads, as those of an application do.
#[cfg(feature = "sqlx")]
async fn enqueue<T: Run>(mut tx: T, messages: Vec<Message>) -> (T, Result<Vec<Enqueued>, Error>) {
    let answers = AsyncOutbox::default().enqueue_all(&mut tx, messages).await;
    (tx, answers)
}

#[cfg(feature = "sqlx")]
async fn pool(fx: &SqliteFixture) -> sqlx::SqlitePool {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(fx.path());
    sqlx::SqlitePool::connect_with(options).await.unwrap()
}

#[cfg(feature = "sqlx")]
impl Application for sqlx::SqlitePool {
    async fn transact(&mut self, note: &str, messages: Vec<Message>, commit: bool) -> Result<Vec<Enqueued>, Error> {
        let mut tx = self.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query(CHANGE).bind(note).execute(&mut *tx).await.unwrap();
        let (tx, answers) = tokio::spawn(enqueue(tx, messages)).await.unwrap();
        if commit && answers.is_ok() {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        answers
    }
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_enqueues_in_its_transaction() {
    let fx = SqliteFixture::new();
    let pool = pool(&fx).await;
    assert_eq!(story(&fx, pool.clone()).await, rusqlite_story().await);
    pool.close().await;
}

#[cfg(feature = "sea-orm")]
impl Application for sea_orm::DatabaseConnection {
    async fn transact(&mut self, note: &str, messages: Vec<Message>, commit: bool) -> Result<Vec<Enqueued>, Error> {
        use sea_orm::{ConnectionTrait, DbBackend, Statement, TransactionTrait};
        let tx = self.begin().await.unwrap();
        let change = Statement::from_sql_and_values(DbBackend::Sqlite, CHANGE, [note.into()]);
        tx.execute_raw(change).await.unwrap();
        let (tx, answers) = tokio::spawn(enqueue(tx, messages)).await.unwrap();
        if commit && answers.is_ok() {
            tx.commit().await.unwrap();
        } else {
            tx.rollback().await.unwrap();
        }
        answers
    }
}

#[cfg(feature = "sea-orm")]
#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_enqueues_in_its_transaction() {
    let fx = SqliteFixture::new();
    let url = format!("sqlite://{}", fx.path().display());
    let db = sea_orm::Database::connect(url).await.unwrap();
    assert_eq!(story(&fx, db.clone()).await, rusqlite_story().await);
    db.close().await.unwrap();
}

/// SQLite ends a transaction by itself after some errors, and the driver goes on as if it were open: what it writes then is
/// committed on its own.
#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_the_database_has_ended_is_refused() {
    let fx = SqliteFixture::new();
    let (pool, untouched) = (pool(&fx).await, fx.dump().await);
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let mut write = async |sql: &'static str| sqlx::query(sql).execute(&mut *tx).await;
    write("INSERT INTO test_note VALUES ('undone')").await.unwrap();
    write("INSERT OR ROLLBACK INTO test_note VALUES (NULL)")
        .await
        .unwrap_err();
    for message in [
        Message::json("t", &1).unwrap(),
        Message::json("t", &1).unwrap().dedupe_key("d"),
    ] {
        let refused = AsyncOutbox::default().enqueue(&mut tx, message).await;
        assert!(matches!(refused, Err(Error::Contention(_))), "{refused:?}");
    }
    drop(tx);
    assert_eq!(fx.dump().await, untouched);
    assert!(fx.notes().await.is_empty());
    pool.close().await;
}

/// A DEFERRED transaction that has read cannot write once another has written: the caller runs it again.
#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn an_overtaken_transaction_is_to_be_run_again() {
    let fx = SqliteFixture::new();
    let pool = pool(&fx).await;
    let mut tx = pool.begin().await.unwrap();
    sqlx::query("SELECT * FROM test_note")
        .fetch_all(&mut *tx)
        .await
        .unwrap();
    fx.connect().execute(CHANGE, ["faster"]).unwrap();
    let message = Message::json("t", &1).unwrap();
    let overtaken = AsyncOutbox::default().enqueue(&mut tx, &message).await;
    assert!(matches!(overtaken, Err(Error::Contention(_))), "{overtaken:?}");
    drop(tx);
    let mut tx = pool.begin().await.unwrap();
    AsyncOutbox::default().enqueue(&mut tx, &message).await.unwrap();
    tx.commit().await.unwrap();
    pool.close().await;
}
