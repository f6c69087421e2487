//! What operators see, screen by screen: each test types a few lines, and its snapshot in `snapshots/` is to be read like a manual.
//! After a change that is meant: `INSTA_UPDATE=always cargo nextest run -p posthouse-server screens`, and read the difference.

use posthouse::{
    Breaker, Health, Message, Outcome, Route, SagaId,
    ledger::{Answer, Begin, Begun, Conclusion, EntryKey, Fenced, Fingerprint, Hold, Keep, Kept},
    presence::{Delivered, Deliveries, Relay},
    saga::{Report, Start, drive, from_toml},
};
use std::time::Duration;

use crate::story::{Story, id};

fn refused() -> Outcome {
    let (code, error) = ("http_422".to_owned(), "no such customer".to_owned());
    Outcome::Reject { code, error }
}

fn down() -> Outcome {
    let (code, error) = ("http_503".to_owned(), "Service Unavailable".to_owned());
    Outcome::Retry {
        code,
        error,
        after: None,
    }
}

fn delivered() -> Outcome {
    Outcome::receipt("202 Accepted")
}

/// A shop with a message in every state.
fn shop() -> Story {
    let story = Story::new();
    story.enqueue(1, "order.placed --key order-1 --tenant acme");
    story.at(1);
    story.send("relay-a", &delivered());
    story.at(60);
    story.enqueue(2, "order.placed --key order-2 --tenant acme");
    story.at(61);
    story.send("relay-a", &refused());
    story.at(120);
    story.enqueue(3, "invoice.sent");
    story.enqueue(4, "invoice.sent");
    story.at(121);
    story.send("relay-a", &down());
    story.run(&format!(
        "posthouse dead quarantine {} --note 'ask billing first'",
        id(4)
    ));
    story.at(180);
    story.enqueue(5, "stock.changed");
    story.at(181);
    story.claim("relay-b", 6);
    story.at(240);
    story.enqueue(6, "order.placed --key order-3 --tenant acme --delay 6h");
    story.enqueue(7, "order.placed --key order-3 --tenant acme --dedupe order-3/paid");
    story
}

#[test]
fn nothing_there() {
    let mut story = Story::new();
    story.type_all(&[
        "posthouse messages list",
        "posthouse messages list --json",
        "posthouse dead list",
        "posthouse dead replay --all --dry-run",
        "posthouse dead replay --all --yes --note 'a test'",
        "posthouse repair",
        "posthouse prune --older-than 30d --yes --note 'a test'",
        "posthouse audit",
        "posthouse ledger list",
        "posthouse saga list",
        "posthouse destinations list",
        "posthouse stats",
    ]);
    story.ends_as("nothing-there");
}

/// A file with a mistake of every kind.
const SPOILT: &str = r#"[store]
url = "postgres://me:s3cret@db.example/shop"

[outbox]
lease = 15000
batch = "many"
concurrency = 0

[ledger]
ttl_ms = 5

[admin]
bind = "0.0.0.0:80"

[[route]]
topic = "usage.*"
to = "https://billing.example/usage?token=s3cret"
timeout_ms = 15000
rate = "100 per second"
secret_env = "BILLING_SECRET"

[[route]]
topic = "usage.a"
to = "nats:usage"

[[route]]
topic = "usage.b"
to = "https://usage.example/b"
secret = "s3cret"
"#;

/// A file that is sound.
const SOUND: &str = r#"[store]
url = "postgres://me:s3cret@db.example/shop?schema=shop"

[tenants]
weights = { acme = 3 }

[[route]]
topic = "usage.*"
to = "https://billing.example/usage?token=s3cret"
name = "billing"
retry = { max_attempts = 6, table_s = [5, 10, 20] }
secret_env = "BILLING_SECRET"
headers = { authorization = { env = "BILLING_TOKEN" } }
breaker = false
"#;

