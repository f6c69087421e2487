//! Why is this message not delivered? One case for each cause, on the store itself.

use posthouse_core::{
    Breaker, Cause, DeadReason, Error, Filter, Health, Message, MessageId, OnDead, Relay, Route, Settlement, State,
};
use uuid::Uuid;

use super::tools::*;
use crate::Fixture;

/// A relay that sends everything to the shop.
fn relay() -> Relay {
    Relay {
        name: "r1".into(),
        version: "1".into(),
        routes: vec![Route {
            topic: "*".into(),
            destinations: vec!["shop".into()],
            ..Route::default()
        }],
        ..Relay::default()
    }
}

async fn serve(fx: &dyn Fixture, relay: Relay) {
    fx.store().await.heartbeat(&relay, LEASE).await.unwrap();
}

async fn explained(fx: &dyn Fixture, id: MessageId) -> Vec<Cause> {
    fx.admin().await.explain(id).await.unwrap()
}

/// The one cause of a message that a relay would send, were it not for that.
async fn cause(fx: &dyn Fixture, id: MessageId) -> Cause {
    serve(fx, relay()).await;
    let mut causes = explained(fx, id).await;
    assert_eq!(causes.len(), 1, "{causes:?}");
    causes.remove(0)
}

/// The one cause of a free message, with this relay on the store.
async fn cause_under(fx: &dyn Fixture, relay: Relay, message: Message) -> Cause {
    let id = put(fx, message).await;
    serve(fx, relay).await;
    let mut causes = explained(fx, id).await;
    assert_eq!(causes.len(), 1, "{causes:?}");
    causes.remove(0)
}

/// Nothing is in its way.
pub async fn a_free_message(fx: &dyn Fixture) {
    assert_eq!(cause_under(fx, relay(), message("x")).await, Cause::Free);
    assert_eq!(cause_under(fx, relay(), keyed("k", "x")).await, Cause::Free);
}

/// Asked about what is not there.
pub async fn a_missing_message(fx: &dyn Fixture) {
    let (admin, id) = (fx.admin().await, MessageId(Uuid::now_v7()));
    assert!(admin.facts(id).await.unwrap().is_none());
    let answer = admin.explain(id).await;
    assert!(
        matches!(&answer, Err(Error::NotFound(found)) if *found == id),
        "{answer:?}"
    );
}

/// When, and by whom.
pub async fn a_delivered_message(fx: &dyn Fixture) {
    let id = put_done(fx, message("x")).await;
    let delivered = Cause::Delivered {
        at: Some(fx.now().await),
        worker: Some("w1".into()),
    };
    assert_eq!(cause(fx, id).await, delivered);
}

/// It is told apart from a delivery, also when there were attempts before.
pub async fn a_resolved_message(fx: &dyn Fixture) {
    let tried = put_dead(fx, message("x")).await;
    let untried = put(fx, message("x")).await;
    fx.advance(SECOND).await;
    for id in [tried, untried] {
        fx.admin().await.resolve(id, "op", "seen", "").await.unwrap();
        let at = Some(fx.now().await);
        assert_eq!(cause(fx, id).await, Cause::Resolved { at });
    }
}

/// Its children are asked about instead.
pub async fn an_expanded_message(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("x")).await;
    let children = vec![message("a").delay(DAY), message("b").delay(DAY)];
    settle_all(&*fx.store().await, &[Settlement::expanded(&lease, children)]).await;
    let at = Some(fx.now().await);
    assert_eq!(cause(fx, lease.id).await, Cause::Expanded { at });
}

/// What was said in an earlier life, or before somebody cancelled it, is not why it is dead.
pub async fn a_cancelled_message(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let cancelled = |attempts| Cause::Dead {
        saga: None,
        reason: Some(DeadReason::Cancelled),
        attempts,
        error: None,
        blocks: false,
    };
    let id = put_dead(fx, message("x")).await;
    admin.replay(id, "ada", "", None).await.unwrap();
    admin.cancel(id, "ada", "not wanted").await.unwrap();
    assert_eq!(cause(fx, id).await, cancelled(0));
    let lease = put_and_claim(fx, message("y")).await;
    settle_all(&*fx.store().await, &[failed(&lease, 5)]).await;
    admin.cancel(lease.id, "ada", "not wanted").await.unwrap();
    assert_eq!(cause(fx, lease.id).await, cancelled(1));
}

