//! Claim: never more than asked, oldest first, tenants fairly, and nobody else's.

use posthouse_core::{Claim, Claimed, Error, Message, State, Store};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use super::tools::*;
use crate::Fixture;

fn ids(claimed: &[Claimed]) -> BTreeSet<posthouse_core::MessageId> {
    claimed.iter().map(|c| c.lease.id).collect()
}

async fn take(fx: &dyn Fixture, claim: Claim) -> Vec<Claimed> {
    fx.store().await.claim(&claim).await.unwrap()
}

fn ask(batch: u32) -> Claim {
    Claim::new("w1", batch, LEASE)
}

/// Not one message more, and all of them in the end.
pub async fn a_claim_never_exceeds_its_batch(fx: &dyn Fixture) {
    put_all(fx, (0..20).map(|n| message(&n.to_string())).collect()).await;
    let mut sizes = Vec::new();
    for _ in 0..4 {
        sizes.push(take(fx, ask(7)).await.len());
    }
    assert_eq!(sizes, [7, 7, 6, 0]);
}

/// A claim that makes no sense is refused and takes nothing.
pub async fn a_senseless_claim_is_refused(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let store = fx.store().await;
    let bad = [
        ("batch", Claim::new("w1", 0, LEASE)),
        ("batch", Claim::new("w1", 10_001, LEASE)),
        ("worker", Claim::new("", 1, LEASE)),
        ("lease", Claim::new("w1", 1, Duration::ZERO)),
        ("lease", Claim::new("w1", 1, Duration::MAX)),
    ];
    for (field, claim) in bad {
        match store.claim(&claim).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field} was not refused: {other:?}"),
        }
    }
    assert_eq!(view(fx, id).await.epoch, 0);
}

/// The payloads together do not pass the limit; what is left comes with the next claim.
pub async fn a_claim_stops_before_its_bytes_are_passed(fx: &dyn Fixture) {
    put_all(fx, vec![message(&"x".repeat(100)); 5]).await;
    assert_eq!(take(fx, ask(10).max_bytes(250)).await.len(), 2);
    assert_eq!(take(fx, ask(10).max_bytes(300)).await.len(), 3);
}

/// Or a large message would wait for ever.
pub async fn one_message_is_granted_whatever_its_size(fx: &dyn Fixture) {
    put_all(fx, vec![message(&"x".repeat(1000)), message("small")]).await;
    assert_eq!(take(fx, ask(10).max_bytes(10)).await.len(), 1);
    assert_eq!(bodies(&take(fx, ask(10).max_bytes(10)).await), ["small"]);
}

/// What was left because it was too large is not passed over: it is there in the claims that follow.
pub async fn what_was_too_large_comes_with_a_later_claim(fx: &dyn Fixture) {
    let large = || message(&"x".repeat(100));
    // One handle, because what was passed over is remembered there.
    let store = fx.store().await;
    let one = async |most, left: u32| {
        let look = store.look(&ask(10).max_bytes(most)).await.unwrap();
        assert_eq!(look.granted.len(), 1, "{left} are left");
        assert!(
            !look.complete || left == 0,
            "{left} are left, and it says that it saw all"
        );
        deliver(&*store, &look.granted).await;
    };
    put_all(fx, vec![large(); 6]).await;
    for left in (0..6).rev() {
        one(150, left).await;
    }
    // Keys may take all bytes there are, so that the others are not even looked at.
    put_all(fx, vec![large(); 3]).await;
    put_all(fx, (0..3).map(|n| large().order_key(format!("k{n}"))).collect()).await;
    for left in (0..6).rev() {
        one(100, left).await;
    }
    // Nor does a key that fits say that another one does.
    put_all(fx, (0..3).map(|n| large().order_key(format!("l{n}"))).collect()).await;
    for left in (0..3).rev() {
        one(150, left).await;
    }
    assert!(take(fx, ask(10)).await.is_empty());
}

