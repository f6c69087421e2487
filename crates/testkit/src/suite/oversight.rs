//! What operators are told of all messages, of relays and of destinations; and the audit of what they did.

use posthouse_core::{
    AuditEntry, AuditFilter, Breaker, Claim, Counts, DeadReason, Error, Filter, Health, Message, MessageId, OnDead,
    Pause, Relay, RelayView, Route, State,
};
use std::time::Duration;

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
    admin.resolve(dead[0], "op", "seen").await.unwrap();
    admin.discard(dead[1], "op", "gone").await.unwrap();
    admin.cancel(held, "op", "given up").await.unwrap();
    admin.quarantine(waiting[0], "op", "hold").await.unwrap();
    deliver(&*store, &run).await;
    assert_eq!(counted(fx).await, [4, 3, 0, 7, 2, 1]);
    fx.advance(DAY).await;
    assert_eq!(counted(fx).await, [7, 0, 0, 7, 2, 1]);
    fx.advance(DAY).await;
    assert_eq!(admin.prune(DAY, 100).await.unwrap().messages, 9);
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
    admin.resolve(one, "op", "seen").await.unwrap();
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

/// Messages for the cases about lists: what the filters tell apart, and when each was enqueued.
struct Zoo {
    pending: MessageId,
    delayed: MessageId,
    keyed: MessageId,
    leased: MessageId,
    done: MessageId,
    resolved: MessageId,
    rejected: MessageId,
    exhausted: MessageId,
    lapsed: MessageId,
    cancelled: MessageId,
    quarantined: MessageId,
}

impl Zoo {
    /// A second apart, in the order of [`Zoo::ids`].
    async fn new(fx: &dyn Fixture) -> Self {
        let (store, admin) = (fx.store().await, fx.admin().await);
        let done = put_done(fx, message("done")).await;
        fx.advance(SECOND).await;
        let rejected = put_dead(fx, message("rejected")).await;
        fx.advance(SECOND).await;
        let lease = put_and_claim(fx, message("exhausted").tenant("acme")).await;
        settle_all(&*store, &[failed(&lease, 1)]).await;
        fx.advance(SECOND).await;
        let lapsed = put(fx, message("lapsed").deliver_in(SECOND)).await;
        fx.advance(SECOND).await;
        assert!(claim(&*store, "w1", 10).await.is_empty());
        let cancelled = put(fx, keyed("c", "cancelled")).await;
        admin.cancel(cancelled, "op", "given up").await.unwrap();
        fx.advance(SECOND).await;
        let quarantined = put_dead(fx, message("quarantined")).await;
        admin.quarantine(quarantined, "op", "hold").await.unwrap();
        fx.advance(SECOND).await;
        let resolved = put_dead(fx, message("resolved").tenant("acme")).await;
        admin.resolve(resolved, "op", "seen").await.unwrap();
        fx.advance(SECOND).await;
        let leased = put_and_claim(fx, message("leased").tenant("acme")).await.id;
        fx.advance(SECOND).await;
        let delayed = put(fx, message("delayed").delay(DAY)).await;
        fx.advance(SECOND).await;
        let keyed = put(fx, keyed("k", "keyed").tenant("acme")).await;
        fx.advance(SECOND).await;
        Self {
            pending: put(fx, message("pending")).await,
            delayed,
            keyed,
            leased,
            done,
            resolved,
            rejected,
            exhausted: lease.id,
            lapsed,
            cancelled,
            quarantined,
        }
    }

    fn ids(&self) -> [MessageId; 11] {
        [
            self.done,
            self.rejected,
            self.exhausted,
            self.lapsed,
            self.cancelled,
            self.quarantined,
            self.resolved,
            self.leased,
            self.delayed,
            self.keyed,
            self.pending,
        ]
    }
}

async fn listed(fx: &dyn Fixture, filter: &Filter) -> Vec<MessageId> {
    let page = fx.admin().await.list(filter).await.unwrap();
    assert_eq!(page.next, None, "{filter:?}");
    page.messages.iter().map(|m| m.id).collect()
}

