//! A configuration that changes while the relay works, and what must never be told.

use posthouse::{
    Message,
    webhook::{Secret, Verifier},
};
use rustix::process::Signal;
use std::{os::unix::fs::PermissionsExt, path::PathBuf, time::SystemTime};

use super::{
    On, Told, World, both,
    receiver::{Request, Then},
    wait,
};
use crate::support::posthouse;

/// A topic that the configuration does not know waits; a file that is changed, or a signal, brings its route. What is wrong changes
/// nothing, and is told.
fn routes_change(on: On) {
    let world = World::new(on);
    let only = |topic: &str| Told {
        routes: format!(
            "[[route]]\ntopic = \"{topic}\"\nname = \"{topic}\"\nto = \"{}\"\nallow_private = true\ntimeout_ms = 600\n",
            world.to()
        ),
        last: false,
        lease_ms: 20_000,
        ..Told::new("relay")
    };
    let (first, second) = (only("first"), only("second"));
    let mut relay = world.relay(&first);
    let message = |topic: &str| Message::json(topic, &1).unwrap();
    let ids = world.enqueue_all(vec![message("first"), message("second")]);
    world.ended(&ids[..1]);

    // A bad file: the old one stays in force, and says so.
    let good = std::fs::read_to_string(world.write(&first)).unwrap();
    let path = world.path(&first);
    std::fs::write(&path, format!("{good}\nlease = [")).unwrap();
    relay.signal(Signal::HUP);
    wait("it is told", || relay.measure("posthouse_configuration_sound") == 0.0);
    // Once, however often somebody asks while it stays the same.
    const TOLD: &str = "is not sound, and the one before stays";
    let once = relay.log().matches(TOLD).count();
    relay.signal(Signal::HUP);
    wait("it is read again", || relay.log().contains("and is still not sound"));
    assert_eq!(relay.log().matches(TOLD).count(), once);
    let (status, text) = relay.get("/readyz");
    assert_eq!(status, 200, "it still works: {text}");
    assert!(text.contains("not sound"), "{text}");
    let more = world.enqueue_all(vec![message("first")]);
    world.ended(&more);
    assert_eq!(world.receiver.requests().len(), 2);

    // Both routes: by the change of the file alone.
    let both = Told {
        routes: format!("{}{}", first.routes, second.routes),
        ..first.clone()
    };
    world.write(&both);
    world.ended(&ids);
    wait("all is sound again", || {
        relay.get("/readyz") == (200, "ok\n".to_owned())
    });
    assert_eq!(relay.measure("posthouse_configuration_sound"), 1.0);

    // The second alone, and a signal, which is heard with or without a change.
    world.write(&second);
    relay.signal(Signal::HUP);
    let read_again = || relay.log().matches("the configuration was read again").count();
    wait("it is taken up", || read_again() >= 2);
    let last = world.enqueue_all(vec![message("second")]);
    world.ended(&last);
    relay.stop();
    world.judge(&[ids, more, last].concat());
    assert_eq!(world.duplicates(), 0);
}

fn secret(n: u8) -> String {
    let letter = char::from(b'A' + n);
    format!("whsec_{}", String::from(letter).repeat(40))
}

fn verifies(request: &Request, secret: &str) -> bool {
    let verifier = Verifier::new(Secret::parse(secret).unwrap());
    let header = |name: &str| request.headers.get(name).map(String::as_str);
    verifier.verify(header, &request.body, SystemTime::now()).is_ok()
}

fn keep(world: &World, name: &str, secret: &str) -> PathBuf {
    let path = world.folder.path().join(name);
    let next = path.with_extension("next");
    std::fs::write(&next, secret).unwrap();
    std::fs::set_permissions(&next, std::fs::Permissions::from_mode(0o600)).unwrap();
    std::fs::rename(&next, &path).unwrap();
    path
}

/// From one secret to both to the other, while messages are on their way.
fn secret_rotates(on: On) {
    let world = World::new(on);
    let (old, new) = (secret(1), secret(2));
    let (first, second) = (keep(&world, "first", &old), keep(&world, "second", &new));
    let (first, second) = (first.display(), second.display());
    let told = |secrets: String| Told {
        lease_ms: 20_000,
        route: format!("{}\n{secrets}", Told::new("").route.replace("600", "9000")),
        ..Told::new("relay")
    };
    world.receiver.does(|_| Then::Wait);
    let mut relay = world.relay(&told(format!("secret_file = \"{first}\"")));
    let mut ids = world.enqueue(3);
    wait("they are on their way", || world.receiver.requests().len() == 3);
    world.write(&told(format!(
        "secret_file = \"{first}\"\nsecond_secret_file = \"{second}\""
    )));
    let read_again = || relay.log().matches("the configuration was read again").count();
    wait("both are in force", || read_again() == 1);
    world.receiver.open();
    ids.extend(world.enqueue(3));
    world.ended(&ids);
    // A file with a secret changes, and nothing else.
    keep(&world, "first", &new);
    wait("the new one is in force", || read_again() == 2);
    ids.extend(world.enqueue(3));
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    assert_eq!(world.duplicates(), 0);
    let by: Vec<_> = world
        .receiver
        .requests()
        .iter()
        .map(|r| (verifies(r, &old), verifies(r, &new)))
        .collect();
    assert_eq!(by[..3], [(true, false); 3]);
    assert_eq!(by[3..6], [(true, true); 3]);
    assert_eq!(by[6..], [(false, true); 3]);
}

