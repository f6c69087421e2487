//! Sagas: a snapshot that is changed only by who knows its revision, and a log.

use posthouse_core::{
    Digest, Error, Event, MessageId, SagaId, State, Timestamp, Verdict,
    ledger::check_consumer,
    saga::{
        Beginning, Change, Definition, Doing, Live, Loaded, LogLine, SagaFilter, SagaPage, SagaRow, Snapshot, Standing,
        Start, Started, Undoing, Withdrawal, check_step_key,
    },
};
use std::collections::BTreeSet;

use super::{
    Flaw, MemoryTx,
    claim::decide,
    tables::{About, Busy, Entry, Key, Tables, TxId},
};

/// (namespace, tenant, name, key).
pub(super) type SagaKey = (String, String, String, String);

/// A saga with all that is known of it.
#[derive(Clone, Debug)]
pub(super) struct Saga {
    row: SagaRow,
    definition: Definition,
    digest: Digest,
    snapshot: Snapshot,
    log: Vec<LogLine>,
}

fn key_of(saga: &Beginning) -> SagaKey {
    let (owner, name) = (&saga.owner, saga.definition.name());
    (
        owner.namespace.clone(),
        owner.tenant.clone(),
        name.to_owned(),
        saga.key.clone(),
    )
}

impl Tables {
    fn start(&mut self, tx: TxId, saga: &Beginning) -> Result<Result<Started, Error>, Busy> {
        let (owner, definition) = (&saga.owner, &saga.definition);
        let key = key_of(saga);
        self.free(Some(tx), &Key::Saga(key.clone()))?;
        let own = self.open.get(&tx).into_iter().flat_map(|open| &open.sagas);
        let own = own.filter(|other| key_of(other) == key);
        let own = own.map(|other| (other.owner.id, other.digest)).next();
        let found = self
            .saga_keys
            .get(&key)
            .and_then(|id| Some((*id, self.sagas.get(id)?.digest)));
        match own.or(found) {
            Some((id, digest)) if digest == saga.digest => return Ok(Ok(Started::Existing(id))),
            Some((id, _)) => return Ok(Err(Error::SagaMismatch(id))),
            None => {}
        }
        let name = (
            owner.namespace.clone(),
            definition.name().to_owned(),
            definition.version(),
        );
        if self
            .definitions
            .get(&name)
            .is_some_and(|known| known.hash() != definition.hash())
        {
            return Ok(Err(definition.known_otherwise().into()));
        }
        let plan = match self.plan(Some(tx), &saga.sends)? {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(error)),
        };
        let open = self.open.entry(tx).or_default();
        open.keys.extend(plan.keys().chain([Key::Saga(key)]));
        open.entries.extend(plan.entries);
        open.sagas.push(saga.clone());
        Ok(Ok(Started::New(owner.id)))
    }

    pub(super) fn insert_saga(&mut self, saga: Beginning) {
        let (seq, now) = (self.draw(), self.now);
        let name = (
            saga.owner.namespace.clone(),
            saga.definition.name().to_owned(),
            saga.definition.version(),
        );
        self.definitions.entry(name).or_insert_with(|| saga.definition.clone());
        self.saga_keys.insert(key_of(&saga), saga.owner.id);
        let mut entry = Saga {
            row: saga.row(seq, now),
            definition: saga.definition,
            digest: saga.digest,
            snapshot: saga.snapshot,
            log: Vec::new(),
        };
        entry.write_down(&saga.log, "start", now);
        self.sagas.insert(entry.row.id, entry);
    }

    pub(super) fn load_saga(&self, id: SagaId) -> Option<Loaded> {
        let saga = self.sagas.get(&id)?;
        let standing = |id: MessageId| {
            let entry = self.entry(id)?;
            let epoch = entry.standing.epoch;
            match entry.state() {
                State::Pending => Some(Standing::Pending {
                    epoch,
                    attempts: entry.standing.attempts,
                }),
                State::Leased => Some(Standing::Leased),
                State::Dead | State::Quarantined => Some(Standing::Dead { epoch }),
                State::Done => None,
            }
        };
        let live: Live = saga
            .snapshot
            .carriers()
            .filter_map(|id| Some((id, standing(id)?)))
            .collect();
        Some(Loaded {
            row: saga.row.clone(),
            definition: saga.definition.clone(),
            snapshot: saga.snapshot.clone(),
            live,
            now: self.now,
            payload_bytes: self.options.limits.payload_bytes,
        })
    }

    /// Whether a change was decided on what is there: the saga, and the messages that are to be taken back.
    pub(super) fn stands(&self, change: &Change) -> bool {
        let saga = self.sagas.get(&change.owner.id);
        let same = saga.is_some_and(|saga| saga.row.revision == change.expected);
        let there = |one: &Withdrawal| {
            let entry = self.entry(one.message);
            entry.is_some_and(|entry| entry.standing.epoch == one.epoch && is_free(entry))
        };
        (same || self.has(Flaw::SagaWithoutVersion)) && change.withdraw.iter().all(there)
    }

    /// All of a change but its messages.
    pub(super) fn write_saga(&mut self, change: &Change) {
        for one in &change.withdraw {
            self.withdraw(one.message);
        }
        if let Some((action, note)) = &change.audit {
            let about = About::Message(MessageId(change.owner.id.0));
            self.write_audit(about, change.actor.clone(), action, note.clone());
        }
        let now = self.now;
        if let Some(saga) = self.sagas.get_mut(&change.owner.id) {
            saga.change(change, now);
        }
    }

    /// It has served, and nobody is asked.
    fn withdraw(&mut self, id: MessageId) {
        let Some(entry) = self.entry(id) else { return };
        let seq = entry.seq;
        if let Ok(step) = decide(entry, Event::Resolve) {
            self.apply(seq, step);
        }
        if let Some(entry) = self.messages.get_mut(&seq) {
            entry.resolved = true;
        }
    }

    pub(super) fn change_saga(&mut self, change: &Change) -> Result<Verdict, Busy> {
        if !self.stands(change) {
            return Ok(Verdict::Stale);
        }
        let plan = match self.plan(None, &change.sends_at(self.now))? {
            Ok(plan) => plan,
            Err(error) => return Ok(Verdict::Refused(error)),
        };
        self.write_saga(change);
        plan.entries.into_iter().for_each(|entry| self.insert(entry));
        Ok(Verdict::Settled)
    }

    pub(super) fn list_sagas(&self, filter: &SagaFilter) -> SagaPage {
        let mut rows: Vec<_> = self.sagas.values().map(|saga| saga.row.clone()).collect();
        rows.sort_by_key(|row| std::cmp::Reverse(row.seq));
        let rows = rows.into_iter().filter(|row| filter.takes(row));
        SagaPage::of(rows.take(filter.page_size() as usize + 1).collect(), filter)
    }

    pub(super) fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        let saga = self.sagas.get(&id).ok_or(Error::NoSaga(id))?;
        let lines = saga.log.iter().filter(|line| line.n > after);
        Ok(lines.take(limit as usize).cloned().collect())
    }

    /// Whether a dead letter is there because a saga waits for a person.
    pub(super) fn is_held_for_saga(&self, entry: &Entry) -> bool {
        let saga = entry
            .message
            .parent
            .and_then(|parent| self.sagas.get(&SagaId(parent.0)));
        let waits = saga
            .is_some_and(|saga| saga.row.finished_at.is_none() && saga.snapshot.carriers().any(|id| id == entry.id));
        waits && entry.state() == State::Dead && entry.message.kind.is_of_saga()
    }

    /// Sagas that ended at the cutoff or before, at most `limit`.
    pub(super) fn old_sagas(&self, cutoff: Timestamp, limit: usize) -> BTreeSet<SagaId> {
        let over = |saga: &&Saga| saga.row.finished_at.is_some_and(|at| at <= cutoff);
        let old = self.sagas.values().filter(over).map(|saga| saga.row.id);
        old.take(limit).collect()
    }
}

