//! Relays that are stopped, frozen, started again and again, and that meet each other.

use posthouse::{AttemptOutcome, Message, State};
use rustix::process::Signal;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::{On, Told, World, both, receiver::Then, wait};

/// Frozen for longer than its lease, while another relay does its work. When it thaws, the answers to what it sent are there, and what
/// it would write of them is refused.
fn frozen(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Wait);
    let ids = world.enqueue(8);
    let told = |name| Told {
        lease_ms: 3000,
        route: "timeout_ms = 2500\nretry = { table_s = [0] }".to_owned(),
        ..Told::new(name)
    };
    let mut first = world.relay(&told("frozen"));
    wait("something is sent", || world.received().len() >= 3);
    world.freeze(&first);
    world.receiver.open();
    let mut second = world.relay(&told("other"));
    world.ended(&ids);
    first.signal(Signal::CONT);
    wait("the audit has the lost leases", || !world.conflicts().is_empty());
    assert!(world.conflicts().iter().all(|entry| entry.actor == "frozen"));
    first.stop();
    second.stop();
    world.judge(&ids);
    assert!(world.duplicates() > 0);
    for id in ids {
        let attempts = world.block(world.store.admin().attempts(id)).unwrap();
        let by_frozen = attempts.iter().filter(|a| a.worker == "frozen");
        assert!(
            by_frozen.map(|a| a.outcome).all(|o| o == AttemptOutcome::LeaseExpired),
            "{attempts:#?}"
        );
    }
}

/// One send at a time, to somebody who never answers: the others wait behind it.
fn hung(name: &str, grace_ms: u32) -> Told {
    Told {
        lease_ms: 40_000,
        grace_ms,
        route: "timeout_ms = 30000\nconcurrency = 1".to_owned(),
        ..Told::new(name)
    }
}

/// What is sent has its grace, what is not goes back, and the program ends well.
fn stopped_with_hung_sends(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Hang);
    let ids = world.enqueue(8);
    let mut first = world.relay(&hung("first", 1500));
    wait("one is sent", || !world.received().is_empty());
    first.stop();
    assert_eq!(world.received().len(), 1, "nothing is sent after the stop");
    let mut sent = 0;
    for id in &ids {
        let (view, attempts) = (world.view(*id), world.block(world.store.admin().attempts(*id)).unwrap());
        assert_eq!(
            view.state,
            State::Pending,
            "a lease would last for 40 seconds: {view:#?}"
        );
        let was_sent = world.received().contains_key(&id.to_string());
        let codes: Vec<_> = attempts.iter().filter_map(|a| a.code.as_deref()).collect();
        assert_eq!(codes, if was_sent { vec!["shutdown"] } else { vec![] }, "{attempts:#?}");
        assert_eq!(view.attempts, u32::from(was_sent));
        sent += u32::from(was_sent);
    }
    assert_eq!(sent, 1);
    world.receiver.does(|_| Then::Status(200));
    let mut last = world.relay(&Told::new("last"));
    world.ended(&ids);
    last.stop();
    world.judge(&ids);
}

/// What was not sent is back while the send that hangs has its grace, a long one; told to stop again, it ends at once.
fn stopped_twice(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Hang);
    let ids = world.enqueue(8);
    let mut first = world.relay(&hung("first", 600_000));
    let states = || ids.iter().map(|id| world.view(*id).state).collect::<Vec<_>>();
    let count = |state| states().iter().filter(|s| **s == state).count();
    // By then it claims no more of them: what is granted in the last moment is still held when it ends at once.
    wait("one is sent, and few wait behind it", || {
        !world.received().is_empty() && (2..=3).contains(&count(State::Leased))
    });
    first.signal(Signal::TERM);
    wait("what is not sent is back", || count(State::Pending) == 7);
    assert_eq!(count(State::Leased), 1);
    first.signal(Signal::TERM);
    let status = first.end();
    assert_eq!(status.code(), Some(130), "{status:?}\n{}", first.log());
    assert_eq!((count(State::Pending), count(State::Leased)), (7, 1));
}

/// Killed as soon as it has sent something, over and over.
fn restart_storm(on: On) {
    let world = World::new(on);
    world
        .receiver
        .does(|_| Then::After(std::time::Duration::from_millis(20)));
    let ids = world.enqueue(40);
    for n in 0..6 {
        let before = world.receiver.requests().len();
        let mut relay = world.relay(&Told::new(&format!("storm-{n}")));
        wait("it has sent something", || world.receiver.requests().len() > before);
        relay.signal(Signal::KILL);
        relay.killed();
    }
    let mut last = world.relay(&Told::new("last"));
    world.ended(&ids);
    last.stop();
    world.judge(&ids);
}