/// What nobody may find in a log, a measure or a listing.
const CANARIES: [&str; 6] = [
    "canary-payload",
    "canary-header",
    "canary-path",
    "canary-query",
    "canary-token",
    "Y2FuYXJ5LXNlY3JldC1jYW5hcnktc2VjcmV0LWNhbmFyeS0x",
];

/// Sends that succeed, fail, are refused and run into a dead relay, told in every detail; and then everything that was said is read.
fn nothing_secret_is_told(on: On) {
    let world = World::new(on);
    let [payload, header, path, query, token, secret] = CANARIES;
    world.receiver.does(|request| match request.topic() {
        "good" => Then::Status(200),
        "bad" => Then::Status(400),
        "worse" => Then::Reset,
        _ => Then::Status(500),
    });
    let secrets = keep(&world, "secret", &format!("whsec_{secret}"));
    let told = Told {
        routes: format!(
            "[breaker]\nfailures = 2\nopen_ms = 100\n\
             [[route]]\ntopic = \"*\"\nname = \"shop\"\nto = \"http://{}/{path}?key={query}\"\nallow_private = true\n\
             timeout_ms = 600\nsecret_file = \"{}\"\nheaders = {{ authorization = {{ env = \"CANARY_TOKEN\" }} }}\n\
             retry = {{ max_attempts = 3, table_s = [0] }}\n",
            world.receiver.address,
            secrets.display()
        ),
        last: false,
        env: vec![("CANARY_TOKEN".to_owned(), format!("Bearer {token}"))],
        ..Told::new("relay")
    };
    let message = |topic: &str| Message::json(topic, payload).unwrap().header("x-mine", header);
    let ids = world.enqueue_all(["good", "bad", "worse", "worst"].map(message).to_vec());
    let mut relay = world.relay(&told);
    world.ended(&ids);
    let held = world.enqueue_all(vec![message("good")]);
    world.ended(&held);
    let (_, measures) = relay.get("/metrics");
    let (_, ready) = relay.get("/readyz");
    let config = world.path(&told).display().to_string();
    let mut said = vec![relay.log(), measures.clone(), ready];
    let id = ids[3].to_string();
    let commands: [&[&str]; 10] = [
        &["messages", "list"],
        &["messages", "show", &id],
        &["messages", "explain", &id],
        &["dead", "list"],
        &["stats"],
        &["audit"],
        &["destinations", "list"],
        &["--config", &config, "config", "show", "--sources"],
        &["--config", &config, "config", "check"],
        &["dead", "replay", "--all", "--dry-run"],
    ];
    for command in commands {
        for more in [&[][..], &["--json"]] {
            let mut program = posthouse();
            if command[0] != "--config" {
                program.args(["--store", &world.place.url]);
            }
            let program = program
                .args(command)
                .args(more)
                .env("CANARY_TOKEN", format!("Bearer {token}"));
            let output = program.output().unwrap();
            let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
            assert!(output.status.success(), "{command:?}: {text}");
            said.push(format!("{command:?} {more:?}\n{text}"));
        }
    }
    relay.stop();
    said.push(relay.log());
    for text in &said {
        // Who may read the configuration sees where it leads to, but not what comes after the question mark.
        let shown = |canary: &str| canary == path && text.contains("\"show\"");
        for canary in CANARIES.into_iter().filter(|canary| !shown(canary)) {
            assert!(!text.contains(canary), "{canary} in\n{text}");
        }
    }
    // It was sent all the same.
    let request = &world.receiver.requests()[0];
    assert_eq!(request.path, format!("/{path}?key={query}"));
    assert_eq!(request.headers["authorization"], format!("Bearer {token}"));
    assert_eq!(request.headers["x-mine"], header);
    assert_eq!(request.body, format!("\"{payload}\"").as_bytes());
    measured(&measures);
}

/// Every measure of the guide is there, but that of producers, who are other programs, and those of what did not happen.
fn measured(text: &str) {
    let guide = include_str!("../../../../docs/measures.md");
    let rows = guide
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split('`').next());
    let absent: Vec<_> = rows
        .filter(|name| name.starts_with("posthouse_") && !text.lines().any(|line| line.starts_with(name)))
        .collect();
    let rare = [
        "posthouse_enqueued_total",
        "posthouse_replays_total",
        "posthouse_released_total",
        "posthouse_leases_expired_total",
        "posthouse_leases_lost_total",
        "posthouse_ledger_hits_total",
        "posthouse_ledger_conflicts_total",
        "posthouse_ledger_busy_total",
        "posthouse_ledger_takeovers_total",
        "posthouse_saga_started_total",
        "posthouse_saga_completed_total",
        "posthouse_saga_compensated_total",
        "posthouse_saga_held_total",
        "posthouse_saga_step_seconds",
        "posthouse_store_errors_total",
        "posthouse_stalls_total",
    ];
    let missing: Vec<_> = absent.iter().filter(|name| !rare.contains(name)).collect();
    assert!(missing.is_empty(), "{missing:?} in\n{text}");
}

both! {
    nothing_secret_is_told_by_anybody: nothing_secret_is_told();
    routes_are_taken_up_and_bad_files_are_not: routes_change();
    a_secret_is_changed_in_flight: secret_rotates();
}
