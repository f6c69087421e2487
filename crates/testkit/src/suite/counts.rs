//! How many messages there are in each state, and since when the oldest waits.

use posthouse_core::{Claim, Count, Counts, Error, OnDead, admin::COUNTED_AT_MOST};

use super::tools::*;
use crate::Fixture;

/// The counts of a small store, which are all exact: ready, scheduled, leased, done, dead, quarantined.
async fn counted(fx: &dyn Fixture) -> [u64; 6] {
    let c = counts(fx).await;
    let all = [c.ready, c.scheduled, c.leased, c.done, c.dead, c.quarantined];
    assert!(
        all.iter().chain([&c.expired, &c.blocked_keys]).all(|count| count.exact),
        "{c:?}"
    );
    assert_eq!(c.now, Some(fx.now().await));
    all.map(|count| count.value)
}

async fn counts(fx: &dyn Fixture) -> Counts {
    fx.admin().await.counts().await.unwrap()
}

/// Nothing is there, and that is known.
pub async fn an_empty_store_counts_nothing(fx: &dyn Fixture) {
    assert_eq!(counted(fx).await, [0; 6]);
    let counts = counts(fx).await;
    assert_eq!((counts.expired.value, counts.blocked_keys.value), (0, 0));
    assert_eq!(counts.oldest_due, None);
}

/// One message on its way through every state, each step counted.
pub async fn a_message_is_counted_where_it_stands(fx: &dyn Fixture) {
    let (store, admin) = (fx.store().await, fx.admin().await);
    for message in [message("x"), keyed("k", "x")] {
        let before = counted(fx).await;
        let assert_at = |at: usize, now: [u64; 6]| {
            let mut expected = before;
            expected[at] += 1;
            assert_eq!(now, expected);
        };
        let id = put(fx, message.delay(SECOND)).await;
        assert_at(1, counted(fx).await);
        fx.advance(SECOND).await;
        assert_at(0, counted(fx).await);
        let lease = claim_one(&*store, "w1").await.lease;
        assert_at(2, counted(fx).await);
        settle_all(&*store, &[failed(&lease, 5)]).await;
        assert_at(1, counted(fx).await);
        fx.advance(SECOND * 10).await;
        let lease = claim_one(&*store, "w1").await.lease;
        settle_all(&*store, &[rejected(&lease)]).await;
        assert_at(4, counted(fx).await);
        admin.quarantine(id, "op", "hold").await.unwrap();
        assert_at(5, counted(fx).await);
        admin.replay(id, "op", "again", None).await.unwrap();
        assert_at(0, counted(fx).await);
        let lease = claim_one(&*store, "w1").await.lease;
        settle_all(&*store, &[released(&lease)]).await;
        assert_at(0, counted(fx).await);
        let lease = claim_one(&*store, "w1").await.lease;
        settle_all(&*store, &[delivered(&lease)]).await;
        assert_at(3, counted(fx).await);
    }
}

/// Many in every state at once, and after each has left it.
pub async fn messages_in_every_state_are_counted(fx: &dyn Fixture) {
    let (store, admin) = (fx.store().await, fx.admin().await);
    for n in 0..4 {
        put_done(fx, message(&n.to_string())).await;
    }
    let dead = [
        put_dead(fx, message("d")).await,
        put_dead(fx, message("e")).await,
        put_dead(fx, keyed("d", "f")).await,
    ];
    let held = put(fx, message("held")).await;
    admin.quarantine(held, "op", "hold").await.unwrap();
    put_all(fx, vec![message("leased").tenant("acme"), keyed("l", "leased")]).await;
    let run = claim(&*store, "w1", 10).await;
    let waiting = [
        message("1"),
        message("2").tenant("acme"),
        keyed("k", "3"),
        keyed("k", "4"),
        keyed("l", "behind what is leased"),
        message("5").delay(DAY),
        keyed("k", "6").delay(DAY),
        keyed("m", "7").delay(DAY),
    ];
    let waiting = put_all(fx, waiting.to_vec()).await;
    assert_eq!(counted(fx).await, [5, 3, 2, 4, 3, 1]);
    admin.resolve(dead[0], "op", "seen", "").await.unwrap();
    admin.discard(dead[1], "op", "gone").await.unwrap();
    admin.cancel(held, "op", "given up").await.unwrap();
    admin.quarantine(waiting[0], "op", "hold").await.unwrap();
    deliver(&*store, &run).await;
    assert_eq!(counted(fx).await, [4, 3, 0, 7, 2, 1]);
    fx.advance(DAY).await;
    assert_eq!(counted(fx).await, [7, 0, 0, 7, 2, 1]);
    fx.advance(DAY).await;
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().messages(), 9);
    assert_eq!(counted(fx).await, [7, 0, 0, 0, 0, 1]);
}

