//! Enqueue, in the caller's own transaction: one INSERT, the same that every other language does.
//!
//! The view `posthouse_enqueue` takes it. Its columns, of which only the first two are needed:
//!
//! | column | meaning |
//! |---|---|
//! | `topic` | what it is about |
//! | `payload` | text (then it must be JSON, unless `content_type` says otherwise) or a blob; at most 16 MiB |
//! | `content_type` | `application/json` for text, `application/octet-stream` for a blob, unless given |
//! | `tenant`, `namespace` | whose it is; `''` and `'default'` |
//! | `order_key`, `dedupe_key` | as in [`Message`] |
//! | `headers` | a JSON object of text |
//! | `delay`, `deliver_in` | seconds, also with a fraction |
//! | `id` | a UUID as text or as 16 bytes; one of version 7 is made when absent |
//! | `on_duplicate` | `'refuse'`, or `'keep'` |
//! | `max_attempts`, `on_dead` | 12 and `'pass'` |
//! | `dedupe_for` | seconds that the dedupe key stays taken after the message ended: 7 days; for ever when negative |
//! | `digest`, `kind`, `parent`, `destination` | written by the engine |
//!
//! A repetition writes nothing. An error begins with `posthouse: ` and a stable code: `SCHEMA.VALIDATION_FAILED` with the
//! field, or `STORAGE.CONFLICT` where the id or the dedupe key is taken by other content.
//!
//! This module checks a message before any database traffic, so it inserts behind the trigger that checks (into
//! `posthouse_accepted` or `posthouse_plain`); what is written, is written by the same triggers.

use posthouse_core::{
    Enqueued, Error, Lease, Message, MessageId, OnDuplicate, Renewal, Settlement, Verdict, lease::check_lease,
};
use rusqlite::{Connection, Transaction, params};
use std::{borrow::Borrow, time::Duration};
use uuid::Uuid;

use crate::{
    Options,
    clock::{self, micros},
    error::{internal, plain},
    place::run,
    rows::id,
    settle,
};

const ENQUEUE: &str = include_str!("../sql/enqueue.sql");
const ENQUEUE_PLAIN: &str = include_str!("../sql/enqueue_plain.sql");
const CHANGES: &str = include_str!("../sql/enqueue_changes.sql");
const EXISTING: &str = include_str!("../sql/enqueue_existing.sql");

/// The verbs that need the caller's transaction. They take a [`Transaction`], so that nothing is committed by accident.
///
/// `rusqlite` begins a transaction DEFERRED unless told otherwise, and so does sqlx: it then takes the write lock at its
/// first write, and fails with [`Error::Contention`] if it has read before and another transaction has written since.
/// Begin IMMEDIATE, or enqueue before you read.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    options: Options,
}

impl Outbox {
    /// An outbox with these options. It needs no connection of its own.
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Enqueues one message: it exists if and only if the transaction commits. Takes it, or a reference to it.
    pub fn enqueue(&self, tx: &Transaction<'_>, message: impl Borrow<Message>) -> Result<Enqueued, Error> {
        in_transaction(tx)?;
        enqueue_one(tx, &self.options, message.borrow())
    }

    /// Enqueues many, all or none. The answers come in their order.
    pub fn enqueue_all(&self, tx: &Transaction<'_>, messages: &[Message]) -> Result<Vec<Enqueued>, Error> {
        in_transaction(tx)?;
        enqueue_all(tx, &self.options, messages)
    }

    /// Begins a handler's own transaction: takes the write lock and moves the deadline of the lease to `at_most` from
    /// now, inside this transaction.
    ///
    /// From here on nobody else can write, so nobody can take the message away: the write lock is the fence, and a
    /// handler that outlives its original lease can still settle, for as long as `at_most`. Without this call,
    /// [`settle_in`](Self::settle_in) judges the deadline of the claim. Rolled back, the lease is as it was.
    pub fn hold(&self, tx: &Transaction<'_>, lease: &Lease, at_most: Duration) -> Result<Renewal, Error> {
        in_transaction(tx)?;
        check_lease(at_most)?;
        settle::lock(tx, lease)?;
        settle::renew_one(tx, lease, at_most)
    }

    /// Settles a lease in this transaction, with the handler's own changes or not at all.
    pub fn settle_in(&self, tx: &Transaction<'_>, settlement: &Settlement) -> Result<Verdict, Error> {
        in_transaction(tx)?;
        settle::lock(tx, &settlement.lease)?;
        let mut verdicts = settle::settle(tx, &self.options, std::slice::from_ref(settlement))?;
        verdicts.pop().ok_or_else(|| internal("a settlement was not answered"))
    }
}

/// SQLite ends a transaction by itself after some errors (a full disk, for one); what is written then, is committed at
/// once.
fn in_transaction(tx: &Connection) -> Result<(), Error> {
    if tx.is_autocommit() {
        return Err(Error::Contention(
            "the database has rolled this transaction back already".into(),
        ));
    }
    Ok(())
}

