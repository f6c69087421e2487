//! One transaction at work: what it has read, what it will write, and the keys that it looks after.
//!
//! Messages are changed here, in memory, and written together; so that a batch costs a few statements, not a few for each message.

use posthouse_core::{
    DeadReason, Error, Event, LeaseToken, RetryPolicy, State, Step,
    ledger::End,
    machine::{Ctx, step},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use surrealdb::types::{SurrealValue, Value};

use crate::{
    error::internal,
    ledger,
    message::{DEAD, HEAD, InLine, KEYED, LEASED, Lane, MESSAGE, Record},
    records::{self, Name, Range, Run, name},
    settings::{Options, Rules},
};

const KEY: &str = "posthouse_key";
const TURN: &str = "posthouse_turn";
const DEDUPE: &str = "posthouse_dedupe";
const DEDUPE_OVER: &str = "posthouse_dedupe_over";

/// An order key of a lane.
pub(crate) type Key = (Lane, String);

/// What holds a key.
#[derive(Clone, Debug, Default, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Hold {
    leased: i64,
    /// The places of those that block it.
    blocked: Vec<i64>,
}

/// The last place that was given to a producer of a key.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Turn {
    last: i64,
}

/// Who has a dedupe key.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct Taken {
    pub uuid: uuid::Uuid,
    pub digest: surrealdb::types::Bytes,
    /// Free from then on; while the message lives there is no such time.
    pub ends_at: Option<i64>,
}

/// A transaction at work. Nothing is written before [`flush`](Self::flush); nobody else sees it before the commit.
#[derive(Clone)]
pub(crate) struct Work<'t> {
    pub on: &'t dyn Run,
    pub rules: Rules,
    pub now: i64,
    messages: BTreeMap<i64, Record>,
    keys: BTreeMap<Key, Hold>,
    /// Keys of which something changed; looked after once, when all is written.
    touched: BTreeSet<Key>,
    puts: BTreeMap<Name, Value>,
    drops: BTreeSet<Name>,
    numbers: VecDeque<i64>,
    /// Keys of messages that are new in this transaction.
    added: BTreeSet<Key>,
    /// Deadlines stay, because somebody may be renewing them; see the remarks on leases in the schema.
    pub leaves_deadlines: bool,
}

impl<'t> Work<'t> {
    pub async fn begin(on: &'t dyn Run, options: &Options) -> Result<Self, Error> {
        let rules = Rules::read(on, options).await?;
        Ok(Self {
            on,
            now: rules.now,
            rules,
            messages: BTreeMap::new(),
            keys: BTreeMap::new(),
            touched: BTreeSet::new(),
            puts: BTreeMap::new(),
            drops: BTreeSet::new(),
            numbers: VecDeque::new(),
            added: BTreeSet::new(),
            leaves_deadlines: false,
        })
    }

    /// A fresh number. `more` is how many will be asked for after it, so that they are drawn together.
    pub async fn number(&mut self, more: usize) -> Result<i64, Error> {
        if self.numbers.is_empty() {
            self.numbers = records::draw(self.on, more + 1).await?.into();
        }
        self.numbers.pop_front().ok_or_else(|| internal("no number was drawn"))
    }

    pub fn put(&mut self, name: Name, content: impl SurrealValue) {
        self.drops.remove(&name);
        self.puts.insert(name, content.into_value());
    }

    pub fn drop(&mut self, name: Name) {
        self.puts.remove(&name);
        self.drops.insert(name);
    }

    /// A record as it is in this transaction, written or not.
    pub async fn get<T: SurrealValue>(&self, name: Name) -> Result<Option<T>, Error> {
        if let Some(content) = self.puts.get(&name) {
            let read = T::from_value(content.clone()).map_err(crate::error::from_surreal)?;
            return Ok(Some(read));
        }
        if self.drops.contains(&name) {
            return Ok(None);
        }
        records::get_one(self.on, name).await
    }

