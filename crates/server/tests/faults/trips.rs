//! Sagas over real HTTP, with a relay that is killed at every point of the engine, each time that it comes by: another one finishes, and what the
//! participants really did is judged.

use posthouse::{
    SagaId, Timestamp,
    saga::{SagaRow, SagaState, drive, from_json, start},
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
        { "name": "charge", "action_uri": at("/charge"), "verify_uri": at("/charge/find"), "verify_after_ms": 20, "pivot": true,
          "retry": quick },
    ] });
    from_json(&definition.to_string()).unwrap()
}

/// The same under another name, with a deadline; the charge begins this long after the hotel.
fn short_trip(world: &World, deadline: Duration, delay: Duration) -> posthouse::saga::Definition {
    let mut definition: Value = serde_json::from_str(&trip(world).json()).unwrap();
    definition["name"] = json!("short");
    definition["deadline_ms"] = json!(deadline.as_millis());
    if !delay.is_zero() {
        definition["steps"][2]["delay_ms"] = json!(delay.as_millis());
    }
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
    let ids = begun(&world, &definition, 0..count);
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

/// When each step first came to its participant, by the key of the step.
#[derive(Clone, Default)]
struct Arrivals(Arc<Mutex<BTreeMap<String, Timestamp>>>);

impl Arrivals {
    fn note(&self, request: &Request) {
        let since = std::time::UNIX_EPOCH.elapsed().unwrap();
        let now = Timestamp::from_micros(0).plus(since);
        let key = request.headers["idempotency-key"].clone();
        self.0.lock().unwrap().entry(key).or_insert(now);
    }

    fn of(&self, saga: SagaId, step: &str) -> Option<Timestamp> {
        self.0.lock().unwrap().get(&format!("{saga}:{step}#1:do")).copied()
    }
}

/// Starts sagas of the definition, one for each number.
fn begun(world: &World, definition: &posthouse::saga::Definition, numbers: std::ops::Range<usize>) -> Vec<SagaId> {
    let begin = |n: usize| {
        let started = start(definition, format!("k{n}"), &n).unwrap();
        world.block(world.store.start(started)).unwrap().id()
    };
    numbers.map(begin).collect()
}

fn row(world: &World, id: SagaId) -> SagaRow {
    world.block(drive::load(&*world.store.store(), id)).unwrap().row
}

fn all_over(world: &World, ids: &[SagaId]) -> bool {
    ids.iter().all(|id| row(world, *id).state.is_over())
}

/// No relay runs when the deadlines of 20 sagas pass: half of them have not begun, the others wait before their charge.
fn relay_down_over_the_deadline(on: On) {
    const DEADLINE: Duration = Duration::from_millis(5000);
    let world = World::new(on);
    let (ledger, arrivals) = (Ledger::default(), Arrivals::default());
    let (participants, noted) = (ledger.clone(), arrivals.clone());
    world.receiver.does(move |request| {
        noted.note(request);
        participants.answers(request, false)
    });
    let definition = short_trip(&world, DEADLINE, Duration::from_millis(4000));
    let mut ids = begun(&world, &definition, 0..10);
    let mut relay = world.relay(&told("before"));
    wait("every hotel is booked", || {
        ids.iter().all(|id| arrivals.of(*id, "hotel").is_some())
    });
    relay.stop();
    ids.extend(begun(&world, &definition, 10..20));
    let over = ids
        .iter()
        .map(|id| row(&world, *id).created_at.plus(DEADLINE))
        .max()
        .unwrap();
    let now = || Timestamp::from_micros(0).plus(std::time::UNIX_EPOCH.elapsed().unwrap());
    wait("the deadlines have passed", || now() > over);
    let mut relay = world.relay(&told("after"));
    wait("all sagas have ended", || all_over(&world, &ids));
    relay.stop();
    for (n, id) in ids.into_iter().enumerate() {
        assert_eq!(row(&world, id).state, SagaState::Compensated, "{n}");
        assert_eq!(arrivals.of(id, "charge"), None, "{n} was charged after its deadline");
        let (flight, hotel) = (ledger.of(id, "flight"), ledger.of(id, "hotel"));
        let undone = n < 10;
        assert_eq!((flight.undone, hotel.undone), (undone, undone), "{n}");
        assert_eq!(flight.effects, u32::from(undone), "{n} began after its deadline");
    }
}

/// More sagas at once than the participants can serve before the deadline.
fn many_trips_at_once_over_a_short_deadline(on: On) {
    const DEADLINE: Duration = Duration::from_millis(2500);
    // A request that was sent in time takes this long to arrive on a busy machine.
    const ON_THE_WAY: Duration = Duration::from_millis(300);
    let world = World::new(on);
    let (ledger, arrivals) = (Ledger::default(), Arrivals::default());
    let (participants, noted) = (ledger.clone(), arrivals.clone());
    world.receiver.does(move |request| {
        noted.note(request);
        match participants.answers(request, false) {
            Then::Status(200) if request.path == "/charge" => Then::After(Duration::from_secs(1)),
            then => then,
        }
    });
    let ids = begun(&world, &short_trip(&world, DEADLINE, Duration::ZERO), 0..150);
    let mut relay = world.relay(&Told {
        lease_ms: 5000,
        batch: 150,
        ..told("one")
    });
    wait("all sagas have ended", || all_over(&world, &ids));
    relay.stop();
    let (mut charged, mut late) = (0, Vec::new());
    for id in ids {
        let row = row(&world, id);
        let entry = ledger.of(id, "charge");
        let expected = if entry.effects > 0 {
            SagaState::Completed
        } else {
            SagaState::Compensated
        };
        assert_eq!(row.state, expected, "{entry:?}");
        charged += entry.effects;
        for step in ["flight", "hotel", "charge"] {
            let after = arrivals.of(id, step).map(|at| at.since(row.created_at.plus(DEADLINE)));
            late.extend(after.filter(|after| *after > ON_THE_WAY).map(|after| (step, after)));
            if entry.effects == 0 && ledger.of(id, step).effects > 0 {
                assert!(ledger.of(id, step).undone, "{step} is left");
            }
        }
    }
    assert!(late.is_empty(), "first sends after the deadline: {late:?}");
    assert!(
        charged < 150,
        "all were charged in time: the deadline is too long for this test"
    );
}

/// After what was committed.
const AFTER: [&str; 2] = ["after_claim", "after_settle"];
/// Before what is sent or written.
const BEFORE: [&str; 4] = ["before_claim", "before_send", "after_send", "before_settle"];
/// With leases that somebody has to take back.
const HELD: [&str; 1] = ["after_claim"];

both! {
    many_trips_through_two_relays: many();
    nothing_begins_after_a_deadline_that_passed_without_a_relay: relay_down_over_the_deadline();
    no_first_send_after_the_deadline_of_many_trips_at_once: many_trips_at_once_over_a_short_deadline();
    after_each_write_of_a_trip: killed_everywhere(false, &AFTER, None);
    before_each_word_of_a_trip: killed_everywhere(false, &BEFORE, None);
    after_each_write_of_a_declined_trip: killed_everywhere(true, &AFTER, None);
    before_each_word_of_a_declined_trip: killed_everywhere(true, &BEFORE, None);
    after_each_repair_of_a_declined_trip: killed_everywhere(true, &HELD, Some("after_repair"));
}
