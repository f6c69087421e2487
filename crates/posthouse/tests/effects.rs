//! Handlers that settle in their own transaction, on real databases and with real drivers: one effect for each message, whatever
//! happens to its handler, its connection or its process.

use posthouse::{
    AnyStore, Attempt, AttemptOutcome, AuditFilter, Filter, Message, MessageView, Outcome, Relay, RetryPolicy, State,
    postgres,
    relay::{Destination, Failure, Handling, Transactional, transactional},
    sqlite,
};
use posthouse_testkit::proxy::{Lost, Proxy};
use sqlx::{Executor, PgPool, SqlitePool, postgres::PgConnectOptions, sqlite::SqliteConnectOptions};
use std::{env, path::PathBuf, process::Stdio, str::FromStr, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::transactional::{Running, SECOND};

/// Tells a child which database to work on.
const DATABASE: &str = "POSTHOUSE_TEST_DATABASE";

/// What goes wrong in the first attempt, by the message. In later ones nothing does.
const WRONGS: [&str; 7] = [
    "nothing",
    "error",
    "panic",
    "no commit",
    "late error",
    "late panic",
    "late hang",
];

/// An application on its database, with a table of its own.
struct Shop {
    url: String,
    store: AnyStore,
    _folder: Option<tempfile::TempDir>,
}

impl Shop {
    async fn on_postgres() -> Self {
        let server = env::var("POSTHOUSE_TEST_POSTGRES")
            .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
        let schema = format!("e_{}", uuid::Uuid::new_v4().simple());
        Self::open(format!("{server}?schema={schema}"), None).await
    }

    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("shop.db").display());
        Self::open(url, Some(folder)).await
    }

    async fn open(url: String, folder: Option<tempfile::TempDir>) -> Self {
        AnyStore::migrate(&url).await.unwrap();
        let shop = Self {
            store: AnyStore::open(&url).await.unwrap(),
            url,
            _folder: folder,
        };
        let table = format!("CREATE TABLE {} (id text NOT NULL)", shop.bill());
        match shop.schema() {
            Some(_) => drop(
                pg_pool(&shop.url)
                    .await
                    .execute(sqlx::AssertSqlSafe(table))
                    .await
                    .unwrap(),
            ),
            None => drop(connection(&shop.path()).execute(&table, []).unwrap()),
        }
        shop
    }

    fn schema(&self) -> Option<postgres::Schema> {
        schema(&self.url)
    }

    fn path(&self) -> PathBuf {
        path(&self.url)
    }

    fn bill(&self) -> String {
        bill(&self.url)
    }

    async fn put(&self, messages: impl IntoIterator<Item = Message>) {
        self.store.enqueue(messages.into_iter().collect()).await.unwrap();
    }

    async fn messages(&self) -> Vec<MessageView> {
        let filter = Filter {
            limit: 1000,
            oldest_first: true,
            ..Filter::default()
        };
        self.store.admin().list(&filter).await.unwrap().messages
    }

    async fn attempts(&self, message: &MessageView) -> Vec<Attempt> {
        self.store.admin().attempts(message.id).await.unwrap()
    }

    async fn until_done(&self) {
        let waited = async {
            while self.messages().await.iter().any(|m| m.state != State::Done) {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        if tokio::time::timeout(60 * SECOND, waited).await.is_err() {
            panic!("not done: {:?}", self.messages().await);
        }
    }

    /// Every message has one effect and is delivered once; nobody has met anybody else.
    async fn assert_one_effect_each(&self) {
        let bill = self.bill();
        let sql = format!("SELECT id FROM {bill} ORDER BY id");
        let mut effects: Vec<String> = match self.schema() {
            Some(_) => sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_all(&pg_pool(&self.url).await)
                .await
                .unwrap(),
            None => {
                let db = connection(&self.path());
                let mut statement = db.prepare(&sql).unwrap();
                let rows = statement.query_map([], |row| row.get(0)).unwrap();
                rows.map(Result::unwrap).collect()
            }
        };
        effects.sort();
        let messages = self.messages().await;
        let mut ids: Vec<_> = messages.iter().map(|m| m.id.to_string()).collect();
        ids.sort();
        assert_eq!(effects, ids);
        for message in &messages {
            let attempts = self.attempts(message).await;
            let delivered = attempts.iter().filter(|a| a.outcome == AttemptOutcome::Delivered);
            assert_eq!(delivered.count(), 1, "{attempts:?}");
        }
        let audit = self.store.admin().audit(&AuditFilter::default()).await.unwrap();
        assert!(audit.is_empty(), "{audit:?}");
    }

    /// With few at a time: on SQLite all but one of them wait for the writer, and their time runs.
    fn relay(&self, name: &str, lease: Duration, handler: Transactional) -> Relay {
        let to = Destination::new("billing", handler)
            .timeout(lease / 2)
            .concurrency(4)
            .retry(RetryPolicy::table(5, [Duration::from_millis(50)]));
        let relay = Relay::builder(self.store.store()).name(name).lease(lease);
        relay.route("usage", to)
    }

    async fn codes(&self, message: &MessageView) -> Vec<Option<String>> {
        self.attempts(message).await.into_iter().map(|a| a.code).collect()
    }
}

fn schema(url: &str) -> Option<postgres::Schema> {
    let (_, name) = url.split_once("?schema=")?;
    Some(postgres::Schema::new(name).unwrap())
}

fn path(url: &str) -> PathBuf {
    url.trim_start_matches("sqlite://").into()
}

fn bill(url: &str) -> String {
    schema(url).map_or("bill".to_owned(), |schema| format!("{schema}.bill"))
}

async fn pg_pool(url: &str) -> PgPool {
    let (server, _) = url.split_once('?').unwrap();
    PgPool::connect_with(PgConnectOptions::from_str(server).unwrap())
        .await
        .unwrap()
}

fn connection(path: &std::path::Path) -> rusqlite::Connection {
    let db = rusqlite::Connection::open(path).unwrap();
    db.busy_timeout(10 * SECOND).unwrap();
    db
}

fn usage(wrong: &str) -> Message {
    Message::json("usage", &wrong).unwrap()
}

fn oops() -> Failure {
    std::io::Error::other("oops").into()
}

/// What goes wrong this time.
fn wrong<O>(delivery: &Handling<O>) -> Result<String, Failure> {
    let wrong: String = delivery.json()?;
    Ok(if delivery.attempt == 1 { wrong } else { "nothing".into() })
}

/// Between the settlement and the commit.
fn before_commit(wrong: &str) -> Result<(), Failure> {
    match wrong {
        "error" => Err(oops()),
        "panic" => panic!("oops"),
        _ => Ok(()),
    }
}

async fn after_commit(wrong: &str) -> Result<(), Failure> {
    match wrong {
        "late error" => Err(oops()),
        "late panic" => panic!("oops"),
        "late hang" => std::future::pending().await,
        _ => Ok(()),
    }
}

fn with_sqlx_on_postgres(url: &str, pool: PgPool) -> Transactional {
    let insert = format!("INSERT INTO {} VALUES ($1)", bill(url));
    let outbox = postgres::Outbox::in_schema(schema(url).unwrap());
    transactional(outbox, move |delivery: Handling<postgres::Outbox>| {
        let (pool, insert) = (pool.clone(), insert.clone());
        async move {
            let wrong = wrong(&delivery)?;
            let mut tx = pool.begin().await?;
            let query = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(delivery.id.to_string());
            query.execute(&mut *tx).await?;
            delivery.settle_in(&mut tx, Outcome::delivered()).await?;
            before_commit(&wrong)?;
            if wrong != "no commit" {
                tx.commit().await?;
            }
            after_commit(&wrong).await
        }
    })
}

async fn with_sqlx_on_sqlite(url: &str) -> Transactional {
    let options = SqliteConnectOptions::new()
        .filename(path(url))
        .busy_timeout(10 * SECOND);
    let pool = SqlitePool::connect_with(options).await.unwrap();
    transactional(
        sqlite::AsyncOutbox::default(),
        move |delivery: Handling<sqlite::AsyncOutbox>| {
            let pool = pool.clone();
            async move {
                let wrong = wrong(&delivery)?;
                let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
                delivery.hold_in(&mut tx).await?;
                let query = sqlx::query("INSERT INTO bill VALUES (?)").bind(delivery.id.to_string());
                query.execute(&mut *tx).await?;
                delivery.settle_in(&mut tx, Outcome::delivered()).await?;
                before_commit(&wrong)?;
                if wrong != "no commit" {
                    tx.commit().await?;
                }
                after_commit(&wrong).await
            }
        },
    )
}

fn with_rusqlite(url: &str) -> Transactional {
    let path = path(url);
    transactional(sqlite::Outbox::default(), move |delivery: Handling<sqlite::Outbox>| {
        let path = path.clone();
        async move {
            let wrong = wrong(&delivery)?;
            let again = wrong.clone();
            let worked = tokio::task::spawn_blocking(move || {
                let mut db = connection(&path);
                let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                delivery.hold_in(&tx)?;
                tx.execute("INSERT INTO bill VALUES (?1)", [delivery.id.to_string()])?;
                delivery.settle_in(&tx, Outcome::delivered())?;
                before_commit(&wrong)?;
                if wrong != "no commit" {
                    tx.commit()?;
                }
                Ok::<_, Failure>(())
            });
            match worked.await {
                Ok(worked) => worked?,
                Err(panic) => std::panic::resume_unwind(panic.into_panic()),
            }
            after_commit(&again).await
        }
    })
}

/// Two relays, and everything that can go wrong in a handler.
async fn one_effect_whatever_goes_wrong(shop: Shop, handlers: [Transactional; 2]) {
    let wrongs = WRONGS.iter().cycle().take(3 * WRONGS.len());
    shop.put(wrongs.clone().map(|wrong| usage(wrong))).await;
    let mut relays = Vec::new();
    for (name, handler) in ["one", "two"].into_iter().zip(handlers) {
        relays.push(Running::start(shop.relay(name, 10 * SECOND, handler)));
    }
    shop.until_done().await;
    for relay in relays {
        relay.stop().await;
    }
    shop.assert_one_effect_each().await;
    for (message, wrong) in shop.messages().await.iter().zip(wrongs) {
        let first = match *wrong {
            "error" => Some("handler_failed"),
            "panic" => Some("panic"),
            "no commit" => Some("rolled_back"),
            _ => None,
        };
        let codes = shop.codes(message).await;
        assert_eq!(codes[0].as_deref(), first, "{wrong}: {codes:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_effect_with_sqlx_on_postgresql() {
    let shop = Shop::on_postgres().await;
    let pool = pg_pool(&shop.url).await;
    let handler = || with_sqlx_on_postgres(&shop.url, pool.clone());
    let handlers = [handler(), handler()];
    one_effect_whatever_goes_wrong(shop, handlers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_effect_with_sqlx_on_sqlite() {
    let shop = Shop::on_sqlite().await;
    let handlers = [
        with_sqlx_on_sqlite(&shop.url).await,
        with_sqlx_on_sqlite(&shop.url).await,
    ];
    one_effect_whatever_goes_wrong(shop, handlers).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_effect_with_rusqlite() {
    let shop = Shop::on_sqlite().await;
    let handlers = [with_rusqlite(&shop.url), with_rusqlite(&shop.url)];
    one_effect_whatever_goes_wrong(shop, handlers).await;
}

/// The connection ends at the commit: before the server has heard of it, or before the client hears the answer. The client cannot tell
/// one from the other; the relay finds out.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_connection_at_the_commit_is_resolved() {
    for (lost, attempts) in [(Lost::Answer, 1), (Lost::Request, 2)] {
        let shop = Shop::on_postgres().await;
        let (server, _) = shop.url.split_once('?').unwrap();
        let options = PgConnectOptions::from_str(server).unwrap();
        let at = format!("{}:{}", options.get_host(), options.get_port())
            .parse()
            .unwrap();
        let proxy = Proxy::before(at).await;
        proxy.lose("COMMIT", lost, 1);
        let options = options.host("127.0.0.1").port(proxy.address.port());
        let pool = PgPool::connect_with(options).await.unwrap();
        shop.put([usage("nothing")]).await;
        let relay = Running::start(shop.relay("one", 10 * SECOND, with_sqlx_on_postgres(&shop.url, pool)));
        shop.until_done().await;
        relay.stop().await;
        assert_eq!(proxy.lost(), 1);
        shop.assert_one_effect_each().await;
        let message = shop.messages().await.remove(0);
        assert_eq!(shop.attempts(&message).await.len(), attempts, "{lost:?}");
    }
}

/// The handler is given up after a second, and its transaction goes on by itself: it ends while the lease holds, or long after. It is
/// waited for, or left alone; its end decides, and nobody else gets the message before.
async fn an_open_transaction_decides_by_its_end(shop: impl AsyncFn() -> Shop) {
    for (ends_after, commits, failure) in [
        (1500, true, None),
        (1500, false, Some("timeout")),
        (4000, true, None),
        (4000, false, Some("lease_expired")),
    ] {
        let shop = shop().await;
        let ends = (Duration::from_millis(ends_after), commits);
        let handler = match shop.schema() {
            Some(_) => goes_on_with_sqlx(&shop.url, ends).await,
            None => goes_on_with_rusqlite(&shop.url, ends),
        };
        shop.put([usage("nothing")]).await;
        let relays = ["one", "two"].map(|name| Running::start(shop.relay(name, 2 * SECOND, handler.clone())));
        shop.until_done().await;
        for relay in relays {
            relay.stop().await;
        }
        shop.assert_one_effect_each().await;
        let message = shop.messages().await.remove(0);
        let codes = shop.codes(&message).await;
        let expected: Vec<_> = failure
            .into_iter()
            .map(|code| Some(code.to_owned()))
            .chain([None])
            .collect();
        assert_eq!(codes, expected, "{ends:?}");
    }
}

/// In the first attempt, a task of its own ends the transaction when it is time.
async fn goes_on_with_sqlx(url: &str, (after, commits): (Duration, bool)) -> Transactional {
    let (pool, insert) = (pg_pool(url).await, format!("INSERT INTO {} VALUES ($1)", bill(url)));
    let outbox = postgres::Outbox::in_schema(schema(url).unwrap());
    transactional(outbox, move |delivery: Handling<postgres::Outbox>| {
        let (pool, insert) = (pool.clone(), insert.clone());
        let work = tokio::spawn(async move {
            let mut tx = pool.begin().await?;
            let query = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(delivery.id.to_string());
            query.execute(&mut *tx).await?;
            delivery.settle_in(&mut tx, Outcome::delivered()).await?;
            if delivery.attempt == 1 {
                tokio::time::sleep(after).await;
            }
            if commits || delivery.attempt > 1 {
                tx.commit().await?;
            }
            Ok::<_, Failure>(())
        });
        async move { work.await? }
    })
}

fn goes_on_with_rusqlite(url: &str, (after, commits): (Duration, bool)) -> Transactional {
    let path = path(url);
    transactional(sqlite::Outbox::default(), move |delivery: Handling<sqlite::Outbox>| {
        let path = path.clone();
        let work = tokio::task::spawn_blocking(move || {
            let mut db = connection(&path);
            let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
            tx.execute("INSERT INTO bill VALUES (?1)", [delivery.id.to_string()])?;
            delivery.settle_in(&tx, Outcome::delivered())?;
            if delivery.attempt == 1 {
                std::thread::sleep(after);
            }
            if commits || delivery.attempt > 1 {
                tx.commit()?;
            }
            Ok::<_, Failure>(())
        });
        async move { work.await? }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_on_postgresql() {
    an_open_transaction_decides_by_its_end(Shop::on_postgres).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_transaction_on_sqlite() {
    an_open_transaction_decides_by_its_end(Shop::on_sqlite).await;
}

/// A handler keeps the one writer for longer than the store waits for it: the relay waits, and goes on.
#[tokio::test(flavor = "multi_thread")]
async fn an_impatient_store_outlives_a_handler_that_keeps_the_writer() {
    let shop = Shop::on_sqlite().await;
    let options = sqlite::Options {
        busy_timeout: Duration::from_millis(20),
        ..sqlite::Options::default()
    };
    let store = sqlite::Sqlite::open_with(shop.path(), options).unwrap();
    let shop = Shop {
        store: AnyStore::Sqlite(store.into()),
        ..shop
    };
    shop.put((0..5).map(|_| usage("nothing"))).await;
    let handler = goes_on_with_rusqlite(&shop.url, (SECOND / 2, true));
    let relay = Running::start(shop.relay("one", 20 * SECOND, handler));
    shop.until_done().await;
    relay.stop().await;
    shop.assert_one_effect_each().await;
    for message in shop.messages().await {
        assert_eq!(shop.codes(&message).await, [None]);
    }
}

/// As a child of the next tests, it handles a message up to the commit, and waits there to be killed.
#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_stops_before_its_commit() {
    let Ok(url) = env::var(DATABASE) else { return };
    let shop = Shop {
        store: AnyStore::open(&url).await.unwrap(),
        url: url.clone(),
        _folder: None,
    };
    let handler = match shop.schema() {
        Some(schema) => {
            let (pool, insert) = (pg_pool(&url).await, format!("INSERT INTO {} VALUES ($1)", bill(&url)));
            transactional(
                postgres::Outbox::in_schema(schema),
                move |delivery: Handling<postgres::Outbox>| {
                    let (pool, insert) = (pool.clone(), insert.clone());
                    async move {
                        let mut tx = pool.begin().await?;
                        let query = sqlx::query(sqlx::AssertSqlSafe(insert)).bind(delivery.id.to_string());
                        query.execute(&mut *tx).await?;
                        delivery.settle_in(&mut tx, Outcome::delivered()).await?;
                        tell_and_wait();
                        Ok::<_, Failure>(())
                    }
                },
            )
        }
        None => transactional(sqlite::Outbox::default(), move |delivery: Handling<sqlite::Outbox>| {
            let path = path(&url);
            async move {
                let mut db = connection(&path);
                let tx = db.transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)?;
                tx.execute("INSERT INTO bill VALUES (?1)", [delivery.id.to_string()])?;
                delivery.settle_in(&tx, Outcome::delivered())?;
                tell_and_wait();
                Ok::<_, Failure>(())
            }
        }),
    };
    Running::start(shop.relay("child", 2 * SECOND, handler))
        .stop_never()
        .await;
}

// The output is how a child answers.
#[allow(clippy::print_stdout)]
fn tell_and_wait() {
    println!("\ntold settled");
    loop {
        std::thread::park();
    }
}

/// The process dies between the settlement and the commit: both are gone with it, and another relay does both.
async fn a_death_before_the_commit_leaves_nothing(shop: Shop, handler: Transactional) {
    shop.put([usage("nothing")]).await;
    let mut child = Command::new(env::current_exe().unwrap())
        .args([
            "--exact",
            "effects::a_child_that_stops_before_its_commit",
            "--nocapture",
        ])
        .env(DATABASE, &shop.url)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("the child has ended") != "told settled" {}
    let kill = format!("kill -9 {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    child.wait().await.unwrap();
    let relay = Running::start(shop.relay("heir", 10 * SECOND, handler));
    shop.until_done().await;
    relay.stop().await;
    shop.assert_one_effect_each().await;
    let message = shop.messages().await.remove(0);
    let attempts = shop.attempts(&message).await;
    let told: Vec<_> = attempts.iter().map(|a| (a.worker.as_str(), a.outcome)).collect();
    let expected = [
        ("child", AttemptOutcome::LeaseExpired),
        ("heir", AttemptOutcome::Delivered),
    ];
    assert_eq!(told, expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_before_the_commit_on_postgresql() {
    let shop = Shop::on_postgres().await;
    let handler = with_sqlx_on_postgres(&shop.url, pg_pool(&shop.url).await);
    a_death_before_the_commit_leaves_nothing(shop, handler).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_death_before_the_commit_on_sqlite() {
    let shop = Shop::on_sqlite().await;
    let handler = with_rusqlite(&shop.url);
    a_death_before_the_commit_leaves_nothing(shop, handler).await;
}