/// First come, first served, over transactions and claims.
pub async fn the_oldest_come_first(fx: &dyn Fixture) {
    for n in 0..6 {
        put(fx, message(&n.to_string())).await;
    }
    assert_eq!(bodies(&take(fx, ask(4)).await), ["0", "1", "2", "3"]);
    assert_eq!(bodies(&take(fx, ask(4)).await), ["4", "5"]);
}

/// Topics whose destination is closed do not fill the batch, however many wait there.
pub async fn left_topics_are_left_alone(fx: &dyn Fixture) {
    put_all(fx, vec![message("paused"); 50]).await;
    put(fx, Message::bytes("invoices", "text/plain", "open")).await;
    let claim = || ask(10).not_topic("orders").not_topic("other");
    assert_eq!(bodies(&take(fx, claim()).await), ["open"]);
    assert!(take(fx, claim()).await.is_empty());
    assert_eq!(take(fx, ask(100)).await.len(), 50);
}

/// A relay of some namespaces does not touch the others.
pub async fn only_the_named_namespaces_are_claimed(fx: &dyn Fixture) {
    for namespace in ["a", "b", "c"] {
        put(fx, message(namespace).namespace(namespace)).await;
    }
    let two = take(fx, ask(10).namespace("a").namespace("c")).await;
    assert_eq!(
        bodies(&two).into_iter().collect::<BTreeSet<_>>(),
        ["a", "c"].map(str::to_owned).into()
    );
    assert_eq!(bodies(&take(fx, ask(10)).await), ["b"]);
}

/// P11. In whatever order they are named, none hides another: not for a claim of one tenant either, and not if what stands in it is left there.
pub async fn no_namespace_hides_another(fx: &dyn Fixture) {
    let store = fx.store().await;
    let left = Message::bytes("left", "text/plain", "left").tenant("t");
    put(fx, left.clone().namespace("orders")).await;
    put(fx, left.order_key("k").namespace("orders")).await;
    for round in 0..3 {
        for tenant in [None, Some("t")] {
            for message in [message("open"), keyed("k", "open")] {
                put(fx, message.tenant("t").namespace("billing")).await;
                let named = ask(10).namespace("orders").namespace("billing").not_topic("left");
                let claim = match tenant {
                    Some(tenant) => named.tenant(tenant),
                    None => named,
                };
                let found = store.claim(&claim).await.unwrap();
                assert_eq!(bodies(&found), ["open"], "round {round}, tenant {tenant:?}");
                deliver(&*store, &found).await;
            }
        }
    }
}

/// P19. A claim for one tenant neither grants nor changes another's message, not even one that has lapsed.
pub async fn a_tenants_claim_touches_no_other_tenant(fx: &dyn Fixture) {
    let other = put(fx, message("b").tenant("b").deliver_in(SECOND)).await;
    let none = put(fx, message("none")).await;
    put(fx, message("a").tenant("a")).await;
    fx.advance(SECOND * 2).await;
    let (lapsing, before) = (view(fx, other).await, view(fx, none).await);
    assert_eq!(bodies(&take(fx, ask(10).tenant("a")).await), ["a"]);
    assert!(take(fx, ask(10).tenant("a")).await.is_empty());
    assert_eq!((view(fx, other).await, view(fx, none).await), (lapsing, before));
}

/// Asking often costs a message nothing.
pub async fn an_empty_poll_counts_nothing(fx: &dyn Fixture) {
    let id = put(fx, message("later").delay(DAY)).await;
    let before = view(fx, id).await;
    for _ in 0..20 {
        assert!(take(fx, ask(10)).await.is_empty());
    }
    assert_eq!(view(fx, id).await, before);
    assert_eq!((before.attempts, before.epoch), (0, 0));
}

/// L4. One tenant's flood does not delay another's single message beyond the next claim.
pub async fn a_flood_does_not_delay_another_tenant(fx: &dyn Fixture) {
    put_all(fx, vec![message("flood").tenant("loud"); 500]).await;
    take(fx, ask(10)).await;
    put(fx, message("single").tenant("quiet")).await;
    assert!(bodies(&take(fx, ask(10)).await).contains(&"single".to_owned()));
}

