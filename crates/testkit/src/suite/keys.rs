//! P10: messages of one order key are sent one after another, in the order of their producers.

use posthouse_core::{Claim, Filter, Message, OnDead};
use std::collections::BTreeSet;

use super::{crew::*, tools::*};
use crate::Fixture;

/// Four relays, twenty keys: each message once, and each key in its order.
pub async fn four_workers_send_every_key_in_order(fx: &dyn Fixture) {
    let ids = put_all(fx, numbered(20, 10)).await;
    let crew = Crew {
        workers: 4,
        batch: 7,
        ends: 200,
        handle: |claimed| delivered(&claimed.lease),
        may_lose: false,
    };
    let sent = crew.run(fx, async {}).await;
    assert_in_order(&sent);
    // P21. No fault, no duplicate.
    assert_eq!(
        (sent.len(), sent.iter().map(|d| d.id).collect::<BTreeSet<_>>().len()),
        (200, 200)
    );
    assert_sound(fx, &ids).await;
}

/// What fails is sent again before what came after it; what is put back, too.
pub async fn order_holds_over_failures(fx: &dyn Fixture) {
    let ids = put_all(fx, numbered(12, 10)).await;
    let crew = Crew {
        workers: 4,
        batch: 9,
        ends: 120,
        handle: |claimed| match (number(&claimed.delivery) % 4, claimed.delivery.epoch) {
            (1, 1 | 2) => failed_again(&claimed.lease, 12),
            (2, 1) => released(&claimed.lease),
            (3, 2) => rejected(&claimed.lease),
            _ => delivered(&claimed.lease),
        },
        may_lose: false,
    };
    assert_in_order(&crew.run(fx, async {}).await);
    assert_sound(fx, &ids).await;
}

/// A failure holds what comes after it in its key until its time has come, and nobody else.
pub async fn a_backed_off_head_holds_its_key_and_nothing_else(fx: &dyn Fixture) {
    put_all(fx, line("k", &["1", "2"])).await;
    let store = fx.store().await;
    let run = claim(&*store, "w1", 10).await;
    assert!(settle(&*store, failed(&run[0].lease, 12)).await.is_settled());
    put_all(fx, vec![keyed("k", "3"), keyed("other", "4"), message("5")]).await;
    let free = claim(&*store, "w2", 10).await;
    assert_eq!(
        bodies(&free).into_iter().collect::<BTreeSet<_>>(),
        ["4", "5"].map(str::to_owned).into()
    );
    fx.advance(SECOND * 9).await;
    assert!(claim(&*store, "w2", 10).await.is_empty());
    fx.advance(SECOND).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2", "3"]);
}

/// So does a message that is to be sent later.
pub async fn a_delayed_head_holds_its_key_and_nothing_else(fx: &dyn Fixture) {
    put_all(
        fx,
        vec![keyed("k", "1").delay(SECOND * 5), keyed("k", "2"), keyed("other", "3")],
    )
    .await;
    let store = fx.store().await;
    let free = claim(&*store, "w1", 10).await;
    assert_eq!(bodies(&free), ["3"]);
    fx.advance(SECOND * 5).await;
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["1", "2"]);
}

/// A delay in the middle of a line ends the run there; the rest comes after it.
pub async fn a_delay_in_the_middle_ends_the_run(fx: &dyn Fixture) {
    put_all(
        fx,
        vec![keyed("k", "1"), keyed("k", "2").delay(SECOND * 5), keyed("k", "3")],
    )
    .await;
    let store = fx.store().await;
    let run = claim(&*store, "w1", 10).await;
    assert_eq!(bodies(&run), ["1"]);
    deliver(&*store, &run).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.advance(SECOND * 5).await;
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["2", "3"]);
}

/// However many keys wait for their time, a free one is found by the first who looks: P10 with L1.
pub async fn three_hundred_held_keys_hide_no_free_one(fx: &dyn Fixture) {
    let held = (0..300).map(|n| keyed(&format!("held{n}"), "1").delay(DAY));
    put_all(fx, held.collect()).await;
    let store = fx.store().await;
    for batch in [10, 1] {
        put(fx, keyed("free", "2")).await;
        let found = claim(&*store, "w1", batch).await;
        assert_eq!(bodies(&found), ["2"], "by a claim of {batch}");
        deliver(&*store, &found).await;
    }
}

