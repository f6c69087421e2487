//! P15 where things come late: deadlines that pass at a bad moment, answers that nobody waits for any more, and what operators said before they came.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    Claimed, Kind, Outcome, SagaId, State,
    ledger::Answer,
    saga::{Declared, Definition, HeldReason, Loaded, MOST_OUTPUT, SagaState, Verb, drive},
};
use serde_json::{Value, json};

use super::{sagas::*, tools::*};
use crate::Fixture;

pub(super) const CHARGE: &str = "http:https://pay.example/charge";

/// A trip that is to be over in a minute.
pub(super) fn short() -> Definition {
    let mut declared: Declared = serde_json::from_str(&trip().json()).unwrap();
    (declared.name, declared.deadline_ms) = ("short".into(), Some(60_000));
    declared.compile().unwrap()
}

/// It has come as far as the pivot.
pub(super) async fn at_the_pivot(fx: &dyn Fixture, definition: &Definition) -> SagaId {
    let id = started(fx, definition, "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    id
}

/// The time is over.
pub(super) async fn deadline(fx: &dyn Fixture) {
    let due = claim(&*fx.store().await, "w1", 10).await;
    let timer = due.iter().find(|claimed| claimed.delivery.kind == Kind::Timer).unwrap();
    answer(fx, &timer.lease, Outcome::delivered()).await;
}

pub(super) fn not_done() -> Outcome {
    Outcome::answered(Answer::bytes("").status(204))
}

/// Somebody heard of it after his lease was over.
async fn heard_late(fx: &dyn Fixture, id: SagaId, claimed: &Claimed, outcome: Outcome) {
    let ticket = claimed.delivery.ticket.as_ref().unwrap();
    drive::report_late(&*fx.store().await, id, ticket, &outcome, "w1")
        .await
        .unwrap();
}

pub async fn a_deadline_that_passes_while_the_pivot_is_in_doubt_still_counts(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &short()).await;
    fx.advance(SECOND * 60 - SECOND / 2).await;
    go(fx, CHARGE, Outcome::unknown("timeout", "no answer")).await;
    // It is over before anybody can ask.
    fx.advance(SECOND / 2).await;
    deadline(fx).await;
    for _ in 0..2 {
        assert_eq!(stands(fx, id).await, (SagaState::Running, None));
        fx.advance(SECOND * 2).await;
        go(fx, "fn:charge/verify", not_done()).await;
    }
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn a_pivot_that_is_given_back_after_the_deadline_is_not_sent(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &short()).await;
    fx.advance(SECOND * 60 - LEASE / 2).await;
    let charge = next(fx, CHARGE).await;
    fx.advance(LEASE / 2).await;
    deadline(fx).await;
    // Somebody is at the pivot.
    assert_eq!(stands(fx, id).await, (SagaState::Running, None));
    given_back(fx, &charge.lease).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
}

pub async fn what_was_answered_meanwhile_is_not_sent_again(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let first = next(fx, "fn:flight").await;
    expire(fx).await;
    fx.advance(SECOND * 2).await;
    let second = next(fx, "fn:flight").await;
    heard_late(fx, id, &first, done(json!("F1"))).await;
    given_back(fx, &second.lease).await;
    let hotel = next(fx, "fn:hotel").await;
    answer(fx, &hotel.lease, done(json!("H1"))).await;
    assert_eq!(body(&next(fx, CHARGE).await), json!(["F1", "H1"]));
}

pub async fn attempts_are_carried_over_a_pause(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    for _ in 0..2 {
        go(fx, "fn:flight", Outcome::retry("busy", "later")).await;
        fx.advance(SECOND * 5).await;
    }
    let third = next(fx, "fn:flight").await;
    assert_eq!((third.delivery.attempt, third.lease.standing.max_attempts), (3, 6));
    ask(fx, id, Verb::Pause).await.unwrap();
    given_back(fx, &third.lease).await;
    ask(fx, id, Verb::Resume).await.unwrap();
    fx.advance(SECOND * 10).await;
    let again = next(fx, "fn:flight").await;
    assert_eq!((again.delivery.attempt, again.lease.standing.max_attempts), (1, 4));
}

