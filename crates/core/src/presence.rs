//! What relays tell about themselves, and operators about destinations: shared through the store, because the one who asks is
//! another process.

use serde::{Deserialize, Serialize};
use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use crate::{
    Invalid, Limits, MessageView, State, Timestamp,
    message::{check_name, check_optional_name, check_text},
    topic::{TopicPattern, shown},
};

/// How long a relay is remembered after its last word, and the longest that a word may hold.
pub const REMEMBERED: Duration = Duration::from_secs(24 * 3600);

/// The most destinations, and the most topics without a route, that one heartbeat lists.
pub const MOST_LISTED: usize = 100;

/// A relay as it describes itself. What another version leaves out is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Relay {
    /// Its name: the worker of its leases.
    pub name: String,
    /// The version of its program.
    pub version: String,
    /// The namespaces it serves; all when empty.
    pub namespaces: Vec<String>,
    /// Its routes, in their order: the first that matches a topic serves it.
    pub routes: Vec<Route>,
    /// How its destinations are.
    pub destinations: Vec<Health>,
    /// Tenants that are at their limit.
    pub limited_tenants: Vec<String>,
    /// Its deliveries from this store.
    pub deliveries: Deliveries,
    /// Topics that it has claimed messages of, and has no route for.
    pub unrouted: Unrouted,
}

/// Where messages of some topics go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The topics, as a [`TopicPattern`].
    pub topic: String,
    /// The names of the destinations.
    pub destinations: Vec<String>,
    /// The attempt budget that the route sets; without one each message's own applies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
}

/// Deliveries: acknowledged sends, also of what the destination had before.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Deliveries {
    /// How many, to all destinations, since the relay started.
    pub delivered: u64,
    /// How many in the last minute. A relay that has run for less extrapolates.
    pub per_minute: u64,
    /// The same by destination, the busiest first: at most [`MOST_LISTED`] of one relay.
    pub destinations: Vec<Delivered>,
    /// Whether there are destinations that are not listed.
    pub more: bool,
}

/// Deliveries to one destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Delivered {
    /// Its name.
    pub destination: String,
    /// How many since the relay started.
    pub delivered: u64,
    /// How many in the last minute.
    pub per_minute: u64,
}

/// Topics without a route.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Unrouted {
    /// At most [`MOST_LISTED`] of them.
    pub topics: Vec<UnroutedTopic>,
    /// Whether there are more.
    pub more: bool,
}

/// A topic without a route.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct UnroutedTopic {
    /// The namespace of the message that was claimed.
    pub namespace: String,
    /// The topic, as it is [shown].
    pub topic: String,
}

/// How a destination is, as one relay sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Health {
    /// Its name.
    pub destination: String,
    /// Whether the relay sends to it.
    pub breaker: Breaker,
    /// Whether it is at its rate limit.
    pub limited: bool,
}

/// A circuit breaker. Ordered from well to ill.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Breaker {
    /// Messages are sent.
    #[default]
    Closed,
    /// A few are sent, to find out.
    HalfOpen,
    /// None is sent.
    Open,
}

impl Breaker {
    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::HalfOpen => "half_open",
            Self::Open => "open",
        }
    }
}

/// A relay as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RelayView {
    /// What it told last.
    #[serde(flatten)]
    pub relay: Relay,
    /// Since when it has been live without a break.
    pub started_at: Timestamp,
    /// When it told it last.
    pub seen_at: Timestamp,
    /// Whether what it told still holds: it has neither left nor been silent for longer than it said.
    pub live: bool,
}

/// Refuses a name that no destination has.
pub fn check_destination(name: &str) -> Result<(), Invalid> {
    check_text("destination", name, Limits::DESTINATION_BYTES)
}

