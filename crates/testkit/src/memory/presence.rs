//! What relays tell of themselves, and operators of destinations.

use posthouse_core::{
    Error, Pause, Relay, RelayView, Timestamp, admin::checked_actor, presence::REMEMBERED, text::excerpt,
};
use std::time::Duration;

use super::{
    Flaw,
    admin::TEXT_CHARS,
    tables::{About, Tables},
};

/// The last word of a relay.
#[derive(Clone, Debug)]
pub(super) struct Told {
    pub relay: Relay,
    pub started_at: Timestamp,
    pub seen_at: Timestamp,
    /// What it told holds until then.
    pub until: Timestamp,
}

impl Tables {
    pub(super) fn heartbeat(&mut self, relay: &Relay, ttl: Duration) -> Vec<Pause> {
        let now = self.now;
        self.relays.retain(|_, told| told.seen_at.plus(REMEMBERED) >= now);
        let before = self.relays.get(&relay.name).filter(|told| told.until > now);
        let told = Told {
            relay: relay.clone(),
            started_at: before.map_or(now, |told| told.started_at),
            seen_at: now,
            until: now.plus(ttl),
        };
        self.relays.insert(relay.name.clone(), told);
        self.pauses()
    }

    pub(super) fn leave(&mut self, relay: &str) {
        let now = self.now;
        if let Some(told) = self.relays.get_mut(relay) {
            (told.seen_at, told.until) = (now, now);
        }
    }

    pub(super) fn relays(&self) -> Vec<RelayView> {
        let view = |told: &Told| RelayView {
            relay: told.relay.clone(),
            started_at: told.started_at,
            seen_at: told.seen_at,
            live: told.until > self.now || self.has(Flaw::RelaysNeverGo),
        };
        self.relays.values().map(view).collect()
    }

    pub(super) fn pauses(&self) -> Vec<Pause> {
        self.pauses.values().cloned().collect()
    }

    pub(super) fn pause(&mut self, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
        let (actor, note) = (checked_actor(actor)?, excerpt(note, TEXT_CHARS));
        let pause = Pause {
            destination: destination.to_owned(),
            at: self.now,
            actor: actor.clone(),
            note: note.clone(),
        };
        if self.has(Flaw::LastPauseStands) {
            self.pauses.remove(destination);
        }
        self.pauses.entry(destination.to_owned()).or_insert(pause);
        self.write_audit(About::Destination(destination), actor, "pause", note);
        Ok(())
    }

    pub(super) fn resume(&mut self, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
        let (actor, note) = (checked_actor(actor)?, excerpt(note, TEXT_CHARS));
        let paused = self.pauses.remove(destination).is_some();
        self.write_audit(About::Destination(destination), actor, "resume", note);
        self.news = true;
        Ok(paused)
    }
}
