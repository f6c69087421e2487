//! What relays tell of themselves, and operators of destinations.

use posthouse_core::{Error, Pause, Relay, RelayView, presence::REMEMBERED};
use rusqlite::{Connection, params};
use std::time::Duration;

use crate::{
    admin::{About, Hand},
    clock,
    error::{internal, plain},
    place::run,
    rows::{self, all},
};

const HEARTBEAT: &str = include_str!("../sql/heartbeat.sql");
const FORGET: &str = include_str!("../sql/relay_forget.sql");
const LEAVE: &str = include_str!("../sql/relay_leave.sql");
const RELAYS: &str = include_str!("../sql/relays.sql");
const PAUSES: &str = include_str!("../sql/pauses.sql");
const PAUSE: &str = include_str!("../sql/pause.sql");
const RESUME: &str = include_str!("../sql/resume.sql");

/// Keeps what a relay tells, forgets those that are silent, and answers what is paused.
pub(crate) fn heartbeat(tx: &Connection, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
    let (now, told) = (clock::now(tx)?, serde_json::to_string(relay).map_err(internal)?);
    run(tx, FORGET, [now.saturating_sub(clock::micros(REMEMBERED))])?;
    run(tx, HEARTBEAT, params![relay.name, told, now, clock::later(now, ttl)])?;
    pauses(tx).map_err(plain)
}

/// A relay leaves.
pub(crate) fn leave(tx: &Connection, relay: &str) -> Result<(), Error> {
    run(tx, LEAVE, params![relay, clock::now(tx)?]).map(|_| ())
}

/// The relays that are not forgotten, by name.
pub(crate) fn relays(db: &Connection) -> rusqlite::Result<Vec<RelayView>> {
    all(db, RELAYS, &[], rows::relay_view)
}

/// The destinations that are paused, by name.
pub(crate) fn pauses(db: &Connection) -> rusqlite::Result<Vec<Pause>> {
    all(db, PAUSES, &[], rows::pause)
}

/// Pauses a destination that is not paused.
pub(crate) fn pause(tx: &Connection, destination: &str, hand: &Hand) -> Result<(), Error> {
    let now = clock::now(tx)?;
    run(tx, PAUSE, params![destination, now, hand.actor, hand.note])?;
    hand.sign(tx, now, "pause", About::Destination(destination))
}

/// Lets a destination go on, and says whether it was paused.
pub(crate) fn resume(tx: &Connection, destination: &str, hand: &Hand) -> Result<bool, Error> {
    let paused = run(tx, RESUME, [destination])? == 1;
    hand.sign(tx, clock::now(tx)?, "resume", About::Destination(destination))?;
    Ok(paused)
}
