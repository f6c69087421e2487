//! Sagas through the relay, on the store in memory, in a time that moves when everybody sleeps.

use posthouse::{
    Admin, Outcome, Relay, SagaId, Store,
    relay::{CancellationToken, Destination, local_delivery, transactional},
    saga::{
        Do, Failure, HeldReason, Retry, Saga, SagaState, Started, StepState, Undo, UndoState, Verb, action, drive,
        from_json, from_toml, start,
    },
};
use posthouse_testkit::{
    Memory,
    wrapped::{Call, Hook, Reply, Wrapped},
};
use serde_json::{Value, json};
use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::relay::{Running, SECOND, store, until};

/// What participants did, in order.
#[derive(Clone, Default)]
struct Diary(Arc<Mutex<Vec<String>>>);

impl Diary {
    fn write(&self, line: impl Into<String>) {
        self.0.lock().unwrap().push(line.into());
    }

    fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }
}

/// Flight, then hotel, then charge; the card may be declined.
fn trip(diary: &Diary, card: &'static str) -> Saga<Value> {
    let did = |what: &'static str| {
        let diary = diary.clone();
        move |trip: Do<Value>| {
            diary.write(format!("{what} {}", trip["city"].as_str().unwrap()));
            async move { Ok::<_, Failure>(format!("{what}-1")) }
        }
    };
    let undid = |what: &'static str| {
        let diary = diary.clone();
        move |undo: Undo<Value, String>| {
            diary.write(format!("cancel {what} {}", undo.output.unwrap()));
            async { Ok(()) }
        }
    };
    let charged = diary.clone();
    let mut trip = Saga::<Value>::define("trip", 1);
    let flight = trip
        .step("flight", did("flight"))
        .compensate(undid("flight"))
        .idempotent()
        .add();
    let hotel = trip
        .step("hotel", did("hotel"))
        .after(&flight)
        .compensate(undid("hotel"))
        .idempotent()
        .add();
    let charge = move |booked: Do<(String, String)>| {
        charged.write(format!("charge {} {}", booked.0, booked.1));
        async move {
            match card {
                "good" => Ok("paid"),
                "slow" if booked.attempt < 3 => Err(Failure::retry("busy", "later")),
                "slow" => Ok("paid"),
                _ => Err(Failure::reject("declined", "no money")),
            }
        }
    };
    trip.step("charge", charge).input((flight, hotel)).pivot().add();
    trip.build().unwrap()
}

async fn begin<T: serde::Serialize>(store: &Memory, saga: &Saga<T>, input: &T) -> SagaId {
    let mut tx = store.begin();
    let started = tx.start(saga.start("k", input).unwrap()).await.unwrap();
    tx.commit();
    assert!(matches!(started, Started::New(_)));
    started.id()
}

async fn state(store: &Memory, id: SagaId) -> (SagaState, Option<HeldReason>) {
    let row = drive::load(store, id).await.unwrap().row;
    (row.state, row.reason)
}

async fn until_state(store: &Memory, id: SagaId, wanted: SagaState) {
    until(|| async { state(store, id).await.0 == wanted }).await;
}

fn rome() -> Value {
    json!({ "city": "Rome" })
}

#[tokio::test(start_paused = true)]
async fn a_trip_is_booked() {
    let (store, diary) = (store(), Diary::default());
    let trip = trip(&diary, "good");
    let id = begin(&store, &trip, &rome()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&trip));
    until_state(&store, id, SagaState::Completed).await;
    assert_eq!(diary.lines(), ["flight Rome", "hotel Rome", "charge flight-1 hotel-1"]);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_declined_card_cancels_the_trip() {
    let (store, diary) = (store(), Diary::default());
    let trip = trip(&diary, "bad");
    let id = begin(&store, &trip, &rome()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&trip));
    until_state(&store, id, SagaState::Compensated).await;
    let lines = diary.lines();
    assert_eq!(lines[3..], ["cancel hotel hotel-1", "cancel flight flight-1"]);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_busy_is_tried_again_by_the_steps_own_rule() {
    let (store, diary) = (store(), Diary::default());
    let trip = trip(&diary, "slow");
    let id = begin(&store, &trip, &rome()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&trip));
    until_state(&store, id, SagaState::Completed).await;
    assert_eq!(
        diary.lines().iter().filter(|line| line.starts_with("charge")).count(),
        3
    );
    relay.stop().await;
}

