//! Who sleeps is woken by what is committed, and a claim that finds nothing tells of leases that ran out.

use posthouse_core::{Claim, Store, Wake, repair};
use std::{future::poll_fn, pin::pin, sync::Arc, task::Poll};

use super::tools::*;
use crate::Fixture;

fn ten() -> Claim {
    Claim::new("w", 10, LEASE)
}

/// A handle whose worker said that it sleeps, and looked once more.
async fn sleeper(fx: &dyn Fixture) -> Arc<dyn Store> {
    let store = fx.store().await;
    store.asleep("w", DAY).await.unwrap();
    assert!(store.claim(&ten()).await.unwrap().is_empty());
    store
}

/// L1: a commit wakes a relay that sleeps.
pub async fn a_commit_wakes_who_sleeps(fx: &dyn Fixture) {
    let store = sleeper(fx).await;
    let (woken, _) = tokio::join!(store.wake(DAY), put(fx, message("a")));
    assert_eq!(woken.unwrap(), Wake::Rung);
}

/// It may have been rung for what it cannot take: it sleeps on without a word, and is rung for again.
pub async fn who_was_rung_is_rung_for_until_it_is_granted_something(fx: &dyn Fixture) {
    let store = sleeper(fx).await;
    for body in ["a", "b", "c"] {
        put(fx, message(body)).await;
        assert_eq!(store.wake(DAY).await.unwrap(), Wake::Rung, "{body}");
    }
}

/// A single message does not end its sleep, or each would cost three more calls; it need not look again before it sleeps on.
pub async fn who_is_granted_a_single_message_is_rung_for_the_next(fx: &dyn Fixture) {
    let store = sleeper(fx).await;
    for body in ["a", "b", "c"] {
        put(fx, message(body)).await;
        assert_eq!(store.wake(DAY).await.unwrap(), Wake::Rung, "{body}");
        assert_eq!(bodies(&store.claim(&ten()).await.unwrap()), [body]);
    }
}

/// Who is told that there is no more sleeps on, and nobody rings for what was there: so it must be true, whoever's they are.
pub async fn a_claim_that_says_it_saw_all_did(fx: &dyn Fixture) {
    let store = sleeper(fx).await;
    put(fx, message("first").tenant("m")).await;
    assert_eq!(store.claim(&ten()).await.unwrap().len(), 1);
    let tenants = ["a", "b", "c", "d", "u", "v", "w", "x"];
    for (turn, most) in [(1, 1), (2, 3), (3, 8)] {
        let messages = tenants[..most].iter().map(|tenant| message("x").tenant(*tenant));
        put_all(fx, messages.collect()).await;
        let mut granted = 0;
        // Ends: each look is granted something.
        while granted < most {
            let look = store.look(&ten()).await.unwrap();
            granted += look.granted.len();
            assert!(!look.granted.is_empty(), "turn {turn}: {granted} of {most}");
            assert!(
                !look.complete || granted == most,
                "turn {turn}: all, it says, after {granted} of {most}"
            );
        }
    }
}

/// Whoever waits for several things gives up the rest when one has come.
pub async fn a_sleep_that_is_given_up_loses_no_ring(fx: &dyn Fixture) {
    let store = sleeper(fx).await;
    for body in ["a", "b", "c"] {
        {
            let mut given_up = pin!(store.wake(DAY));
            // It may wake for nothing.
            let _ = poll_fn(|cx| Poll::Ready(given_up.as_mut().poll(cx))).await;
        }
        put(fx, message(body)).await;
        assert_eq!(store.wake(DAY).await.unwrap(), Wake::Rung, "{body}");
    }
}

/// L2: a relay that claims and finds nothing may rely on what it is told of leases that ran out.
pub async fn a_claim_does_not_deny_leases_that_ran_out(fx: &dyn Fixture) {
    let store = fx.store().await;
    let ran_out = async || {
        let look = store.look(&ten()).await.unwrap();
        assert!(look.granted.is_empty());
        look.ran_out
    };
    assert_ne!(ran_out().await, Some(true), "there is none");
    put(fx, message("a")).await;
    store.claim(&ten()).await.unwrap();
    assert_ne!(ran_out().await, Some(true), "it is held");
    fx.advance(LEASE).await;
    assert_ne!(ran_out().await, Some(false), "it has run out");
    assert_eq!(repair(&*store, 10).await.unwrap(), 1);
    store.claim(&ten()).await.unwrap();
    repair(&*store, 10).await.unwrap();
    assert_ne!(ran_out().await, Some(true), "it was taken back, and is held again");
}
