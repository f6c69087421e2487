//! What operators are told of relays and of destinations, and the pauses that they tell them.

use posthouse_core::{
    AuditFilter, Breaker, Error, Health, Pause, Relay, RelayView, Route,
    presence::{Delivered, Deliveries, MOST_LISTED, Unrouted, UnroutedTopic},
};
use std::time::Duration;

use super::tools::*;
use crate::Fixture;

fn relay(name: &str) -> Relay {
    Relay {
        name: name.into(),
        version: "1.2.3".into(),
        namespaces: vec!["default".into(), "bücher".into()],
        routes: vec![
            Route {
                topic: "orders.*".into(),
                destinations: vec!["shop".into(), "audit 'log' \"x\"".into()],
                max_attempts: Some(6),
            },
            Route {
                topic: "*".into(),
                ..Route::default()
            },
        ],
        destinations: vec![Health {
            destination: "shop".into(),
            breaker: Breaker::HalfOpen,
            limited: true,
        }],
        limited_tenants: vec!["acme".into(), String::new()],
        deliveries: Deliveries {
            delivered: u64::from(u32::MAX) + 1,
            per_minute: 90,
            destinations: vec![Delivered {
                destination: "shop".into(),
                delivered: 7,
                per_minute: 0,
            }],
            more: true,
        },
        unrouted: Unrouted {
            topics: vec![UnroutedTopic {
                namespace: "bücher".into(),
                topic: "invoice.sent".into(),
            }],
            more: false,
        },
    }
}

async fn relays(fx: &dyn Fixture) -> Vec<RelayView> {
    fx.admin().await.relays().await.unwrap()
}

/// The names of those that are live, by name.
async fn live(fx: &dyn Fixture) -> Vec<String> {
    let live = relays(fx).await.into_iter().filter(|view| view.live);
    live.map(|view| view.relay.name).collect()
}