    /// Several, in order.
    pub async fn get_all<T: SurrealValue>(&self, names: &[Name]) -> Result<Vec<Option<T>>, Error> {
        let written = |name: &&Name| self.puts.contains_key(*name) || self.drops.contains(*name);
        let unread: Vec<_> = names.iter().filter(|name| !written(name)).cloned().collect();
        let mut found = records::get::<T>(self.on, &unread).await?.into_iter();
        let mut all = Vec::with_capacity(names.len());
        for name in names {
            all.push(match (self.puts.get(name), self.drops.contains(name)) {
                (Some(content), _) => Some(T::from_value(content.clone()).map_err(crate::error::from_surreal)?),
                (None, true) => None,
                (None, false) => found.next().flatten(),
            });
        }
        Ok(all)
    }

    /// Reads messages that will be asked for.
    pub async fn load(&mut self, seqs: impl IntoIterator<Item = i64>) -> Result<(), Error> {
        let missing: BTreeSet<_> = seqs
            .into_iter()
            .filter(|seq| !self.messages.contains_key(seq))
            .collect();
        let names: Vec<_> = missing.iter().map(|seq| name!(MESSAGE, *seq)).collect();
        let found = records::get::<Record>(self.on, &names).await?;
        self.messages
            .extend(found.into_iter().flatten().map(|record| (record.seq, record)));
        Ok(())
    }

    /// A message as it stands in this transaction.
    pub async fn message(&mut self, seq: i64) -> Result<Option<Record>, Error> {
        self.load([seq]).await?;
        Ok(self.messages.get(&seq).cloned())
    }

    /// A message that is new.
    pub fn add(&mut self, record: Record) {
        for (name, content) in record.lines() {
            self.put(name, content);
        }
        // Behind another that is committed with it there is no need: whoever ends that one sees this one.
        let first = record.key().is_none_or(|key| self.added.insert(key));
        if first || record.relaxed {
            self.hint(&record);
        }
        self.put(name!(MESSAGE, record.seq), record.clone());
        self.messages.insert(record.seq, record);
    }

    /// That it may be the first of its key, if it has one and is due.
    fn hint(&mut self, record: &Record) {
        if record.order_key.is_none() || record.wake_at.is_some() || !record.is(State::Pending) {
            return;
        }
        let at = name!(HEAD, &record.namespace, &record.tenant, record.pos);
        let hint = InLine {
            seq: record.seq,
            topic: record.topic.clone(),
            key: record.order_key.clone(),
            bytes: record.bytes,
            due_at: record.due_at,
            deliver_by: record.deliver_by,
            blocks: record.blocks_when_dead(),
        };
        self.put(at, hint);
    }

    /// Takes back what led a claim to the message at this place.
    pub fn unhint(&mut self, (namespace, tenant): &Lane, pos: i64) {
        self.drop(name!(HEAD, namespace, tenant, pos));
    }

    /// Changes a message, and the lines that lead to it.
    pub async fn change(&mut self, seq: i64, change: impl FnOnce(&mut Record)) -> Result<Record, Error> {
        let Some(old) = self.message(seq).await? else {
            return Err(internal(format!("there is no message of number {seq}")));
        };
        let mut new = old.clone();
        change(&mut new);
        if let Some(key) = old.key() {
            self.hold(&key, &old, &new).await?;
        }
        let lines = new.lines();
        let kept: BTreeSet<_> = lines.iter().map(|(name, _)| name.clone()).collect();
        for (name, _) in old.lines() {
            if !kept.contains(&name) {
                self.drop(name);
            }
        }
        for (name, content) in lines {
            self.put(name, content);
        }
        if old.order_key.is_some() && old.is(State::Pending) {
            self.unhint(&old.lane(), old.pos);
        }
        if old.is(State::Leased) && !new.is(State::Leased) && !self.leaves_deadlines {
            self.drop(name!(LEASED, seq));
        }
        if old.finished_at != new.finished_at {
            self.tell_dedupe(&new).await?;
        }
        self.put(name!(MESSAGE, seq), new.clone());
        self.messages.insert(seq, new.clone());
        Ok(new)
    }

    /// What a change does to the key. It is looked after when all is written.
    async fn hold(&mut self, key: &Key, old: &Record, new: &Record) -> Result<(), Error> {
        self.touch(key).await?;
        let Some(hold) = self.keys.get_mut(key) else {
            return Ok(());
        };
        hold.leased += i64::from(new.is(State::Leased)) - i64::from(old.is(State::Leased));
        if old.blocks() {
            hold.blocked.retain(|pos| *pos != old.pos);
        }
        if new.blocks() {
            hold.blocked.push(new.pos);
        }
        Ok(())
    }

