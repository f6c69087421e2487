//! Each finding, by the fact that makes it.

use posthouse::{
    Breaker, Count, Counts, DeadReason, DestinationView, Kind, MessageId, MessageView, Pause, RelayView, Route, State,
    Timestamp,
    condition::{Condition, Holder, HolderKind, Setting},
    presence::Relay,
};
use std::time::Duration;

use super::{
    asked_port,
    findings::{Facts, Finding, Level, NoRoute, findings},
};

const NOW: Timestamp = Timestamp::from_micros(1_900_000_000_000_000);

fn id(n: u32) -> MessageId {
    format!("01976d0c-0000-7000-8000-{n:012}").parse().expect("an id")
}

fn message(n: u32, topic: &str, state: State) -> MessageView {
    MessageView {
        id: id(n),
        seq: i64::from(n),
        tenant: String::new(),
        namespace: "default".to_owned(),
        topic: topic.to_owned(),
        order_key: None,
        dedupe_key: None,
        state,
        reason: (state == State::Dead).then_some(DeadReason::Exhausted),
        attempts: 0,
        max_attempts: 12,
        epoch: 0,
        generation: 1,
        worker: None,
        lease_until: None,
        due_at: Some(NOW),
        deliver_by: None,
        created_at: NOW,
        updated_at: NOW,
        finished_at: None,
        last_code: None,
        last_error: None,
        content_type: "application/json".to_owned(),
        bytes: 2,
        digest: None,
        kind: Kind::Message,
        parent: None,
        destination: None,
        note: None,
        unreadable: None,
    }
}

/// A store that lacks nothing.
fn well() -> Facts {
    let settings = ["synchronous_commit", "fsync", "full_page_writes"].map(|name| Setting {
        name,
        value: "on".to_owned(),
        risk: None,
    });
    let relay = Relay {
        name: "relay-a".to_owned(),
        routes: vec![Route {
            topic: "order.*".to_owned(),
            destinations: vec!["shop".to_owned()],
            ..Route::default()
        }],
        ..Relay::default()
    };
    Facts {
        condition: Condition {
            now: Some(NOW),
            settings: settings.to_vec(),
            sees_all: true,
            port: Some(5432),
            ..Condition::default()
        },
        counts: Counts {
            now: Some(NOW),
            ..Counts::default()
        },
        relays: vec![RelayView {
            relay,
            started_at: NOW,
            seen_at: NOW,
            live: true,
        }],
        destinations: vec![DestinationView {
            name: "shop".to_owned(),
            paused: None,
            breaker: Breaker::Closed,
            limited: false,
            topics: vec!["order.*".to_owned()],
            relays: 1,
        }],
        waiting: vec![message(1, "order.placed", State::Pending)],
        waiting_whole: true,
        unrouted: Vec::new(),
        unrouted_more: false,
        dead: Vec::new(),
        held_sagas: 0,
        blocked: None,
        ahead: Some((0.5, 0.1)),
        asked_port: Some(5432),
        has_direct: false,
    }
}

/// What is not well after this has happened.
fn ill(happens: impl FnOnce(&mut Facts)) -> Vec<Finding> {
    let mut facts = well();
    happens(&mut facts);
    let mut found = findings(&facts, Duration::from_secs(60));
    found.retain(|finding| finding.level != Level::Ok);
    found
}

/// The one line of this check that has something to say, and what to do.
#[track_caller]
fn one(check: &str, happens: impl FnOnce(&mut Facts)) -> (String, String) {
    let found = ill(happens);
    assert_eq!(found.len(), 1, "{found:?}");
    assert_eq!((found[0].check, found[0].level), (check, Level::Warn));
    (found[0].found.clone(), found[0].todo.clone().expect("what to do"))
}

fn holder(kind: HolderKind, name: &str, pid: Option<i32>, seconds: Option<f64>, transactions: i64) -> Holder {
    Holder {
        kind,
        pid,
        name: name.to_owned(),
        state: "idle in transaction".to_owned(),
        seconds,
        transactions,
    }
}

#[test]
fn where_nothing_is_wrong_every_check_says_so() {
    assert_eq!(ill(|_| ()), []);
    let checks: Vec<_> = findings(&well(), Duration::ZERO).iter().map(|f| f.check).collect();
    let all = [
        "durability",
        "clock",
        "cleaning",
        "relays",
        "backlog",
        "leases",
        "keys",
        "routes",
        "destinations",
        "dead",
        "sagas",
    ];
    assert_eq!(checks, all);
}

#[test]
fn sagas_that_wait_for_a_person_are_told() {
    let (found, todo) = one("sagas", |facts| facts.held_sagas = 2);
    assert_eq!(found, "2 sagas held");
    assert!(todo.contains("saga list --state held"), "{todo}");
}

#[test]
fn settings_that_risk_commits_are_named() {
    let (found, _) = one("durability", |facts| {
        facts.condition.settings[0].value = "off".to_owned();
        facts.condition.settings[0].risk = Some("a crash may lose the last commits");
    });
    assert_eq!(found, "synchronous_commit off: a crash may lose the last commits");
}

