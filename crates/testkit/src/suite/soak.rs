//! Everything at once: producers, workers, observers, failures and a clock that moves; then every promise is looked at.

use posthouse_core::{Filter, Lease, MessageId, Settlement, State};
use std::{
    collections::BTreeSet,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{crew::*, tools::*};
use crate::Fixture;

/// Six producers, each with lines of its own, bulk and single, keyed and not; some roll back, which leaves no trace. The
/// turns are for stores where one transaction keeps out all others.
async fn produce(fx: &dyn Fixture, each: usize, ids: &Mutex<Vec<MessageId>>) {
    let door = tokio::sync::Mutex::new(());
    let parallel = parallel_callers(fx).await;
    let mut producers: Vec<Pin<Box<dyn Future<Output = ()> + Send + '_>>> = Vec::new();
    for producer in 0..6 {
        let door = &door;
        producers.push(Box::pin(async move {
            for n in 0..each {
                let turn = if parallel { None } else { Some(door.lock().await) };
                let own = keyed(&format!("p{producer}"), &n.to_string()).max_attempts(1000);
                put_some(fx, n, own, ids).await;
                drop(turn);
                tokio::task::yield_now().await;
            }
        }));
    }
    together(producers).await;
}

/// One transaction with two messages; every fifth time it is rolled back once before.
async fn put_some(fx: &dyn Fixture, n: usize, own: posthouse_core::Message, ids: &Mutex<Vec<MessageId>>) {
    if n.is_multiple_of(5) {
        let mut tx = fx.begin().await;
        tx.enqueue(own.clone()).await.unwrap();
        tx.rollback().await;
    }
    let mut tx = fx.begin().await;
    let answers = tx
        .enqueue_all(vec![own, message("0").tenant("acme").max_attempts(1000)])
        .await
        .unwrap();
    tx.commit().await.unwrap();
    let mut ids = ids.lock().unwrap_or_else(PoisonError::into_inner);
    ids.extend(answers.into_iter().map(|answer| answer.id()));
}

/// Six producers, four workers, failures of every kind: everything ends, once, in order and with its evidence.
pub async fn producers_and_workers_with_failures(fx: &dyn Fixture) {
    let ids = Mutex::new(Vec::new());
    let crew = Crew {
        workers: 4,
        batch: 8,
        ends: 6 * 20 * 2,
        handle: |claimed| match (claimed.lease.seq % 7, claimed.delivery.attempt) {
            (1, 1) => failed_again(&claimed.lease, 3),
            (2, _) => failed_again(&claimed.lease, 3),
            (3, _) => rejected(&claimed.lease),
            (4, _) if claimed.lease.standing.releases < 2 => released(&claimed.lease),
            _ => delivered(&claimed.lease),
        },
        may_lose: false,
    };
    let sent = crew.run(fx, produce(fx, 20, &ids)).await;
    let ids = ids.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_in_order(&sent);
    assert_sound(fx, &ids).await;
    assert_keys_in_order(fx, &ids).await;
    assert_eq!((ids.len(), count(fx).await), (240, 240));
    let admin = fx.admin().await;
    for id in &ids {
        let found = admin.find(*id).await.unwrap().unwrap();
        let sends = sent.iter().filter(|d| d.id == *id).count();
        // P21. Sent as often as its evidence says.
        assert!(
            found.state.is_terminal() && sends == found.attempts as usize,
            "{found:?}"
        );
    }
    assert!(claim(&*fx.store().await, "last", 10).await.is_empty());
}

/// The same while the clock runs past the leases: workers lose them, repairers and claimers meet, and every message still
/// ends exactly once.
pub async fn producers_and_workers_with_lost_leases(fx: &dyn Fixture) {
    let ids = Mutex::new(Vec::new());
    let crew = Crew {
        workers: 4,
        batch: 8,
        ends: 6 * 15 * 2,
        handle: |claimed| match (claimed.lease.seq % 3, claimed.delivery.attempt) {
            (0, 1) => failed_again(&claimed.lease, 1000),
            _ => delivered(&claimed.lease),
        },
        may_lose: true,
    };
    let meanwhile = async {
        tokio::join!(produce(fx, 15, &ids), async {
            for _ in 0..40 {
                fx.advance(LEASE / 2).await;
                for _ in 0..10 {
                    tokio::task::yield_now().await;
                }
            }
        });
    };
    crew.run(fx, meanwhile).await;
    let ids = ids.into_inner().unwrap_or_else(PoisonError::into_inner);
    assert_sound(fx, &ids).await;
    assert_keys_in_order(fx, &ids).await;
    let done = Filter {
        state: Some(State::Done),
        limit: 1000,
        ..Filter::default()
    };
    assert_eq!(fx.admin().await.list(&done).await.unwrap().messages.len(), ids.len());
    assert!(fx.store().await.expired(i64::MIN, 10).await.unwrap().is_empty());
}

/// Six relays meet what becomes due at one moment: each message once.
pub async fn what_becomes_due_is_claimed_once(fx: &dyn Fixture) {
    let some = (0..60).map(|n| match n % 3 {
        0 => keyed(&format!("k{n}"), "x").delay(SECOND),
        _ => message("x").delay(SECOND),
    });
    let ids = put_all(fx, some.collect()).await;
    let mut relays = Vec::new();
    for n in 0..6 {
        let store = fx.store().await;
        relays.push(async move {
            let mut taken = Vec::new();
            for _ in 0..15 {
                taken.extend(leases(&claim(&*store, &format!("w{n}"), 4).await));
                tokio::task::yield_now().await;
            }
            taken
        });
    }
    let (taken, ()) = tokio::join!(at_once(relays), fx.advance(SECOND));
    let mut taken: Vec<Lease> = taken.into_iter().flatten().collect();
    // What is left over was in another's hands when it was looked at.
    for _ in 0..3 {
        taken.extend(leases(&claim(&*fx.store().await, "last", 100).await));
    }
    assert_eq!(taken.len(), ids.len());
    assert_eq!(
        taken.iter().map(|lease| lease.id).collect::<BTreeSet<_>>(),
        ids.iter().copied().collect()
    );
    assert_sound(fx, &ids).await;
}

/// P6. Whoever sees a state finds the evidence of it, at every moment of a run.
pub async fn no_state_is_seen_without_its_evidence(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![message("x"); 60]).await;
    let over = Arc::new(AtomicBool::new(false));
    let mut observers = Vec::new();
    for observer in 0..2 {
        let (admin, over, ids) = (fx.admin().await, over.clone(), ids.clone());
        observers.push(async move {
            while !over.load(Ordering::SeqCst) {
                for id in ids.iter().skip(observer) {
                    // What is read first may be older than its evidence, never younger.
                    let seen = admin.find(*id).await.unwrap().expect("it is never in between");
                    let rows = admin.attempts(*id).await.unwrap();
                    let ended = usize::from(seen.state != State::Leased);
                    assert!(rows.len() + 1 >= seen.attempts as usize + ended, "{seen:?} {rows:?}");
                    tokio::task::yield_now().await;
                }
            }
        });
    }
    let store = fx.store().await;
    let working = async {
        for batch in 0..12_usize {
            let held = leases(&claim(&*store, "w1", 10).await);
            let end = |(n, lease): (usize, &Lease)| match (n + batch) % 3 {
                0 => failed_again(lease, 2),
                _ => delivered(lease),
            };
            let batch: Vec<Settlement> = held.iter().enumerate().map(end).collect();
            settle_all(&*store, &batch).await;
            tokio::task::yield_now().await;
        }
        over.store(true, Ordering::SeqCst);
    };
    tokio::join!(at_once(observers), working);
    assert_sound(fx, &ids).await;
}