/// Each tenant with work gets its share of a batch before any gets more.
pub async fn tenants_share_a_batch(fx: &dyn Fixture) {
    for tenant in ["a", "b", "c"] {
        put_all(fx, vec![message("x").tenant(tenant); 20]).await;
    }
    let mut shares = BTreeMap::new();
    for claimed in take(fx, ask(9)).await {
        *shares.entry(claimed.delivery.tenant).or_insert(0) += 1;
    }
    assert_eq!(
        shares,
        BTreeMap::from([("a", 3), ("b", 3), ("c", 3)].map(|(t, n)| (t.to_owned(), n)))
    );
}

/// What the others leave of their share goes to those who have more.
pub async fn an_unused_share_goes_to_the_others(fx: &dyn Fixture) {
    put_all(fx, vec![message("x").tenant("a"); 20]).await;
    put(fx, message("x").tenant("b")).await;
    assert_eq!(take(fx, ask(10)).await.len(), 10);
}

/// However often that has to be done: here half of those that are asked have nothing left, five times.
pub async fn unused_shares_go_on_until_the_batch_is_full(fx: &dyn Fixture) {
    let mut messages = vec![message("x").tenant("rich"); 50];
    for (tenants, each) in [(16, 1), (8, 3), (4, 5), (2, 7), (1, 9)] {
        for n in 0..tenants {
            messages.extend(vec![message("x").tenant(format!("{each}-{n}")); each]);
        }
    }
    put_all(fx, messages).await;
    assert_eq!(take(fx, ask(96)).await.len(), 96);
}

/// However many tenants have a little, a claim is filled: those that a relay served before hide no others.
pub async fn many_tenants_fill_a_claim(fx: &dyn Fixture) {
    let store = fx.store().await;
    put_all(fx, (0..320).map(|n| message("x").tenant(format!("t{n}"))).collect()).await;
    let mut sizes = Vec::new();
    while let found @ [_, ..] = &*claim(&*store, "w1", 32).await {
        sizes.push(found.len());
        deliver(&*store, found).await;
    }
    assert_eq!(sizes.iter().sum::<usize>(), 320);
    // Ten would be all that it takes. A claim begins to look anywhere, and the last ones find little: 12 to 16; where neighbours are hidden, 288.
    assert!(sizes.len() <= 40, "{sizes:?}");
}

/// Even a claim of one message at a time serves every tenant soon: within twice as many claims as there are tenants, because a
/// relay may first have to find them.
pub async fn claims_of_one_go_round_the_tenants(fx: &dyn Fixture) {
    let tenants = ["a", "b", "c", "d"];
    for tenant in tenants {
        put_all(fx, vec![message("x").tenant(tenant); 10]).await;
    }
    let store = fx.store().await;
    let mut served = BTreeSet::new();
    for _ in 0..2 * tenants.len() {
        served.extend(claim(&*store, "w1", 1).await.into_iter().map(|c| c.delivery.tenant));
    }
    assert_eq!(served, tenants.map(str::to_owned).into());
}

/// Also where a claim has room for a few bytes only.
pub async fn claims_of_few_bytes_go_round_the_tenants(fx: &dyn Fixture) {
    put_all(
        fx,
        (0..600)
            .map(|n| message("12345678").tenant(format!("t{}", n % 5)))
            .collect(),
    )
    .await;
    let store = fx.store().await;
    assert_eq!(claim(&*store, "w1", 10).await.len(), 10, "whose they are is known now");
    let mut served = BTreeSet::new();
    for _ in 0..100 {
        let found = store.claim(&Claim::new("w1", 10, LEASE).max_bytes(8)).await.unwrap();
        assert_eq!(found.len(), 1);
        served.extend(found.into_iter().map(|c| c.delivery.tenant));
    }
    assert_eq!(served.len(), 5, "{served:?}");
}

