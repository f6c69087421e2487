//! The relay on the store in memory, in a time that moves when everybody sleeps.

use posthouse::{
    Admin, AnyStore, Attempt, AttemptOutcome, Delivery, Error, Filter, Message, MessageView, OnDead, Outcome, Relay,
    RetryPolicy, State,
    relay::{Destination, local, local_delivery},
};
use posthouse_testkit::{Memory, memory};
use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinHandle, time::Instant};
use tokio_util::sync::CancellationToken;

pub(crate) const SECOND: Duration = Duration::from_secs(1);

/// A store whose clock is that of the runtime.
pub(crate) fn store() -> Memory {
    let start = Instant::now();
    Memory::with_clock(
        memory::Options::default(),
        Arc::new(move || memory::START.plus(start.elapsed())),
    )
}

pub(crate) async fn put(store: &Memory, messages: impl IntoIterator<Item = Message>) {
    let mut tx = store.begin();
    tx.enqueue_all(messages.into_iter().collect()).await.unwrap();
    tx.commit();
}

pub(crate) fn numbered(n: usize) -> Message {
    Message::json("order.placed", &n).unwrap()
}

/// A relay that runs until it is stopped.
pub(crate) struct Running {
    pub(crate) cancel: CancellationToken,
    pub(crate) task: JoinHandle<Result<(), Error>>,
}

impl Running {
    pub(crate) fn start(relay: Relay) -> Self {
        let cancel = CancellationToken::new();
        let task = tokio::spawn(relay.run(cancel.clone()));
        Self { cancel, task }
    }

    pub(crate) async fn stop(self) {
        self.cancel.cancel();
        self.task.await.unwrap().unwrap();
    }
}

pub(crate) async fn all(store: &Memory) -> Vec<MessageView> {
    let mut filter = Filter {
        limit: 1000,
        oldest_first: true,
        ..Filter::default()
    };
    let mut all = Vec::new();
    loop {
        let page = store.list(&filter).await.unwrap();
        all.extend(page.messages);
        filter.beyond = page.next;
        if filter.beyond.is_none() {
            return all;
        }
    }
}

pub(crate) async fn states(store: &Memory) -> Vec<State> {
    all(store).await.iter().map(|m| m.state).collect()
}

pub(crate) async fn until<F: Future<Output = bool>>(mut condition: impl FnMut() -> F) {
    let waited = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(3600 * SECOND, waited)
        .await
        .expect("it does not happen");
}

pub(crate) async fn until_all(store: &Memory, state: State) {
    until(|| async { states(store).await.iter().all(|s| *s == state) }).await;
}

pub(crate) async fn evidence(store: &Memory, at: usize) -> Vec<Attempt> {
    let id = all(store).await[at].id;
    store.attempts(id).await.unwrap()
}

