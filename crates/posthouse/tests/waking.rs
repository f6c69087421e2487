//! L1, without a poll: what is committed wakes a relay that sleeps, and an idle relay leaves the store in peace. On the store in memory,
//! which rings for nobody but who said that it sleeps.

use async_trait::async_trait;
use posthouse::{
    Error, Look, Message, Outcome, Relay, State, Store,
    relay::{Destination, local, local_delivery},
};
use posthouse_testkit::{
    Memory,
    wrapped::{Call, Hook, Reply, Wrapped},
};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::{Instant, sleep};

use crate::relay::{Running, SECOND, numbered, put, states, store, until, until_all};

/// Somebody commits just before the store knows that the relay sleeps.
struct Early {
    memory: Memory,
    done: AtomicBool,
}

#[async_trait]
impl Hook for Early {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        if matches!(call, Call::Asleep(..)) && !self.done.swap(true, Ordering::SeqCst) {
            put(&self.memory, [numbered(0)]).await;
        }
        call.to(store).await
    }
}

/// The look before the sleep found something, so the store takes the relay for awake: it has to say again that it sleeps.
#[tokio::test(start_paused = true)]
async fn a_sleep_after_a_last_find_is_known_to_the_store() {
    let memory = store();
    let early = Early {
        memory: memory.clone(),
        done: AtomicBool::new(false),
    };
    let wrapped = Arc::new(Wrapped::new(Arc::new(memory.clone()), early));
    let relay = Relay::builder(wrapped)
        .poll(3600 * SECOND)
        .route("order.*", local(|_: usize| async {}));
    let relay = Running::start(relay);
    until(|| async { states(&memory).await == [State::Done] }).await;
    // Long asleep by now.
    sleep(10 * SECOND).await;
    let committed = Instant::now();
    put(&memory, [numbered(1)]).await;
    until_all(&memory, State::Done).await;
    assert!(committed.elapsed() < SECOND, "it waited for the poll");
    relay.stop().await;
}

/// Rung for what has no room now, and freed at the same time: neither makes it deaf for the rest.
#[tokio::test(start_paused = true)]
async fn a_relay_with_a_full_destination_hears_what_others_commit() {
    let memory = store();
    let slow = |_| async {
        sleep(SECOND / 2).await;
        Outcome::delivered()
    };
    let ill = Destination::new("ill", local_delivery(slow)).concurrency(1);
    let at: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let into = at.clone();
    let well = move |_: usize| {
        into.lock().unwrap().push(Instant::now());
        async {}
    };
    let relay = Relay::builder(Arc::new(memory.clone())).poll(3600 * SECOND);
    let relay = Running::start(relay.route("ill", ill).route("order.*", local(well)));
    let mut committed = Vec::new();
    for n in 0..60 {
        put(&memory, [Message::json("ill", &n).unwrap()]).await;
        sleep(SECOND / 10).await;
        committed.push(Instant::now());
        put(&memory, [numbered(n)]).await;
        sleep(SECOND / 20).await;
        assert_eq!(at.lock().unwrap().len(), n + 1, "the message {n} waited");
    }
    until_all(&memory, State::Done).await;
    relay.stop().await;
}

/// What is behind a message of its key is free when that has ended, and nobody commits anything then.
#[tokio::test(start_paused = true)]
async fn what_waits_behind_its_key_is_looked_for_when_that_ends() {
    let memory = store();
    let slow = |_: usize| sleep(SECOND);
    let relay = Relay::builder(Arc::new(memory.clone())).poll(3600 * SECOND).batch(10);
    let relay = Running::start(relay.route("order.*", local(slow)));
    let keyed = |n| numbered(n).order_key("k");
    put(&memory, [keyed(0)]).await;
    sleep(SECOND / 2).await;
    put(&memory, (1..35).map(keyed)).await;
    let begun = Instant::now();
    until_all(&memory, State::Done).await;
    assert!(begun.elapsed() < 60 * SECOND, "it waited for the poll");
    relay.stop().await;
}

