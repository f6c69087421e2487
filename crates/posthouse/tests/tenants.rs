//! How much of one tenant a relay has in flight; on the store in memory, in a time that moves when everybody sleeps.

use posthouse::{
    Admin, Cause, Delivery, Relay, State,
    relay::{Destination, local_delivery},
};
use posthouse_testkit::Memory;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::time::sleep;

use crate::relay::{Running, SECOND, all, numbered, put, store, until, until_all};

/// What a destination that takes its time sees: how much of each tenant at once, now and at most.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<String, (u32, u32)>>>);

impl Seen {
    fn destination(&self, takes: Duration) -> Destination {
        let seen = self.clone();
        let take = move |delivery: Delivery| {
            let seen = seen.clone();
            async move {
                {
                    let mut seen = seen.0.lock().unwrap();
                    let (now, most) = seen.entry(delivery.tenant.clone()).or_default();
                    *now += 1;
                    *most = (*most).max(*now);
                }
                sleep(takes).await;
                seen.0.lock().unwrap().get_mut(&delivery.tenant).unwrap().0 -= 1;
            }
        };
        Destination::new("shop", local_delivery(take)).concurrency(500)
    }

    fn most(&self, tenant: &str) -> u32 {
        self.0.lock().unwrap().get(tenant).map_or(0, |(_, most)| *most)
    }
}

fn relay(store: &Memory) -> Relay {
    Relay::builder(Arc::new(store.clone())).concurrency(200).batch(50)
}

async fn grants(store: &Memory, tenant: &str) -> u64 {
    let of = all(store).await.into_iter().filter(|m| m.tenant == tenant);
    of.map(|m| m.epoch).sum()
}

#[tokio::test(start_paused = true)]
async fn a_tenant_has_no_more_in_flight_than_its_limit() {
    let (store, seen) = (store(), Seen::default());
    for tenant in ["a", "b", "c"] {
        put(&store, (0..60).map(|n| numbered(n).tenant(tenant))).await;
        put(
            &store,
            (0..60).map(|n| numbered(n).tenant(tenant).order_key(format!("k{}", n % 6))),
        )
        .await;
    }
    let relay = relay(&store)
        .tenant_limit("a", 3)
        .tenant_limit("b", 8)
        .tenants_limit(20);
    let relay = Running::start(relay.route("*", seen.destination(SECOND / 10)));
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(["a", "b"].map(|tenant| seen.most(tenant)), [3, 8]);
    assert!((10..=20).contains(&seen.most("c")), "{}", seen.most("c"));
    for tenant in ["a", "b", "c"] {
        let grants = grants(&store, tenant).await;
        assert!(grants < 120 + 60, "{grants} grants for 120 messages of {tenant}");
    }
}

/// Without that, each message that waits would be granted and given back at every round, and die of it after a hundred.
#[tokio::test(start_paused = true)]
async fn what_is_over_the_limit_goes_back_once() {
    let (store, seen) = (store(), Seen::default());
    put(&store, (0..300).map(|n| numbered(n).tenant("loud"))).await;
    let relay = Running::start(
        relay(&store)
            .tenant_limit("loud", 4)
            .route("*", seen.destination(SECOND)),
    );
    until_all(&store, State::Done).await;
    relay.stop().await;
    let grants = grants(&store, "loud").await;
    assert!(grants <= 300 + 50, "{grants} grants for 300 messages");
    assert_eq!(seen.most("loud"), 4);
}

/// L4. One has a huge backlog and is at its limit; the other's message goes out with the next round.
#[tokio::test(start_paused = true)]
async fn a_tenant_at_its_limit_holds_up_nobody() {
    let (store, seen) = (store(), Seen::default());
    put(&store, (0..900).map(|n| numbered(n).tenant("loud"))).await;
    // Longer than the test: nothing of the flood ever ends.
    let relay = relay(&store)
        .concurrency(10)
        .tenant_limit("loud", 5)
        .poll(3600 * SECOND);
    let route = seen.destination(3600 * SECOND).timeout(3 * 3600 * SECOND);
    let relay = Running::start(relay.lease(6 * 3600 * SECOND).route("*", route));
    until(|| async { seen.most("loud") == 5 }).await;
    for n in 0..5 {
        let began = tokio::time::Instant::now();
        put(&store, [numbered(0).tenant(format!("quiet{n}"))]).await;
        until(|| async { seen.most(&format!("quiet{n}")) == 1 }).await;
        assert!(began.elapsed() < SECOND, "{:?}", began.elapsed());
    }
    assert_eq!(seen.most("loud"), 5);
    relay.task.abort();
}

/// Those that are at their limit and those that have none share what room there is.
#[tokio::test(start_paused = true)]
async fn nobody_starves_when_there_is_room_for_few() {
    let (store, seen) = (store(), Seen::default());
    for tenant in ["a", "b", "c", "free"] {
        put(&store, (0..200).map(|n| numbered(n).tenant(tenant))).await;
    }
    let relay = relay(&store)
        .concurrency(6)
        .tenant_limit("a", 4)
        .tenant_limit("b", 4)
        .tenant_limit("c", 4);
    let relay = Running::start(relay.route("*", seen.destination(SECOND / 10)));
    let done = |tenant: &'static str| {
        let store = store.clone();
        async move {
            let all = all(&store).await;
            all.iter()
                .filter(|m| m.tenant == tenant && m.state == State::Done)
                .count()
        }
    };
    until(|| async { done("a").await + done("b").await + done("c").await + done("free").await >= 200 }).await;
    for tenant in ["a", "b", "c", "free"] {
        assert!(done(tenant).await >= 20, "{} of {tenant}", done(tenant).await);
    }
    until_all(&store, State::Done).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn explain_tells_of_a_tenant_at_its_limit_and_it_can_be_lifted() {
    let (store, seen) = (store(), Seen::default());
    put(&store, (0..30).map(|n| numbered(n).tenant("loud"))).await;
    let relay = relay(&store).tenants_limit(2).route("*", seen.destination(5 * SECOND));
    let control = relay.control();
    let relay = Running::start(relay);
    sleep(2 * SECOND).await;
    let waits = all(&store)
        .await
        .into_iter()
        .find(|m| m.state == State::Pending)
        .unwrap();
    let causes = store.explain(waits.id).await.unwrap();
    assert!(
        matches!(&causes[..], [Cause::TenantLimited { tenant }] if tenant == "loud"),
        "{causes:?}"
    );
    assert!(control.replace_tenant_limits([], Some(0)).is_err());
    control.replace_tenant_limits([], None).unwrap();
    until_all(&store, State::Done).await;
    assert!(seen.most("loud") > 20, "{}", seen.most("loud"));
    relay.stop().await;
}

#[tokio::test]
async fn a_limit_of_none_is_refused() {
    for relay in [relay(&store()).tenant_limit("a", 0), relay(&store()).tenants_limit(0)] {
        let refused = relay.run(tokio_util::sync::CancellationToken::new()).await.unwrap_err();
        assert!(refused.to_string().contains("at least 1"), "{refused}");
    }
}