/// What the last claimer left for its topic waits all the same.
pub async fn what_is_left_for_its_topic_is_ready(fx: &dyn Fixture) {
    put_all(fx, vec![message("1"), message("2"), keyed("k", "3")]).await;
    let left = Claim::new("w1", 10, LEASE).not_topic("orders");
    assert!(fx.store().await.claim(&left).await.unwrap().is_empty());
    let due = fx.now().await;
    fx.advance(SECOND).await;
    assert_eq!(counted(fx).await, [3, 0, 0, 0, 0, 0]);
    assert_eq!(counts(fx).await.oldest_due, Some(due));
}

/// A lease that ran out is in flight until somebody takes it back.
pub async fn leases_that_ran_out_are_counted(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 3]).await;
    let store = fx.store().await;
    claim(&*store, "w1", 2).await;
    fx.advance(LEASE).await;
    claim(&*store, "w1", 1).await;
    assert_eq!(counted(fx).await, [0, 0, 3, 0, 0, 0]);
    assert_eq!(counts(fx).await.expired.value, 2);
    assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 2);
    assert_eq!(counted(fx).await, [2, 0, 1, 0, 0, 0]);
    assert_eq!(counts(fx).await.expired.value, 0);
}

/// Keys, not messages: those that wait for a person.
pub async fn blocked_keys_are_counted(fx: &dyn Fixture) {
    let blocking = |key: &str| keyed(key, "x").on_dead(OnDead::Block);
    let one = put_dead(fx, blocking("one")).await;
    let two = put(fx, blocking("two")).await;
    let admin = fx.admin().await;
    admin.quarantine(two, "op", "hold").await.unwrap();
    put_dead(fx, blocking("two").tenant("acme")).await;
    put_dead(fx, keyed("passes", "x")).await;
    put_all(fx, line("one", &["2", "3"])).await;
    assert_eq!(counts(fx).await.blocked_keys.value, 3);
    admin.resolve(one, "op", "seen", "").await.unwrap();
    assert_eq!(counts(fx).await.blocked_keys.value, 2);
    admin.cancel(two, "op", "given up").await.unwrap();
    assert_eq!(counts(fx).await.blocked_keys.value, 1);
}

/// Since when the oldest that is due waits, wherever it stands; what is not due or not waiting does not count.
pub async fn counts_tell_the_oldest_due(fx: &dyn Fixture) {
    let store = fx.store().await;
    let oldest = || async { counts(fx).await.oldest_due };
    put_done(fx, message("done")).await;
    put(fx, message("later").delay(SECOND * 10)).await;
    put(fx, keyed("k", "later").delay(SECOND * 20)).await;
    assert_eq!(oldest().await, None);
    let start = fx.now().await;
    fx.advance(SECOND * 30).await;
    // Fallen due, though no claim has looked since.
    assert_eq!(oldest().await, Some(start.plus(SECOND * 10)));
    put(fx, message("young").tenant("acme")).await;
    assert_eq!(oldest().await, Some(start.plus(SECOND * 10)));
    let claimed = claim(&*store, "w1", 10).await;
    assert_eq!(claimed.len(), 3);
    assert_eq!(oldest().await, None);
    fx.advance(SECOND).await;
    settle_all(&*store, &[released(&claimed[0].lease), failed(&claimed[1].lease, 5)]).await;
    let released = start.plus(SECOND * 31);
    assert_eq!(oldest().await, Some(released), "it is due since its release");
}

/// Due, but behind one that is not: it has waited for as long.
pub async fn the_oldest_due_may_be_behind_another(fx: &dyn Fixture) {
    put_all(fx, vec![keyed("k", "1").delay(DAY), keyed("k", "2")]).await;
    let start = fx.now().await;
    fx.advance(SECOND).await;
    put(fx, message("young")).await;
    assert_eq!(counted(fx).await, [2, 1, 0, 0, 0, 0]);
    assert_eq!(counts(fx).await.oldest_due, Some(start));
}

/// Every count of a store, in the order of [`Counts`].
fn each(counts: &Counts) -> [Count; 8] {
    [
        counts.ready,
        counts.scheduled,
        counts.leased,
        counts.done,
        counts.dead,
        counts.quarantined,
        counts.expired,
        counts.blocked_keys,
    ]
}