#[test]
fn config_check() {
    let mut story = Story::before();
    story.say("no file");
    story.type_in("posthouse config check");
    story.type_in("posthouse --config nowhere.toml config check");
    story.say("a file with mistakes");
    story.file("posthouse.toml", SPOILT);
    story.type_in("posthouse config check");
    story.type_in("posthouse config check --json");
    story.say("a file that is no TOML");
    story.file("broken.toml", "[outbox\nlease_ms = \nbatch = \"5\n");
    story.type_in("POSTHOUSE_CONFIG=broken.toml posthouse config check");
    story.say("variables that set nothing, or something else");
    story.file("empty.toml", "");
    story.type_in("POSTHOUSE_OUTBOX__LEASE=5 posthouse --config empty.toml config check");
    story.type_in(
        "POSTHOUSE_OUTBOX__LEASE_MS=soon POSTHOUSE_LOG__LEVEL=loud posthouse --config empty.toml config check",
    );
    story.say("a sound one, with something strange");
    let strange = "[[route]]\ntopic = \"usage.a\"\nto = \"https://usage.example/\"\n";
    story.file("posthouse.toml", &format!("{SOUND}\n{strange}"));
    story.type_in("BILLING_SECRET=s3cret BILLING_TOKEN=s3cret posthouse config check");
    story.type_in("BILLING_SECRET=s3cret BILLING_TOKEN=s3cret posthouse config check --json");
    story.ends_as("config-check");
}

#[test]
fn config_show() {
    let mut story = Story::before();
    story.file("posthouse.toml", SOUND);
    story.type_in("BILLING_SECRET=s3cret BILLING_TOKEN=s3cret posthouse config show");
    story.type_in("BILLING_SECRET=s3cret BILLING_TOKEN=s3cret POSTHOUSE_OUTBOX__LEASE_MS=20000 posthouse --store sqlite://shop.db config show --sources");
    story.type_in("posthouse config show");
    story.ends_as("config-show");
}

#[test]
fn doctor() {
    let mut story = Story::before();
    story.say("nothing there");
    story.type_in("posthouse doctor");
    story.say("a new store, and a configuration with a mistake");
    story.run("posthouse migrate");
    story.file("posthouse.toml", "[outbox]\nlease = 5\n");
    story.type_in("posthouse doctor");
    let mut story = story.followed_by(shop());
    story.say("a shop without a relay");
    story.type_in("posthouse doctor");
    story.say("a relay that cannot send everything");
    let route = Route {
        topic: "order.*".to_owned(),
        destinations: vec!["shop".to_owned()],
        ..Route::default()
    };
    let health = Health {
        destination: "shop".to_owned(),
        breaker: Breaker::Open,
        limited: false,
    };
    story.heartbeat(Relay {
        name: "relay-a".to_owned(),
        routes: vec![route],
        destinations: vec![health],
        ..Relay::default()
    });
    story.enqueue(8, "stock.changed");
    story.at(600);
    story.run("posthouse destinations pause billing --anyway --note 'moves to new servers'");
    story.type_in("posthouse doctor");
    story.type_in("posthouse doctor --json");
    story.ends_as("doctor");
}

#[test]
fn messages_list() {
    let mut story = shop();
    story.type_all(&[
        "posthouse messages list",
        "posthouse messages list --state pending",
        "posthouse messages list --tenant '' --limit 2",
        "posthouse messages list --topic nobody.knows",
        "posthouse messages list --state leased --json",
    ]);
    story.ends_as("messages-list");
}

#[test]
fn messages_show() {
    let mut story = shop();
    story.say("delivered");
    story.type_in(&format!("posthouse messages show {}", id(1)));
    story.say("quarantined");
    story.type_in(&format!("posthouse messages show {}", id(4)));
    story.say("leased");
    story.type_in(&format!("posthouse messages show {}", id(5)));
    story.say("pending, with a dedupe key");
    story.type_in(&format!("posthouse messages show {}", id(7)));
    story.say("for programs");
    story.type_in(&format!("posthouse messages show {} --json", id(2)));
    story.say("not there");
    story.type_in(&format!("posthouse messages show {}", id(99)));
    story.type_in(&format!("posthouse messages show {} --json", id(99)));
    story.ends_as("messages-show");
}

