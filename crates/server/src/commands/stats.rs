//! `posthouse stats`: how much there is of everything, and how fast it is delivered.

use posthouse::{
    AnyStore, Breaker, Count, Counts, DestinationView, RelayView, Timestamp,
    presence::{self, Deliveries},
    topic::shown,
};
use serde::Serialize;
use std::{fmt::Write as _, time::Duration};

use crate::{
    exit::Failure,
    output::{Output, Paint, cut, relative, took},
};

/// Destinations that are named with their rate.
const NAMED: usize = 5;

/// What `stats --json` writes.
#[derive(Serialize)]
struct Document<'a> {
    messages: &'a Counts,
    /// Of all live relays together.
    deliveries: &'a Deliveries,
    /// None while something is due and nothing is delivered.
    seconds_to_empty: Option<Count>,
    relays: &'a [RelayView],
    destinations: &'a [DestinationView],
}

/// `stats`
pub async fn run(store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    let (counts, mut relays, destinations) = (
        admin.counts().await?,
        admin.relays().await?,
        admin.destinations().await?,
    );
    for route in relays.iter_mut().flat_map(|view| &mut view.relay.routes) {
        route.topic = shown(&route.topic).into_owned();
    }
    let deliveries = presence::deliveries(&relays);
    if out.json {
        return out.document(&Document {
            messages: &counts,
            deliveries: &deliveries,
            seconds_to_empty: counts.seconds_to_empty(deliveries.per_minute),
            relays: &relays,
            destinations: &destinations,
        });
    }
    out.data(&text(&counts, &deliveries, &relays, &destinations, out))?;
    hints(&counts).into_iter().for_each(|hint| out.note(hint));
    Ok(())
}

/// What to look at next.
fn hints(c: &Counts) -> Vec<&'static str> {
    let hints = [
        (
            c.expired,
            "Leases ran out: relays take them back by themselves; without one, posthouse repair",
        ),
        (c.dead, "Dead letters: posthouse dead list"),
        (c.quarantined, "In quarantine: posthouse dead list --quarantined"),
    ];
    let any = hints.into_iter().filter(|(count, _)| count.value > 0);
    any.map(|(_, hint)| hint).collect()
}

fn text(
    c: &Counts,
    deliveries: &Deliveries,
    relays: &[RelayView],
    destinations: &[DestinationView],
    out: &Output,
) -> String {
    let now = c.now.unwrap_or(Timestamp::from_micros(0));
    let ready = match c.oldest_due {
        Some(at) => format!("{}, the oldest due {}", c.ready, relative(at, now)),
        None => c.ready.to_string(),
    };
    let leased = match c.expired.value {
        0 => c.leased.to_string(),
        _ => format!("{}, {} of them ran out", c.leased, c.expired),
    };
    let live = relays.iter().filter(|r| r.live).count();
    let ill: Vec<_> = destinations
        .iter()
        .filter_map(|d| {
            let how = match (&d.paused, d.breaker) {
                (Some(_), _) => "paused",
                (None, Breaker::Closed) => return None,
                (None, Breaker::HalfOpen) => "breaker half open",
                (None, Breaker::Open) => "breaker open",
            };
            Some(format!("{} ({how})", cut(&d.name, 48)))
        })
        .collect();
    let lines = [
        ("ready", ready),
        ("scheduled", c.scheduled.to_string()),
        ("leased", leased),
        ("done", c.done.to_string()),
        ("dead", c.dead.to_string()),
        ("quarantined", c.quarantined.to_string()),
        ("blocked keys", c.blocked_keys.to_string()),
        ("delivered", rate(deliveries)),
        ("to empty", to_empty(c, deliveries.per_minute)),
        ("relays", format!("{live} live")),
        (
            "destinations",
            match (destinations.len(), ill.is_empty()) {
                (n, true) => n.to_string(),
                (n, false) => format!("{n}: {}", ill.join(", ")),
            },
        ),
    ];
    lines.into_iter().fold(String::new(), |mut text, (name, value)| {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{}  {value}", out.paint(Paint::Dim, &format!("{name:12}")));
        text
    })
}

/// Deliveries per minute, of all and of the busiest destinations.
fn rate(deliveries: &Deliveries) -> String {
    let busy: Vec<_> = deliveries.destinations.iter().filter(|d| d.per_minute > 0).collect();
    let named = busy.iter().take(NAMED);
    let named: Vec<_> = named
        .map(|d| format!("{} {}", cut(&d.destination, 48), d.per_minute))
        .collect();
    let more = if busy.len() > NAMED || deliveries.more {
        ", ..."
    } else {
        ""
    };
    match named.is_empty() {
        true => format!("{} a minute", deliveries.per_minute),
        false => format!("{} a minute: {}{more}", deliveries.per_minute, named.join(", ")),
    }
}

/// How long until nothing is due or in flight, at the rate of the last minute.
fn to_empty(c: &Counts, per_minute: u64) -> String {
    let words = |seconds: u64| match seconds {
        0..10 => format!("{seconds} s"),
        _ => took(Duration::from_secs(seconds)),
    };
    match c.seconds_to_empty(per_minute) {
        None => "unknown: no relay delivered anything in the last minute".to_owned(),
        Some(Count { value: 0, exact: true }) => "nothing is due or leased".to_owned(),
        Some(Count { value, exact: true }) => format!("about {}", words(value)),
        Some(Count { value, exact: false }) => format!("more than {}", words(value)),
    }
}