/// Asserts that a list holds these, in the order they were enqueued, and the other way round.
async fn assert_listed(fx: &dyn Fixture, filter: &Filter, expected: &[MessageId]) {
    let oldest_first = Filter {
        oldest_first: true,
        ..filter.clone()
    };
    assert_eq!(listed(fx, &oldest_first).await, expected, "{oldest_first:?}");
    let reversed: Vec<_> = expected.iter().rev().copied().collect();
    assert_eq!(listed(fx, filter).await, reversed, "{filter:?}");
}

/// Each state, with all that is in it, whatever brought it there.
pub async fn a_list_by_state(fx: &dyn Fixture) {
    let zoo = Zoo::new(fx).await;
    let of = |state| Filter {
        state,
        ..Filter::default()
    };
    assert_listed(fx, &of(None), &zoo.ids()).await;
    let pending = [zoo.delayed, zoo.keyed, zoo.pending];
    assert_listed(fx, &of(Some(State::Pending)), &pending).await;
    assert_listed(fx, &of(Some(State::Leased)), &[zoo.leased]).await;
    assert_listed(fx, &of(Some(State::Done)), &[zoo.done, zoo.resolved]).await;
    let dead = [zoo.rejected, zoo.exhausted, zoo.lapsed, zoo.cancelled];
    assert_listed(fx, &of(Some(State::Dead)), &dead).await;
    assert_listed(fx, &of(Some(State::Quarantined)), &[zoo.quarantined]).await;
}

/// Why they are dead. Nothing else has a reason.
pub async fn a_list_by_reason(fx: &dyn Fixture) {
    let zoo = Zoo::new(fx).await;
    for (reason, expected) in [
        (DeadReason::Rejected, vec![zoo.rejected]),
        (DeadReason::Exhausted, vec![zoo.exhausted]),
        (DeadReason::Lapsed, vec![zoo.lapsed]),
        (DeadReason::Cancelled, vec![zoo.cancelled]),
        (DeadReason::Conflict, vec![]),
    ] {
        let of = |state| Filter {
            reason: Some(reason),
            state,
            ..Filter::default()
        };
        assert_listed(fx, &of(None), &expected).await;
        assert_listed(fx, &of(Some(State::Dead)), &expected).await;
        for other in [State::Pending, State::Leased, State::Done, State::Quarantined] {
            assert_listed(fx, &of(Some(other)), &[]).await;
        }
    }
}

/// What the last attempt said; an earlier one does not count.
pub async fn a_list_by_code(fx: &dyn Fixture) {
    let zoo = Zoo::new(fx).await;
    let of = |code: &str, state| Filter {
        code: Some(code.to_owned()),
        state,
        ..Filter::default()
    };
    let refused = [zoo.rejected, zoo.quarantined, zoo.resolved];
    assert_listed(fx, &of("http_422", None), &refused).await;
    assert_listed(fx, &of("http_422", Some(State::Dead)), &[zoo.rejected]).await;
    assert_listed(fx, &of("http_422", Some(State::Done)), &[zoo.resolved]).await;
    assert_listed(fx, &of("http_503", None), &[zoo.exhausted]).await;
    assert_listed(fx, &of("http_5", None), &[]).await;
    fx.admin()
        .await
        .replay(zoo.exhausted, "op", "again", None)
        .await
        .unwrap();
    assert_listed(fx, &of("http_503", Some(State::Pending)), &[zoo.exhausted]).await;
    let store = fx.store().await;
    let claimed = claim(&*store, "w1", 10).await;
    let again = claimed.iter().find(|c| c.lease.id == zoo.exhausted).unwrap();
    settle_all(&*store, &[failed_again(&again.lease, 9)]).await;
    assert_listed(fx, &of("http_503", None), &[]).await;
    assert_listed(fx, &of("timeout", None), &[zoo.exhausted]).await;
}

/// From a time on, before a time; of all and of some.
pub async fn a_list_by_time(fx: &dyn Fixture) {
    let start = fx.now().await;
    let zoo = Zoo::new(fx).await;
    let at = |second: u32| Some(start.plus(SECOND * second));
    let between = |since, until, state| Filter {
        since,
        until,
        state,
        ..Filter::default()
    };
    let ids = zoo.ids();
    assert_listed(fx, &between(at(0), at(100), None), &ids).await;
    assert_listed(fx, &between(at(4), None, None), &ids[4..]).await;
    assert_listed(fx, &between(None, at(4), None), &ids[..4]).await;
    assert_listed(fx, &between(at(2), at(9), None), &ids[2..9]).await;
    assert_listed(fx, &between(at(9), at(9), None), &[]).await;
    assert_listed(fx, &between(at(100), None, None), &[]).await;
    assert_listed(fx, &between(None, at(0), None), &[]).await;
    assert_listed(fx, &between(at(2), at(4), Some(State::Dead)), &ids[2..4]).await;
    assert_listed(fx, &between(at(9), None, Some(State::Pending)), &ids[9..]).await;
    assert_listed(fx, &between(at(1), None, Some(State::Done)), &[zoo.resolved]).await;
}

