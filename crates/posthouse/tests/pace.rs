//! How much a relay takes upon itself follows from how fast its destinations are; on the store in memory, in a time that moves when
//! everybody sleeps.

use async_trait::async_trait;
use posthouse::{
    Delivery, Error, Message, Relay, State, Store,
    relay::{Destination, local_delivery},
};
use posthouse_testkit::wrapped::{Call, Hook, Reply, Wrapped};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::time::{Instant, sleep};

use crate::relay::{Running, SECOND, all, numbered, put, states, store, until, until_all};

/// It was fast, and much waits for it, when it hangs. Nearly all of that goes back, and others are not kept waiting by it.
#[tokio::test(start_paused = true)]
async fn a_fast_destination_that_hangs_keeps_nobody_waiting() {
    let (store, hangs) = (store(), Arc::new(AtomicBool::new(false)));
    let (hung, arrived) = (hangs.clone(), Arc::new(AtomicUsize::new(0)));
    let fast = move |_: Delivery| {
        let hung = hung.clone();
        async move {
            if hung.load(Ordering::SeqCst) {
                sleep(8 * SECOND).await;
            }
        }
    };
    let count = arrived.clone();
    let well = move |_: Delivery| {
        count.fetch_add(1, Ordering::SeqCst);
        async {}
    };
    let relay = Relay::builder(Arc::new(store.clone()))
        .poll(3600 * SECOND)
        .route("fast", Destination::new("fast", local_delivery(fast)))
        .route("well", Destination::new("well", local_delivery(well)));
    let relay = Running::start(relay);
    let many = |n: usize| (0..n).map(|n| Message::json("fast", &n).unwrap());
    put(&store, many(2000)).await;
    until_all(&store, State::Done).await;
    hangs.store(true, Ordering::SeqCst);
    put(&store, many(2000)).await;
    for n in 0..100 {
        sleep(SECOND / 20).await;
        put(&store, [Message::json("well", &n).unwrap()]).await;
        sleep(SECOND / 5).await;
        assert_eq!(
            arrived.load(Ordering::SeqCst),
            n + 1,
            "the message {n} was kept waiting"
        );
        if n > 4 {
            let held = states(&store).await.iter().filter(|s| **s == State::Leased).count();
            assert!(held <= 32, "{held} wait for a destination that hangs");
        }
    }
    hangs.store(false, Ordering::SeqCst);
    let begun = Instant::now();
    until_all(&store, State::Done).await;
    assert!(begun.elapsed() < 60 * SECOND, "what went back waited for the poll");
    relay.stop().await;
}

/// It is done with each message at once, but with one after the other: its backlog does not hold up what is for others.
#[tokio::test(start_paused = true)]
async fn a_destination_that_sends_one_at_a_time_holds_nobody_up() {
    let store = store();
    let one = |_: Delivery| sleep(SECOND / 1000);
    let arrived: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let into = arrived.clone();
    let well = move |_: Delivery| {
        into.lock().unwrap().push(Instant::now());
        async {}
    };
    let relay = Relay::builder(Arc::new(store.clone()))
        .route("one", Destination::new("one", local_delivery(one)).concurrency(1))
        .route("well", Destination::new("well", local_delivery(well)));
    put(&store, (0..5000).map(|n| Message::json("one", &n).unwrap())).await;
    put(&store, [Message::json("well", &0).unwrap()]).await;
    let (relay, begun) = (Running::start(relay), Instant::now());
    until(|| async { arrived.lock().unwrap().len() == 1 }).await;
    let waited = arrived.lock().unwrap()[0] - begun;
    assert!(waited < SECOND, "it waited {waited:?} behind the others");
    relay.stop().await;
}

/// Counts the claims that were granted something, each of which takes its time.
#[derive(Clone, Default)]
struct Claims(Arc<AtomicUsize>);

#[async_trait]
impl Hook for Claims {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let reply = call.to(store).await?;
        sleep(SECOND / 1000).await;
        if matches!(&reply, Reply::Seen(look) if !look.granted.is_empty()) {
            self.0.fetch_add(1, Ordering::SeqCst);
        }
        Ok(reply)
    }
}

/// A claim costs more than a message: what is sent at once is not fetched by the handful, and nothing is fetched twice.
#[tokio::test(start_paused = true)]
async fn a_fast_destination_is_served_with_large_claims() {
    let (store, claims) = (store(), Claims::default());
    put(&store, (0..10_000).map(numbered)).await;
    let wrapped = Arc::new(Wrapped::new(Arc::new(store.clone()), claims.clone()));
    let to = Destination::new("shop", local_delivery(|_| async {}));
    let relay = Running::start(Relay::builder(wrapped).route("*", to));
    until_all(&store, State::Done).await;
    relay.stop().await;
    let claims = claims.0.load(Ordering::SeqCst);
    assert!(claims <= 100, "{claims} claims for 10,000 messages");
    assert!(all(&store).await.iter().all(|message| message.epoch == 1));
}

/// Answers one claim late, as a connection does that stalls, and counts how many are under way at a time.
#[derive(Clone, Default)]
struct OneIsLate {
    asked: Arc<AtomicUsize>,
    under_way: Arc<AtomicUsize>,
    most: Arc<AtomicUsize>,
}

const LATE: usize = 12;

