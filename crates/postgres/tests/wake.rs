//! Who sleeps is rung for, and nobody else: each ring makes all commits of the database queue up for a moment.

use posthouse_core::{Claim, Message, Store, Wake};
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

/// A commit rings the bell of a relay that said it sleeps.
#[tokio::test(flavor = "multi_thread")]
async fn a_commit_wakes_a_sleeping_relay() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let short = Duration::from_millis(10);
    assert_eq!(store.wake("w1", short).await.unwrap(), Wake::Elapsed);
    store.asleep("w1", LONG).await.unwrap();
    let (rung, ()) = tokio::join!(store.wake("w1", LONG), enqueue(&fx));
    assert_eq!(rung.unwrap(), Wake::Rung);
}

/// Awake again, by a ring or because its time was up, it is not rung for.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_woke_is_not_rung_for() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let mut listener = Listener::new(&fx).await;
    store.asleep("w1", LONG).await.unwrap();
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 1);
    assert_eq!(store.wake("w1", LONG).await.unwrap(), Wake::Rung);
    assert_eq!(marks(&fx).await, "none");
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 0);

    store.asleep("w1", LONG).await.unwrap();
    // The listener's own ring may wake it before its time is up; that does not matter here.
    store.wake("w1", Duration::from_millis(1)).await.unwrap();
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 0);
}

/// The claim between falling asleep and sleeping found something: the worker has better things to do than to sleep.
#[tokio::test(flavor = "multi_thread")]
async fn a_claim_that_finds_something_ends_the_sleep() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let claim = Claim::new("w1", 10, Duration::from_secs(15));
    store.asleep("w1", LONG).await.unwrap();
    assert!(store.claim(&claim).await.unwrap().is_empty());
    assert_eq!(marks(&fx).await, "w1", "an empty claim is what sleep begins with");
    enqueue(&fx).await;
    assert_eq!(store.claim(&claim).await.unwrap().len(), 1);
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
    one.wake("w", Duration::from_millis(1)).await.unwrap();
    assert_eq!(marks(&fx).await, "w,w", "whose time was up sleeps on");
    enqueue(&fx).await;
    let claim = Claim::new("w", 10, Duration::from_secs(15));
    assert_eq!(one.claim(&claim).await.unwrap().len(), 1);
    assert_eq!(marks(&fx).await, "w");
    let mut listener = Listener::new(&fx).await;
    enqueue(&fx).await;
    assert_eq!(listener.count().await, 1);
}
