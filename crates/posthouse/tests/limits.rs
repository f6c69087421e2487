//! What a relay takes upon itself and what it spares its destinations: breaker, rate, room, weights; on the store in memory, in a
//! time that moves when everybody sleeps.

use posthouse::{
    Admin, BreakerPolicy, Cause, Delivery, Message, Outcome, Relay, RetryPolicy, State,
    relay::{Destination, local_delivery},
};
use posthouse_testkit::Memory;
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};
use tokio::time::{Instant, sleep};

use crate::relay::{Running, SECOND, all, numbered, put, states, store, until, until_all};

fn retry(code: &str) -> Outcome {
    Outcome::Retry {
        after: None,
        code: code.into(),
        error: "not now".into(),
    }
}

/// A destination that can be ill, and counts what it is sent.
#[derive(Clone)]
struct Shop {
    name: &'static str,
    ill: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    at: Arc<Mutex<Vec<Instant>>>,
}

impl Default for Shop {
    fn default() -> Self {
        Self {
            name: "shop",
            ill: Arc::default(),
            asked: Arc::default(),
            at: Arc::default(),
        }
    }
}

impl Shop {
    fn destination(&self) -> Destination {
        let shop = self.clone();
        let take = move |_: Delivery| {
            let shop = shop.clone();
            async move {
                shop.asked.fetch_add(1, Ordering::SeqCst);
                shop.at.lock().unwrap().push(Instant::now());
                sleep(SECOND / 100).await;
                if shop.ill.load(Ordering::SeqCst) {
                    return retry("http_503");
                }
                Outcome::delivered()
            }
        };
        Destination::new(self.name, local_delivery(take))
    }

    fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }
}

/// Hours of outage: a destination that is down is asked now and then, whatever waits for it; nothing of what waits is used up by
/// that, and when it is back everything goes out.
#[tokio::test(start_paused = true)]
async fn a_destination_that_is_down_is_spared_and_nothing_dies_of_it() {
    let (store, shop) = (store(), Shop::default());
    shop.ill.store(true, Ordering::SeqCst);
    put(&store, (0..60).map(numbered)).await;
    put(&store, (0..20).map(|n| numbered(n).order_key(format!("k{}", n % 5)))).await;
    let to = shop.destination().retry(RetryPolicy {
        max_attempts: Some(1000),
        ..RetryPolicy::default()
    });
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .seed(7)
            .poll(10 * SECOND)
            .route("*", to),
    );
    sleep(60 * SECOND).await;
    let before = shop.asked();
    sleep(4 * 3600 * SECOND).await;
    let trials = shop.asked() - before;
    // One trial for each minute or so that it is left alone, and not one for each message.
    assert!((200..300).contains(&trials), "{trials} trials in four hours");
    assert!(
        states(&store)
            .await
            .iter()
            .all(|s| matches!(s, State::Pending | State::Leased))
    );
    let used: u32 = all(&store).await.iter().map(|m| m.attempts).sum();
    assert_eq!(used as usize, shop.asked(), "only what was sent counts");
    shop.ill.store(false, Ordering::SeqCst);
    until_all(&store, State::Done).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn explain_tells_of_an_open_breaker() {
    let (store, shop) = (store(), Shop::default());
    shop.ill.store(true, Ordering::SeqCst);
    let to = shop.destination().breaker(BreakerPolicy {
        failures: 1,
        open: 600 * SECOND,
        cap: 600 * SECOND,
    });
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", to));
    put(&store, [numbered(1)]).await;
    until(|| async { all(&store).await[0].last_code.is_some() }).await;
    put(&store, [numbered(2)]).await;
    sleep(2 * SECOND).await;
    let second = all(&store).await[1].id;
    let cause = store.explain(second).await.unwrap();
    assert!(matches!(cause[..], [Cause::BreakerOpen { .. }]), "{cause:?}");
    assert_eq!(shop.asked(), 1);
    relay.stop().await;
}