impl Relay {
    /// Refuses what makes no sense, or could not be kept and shown.
    pub fn check(&self, ttl: Duration) -> Result<(), Invalid> {
        check_name("relay", &self.name)?;
        check_optional_name("version", &self.version)?;
        self.namespaces.iter().try_for_each(|n| check_name("namespace", n))?;
        for route in &self.routes {
            check_text("topic", &route.topic, Limits::DESTINATION_BYTES)?;
            route.destinations.iter().try_for_each(|d| check_destination(d))?;
        }
        self.destinations
            .iter()
            .try_for_each(|h| check_destination(&h.destination))?;
        self.limited_tenants
            .iter()
            .try_for_each(|t| check_optional_name("tenant", t))?;
        let delivered = &self.deliveries.destinations;
        delivered.iter().try_for_each(|d| check_destination(&d.destination))?;
        for unrouted in &self.unrouted.topics {
            check_name("namespace", &unrouted.namespace)?;
            check_text("topic", &unrouted.topic, Limits::DESTINATION_BYTES)?;
        }
        for (field, listed) in [
            ("deliveries", delivered.len()),
            ("unrouted", self.unrouted.topics.len()),
        ] {
            if listed > MOST_LISTED {
                return Err(Invalid::new(
                    field,
                    format!("lists {listed}; at most {MOST_LISTED} are allowed"),
                ));
            }
        }
        if ttl < Duration::from_millis(1) || ttl > REMEMBERED {
            return Err(Invalid::new("ttl", "must be between 1 ms and 24 hours"));
        }
        Ok(())
    }

    /// The destinations of a topic in a namespace: nothing when this relay does not serve it.
    pub fn serves(&self, namespace: &str, topic: &str) -> Option<&[String]> {
        // It goes to nobody: each relay tells the saga that its time has come.
        if topic == crate::saga::TIMER_TOPIC && self.is_of(namespace) {
            return Some(&[]);
        }
        self.route(namespace, topic).map(|route| &*route.destinations)
    }

    /// The route that serves a topic in a namespace.
    fn route(&self, namespace: &str, topic: &str) -> Option<&Route> {
        let matches = |route: &&Route| TopicPattern::parse(&route.topic).is_ok_and(|p| p.matches(topic));
        self.routes.iter().find(matches).filter(|_| self.is_of(namespace))
    }

    fn is_of(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|n| n == namespace)
    }

    /// How a destination is. One that it says nothing about is well.
    pub fn health(&self, destination: &str) -> Health {
        let known = self.destinations.iter().find(|h| h.destination == destination);
        known.cloned().unwrap_or_else(|| Health {
            destination: destination.to_owned(),
            breaker: Breaker::Closed,
            limited: false,
        })
    }
}

/// The attempt budget that the next settlement of a message applies: that of its route on the first live relay that serves it, if the
/// route sets one, else the message's own. Ended messages, and those of sagas, keep theirs.
pub fn budget(message: &MessageView, relays: &[RelayView]) -> u32 {
    let goes_on = matches!(message.state, State::Pending | State::Leased) && !message.kind.is_of_saga();
    let serving = relays.iter().filter(|view| goes_on && view.live);
    let mut routes = serving.filter_map(|view| view.relay.route(&message.namespace, &message.topic));
    let route = routes.next();
    route
        .and_then(|route| route.max_attempts)
        .unwrap_or(message.max_attempts)
}

/// The deliveries of all live relays together, the busiest destination first.
pub fn deliveries(relays: &[RelayView]) -> Deliveries {
    let mut all = Deliveries::default();
    let mut by_name: BTreeMap<&str, Delivered> = BTreeMap::new();
    for own in relays
        .iter()
        .filter(|view| view.live)
        .map(|view| &view.relay.deliveries)
    {
        all.delivered = all.delivered.saturating_add(own.delivered);
        all.per_minute = all.per_minute.saturating_add(own.per_minute);
        all.more |= own.more;
        for one in &own.destinations {
            let sum = by_name.entry(&one.destination).or_insert_with(|| Delivered {
                destination: one.destination.clone(),
                delivered: 0,
                per_minute: 0,
            });
            sum.delivered = sum.delivered.saturating_add(one.delivered);
            sum.per_minute = sum.per_minute.saturating_add(one.per_minute);
        }
    }
    all.destinations = by_name.into_values().collect();
    all.destinations.sort_by(busiest_first);
    all
}

/// The order in which destinations are listed.
pub(crate) fn busiest_first(one: &Delivered, other: &Delivered) -> std::cmp::Ordering {
    let key = |d: &Delivered| (d.per_minute, d.delivered);
    key(other)
        .cmp(&key(one))
        .then_with(|| one.destination.cmp(&other.destination))
}

/// Topics that a live relay has claimed messages of, and that no live relay has a route for.
pub fn unrouted(relays: &[RelayView]) -> Unrouted {
    let live = || relays.iter().filter(|view| view.live).map(|view| &view.relay);
    let served = |one: &UnroutedTopic| live().any(|relay| relay.serves(&one.namespace, &one.topic).is_some());
    let topics = live().flat_map(|relay| &relay.unrouted.topics);
    let topics: BTreeSet<_> = topics.filter(|one| !served(one)).cloned().collect();
    Unrouted {
        topics: topics.into_iter().collect(),
        more: live().any(|relay| relay.unrouted.more),
    }
}

