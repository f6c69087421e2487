//! The reference store under the suite.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Enqueued, Error, Message, MessageId, Settlement, Store, StoreSettings, Timestamp, Verdict,
    lease::check_lease,
    ledger::{Conclusion, Entry, Fenced, Hold, check_consumer, check_point, not_under_it},
    saga::{Doing, Start, Started, Undoing},
};
use std::{sync::Arc, time::Duration};

use super::{Flaw, Memory, MemoryTx};
use crate::{Caller, Fixture};

/// A fresh store in memory.
#[derive(Default)]
pub struct MemoryFixture(Memory);

impl MemoryFixture {
    /// A sound one.
    pub fn new() -> Self {
        Self::default()
    }

    /// One with a mistake planted in it.
    pub fn with_flaw(flaw: Flaw) -> Self {
        Self(Memory::with_flaw(flaw))
    }
}

#[async_trait]
impl Fixture for MemoryFixture {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.0.clone())
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.0.clone())
    }

    async fn begin(&self) -> Box<dyn Caller> {
        Box::new(self.0.begin())
    }

    async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        self.0.configure(settings)
    }

    async fn settings(&self) -> StoreSettings {
        self.0.settings()
    }

    async fn advance(&self, by: Duration) {
        self.0.advance(by);
    }

    async fn hold_up_claims(&self, by: Duration) {
        self.0.hold_up_claims(by);
    }

    async fn now(&self) -> Timestamp {
        self.0.now()
    }

    async fn dump(&self) -> String {
        self.0.dump()
    }

    async fn notes(&self) -> Vec<String> {
        self.0.notes()
    }
}

#[async_trait]
impl Caller for MemoryTx {
    async fn note(&mut self, line: &str) {
        MemoryTx::note(self, line);
    }

    async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error> {
        MemoryTx::enqueue(self, message).await
    }

    async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        MemoryTx::enqueue_all(self, messages).await
    }

    async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        MemoryTx::settle_in(self, settlement).await
    }

    async fn conclude_in(&mut self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        self.change_entry(hold, |found, token, now| {
            Entry::conclude(found, token, conclusion.clone(), now)
        })
        .await
    }

    async fn reach_in(&mut self, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        check_point(checkpoint)?;
        self.change_entry(hold, |found, token, now| Entry::reach(found, token, checkpoint, now))
            .await
    }

    async fn renew_in(&mut self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        check_lease(lease)?;
        self.change_entry(hold, |found, token, now| Entry::renew(found, token, lease, now))
            .await
    }

    async fn leave_in(&mut self, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        if !self.has_under(message, &hold.key) {
            return Err(not_under_it().into());
        }
        self.change_entry(hold, |found, token, now| Entry::leave_to(found, token, message, now))
            .await
    }

    async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error> {
        check_consumer(consumer)?;
        MemoryTx::once(self, consumer, id).await
    }

    async fn start(&mut self, start: Start) -> Result<Started, Error> {
        MemoryTx::start(self, start).await
    }

    async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error> {
        MemoryTx::do_once(self, consumer, key).await
    }

    async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error> {
        MemoryTx::undo_once(self, consumer, key).await
    }

    async fn commit(self: Box<Self>) -> Result<(), Error> {
        MemoryTx::commit(*self);
        Ok(())
    }

    async fn rollback(self: Box<Self>) {
        MemoryTx::rollback(*self);
    }
}
