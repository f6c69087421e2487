//! How a relay works on its stores: leases, claims, waits, what producers may hand in, tenants, and how long things are kept.

use posthouse::{Backoff, Limits, RetryPolicy, presence::Relay, relay::Profile};
use std::{collections::BTreeMap, time::Duration};
use toml::de::DeTable;

use super::{
    read::{Reader, Section},
    value::Value,
};

/// `[outbox]`
#[derive(Clone, Debug, PartialEq)]
pub struct Outbox {
    /// What the relay is called; it finds a name itself when absent.
    pub name: Option<String>,
    /// How long a lease lasts before it must be renewed.
    pub lease: Duration,
    /// The most messages of one claim.
    pub batch: u32,
    /// The most messages in flight.
    pub concurrency: u32,
    /// How often it looks for work when nobody wakes it.
    pub poll: Duration,
    /// How long sends may go on after it was told to stop.
    pub grace: Duration,
    /// The most bytes of payload in flight.
    pub in_flight_bytes: u64,
    /// The attempt budget of messages that are enqueued without one.
    pub max_attempts: u32,
    /// How soon a message is tried again where its route says nothing. It sets no budget.
    pub retry: RetryPolicy,
    /// What may be enqueued.
    pub limits: Limits,
}

/// `[retention]`; never when absent.
#[derive(Clone, Debug, PartialEq)]
pub struct Retention {
    /// How long after its end a message in the state `done` is kept.
    pub ended: Option<Duration>,
    /// How long after its end a dead letter is kept.
    pub dead: Option<Duration>,
    /// How long after its message's end a dedupe key still answers.
    pub dedupe: Option<Duration>,
}

/// `[tenants]`
#[derive(Clone, Debug, PartialEq)]
pub struct Tenants {
    /// The most messages in flight for any one tenant.
    pub max_in_flight: Option<u32>,
    /// Shares in each round; 1 for those not named.
    pub weights: BTreeMap<String, u32>,
    /// The most messages in flight for those named.
    pub caps: BTreeMap<String, u32>,
}

impl Outbox {
    /// Reads `[outbox]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "outbox", "outbox".to_owned(), root.get("outbox"));
        let name = section.text(reader, "name");
        if let Some(name) = &name {
            let relay = Relay {
                name: name.clone(),
                ..Relay::default()
            };
            if let Err(invalid) = relay.check(Duration::from_secs(1)) {
                section.refuse(reader, "name", invalid.problem);
            }
        }
        let profile = section.text(reader, "profile");
        let profile = profile.and_then(|name| Profile::named(&name)).unwrap_or_default();
        let backoff = section.child(reader, "outbox.backoff", "backoff");
        Self {
            name,
            lease: section.millis(reader, "lease_ms"),
            batch: small(section.whole(reader, "batch")).unwrap_or(profile.batch()),
            concurrency: small(section.whole(reader, "concurrency")).unwrap_or(profile.concurrency()),
            poll: section
                .whole(reader, "poll_ms")
                .map_or(profile.poll(), Duration::from_millis),
            grace: section.millis(reader, "grace_ms"),
            in_flight_bytes: section.number(reader, "in_flight_bytes"),
            max_attempts: section.number(reader, "max_attempts"),
            retry: RetryPolicy {
                max_attempts: None,
                longest_wish: section.millis(reader, "retry_after_max_ms"),
                backoff: read_backoff(reader, &backoff, &RetryPolicy::default().backoff),
            },
            limits: Limits {
                payload_bytes: section.number(reader, "payload_max_bytes"),
                require_tenant: section.switch(reader, "require_tenant").unwrap_or_default(),
            },
        }
    }
}

fn small(whole: Option<u64>) -> Option<u32> {
    whole.and_then(|whole| u32::try_from(whole).ok())
}

impl Retention {
    /// Reads `[retention]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "retention", "retention".to_owned(), root.get("retention"));
        Self {
            ended: section.days(reader, "ended_days"),
            dead: section.days(reader, "dead_days"),
            dedupe: section.days(reader, "dedupe_days"),
        }
    }
}

impl Tenants {
    /// Reads `[tenants]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "tenants", "tenants".to_owned(), root.get("tenants"));
        let tenants = Self {
            max_in_flight: small(section.whole(reader, "max_in_flight")),
            weights: section.whole_of(reader, "weights"),
            caps: section.whole_of(reader, "caps"),
        };
        for (key, names) in [
            ("weights", tenants.weights.keys().cloned().collect::<Vec<_>>()),
            ("caps", tenants.caps.keys().cloned().collect()),
        ] {
            let relay = Relay {
                name: "relay".to_owned(),
                limited_tenants: names,
                ..Relay::default()
            };
            if let Err(invalid) = relay.check(Duration::from_secs(1)) {
                section.refuse(reader, key, invalid.to_string());
            }
        }
        tenants
    }
}

/// The keys of an exponential backoff.
const CURVE: [&str; 5] = ["base_ms", "factor", "jitter", "cap_ms", "floor_ms"];

/// Reads a curve or a table; what is not said is as `before`.
pub fn read_backoff(reader: &mut Reader<'_>, section: &Section<'_>, before: &Backoff) -> Backoff {
    if section.is_set(reader, "table_s") {
        for name in CURVE
            .into_iter()
            .filter(|name| section.is_set(reader, name))
            .collect::<Vec<_>>()
        {
            section.refuse(reader, name, "says nothing beside table_s; take one of them out");
        }
        let Some(Value::List(waits)) = section.get(reader, "table_s") else {
            return before.clone();
        };
        let wait = |value| match value {
            Value::Real(seconds) => Some(Duration::from_millis((seconds * 1000.0).round() as u64)),
            _ => None,
        };
        return Backoff::Table(waits.into_iter().filter_map(wait).collect());
    }
    let is_curve = section.kind() == "outbox.backoff" || CURVE.into_iter().any(|name| section.is_set(reader, name));
    if !is_curve {
        return before.clone();
    }
    let usual = RetryPolicy::default().backoff;
    let curve = if matches!(before, Backoff::Exponential { .. }) {
        before
    } else {
        &usual
    };
    let &Backoff::Exponential {
        base,
        factor,
        cap,
        jitter,
        floor,
    } = curve
    else {
        return before.clone();
    };
    let millis = |n: u64| Duration::from_millis(n);
    let read = (
        section.whole(reader, "base_ms").map_or(base, millis),
        section.real(reader, "factor").unwrap_or(factor),
        section.real(reader, "jitter").unwrap_or(jitter),
        section.whole(reader, "cap_ms").map_or(cap, millis),
        section.whole(reader, "floor_ms").map_or(floor, millis),
    );
    let (base, factor, jitter, cap, floor) = read;
    if cap < base {
        let name = if section.is_set(reader, "cap_ms") {
            "cap_ms"
        } else {
            "base_ms"
        };
        let message = format!(
            "the longest wait ({} ms) is shorter than the first ({} ms)",
            cap.as_millis(),
            base.as_millis()
        );
        section.refuse(reader, name, message);
    }
    if floor > cap {
        let message = format!(
            "the shortest wait is longer than the longest (cap_ms, {})",
            cap.as_millis()
        );
        section.refuse(reader, "floor_ms", message);
    }
    Backoff::Exponential {
        base,
        factor,
        cap,
        jitter,
        floor,
    }
}