/// Nor do other tenants' keys that wait hide a tenant's free one for long, however many there are.
pub async fn five_hundred_held_tenants_hide_no_free_one(fx: &dyn Fixture) {
    let held = (0..500).map(|n| keyed("k", "1").tenant(format!("t{n}")).delay(DAY));
    put_all(fx, held.collect()).await;
    put_all(
        fx,
        (0..20).map(|n| keyed("k", "2").tenant(format!("free{n}"))).collect(),
    )
    .await;
    let (store, mut found) = (fx.store().await, 0);
    for _ in 0..60 {
        let claimed = claim(&*store, "w1", 10).await;
        assert!(bodies(&claimed).iter().all(|body| body == "2"));
        deliver(&*store, &claimed).await;
        found += claimed.len();
    }
    assert_eq!(found, 20);
}

/// However many keys wait, with more behind their heads: a free one is found by the first who looks, and again.
pub async fn ten_thousand_waiting_keys_hide_no_free_one(fx: &dyn Fixture) {
    let waiting = |n: usize| {
        let key = format!("waits{n}");
        [keyed(&key, "1").delay(DAY), keyed(&key, "2")]
    };
    put_all(fx, (0..fx.many(10_000)).flat_map(waiting).collect()).await;
    let store = fx.store().await;
    for n in 0..2 {
        put(fx, keyed("free", "3")).await;
        let found = claim(&*store, "w1", 10).await;
        assert_eq!(bodies(&found), ["3"], "claim {n}");
        deliver(&*store, &found).await;
    }
    fx.advance(DAY).await;
    let found = claim(&*store, "w1", 10).await;
    assert_eq!(found.len(), 10);
    assert!(bodies(&found).contains(&"1".to_owned()));
}

/// Nor do keys whose heads are of a topic that is left; they are all there again for one who can send them.
pub async fn keys_of_a_left_topic_hide_no_free_one(fx: &dyn Fixture) {
    let open = |key: &str| Message::bytes("invoices", "text/plain", "open").order_key(key);
    let left = fx.many(5000);
    put_all(fx, (0..left).map(|n| keyed(&format!("left{n}"), "left")).collect()).await;
    put(fx, open("free")).await;
    let store = fx.store().await;
    let some = Claim::new("w1", 10, LEASE).not_topic("orders");
    let found = store.claim(&some).await.unwrap();
    assert_eq!(bodies(&found), ["open"]);
    deliver(&*store, &found).await;
    assert!(store.claim(&some).await.unwrap().is_empty());
    let mut found = 0;
    loop {
        let claimed = claim(&*store, "w1", 1000).await;
        if claimed.is_empty() {
            break;
        }
        found += claimed.len();
        deliver(&*store, &claimed).await;
    }
    assert_eq!(found, left);
}

/// A head that waits, for its time or for one who can send it, holds its key only as long as it is there.
pub async fn a_waiting_head_that_is_taken_away_frees_its_key(fx: &dyn Fixture) {
    let (store, admin) = (fx.store().await, fx.admin().await);
    for (n, left) in [(0, false), (1, false), (2, false), (3, true), (4, true)] {
        let key = format!("k{n}");
        let head = if left {
            Message::bytes("left", "text/plain", "head").order_key(&key)
        } else {
            keyed(&key, "head").delay(DAY)
        };
        let head = put(fx, head).await;
        put_all(fx, line(&key, &["1", "2", "3"])).await;
        let ask = Claim::new("w1", 10, LEASE).not_topic("left");
        assert!(store.claim(&ask).await.unwrap().is_empty(), "{key} is held");
        match n {
            0 | 3 => admin.cancel(head, "op", "").await.map(drop),
            1 | 4 => admin.resolve(head, "op", "", "").await.map(drop),
            _ => admin.quarantine(head, "op", "").await.map(drop),
        }
        .unwrap();
        // One by one: each makes the next of its key free.
        for body in ["1", "2", "3"] {
            let next = store
                .claim(&Claim::new("w1", 1, LEASE).not_topic("left"))
                .await
                .unwrap();
            assert_eq!(bodies(&next), [body], "{key}");
            deliver(&*store, &next).await;
        }
    }
}

