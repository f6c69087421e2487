//! What relays tell of themselves, and operators of destinations.

use posthouse_core::{
    Error, Pause, Relay, RelayView, Timestamp, admin::checked_actor, presence::REMEMBERED, text::excerpt,
};
use std::time::Duration;
use surrealdb::types::SurrealValue;

use crate::{
    admin::{About, TEXT_CHARS, write_audit},
    error::internal,
    message::{later, micros},
    records::{self, Name, Range, Run, name},
    settings,
    work::Work,
};

const RELAY: &str = "posthouse_relay";
const PAUSE: &str = "posthouse_pause";

/// The last word of a relay, as JSON.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Told {
    told: String,
    started_at: i64,
    seen_at: i64,
    /// What it told holds until then.
    until: i64,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Paused {
    at: i64,
    actor: String,
    note: String,
}

/// Keeps what a relay tells, forgets those that are silent, and answers what is paused.
pub(crate) async fn heartbeat(work: &mut Work<'_>, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
    let now = work.now;
    let known = records::first::<Told>(work.on, Range::all(RELAY), records::ALL).await?;
    let own = name!(RELAY, &relay.name);
    let mut started_at = now;
    for (name, told) in known {
        if name == own && told.until > now {
            started_at = told.started_at;
        } else if told.seen_at < now.saturating_sub(micros(REMEMBERED)) {
            work.drop(name);
        }
    }
    let told = Told {
        told: serde_json::to_string(relay).map_err(internal)?,
        started_at,
        seen_at: now,
        until: later(now, ttl),
    };
    work.put(own, told);
    let pauses = pauses(work.on).await?;
    work.flush().await?;
    Ok(pauses)
}

/// A relay leaves.
pub(crate) async fn leave(work: &mut Work<'_>, relay: &str) -> Result<(), Error> {
    let name = name!(RELAY, relay);
    if let Some(told) = work.get::<Told>(name.clone()).await? {
        let (seen_at, until) = (work.now, work.now);
        work.put(name, Told { seen_at, until, ..told });
    }
    work.flush().await
}

pub(crate) async fn relays(on: &dyn Run) -> Result<Vec<RelayView>, Error> {
    let (now, _) = settings::look(on).await?;
    let view = |(_, told): (Name, Told)| {
        Ok(RelayView {
            relay: serde_json::from_str(&told.told).map_err(internal)?,
            started_at: Timestamp::from_micros(told.started_at),
            seen_at: Timestamp::from_micros(told.seen_at),
            live: told.until > now,
        })
    };
    let all = records::first::<Told>(on, Range::all(RELAY), records::ALL).await?;
    all.into_iter().map(view).collect()
}

pub(crate) async fn pauses(on: &dyn Run) -> Result<Vec<Pause>, Error> {
    let pause = |(name, paused): (Name, Paused)| {
        Ok(Pause {
            destination: name.text(0)?.to_owned(),
            at: Timestamp::from_micros(paused.at),
            actor: paused.actor,
            note: paused.note,
        })
    };
    let all = records::first::<Paused>(on, Range::all(PAUSE), records::ALL).await?;
    all.into_iter().map(pause).collect()
}

pub(crate) async fn pause(work: &mut Work<'_>, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
    let (actor, note) = (checked_actor(actor)?, excerpt(note, TEXT_CHARS));
    let name = name!(PAUSE, destination);
    if work.get::<Paused>(name.clone()).await?.is_none() {
        let (actor, note) = (actor.clone(), note.clone());
        work.put(
            name,
            Paused {
                at: work.now,
                actor,
                note,
            },
        );
    }
    write_audit(work, About::Destination(destination), actor, "pause", note).await?;
    work.flush().await
}

pub(crate) async fn resume(work: &mut Work<'_>, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
    let (actor, note) = (checked_actor(actor)?, excerpt(note, TEXT_CHARS));
    let name = name!(PAUSE, destination);
    let paused = work.get::<Paused>(name.clone()).await?.is_some();
    work.drop(name);
    write_audit(work, About::Destination(destination), actor, "resume", note).await?;
    work.flush().await?;
    Ok(paused)
}
