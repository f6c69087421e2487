//! The operator's hand.

use posthouse_core::{
    Attempt, AuditEntry, AuditFilter, DeadReason, Error, Event, Filter, MessageId, MessageView, Order, Page, Prune,
    PruneRecord, PruneStates, Pruned, State,
    admin::{checked_actor, resolve_note},
    ledger::{Answer, End},
    prune::Ended,
    text::excerpt,
};
use std::{collections::BTreeSet, time::Duration};

use super::{
    Flaw,
    claim::decide,
    tables::{About, Busy, Entry, Key, Tables},
};

/// Actors, notes and receipts of operators are cut to this many characters.
pub(super) const TEXT_CHARS: usize = 512;

impl Tables {
    pub(super) fn find(&self, id: MessageId) -> Option<MessageView> {
        self.entry(id).map(|entry| self.view(entry))
    }

    /// Looks at every message: there are as many as memory holds.
    pub(super) fn list(&self, filter: &Filter) -> Page {
        let found: Box<dyn Iterator<Item = &Entry>> = if filter.oldest_first {
            let above = filter.beyond.unwrap_or(i64::MIN);
            Box::new(self.messages.values().filter(move |entry| entry.seq > above))
        } else {
            let below = filter.beyond.unwrap_or(i64::MAX);
            Box::new(self.messages.range(..below).rev().map(|(_, entry)| entry))
        };
        let rows = found
            .map(|entry| self.view(entry))
            .filter(|view| filter.takes(view))
            .take(filter.page_size() as usize + 1);
        Page::of(rows.collect(), filter, None)
    }

    pub(super) fn attempts_of(&self, id: MessageId) -> Vec<Attempt> {
        let seq = self.ids.get(&id);
        seq.and_then(|seq| self.attempts.get(seq)).cloned().unwrap_or_default()
    }

    /// Waits for the key's turn where it goes to the tail: a producer that came first must be in front of it.
    pub(super) fn replay(
        &mut self,
        id: MessageId,
        actor: &str,
        note: &str,
        deliver_in: Option<Duration>,
    ) -> Result<Result<(), Error>, Busy> {
        let to_tail = self
            .entry(id)
            .filter(|e| !e.blocks() && e.message.order == Order::Strict);
        if let Some((lane, key)) = to_tail.and_then(Entry::order_key) {
            self.free(None, &Key::Turn(lane, key))?;
        }
        let in_place = self.entry(id).is_some_and(Entry::blocks);
        let moved = self.operate(id, actor, "replay", Event::Replay, note);
        let (now, tail) = (self.now, self.draw());
        if let Ok(entry) = moved.as_ref().map(|seq| self.messages.get_mut(seq)) {
            let Some(entry) = entry else { return Ok(Ok(())) };
            let first = entry.first_deliver_by.filter(|at| *at > now);
            entry.deliver_by = deliver_in.map(|within| now.plus(within)).or(first);
            entry.freed = false;
            if !in_place {
                entry.pos = tail;
            }
            let seq = entry.seq;
            self.reopen_entry(seq);
        }
        Ok(moved.map(|_| ()))
    }

