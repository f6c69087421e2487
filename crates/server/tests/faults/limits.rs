//! What a relay spares its destinations and keeps within: breaker, rate, tenants, bytes; by what the receiver saw.

use posthouse::{Message, State};
use std::time::Duration;

use super::{On, Process, Told, World, both, receiver::Then, wait};

fn breaker_state(relay: &Process) -> f64 {
    relay.measure("posthouse_breaker_state{destination=\"all\"}")
}

const OPEN: f64 = 2.0;
const CLOSED: f64 = 0.0;

/// Waits until it has looked for work often enough to have sent more, if it were going to.
#[track_caller]
fn looks_again(relay: &Process) {
    let before = relay.claims();
    wait("it has looked for work since", || relay.claims() >= before + 15);
}

fn numbered(topic: &str, count: usize) -> Vec<Message> {
    (0..count).map(|n| Message::json(topic, &n).unwrap()).collect()
}

fn of(tenant: &str, count: usize) -> Vec<Message> {
    let messages = numbered("story.told", count).into_iter();
    messages.map(|message| message.tenant(tenant)).collect()
}

/// Failures in a row open the breaker: whatever waits, nothing more is sent there, and nothing of it is used up.
fn down(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Status(500));
    let ids = world.enqueue_all(numbered("story.told", 20));
    let mut relay = world.relay(&Told {
        lease_ms: 20_000,
        routes: "[breaker]\nfailures = 3\nopen_ms = 3600000\ncap_ms = 3600000\n".to_owned(),
        route: "timeout_ms = 9000\nconcurrency = 2\nretry = { max_attempts = 12, table_s = [0] }".to_owned(),
        ..Told::new("relay")
    });
    // Those that had a place already may still be sent: twice as many as are sent at a time.
    let most = 3 + 2 * 2;
    let asked = || world.receiver.requests().len();
    wait("its breaker is open", || {
        breaker_state(&relay) == OPEN || asked() > most
    });
    looks_again(&relay);
    assert!((3..=most).contains(&asked()), "{} requests", asked());
    wait("nothing is held", || {
        ids.iter().all(|id| world.view(*id).state == State::Pending)
    });
    let used: u32 = ids.iter().map(|id| world.view(*id).attempts).sum();
    assert_eq!(used as usize, asked(), "only what was sent counts");
    relay.stop();
}

/// When a destination is well again, it is found out, everything goes there, and its breaker is closed.
fn back(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Status(500));
    let mut ids = world.enqueue(12);
    let mut relay = world.relay(&Told {
        lease_ms: 20_000,
        routes: "[breaker]\nfailures = 3\nopen_ms = 100\ncap_ms = 200\n".to_owned(),
        route: "timeout_ms = 9000\nconcurrency = 2\nretry = { max_attempts = 1000, table_s = [0] }".to_owned(),
        ..Told::new("relay")
    });
    wait("its breaker has opened", || relay.log().contains("to=\"open\""));
    world.receiver.does(|_| Then::Status(200));
    world.ended(&ids);
    ids.extend(world.enqueue(12));
    world.ended(&ids);
    wait("its breaker is closed", || breaker_state(&relay) == CLOSED);
    relay.stop();
    world.judge(&ids);
}

/// One in an hour is one; others are not held up by it; and a new rate is taken up.
fn rate(on: On) {
    let world = World::new(on);
    let told = |rate: &str| Told {
        lease_ms: 20_000,
        routes: format!(
            "[[route]]\ntopic = \"rare\"\nname = \"rare\"\nto = \"{}\"\nallow_private = true\ntimeout_ms = 9000\nrate = \"{rate}\"\n",
            world.to()
        ),
        route: "timeout_ms = 9000".to_owned(),
        ..Told::new("relay")
    };
    let rare = world.enqueue_all(numbered("rare", 10));
    let often = world.enqueue_all(numbered("often", 10));
    let mut relay = world.relay(&told("1/h"));
    world.ended(&often);
    let sent = || {
        let requests = world.receiver.requests();
        requests.iter().filter(|r| r.topic() == "rare").count()
    };
    wait("the first is sent", || sent() > 0);
    looks_again(&relay);
    assert_eq!(sent(), 1);
    let waits = |id| matches!(world.view(id), view if view.state == State::Pending && view.attempts == 0);
    wait("the others wait", || rare.iter().filter(|id| waits(**id)).count() == 9);
    world.write(&told("1000/s"));
    world.ended(&rare);
    relay.stop();
    world.judge(&[rare, often].concat());
    assert_eq!(world.duplicates(), 0);
}