/// An empty answer sends a relay to sleep, so it must be true: while one of fifty tenants has something, no claim is empty.
pub async fn no_claim_is_empty_while_something_is_free(fx: &dyn Fixture) {
    let store = fx.store().await;
    for round in 0..2 {
        put_all(fx, (0..50).map(|n| message("x").tenant(format!("t{n}"))).collect()).await;
        for n in 0..50 {
            let found = claim(&*store, "w1", 1).await;
            assert_eq!(found.len(), 1, "round {round}, claim {n}");
            deliver(&*store, &found).await;
        }
        assert!(claim(&*store, "w1", 1).await.is_empty());
    }
}

/// The same when the others run dry: whichever of them a relay looks into first, it goes on to the one that has more.
pub async fn no_claim_is_empty_while_one_of_many_has_more(fx: &dyn Fixture) {
    let store = fx.store().await;
    for rich in 0..6 {
        let tenants = (0..6).map(|n| message("x").tenant(format!("t{n}")));
        put_all(
            fx,
            tenants
                .chain((0..6).map(|_| message("x").tenant(format!("t{rich}"))))
                .collect(),
        )
        .await;
        for n in 0..12 {
            let found = claim(&*store, "w1", 1).await;
            assert_eq!(found.len(), 1, "tenant {rich} is rich, claim {n}");
            deliver(&*store, &found).await;
        }
    }
}

/// P11. However many lapsed in front of it, a message that is free is found.
pub async fn lapsed_messages_hide_no_free_one(fx: &dyn Fixture) {
    let store = fx.store().await;
    deliver(
        &*store,
        &[{
            put(fx, message("first")).await;
            claim_one(&*store, "w1").await
        }],
    )
    .await;
    let mut lapsing = vec![message("x").deliver_in(SECOND); 100];
    lapsing.push(message("good"));
    put_all(fx, lapsing).await;
    fx.advance(SECOND * 2).await;
    let mut found = Vec::new();
    for _ in 0..30 {
        found.extend(bodies(&claim(&*store, "w1", 5).await));
    }
    assert_eq!(found, ["good"]);
}

/// Nor do messages of topics that are left, however many.
pub async fn left_topics_hide_no_free_one(fx: &dyn Fixture) {
    put_all(fx, vec![message("paused"); 400]).await;
    put(fx, Message::bytes("invoices", "text/plain", "open")).await;
    assert_eq!(bodies(&take(fx, ask(1).not_topic("orders")).await), ["open"]);
}

/// L1. A worker that leaves a topic parks its messages again and again; one that can send them gets them all the same, however much
/// else there is.
pub async fn a_topic_that_some_leave_is_sent_by_those_who_can(fx: &dyn Fixture) {
    put_all(fx, vec![Message::bytes("rare", "text/plain", "rare"); 3]).await;
    put_all(fx, vec![message("common"); 200]).await;
    let (store, mut rare) = (fx.store().await, 0);
    for _ in 0..8 {
        let picky = take(fx, ask(10).not_topic("rare")).await;
        assert!(bodies(&picky).iter().all(|body| body == "common"));
        deliver(&*store, &picky).await;
        let any = take(fx, ask(10)).await;
        rare += bodies(&any).iter().filter(|body| *body == "rare").count();
        deliver(&*store, &any).await;
        put_all(fx, vec![message("common"); 20]).await;
    }
    assert_eq!(rare, 3);
}

/// A tenant with thousands of delayed messages, and one with a single message that falls due after them.
async fn put_flood_that_waits(fx: &dyn Fixture) {
    put_all(fx, vec![message("flood").tenant("loud").delay(SECOND); 3000]).await;
    put(fx, message("single").tenant("quiet").namespace("own").delay(SECOND * 2)).await;
    fx.advance(SECOND * 3).await;
}

/// L4. The same for messages that fall due: retries of one tenant do not stand before another's.
pub async fn a_flood_that_falls_due_does_not_delay_another_tenant(fx: &dyn Fixture) {
    put_flood_that_waits(fx).await;
    assert!(bodies(&take(fx, ask(10)).await).contains(&"single".to_owned()));
}

