//! The application's own drivers, against the real database: each commits and rolls back the message with its own change, and all
//! write the same.

use posthouse_core::{
    Enqueued, Error, Message, Settlement, Store,
    saga::{Doing, Start, Started, Undoing},
};
use posthouse_postgres::{Outbox, Run};
use posthouse_testkit::{
    Fixture,
    samples::{NASTY, a_saga, one_of_everything},
};
use std::{future::Future, time::Duration};

use crate::fixture::{PostgresFixture, session, url};

/// What an application does in one transaction, with a change of its own before it.
#[derive(Clone)]
enum Verb {
    Enqueue(Vec<Message>),
    Settle(Box<Settlement>),
    Start(Box<Start>),
    DoOnce,
    UndoOnce,
}

#[derive(Debug, PartialEq)]
enum Answer {
    Enqueued(Vec<Enqueued>),
    /// Whether it was settled; if not, its lease is lost.
    Settled(bool),
    Started(Started),
    Doing(Doing),
    Undoing(Undoing),
}

impl Verb {
    async fn run<T: Run>(self, outbox: &Outbox, tx: &mut T) -> Result<Answer, Error> {
        Ok(match self {
            Self::Enqueue(messages) => Answer::Enqueued(outbox.enqueue_all(tx, messages).await?),
            Self::Settle(settlement) => Answer::Settled(outbox.settle_in(tx, &settlement).await?.is_settled()),
            Self::Start(start) => Answer::Started(outbox.start(tx, *start).await?),
            Self::DoOnce => Answer::Doing(outbox.do_once(tx, "hotels", "s:hotel#1:do").await?),
            Self::UndoOnce => Answer::Undoing(outbox.undo_once(tx, "hotels", "s:hotel#1:do").await?),
        })
    }
}

/// An application with its driver.
trait Application: Send {
    /// Begins, writes `note`, runs the verb; then commits if it is to, and rolls back if not or if the verb failed.
    fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> impl Future<Output = Result<Answer, Error>> + Send;
}

/// An application that has this driver.
struct App<D> {
    driver: D,
    /// The statement that stands for its own change.
    change: String,
    outbox: Outbox,
}

impl<D> App<D> {
    fn new(fx: &PostgresFixture, driver: D) -> Self {
        Self {
            driver,
            change: format!("INSERT INTO {}.test_note (line) VALUES ($1)", fx.schema),
            outbox: Outbox::in_schema(fx.schema.clone()),
        }
    }
}

/// What every driver must do. Answers what it has written.
async fn story(fx: &PostgresFixture, mut app: impl Application) -> String {
    let enqueue = Verb::Enqueue(one_of_everything());
    let ids: Vec<_> = one_of_everything().into_iter().filter_map(|m| m.id).collect();
    let new = |id: &_| Enqueued::New(*id);
    let rolled_back = app.transact("rolled back", enqueue.clone(), false).await.unwrap();
    assert_eq!(rolled_back, Answer::Enqueued(ids.iter().map(new).collect()));
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "0");

    let committed = app.transact("committed", enqueue.clone(), true).await.unwrap();
    assert_eq!(committed, Answer::Enqueued(ids.iter().map(new).collect()));
    let again = app.transact("again", enqueue, true).await.unwrap();
    assert_eq!(
        again,
        Answer::Enqueued(ids.iter().map(|id| Enqueued::Duplicate(*id)).collect())
    );

    let other = Message {
        payload: b"other".to_vec(),
        ..one_of_everything().remove(NASTY)
    };
    let conflict = app.transact("same id", Verb::Enqueue(vec![other.clone()]), true).await;
    assert!(
        matches!(&conflict, Err(Error::DedupeConflict { key: "id", existing }) if *existing == ids[NASTY]),
        "{conflict:?}"
    );
    let conflict = app
        .transact("same key", Verb::Enqueue(vec![Message { id: None, ..other }]), true)
        .await;
    let known =
        matches!(&conflict, Err(Error::DedupeConflict { key: "dedupe_key", existing }) if *existing == ids[NASTY]);
    assert!(known, "{conflict:?}");
    let bad = app
        .transact(
            "no topic",
            Verb::Enqueue(vec![Message::bytes("", "text/plain", "")]),
            true,
        )
        .await;
    assert!(matches!(&bad, Err(Error::Invalid(e)) if e.field == "topic"), "{bad:?}");

    let written = everything(fx).await;
    let store = fx.open().await;
    let claim = posthouse_core::Claim::new("worker", 1, Duration::from_secs(60));
    let delivery = store.claim(&claim).await.unwrap().remove(0);
    let settle = Verb::Settle(Box::new(
        Settlement::delivered(&delivery.lease, Some("receipt")).follow_ups(vec![Message::json("next", &1).unwrap()]),
    ));
    let answer = app
        .transact("settled, rolled back", settle.clone(), false)
        .await
        .unwrap();
    assert_eq!(answer, Answer::Settled(true));
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.leased").await, "1");
    let answer = app.transact("settled", settle, true).await.unwrap();
    assert_eq!(answer, Answer::Settled(true));
    let stale = posthouse_core::Lease {
        token: posthouse_core::LeaseToken(uuid::Uuid::new_v4()),
        ..delivery.lease
    };
    let answer = app
        .transact(
            "stale",
            Verb::Settle(Box::new(Settlement::delivered(&stale, None))),
            false,
        )
        .await
        .unwrap();
    assert_eq!(answer, Answer::Settled(false));
    assert_eq!(fx.notes().await, ["committed", "again", "settled"]);
    format!("{written}\n{}", sagas(fx, app).await)
}

