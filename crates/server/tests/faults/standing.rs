//! A relay that stands still at one exact point while something else happens: it is stopped, or its lease runs out.

use posthouse::{AttemptOutcome, Message, MessageId, State};
use rustix::process::Signal;
use std::path::PathBuf;

use super::{On, Process, Told, World, both, receiver::Then, wait};

/// The file for which a relay stands still.
fn file(world: &World) -> PathBuf {
    world.folder.path().join("stands")
}

#[track_caller]
fn stands(world: &World) {
    wait("it stands there", || file(world).exists());
}

fn goes_on(world: &World) {
    std::fs::remove_file(file(world)).unwrap();
}

#[track_caller]
fn told_to_stop(relay: &Process) {
    relay.signal(Signal::TERM);
    wait("it has heard it", || relay.log().contains("told to stop"));
}

fn count(world: &World, ids: &[MessageId], state: State) -> usize {
    ids.iter().filter(|id| world.view(**id).state == state).count()
}

/// One send at a time, and much time for everything.
fn patient(name: &str) -> Told {
    Told {
        lease_ms: 60_000,
        grace_ms: 50_000,
        route: "timeout_ms = 45000\nconcurrency = 1".to_owned(),
        ..Told::new(name)
    }
}

fn unkeyed(world: &World, count: usize) -> Vec<MessageId> {
    let messages = (0..count).map(|n| Message::json("story.told", &n).unwrap());
    world.enqueue_all(messages.collect())
}

#[track_caller]
fn finish(world: &World, ids: &[MessageId]) {
    world.receiver.does(|_| Then::Status(200));
    world.finish(ids);
}

/// L6. Stopped in the middle of a claim, with one send under way and others behind it: these go back at once, also when the one before
/// them ends, and so does what the claim grants.
fn stopped_claiming(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Wait);
    let ids = unkeyed(&world, 4);
    // For another destination it claims also when the first is full.
    let other = Told {
        routes: format!(
            "[[route]]\ntopic = \"other.*\"\nname = \"other\"\nto = \"{}\"\nallow_private = true\n",
            world.to()
        ),
        ..patient("first")
    };
    let mut relay = world.relay(&other.stands("before_claim", 4, &file(&world)));
    stands(&world);
    // One or two: of those that had come before it was known to be slow, one may be the one that is sent.
    wait("one is sent, and others wait behind it", || {
        world.receiver.requests().len() == 1 && (2..=3).contains(&count(&world, &ids, State::Leased))
    });
    told_to_stop(&relay);
    world.receiver.open();
    wait("nothing is held", || count(&world, &ids, State::Leased) == 0);
    assert_eq!(world.receiver.requests().len(), 1, "nothing is sent after the stop");
    assert_eq!(count(&world, &ids, State::Pending), 3);
    goes_on(&world);
    let status = relay.end();
    assert_eq!(status.code(), Some(0), "{status:?}\n{}", relay.log());
    assert_eq!(world.receiver.requests().len(), 1, "nothing is sent after the stop");
    assert_eq!(count(&world, &ids, State::Pending), 3);
    finish(&world, &ids);
    assert_eq!(world.duplicates(), 0);
}

/// L6. Stopped when everything is ready for a send that has not begun: it does not begin, and nothing is counted. What comes later is
/// left for others.
fn stopped_before_a_send(on: On) {
    let world = World::new(on);
    let ids = unkeyed(&world, 4);
    let mut relay = world.relay(&patient("first").stands("before_last_look", 1, &file(&world)));
    stands(&world);
    told_to_stop(&relay);
    wait("all others are back", || count(&world, &ids, State::Pending) == 3);
    let later = unkeyed(&world, 4);
    goes_on(&world);
    let status = relay.end();
    assert_eq!(status.code(), Some(0), "{status:?}\n{}", relay.log());
    assert_eq!(world.receiver.requests().len(), 0, "nothing is sent after the stop");
    for id in &ids {
        let view = world.view(*id);
        assert_eq!((view.state, view.attempts), (State::Pending, 0), "{view:#?}");
    }
    // A claim may have been under way when it was told to stop; but that was the last.
    assert!(later.iter().all(|id| world.view(*id).epoch <= 1));
    finish(&world, &[ids, later].concat());
    assert_eq!(world.duplicates(), 0);
}

/// A relay that has its answers, and is frozen before it can write them down, until its leases have run out.
fn frozen(world: &World, name: &str) -> Process {
    let told = Told {
        lease_ms: 3000,
        route: "timeout_ms = 2500".to_owned(),
        ..Told::new(name)
    };
    let relay = world.relay(&told.stands("before_settle", 1, &file(world)));
    stands(world);
    world.freeze(&relay);
    relay
}

#[track_caller]
fn thaws(world: &World, relay: &Process) {
    goes_on(world);
    relay.signal(Signal::CONT);
    let settled = || relay.measure("posthouse_phase_seconds_count{phase=\"settle\"}");
    wait("it has tried to write them down", || settled() > 0.0);
}

/// P3, P4. What it writes down too late changes nothing about the leases that another relay has on the same messages by then; also if
/// both have the same name.
fn fenced(on: On, names: [&str; 2]) {
    let world = World::new(on);
    world.receiver.does(|request| match request.epoch() {
        1 => Then::Status(200),
        _ => Then::Wait,
    });
    // One, because only one of its settlements is held up.
    let ids = unkeyed(&world, 1);
    let mut first = frozen(&world, names[0]);
    let mut second = world.relay(&Told {
        lease_ms: 60_000,
        route: "timeout_ms = 50000".to_owned(),
        ..Told::new(names[1])
    });
    let again = || {
        let requests = world.receiver.requests();
        requests.iter().filter(|request| request.epoch() == 2).count()
    };
    wait("the other one has it", || again() == 1);
    thaws(&world, &first);
    assert_eq!(count(&world, &ids, State::Leased), 1, "it is the other one's");
    wait("the audit has the lost lease", || world.conflicts().len() == 1);
    assert_eq!(count(&world, &ids, State::Leased), 1, "it is the other one's");
    world.receiver.open();
    world.ended(&ids);
    first.stop();
    second.stop();
    world.judge(&ids);
    for id in ids {
        let attempts = world.block(world.store.admin().attempts(id)).unwrap();
        let story: Vec<_> = attempts.iter().map(|a| (a.epoch, a.outcome)).collect();
        let expected = [(1, AttemptOutcome::LeaseExpired), (2, AttemptOutcome::Delivered)];
        assert_eq!(story, expected, "{attempts:#?}");
    }
}

/// P4. Nobody else has them, and yet it is too late.
fn too_late(on: On) {
    let world = World::new(on);
    let ids = unkeyed(&world, 1);
    let mut relay = frozen(&world, "relay");
    let store = world.store.store();
    wait("its lease has run out", || {
        world.block(store.expired(0, 10)).unwrap().len() == 1
    });
    thaws(&world, &relay);
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    for id in ids {
        let attempts = world.block(world.store.admin().attempts(id)).unwrap();
        assert_eq!(attempts[0].outcome, AttemptOutcome::LeaseExpired, "{attempts:#?}");
    }
}

both! {
    no_send_starts_after_the_stop_while_a_claim_is_under_way: stopped_claiming();
    no_send_starts_after_the_stop_however_ready_it_is: stopped_before_a_send();
    a_late_settlement_leaves_another_relays_lease: fenced(["frozen", "other"]);
    a_late_settlement_leaves_the_lease_of_a_relay_of_the_same_name: fenced(["same", "same"]);
    a_settlement_after_the_deadline_changes_nothing: too_late();
}