/// Nor do messages of a topic that nobody could send for a while.
pub async fn a_flood_of_a_left_topic_does_not_delay_another_tenant(fx: &dyn Fixture) {
    put_all(fx, vec![message("flood").tenant("loud"); 300]).await;
    put(fx, message("single").tenant("quiet")).await;
    assert!(take(fx, ask(10).not_topic("orders")).await.is_empty());
    assert!(bodies(&take(fx, ask(10)).await).contains(&"single".to_owned()));
}

/// An empty answer must be true for a claim of one tenant or namespace too, whatever waits elsewhere.
pub async fn a_flood_that_falls_due_hides_nothing_from_a_scoped_claim(fx: &dyn Fixture) {
    put_flood_that_waits(fx).await;
    put(fx, message("own").namespace("own")).await;
    let own = take(fx, ask(1).namespace("own").tenant("quiet")).await;
    assert_eq!(bodies(&own), ["single"]);
    settle(&*fx.store().await, released(&own[0].lease)).await;
    assert_eq!(bodies(&take(fx, ask(1).tenant("quiet")).await), ["single"]);
    assert_eq!(bodies(&take(fx, ask(10).namespace("own")).await), ["own"]);
}

/// P19. Whatever another tenant has that is due, lapsed, parked, behind in a key or expired: a claim for one tenant moves not one
/// record of it.
pub async fn a_tenants_claim_changes_no_record_of_another(fx: &dyn Fixture) {
    let loud = |message: Message| message.tenant("loud");
    put_all(
        fx,
        vec![
            loud(message("due").delay(SECOND)),
            loud(message("lapsed").deliver_in(SECOND)),
            loud(keyed("k", "head").delay(SECOND)),
            loud(keyed("k", "behind")),
            loud(keyed("lapsed", "head").deliver_in(SECOND)),
        ],
    )
    .await;
    put_all(
        fx,
        vec![
            loud(message("left")),
            loud(keyed("left", "head")),
            loud(keyed("left", "behind")),
        ],
    )
    .await;
    assert!(take(fx, ask(10).not_topic("orders")).await.is_empty());
    put(fx, Message::bytes("invoices", "text/plain", "expires").tenant("loud")).await;
    assert_eq!(take(fx, ask(10).not_topic("orders")).await.len(), 1);
    fx.advance(LEASE * 2).await;
    let before = fx.dump().await;
    for claim in [
        ask(10).tenant("quiet"),
        ask(10).tenant("quiet").not_topic("orders"),
        ask(10).tenant("quiet").namespace("default"),
    ] {
        assert!(take(fx, claim).await.is_empty());
        assert_unchanged(fx, &before, "a claim for another tenant").await;
    }
}

/// A tenant at its limit does not fill the batch, however much of it waits, with order keys or without.
pub async fn left_tenants_are_left_alone(fx: &dyn Fixture) {
    for tenant in ["loud", "loud too"] {
        put_all(fx, vec![message("flood").tenant(tenant); 50]).await;
        put_all(
            fx,
            (0..20)
                .map(|n| keyed(&format!("k{n}"), "flood").tenant(tenant))
                .collect(),
        )
        .await;
    }
    put(fx, message("plain").tenant("quiet")).await;
    put(fx, keyed("k", "keyed").tenant("quiet")).await;
    put(fx, message("none")).await;
    let claim = || ask(10).not_tenant("loud").not_tenant("loud too");
    let found: BTreeSet<_> = bodies(&take(fx, claim()).await).into_iter().collect();
    assert_eq!(found, ["plain", "keyed", "none"].map(str::to_owned).into());
    assert!(take(fx, claim()).await.is_empty());
    assert_eq!(take(fx, ask(200)).await.len(), 140);
}

