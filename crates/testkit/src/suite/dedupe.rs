//! P12: a dedupe key is enqueued once, from the first commit until its lifetime after the message's end.

use posthouse_core::{Enqueued, Error, Message, MessageId, OnDuplicate};

use super::tools::*;
use crate::Fixture;

fn deduped(body: &str) -> Message {
    message(body).dedupe_key("d")
}

async fn assert_taken(fx: &dyn Fixture, by: MessageId, when: &str) {
    assert_eq!(
        offer(fx, deduped("42")).await.unwrap(),
        Enqueued::Duplicate(by),
        "{when}"
    );
}

async fn assert_free(fx: &dyn Fixture, when: &str) -> MessageId {
    match offer(fx, deduped("42")).await.unwrap() {
        Enqueued::New(id) => id,
        Enqueued::Duplicate(id) => panic!("{when}: the key is still taken by {id}"),
    }
}

/// In the same transaction, after the commit, while it is leased and when it is done: always the first one.
pub async fn a_repeated_enqueue_answers_the_first(fx: &dyn Fixture) {
    let mut tx = fx.begin().await;
    let id = tx.enqueue(deduped("42")).await.unwrap().id();
    assert_eq!(tx.enqueue(deduped("42")).await.unwrap(), Enqueued::Duplicate(id));
    tx.commit().await.unwrap();
    assert_taken(fx, id, "after the commit").await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert_taken(fx, id, "while it is leased").await;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
    assert_taken(fx, id, "when it is done").await;
    assert_eq!(count(fx).await, 1);
}

/// A typed conflict that names the message which has the key.
pub async fn a_key_with_other_content_is_a_conflict(fx: &dyn Fixture) {
    let id = put(fx, deduped("42")).await;
    let before = fx.dump().await;
    match offer(fx, deduped("43")).await {
        Err(Error::DedupeConflict { key, existing }) => assert_eq!((key, existing), ("dedupe_key", id)),
        other => panic!("{other:?}"),
    }
    assert_unchanged(fx, &before, "a conflict").await;
}

/// The same bytes under another content type are other content.
pub async fn the_content_type_is_part_of_the_content(fx: &dyn Fixture) {
    put(fx, deduped("42")).await;
    let other = Message::bytes("orders", "application/json", "42").dedupe_key("d");
    let answer = offer(fx, other).await;
    assert!(matches!(answer, Err(Error::DedupeConflict { .. })), "{answer:?}");
}

/// Where asked, other content answers the existing message, which keeps its own content.
pub async fn keep_answers_the_existing_message(fx: &dyn Fixture) {
    let id = put(fx, deduped("42")).await;
    let keep = deduped("43").on_duplicate(OnDuplicate::Keep);
    assert_eq!(offer(fx, keep).await.unwrap(), Enqueued::Duplicate(id));
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["42"]);
}

/// Tenants, topics and namespaces do not share keys.
pub async fn a_key_belongs_to_its_namespace_tenant_and_topic(fx: &dyn Fixture) {
    put(fx, deduped("42")).await;
    put(fx, deduped("43").tenant("acme")).await;
    put(fx, deduped("44").namespace("billing")).await;
    put(fx, Message::bytes("invoices", "text/plain", "45").dedupe_key("d")).await;
    put(fx, message("46").dedupe_key("D")).await;
    assert_eq!(count(fx).await, 5);
}

/// A first enqueue that was rolled back never had the key.
pub async fn a_rolled_back_first_frees_its_key(fx: &dyn Fixture) {
    let mut tx = fx.begin().await;
    tx.enqueue(deduped("43")).await.unwrap();
    tx.rollback().await;
    assert_free(fx, "after the rollback").await;
    assert_eq!(count(fx).await, 1);
}

/// While the first transaction is open nobody can say who has the key: the second waits, and is told by the commit.
pub async fn a_second_enqueue_waits_for_the_firsts_commit(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let mut first = fx.begin().await;
    let id = first.enqueue(deduped("42")).await.unwrap().id();
    if !parallel {
        first.commit().await.unwrap();
        return assert_taken(fx, id, "after the commit").await;
    }
    let mut second = fx.begin().await;
    if callers_retry(fx).await {
        second.enqueue(deduped("42")).await.unwrap();
        first.commit().await.unwrap();
        assert_told_to_retry(second, "the second").await;
        return assert_taken(fx, id, "after the commit").await;
    }
    let waiting = tokio::spawn(async move {
        let answer = second.enqueue(deduped("42")).await;
        second.commit().await.unwrap();
        answer
    });
    tokio::task::yield_now().await;
    first.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap().unwrap(), Enqueued::Duplicate(id));
    assert_eq!(count(fx).await, 1);
}

/// The second waits, and creates the message when the first is rolled back.
pub async fn a_second_enqueue_takes_over_after_the_firsts_rollback(fx: &dyn Fixture) {
    let parallel = parallel_callers(fx).await;
    let mut first = fx.begin().await;
    first.enqueue(deduped("43")).await.unwrap();
    if !parallel {
        first.rollback().await;
        assert_free(fx, "after the rollback").await;
        return;
    }
    let mut second = fx.begin().await;
    let waiting = tokio::spawn(async move {
        let answer = second.enqueue(deduped("42")).await;
        second.commit().await.unwrap();
        answer
    });
    tokio::task::yield_now().await;
    first.rollback().await;
    let answer = waiting.await.unwrap().unwrap();
    assert_eq!(answer, Enqueued::New(answer.id()));
    assert_eq!(bodies(&claim(&*fx.store().await, "w1", 10).await), ["42"]);
}

