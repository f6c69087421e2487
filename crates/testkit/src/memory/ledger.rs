//! The ledger and the inbox. What becomes of an entry is decided by the core.

use posthouse_core::{
    Error, Lease, LeaseToken, MessageId, Settlement, State, Timestamp,
    ledger::{Begin, Begun, Clearance, End, Entry, EntryKey, Fenced, Fingerprint, Hold, Ruling, SOON},
};
use std::{collections::BTreeSet, time::Duration};

use super::{
    MemoryTx,
    tables::{Busy, Key, Tables, TxId},
};

impl Tables {
    /// Waits for nobody: who has it in hand is at it.
    pub(super) fn begin_entry(&mut self, ask: &Begin, token: LeaseToken) -> Begun {
        if self.free(None, &Key::Entry(ask.key.clone())).is_err() {
            return Begun::Busy { retry_after: SOON };
        }
        let (entry, begun) = Entry::begin(self.ledger.get(&ask.key).cloned(), ask, token, self.now);
        self.ledger.extend(entry.map(|entry| (ask.key.clone(), entry)));
        begun
    }

    /// A verb of the holder's, by a rule of the core; in a caller's transaction, at its commit.
    pub(super) fn change_entry(
        &mut self,
        tx: Option<TxId>,
        key: &EntryKey,
        rule: impl FnOnce(Option<Entry>, Timestamp) -> Ruling<Fenced>,
    ) -> Result<Fenced, Busy> {
        self.free(tx, &Key::Entry(key.clone()))?;
        let now = self.now;
        let staged = tx.and_then(|tx| self.open.get(&tx)?.ledger.get(key).cloned());
        let (entry, verdict) = rule(staged.or_else(|| self.ledger.get(key).cloned()), now);
        match tx.and_then(|tx| self.open.get_mut(&tx)) {
            Some(open) => {
                open.keys.insert(Key::Entry(key.clone()));
                open.ledger.extend(entry.map(|entry| (key.clone(), entry)));
            }
            None => self.ledger.extend(entry.map(|entry| (key.clone(), entry))),
        }
        Ok(verdict)
    }

    /// Whether a message may be sent, as far as the ledger knows.
    pub(super) fn clear(&mut self, lease: &Lease) -> Clearance {
        let Some((key, print)) = self.entry(lease.id).and_then(|message| message.bound()) else {
            return Clearance::Send;
        };
        let (entry, clearance) = Entry::clear(self.ledger.get(&key).cloned(), print, lease.id, self.now);
        if entry.is_some() && self.free(None, &Key::Entry(key.clone())).is_err() {
            return Clearance::Wait(SOON);
        }
        let held = self.entry(lease.id).and_then(|message| message.held.as_ref());
        // Who has lost his lease takes nothing: nobody would ever end it.
        if entry.is_some() && held.is_none_or(|held| held.token != lease.token) {
            return Clearance::Wait(Duration::ZERO);
        }
        self.ledger.extend(entry.map(|entry| (key, entry)));
        clearance
    }

    /// A message has ended, and its entry with it.
    pub(super) fn end_entry(&mut self, seq: i64, end: &End) {
        self.tell_entry(seq, |found, print, id, now| {
            Entry::message_ended(found, print, id, end, now)
        });
    }

    /// The entry that a settlement would write, if it is not the message's own.
    pub(super) fn foreign_entry(&self, seq: i64, settlement: &Settlement) -> Option<EntryKey> {
        let message = self.messages.get(&seq)?;
        let (key, _) = message.bound()?;
        let own = self
            .ledger
            .get(&key)
            .is_some_and(|entry| entry.message == Some(message.id));
        (matches!(settlement.end(), Some(End::Delivered(_))) && !own).then_some(key)
    }

    /// A message is tried again, and has the entry again that it had failed.
    pub(super) fn reopen_entry(&mut self, seq: i64) {
        self.tell_entry(seq, |found, _, id, now| Entry::reopened(found, id, now));
    }

    fn tell_entry(
        &mut self,
        seq: i64,
        rule: impl FnOnce(Option<Entry>, Fingerprint, MessageId, Timestamp) -> Option<Entry>,
    ) {
        let Some((id, (key, print))) = self
            .messages
            .get(&seq)
            .and_then(|message| Some((message.id, message.bound()?)))
        else {
            return;
        };
        let entry = rule(self.ledger.get(&key).cloned(), print, id, self.now);
        self.ledger.extend(entry.map(|entry| (key, entry)));
    }

    /// Whether a consumer has this for the first time. Waits for another transaction in which it does.
    fn once(&mut self, tx: TxId, consumer: &str, id: MessageId) -> Result<bool, Busy> {
        let had = (consumer.to_owned(), id);
        let key = Key::Had(had.0.clone(), id);
        self.free(Some(tx), &key)?;
        let before = self.inbox.contains_key(&had);
        let open = self.open.entry(tx).or_default();
        open.keys.insert(key);
        Ok(!before && open.inbox.insert(had))
    }

    /// Entries past their retention, at most `limit`.
    pub(super) fn old_entries(&self, limit: usize) -> BTreeSet<EntryKey> {
        let (now, busy) = (self.now, |key: &EntryKey| {
            self.free(None, &Key::Entry(key.clone())).is_err()
        });
        self.ledger
            .iter()
            .filter(|(key, entry)| entry.is_expired(now) && !busy(key))
            .map(|(key, _)| key.clone())
            .take(limit)
            .collect()
    }
}

impl Tables {
    /// Inbox rows up to the cutoff whose message is not in this store, or is about to go; at most `limit`.
    pub(super) fn old_inbox(
        &self,
        cutoff: Timestamp,
        gone: &BTreeSet<MessageId>,
        limit: usize,
    ) -> BTreeSet<(String, MessageId)> {
        let is_here = |id: &MessageId| self.ids.contains_key(id) && !gone.contains(id);
        let old = self.inbox.iter().filter(|(had, at)| **at <= cutoff && !is_here(&had.1));
        old.map(|(had, _)| had.clone()).take(limit).collect()
    }
}

impl MemoryTx {
    /// Whether there is such a message under this entry, or this transaction has enqueued one.
    pub(super) fn has_under(&self, message: MessageId, key: &EntryKey) -> bool {
        self.memory.with(|tables| {
            let staged = tables.open.get(&self.tx).into_iter().flat_map(|open| &open.entries);
            let pending = tables.messages.values().filter(|entry| entry.state() == State::Pending);
            let mut all = staged.chain(pending);
            all.any(|entry| entry.id == message && entry.bound().is_some_and(|(own, _)| own == *key))
        })
    }

    /// A verb of an entry's holder with this transaction's commit.
    pub async fn change_entry(
        &mut self,
        hold: &Hold,
        rule: impl Fn(Option<Entry>, LeaseToken, Timestamp) -> Ruling<Fenced>,
    ) -> Result<Fenced, Error> {
        let token = hold.token;
        self.waiting(|tables, tx| tables.change_entry(Some(tx), &hold.key, |found, now| rule(found, token, now)))
            .await
    }

    /// Whether a consumer has this message for the first time.
    pub async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error> {
        self.waiting(|tables, tx| tables.once(tx, consumer, id)).await
    }
}
