//! What operators are told: how many messages there are, and why one is not delivered.

use posthouse_core::{Count, Counts, Facts, MessageId, State};
use std::collections::BTreeSet;

use super::{
    Flaw,
    tables::{Entry, Tables},
};

impl Tables {
    pub(super) fn counts(&self, cap: u32) -> Counts {
        let count = |is: &dyn Fn(&Entry) -> bool| {
            let found = self.messages.values().filter(|entry| is(entry)).count();
            Count::capped(found as u64, true, cap)
        };
        let of = |state| count(&|entry| entry.state() == state);
        let pending = |due: bool| {
            let is_due = move |entry: &Entry| (entry.due_at <= self.now) == due;
            count(&|entry| entry.state() == State::Pending && is_due(entry))
        };
        let blockers = self.messages.values().filter(|entry| entry.blocks());
        let blocked: BTreeSet<_> = blockers.filter_map(Entry::order_key).collect();
        let free = self.messages.values().filter(|entry| entry.state() == State::Pending);
        Counts {
            ready: pending(true),
            scheduled: pending(false),
            leased: of(State::Leased),
            done: of(State::Done),
            dead: of(State::Dead),
            quarantined: of(State::Quarantined),
            expired: count(&|entry| entry.held.as_ref().is_some_and(|held| held.until <= self.now)),
            blocked_keys: Count::capped(blocked.len() as u64, true, cap),
            oldest_due: free.map(|entry| entry.due_at).filter(|at| *at <= self.now).min(),
            now: Some(self.now),
        }
    }

    pub(super) fn facts(&self, id: MessageId) -> Option<Facts> {
        let entry = self.entry(id)?;
        Some(Facts {
            now: self.now,
            message: self.view(entry),
            last: self.attempts.get(&entry.seq).and_then(|rows| rows.last()).cloned(),
            ahead: self.ahead(entry).map(|ahead| self.view(ahead)),
            blocks: entry.blocks(),
            resolved: entry.resolved,
            relays: self.relays(),
            pauses: self.pauses(),
        })
    }

    /// What must end before a pending message: one of its key that is in flight, or else the first of its key.
    fn ahead(&self, entry: &Entry) -> Option<&Entry> {
        let key = entry.order_key().filter(|_| entry.state() == State::Pending)?;
        let in_line = |other: &&Entry| {
            let waits = matches!(other.state(), State::Pending | State::Leased) || other.blocks();
            waits && other.order_key().as_ref() == Some(&key)
        };
        let first = self
            .messages
            .values()
            .filter(in_line)
            .min_by_key(|other| (other.held.is_none() || self.has(Flaw::FlightUnseen), other.pos))?;
        (first.seq != entry.seq).then_some(first)
    }
}
