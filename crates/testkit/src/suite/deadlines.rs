//! P15 at a saga's deadline and at a pivot in doubt: no step up to the pivot is sent for the first time after the deadline, and a pivot is not given up before
//! it is known that it was not done.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    Claimed, Kind, Lease, Outcome, SagaId, State,
    saga::{Declared, Definition, HeldReason, Report, SagaState, StepState, Verb},
};
use serde_json::json;
use std::time::Duration;

use super::{
    afterwards::{CHARGE, at_the_pivot, deadline, not_done, short},
    sagas::*,
    tools::*,
};
use crate::Fixture;

const VERIFY: &str = "fn:charge/verify";

fn changed(definition: &Definition, name: &str, change: impl Fn(&mut Declared)) -> Definition {
    let mut declared: Declared = serde_json::from_str(&definition.json()).unwrap();
    declared.name = name.to_owned();
    change(&mut declared);
    declared.compile().unwrap()
}

/// A trip whose charge cannot be asked about.
fn unasked() -> Definition {
    changed(&trip(), "unasked", |trip| {
        let charge = &mut trip.steps[2];
        (charge.verify_uri, charge.verify_after_ms) = (None, None);
    })
}

fn unknown() -> Outcome {
    Outcome::unknown("timeout", "no answer")
}

fn past_pivot() -> Verb {
    Verb::Compensate { past_pivot: true }
}

fn charge() -> String {
    "charge".to_owned()
}

/// Asserts the time that is left until the deadline: never more, and at most 10 ms less, because a store may count in milliseconds.
#[track_caller]
fn assert_left(claimed: &Claimed, left: Duration) {
    let within = claimed.deliver_within.unwrap();
    assert!(within <= left && within + SECOND / 100 > left, "{within:?}");
}

/// The message of a step among those that are due.
fn step_of(due: Vec<Claimed>) -> Claimed {
    due.into_iter()
        .find(|claimed| claimed.delivery.kind == Kind::Step)
        .unwrap()
}

/// Claims all that is due, and reports that the time of the step has passed.
async fn lapse(fx: &dyn Fixture) -> Claimed {
    let step = step_of(claim(&*fx.store().await, "w1", 10).await);
    assert_eq!(step.deliver_within, Some(Duration::ZERO));
    report(fx, &step.lease, Report::Lapsed).await;
    step
}

async fn report(fx: &dyn Fixture, lease: &Lease, report: Report) {
    let settlement = decided(fx, lease, &report).await;
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
}

async fn undone(fx: &dyn Fixture, topics: &[&str]) {
    for topic in topics {
        go(fx, topic, Outcome::delivered()).await;
    }
}

async fn step_states(fx: &dyn Fixture, id: SagaId) -> Vec<StepState> {
    let view = loaded(fx, id).await.view();
    view.steps.iter().map(|step| step.state).collect()
}

const HELD: (SagaState, Option<HeldReason>) = (SagaState::Held, Some(HeldReason::CompensationFailed));

pub async fn first_step_that_waits_over_the_deadline_is_not_sent(fx: &dyn Fixture) {
    let id = started(fx, &short(), "k").await;
    fx.advance(SECOND * 60).await;
    let flight = lapse(fx).await;
    // Nothing was sent, so there is nothing to undo.
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    assert_eq!(step_states(fx, id).await, [StepState::Skipped; 3]);
    assert_eq!(
        words(fx, id).await,
        ["started", "not_sent flight", "compensating", "compensated"]
    );
    assert_eq!(state(fx, flight.lease.id).await, State::Done);
    assert_eq!(fx.admin().await.counts().await.unwrap().dead.value, 0);
    assert_eq!(view(fx, flight.lease.id).await.last_code.as_deref(), Some("lapsed"));
    nothing_is_due(fx).await;
}

pub async fn pivot_that_waits_over_the_deadline_is_not_sent(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &short()).await;
    fx.advance(SECOND * 61).await;
    lapse(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    assert_eq!(
        step_states(fx, id).await,
        [StepState::Done, StepState::Done, StepState::Skipped]
    );
}

pub async fn steps_up_to_the_pivot_lapse_at_the_deadline(fx: &dyn Fixture) {
    let receipt = |short: &mut Declared| {
        let mut receipt = short.steps[0].clone();
        (receipt.name, receipt.after, receipt.compensate_uri) = ("receipt".into(), None, None);
        receipt.action_uri = "fn:receipt".into();
        short.steps.push(receipt);
    };
    started(fx, &changed(&short(), "four", receipt), "k").await;
    let flight = next(fx, "fn:flight").await;
    assert_left(&flight, SECOND * 60);
    let shown = view(fx, flight.lease.id).await;
    assert_eq!(shown.deliver_by, Some(shown.created_at.plus(SECOND * 60)));
    fx.advance(SECOND * 10).await;
    answer(fx, &flight.lease, done(json!("F1"))).await;
    let hotel = next(fx, "fn:hotel").await;
    assert_left(&hotel, SECOND * 50);
    answer(fx, &hotel.lease, done(json!("H1"))).await;
    let charge = next(fx, CHARGE).await;
    assert_left(&charge, SECOND * 50);
    answer(fx, &charge.lease, done(json!("C1"))).await;
    assert_eq!(next(fx, "fn:receipt").await.deliver_within, None);
}