/// Why, after how many attempts, and what was said; it holds up nobody.
pub async fn a_dead_message(fx: &dyn Fixture) {
    for message in [message("x"), keyed("k", "x")] {
        let id = put_dead(fx, message).await;
        let dead = Cause::Dead {
            saga: None,
            reason: Some(DeadReason::Rejected),
            attempts: 1,
            error: Some("not like this".into()),
            blocks: false,
        };
        assert_eq!(cause(fx, id).await, dead);
    }
}

/// It holds its key, until an operator has dealt with it.
pub async fn a_dead_message_that_blocks(fx: &dyn Fixture) {
    let id = put_dead(fx, keyed("k", "x").on_dead(OnDead::Block)).await;
    assert!(matches!(cause(fx, id).await, Cause::Dead { blocks: true, .. }));
    let admin = fx.admin().await;
    admin.quarantine(id, "op", "hold").await.unwrap();
    admin.cancel(id, "op", "given up").await.unwrap();
    let freed = cause(fx, id).await;
    let cancelled = Some(DeadReason::Cancelled);
    assert!(
        matches!(freed, Cause::Dead { reason, blocks: false, .. } if reason == cancelled),
        "{freed:?}"
    );
}

/// With the operator's note, and whether it holds up its key.
pub async fn a_quarantined_message(fx: &dyn Fixture) {
    let passing = put(fx, message("x")).await;
    let blocking = put(fx, keyed("k", "x").on_dead(OnDead::Block)).await;
    for (id, note, blocks) in [(passing, "looks odd", false), (blocking, "", true)] {
        fx.admin().await.quarantine(id, "op", note).await.unwrap();
        let note = Some(note.to_owned()).filter(|note| !note.is_empty());
        assert_eq!(cause(fx, id).await, Cause::Quarantined { note, blocks });
    }
}

/// By whom, and until when at most.
pub async fn a_leased_message(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("x")).await;
    let leased = Cause::Leased {
        worker: "w1".into(),
        until: fx.now().await.plus(LEASE),
    };
    assert_eq!(cause(fx, lease.id).await, leased);
}

/// Who has not answered, and since when.
pub async fn a_lease_that_ran_out(fx: &dyn Fixture) {
    let lease = put_and_claim(fx, message("x")).await;
    let until = fx.now().await.plus(LEASE);
    fx.advance(LEASE + SECOND).await;
    let expired = Cause::LeaseExpired {
        worker: "w1".into(),
        until,
    };
    assert_eq!(cause(fx, lease.id).await, expired);
    assert_eq!(posthouse_core::repair(&*fx.store().await, 10).await.unwrap(), 1);
    assert_eq!(cause(fx, lease.id).await, Cause::Free);
}

/// Its time is over, though nobody has buried it yet.
pub async fn a_lapsed_message(fx: &dyn Fixture) {
    let id = put(fx, message("x").deliver_in(SECOND)).await;
    let deliver_by = fx.now().await.plus(SECOND);
    fx.advance(SECOND * 2).await;
    let saga = None;
    assert_eq!(cause(fx, id).await, Cause::Lapsed { deliver_by, saga });
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
    let dead = cause(fx, id).await;
    let lapsed = Some(DeadReason::Lapsed);
    assert!(
        matches!(dead, Cause::Dead { reason, .. } if reason == lapsed),
        "{dead:?}"
    );
}

/// The first of its key waits; which one, and for how long.
pub async fn behind_a_pending_head(fx: &dyn Fixture) {
    let ids = put_all(
        fx,
        vec![
            keyed("k", "1").delay(SECOND * 60),
            keyed("k", "2"),
            keyed("k", "3"),
            keyed("other", "4"),
        ],
    )
    .await;
    let behind = |due_at| Cause::Behind {
        id: ids[0],
        state: State::Pending,
        due_at,
    };
    let due_at = fx.now().await.plus(SECOND * 60);
    for id in &ids[1..3] {
        assert_eq!(cause(fx, *id).await, behind(Some(due_at)));
    }
    assert_eq!(cause(fx, ids[0]).await, Cause::Delayed { due_at });
    assert_eq!(cause(fx, ids[3]).await, Cause::Free);
    fx.advance(SECOND * 60).await;
    assert_eq!(
        cause(fx, ids[2]).await,
        behind(None),
        "the head is due, and still first"
    );
}

/// Somebody sends what comes first: the first that is in flight.
pub async fn behind_a_leased_head(fx: &dyn Fixture) {
    let ids = put_all(fx, line("k", &["1", "2", "3"])).await;
    let store = fx.store().await;
    let run = leases(&claim(&*store, "w1", 2).await);
    let behind = |id| Cause::Behind {
        id,
        state: State::Leased,
        due_at: None,
    };
    assert_eq!(cause(fx, ids[2]).await, behind(ids[0]));
    settle_all(&*store, &[delivered(&run[0])]).await;
    assert_eq!(cause(fx, ids[2]).await, behind(ids[1]));
    settle_all(&*store, &[delivered(&run[1])]).await;
    assert_eq!(cause(fx, ids[2]).await, Cause::Free);
}

