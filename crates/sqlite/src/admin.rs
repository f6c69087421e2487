//! The operator's hand: each verb is asked of the state machine, performed and written into the audit, in one
//! transaction.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Attempt, AuditEntry, AuditFilter, Counts, DeadReason, Error, Event, Facts, Filter, Invalid, MessageId,
    MessageView, Page, Pause, Prune, Pruned, RelayView, RetryPolicy, SagaId, State, Step, Timestamp,
    admin::{LOOKED_AT_MOST, check_deliver_in, checked_actor, resolve_note},
    ledger::{Answer, End, EntryFilter, EntryKey, EntryPage, EntryView},
    machine::{Ctx, step},
    presence::check_destination,
    saga::{LogLine, SagaFilter, SagaPage},
    text::excerpt,
};
use rusqlite::{Connection, OptionalExtension, params};
use std::time::Duration;

use crate::{
    Sqlite,
    call::{Here, at_once},
    clock, counts,
    error::plain,
    ledger, list,
    place::{self, Located, Waiting, draw, free_head, locate, run, to_dead, to_pending, to_resolved},
    presence, prune,
    rows::{self, Record, all},
    saga,
};

const NUMBER: &str = include_str!("../sql/number.sql");
const AUDIT_ADD: &str = include_str!("../sql/audit_add.sql");
const AUDIT_ALL: &str = include_str!("../sql/audit_all.sql");
const AUDIT_ACTION: &str = include_str!("../sql/audit_action.sql");
const AUDIT_BY: &str = include_str!("../sql/audit_by.sql");
const AUDIT_OF: &str = include_str!("../sql/audit_of.sql");
const FIND: &str = include_str!("../sql/find.sql");
const ENTRY: &str = include_str!("../sql/ledger_view_one.sql");
const ENTRIES: &str = include_str!("../sql/ledger_view.sql");
const AHEAD: &str = include_str!("../sql/ahead.sql");
const ENDED: &str = include_str!("../sql/ended.sql");
const ATTEMPTS: &str = include_str!("../sql/attempts.sql");
const DEDUPE_FREE: &str = include_str!("../sql/dedupe_free.sql");

/// Actors, notes and receipts of operators are cut to this many characters.
const TEXT_CHARS: usize = 512;

#[async_trait]
impl Admin for Sqlite {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        self.read(move |db| find(db, id)).await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        let filter = filter.clone();
        self.aside(move |db| list::list(db, &filter)).await
    }

    async fn counts_to(&self, cap: u32) -> Result<Counts, Error> {
        self.aside(move |db| counts::counts(db, cap)).await
    }

    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error> {
        self.read(move |db| facts(db, id)).await
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        self.read(move |db| attempts(db, id)).await
    }

    async fn replay(&self, id: MessageId, actor: &str, note: &str, deliver_in: Option<Duration>) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        let verb = Verb::new(id, "replay", Event::Replay, actor, note)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| found.replay(tx, step, deliver_in)))
            .await
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "quarantine", Event::Quarantine, actor, note)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| found.bury(tx, step, None)))
            .await
    }

    async fn cancel(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "cancel", Event::Cancel, actor, note)?;
        self.write(move |tx| {
            verb.run(tx, |tx, found, step| {
                found.bury(tx, step, Some(DeadReason::Cancelled))?;
                found.end_entry(tx, &End::unsent(DeadReason::Cancelled))
            })
        })
        .await
    }

    async fn resolve(&self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "resolve", Event::Resolve, actor, &resolve_note(note, receipt))?;
        let answer = Answer::bytes(excerpt(receipt, TEXT_CHARS));
        self.write(move |tx| {
            verb.run(tx, |tx, found, step| {
                to_resolved(tx, &found.moved(step), found.now)?;
                found.end_entry(tx, &End::Delivered(answer))
            })
        })
        .await
    }

    async fn discard(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        // Only a message that may be replayed may be discarded: it is dead or quarantined.
        let verb = Verb::new(id, "discard", Event::Replay, actor, note)?;
        self.write(move |tx| {
            verb.run(tx, |tx, found, _| {
                if found.located.record.standing.state == State::Quarantined {
                    found.end_entry(tx, &End::unsent(DeadReason::Cancelled))?;
                }
                run(tx, DEDUPE_FREE, [found.located.record.seq])?;
                prune::remove(tx, found.located.record.seq)
            })
        })
        .await
    }

    async fn prune(&self, prune: &Prune) -> Result<Pruned, Error> {
        prune.check()?;
        let (asked, prune) = (prune.clone(), prune.clone());
        let old = self.aside(move |db| prune::find(db, &asked)).await?;
        if prune.dry_run {
            return self.rehearse(move |tx| prune::prune(tx, &old, &prune)).await;
        }
        self.write(move |tx| prune::prune(tx, &old, &prune)).await
    }

    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error> {
        let key = key.clone();
        self.read(move |db| {
            let values = params![key.tenant, key.scope, key.key];
            let mut statement = db.prepare_cached(ENTRY)?;
            statement.query_row(values, rows::entry_view).optional()
        })
        .await
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        let filter = filter.clone();
        self.aside(move |db| entries(db, &filter).map_err(plain)).await
    }

    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        let filter = filter.clone();
        self.aside(move |db| saga::list(db, &filter).map_err(plain)).await
    }

    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        let log = self.read(move |db| saga::log(db, id, after, limit)).await?;
        log.ok_or(Error::NoSaga(id))
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        let filter = filter.clone();
        self.read(move |db| audit(db, &filter)).await
    }

    async fn relays(&self) -> Result<Vec<RelayView>, Error> {
        self.read(presence::relays).await
    }

    async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        self.read(presence::pauses).await
    }

    async fn pause(&self, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
        check_destination(destination)?;
        let (destination, hand) = (destination.to_owned(), Hand::new(actor, note)?);
        self.write(move |tx| presence::pause(tx, &destination, &hand)).await
    }

    async fn resume(&self, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
        check_destination(destination)?;
        let (destination, hand) = (destination.to_owned(), Hand::new(actor, note)?);
        self.write(move |tx| presence::resume(tx, &destination, &hand)).await
    }
}

