//! What the reference store does beyond what every store must.

#![allow(clippy::unwrap_used)]

use async_trait::async_trait;
use posthouse_core::{Error, Message, MessageId, Renewal, Settlement, Store, Verdict, Wake, repair};
use posthouse_testkit::{
    Memory,
    suite::tools::*,
    wrapped::{Call, Hook, Reply, Wrapped},
};
use std::{sync::Arc, time::Duration};

async fn committed(memory: &Memory, message: Message) {
    let mut tx = memory.begin();
    tx.enqueue(message).await.unwrap();
    tx.commit();
}

#[tokio::test]
async fn two_transactions_that_wait_for_each_other_are_refused_not_hung() {
    let memory = Memory::new();
    let (mut one, mut two) = (memory.begin(), memory.begin());
    one.enqueue(message("x").dedupe_key("a")).await.unwrap();
    two.enqueue(message("x").dedupe_key("b")).await.unwrap();
    let waiting = tokio::spawn(async move {
        let answer = one.enqueue(message("x").dedupe_key("b")).await;
        one.commit();
        answer
    });
    tokio::task::yield_now().await;
    let refused = two.enqueue(message("x").dedupe_key("a")).await;
    assert!(matches!(refused, Err(Error::Contention(_))), "{refused:?}");
    two.rollback();
    waiting.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_dropped_transaction_is_rolled_back() {
    let memory = Memory::new();
    let mut tx = memory.begin();
    tx.enqueue(keyed("k", "x").dedupe_key("d")).await.unwrap();
    drop(tx);
    committed(&memory, keyed("k", "x").dedupe_key("d")).await;
    assert_eq!(claim(&memory, "w1", 10).await.len(), 1);
}

#[tokio::test]
async fn producers_of_a_key_take_turns_until_the_commit() {
    let memory = Memory::new();
    let (mut one, mut two) = (memory.begin(), memory.begin());
    one.enqueue(keyed("k", "first")).await.unwrap();
    let waiting = tokio::spawn(async move {
        two.enqueue(keyed("k", "second")).await.unwrap();
        two.commit();
    });
    tokio::task::yield_now().await;
    assert!(!waiting.is_finished());
    one.commit();
    waiting.await.unwrap();
    assert_eq!(bodies(&claim(&memory, "w1", 10).await), ["first", "second"]);
}

#[tokio::test]
async fn a_lease_that_a_handler_settles_is_not_lost_to_others() {
    let memory = Memory::new();
    committed(&memory, message("x")).await;
    let lease = claim_one(&memory, "w1").await.lease;
    let mut tx = memory.begin();
    assert!(tx.settle_in(&delivered(&lease)).await.unwrap().is_settled());
    assert_eq!(
        memory.renew(std::slice::from_ref(&lease), LEASE).await.unwrap(),
        [Renewal::Locked]
    );
    memory.advance(LEASE * 2);
    assert!(memory.expired(i64::MIN, 10).await.unwrap().is_empty());
    let (other, expiry) = (memory.clone(), Settlement::expired(&lease));
    let repairer = tokio::spawn(async move { settle(&other, expiry).await });
    tokio::task::yield_now().await;
    tx.commit();
    assert!(
        repairer.await.unwrap().is_lost(),
        "the handler held the lease until its commit"
    );
}

#[tokio::test]
async fn a_commit_before_the_sleep_still_wakes() {
    let memory = Memory::new();
    let relay = memory.clone();
    committed(&memory, message("x")).await;
    let moment = Duration::from_millis(1);
    assert_eq!(
        relay.wake(moment).await.unwrap(),
        Wake::Elapsed,
        "it said nothing of sleep"
    );
    relay.asleep("w", Duration::from_secs(60)).await.unwrap();
    committed(&memory, message("y")).await;
    assert_eq!(relay.wake(Duration::from_secs(60)).await.unwrap(), Wake::Rung);
    assert_eq!(relay.wake(moment).await.unwrap(), Wake::Elapsed);
}

/// Somebody is just settling one of them, and will be for a while.
struct Busy(i64);

#[async_trait]
impl Hook for Busy {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Settle(batch) if batch.iter().any(|settlement| settlement.lease.seq == self.0) => {
                Ok(Reply::Verdicts(batch.iter().map(|_| Verdict::LeaseLost).collect()))
            }
            call => call.to(store).await,
        }
    }
}

/// A lease that cannot be taken back now keeps no other from it, however few are asked for at once.
#[tokio::test]
async fn a_busy_lease_keeps_no_other_from_being_taken_back() {
    let memory = Memory::new();
    for body in ["a", "b", "c"] {
        committed(&memory, message(body)).await;
    }
    let first = claim(&memory, "w1", 10).await[0].lease.seq;
    memory.advance(LEASE);
    let store = Wrapped::new(Arc::new(memory.clone()), Busy(first));
    assert_eq!(repair(&store, 1).await.unwrap(), 1);
    assert_eq!(repair(&store, 1).await.unwrap(), 1);
    assert_eq!(repair(&store, 1).await.unwrap(), 0);
    assert_eq!(repair(&memory, 1).await.unwrap(), 1);
}

/// A store that refuses, for good, whatever has to do with one message.
struct Poisoned(MessageId);

#[async_trait]
impl Hook for Poisoned {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match &call {
            Call::Settle(batch) if batch.iter().any(|one| one.lease.id == self.0) => {
                Err(Error::Internal("it cannot be written".into()))
            }
            _ => call.to(store).await,
        }
    }
}

#[tokio::test]
async fn a_lease_that_cannot_be_settled_keeps_no_other_from_being_taken_back() {
    for limit in [1, 10] {
        let memory = Memory::new();
        for body in ["a", "b", "c"] {
            committed(&memory, message(body)).await;
        }
        let leases = leases(&claim(&memory, "w1", 10).await);
        let store = Wrapped::new(Arc::new(memory.clone()), Poisoned(leases[0].id));
        memory.advance(LEASE * 2);
        let mut freed = 0;
        for _ in 0..2 {
            freed += repair(&store, limit).await.unwrap_or(0);
        }
        assert_eq!(freed, 2, "at most {limit}");
        let error = repair(&store, limit).await.unwrap_err();
        assert!(matches!(error, Error::Internal(_)), "{error}");
        assert_eq!(bodies(&claim(&memory, "w2", 10).await), ["b", "c"]);
    }
}
