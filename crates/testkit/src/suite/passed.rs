//! P11 with keys: a claimer need not look again at what others have passed long ago, but finds what comes back there, and minds who holds it.

use posthouse_core::{Claim, Claimed, Lease, Message, MessageId, OnDead, Store};

use super::tools::*;
use crate::Fixture;

/// Other messages come and go, with keys and without, until whoever remembers how far everything is done has passed what was there before.
/// Nothing else may be granted meanwhile.
async fn others_pass(fx: &dyn Fixture, store: &dyn Store) {
    for n in 0..6 {
        put_all(fx, vec![keyed(&format!("other-{n}"), "other"), message("other")]).await;
        let ask = Claim::new("w-other", 10, LEASE * 100).not_topic("left");
        let claimed = store.claim(&ask).await.unwrap();
        assert_eq!(bodies(&claimed), ["other", "other"], "only others are free");
        let batch: Vec<_> = claimed.iter().map(|c| delivered(&c.lease)).collect();
        settle_all(store, &batch).await;
        fx.pass().await;
    }
}

/// Both, in their order, and then nothing.
async fn assert_both(store: &dyn Store) {
    let run = claim(store, "w1", 10).await;
    assert_eq!(bodies(&run), ["1", "2"]);
    let batch: Vec<_> = run.iter().map(|c| delivered(&c.lease)).collect();
    settle_all(store, &batch).await;
    assert!(claim(store, "w1", 10).await.is_empty());
}

/// Two of one key that were granted, came back and were passed, and are granted again and passed once more.
async fn granted_again(fx: &dyn Fixture, store: &dyn Store) -> Vec<Claimed> {
    put_all(fx, line("k", &["1", "2"])).await;
    let run = claim(store, "w1", 10).await;
    settle_all(store, &[failed(&run[0].lease, 12)]).await;
    others_pass(fx, store).await;
    fx.advance(SECOND * 11).await;
    let run = store.claim(&Claim::new("w1", 10, LEASE * 100)).await.unwrap();
    assert_eq!(bodies(&run), ["1", "2"]);
    others_pass(fx, store).await;
    run
}

/// The lease holds its key for as long as it lasts: the next message of `k`, which has this body, is free only when it has ended.
async fn assert_holds(fx: &dyn Fixture, store: &dyn Store, held: &Lease, next: &str) -> MessageId {
    let id = put(fx, keyed("k", next)).await;
    others_pass(fx, store).await;
    settle_all(store, &[delivered(held)]).await;
    assert_eq!(bodies(&claim(store, "w1", 10).await), [next]);
    id
}

/// A failure goes back to its own place, which is below what was passed.
pub async fn what_failed_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let run = granted_again(fx, &*store).await;
    settle_all(&*store, &[failed_again(&run[0].lease, 12)]).await;
    assert_both(&*store).await;
    assert_sound(fx, &[run[0].lease.id, run[1].lease.id]).await;
}

/// So does what was given back, and what was to be sent after it.
pub async fn what_was_let_go_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let run = granted_again(fx, &*store).await;
    settle_all(&*store, &[released(&run[0].lease)]).await;
    assert_both(&*store).await;
    assert_sound(fx, &[run[0].lease.id, run[1].lease.id]).await;
}

/// What waits for its time stands where it was enqueued.
pub async fn what_was_delayed_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let ids = put_all(fx, vec![keyed("k", "1").delay(DAY), keyed("k", "2")]).await;
    others_pass(fx, &*store).await;
    fx.advance(DAY).await;
    assert_both(&*store).await;
    assert_sound(fx, &ids).await;
}

/// What nobody could send stands where it was.
pub async fn what_was_left_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let left = Message::bytes("left", "text/plain", "1").order_key("k");
    let ids = put_all(fx, vec![left, keyed("k", "2")]).await;
    others_pass(fx, &*store).await;
    assert_both(&*store).await;
    assert_sound(fx, &ids).await;
}