/// Who does something, and why: clean, and never nobody.
pub(crate) struct Hand {
    pub actor: String,
    pub note: String,
}

impl Hand {
    pub fn new(actor: &str, note: &str) -> Result<Self, Invalid> {
        Ok(Self {
            actor: checked_actor(actor)?,
            note: excerpt(note, TEXT_CHARS),
        })
    }

    /// Writes a line of the audit.
    pub fn sign(&self, tx: &Connection, now: i64, action: &str, about: About<'_>) -> Result<(), Error> {
        let (id, destination) = match about {
            About::Message(id) => (Some(id), None),
            About::Destination(name) => (None, Some(name)),
            About::Store => (None, None),
        };
        let id = id.as_ref().map(|id| id.0.as_bytes());
        let values = params![now, self.actor, action, id, destination, self.note];
        run(tx, AUDIT_ADD, values).map(|_| ())
    }
}

/// What a line of the audit is about.
pub(crate) enum About<'a> {
    Message(MessageId),
    Destination(&'a str),
    Store,
}

/// One operator's change.
struct Verb {
    id: MessageId,
    name: &'static str,
    event: Event,
    hand: Hand,
}

/// The message that a verb is about.
struct Found {
    located: Located,
    /// The deliver-by it was enqueued with.
    deliver_by: Option<i64>,
    now: i64,
}

impl Verb {
    fn new(id: MessageId, name: &'static str, event: Event, actor: &str, note: &str) -> Result<Self, Error> {
        let hand = Hand::new(actor, note)?;
        Ok(Self { id, name, event, hand })
    }

    /// Takes the message out of its table if the machine allows it, lets `put` place it, and looks after its key.
    fn run(
        &self,
        tx: &Connection,
        put: impl FnOnce(&Connection, &Found, Step) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let found = self.find(tx)?;
        let standing = found.located.record.standing;
        let ctx = Ctx {
            policy: &RetryPolicy::default(),
            roll: 0.5,
        };
        let step = step(standing, self.event, ctx).map_err(|illegal| self.illegal(illegal.state))?;
        place::leave(tx, &found.located)?;
        put(tx, &found, step)?;
        if let Some(key) = &found.located.record.key {
            at_once(free_head(&mut Here(tx), found.located.record.lane, key, found.now))?;
        }
        self.hand.sign(tx, found.now, self.name, About::Message(self.id))
    }

    fn find(&self, tx: &Connection) -> Result<Found, Error> {
        let now = clock::now(tx)?;
        let mut statement = tx.prepare_cached(NUMBER).map_err(plain)?;
        let found = statement.query_row([self.id.0.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)));
        let (seq, deliver_by) = found.optional().map_err(plain)?.ok_or(Error::NotFound(self.id))?;
        if let Some(saga) = saga::of(tx, seq)? {
            let (id, verb) = (self.id, self.name);
            return Err(Error::OfSaga { id, saga, verb });
        }
        // A message without a live record is done, and no verb applies to it.
        let located = locate(tx, seq)?.ok_or_else(|| self.illegal(State::Done))?;
        Ok(Found {
            located,
            deliver_by,
            now,
        })
    }

    fn illegal(&self, state: State) -> Error {
        Error::IllegalState {
            id: self.id,
            state,
            verb: self.name,
        }
    }
}