/// What it told is told, whole, and since when.
pub async fn a_relay_tells_of_itself(fx: &dyn Fixture) {
    let (store, start) = (fx.store().await, fx.now().await);
    assert!(relays(fx).await.is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    let view = |relay, seen_at| RelayView {
        relay,
        started_at: start,
        seen_at,
        live: true,
    };
    assert_eq!(relays(fx).await, [view(relay("r1"), start)]);
    fx.advance(SECOND * 10).await;
    let changed = Relay {
        version: "1.2.4".into(),
        routes: Vec::new(),
        ..relay("r1")
    };
    store.heartbeat(&changed, LEASE).await.unwrap();
    assert_eq!(relays(fx).await, [view(changed, fx.now().await)]);
}

/// By name, each for itself, whoever tells of them.
pub async fn relays_are_listed_by_name(fx: &dyn Fixture) {
    for name in ["r2", "R", "r10", "é", "r1"] {
        fx.store().await.heartbeat(&relay(name), LEASE).await.unwrap();
    }
    assert_eq!(live(fx).await, ["R", "r1", "r10", "r2", "é"]);
}

/// Its word holds for as long as it said, by the clock of the store.
pub async fn a_silent_relay_is_not_live(fx: &dyn Fixture) {
    let store = fx.store().await;
    store.heartbeat(&relay("short"), SECOND * 5).await.unwrap();
    store.heartbeat(&relay("long"), SECOND * 60).await.unwrap();
    fx.advance(SECOND * 4).await;
    assert_eq!(live(fx).await, ["long", "short"]);
    fx.advance(SECOND * 2).await;
    assert_eq!(live(fx).await, ["long"]);
    assert_eq!(relays(fx).await.len(), 2, "it is still told of");
    store.heartbeat(&relay("short"), SECOND * 5).await.unwrap();
    assert_eq!(live(fx).await, ["long", "short"]);
    let started: Vec<_> = relays(fx).await.iter().map(|view| view.started_at).collect();
    let now = fx.now().await;
    assert!(started[0] < now, "the long one went on");
    assert_eq!(started[1], now, "the short one began anew");
}

/// At once, and for itself alone; one that was never there may leave as well.
pub async fn a_relay_that_leaves_is_not_live(fx: &dyn Fixture) {
    let store = fx.store().await;
    store.leave("nobody").await.unwrap();
    assert!(relays(fx).await.is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    store.heartbeat(&relay("r2"), LEASE).await.unwrap();
    store.leave("r1").await.unwrap();
    assert_eq!(live(fx).await, ["r2"]);
    fx.advance(SECOND).await;
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    assert_eq!(live(fx).await, ["r1", "r2"]);
    assert_eq!(relays(fx).await[0].started_at, fx.now().await);
}

/// A day after its last word, by the next word of anybody.
pub async fn a_relay_is_forgotten_after_a_day(fx: &dyn Fixture) {
    let store = fx.store().await;
    for name in ["gone", "left", "other"] {
        store.heartbeat(&relay(name), LEASE).await.unwrap();
    }
    store.leave("left").await.unwrap();
    fx.advance(DAY - SECOND).await;
    store.heartbeat(&relay("other"), LEASE).await.unwrap();
    assert_eq!(relays(fx).await.len(), 3);
    fx.advance(SECOND * 2).await;
    store.heartbeat(&relay("other"), LEASE).await.unwrap();
    let names: Vec<_> = relays(fx).await.into_iter().map(|view| view.relay.name).collect();
    assert_eq!(names, ["other"]);
}

/// Nothing is kept that nobody could show.
pub async fn a_senseless_heartbeat_is_refused(fx: &dyn Fixture) {
    let (store, before) = (fx.store().await, fx.dump().await);
    let unnamed = relay("");
    let long = relay(&"x".repeat(256));
    let odd = relay("a\0b");
    let version = Relay {
        version: "1\n".into(),
        ..relay("r1")
    };
    let mut crowded = relay("r1");
    crowded.unrouted.topics = vec![crowded.unrouted.topics[0].clone(); MOST_LISTED + 1];
    for (relay, ttl, field) in [
        (&crowded, LEASE, "unrouted"),
        (&unnamed, LEASE, "relay"),
        (&long, LEASE, "relay"),
        (&odd, LEASE, "relay"),
        (&version, LEASE, "version"),
        (&relay("r1"), Duration::ZERO, "ttl"),
        (&relay("r1"), DAY * 2, "ttl"),
    ] {
        match store.heartbeat(relay, ttl).await {
            Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
            other => panic!("{field}: {other:?}"),
        }
    }
    assert_unchanged(fx, &before, "a refused heartbeat").await;
    store.heartbeat(&relay(&"é".repeat(127)), LEASE).await.unwrap();
}

/// Relays hear of a pause with their next heartbeat, and of its end.
pub async fn a_pause_is_told_to_every_relay(fx: &dyn Fixture) {
    let (admin, one, two) = (fx.admin().await, fx.store().await, fx.store().await);
    assert!(one.heartbeat(&relay("r1"), LEASE).await.unwrap().is_empty());
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    let at = fx.now().await;
    fx.advance(SECOND).await;
    admin.pause("bank", "bob", "").await.unwrap();
    let pause = |destination: &str, at, actor: &str, note: &str| Pause {
        destination: destination.into(),
        at,
        actor: actor.into(),
        note: note.into(),
    };
    let bank = pause("bank", fx.now().await, "bob", "");
    let shop = pause("shop", at, "ada", "maintenance");
    for (store, name) in [(&one, "r1"), (&two, "r2")] {
        let told = store.heartbeat(&relay(name), LEASE).await.unwrap();
        assert_eq!(told, [bank.clone(), shop.clone()]);
    }
    assert_eq!(admin.pauses().await.unwrap(), [bank.clone(), shop]);
    assert!(admin.resume("shop", "ada", "done").await.unwrap());
    assert_eq!(two.heartbeat(&relay("r2"), LEASE).await.unwrap(), [bank]);
}

/// Whoever comes second is in the audit; the pause is the first one's. To resume twice is no error either.
pub async fn a_repeated_pause_changes_only_the_audit(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    admin.pause("shop", "ada", "maintenance").await.unwrap();
    let first = admin.pauses().await.unwrap();
    fx.advance(SECOND).await;
    admin.pause("shop", "bob", "me too").await.unwrap();
    assert_eq!(admin.pauses().await.unwrap(), first);
    assert!(admin.resume("shop", "bob", "go").await.unwrap());
    assert!(admin.pauses().await.unwrap().is_empty());
    assert!(!admin.resume("shop", "ada", "go on").await.unwrap());
    let audit = admin.audit(&AuditFilter::default()).await.unwrap();
    let lines: Vec<_> = audit
        .iter()
        .map(|line| (line.actor.as_str(), line.action.as_str()))
        .collect();
    assert_eq!(
        lines,
        [("ada", "resume"), ("bob", "resume"), ("bob", "pause"), ("ada", "pause")]
    );
}

/// Who, and which one: or nothing happens.
pub async fn a_senseless_pause_is_refused(fx: &dyn Fixture) {
    let (admin, before) = (fx.admin().await, fx.dump().await);
    let long = "x".repeat(2049);
    for (destination, actor, field) in [
        ("shop", "", "actor"),
        ("", "ada", "destination"),
        ("a\nb", "ada", "destination"),
        (&*long, "ada", "destination"),
    ] {
        for answer in [
            admin.pause(destination, actor, "why").await,
            admin.resume(destination, actor, "why").await.map(|_| ()),
        ] {
            match answer {
                Err(Error::Invalid(invalid)) => assert_eq!(invalid.field, field),
                other => panic!("{destination:?} by {actor:?}: {other:?}"),
            }
        }
    }
    assert_unchanged(fx, &before, "a refused pause").await;
}

/// Whatever a person or a script types is recorded, cleaned and cut.
pub async fn any_reason_of_a_pause_can_be_recorded(fx: &dyn Fixture) {
    let admin = fx.admin().await;
    let raw = "a\0b\n'; --".to_owned() + &"€".repeat(5000);
    admin.pause("sh'op\";--", &raw, &raw).await.unwrap();
    let clean = posthouse_core::text::excerpt(&raw, 512);
    let pause = admin.pauses().await.unwrap().remove(0);
    assert_eq!(pause.destination, "sh'op\";--");
    assert_eq!((&pause.actor, &pause.note), (&clean, &clean));
    assert!(admin.resume("sh'op\";--", &raw, &raw).await.unwrap());
    let line = admin.audit(&AuditFilter::default()).await.unwrap().remove(0);
    assert_eq!((&line.actor, &line.note), (&clean, &clean));
}

/// What live relays send to, and what is paused, each with its worst news.
pub async fn destinations_are_told(fx: &dyn Fixture) {
    let (admin, store) = (fx.admin().await, fx.store().await);
    assert!(admin.destinations().await.unwrap().is_empty());
    store.heartbeat(&relay("r1"), LEASE).await.unwrap();
    let well = Relay {
        destinations: Vec::new(),
        ..relay("r2")
    };
    store.heartbeat(&well, LEASE).await.unwrap();
    admin.pause("bank", "ada", "maintenance").await.unwrap();
    let told = admin.destinations().await.unwrap();
    let names: Vec<_> = told.iter().map(|d| (d.name.as_str(), d.relays, d.breaker)).collect();
    assert_eq!(
        names,
        [
            ("audit 'log' \"x\"", 2, Breaker::Closed),
            ("bank", 0, Breaker::Closed),
            ("shop", 2, Breaker::HalfOpen)
        ]
    );
    assert_eq!(told[1].paused.as_ref().map(|p| p.actor.as_str()), Some("ada"));
    assert!(told[2].limited && told[2].paused.is_none());
    assert_eq!(told[2].topics, ["orders.*"]);
    fx.advance(LEASE * 2).await;
    let names: Vec<_> = admin
        .destinations()
        .await
        .unwrap()
        .into_iter()
        .map(|d| d.name)
        .collect();
    assert_eq!(names, ["bank"]);
}