/// The same for a saga, and for whoever takes part in one. Answers what was written of it.
async fn sagas(fx: &PostgresFixture, mut app: impl Application) -> String {
    let start = |input: &str| Verb::Start(Box::new(a_saga(input)));
    let id = a_saga("").id;
    let rolled_back = app.transact("rolled back", start("Rome"), false).await.unwrap();
    assert_eq!(rolled_back, Answer::Started(Started::New(id)));
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.saga").await, "0");
    let committed = app.transact("started", start("Rome"), true).await.unwrap();
    assert_eq!(committed, Answer::Started(Started::New(id)));
    let again = app.transact("started again", start("Rome"), true).await.unwrap();
    assert_eq!(again, Answer::Started(Started::Existing(id)));
    let other = app.transact("another", start("Oslo"), true).await;
    assert!(matches!(other, Err(Error::SagaMismatch(of)) if of == id), "{other:?}");
    for (verb, commit, answer) in [
        (Verb::DoOnce, false, Answer::Doing(Doing::First)),
        (Verb::DoOnce, true, Answer::Doing(Doing::First)),
        (Verb::DoOnce, true, Answer::Doing(Doing::Before)),
        (Verb::UndoOnce, true, Answer::Undoing(Undoing::Now)),
        (Verb::DoOnce, true, Answer::Doing(Doing::Undone)),
    ] {
        assert_eq!(app.transact("took part", verb, commit).await.unwrap(), answer);
    }
    let notes = fx.notes().await;
    assert_eq!(notes.iter().filter(|note| *note == "started").count(), 1);
    assert!(!notes.iter().any(|note| note == "another"), "{notes:?}");
    fx.one(
        "SELECT concat_ws(E'\\n', (SELECT to_jsonb(s) FROM posthouse.saga s), (SELECT to_jsonb(l) FROM posthouse.saga_log l),
            (SELECT string_agg(to_jsonb(m)::text, E'\\n' ORDER BY m.seq) FROM posthouse.message m WHERE m.kind > 1))",
    )
    .await
}

async fn everything(fx: &PostgresFixture) -> String {
    fx.one(
        "SELECT string_agg(concat_ws(' ', to_jsonb(v), to_jsonb(m)), E'\\n' ORDER BY v.id)
         FROM posthouse.messages v JOIN posthouse.message m USING (id)",
    )
    .await
}

impl Application for App<tokio_postgres::Client> {
    async fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        let mut tx = self.driver.transaction().await.unwrap();
        tx.execute(&self.change, &[&note]).await.unwrap();
        let answer = verb.run(&self.outbox, &mut tx).await?;
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        Ok(answer)
    }
}

async fn tokio_postgres_story() -> String {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let app = App::new(&fx, client);
    let written = story(&fx, app).await;
    driver.abort();
    written
}

