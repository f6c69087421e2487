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
    Enqueued, Error, Lease, Message, MessageId, Renewal, Settlement, Verdict,
    lease::check_lease,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use rusqlite::{Connection, Transaction};
use std::{borrow::Borrow, time::Duration};

use crate::{
    Options, Run,
    call::{Call, Here, at_once},
    end::{end_one, lock, renew_one},
    insert::{insert_all, insert_one},
    ledger, saga,
};

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
        at_once(insert_one(&mut Here(tx), &self.options, message.borrow()))
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
        at_once(hold(&mut Here(tx), lease, at_most))
    }

    /// Settles a lease in this transaction, with the handler's own changes or not at all.
    pub fn settle_in(&self, tx: &Transaction<'_>, settlement: &Settlement) -> Result<Verdict, Error> {
        in_transaction(tx)?;
        at_once(settle(&mut Here(tx), &self.options, settlement))
    }
}

impl Outbox {
    /// Ends an entry of the ledger in this transaction: the effect and its record commit together or not at all. Commit only what is [`Fenced::Done`]. Else roll back:
    /// somebody else may have done it, or you did, and did not hear of it.
    pub fn conclude_in(&self, tx: &Transaction<'_>, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        in_transaction(tx)?;
        at_once(ledger::conclude(&mut Here(tx), hold, conclusion))
    }

    /// Goes on for `lease` from now, inside this transaction, which nobody else can do while it has the write lock: for whoever takes longer than his lease before
    /// he commits.
    pub fn renew_in(&self, tx: &Transaction<'_>, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        in_transaction(tx)?;
        check_lease(lease)?;
        at_once(ledger::renew(&mut Here(tx), hold, lease))
    }

    /// Comes to a point from which another holder could go on, with what the transaction did to get there.
    pub fn reach_in(&self, tx: &Transaction<'_>, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        in_transaction(tx)?;
        at_once(ledger::reach(&mut Here(tx), hold, checkpoint))
    }

    /// Leaves an entry to a message that this transaction has enqueued under it ([`Message::ledger`]): it is held until that has ended, however long that takes.
    pub fn leave_in(&self, tx: &Transaction<'_>, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        in_transaction(tx)?;
        at_once(ledger::leave(&mut Here(tx), hold, message))
    }

    /// Starts a saga: it exists, and its first step is sent, if and only if the transaction commits.
    pub fn start(&self, tx: &Transaction<'_>, start: Start) -> Result<Started, Error> {
        in_transaction(tx)?;
        at_once(saga::start(&mut Here(tx), &self.options, start))
    }

    /// A step of a saga comes to a participant, who does it if that is [`Doing::First`], in this transaction.
    pub fn do_once(&self, tx: &Transaction<'_>, consumer: &str, key: &str) -> Result<Doing, Error> {
        in_transaction(tx)?;
        at_once(saga::do_once(&mut Here(tx), consumer, key))
    }

    /// A step of a saga is to be undone, by the key under which it was done; the participant does so if that is [`Undoing::Now`], in this transaction. From
    /// its commit on the step is refused, also if it never came.
    pub fn undo_once(&self, tx: &Transaction<'_>, consumer: &str, key: &str) -> Result<Undoing, Error> {
        in_transaction(tx)?;
        at_once(saga::undo_once(&mut Here(tx), consumer, key))
    }

    /// Whether a consumer has this message for the first time. It has had it if and only if the transaction commits.
    pub fn once(&self, tx: &Transaction<'_>, consumer: &str, message: MessageId) -> Result<bool, Error> {
        in_transaction(tx)?;
        at_once(ledger::once(&mut Here(tx), consumer, message))
    }
}

/// The verbs of an application whose driver is asynchronous: sqlx or SeaORM, with the feature of that name.
///
/// ```no_run
/// # #[cfg(feature = "sqlx")]
/// # async fn example(pool: sqlx::SqlitePool, id: i64, message: posthouse_core::Message) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = posthouse_sqlite::AsyncOutbox::default();
/// let mut tx = pool.begin_with("BEGIN IMMEDIATE").await?;
/// sqlx::query("update orders set state = 'placed' where id = ?").bind(id).execute(&mut *tx).await?;
/// outbox.enqueue(&mut tx, message).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
///
/// `begin` without more is DEFERRED, in both drivers: see [`Outbox`] for what that means.
#[derive(Clone, Debug, Default)]
pub struct AsyncOutbox {
    options: Options,
}

impl AsyncOutbox {
    /// An outbox with these options. It needs no connection of its own.
    pub fn new(options: Options) -> Self {
        Self { options }
    }

    /// Enqueues one message: it exists if and only if the transaction commits. Takes it, or a reference to it.
    pub async fn enqueue<T: Run>(&self, tx: &mut T, message: impl Borrow<Message>) -> Result<Enqueued, Error> {
        still_open(tx).await?;
        insert_one(tx, &self.options, message.borrow()).await
    }