/// Filters add up: what is listed passes all of them.
pub async fn a_list_by_everything(fx: &dyn Fixture) {
    let start = fx.now().await;
    let zoo = Zoo::new(fx).await;
    let text = |text: &str| Some(text.to_owned());
    let all = Filter {
        namespace: text("default"),
        tenant: text("acme"),
        topic: text("orders"),
        state: Some(State::Dead),
        order_key: None,
        reason: Some(DeadReason::Exhausted),
        code: text("http_503"),
        since: Some(start),
        until: Some(start.plus(DAY)),
        ..Filter::default()
    };
    assert_listed(fx, &all, &[zoo.exhausted]).await;
    let others = [
        Filter {
            namespace: text("billing"),
            ..all.clone()
        },
        Filter {
            tenant: text(""),
            ..all.clone()
        },
        Filter {
            topic: text("invoices"),
            ..all.clone()
        },
        Filter {
            state: Some(State::Quarantined),
            ..all.clone()
        },
        Filter {
            order_key: text("k"),
            ..all.clone()
        },
        Filter {
            reason: Some(DeadReason::Rejected),
            ..all.clone()
        },
        Filter {
            code: text("timeout"),
            ..all.clone()
        },
        Filter {
            since: Some(start.plus(SECOND * 3)),
            ..all.clone()
        },
        Filter {
            until: Some(start.plus(SECOND * 2)),
            ..all.clone()
        },
    ];
    for other in others {
        assert_listed(fx, &other, &[]).await;
    }
    let keyed = Filter {
        order_key: text("k"),
        tenant: text("acme"),
        state: Some(State::Pending),
        ..Filter::default()
    };
    assert_listed(fx, &keyed, &[zoo.keyed]).await;
}

/// All pages of a list, two to a page.
async fn paged(fx: &dyn Fixture, filter: &Filter) -> Vec<MessageId> {
    let (mut found, mut beyond) = (Vec::new(), filter.beyond);
    for _ in 0..1000 {
        let page = Filter {
            beyond,
            limit: 2,
            ..filter.clone()
        };
        let page = fx.admin().await.list(&page).await.unwrap();
        assert!(page.messages.len() <= 2);
        found.extend(page.messages.iter().map(|m| m.id));
        beyond = page.next;
        if beyond.is_none() {
            return found;
        }
    }
    panic!("the list has no end");
}

/// No gap and no repetition in either order, whatever the filter, with pages that end between other messages.
pub async fn every_list_is_paged_without_gaps(fx: &dyn Fixture) {
    let store = fx.store().await;
    let ids = put_all(
        fx,
        (0..40)
            .map(|n| match n % 4 {
                0 => message("x"),
                1 => keyed(&format!("k{}", n % 3), "x"),
                2 => message("x").tenant("acme"),
                _ => message("x").delay(DAY),
            })
            .collect(),
    )
    .await;
    for claimed in claim(&*store, "w1", 20).await {
        let settlement = match claimed.lease.seq % 4 {
            0 => delivered(&claimed.lease),
            1 => rejected(&claimed.lease),
            2 => failed_again(&claimed.lease, 5),
            _ => continue,
        };
        store.settle(&[settlement]).await.unwrap();
    }
    let mut seen = 0;
    for state in State::ALL {
        let mut expected = Vec::new();
        for id in &ids {
            if super::tools::state(fx, *id).await == *state {
                expected.push(*id);
            }
        }
        seen += expected.len();
        let filter = |oldest_first| Filter {
            state: Some(*state),
            oldest_first,
            ..Filter::default()
        };
        assert_eq!(paged(fx, &filter(true)).await, expected, "{state}");
        expected.reverse();
        assert_eq!(paged(fx, &filter(false)).await, expected, "{state}");
    }
    assert_eq!(seen, ids.len());
    let oldest = Filter {
        oldest_first: true,
        ..Filter::default()
    };
    assert_eq!(paged(fx, &oldest).await, ids);
}

