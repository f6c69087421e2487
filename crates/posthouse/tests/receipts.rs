//! What was delivered is not sent again, where the destination asks for that; on the store in memory, in a time that moves when
//! everybody sleeps.

use async_trait::async_trait;
use posthouse::{
    Admin, AttemptOutcome, Delivery, Error, Message, Outcome, Prune, Relay, RetryPolicy, State, Store,
    relay::{Destination, local_delivery},
};
use posthouse_testkit::{
    Memory, Wrapped,
    wrapped::{Call, Hook, Reply},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use crate::relay::{Running, SECOND, all, evidence, numbered, put, states, store, until, until_all};

/// A destination that remembers, and gives what it remembers a number.
#[derive(Clone, Default)]
struct Archive(Arc<Mutex<Vec<String>>>);

impl Archive {
    fn destination(&self, name: &str) -> Destination {
        let archive = self.clone();
        let take = move |delivery: Delivery| {
            let archive = archive.clone();
            async move {
                tokio::time::sleep(SECOND / 10).await;
                let mut kept = archive.0.lock().unwrap();
                kept.push(String::from_utf8(delivery.payload).unwrap());
                let receipt = Some(format!("memory-{}", kept.len()));
                Outcome::Delivered { receipt, answer: None }
            }
        };
        Destination::new(name, local_delivery(take))
    }

    fn asked(&self) -> usize {
        self.0.lock().unwrap().len()
    }
}

/// Counts how often a store is asked for receipts, and fails so often first.
struct Counting {
    asked: AtomicUsize,
    fails: AtomicUsize,
}

impl Counting {
    fn before(store: &Memory, fails: usize) -> Arc<Wrapped<Self>> {
        let counting = Self {
            asked: AtomicUsize::new(0),
            fails: AtomicUsize::new(fails),
        };
        Arc::new(Wrapped::new(Arc::new(store.clone()), counting))
    }
}

#[async_trait]
impl Hook for Counting {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        if matches!(call, Call::EarlierReceipts(_)) {
            self.asked.fetch_add(1, Ordering::SeqCst);
            let fails = |left: usize| left.checked_sub(1);
            if self
                .fails
                .fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails)
                .is_ok()
            {
                return Err(Error::Timeout("no answer".into()));
            }
        }
        call.to(store).await
    }
}

fn relay(store: &Memory, to: Destination) -> Running {
    Running::start(Relay::builder(Arc::new(store.clone())).route("*", to))
}

/// Enqueues one and waits until it is done.
async fn done(store: &Memory, message: Message) {
    put(store, [message]).await;
    until_all(store, State::Done).await;
}

#[tokio::test(start_paused = true)]
async fn what_was_delivered_is_settled_with_its_receipt_and_not_sent() {
    let (store, archive) = (store(), Archive::default());
    let relay = relay(&store, archive.destination("archive").reuse_receipts());
    done(&store, numbered(1)).await;
    done(&store, numbered(1)).await;
    // The rest of its identity counts too.
    done(&store, numbered(1).tenant("acme")).await;
    done(&store, numbered(2)).await;
    // And only that: not the keys.
    done(&store, numbered(2).order_key("k").dedupe_key("d")).await;
    relay.stop().await;
    assert_eq!(*archive.0.lock().unwrap(), ["1", "1", "2"]);
    use AttemptOutcome::{Delivered, Duplicate};
    let expected = [
        (Delivered, "memory-1"),
        (Duplicate, "memory-1"),
        (Delivered, "memory-2"),
        (Delivered, "memory-3"),
        (Duplicate, "memory-3"),
    ];
    for (at, expected) in expected.into_iter().enumerate() {
        let attempts = evidence(&store, at).await;
        assert_eq!(attempts.len(), 1);
        assert_eq!((attempts[0].outcome, attempts[0].receipt.as_deref().unwrap()), expected);
    }
}

/// The name of the destination is a part of it: what another has is not here.
#[tokio::test(start_paused = true)]
async fn another_destination_is_sent_to() {
    let (store, archive) = (store(), Archive::default());
    let first = relay(&store, archive.destination("archive").reuse_receipts());
    done(&store, numbered(1)).await;
    first.stop().await;
    let second = relay(&store, archive.destination("backup").reuse_receipts());
    done(&store, numbered(1)).await;
    second.stop().await;
    assert_eq!(archive.asked(), 2);
}

