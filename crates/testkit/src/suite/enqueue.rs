//! P1: a message exists for relays if and only if its transaction committed; and it arrives as it was written.

use posthouse_core::{DeadReason, Enqueued, Error, Kind, Message, MessageId, OnDuplicate, State};
use std::time::Duration;
use uuid::Uuid;

use super::tools::*;
use crate::Fixture;

/// Committed together with the application's change, and claimed by one worker.
pub async fn a_committed_message_is_claimed_once(fx: &dyn Fixture) {
    let mut tx = fx.begin().await;
    tx.note("order 42").await;
    let id = tx.enqueue(message("42")).await.unwrap().id();
    tx.commit().await.unwrap();
    assert_eq!(fx.notes().await, ["order 42"]);
    let store = fx.store().await;
    assert_eq!(claim_one(&*store, "w1").await.delivery.id, id);
    assert!(claim(&*store, "w2", 10).await.is_empty());
}

/// Rolled back together with the application's change.
pub async fn a_rolled_back_message_never_existed(fx: &dyn Fixture) {
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    tx.note("order 42").await;
    tx.enqueue(message("42").order_key("k").dedupe_key("d")).await.unwrap();
    tx.rollback().await;
    assert_eq!(fx.dump().await, before);
    assert!(fx.notes().await.is_empty());
    assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
}

/// A relay that claims before the commit gets nothing. With one writer at a time it cannot even look.
pub async fn an_open_transactions_message_is_not_claimed(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let mut tx = fx.begin().await;
    let id = tx.enqueue(message("42")).await.unwrap().id();
    if parallel {
        assert!(claim(&*fx.store().await, "w1", 10).await.is_empty());
        assert_eq!(fx.admin().await.find(id).await.unwrap(), None);
    }
    tx.commit().await.unwrap();
    assert_eq!(claim_one(&*fx.store().await, "w1").await.delivery.id, id);
}

/// P11. The younger message was committed, claimed and done before the older one's transaction ended.
pub async fn a_late_commit_is_not_skipped(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let mut late = fx.begin().await;
    let old = late.enqueue(message("old")).await.unwrap().id();
    if parallel {
        put_done(fx, message("young")).await;
    }
    late.commit().await.unwrap();
    assert_eq!(claim_one(&*fx.store().await, "w1").await.delivery.id, old);
}

/// Every field arrives as it was given, every byte of the payload included.
pub async fn what_is_delivered_is_what_was_enqueued(fx: &dyn Fixture) {
    let payload: Vec<u8> = (0..=255).collect();
    let written = Message::bytes("shop/größe \"x\" '; --", "application/octet-stream", payload.clone())
        .tenant("acmé")
        .namespace("billing")
        .order_key("k \\ %s")
        .header("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01")
        .header("x-user", "\t{\"a\": 'ü'}");
    let id = put(fx, written.clone()).await;
    let found = claim_one(&*fx.store().await, "w1").await.delivery;
    assert_eq!((found.id, found.epoch, found.generation, found.attempt), (id, 1, 1, 1));
    assert_eq!(
        (&found.tenant, &found.namespace, &found.topic),
        (&written.tenant, &written.namespace, &written.topic)
    );
    assert_eq!(
        (&found.order_key, &found.content_type),
        (&written.order_key, &written.content_type)
    );
    assert_eq!((found.payload, found.headers), (payload, written.headers));
    assert_eq!(
        (found.kind, found.parent, found.destination),
        (Kind::Message, None, None)
    );
}

/// An empty payload and the largest one pass whole.
pub async fn payloads_pass_up_to_the_limit(fx: &dyn Fixture) {
    let sizes = [0, 256 << 10];
    let messages = sizes.map(|size| Message::bytes("orders", "application/octet-stream", vec![7; size]));
    put_all(fx, messages.to_vec()).await;
    let claimed = claim(&*fx.store().await, "w1", 10).await;
    assert_eq!(
        claimed.iter().map(|c| c.delivery.payload.len()).collect::<Vec<_>>(),
        sizes
    );
}

