//! `posthouse destinations`: looking at destinations, and stopping or starting them.

use posthouse::{AnyStore, DestinationView};
use serde_json::json;

use crate::{
    cli::Destinations,
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
            let name = &args.destination;
            let known = admin.destinations().await?.iter().any(|d| d.name == *name);
            admin.pause(name, &args.who.actor, &args.who.reason).await?;
            if !known {
                out.note("No relay that is running sends to a destination of that name; check its spelling: posthouse destinations list");
            }
            said(out, name, "paused")
        }
        Destinations::Resume(args) => {
            let name = &args.destination;
            let was = admin.resume(name, &args.who.actor, &args.who.reason).await?;
            said(out, name, if was { "resumed" } else { "was not paused" })
        }
    }
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
            let why = if p.reason.is_empty() {
                String::new()
            } else {
                format!(": {}", p.reason)
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
