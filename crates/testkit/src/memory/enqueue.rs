//! Enqueue, in a caller's transaction.

use posthouse_core::{
    Digest, Enqueued, Error, Kind, Message, MessageId, OnDuplicate, Order, Settlement, Standing, State, Verdict,
};
use uuid::Uuid;

use super::{
    Flaw, Memory,
    tables::{Busy, DedupeKey, Entry, Key, Open, Tables, TxId, dedupe_key},
};

/// A caller's transaction. Nothing of it is seen before the commit; dropped, it is rolled back.
pub struct MemoryTx {
    pub(super) memory: Memory,
    pub(super) tx: TxId,
}

impl MemoryTx {
    pub(super) fn begin(memory: Memory) -> Self {
        let tx = memory.with(|tables| {
            // A number that no transaction had before, from the line that numbers everything.
            let tx = tables.draw().unsigned_abs();
            tables.open.insert(tx, Open::default());
            tx
        });
        Self { memory, tx }
    }

    /// The application's own change.
    pub fn note(&mut self, line: &str) {
        self.open(|open| open.notes.push(line.to_owned()));
    }

    /// Enqueues one message.
    pub async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error> {
        Ok(self.enqueue_all(vec![message]).await?.remove(0))
    }

    /// Enqueues many: all of them, or none when one is refused. Waits while another transaction holds an id, a dedupe
    /// key or an order key's turn that is needed.
    pub async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        self.waiting(|tables, tx| tables.enqueue(tx, &messages)).await?
    }

    /// Settles a lease with this transaction's commit. The lease cannot be lost meanwhile.
    pub async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        settlement.check_own()?;
        self.waiting(|tables, tx| tables.settle(Some(tx), settlement, &[]))
            .await
    }

    /// Runs what needs nothing that another open transaction holds, as soon as that is so.
    pub(super) async fn waiting<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Tables, TxId) -> Result<T, Busy>,
    ) -> Result<T, Error> {
        let tx = self.tx;
        let answer = self.memory.wait_for(Some(tx), |tables| attempt(tables, tx)).await;
        self.open(|open| open.waits_for = None);
        answer
    }

    /// Makes it all visible at once.
    pub fn commit(self) {
        self.memory.with(|tables| tables.commit(self.tx));
    }

    /// Forgets it all.
    pub fn rollback(self) {}

    fn open(&self, run: impl FnOnce(&mut Open)) {
        self.memory.with(|tables| tables.open.get_mut(&self.tx).map(run));
    }
}

impl Drop for MemoryTx {
    fn drop(&mut self) {
        self.memory.with(|tables| tables.open.remove(&self.tx));
        self.memory.shared.ended.notify_waiters();
    }
}

/// What an enqueue will write, once nothing stands against it.
#[derive(Default)]
pub(super) struct Plan {
    pub answers: Vec<Enqueued>,
    pub entries: Vec<Entry>,
}

impl Plan {
    /// What its messages hold against other transactions until the commit.
    pub fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        self.entries
            .iter()
            .flat_map(|e| [Some(Key::Id(e.id)), e.dedupe_key().map(Key::Dedupe)])
            .flatten()
    }
}

impl Tables {
    fn enqueue(&mut self, tx: TxId, messages: &[Message]) -> Result<Result<Vec<Enqueued>, Error>, Busy> {
        let turns: Vec<_> = messages
            .iter()
            .filter(|_| !self.has(Flaw::NoTurns))
            .filter_map(turn)
            .collect();
        // Before a number is drawn: the order of the numbers is then the order of the commits.
        turns.iter().try_for_each(|turn| self.free(Some(tx), turn))?;
        let plan = match self.plan(Some(tx), messages)? {
            Ok(plan) => plan,
            Err(error) => return Ok(Err(error)),
        };
        let open = self.open.entry(tx).or_default();
        open.keys.extend(turns.into_iter().chain(plan.keys()));
        open.entries.extend(plan.entries);
        Ok(Ok(plan.answers))
    }