/// A tenant at its limit has no more under way, and holds up nobody.
fn tenant_limit(on: On) {
    let world = World::new(on);
    world.receiver.does(|request| match request.tenant() {
        "loud" => Then::Wait,
        _ => Then::Status(200),
    });
    let loud = world.enqueue_all(of("loud", 20));
    let quiet = world.enqueue_all(of("quiet", 6));
    let mut relay = world.relay(&Told {
        lease_ms: 60_000,
        routes: "[tenants]\ncaps = { loud = 2 }\n".to_owned(),
        route: "timeout_ms = 50000\nconcurrency = 32".to_owned(),
        ..Told::new("relay")
    });
    world.ended(&quiet);
    wait("it has what it may have", || world.receiver.most_at_once("loud") >= 2);
    looks_again(&relay);
    assert_eq!(world.receiver.most_at_once("loud"), 2);
    world.receiver.open();
    world.ended(&loud);
    assert_eq!(world.receiver.most_at_once("loud"), 2);
    relay.stop();
    world.judge(&[loud, quiet].concat());
    assert_eq!(world.duplicates(), 0);
}

/// Who weighs three has three times as much under way as who weighs one, where there is not room for all.
fn weights(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::Wait);
    let pairs = of("heavy", 40).into_iter().zip(of("light", 40));
    let ids = world.enqueue_all(pairs.flat_map(|(heavy, light)| [heavy, light]).collect());
    let mut relay = world.relay(&Told {
        lease_ms: 60_000,
        batch: 4,
        outbox: "concurrency = 16".to_owned(),
        routes: "[tenants]\nweights = { heavy = 3 }\n".to_owned(),
        route: "timeout_ms = 50000\nconcurrency = 64".to_owned(),
        ..Told::new("relay")
    });
    wait("it has as many as it may", || world.receiver.requests().len() == 16);
    let most = ["heavy", "light"].map(|tenant| world.receiver.most_at_once(tenant));
    assert_eq!(most, [12, 4]);
    world.receiver.open();
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    assert_eq!(world.duplicates(), 0);
}

/// L8. However many there are, no more bytes are in flight than was said.
fn bytes(on: On) {
    let world = World::new(on);
    world.receiver.does(|_| Then::After(Duration::from_millis(10)));
    let large = |_| Message::bytes("story.told", "text/plain", vec![b'x'; 20_000]);
    let ids = world.enqueue_all((0..40).map(large).collect());
    let mut relay = world.relay(&Told {
        lease_ms: 60_000,
        outbox: "in_flight_bytes = 65536".to_owned(),
        route: "timeout_ms = 50000\nconcurrency = 64".to_owned(),
        ..Told::new("relay")
    });
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    // The last of them may be larger than the room that is left.
    let most = world.receiver.most_at_once("");
    assert!(
        (1..=4).contains(&most),
        "{most} of 20000 bytes, where 65536 are allowed"
    );
}

both! {
    a_destination_that_is_down_is_spared: down();
    a_destination_that_is_back_has_everything: back();
    a_rate_is_kept_and_changed: rate();
    a_tenant_has_no_more_under_way_than_its_limit: tenant_limit();
    tenants_have_room_by_their_weight: weights();
    bytes_in_flight_are_bounded: bytes();
}
