//! The application's own drivers when they are asynchronous, on a real file: each commits and rolls back the message with its own
//! change, and writes what the store's own driver writes.

use posthouse_core::{
    Admin, Claim, Claimed, Enqueued, Error, Filter, Lease, LeaseToken, Message, OnDead, Outcome, Renewal, RetryPolicy,
    Settlement, Store,
    saga::{Doing, Start, Started, Undoing},
};
use posthouse_sqlite::{AsyncOutbox, Outbox, Run};
use posthouse_testkit::{
    Fixture,
    samples::{NASTY, a_saga, one_of_everything},
};
use rusqlite::TransactionBehavior;
use std::{future::Future, time::Duration};

use crate::fixture::SqliteFixture;

const CHANGE: &str = "INSERT INTO test_note VALUES (?1)";

/// What an application does in one transaction, with a change of its own before it.
#[derive(Clone)]
enum Verb {
    Enqueue(Vec<Message>),
    Settle(Box<Settlement>),
    /// Holds the lease for so long, then settles.
    HoldAndSettle(Box<Settlement>, Duration),
    Start(Box<Start>),
    DoOnce,
    UndoOnce,
}

/// A step, as a participant knows it.
const STEP: (&str, &str) = ("hotels", "s:hotel#1:do");

#[derive(Debug, PartialEq)]
enum Answer {
    Enqueued(Vec<Enqueued>),
    /// Whether it was settled; if not, its lease is lost, or a follow-up was refused.
    Settled(bool),
    Started(Started),
    Doing(Doing),
    Undoing(Undoing),
}

/// An application with its driver.
trait Application {
    /// Begins, writes `note`, runs the verb; then commits if it is to, and rolls back if not or if that failed.
    fn run(&mut self, note: &str, verb: Verb, commit: bool) -> impl Future<Output = Result<Answer, Error>>;

    async fn transact(&mut self, note: &str, messages: Vec<Message>, commit: bool) -> Result<Vec<Enqueued>, Error> {
        match self.run(note, Verb::Enqueue(messages), commit).await? {
            Answer::Enqueued(answers) => Ok(answers),
            other => panic!("{other:?}"),
        }
    }

    async fn settle(&mut self, note: &str, settlement: &Settlement, commit: bool) -> bool {
        let verb = Verb::Settle(Box::new(settlement.clone()));
        self.run(note, verb, commit).await.unwrap() == Answer::Settled(true)
    }
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
    sagas(fx, app).await;
    fx.dump().await
}

/// The same for a saga, and for whoever takes part in one.
async fn sagas(fx: &SqliteFixture, mut app: impl Application) {
    let start = |input: &str| Verb::Start(Box::new(a_saga(input)));
    let (id, before) = (a_saga("").id, fx.dump().await);
    let rolled_back = app.run("rolled back", start("Rome"), false).await.unwrap();
    assert_eq!(rolled_back, Answer::Started(Started::New(id)));
    assert_eq!(fx.dump().await, before);
    let committed = app.run("started", start("Rome"), true).await.unwrap();
    assert_eq!(committed, Answer::Started(Started::New(id)));
    let after = fx.dump().await;
    let again = app.run("started again", start("Rome"), false).await.unwrap();
    assert_eq!(again, Answer::Started(Started::Existing(id)));
    let other = app.run("another", start("Oslo"), true).await;
    assert!(matches!(other, Err(Error::SagaMismatch(of)) if of == id), "{other:?}");
    assert_eq!(fx.dump().await, after);
    for (verb, commit, answer) in [
        (Verb::DoOnce, false, Answer::Doing(Doing::First)),
        (Verb::DoOnce, true, Answer::Doing(Doing::First)),
        (Verb::DoOnce, true, Answer::Doing(Doing::Before)),
        (Verb::UndoOnce, true, Answer::Undoing(Undoing::Now)),
        (Verb::DoOnce, true, Answer::Doing(Doing::Undone)),
    ] {
        assert_eq!(app.run("took part", verb, commit).await.unwrap(), answer);
    }
}