/// Nothing is kept, asked or reused for a destination that does not want it.
#[tokio::test(start_paused = true)]
async fn who_does_not_ask_pays_nothing_and_gets_nothing() {
    let (store, archive) = (store(), Archive::default());
    let counting = Counting::before(&store, 0);
    let relay = Running::start(Relay::builder(counting.clone()).route("*", archive.destination("archive")));
    done(&store, numbered(1)).await;
    done(&store, numbered(1)).await;
    relay.stop().await;
    assert_eq!((archive.asked(), counting.hook.asked.load(Ordering::SeqCst)), (2, 0));
    assert!(!store.dump().contains("receipt ["), "{}", store.dump());
}

/// A failure is no delivery; the next try of the same message finds nothing, and is sent.
#[tokio::test(start_paused = true)]
async fn a_failure_is_not_reused() {
    let store = store();
    let asked = Arc::new(AtomicUsize::new(0));
    let counted = asked.clone();
    let take = local_delivery(move |delivery: Delivery| {
        counted.fetch_add(1, Ordering::SeqCst);
        async move {
            match delivery.attempt {
                1 => Err("not yet"),
                _ => Ok(()),
            }
        }
    });
    let to = Destination::new("archive", take)
        .retry(RetryPolicy::table(3, [SECOND]))
        .reuse_receipts();
    let relay = relay(&store, to);
    done(&store, numbered(1)).await;
    // Delivered without a receipt is delivered.
    done(&store, numbered(1)).await;
    relay.stop().await;
    assert_eq!(asked.load(Ordering::SeqCst), 2);
    let attempts = evidence(&store, 1).await;
    assert_eq!(
        (attempts[0].outcome, &attempts[0].receipt),
        (AttemptOutcome::Duplicate, &None)
    );
}

/// Reuse is no lock: what is in flight is not known to be delivered. Of a key only one is in flight, so there it is.
#[tokio::test(start_paused = true)]
async fn twins_in_flight_both_go_out_but_not_those_of_one_key() {
    let (store, archive) = (store(), Archive::default());
    put(&store, [numbered(1), numbered(1)]).await;
    put(&store, [numbered(2).order_key("k"), numbered(2).order_key("k")]).await;
    let relay = relay(&store, archive.destination("archive").reuse_receipts());
    until_all(&store, State::Done).await;
    relay.stop().await;
    let mut sent = archive.0.lock().unwrap().clone();
    sent.sort();
    assert_eq!(sent, ["1", "1", "2"]);
}

/// Without an answer nothing is sent, and nothing counts.
#[tokio::test(start_paused = true)]
async fn while_the_store_does_not_say_nothing_is_sent() {
    let (store, archive) = (store(), Archive::default());
    let counting = Counting::before(&store, 3);
    let relay =
        Running::start(Relay::builder(counting.clone()).route("*", archive.destination("archive").reuse_receipts()));
    done(&store, numbered(1)).await;
    relay.stop().await;
    assert_eq!((archive.asked(), counting.hook.asked.load(Ordering::SeqCst)), (1, 4));
    let attempts = evidence(&store, 0).await;
    assert_eq!((attempts.len(), attempts[0].attempt), (1, 1));
}

/// A receipt is kept as long as its message: after that the same goes out again.
#[tokio::test(start_paused = true)]
async fn a_pruned_message_is_reused_no_more() {
    let (store, archive) = (store(), Archive::default());
    let relay = relay(&store, archive.destination("archive").reuse_receipts());
    done(&store, numbered(1)).await;
    tokio::time::sleep(60 * SECOND).await;
    assert_eq!(
        store
            .prune(&Prune::done(30 * SECOND, 10, "op"))
            .await
            .unwrap()
            .messages(),
        1
    );
    done(&store, numbered(1)).await;
    relay.stop().await;
    assert_eq!(archive.asked(), 2);
    assert_eq!(states(&store).await, [State::Done]);
}

/// A dead message that is replayed after its twin was delivered has nothing left to do.
#[tokio::test(start_paused = true)]
async fn a_replay_after_its_twin_is_a_duplicate() {
    let (store, archive) = (store(), Archive::default());
    let refuse = local_delivery(|_| async {
        Outcome::Reject {
            code: "full".into(),
            error: "no room".into(),
        }
    });
    let first = relay(&store, Destination::new("archive", refuse).reuse_receipts());
    put(&store, [numbered(1)]).await;
    until_all(&store, State::Dead).await;
    first.stop().await;
    let second = relay(&store, archive.destination("archive").reuse_receipts());
    put(&store, [numbered(1)]).await;
    until(|| async { states(&store).await == [State::Dead, State::Done] }).await;
    store
        .replay(all(&store).await[0].id, "ops", "room again", None)
        .await
        .unwrap();
    until_all(&store, State::Done).await;
    second.stop().await;
    assert_eq!(archive.asked(), 1);
    assert_eq!(evidence(&store, 0).await[1].outcome, AttemptOutcome::Duplicate);
}