    /// Decides for each message whether it is new. Writes nothing.
    pub(super) fn plan(&mut self, tx: Option<TxId>, messages: &[Message]) -> Result<Result<Plan, Error>, Busy> {
        let limits = self.options.limits.clone();
        if let Err(invalid) = messages.iter().try_for_each(|message| message.check(&limits)) {
            return Ok(Err(invalid.into()));
        }
        let mut plan = Plan::default();
        for message in messages {
            let digest = message.digest();
            match self.existing(tx, message, &plan)? {
                None => {
                    let entry = self.new_entry(message, digest);
                    plan.answers.push(Enqueued::New(entry.id));
                    plan.entries.push(entry);
                }
                Some((_, existing, found)) if found == digest || message.on_duplicate == OnDuplicate::Keep => {
                    plan.answers.push(Enqueued::Duplicate(existing));
                }
                Some((key, existing, _)) => return Ok(Err(Error::DedupeConflict { key, existing })),
            }
        }
        Ok(Ok(plan))
    }

    /// The message that stands for this one already, and by what.
    fn existing(
        &self,
        tx: Option<TxId>,
        message: &Message,
        plan: &Plan,
    ) -> Result<Option<(&'static str, MessageId, Digest)>, Busy> {
        let own = tx.and_then(|tx| self.open.get(&tx));
        let ours = || own.iter().flat_map(|open| &open.entries).chain(&plan.entries);
        if let Some(id) = message.id {
            self.free(tx, &Key::Id(id))?;
            if let Some(entry) = self.entry(id).or_else(|| ours().find(|e| e.id == id)) {
                return Ok(Some(("id", id, entry.digest)));
            }
        }
        let Some(key) = dedupe_key(message) else {
            return Ok(None);
        };
        let own = ours()
            .find(|e| e.dedupe_key().as_ref() == Some(&key))
            .map(|e| (e.id, e.digest));
        let found = match own {
            Some(found) => Some(found),
            None => self.deduped(tx, key)?,
        };
        Ok(found.map(|(id, digest)| ("dedupe_key", id, digest)))
    }

    /// Who has a dedupe key, among what others committed.
    fn deduped(&self, tx: Option<TxId>, key: DedupeKey) -> Result<Option<(MessageId, Digest)>, Busy> {
        let taken = self.dedupe.get(&key);
        if self.has(Flaw::DedupeByLock) {
            let live = |id| {
                self.entry(id)
                    .is_some_and(|e| matches!(e.state(), State::Pending | State::Leased))
            };
            return Ok(taken.filter(|t| live(t.id)).map(|t| (t.id, t.digest)));
        }
        self.free(tx, &Key::Dedupe(key))?;
        let lasting = taken.filter(|taken| taken.ends_at.is_none_or(|at| at > self.now));
        Ok(lasting.map(|taken| (taken.id, taken.digest)))
    }

    fn new_entry(&mut self, message: &Message, digest: Digest) -> Entry {
        let (now, seq) = (self.now, self.draw());
        let deliver_by = message.deliver_in.map(|within| now.plus(within));
        Entry {
            seq,
            pos: seq,
            id: message.id.unwrap_or_else(|| MessageId(Uuid::now_v7())),
            message: message.clone(),
            digest,
            created_at: now,
            updated_at: now,
            first_deliver_by: deliver_by,
            // A step of a saga does not lapse in the store: a claim grants it, and its saga decides.
            deliver_by: deliver_by.filter(|_| message.kind != Kind::Step),
            standing: Standing::new(message.max_attempts.unwrap_or(self.options.max_attempts)),
            reason: None,
            due_at: now.plus(message.delay),
            held: None,
            released_by: None,
            finished_at: None,
            note: None,
            freed: false,
            resolved: false,
        }
    }

    fn commit(&mut self, tx: TxId) {
        let Some(open) = self.open.remove(&tx) else { return };
        for settlement in &open.settlements {
            self.end(settlement, &open.settlements);
        }
        open.entries.into_iter().for_each(|entry| self.insert(entry));
        open.sagas.into_iter().for_each(|saga| self.insert_saga(saga));
        self.ledger.extend(open.ledger);
        let now = self.now;
        for (step, undone) in open.steps {
            self.steps.insert(step, (undone, now));
        }
        self.inbox.extend(open.inbox.into_iter().map(|had| (had, now)));
        self.notes.extend(open.notes);
    }
}

/// The turn that a producer of this message takes until its commit.
fn turn(message: &Message) -> Option<Key> {
    let key = message.order_key.clone().filter(|_| message.order == Order::Strict)?;
    Some(Key::Turn((message.namespace.clone(), message.tenant.clone()), key))
}