#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_enqueues_in_its_transaction() {
    let written = tokio_postgres_story().await;
    // And of a saga: itself, its log, its deadline and its step.
    assert_eq!(written.lines().count(), one_of_everything().len() + 4, "{written}");
}

impl Application for App<deadpool_postgres::Pool> {
    async fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        let mut client = self.driver.get().await.unwrap();
        let mut tx = client.transaction().await.unwrap();
        tx.execute(&self.change, &[&note]).await.unwrap();
        let answer = verb.run(&self.outbox, &mut tx).await?;
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        Ok(answer)
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadpool_enqueues_in_its_transaction() {
    let fx = PostgresFixture::new().await;
    let manager = deadpool_postgres::Manager::new(url().parse().unwrap(), tokio_postgres::NoTls);
    let pool = deadpool_postgres::Pool::builder(manager).max_size(2).build().unwrap();
    let app = App::new(&fx, pool);
    assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
}

/// How many statements of ours this connection of the application has prepared.
const KEPT: &str =
    "SELECT count(*) FROM pg_prepared_statements WHERE statement LIKE '%enqueue_many%' OR statement LIKE '%settle%'";

/// An application that lets its driver keep statements is answered the same, and only then are they kept.
#[tokio::test(flavor = "multi_thread")]
async fn deadpool_keeps_statements_where_it_may() {
    for (keep, kept) in [(false, 0), (true, 2)] {
        let fx = PostgresFixture::new().await;
        let manager = deadpool_postgres::Manager::new(url().parse().unwrap(), tokio_postgres::NoTls);
        let pool = deadpool_postgres::Pool::builder(manager).max_size(1).build().unwrap();
        let mut app = App::new(&fx, pool.clone());
        if keep {
            app.outbox = app.outbox.keep_statements();
        }
        assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
        let client = pool.get().await.unwrap();
        let found: i64 = client.query_typed(KEPT, &[]).await.unwrap()[0].get(0);
        assert_eq!(found, kept, "keep is {keep}");
    }
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_keeps_statements_where_it_may() {
    for (keep, kept) in [(false, 0), (true, 2)] {
        let fx = PostgresFixture::new().await;
        let options = sqlx::postgres::PgPoolOptions::new().max_connections(1);
        let pool = options.connect(&url()).await.unwrap();
        let mut app = App::new(&fx, pool.clone());
        if keep {
            app.outbox = app.outbox.keep_statements();
        }
        assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
        let found: i64 = sqlx::query_scalar(KEPT)
            .persistent(false)
            .fetch_one(&pool)
            .await
            .unwrap();
        assert_eq!(found, kept, "keep is {keep}");
        pool.close().await;
    }
}

#[cfg(feature = "sqlx")]
impl Application for App<sqlx::PgPool> {
    async fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        let mut tx = self.driver.begin().await.unwrap();
        let change = sqlx::query(sqlx::AssertSqlSafe(self.change.as_str())).bind(note);
        change.execute(&mut *tx).await.unwrap();
        let answer = verb.run(&self.outbox, &mut tx).await?;
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        Ok(answer)
    }
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_enqueues_in_its_transaction() {
    let fx = PostgresFixture::new().await;
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(&url())
        .await
        .unwrap();
    let app = App::new(&fx, pool.clone());
    assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
    pool.close().await;
}

#[cfg(feature = "sea-orm")]
impl Application for App<sea_orm::DatabaseConnection> {
    async fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        use sea_orm::{ConnectionTrait, DbBackend, Statement, TransactionTrait};
        let mut tx = self.driver.begin().await.unwrap();
        let change = Statement::from_sql_and_values(DbBackend::Postgres, &self.change, [note.into()]);
        tx.execute_raw(change).await.unwrap();
        let answer = verb.run(&self.outbox, &mut tx).await?;
        if commit {
            tx.commit().await.unwrap()
        } else {
            tx.rollback().await.unwrap()
        }
        Ok(answer)
    }
}

#[cfg(feature = "sea-orm")]
#[tokio::test(flavor = "multi_thread")]
async fn sea_orm_enqueues_in_its_transaction() {
    let fx = PostgresFixture::new().await;
    let db = sea_orm::Database::connect(url()).await.unwrap();
    let app = App::new(&fx, db.clone());
    assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
    db.close().await.unwrap();
}

/// Diesel rolls back when the closure fails, and wants its own error in it.
#[cfg(feature = "diesel-async")]
enum Undone {
    Wanted(Answer),
    Refused(Error),
    Diesel(diesel::result::Error),
}

#[cfg(feature = "diesel-async")]
impl From<diesel::result::Error> for Undone {
    fn from(e: diesel::result::Error) -> Self {
        Self::Diesel(e)
    }
}

#[cfg(feature = "diesel-async")]
impl Application for App<diesel_async::AsyncPgConnection> {
    async fn transact(&mut self, note: &str, verb: Verb, commit: bool) -> Result<Answer, Error> {
        use diesel_async::{AsyncConnection, RunQueryDsl};
        let (change, outbox) = (&self.change, &self.outbox);
        let work = async move |tx: &mut diesel_async::AsyncPgConnection| {
            let change = diesel::sql_query(change).bind::<diesel::sql_types::Text, _>(note);
            change.execute(tx).await?;
            let answer = verb.run(outbox, tx).await.map_err(Undone::Refused)?;
            if commit {
                Ok(answer)
            } else {
                Err(Undone::Wanted(answer))
            }
        };
        match self.driver.transaction(work).await {
            Ok(answer) | Err(Undone::Wanted(answer)) => Ok(answer),
            Err(Undone::Refused(e)) => Err(e),
            Err(Undone::Diesel(e)) => panic!("{e}"),
        }
    }
}

#[cfg(feature = "diesel-async")]
#[tokio::test(flavor = "multi_thread")]
async fn diesel_enqueues_in_its_transaction() {
    use diesel_async::AsyncConnection;
    let fx = PostgresFixture::new().await;
    let connection = diesel_async::AsyncPgConnection::establish(&url()).await.unwrap();
    let app = App::new(&fx, connection);
    assert_eq!(story(&fx, app).await, tokio_postgres_story().await);
}

/// What a pool hands out is not the connection, but leads to it; so does a box.
#[cfg(feature = "diesel-async")]
#[tokio::test(flavor = "multi_thread")]
async fn diesel_enqueues_through_a_pools_handle() {
    use diesel_async::{AsyncConnection, AsyncPgConnection};
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let mut handle = Box::new(AsyncPgConnection::establish(&url()).await.unwrap());
    let work = async |tx: &mut Box<AsyncPgConnection>| {
        let enqueued = outbox.enqueue(&mut **tx, Message::json("t", &1).unwrap()).await;
        Ok::<_, diesel::result::Error>(enqueued.unwrap())
    };
    handle.transaction(work).await.unwrap();
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "1");
}

