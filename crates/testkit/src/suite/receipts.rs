//! Receipts that are kept, so that an effect need not be brought about twice.

use posthouse_core::{AttemptOutcome, Claimed, Delivery, Effect, Message, Receipt, Settlement};

use super::tools::*;
use crate::Fixture;

/// The destination of most cases.
const THERE: &str = "memory";

/// Enqueues one and claims it; nothing else may be due.
async fn granted(fx: &dyn Fixture, message: Message) -> (Claimed, Effect) {
    put(fx, message).await;
    let claimed = claim_one(&*fx.store().await, "w1").await;
    let effect = Effect::of(&claimed.delivery, THERE);
    (claimed, effect)
}

/// The same, delivered, and its receipt kept.
async fn kept(fx: &dyn Fixture, message: Message, receipt: Option<&str>) -> (Claimed, Effect) {
    let (claimed, effect) = granted(fx, message).await;
    let settlement = Settlement::delivered(&claimed.lease, receipt).keeping(effect);
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
    (claimed, effect)
}

async fn earlier(fx: &dyn Fixture, effect: Effect) -> Option<Receipt> {
    let mut answers = fx.store().await.earlier_receipts(&[effect]).await.unwrap();
    assert_eq!(answers.len(), 1, "one answer for one effect");
    answers.remove(0)
}

fn receipt(text: &str) -> Option<Receipt> {
    Some(Receipt {
        text: Some(text.to_owned()),
    })
}

/// The twin finds it, and is done with it.
pub async fn a_kept_receipt_stands_for_a_twin(fx: &dyn Fixture) {
    kept(fx, message("a"), Some("memory-9")).await;
    let (twin, effect) = granted(fx, message("a")).await;
    assert_eq!(earlier(fx, effect).await, receipt("memory-9"));
    let settlement = Settlement::duplicate(&twin.lease, Some("memory-9"));
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
    let attempts = fx.admin().await.attempts(twin.lease.id).await.unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!(
        (attempts[0].outcome, attempts[0].receipt.as_deref()),
        (AttemptOutcome::Duplicate, Some("memory-9"))
    );
    assert_sound(fx, &[twin.lease.id]).await;
}

/// A delivery whose settlement does not ask keeps nothing.
pub async fn what_is_not_asked_for_is_not_kept(fx: &dyn Fixture) {
    let (claimed, effect) = granted(fx, message("a")).await;
    assert!(settle(&*fx.store().await, delivered(&claimed.lease)).await.is_settled());
    assert_eq!(earlier(fx, effect).await, None);
}

/// It was delivered, whatever the destination said about it.
pub async fn a_delivery_without_a_receipt_is_kept_too(fx: &dyn Fixture) {
    let (_, effect) = kept(fx, message("a"), None).await;
    assert_eq!(earlier(fx, effect).await, Some(Receipt { text: None }));
    let (_, empty) = kept(fx, message("b"), Some("")).await;
    assert_eq!(earlier(fx, empty).await, receipt(""));
}

/// Another content, content type, topic, tenant, namespace or destination is another effect.
pub async fn a_receipt_stands_for_its_own_effect_only(fx: &dyn Fixture) {
    let (claimed, effect) = kept(fx, message("a").tenant("acme"), Some("r")).await;
    let d = &claimed.delivery;
    let others = [
        Delivery {
            payload: b"b".to_vec(),
            ..d.clone()
        },
        Delivery {
            content_type: "text/html".into(),
            ..d.clone()
        },
        Delivery {
            topic: "invoices".into(),
            ..d.clone()
        },
        Delivery {
            tenant: "zeta".into(),
            ..d.clone()
        },
        Delivery {
            namespace: "shop".into(),
            ..d.clone()
        },
    ];
    for other in &others {
        assert_eq!(earlier(fx, Effect::of(other, THERE)).await, None, "{other:?}");
    }
    assert_eq!(earlier(fx, Effect::of(d, "elsewhere")).await, None);
    assert_eq!(earlier(fx, effect).await, receipt("r"));
}

/// Many are asked for at once; each has its own answer, also where one is asked for twice.
pub async fn many_are_answered_in_their_order(fx: &dyn Fixture) {
    let (_, a) = kept(fx, message("a"), Some("ra")).await;
    let (_, b) = kept(fx, message("b"), Some("rb")).await;
    let (claimed, nothing) = granted(fx, message("c")).await;
    assert!(settle(&*fx.store().await, released(&claimed.lease)).await.is_settled());
    let answers = fx.store().await.earlier_receipts(&[b, nothing, a, b]).await.unwrap();
    assert_eq!(answers, [receipt("rb"), None, receipt("ra"), receipt("rb")]);
    assert_eq!(fx.store().await.earlier_receipts(&[]).await.unwrap(), []);
}

/// Both went out at the same time: both are settled, the first one's receipt stands, and a repetition changes nothing.
pub async fn twins_in_flight_are_both_settled(fx: &dyn Fixture) {
    put_all(fx, vec![message("a"), message("a")]).await;
    let store = fx.store().await;
    let twins = claim(&*store, "w1", 2).await;
    let effect = Effect::of(&twins[0].delivery, THERE);
    let settlements: Vec<_> = twins
        .iter()
        .zip(["first", "second"])
        .map(|(twin, receipt)| Settlement::delivered(&twin.lease, Some(receipt)).keeping(effect))
        .collect();
    settle_all(&*store, &settlements).await;
    assert_eq!(earlier(fx, effect).await, receipt("first"));
    let before = fx.dump().await;
    settle_all(&*store, &settlements).await;
    assert_eq!(fx.dump().await, before);
}

