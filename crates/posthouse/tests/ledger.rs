//! The ledger as a program uses it, on real databases and with real drivers.

use posthouse::{
    AnyStore, Code, Error, Filter, Message, Outcome, Relay, State,
    ledger::{Answer, Begun, Failure, Fingerprint, Guard, Keep, Kept, Ledger},
    postgres,
    relay::{Destination, local_delivery},
    sqlite,
};
use sqlx::{PgPool, SqlitePool, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use std::{env, future::Future, path::PathBuf, str::FromStr, sync::Arc, time::Duration};

use crate::transactional::{Running, SECOND};

fn print(of: &str) -> Fingerprint {
    Fingerprint::of_json(of.as_bytes())
}

fn placed() -> Answer {
    Answer::bytes("placed").status(201)
}

#[track_caller]
fn acquired<G>(begun: Begun<G>) -> G {
    match begun {
        Begun::Acquired(guard) => guard,
        other => panic!("it was to go on: {:?}", other.map(|_| ())),
    }
}

#[track_caller]
fn replayed<G>(begun: Begun<G>) -> Kept {
    match begun {
        Begun::Replay(kept) => kept,
        other => panic!("it was to be told again: {:?}", other.map(|_| ())),
    }
}

/// An application on its database, with a table of its own. Each driver does the same.
trait Shop: Clone + Send + Sync + 'static {
    type Outbox: Clone + Send + Sync;

    fn ledger(&self) -> Ledger<Self::Outbox>;
    fn store(&self) -> &AnyStore;

    /// Places an order with its record, in one transaction; without a commit it is rolled back.
    fn place(&self, guard: &Guard<Self::Outbox>, commit: bool) -> impl Future<Output = Result<Kept, Error>> + Send;

    /// The same in two steps, of which this is the first.
    fn reserve(&self, guard: &Guard<Self::Outbox>) -> impl Future<Output = Result<(), Error>> + Send;

    /// Leaves it to a message.
    fn leave(&self, guard: &Guard<Self::Outbox>, message: Message) -> impl Future<Output = Result<(), Error>> + Send;

    /// Fails with what the transaction did.
    fn refuse(&self, guard: &Guard<Self::Outbox>) -> impl Future<Output = Result<(), Error>> + Send;

    fn orders(&self) -> impl Future<Output = i64> + Send;
}

#[derive(Clone)]
struct OnPostgres {
    store: AnyStore,
    pool: PgPool,
    schema: postgres::Schema,
}

impl OnPostgres {
    async fn open() -> Self {
        let server = env::var("POSTHOUSE_TEST_POSTGRES")
            .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
        let name = format!("l_{}", uuid::Uuid::new_v4().simple());
        let url = format!("{server}?schema={name}");
        AnyStore::migrate(&url).await.unwrap();
        let pool = PgPool::connect_with(PgConnectOptions::from_str(&server).unwrap())
            .await
            .unwrap();
        let schema = postgres::Schema::new(&name).unwrap();
        let table = format!("CREATE TABLE {schema}.orders (what text NOT NULL)");
        sqlx::query(sqlx::AssertSqlSafe(table)).execute(&pool).await.unwrap();
        Self {
            store: AnyStore::open(&url).await.unwrap(),
            pool,
            schema,
        }
    }

    async fn insert(&self, tx: &mut sqlx::PgTransaction<'_>, what: &str) {
        let sql = format!("INSERT INTO {}.orders VALUES ($1)", self.schema);
        sqlx::query(sqlx::AssertSqlSafe(sql))
            .bind(what)
            .execute(&mut **tx)
            .await
            .unwrap();
    }
}

impl Shop for OnPostgres {
    type Outbox = postgres::Outbox;

    fn ledger(&self) -> Ledger<postgres::Outbox> {
        let outbox = postgres::Outbox::in_schema(self.schema.clone());
        Ledger::new(self.store.store(), outbox, "orders")
    }

    fn store(&self) -> &AnyStore {
        &self.store
    }

    async fn place(&self, guard: &Guard<postgres::Outbox>, commit: bool) -> Result<Kept, Error> {
        let mut tx = self.pool.begin().await.unwrap();
        self.insert(&mut tx, "order").await;
        let kept = guard.finish_in(&mut tx, placed()).await?;
        if commit {
            tx.commit().await.unwrap();
        }
        Ok(kept)
    }

