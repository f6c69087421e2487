//! What the suite needs from a store under test, besides the store itself.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Enqueued, Error, Message, MessageId, Settlement, Store, StoreSettings, Timestamp, Verdict,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use std::{sync::Arc, time::Duration};

/// A fresh, empty store with a clock that only moves when told, and applications beside it.
#[async_trait]
pub trait Fixture: Send + Sync {
    /// A relay's handle. Each call is a new one, as another process would have.
    async fn store(&self) -> Arc<dyn Store>;

    /// An operator's handle.
    async fn admin(&self) -> Arc<dyn Admin>;

    /// Begins an application's own transaction, in a session of its own.
    async fn begin(&self) -> Box<dyn Caller>;

    /// Writes what every producer is held to from now on, as the owner of the store does.
    async fn configure(&self, settings: &StoreSettings) -> Result<(), Error>;

    /// What every producer is held to.
    async fn settings(&self) -> StoreSettings;

    /// Moves the store's clock forward. Between calls it stands still.
    async fn advance(&self, by: Duration);

    /// From now on each claim takes this long by the store's clock, from the start of its leases to its commit; zero ends that.
    async fn hold_up_claims(&self, by: Duration);

    /// The store's clock.
    async fn now(&self) -> Timestamp;

    /// Every row of every table of the store, one per line, in an order that depends on content alone.
    async fn dump(&self) -> String;

    /// What applications wrote with [`Caller::note`] and committed.
    async fn notes(&self) -> Vec<String>;

    /// So many, where a case wants very many: fewer on a store that takes long for each, and still more than anything that it reads at a time.
    fn many(&self, count: usize) -> usize {
        count
    }

    /// Waits until every transaction that is open now, whose ever it is, has ended: what waits for that then knows it at its next look.
    async fn pass(&self) {}

    /// Runs after each case: asserts what must always hold inside this store, and what no case can see from outside.
    async fn check(&self) {}
}

/// An application's transaction.
#[async_trait]
pub trait Caller: Send {
    /// The application's own change: writes a line into a table of its own.
    async fn note(&mut self, line: &str);

    /// Enqueues one message in this transaction.
    async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error>;

    /// Enqueues many at once in this transaction.
    async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error>;

    /// Settles a lease in this transaction.
    async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error>;

    /// Ends an entry of the ledger in this transaction.
    async fn conclude_in(&mut self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error>;

    /// Comes to a checkpoint of an entry in this transaction.
    async fn reach_in(&mut self, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error>;

    /// Goes on with an entry in this transaction.
    async fn renew_in(&mut self, hold: &Hold, lease: Duration) -> Result<Fenced, Error>;

    /// Leaves an entry to a message in this transaction.
    async fn leave_in(&mut self, hold: &Hold, message: MessageId) -> Result<Fenced, Error>;

    /// Whether a consumer has this message for the first time, in this transaction.
    async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error>;

    /// Starts a saga in this transaction.
    async fn start(&mut self, start: Start) -> Result<Started, Error>;

    /// A step comes to a participant, in this transaction.
    async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error>;

    /// A step is to be undone by a participant, in this transaction.
    async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error>;

    /// Commits.
    async fn commit(self: Box<Self>) -> Result<(), Error>;

    /// Rolls back.
    async fn rollback(self: Box<Self>);
}