/// What was not written keeps nothing: a lost lease, a refused follow-up, a handler that rolled back.
pub async fn only_what_wins_keeps_its_receipt(fx: &dyn Fixture) {
    let (stale, effect) = granted(fx, message("a")).await;
    fx.advance(LEASE).await;
    let late = Settlement::delivered(&stale.lease, Some("late")).keeping(effect);
    assert!(settle(&*fx.store().await, late).await.is_lost());
    assert_eq!(earlier(fx, effect).await, None);

    put(fx, message("x").dedupe_key("taken").delay(DAY)).await;
    let store = fx.store().await;
    posthouse_core::repair(&*store, 10).await.unwrap();
    let again = claim_one(&*store, "w2").await;
    let poisoned = Settlement::delivered(&again.lease, Some("r"))
        .keeping(effect)
        .follow_ups(vec![message("other content").dedupe_key("taken")]);
    assert!(!settle(&*store, poisoned).await.is_settled());
    assert_eq!(earlier(fx, effect).await, None);

    let sound = Settlement::delivered(&again.lease, Some("r")).keeping(effect);
    let mut tx = fx.begin().await;
    assert!(tx.settle_in(&sound).await.unwrap().is_settled());
    tx.rollback().await;
    assert_eq!(earlier(fx, effect).await, None);
    let mut tx = fx.begin().await;
    assert!(tx.settle_in(&sound).await.unwrap().is_settled());
    tx.commit().await.unwrap();
    assert_eq!(earlier(fx, effect).await, receipt("r"));
}

/// Whatever the message is: with an order key, a dedupe key, follow-ups; in a batch with others.
pub async fn every_kind_of_message_keeps_its_receipt(fx: &dyn Fixture) {
    let ids = put_all(
        fx,
        vec![
            message("plain"),
            message("silent"),
            message("deduped").dedupe_key("d"),
            keyed("k", "keyed"),
            message("parent"),
            message("failed"),
            message("not kept"),
        ],
    )
    .await;
    let store = fx.store().await;
    let claimed = claim(&*store, "w1", 10).await;
    assert_eq!(claimed.len(), 7);
    let effects: Vec<_> = claimed.iter().map(|c| Effect::of(&c.delivery, THERE)).collect();
    let all = claimed.iter().zip(bodies(&claimed)).zip(&effects);
    let settlements: Vec<_> = all
        .map(|((claimed, body), effect)| {
            let lease = &claimed.lease;
            match body.as_str() {
                "silent" => acknowledged(lease).keeping(*effect),
                "parent" => delivered(lease).keeping(*effect).follow_ups(vec![message("child")]),
                "failed" => failed(lease, 3).keeping(*effect),
                "not kept" => delivered(lease),
                _ => delivered(lease).keeping(*effect),
            }
        })
        .collect();
    settle_all(&*store, &settlements).await;
    let found = store.earlier_receipts(&effects).await.unwrap();
    for (body, found) in bodies(&claimed).iter().zip(found) {
        let expected = match body.as_str() {
            "failed" | "not kept" => None,
            "silent" => Some(Receipt { text: None }),
            _ => receipt("receipt"),
        };
        assert_eq!(found, expected, "{body}");
    }
    assert_sound(fx, &ids).await;
}

/// A kept receipt is evidence of its message, and goes with it; that of a later delivery stands then.
pub async fn a_receipt_goes_with_its_message(fx: &dyn Fixture) {
    let (_, effect) = kept(fx, message("a"), Some("first")).await;
    fx.advance(DAY).await;
    kept(fx, message("a"), Some("second")).await;
    assert_eq!(earlier(fx, effect).await, receipt("first"));
    let admin = fx.admin().await;
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().messages(), 1);
    assert_eq!(earlier(fx, effect).await, receipt("second"));
    fx.advance(DAY).await;
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().messages(), 1);
    assert_eq!(earlier(fx, effect).await, None);
}

/// A duplicate leaves no receipt of its own: it lives on the earlier one.
pub async fn a_duplicate_prolongs_nothing(fx: &dyn Fixture) {
    let (_, effect) = kept(fx, message("a"), Some("r")).await;
    fx.advance(DAY).await;
    let (twin, _) = granted(fx, message("a")).await;
    let settlement = Settlement::duplicate(&twin.lease, Some("r")).keeping(effect);
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
    assert_eq!(fx.admin().await.prune(&ended(DAY, 100)).await.unwrap().messages(), 1);
    assert_eq!(earlier(fx, effect).await, None);
}

/// To ask changes nothing.
pub async fn asking_for_receipts_changes_nothing(fx: &dyn Fixture) {
    let (_, effect) = kept(fx, message("a"), Some("r")).await;
    let before = fx.dump().await;
    assert_eq!(earlier(fx, effect).await, receipt("r"));
    assert_eq!(fx.dump().await, before);
}