/// The same for settlements: each of them rolled back, then committed. Answers what they have written, but for tokens and fresh ids.
async fn settlements(fx: &SqliteFixture, mut app: impl Application) -> String {
    let (store, lease) = (fx.open(), Duration::from_secs(60));
    let plain = |n: i64| Message::json("t", &n).unwrap();
    let run = |n: i64| plain(n).order_key("k").on_dead(OnDead::Block);
    let mut messages: Vec<_> = (0..6).map(plain).collect();
    messages.extend((6..9).map(run));
    messages.push(plain(9).dedupe_key("d"));
    store.enqueue_now(messages).await.unwrap();
    let claimed = store.claim(&Claim::new("worker", 100, lease)).await.unwrap();
    let held = |n: usize| {
        let of = |c: &&Claimed| c.delivery.payload == n.to_string().into_bytes();
        claimed.iter().find(of).unwrap().lease.clone()
    };
    let failed = |lease: &Lease, outcome| Settlement::of(lease, outcome, &RetryPolicy::default(), 0.5);
    let refused = Message::bytes("", "text/plain", "");
    let ends = [
        Settlement::delivered(&held(0), Some("receipt")),
        Settlement::delivered(&held(1), None).follow_ups(vec![plain(100), plain(101).order_key("f")]),
        failed(&held(2), Outcome::retry("busy", "not now")),
        failed(&held(3), Outcome::reject("closed", "never")),
        Settlement::released(&held(4), Duration::ZERO),
        // The head of a run goes back, and the rest of it with it.
        failed(&held(6), Outcome::retry("busy", "not now")),
        Settlement::delivered(&held(9), None),
    ];
    for end in &ends {
        let before = fx.dump().await;
        assert!(app.settle("rolled back", end, false).await, "{end:?}");
        assert_eq!(fx.dump().await, before);
        assert!(app.settle("settled", end, true).await, "{end:?}");
        let after = fx.dump().await;
        assert_ne!(after, before);
        assert!(!app.settle("repeated", end, false).await, "{end:?}");
        assert_eq!(fx.dump().await, after);
    }
    let before = fx.dump().await;
    let stale = Lease {
        token: LeaseToken(uuid::Uuid::new_v4()),
        ..held(5)
    };
    assert!(!app.settle("stale", &Settlement::delivered(&stale, None), false).await);
    let poisoned = Settlement::delivered(&held(5), None).follow_ups(vec![plain(102), refused]);
    assert!(!app.settle("poisoned", &poisoned, true).await);
    assert_eq!(fx.dump().await, before);
    assert!(
        !app.settle("of the run", &Settlement::delivered(&held(7), None), false)
            .await
    );
    let last = Box::new(Settlement::delivered(&held(5), None));
    let answer = app.run("held", Verb::HoldAndSettle(last, 2 * lease), true).await;
    assert_eq!(answer.unwrap(), Answer::Settled(true));
    fx.advance(2 * lease).await;
    let late = Settlement::delivered(&held(8), None);
    assert!(!app.settle("late", &late, false).await);

    let filter = Filter {
        limit: 1000,
        oldest_first: true,
        ..Filter::default()
    };
    let mut written = Vec::new();
    for view in store.list(&filter).await.unwrap().messages {
        written.push(format!(
            "{:?} {:?} {:?} {:?}",
            view.state, view.reason, view.attempts, view.due_at
        ));
        for a in store.attempts(view.id).await.unwrap() {
            written.push(format!(
                "{:?} {:?} {:?} {:?} {:?}",
                a.outcome, a.code, a.error, a.receipt, a.worker
            ));
        }
    }
    assert!(written.len() > 15, "{written:?}");
    written.join("\n")
}

struct Rusqlite<'a>(&'a SqliteFixture);