/// What is in flight must end first, even if its place is behind that of a message that was committed late.
pub async fn behind_a_later_one_in_flight(fx: &dyn Fixture) {
    let (early, late) = if parallel_callers(fx).await {
        let mut tx = fx.begin().await;
        let early = tx.enqueue(keyed("k", "1").relaxed()).await.unwrap().id();
        let late = put_and_claim(fx, keyed("k", "2").relaxed()).await;
        tx.commit().await.unwrap();
        (early, late.id)
    } else {
        // Nobody commits late here; what was committed in order is told in order.
        let late = put_and_claim(fx, keyed("k", "1").relaxed()).await;
        (put(fx, keyed("k", "2").relaxed()).await, late.id)
    };
    let behind = Cause::Behind {
        id: late,
        state: State::Leased,
        due_at: None,
    };
    assert_eq!(cause(fx, early).await, behind);
}

/// The key waits for a person: for the first of those that block it, dead or held.
pub async fn behind_a_dead_head(fx: &dyn Fixture) {
    let head = put_dead(fx, keyed("k", "1").on_dead(OnDead::Block)).await;
    let next = put(fx, keyed("k", "2")).await;
    let behind = |state| Cause::Behind {
        id: head,
        state,
        due_at: None,
    };
    assert_eq!(cause(fx, next).await, behind(State::Dead));
    let admin = fx.admin().await;
    admin.quarantine(head, "op", "hold").await.unwrap();
    assert_eq!(cause(fx, next).await, behind(State::Quarantined));
    admin.resolve(head, "op", "seen", "").await.unwrap();
    assert_eq!(cause(fx, next).await, Cause::Free);
}

/// What ended and passes stands in nobody's way, nor does what blocks behind it.
pub async fn not_behind_what_passes(fx: &dyn Fixture) {
    put_dead(fx, keyed("k", "1")).await;
    let next = put(fx, keyed("k", "2")).await;
    let held = put(fx, keyed("k", "3").on_dead(OnDead::Block)).await;
    fx.admin().await.quarantine(held, "op", "hold").await.unwrap();
    assert_eq!(cause(fx, next).await, Cause::Free);
}

/// As its producer asked.
pub async fn a_delayed_message(fx: &dyn Fixture) {
    for message in [message("x"), keyed("k", "x")] {
        let id = put(fx, message.delay(SECOND * 60)).await;
        let due_at = fx.now().await.plus(SECOND * 60);
        assert_eq!(cause(fx, id).await, Cause::Delayed { due_at });
    }
}

/// It failed, and is tried again: when, how often, and what was said.
pub async fn a_backed_off_message(fx: &dyn Fixture) {
    for message in [message("x"), keyed("k", "x")] {
        let lease = put_and_claim(fx, message).await;
        settle_all(&*fx.store().await, &[failed(&lease, 5)]).await;
        let backed_off = Cause::BackedOff {
            due_at: fx.now().await.plus(SECOND * 10),
            attempts: 1,
            max_attempts: 5,
            error: Some("not now".into()),
        };
        assert_eq!(cause(fx, lease.id).await, backed_off);
    }
}

/// Nobody has told of itself, or whoever did is gone.
pub async fn no_relay(fx: &dyn Fixture) {
    let id = put(fx, message("x")).await;
    assert_eq!(explained(fx, id).await, [Cause::NoRelay]);
    serve(fx, relay()).await;
    assert_eq!(explained(fx, id).await, [Cause::Free]);
    fx.advance(LEASE + SECOND).await;
    assert_eq!(explained(fx, id).await, [Cause::NoRelay]);
    serve(fx, relay()).await;
    fx.store().await.leave("r1").await.unwrap();
    assert_eq!(explained(fx, id).await, [Cause::NoRelay]);
}

/// The relays that are there serve other topics, or other namespaces.
pub async fn no_route(fx: &dyn Fixture) {
    let mut other = relay();
    other.routes[0].topic = "invoices.*".into();
    let no_route = |namespace: &str| Cause::NoRoute {
        topic: "orders".into(),
        namespace: namespace.into(),
    };
    assert_eq!(cause_under(fx, other, message("x")).await, no_route("default"));
    let mut own = relay();
    own.namespaces = vec!["default".into()];
    let elsewhere = message("x").namespace("billing");
    assert_eq!(cause_under(fx, own, elsewhere).await, no_route("billing"));
}

