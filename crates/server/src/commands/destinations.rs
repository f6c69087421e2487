//! `posthouse destinations`: looking at destinations, and stopping or starting them.

use posthouse::{AnyStore, DestinationView};
use serde_json::json;

use crate::{
    cli::Destinations,
    exit::Failure,
    output::{Output, now, relative, visible},
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
                out.note("No relay that is running sends to a destination of that name; check its spelling.");
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
    vec![
        visible(&one.name),
        format!("{}{limited}", one.breaker.as_str()),
        one.relays.to_string(),
        visible(&one.topics.join(" ")),
        visible(&paused),
    ]
}