/// Whether nobody is at it, and it has not ended.
fn is_free(entry: &Entry) -> bool {
    matches!(entry.state(), State::Pending | State::Dead | State::Quarantined)
}

impl Saga {
    fn change(&mut self, change: &Change, now: Timestamp) {
        let (state, reason) = change.snapshot.state();
        let row = &mut self.row;
        (row.state, row.reason, row.paused) = (state, reason, change.snapshot.paused);
        (row.revision, row.updated_at) = (change.revision(), now);
        row.finished_at = state.is_over().then(|| row.finished_at.unwrap_or(now));
        self.snapshot = change.snapshot.clone();
        self.write_down(&change.log, &change.actor, now);
    }

    fn write_down(&mut self, log: &[posthouse_core::saga::Happened], actor: &str, now: Timestamp) {
        for happened in log {
            self.log.push(LogLine {
                n: self.log.len() as u64 + 1,
                revision: self.row.revision,
                at: now,
                actor: actor.to_owned(),
                what: happened.what.to_owned(),
                step: happened.step.clone(),
                detail: happened.detail.clone(),
            });
        }
    }
}

impl Tables {
    /// What a participant knows of a step, as this transaction sees it: whether it was undone.
    fn known_step(&self, tx: TxId, step: &(String, String)) -> Result<Option<bool>, Busy> {
        self.free(Some(tx), &Key::Step(step.0.clone(), step.1.clone()))?;
        let own = self.open.get(&tx).and_then(|open| open.steps.get(step).copied());
        Ok(own.or_else(|| self.steps.get(step).map(|(undone, _)| *undone)))
    }

