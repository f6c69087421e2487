//! Messages: who commits them, and what operators do to them.

use posthouse_core::{DeadReason, Message, MessageId, OnDead, State};
use std::time::Duration;

use super::{Court, Track};

impl Court {
    pub(super) fn committed(&mut self, message: &Message, at: Duration) {
        let Some(id) = message.id else { return };
        self.places += 1;
        let deliver_by = message.deliver_in.map(|within| at + within);
        let track = Track {
            message: message.clone(),
            name: String::from_utf8_lossy(&message.payload).into_owned(),
            state: State::Pending,
            discarded: false,
            deliver_by,
            ends: Vec::new(),
            sends: Vec::new(),
            first_deliver_by: deliver_by,
            reason: None,
            freed: false,
            place: self.places,
            epoch: 0,
            live: None,
        };
        if let Some(key) = key_of(message) {
            self.keys.entry(key).or_default().push(id);
        }
        self.messages.insert(id, track);
    }

    pub(super) fn operated(&mut self, verb: &str, id: MessageId) {
        let now = self.now;
        self.places += 1;
        let tail = self.places;
        let Some(track) = self.messages.get_mut(&id) else {
            return;
        };
        let wrong = track
            .live
            .is_some()
            .then(|| format!("an operator could {verb} {}, which is held", track.name));
        match verb {
            "replay" => {
                if !track.blocks(now) {
                    track.place = tail;
                }
                (track.state, track.reason, track.freed) = (State::Pending, None, false);
                track.deliver_by = track.first_deliver_by.filter(|by| *by > now);
            }
            "quarantine" => (track.state, track.reason) = (State::Quarantined, None),
            "cancel" => (track.state, track.reason, track.freed) = (State::Dead, Some(DeadReason::Cancelled), true),
            "resolve" => (track.state, track.reason) = (State::Done, None),
            _ => track.discarded = true,
        }
        wrong.into_iter().for_each(|what| self.accuse("P7", what));
    }

    /// The messages of a message's key, itself among them.
    pub(super) fn of_key(&self, id: MessageId) -> impl Iterator<Item = &Track> {
        let key = self.messages.get(&id).and_then(|track| key_of(&track.message));
        let ids = key.and_then(|key| self.keys.get(&key)).into_iter().flatten();
        ids.filter_map(|id| self.messages.get(id))
    }
}

impl Track {
    /// Its deliver-by has passed while nobody held it: the next claim finds it dead.
    pub fn has_lapsed(&self, now: Duration) -> bool {
        self.state == State::Pending && self.deliver_by.is_some_and(|by| by <= now)
    }

    /// Whether it ended in a way that holds its key.
    pub fn blocks(&self, now: Duration) -> bool {
        let ended = match self.state {
            State::Dead => self.reason != Some(DeadReason::Cancelled),
            State::Quarantined => true,
            _ => self.has_lapsed(now),
        };
        let keyed = self.message.order_key.is_some() && self.message.on_dead == OnDead::Block;
        ended && keyed && !self.freed && !self.discarded
    }

    pub(super) fn in_the_way(&self, now: Duration) -> bool {
        let waits = !self.state.is_terminal() && !self.has_lapsed(now);
        !self.discarded && (waits || self.blocks(now))
    }
}

fn key_of(message: &Message) -> Option<(String, String, String)> {
    Some((
        message.namespace.clone(),
        message.tenant.clone(),
        message.order_key.clone()?,
    ))
}
