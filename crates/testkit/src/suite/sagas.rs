//! P15: a saga is moved by who knows how it stands, in one transaction with the message that it is about, and by nobody else.

#![expect(missing_docs, reason = "the name of a case is its claim")]

use posthouse_core::{
    AttemptOutcome, AuditFilter, Claim, Claimed, Error, Kind, Lease, MessageId, Outcome, SagaId, Settlement, State,
    Store, Verdict,
    ledger::Answer,
    saga::{
        Change, Declared, Definition, HeldReason, Loaded, LogLine, MOST_OUTPUT, Report, SagaFilter, SagaState, Start,
        Started, StepState, UndoState, Verb,
        drive::{self, Decided},
    },
};
use serde_json::{Value, json};
use std::time::Duration;
use uuid::Uuid;

use super::tools::*;
use crate::Fixture;

/// Flight, then hotel, then charge, which is the pivot.
pub(crate) fn trip() -> Definition {
    definition(json!({ "name": "trip", "version": 1, "steps": [
        { "name": "flight", "action_uri": "fn:flight", "compensate_uri": "fn:flight/undo", "idempotent": true },
        { "name": "hotel", "action_uri": "fn:hotel", "compensate_uri": "fn:hotel/undo", "idempotent": true },
        { "name": "charge", "action_uri": "https://pay.example/charge", "verify_uri": "fn:charge/verify",
          "verify_after_ms": 1000, "input": ["flight", "hotel"], "pivot": true },
    ] }))
}

/// Two steps side by side, and one after both.
pub(crate) fn fork() -> Definition {
    definition(json!({ "name": "fork", "version": 1, "steps": [
        { "name": "left", "action_uri": "fn:left", "compensate_uri": "fn:left/undo", "idempotent": true, "concurrency_tag": "x" },
        { "name": "right", "action_uri": "fn:right", "compensate_uri": "fn:right/undo", "idempotent": true, "concurrency_tag": "x" },
        { "name": "join", "action_uri": "fn:join", "idempotent": true },
    ] }))
}

/// One step that must not be sent twice.
pub(super) fn naive() -> Definition {
    definition(json!({ "name": "naive", "version": 1, "steps": [{ "name": "one", "action_uri": "fn:one" }] }))
}

pub(super) fn definition(json: Value) -> Definition {
    let declared: Declared = serde_json::from_value(json).unwrap();
    declared.compile().unwrap()
}

pub(crate) fn new_start(definition: &Definition, key: &str) -> Start {
    Start::new(SagaId(Uuid::now_v7()), definition, key, &json!({ "city": "Rome" })).unwrap()
}

async fn offer_start(fx: &dyn Fixture, start: Start) -> Result<Started, Error> {
    let mut tx = fx.begin().await;
    let answer = tx.start(start).await;
    match answer {
        Ok(_) => tx.commit().await.unwrap(),
        Err(_) => tx.rollback().await,
    }
    answer
}

pub(crate) async fn started(fx: &dyn Fixture, definition: &Definition, key: &str) -> SagaId {
    match offer_start(fx, new_start(definition, key)).await.unwrap() {
        Started::New(id) => id,
        other => panic!("it was there already: {other:?}"),
    }
}

pub(super) async fn loaded(fx: &dyn Fixture, id: SagaId) -> Loaded {
    drive::load(&*fx.store().await, id).await.unwrap()
}

pub(super) async fn stands(fx: &dyn Fixture, id: SagaId) -> (SagaState, Option<HeldReason>) {
    let row = loaded(fx, id).await.row;
    (row.state, row.reason)
}

async fn log(fx: &dyn Fixture, id: SagaId) -> Vec<LogLine> {
    fx.admin().await.saga_log(id, 0, 1000).await.unwrap()
}

pub(super) async fn words(fx: &dyn Fixture, id: SagaId) -> Vec<String> {
    let word = |line: LogLine| match line.step {
        Some(step) => format!("{} {step}", line.what),
        None => line.what,
    };
    log(fx, id).await.into_iter().map(word).collect()
}

/// The end of a lease as it is decided now.
pub(super) async fn decided(fx: &dyn Fixture, lease: &Lease, report: &Report) -> Settlement {
    let store = fx.store().await;
    let mut settlements = drive::settlements(&*store, "w1", vec![(lease, report, 0.5)])
        .await
        .unwrap();
    settled_as(settlements.remove(0))
}

