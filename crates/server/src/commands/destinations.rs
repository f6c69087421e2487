//! `posthouse destinations`: looking at destinations, and stopping or starting them.

use posthouse::{AnyStore, DestinationView, Invalid, RelayView, presence::check_destination};
use serde_json::json;
use std::{cmp::Reverse, collections::BTreeSet};

use crate::{
    cli::Destinations,
    config::likeness,
    exit::Failure,
    output::{Output, cut, cut_or_dash, now, relative, visible},
    timeline::DETAIL,
};

/// `destinations ...`
pub async fn run(asked: &Destinations, store: &str, out: &Output) -> Result<(), Failure> {
    let admin = AnyStore::open(store).await?.admin();
    match asked {
        Destinations::List => {
            let all = admin.destinations().await?;
            if all.is_empty() {
                out.note("No relay is running, and nothing is paused.");
                return Ok(());
            }
            if out.json {
                return all.iter().try_for_each(|one| out.document(one));
            }
            let heading = ["DESTINATION", "BREAKER", "RELAYS", "TOPICS", "PAUSED"];
            out.data(&out.broken_table(&heading, all.iter().map(row).collect()))
        }
        Destinations::Pause(args) => {
            let (name, who) = (&args.switch.destination, &args.switch.who);
            check_destination(name)?;
            let note = who.note()?;
            let relays = admin.relays().await?;
            let names = names(&relays);
            let known = names.contains(name.as_str());
            if !known && !names.is_empty() && !args.anyway {
                return Err(unknown(name, names));
            }
            admin.pause(name, &who.actor, note).await?;
            said(out, name, "paused")?;
            out.note(if known {
                HEARD
            } else {
                "No relay that is running sends to a destination of that name; check its spelling: posthouse destinations list"
            });
            Ok(())
        }
        Destinations::Resume(args) => {
            let name = &args.destination;
            let was = admin.resume(name, &args.who.actor, args.who.note()?).await?;
            said(out, name, if was { "resumed" } else { "was not paused" })?;
            if was && admin.relays().await?.iter().any(|view| view.live) {
                out.note(HEARD);
            }
            Ok(())
        }
    }
}

/// A heartbeat is 5 seconds and a moment after the one before.
const HEARD: &str = "Relays hear of it with their next heartbeat, within 6 seconds.";
/// How many names an error lists.
const LISTED: usize = 10;

/// The destinations that live relays tell of; those that topics have named, too.
fn names(relays: &[RelayView]) -> BTreeSet<&str> {
    let live = relays.iter().filter(|view| view.live).map(|view| &view.relay);
    live.flat_map(|relay| {
        let routed = relay.routes.iter().flat_map(|route| &route.destinations);
        routed.chain(relay.destinations.iter().map(|health| &health.destination))
    })
    .map(String::as_str)
    .collect()
}

/// The names that there are, the nearest first.
fn unknown(name: &str, names: BTreeSet<&str>) -> Failure {
    let mut names: Vec<_> = names.into_iter().collect();
    names.sort_by_key(|known| Reverse(likeness(name, known)));
    let more = if names.len() > LISTED { ", ..." } else { "" };
    names.truncate(LISTED);
    let problem = format!("no relay that is running sends to {name:?}; nothing was paused");
    Failure::from(Invalid::new("destination", problem)).help(format!(
        "there are: {}{more}; to pause one that is to come: --anyway",
        names.join(", ")
    ))
}

fn said(out: &Output, name: &str, word: &str) -> Result<(), Failure> {
    if out.json {
        return out.document(&json!({ "destination": name, "done": word }));
    }
    out.data(&format!("{}  {word}", visible(name)))
}

fn row(one: &DestinationView) -> Vec<String> {
    let paused = one.paused.as_ref().map_or_else(
        || "-".to_owned(),
        |p| {
            let why = if p.note.is_empty() {
                String::new()
            } else {
                format!(": {}", p.note)
            };
            format!("by {} {}{why}", p.actor, relative(p.at, now()))
        },
    );
    let limited = if one.limited { ", at its limit" } else { "" };
    // Nobody who sends to it, nobody who knows how it is.
    let breaker = match one.relays {
        0 => "-".to_owned(),
        _ => format!("{}{limited}", one.breaker.as_str().replace('_', " ")),
    };
    vec![
        cut(&one.name, 48),
        breaker,
        one.relays.to_string(),
        cut_or_dash(&one.topics.join(" "), 48),
        cut(&paused, DETAIL),
    ]
}