#[tokio::test(start_paused = true)]
async fn messages_arrive_once_each() {
    let store = store();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let into = seen.clone();
    let take = move |n: usize| {
        into.lock().unwrap().push(n);
        async {}
    };
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("order.*", local(take)));
    put(&store, (0..200).map(numbered)).await;
    until_all(&store, State::Done).await;
    relay.stop().await;
    let mut seen = seen.lock().unwrap().clone();
    seen.sort_unstable();
    assert_eq!(seen, (0..200).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn a_key_is_sent_one_at_a_time_and_in_order_over_failures() {
    let store = store();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let (into, busy) = (seen.clone(), Arc::new(AtomicUsize::new(0)));
    let take = move |delivery: Delivery| {
        let (into, busy) = (into.clone(), busy.clone());
        async move {
            assert_eq!(busy.fetch_add(1, Ordering::SeqCst), 0, "two at a time");
            tokio::time::sleep(SECOND / 10).await;
            busy.fetch_sub(1, Ordering::SeqCst);
            if delivery.attempt == 1 && delivery.payload.ends_with(b"3") {
                return Err("not yet");
            }
            into.lock().unwrap().push(String::from_utf8(delivery.payload).unwrap());
            Ok(())
        }
    };
    put(&store, (0..30).map(|n| numbered(n).order_key("k"))).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", local_delivery(take)));
    until_all(&store, State::Done).await;
    relay.stop().await;
    let expected: Vec<_> = (0..30).map(|n| n.to_string()).collect();
    assert_eq!(*seen.lock().unwrap(), expected);
}

/// Retried with growing waits, then dead; each attempt with what was said.
#[tokio::test(start_paused = true)]
async fn what_fails_is_tried_again_and_ends_dead() {
    let store = store();
    put(&store, [numbered(1)]).await;
    let fail = local_delivery(|_| async { Err::<(), _>("the shop is closed") });
    let retry = RetryPolicy::table(3, [SECOND, 5 * SECOND]);
    let relay =
        Running::start(Relay::builder(Arc::new(store.clone())).route("*", Destination::new("shop", fail).retry(retry)));
    until_all(&store, State::Dead).await;
    relay.stop().await;
    let attempts = evidence(&store, 0).await;
    let waits: Vec<_> = attempts
        .windows(2)
        .map(|w| w[1].started_at.since(w[0].finished_at))
        .collect();
    assert_eq!(attempts.len(), 3);
    assert!(waits[0] >= SECOND && waits[1] >= 5 * SECOND, "{waits:?}");
    assert!(
        attempts
            .iter()
            .all(|a| a.error.as_deref() == Some("the shop is closed"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_cannot_be_read_is_rejected_unsent() {
    let store = store();
    put(&store, [Message::json("order.placed", "no number").unwrap()]).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", local(|_: u32| async {})));
    until_all(&store, State::Dead).await;
    relay.stop().await;
    let attempts = evidence(&store, 0).await;
    assert_eq!(attempts.len(), 1);
    assert_eq!(attempts[0].code.as_deref(), Some("SCHEMA.VALIDATION_FAILED"));
}

/// It may have happened; it is tried again, and nothing else stops.
#[tokio::test(start_paused = true)]
async fn a_panic_and_a_hang_are_answers_like_any_other() {
    let store = store();
    put(&store, (0..3).map(numbered)).await;
    let take = local_delivery(|delivery: Delivery| async move {
        match (&delivery.payload[..], delivery.attempt) {
            (b"1", 1) => panic!("out of paper"),
            (b"2", 1) => std::future::pending().await,
            _ => {}
        }
    });
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone())).route("*", Destination::new("shop", take).timeout(2 * SECOND)),
    );
    until_all(&store, State::Done).await;
    relay.stop().await;
    for (at, code) in [(1, "panic"), (2, "timeout")] {
        let attempts = evidence(&store, at).await;
        assert_eq!(attempts[0].code.as_deref(), Some(code));
        assert_eq!(attempts.len(), 2);
    }
}

/// A send that takes as long as it may is renewed for, and nobody else gets the message.
#[tokio::test(start_paused = true)]
async fn a_lease_is_renewed_for_as_long_as_its_send_takes() {
    let store = store();
    put(&store, (0..40).map(numbered)).await;
    let slow = || local_delivery(|_| async { tokio::time::sleep(9 * SECOND).await });
    let relay = |name: &str| {
        let to = Destination::new("shop", slow()).timeout(10 * SECOND).concurrency(2);
        Running::start(
            Relay::builder(Arc::new(store.clone()))
                .name(name)
                .lease(12 * SECOND)
                .route("*", to),
        )
    };
    let (one, two) = (relay("one"), relay("two"));
    until_all(&store, State::Done).await;
    one.stop().await;
    two.stop().await;
    for message in all(&store).await {
        assert_eq!((message.attempts, message.state), (1, State::Done));
    }
}

/// The last of a key's run waits far longer than a lease lasts, and is granted once.
#[tokio::test(start_paused = true)]
async fn what_waits_for_its_turn_stays_held() {
    let store = store();
    put(&store, (0..6).map(|n| numbered(n).order_key("k"))).await;
    let slow = local_delivery(|_| async { tokio::time::sleep(9 * SECOND).await });
    let shop = Destination::new("shop", slow).timeout(10 * SECOND);
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .lease(12 * SECOND)
            .route("*", shop),
    );
    until_all(&store, State::Done).await;
    relay.stop().await;
    let grants: Vec<_> = all(&store).await.iter().map(|m| m.epoch).collect();
    assert_eq!(grants, [1; 6]);
}

/// Its leases run out, and another takes over.
#[tokio::test(start_paused = true)]
async fn a_relay_that_dies_is_succeeded() {
    let store = store();
    put(&store, (0..5).map(numbered)).await;
    let hang = local_delivery(|_| std::future::pending::<()>());
    let dying = Running::start(Relay::builder(Arc::new(store.clone())).name("dying").route("*", hang));
    until(|| async { states(&store).await.iter().all(|s| *s == State::Leased) }).await;
    dying.task.abort();
    let heir = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .name("heir")
            .route("*", local(|_: usize| async {})),
    );
    until_all(&store, State::Done).await;
    heir.stop().await;
    for at in 0..5 {
        let outcomes: Vec<_> = evidence(&store, at)
            .await
            .iter()
            .map(|a| (a.worker.clone(), a.outcome))
            .collect();
        let expected = [
            ("dying", AttemptOutcome::LeaseExpired),
            ("heir", AttemptOutcome::Delivered),
        ];
        assert_eq!(outcomes, expected.map(|(worker, outcome)| (worker.to_owned(), outcome)));
    }
}