    async fn reserve(&self, guard: &Guard<postgres::Outbox>) -> Result<(), Error> {
        let mut tx = self.pool.begin().await.unwrap();
        self.insert(&mut tx, "reservation").await;
        guard.renew_in(&mut tx, 20 * SECOND).await?;
        guard.checkpoint_in(&mut tx, "reserved").await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn leave(&self, guard: &Guard<postgres::Outbox>, message: Message) -> Result<(), Error> {
        let mut tx = self.pool.begin().await.unwrap();
        self.insert(&mut tx, "order").await;
        guard.leave_to(&mut tx, message).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn refuse(&self, guard: &Guard<postgres::Outbox>) -> Result<(), Error> {
        let mut tx = self.pool.begin().await.unwrap();
        self.insert(&mut tx, "refusal").await;
        guard.fail_in(&mut tx, Failure::permanent("no stock")).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn orders(&self) -> i64 {
        let sql = format!("SELECT count(*) FROM {}.orders", self.schema);
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_one(&self.pool)
            .await
            .unwrap()
    }
}

#[derive(Clone)]
struct File {
    store: AnyStore,
    path: PathBuf,
    _folder: Arc<tempfile::TempDir>,
}

impl File {
    async fn open() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("shop.db");
        let url = format!("sqlite://{}", path.display());
        AnyStore::migrate(&url).await.unwrap();
        let file = Self {
            store: AnyStore::open(&url).await.unwrap(),
            path,
            _folder: Arc::new(folder),
        };
        let db = file.connect();
        db.execute("CREATE TABLE orders (what TEXT NOT NULL)", []).unwrap();
        file
    }

    fn connect(&self) -> rusqlite::Connection {
        let db = rusqlite::Connection::open(&self.path).unwrap();
        db.busy_timeout(10 * SECOND).unwrap();
        db
    }

    fn orders(&self) -> i64 {
        let db = self.connect();
        db.query_row("SELECT count(*) FROM orders", [], |row| row.get(0))
            .unwrap()
    }
}

#[derive(Clone)]
struct WithSqlx {
    file: File,
    pool: SqlitePool,
}

impl WithSqlx {
    async fn open() -> Self {
        let file = File::open().await;
        let options = SqliteConnectOptions::new()
            .filename(&file.path)
            .busy_timeout(10 * SECOND);
        let pool = SqlitePool::connect_with(options).await.unwrap();
        Self { file, pool }
    }

    async fn begin(&self, what: &str) -> sqlx::SqliteTransaction<'_> {
        let mut tx = self.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
        sqlx::query("INSERT INTO orders VALUES (?)")
            .bind(what)
            .execute(&mut *tx)
            .await
            .unwrap();
        tx
    }
}

impl Shop for WithSqlx {
    type Outbox = sqlite::AsyncOutbox;

    fn ledger(&self) -> Ledger<sqlite::AsyncOutbox> {
        Ledger::new(self.file.store.store(), sqlite::AsyncOutbox::default(), "orders")
    }

    fn store(&self) -> &AnyStore {
        &self.file.store
    }

    async fn place(&self, guard: &Guard<sqlite::AsyncOutbox>, commit: bool) -> Result<Kept, Error> {
        let mut tx = self.begin("order").await;
        let kept = guard.finish_in(&mut tx, placed()).await?;
        if commit {
            tx.commit().await.unwrap();
        }
        Ok(kept)
    }