/// Two that work side by side, and nothing goes wrong: nothing comes twice.
fn two(on: On, names: [&str; 2]) {
    let world = World::new(on);
    world
        .receiver
        .does(|_| Then::After(std::time::Duration::from_millis(5)));
    let told = |name| Told {
        lease_ms: 20_000,
        ..Told::new(name)
    };
    let mut relays = names.map(|name| world.relay(&told(name)));
    let mut ids = Vec::new();
    for _ in 0..10 {
        ids.extend(world.enqueue(12));
    }
    world.ended(&ids);
    relays.iter_mut().for_each(|relay| relay.stop());
    world.judge(&ids);
    assert_eq!(world.duplicates(), 0);
    assert_eq!(world.conflicts(), []);
}

/// A key's messages that wait behind a send which hangs go to nobody else, and go on in their order when its relay dies.
fn key_of_a_dead_relay(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Hang);
    let message = |n: u32| Message::json("story.told", &n).unwrap().order_key("k");
    let ids = world.enqueue_all((0..5).map(message).collect());
    let mut first = world.relay(&Told::new("first"));
    wait("the first is sent", || !world.received().is_empty());
    first.signal(Signal::KILL);
    first.killed();
    world.receiver.does(|_| Then::Status(200));
    let mut last = world.relay(&Told::new("last"));
    world.ended(&ids);
    last.stop();
    world.judge(&ids);
}

/// P8. Each relay that gets it dies of it; with the last lease of its budget it is dead, and nobody sends it again.
fn deadly(on: On) {
    let world = World::new(on);
    let sent = AtomicUsize::new(0);
    // By how often it came, not by its epoch: on a slow machine a lease may be given back unsent.
    world.receiver.does(move |request| match request.topic() {
        // From here on it has the budget of its route.
        "deadly" if sent.fetch_add(1, Ordering::SeqCst) == 0 => Then::Status(500),
        "deadly" => Then::Hang,
        _ => Then::Status(200),
    });
    let told = |name: String| Told {
        lease_ms: 4000,
        route: "timeout_ms = 3500\nretry = { max_attempts = 3, table_s = [0] }".to_owned(),
        ..Told::new(&name)
    };
    let id = world.enqueue_all(vec![Message::json("deadly", &1).unwrap()]);
    for n in 2..=3 {
        let mut relay = world.relay(&told(format!("victim-{n}")));
        wait("it has it", || world.receiver.requests().len() >= n);
        relay.signal(Signal::KILL);
        relay.killed();
    }
    let mut last = world.relay(&told("last".to_owned()));
    world.ended(&id);
    let other = world.enqueue(1);
    world.ended(&other);
    last.stop();
    world.judge(&other);
    let (view, attempts) = (
        world.view(id[0]),
        world.block(world.store.admin().attempts(id[0])).unwrap(),
    );
    let outcomes: Vec<_> = attempts.iter().map(|a| a.outcome).collect();
    let (again, over) = (AttemptOutcome::Retry, AttemptOutcome::LeaseExpired);
    assert_eq!(
        (view.state, outcomes),
        (State::Dead, vec![again, over, over]),
        "{attempts:#?}"
    );
    assert_eq!(world.received()[&id[0].to_string()], 3, "as often as it may");
}

/// Somebody else writes to the file for longer than a call waits for that: what was sent is settled afterwards, by asking again.
#[test]
fn a_settlement_outlasts_a_busy_file() {
    let world = World::new(On::Sqlite);
    world.receiver.does(|_| Then::Wait);
    let ids = world.enqueue(4);
    let mut relay = world.relay(&Told {
        lease_ms: 40_000,
        route: "timeout_ms = 30000".to_owned(),
        ..Told::new("relay")
    });
    wait("all are sent", || world.received().len() == 4);
    let db = rusqlite::Connection::open(world.place.url.strip_prefix("sqlite://").unwrap()).unwrap();
    db.busy_timeout(std::time::Duration::from_secs(10)).unwrap();
    db.execute_batch("BEGIN IMMEDIATE").unwrap();
    world.receiver.open();
    wait("they cannot be settled", || {
        relay.log().contains("settlements wait for the store")
    });
    db.execute_batch("ROLLBACK").unwrap();
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    assert_eq!(world.duplicates(), 0);
}

both! {
    a_frozen_relay_changes_nothing_after_its_lease: frozen();
    stopped_with_hung_sends_it_gives_back_the_rest: stopped_with_hung_sends();
    stopped_twice_it_ends_at_once: stopped_twice();
    killed_again_and_again: restart_storm();
    two_relays_share_the_work: two(["one", "two"]);
    two_relays_of_one_name: two(["same", "same"]);
    a_key_outlives_its_relay: key_of_a_dead_relay();
    what_kills_each_relay_ends_dead: deadly();
}