/// What is behind it in its key waits with it, and comes after it.
pub async fn a_head_of_a_left_topic_holds_its_key(fx: &dyn Fixture) {
    let left = Message::bytes("left", "text/plain", "1").order_key("k");
    put_all(fx, vec![left, keyed("k", "2"), keyed("other", "3")]).await;
    let store = fx.store().await;
    let some = Claim::new("w1", 10, LEASE).not_topic("left");
    assert_eq!(bodies(&store.claim(&some).await.unwrap()), ["3"]);
    assert!(store.claim(&some).await.unwrap().is_empty());
    put(fx, keyed("k", "4")).await;
    assert!(store.claim(&some).await.unwrap().is_empty());
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["1", "2", "4"]);
}

/// P11. A head that would be tried again after its deliver-by is given up in time, and holds nobody longer.
pub async fn a_waiting_head_past_its_deliver_by_frees_its_key(fx: &dyn Fixture) {
    let store = fx.store().await;
    put_all(fx, vec![keyed("k", "1").deliver_in(SECOND * 5), keyed("k", "2")]).await;
    let head = claim(&*store, "w1", 1).await;
    settle(&*store, failed(&head[0].lease, 12)).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.advance(SECOND * 6).await;
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["2"]);
}

/// However many at the head of a key are past their deliver-by: the claim goes on to what is not, there and in other keys.
pub async fn lapsed_messages_of_a_key_hide_nobody(fx: &dyn Fixture) {
    let mut messages: Vec<_> = (0..25).map(|_| keyed("k", "late").deliver_in(SECOND)).collect();
    messages.extend([keyed("k", "1"), keyed("other", "2")]);
    put_all(fx, messages).await;
    fx.advance(SECOND * 2).await;
    let store = fx.store().await;
    let mut found = bodies(&claim(&*store, "w1", 10).await);
    found.sort();
    assert_eq!(found, ["1", "2"]);
}

/// Keys that waited, with and without more behind, in small claims: all of it, in order, and no claim is empty before the end.
pub async fn many_keys_that_fall_due_are_all_claimed(fx: &dyn Fixture) {
    let waiting = |n: usize| {
        let (key, tenant) = (format!("k{}", n % 70), format!("t{}", n % 3));
        let late = SECOND * u32::from(n.is_multiple_of(5));
        keyed(&key, &n.to_string()).tenant(tenant).delay(late)
    };
    put_all(fx, (0..420).map(waiting).collect()).await;
    let store = fx.store().await;
    let mut found = 0;
    for round in 0..2 {
        loop {
            let claimed = claim(&*store, "w1", 7).await;
            if claimed.is_empty() {
                break;
            }
            found += claimed.len();
            deliver(&*store, &claimed).await;
        }
        assert!(round == 1 || found < 420);
        fx.advance(SECOND * 2).await;
    }
    assert_eq!(found, 420);
}

/// A worker that sits on its key keeps nobody from the other keys.
pub async fn a_key_in_use_delays_no_other_key(fx: &dyn Fixture) {
    put_all(fx, line("slow", &["1", "2", "3"])).await;
    let store = fx.store().await;
    assert_eq!(claim(&*store, "w1", 1).await.len(), 1);
    put_all(fx, numbered(10, 2)).await;
    let others = claim(&*store, "w2", 100).await;
    assert_eq!(others.len(), 20);
    assert!(others.iter().all(|c| c.delivery.order_key.as_deref() != Some("slow")));
}

