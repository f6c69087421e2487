//! Sagas over real HTTP, with a relay that is killed at every point of the engine, each time that it comes by: another one finishes, and what the
//! participants really did is judged.

use posthouse::{
    SagaId,
    saga::{SagaState, drive, from_json, start},
};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use rustix::process::Signal;

use super::{
    On, Told, World, both,
    receiver::{Request, Then},
    wait, wait_for,
};

/// What the participants have done, by the key of a step.
#[derive(Clone, Default)]
struct Ledger(Arc<Mutex<BTreeMap<String, Entry>>>);

#[derive(Clone, Debug, Default)]
struct Entry {
    effects: u32,
    undone: bool,
}

impl Ledger {
    /// A participant that knows keys, and remembers what it has undone.
    fn answers(&self, request: &Request, declines: bool) -> Then {
        let key = request.headers["idempotency-key"].clone();
        let mut entries = self.0.lock().unwrap();
        match request.path.as_str() {
            "/flight" | "/hotel" | "/charge" => {
                if request.path == "/charge" && declines {
                    return Then::Status(422);
                }
                let entry = entries.entry(key).or_default();
                if entry.undone {
                    return Then::Status(422);
                }
                // The same again is no second effect.
                entry.effects = 1;
            }
            "/charge/find" => {
                let done = entries
                    .get(&forward_key(request))
                    .is_some_and(|entry| entry.effects > 0);
                return Then::Status(if done { 200 } else { 204 });
            }
            _ => {
                let key = forward_key(request);
                assert!(key.ends_with(":do"), "{key}");
                entries.entry(key).or_default().undone = true;
            }
        }
        Then::Status(200)
    }

    fn of(&self, saga: SagaId, step: &str) -> Entry {
        let key = format!("{saga}:{step}#1:do");
        self.0.lock().unwrap().get(&key).cloned().unwrap_or_default()
    }
}

fn forward_key(request: &Request) -> String {
    let body: Value = serde_json::from_slice(&request.body).unwrap();
    body["forward_key"].as_str().unwrap().to_owned()
}

/// Flight, then hotel, then charge, at these addresses.
fn trip(world: &World) -> posthouse::saga::Definition {
    let at = |path: &str| format!("http://{}{path}", world.receiver.address);
    let quick = json!({ "max_attempts": 20, "base_ms": 20, "cap_ms": 50 });
    let definition = json!({ "name": "trip", "version": 1, "steps": [
        { "name": "flight", "action_uri": at("/flight"), "compensate_uri": at("/flight/cancel"), "idempotent": true,
          "retry": quick, "compensate_retry": quick },
        { "name": "hotel", "action_uri": at("/hotel"), "compensate_uri": at("/hotel/cancel"), "idempotent": true,
          "retry": quick, "compensate_retry": quick },
        { "name": "charge", "action_uri": at("/charge"), "verify_uri": at("/charge/find"), "pivot": true, "retry": quick },
    ] });
    from_json(&definition.to_string()).unwrap()
}

fn told(name: &str) -> Told {
    Told {
        routes: "[explicit]\nhttp = [\"127.0.0.1\"]\nallow = [\"127.0.0.1\"]\n".to_owned(),
        last: false,
        lease_ms: 700,
        ..Told::new(name)
    }
}

/// A relay is killed when it comes by there for the nth time; whoever takes back what it had is killed there, if that is said; another one finishes.
/// Whether it came by so often.
fn killed_at(
    world: &World,
    ledger: &Ledger,
    declines: bool,
    (point, nth): (&str, u32),
    repairer: Option<&str>,
) -> bool {
    let key = format!("{declines}-{point}-{nth}-{}", repairer.unwrap_or_default());
    let started = start(&trip(world), key, &json!({ "city": "Rome" })).unwrap();
    let id = world.block(world.store.start(started)).unwrap().id();
    let ended = || {
        let saga = world.block(drive::load(&*world.store.store(), id)).unwrap();
        saga.row.state.is_over() || saga.row.state == SagaState::Held
    };
    let mut first = world.relay(&told("first").dies(point, nth));
    wait("it is killed, or it has done everything", || first.is_over() || ended());
    let killed = first.is_over();
    if killed {
        first.killed();
    } else {
        first.signal(Signal::KILL);
        first.end();
    }
    if let Some(point) = repairer.filter(|_| killed) {
        let mut second = world.relay(&told("second").dies(point, 1));
        wait("the second is killed", || second.is_over());
        second.killed();
    }
    // What was killed may have done everything.
    if !ended() {
        let mut last = world.relay(&Told {
            lease_ms: 20_000,
            ..told("last")
        });
        wait("the saga has ended", ended);
        last.stop();
    }
    judge(world, ledger, id, declines, &format!("{point} {nth}"));
    killed
}