    /// Says that something of a key is decided here.
    pub async fn touch(&mut self, key: &Key) -> Result<(), Error> {
        if !self.keys.contains_key(key) {
            let hold = records::get_one(self.on, key_name(KEY, key)).await?;
            self.keys.insert(key.clone(), hold.unwrap_or_default());
        }
        self.touched.insert(key.clone());
        Ok(())
    }

    /// Whether nobody is at a key, and nothing before this place blocks it.
    pub async fn is_free(&mut self, key: &Key, pos: i64) -> Result<bool, Error> {
        self.touch(key).await?;
        let hold = self.keys.get(key).cloned().unwrap_or_default();
        Ok(hold.leased == 0 && hold.blocked.iter().all(|at| *at > pos))
    }

    /// Whether something that blocks the key stands before this place.
    pub fn is_blocked(&self, key: &Key, pos: i64) -> bool {
        self.keys
            .get(key)
            .is_some_and(|hold| hold.blocked.iter().any(|at| *at < pos))
    }

    /// Takes the producers' turn of a key, and answers its next place: behind all that were given before.
    pub async fn turn(&mut self, key: &Key, number: i64) -> Result<i64, Error> {
        let name = key_name(TURN, key);
        let last = self.get::<Turn>(name.clone()).await?.map_or(0, |turn| turn.last);
        let pos = number.max(last.saturating_add(1));
        self.put(name, Turn { last: pos });
        Ok(pos)
    }

    /// The lifetime of a dedupe key begins when its message ends, and is forgotten when it is replayed.
    async fn tell_dedupe(&mut self, record: &Record) -> Result<(), Error> {
        let Some(name) = dedupe_name(record) else { return Ok(()) };
        let Some(mut taken) = self.get::<Taken>(name.clone()).await? else {
            return Ok(());
        };
        if taken.uuid == record.uuid {
            let ends_at = record
                .finished_at
                .and_then(|at| Some(at.saturating_add(record.dedupe_for?)));
            if taken.ends_at == ends_at {
                return Ok(());
            }
            if let Some(at) = taken.ends_at {
                self.drop(over(&name, at));
            }
            if let Some(at) = ends_at {
                self.put(over(&name, at), crate::insert::Seq { seq: record.seq });
            }
            taken.ends_at = ends_at;
            self.put(name, taken);
        }
        Ok(())
    }

    /// Moves a message to where the machine says. Without an order key it goes to the end of its line; with one it keeps its place.
    pub async fn apply(&mut self, seq: i64, step: &Step) -> Result<Record, Error> {
        let message = self.message(seq).await?;
        let place = match message.filter(|old| old.order_key.is_none() && step.standing.state == State::Pending) {
            Some(_) => Some(self.number(0).await?),
            None => None,
        };
        let now = self.now;
        self.change(seq, |record| {
            record.apply(step, now);
            record.pos = place.unwrap_or(record.pos);
        })
        .await
    }

    /// Its deliver-by has passed while nobody had it.
    pub async fn lapse(&mut self, seq: i64) -> Result<(), Error> {
        let Some(record) = self.message(seq).await? else {
            return Ok(());
        };
        let step = decide(&record, Event::Lapsed)?;
        self.apply(seq, &step).await?;
        ledger::message_ended(self, seq, &End::unsent(DeadReason::Lapsed)).await
    }