    fn know_step(&mut self, tx: TxId, step: (String, String), undone: bool) {
        let open = self.open.entry(tx).or_default();
        open.keys.insert(Key::Step(step.0.clone(), step.1.clone()));
        open.steps.insert(step, undone);
    }

    fn do_step(&mut self, tx: TxId, step: &(String, String)) -> Result<Doing, Busy> {
        Ok(match self.known_step(tx, step)? {
            Some(true) => Doing::Undone,
            Some(false) => Doing::Before,
            None => {
                self.know_step(tx, step.clone(), false);
                Doing::First
            }
        })
    }

    fn undo_step(&mut self, tx: TxId, step: &(String, String)) -> Result<Undoing, Busy> {
        let known = self.known_step(tx, step)?;
        if known != Some(true) {
            self.know_step(tx, step.clone(), true);
        }
        Ok(match known {
            Some(true) => Undoing::Before,
            Some(false) => Undoing::Now,
            None => Undoing::Never,
        })
    }

    /// Steps that participants heard of at the cutoff or before, at most `limit`.
    pub(super) fn old_steps(&self, cutoff: Timestamp, limit: usize) -> BTreeSet<(String, String)> {
        let old = self.steps.iter().filter(|(_, (_, at))| *at <= cutoff);
        old.map(|(step, _)| step.clone()).take(limit).collect()
    }
}

fn checked_step(consumer: &str, key: &str) -> Result<(String, String), Error> {
    check_consumer(consumer)?;
    check_step_key(key)?;
    Ok((consumer.to_owned(), key.to_owned()))
}

impl MemoryTx {
    /// A step comes to a participant.
    pub async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error> {
        let step = checked_step(consumer, key)?;
        self.waiting(|tables, tx| tables.do_step(tx, &step)).await
    }

    /// A step is to be undone.
    pub async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error> {
        let step = checked_step(consumer, key)?;
        self.waiting(|tables, tx| tables.undo_step(tx, &step)).await
    }

    /// Starts a saga with this transaction's commit.
    pub async fn start(&mut self, start: Start) -> Result<Started, Error> {
        let limits = self.memory.settings().limits;
        let saga = start.begin(&limits)?;
        self.waiting(|tables, tx| tables.start(tx, &saga)).await?
    }
}