fn settled_as(decided: Decided) -> Settlement {
    match decided {
        Decided::Settle(settlement) => *settlement,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn answer(fx: &dyn Fixture, lease: &Lease, outcome: Outcome) {
    let settlement = decided(fx, lease, &Report::Sent(outcome)).await;
    let verdict = settle(&*fx.store().await, settlement).await;
    assert!(verdict.is_settled(), "{verdict:?}");
}

pub(super) fn done(output: Value) -> Outcome {
    Outcome::answered(Answer::json(&output).unwrap())
}

/// The next message that is due is of this topic.
pub(super) async fn next(fx: &dyn Fixture, topic: &str) -> Claimed {
    let claimed = claim_one(&*fx.store().await, "w1").await;
    assert_eq!(claimed.delivery.topic, topic);
    claimed
}

/// The next message is of this topic, and is answered so.
pub(super) async fn go(fx: &dyn Fixture, topic: &str, outcome: Outcome) {
    let claimed = next(fx, topic).await;
    answer(fx, &claimed.lease, outcome).await;
}

pub(super) fn body(claimed: &Claimed) -> Value {
    serde_json::from_slice(&claimed.delivery.payload).unwrap()
}

pub(super) async fn ask(fx: &dyn Fixture, id: SagaId, verb: Verb) -> Result<SagaState, Error> {
    let view = drive::operate(&*fx.store().await, id, &verb, "ann", "because").await?;
    Ok(view.row.state)
}

#[track_caller]
pub(super) fn refused(answer: Result<SagaState, Error>) -> String {
    match answer {
        Err(Error::SagaRefused { why, .. }) => why,
        other => panic!("{other:?}"),
    }
}

pub(super) async fn nothing_is_due(fx: &dyn Fixture) {
    assert_eq!(bodies(&claim(&*fx.store().await, "w9", 10).await), Vec::<String>::new());
}

pub async fn a_saga_that_starts_sends_its_first_step(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let first = next(fx, "fn:flight").await;
    assert_eq!(body(&first), json!({ "city": "Rome" }));
    assert_eq!((first.delivery.kind, first.lease.saga), (Kind::Step, Some(id)));
    let ticket = first.delivery.ticket.unwrap();
    assert_eq!(
        (ticket.key, ticket.step.as_str()),
        (format!("{id}:flight#1:do"), "flight")
    );
    assert!(first.delivery.headers.is_empty(), "{:?}", first.delivery.headers);
    assert_eq!(stands(fx, id).await, (SagaState::Running, None));
    assert_eq!(words(fx, id).await, ["started"]);
}

pub async fn a_start_that_is_rolled_back_leaves_nothing(fx: &dyn Fixture) {
    let before = fx.dump().await;
    let mut tx = fx.begin().await;
    let id = tx.start(new_start(&trip(), "k")).await.unwrap().id();
    tx.rollback().await;
    assert!(
        fx.store().await.load_sagas(&[id]).await.unwrap()[0]
            .as_ref()
            .unwrap()
            .is_none()
    );
    nothing_is_due(fx).await;
    assert_unchanged(fx, &before, "a start that was rolled back").await;
    assert!(matches!(
        offer_start(fx, new_start(&trip(), "k")).await.unwrap(),
        Started::New(_)
    ));
}

pub async fn a_key_is_started_once(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    assert_eq!(
        offer_start(fx, new_start(&trip(), "k")).await.unwrap(),
        Started::Existing(id)
    );
    assert_eq!(claim(&*fx.store().await, "w1", 10).await.len(), 1);
    let mut tx = fx.begin().await;
    let own = tx.start(new_start(&trip(), "l")).await.unwrap().id();
    assert_eq!(tx.start(new_start(&trip(), "l")).await.unwrap(), Started::Existing(own));
    tx.commit().await.unwrap();
}

pub async fn a_key_with_another_input_is_a_mismatch(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let mut other = new_start(&trip(), "k");
    other.input = json!({ "city": "Oslo" });
    let before = fx.dump().await;
    match offer_start(fx, other).await {
        Err(Error::SagaMismatch(existing)) => assert_eq!(existing, id),
        answer => panic!("{answer:?}"),
    }
    assert_unchanged(fx, &before, "a mismatch").await;
}

pub async fn a_sagas_key_belongs_to_its_namespace_tenant_and_name(fx: &dyn Fixture) {
    started(fx, &trip(), "k").await;
    for other in [
        new_start(&trip(), "k").tenant("acme"),
        new_start(&trip(), "k").namespace("other"),
        new_start(&fork(), "k"),
        new_start(&trip(), "K"),
    ] {
        assert!(matches!(offer_start(fx, other).await.unwrap(), Started::New(_)));
    }
}

pub async fn of_fifty_starts_of_one_key_one_is_new(fx: &dyn Fixture) {
    let starts = (0..50).map(|_| {
        let start = new_start(&trip(), "k");
        Box::pin(async move {
            let mut tx = fx.begin().await;
            tx.start(start.clone()).await.unwrap();
            if !came_about(tx).await {
                assert!(callers_retry(fx).await);
                offer_start(fx, start).await.unwrap();
            }
        }) as std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>
    });
    together(starts.collect()).await;
    assert_eq!(
        fx.admin()
            .await
            .sagas(&SagaFilter::default())
            .await
            .unwrap()
            .sagas
            .len(),
        1
    );
    assert_eq!(claim(&*fx.store().await, "w1", 100).await.len(), 1);
}

pub async fn a_version_has_one_content(fx: &dyn Fixture) {
    started(fx, &trip(), "k").await;
    let mut declared: Declared = serde_json::from_str(&trip().json()).unwrap();
    declared.steps[0].idempotent = false;
    let other = declared.clone().compile().unwrap();
    assert_eq!(field(offer_start(fx, new_start(&other, "l")).await), "version");
    declared.version = 2;
    let second = declared.compile().unwrap();
    let id = started(fx, &second, "l").await;
    assert_eq!(loaded(fx, id).await.row.version, 2);
    // What has begun goes on as it began.
    assert_eq!(offer_start(fx, new_start(&second, "k")).await.unwrap().id(), {
        let filter = SagaFilter {
            key: Some("k".into()),
            ..SagaFilter::default()
        };
        fx.admin().await.sagas(&filter).await.unwrap().sagas[0].id
    });
}

pub async fn a_senseless_start_is_refused(fx: &dyn Fixture) {
    let start = |key: &str| new_start(&trip(), key);
    assert_eq!(field(offer_start(fx, start("")).await), "key");
    assert_eq!(field(offer_start(fx, start("a\nb")).await), "key");
    assert_eq!(field(offer_start(fx, start("k").tenant("a\0b")).await), "tenant");
    assert_eq!(field(offer_start(fx, start("k").namespace("")).await), "namespace");
    let mut large = start("k");
    large.input = Value::String("x".repeat(300 << 10));
    assert_eq!(field(offer_start(fx, large).await), "input");
}

pub async fn a_saga_goes_forward_to_its_end(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!({ "room": 7 }))).await;
    let charge = next(fx, "http:https://pay.example/charge").await;
    assert_eq!(body(&charge), json!(["F1", { "room": 7 }]));
    answer(fx, &charge.lease, done(json!(null))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
    assert_eq!(
        words(fx, id).await,
        ["started", "done flight", "done hotel", "done charge", "completed"]
    );
    let row = loaded(fx, id).await.row;
    assert_eq!((row.revision, row.finished_at), (4, Some(fx.now().await)));
    nothing_is_due(fx).await;
    assert_eq!(state(fx, charge.lease.id).await, State::Done);
}

pub async fn what_was_done_is_undone_in_reverse(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    let charge = next(fx, "http:https://pay.example/charge").await;
    answer(fx, &charge.lease, Outcome::reject("declined", "no money")).await;
    let evidence = fx.admin().await.attempts(charge.lease.id).await.unwrap();
    assert_eq!(evidence[0].outcome, AttemptOutcome::Rejected);
    assert_eq!(evidence[0].error.as_deref(), Some("no money"));
    // It needs nobody, so it is no dead letter.
    assert_eq!(state(fx, charge.lease.id).await, State::Done);
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    let undo = next(fx, "fn:hotel/undo").await;
    assert_eq!(undo.delivery.kind, Kind::Compensation);
    assert_eq!(undo.delivery.ticket.as_ref().unwrap().key, format!("{id}:hotel#1:undo"));
    let told = body(&undo);
    assert_eq!(
        (&told["input"], &told["output"]),
        (&json!({ "city": "Rome" }), &json!("H1"))
    );
    assert_eq!(told["forward_key"], json!(format!("{id}:hotel#1:do")));
    assert!(told["reason"].as_str().unwrap().contains("declined"), "{told}");
    nothing_is_due(fx).await;
    answer(fx, &undo.lease, Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    let view = loaded(fx, id).await.view();
    let steps: Vec<_> = view.steps.iter().map(|step| (step.state, step.compensation)).collect();
    let undone = (StepState::Done, UndoState::Compensated);
    assert_eq!(steps, [undone, undone, (StepState::Rejected, UndoState::None)]);
    nothing_is_due(fx).await;
}

pub async fn of_two_that_decide_at_once_one_is_stale(fx: &dyn Fixture) {
    let id = started(fx, &fork(), "k").await;
    let both = claim(&*fx.store().await, "w1", 10).await;
    assert_eq!(both.len(), 2);
    let one = decided(fx, &both[0].lease, &Report::Sent(done(json!(1)))).await;
    let two = decided(fx, &both[1].lease, &Report::Sent(done(json!(2)))).await;
    assert!(settle(&*fx.store().await, one).await.is_settled());
    let before = fx.dump().await;
    let verdict = settle(&*fx.store().await, two).await;
    assert!(matches!(verdict, Verdict::Stale), "{verdict:?}");
    assert_unchanged(fx, &before, "a stale settlement").await;
    nothing_is_due(fx).await;
    answer(fx, &both[1].lease, done(json!(2))).await;
    go(fx, "fn:join", done(json!(null))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn one_that_is_stale_spoils_no_other(fx: &dyn Fixture) {
    let (one, two) = (started(fx, &fork(), "k").await, started(fx, &trip(), "l").await);
    let all = claim(&*fx.store().await, "w1", 10).await;
    let of = |id: SagaId| all.iter().filter(move |claimed| claimed.lease.saga == Some(id));
    let mut batch = Vec::new();
    for claimed in &all {
        batch.push(decided(fx, &claimed.lease, &Report::Sent(done(json!(1)))).await);
    }
    let verdicts = fx.store().await.settle(&batch).await.unwrap();
    let stale = verdicts
        .iter()
        .filter(|verdict| matches!(verdict, Verdict::Stale))
        .count();
    let settled = verdicts.iter().filter(|verdict| verdict.is_settled()).count();
    assert_eq!((of(one).count(), of(two).count(), stale, settled), (2, 1, 1, 2));
    assert_eq!(words(fx, two).await, ["started", "done flight"]);
    let at = verdicts
        .iter()
        .position(|verdict| matches!(verdict, Verdict::Stale))
        .unwrap();
    answer(fx, &all[at].lease, done(json!(2))).await;
    let due = claim(&*fx.store().await, "w1", 10).await;
    let mut topics: Vec<_> = due.iter().map(|claimed| claimed.delivery.topic.as_str()).collect();
    topics.sort_unstable();
    assert_eq!(topics, ["fn:hotel", "fn:join"]);
}

pub async fn a_settlement_of_a_saga_may_be_told_again(fx: &dyn Fixture) {
    started(fx, &trip(), "k").await;
    let claimed = next(fx, "fn:flight").await;
    let settlement = decided(fx, &claimed.lease, &Report::Sent(done(json!(1)))).await;
    assert!(settle(&*fx.store().await, settlement.clone()).await.is_settled());
    let before = fx.dump().await;
    assert!(settle(&*fx.store().await, settlement).await.is_settled());
    assert_unchanged(fx, &before, "a settlement that was told again").await;
}

pub async fn who_has_lost_his_lease_moves_no_saga(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let lost = next(fx, "fn:flight").await;
    let settlement = decided(fx, &lost.lease, &Report::Sent(done(json!(1)))).await;
    assert_eq!(expire(fx).await, 1);
    let before = fx.dump().await;
    let verdict = settle(&*fx.store().await, settlement).await;
    assert!(verdict.is_lost(), "{verdict:?}");
    let again = decided(fx, &lost.lease, &Report::Sent(done(json!(1)))).await;
    assert!(settle(&*fx.store().await, again).await.is_lost());
    assert_unchanged(fx, &before, "a settlement under a lost lease").await;
    assert_eq!(words(fx, id).await, ["started", "unknown flight"]);
}

pub async fn a_lease_that_runs_out_is_heard_of_by_its_saga(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    next(fx, "fn:flight").await;
    assert_eq!(expire(fx).await, 1);
    // It may be sent again, and what it may have done is not forgotten.
    assert!(loaded(fx, id).await.snapshot.steps[0].tainted);
    let again = next(fx, "fn:flight").await;
    assert_eq!(again.delivery.attempt, 2);
    answer(fx, &again.lease, Outcome::reject("full", "no seat")).await;
    // So it is undone, although it was refused in the end.
    let undo = next(fx, "fn:flight/undo").await;
    assert_eq!(body(&undo).get("output"), None);
    answer(fx, &undo.lease, Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_must_not_be_sent_twice_is_held(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    let lease = next(fx, "fn:one").await.lease;
    assert_eq!(expire(fx).await, 1);
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Unknown)));
    assert_eq!(state(fx, lease.id).await, State::Dead);
    nothing_is_due(fx).await;
    let attempts = fx.admin().await.attempts(lease.id).await.unwrap();
    assert_eq!(attempts[0].outcome, AttemptOutcome::LeaseExpired);
    let verb = Verb::Complete {
        step: "one".into(),
        output: json!(7),
    };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Completed);
    // The dead letter is gone with it.
    assert_eq!(state(fx, lease.id).await, State::Done);
}

pub async fn what_is_not_known_is_asked_for(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    let unknown = Outcome::unknown("timeout", "no answer");
    go(fx, "http:https://pay.example/charge", unknown).await;
    fx.advance(SECOND * 2).await;
    let verify = next(fx, "fn:charge/verify").await;
    assert_eq!(body(&verify)["forward_key"], json!(format!("{id}:charge#1:do")));
    let not_done = Outcome::answered(Answer::bytes("").status(204));
    answer(fx, &verify.lease, not_done.clone()).await;
    // The charge is the pivot, and one answer is not enough.
    fx.advance(SECOND * 2).await;
    go(fx, "fn:charge/verify", not_done).await;
    fx.advance(SECOND * 2).await;
    go(
        fx,
        "http:https://pay.example/charge",
        Outcome::unknown("timeout", "no answer"),
    )
    .await;
    fx.advance(SECOND * 5).await;
    go(fx, "fn:charge/verify", done(json!("C1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
}

pub async fn a_failed_step_is_tried_again_after_its_wait(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", Outcome::retry("busy", "later")).await;
    nothing_is_due(fx).await;
    fx.advance(SECOND).await;
    let again = next(fx, "fn:flight").await;
    assert_eq!(again.delivery.attempt, 2);
    answer(fx, &again.lease, done(json!(1))).await;
    assert_eq!(words(fx, id).await, ["started", "retry flight", "done flight"]);
}

pub async fn a_compensation_that_fails_for_good_is_held(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    go(fx, "http:https://pay.example/charge", Outcome::reject("declined", "")).await;
    let undo = next(fx, "fn:hotel/undo").await;
    answer(fx, &undo.lease, Outcome::reject("gone", "no such room")).await;
    // The others go on.
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(
        stands(fx, id).await,
        (SagaState::Held, Some(HeldReason::CompensationFailed))
    );
    assert_eq!(state(fx, undo.lease.id).await, State::Dead);
    let verb = Verb::Resolve { step: "hotel".into() };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Compensated);
    assert_eq!(state(fx, undo.lease.id).await, State::Done);
}

pub async fn a_deadline_turns_it_back(fx: &dyn Fixture) {
    let mut declared: Declared = serde_json::from_str(&trip().json()).unwrap();
    (declared.name, declared.deadline_ms) = ("short".into(), Some(60_000));
    let id = started(fx, &declared.compile().unwrap(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", Outcome::retry("busy", "later")).await;
    fx.advance(SECOND * 60).await;
    let due = claim(&*fx.store().await, "w1", 10).await;
    let timer = due.iter().find(|claimed| claimed.delivery.kind == Kind::Timer).unwrap();
    let step = due.iter().find(|claimed| claimed.delivery.kind == Kind::Step).unwrap();
    answer(fx, &timer.lease, Outcome::delivered()).await;
    // Somebody is at the hotel, so that is waited for.
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    answer(fx, &step.lease, done(json!("H1"))).await;
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn a_timer_goes_with_its_saga(fx: &dyn Fixture) {
    let mut declared: Declared = serde_json::from_str(&naive().json()).unwrap();
    declared.deadline_ms = Some(60_000);
    let id = started(fx, &declared.compile().unwrap(), "k").await;
    let timer = loaded(fx, id).await.snapshot.timer.unwrap();
    go(fx, "fn:one", done(json!(1))).await;
    assert_eq!(state(fx, timer).await, State::Done);
    fx.advance(SECOND * 100).await;
    nothing_is_due(fx).await;
}

pub async fn what_nobody_is_at_is_taken_back_by_a_pause(fx: &dyn Fixture) {
    let id = started(fx, &fork(), "k").await;
    let held = claim_one(&*fx.store().await, "w1").await;
    assert_eq!(ask(fx, id, Verb::Pause).await.unwrap(), SagaState::Running);
    nothing_is_due(fx).await;
    assert!(loaded(fx, id).await.row.paused);
    // Who is at it may still say what became of it.
    answer(fx, &held.lease, done(json!(1))).await;
    nothing_is_due(fx).await;
    ask(fx, id, Verb::Resume).await.unwrap();
    let rest = claim(&*fx.store().await, "w1", 10).await;
    assert_eq!(rest.len(), 1);
    assert_ne!(rest[0].delivery.topic, held.delivery.topic);
}

/// What is decided about a saga as it was found.
async fn pause_of(fx: &dyn Fixture, id: SagaId) -> Change {
    loaded(fx, id).await.ask(&Verb::Pause, "ann", "").unwrap()
}

pub async fn what_somebody_is_at_is_not_taken_back(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let pause = pause_of(fx, id).await;
    assert_eq!(pause.withdraw.len(), 1);
    let claimed = next(fx, "fn:flight").await;
    let before = fx.dump().await;
    let verdict = fx.store().await.change_saga(&pause).await.unwrap();
    assert!(matches!(verdict, Verdict::Stale), "{verdict:?}");
    assert_unchanged(fx, &before, "a change that takes back what somebody has").await;
    // Nor when it went back meanwhile: its attempt counts.
    assert!(settle(&*fx.store().await, released(&claimed.lease)).await.is_settled());
    let verdict = fx.store().await.change_saga(&pause).await.unwrap();
    assert!(matches!(verdict, Verdict::Stale), "{verdict:?}");
    let verdict = fx.store().await.change_saga(&pause_of(fx, id).await).await.unwrap();
    assert!(verdict.is_settled(), "{verdict:?}");
}

pub async fn a_change_of_what_has_changed_is_stale(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    next(fx, "fn:flight").await;
    let pause = pause_of(fx, id).await;
    ask(fx, id, Verb::Pause).await.unwrap();
    let before = fx.dump().await;
    let verdict = fx.store().await.change_saga(&pause).await.unwrap();
    assert!(matches!(verdict, Verdict::Stale), "{verdict:?}");
    assert_unchanged(fx, &before, "a stale change").await;
}

pub async fn what_waits_for_its_time_is_taken_back_too(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let claimed = next(fx, "fn:flight").await;
    answer(fx, &claimed.lease, Outcome::retry("busy", "")).await;
    ask(fx, id, Verb::Pause).await.unwrap();
    assert_eq!(state(fx, claimed.lease.id).await, State::Done);
    // The attempt that was made is not forgotten.
    assert_eq!(loaded(fx, id).await.snapshot.steps[0].attempts, 1);
    fx.advance(SECOND * 60).await;
    nothing_is_due(fx).await;
}

pub async fn what_a_relay_left_for_others_is_taken_back_too(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let left = Claim::new("w1", 10, LEASE).not_topic("fn:flight");
    assert!(fx.store().await.claim(&left).await.unwrap().is_empty());
    ask(fx, id, Verb::Pause).await.unwrap();
    nothing_is_due(fx).await;
}

pub async fn verbs_of_messages_do_not_apply_to_sagas(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    let message = loaded(fx, id).await.snapshot.carriers().next().unwrap();
    let admin = fx.admin().await;
    let before = fx.dump().await;
    let refused = |answer: Result<(), Error>, wanted: &str| match answer {
        Err(Error::OfSaga { id: found, saga, verb }) => assert_eq!((found, saga, verb), (message, id, wanted)),
        other => panic!("{other:?}"),
    };
    refused(admin.quarantine(message, "ann", "").await, "quarantine");
    refused(admin.cancel(message, "ann", "").await, "cancel");
    refused(admin.resolve(message, "ann", "", "").await, "resolve");
    assert_unchanged(fx, &before, "a verb that does not apply").await;
    next(fx, "fn:one").await;
    expire(fx).await;
    refused(admin.replay(message, "ann", "", None).await, "replay");
    refused(admin.discard(message, "ann", "").await, "discard");
}

pub async fn verbs_of_sagas_are_in_the_audit_and_in_the_log(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    ask(fx, id, Verb::Quarantine).await.unwrap();
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Operator)));
    assert_eq!(loaded(fx, id).await.view().note.as_deref(), Some("because"));
    ask(fx, id, Verb::Resume).await.unwrap();
    let skip = Verb::Skip { step: "hotel".into() };
    assert!(refused(ask(fx, id, skip).await).contains("takes its output"));
    assert_eq!(ask(fx, id, Verb::Abandon).await.unwrap(), SagaState::Abandoned);
    assert!(refused(ask(fx, id, Verb::Pause).await).contains("abandoned"));
    nothing_is_due(fx).await;
    let audit = fx.admin().await.audit(&AuditFilter::of(MessageId(id.0))).await.unwrap();
    let lines: Vec<_> = audit
        .iter()
        .rev()
        .map(|line| (line.action.as_str(), line.actor.as_str(), line.note.as_str()))
        .collect();
    assert_eq!(
        lines,
        [
            ("saga_quarantine", "ann", "because"),
            ("saga_resume", "ann", "because"),
            ("saga_abandon", "ann", "because")
        ]
    );
    assert_eq!(
        words(fx, id).await,
        [
            "started",
            "quarantine",
            "held",
            "resume",
            "running",
            "abandon",
            "abandoned"
        ]
    );
    let log = log(fx, id).await;
    assert_eq!(log[1].actor, "ann");
    let pages = fx.admin().await.saga_log(id, 2, 3).await.unwrap();
    assert_eq!(pages, log[2..5]);
    let nobody = drive::operate(&*fx.store().await, id, &Verb::Replay { again: false }, "", "").await;
    assert_eq!(field(nobody.map(|_| ())), "actor");
    let none = SagaId(Uuid::now_v7());
    assert!(matches!(ask(fx, none, Verb::Pause).await, Err(Error::NoSaga(id)) if id == none));
    let log = fx.admin().await.saga_log(none, 0, 10).await;
    assert!(matches!(log, Err(Error::NoSaga(id)) if id == none));
}

pub async fn what_was_undone_may_be_done_again(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", Outcome::reject("full", "")).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    // Who only wants to try again what has failed does not book everything once more by it.
    let refusal = refused(ask(fx, id, Verb::Replay { again: false }).await);
    assert!(refusal.contains("saga replay --again"), "{refusal}");
    let again = Verb::Replay { again: true };
    assert_eq!(ask(fx, id, again.clone()).await.unwrap(), SagaState::Running);
    assert!(refused(ask(fx, id, again).await).contains("running, and not compensated"));
    // Under another key: the participant has undone what it knew by the first.
    let again = next(fx, "fn:flight").await;
    assert_eq!(again.delivery.ticket.unwrap().key, format!("{id}:flight#2:do"));
    assert_eq!(loaded(fx, id).await.row.finished_at, None);
}

pub async fn a_late_answer_is_evidence(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    let late = next(fx, "fn:one").await;
    expire(fx).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Unknown)));
    let ticket = late.delivery.ticket.unwrap();
    let store = fx.store().await;
    drive::report_late(&*store, id, &ticket, &done(json!(1)), "w1")
        .await
        .unwrap();
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
    assert_eq!(state(fx, late.lease.id).await, State::Done);
    drive::report_late(&*store, id, &ticket, &Outcome::retry("busy", ""), "w1")
        .await
        .unwrap();
    assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
    let words = words(fx, id).await;
    assert_eq!(
        words,
        ["started", "unknown one", "held", "late one", "completed", "late one"]
    );
}

pub async fn sagas_are_listed_by_filter_and_page(fx: &dyn Fixture) {
    let mut ids = Vec::new();
    for n in 0..5 {
        ids.push(started(fx, &trip(), &format!("k{n}")).await);
    }
    let held = started(fx, &naive(), "h").await;
    ask(fx, held, Verb::Quarantine).await.unwrap();
    offer_start(fx, new_start(&naive(), "t").tenant("acme").namespace("shop"))
        .await
        .unwrap();
    let admin = fx.admin().await;
    let list = async |filter: SagaFilter| admin.sagas(&filter).await.unwrap();
    let all = list(SagaFilter::default()).await;
    assert_eq!((all.sagas.len(), all.next), (7, None));
    let trips = |below| SagaFilter {
        name: Some("trip".into()),
        limit: 2,
        below,
        ..SagaFilter::default()
    };
    let (mut found, mut below) = (Vec::new(), None);
    loop {
        let page = list(trips(below)).await;
        found.extend(page.sagas.iter().map(|row| row.id));
        below = page.next;
        if below.is_none() {
            break;
        }
    }
    ids.reverse();
    assert_eq!(found, ids);
    let by_state = list(SagaFilter {
        state: Some(SagaState::Held),
        reason: Some(HeldReason::Operator),
        ..SagaFilter::default()
    });
    assert_eq!(by_state.await.sagas[0].id, held);
    let by_owner = list(SagaFilter {
        tenant: Some("acme".into()),
        namespace: Some("shop".into()),
        ..SagaFilter::default()
    });
    let row = by_owner.await.sagas.remove(0);
    assert_eq!((row.key.as_str(), row.name.as_str(), row.version), ("t", "naive", 1));
    let by_key = list(SagaFilter {
        key: Some("k3".into()),
        ..SagaFilter::default()
    });
    assert_eq!(by_key.await.sagas.len(), 1);
    let missing = fx
        .store()
        .await
        .load_sagas(&[held, SagaId(Uuid::now_v7())])
        .await
        .unwrap();
    assert!(missing[0].as_ref().unwrap().is_some() && missing[1].as_ref().unwrap().is_none());
}

pub async fn sagas_that_are_over_are_pruned(fx: &dyn Fixture) {
    let over = started(fx, &naive(), "k").await;
    go(fx, "fn:one", done(json!(1))).await;
    let live = started(fx, &naive(), "l").await;
    fx.advance(DAY).await;
    let admin = fx.admin().await;
    assert_eq!(admin.prune(&ended(DAY * 2, 100)).await.unwrap().sagas, 0);
    assert_eq!(admin.prune(&ended(DAY, 100)).await.unwrap().sagas, 1);
    let found = fx.store().await.load_sagas(&[over, live]).await.unwrap();
    assert!(found[0].as_ref().unwrap().is_none() && found[1].as_ref().unwrap().is_some());
    assert!(admin.saga_log(over, 0, 10).await.is_err());
    // Its key is free again.
    assert!(matches!(
        offer_start(fx, new_start(&naive(), "k")).await.unwrap(),
        Started::New(_)
    ));
    // A message whose saga is gone does no harm.
    assert_eq!(claim(&*fx.store().await, "w1", 10).await.len(), 2);
}

pub async fn whatever_is_answered_can_be_recorded(fx: &dyn Fixture) {
    let outputs: [(&[u8], Value); 4] = [
        (b"\xff\xfe raw", json!("\u{fffd}\u{fffd} raw")),
        (b"\"a\\u0000b\"", json!("a\0b")),
        (b"nul \0 here", json!("nul \0 here")),
        (b"", Value::Null),
    ];
    for (n, (bytes, kept)) in outputs.into_iter().enumerate() {
        let id = started(fx, &naive(), &format!("k{n}")).await;
        go(fx, "fn:one", Outcome::answered(Answer::bytes(bytes))).await;
        assert_eq!(loaded(fx, id).await.snapshot.steps[0].output, Some(kept));
    }
    for (n, error) in ["a\0b", "\u{202e}x\u{7}", &"long ".repeat(10_000)]
        .into_iter()
        .enumerate()
    {
        let id = started(fx, &naive(), &format!("e{n}")).await;
        go(fx, "fn:one", Outcome::reject(error, error)).await;
        assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    }
}

pub async fn an_output_that_is_too_large_holds_who_needs_it(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let large = || done(Value::String("x".repeat(MOST_OUTPUT)));
    go(fx, "fn:flight", large()).await;
    go(fx, "fn:hotel", done(json!("H1"))).await;
    assert_eq!(stands(fx, id).await, (SagaState::Held, Some(HeldReason::Output)));
    nothing_is_due(fx).await;
    let verb = Verb::Complete {
        step: "flight".into(),
        output: json!("F1"),
    };
    assert_eq!(ask(fx, id, verb).await.unwrap(), SagaState::Running);
    let charge = next(fx, "http:https://pay.example/charge").await;
    assert_eq!(body(&charge), json!(["F1", "H1"]));
}

pub async fn sixteen_workers_end_every_saga(fx: &dyn Fixture) {
    let mut ids = Vec::new();
    for n in 0..20 {
        ids.push(started(fx, &fork(), &format!("k{n}")).await);
    }
    let store = fx.store().await;
    let workers = (0..16).map(|_| {
        let store = store.clone();
        Box::pin(async move { work(&*store).await }) as std::pin::Pin<Box<dyn Future<Output = ()> + Send + '_>>
    });
    together(workers.collect()).await;
    for id in ids {
        assert_eq!(stands(fx, id).await, (SagaState::Completed, None));
        let mut words = words(fx, id).await;
        words[1..3].sort_unstable();
        assert_eq!(words, ["started", "done left", "done right", "done join", "completed"]);
    }
}

/// Claims and answers until there is nothing left.
async fn work(store: &dyn Store) {
    loop {
        let claimed = claim(store, "w", 3).await;
        if claimed.is_empty() {
            return;
        }
        let mut open: Vec<Lease> = leases(&claimed);
        // Ends: of those that are stale together, one of each saga is not.
        while !open.is_empty() {
            let report = Report::Sent(done(json!(1)));
            let ended = open.iter().map(|lease| (lease, &report, 0.5));
            let decided = drive::settlements(store, "w", ended.collect()).await.unwrap();
            let now = decided
                .into_iter()
                .filter(|decided| matches!(decided, Decided::Settle(_)));
            let batch: Vec<Settlement> = now.map(settled_as).collect();
            let verdicts = store.settle(&batch).await.unwrap();
            for (settlement, verdict) in batch.iter().zip(verdicts) {
                match verdict {
                    Verdict::Settled => open.retain(|lease| lease.id != settlement.lease.id),
                    Verdict::Stale => {}
                    other => panic!("{other:?}"),
                }
            }
        }
    }
}

pub async fn a_deadline_whose_lease_runs_out_is_not_lost(fx: &dyn Fixture) {
    let mut declared: Declared = serde_json::from_str(&trip().json()).unwrap();
    (declared.name, declared.deadline_ms) = ("short".into(), Some(60_000));
    let id = started(fx, &declared.compile().unwrap(), "k").await;
    go(fx, "fn:flight", done(json!("F1"))).await;
    go(fx, "fn:hotel", Outcome::retry("busy", "later")).await;
    fx.advance(SECOND * 60).await;
    let due = claim(&*fx.store().await, "w1", 10).await;
    assert_eq!(due.len(), 2);
    assert_eq!(expire(fx).await, 2);
    // Both were heard of, in whatever order: the hotel may have been booked.
    assert_eq!(stands(fx, id).await, (SagaState::Compensating, None));
    go(fx, "fn:hotel/undo", Outcome::delivered()).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
    assert_eq!(fx.admin().await.counts().await.unwrap().expired.value, 0);
}

/// The end of a lease under which nothing was sent, as it is decided now.
pub(super) async fn given_back(fx: &dyn Fixture, lease: &Lease) {
    give_back(&*fx.store().await, lease).await;
}

async fn give_back(store: &dyn Store, lease: &Lease) {
    let report = Report::Released(Duration::ZERO);
    let mut decided = drive::settlements(store, "w1", vec![(lease, &report, 0.5)])
        .await
        .unwrap();
    let verdict = settle(store, settled_as(decided.remove(0))).await;
    assert!(verdict.is_settled(), "{verdict:?}");
}

pub async fn what_goes_back_unsent_goes_round_again(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    // However often: nothing is said about it that could be decided.
    let store = fx.store().await;
    for _ in 0..120 {
        let claimed = claim_one(&*store, "w1").await;
        assert_eq!(claimed.delivery.attempt, 1);
        give_back(&*store, &claimed.lease).await;
    }
    assert_eq!(words(fx, id).await, ["started"]);
    assert!(!loaded(fx, id).await.snapshot.steps[0].tainted);
    go(fx, "fn:flight", done(json!(1))).await;
}

pub async fn what_goes_back_unsent_is_not_sent_for_a_saga_that_is_stopped(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let claimed = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Pause).await.unwrap();
    given_back(fx, &claimed.lease).await;
    nothing_is_due(fx).await;
    assert_eq!(state(fx, claimed.lease.id).await, State::Done);
    ask(fx, id, Verb::Resume).await.unwrap();
    let again = next(fx, "fn:flight").await;
    ask(fx, id, Verb::Abandon).await.unwrap();
    given_back(fx, &again.lease).await;
    nothing_is_due(fx).await;
}