/// What is behind one that waits is free when that is taken away.
pub async fn what_was_behind_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let head = put(fx, keyed("k", "head").delay(DAY)).await;
    let ids = put_all(fx, line("k", &["1", "2"])).await;
    others_pass(fx, &*store).await;
    fx.admin().await.cancel(head, "op", "").await.unwrap();
    assert_both(&*store).await;
    assert_sound(fx, &ids).await;
}

/// A dead message that blocks its key goes back to its own place when it is replayed.
pub async fn what_was_replayed_is_found_in_its_place(fx: &dyn Fixture) {
    let store = fx.store().await;
    let head = put_dead(fx, keyed("k", "1").on_dead(OnDead::Block)).await;
    let next = put(fx, keyed("k", "2")).await;
    others_pass(fx, &*store).await;
    fx.admin().await.replay(head, "op", "", None).await.unwrap();
    assert_both(&*store).await;
    assert_sound(fx, &[head, next]).await;
}

/// Whoever holds a key holds it, however much others have done meanwhile.
pub async fn a_key_that_is_held_for_long_is_held(fx: &dyn Fixture) {
    let store = fx.store().await;
    let first = put(fx, keyed("k", "1")).await;
    let held = store.claim(&Claim::new("w1", 10, LEASE * 100)).await.unwrap();
    others_pass(fx, &*store).await;
    let next = assert_holds(fx, &*store, &held[0].lease, "2").await;
    assert_sound(fx, &[first, next]).await;
}

/// The same for one that came back, and is below what was passed when it is granted again.
pub async fn a_key_that_is_held_by_what_came_back_is_held(fx: &dyn Fixture) {
    let store = fx.store().await;
    let first = put(fx, keyed("k", "1")).await;
    let run = claim(&*store, "w1", 10).await;
    settle_all(&*store, &[failed(&run[0].lease, 12)]).await;
    others_pass(fx, &*store).await;
    fx.advance(SECOND * 11).await;
    let held = store.claim(&Claim::new("w1", 10, LEASE * 100)).await.unwrap();
    assert_eq!(bodies(&held), ["1"]);
    let next = assert_holds(fx, &*store, &held[0].lease, "2").await;
    assert_sound(fx, &[first, next]).await;
}

/// What was behind the head when it was granted with it holds its key too, when the head is done.
pub async fn a_key_that_is_held_by_what_was_behind_is_held(fx: &dyn Fixture) {
    let store = fx.store().await;
    let mut ids = put_all(fx, vec![keyed("k", "1").delay(DAY), keyed("k", "2")]).await;
    others_pass(fx, &*store).await;
    fx.advance(DAY).await;
    let run = store.claim(&Claim::new("w1", 10, LEASE * 100)).await.unwrap();
    assert_eq!(bodies(&run), ["1", "2"]);
    settle_all(&*store, &[delivered(&run[0].lease)]).await;
    ids.push(assert_holds(fx, &*store, &run[1].lease, "3").await);
    assert_sound(fx, &ids).await;
}

/// Where very many wait, the oldest of a key in the line need not be its first: one that came back is.
pub async fn a_head_that_came_back_is_found_among_very_many(fx: &dyn Fixture) {
    let store = fx.store().await;
    put_all(fx, line("k", &["1", "2"])).await;
    let head = claim_one(&*store, "w1").await;
    assert_eq!(bodies(std::slice::from_ref(&head)), ["1"]);
    put_all(fx, (0..1100).map(|n| keyed(&format!("many-{n}"), "many")).collect()).await;
    settle_all(&*store, &[released(&head.lease)]).await;
    let mut found = Vec::new();
    // The oldest of all is "2", behind a head that is the youngest in the line.
    for _ in 0..4 {
        let claimed = claim(&*store, "w1", 1).await;
        assert_eq!(claimed.len(), 1, "there is very much that is free");
        found.extend(bodies(&claimed));
    }
    assert!(found.iter().any(|body| body == "1"), "{found:?}");
}