/// A destination that an operator has stopped sending to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pause {
    /// Its name.
    pub destination: String,
    /// Since when.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// Why.
    pub note: String,
}

/// A destination as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DestinationView {
    /// Its name.
    pub name: String,
    /// Who stopped it, and why.
    pub paused: Option<Pause>,
    /// The worst breaker among the relays that are live.
    pub breaker: Breaker,
    /// Whether a live relay is at its rate limit.
    pub limited: bool,
    /// The patterns of the topics that go there, as they are [shown].
    pub topics: Vec<String>,
    /// How many live relays send to it.
    pub relays: usize,
}

/// Every destination that a live relay sends to or that is paused, by name.
pub fn destinations(relays: &[RelayView], pauses: &[Pause]) -> Vec<DestinationView> {
    let mut known: BTreeMap<&str, DestinationView> = BTreeMap::new();
    let blank = |name: &str| DestinationView {
        name: name.to_owned(),
        paused: None,
        breaker: Breaker::Closed,
        limited: false,
        topics: Vec::new(),
        relays: 0,
    };
    for view in relays.iter().filter(|r| r.live) {
        let mut seen: Vec<&str> = Vec::new();
        for route in &view.relay.routes {
            for name in &route.destinations {
                let entry = known.entry(name).or_insert_with(|| blank(name));
                let health = view.relay.health(name);
                entry.breaker = entry.breaker.max(health.breaker);
                entry.limited |= health.limited;
                let topic = shown(&route.topic);
                if !entry.topics.iter().any(|known| *known == topic) {
                    entry.topics.push(topic.into_owned());
                }
                if !seen.contains(&name.as_str()) {
                    seen.push(name);
                    entry.relays += 1;
                }
            }
        }
    }
    for pause in pauses {
        let entry = known
            .entry(&pause.destination)
            .or_insert_with(|| blank(&pause.destination));
        entry.paused = Some(pause.clone());
    }
    known.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn relay(name: &str, routes: &[(&str, &[&str])], ill: &[(&str, Breaker)]) -> RelayView {
        RelayView {
            relay: Relay {
                name: name.into(),
                routes: routes
                    .iter()
                    .map(|(topic, to)| Route {
                        topic: (*topic).into(),
                        destinations: to.iter().map(|d| (*d).to_owned()).collect(),
                        ..Route::default()
                    })
                    .collect(),
                destinations: ill
                    .iter()
                    .map(|(name, breaker)| Health {
                        destination: (*name).into(),
                        breaker: *breaker,
                        limited: false,
                    })
                    .collect(),
                ..Relay::default()
            },
            started_at: Timestamp::from_micros(0),
            seen_at: Timestamp::from_micros(0),
            live: true,
        }
    }

    fn delivered(destination: &str, delivered: u64, per_minute: u64) -> Delivered {
        Delivered {
            destination: destination.into(),
            delivered,
            per_minute,
        }
    }

    fn unrouted_topic(topic: &str) -> UnroutedTopic {
        UnroutedTopic {
            namespace: "default".into(),
            topic: topic.into(),
        }
    }

    #[test]
    fn deliveries_of_live_relays_are_added_up() {
        let counts = |name: &str, destinations: Vec<Delivered>, more| {
            let mut view = relay(name, &[], &[]);
            view.relay.deliveries = Deliveries {
                delivered: destinations.iter().map(|d| d.delivered).sum(),
                per_minute: destinations.iter().map(|d| d.per_minute).sum(),
                destinations,
                more,
            };
            view
        };
        let mut gone = counts("gone", vec![delivered("one", 99, 99)], true);
        gone.live = false;
        let relays = [
            counts("r1", vec![delivered("one", 10, 3), delivered("two", 5, 5)], false),
            counts("r2", vec![delivered("one", 1, 4)], false),
            gone,
        ];
        let all = deliveries(&relays);
        assert_eq!((all.delivered, all.per_minute, all.more), (16, 12, false));
        assert_eq!(all.destinations, [delivered("one", 11, 7), delivered("two", 5, 5)]);
    }

    #[test]
    fn a_topic_that_another_live_relay_serves_is_not_unrouted() {
        let mut one = relay("r1", &[("a", &["one"])], &[]);
        one.relay.unrouted.topics = vec![unrouted_topic("b"), unrouted_topic("c")];
        let mut two = relay("r2", &[("b", &["two"])], &[]);
        assert_eq!(unrouted(&[one.clone(), two.clone()]).topics, [unrouted_topic("c")]);
        two.relay.namespaces = vec!["own".into()];
        assert_eq!(
            unrouted(&[one.clone(), two.clone()]).topics.len(),
            2,
            "of another namespace"
        );
        one.live = false;
        assert_eq!(unrouted(&[one, two]), Unrouted::default());
    }

    #[test]
    fn the_first_route_that_matches_serves() {
        let mut view = relay("r", &[("a.*", &["one"]), ("*", &["two", "three"])], &[]);
        assert_eq!(view.relay.serves("default", "a.b"), Some(&["one".to_owned()][..]));
        assert_eq!(view.relay.serves("default", "b").map(<[_]>::len), Some(2));
        view.relay.namespaces = vec!["own".into()];
        assert_eq!(view.relay.serves("default", "a.b"), None);
    }

    #[test]
    fn a_relay_is_checked_before_any_traffic() {
        let ttl = Duration::from_secs(15);
        let sound = relay("r", &[("a.*", &["one"])], &[("one", Breaker::Open)]).relay;
        sound.check(ttl).unwrap();
        let refused = |change: &dyn Fn(&mut Relay)| {
            let mut relay = sound.clone();
            change(&mut relay);
            relay.check(ttl).unwrap_err().field
        };
        assert_eq!(refused(&|r| r.name.clear()), "relay");
        assert_eq!(refused(&|r| r.name = "x".repeat(256)), "relay");
        assert_eq!(refused(&|r| r.version = "1\0".into()), "version");
        assert_eq!(refused(&|r| r.namespaces = vec![String::new()]), "namespace");
        assert_eq!(refused(&|r| r.routes[0].topic.clear()), "topic");
        assert_eq!(
            refused(&|r| r.routes[0].destinations = vec!["\n".into()]),
            "destination"
        );
        assert_eq!(refused(&|r| r.destinations[0].destination.clear()), "destination");
        assert_eq!(refused(&|r| r.limited_tenants = vec!["\u{9f}".into()]), "tenant");
        assert_eq!(
            refused(&|r| r.deliveries.destinations = vec![delivered("", 0, 0)]),
            "destination"
        );
        assert_eq!(
            refused(&|r| r.deliveries.destinations = vec![delivered("d", 0, 0); MOST_LISTED + 1]),
            "deliveries"
        );
        assert_eq!(refused(&|r| r.unrouted.topics = vec![unrouted_topic("")]), "topic");
        assert_eq!(
            refused(&|r| r.unrouted.topics = vec![unrouted_topic("t"); MOST_LISTED + 1]),
            "unrouted"
        );
        for ttl in [Duration::ZERO, REMEMBERED + Duration::from_secs(1)] {
            assert_eq!(sound.check(ttl).unwrap_err().field, "ttl");
        }
    }

    #[test]
    fn what_another_version_leaves_out_is_empty() {
        let read: Relay = serde_json::from_str(r#"{"name": "r", "shoe_size": 42}"#).unwrap();
        assert_eq!((read.name.as_str(), read.routes.len()), ("r", 0));
    }

    #[test]
    fn the_worst_relay_and_every_pause_are_told() {
        let mut gone = relay("gone", &[("*", &["old"])], &[("one", Breaker::Open)]);
        gone.live = false;
        let relays = [
            relay("r1", &[("a", &["one"]), ("b", &["one", "two"])], &[]),
            relay("r2", &[("a", &["one"])], &[("one", Breaker::HalfOpen)]),
            gone,
        ];
        let pause = Pause {
            destination: "three".into(),
            at: Timestamp::from_micros(1),
            actor: "op".into(),
            note: String::new(),
        };
        let told = destinations(&relays, std::slice::from_ref(&pause));
        let names: Vec<_> = told.iter().map(|d| (d.name.as_str(), d.relays, d.breaker)).collect();
        assert_eq!(
            names,
            [
                ("one", 2, Breaker::HalfOpen),
                ("three", 0, Breaker::Closed),
                ("two", 1, Breaker::Closed)
            ]
        );
        assert_eq!(told[0].topics, ["a", "b"]);
        assert_eq!(told[1].paused, Some(pause));
    }
}
