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
    error::{from_surreal, internal},
    ledger,
    message::{BODY, HEAD, ID, InLine, KEYED, LEASED, Lane, MESSAGE, READY, RUN, Record},
    records::{self, Name, Range, Run, Writes, name},
    settings::{Options, Rules},
    settle,
};

const KEY: &str = "posthouse_key";
const TURN: &str = "posthouse_turn";
const DEDUPE: &str = "posthouse_dedupe";
const DEDUPE_OVER: &str = "posthouse_dedupe_over";

/// How many numbers are drawn at once where some are passed by.
const SKIPPED: usize = 100;

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
    /// Keys that have no record.
    absent: BTreeSet<Key>,
    /// Keys of which something changed; looked after once, when all is written.
    touched: BTreeSet<Key>,
    /// Messages that have changed and are not written yet, and whether they are new.
    changed: BTreeMap<i64, bool>,
    writes: Writes,
    /// Records that were read before they were asked for, as they are in this transaction.
    read: BTreeMap<Name, Option<Value>>,
    numbers: VecDeque<i64>,
    /// How many numbers will be asked for.
    foreseen: usize,
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
            absent: BTreeSet::new(),
            touched: BTreeSet::new(),
            changed: BTreeMap::new(),
            writes: Writes::default(),
            read: BTreeMap::new(),
            numbers: VecDeque::new(),
            foreseen: 0,
            added: BTreeSet::new(),
            leaves_deadlines: false,
        })
    }

    /// A fresh number. `more` is how many will be asked for after it, so that they are drawn together.
    pub async fn number(&mut self, more: usize) -> Result<i64, Error> {
        if self.numbers.is_empty() {
            let wanted = (more + 1).max(self.foreseen);
            self.numbers = records::draw(self.on, wanted).await?.into();
        }
        self.foreseen = self.foreseen.saturating_sub(1);
        self.numbers.pop_front().ok_or_else(|| internal("no number was drawn"))
    }

    /// That so many numbers will be asked for.
    pub fn foresee(&mut self, numbers: usize) {
        self.foreseen = numbers;
    }

    pub fn put(&mut self, name: Name, content: impl SurrealValue) {
        self.writes.put(name, content.into_value());
    }

    /// The same of a record that is known not to be there.
    pub fn make(&mut self, name: Name, content: impl SurrealValue) {
        self.writes.make(name, content.into_value());
    }

    pub fn drop(&mut self, name: Name) {
        self.writes.drop(name);
    }

    /// Reads records that will be asked for, all at once.
    pub async fn prefetch(&mut self, names: impl IntoIterator<Item = Name>) -> Result<(), Error> {
        let unread: BTreeSet<_> = names.into_iter().filter(|name| self.known(name).is_none()).collect();
        // One is asked for as fast when it is needed.
        if unread.len() < 2 {
            return Ok(());
        }
        let mut by_table: BTreeMap<&'static str, Vec<Name>> = BTreeMap::new();
        for name in unread {
            by_table.entry(name.table).or_default().push(name);
        }
        for names in by_table.into_values() {
            let found = records::get::<Value>(self.on, &names).await?;
            self.read.extend(names.into_iter().zip(found));
        }
        Ok(())
    }

    /// The same of records that may be large, and are not known yet.
    pub async fn prefetch_sized(&mut self, names: &[(Name, usize)]) -> Result<(), Error> {
        if names.len() > 1 {
            let found = records::get_sized::<Value>(self.on, names).await?;
            self.read.extend(names.iter().map(|(name, _)| name.clone()).zip(found));
        }
        Ok(())
    }

    /// What is known of a record without asking.
    fn known(&self, name: &Name) -> Option<Option<&Value>> {
        self.writes
            .known(name)
            .or_else(|| self.read.get(name).map(Option::as_ref))
    }

    /// A record as it is in this transaction, written or not.
    pub async fn get<T: SurrealValue + Clone>(&self, name: Name) -> Result<Option<T>, Error> {
        match self.known(&name) {
            Some(Some(content)) => Ok(Some(T::from_value(content.clone()).map_err(from_surreal)?)),
            Some(None) => Ok(None),
            None => records::get_one(self.on, name).await,
        }
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
            self.make(name, content);
        }
        // Behind another that is committed with it there is no need: whoever ends that one sees this one.
        let first = record.key().is_none_or(|key| self.added.insert(key));
        if first || record.relaxed {
            self.hint(&record);
        }
        self.changed.insert(record.seq, true);
        self.messages.insert(record.seq, record);
    }

    /// That it may be the first of its key, if it has one and is due.
    fn hint(&mut self, record: &Record) {
        if record.wake_at.is_some() || !record.is(State::Pending) {
            return;
        }
        let Some(at) = head_name(record) else { return };
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
    pub fn unhint(&mut self, ((namespace, tenant), key): &Key, pos: i64) {
        self.drop(name!(HEAD, namespace, tenant, pos, key));
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
        self.lead_to(&old, &new);
        if let Some(key) = old.key().filter(|_| old.is(State::Pending)) {
            self.unhint(&key, old.pos);
        }
        if old.is(State::Leased) && !new.is(State::Leased) && !self.leaves_deadlines {
            self.drop(name!(LEASED, seq));
        }
        if old.finished_at != new.finished_at {
            self.tell_dedupe(&new).await?;
        }
        self.keep(new.clone());
        Ok(new)
    }

    /// The lines that led to a message lead to where it stands now.
    fn lead_to(&mut self, old: &Record, new: &Record) {
        let before: BTreeSet<_> = old.lines().into_iter().map(|(name, _)| name).collect();
        let now = new.lines();
        for name in &before {
            if now.iter().all(|(kept, _)| kept != name) {
                self.drop(name.clone());
            }
        }
        for (name, content) in now {
            match before.contains(&name) {
                true => self.put(name, content),
                false => self.make(name, content),
            }
        }
    }

    /// That a message is to be written as it stands now.
    fn keep(&mut self, record: Record) {
        self.changed.entry(record.seq).or_insert(false);
        self.messages.insert(record.seq, record);
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

    /// Reads what holds these keys, all at once.
    pub async fn know_keys(&mut self, keys: impl IntoIterator<Item = Key>) -> Result<(), Error> {
        let unknown: BTreeSet<_> = keys.into_iter().filter(|key| !self.keys.contains_key(key)).collect();
        let names: Vec<_> = unknown.iter().map(|key| key_name(KEY, key)).collect();
        let holds = records::get::<Hold>(self.on, &names).await?;
        for (key, hold) in unknown.into_iter().zip(holds) {
            if hold.is_none() {
                self.absent.insert(key.clone());
            }
            self.keys.insert(key, hold.unwrap_or_default());
        }
        Ok(())
    }

    /// Says that something of a key is decided here.
    pub async fn touch(&mut self, key: &Key) -> Result<(), Error> {
        self.know_keys([key.clone()]).await?;
        self.touched.insert(key.clone());
        Ok(())
    }

    /// Whether nobody is at a key, and nothing before this place blocks it.
    pub async fn is_free(&mut self, key: &Key, pos: i64) -> Result<bool, Error> {
        self.touch(key).await?;
        let hold = self.keys.get(key).cloned().unwrap_or_default();
        Ok(hold.leased == 0 && hold.blocked.iter().all(|at| *at > pos))
    }

    /// Whether somebody is at a key that is known.
    pub fn is_leased(&self, key: &Key) -> bool {
        self.keys.get(key).is_some_and(|hold| hold.leased > 0)
    }

    /// Whether something that blocks the key stands before this place.
    pub fn is_blocked(&self, key: &Key, pos: i64) -> bool {
        self.keys
            .get(key)
            .is_some_and(|hold| hold.blocked.iter().any(|at| *at < pos))
    }

    /// Takes the producers' turn of a key, and answers its next place, behind all that were given before: this number, or a later one. Always one that was drawn, so that
    /// nobody else has it: those who take no turn go by their numbers alone.
    pub async fn turn(&mut self, key: &Key, number: i64) -> Result<i64, Error> {
        let name = turn_name(key);
        let before = self.get::<Turn>(name.clone()).await?.map(|turn| turn.last);
        let mut pos = number;
        // Ends: each node of a database hands out blocks of numbers, and what comes after its own is behind all that were handed out.
        while before.is_some_and(|last| pos <= last) {
            pos = self.number(SKIPPED).await?;
        }
        match before {
            Some(_) => self.put(name, Turn { last: pos }),
            None => self.make(name, Turn { last: pos }),
        }
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

    /// Its deliver-by has passed while nobody had it. Whether it is there.
    pub async fn lapse(&mut self, seq: i64) -> Result<bool, Error> {
        let Some(record) = self.message(seq).await? else {
            return Ok(false);
        };
        // Below a floor a claim may come by twice, and has taken the line away the first time.
        if !record.is(State::Pending) {
            return Ok(true);
        }
        let step = decide(&record, Event::Lapsed)?;
        self.apply(seq, &step).await?;
        ledger::message_ended(self, seq, &End::unsent(DeadReason::Lapsed)).await?;
        Ok(true)
    }

    /// Takes a line away that leads to no message, so that it stops nobody: somebody has committed half of an enqueue, which had failed.
    pub fn forget_line(&mut self, lane: &Lane, pos: i64, line: &InLine) {
        let (namespace, tenant) = lane;
        let Some(order_key) = &line.key else {
            return self.drop(name!(READY, namespace, tenant, pos));
        };
        let key = (lane.clone(), order_key.clone());
        self.drop(name!(KEYED, namespace, tenant, order_key, pos));
        self.unhint(&key, pos);
    }

    /// Writes what has changed, and looks after the keys.
    pub async fn flush(&mut self) -> Result<(), Error> {
        let mut touched: Vec<_> = std::mem::take(&mut self.touched).into_iter().collect();
        // To take away what is not there is to write nothing, and two who decide on a key must both write: so it is there for a moment.
        for key in &touched {
            if self.absent.remove(key) {
                self.make(key_name(KEY, key), Hold::default());
            }
        }
        // Ends: a key is looked after again when a line of it that leads nowhere is gone.
        while !touched.is_empty() {
            self.write().await?;
            let firsts = self.firsts_of(&touched).await?;
            self.load(firsts.iter().flatten().map(|(_, first)| first.seq)).await?;
            for (key, first) in std::mem::take(&mut touched).into_iter().zip(firsts) {
                if !self.look_after(&key, first).await? {
                    touched.push(key);
                }
            }
        }
        self.write().await
    }

    async fn write(&mut self) -> Result<(), Error> {
        for (seq, new) in std::mem::take(&mut self.changed) {
            let Some(record) = self.messages.get(&seq) else {
                continue;
            };
            let (name, content) = (name!(MESSAGE, seq), record.clone());
            match new {
                true => self.make(name, content),
                false => self.put(name, content),
            }
        }
        let writes = std::mem::take(&mut self.writes);
        for (name, read) in &mut self.read {
            if let Some(known) = writes.known(name) {
                *read = known.cloned();
            }
        }
        writes.write(self.on).await
    }

    /// The first message of a key becomes claimable if nothing holds it. The key's record is written in any case. If it is not there, the line that led to it is taken away:
    /// then there is another first.
    async fn look_after(&mut self, key: &Key, first: Option<(i64, InLine)>) -> Result<bool, Error> {
        let hold = self.keys.get(key).cloned().unwrap_or_default();
        let name = key_name(KEY, key);
        match hold == Hold::default() && first.is_none() {
            true => self.drop(name),
            false => self.put(name, hold.clone()),
        }
        let Some((pos, first)) = first else { return Ok(true) };
        if hold.leased > 0 || hold.blocked.iter().any(|at| *at < pos) {
            return Ok(true);
        }
        let Some(mut record) = self.message(first.seq).await? else {
            self.forget_line(&key.0, pos, &first);
            return Ok(false);
        };
        if record.due_at <= self.now || record.lapsed(self.now) {
            record.wake_at = None;
            self.hint(&record);
        } else if record.wake_at.is_none() {
            let old = record.clone();
            record.wait(self.now);
            self.lead_to(&old, &record);
            self.keep(record);
        }
        Ok(true)
    }

    /// The first pending message of each key, with its place, as it is written.
    async fn firsts_of(&self, keys: &[Key]) -> Result<Vec<Option<(i64, InLine)>>, Error> {
        let mut firsts = Vec::with_capacity(keys.len());
        for found in records::first_each::<InLine>(self.on, keys.iter().map(line_of).collect(), 1).await? {
            firsts.push(match found.into_iter().next() {
                Some((name, first)) => Some((name.number(3)?, first)),
                None => None,
            });
        }
        Ok(firsts)
    }

    /// Removes messages with their evidence. Their dedupe keys are not part of them.
    pub async fn remove(&mut self, seqs: &[i64]) -> Result<(), Error> {
        self.load(seqs.iter().copied()).await?;
        let under = |table: &'static str| seqs.iter().map(|seq| Range::under(name!(table, *seq))).collect();
        for name in records::names_in(self.on, under(settle::ATTEMPT)).await? {
            self.drop(name);
        }
        for name in records::names_in(self.on, under(settle::RECEIPT_OF)).await? {
            self.drop(name!(settle::RECEIPT, name.text(1)?, name.number(0)?));
            self.drop(name);
        }
        for seq in seqs {
            let Some(record) = self.messages.remove(seq) else {
                continue;
            };
            self.changed.remove(seq);
            // Of others the key knows nothing.
            if let Some(key) = record.key().filter(|_| record.blocks()) {
                let gone = Record {
                    state: State::Done.as_str().to_owned(),
                    ..record.clone()
                };
                self.hold(&key, &record, &gone).await?;
            }
            for (name, _) in record.lines() {
                self.drop(name);
            }
            for table in [LEASED, BODY, MESSAGE] {
                self.drop(name!(table, *seq));
            }
            self.drop(name!(ID, record.uuid));
        }
        Ok(())
    }

    /// Forgets the producers' turns of keys of which nothing waits or is under way: the next one begins anew.
    pub async fn forget_turns(&mut self, keys: &[Key]) -> Result<(), Error> {
        self.know_keys(keys.iter().cloned()).await?;
        let waiting = self.firsts_of(keys).await?;
        let runs = records::first_each::<Value>(self.on, keys.iter().map(run_of).collect(), 1).await?;
        for ((key, first), run) in keys.iter().zip(waiting).zip(runs) {
            let held = self.keys.get(key).is_some_and(|hold| *hold != Hold::default());
            if first.is_none() && run.is_empty() && !held {
                self.drop(turn_name(key));
            }
        }
        Ok(())
    }

    /// Removes dedupe keys whose lifetime is over; at most so many.
    pub async fn prune_dedupe(&mut self, limit: usize) -> Result<u64, Error> {
        let range = Range::all(DEDUPE_OVER).up_to(name!(DEDUPE_OVER, self.now, records::Part::End));
        let old = records::first::<Value>(self.on, range, limit).await?;
        let count = old.len() as u64;
        let key_of = |over: &Name| Name {
            table: DEDUPE,
            parts: over.parts[1..].to_vec(),
        };
        self.prefetch(old.iter().map(|(over, _)| key_of(over))).await?;
        for (over, _) in old {
            let (name, at) = (key_of(&over), over.number(0)?);
            let taken: Option<Taken> = self.get(name.clone()).await?;
            if taken.is_some_and(|taken| taken.ends_at == Some(at)) {
                self.drop(name);
            }
            self.drop(over);
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

/// The hint that a message may be the first of its key.
fn head_name(record: &Record) -> Option<Name> {
    let key = record.order_key.as_ref()?;
    Some(name!(HEAD, &record.namespace, &record.tenant, record.pos, key))
}

/// The line of a key.
pub(crate) fn line_of(((namespace, tenant), key): &Key) -> Range {
    Range::under(name!(KEYED, namespace, tenant, key))
}

/// Those of a key that are leased.
pub(crate) fn run_of(((namespace, tenant), key): &Key) -> Range {
    Range::under(name!(RUN, namespace, tenant, key))
}

/// Where the producers' turn of a key is kept.
pub(crate) fn turn_name(key: &Key) -> Name {
    key_name(TURN, key)
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