/// P11. Nor does it hide another's message, whichever tenants a relay knows already and in how many namespaces they are.
pub async fn left_tenants_hide_no_free_one(fx: &dyn Fixture) {
    let store = fx.store().await;
    let left = |n: u32| format!("left{n}");
    let mut all = Vec::new();
    for n in 0..40 {
        let one = message("x").tenant(left(n)).namespace(format!("n{}", n % 4));
        all.extend([one.clone(), one]);
    }
    put_all(fx, all).await;
    // It gets to know some of them.
    deliver(&*store, &claim(&*store, "w1", 40).await).await;
    let claim = || (0..40).fold(ask(5), |claim, n| claim.not_tenant(left(n)));
    for n in 0..20 {
        let free = message("free")
            .tenant(format!("free{n}"))
            .namespace(format!("n{}", n % 5));
        put(fx, if n % 2 == 0 { free } else { free.order_key("k") }).await;
        let found = store.claim(&claim()).await.unwrap();
        assert_eq!(bodies(&found), ["free"], "{n}");
        deliver(&*store, &found).await;
        assert!(store.claim(&claim()).await.unwrap().is_empty());
    }
}

/// P19. It is granted to a claim of its own, and only that much; a claim that both asks for it and leaves it gets nothing.
pub async fn a_left_tenant_has_claims_of_its_own(fx: &dyn Fixture) {
    put_all(fx, vec![message("loud").tenant("loud"); 10]).await;
    put(fx, message("quiet").tenant("quiet")).await;
    assert_eq!(bodies(&take(fx, ask(3).tenant("loud")).await), ["loud"; 3]);
    assert_eq!(
        bodies(&take(fx, ask(3).tenant("loud").not_tenant("quiet")).await),
        ["loud"; 3]
    );
    assert!(take(fx, ask(3).tenant("loud").not_tenant("loud")).await.is_empty());
    assert_eq!(bodies(&take(fx, ask(10).not_tenant("loud")).await), ["quiet"]);
    assert_eq!(bodies(&take(fx, ask(10)).await), ["loud"; 4]);
}

/// Whatever it waits for: its time, a route for its topic, a repair. And in a claim of some namespaces too.
pub async fn nothing_of_a_left_tenant_is_granted_whatever_it_waits_for(fx: &dyn Fixture) {
    let loud = |message: Message| message.tenant("loud");
    put_all(fx, vec![loud(message("left")), loud(keyed("left", "head"))]).await;
    assert!(take(fx, ask(10).not_topic("orders")).await.is_empty());
    let due = [message("due").delay(SECOND), keyed("due", "head").delay(SECOND)];
    put_all(fx, due.map(loud).into()).await;
    put(fx, message("single").delay(SECOND).tenant("quiet")).await;
    fx.advance(SECOND * 2).await;
    let claim = || ask(10).not_tenant("loud");
    assert_eq!(bodies(&take(fx, claim()).await), ["single"]);
    assert!(take(fx, claim().namespace("default")).await.is_empty());
    assert!(take(fx, claim().not_topic("orders")).await.is_empty());
    assert_eq!(take(fx, ask(10)).await.len(), 4);
}

/// P3. Eight relays empty the store together: every message once.
pub async fn eight_claimers_never_share_a_message(fx: &dyn Fixture) {
    let all = put_all(fx, (0..200).map(|n| message(&n.to_string())).collect()).await;
    let mut relays = Vec::new();
    for n in 0..8 {
        let store = fx.store().await;
        relays.push(async move { claim_until_empty(store, format!("w{n}")).await });
    }
    let mut claimed: Vec<Claimed> = at_once(relays).await.into_iter().flatten().collect();
    // A claim may find what is left in another's hands; it is claimable as soon as nobody else is at it.
    claimed.extend(claim(&*fx.store().await, "last", 200).await);
    assert_eq!(claimed.len(), all.len(), "no message twice, and none left");
    assert_eq!(ids(&claimed), all.into_iter().collect());
}

async fn claim_until_empty(store: Arc<dyn Store>, worker: String) -> Vec<Claimed> {
    let mut claimed = Vec::new();
    loop {
        let some = claim(&*store, &worker, 7).await;
        if some.is_empty() {
            return claimed;
        }
        claimed.extend(some);
    }
}