/// Whoever drops the relay's future, as a runtime does that is shut down, ends its sends too, and what waits for a turn.
#[tokio::test(start_paused = true)]
async fn a_relay_that_is_dropped_sends_no_more() {
    let store = store();
    put(&store, (0..25).map(numbered)).await;
    let under_way = Arc::new(());
    let held = under_way.clone();
    let hang = local_delivery(move |_| {
        let held = held.clone();
        async move {
            std::future::pending::<()>().await;
            drop(held);
        }
    });
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", hang));
    until(|| async { Arc::strong_count(&under_way) > 16 }).await;
    relay.task.abort();
    tokio::time::sleep(SECOND).await;
    assert_eq!(Arc::strong_count(&under_way), 1);
}

/// What waits goes back uncounted; what is under way has its grace, and then may have happened.
#[tokio::test(start_paused = true)]
async fn a_relay_that_is_stopped_holds_nothing() {
    let store = store();
    put(&store, (0..10).map(numbered)).await;
    let hang = Destination::new("shop", local_delivery(|_| std::future::pending::<()>())).concurrency(2);
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .grace(2 * SECOND)
            .route("*", hang),
    );
    let leased = |states: Vec<State>| states.iter().filter(|s| **s == State::Leased).count();
    until(|| async { leased(states(&store).await) >= 2 }).await;
    relay.stop().await;
    assert!(states(&store).await.iter().all(|s| *s == State::Pending));
    let counted: Vec<_> = all(&store)
        .await
        .iter()
        .filter(|m| m.attempts > 0)
        .map(|m| m.last_code.clone())
        .collect();
    assert_eq!(counted, vec![Some("shutdown".to_owned()); 2]);
}

/// What waits in its key's run goes back at once, not when the send before it has ended.
#[tokio::test(start_paused = true)]
async fn a_run_goes_back_when_its_relay_stops() {
    let store = store();
    put(&store, (0..5).map(|n| numbered(n).order_key("k"))).await;
    let hang = local_delivery(|_| std::future::pending::<()>());
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", hang));
    until(|| async { states(&store).await.iter().all(|s| *s == State::Leased) }).await;
    relay.cancel.cancel();
    tokio::time::sleep(SECOND).await;
    let held = states(&store).await.iter().filter(|s| **s == State::Leased).count();
    assert_eq!(held, 1);
    relay.stop().await;
}

/// One that hangs takes its own places only.
#[tokio::test(start_paused = true)]
async fn a_destination_that_hangs_delays_no_other() {
    let store = store();
    let hang = Destination::new("ill", local_delivery(|_| std::future::pending::<()>())).concurrency(4);
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .concurrency(16)
            .batch(16)
            .route("ill.*", hang)
            .route("*", local(|_: usize| async {})),
    );
    put(&store, (0..500).map(|n| Message::json("ill.x", &n).unwrap())).await;
    let start = Instant::now();
    put(&store, (0..100).map(numbered)).await;
    until(|| async {
        all(&store)
            .await
            .iter()
            .filter(|m| m.topic == "order.placed")
            .all(|m| m.state == State::Done)
    })
    .await;
    assert!(start.elapsed() < 5 * SECOND, "{:?}", start.elapsed());
    relay.stop().await;
}

/// What nobody here has a route for is left alone, uncounted.
#[tokio::test(start_paused = true)]
async fn a_topic_without_a_route_is_left() {
    let store = store();
    put(&store, [Message::json("other", &1).unwrap(), numbered(2)]).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("order.*", local(|_: usize| async {})));
    until(|| async { states(&store).await[1] == State::Done }).await;
    tokio::time::sleep(60 * SECOND).await;
    relay.stop().await;
    let other = all(&store).await.remove(0);
    assert_eq!((other.state, other.attempts), (State::Pending, 0));
    assert!(other.epoch < 10, "it was claimed again and again: {}", other.epoch);
}