pub async fn a_message_whose_saga_is_gone_does_no_harm(fx: &dyn Fixture) {
    let id = started(fx, &naive(), "k").await;
    next(fx, "fn:one").await;
    ask(fx, id, Verb::Abandon).await.unwrap();
    fx.advance(DAY).await;
    assert_eq!(fx.admin().await.prune(&ended(DAY, 100)).await.unwrap().sagas, 1);
    // Nobody reported, and nobody is there to be told; others are taken back all the same.
    let other = put(fx, message("other")).await;
    assert_eq!(claim_one(&*fx.store().await, "w2").await.lease.id, other);
    assert_eq!(expire(fx).await, 2);
    assert_eq!(state(fx, other).await, State::Pending);
}

pub async fn what_is_nested_too_deep_is_not_kept(fx: &dyn Fixture) {
    for depth in [64, 65, 125, 127, 300] {
        let id = started(fx, &trip(), &format!("k{depth}")).await;
        let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        go(fx, "fn:flight", Outcome::answered(Answer::bytes(nested.clone()))).await;
        let kept = loaded(fx, id).await.snapshot.steps[0].output.clone();
        assert_eq!(kept.is_some_and(|kept| kept.is_array()), depth == 64, "{depth}");
        ask(fx, id, Verb::Abandon).await.unwrap();
        let deep = (0..depth).fold(json!(1), |inner, _| json!([inner]));
        let mut start = new_start(&trip(), &format!("i{depth}"));
        start.input = deep.clone();
        let answer = offer_start(fx, start).await;
        assert_eq!(answer.is_ok(), depth == 64, "{depth}");
        if let Ok(started) = answer {
            ask(fx, started.id(), Verb::Abandon).await.unwrap();
        }
    }
}