/// All of them, or none and an error.
pub(crate) fn enqueue_all(tx: &Connection, options: &Options, messages: &[Message]) -> Result<Vec<Enqueued>, Error> {
    messages.iter().try_for_each(|message| message.check(&options.limits))?;
    let now = clock::now(tx)?;
    let insert_all = || {
        messages
            .iter()
            .map(|message| insert(tx, options, message, now))
            .collect()
    };
    // Only a taken id or dedupe key can stop a bulk halfway. Without either there is no savepoint, because under one
    // SQLite writes every page that each statement touches into a side journal.
    if messages
        .iter()
        .all(|message| message.id.is_none() && message.dedupe_key.is_none())
    {
        return insert_all();
    }
    atomically(tx, insert_all)
}

pub(crate) fn enqueue_one(tx: &Connection, options: &Options, message: &Message) -> Result<Enqueued, Error> {
    message.check(&options.limits)?;
    insert(tx, options, message, clock::now(tx)?)
}

/// Undoes what `run` wrote when it fails, and leaves the transaction around it as it was.
pub(crate) fn atomically<T>(tx: &Connection, work: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    run(tx, "SAVEPOINT posthouse", [])?;
    let answer = work();
    if answer.is_err() {
        run(tx, "ROLLBACK TO posthouse", [])?;
    }
    run(tx, "RELEASE posthouse", [])?;
    answer
}

fn insert(tx: &Connection, options: &Options, message: &Message, now: i64) -> Result<Enqueued, Error> {
    let id = message.id.unwrap_or_else(|| MessageId(Uuid::now_v7()));
    // A fresh id without a dedupe key cannot be a repetition, so nothing is asked about it.
    if message.id.is_none() && message.dedupe_key.is_none() {
        write(tx, options, message, id, now).map_err(plain)?;
        return Ok(Enqueued::New(id));
    }
    let before = changes(tx)?;
    write(tx, options, message, id, now).map_err(plain)?;
    if changes(tx)? > before {
        return Ok(Enqueued::New(id));
    }
    let Existing { key, existing, same } = existing(tx, message, id)?;
    if same || message.on_duplicate == OnDuplicate::Keep {
        return Ok(Enqueued::Duplicate(existing));
    }
    Err(Error::DedupeConflict { key, existing })
}

fn write(tx: &Connection, options: &Options, message: &Message, id: MessageId, now: i64) -> rusqlite::Result<()> {
    // Maps of text are always JSON.
    let headers = (!message.headers.is_empty()).then(|| serde_json::json!(message.headers).to_string());
    let digest = message.digest();
    let values = params![
        id.0.as_bytes(),
        now,
        message.topic,
        message.payload,
        i64::try_from(message.payload.len()).unwrap_or(i64::MAX),
        message.content_type,
        message.tenant,
        message.namespace,
        headers,
        message.deliver_in.map(micros),
        message.max_attempts.unwrap_or(options.max_attempts),
        message.on_dead.as_str(),
        digest.as_bytes(),
        message.kind.as_str(),
        message.parent.as_ref().map(|parent| parent.0.as_bytes()),
        message.destination,
        message.order_key,
        message.dedupe_key,
        micros(message.delay),
        options.dedupe_lifetime.map(micros),
    ];
    let plain = message.order_key.is_none() && message.dedupe_key.is_none() && message.delay.is_zero();
    let (sql, values) = if plain {
        (ENQUEUE_PLAIN, &values[..16])
    } else {
        (ENQUEUE, values)
    };
    tx.prepare_cached(sql)?.execute(values).map(|_| ())
}

fn changes(tx: &Connection) -> Result<i64, Error> {
    tx.prepare_cached(CHANGES)
        .and_then(|mut statement| statement.query_row([], |row| row.get(0)))
        .map_err(plain)
}

/// The message that stands for one that was not written.
struct Existing {
    key: &'static str,
    existing: MessageId,
    /// Whether it has the same content.
    same: bool,
}

fn existing(tx: &Connection, message: &Message, new: MessageId) -> Result<Existing, Error> {
    let digest = message.digest();
    let values = params![
        new.0.as_bytes(),
        message.namespace,
        message.tenant,
        message.topic,
        message.dedupe_key,
        message.content_type,
        message.payload,
        digest.as_bytes(),
    ];
    let mut statement = tx.prepare_cached(EXISTING).map_err(plain)?;
    statement
        .query_row(values, |row| {
            let by: String = row.get(0)?;
            let key = if by == "id" { "id" } else { "dedupe_key" };
            Ok(Existing {
                key,
                existing: id(row, 1)?,
                same: row.get(2)?,
            })
        })
        .map_err(plain)
}