#[test]
fn clocks_may_differ_a_little() {
    assert_eq!(ill(|facts| facts.ahead = Some((-2.4, 0.5))), []);
    assert_eq!(ill(|facts| facts.ahead = None), []);
    let (found, todo) = one("clock", |facts| facts.ahead = Some((-2.6, 0.5)));
    assert_eq!(found, "the store's clock is 2.6 s behind this machine's");
    assert!(todo.contains("Leases are judged by the store's clock alone"), "{todo}");
    assert!(
        one("clock", |facts| facts.ahead = Some((90.0, 0.0)))
            .0
            .contains("ahead of")
    );
}

#[test]
fn a_pooler_without_a_way_past_it_is_suspected() {
    let (found, todo) = one("pooler", |facts| facts.asked_port = Some(6432));
    assert!(
        found.contains("names port 6432") && found.contains("at its port 5432"),
        "{found}"
    );
    assert!(todo.contains("store.direct_url"), "{todo}");
    assert!(
        one("pooler", |facts| facts.condition.port = None)
            .0
            .contains("local socket")
    );
    let known = |facts: &mut Facts| (facts.asked_port, facts.has_direct) = (Some(6432), true);
    assert_eq!(ill(known), []);
    assert_eq!(ill(|facts| facts.asked_port = None), []);
}

#[test]
fn the_port_is_that_of_the_url() {
    assert_eq!(asked_port("postgres://me@db.example:6432/shop?schema=x"), Some(6432));
    assert_eq!(asked_port("postgresql://me@db.example/shop"), Some(5432));
    for url in [
        "sqlite://shop.db",
        "postgres:///shop?host=/run/postgresql",
        "postgres://me@%2Frun%2Fpg/shop",
    ] {
        assert_eq!(asked_port(url), None, "{url}");
    }
}

#[test]
fn whoever_keeps_rows_from_being_vacuumed_is_named() {
    let holds = |one: Holder| move |facts: &mut Facts| facts.condition.holders.push(one);
    let old = holder(HolderKind::Session, "report", Some(4711), Some(3700.0), 12);
    let (found, todo) = one("cleaning", holds(old));
    assert!(
        found.starts_with("a session of report (pid 4711) has kept rows"),
        "{found}"
    );
    assert!(found.contains("for 61m, idle in transaction"), "{found}");
    assert!(todo.contains("pg_terminate_backend(4711)"), "{todo}");
    let (found, todo) = one(
        "cleaning",
        holds(holder(HolderKind::Prepared, "tx-9", None, Some(60.0), 1)),
    );
    assert!(found.starts_with("the prepared transaction tx-9 has") && todo.contains("ROLLBACK PREPARED 'tx-9'"));
    let (found, todo) = one("cleaning", holds(holder(HolderKind::Slot, "s1", None, None, 100_000)));
    assert!(
        found.contains("slot s1 has") && found.contains("for 100000 transactions"),
        "{found}"
    );
    assert!(todo.contains("pg_drop_replication_slot('s1')"), "{todo}");
    let (found, todo) = one(
        "cleaning",
        holds(holder(HolderKind::Standby, "eu2", Some(9), None, 100_000)),
    );
    assert!(found.contains("the standby eu2 (pid 9)") && todo.contains("hot_standby_feedback"));
    // Young ones are everyday life.
    assert_eq!(
        ill(holds(holder(
            HolderKind::Session,
            "shop",
            Some(1),
            Some(59.0),
            1_000_000
        ))),
        []
    );
    assert_eq!(ill(holds(holder(HolderKind::Slot, "s1", None, None, 99_999))), []);
}

#[test]
fn a_role_that_may_not_see_is_told_so() {
    let (found, todo) = one("cleaning", |facts| facts.condition.sees_all = false);
    assert!(found.contains("may not see") && todo.contains("pg_read_all_stats"));
}

#[test]
fn a_log_that_cannot_be_written_back_is_noticed() {
    assert_eq!(ill(|facts| facts.condition.log_bytes = Some(4 << 20)), []);
    let (found, _) = one("cleaning", |facts| facts.condition.log_bytes = Some(65 << 20));
    assert_eq!(found, "the log beside the file has 65 MiB");
}

#[test]
fn somebody_must_relay() {
    let (found, todo) = one("relays", |facts| facts.relays[0].live = false);
    assert_eq!(found, "no relay is running");
    assert!(todo.contains("posthouse relay"));
}

#[test]
fn what_is_due_for_long_is_told_with_an_example() {
    let due = |seconds: i64| {
        move |facts: &mut Facts| {
            let at = Timestamp::from_micros(NOW.as_micros() - seconds * 1_000_000);
            facts.counts.oldest_due = Some(at);
            let oldest = MessageView {
                due_at: Some(at),
                ..message(2, "order.paid", State::Pending)
            };
            facts.waiting.push(oldest);
        }
    };
    assert_eq!(ill(due(59)), []);
    let (found, todo) = one("backlog", due(7200));
    assert_eq!(found, "the oldest that is due has waited for 2h");
    assert!(
        todo.ends_with(&format!("posthouse messages explain {}", id(2))),
        "{todo}"
    );
}