    /// Enqueues many, all or none. The answers come in their order. If the future is dropped before it ends, as a timeout does, roll
    /// the transaction back: some of them may be written.
    pub async fn enqueue_all<T: Run>(
        &self,
        tx: &mut T,
        messages: impl Borrow<[Message]>,
    ) -> Result<Vec<Enqueued>, Error> {
        still_open(tx).await?;
        insert_all(tx, &self.options, messages.borrow()).await
    }

    /// Begins a handler's own transaction: see [`Outbox::hold`].
    pub async fn hold<T: Run>(&self, tx: &mut T, lease: &Lease, at_most: Duration) -> Result<Renewal, Error> {
        still_open(tx).await?;
        hold(tx, lease, at_most).await
    }

    /// Settles a lease in this transaction, with the handler's own changes or not at all. If the future is dropped before it ends, as
    /// a timeout does, roll the transaction back.
    pub async fn settle_in<T: Run>(&self, tx: &mut T, settlement: &Settlement) -> Result<Verdict, Error> {
        still_open(tx).await?;
        settle(tx, &self.options, settlement).await
    }
}

impl AsyncOutbox {
    /// Ends an entry of the ledger in this transaction: see [`Outbox::conclude_in`].
    pub async fn conclude_in<T: Run>(&self, tx: &mut T, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        still_open(tx).await?;
        ledger::conclude(tx, hold, conclusion).await
    }

    /// Goes on inside this transaction: see [`Outbox::renew_in`].
    pub async fn renew_in<T: Run>(&self, tx: &mut T, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        still_open(tx).await?;
        check_lease(lease)?;
        ledger::renew(tx, hold, lease).await
    }

    /// Comes to a checkpoint: see [`Outbox::reach_in`].
    pub async fn reach_in<T: Run>(&self, tx: &mut T, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        still_open(tx).await?;
        ledger::reach(tx, hold, checkpoint).await
    }

    /// Leaves an entry to a message: see [`Outbox::leave_in`].
    pub async fn leave_in<T: Run>(&self, tx: &mut T, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        still_open(tx).await?;
        ledger::leave(tx, hold, message).await
    }

    /// Starts a saga: see [`Outbox::start`]. If the future is dropped before it ends, as a timeout does, roll the transaction back.
    pub async fn start<T: Run>(&self, tx: &mut T, start: Start) -> Result<Started, Error> {
        still_open(tx).await?;
        saga::start(tx, &self.options, start).await
    }

    /// A step of a saga comes to a participant: see [`Outbox::do_once`].
    pub async fn do_once<T: Run>(&self, tx: &mut T, consumer: &str, key: &str) -> Result<Doing, Error> {
        still_open(tx).await?;
        saga::do_once(tx, consumer, key).await
    }

    /// A step of a saga is to be undone: see [`Outbox::undo_once`].
    pub async fn undo_once<T: Run>(&self, tx: &mut T, consumer: &str, key: &str) -> Result<Undoing, Error> {
        still_open(tx).await?;
        saga::undo_once(tx, consumer, key).await
    }

    /// Whether a consumer has this message for the first time: see [`Outbox::once`].
    pub async fn once<T: Run>(&self, tx: &mut T, consumer: &str, message: MessageId) -> Result<bool, Error> {
        still_open(tx).await?;
        ledger::once(tx, consumer, message).await
    }
}

async fn hold<R: Run>(on: &mut R, lease: &Lease, at_most: Duration) -> Result<Renewal, Error> {
    check_lease(at_most)?;
    lock(on, lease).await?;
    renew_one(on, lease, at_most).await
}

async fn settle<R: Run>(on: &mut R, options: &Options, settlement: &Settlement) -> Result<Verdict, Error> {
    settlement.check_own()?;
    lock(on, &settlement.lease).await?;
    end_one(on, options, settlement).await
}

/// As [`in_transaction`], for a driver that cannot tell: it believes in its transaction also when SQLite has ended it. A second
/// BEGIN fails inside of one, and changes nothing there.
async fn still_open<T: Run>(tx: &mut T) -> Result<(), Error> {
    let plain = |sql| Call { sql, values: vec![] };
    match tx.run(&plain("BEGIN")).await {
        Ok(_) => {
            tx.run(&plain("ROLLBACK")).await?;
            Err(ended())
        }
        Err(Error::Internal(_)) => Ok(()),
        Err(other) => Err(other),
    }
}

fn ended() -> Error {
    Error::Contention("the database has rolled this transaction back already".into())
}

/// SQLite ends a transaction by itself after some errors (a full disk, for one); what is written then, is committed at
/// once.
fn in_transaction(tx: &Connection) -> Result<(), Error> {
    if tx.is_autocommit() {
        return Err(ended());
    }
    Ok(())
}

/// All of them, or none and an error.
pub(crate) fn enqueue_all(tx: &Connection, options: &Options, messages: &[Message]) -> Result<Vec<Enqueued>, Error> {
    at_once(insert_all(&mut Here(tx), options, messages))
}