#[test]
fn messages_explain() {
    let mut story = shop();
    for n in 1..=7 {
        story.type_in(&format!("posthouse messages explain {}", id(n)));
    }
    story.type_in(&format!("posthouse messages explain {} --json", id(7)));
    story.type_in(&format!("posthouse messages explain {}", id(99)));
    story.ends_as("messages-explain");
}

#[test]
fn messages_cancel_and_resolve() {
    let mut story = shop();
    let (waits, next, leased, missing) = (id(6), id(7), id(5), id(99));
    story.type_in(&format!(
        "posthouse messages cancel {waits} --note 'the order was withdrawn'"
    ));
    story.type_in(&format!("posthouse messages cancel {waits} --note 'a test'"));
    story.type_in(&format!(
        "posthouse messages resolve {next} --note 'confirmed by phone' --receipt B-77 --json"
    ));
    story.type_in(&format!(
        "posthouse messages resolve {next} --receipt again --note 'a test'"
    ));
    story.type_in(&format!("posthouse messages cancel {leased} --note 'a test'"));
    story.type_in(&format!("posthouse messages cancel {missing} --json --note 'a test'"));
    story.ends_as("messages-cancel-resolve");
}

#[test]
fn dead_letters() {
    let mut story = shop();
    story.type_all(&[
        "posthouse dead list",
        "posthouse dead list --reason exhausted --json",
        "posthouse dead list --quarantined",
    ]);
    story.type_in(&format!("posthouse dead show {}", id(3)));
    story.ends_as("dead-look");
}

#[test]
fn dead_replay() {
    let mut story = shop();
    story.type_all(&[
        "posthouse dead replay --all --dry-run",
        "posthouse dead replay --topic invoice.sent --dry-run --json",
        "posthouse dead replay --topic invoice.sent",
        "posthouse dead replay --topic nobody.knows",
        "posthouse dead replay",
        "posthouse dead replay --all --yes",
        "posthouse dead replay --all --yes --reason 'billing is back'",
        "posthouse dead replay --topic invoice.sent --yes --rate 50 --note 'billing is back'",
        "posthouse dead replay --topic invoice.sent --yes --note 'a test'",
        "posthouse dead replay --quarantined --all --yes --json --note 'a test'",
    ]);
    let dead = id(2);
    story.type_in(&format!(
        "posthouse dead replay {dead} --note 'the customer exists now'"
    ));
    story.type_in(&format!("posthouse dead replay {dead} --note 'a test'"));
    story.type_in(&format!("posthouse messages show {dead}"));
    story.ends_as("dead-replay");
}

/// The destination of the dead fails again, or is paused: a bulk replay stops.
#[test]
fn dead_replay_stops() {
    let mut story = shop();
    story.heartbeat(billing(Breaker::Open));
    story.type_in("posthouse dead replay --topic invoice.sent --yes --note 'a test'");
    story.type_in("posthouse dead replay --topic invoice.sent --yes --json --note 'a test'");
    story.heartbeat(billing(Breaker::Closed));
    story.type_in("posthouse destinations pause billing --note 'moves to new servers'");
    story.type_in("posthouse dead replay --topic invoice.sent --yes --note 'a test'");
    story.ends_as("dead-replay-stops");
}

#[test]
fn dead_quarantine_and_discard() {
    let mut story = shop();
    let (dead, held) = (id(3), id(4));
    story.type_in(&format!("posthouse dead quarantine {dead} --note 'ask billing first'"));
    story.type_in(&format!("posthouse dead quarantine {dead} --note 'a test'"));
    story.type_in(&format!(
        "posthouse dead discard {dead} {held} --note 'billing has them'"
    ));
    story.type_in(&format!("posthouse dead discard {dead} --note 'a test'"));
    story.type_in(&format!("posthouse messages show {dead}"));
    story.type_in(&format!("posthouse dead discard {} --json --note 'a test'", id(2)));
    story.type_in(&format!("posthouse dead discard {} --note 'a test'", id(1)));
    story.ends_as("dead-quarantine-discard");
}