    async fn reserve(&self, guard: &Guard<sqlite::AsyncOutbox>) -> Result<(), Error> {
        let mut tx = self.begin("reservation").await;
        guard.renew_in(&mut tx, 20 * SECOND).await?;
        guard.checkpoint_in(&mut tx, "reserved").await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn leave(&self, guard: &Guard<sqlite::AsyncOutbox>, message: Message) -> Result<(), Error> {
        let mut tx = self.begin("order").await;
        guard.leave_to(&mut tx, message).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn refuse(&self, guard: &Guard<sqlite::AsyncOutbox>) -> Result<(), Error> {
        let mut tx = self.begin("refusal").await;
        guard.fail_in(&mut tx, Failure::permanent("no stock")).await?;
        tx.commit().await.unwrap();
        Ok(())
    }

    async fn orders(&self) -> i64 {
        self.file.orders()
    }
}

#[derive(Clone)]
struct WithRusqlite(File);

impl WithRusqlite {
    /// Runs it in a transaction that has placed something.
    fn run<T>(
        &self,
        what: &str,
        work: impl FnOnce(&rusqlite::Transaction<'_>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        let mut db = self.0.connect();
        let tx = db
            .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
            .unwrap();
        tx.execute("INSERT INTO orders VALUES (?1)", [what]).unwrap();
        let done = work(&tx)?;
        tx.commit().unwrap();
        Ok(done)
    }
}

impl Shop for WithRusqlite {
    type Outbox = sqlite::Outbox;

    fn ledger(&self) -> Ledger<sqlite::Outbox> {
        Ledger::new(self.0.store.store(), sqlite::Outbox::default(), "orders")
    }

    fn store(&self) -> &AnyStore {
        &self.0.store
    }

    async fn place(&self, guard: &Guard<sqlite::Outbox>, commit: bool) -> Result<Kept, Error> {
        tokio::task::block_in_place(|| {
            let placed = self.run("order", |tx| {
                let kept = guard.finish_in(tx, placed())?;
                if commit {
                    Ok(kept)
                } else {
                    Err(Error::Denied("rolled back".into()))
                }
            });
            match placed {
                Err(Error::Denied(_)) => Ok(Kept::default()),
                placed => placed,
            }
        })
    }

    async fn reserve(&self, guard: &Guard<sqlite::Outbox>) -> Result<(), Error> {
        tokio::task::block_in_place(|| {
            self.run("reservation", |tx| {
                guard.renew_in(tx, 20 * SECOND)?;
                guard.checkpoint_in(tx, "reserved")
            })
        })
    }

    async fn leave(&self, guard: &Guard<sqlite::Outbox>, message: Message) -> Result<(), Error> {
        tokio::task::block_in_place(|| self.run("order", |tx| guard.leave_to(tx, message).map(drop)))
    }

    async fn refuse(&self, guard: &Guard<sqlite::Outbox>) -> Result<(), Error> {
        tokio::task::block_in_place(|| self.run("refusal", |tx| guard.fail_in(tx, Failure::permanent("no stock"))))
    }

    async fn orders(&self) -> i64 {
        self.0.orders()
    }
}

async fn an_order_is_placed_once(shop: impl Shop) {
    let ledger = shop.ledger();
    let guard = acquired(ledger.begin("acme", "k", print("1")).await.unwrap());
    assert!(!guard.taken_over());
    let kept = shop.place(&guard, true).await.unwrap();
    assert_eq!(kept, placed().kept(Keep::default()));
    // Run again because its commit was not heard of, it is rolled back.
    let again = shop.place(&guard, true).await;
    assert!(
        matches!(&again, Err(Error::HoldLost(scope)) if scope == "orders"),
        "{again:?}"
    );
    assert_eq!(again.unwrap_err().code(), Code::LeaseLost);
    assert_eq!(replayed(ledger.begin("acme", "k", print("1")).await.unwrap()), kept);
    assert!(matches!(
        ledger.begin("acme", "k", print("2")).await.unwrap(),
        Begun::Mismatch
    ));
    acquired(ledger.begin("other", "k", print("2")).await.unwrap());
    assert_eq!(shop.orders().await, 1);
}

async fn what_is_rolled_back_can_be_done_again(shop: impl Shop) {
    let ledger = shop.ledger();
    let guard = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    shop.place(&guard, false).await.unwrap();
    assert_eq!(shop.orders().await, 0);
    let begun = ledger.begin("", "k", print("1")).await.unwrap();
    assert_eq!(begun.code(), Some(Code::IdempotentBusy));
    shop.place(&guard, true).await.unwrap();
    assert_eq!(shop.orders().await, 1);
}

/// Somebody who was silent for too long is told so, and changes nothing.
async fn who_comes_too_late_changes_nothing(shop: impl Shop) {
    let brief = shop.ledger().lease(Duration::from_millis(20));
    let late = acquired(brief.begin("", "k", print("1")).await.unwrap());
    let ledger = shop.ledger().wait(10 * SECOND);
    let heir = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    assert!(heir.taken_over());
    assert!(matches!(shop.place(&late, true).await, Err(Error::HoldLost(_))));
    assert!(matches!(late.renew(SECOND).await, Err(Error::HoldLost(_))));
    assert!(matches!(late.finish(placed()).await, Err(Error::HoldLost(_))));
    assert!(matches!(
        late.fail(Failure::retryable("no")).await,
        Err(Error::HoldLost(_))
    ));
    assert_eq!(shop.orders().await, 0);
    // What the first one did is not known, and stays so.
    heir.fail(Failure::retryable("not now")).await.unwrap();
    let next = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    assert!(next.taken_over());
    shop.place(&next, true).await.unwrap();
    assert_eq!(shop.orders().await, 1);
}

async fn another_goes_on_from_the_checkpoint(shop: impl Shop) {
    let ledger = shop.ledger();
    let guard = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    assert_eq!(guard.checkpoint(), None);
    shop.reserve(&guard).await.unwrap();
    assert!(shop.reserve(&guard).await.is_err(), "it is there already");
    guard.fail(Failure::retryable("the bank is closed")).await.unwrap();
    let next = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    assert_eq!((next.checkpoint(), next.taken_over()), (Some("reserved"), false));
    assert_eq!(next.child_key("charge"), guard.child_key("charge"));
    assert_ne!(next.child_key("charge"), next.child_key("refund"));
    next.renew(SECOND * 60).await.unwrap();
    shop.place(&next, true).await.unwrap();
    assert_eq!(shop.orders().await, 2);
}

async fn a_failure_for_good_is_told_again(shop: impl Shop) {
    let ledger = shop.ledger();
    let guard = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    shop.refuse(&guard).await.unwrap();
    let Begun::Failed(why) = ledger.begin("", "k", print("1")).await.unwrap() else {
        panic!("it failed for good")
    };
    assert_eq!(why.error.as_deref(), Some("no stock"));
    let guard = acquired(ledger.begin("", "l", print("1")).await.unwrap());
    guard
        .fail(Failure::answered(Answer::bytes("sorry").status(422)))
        .await
        .unwrap();
    let begun = ledger.begin("", "l", print("1")).await.unwrap();
    assert_eq!(begun.code(), Some(Code::IdempotentLastFailed));
    assert!(matches!(begun, Begun::Failed(why) if why.body.as_deref() == Some(b"sorry")));
}

async fn what_is_kept_is_as_the_ledger_says(shop: impl Shop) {
    let ledger = shop.ledger().keep(Keep::Digest);
    let guard = acquired(ledger.begin("", "k", print("1")).await.unwrap());
    let kept = guard.finish(placed()).await.unwrap();
    assert_eq!(guard.finish(placed()).await.unwrap(), kept, "told again, it is done");
    assert_eq!((kept.body.as_deref(), kept.digest.is_some()), (None, true));
    assert_eq!(replayed(ledger.begin("", "k", print("1")).await.unwrap()), kept);
}

/// Fifty at the same time, with patience: one order, and fifty times the same answer.
async fn of_fifty_one_places_the_order(shop: impl Shop) {
    let ledger = shop.ledger().wait(60 * SECOND);
    let asked: Vec<_> = (0..50)
        .map(|_| {
            let (shop, ledger) = (shop.clone(), ledger.clone());
            tokio::spawn(async move {
                match ledger.begin("acme", "k", print(r#"{"a":1,"b":2}"#)).await.unwrap() {
                    Begun::Acquired(guard) => shop.place(&guard, true).await.unwrap(),
                    begun => replayed(begun),
                }
            })
        })
        .collect();
    for task in asked {
        assert_eq!(task.await.unwrap(), placed().kept(Keep::default()));
    }
    assert_eq!(shop.orders().await, 1);
}

/// The order and its message, and the answer when the message has ended.
async fn a_message_ends_what_is_left_to_it(shop: impl Shop) {
    let ledger = shop.ledger();
    let guard = acquired(ledger.begin("acme", "k", print("1")).await.unwrap());
    let foreign = Message::bytes("order.place", "text/plain", "1").tenant("other");
    let refused = shop.leave(&guard, foreign).await;
    assert!(
        matches!(&refused, Err(Error::Invalid(e)) if e.field == "tenant"),
        "{refused:?}"
    );
    let message = Message::bytes("order.place", "text/plain", "1").dedupe_key("1");
    shop.leave(&guard, message.clone()).await.unwrap();
    assert!(matches!(
        shop.leave(&guard, message.clone()).await,
        Err(Error::DedupeConflict { .. })
    ));
    let begun = ledger.begin("acme", "k", print("1")).await.unwrap();
    assert!(matches!(begun, Begun::Busy { .. }));
    let broker = local_delivery(|_| async { Outcome::answered(placed()) });
    let relay = Relay::builder(shop.store().store()).route("*", Destination::new("broker", broker));
    let relay = Running::start(relay);
    let patient = ledger.wait(60 * SECOND);
    let kept = replayed(patient.begin("acme", "k", print("1")).await.unwrap());
    relay.stop().await;
    assert_eq!(kept, placed().kept(Keep::default()));
    let found = shop.store().admin().list(&Filter::default()).await.unwrap().messages;
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].state, found[0].tenant.as_str()), (State::Done, "acme"));
    assert_eq!(shop.orders().await, 1);
}

macro_rules! on_each {
    ($($case:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::OnPostgres::open().await).await;
            })*
        }
        mod on_sqlite_with_sqlx {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::WithSqlx::open().await).await;
            })*
        }
        mod on_sqlite_with_rusqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(super::WithRusqlite(super::File::open().await)).await;
            })*
        }
    };
}

on_each! {
    an_order_is_placed_once,
    what_is_rolled_back_can_be_done_again,
    who_comes_too_late_changes_nothing,
    another_goes_on_from_the_checkpoint,
    a_failure_for_good_is_told_again,
    what_is_kept_is_as_the_ledger_says,
    of_fifty_one_places_the_order,
    a_message_ends_what_is_left_to_it,
}
