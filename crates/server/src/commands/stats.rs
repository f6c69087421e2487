//! `posthouse stats`: how much there is of everything.

use posthouse::{AnyStore, Breaker, Count, Counts, DestinationView, RelayView, Timestamp, topic::shown};
use serde::Serialize;
use std::fmt::Write as _;

use crate::{
    exit::Failure,
    output::{Output, Paint, cut, relative},
};

/// What `stats --json` writes.
#[derive(Serialize)]
struct Document<'a> {
    messages: &'a Counts,
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
    if out.json {
        return out.document(&Document {
            messages: &counts,
            relays: &relays,
            destinations: &destinations,
        });
    }
    out.data(&text(&counts, &relays, &destinations, out))?;
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

fn text(c: &Counts, relays: &[RelayView], destinations: &[DestinationView], out: &Output) -> String {
    let now = c.now.unwrap_or(Timestamp::from_micros(0));
    let ready = match c.oldest_due {
        Some(at) => format!("{}, the oldest due {}", number(c.ready), relative(at, now)),
        None => number(c.ready),
    };
    let leased = match c.expired.value {
        0 => number(c.leased),
        _ => format!("{}, {} of them ran out", number(c.leased), number(c.expired)),
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
        ("scheduled", number(c.scheduled)),
        ("leased", leased),
        ("done", number(c.done)),
        ("dead", number(c.dead)),
        ("quarantined", number(c.quarantined)),
        ("blocked keys", number(c.blocked_keys)),
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

/// A number; an estimate says that it is one.
fn number(count: Count) -> String {
    if count.exact {
        count.value.to_string()
    } else {
        format!("about {}", count.value)
    }
}
