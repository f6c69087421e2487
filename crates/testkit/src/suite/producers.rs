//! P10: producers of one order key take turns until they commit, and nobody else waits for them.

use posthouse_core::{Enqueued, Error, Message, Settlement};
use tokio::task::JoinHandle;

use super::tools::*;
use crate::{Caller, Fixture};

/// A producer with a transaction of its own, as far as its commit.
async fn produce(fx: &dyn Fixture, message: Message) -> JoinHandle<Result<Enqueued, Error>> {
    let mut tx = fx.begin().await;
    tokio::spawn(async move {
        let answer = tx.enqueue(message).await;
        tx.commit().await.unwrap();
        answer
    })
}

/// A producer of the key `k` that does not commit yet. None where nobody else could do anything meanwhile: there, turns
/// are taken by all transactions anyway.
async fn open_producer(fx: &dyn Fixture, body: &str) -> Option<Box<dyn Caller>> {
    if !parallel_callers(fx).await {
        return None;
    }
    let mut tx = fx.begin().await;
    tx.enqueue(keyed("k", body)).await.unwrap();
    Some(tx)
}

/// The second producer waits until the first has committed, so that the order of the messages is that of the commits.
pub async fn strict_producers_take_turns(fx: &dyn Fixture) {
    if callers_retry(fx).await {
        let mut second = fx.begin().await;
        second.enqueue(keyed("k", "2")).await.unwrap();
        put(fx, keyed("k", "1")).await;
        assert_told_to_retry(second, "the second producer").await;
        put(fx, keyed("k", "2")).await;
        return assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["1", "2"]);
    }
    match open_producer(fx, "1").await {
        Some(first) => {
            let mut second = produce(fx, keyed("k", "2")).await;
            assert_waits(&mut second, "the second producer").await;
            assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
            first.commit().await.unwrap();
            second.await.unwrap().unwrap();
        }
        None => {
            put(fx, keyed("k", "1")).await;
            put(fx, keyed("k", "2")).await;
        }
    }
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["1", "2"]);
}

/// A rollback ends the turn as well, and leaves no hole.
pub async fn a_turn_ends_with_the_rollback(fx: &dyn Fixture) {
    if callers_retry(fx).await {
        let (mut first, mut second) = (fx.begin().await, fx.begin().await);
        first.enqueue(keyed("k", "never")).await.unwrap();
        second.enqueue(keyed("k", "2")).await.unwrap();
        first.rollback().await;
        second.commit().await.unwrap();
        return assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["2"]);
    }
    match open_producer(fx, "never").await {
        Some(first) => {
            let mut second = produce(fx, keyed("k", "2")).await;
            assert_waits(&mut second, "the second producer").await;
            first.rollback().await;
            second.await.unwrap().unwrap();
        }
        None => {
            let mut first = fx.begin().await;
            first.enqueue(keyed("k", "never")).await.unwrap();
            first.rollback().await;
            put(fx, keyed("k", "2")).await;
        }
    }
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["2"]);
}

/// Three producers that came one after the other are served one after the other.
pub async fn the_turn_passes_on_from_producer_to_producer(fx: &dyn Fixture) {
    if callers_retry(fx).await {
        let mut open = Vec::new();
        for n in 0..4 {
            let mut tx = fx.begin().await;
            tx.enqueue(keyed("k", &n.to_string())).await.unwrap();
            open.push(tx);
        }
        open.remove(0).commit().await.unwrap();
        for later in open {
            assert_told_to_retry(later, "a later producer").await;
        }
        for n in 1..4 {
            put(fx, keyed("k", &n.to_string())).await;
        }
        return assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["0", "1", "2", "3"]);
    }
    let Some(first) = open_producer(fx, "0").await else {
        for n in 0..4 {
            put(fx, keyed("k", &n.to_string())).await;
        }
        return assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["0", "1", "2", "3"]);
    };
    let mut waiting = Vec::new();
    for n in 1..4 {
        waiting.push(produce(fx, keyed("k", &n.to_string())).await);
        assert_waits(waiting.last_mut().unwrap(), "a later producer").await;
    }
    first.commit().await.unwrap();
    for producer in waiting {
        producer.await.unwrap().unwrap();
    }
    let mut sent = bodies(&claim(&*fx.store().await, "w1", 10).await);
    assert_eq!(sent.remove(0), "0", "the first to commit");
    sent.sort();
    assert_eq!(sent, ["1", "2", "3"]);
}

/// Producers of another key, tenant or namespace, and those without a key, do not wait for it.
pub async fn a_turn_belongs_to_its_key_alone(fx: &dyn Fixture) {
    let first = open_producer(fx, "1").await;
    let others = [
        keyed("other", "2"),
        keyed("k", "3").tenant("acme"),
        keyed("k", "4").namespace("billing"),
        keyed("k", "5").relaxed(),
        message("6"),
    ];
    for other in others {
        without_waiting("another producer", put(fx, other)).await;
    }
    assert_eq!(claim(&*fx.store().await, "w1", 10).await.len(), 5);
    if let Some(first) = first {
        first.commit().await.unwrap();
    }
}