/// A claim does not spend itself on one key when others wait as long; and none is forgotten.
pub async fn a_claim_serves_several_keys(fx: &dyn Fixture) {
    put_all(fx, numbered(20, 5)).await;
    let (store, mut served) = (fx.store().await, 0);
    for round in 0..30 {
        let claimed = claim(&*store, "w1", 20).await;
        let keys: BTreeSet<_> = claimed.iter().map(|c| &c.delivery.order_key).collect();
        assert!(round > 2 || keys.len() > 1, "round {round}: {keys:?}");
        deliver(&*store, &claimed).await;
        served += claimed.len();
    }
    assert_eq!(served, 100);
}

/// A key that is never empty does not keep fifty others waiting.
pub async fn a_hot_key_does_not_starve_the_others(fx: &dyn Fixture) {
    let hot = || vec![keyed("hot", "x"); 10];
    put_all(fx, hot()).await;
    put_all(fx, (0..50).map(|n| keyed(&format!("k{n}"), "y")).collect()).await;
    let (store, mut served) = (fx.store().await, 0);
    for _ in 0..30 {
        let claimed = claim(&*store, "w1", 10).await;
        served += claimed.iter().filter(|c| c.delivery.payload == b"y").count();
        deliver(&*store, &claimed).await;
        put_all(fx, hot()).await;
    }
    assert_eq!(served, 50);
}

/// Neither kind keeps the other out of a batch.
pub async fn keyed_and_unkeyed_share_a_batch(fx: &dyn Fixture) {
    let both = (0..10).flat_map(|n| [keyed(&format!("k{n}"), "keyed"), message("unkeyed")]);
    put_all(fx, both.collect()).await;
    let store = fx.store().await;
    let first = claim(&*store, "w1", 10).await;
    let with_key = first.iter().filter(|c| c.delivery.order_key.is_some()).count();
    assert_eq!(first.len(), 10);
    assert!((1..10).contains(&with_key), "{with_key} of ten have a key");
    assert_eq!(claim(&*store, "w1", 100).await.len(), 10, "and the rest with the next");
}

/// A paused topic holds the keys that wait for it, where it stands in their line.
pub async fn a_left_topic_holds_only_its_key(fx: &dyn Fixture) {
    let paused = Message::bytes("paused", "text/plain", "2").order_key("k");
    put_all(fx, vec![keyed("k", "1"), paused, keyed("k", "3"), keyed("other", "4")]).await;
    let store = fx.store().await;
    let ask = Claim::new("w1", 10, LEASE).not_topic("paused");
    let first = store.claim(&ask).await.unwrap();
    assert_eq!(
        bodies(&first).into_iter().collect::<BTreeSet<_>>(),
        ["1", "4"].map(str::to_owned).into()
    );
    deliver(&*store, &first).await;
    assert!(store.claim(&ask).await.unwrap().is_empty(), "nothing overtakes it");
    assert_eq!(bodies(&claim(&*store, "w1", 10).await), ["2", "3"]);
}

/// The same key of another tenant or namespace is another key: what holds the one does not hold the others.
pub async fn a_key_belongs_to_its_namespace_and_tenant(fx: &dyn Fixture) {
    let (mine, theirs) = (
        line("k", &["1", "2"]),
        line("k", &["3", "4"]).into_iter().map(|m| m.tenant("acme")),
    );
    let other = line("k", &["5", "6"]).into_iter().map(|m| m.namespace("billing"));
    put_all(fx, mine.into_iter().chain(theirs).chain(other).collect()).await;
    let store = fx.store().await;
    let claimed = claim(&*store, "w1", 10).await;
    assert_eq!(claimed.len(), 6);
    let of = |body: &str| {
        claimed
            .iter()
            .find(|c| c.delivery.payload == body.as_bytes())
            .unwrap()
            .lease
            .clone()
    };
    settle_all(&*store, &[failed(&of("1"), 12)]).await;
    assert!(settle(&*store, delivered(&of("2"))).await.is_lost(), "of the same key");
    settle_all(
        &*store,
        &[delivered(&of("3")), delivered(&of("4")), delivered(&of("5"))],
    )
    .await;
    settle_all(&*store, &[failed_again(&of("6"), 12)]).await;
    assert_eq!(bodies(&claim(&*store, "w2", 10).await), ["6"]);
}

