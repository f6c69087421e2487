//! What a peer must be able to do, and what is common to all of them.

use async_trait::async_trait;
use futures::future::BoxFuture;
use serde::{Deserialize, Serialize};
use std::{
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Instant,
};
use tokio_postgres::{Client, NoTls};

pub type Error = Box<dyn std::error::Error + Send + Sync>;
pub type Result<T> = std::result::Result<T, Error>;

/// Ends a worker; returns when it has ended.
pub type Stop = Box<dyn FnOnce() -> BoxFuture<'static, Result<()>> + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Insert,
    InsertOne,
    Drain,
    Latency,
}

/// A peer in a database of its own, with its tables made.
#[async_trait]
pub trait Peer: Send + Sync {
    /// The packages and versions.
    fn version(&self) -> String;

    /// How it is set for this work, in words.
    fn settings(&self, work: Work) -> &'static str;

    /// All of them in one transaction, the fastest way that is documented.
    async fn insert(&self, orders: Vec<Order>) -> Result<()>;

    /// One in a transaction of its own, by one client; it is committed when this returns.
    async fn insert_one(&self, order: Order) -> Result<()>;

    /// Starts a worker that is set for this work, which tells `seen` of each message and does nothing else.
    async fn start(&self, work: Work, seen: &'static Seen) -> Result<Stop>;

    /// How many its tables say are not done yet: waiting, running or failed.
    async fn undone(&self) -> Result<i64>;

    /// How many its tables say are done; none when it deletes what is done.
    async fn done(&self) -> Result<Option<i64>>;
}

pub async fn session(url: &str) -> Result<Client> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

pub async fn count(client: &Client, sql: &str) -> Result<i64> {
    Ok(client.query_one(sql, &[]).await?.get(0))
}

/// The smallest order; each number has ten digits, because JSON has no leading zeros.
const FIRST: u64 = 1_000_000_000;

/// 200 bytes of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Order {
    order: u64,
    pad: String,
}

impl Order {
    pub fn new(n: usize) -> Self {
        Self {
            order: FIRST + n as u64,
            pad: "x".repeat(171),
        }
    }
}

/// When each message reached the handler.
pub struct Seen {
    since: Instant,
    /// Nanoseconds, never 0 once it was there.
    at: Vec<AtomicU64>,
    distinct: AtomicUsize,
    all: AtomicUsize,
}

impl Seen {
    /// Lives as long as the program, because handlers are `'static`.
    pub fn of(count: usize) -> &'static Self {
        Box::leak(Box::new(Self {
            since: Instant::now(),
            at: (0..count).map(|_| AtomicU64::new(0)).collect(),
            distinct: AtomicUsize::new(0),
            all: AtomicUsize::new(0),
        }))
    }

    pub fn now(&self) -> u64 {
        (self.since.elapsed().as_nanos() as u64).max(1)
    }

    /// The whole work of a handler.
    pub fn handle(&self, order: &Order) {
        let at = self.now();
        let slot = order.order.checked_sub(FIRST).and_then(|n| self.at.get(n as usize));
        if slot.is_some_and(|slot| {
            slot.compare_exchange(0, at, Ordering::Relaxed, Ordering::Relaxed)
                .is_ok()
        }) {
            self.distinct.fetch_add(1, Ordering::Relaxed);
        }
        self.all.fetch_add(1, Ordering::Release);
    }

    pub fn at(&self, n: usize) -> u64 {
        self.at[n].load(Ordering::Relaxed)
    }

    /// How many calls there were.
    pub fn all(&self) -> usize {
        self.all.load(Ordering::Acquire)
    }

    /// Each exactly once.
    pub fn verify(&self) -> Result<()> {
        let (all, distinct, count) = (self.all(), self.distinct.load(Ordering::Relaxed), self.at.len());
        if (all, distinct) != (count, count) {
            return Err(
                format!("the handler was called {all} times for {distinct} different messages of {count}").into(),
            );
        }
        Ok(())
    }
}