#[tokio::test(start_paused = true)]
async fn a_paused_destination_waits_until_it_is_resumed() {
    let store = store();
    let admin: &dyn Admin = &store;
    admin.pause("shop", "anna", "moves").await.unwrap();
    put(&store, (0..5).map(numbered)).await;
    let shop = Destination::new("shop", local(|_: usize| async {}));
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", shop));
    tokio::time::sleep(60 * SECOND).await;
    assert!(
        all(&store)
            .await
            .iter()
            .all(|m| m.state == State::Pending && m.attempts == 0)
    );
    admin.resume("shop", "anna", "moved").await.unwrap();
    until_all(&store, State::Done).await;
    relay.stop().await;
}

#[tokio::test]
async fn settings_that_make_no_sense_are_refused_by_name() {
    let store = || Arc::new(store());
    let to = || Destination::new("shop", local(|_: usize| async {}));
    let cases = [
        (
            "timeout",
            Relay::builder(store()).lease(SECOND).route("*", to().timeout(SECOND)),
        ),
        ("concurrency", Relay::builder(store()).route("*", to().concurrency(0))),
        ("concurrency", Relay::builder(store()).concurrency(0).route("*", to())),
        ("topic", Relay::builder(store()).route("", to())),
        ("relay", Relay::builder(store()).name("")),
        ("lease", Relay::builder(store()).lease(Duration::ZERO)),
    ];
    for (field, relay) in cases {
        let refused = relay.run(CancellationToken::new()).await;
        assert!(
            matches!(&refused, Err(Error::Invalid(e)) if e.field == field),
            "{field}: {refused:?}"
        );
    }
    let outcome = Outcome::delivered();
    assert_eq!(posthouse::relay::IntoOutcome::into_outcome(()), outcome);
}

/// Two relays on a real store, in real time: everything once, keys in order.
async fn two_relays_deliver_everything_once(url: &str) {
    AnyStore::migrate(url).await.unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let mut relays = Vec::new();
    let any = AnyStore::open(url).await.unwrap();
    let messages = (0..400).map(|n| match n % 2 {
        0 => numbered(n).order_key((n % 10).to_string()),
        _ => numbered(n),
    });
    any.enqueue(messages.collect()).await.unwrap();
    for name in ["one", "two"] {
        let into = seen.clone();
        let take = move |n: usize| {
            into.lock().unwrap().push(n);
            async {}
        };
        let store = AnyStore::open(url).await.unwrap().store();
        relays.push(Running::start(
            Relay::builder(store).name(name).route("order.*", local(take)),
        ));
    }
    let filter = Filter {
        limit: 1000,
        state: Some(State::Done),
        ..Filter::default()
    };
    while any.admin().list(&filter).await.unwrap().messages.len() < 400 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for relay in relays {
        relay.stop().await;
    }
    let seen = seen.lock().unwrap().clone();
    for key in [0, 2, 4, 6, 8] {
        let of_key: Vec<_> = seen.iter().copied().filter(|n| n % 10 == key).collect();
        assert!(of_key.is_sorted(), "{of_key:?}");
    }
    let mut once = seen;
    once.sort_unstable();
    assert_eq!(once, (0..400).collect::<Vec<_>>());
    assert!(
        any.admin().relays().await.unwrap().iter().all(|relay| !relay.live),
        "they have left"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    two_relays_deliver_everything_once(&format!("sqlite://{}", folder.path().join("shop.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_relays_on_postgresql() {
    let server = std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
    let schema = format!("r_{}", uuid::Uuid::new_v4().simple());
    two_relays_deliver_everything_once(&format!("{server}?schema={schema}")).await;
}

/// What the route says of a death stands above what the message was enqueued with, in both directions.
#[tokio::test(start_paused = true)]
async fn a_route_says_whether_a_death_blocks_its_key() {
    for (enqueued, route, behind) in [
        (OnDead::Pass, OnDead::Block, State::Pending),
        (OnDead::Block, OnDead::Pass, State::Done),
    ] {
        let store = store();
        put(&store, (0..2).map(|n| numbered(n).order_key("k").on_dead(enqueued))).await;
        let take = |delivery: Delivery| async move {
            if delivery.payload == b"0" {
                return Outcome::reject("no", "never");
            }
            Outcome::delivered()
        };
        let to = Destination::new("shop", local_delivery(take)).on_dead(route);
        let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", to));
        tokio::time::sleep(10 * SECOND).await;
        relay.stop().await;
        assert_eq!(states(&store).await, [State::Dead, behind]);
    }
}