    /// Writes what has changed, and looks after the keys.
    pub async fn flush(&mut self) -> Result<(), Error> {
        self.write().await?;
        let touched = std::mem::take(&mut self.touched);
        for key in touched {
            self.look_after(&key).await?;
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), Error> {
        let (puts, drops) = (std::mem::take(&mut self.puts), std::mem::take(&mut self.drops));
        records::write(self.on, puts, drops).await
    }

    /// The first message of a key becomes claimable if nothing holds it. Its record is written in any case.
    async fn look_after(&mut self, key: &Key) -> Result<(), Error> {
        let hold = self.keys.get(key).cloned().unwrap_or_default();
        let name = key_name(KEY, key);
        let first = self.first_of(key).await?;
        match hold == Hold::default() && first.is_none() {
            true => self.drop(name),
            false => self.put(name, hold.clone()),
        }
        let Some((pos, first)) = first else { return Ok(()) };
        if hold.leased > 0 || hold.blocked.iter().any(|at| *at < pos) {
            return Ok(());
        }
        let Some(mut record) = self.message(first.seq).await? else {
            return Ok(());
        };
        if record.due_at <= self.now || record.lapsed(self.now) {
            record.wake_at = None;
            self.hint(&record);
        } else if record.wake_at.is_none() {
            record.wait(self.now);
            for (name, content) in record.lines() {
                self.put(name, content);
            }
            self.put(name!(MESSAGE, record.seq), record.clone());
            self.messages.insert(record.seq, record);
        }
        Ok(())
    }

    /// The first pending message of a key, with its place, as it is written.
    async fn first_of(&self, key: &Key) -> Result<Option<(i64, InLine)>, Error> {
        let ((namespace, tenant), key) = key;
        let range = Range::under(name!(KEYED, namespace, tenant, key));
        match records::first::<InLine>(self.on, range, 1).await?.pop() {
            Some((name, first)) => Ok(Some((name.number(3)?, first))),
            None => Ok(None),
        }
    }

    /// Removes a message with its evidence. Its dedupe key is not part of it.
    pub async fn remove(&mut self, seq: i64) -> Result<(), Error> {
        let Some(record) = self.message(seq).await? else {
            return Ok(());
        };
        if let Some(key) = record.key() {
            let gone = Record {
                state: State::Done.as_str().to_owned(),
                ..record.clone()
            };
            self.hold(&key, &record, &gone).await?;
        }
        for (name, _) in record.lines() {
            self.drop(name);
        }
        let attempts = Range::under(name!(crate::settle::ATTEMPT, seq));
        for (name, _) in records::first::<Value>(self.on, attempts, usize::MAX >> 1).await? {
            self.drop(name);
        }
        let receipts = Range::under(name!(crate::settle::RECEIPT_OF, seq));
        for (name, _) in records::first::<Value>(self.on, receipts, usize::MAX >> 1).await? {
            self.drop(name!(crate::settle::RECEIPT, name.text(1)?, seq));
            self.drop(name);
        }
        self.drop(name!(DEAD, seq));
        self.drop(name!(LEASED, seq));
        self.drop(name!(crate::message::BODY, seq));
        self.drop(name!(crate::message::ID, record.uuid));
        self.drop(name!(MESSAGE, seq));
        self.messages.remove(&seq);
        Ok(())
    }

    /// Removes dedupe keys whose lifetime is over; at most so many.
    pub async fn prune_dedupe(&mut self, limit: usize) -> Result<u64, Error> {
        let range = Range::all(DEDUPE_OVER).up_to(name!(DEDUPE_OVER, self.now, records::Part::End));
        let old = records::first::<Value>(self.on, range, limit).await?;
        let count = old.len() as u64;
        for (over, _) in old {
            let name = Name {
                table: DEDUPE,
                parts: over.parts[1..].to_vec(),
            };
            self.drop(over);
            self.drop(name);
        }
        Ok(count)
    }

    /// A token that nobody had before.
    pub fn token() -> LeaseToken {
        LeaseToken(uuid::Uuid::new_v4())
    }
}

/// Where a dedupe key is found by the time that it is free: dedupe_over:[time, ...].
pub(crate) fn over(name: &Name, at: i64) -> Name {
    let mut parts = vec![records::Part::Int(at)];
    parts.extend(name.parts.iter().cloned());
    Name {
        table: DEDUPE_OVER,
        parts,
    }
}

fn key_name(table: &'static str, ((namespace, tenant), key): &Key) -> Name {
    name!(table, namespace, tenant, key)
}

/// Where a message's dedupe key is kept, if it has one.
pub(crate) fn dedupe_name(record: &Record) -> Option<Name> {
    let key = record.dedupe_key.as_ref()?;
    Some(name!(DEDUPE, &record.namespace, &record.tenant, &record.topic, key))
}

/// Asks the machine about an event in which no chance is involved.
pub(crate) fn decide(record: &Record, event: Event) -> Result<Step, Error> {
    let policy = RetryPolicy::default();
    let ctx = Ctx {
        policy: &policy,
        roll: 0.5,
    };
    step(record.standing()?, event, ctx).map_err(internal)
}