/// A key is compared byte by byte and is only data.
pub async fn a_key_is_any_text(fx: &dyn Fixture) {
    let odd = [
        "k",
        "K",
        "k ",
        "%",
        "_",
        "k%",
        "'; DROP TABLE message; --",
        "\"k\"",
        "\\",
        "\\k",
        "🦀",
        "e\u{301}",
        "é",
        "{k}",
        "null",
        "0",
        "\u{10ffff}",
    ];
    put_all(fx, odd.iter().flat_map(|key| line(key, &["0", "1"])).collect()).await;
    let store = fx.store().await;
    for n in ["0", "1"] {
        let mut heads = Vec::new();
        for _ in odd {
            heads.push(claim_one(&*store, "w1").await);
        }
        let keys: BTreeSet<_> = heads.iter().filter_map(|c| c.delivery.order_key.as_deref()).collect();
        assert_eq!(keys, odd.into());
        assert!(bodies(&heads).iter().all(|body| body == n), "each key in its order");
        assert!(claim(&*store, "w1", 100).await.is_empty(), "each key is held");
        deliver(&*store, &heads).await;
    }
}

/// A list by order key finds that key and no other.
pub async fn an_odd_key_is_found_by_its_name(fx: &dyn Fixture) {
    for key in ["%", "k%", "K", "k", "k'", "\\"] {
        put(fx, keyed(key, "x")).await;
        let filter = Filter {
            order_key: Some(key.to_owned()),
            ..Filter::default()
        };
        let found = fx.admin().await.list(&filter).await.unwrap().messages;
        assert_eq!(
            found.iter().map(|m| m.order_key.as_deref()).collect::<Vec<_>>(),
            [Some(key)]
        );
    }
}

/// One call with two hundred of them: the order of the input, over as many claims as it takes.
pub async fn a_bulk_of_one_key_keeps_its_order(fx: &dyn Fixture) {
    put_all(fx, numbered(1, 200)).await;
    let (store, mut sent) = (fx.store().await, Vec::new());
    while sent.len() < 200 {
        let run = claim(&*store, "w1", 33).await;
        assert!(!run.is_empty());
        deliver(&*store, &run).await;
        sent.extend(run.iter().map(|c| number(&c.delivery)));
    }
    assert_eq!(sent, (0..200).collect::<Vec<_>>());
}

/// What a death would do to its key is known to its holder; without a word it lets the others pass.
pub async fn a_lease_says_what_a_death_would_do(fx: &dyn Fixture) {
    let plain = put_and_claim(fx, keyed("plain", "x")).await;
    let blocking = put_and_claim(fx, keyed("blocking", "x").on_dead(OnDead::Block)).await;
    assert_eq!((plain.on_dead, blocking.on_dead), (OnDead::Pass, OnDead::Block));
}

/// A dead message that did not block goes to the tail of its key, behind what came after it.
pub async fn a_replayed_message_goes_to_the_tail(fx: &dyn Fixture) {
    let first = put_dead(fx, keyed("k", "1")).await;
    put_all(fx, line("k", &["2", "3"])).await;
    fx.admin().await.replay(first, "op", "fixed", None).await.unwrap();
    put(fx, keyed("k", "4")).await;
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["2", "3", "1", "4"]);
}

/// P5. A receiver can tell the replay from what it saw before.
pub async fn a_replay_of_a_keyed_message_raises_its_epoch(fx: &dyn Fixture) {
    let id = put_dead(fx, keyed("k", "1")).await;
    for generation in 2..5 {
        fx.admin().await.replay(id, "op", "again", None).await.unwrap();
        let again = claim_one(&*fx.store().await, "w1").await;
        assert_eq!((again.delivery.generation, again.delivery.attempt), (generation, 1));
        assert_eq!(again.delivery.epoch, u64::from(generation));
        assert!(settle(&*fx.store().await, rejected(&again.lease)).await.is_settled());
    }
    assert_sound(fx, &[id]).await;
}