#[test]
fn leases_that_ran_out_are_counted() {
    let (found, todo) = one("leases", |facts| facts.counts.expired = Count::exact(2));
    assert_eq!(found, "2 leases ran out and were not taken back yet");
    assert!(todo.contains("posthouse repair"));
}

#[test]
fn blocked_keys_are_told_with_what_blocks_one() {
    let (found, todo) = one("keys", |facts| {
        facts.counts.blocked_keys = Count::exact(1);
        facts.blocked = Some((id(5), id(4)));
    });
    assert_eq!(found, "a dead or quarantined message blocks 1 order key");
    assert!(
        todo.contains(&format!("{}, which {} waits behind", id(4), id(5))),
        "{todo}"
    );
    let (_, todo) = one("keys", |facts| facts.counts.blocked_keys = Count::exact(3));
    assert!(todo.contains("posthouse messages list --state pending"), "{todo}");
}

#[test]
fn topics_without_a_route_are_named() {
    let (found, todo) = one("routes", |facts| {
        facts
            .waiting
            .extend([7, 8].map(|n| message(n, "invoice.sent", State::Pending)));
    });
    assert_eq!(found, "no relay that is running has a route for invoice.sent (2)");
    assert!(
        todo.contains("[[route]]") && todo.ends_with(&id(7).to_string()),
        "{todo}"
    );
}

fn met(topic: &str, example: Option<u32>) -> NoRoute {
    NoRoute {
        topic: topic.to_owned(),
        example: example.map(id),
    }
}

#[test]
fn topics_that_relays_have_met_are_named_behind_a_thousand_others() {
    let (found, todo) = one("routes", |facts| {
        facts.waiting_whole = false;
        facts.unrouted = vec![met("invoice.sent", Some(9))];
    });
    assert!(
        found.starts_with("no relay that is running has a route for invoice.sent; looked at the oldest 1,000"),
        "{found}"
    );
    assert!(
        todo.ends_with(&format!("posthouse messages explain {}", id(9))),
        "{todo}"
    );
    let (found, _) = one("routes", |facts| {
        facts.waiting_whole = false;
        facts.unrouted = vec![met("invoice.sent", None)];
        facts.waiting.push(message(7, "invoice.sent", State::Pending));
    });
    assert!(found.contains("for invoice.sent (1+);"), "{found}");
}

#[test]
fn the_limits_of_the_check_of_routes_are_said() {
    let said = |happens: fn(&mut Facts)| {
        let mut facts = well();
        happens(&mut facts);
        let found = findings(&facts, Duration::from_secs(60));
        let routes = found
            .into_iter()
            .find(|finding| finding.check == "routes")
            .expect("one");
        (routes.level, routes.found)
    };
    assert_eq!(said(|_| {}), (Level::Ok, "no topic waits for one".to_owned()));
    let (level, found) = said(|facts| facts.waiting_whole = false);
    assert_eq!(level, Level::Ok);
    assert!(
        found.starts_with("no topic is known to wait for one; looked at the oldest 1,000 that wait"),
        "{found}"
    );
    let (level, found) = said(|facts| (facts.waiting_whole, facts.unrouted_more) = (false, true));
    assert_eq!(level, Level::Warn);
    assert!(found.contains("more topics without a route than they list"), "{found}");
    let (level, found) = said(|facts| facts.relays.clear());
    assert_eq!(
        (level, &*found),
        (Level::Ok, "not looked at, because no relay is running")
    );
}

#[test]
fn destinations_that_get_nothing_are_named() {
    let (found, todo) = one("destinations", |facts| {
        facts.destinations[0].paused = Some(Pause {
            destination: "shop".to_owned(),
            at: NOW,
            actor: "anna".to_owned(),
            note: "moves".to_owned(),
        });
    });
    assert_eq!(found, "shop was paused by anna (moves)");
    assert!(
        todo.ends_with("posthouse destinations resume shop --note TEXT"),
        "{todo}"
    );
    let (found, _) = one("destinations", |facts| facts.destinations[0].breaker = Breaker::Open);
    assert!(found.starts_with("shop fails so often"), "{found}");
}

#[test]
fn the_dead_are_told_by_cause() {
    let (found, _) = one("dead", |facts| {
        facts.counts.dead = Count::exact(3);
        facts.dead = [1, 2, 3].map(|n| message(n, "order.placed", State::Dead)).to_vec();
        facts.dead[1].last_code = Some("http_503".to_owned());
        facts.dead[2].last_code = Some("http_503".to_owned());
    });
    assert_eq!(found, "3 messages: 1 exhausted, 2 exhausted after http_503");
    let (found, _) = one("dead", |facts| {
        facts.counts.dead = Count::capped(20_000, true, 10_000);
        facts.dead = vec![message(1, "order.placed", State::Dead)];
    });
    assert_eq!(found, "10000+ messages: 1 exhausted among the newest");
}