impl Application for Rusqlite<'_> {
    async fn run(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        let mut db = self.0.connect();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        tx.execute(CHANGE, [note]).unwrap();
        let outbox = Outbox::default();
        let answer = match verb {
            Verb::Enqueue(messages) => Answer::Enqueued(outbox.enqueue_all(&tx, &messages)?),
            Verb::Settle(settlement) => Answer::Settled(outbox.settle_in(&tx, &settlement)?.is_settled()),
            Verb::HoldAndSettle(settlement, at_most) => {
                assert_eq!(outbox.hold(&tx, &settlement.lease, at_most)?, Renewal::Renewed);
                Answer::Settled(outbox.settle_in(&tx, &settlement)?.is_settled())
            }
            Verb::Start(start) => Answer::Started(outbox.start(&tx, *start)?),
            Verb::DoOnce => Answer::Doing(outbox.do_once(&tx, STEP.0, STEP.1)?),
            Verb::UndoOnce => Answer::Undoing(outbox.undo_once(&tx, STEP.0, STEP.1)?),
        };
        if commit {
            tx.commit().unwrap();
        }
        Ok(answer)
    }
}

async fn rusqlite_story() -> String {
    let fx = SqliteFixture::new();
    story(&fx, Rusqlite(&fx)).await
}

async fn rusqlite_settlements() -> String {
    let fx = SqliteFixture::new();
    settlements(&fx, Rusqlite(&fx)).await
}

/// In a task that may move between threads, as those of an application do.
#[cfg(feature = "sqlx")]
async fn run<T: Run>(mut tx: T, verb: Verb) -> (T, Result<Answer, Error>) {
    let answer = verb.run(&mut tx).await;
    (tx, answer)
}

#[cfg(feature = "sqlx")]
impl Verb {
    async fn run<T: Run>(self, tx: &mut T) -> Result<Answer, Error> {
        let outbox = AsyncOutbox::default();
        Ok(match self {
            Self::Enqueue(messages) => Answer::Enqueued(outbox.enqueue_all(tx, messages).await?),
            Self::Settle(settlement) => Answer::Settled(outbox.settle_in(tx, &settlement).await?.is_settled()),
            Self::HoldAndSettle(settlement, at_most) => {
                let renewed = outbox.hold(tx, &settlement.lease, at_most).await?;
                assert_eq!(renewed, Renewal::Renewed);
                Answer::Settled(outbox.settle_in(tx, &settlement).await?.is_settled())
            }
            Self::Start(start) => Answer::Started(outbox.start(tx, *start).await?),
            Self::DoOnce => Answer::Doing(outbox.do_once(tx, STEP.0, STEP.1).await?),
            Self::UndoOnce => Answer::Undoing(outbox.undo_once(tx, STEP.0, STEP.1).await?),
        })
    }
}

#[cfg(feature = "sqlx")]
async fn pool(fx: &SqliteFixture) -> sqlx::SqlitePool {
    let options = sqlx::sqlite::SqliteConnectOptions::new().filename(fx.path());
    sqlx::SqlitePool::connect_with(options).await.unwrap()
}

#[cfg(feature = "sqlx")]
impl Application for sqlx::SqlitePool {
    async fn run(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        let mut tx = self.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query(CHANGE).bind(note).execute(&mut *tx).await.unwrap();
        let (tx, answers) = tokio::spawn(run(tx, verb)).await.unwrap();
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

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_settles_in_its_transaction() {
    let fx = SqliteFixture::new();
    let pool = pool(&fx).await;
    assert_eq!(settlements(&fx, pool.clone()).await, rusqlite_settlements().await);
    pool.close().await;
}

#[cfg(feature = "sea-orm")]
impl Application for sea_orm::DatabaseConnection {
    async fn run(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        use sea_orm::{ConnectionTrait, DbBackend, Statement, TransactionTrait};
        let tx = self.begin().await.unwrap();
        let change = Statement::from_sql_and_values(DbBackend::Sqlite, CHANGE, [note.into()]);
        tx.execute_raw(change).await.unwrap();
        let (tx, answers) = tokio::spawn(run(tx, verb)).await.unwrap();
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

#[cfg(feature = "sea-orm")]
#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_settles_in_its_transaction() {
    let fx = SqliteFixture::new();
    let url = format!("sqlite://{}", fx.path().display());
    let db = sea_orm::Database::connect(url).await.unwrap();
    assert_eq!(settlements(&fx, db.clone()).await, rusqlite_settlements().await);
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
