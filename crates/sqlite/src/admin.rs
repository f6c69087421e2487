//! The operator's hand: each verb is asked of the state machine, performed and written into the audit, in one
//! transaction.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Attempt, AuditEntry, DeadReason, Error, Event, Filter, Invalid, MessageId, MessageView, Page, Pruned,
    RetryPolicy, State, Step,
    admin::{check_deliver_in, check_prune_limit},
    machine::{Ctx, step},
    text::excerpt,
};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::time::Duration;

use crate::{
    Sqlite, clock,
    error::plain,
    place::{self, Located, Waiting, draw, free_head, locate, run, to_dead, to_pending, to_resolved},
    prune,
    rows::{self, Record},
};

const NUMBER: &str = include_str!("../sql/number.sql");
const AUDIT_ADD: &str = include_str!("../sql/audit_add.sql");
const AUDIT_ALL: &str = include_str!("../sql/audit_all.sql");
const AUDIT_OF: &str = include_str!("../sql/audit_of.sql");
const FIND: &str = include_str!("../sql/find.sql");
const LIST: &str = include_str!("../sql/list.sql");
const LIST_LIVE: &str = include_str!("../sql/list_live.sql");
const ATTEMPTS: &str = include_str!("../sql/attempts.sql");
const DEDUPE_FREE: &str = include_str!("../sql/dedupe_free.sql");

/// Actors, reasons, notes and receipts of operators are kept this long.
const TEXT_CHARS: usize = 512;

#[async_trait]
impl Admin for Sqlite {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        self.read(move |db| {
            let found = db
                .prepare_cached(FIND)?
                .query_row([id.0.as_bytes()], rows::message_view);
            found.optional()
        })
        .await
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        let filter = filter.clone();
        self.read(move |db| Ok(Page::of(list(db, &filter)?, &filter))).await
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        self.read(move |db| all(db, ATTEMPTS, params![id.0.as_bytes()], rows::attempt))
            .await
    }

    async fn replay(
        &self,
        id: MessageId,
        actor: &str,
        reason: &str,
        deliver_in: Option<Duration>,
    ) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        let verb = Verb::new(id, "replay", Event::Replay, actor, reason)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| found.replay(tx, step, deliver_in)))
            .await
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "quarantine", Event::Quarantine, actor, note)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| found.bury(tx, step, None)))
            .await
    }

    async fn cancel(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "cancel", Event::Cancel, actor, reason)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| found.bury(tx, step, Some(DeadReason::Cancelled))))
            .await
    }

    async fn resolve(&self, id: MessageId, actor: &str, receipt: &str) -> Result<(), Error> {
        let verb = Verb::new(id, "resolve", Event::Resolve, actor, receipt)?;
        self.write(move |tx| verb.run(tx, |tx, found, step| to_resolved(tx, &found.moved(step), found.now)))
            .await
    }

    async fn discard(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        // Only a message that may be replayed may be discarded: it is dead or quarantined.
        let verb = Verb::new(id, "discard", Event::Replay, actor, reason)?;
        self.write(move |tx| {
            verb.run(tx, |tx, found, _| {
                run(tx, DEDUPE_FREE, [found.located.record.seq])?;
                prune::remove(tx, found.located.record.seq)
            })
        })
        .await
    }

    async fn prune(&self, older_than: Duration, limit: u32) -> Result<Pruned, Error> {
        check_prune_limit(limit)?;
        let old = self.aside(move |db| prune::find(db, older_than, limit)).await?;
        self.write(move |tx| prune::prune(tx, &old, limit)).await
    }

    async fn audit(&self, id: Option<MessageId>, limit: u32) -> Result<Vec<AuditEntry>, Error> {
        self.read(move |db| match id {
            Some(id) => all(db, AUDIT_OF, params![limit, id.0.as_bytes()], rows::audit_entry),
            None => all(db, AUDIT_ALL, params![limit], rows::audit_entry),
        })
        .await
    }
}

/// One operator's change.
struct Verb {
    id: MessageId,
    name: &'static str,
    event: Event,
    actor: String,
    detail: String,
}

/// The message that a verb is about.
struct Found {
    located: Located,
    /// The deliver-by it was enqueued with.
    deliver_by: Option<i64>,
    now: i64,
}

impl Verb {
    fn new(id: MessageId, name: &'static str, event: Event, actor: &str, detail: &str) -> Result<Self, Error> {
        if actor.is_empty() {
            return Err(Invalid::new("actor", "is empty; say who you are").into());
        }
        let (actor, detail) = (excerpt(actor, TEXT_CHARS), excerpt(detail, TEXT_CHARS));
        Ok(Self {
            id,
            name,
            event,
            actor,
            detail,
        })
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
            free_head(tx, found.located.record.lane, key, found.now)?;
        }
        audit(tx, found.now, &self.actor, self.name, self.id, &self.detail)
    }

    fn find(&self, tx: &Connection) -> Result<Found, Error> {
        let now = clock::now(tx)?;
        let mut statement = tx.prepare_cached(NUMBER).map_err(plain)?;
        let found = statement.query_row([self.id.0.as_bytes()], |row| Ok((row.get(0)?, row.get(1)?)));
        let (seq, deliver_by) = found.optional().map_err(plain)?.ok_or(Error::NotFound(self.id))?;
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
            record.pos = draw(tx, 1)?;
        }
        place::reopened(tx, &record)?;
        let waiting = Waiting {
            due_at: self.now,
            changed_at: Some(self.now),
            released_by: None,
        };
        to_pending(tx, &record, waiting, self.now)
    }

    fn bury(&self, tx: &Connection, step: Step, reason: Option<DeadReason>) -> Result<(), Error> {
        // What once let its key go does not hold it again: others may have passed it.
        let holds = self.located.record.standing.state == State::Pending || self.located.blocks;
        to_dead(tx, &self.moved(step), reason, holds, self.now)
    }
}

/// Writes a line of the audit.
pub(crate) fn audit(
    tx: &Connection,
    now: i64,
    actor: &str,
    action: &str,
    id: MessageId,
    detail: &str,
) -> Result<(), Error> {
    run(tx, AUDIT_ADD, params![now, actor, action, id.0.as_bytes(), detail]).map(|_| ())
}

fn list(db: &Connection, filter: &Filter) -> rusqlite::Result<Vec<MessageView>> {
    let sql = match filter.state {
        None | Some(State::Done) => LIST,
        Some(_) => LIST_LIVE,
    };
    let values = params![
        filter.before.unwrap_or(i64::MAX),
        filter.namespace,
        filter.tenant,
        filter.topic,
        filter.order_key,
        filter.state.map(State::as_str),
        filter.page_size() + 1,
    ];
    all(db, sql, values, rows::message_view)
}

fn all<T>(
    db: &Connection,
    sql: &str,
    values: &[&dyn rusqlite::ToSql],
    read: fn(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    db.prepare_cached(sql)?.query_map(values, read)?.collect()
}