/// Keys in opposite order in one call each: nobody waits for ever.
pub async fn two_bulks_of_the_same_keys_do_not_deadlock(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let keys: Vec<_> = (0..20).map(|n| format!("k{n}")).collect();
    for _ in 0..10 {
        let forward: Vec<_> = keys.iter().map(|key| keyed(key, "x")).collect();
        let backward: Vec<_> = forward.iter().rev().cloned().collect();
        let mut bulks = Vec::new();
        for bulk in [forward, backward] {
            if !parallel {
                put_all(fx, bulk).await;
                continue;
            }
            let mut tx = fx.begin().await;
            bulks.push(async move {
                tx.enqueue_all(bulk.clone()).await.unwrap();
                (!came_about(tx).await).then_some(bulk)
            });
        }
        let again: Vec<_> = at_once(bulks).await.into_iter().flatten().collect();
        // One of them has come about, whatever was told to the other.
        assert!(again.is_empty() || again.len() == 1 && callers_retry(fx).await);
        for bulk in again {
            put_all(fx, bulk).await;
        }
    }
    assert_eq!(count(fx).await, 400);
}

/// Who asks for it commits when it likes. What comes late is sent late, but the key has one holder all the same.
pub async fn a_relaxed_late_commit_is_sent_when_it_is_there(fx: &dyn Fixture) {
    let (early, late) = (keyed("k", "early").relaxed(), keyed("k", "late").relaxed());
    let store = fx.store().await;
    let first = if parallel_callers(fx).await {
        let mut tx = fx.begin().await;
        tx.enqueue(early.clone()).await.unwrap();
        Some(tx)
    } else {
        None
    };
    without_waiting("a relaxed producer", put(fx, late)).await;
    let held = claim(&*store, "w1", 10).await;
    assert_eq!(bodies(&held), ["late"]);
    match first {
        Some(tx) => tx.commit().await.unwrap(),
        None => drop(put(fx, early).await),
    }
    assert!(claim(&*store, "w2", 10).await.is_empty(), "the key has a holder");
    deliver(&*store, &held).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["early"]);
}

/// What is committed of a key is claimed while its next producer is at it.
pub async fn a_claim_waits_for_no_producer(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2"])).await;
    let store = fx.store().await;
    let open = open_producer(fx, "3").await;
    let run = without_waiting("a claim", claim(&*store, "w1", 10)).await;
    assert_eq!(bodies(&run), ["1", "2"]);
    deliver(&*store, &run).await;
    match open {
        Some(open) => open.commit().await.unwrap(),
        None => drop(put(fx, keyed("k", "3")).await),
    }
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["3"]);
}

/// Every way out of a lease is open while a producer of the key is at it, and so is a renewal.
pub async fn a_settlement_waits_for_no_producer(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2", "3"])).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 10).await);
    let open = open_producer(fx, "4").await;
    let steps = async {
        store.renew(&run, LEASE).await.unwrap();
        settle_all(&*store, &[delivered(&run[0])]).await;
        settle_all(&*store, &[failed_again(&run[1], 12)]).await;
        let again = leases(&claim(&*store, "w1", 10).await);
        settle_all(&*store, &[rejected(&again[0]), released(&again[1])]).await;
        claim_one(&*store, "w2").await;
        assert_eq!(expire(fx).await, 1);
    };
    without_waiting("a settlement", steps).await;
    if let Some(open) = open {
        open.commit().await.unwrap();
    }
    assert_eq!(bodies(&claim(&*store, "w1", 1).await), ["3"]);
}

/// A follow-up of the key is not held up by a producer of it: a settlement must never wait for business.
pub async fn follow_ups_take_no_turn(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("parent")).await;
    let store = fx.store().await;
    let open = open_producer(fx, "business").await;
    let expanded = Settlement::expanded(&lease, line("k", &["one", "two"]));
    without_waiting("a settlement", settle_all(&*store, &[expanded])).await;
    let run = without_waiting("a claim", claim(&*store, "w1", 10)).await;
    assert_eq!(bodies(&run), ["one", "two"]);
    if let Some(open) = open {
        open.commit().await.unwrap();
    }
}

/// P9. To the tail under the key's turn: who produced before the replay stands before it.
pub async fn a_replay_to_the_tail_takes_its_turn(fx: &dyn Fixture) {
    let dead = put_dead(fx, keyed("k", "dead")).await;
    if callers_retry(fx).await {
        let mut late = fx.begin().await;
        late.enqueue(keyed("k", "late")).await.unwrap();
        fx.admin().await.replay(dead, "op", "fixed", None).await.unwrap();
        assert_told_to_retry(late, "who was slower than the replay").await;
        put(fx, keyed("k", "late")).await;
        return assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["dead", "late"]);
    }
    match open_producer(fx, "before").await {
        Some(first) => {
            let admin = fx.admin().await;
            let mut replay = tokio::spawn(async move { admin.replay(dead, "op", "fixed", None).await });
            assert_waits(&mut replay, "the replay").await;
            first.commit().await.unwrap();
            replay.await.unwrap().unwrap();
        }
        None => {
            put(fx, keyed("k", "before")).await;
            fx.admin().await.replay(dead, "op", "fixed", None).await.unwrap();
        }
    }
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["before", "dead"]);
}
