//! Ours, measured by what measures the others: the default profile, and those that are made for one thing.

use async_trait::async_trait;
use posthouse::{
    Message, Relay,
    relay::{CancellationToken, Profile, local},
};
use posthouse_postgres::{Options, Outbox, Postgres};
use std::sync::Arc;
use tokio::sync::Mutex;
use tokio_postgres::Client;

use crate::peer::{Order, Peer, Result, Seen, Stop, Work, count, session};

/// How it is set.
#[derive(Clone, Copy)]
pub struct Kind {
    profile: Profile,
    relays: usize,
    words: &'static str,
}

/// The kinds, by name.
pub const KINDS: [(&str, Kind); 4] = [
    ("posthouse", Kind::of(Profile::Balanced, 1, "one relay, nothing set")),
    (
        "posthouse-throughput",
        Kind::of(Profile::Throughput, 1, "one relay, profile throughput"),
    ),
    (
        "posthouse-latency",
        Kind::of(Profile::Latency, 1, "one relay, profile latency"),
    ),
    (
        "posthouse-two",
        Kind::of(Profile::Throughput, 2, "two relays, profile throughput"),
    ),
];

impl Kind {
    const fn of(profile: Profile, relays: usize, words: &'static str) -> Self {
        Self { profile, relays, words }
    }
}

pub struct Posthouse {
    url: String,
    kind: Kind,
    client: Mutex<Client>,
    outbox: Outbox,
    control: Client,
}

impl Posthouse {
    pub async fn open(url: &str, kind: Kind) -> Result<Self> {
        Postgres::open(url, Options::default())?.migrate().await?;
        Ok(Self {
            url: url.to_owned(),
            kind,
            client: Mutex::new(session(url).await?),
            outbox: Outbox::default(),
            control: session(url).await?,
        })
    }
}

#[async_trait]
impl Peer for Posthouse {
    fn version(&self) -> String {
        "this tree".into()
    }

    fn settings(&self, _: Work) -> &'static str {
        self.kind.words
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        let messages = orders.iter().map(|order| Message::json("order.placed", order));
        let messages = messages.collect::<std::result::Result<Vec<_>, _>>()?;
        let mut client = self.client.lock().await;
        let mut tx = client.transaction().await?;
        self.outbox.enqueue_all(&mut tx, messages).await?;
        Ok(tx.commit().await?)
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        let mut client = self.client.lock().await;
        let mut tx = client.transaction().await?;
        self.outbox
            .enqueue(&mut tx, Message::json("order.placed", &order)?)
            .await?;
        Ok(tx.commit().await?)
    }

    async fn start(&self, _: Work, seen: &'static Seen) -> Result<Stop> {
        let cancel = CancellationToken::new();
        let mut running = Vec::new();
        for n in 0..self.kind.relays {
            let relay = Relay::builder(Arc::new(Postgres::connect(&self.url).await?))
                .name(format!("relay-{n}"))
                .profile(self.kind.profile)
                .route("order.*", local(move |order: Order| async move { seen.handle(&order) }));
            running.push(tokio::spawn(relay.run(cancel.clone())));
        }
        Ok(Box::new(move || {
            Box::pin(async move {
                cancel.cancel();
                for relay in running {
                    relay.await??;
                }
                Ok(())
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        // In the tables, as with the others: the view is made to find one message, and walks all of them for a count.
        let tables = ["ready", "sched", "parked", "keyed", "leased", "lot", "dead"];
        let counts = tables.map(|table| format!("(SELECT count(*) FROM posthouse.{table})"));
        count(&self.control, &format!("SELECT {}", counts.join(" + "))).await
    }

    /// Each with the evidence of one attempt, which was delivered.
    async fn done(&self) -> Result<Option<i64>> {
        let sql = "SELECT count(DISTINCT seq) FROM posthouse.attempt WHERE outcome = 1 AND attempt = 1";
        Ok(Some(count(&self.control, sql).await?))
    }
}
