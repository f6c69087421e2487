//! Participants of sagas: a step is done once under its key, and never after it was undone.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::saga::{Doing, Undoing};

use super::tools::*;
use crate::Fixture;

/// A participant's own transaction, in which a step comes.
async fn doing(fx: &dyn Fixture, key: &str) -> Doing {
    let mut tx = fx.begin().await;
    let answer = tx.do_once("hotels", key).await.unwrap();
    tx.commit().await.unwrap();
    answer
}

async fn undoing(fx: &dyn Fixture, key: &str) -> Undoing {
    let mut tx = fx.begin().await;
    let answer = tx.undo_once("hotels", key).await.unwrap();
    tx.commit().await.unwrap();
    answer
}

pub async fn a_participant_does_a_step_once(fx: &dyn Fixture) {
    assert_eq!(doing(fx, "k").await, Doing::First);
    assert_eq!(doing(fx, "k").await, Doing::Before);
    assert_eq!(doing(fx, "l").await, Doing::First);
    assert_eq!(undoing(fx, "k").await, Undoing::Now);
    assert_eq!(undoing(fx, "k").await, Undoing::Before);
    assert_eq!(doing(fx, "k").await, Doing::Undone);
    let mut tx = fx.begin().await;
    // Another participant has nothing to do with it.
    assert_eq!(tx.do_once("flights", "k").await.unwrap(), Doing::First);
    assert_eq!(tx.do_once("flights", "k").await.unwrap(), Doing::Before);
    assert_eq!(tx.undo_once("flights", "k").await.unwrap(), Undoing::Now);
    tx.rollback().await;
    let mut tx = fx.begin().await;
    assert_eq!(tx.do_once("flights", "k").await.unwrap(), Doing::First);
    tx.rollback().await;
}

pub async fn what_was_undone_before_it_came_is_refused(fx: &dyn Fixture) {
    assert_eq!(undoing(fx, "k").await, Undoing::Never);
    assert_eq!(undoing(fx, "k").await, Undoing::Before);
    assert_eq!(doing(fx, "k").await, Doing::Undone);
}

pub async fn of_a_step_and_its_undoing_at_once_the_order_is_known(fx: &dyn Fixture) {
    if !parallel_callers(fx).await {
        return what_was_undone_before_it_came_is_refused(fx).await;
    }
    let mut first = fx.begin().await;
    assert_eq!(first.do_once("hotels", "k").await.unwrap(), Doing::First);
    let mut second = fx.begin().await;
    if callers_retry(fx).await {
        assert_eq!(second.undo_once("hotels", "k").await.unwrap(), Undoing::Never);
        first.commit().await.unwrap();
        assert_told_to_retry(second, "undoing what was just done").await;
        return assert_eq!(undoing(fx, "k").await, Undoing::Now);
    }
    let mut waiting = tokio::spawn(async move {
        let answer = second.undo_once("hotels", "k").await.unwrap();
        second.commit().await.unwrap();
        answer
    });
    assert_waits(&mut waiting, "undoing what is just being done").await;
    first.commit().await.unwrap();
    assert_eq!(waiting.await.unwrap(), Undoing::Now);
}

pub async fn what_participants_remember_is_pruned(fx: &dyn Fixture) {
    doing(fx, "k").await;
    undoing(fx, "l").await;
    fx.advance(DAY).await;
    let admin = fx.admin().await;
    assert_eq!(admin.prune(&ended(DAY * 2, 100)).await.unwrap().inbox, 0);
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().inbox, 2);
    assert_eq!(doing(fx, "l").await, Doing::First);
    let mut tx = fx.begin().await;
    assert_eq!(field(tx.do_once("", "k").await), "consumer");
    assert_eq!(field(tx.undo_once("hotels", "a\nb").await), "key");
    tx.rollback().await;
}

/// However long ago it was done: from then on it may come again at any time.
pub async fn what_was_undone_is_remembered_from_then_on(fx: &dyn Fixture) {
    doing(fx, "k").await;
    fx.advance(DAY).await;
    assert_eq!(undoing(fx, "k").await, Undoing::Now);
    fx.advance(DAY).await;
    assert_eq!(fx.admin().await.prune(&ended(DAY * 2, 100)).await.unwrap().inbox, 0);
    assert_eq!(doing(fx, "k").await, Doing::Undone);
    assert_eq!(fx.admin().await.prune(&ended(DAY, 100)).await.unwrap().inbox, 1);
}