/// Half of them roll back. Those that commit agree on one message, and it is the only one.
pub async fn fifty_sessions_on_one_key_make_one_message(fx: &dyn Fixture) {
    let committed = if parallel_callers(fx).await {
        fifty_at_once(fx).await
    } else {
        fifty_in_turn(fx).await
    };
    assert_eq!(count(fx).await, 1);
    let there = claim_one(&*fx.store().await, "w1").await.delivery.id;
    assert_eq!(committed.len(), 25);
    assert!(committed.iter().all(|answer| answer.id() == there), "{committed:?}");
    let new = committed
        .iter()
        .filter(|answer| matches!(answer, Enqueued::New(_)))
        .count();
    assert_eq!(new, 1, "one of them created it");
}

async fn fifty_at_once(fx: &dyn Fixture) -> Vec<Enqueued> {
    let mut sessions = Vec::new();
    for n in 0..50 {
        let mut tx = fx.begin().await;
        sessions.push(async move {
            let answer = tx.enqueue(deduped("42")).await.unwrap();
            // The others come in between, while this transaction is open.
            tokio::task::yield_now().await;
            if n % 2 == 0 {
                tx.rollback().await;
                return None;
            }
            Some(came_about(tx).await.then_some(answer))
        });
    }
    let mut committed = Vec::new();
    for answer in at_once(sessions).await.into_iter().flatten() {
        committed.push(match answer {
            Some(answer) => answer,
            // Where callers are told to run it again, they do.
            None => {
                assert!(callers_retry(fx).await);
                offer(fx, deduped("42")).await.unwrap()
            }
        });
    }
    committed
}

async fn fifty_in_turn(fx: &dyn Fixture) -> Vec<Enqueued> {
    let mut committed = Vec::new();
    for n in 0..50 {
        let mut tx = fx.begin().await;
        let answer = tx.enqueue(deduped("42")).await.unwrap();
        if n % 2 == 0 {
            tx.rollback().await;
        } else {
            tx.commit().await.unwrap();
            committed.push(answer);
        }
    }
    committed
}

/// However long it takes to be delivered.
pub async fn the_key_is_taken_while_the_message_lives(fx: &dyn Fixture) {
    let id = put(fx, deduped("42").delay(DAY * 60)).await;
    fx.advance(DAY * 30).await;
    assert_taken(fx, id, "after a month of waiting").await;
}

/// Seven days from the end, not from the enqueue.
pub async fn the_lifetime_starts_when_the_message_ends(fx: &dyn Fixture) {
    let id = put(fx, deduped("42")).await;
    fx.advance(DAY * 20).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
    fx.advance(DAY * 6).await;
    assert_taken(fx, id, "six days after the end").await;
    fx.advance(DAY * 2).await;
    let second = assert_free(fx, "eight days after the end").await;
    assert_taken(fx, second, "once it is taken again").await;
}

/// A dead message that is sent round again is alive, and its lifetime is not counted from its first end.
pub async fn a_replay_stops_the_lifetime(fx: &dyn Fixture) {
    let id = put_dead(fx, deduped("42")).await;
    fx.advance(DAY * 6).await;
    assert_taken(fx, id, "while it is dead").await;
    fx.admin().await.replay(id, "op", "fixed", None).await.unwrap();
    fx.advance(DAY * 6).await;
    assert_taken(fx, id, "after the replay").await;
}

/// Retention takes the message and its payload, not the promise.
pub async fn the_key_outlives_the_body(fx: &dyn Fixture) {
    let id = put_done(fx, deduped("42")).await;
    fx.advance(DAY * 2).await;
    let pruned = fx.admin().await.prune(&ended(DAY, 100)).await.unwrap();
    assert_eq!((pruned.messages(), pruned.dedupe_keys), (1, 0));
    assert_eq!(fx.admin().await.find(id).await.unwrap(), None);
    assert_taken(fx, id, "after the prune").await;
    let other = offer(fx, deduped("43")).await;
    assert!(matches!(other, Err(Error::DedupeConflict { .. })), "{other:?}");
    fx.advance(DAY * 6).await;
    assert_free(fx, "after its lifetime").await;
}

/// Keys whose lifetime is over are removed with the rest, and only those.
pub async fn prune_removes_keys_whose_lifetime_is_over(fx: &dyn Fixture) {
    put_done(fx, deduped("42")).await;
    fx.advance(DAY * 5).await;
    let young = put_done(fx, message("y").dedupe_key("young")).await;
    fx.advance(DAY * 3).await;
    let pruned = fx.admin().await.prune(&ended(DAY, 100)).await.unwrap();
    assert_eq!((pruned.messages(), pruned.dedupe_keys), (2, 1));
    let again = offer(fx, message("y").dedupe_key("young")).await.unwrap();
    assert_eq!(again, Enqueued::Duplicate(young));
}

/// A discarded message gives its key back at once.
pub async fn discard_frees_the_key(fx: &dyn Fixture) {
    let id = put_dead(fx, deduped("42")).await;
    assert_taken(fx, id, "while it is dead").await;
    fx.admin().await.discard(id, "op", "never mind").await.unwrap();
    assert_free(fx, "after the discard").await;
}

/// What was to be freed later is not freed a second time: the key may be another's by then.
pub async fn a_key_that_discard_freed_is_left_to_its_next_owner(fx: &dyn Fixture) {
    let id = put_dead(fx, deduped("42")).await;
    fx.admin().await.discard(id, "op", "never mind").await.unwrap();
    let next = put(fx, deduped("42").delay(DAY * 30)).await;
    fx.advance(DAY * 8).await;
    fx.admin().await.prune(&ended(DAY, 100)).await.unwrap();
    assert_taken(fx, next, "while it waits").await;
}