#[test]
fn repair_and_prune() {
    let mut story = shop();
    story.at(7 * 3600);
    story.type_all(&["posthouse repair", "posthouse repair --json"]);
    story.claim("relay-b", 1);
    story.at(9 * 3600);
    story.type_all(&[
        "posthouse repair --json",
        "posthouse prune --older-than 8h",
        "posthouse prune --older-than 8h --dry-run",
        "posthouse prune --older-than 8h --state all --dry-run --json",
        "posthouse prune --older-than 8h --yes",
        "posthouse prune --older-than 8h --yes --note 'a test'",
        "posthouse prune --older-than 8h --yes --json --note 'a test'",
        "posthouse prune --older-than soon --yes",
        "posthouse prune --older-than 8h --state dead --yes --note 'the customer is gone'",
        "posthouse audit --action prune",
    ]);
    story.ends_as("repair-prune");
}

/// An entry in every standing.
fn books() -> Story {
    let story = Story::new();
    let begin = |key: &str, what: &str| {
        let (key, print) = (
            EntryKey::new("orders", key).tenant("acme"),
            Fingerprint::of_bytes(what.as_bytes()),
        );
        let ask = Begin::new(key, print).lease(Duration::from_secs(12 * 3600));
        story.relay(|any| async move {
            match any.store().begin(&ask).await.unwrap() {
                Begun::Acquired(hold) => hold,
                other => panic!("{other:?}"),
            }
        })
    };
    let conclude = |hold: Hold, end: Conclusion| {
        let told = story.relay(|any| async move { any.store().conclude(&hold, &end).await.unwrap() });
        assert_eq!(told, Fenced::Done);
    };
    let answer = Answer::bytes(r#"{"order":42}"#).status(201);
    conclude(
        begin("a-succeeded", "a"),
        Conclusion::Succeeded(answer.clone().kept(Keep::default())),
    );
    conclude(begin("b-digest", "b"), Conclusion::Succeeded(answer.kept(Keep::Digest)));
    conclude(
        begin("c-failed", "c"),
        Conclusion::Failed(Kept::failure("no stock").status(422)),
    );
    let error = Some("the bank is closed".to_owned());
    conclude(begin("d-released", "d"), Conclusion::Released { error });
    begin("e-held", "e");
    story.at(60);
    let message = Message::bytes("order.place", "text/plain", "x")
        .id(id(1).parse().unwrap())
        .tenant("acme")
        .ledger("orders", "f-message", Fingerprint::of_bytes(b"f"));
    story.relay(|any| async move { any.enqueue(vec![message]).await.unwrap() });
    let lease = story.claim("relay-a", 6).remove(0).lease;
    story.relay(|any| async move { any.store().clear(&[lease]).await.unwrap() });
    story
}

#[test]
fn ledger() {
    let mut story = books();
    story.type_all(&[
        "posthouse ledger list",
        "posthouse ledger list --tenant acme --scope orders --status failed --json",
        "posthouse ledger list --limit 2",
        r#"posthouse ledger list --limit 2 --after '["acme","orders","b-digest"]' --quiet"#,
        "posthouse ledger list --limit 1 --json --status succeeded",
        "posthouse ledger list --tenant nobody",
        "posthouse ledger list --after a-succeeded",
        "posthouse ledger show orders a-succeeded --tenant acme",
        "posthouse ledger show orders b-digest --tenant acme",
        "posthouse ledger show orders c-failed --tenant acme",
        "posthouse ledger show orders e-held --tenant acme",
        "posthouse ledger show orders f-message --tenant acme --json",
        "posthouse ledger show orders a-succeeded",
        "posthouse ledger show '' a-succeeded",
    ]);
    story.ends_as("ledger");
}

/// Flight, then hotel and car side by side, then charge.
const TRIP: &str = r#"name = "trip"
version = 1

[[steps]]
name = "flight"
action_uri = "https://air.example/book"
compensate_uri = "https://air.example/cancel"
idempotent = true

[[steps]]
name = "hotel"
action_uri = "https://beds.example/book"
compensate_uri = "https://beds.example/cancel"
idempotent = true
concurrency_tag = "there"

[[steps]]
name = "car"
action_uri = "fn:rent-a-car"
concurrency_tag = "there"

[[steps]]
name = "charge"
action_uri = "https://pay.example/charge"
verify_uri = "https://pay.example/find"
input = ["flight", "hotel"]
after = ["car"]
pivot = true
"#;

fn saga(n: u32) -> SagaId {
    id(n).parse().unwrap()
}

/// Starts the n-th saga.
fn book(story: &Story, n: u32, key: &str) {
    let definition = from_toml(TRIP).unwrap();
    let start = Start::new(saga(n), &definition, key, &serde_json::json!({ "city": "Rome" })).unwrap();
    story.relay(|any| async move { any.start(start.tenant("acme")).await.unwrap() });
}

/// What is due for it is sent, and is answered by its topic.
fn answer(story: &Story, n: u32, answer: impl Fn(&str) -> Outcome) {
    let claimed = story.claim("relay-a", 1);
    assert!(!claimed.is_empty());
    for one in claimed.iter().filter(|one| one.lease.saga == Some(saga(n))) {
        let report = Report::Sent(answer(&one.delivery.topic));
        story.relay(|any| async move {
            let store = any.store();
            let ended = vec![(&one.lease, &report, 0.5)];
            let decided = drive::settlements(&*store, "relay-a", ended).await.unwrap().remove(0);
            let drive::Decided::Settle(settlement) = decided else {
                panic!("{decided:?}")
            };
            assert!(store.settle(&[*settlement]).await.unwrap()[0].is_settled());
        });
    }
}

#[test]
fn sagas() {
    let mut story = Story::new();
    story.file("trip.toml", TRIP);
    story.file("spoilt.toml", &TRIP.replace("idempotent = true", "idempotend = true"));
    story.file("wrong.toml", &TRIP.replace("fn:rent-a-car", "rent-a-car"));
    story.say("A definition is looked at before anybody relies on it.");
    story.type_all(&[
        "posthouse saga lint trip.toml",
        "posthouse saga lint trip.toml --deny-warnings --json",
        "posthouse saga lint spoilt.toml",
        "posthouse saga lint wrong.toml",
        "posthouse saga start trip.toml --key trip-1 --input '{city}'",
        "posthouse saga list",
    ]);
    book(&story, 1, "trip-1");
    story.at(2);
    answer(&story, 1, |_| Outcome::answered(Answer::bytes("\"LH 1842\"")));
    story.at(5);
    answer(&story, 1, |topic| match topic {
        "fn:rent-a-car" => Outcome::unknown("timeout", "no answer within 10s"),
        _ => Outcome::answered(Answer::bytes("\"room 7\"")),
    });
    book(&story, 2, "trip-2");
    story.say("Nobody knows whether the car was rented.");
    story.type_all(&[
        "posthouse saga list",
        "posthouse saga list --state held --reason unknown --json",
        "posthouse saga show trip/trip-1",
        "posthouse saga show trip/trip-1 --payload | tail -1",
        "posthouse saga retry trip/trip-1 flight --note 'a test'",
        "posthouse saga skip trip/trip-1 hotel --note 'a test'",
        "posthouse saga complete trip/trip-1 car --output nonsense --note 'a test'",
        "posthouse saga show trip/trip-7",
    ]);
    story.type_in("posthouse dead list | cut -c 38-");
    story.at(60);
    story.type_all(&[
        "posthouse saga skip trip/trip-1 car --note 'they take the train'",
        "posthouse saga pause --name trip --state running --dry-run",
        "posthouse saga pause --name trip --state running",
        "posthouse saga pause --name trip --state running --yes --note 'the bank is down'",
        "posthouse saga resume trip/trip-1 --note 'a test'",
        "posthouse saga pause",
    ]);
    story.at(62);
    answer(&story, 1, |_| Outcome::reject("http_422", "card declined"));
    story.at(63);
    answer(&story, 1, |_| Outcome::delivered());
    story.at(64);
    answer(&story, 1, |_| Outcome::reject("http_400", "no such booking"));
    story.say("The card was declined, and the flight cannot be cancelled.");
    story.type_all(&[
        "posthouse saga show trip/trip-1",
        "posthouse saga abandon trip/trip-2 --json --note 'a test'",
        "posthouse saga resolve trip/trip-1 flight --note 'cancelled by telephone'",
        "posthouse saga list",
        "posthouse saga resume trip/trip-1 --note 'a test'",
        "posthouse saga replay trip/trip-1 --note 'a test'",
        "posthouse audit --limit 3",
    ]);
    book(&story, 3, "trip-3");
    for (at, answered) in [(70, "\"LH 1843\""), (71, "\"room 8\"")] {
        story.at(at);
        answer(&story, 3, |_| Outcome::answered(Answer::bytes(answered)));
    }
    story.at(72);
    answer(&story, 3, |_| Outcome::unknown("timeout", "no answer within 10s"));
    story.say("The charge of another trip is in doubt.");
    story.type_all(&[
        "posthouse saga compensate trip/trip-3 --note 'the customer called'",
        "posthouse saga compensate --past-pivot --name trip --key trip-3 --dry-run",
        "posthouse saga compensate --past-pivot trip/trip-3 --note 'the customer called'",
        "posthouse saga show trip/trip-3",
    ]);
    story.ends_as("sagas");
}

#[test]
fn audit() {
    let mut story = shop();
    story.run(&format!(
        "posthouse dead replay {} --actor ben --note 'billing is back'",
        id(3)
    ));
    story.run("posthouse destinations pause billing --note 'moves to new servers'");
    story.type_all(&[
        "posthouse audit",
        "posthouse audit --actor ben --json",
        "posthouse audit --action pause",
        "posthouse audit --limit 1",
        "posthouse audit --actor nobody",
    ]);
    story.type_in(&format!("posthouse audit --message {}", id(4)));
    story.ends_as("audit");
}

#[test]
fn stats() {
    let mut story = shop();
    story.heartbeat(billing(Breaker::Open));
    story.at(7 * 3600);
    story.type_all(&["posthouse stats", "posthouse stats --json"]);
    story.say("a backlog of more than is counted; then the relay delivers nothing");
    story.sql(
        "INSERT INTO posthouse_sched (
            seq, lane, wake_at, due_at, bytes, attempts, max_attempts, epoch, generation, releases, deduped
        )
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 10001)
        SELECT 1000 + n, 1, now, now, 1, 0, 12, 0, 1, 0, 0 FROM n, posthouse_clock",
    );
    story.type_in("posthouse stats");
    story.heartbeat(Relay {
        deliveries: Deliveries::default(),
        ..billing(Breaker::Open)
    });
    story.type_in("posthouse stats");
    story.ends_as("stats");
}