/// The refusal names the field and comes before any traffic, so the caller's transaction is not spoiled by it.
pub async fn an_invalid_message_is_refused_before_any_traffic(fx: &dyn Fixture) {
    let bad = [
        ("topic", Message::bytes("", "text/plain", "")),
        ("tenant", message("").tenant("a\0b")),
        ("namespace", message("").namespace("n".repeat(256))),
        ("order_key", message("").order_key("a\nb")),
        ("dedupe_key", message("").dedupe_key("")),
        ("content_type", Message::bytes("orders", "", "")),
        (
            "payload",
            Message::bytes("orders", "text/plain", vec![0; (256 << 10) + 1]),
        ),
        ("headers", message("").header("x", "a\r\nb")),
        ("delay", message("").delay(Duration::MAX)),
        ("deliver_in", message("").deliver_in(Duration::ZERO)),
        ("max_attempts", message("").max_attempts(0)),
    ];
    let mut tx = fx.begin().await;
    for (field, message) in bad {
        match tx.enqueue(message).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field} was not refused: {other:?}"),
        }
    }
    let good = tx.enqueue(message("good")).await.unwrap().id();
    tx.commit().await.unwrap();
    assert_eq!(count(fx).await, 1);
    assert_eq!(claim_one(&*fx.store().await, "w1").await.delivery.id, good);
}

/// An unknown commit is resolved by enqueueing again under the same id, in the same transaction or a later one.
pub async fn an_id_enqueued_twice_is_there_once(fx: &dyn Fixture) {
    let id = MessageId(Uuid::now_v7());
    let mut tx = fx.begin().await;
    assert_eq!(tx.enqueue(message("42").id(id)).await.unwrap(), Enqueued::New(id));
    assert_eq!(tx.enqueue(message("42").id(id)).await.unwrap(), Enqueued::Duplicate(id));
    tx.commit().await.unwrap();
    assert_eq!(offer(fx, message("42").id(id)).await.unwrap(), Enqueued::Duplicate(id));
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
    assert_eq!(offer(fx, message("42").id(id)).await.unwrap(), Enqueued::Duplicate(id));
    assert_eq!(count(fx).await, 1);
}

/// The same id with other content is a typed conflict that writes nothing, or the existing message where asked.
pub async fn an_id_with_other_content_is_a_conflict(fx: &dyn Fixture) {
    let id = put(fx, message("42")).await;
    let before = fx.dump().await;
    match offer(fx, message("43").id(id)).await {
        Err(Error::DedupeConflict { key, existing }) => assert_eq!((key, existing), ("id", id)),
        other => panic!("{other:?}"),
    }
    let keep = message("43").id(id).on_duplicate(OnDuplicate::Keep);
    assert_eq!(offer(fx, keep).await.unwrap(), Enqueued::Duplicate(id));
    assert_unchanged(fx, &before, "a conflict").await;
}

/// A message without an id gets one of its own.
pub async fn messages_without_an_id_get_different_ones(fx: &dyn Fixture) {
    let ids = put_all(fx, vec![message("same"), message("same"), message("same")]).await;
    let distinct: std::collections::BTreeSet<_> = ids.iter().collect();
    assert_eq!((distinct.len(), count(fx).await), (3, 3));
}

/// The answers of a bulk come in its order, and so do its messages.
pub async fn a_bulk_is_answered_and_claimed_in_its_order(fx: &dyn Fixture) {
    let texts: Vec<String> = (0..300).map(|n| format!("m{n}")).collect();
    let ids = put_all(fx, texts.iter().map(|text| message(text)).collect()).await;
    let claimed = claim(&*fx.store().await, "w1", 1000).await;
    assert_eq!(bodies(&claimed), texts);
    assert_eq!(claimed.iter().map(|c| c.lease.id).collect::<Vec<_>>(), ids);
}