impl Found {
    fn moved(&self, step: Step) -> Record {
        Record {
            standing: step.standing,
            ..self.located.record.clone()
        }
    }

    /// Due now, with a new budget. One that still blocks its key holds the head of it, and goes back to its place;
    /// any other goes to the end.
    fn replay(&self, tx: &Connection, step: Step, deliver_in: Option<Duration>) -> Result<(), Error> {
        let mut record = self.moved(step);
        let first = self.deliver_by.filter(|at| *at > self.now);
        record.deliver_by = deliver_in.map(|within| clock::later(self.now, within)).or(first);
        if record.key.is_some() && !self.located.blocks {
            record.pos = at_once(draw(&mut Here(tx), 1))?;
        }
        place::reopened(tx, &record)?;
        at_once(ledger::reopened(&mut Here(tx), record.seq))?;
        let waiting = Waiting {
            due_at: self.now,
            changed_at: Some(self.now),
            released_by: None,
        };
        at_once(to_pending(&mut Here(tx), &record, waiting, self.now))
    }

    fn end_entry(&self, tx: &Connection, end: &End) -> Result<(), Error> {
        at_once(ledger::message_ended(&mut Here(tx), self.located.record.seq, end))
    }

    fn bury(&self, tx: &Connection, step: Step, reason: Option<DeadReason>) -> Result<(), Error> {
        // What once let its key go does not hold it again: others may have passed it.
        let holds = self.located.record.standing.state == State::Pending || self.located.blocks;
        at_once(to_dead(&mut Here(tx), &self.moved(step), reason, holds, self.now))
    }
}

fn find(db: &Connection, id: MessageId) -> rusqlite::Result<Option<MessageView>> {
    let mut statement = db.prepare_cached(FIND)?;
    statement.query_row([id.0.as_bytes()], rows::message_view).optional()
}

/// One state of the database, as far as it bears on a message.
fn facts(db: &Connection, id: MessageId) -> rusqlite::Result<Option<Facts>> {
    let tx = db.unchecked_transaction()?;
    let Some(message) = find(&tx, id)? else {
        return Ok(None);
    };
    let ended = tx
        .prepare_cached(ENDED)?
        .query_row([message.seq], |row| Ok((row.get(0)?, row.get(1)?)));
    let (blocks, resolved) = ended?;
    let now: i64 = tx.prepare_cached(clock::CLOCK)?.query_row([], |row| row.get(0))?;
    Ok(Some(Facts {
        now: Timestamp::from_micros(now),
        last: attempts(&tx, id)?.pop(),
        ahead: ahead(&tx, &message)?,
        message,
        blocks,
        resolved,
        relays: presence::relays(&tx)?,
        pauses: presence::pauses(&tx)?,
    }))
}

/// What must end before a message that waits.
fn ahead(db: &Connection, message: &MessageView) -> rusqlite::Result<Option<MessageView>> {
    if message.state != State::Pending || message.order_key.is_none() {
        return Ok(None);
    }
    let mut statement = db.prepare_cached(AHEAD)?;
    let first: Option<i64> = statement.query_row([message.seq], |row| row.get(0)).optional()?;
    match first.filter(|seq| *seq != message.seq) {
        Some(seq) => Ok(list::views(db, &[seq])?.pop()),
        None => Ok(None),
    }
}

/// Looks at a bounded number of them.
fn entries(db: &Connection, filter: &EntryFilter) -> rusqlite::Result<EntryPage> {
    let EntryKey { tenant, scope, key } = filter.start();
    let mut statement = db.prepare_cached(ENTRIES)?;
    let looked = statement.query_map(params![tenant, scope, key, LOOKED_AT_MOST], rows::entry_view)?;
    EntryPage::of(looked, filter, LOOKED_AT_MOST)
}

fn attempts(db: &Connection, id: MessageId) -> rusqlite::Result<Vec<Attempt>> {
    all(db, ATTEMPTS, params![id.0.as_bytes()], rows::attempt)
}

/// By the index of what is rarest: a message, an actor, an action.
fn audit(db: &Connection, filter: &AuditFilter) -> rusqlite::Result<Vec<AuditEntry>> {
    let id = filter.id.as_ref().map(|id| id.0.as_bytes());
    let before = filter.before.unwrap_or(i64::MAX);
    let values = params![filter.page_size(), before, filter.action, filter.actor, id];
    let (sql, given) = match filter {
        AuditFilter { id: Some(_), .. } => (AUDIT_OF, 5),
        AuditFilter { actor: Some(_), .. } => (AUDIT_BY, 4),
        AuditFilter { action: Some(_), .. } => (AUDIT_ACTION, 3),
        _ => (AUDIT_ALL, 2),
    };
    all(db, sql, &values[..given], rows::audit_entry)
}