#[test]
fn destinations() {
    let mut story = shop();
    story.heartbeat(billing(Breaker::HalfOpen));
    story.type_all(&[
        "posthouse destinations list",
        "posthouse destinations pause billing --note 'moves to new servers'",
        "posthouse destinations pause biling --note 'a test'",
        "posthouse destinations pause biling --json --note 'a test'",
        "posthouse destinations pause biling --anyway --note 'a test'",
        "posthouse destinations list",
        "posthouse destinations list --json",
        "posthouse destinations resume billing --note 'a test'",
        "posthouse destinations resume billing --note 'a test'",
        "posthouse destinations resume biling --json --note 'a test'",
        "posthouse destinations pause ''",
    ]);
    story.ends_as("destinations");
}

fn billing(breaker: Breaker) -> Relay {
    let health = |destination: &str, breaker, limited| Health {
        destination: destination.to_owned(),
        breaker,
        limited,
    };
    let route = |topic: &str, destination: &str| Route {
        topic: topic.to_owned(),
        destinations: vec![destination.to_owned()],
        ..Route::default()
    };
    Relay {
        name: "relay-a".to_owned(),
        version: "0.1.0".to_owned(),
        routes: vec![
            route("invoice.*", "billing"),
            route("*", "https://shop.example#097d5636"),
        ],
        destinations: vec![
            health("billing", breaker, false),
            health("https://shop.example#097d5636", Breaker::Closed, true),
        ],
        deliveries: Deliveries {
            delivered: 12_345,
            per_minute: 90,
            destinations: vec![Delivered {
                destination: "https://shop.example#097d5636".to_owned(),
                delivered: 12_345,
                per_minute: 90,
            }],
            more: false,
        },
        ..Relay::default()
    }
}