/// What there was no room for in bytes is looked for when there is.
#[tokio::test(start_paused = true)]
async fn what_was_too_large_is_looked_for_when_there_is_room() {
    let memory = store();
    let slow = |_| async {
        sleep(SECOND).await;
        Outcome::delivered()
    };
    let relay = Relay::builder(Arc::new(memory.clone()))
        .poll(3600 * SECOND)
        .max_bytes(65536);
    let relay = Running::start(relay.route("order.*", local_delivery(slow)));
    sleep(SECOND).await;
    let large = |_| Message::bytes("order.placed", "text/plain", "x".repeat(50_000));
    put(&memory, (0..10).map(large)).await;
    let begun = Instant::now();
    until_all(&memory, State::Done).await;
    assert!(begun.elapsed() < 60 * SECOND, "it waited for the poll");
    relay.stop().await;
}

/// Counts what the store is asked.
#[derive(Clone, Default)]
struct Counting(Arc<Mutex<BTreeMap<&'static str, usize>>>);

#[async_trait]
impl Hook for Counting {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        // To sleep costs a store no question.
        if !matches!(call, Call::Wake(..)) {
            *self.0.lock().unwrap().entry(call.verb()).or_default() += 1;
        }
        call.to(store).await
    }
}

/// Idle, it asks at most three questions a second, poll and all; also when there was work before.
#[tokio::test(start_paused = true)]
async fn an_idle_relay_asks_little() {
    let (memory, counting) = (store(), Counting::default());
    let wrapped = Arc::new(Wrapped::new(Arc::new(memory.clone()), counting.clone()));
    let relay = Running::start(Relay::builder(wrapped).route("order.*", local(|_: usize| async {})));
    put(&memory, (0..10).map(numbered)).await;
    until_all(&memory, State::Done).await;
    sleep(60 * SECOND).await;
    counting.0.lock().unwrap().clear();
    sleep(100 * SECOND).await;
    let asked = counting.0.lock().unwrap().clone();
    let sum: usize = asked.values().sum();
    assert!(sum <= 300, "{asked:?}");
    relay.stop().await;
}

/// A store whose claims say nothing of leases that ran out, as SQLite's.
struct Mute;

#[async_trait]
impl Hook for Mute {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        Ok(match call.to(store).await? {
            Reply::Seen(look) => Reply::Seen(Look { ran_out: None, ..look }),
            reply => reply,
        })
    }
}

/// L2: all that a relay held when it died is sent by another within its lease and a second.
async fn succeeded(wrap: impl Fn(Memory) -> Arc<dyn Store>) {
    // Whenever the other one happens to look.
    for after in 0..10 {
        succeeded_after(after * SECOND / 10, &wrap).await;
    }
}

async fn succeeded_after(wait: Duration, wrap: impl Fn(Memory) -> Arc<dyn Store>) {
    let memory = store();
    let hang = Destination::new("shop", local_delivery(|_| std::future::pending::<Outcome>())).concurrency(64);
    let dead = Running::start(Relay::builder(wrap(memory.clone())).name("dead").route("order.*", hang));
    put(&memory, (0..64).map(numbered)).await;
    let claimed = Instant::now();
    until(|| async { states(&memory).await.iter().all(|state| *state == State::Leased) }).await;
    dead.task.abort();
    sleep(wait).await;
    let began: Arc<Mutex<Vec<Instant>>> = Arc::default();
    let into = began.clone();
    let take = local_delivery(move |_| {
        into.lock().unwrap().push(Instant::now());
        async { Outcome::delivered() }
    });
    let take = Destination::new("shop", take).concurrency(64);
    let heir = Running::start(Relay::builder(wrap(memory.clone())).name("heir").route("order.*", take));
    until_all(&memory, State::Done).await;
    heir.stop().await;
    let late = began.lock().unwrap().iter().max().unwrap().duration_since(claimed);
    // The claim itself was a moment after the commit.
    assert!(late <= 16 * SECOND + SECOND / 100, "{late:?}");
}

#[tokio::test(start_paused = true)]
async fn a_full_relay_is_succeeded_within_the_second() {
    succeeded(|memory| Arc::new(memory)).await;
}

#[tokio::test(start_paused = true)]
async fn a_full_relay_is_succeeded_within_the_second_where_claims_say_nothing() {
    succeeded(|memory| Arc::new(Wrapped::new(Arc::new(memory), Mute))).await;
}
