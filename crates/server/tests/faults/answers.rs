//! Receivers that do each thing that a receiver may do wrong.

use posthouse::{Attempt, Message, MessageId, State};
use rustix::process::Signal;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{On, Told, World, both, receiver::Then, wait};

fn attempts(world: &World, id: MessageId) -> Vec<Attempt> {
    world.block(world.store.admin().attempts(id)).unwrap()
}

/// Each topic has a fault, which it meets once; then all is well.
fn failing_once(on: On) {
    let world = World::new(on);
    let elsewhere = format!("location: http://{}/elsewhere\r\n", world.receiver.address);
    let faults = [
        ("http_500", Then::Status(500)),
        ("http_502", Then::Status(502)),
        ("http_503", Then::With(503, "retry-after: soon\r\n".to_owned())),
        ("http_429", Then::With(429, "retry-after: 1\r\n".to_owned())),
        ("http_404", Then::Status(404)),
        ("http_408", Then::Status(408)),
        ("http_302", Then::With(302, elsewhere)),
        ("reset", Then::Reset),
        ("timeout", Then::Hang),
        // As long as the lease: the send is given up before.
        ("timeout", Then::After(Duration::from_millis(900))),
    ];
    let topic = |n: usize| format!("fault.{n}");
    let script: HashMap<_, _> = (0..).map(topic).zip(faults.clone().map(|(_, then)| then)).collect();
    let met = Arc::new(Mutex::new(HashMap::new()));
    world.receiver.does(move |request| {
        let mut met = met.lock().unwrap();
        let times: &mut u32 = met.entry(request.id().to_owned()).or_default();
        *times += 1;
        if *times > 1 {
            return Then::Status(200);
        }
        script[request.topic()].clone()
    });
    let messages = (0..faults.len()).map(|n| Message::json(topic(n), &n).unwrap());
    let ids = world.enqueue_all(messages.collect());
    let mut relay = world.relay(&Told::new("relay"));
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    for ((code, then), id) in faults.iter().zip(&ids) {
        let attempts = attempts(&world, *id);
        assert_eq!(attempts.len(), 2, "{then:?}: {attempts:#?}");
        assert_eq!(attempts[0].code.as_deref(), Some(*code), "{then:?}");
        if *code == "http_429" {
            let waited = attempts[1].started_at.since(attempts[0].finished_at);
            assert!(waited >= Duration::from_secs(1), "it asked for a second: {waited:?}");
        }
    }
    assert!(world.receiver.requests().iter().all(|request| request.path == "/hook"));
}

/// What the receiver never wants is dead at once, and blocks nobody; an answer that never ends is an answer.
fn rejected(on: On) {
    let world = World::new(on);
    world.receiver.does(|request| match request.topic() {
        "endless" => Then::Endless,
        topic => Then::Status(topic.strip_prefix("status.").unwrap().parse().unwrap()),
    });
    let topics = ["status.400", "status.422", "status.204", "endless"];
    let message = |topic: &str| Message::json(topic, &1).unwrap().order_key("k");
    let ids = world.enqueue_all(topics.map(message).to_vec());
    let mut relay = world.relay(&Told::new("relay"));
    world.ended(&ids);
    relay.stop();
    for (id, topic) in ids.iter().zip(topics) {
        let (view, attempts) = (world.view(*id), attempts(&world, *id));
        let code = topic.strip_prefix("status.4").map(|rest| format!("http_4{rest}"));
        assert_eq!(view.state, if code.is_some() { State::Dead } else { State::Done });
        assert_eq!(attempts.len(), 1, "{attempts:#?}");
        assert_eq!(attempts[0].code, code);
    }
    let seen: Vec<_> = world.receiver.requests().iter().map(|r| r.topic().to_owned()).collect();
    assert_eq!(seen, topics, "one request each, in the order of the key");
}

/// One that says it is gone gets nothing more until somebody resumes it.
fn gone(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Status(410));
    let first = world.enqueue(1);
    let mut told = Told {
        lease_ms: 20_000,
        ..Told::new("relay")
    };
    // What the store answered before it was told of the pause arrives after it.
    let late = "relay::after_heartbeat=1*sleep(1000)->off";
    told.env.push(("FAILPOINTS".to_owned(), late.to_owned()));
    let mut relay = world.relay(&told);
    world.ended(&first);
    let list = || world.place.run(&["destinations", "list"]).ok().to_owned();
    wait("the list has it", || list().contains("gone for good"));
    assert_eq!(world.view(first[0]).state, State::Dead);
    world.receiver.does(|_| Then::Status(200));
    let later = world.enqueue(6);
    let before = relay.claims();
    wait("it has looked for work since", || relay.claims() >= before + 15);
    assert_eq!(world.receiver.requests().len(), 1);
    assert!(later.iter().all(|id| world.view(*id).state == State::Pending));
    world
        .place
        .run(&["destinations", "resume", "all", "--note", "it is back"])
        .ok();
    world.ended(&later);
    relay.stop();
    world.judge(&later);
    assert_eq!(world.duplicates(), 0);
    assert!(!list().contains("gone for good"));
}

/// One that never answers beside fifty that do: these have everything while it still hangs.
fn hung_beside_healthy(on: On) {
    let world = World::new(on);
    world.receiver.does(|request| match request.path.as_str() {
        "/hung" => Then::Hang,
        _ => Then::Status(200),
    });
    let route = |topic: &str| {
        let at = world.receiver.address;
        format!(
            "[[route]]\ntopic = \"{topic}\"\nname = \"{topic}\"\nto = \"http://{at}/{topic}\"\nallow_private = true\ntimeout_ms = 50000\n"
        )
    };
    let healthy: Vec<_> = (0..50).map(|n| format!("well-{n}")).collect();
    let routes: String = healthy.iter().map(String::as_str).chain(["hung"]).map(route).collect();
    let told = Told {
        lease_ms: 60_000,
        batch: 50,
        routes,
        route: "timeout_ms = 50000".to_owned(),
        ..Told::new("relay")
    };
    let messages = |topic: &str, count: usize| vec![Message::json(topic, &1).unwrap(); count];
    // Many more than there is room for in the whole relay, and in front of everybody.
    let hanging = world.enqueue_all(messages("hung", 200));
    let well: Vec<_> = healthy.iter().flat_map(|topic| messages(topic, 2)).collect();
    let well = world.enqueue_all(well);
    let mut relay = world.relay(&told);
    wait("all are done but those that hang", || {
        well.iter().all(|id| world.view(*id).state == State::Done)
    });
    world.judge(&well);
    assert_eq!(world.duplicates(), 0);
    assert!(
        hanging.iter().all(|id| attempts(&world, *id).is_empty()),
        "they still hang"
    );
    relay.signal(Signal::TERM);
    relay.signal(Signal::KILL);
    relay.killed();
}

both! {
    each_fault_is_tried_again_and_explained: failing_once();
    what_is_refused_is_dead_at_once: rejected();
    a_destination_that_is_gone_is_left_alone: gone();
    one_that_hangs_beside_fifty_that_are_well: hung_beside_healthy();
}