#[test]
fn migrate() {
    let mut story = Story::before();
    story.type_all(&[
        "posthouse stats",
        "posthouse migrate --check",
        "posthouse migrate --dry-run",
        "posthouse migrate --dry-run --json",
        "posthouse migrate",
        "posthouse migrate",
        "posthouse migrate --json",
        "posthouse migrate --check",
        "posthouse migrate --dry-run",
    ]);
    story.say("an older schema");
    story.sql("UPDATE posthouse_schema SET version = 2");
    story.type_all(&[
        "posthouse stats",
        "posthouse migrate --check",
        "posthouse migrate --dry-run",
    ]);
    story.say("a newer schema that admits this program");
    story.sql("UPDATE posthouse_schema SET version = 9");
    story.type_all(&[
        "posthouse migrate --dry-run",
        "posthouse migrate",
        "posthouse migrate --check",
    ]);
    story.say("a newer schema that does not");
    story.sql("UPDATE posthouse_schema SET oldest = 8");
    story.type_all(&[
        "posthouse stats",
        "posthouse migrate --dry-run",
        "posthouse migrate",
        "posthouse migrate --check --json",
    ]);
    story.say("what makes no sense");
    story.type_all(&[
        "posthouse migrate --check --dry-run",
        "posthouse migrate --check --roles --json",
        "posthouse migrate --roles",
        "posthouse migrate --roles --dry-run",
    ]);
    story.ends_as("migrate");
}