pub async fn what_was_doubted_is_undone_although_it_was_not_found(fx: &dyn Fixture) {
    let mut declared: Declared = serde_json::from_str(&trip().json()).unwrap();
    declared.name = "doubt".into();
    (declared.steps[0].verify_uri, declared.steps[0].idempotent) = (Some("fn:flight/verify".into()), false);
    declared.steps[0].verify_after_ms = Some(1000);
    let id = started(fx, &declared.compile().unwrap(), "k").await;
    go(fx, "fn:flight", Outcome::unknown("timeout", "no answer")).await;
    // Not at once: what nobody heard of may be on its way.
    nothing_is_due(fx).await;
    fx.advance(SECOND * 2).await;
    go(fx, "fn:flight/verify", Outcome::answered(Answer::bytes("").status(204))).await;
    fx.advance(SECOND * 5).await;
    go(fx, "fn:flight", Outcome::reject("full", "no seat")).await;
    go(fx, "fn:flight/undo", Outcome::delivered()).await;
    assert_eq!(stands(fx, id).await, (SagaState::Compensated, None));
}

pub async fn what_is_configured_later_stops_no_saga(fx: &dyn Fixture) {
    let id = started(fx, &trip(), "k").await;
    let mut settings = fx.settings().await;
    settings.limits.require_tenant = true;
    fx.configure(&settings).await.unwrap();
    go(fx, "fn:flight", done(json!(1))).await;
    go(fx, "fn:hotel", done(json!(1))).await;
    assert_eq!(field(offer_start(fx, new_start(&trip(), "l")).await), "tenant");
    ask(fx, id, Verb::Pause).await.unwrap();
    ask(fx, id, Verb::Resume).await.unwrap();
    next(fx, "http:https://pay.example/charge").await;
}

pub async fn a_handlers_transaction_does_not_end_a_step(fx: &dyn Fixture) {
    started(fx, &naive(), "k").await;
    let lease = next(fx, "fn:one").await.lease;
    let mut tx = fx.begin().await;
    assert_eq!(field(tx.settle_in(&delivered(&lease)).await), "settlement");
    tx.rollback().await;
}
