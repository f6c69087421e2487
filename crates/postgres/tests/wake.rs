//! Who sleeps is rung for, and nobody else: each ring makes all commits of the database queue up for a moment.

use posthouse_core::{Claim, Message, Store, Wake};
use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::Fixture;
use std::{future::poll_fn, time::Duration};
use tokio::{sync::mpsc, task::JoinHandle};
use tokio_postgres::{AsyncMessage, Client, NoTls};

use crate::fixture::{PostgresFixture, url};

const LONG: Duration = Duration::from_secs(60);

async fn enqueue(fx: &PostgresFixture) {
    let ding = Message::bytes("t", "text/plain", "ding");
    fx.open().await.enqueue_now(vec![ding]).await.unwrap();
}

async fn marks(fx: &PostgresFixture) -> String {
    fx.one("SELECT coalesce(string_agg(worker, ',' ORDER BY worker), 'none') FROM posthouse.sleeper")
        .await
}

/// Somebody who hears every ring.
struct Listener {
    client: Client,
    rings: mpsc::UnboundedReceiver<String>,
    reader: JoinHandle<()>,
    schema: String,
}

impl Listener {
    async fn new(fx: &PostgresFixture) -> Self {
        let (client, mut connection) = tokio_postgres::connect(&url(), NoTls).await.unwrap();
        let (heard, rings) = mpsc::unbounded_channel();
        let reader = tokio::spawn(async move {
            while let Some(Ok(message)) = poll_fn(|cx| connection.poll_message(cx)).await {
                if let AsyncMessage::Notification(ring) = message {
                    heard.send(ring.payload().to_owned()).ok();
                }
            }
        });
        let schema = fx.schema.to_string();
        client.batch_execute(&format!("LISTEN {schema}")).await.unwrap();
        Self {
            client,
            rings,
            reader,
            schema,
        }
    }

    /// How many rings there were since the last time. They arrive in order, so those before our own are all.
    async fn count(&mut self) -> usize {
        self.client
            .batch_execute(&format!("NOTIFY {}, 'the end'", self.schema))
            .await
            .unwrap();
        let mut rings = 0;
        while self.rings.recv().await.unwrap() != "the end" {
            rings += 1;
        }
        rings
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

/// Who did not say that it sleeps is not rung for; nor is who was granted more than a trickle since, or all that it asked for.
#[tokio::test(flavor = "multi_thread")]
async fn nobody_is_rung_for_who_does_not_sleep() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let mut listener = Listener::new(&fx).await;
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 0, "nobody sleeps");
    store.asleep("w1", LONG).await.unwrap();
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 1);
    assert_eq!(store.wake(LONG).await.unwrap(), Wake::Rung);
    let claim = Claim::new("w1", 10, Duration::from_secs(15));
    assert_eq!(store.claim(&claim).await.unwrap().len(), 2);
    assert_eq!(marks(&fx).await, "none");
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 0, "it has something to do");
    store.asleep("w1", LONG).await.unwrap();
    let one = Claim::new("w1", 1, Duration::from_secs(15));
    assert_eq!(store.claim(&one).await.unwrap().len(), 1);
    assert_eq!(marks(&fx).await, "none", "there may be more");
}

/// A dead line rings for nobody: whoever sleeps is woken once, and looks.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_was_cut_is_opened_anew() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store.asleep("w1", LONG).await.unwrap();
    assert_eq!(store.wake(LONG).await.unwrap(), Wake::Rung, "the line is new");
    let listeners = format!("pid <> pg_backend_pid() AND query = 'LISTEN {}'", fx.schema);
    let cut = format!("SELECT count(pg_terminate_backend(pid, 10000))::text FROM pg_stat_activity WHERE {listeners}");
    let (woken, cut) = tokio::join!(store.wake(LONG), fx.one(&cut));
    assert_eq!((woken.unwrap(), &*cut), (Wake::Rung, "1"));
    enqueue(&fx).await;
    assert_eq!(store.wake(LONG).await.unwrap(), Wake::Rung);
}