/// Its connection has the same type inside of a transaction and outside.
#[cfg(feature = "diesel-async")]
#[tokio::test(flavor = "multi_thread")]
async fn diesel_outside_a_transaction_is_refused() {
    use diesel_async::AsyncConnection;
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let mut connection = diesel_async::AsyncPgConnection::establish(&url()).await.unwrap();
    let refused = outbox.enqueue(&mut connection, Message::json("t", &1).unwrap()).await;
    assert!(
        matches!(&refused, Err(Error::Invalid(e)) if e.field == "transaction"),
        "{refused:?}"
    );
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "0");
}

/// More than a statement's thousand, in order, with duplicates told apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_enqueue_of_several_statements_keeps_its_order() {
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let (mut client, driver) = session().await;
    let mut tx = client.transaction().await.unwrap();
    let messages: Vec<_> = (0..2500)
        .map(|n| Message::bytes("t", "text/plain", (n % 2400).to_string()).dedupe_key((n % 2400).to_string()))
        .collect();
    let answers = outbox.enqueue_all(&mut tx, messages).await.unwrap();
    tx.commit().await.unwrap();
    assert!(answers[..2400].iter().all(|a| matches!(a, Enqueued::New(_))));
    assert!(
        answers[2400..]
            .iter()
            .zip(&answers)
            .all(|(again, first)| *again == Enqueued::Duplicate(first.id()))
    );
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "2400");
    driver.abort();
}