/// By whom, and why; until somebody lets it go on.
pub async fn a_paused_destination(fx: &dyn Fixture) {
    let id = put(fx, message("x")).await;
    let admin = fx.admin().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    admin.pause("elsewhere", "bob", "not this one").await.unwrap();
    let paused = Cause::Paused {
        destination: "shop".into(),
        actor: "ada".into(),
        note: "maintenance".into(),
    };
    assert_eq!(cause(fx, id).await, paused);
    admin.resume("shop", "ada", "done").await.unwrap();
    assert_eq!(cause(fx, id).await, Cause::Free);
}

/// A message for one of a topic's destinations is held up by that one alone; the others are no business of its.
pub async fn a_child_and_its_own_destination(fx: &dyn Fixture) {
    let mut both = relay();
    both.routes[0].destinations = vec!["shop".into(), "billing".into()];
    serve(fx, both).await;
    let lease = put_and_claim(fx, message("x")).await;
    let to = |destination: &str| Message {
        destination: Some(destination.into()),
        ..message(destination)
    };
    let children = vec![to("shop"), to("billing"), to("gone")];
    settle_all(&*fx.store().await, &[Settlement::expanded(&lease, children)]).await;
    let admin = fx.admin().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    let mut found = Vec::new();
    for child in admin.list(&Filter::default()).await.unwrap().messages {
        if let Some(destination) = child.destination {
            found.push((
                destination,
                explained(fx, child.id).await.iter().map(Cause::code).collect(),
            ));
        }
    }
    found.sort();
    let expected = [
        ("billing", vec!["free"]),
        ("gone", vec!["no_route"]),
        ("shop", vec!["paused"]),
    ];
    assert_eq!(
        found,
        expected.map(|(destination, codes)| (destination.to_owned(), codes))
    );
}

fn ill(breaker: Breaker, limited: bool) -> Relay {
    Relay {
        destinations: vec![Health {
            destination: "shop".into(),
            breaker,
            limited,
        }],
        ..relay()
    }
}

/// The relay does not send to it for now; half open, it does.
pub async fn an_open_breaker(fx: &dyn Fixture) {
    let destination = "shop".to_owned();
    let open = ill(Breaker::Open, false);
    assert_eq!(
        cause_under(fx, open, message("x")).await,
        Cause::BreakerOpen { destination }
    );
    let half_open = ill(Breaker::HalfOpen, false);
    assert_eq!(cause_under(fx, half_open, message("x")).await, Cause::Free);
}

/// The destination takes no more for now.
pub async fn a_rate_limit(fx: &dyn Fixture) {
    let destination = "shop".to_owned();
    let limited = ill(Breaker::Closed, true);
    assert_eq!(
        cause_under(fx, limited, message("x")).await,
        Cause::RateLimited { destination }
    );
}

/// The tenant has had its share for now.
pub async fn a_tenant_limit(fx: &dyn Fixture) {
    let limited = || Relay {
        limited_tenants: vec!["acme".into()],
        ..relay()
    };
    let tenant = "acme".to_owned();
    let of_acme = message("x").tenant("acme");
    assert_eq!(
        cause_under(fx, limited(), of_acme).await,
        Cause::TenantLimited { tenant }
    );
    let of_another = message("x").tenant("beta");
    assert_eq!(cause_under(fx, limited(), of_another).await, Cause::Free);
}

/// Every cause is told, the one that must change first in front.
pub async fn several_causes(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![keyed("k", "1"), keyed("k", "2").delay(SECOND * 60)]).await;
    fx.admin().await.pause("shop", "ada", "").await.unwrap();
    serve(fx, ill(Breaker::Open, true)).await;
    let codes: Vec<_> = explained(fx, ids[1]).await.iter().map(Cause::code).collect();
    assert_eq!(codes, ["behind", "delayed", "paused", "breaker_open", "rate_limited"]);
}

/// To ask changes nothing.
pub async fn asking_changes_nothing(fx: &dyn Fixture) {
    let id = put(fx, keyed("k", "x").deliver_in(SECOND)).await;
    serve(fx, relay()).await;
    fx.advance(DAY * 2).await;
    let (admin, before) = (fx.admin().await, fx.dump().await);
    admin.explain(id).await.unwrap();
    admin.counts().await.unwrap();
    admin.relays().await.unwrap();
    admin.destinations().await.unwrap();
    assert_unchanged(fx, &before, "a question").await;
}