/// Work from page to page: what was dealt with leaves the list, what comes in joins its end, and nothing is passed over.
pub async fn a_list_can_be_worked_off(fx: &dyn Fixture) {
    let mut dead = Vec::new();
    for n in 0..5 {
        dead.push(put_dead(fx, keyed(&format!("k{}", n % 2), "x")).await);
    }
    let (mut done, mut beyond) = (Vec::new(), None);
    let admin = fx.admin().await;
    loop {
        let filter = Filter {
            state: Some(State::Dead),
            oldest_first: true,
            limit: 2,
            beyond,
            ..Filter::default()
        };
        let page = admin.list(&filter).await.unwrap();
        for found in &page.messages {
            admin.replay(found.id, "op", "again", None).await.unwrap();
            done.push(found.id);
        }
        if done.len() == 2 {
            deliver(&*fx.store().await, &claim(&*fx.store().await, "w1", 10).await).await;
            dead.push(put_dead(fx, message("new")).await);
        }
        beyond = page.next;
        if beyond.is_none() {
            break;
        }
    }
    assert_eq!(done, dead);
}

fn relay(name: &str) -> Relay {
    Relay {
        name: name.into(),
        version: "1.2.3".into(),
        namespaces: vec!["default".into(), "bücher".into()],
        routes: vec![
            Route {
                topic: "orders.*".into(),
                destinations: vec!["shop".into(), "audit 'log' \"x\"".into()],
            },
            Route {
                topic: "*".into(),
                destinations: vec![],
            },
        ],
        destinations: vec![Health {
            destination: "shop".into(),
            breaker: Breaker::HalfOpen,
            limited: true,
        }],
        limited_tenants: vec!["acme".into(), String::new()],
    }
}

async fn relays(fx: &dyn Fixture) -> Vec<RelayView> {
    fx.admin().await.relays().await.unwrap()
}

/// The names of those that are live, by name.
async fn live(fx: &dyn Fixture) -> Vec<String> {
    let live = relays(fx).await.into_iter().filter(|view| view.live);
    live.map(|view| view.relay.name).collect()
}