#[async_trait]
impl Hook for OneIsLate {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let is_claim = matches!(call, Call::Look(_));
        if is_claim {
            let now = 1 + self.under_way.fetch_add(1, Ordering::SeqCst);
            self.most.fetch_max(now, Ordering::SeqCst);
        }
        let reply = call.to(store).await?;
        sleep(SECOND / 1000).await;
        if is_claim {
            if self.asked.fetch_add(1, Ordering::SeqCst) == LATE {
                sleep(5 * SECOND).await;
            }
            self.under_way.fetch_sub(1, Ordering::SeqCst);
        }
        Ok(reply)
    }
}

/// Claims go side by side, not in step: while one is not answered, others fetch and send what there is.
#[tokio::test(start_paused = true)]
async fn a_claim_that_is_late_holds_up_no_other() {
    let (store, hook) = (store(), OneIsLate::default());
    put(&store, (0..9000).map(numbered)).await;
    let wrapped = Arc::new(Wrapped::new(Arc::new(store.clone()), hook.clone()));
    let to = Destination::new("shop", local_delivery(|_| async {}));
    let (relay, begun) = (Running::start(Relay::builder(wrapped).route("*", to)), Instant::now());
    until(|| async { hook.asked.load(Ordering::SeqCst) > LATE }).await;
    sleep(2 * SECOND).await;
    let late = states(&store).await.iter().filter(|s| **s != State::Done).count();
    assert!((1..=500).contains(&late), "{late} wait for one claim");
    until_all(&store, State::Done).await;
    assert!(begun.elapsed() < 15 * SECOND, "its messages were left to run out");
    relay.stop().await;
    assert_eq!(hook.most.load(Ordering::SeqCst), 2);
    assert!(all(&store).await.iter().all(|message| message.epoch == 1));
}

/// Panics once, as a program's own store, recorder or subscriber may.
#[derive(Default)]
struct PanicsOnce(AtomicBool);

#[async_trait]
impl Hook for PanicsOnce {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let is_first = matches!(call, Call::EarlierReceipts(_)) && !self.0.swap(true, Ordering::SeqCst);
        assert!(!is_first, "an accident");
        call.to(store).await
    }
}

/// Whoever sees to a destination's messages may come to grief. The one that it had is left to run out, and the others are seen to.
#[tokio::test(start_paused = true)]
async fn an_accident_strands_nobody() {
    let store = store();
    put(&store, (0..2).map(numbered)).await;
    let wrapped = Arc::new(Wrapped::new(Arc::new(store.clone()), PanicsOnce::default()));
    let to = Destination::new("shop", local_delivery(|_| async {}))
        .concurrency(1)
        .reuse_receipts();
    let relay = Running::start(Relay::builder(wrapped).route("*", to));
    sleep(5 * SECOND).await;
    let done = states(&store).await.iter().filter(|s| **s == State::Done).count();
    assert_eq!(done, 1, "before the lease of the other has run out");
    until_all(&store, State::Done).await;
    relay.stop().await;
    let counted: u32 = all(&store).await.iter().map(|message| message.attempts).sum();
    assert_eq!(counted, 3, "one of them had two attempts");
}

/// Each begins when the one before it is settled, and a settlement that is alone waits for no other.
#[tokio::test(start_paused = true)]
async fn messages_of_one_key_follow_each_other_at_once() {
    let (store, arrived) = (store(), Arc::new(Mutex::new(Vec::new())));
    put(&store, (0..100).map(|n| numbered(n).order_key("one"))).await;
    let into = arrived.clone();
    let note = move |_: Delivery| {
        into.lock().unwrap().push(Instant::now());
        async {}
    };
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", local_delivery(note)));
    until_all(&store, State::Done).await;
    relay.stop().await;
    let arrived = arrived.lock().unwrap();
    // The first run is found by the claim of a relay that has just started, the rest by those that follow.
    let waits = arrived.windows(2).filter(|pair| pair[1] > pair[0]).count();
    assert!(arrived.len() == 100 && waits < 10, "{waits} of them waited");
}

/// Remembers what claims left.
#[derive(Clone, Default)]
struct Left(Arc<Mutex<Vec<Vec<String>>>>);

#[async_trait]
impl Hook for Left {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        if let Call::Look(claim) = &call {
            self.0.lock().unwrap().push(claim.not_topics.clone());
        }
        call.to(store).await
    }
}

/// A claim of everything else finds nothing, and has to put all that waits out of its way. When there is room again, it goes on at once.
#[tokio::test(start_paused = true)]
async fn for_a_full_destination_alone_nothing_is_claimed() {
    let (store, hook) = (store(), Left::default());
    put(&store, (0..200).map(numbered)).await;
    let wrapped = Arc::new(Wrapped::new(Arc::new(store.clone()), hook.clone()));
    let slow = Destination::new("shop", local_delivery(|_| sleep(SECOND))).concurrency(4);
    let (relay, begun) = (Running::start(Relay::builder(wrapped).route("*", slow)), Instant::now());
    until_all(&store, State::Done).await;
    assert!(begun.elapsed() < 55 * SECOND, "it took {:?}", begun.elapsed());
    relay.stop().await;
    let left = hook.0.lock().unwrap();
    assert!(left.iter().all(Vec::is_empty), "{left:?}");
}
