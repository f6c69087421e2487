//! P15 where a person says that something is done again: what failed, what was undone, and what nobody knows of.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    Claimed, Outcome,
    saga::{Definition, HeldReason, SagaFilter, SagaState, Verb, drive},
};
use serde_json::json;

use super::{
    afterwards::{CHARGE, at_the_pivot, not_done},
    sagas::*,
    tools::*,
};
use crate::Fixture;

/// A charge that takes what the saga was given, and not what others answered.
fn fare() -> Definition {
    definition(json!({ "name": "fare", "version": 1, "steps": [
        { "name": "seat", "action_uri": "fn:seat", "compensate_uri": "fn:seat/undo", "idempotent": true },
        { "name": "charge", "action_uri": "fn:charge", "verify_uri": "fn:charge/verify", "verify_after_ms": 1000,
          "input": "input", "pivot": true },
    ] }))
}

/// Nobody knew whether the charge was done; it was not, and then it was declined.
async fn declined_after_a_doubt(fx: &dyn Fixture, topic: &str) -> Claimed {
    let charge = next(fx, topic).await;
    expire(fx).await;
    for _ in 0..2 {
        fx.advance(SECOND * 2).await;
        go(fx, "fn:charge/verify", not_done()).await;
    }
    fx.advance(SECOND * 5).await;
    go(fx, topic, Outcome::reject("declined", "")).await;
    charge
}

pub async fn what_nothing_undoes_is_done_again_under_its_old_key(fx: &dyn Fixture) {
    let id = started(fx, &fare(), "k").await;
    go(fx, "fn:seat", done(json!("A1"))).await;
    let charge = declined_after_a_doubt(fx, "fn:charge").await;
    go(fx, "fn:seat/undo", Outcome::delivered()).await;
    ask(fx, id, Verb::Replay { again: true }).await.unwrap();
    let seat = next(fx, "fn:seat").await;
    answer(fx, &seat.lease, done(json!("B2"))).await;
    // What was sent first may be on its way yet: under another key it would be done twice.
    let again = next(fx, "fn:charge").await;
    let key = |claimed: &Claimed| claimed.delivery.ticket.as_ref().map(|ticket| ticket.key.clone());
    assert_eq!((key(&again), body(&again)), (key(&charge), body(&charge)));
    answer(fx, &again.lease, done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn a_doubt_of_before_keeps_no_saga_from_going_back(fx: &dyn Fixture) {
    let id = started(fx, &fare(), "k").await;
    go(fx, "fn:seat", done(json!("A1"))).await;
    declined_after_a_doubt(fx, "fn:charge").await;
    go(fx, "fn:seat/undo", Outcome::delivered()).await;
    ask(fx, id, Verb::Replay { again: true }).await.unwrap();
    go(fx, "fn:seat", Outcome::reject("full", "")).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_nothing_undoes_is_not_given_something_else_under_its_old_key(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &trip()).await;
    declined_after_a_doubt(fx, CHARGE).await;
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    for again in [true, false] {
        let refusal = refused(ask(fx, id, Verb::Replay { again }).await);
        assert!(refusal.contains("step \"charge\" was in doubt"), "{refusal}");
    }
    assert!(loaded(fx, id).await.view().steps[2].doubted);
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    nothing_is_due(fx).await;
}

pub async fn a_replay_tries_every_compensation_that_failed_again(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    go(fx, "fn:hotel/undo", Outcome::reject("down", "")).await;
    go(fx, "fn:flight/undo", Outcome::reject("down", "")).await;
    let held = (SagaState::Held, Some(HeldReason::CompensationFailed));
    assert_eq!(stands(fx, id).await, held);
    assert_eq!(
        ask(fx, id, Verb::Replay { again: false }).await.unwrap(),
        SagaState::Compensating
    );
    // In their order, as the first time.
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_has_moved_since_it_was_found_is_left(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    go(fx, "fn:one", Outcome::unknown("timeout", "no answer")).await;
    let (store, held) = (
        fx.store().await,
        SagaFilter {
            state: Some(SagaState::Held),
            ..SagaFilter::default()
        },
    );
    let found = fx.admin().await.sagas(&held).await.unwrap();
    assert_eq!(found.sagas[0].id, id);
    ask(fx, id, Verb::Retry { step: "one".into() }).await.unwrap();
    let abandon = |filter: SagaFilter| {
        let store = store.clone();
        async move { drive::operate_if(&*store, id, &filter, &Verb::Abandon, "ann", "").await }
    };
    assert!(!abandon(held).await.unwrap());
    assert_eq!(stands(fx, id).await, (SagaState::Running, None));
    assert!(abandon(SagaFilter::default()).await.unwrap());
    assert_eq!(stands(fx, id).await, (SagaState::Abandoned, None));
}