async fn counts_to(fx: &dyn Fixture, cap: u32) -> Counts {
    fx.admin().await.counts_to(cap).await.unwrap()
}

/// Seven in each state, with a key and without. The done are first, because they are what a look at the first messages must find.
async fn seven_in_each(fx: &dyn Fixture) {
    let (store, admin) = (fx.store().await, fx.admin().await);
    for n in 0..7 {
        put_done(fx, message(&n.to_string())).await;
    }
    for n in 0..7 {
        let blocking = keyed(&format!("dead {n}"), "x").on_dead(OnDead::Block);
        put_dead(fx, blocking).await;
        let id = put(fx, message("held")).await;
        admin.quarantine(id, "op", "hold").await.unwrap();
    }
    let of = |n: usize| match n % 2 {
        0 => message("x"),
        _ => keyed(&format!("k{n}"), "x"),
    };
    put_all(fx, (0..7).map(of).collect()).await;
    assert_eq!(claim(&*store, "w1", 100).await.len(), 7);
    fx.advance(LEASE).await;
    put_all(fx, (0..7).map(of).collect()).await;
    put_all(fx, (0..7).map(|n| of(n).delay(DAY)).collect()).await;
}

/// Beyond the cap a count says "at least": with the cap, or with fewer where it looks at a part of the messages only.
pub async fn more_than_the_cap_is_at_least_the_cap(fx: &dyn Fixture) {
    seven_in_each(fx).await;
    let counts = counts_to(fx, 5).await;
    assert_eq!(each(&counts), [Count { value: 5, exact: false }; 8], "{counts:?}");
    let counts = counts_to(fx, 7).await;
    let mut exact = [Count::exact(7); 8];
    // Of 42 messages the first 14 may be all that is looked at for those that are done.
    exact[3].exact = counts.done.exact;
    assert_eq!(each(&counts), exact, "{counts:?}");
    let counts = counts_to(fx, 42).await;
    assert_eq!(each(&counts), [Count::exact(7); 8], "{counts:?}");
}

/// A backlog of six times the cap, counted after each claim and each settlement.
pub async fn a_drain_never_shows_ready_rising_or_done_falling(fx: &dyn Fixture) {
    const CAP: u32 = 10;
    let store = fx.store().await;
    let all: u64 = 60;
    let of = |n: u64| match n % 3 {
        0 => message("x").tenant("acme"),
        1 => keyed(&format!("k{n}"), "x"),
        _ => message("x"),
    };
    put_all(fx, (0..all).map(of).collect()).await;
    let honest = |count: Count, truth: u64| {
        let most = truth.min(CAP.into());
        assert!(
            count.value <= most && (!count.exact || count.value == truth),
            "{count:?} of {truth}"
        );
    };
    let (mut ready, mut done) = (u64::MAX, 0);
    let mut delivered = 0;
    while delivered < all {
        let claimed = claim(&*store, "w1", 7).await;
        assert!(!claimed.is_empty());
        for settled in [false, true] {
            if settled {
                deliver(&*store, &claimed).await;
                delivered += claimed.len() as u64;
            }
            let counts = counts_to(fx, CAP).await;
            let left = all - delivered - if settled { 0 } else { claimed.len() as u64 };
            honest(counts.ready, left);
            honest(counts.done, delivered);
            assert!(
                counts.ready.value <= ready,
                "ready rose from {ready} to {}",
                counts.ready
            );
            assert!(counts.done.value >= done, "done fell from {done} to {}", counts.done);
            assert_eq!(counts.ready.exact, left <= CAP.into());
            (ready, done) = (counts.ready.value, counts.done.value);
        }
    }
    let counts = counts_to(fx, CAP).await;
    assert_eq!(counts.ready, Count::exact(0));
    assert_eq!(
        counts.done,
        Count {
            value: 10,
            exact: false
        }
    );
}

/// Nothing counted, and a count without a bound, are mistakes in the call.
pub async fn a_cap_that_bounds_nothing_is_refused(fx: &dyn Fixture) {
    for cap in [0, COUNTED_AT_MOST + 1] {
        match fx.admin().await.counts_to(cap).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, "cap"),
            other => panic!("{cap}: {other:?}"),
        }
    }
    assert_eq!(counts_to(fx, COUNTED_AT_MOST).await, counts(fx).await);
}