/// All is done; or all that was done is undone. A killed relay leaves nothing that a person has to look at here: each step may be sent again, or asked for.
fn judge(world: &World, ledger: &Ledger, id: SagaId, declines: bool, what: &str) {
    let saga = world.block(drive::load(&*world.store.store(), id)).unwrap();
    let log = world.block(world.store.admin().saga_log(id, 0, 1000)).unwrap();
    let story = || format!("killed at {what}: {:#?}\n{log:#?}", saga.view());
    let entries = ["flight", "hotel", "charge"].map(|step| ledger.of(id, step));
    let stands: Vec<_> = entries.iter().map(|entry| (entry.effects, entry.undone)).collect();
    if declines {
        assert_eq!(saga.row.state, SagaState::Compensated, "{}", story());
        assert!(entries[0].undone && entries[1].undone, "{}", story());
        assert_eq!(entries[2].effects, 0, "{}", story());
    } else {
        assert_eq!(saga.row.state, SagaState::Completed, "{}", story());
        assert_eq!(stands, [(1, false); 3], "{}", story());
    }
}

/// Each point, as often as it is passed.
fn killed_everywhere(on: On, declines: bool, points: &[&str], repairer: Option<&str>) {
    let world = World::new(on);
    let ledger = Ledger::default();
    let participants = ledger.clone();
    world
        .receiver
        .does(move |request| participants.answers(request, declines));
    for point in points {
        let mut nth = 1;
        // Ends: a saga of three steps passes a point a bounded number of times.
        while killed_at(&world, &ledger, declines, (point, nth), repairer) {
            nth += 1;
            assert!(nth < 50, "{point} is passed for ever");
        }
        assert!(nth > 1, "{point} is never passed");
    }
}

/// Many at once, through two relays, of which one is killed twice and begins again. Every third card is declined.
fn many(on: On) {
    let count = std::env::var("POSTHOUSE_TEST_SAGAS").ok();
    let count: usize = count.map_or(300, |count| count.parse().unwrap());
    let world = World::new(on);
    let ledger = Ledger::default();
    let participants = ledger.clone();
    world.receiver.does(move |request| {
        let number = request.body.iter().filter(|byte| byte.is_ascii_digit());
        let number = number.fold(0_u64, |sum, digit| (sum * 10 + u64::from(digit - b'0')) % 3);
        participants.answers(request, request.path == "/charge" && number == 0)
    });
    let (definition, store) = (trip(&world), world.store.store());
    let ids: Vec<SagaId> = (0..count)
        .map(|n| {
            let started = start(&definition, format!("k{n}"), &n).unwrap();
            world.block(world.store.start(started)).unwrap().id()
        })
        .collect();
    let busy = |name: &str| Told {
        lease_ms: 3000,
        batch: 100,
        outbox: "concurrency = 200".to_owned(),
        ..told(name)
    };
    let mut steady = world.relay(&busy("steady"));
    for life in 1..=2 {
        let mut killed = world.relay(&busy("killed"));
        let before = world.receiver.requests().len();
        wait("it has done something", || {
            world.receiver.requests().len() > before + life * count / 4
        });
        killed.signal(Signal::KILL);
        killed.killed();
    }
    let mut again = world.relay(&busy("killed"));
    let over = |id: &SagaId| {
        let saga = world.block(drive::load(&*store, *id)).unwrap();
        saga.row.state.is_over()
    };
    let mut rest = ids.clone();
    wait_for(Duration::from_secs(600), "all sagas have ended", || {
        rest.retain(|id| !over(id));
        rest.is_empty()
    });
    steady.stop();
    again.stop();
    for (n, id) in ids.iter().enumerate() {
        judge(&world, &ledger, *id, n % 3 == 0, "some place");
    }
}

/// After what was committed.
const AFTER: [&str; 2] = ["after_claim", "after_settle"];
/// Before what is sent or written.
const BEFORE: [&str; 4] = ["before_claim", "before_send", "after_send", "before_settle"];
/// With leases that somebody has to take back.
const HELD: [&str; 1] = ["after_claim"];

both! {
    many_trips_through_two_relays: many();
    after_each_write_of_a_trip: killed_everywhere(false, &AFTER, None);
    before_each_word_of_a_trip: killed_everywhere(false, &BEFORE, None);
    after_each_write_of_a_declined_trip: killed_everywhere(true, &AFTER, None);
    before_each_word_of_a_declined_trip: killed_everywhere(true, &BEFORE, None);
    after_each_repair_of_a_declined_trip: killed_everywhere(true, &HELD, Some("after_repair"));
}