/// Names, notes and errors may hold anything that a producer, a destination or an operator wrote.
#[test]
fn awkward_text() {
    let mut story = Story::new();
    let long = "x".repeat(250);
    let wide = "注文".repeat(30);
    story.enqueue(1, &format!("{long} --key '{wide}' --tenant '{long}'"));
    story.enqueue(2, "'order \u{202e}placed' --key 'a\u{200b}b' --namespace 🛒");
    story.at(1);
    let (code, error) = (
        "http_500".to_owned(),
        format!("\x1b[2J\x1b[31mred\r\nline\t\0 {}", "long ".repeat(200)),
    );
    story.send(
        &format!("relay {wide}"),
        &Outcome::Retry {
            code,
            error,
            after: None,
        },
    );
    let reason = format!("two\nlines \x1b[1mbold {}", "and more ".repeat(60));
    story.run(&format!(
        "posthouse dead quarantine {} --actor '{wide}' --note '{reason}'",
        id(2)
    ));
    story.run("posthouse destinations pause 'a\u{202e}b' --note 'x\x1b[2Jy'");
    story.type_all(&[
        "posthouse messages list",
        "posthouse dead list --quarantined",
        "posthouse audit",
        "posthouse destinations list",
    ]);
    for n in 1..=2 {
        story.type_in(&format!("posthouse messages show {}", id(n)));
        story.type_in(&format!("posthouse messages explain {}", id(n)));
    }
    story.type_in("posthouse messages show 'not\x1b[2Jan\nid'");
    story.ends_as("awkward-text");
}

#[test]
fn help() {
    let mut story = Story::before();
    for command in [
        "",
        "migrate",
        "enqueue",
        "messages",
        "messages list",
        "messages show",
        "messages explain",
        "messages cancel",
        "messages resolve",
        "dead",
        "dead list",
        "dead show",
        "dead replay",
        "dead quarantine",
        "dead discard",
        "repair",
        "prune",
        "audit",
        "ledger",
        "ledger list",
        "ledger show",
        "stats",
        "doctor",
        "destinations",
        "destinations list",
        "destinations pause",
        "destinations resume",
        "config",
        "config check",
        "config show",
    ] {
        let space = if command.is_empty() { "" } else { " " };
        story.type_in(&format!("posthouse{space}{command} --help"));
    }
    story.ends_as("help");
}