/// What waits when a breaker opens is not sent to one that is down: it goes back.
#[tokio::test(start_paused = true)]
async fn nobody_waits_at_a_destination_that_is_left_alone() {
    let (store, shop) = (store(), Shop::default());
    shop.ill.store(true, Ordering::SeqCst);
    put(&store, (0..30).map(numbered)).await;
    let to = shop.destination().concurrency(1).breaker(BreakerPolicy {
        failures: 1,
        open: 600 * SECOND,
        cap: 600 * SECOND,
    });
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", to));
    sleep(60 * SECOND).await;
    assert_eq!(shop.asked(), 1);
    assert!(states(&store).await.iter().all(|state| *state == State::Pending));
    relay.stop().await;
}

/// A refusal is no illness.
#[tokio::test(start_paused = true)]
async fn what_is_rejected_opens_no_breaker() {
    let store = store();
    put(&store, (0..50).map(numbered)).await;
    let reject = |_| async {
        Outcome::Reject {
            code: "http_422".into(),
            error: "no".into(),
        }
    };
    let to = Destination::new("shop", local_delivery(reject));
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("*", to));
    until_all(&store, State::Dead).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_rate_is_kept_and_told() {
    let (store, shop) = (store(), Shop::default());
    put(&store, (0..60).map(numbered)).await;
    put(&store, (0..60).map(|n| Message::json("other", &n).unwrap())).await;
    let free = Shop {
        name: "free",
        ..Shop::default()
    };
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .route("order.*", shop.destination().rate("10/s".parse().unwrap()))
            .route("*", free.destination().concurrency(64)),
    );
    sleep(2 * SECOND).await;
    assert_eq!(free.asked(), 60, "others are not held up");
    let waiting = all(&store)
        .await
        .into_iter()
        .find(|m| m.state == State::Pending)
        .unwrap();
    let cause = store.explain(waiting.id).await.unwrap();
    assert!(matches!(cause[..], [Cause::RateLimited { .. }]), "{cause:?}");
    until_all(&store, State::Done).await;
    relay.stop().await;
    let at = shop.at.lock().unwrap().clone();
    for (n, first) in at.iter().enumerate() {
        let within = at[n..].iter().take_while(|t| **t < *first + SECOND).count();
        assert!(within <= 11, "{within} within a second");
    }
    assert!(all(&store).await.iter().all(|m| m.attempts == 1));
}

/// A slow destination with a long backlog: its messages are not claimed and given back over and over.
#[tokio::test(start_paused = true)]
async fn a_slow_destination_is_asked_for_in_measure() {
    let (store, shop) = (store(), Shop::default());
    put(&store, (0..600).map(numbered)).await;
    let relay = Running::start(
        Relay::builder(Arc::new(store.clone()))
            .concurrency(200)
            .batch(100)
            .route("*", shop.destination().concurrency(3)),
    );
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(shop.asked(), 600);
    let grants: u64 = all(&store).await.iter().map(|m| m.epoch).sum();
    assert!(grants < 600 + 150, "{grants} grants for 600 messages");
}

/// A message that kills its relay is ended, and takes no other with it.
#[tokio::test(start_paused = true)]
async fn a_message_that_kills_its_relay_dies_alone() {
    let store = store();
    put(&store, (0..100).map(numbered)).await;
    for crash in 0..200 {
        let killed = Arc::new(tokio::sync::Notify::new());
        let kill = killed.clone();
        let take = move |delivery: Delivery| {
            let kill = kill.clone();
            async move {
                if delivery.payload == b"42" {
                    kill.notify_one();
                    std::future::pending::<()>().await;
                }
            }
        };
        let relay = Running::start(
            Relay::builder(Arc::new(store.clone()))
                .name(format!("relay-{crash}"))
                .route("*", Destination::new("shop", local_delivery(take))),
        );
        let over = until(|| async {
            states(&store)
                .await
                .iter()
                .all(|s| !matches!(s, State::Pending | State::Leased))
        });
        tokio::select! {
            () = killed.notified() => relay.task.abort(),
            () = over => {
                relay.stop().await;
                break;
            }
        }
    }
    let ended = all(&store).await;
    let dead: Vec<_> = ended.iter().filter(|m| m.state == State::Dead).collect();
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].id, ended[42].id);
    assert_eq!(ended.iter().filter(|m| m.state == State::Done).count(), 99);
}

