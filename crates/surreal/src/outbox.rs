//! What an application does in its own transaction.

use posthouse_core::{
    Enqueued, Error, Message, MessageId, Settlement, Verdict,
    lease::check_lease,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use std::{borrow::Borrow, time::Duration};

use crate::{insert::insert_all, ledger, records::Run, saga, settings::Options, settle, work::Work};

/// Enqueues messages, and more, in the application's own transaction: SurrealDB's client transaction, of whatever engine.
///
/// SurrealDB looks for conflicts when a transaction is committed, and not before. So the commit may fail with a conflict: nothing of the transaction was done
/// then, and the application runs it again.
///
/// When one of these verbs fails, cancel the transaction: a part of what it was to write may be in it, and a statement that failed keeps nobody from committing the rest.
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    options: Options,
}

impl Outbox {
    /// With these options.
    pub const fn new(options: Options) -> Self {
        Self { options }
    }

    /// Enqueues a message: it exists if and only if the transaction commits.
    pub async fn enqueue(&self, tx: &impl Run, message: impl Borrow<Message>) -> Result<Enqueued, Error> {
        let messages = std::slice::from_ref(message.borrow());
        Ok(self.enqueue_all(tx, messages).await?.remove(0))
    }

    /// Enqueues many: all of them, or none and an error.
    pub async fn enqueue_all(&self, tx: &impl Run, messages: &[Message]) -> Result<Vec<Enqueued>, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answers = insert_all(&mut work, &self.options, messages, true).await?;
        work.flush().await?;
        Ok(answers)
    }

    /// Settles a lease in a handler's own transaction: its writes and the settlement commit together or not at all.
    ///
    /// On [`Verdict::LeaseLost`] cancel the transaction: somebody else may finish the message now; or you did, in a transaction whose commit you did not hear of.
    pub async fn settle_in(&self, tx: &impl Run, settlement: &Settlement) -> Result<Verdict, Error> {
        settle::settle_in(tx, &self.options, settlement).await
    }

    /// Ends an entry of the ledger with this transaction's changes.
    pub async fn conclude_in(&self, tx: &impl Run, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = ledger::conclude(&mut work, hold, conclusion).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// Comes to a checkpoint of an entry with this transaction's changes.
    pub async fn reach_in(&self, tx: &impl Run, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = ledger::reach(&mut work, hold, checkpoint).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// Goes on with an entry for so long from now.
    pub async fn renew_in(&self, tx: &impl Run, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        check_lease(lease)?;
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = ledger::renew(&mut work, hold, lease).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// Leaves an entry to a message that was enqueued under it.
    pub async fn leave_in(&self, tx: &impl Run, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = ledger::leave(&mut work, hold, message).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// Whether a consumer has this message for the first time.
    pub async fn once(&self, tx: &impl Run, consumer: &str, message: MessageId) -> Result<bool, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = ledger::once(&mut work, consumer, message).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// Starts a saga: it exists if and only if the transaction commits. The same key and input again answers the saga that is there.
    pub async fn start(&self, tx: &impl Run, start: Start) -> Result<Started, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = saga::start(&mut work, &self.options, start).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// A step of a saga comes to a participant: whether to do it.
    pub async fn do_once(&self, tx: &impl Run, consumer: &str, key: &str) -> Result<Doing, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = saga::do_once(&mut work, consumer, key).await?;
        work.flush().await?;
        Ok(answer)
    }

    /// A step of a saga is to be undone by a participant: whether to undo it. One that did not come is refused from then on.
    pub async fn undo_once(&self, tx: &impl Run, consumer: &str, key: &str) -> Result<Undoing, Error> {
        let mut work = Work::begin(tx, &self.options).await?;
        let answer = saga::undo_once(&mut work, consumer, key).await?;
        work.flush().await?;
        Ok(answer)
    }
}
