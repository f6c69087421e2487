//! Relays: how they end.

use std::time::Duration;

use super::{Court, Life, SECOND};
use crate::simulation::Who;

impl Court {
    /// What a dead process was sending ends with it, as far as it is concerned.
    pub(super) fn crashed(&mut self, who: Who) {
        let now = self.now;
        self.life(who, |life| {
            life.crashed = true;
            life.sending.clear();
        });
        for send in self.messages.values_mut().flat_map(|track| &mut track.sends) {
            if send.who == who && send.ended.is_none() {
                send.ended = Some(now);
            }
        }
    }

    /// In time, and with nothing in hand.
    pub(super) fn stopped(&mut self, who: Who) {
        let now = self.now;
        self.life(who, |life| life.stopped = Some(now));
        let Some(life) = self.relays.get(&who) else { return };
        let told = life.stopping.unwrap_or(now);
        if life.troubled(told.saturating_sub(SECOND), now) {
            return;
        }
        let mut wrong = Vec::new();
        if now > told + life.terms.grace + SECOND {
            wrong.push(format!(
                "{who} was told to stop at {:.3}, and its grace is over",
                told.as_secs_f64()
            ));
        }
        for track in self.messages.values() {
            if track
                .live
                .as_ref()
                .is_some_and(|live| live.who == who && live.until > now && live.known.is_some())
            {
                wrong.push(format!("{who} left, and holds {}", track.name));
            }
        }
        wrong.into_iter().for_each(|what| self.accuse("L6", what));
    }

    /// Whether a release comes too late after the relay was told to stop.
    pub(super) fn too_late_for(&self, who: Who, time: Duration) -> bool {
        let Some(life) = self.relays.get(&who) else {
            return false;
        };
        let told = life.stopping.filter(|told| *told + time < self.now);
        told.is_some_and(|told| !life.troubled(told.saturating_sub(SECOND), self.now))
    }
}

impl Life {
    /// Whether it was told to stop before, and has heard it: only what is frozen has not. To begin no send it needs nobody, so it is no
    /// excuse that the store did not answer.
    pub(super) fn has_heard_the_stop(&self, now: Duration) -> bool {
        let told = self.stopping.filter(|told| *told < now && self.frozen.is_none());
        told.is_some_and(|told| self.thawed.is_none_or(|thawed| thawed < told))
    }

    /// Whether anything of it went wrong in this time.
    pub(super) fn troubled(&self, from: Duration, to: Duration) -> bool {
        self.frozen.is_some() || self.trouble.iter().any(|(begins, ends)| *begins <= to && *ends >= from)
    }
}