#[tokio::test(start_paused = true)]
async fn routes_are_replaced_while_it_runs() {
    let (store, old, new) = (store(), Shop::default(), Shop::default());
    let relay = Relay::builder(Arc::new(store.clone())).route("order.*", old.destination());
    let control = relay.control();
    let relay = Running::start(relay);
    put(&store, [numbered(1), Message::json("bill.sent", &1).unwrap()]).await;
    until(|| async { states(&store).await.contains(&State::Done) }).await;
    sleep(5 * SECOND).await;
    assert_eq!(states(&store).await, [State::Done, State::Pending]);
    let bad = control.replace_routes(vec![("*".into(), new.destination().timeout(3600 * SECOND))]);
    assert!(bad.unwrap_err().to_string().contains("timeout"));
    put(&store, [numbered(2)]).await;
    until(|| async { old.asked() == 2 }).await;
    control.replace_routes(vec![("*".into(), new.destination())]).unwrap();
    until_all(&store, State::Done).await;
    put(&store, [numbered(3)]).await;
    until_all(&store, State::Done).await;
    assert_eq!((old.asked(), new.asked()), (2, 2));
    relay.stop().await;
}

/// Two names for two things is an error; two routes to one thing share its limits.
#[tokio::test(start_paused = true)]
async fn a_destination_is_shared_by_its_clones() {
    let (store, shop) = (store(), Shop::default());
    let two = Relay::builder(Arc::new(store.clone()))
        .route("a", shop.destination())
        .route("b", shop.destination());
    let refused = two.run(tokio_util::sync::CancellationToken::new()).await.unwrap_err();
    assert!(refused.to_string().contains("two destinations"), "{refused}");
    let one = shop.destination().rate("1/s".parse().unwrap());
    put(
        &store,
        ["a", "b"].repeat(5).iter().map(|t| Message::json(*t, &1).unwrap()),
    )
    .await;
    let relay = Relay::builder(Arc::new(store.clone()))
        .route("a", one.clone())
        .route("b", one);
    let relay = Running::start(relay);
    let began = Instant::now();
    until_all(&store, State::Done).await;
    assert!(began.elapsed() >= 8 * SECOND);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_relay_serves_two_databases_within_one_limit() {
    let (one, two) = (store(), store());
    let busy = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let seen = busy.clone();
    let take = move |_: Delivery| {
        let seen = seen.clone();
        async move {
            let now = seen.0.fetch_add(1, Ordering::SeqCst) + 1;
            seen.1.fetch_max(now, Ordering::SeqCst);
            sleep(SECOND).await;
            seen.0.fetch_sub(1, Ordering::SeqCst);
        }
    };
    for store in [&one, &two] {
        put(store, (0..50).map(numbered)).await;
    }
    let relay = Relay::builder(Arc::new(one.clone()))
        .also(Arc::new(two.clone()))
        .route("*", Destination::new("shop", local_delivery(take)).concurrency(5));
    let relay = Running::start(relay);
    for store in [&one, &two] {
        until_all(store, State::Done).await;
    }
    relay.stop().await;
    assert_eq!(busy.1.load(Ordering::SeqCst), 5);
}

async fn done_of(store: &Memory, tenant: &str) -> usize {
    let all = all(store).await;
    all.iter()
        .filter(|m| m.tenant == tenant && m.state == State::Done)
        .count()
}

/// One has a flood, the other a message: it goes out with the next round. And weights are kept while there is more than enough.
#[tokio::test(start_paused = true)]
async fn tenants_take_turns_by_their_weight() {
    let (store, shop) = (store(), Shop::default());
    put(&store, (0..400).map(|n| numbered(n).tenant("heavy"))).await;
    put(&store, (0..400).map(|n| numbered(n).tenant("light"))).await;
    let relay = Relay::builder(Arc::new(store.clone()))
        .concurrency(40)
        .batch(20)
        .weight("heavy", 3)
        .route("*", shop.destination().concurrency(40));
    let relay = Running::start(relay);
    until(|| async { done_of(&store, "heavy").await >= 200 }).await;
    let light = done_of(&store, "light").await;
    assert!(
        (50..100).contains(&light),
        "{light} of the light beside 200 of the heavy"
    );
    put(&store, [numbered(0).tenant("small")]).await;
    let before = all(&store).await.iter().filter(|m| m.state == State::Done).count();
    until(|| async { done_of(&store, "small").await == 1 }).await;
    let after = all(&store).await.iter().filter(|m| m.state == State::Done).count();
    assert!(after - before <= 120, "{} went before it", after - before);
    relay.stop().await;
}

/// Whatever the backlog, no more is in memory than was allowed.
#[tokio::test(start_paused = true)]
async fn bytes_in_flight_are_bounded() {
    let store = store();
    put(
        &store,
        (0..100).map(|_| Message::bytes("big", "text/plain", vec![7; 1000])),
    )
    .await;
    let bytes = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
    let seen = bytes.clone();
    let take = move |delivery: Delivery| {
        let seen = seen.clone();
        async move {
            let size = delivery.payload.len();
            let now = seen.0.fetch_add(size, Ordering::SeqCst) + size;
            seen.1.fetch_max(now, Ordering::SeqCst);
            sleep(SECOND).await;
            seen.0.fetch_sub(size, Ordering::SeqCst);
        }
    };
    let relay = Relay::builder(Arc::new(store.clone()))
        .max_bytes(5500)
        .route("*", Destination::new("disk", local_delivery(take)).concurrency(64));
    let relay = Running::start(relay);
    until_all(&store, State::Done).await;
    relay.stop().await;
    // One may be larger than the room that is left.
    assert_eq!(bytes.1.load(Ordering::SeqCst), 6000);
}

/// 410: the message is refused, and nobody sends anything more there until somebody says so.
#[tokio::test(start_paused = true)]
async fn a_destination_that_is_gone_is_paused() {
    let store = store();
    put(&store, (0..20).map(numbered)).await;
    let gone = Arc::new(AtomicBool::new(true));
    let says = gone.clone();
    let take = move |_: Delivery| {
        let gone = says.load(Ordering::SeqCst);
        async move {
            if !gone {
                return Outcome::delivered();
            }
            Outcome::Reject {
                code: Outcome::GONE.into(),
                error: "410 Gone".into(),
            }
        }
    };
    let to = Destination::new("shop", local_delivery(take)).concurrency(1);
    let relay = |name: &str| {
        Relay::builder(Arc::new(store.clone()))
            .name(name)
            .route("*", to.clone())
    };
    let (one, two) = (Running::start(relay("one")), Running::start(relay("two")));
    sleep(600 * SECOND).await;
    let dead = all(&store).await.iter().filter(|m| m.state == State::Dead).count();
    assert!((1..=2).contains(&dead), "{dead} are dead of it");
    let waiting = all(&store)
        .await
        .into_iter()
        .find(|m| m.state == State::Pending)
        .unwrap();
    let causes = store.explain(waiting.id).await.unwrap();
    assert!(matches!(&causes[..], [Cause::Paused { .. }]), "{causes:?}");
    gone.store(false, Ordering::SeqCst);
    store.resume("shop", "anna", "it is back").await.unwrap();
    until(|| async {
        states(&store)
            .await
            .iter()
            .all(|s| matches!(s, State::Done | State::Dead))
    })
    .await;
    one.stop().await;
    two.stop().await;
    assert_eq!(
        all(&store).await.iter().filter(|m| m.state == State::Dead).count(),
        dead
    );
}