/// What it told is told, whole, and since when.
pub async fn a_relay_tells_of_itself(fx: &dyn Fixture) {
    let (store, start) = (fx.store().await, fx.now().await);
    assert!(relays(fx).await.is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    let view = |relay, seen_at| RelayView {
        relay,
        started_at: start,
        seen_at,
        live: true,
    };
    assert_eq!(relays(fx).await, [view(relay("r1"), start)]);
    fx.advance(SECOND * 10).await;
    let changed = Relay {
        version: "1.2.4".into(),
        routes: Vec::new(),
        ..relay("r1")
    };
    store.heartbeat(&changed, LEASE).await.unwrap();
    assert_eq!(relays(fx).await, [view(changed, fx.now().await)]);
}

/// By name, each for itself, whoever tells of them.
pub async fn relays_are_listed_by_name(fx: &dyn Fixture) {
    for name in ["r2", "R", "r10", "é", "r1"] {
        fx.store().await.heartbeat(&relay(name), LEASE).await.unwrap();
    }
    assert_eq!(live(fx).await, ["R", "r1", "r10", "r2", "é"]);
}

/// Its word holds for as long as it said, by the clock of the store.
pub async fn a_silent_relay_is_not_live(fx: &dyn Fixture) {
    let store = fx.store().await;
    store.heartbeat(&relay("short"), SECOND * 5).await.unwrap();
    store.heartbeat(&relay("long"), SECOND * 60).await.unwrap();
    fx.advance(SECOND * 4).await;
    assert_eq!(live(fx).await, ["long", "short"]);
    fx.advance(SECOND * 2).await;
    assert_eq!(live(fx).await, ["long"]);
    assert_eq!(relays(fx).await.len(), 2, "it is still told of");
    store.heartbeat(&relay("short"), SECOND * 5).await.unwrap();
    assert_eq!(live(fx).await, ["long", "short"]);
    let started: Vec<_> = relays(fx).await.iter().map(|view| view.started_at).collect();
    let now = fx.now().await;
    assert!(started[0] < now, "the long one went on");
    assert_eq!(started[1], now, "the short one began anew");
}

/// At once, and for itself alone; one that was never there may leave as well.
pub async fn a_relay_that_leaves_is_not_live(fx: &dyn Fixture) {
    let store = fx.store().await;
    store.leave("nobody").await.unwrap();
    assert!(relays(fx).await.is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    store.heartbeat(&relay("r2"), LEASE).await.unwrap();
    store.leave("r1").await.unwrap();
    assert_eq!(live(fx).await, ["r2"]);
    fx.advance(SECOND).await;
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    assert_eq!(live(fx).await, ["r1", "r2"]);
    assert_eq!(relays(fx).await[0].started_at, fx.now().await);
}

/// A day after its last word, by the next word of anybody.
pub async fn a_relay_is_forgotten_after_a_day(fx: &dyn Fixture) {
    let store = fx.store().await;
    for name in ["gone", "left", "other"] {
        store.heartbeat(&relay(name), LEASE).await.unwrap();
    }
    store.leave("left").await.unwrap();
    fx.advance(DAY - SECOND).await;
    store.heartbeat(&relay("other"), LEASE).await.unwrap();
    assert_eq!(relays(fx).await.len(), 3);
    fx.advance(SECOND * 2).await;
    store.heartbeat(&relay("other"), LEASE).await.unwrap();
    let names: Vec<_> = relays(fx).await.into_iter().map(|view| view.relay.name).collect();
    assert_eq!(names, ["other"]);
}

/// Nothing is kept that nobody could show.
pub async fn a_senseless_heartbeat_is_refused(fx: &dyn Fixture) {
    let (store, before) = (fx.store().await, fx.dump().await);
    let unnamed = relay("");
    let long = relay(&"x".repeat(256));
    let odd = relay("a\0b");
    let version = Relay {
        version: "1\n".into(),
        ..relay("r1")
    };
    for (relay, ttl, field) in [
        (&unnamed, LEASE, "relay"),
        (&long, LEASE, "relay"),
        (&odd, LEASE, "relay"),
        (&version, LEASE, "version"),
        (&relay("r1"), Duration::ZERO, "ttl"),
        (&relay("r1"), DAY * 2, "ttl"),
    ] {
        match store.heartbeat(relay, ttl).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert_unchanged(fx, &before, "a refused heartbeat").await;
    store.heartbeat(&relay(&"é".repeat(127)), LEASE).await.unwrap();
}

/// Relays hear of a pause with their next heartbeat, and of its end.
pub async fn a_pause_is_told_to_every_relay(fx: &dyn Fixture) {
    let (admin, one, two) = (fx.admin().await, fx.store().await, fx.store().await);
    assert!(one.heartbeat(&relay("r1"), LEASE).await.unwrap().is_empty());
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    let at = fx.now().await;
    fx.advance(SECOND).await;
    admin.pause("bank", "bob", "").await.unwrap();
    let pause = |destination: &str, at, actor: &str, reason: &str| Pause {
        destination: destination.into(),
        at,
        actor: actor.into(),
        reason: reason.into(),
    };
    let bank = pause("bank", fx.now().await, "bob", "");
    let shop = pause("shop", at, "ada", "maintenance");
    for (store, name) in [(&one, "r1"), (&two, "r2")] {
        let told = store.heartbeat(&relay(name), LEASE).await.unwrap();
        assert_eq!(told, [bank.clone(), shop.clone()]);
    }
    assert_eq!(admin.pauses().await.unwrap(), [bank.clone(), shop]);
    assert!(admin.resume("shop", "ada", "done").await.unwrap());
    assert_eq!(two.heartbeat(&relay("r2"), LEASE).await.unwrap(), [bank]);
}

/// Whoever comes second is in the audit; the pause is the first one's. To resume twice is no error either.
pub async fn a_repeated_pause_changes_only_the_audit(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    let first = admin.pauses().await.unwrap();
    fx.advance(SECOND).await;
    admin.pause("shop", "bob", "me too").await.unwrap();
    assert_eq!(admin.pauses().await.unwrap(), first);
    assert!(admin.resume("shop", "bob", "go").await.unwrap());
    assert!(admin.pauses().await.unwrap().is_empty());
    assert!(!admin.resume("shop", "ada", "go on").await.unwrap());
    let audit = admin.audit(&AuditFilter::default()).await.unwrap();
    let lines: Vec<_> = audit
        .iter()
        .map(|line| (line.actor.as_str(), line.action.as_str()))
        .collect();
    assert_eq!(
        lines,
        [("ada", "resume"), ("bob", "resume"), ("bob", "pause"), ("ada", "pause")]
    );
}

/// Who, and which one: or nothing happens.
pub async fn a_senseless_pause_is_refused(fx: &dyn Fixture) {
    let (admin, before) = (fx.admin().await, fx.dump().await);
    let long = "x".repeat(2049);
    for (destination, actor, field) in [
        ("shop", "", "actor"),
        ("", "ada", "destination"),
        ("a\nb", "ada", "destination"),
        (&*long, "ada", "destination"),
    ] {
        for answer in [
            admin.pause(destination, actor, "why").await,
            admin.resume(destination, actor, "why").await.map(|_| ()),
        ] {
            match answer {
                Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
                other => panic!("{destination:?} by {actor:?}: {other:?}"),
            }
        }
    }
    assert_unchanged(fx, &before, "a refused pause").await;
}

/// Whatever a person or a script types is recorded, cleaned and cut.
pub async fn any_reason_of_a_pause_can_be_recorded(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let raw = "a\0b\n'; --".to_owned() + &"€".repeat(5000);
    admin.pause("sh'op\";--", &raw, &raw).await.unwrap();
    let clean = posthouse_core::text::excerpt(&raw, 512);
    let pause = admin.pauses().await.unwrap().remove(0);
    assert_eq!(pause.destination, "sh'op\";--");
    assert_eq!((&pause.actor, &pause.reason), (&clean, &clean));
    assert!(admin.resume("sh'op\";--", &raw, &raw).await.unwrap());
    let line = admin.audit(&AuditFilter::default()).await.unwrap().remove(0);
    assert_eq!((&line.actor, &line.detail), (&clean, &clean));
}

/// What live relays send to, and what is paused, each with its worst news.
pub async fn destinations_are_told(fx: &dyn Fixture) {
    let (admin, store) = (fx.admin().await, fx.store().await);
    assert!(admin.destinations().await.unwrap().is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    let well = Relay {
        destinations: Vec::new(),
        ..relay("r2")
    };
    store.heartbeat(&well, LEASE).await.unwrap();
    admin.pause("bank", "ada", "maintenance").await.unwrap();
    let told = admin.destinations().await.unwrap();
    let names: Vec<_> = told.iter().map(|d| (d.name.as_str(), d.relays, d.breaker)).collect();
    assert_eq!(
        names,
        [
            ("audit 'log' \"x\"", 2, Breaker::Closed),
            ("bank", 0, Breaker::Closed),
            ("shop", 2, Breaker::HalfOpen)
        ]
    );
    assert_eq!(told[1].paused.as_ref().map(|p| p.actor.as_str()), Some("ada"));
    assert!(told[2].limited && told[2].paused.is_none());
    assert_eq!(told[2].topics, ["orders.*"]);
    fx.advance(LEASE * 2).await;
    let names: Vec<_> = admin
        .destinations()
        .await
        .unwrap()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(names, ["bank"]);
}

async fn audited(fx: &dyn Fixture, filter: AuditFilter) -> Vec<AuditEntry> {
    fx.admin().await.audit(&filter).await.unwrap()
}

fn told(lines: &[AuditEntry]) -> Vec<(&str, &str, &str)> {
    let line = |line: &AuditEntry| {
        let about = line.destination.is_some() as u8 + line.id.is_some() as u8;
        assert_eq!(about, 1, "a line is about a message or a destination: {line:?}");
    };
    lines.iter().for_each(line);
    lines
        .iter()
        .map(|line| (line.actor.as_str(), line.action.as_str(), line.detail.as_str()))
        .collect()
}

/// By whom, what, and of which message; together and alone.
pub async fn the_audit_by_actor_and_action(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let (one, two) = (put(fx, message("1")).await, put(fx, message("2")).await);
    admin.quarantine(one, "ada", "1").await.unwrap();
    admin.quarantine(two, "bob", "2").await.unwrap();
    admin.replay(one, "bob", "3", None).await.unwrap();
    admin.replay(two, "ada", "4", None).await.unwrap();
    admin.pause("shop", "ada", "5").await.unwrap();
    let text = |text: &str| Some(text.to_owned());
    let filter = |id, actor: &str, action: &str| AuditFilter {
        id,
        actor: text(actor).filter(|t| !t.is_empty()),
        action: text(action).filter(|t| !t.is_empty()),
        ..AuditFilter::default()
    };
    let expect = [
        (filter(None, "", ""), vec!["5", "4", "3", "2", "1"]),
        (filter(None, "ada", ""), vec!["5", "4", "1"]),
        (filter(None, "", "replay"), vec!["4", "3"]),
        (filter(None, "bob", "replay"), vec!["3"]),
        (filter(Some(two), "", ""), vec!["4", "2"]),
        (filter(Some(two), "ada", ""), vec!["4"]),
        (filter(Some(two), "", "quarantine"), vec!["2"]),
        (filter(Some(one), "ada", "replay"), vec![]),
        (filter(None, "ad", ""), vec![]),
        (filter(None, "", "pause"), vec!["5"]),
    ];
    for (filter, details) in expect {
        let lines = audited(fx, filter.clone()).await;
        let found: Vec<_> = told(&lines).iter().map(|line| line.2).collect();
        assert_eq!(found, details, "{filter:?}");
    }
}

/// Newest first, numbered, page by page without a gap, though lines are written meanwhile.
pub async fn the_audit_is_paged_without_gaps(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = put(fx, message("x")).await;
    for n in 0..7 {
        admin.pause(&format!("d{n}"), "ada", &n.to_string()).await.unwrap();
    }
    admin.quarantine(id, "ada", "7").await.unwrap();
    for (filter, expected) in [
        (AuditFilter::default(), vec!["7", "6", "5", "4", "3", "2", "1", "0"]),
        (
            AuditFilter {
                actor: Some("ada".into()),
                action: Some("pause".into()),
                ..AuditFilter::default()
            },
            vec!["6", "5", "4", "3", "2", "1", "0"],
        ),
    ] {
        let (mut found, mut before): (Vec<String>, Option<i64>) = (Vec::new(), None);
        let newest = audited(fx, AuditFilter::default()).await[0].n;
        let mut last = newest + 1;
        loop {
            let page = AuditFilter {
                before: before.or(Some(last)),
                limit: 3,
                ..filter.clone()
            };
            let lines = audited(fx, page).await;
            let Some(end) = lines.last() else { break };
            assert!(lines.len() <= 3);
            before = Some(end.n);
            for line in &lines {
                assert!(line.n < last, "numbers fall from line to line");
                last = line.n;
            }
            found.extend(lines.iter().map(|line| line.detail.clone()));
            admin.resume("nothing", "bob", "meanwhile").await.unwrap();
        }
        found.retain(|detail| detail != "meanwhile");
        assert_eq!(found, expected);
    }
}

/// A page without a limit is a page all the same.
pub async fn the_audit_has_a_limit_of_its_own(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    for _ in 0..51 {
        admin.pause("shop", "ada", "").await.unwrap();
    }
    assert_eq!(audited(fx, AuditFilter::default()).await.len(), 50);
}

/// Lines about a destination name it, and no message.
pub async fn the_audit_of_destinations(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let id = put(fx, Message::bytes("orders", "text/plain", "x")).await;
    let start = fx.now().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    fx.advance(SECOND).await;
    admin.resume("shop", "bob", "done").await.unwrap();
    admin.quarantine(id, "ada", "hold").await.unwrap();
    let lines = audited(fx, AuditFilter::default()).await;
    assert_eq!(
        told(&lines),
        [
            ("ada", "quarantine", "hold"),
            ("bob", "resume", "done"),
            ("ada", "pause", "maintenance")
        ]
    );
    let about: Vec<_> = lines.iter().map(|l| (l.id, l.destination.as_deref(), l.at)).collect();
    let later = start.plus(SECOND);
    assert_eq!(
        about,
        [
            (Some(id), None, later),
            (None, Some("shop"), later),
            (None, Some("shop"), start)
        ]
    );
    assert_eq!(audited(fx, AuditFilter::of(id)).await, lines[..1]);
}