pub async fn a_pivot_that_was_done_after_all_is_not_passed_over(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &trip()).await;
    let charge = next(fx, CHARGE).await;
    expire(fx).await;
    for _ in 0..2 {
        fx.advance(SECOND * 2).await;
        go(fx, "fn:charge/verify", not_done()).await;
    }
    fx.advance(SECOND * 5).await;
    go(fx, CHARGE, Outcome::reject("declined", "")).await;
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    heard_late(fx, id, &charge, done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Operator)));
    // Whoever lets it go on has not said yet that the charge is undone.
    assert_eq!(ask(fx, id, Verb::Resume).await.unwrap(), SagaState::Held);
    let reason = stands(fx, id).await.1;
    assert_eq!(reason, Some(HeldReason::CompensationFailed));
    let verb = Verb::Resolve { step: "charge".into() };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Compensated);
}

pub async fn a_pivot_that_was_done_on_the_way_back_waits_for_a_person(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &trip()).await;
    let charge = next(fx, CHARGE).await;
    ask(fx, id, Verb::Compensate { past_pivot: true }).await.unwrap();
    answer(fx, &charge.lease, done(json!("C1"))).await;
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    // The money is taken, and nothing gives it back.
    let held = (SagaState::Held, Some(HeldReason::CompensationFailed));
    assert_eq!(stands(fx, id).await, held);
    let verb = Verb::Resolve { step: "charge".into() };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Compensated);
}