/// Within one bulk the first of a dedupe key or id is new and the others are its duplicates.
pub async fn a_bulk_knows_its_own_duplicates(fx: &dyn Fixture) {
    let id = MessageId(Uuid::now_v7());
    let one = || message("a").dedupe_key("d");
    let two = || message("b").id(id);
    let mut tx = fx.begin().await;
    let answers = tx.enqueue_all(vec![one(), two(), one(), two()]).await.unwrap();
    tx.commit().await.unwrap();
    let first = answers[0].id();
    let expected = [
        Enqueued::New(first),
        Enqueued::New(id),
        Enqueued::Duplicate(first),
        Enqueued::Duplicate(id),
    ];
    assert_eq!(answers, expected);
    assert_eq!(count(fx).await, 2);
}

/// One that cannot be accepted refuses the whole bulk, wherever in it it stands.
pub async fn one_refused_message_refuses_the_bulk(fx: &dyn Fixture) {
    put(fx, message("first").dedupe_key("d")).await;
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    let invalid = tx
        .enqueue_all(vec![message("a"), message("b").tenant("\0"), message("c")])
        .await;
    assert!(matches!(invalid, Err(Error::Invalid(_))), "{invalid:?}");
    let conflict = tx
        .enqueue_all(vec![message("a"), message("other").dedupe_key("d"), message("c")])
        .await;
    assert!(matches!(conflict, Err(Error::DedupeConflict { .. })), "{conflict:?}");
    tx.rollback().await;
    assert_unchanged(fx, &before, "a refused bulk").await;
}

/// An empty bulk is no error.
pub async fn an_empty_bulk_does_nothing(fx: &dyn Fixture) {
    let before = fx.dump().await;
    assert!(put_all(fx, Vec::new()).await.is_empty());
    assert_unchanged(fx, &before, "an empty bulk").await;
}

/// Not before its time by the store's clock, and then at once.
pub async fn a_delayed_message_waits_for_its_time(fx: &dyn Fixture) {
    let id = put(fx, message("later").delay(SECOND * 60)).await;
    assert_eq!(view(fx, id).await.due_at, Some(fx.now().await.plus(SECOND * 60)));
    let store = fx.store().await;
    fx.advance(SECOND * 59).await;
    assert!(claim(&*store, "w1", 10).await.is_empty());
    fx.advance(SECOND).await;
    assert_eq!(claim_one(&*store, "w1").await.delivery.id, id);
}

/// Past its deliver-by it is dead, and no worker ever sees it: no lease, no evidence of a try.
pub async fn a_message_past_its_deliver_by_is_never_sent(fx: &dyn Fixture) {
    let id = put(fx, message("soon").deliver_in(SECOND * 60)).await;
    let other = put(fx, message("any time")).await;
    fx.advance(SECOND * 61).await;
    let store = fx.store().await;
    assert_eq!(claim_one(&*store, "w1").await.delivery.id, other);
    assert!(claim(&*store, "w1", 10).await.is_empty());
    let found = view(fx, id).await;
    assert_eq!((found.state, found.reason), (State::Dead, Some(DeadReason::Lapsed)));
    assert_eq!((found.attempts, found.epoch), (0, 0));
    assert!(fx.admin().await.attempts(id).await.unwrap().is_empty());
}

/// A claim says how long is left until the deliver-by.
pub async fn a_claim_tells_the_time_left_to_deliver(fx: &dyn Fixture) {
    put(fx, message("soon").deliver_in(SECOND * 60)).await;
    fx.advance(SECOND * 20).await;
    let store = fx.store().await;
    assert_eq!(claim_one(&*store, "w1").await.deliver_within, Some(SECOND * 40));
    put(fx, message("any time")).await;
    assert_eq!(claim_one(&*store, "w1").await.deliver_within, None);
}

/// The budget that the message brings, or the store's.
pub async fn the_attempt_budget_is_stamped(fx: &dyn Fixture) {
    let own = put(fx, message("own").max_attempts(3)).await;
    let default = put(fx, message("default")).await;
    assert_eq!(view(fx, own).await.max_attempts, 3);
    assert_eq!(view(fx, default).await.max_attempts, 12);
    let leases = leases(&claim(&*fx.store().await, "w1", 10).await);
    assert_eq!(
        leases.iter().map(|l| l.standing.max_attempts).collect::<Vec<_>>(),
        [3, 12]
    );
}
