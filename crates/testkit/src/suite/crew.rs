//! Workers as a relay would run them, for cases about many messages at once.

use posthouse_core::{Claim, Claimed, Delivery, Message, Next, Settlement, Store};
use std::{
    collections::{BTreeMap, BTreeSet},
    future::Future,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use super::tools::*;
use crate::Fixture;

/// What a worker reports of a message that it was granted.
pub type Handle = fn(&Claimed) -> Settlement;

/// Workers that claim and settle, each with a handle of its own on the store, until so many messages have ended.
pub struct Crew {
    /// How many.
    pub workers: usize,
    /// What each takes at a time.
    pub batch: u32,
    /// When to stop.
    pub ends: usize,
    /// What they report.
    pub handle: Handle,
    /// Whether a lease may be lost: the clock is moved meanwhile.
    pub may_lose: bool,
}

/// What the workers of a crew share.
#[derive(Default)]
struct Shared {
    sent: Mutex<Vec<Delivery>>,
    ended: AtomicUsize,
}

impl Crew {
    /// Runs them while `meanwhile` goes on, and tells what was sent, in the order of the sending.
    pub async fn run(self, fx: &dyn Fixture, meanwhile: impl Future<Output = ()>) -> Vec<Delivery> {
        let (crew, shared) = (Arc::new(self), Arc::new(Shared::default()));
        let mut workers = Vec::new();
        for n in 0..crew.workers {
            let (crew, shared, store) = (crew.clone(), shared.clone(), fx.store().await);
            workers.push(async move { crew.work(&shared, &*store, &format!("w{n}")).await });
        }
        // A message that is never granted would keep the workers for ever; a slow machine may take its time.
        let all = async { tokio::join!(at_once(workers), meanwhile) };
        tokio::time::timeout(Duration::from_secs(300), all)
            .await
            .unwrap_or_else(|_| panic!("{:?} of {} ended", shared.ended, crew.ends));
        let sent = &shared.sent;
        std::mem::take(&mut *sent.lock().unwrap_or_else(PoisonError::into_inner))
    }

    async fn work(&self, shared: &Shared, store: &dyn Store, name: &str) {
        while shared.ended.load(Ordering::SeqCst) < self.ends {
            if self.may_lose {
                posthouse_core::repair(store, 1000).await.unwrap();
            }
            let claimed = store.claim(&Claim::new(name, self.batch, LEASE)).await.unwrap();
            assert!(claimed.len() <= self.batch as usize, "more than asked for");
            let (mut stopped, mut last) = (BTreeSet::new(), BTreeMap::new());
            for claimed in claimed {
                let before = last.insert(claimed.delivery.order_key.clone(), claimed.lease.seq);
                let unkeyed = claimed.delivery.order_key.is_none();
                assert!(unkeyed || before < Some(claimed.lease.seq), "a run is not in order");
                let key = claimed.delivery.order_key.clone();
                let waits = key.is_some() && stopped.contains(&key);
                if !waits && !self.send(shared, store, &claimed).await {
                    stopped.insert(key);
                }
            }
            tokio::task::yield_now().await;
        }
    }

    /// Sends one message, and says whether the next of its run may be sent.
    async fn send(&self, shared: &Shared, store: &dyn Store, claimed: &Claimed) -> bool {
        // A send takes its time, and the others do not stand still.
        tokio::task::yield_now().await;
        let settlement = (self.handle)(claimed);
        if settlement.step.evidence.is_some() {
            let mut sent = shared.sent.lock().unwrap_or_else(PoisonError::into_inner);
            sent.push(claimed.delivery.clone());
        }
        let next = settlement.next();
        let verdict = settle(store, settlement).await;
        assert!(
            verdict.is_settled() || self.may_lose && verdict.is_lost(),
            "{verdict:?}"
        );
        let ended = verdict.is_settled() && !matches!(next, Next::Pending(_));
        shared.ended.fetch_add(usize::from(ended), Ordering::SeqCst);
        ended
    }
}

/// So many messages of each key, numbered from 0 on, one key after the other.
pub fn numbered(keys: usize, each: usize) -> Vec<Message> {
    let numbers = (0..each).flat_map(|n| (0..keys).map(move |key| (key, n)));
    numbers
        .map(|(key, n)| keyed(&format!("k{key}"), &n.to_string()))
        .collect()
}

/// The number that a message of [`numbered`] carries.
pub fn number(delivery: &Delivery) -> usize {
    String::from_utf8_lossy(&delivery.payload).parse().unwrap()
}

/// Asserts that each key's numbers were sent from 0 on without a gap, and none after a later one.
pub fn assert_in_order(sent: &[Delivery]) {
    let mut last = BTreeMap::new();
    for delivery in sent.iter().filter(|delivery| delivery.order_key.is_some()) {
        let key = (&delivery.namespace, &delivery.tenant, &delivery.order_key);
        let next = match last.insert(key, number(delivery)) {
            None => 0..=0,
            Some(last) => last..=last + 1,
        };
        assert!(
            next.contains(&number(delivery)),
            "{key:?}: {next:?} was to come, not {}",
            number(delivery)
        );
    }
}
