//! Lists of messages: by every filter, and page by page.

use posthouse_core::{DeadReason, Filter, MessageId, State};

use super::tools::*;
use crate::Fixture;

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
        admin.resolve(resolved, "op", "seen", "").await.unwrap();
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
