//! A store that stumbles twice, and is itself otherwise.

use async_trait::async_trait;
use posthouse::{
    Capabilities, Claim, Claimed, Conflict, Effect, Error, Fate, Lease, Pause, Receipt, Renewal, Settlement, Store,
    Verdict, Wake, presence,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

/// The first claim finds no database, and the first settlement gets no answer in time.
pub struct Stumbling {
    store: Arc<dyn Store>,
    claimed: AtomicBool,
    settled: AtomicBool,
}

impl Stumbling {
    pub fn new(store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            store,
            claimed: AtomicBool::new(false),
            settled: AtomicBool::new(false),
        })
    }
}

#[async_trait]
impl Store for Stumbling {
    fn capabilities(&self) -> Capabilities {
        self.store.capabilities()
    }

    async fn claim(&self, claim: &Claim) -> Result<Vec<Claimed>, Error> {
        if !self.claimed.swap(true, Ordering::SeqCst) {
            return Err(Error::Unavailable("connection refused".into()));
        }
        self.store.claim(claim).await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        if !self.settled.swap(true, Ordering::SeqCst) {
            // It was written, and only the answer is late: what is unknown is asked again.
            self.store.settle(batch).await?;
            return Err(Error::Timeout("statement timeout".into()));
        }
        self.store.settle(batch).await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        self.store.renew(leases, lease).await
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        self.store.earlier_receipts(effects).await
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        self.store.fates(leases).await
    }

    async fn gone(&self, destination: &str, worker: &str, reason: &str) -> Result<(), Error> {
        self.store.gone(destination, worker, reason).await
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        self.store.expired(after, limit).await
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        self.store.record_conflict(lease, worker).await
    }

    async fn heartbeat(&self, relay: &presence::Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        self.store.heartbeat(relay, ttl).await
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        self.store.leave(relay).await
    }

    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error> {
        self.store.asleep(worker, at_most).await
    }

    async fn wake(&self, worker: &str, at_most: Duration) -> Result<Wake, Error> {
        self.store.wake(worker, at_most).await
    }
}