pub async fn deadline_does_not_move_when_a_decision_is_written_late(fx: &dyn Fixture) {
    started(fx, &short(), "k").await;
    let flight = next(fx, "fn:flight").await;
    let settlement = decided(fx, &flight.lease, &Report::Sent(done(json!("F1")))).await;
    fx.advance(SECOND * 7).await;
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
    assert_left(&next(fx, "fn:hotel").await, SECOND * 53);
}

pub async fn step_that_ends_after_the_deadline_is_followed_by_no_first_send(fx: &dyn Fixture) {
    let id = started(fx, &short(), "k").await;
    fx.advance(SECOND * 55).await;
    let flight = next(fx, "fn:flight").await;
    fx.advance(SECOND * 6).await;
    // Its timer message is not claimed yet.
    answer(fx, &flight.lease, done(json!("F1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    let due = claim(&*fx.store().await, "w1", 10).await;
    assert!(due.iter().all(|claimed| claimed.delivery.kind != Kind::Step));
    for claimed in due {
        answer(fx, &claimed.lease, Outcome::delivered()).await;
    }
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn step_that_was_sent_before_the_deadline_is_not_called_skipped(fx: &dyn Fixture) {
    let id = started(fx, &short(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    fx.advance(SECOND * 59 + SECOND / 2).await;
    go(fx, "fn:hotel", Outcome::retry("busy", "later")).await;
    fx.advance(SECOND * 2).await;
    lapse(fx).await;
    undone(fx, &["fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    assert_eq!(
        step_states(fx, id).await,
        [StepState::Done, StepState::NotDone, StepState::Skipped]
    );
}

pub async fn saga_that_is_resumed_after_its_deadline_turns_back(fx: &dyn Fixture) {
    let id = started(fx, &short(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    ask(fx, id, Verb::Pause).await.unwrap();
    fx.advance(SECOND * 60).await;
    assert_eq!(ask(fx, id, Verb::Resume).await.unwrap(), SagaState::Compensating);
    let due = claim(&*fx.store().await, "w1", 10).await;
    assert!(due.iter().all(|claimed| claimed.delivery.kind != Kind::Step));
}

pub async fn idempotent_pivot_in_doubt_is_sent_again_after_the_deadline(fx: &dyn Fixture) {
    let again = changed(&short(), "again", |short| {
        let charge = &mut short.steps[2];
        (charge.verify_uri, charge.verify_after_ms, charge.idempotent) = (None, None, true);
    });
    let id = at_the_pivot(fx, &again).await;
    fx.advance(SECOND * 59 + SECOND / 2).await;
    go(fx, CHARGE, unknown()).await;
    fx.advance(SECOND * 2).await;
    // The card may be charged: another message without a deliver-by takes the place of the one that lapsed.
    let first = lapse(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Running, None));
    fx.advance(SECOND * 5).await;
    let second = step_of(claim(&*fx.store().await, "w1", 10).await);
    let key = |claimed: &Claimed| claimed.delivery.ticket.as_ref().map(|ticket| ticket.key.clone());
    assert_eq!((key(&second), second.deliver_within), (key(&first), None));
    answer(fx, &second.lease, done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn operator_retries_a_step_after_the_deadline(fx: &dyn Fixture) {
    let definition = changed(&unasked(), "held", |trip| trip.deadline_ms = Some(60_000));
    let id = at_the_pivot(fx, &definition).await;
    go(fx, CHARGE, unknown()).await;
    fx.advance(SECOND * 60).await;
    deadline(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Unknown)));
    ask(fx, id, Verb::Retry { step: charge() }).await.unwrap();
    let again = next(fx, CHARGE).await;
    assert_eq!(again.deliver_within, None);
    answer(fx, &again.lease, done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn saga_that_is_done_again_gets_its_deadline_anew(fx: &dyn Fixture) {
    let id = started(fx, &short(), "k").await;
    fx.advance(SECOND * 60).await;
    lapse(fx).await;
    fx.advance(SECOND * 60).await;
    ask(fx, id, Verb::Replay { again: true }).await.unwrap();
    let flight = step_of(claim(&*fx.store().await, "w1", 10).await);
    assert_left(&flight, SECOND * 60);
    answer(fx, &flight.lease, done(json!("F1"))).await;
    fx.advance(SECOND * 60).await;
    lapse(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
}

pub async fn pivot_in_doubt_is_asked_after_its_timeout_and_twice(fx: &dyn Fixture) {
    let slow = changed(&trip(), "slow", |trip| {
        let charge = &mut trip.steps[2];
        (charge.timeout_ms, charge.verify_after_ms) = (Some(8000), None);
    });
    let id = at_the_pivot(fx, &slow).await;
    go(fx, CHARGE, unknown()).await;
    fx.advance(SECOND * 8 - SECOND / 100).await;
    nothing_is_due(fx).await;
    fx.advance(SECOND / 100).await;
    go(fx, VERIFY, not_done()).await;
    // The bank may be at work yet: it is not given up, and not sent again.
    fx.advance(SECOND * 8 - SECOND / 100).await;
    nothing_is_due(fx).await;
    fx.advance(SECOND / 100).await;
    go(fx, VERIFY, done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn pivot_is_given_up_after_two_denials_and_not_called_skipped(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &short()).await;
    fx.advance(SECOND * 59 + SECOND / 2).await;
    go(fx, CHARGE, unknown()).await;
    fx.advance(SECOND / 2).await;
    deadline(fx).await;
    for left in [1, 0] {
        fx.advance(SECOND * 2).await;
        go(fx, VERIFY, not_done()).await;
        let expected = if left > 0 {
            SagaState::Running
        } else {
            SagaState::Compensating
        };
        assert_eq!(stands(fx, id).await, (expected, None));
    }
    undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    assert_eq!(step_states(fx, id).await[2], StepState::NotDone);
}

pub async fn compensating_past_a_pivot_in_doubt_asks_first(fx: &dyn Fixture) {
    for was_done in [true, false] {
        let definition = changed(&trip(), if was_done { "done" } else { "denied" }, |_| {});
        let id = at_the_pivot(fx, &definition).await;
        go(fx, CHARGE, unknown()).await;
        assert_eq!(ask(fx, id, past_pivot()).await.unwrap(), SagaState::Compensating);
        let shown = loaded(fx, id).await.view();
        assert_eq!((shown.in_doubt, shown.stays_done), (vec![charge()], vec![]));
        nothing_is_due(fx).await;
        fx.advance(SECOND * 2).await;
        if was_done {
            go(fx, VERIFY, done(json!("C1"))).await;
        } else {
            go(fx, VERIFY, not_done()).await;
            fx.advance(SECOND * 2).await;
            go(fx, VERIFY, not_done()).await;
        }
        undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
        if was_done {
            // The card is charged, and nothing gives it back.
            assert_eq!(stands(fx, id).await, HELD);
            assert_eq!(loaded(fx, id).await.view().stays_done, [charge()]);
            ask(fx, id, Verb::Resolve { step: charge() }).await.unwrap();
            assert_eq!(loaded(fx, id).await.view().stays_done, Vec::<String>::new());
        } else {
            assert_eq!(step_states(fx, id).await[2], StepState::NotDone);
        }
        assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    }
}

pub async fn compensating_past_a_pivot_that_cannot_be_asked_waits_for_an_operator(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &unasked()).await;
    go(fx, CHARGE, unknown()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Unknown)));
    ask(fx, id, past_pivot()).await.unwrap();
    undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, HELD);
    assert_eq!(loaded(fx, id).await.view().in_doubt, [charge()]);
    assert!(refused(ask(fx, id, Verb::Retry { step: charge() }).await).contains("nothing to undo"));
    let verb = Verb::Resolve { step: charge() };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Compensated);
}

pub async fn pivot_under_way_when_it_is_compensated_past_is_asked_about(fx: &dyn Fixture) {
    let id = at_the_pivot(fx, &trip()).await;
    let sent = next(fx, CHARGE).await;
    ask(fx, id, past_pivot()).await.unwrap();
    assert_eq!(loaded(fx, id).await.view().in_doubt, [charge()]);
    answer(fx, &sent.lease, unknown()).await;
    nothing_is_due(fx).await;
    fx.advance(SECOND * 2).await;
    go(fx, VERIFY, done(json!("C1"))).await;
    undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, HELD);
}

pub async fn question_about_a_pivot_that_fails_for_good_waits_for_an_operator(fx: &dyn Fixture) {
    let impatient = changed(&trip(), "impatient", |trip| trip.steps[2].retry.max_attempts = 2);
    let id = at_the_pivot(fx, &impatient).await;
    go(fx, CHARGE, unknown()).await;
    ask(fx, id, past_pivot()).await.unwrap();
    let mut question = None;
    for _ in 0..2 {
        fx.advance(SECOND * 5).await;
        let claimed = next(fx, VERIFY).await;
        answer(fx, &claimed.lease, unknown()).await;
        question = Some(claimed.lease.id);
    }
    let question = question.unwrap();
    assert_eq!(state(fx, question).await, State::Dead);
    assert_eq!(loaded(fx, id).await.view().steps[2].code.as_deref(), Some("in_doubt"));
    undone(fx, &["fn:hotel/undo", "fn:flight/undo"]).await;
    assert_eq!(stands(fx, id).await, HELD);
    // An operator asks once more, and then knows it from elsewhere.
    assert_eq!(
        ask(fx, id, Verb::Replay { again: false }).await.unwrap(),
        SagaState::Compensating
    );
    assert_eq!(state(fx, question).await, State::Done);
    let again = next(fx, VERIFY).await;
    answer(fx, &again.lease, unknown()).await;
    ask(fx, id, Verb::Resolve { step: charge() }).await.unwrap();
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    nothing_is_due(fx).await;
}