/// Where nobody can listen, a relay is told so and looks by itself: neither its claims nor its sleep wait for the connection.
#[tokio::test(flavor = "multi_thread")]
async fn a_line_that_cannot_be_opened_is_told_and_holds_nobody_up() {
    let fx = PostgresFixture::new().await;
    let nobody = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let silent = format!("postgres://postgres@{}/postgres", nobody.local_addr().unwrap());
    let closed = "postgres://postgres@127.0.0.1:1/postgres".to_owned();
    for (listen, told) in [(silent, false), (closed, true)] {
        let options = Options {
            listen: Some(listen),
            ..PostgresFixture::options(&fx.schema)
        };
        let store = Postgres::connect_with(&url(), options).await.unwrap();
        store.asleep("w1", LONG).await.unwrap();
        enqueue(&fx).await;
        let claim = Claim::new("w1", 10, Duration::from_secs(15));
        assert_eq!(store.claim(&claim).await.unwrap().len(), 1);
        let mut why = store.wake(Duration::from_millis(1)).await;
        while told && why.is_ok() {
            why = store.wake(Duration::from_millis(1)).await;
        }
        assert!(why.is_err() || why.unwrap() == Wake::Elapsed, "nobody hears it");
    }
}

/// A claim that finds nothing says whether leases have run out: an idle relay asks nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn an_empty_claim_says_whether_leases_ran_out() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let claim = Claim::new("w1", 10, Duration::from_secs(15));
    assert_eq!(store.look(&claim).await.unwrap().ran_out, Some(false));
    enqueue(&fx).await;
    let busy = store.look(&claim).await.unwrap();
    assert_eq!(
        (busy.granted.len(), busy.ran_out),
        (1, None),
        "a busy one is not kept up"
    );
    fx.advance(Duration::from_secs(15)).await;
    assert_eq!(store.look(&claim).await.unwrap().ran_out, Some(true));
}

/// The claim between falling asleep and sleeping found something: the worker has better things to do than to sleep.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_finds_more_than_one_ends_the_sleep() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let claim = Claim::new("w1", 10, Duration::from_secs(15));
    store.asleep("w1", LONG).await.unwrap();
    assert!(store.claim(&claim).await.unwrap().is_empty());
    assert_eq!(marks(&fx).await, "w1", "an empty claim is what sleep begins with");
    enqueue(&fx).await;
    assert_eq!(store.claim(&claim).await.unwrap().len(), 1);
    assert_eq!(marks(&fx).await, "w1", "one message is a trickle");
    enqueue(&fx).await;
    enqueue(&fx).await;
    assert_eq!(store.claim(&claim).await.unwrap().len(), 2);
    assert_eq!(marks(&fx).await, "none");
}

/// A relay that died asleep leaves a mark behind; whoever falls asleep next takes it away, and no mark that still counts.
#[tokio::test(flavor = "multi_thread")]
async fn stale_marks_are_cleared_away() {
    let fx = PostgresFixture::new().await;
    let dead = fx.open().await;
    dead.asleep("dead", Duration::from_secs(10)).await.unwrap();
    let sleeping = fx.open().await;
    sleeping.asleep("sleeping", LONG).await.unwrap();
    drop(dead);
    fx.advance(Duration::from_secs(10)).await;
    assert_eq!(marks(&fx).await, "dead,sleeping");
    fx.open().await.asleep("other", LONG).await.unwrap();
    assert_eq!(marks(&fx).await, "other,sleeping");
}

/// A name is a label: a worker that wakes up does not take the mark of another process's worker of the same name.
#[tokio::test(flavor = "multi_thread")]
async fn workers_of_one_name_have_marks_of_their_own() {
    let fx = PostgresFixture::new().await;
    let (one, other) = (fx.open().await, fx.open().await);
    one.asleep("w", LONG).await.unwrap();
    other.asleep("w", LONG).await.unwrap();
    one.wake(Duration::from_millis(1)).await.unwrap();
    assert_eq!(marks(&fx).await, "w,w", "whose time was up sleeps on");
    enqueue(&fx).await;
    enqueue(&fx).await;
    let claim = Claim::new("w", 10, Duration::from_secs(15));
    assert_eq!(one.claim(&claim).await.unwrap().len(), 2);
    assert_eq!(marks(&fx).await, "w");
    let mut listener = Listener::new(&fx).await;
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 1);
}