/// One step, which answers as it is told to.
fn one<A>(answer: A) -> Saga<()>
where
    A: Fn(Do<()>) -> std::pin::Pin<Box<dyn Future<Output = Result<u32, Failure>> + Send>> + Send + Sync + 'static,
{
    let mut saga = Saga::<()>::define("one", 1);
    saga.step("one", answer).timeout(SECOND).add();
    saga.build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_panic_a_timeout_and_an_error_are_unknown() {
    for (n, kind) in ["panic", "timeout", "error"].into_iter().enumerate() {
        let store = store();
        let saga = one(move |_| {
            Box::pin(async move {
                match kind {
                    "panic" => panic!("oh"),
                    "timeout" => std::future::pending().await,
                    _ => Err(std::io::Error::other("reset"))?,
                }
            })
        });
        let id = begin(&store, &saga, &()).await;
        let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
        until_state(&store, id, SagaState::Held).await;
        assert_eq!(state(&store, id).await.1, Some(HeldReason::Unknown));
        let code = drive::load(&store, id).await.unwrap().view().steps[0]
            .code
            .clone()
            .unwrap();
        assert_eq!(code, ["panic", "timeout", "failed"][n]);
        relay.stop().await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_timeout_is_the_steps_own() {
    let store = store();
    let mut saga = Saga::<()>::define("slow", 1);
    let slow = |_: Do<()>| async {
        tokio::time::sleep(Duration::from_millis(11_500)).await;
        Ok::<_, Failure>(1)
    };
    // Longer than what a destination has by itself.
    saga.step("slow", slow).timeout(12 * SECOND).add();
    let saga = saga.build().unwrap();
    let id = begin(&store, &saga, &()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Completed).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn what_is_not_known_is_asked_for() {
    let store = store();
    let (sent, asked) = (Arc::new(AtomicU32::new(0)), Arc::new(Mutex::new(Vec::new())));
    let mut saga = Saga::<String>::define("charge", 1);
    let (count, keys) = (sent.clone(), asked.clone());
    let charge = move |_: Do<String>| {
        let n = count.fetch_add(1, Ordering::SeqCst);
        async move {
            match n {
                0 | 1 => Err(Failure::unknown("reset", "the connection was cut")),
                _ => Ok(n),
            }
        }
    };
    let find = move |charge: Do<String>| {
        let mut keys = keys.lock().unwrap();
        keys.push(charge.key.clone());
        // The first was never done; the second was.
        let found = (keys.len() == 2).then_some(7);
        async move { Ok(found) }
    };
    saga.step("charge", charge).verify(find).add();
    let saga = saga.build().unwrap();
    let id = begin(&store, &saga, &"EUR 5".to_owned()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Completed).await;
    assert_eq!(sent.load(Ordering::SeqCst), 2);
    let key = format!("{id}:charge#1:do");
    assert_eq!(*asked.lock().unwrap(), [key.clone(), key]);
    let saga = drive::load(&store, id).await.unwrap();
    assert_eq!(saga.snapshot.steps[0].output, Some(json!(7)));
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_deadline_undoes_what_was_done() {
    let (store, diary) = (store(), Diary::default());
    let mut saga = Saga::<()>::define("late", 1);
    saga.deadline(60 * SECOND);
    let undone = diary.clone();
    let undo = move |_: Undo<(), u32>| {
        undone.write("undone");
        async { Ok(()) }
    };
    let one = saga
        .step("one", |_: Do<()>| async { Ok::<u32, Failure>(1) })
        .compensate(undo)
        .add();
    let never = |_: Do<()>| async { Err::<u32, _>(Failure::retry("busy", "for ever")) };
    let often = Retry {
        max_attempts: 1000,
        ..Retry::default()
    };
    saga.step("two", never).after(&one).retry(often).add();
    let saga = saga.build().unwrap();
    let id = begin(&store, &saga, &()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Compensated).await;
    assert_eq!(diary.lines(), ["undone"]);
    relay.stop().await;
}

/// Ten sagas whose pivot goes to a destination that takes one at a time, for two seconds each.
#[tokio::test(start_paused = true)]
async fn steps_that_wait_at_their_destination_over_the_deadline_are_not_sent() {
    let (store, diary) = (store(), Diary::default());
    let definition = from_json(
        r#"{ "name": "s", "version": 1, "deadline_ms": 5000, "steps": [{ "name": "a", "action_uri": "fn:a", "pivot": true }] }"#,
    );
    let definition = definition.unwrap();
    let mut ids = Vec::new();
    for n in 0..10 {
        let mut tx = store.begin();
        ids.push(
            tx.start(start(&definition, format!("k{n}"), "").unwrap())
                .await
                .unwrap()
                .id(),
        );
        tx.commit();
    }
    let sent = diary.clone();
    let slow = action(move |_: Do<String>| {
        sent.write("sent");
        async {
            tokio::time::sleep(2 * SECOND).await;
            Ok::<_, Failure>(())
        }
    });
    let to = Destination::new("a", slow).concurrency(1);
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("fn:a", to));
    let mut states = Vec::new();
    for id in ids {
        until(|| async { state(&store, id).await.0.is_over() }).await;
        states.push(state(&store, id).await.0);
    }
    // At 0, 2 and 4 s; the next would begin at 6 s.
    assert_eq!(diary.lines(), ["sent"; 3]);
    let completed = states.iter().filter(|state| **state == SagaState::Completed).count();
    assert_eq!(completed, 3, "{states:?}");
    relay.stop().await;
}

#[test]
fn verify_after_of_the_builder_is_that_of_a_file() {
    let mut saga = Saga::<()>::define("pay", 1);
    let charge = saga.step_at::<(), ()>("charge", "https://pay.example/charge");
    let charge = charge.verify_at("https://pay.example/find").verify_after(60 * SECOND);
    charge.pivot().add();
    let written = from_toml(
        r#"
        name = "pay"
        version = 1

        [[steps]]
        name = "charge"
        action_uri = "https://pay.example/charge"
        verify_uri = "https://pay.example/find"
        verify_after_ms = 60000
        pivot = true
        "#,
    );
    assert_eq!(saga.build().unwrap().definition().hash(), written.unwrap().hash());
}

#[tokio::test(start_paused = true)]
async fn a_delay_is_waited_for() {
    let store = store();
    let mut saga = Saga::<()>::define("later", 1);
    saga.step("later", |_: Do<()>| async { Ok::<_, Failure>(()) })
        .delay(1800 * SECOND)
        .add();
    let saga = saga.build().unwrap();
    let began = tokio::time::Instant::now();
    let id = begin(&store, &saga, &()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Completed).await;
    assert!(began.elapsed() >= 1800 * SECOND);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn steps_of_one_tag_run_side_by_side() {
    let store = store();
    let both = Arc::new(tokio::sync::Barrier::new(2));
    let mut saga = Saga::<()>::define("fork", 1);
    let meet = || {
        let both = both.clone();
        move |_: Do<()>| {
            let both = both.clone();
            async move {
                both.wait().await;
                Ok::<_, Failure>(1)
            }
        }
    };
    saga.step("left", meet()).concurrency_tag("x").add();
    saga.step("right", meet()).concurrency_tag("x").add();
    saga.step("join", |_: Do<()>| async { Ok::<_, Failure>(()) }).add();
    let saga = saga.build().unwrap();
    let id = begin(&store, &saga, &()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Completed).await;
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_compensation_that_fails_for_ever_is_held_and_the_others_are_done() {
    let (store, diary) = (store(), Diary::default());
    let mut saga = Saga::<()>::define("stuck", 1);
    let done = |_: Do<()>| async { Ok::<u32, Failure>(1) };
    let undone = diary.clone();
    let undo = move |_: Undo<(), u32>| {
        undone.write("first undone");
        async { Ok(()) }
    };
    let broken = diary.clone();
    let fail = move |_: Undo<(), u32>| {
        broken.write("second tried");
        async { Err(Failure::retry("busy", "for ever")) }
    };
    saga.step("first", done).compensate(undo).add();
    saga.step("second", done).compensate(fail).add();
    saga.step("third", |_: Do<()>| async { Err::<(), _>(Failure::reject("no", "")) })
        .add();
    let saga = saga.build().unwrap();
    let id = begin(&store, &saga, &()).await;
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
    until_state(&store, id, SagaState::Held).await;
    assert_eq!(state(&store, id).await.1, Some(HeldReason::CompensationFailed));
    let tried = diary.lines().iter().filter(|line| *line == "second tried").count();
    assert_eq!((tried, diary.lines().last().unwrap().as_str()), (6, "first undone"));
    let view = drive::load(&store, id).await.unwrap().view();
    assert_eq!(
        (view.steps[0].compensation, view.steps[1].compensation),
        (UndoState::Compensated, UndoState::Held)
    );
    // It is among the dead letters, for whoever looks there.
    let letter = store.find(view.steps[1].message.unwrap()).await.unwrap().unwrap();
    assert_eq!(letter.state, posthouse::State::Dead);
    let verb = Verb::Resolve { step: "second".into() };
    drive::operate(&store, id, &verb, "ann", "by telephone").await.unwrap();
    assert_eq!(state(&store, id).await.0, SagaState::Compensated);
    relay.stop().await;
}

/// What a person says that he does not know is not known to what undoes it; what cannot be read is told, and said once more.
#[tokio::test(start_paused = true)]
async fn what_a_person_says_was_answered_is_undone() {
    for (said, better, undone) in [
        (Value::Null, None, "undone None"),
        (json!("room 7"), Some(json!(7)), "undone Some(7)"),
    ] {
        let (store, diary) = (store(), Diary::default());
        let mut saga = Saga::<()>::define("blind", 1);
        let writes = diary.clone();
        let undo = move |undo: Undo<(), u32>| {
            writes.write(format!("undone {:?}", undo.output));
            async { Ok(()) }
        };
        saga.step("one", |_: Do<()>| async {
            Err::<u32, _>(Failure::unknown("timeout", ""))
        })
        .compensate(undo)
        .add();
        saga.step("two", |_: Do<()>| async { Err::<(), _>(Failure::reject("no", "")) })
            .add();
        let saga = saga.build().unwrap();
        let id = begin(&store, &saga, &()).await;
        let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&saga));
        until_state(&store, id, SagaState::Held).await;
        let ask = async |verb: Verb| drive::operate(&store, id, &verb, "ann", "by telephone").await.unwrap();
        let say = |output| Verb::Complete {
            step: "one".into(),
            output,
        };
        ask(say(said)).await;
        if let Some(better) = better {
            until(|| async { state(&store, id).await.1 == Some(HeldReason::CompensationFailed) }).await;
            let view = drive::load(&store, id).await.unwrap().view();
            assert_eq!(view.steps[0].code.as_deref(), Some("SCHEMA.VALIDATION_FAILED"));
            ask(say(better)).await;
            ask(Verb::Replay { again: false }).await;
        }
        until_state(&store, id, SagaState::Compensated).await;
        assert_eq!(diary.lines(), [undone]);
        relay.stop().await;
    }
}

/// The trip of the example, in Rust.
fn trip_at(port: u16) -> Saga<Value> {
    let at = |path: &str| format!("http://127.0.0.1:{port}{path}");
    let mut trip = Saga::<Value>::define("trip", 1);
    trip.deadline(SECOND * 600);
    let flight = trip.step_at::<Value, Value>("flight", &at("/flights"));
    let flight = flight.compensate_at(&at("/flights/cancel")).idempotent().add();
    let hotel = trip.step_at::<Value, Value>("hotel", &at("/hotels"));
    let hotel = hotel.compensate_at(&at("/hotels/cancel")).timeout(SECOND * 10);
    let hotel = hotel.idempotent().add();
    let bill = (trip.input(), flight, hotel);
    let charge = trip.step_at::<(Value, Value, Value), Value>("charge", &at("/charges"));
    let charge = charge.input(bill).verify_at(&at("/charges/find")).verify_after(SECOND);
    charge.pivot().add();
    trip.build().unwrap()
}

#[test]
fn a_saga_in_rust_and_in_a_file_is_the_same() {
    let written = from_toml(include_str!("../../../examples/trip_saga/trip.toml")).unwrap();
    assert_eq!(trip_at(7410).definition().json(), written.json());
    assert_eq!(trip_at(7410).definition().hash(), written.hash());
    assert_ne!(trip_at(7411).definition().hash(), written.hash());
}

#[tokio::test(start_paused = true)]
async fn a_written_definition_runs_on_routes() {
    let (store, diary) = (store(), Diary::default());
    let written = r#"
        name = "greet"
        version = 1

        [[steps]]
        name = "hello"
        action_uri = "fn:hello"
        idempotent = true

        [[steps]]
        name = "world"
        action_uri = "fn:world"
        input = ["input", "hello"]
    "#;
    let definition = from_toml(written).unwrap();
    assert_eq!(definition.hash(), from_json(&definition.json()).unwrap().hash());
    let mut tx = store.begin();
    let id = tx.start(start(&definition, "k", "ann").unwrap()).await.unwrap().id();
    tx.commit();
    let told = diary.clone();
    let relay = Relay::builder(Arc::new(store.clone()))
        .route(
            "fn:hello",
            action(|name: Do<String>| async move { Ok::<_, Failure>(name.len()) }),
        )
        .route(
            "fn:world",
            action(move |given: Do<(String, usize)>| {
                told.write(format!("{} {}", given.0, given.1));
                async { Ok::<_, Failure>(()) }
            }),
        );
    let relay = Running::start(relay);
    until_state(&store, id, SagaState::Completed).await;
    assert_eq!(diary.lines(), ["ann 3"]);
    relay.stop().await;
    let wrong = from_toml("name = \"x\"\nversion = 1\nsteps = [{ name = \"a\", action = \"fn:a\" }]").unwrap_err();
    assert!(wrong.to_string().contains("line 3"), "{wrong}");
}

#[tokio::test(start_paused = true)]
async fn what_may_not_be_sent_is_held() {
    let store = store();
    let definition =
        from_json(r#"{ "name": "s", "version": 1, "steps": [{ "name": "a", "action_uri": "https://x.example/" }] }"#);
    let mut tx = store.begin();
    let id = tx
        .start(start(&definition.unwrap(), "k", "").unwrap())
        .await
        .unwrap()
        .id();
    tx.commit();
    let refuse = |_: &str| Err(posthouse::Invalid::new("topic", "names nobody we know").into());
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).explicit("http:", refuse));
    until_state(&store, id, SagaState::Held).await;
    assert_eq!(state(&store, id).await.1, Some(HeldReason::NoHandler));
    relay.stop().await;
}

/// That one booking is gone does not mean that there is nobody to be asked for others.
#[tokio::test(start_paused = true)]
async fn a_step_that_is_gone_pauses_nobody() {
    let store = store();
    let definition = from_json(r#"{ "name": "s", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a" }] }"#);
    let definition = definition.unwrap();
    let mut ids = Vec::new();
    for key in ["gone", "there"] {
        let mut tx = store.begin();
        ids.push(tx.start(start(&definition, key, key).unwrap()).await.unwrap().id());
        tx.commit();
    }
    let to = local_delivery(|delivery| async move {
        match delivery.payload.starts_with(b"\"gone") {
            true => Outcome::reject("http_410", "gone"),
            false => Outcome::delivered(),
        }
    });
    let to = Destination::new("a", to).concurrency(1);
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("fn:a", to));
    until_state(&store, ids[0], SagaState::Compensated).await;
    until_state(&store, ids[1], SagaState::Completed).await;
    assert!(store.pauses().await.unwrap().is_empty());
    relay.stop().await;
}

/// A store that refuses, for good, whatever has to do with one saga.
struct Refusing(SagaId);

#[async_trait::async_trait]
impl Hook for Refusing {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, posthouse::Error> {
        match &call {
            Call::Settle(batch) if batch.iter().any(|one| one.lease.saga == Some(self.0)) => {
                Err(posthouse::Error::Internal("it cannot be written".into()))
            }
            _ => call.to(store).await,
        }
    }
}

/// What cannot be written for one saga keeps neither other sagas nor other messages from being settled.
#[tokio::test(start_paused = true)]
async fn a_saga_that_cannot_be_written_stops_no_other() {
    let (store, diary) = (store(), Diary::default());
    let trip = trip(&diary, "good");
    let mut ids = Vec::new();
    for key in 0..7 {
        let mut tx = store.begin();
        let begun = tx.start(trip.start(format!("k{key}"), &rome()).unwrap()).await;
        ids.push(begun.unwrap().id());
        tx.commit();
    }
    let broken = ids.remove(3);
    let wrapped = Wrapped::new(Arc::new(store.clone()), Refusing(broken));
    let relay = Running::start(Relay::builder(Arc::new(wrapped)).saga(&trip));
    for id in ids {
        until_state(&store, id, SagaState::Completed).await;
    }
    assert_eq!(state(&store, broken).await.0, SagaState::Running);
    relay.stop().await;
}

#[tokio::test(start_paused = true)]
async fn a_handler_that_settles_by_itself_does_no_step() {
    let store = store();
    let definition = from_json(r#"{ "name": "s", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a" }] }"#);
    let mut tx = store.begin();
    let id = tx
        .start(start(&definition.unwrap(), "k", "").unwrap())
        .await
        .unwrap()
        .id();
    tx.commit();
    let handler = transactional((), |_| async { Outcome::delivered() });
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("fn:a", handler));
    until_state(&store, id, SagaState::Held).await;
    assert_eq!(state(&store, id).await.1, Some(HeldReason::NoHandler));
    relay.stop().await;
}

/// Sagas do not care for receipts of others: equal content is not the same step.
#[tokio::test(start_paused = true)]
async fn no_step_is_left_out_because_another_was_alike() {
    let store = store();
    let sent = Arc::new(AtomicU32::new(0));
    let count = sent.clone();
    let definition = from_json(
        r#"{ "name": "s", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a" }, { "name": "b", "action_uri": "fn:a" }] }"#,
    );
    let mut tx = store.begin();
    let id = tx
        .start(start(&definition.unwrap(), "k", "").unwrap())
        .await
        .unwrap()
        .id();
    tx.commit();
    let to = local_delivery(move |_| {
        count.fetch_add(1, Ordering::SeqCst);
        async { Outcome::receipt("r") }
    });
    let to = Destination::new("a", to).reuse_receipts();
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).route("fn:a", to));
    until_state(&store, id, SagaState::Completed).await;
    assert_eq!(sent.load(Ordering::SeqCst), 2);
    relay.stop().await;
}

/// A store that hears neither of renewals nor of settlements, while it is so told.
struct Deaf(Arc<AtomicBool>);

#[async_trait::async_trait]
impl Hook for Deaf {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, posthouse::Error> {
        match &call {
            Call::Settle(_) | Call::Renew(..) if self.0.load(Ordering::SeqCst) => {
                Err(posthouse::Error::Unavailable("nobody hears".into()))
            }
            _ => call.to(store).await,
        }
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_came_too_late_is_told() {
    let store = store();
    let deaf = Arc::new(AtomicBool::new(true));
    let saga = one(|_| Box::pin(async { Ok(7) }));
    let id = begin(&store, &saga, &()).await;
    let through: Arc<dyn Store> = Arc::new(store.clone());
    let wrapped = Wrapped::new(through, Deaf(deaf.clone()));
    let relay = Running::start(Relay::builder(Arc::new(wrapped)).saga(&saga));
    // The lease runs out while the relay cannot settle; another takes it back.
    let other = store.clone();
    until(|| async {
        posthouse::repair(&other, 10).await.unwrap();
        state(&store, id).await.0 != SagaState::Running
    })
    .await;
    deaf.store(false, Ordering::SeqCst);
    until_state(&store, id, SagaState::Completed).await;
    let step = drive::load(&store, id).await.unwrap().view().steps.remove(0);
    assert_eq!(step.state, StepState::Done);
    let log = store.saga_log(id, 0, 100).await.unwrap();
    assert!(log.iter().any(|line| line.what == "late"), "{log:?}");
    relay.stop().await;
}

/// Nobody waits for a saga that is stopped, and a stop while a step is under way leaves it to others.
#[tokio::test(start_paused = true)]
async fn a_relay_that_stops_leaves_its_steps_to_others() {
    let (store, diary) = (store(), Diary::default());
    let trip = trip(&diary, "good");
    let id = begin(&store, &trip, &rome()).await;
    let cancel = CancellationToken::new();
    cancel.cancel();
    Relay::builder(Arc::new(store.clone()))
        .saga(&trip)
        .run(cancel)
        .await
        .unwrap();
    assert_eq!(state(&store, id).await.0, SagaState::Running);
    let relay = Running::start(Relay::builder(Arc::new(store.clone())).saga(&trip));
    until_state(&store, id, SagaState::Completed).await;
    relay.stop().await;
}
