//! Claims that the store answers late, or refuses because they would take too long.

use async_trait::async_trait;
use posthouse::{AttemptOutcome, Error, Relay, State, Store, relay::local_delivery};
use posthouse_testkit::wrapped::{Call, Hook, Reply, Wrapped};
use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::time::sleep;

use crate::relay::{Running, SECOND, all, evidence, numbered, put, store, until_all};

/// The first claims wait this long before the store hears of them.
struct Waits {
    claims: AtomicUsize,
    by: Duration,
}

#[async_trait]
impl Hook for Waits {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let more = |left: usize| left.checked_sub(1);
        let waits = matches!(call, Call::Look(_))
            && self
                .claims
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, more)
                .is_ok();
        if waits {
            sleep(self.by).await;
        }
        call.to(store).await
    }
}

/// A relay that sends at once, behind this hook.
fn relay(store: &posthouse_testkit::Memory, hook: impl Hook + 'static) -> Running {
    let wrapped = Arc::new(Wrapped::new(Arc::new(store.clone()), hook));
    Running::start(Relay::builder(wrapped).route("*", local_delivery(|_| async {})))
}

/// By the relay's clock, which starts before the claim, these leases are over when they arrive; by the store's they are not. Three times, which is the budget.
#[tokio::test(start_paused = true)]
async fn lease_that_arrives_late_is_released_uncounted() {
    let store = store();
    put(&store, (0..40).map(|n| numbered(n).max_attempts(3))).await;
    let waits = Waits {
        claims: AtomicUsize::new(3),
        by: 20 * SECOND,
    };
    let relay = relay(&store, waits);
    until_all(&store, State::Done).await;
    relay.stop().await;
    for at in 0..40 {
        let attempts = evidence(&store, at).await;
        let outcomes: Vec<_> = attempts.iter().map(|one| (one.attempt, one.outcome)).collect();
        assert_eq!(outcomes, [(1, AttemptOutcome::Delivered)]);
    }
}

/// The time that a claim waits for the store is not the message's.
#[tokio::test(start_paused = true)]
async fn message_of_a_late_claim_does_not_lapse_before_its_deliver_by() {
    let store = store();
    put(&store, [numbered(1).deliver_in(14 * SECOND)]).await;
    let waits = Waits {
        claims: AtomicUsize::new(1),
        by: 10 * SECOND,
    };
    let relay = relay(&store, waits);
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(evidence(&store, 0).await.len(), 1);
}

/// A store that is too slow for a claim of more than 32 messages.
struct Slow;

#[async_trait]
impl Hook for Slow {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Look(claim) if claim.batch > 32 => claim
                .check_in_time(claim.lease)
                .and(Err(Error::Contention("the claim was in time".into()))),
            call => call.to(store).await,
        }
    }
}

/// With the size that was too slow, the relay would deliver nothing more.
#[tokio::test(start_paused = true)]
async fn relay_claims_fewer_messages_after_a_claim_that_was_too_slow() {
    let store = store();
    put(&store, (0..300).map(numbered)).await;
    let relay = relay(&store, Slow);
    let delivered = tokio::time::timeout(60 * SECOND, until_all(&store, State::Done)).await;
    assert!(delivered.is_ok(), "the relay repeats the claim that was too slow");
    relay.stop().await;
    assert!(all(&store).await.iter().all(|message| message.attempts == 1));
}