/// P8. A message that a slow claim could hardly send is not granted: no attempt is counted, and it never dies of that. Three such claims would spend its budget.
pub async fn claim_longer_than_half_its_lease_grants_nothing(fx: &dyn Fixture) {
    let plain = put(fx, message("plain").max_attempts(3)).await;
    let keyed = put(fx, keyed("k", "keyed").max_attempts(3)).await;
    let store = fx.store().await;
    for took in [LEASE / 2 + SECOND, LEASE, LEASE * 2] {
        fx.hold_up_claims(took).await;
        let late = store.claim(&ask(10)).await;
        fx.hold_up_claims(Duration::ZERO).await;
        match late {
            Ok(granted) => assert!(granted.is_empty(), "granted after {took:?}: {granted:?}"),
            Err(Error::Contention(_)) => {}
            Err(other) => panic!("after {took:?}: {other:?}"),
        }
        // If it was granted all the same, that lease is over now.
        fx.advance(LEASE * 2).await;
        expire(fx).await;
    }
    for id in [plain, keyed] {
        let found = view(fx, id).await;
        assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 0));
        assert!(fx.admin().await.attempts(id).await.unwrap().is_empty());
    }
    fx.hold_up_claims(LEASE / 4).await;
    let granted = store.claim(&ask(10)).await.unwrap();
    fx.hold_up_claims(Duration::ZERO).await;
    assert_eq!(granted.len(), 2, "half of the lease is left");
    assert!(granted.iter().all(|one| one.delivery.attempt == 1));
    deliver(&*store, &granted).await;
    assert_eq!(
        (state(fx, plain).await, state(fx, keyed).await),
        (State::Done, State::Done)
    );
}

/// The operator sees who holds it and until when.
pub async fn a_grant_is_visible_at_once(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    claim_one(&*fx.store().await, "w1").await;
    let found = view(fx, id).await;
    assert_eq!((found.state, found.worker.as_deref()), (State::Leased, Some("w1")));
    assert_eq!(found.lease_until, Some(fx.now().await.plus(LEASE)));
    assert_eq!((found.attempts, found.epoch, found.generation), (1, 1, 1));
}

/// P3. A token is fresh for every claim, also of the same worker.
pub async fn every_claim_has_a_token_of_its_own(fx: &dyn Fixture) {
    put_all(fx, vec![message("x"); 4]).await;
    let one = leases(&take(fx, ask(2)).await);
    let two = leases(&take(fx, ask(2)).await);
    assert_eq!((one.len(), two.len()), (2, 2));
    assert!(two.iter().all(|lease| lease.token != one[0].token));
}

/// P11. A message that went back is claimed again, though younger ones were claimed meanwhile.
pub async fn what_went_back_is_not_skipped(fx: &dyn Fixture) {
    let store = fx.store().await;
    let old = put_and_claim(fx, message("old")).await;
    put_done(fx, message("young")).await;
    assert!(settle(&*store, released(&old)).await.is_settled());
    let again = claim_one(&*store, "w1").await.lease;
    assert_eq!(again.id, old.id);
    put_done(fx, message("younger")).await;
    assert!(settle(&*store, failed(&again, 12)).await.is_settled());
    fx.advance(SECOND * 10).await;
    assert_eq!(claim_one(&*store, "w1").await.lease.id, old.id);
}

/// P10. While one claim holds a message of a key, no other claim gets the next, of the same worker or another.
pub async fn a_key_belongs_to_one_claim_at_a_time(fx: &dyn Fixture) {
    put_all(fx, vec![keyed("k", "1"), keyed("k", "2")]).await;
    let store = fx.store().await;
    let first = claim_one(&*store, "w1").await;
    assert_eq!(bodies(std::slice::from_ref(&first)), ["1"]);
    put(fx, keyed("other", "3")).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["3"]);
    assert!(claim(&*store, "w1", 10).await.is_empty());
    assert!(settle(&*store, delivered(&first.lease)).await.is_settled());
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["2"]);
}