    pub(super) fn quarantine(&mut self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let seq = self.operate(id, actor, "quarantine", Event::Quarantine, note)?;
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.note = Some(excerpt(note, TEXT_CHARS));
        }
        Ok(())
    }

    pub(super) fn cancel(&mut self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let seq = self.operate(id, actor, "cancel", Event::Cancel, note)?;
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.freed = true;
        }
        self.end_entry(seq, &End::unsent(DeadReason::Cancelled));
        Ok(())
    }

    pub(super) fn resolve(&mut self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error> {
        let seq = self.operate(id, actor, "resolve", Event::Resolve, &resolve_note(note, receipt))?;
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.resolved = true;
        }
        self.end_entry(seq, &End::Delivered(Answer::bytes(excerpt(receipt, TEXT_CHARS))));
        Ok(())
    }

    pub(super) fn discard(&mut self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let actor = checked_actor(actor)?;
        let entry = self.entry(id).ok_or(Error::NotFound(id))?;
        not_of_saga(entry, "discard")?;
        let (seq, state, key) = (entry.seq, entry.state(), entry.dedupe_key());
        if !matches!(state, State::Dead | State::Quarantined) {
            return Err(Error::IllegalState {
                id,
                state,
                verb: "discard",
            });
        }
        if state == State::Quarantined {
            self.end_entry(seq, &End::unsent(DeadReason::Cancelled));
        }
        self.remove(seq);
        if let Some(key) = key.filter(|key| self.dedupe.get(key).is_some_and(|taken| taken.id == id)) {
            self.dedupe.remove(&key);
        }
        self.write_audit(About::Message(id), actor, "discard", excerpt(note, TEXT_CHARS));
        Ok(())
    }

    /// One operator's change: asked of the machine, performed and written into the audit.
    fn operate(
        &mut self,
        id: MessageId,
        actor: &str,
        verb: &'static str,
        event: Event,
        note: &str,
    ) -> Result<i64, Error> {
        let actor = checked_actor(actor)?;
        let entry = self.entry(id).ok_or(Error::NotFound(id))?;
        not_of_saga(entry, verb)?;
        let seq = entry.seq;
        let step = decide(entry, event).map_err(|illegal| Error::IllegalState {
            id,
            state: illegal.state,
            verb,
        })?;
        self.news = true;
        self.apply(seq, step);
        self.write_audit(About::Message(id), actor, verb, excerpt(note, TEXT_CHARS));
        Ok(seq)
    }

    /// Finds the old messages and rows, and removes them unless it is a dry run.
    pub(super) fn prune(&mut self, prune: &Prune) -> Result<Pruned, Error> {
        let actor = prune.check()?;
        let takes_dead = prune.clone().states(PruneStates::All);
        let prune = if self.has(Flaw::PruneTakesDead) {
            &takes_dead
        } else {
            prune
        };
        let (limit, cutoff) = (prune.limit as usize, self.now.minus(prune.older_than));
        let of_state = |state: State| -> Vec<_> {
            let entries = self.messages.values().filter(|entry| entry.state() == state);
            let old = entries.filter(|entry| prune.takes(&self.ended(entry), cutoff));
            old.map(|entry| (entry.seq, entry.id)).take(limit).collect()
        };
        let (done, dead) = (of_state(State::Done), of_state(State::Dead));
        let gone: BTreeSet<_> = done.iter().chain(&dead).map(|(_, id)| *id).collect();
        // Dead letters alone, or all that retention removes.
        let others = if prune.states.done() { limit } else { 0 };
        let ended = self.dedupe.iter();
        let ended = ended.filter(|(_, taken)| taken.ends_at.is_some_and(|at| at <= self.now));
        let free: BTreeSet<_> = ended.map(|(key, _)| key.clone()).take(others).collect();
        let entries = self.old_entries(others);
        let inbox = self.old_inbox(cutoff, &gone, others);
        let steps = self.old_steps(cutoff, others);
        let sagas = self.old_sagas(cutoff, others);
        let counts = [
            done.len(),
            dead.len(),
            free.len(),
            entries.len(),
            inbox.len(),
            steps.len(),
            sagas.len(),
        ];
        let mut pruned = Pruned {
            done: done.len() as u64,
            dead: dead.len() as u64,
            dedupe_keys: free.len() as u64,
            entries: entries.len() as u64,
            inbox: (inbox.len() + steps.len()) as u64,
            sagas: sagas.len() as u64,
            more: counts.contains(&limit),
            audit: None,
        };
        if prune.dry_run || pruned.is_empty() {
            return Ok(pruned);
        }
        done.iter().chain(&dead).for_each(|(seq, _)| self.remove(*seq));
        self.dedupe.retain(|key, _| !free.contains(key));
        self.ledger.retain(|key, _| !entries.contains(key));
        self.inbox.retain(|had, _| !inbox.contains(had));
        self.steps.retain(|step, _| !steps.contains(step));
        self.sagas.retain(|id, _| !sagas.contains(id));
        self.saga_keys.retain(|_, id| !sagas.contains(id));
        pruned.audit = Some(self.audit_prune(prune, actor, PruneRecord::of(prune.states, cutoff, &pruned)));
        Ok(pruned)
    }

    fn ended(&self, entry: &Entry) -> Ended {
        Ended {
            state: entry.state(),
            finished_at: entry.finished_at,
            blocks: entry.blocks(),
            held_by_saga: self.is_held_for_saga(entry),
        }
    }

    /// Adds the counts to the row of the run, or writes its row. Returns the row's number.
    fn audit_prune(&mut self, prune: &Prune, actor: String, record: PruneRecord) -> i64 {
        let own = self.has(Flaw::AuditRowForEachPrune);
        let of_run = |line: &&mut AuditEntry| !own && Some(line.n) == prune.audit && line.actor == actor;
        let run = self.audit.iter_mut().find(of_run);
        if let Some((line, sum)) = run.and_then(|line| Some((line.n, line.pruned.as_mut()?)))
            && sum.states == record.states
        {
            sum.add(&record);
            return line;
        }
        self.write_audit(About::Store, actor, "prune", excerpt(&prune.note, TEXT_CHARS));
        let line = self.audit.last_mut();
        line.map_or(0, |line| {
            line.pruned = Some(record);
            line.n
        })
    }

    pub(super) fn audit_of(&self, filter: &AuditFilter) -> Vec<AuditEntry> {
        let newest = self.audit.iter().rev();
        newest
            .filter(|line| filter.before.is_none_or(|before| line.n < before))
            .filter(|line| filter.id.is_none() || filter.id == line.id)
            .filter(|line| filter.actor.as_ref().is_none_or(|actor| *actor == line.actor))
            .filter(|line| filter.action.as_ref().is_none_or(|action| *action == line.action))
            .take(filter.page_size() as usize)
            .cloned()
            .collect()
    }

    pub(super) fn view(&self, entry: &Entry) -> MessageView {
        let (message, standing) = (&entry.message, entry.standing);
        let last = self.attempts.get(&entry.seq).and_then(|rows| rows.last());
        MessageView {
            id: entry.id,
            seq: entry.seq,
            tenant: message.tenant.clone(),
            namespace: message.namespace.clone(),
            topic: message.topic.clone(),
            order_key: message.order_key.clone(),
            dedupe_key: message.dedupe_key.clone(),
            state: standing.state,
            reason: entry.reason,
            attempts: standing.attempts,
            max_attempts: standing.max_attempts,
            epoch: standing.epoch,
            generation: standing.generation,
            worker: entry.held.as_ref().map(|held| held.worker.clone()),
            lease_until: entry.held.as_ref().map(|held| held.until),
            due_at: (standing.state == State::Pending).then_some(entry.due_at),
            deliver_by: if standing.state.is_terminal() {
                entry.first_deliver_by
            } else {
                entry.lapses_at()
            },
            created_at: entry.created_at,
            updated_at: entry.updated_at,
            finished_at: entry.finished_at,
            last_code: last.and_then(|attempt| attempt.code.clone()),
            last_error: last.and_then(|attempt| attempt.error.clone()),
            content_type: message.content_type.clone(),
            bytes: message.payload.len() as u64,
            digest: Some(entry.digest),
            kind: message.kind,
            parent: message.parent,
            destination: message.destination.clone(),
            note: entry.note.clone(),
            unreadable: None,
        }
    }
}

/// Of a saga's messages the saga decides.
fn not_of_saga(entry: &Entry, verb: &'static str) -> Result<(), Error> {
    match entry.saga() {
        Some(saga) => Err(Error::OfSaga {
            id: entry.id,
            saga,
            verb,
        }),
        None => Ok(()),
    }
}