pub async fn what_was_done_after_it_was_resolved_waits_for_a_person(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    let hotel = next(fx, "fn:hotel").await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    expire(fx).await;
    go(fx, "fn:hotel/undo", Outcome::reject("gone", "no such room")).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    let resolve = || Verb::Resolve { step: "hotel".into() };
    assert_eq!(ask(fx, id, resolve()).await.unwrap(), SagaState::Compensated);
    heard_late(fx, id, &hotel, done(json!("H1"))).await;
    let held = (SagaState::Held, Some(HeldReason::CompensationFailed));
    assert_eq!(stands(fx, id).await, held);
    ask(fx, id, Verb::Retry { step: "hotel".into() }).await.unwrap();
    let undo = next(fx, "fn:hotel/undo").await;
    assert_eq!(body(&undo)["output"], json!("H1"));
    answer(fx, &undo.lease, Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    // A participant has undone it now, who refuses what comes after it.
    heard_late(fx, id, &hotel, done(json!("H1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn a_held_compensation_gets_the_output_that_came_late(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let flight = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    expire(fx).await;
    let undo = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&undo).get("output"), None);
    answer(fx, &undo.lease, Outcome::reject("which", "there are several")).await;
    heard_late(fx, id, &flight, done(json!("F1"))).await;
    let verb = Verb::Retry { step: "flight".into() };
    ask(fx, id, verb).await.unwrap();
    assert_eq!(body(&next(fx, "fn:flight/undo").await)["output"], json!("F1"));
}

pub async fn a_compensation_that_was_tried_keeps_its_words(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let flight = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    expire(fx).await;
    // Somebody has it already.
    let undo = next(fx, "fn:flight/undo").await;
    heard_late(fx, id, &flight, done(json!("F1"))).await;
    answer(fx, &undo.lease, Outcome::retry("busy", "")).await;
    fx.advance(SECOND * 5).await;
    // Another body under the same key would be another request to a participant who remembers the first.
    let again = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&again), body(&undo));
    answer(fx, &again.lease, Outcome::reject("which", "there are several")).await;
    // A person may say that it is worth another try, with all that is known.
    ask(fx, id, Verb::Replay { again: false }).await.unwrap();
    let last = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&last)["output"], json!("F1"));
    answer(fx, &last.lease, Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn a_compensation_that_nobody_is_at_gets_the_output_that_came_late(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let flight = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    expire(fx).await;
    heard_late(fx, id, &flight, done(json!("F1"))).await;
    let undo = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&undo)["output"], json!("F1"));
    answer(fx, &undo.lease, Outcome::delivered()).await;
    nothing_is_due(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_a_person_says_was_answered_goes_to_a_compensation_that_failed(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let flight = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    expire(fx).await;
    go(fx, "fn:flight/undo", Outcome::reject("which", "there are several")).await;
    let complete = |output: Value| Verb::Complete {
        step: "flight".into(),
        output,
    };
    ask(fx, id, complete(json!("F9"))).await.unwrap();
    assert!(refused(ask(fx, id, complete(Value::Null)).await).contains("is known"));
    assert_eq!(ask(fx, id, complete(json!("F1"))).await.unwrap(), SagaState::Held);
    nothing_is_due(fx).await;
    ask(fx, id, Verb::Retry { step: "flight".into() }).await.unwrap();
    let undo = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&undo)["output"], json!("F1"));
    answer(fx, &undo.lease, Outcome::delivered()).await;
    // He has heard it before, and undone it.
    heard_late(fx, id, &flight, done(json!("F1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_was_known_when_it_was_resolved_is_no_news(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let flight = next(fx, "fn:flight").await;
    expire(fx).await;
    fx.advance(SECOND * 2).await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    ask(fx, id, Verb::Compensate { past_pivot: false }).await.unwrap();
    go(fx, "fn:flight/undo", Outcome::reject("gone", "")).await;
    ask(fx, id, Verb::Resolve { step: "flight".into() }).await.unwrap();
    heard_late(fx, id, &flight, done(json!("F1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn outputs_that_do_not_fit_together_can_be_made_smaller(fx: &dyn Fixture) {
    let mut settings = fx.settings().await;
    settings.limits.payload_bytes = MOST_OUTPUT;
    fx.configure(&settings).await.unwrap();
    let id = started(fx, &trip(), "k").await;
    let large = || done(Value::String("x".repeat(MOST_OUTPUT / 2)));
    go(fx, "fn:flight", large()).await;
    go(fx, "fn:hotel", large()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Output)));
    let complete = |output: Value| Verb::Complete {
        step: "flight".into(),
        output,
    };
    let too_large = Value::String("x".repeat(MOST_OUTPUT));
    assert_eq!(field(ask(fx, id, complete(too_large)).await), "output");
    assert_eq!(ask(fx, id, complete(json!("F1"))).await.unwrap(), SagaState::Running);
    assert_eq!(body(&next(fx, CHARGE).await)[0], json!("F1"));
}

pub async fn a_delay_is_not_put_off_by_a_pause(fx: &dyn Fixture) {
    let later = definition(json!({ "name": "later", "version": 1, "steps": [
        { "name": "one", "action_uri": "fn:one" },
        { "name": "two", "action_uri": "fn:two", "delay_ms": 86_400_000 },
    ] }));
    let id = started(fx, &later, "k").await;
    go(fx, "fn:one", done(json!(1))).await;
    fx.advance(DAY / 2).await;
    ask(fx, id, Verb::Pause).await.unwrap();
    fx.advance(DAY / 4).await;
    ask(fx, id, Verb::Resume).await.unwrap();
    nothing_is_due(fx).await;
    fx.advance(DAY / 4).await;
    go(fx, "fn:two", done(json!(2))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn the_dead_letter_of_a_held_saga_is_not_pruned(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    let one = next(fx, "fn:one").await;
    answer(fx, &one.lease, Outcome::unknown("timeout", "no answer")).await;
    fx.advance(DAY).await;
    let admin = fx.admin().await;
    // Also if others behind it are to go.
    let other = put(fx, message("other")).await;
    let lease = claim_one(&*fx.store().await, "w1").await.lease;
    settle(&*fx.store().await, delivered(&lease)).await;
    fx.advance(DAY).await;
    assert_eq!(admin.prune(&ended(DAY, 1)).await.unwrap().messages(), 1);
    assert!(admin.find(other).await.unwrap().is_none());
    assert_eq!(state(fx, one.lease.id).await, State::Dead);
    ask(fx, id, Verb::Abandon).await.unwrap();
    fx.advance(DAY).await;
    let pruned = admin.prune(&ended(DAY, 10)).await.unwrap();
    assert_eq!((pruned.messages(), pruned.sagas), (1, 1));
}

pub async fn numbers_are_kept_as_they_were(fx: &dyn Fixture) {
    let numbers = json!([
        3671.2383142708804,
        0.1,
        1e300,
        -0.0,
        u64::MAX,
        i64::MIN,
        1.7976931348623157e308
    ]);
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(numbers.clone())).await;
    let Loaded { snapshot, .. } = loaded(fx, id).await;
    assert_eq!(snapshot.steps[0].output.as_ref(), Some(&numbers));
    go(fx, "fn:hotel", done(numbers.clone())).await;
    assert_eq!(body(&next(fx, CHARGE).await), json!([numbers, numbers]));
}
