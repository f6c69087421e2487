//! Doing something once: the ledger as a program uses it.
//!
//! A [`Ledger`] is that of one kind of work. Whoever is about to do it begins there, and is told whether to go on. Then he has a [`Guard`], and ends by
//! its verbs: in the transaction of what he does (`finish_in`), or after it ([`finish`](Guard::finish)). The guide is `docs/ledger.md`.

pub use posthouse_core::ledger::*;

use posthouse_core::{Error, Invalid, LeaseToken, Message, Store};
use std::{sync::Arc, time::Duration};
use tokio::time::{Instant, sleep};

use crate::relay::measures;

/// The shortest lease: it is over as soon as it is written.
const AT_ONCE: Duration = Duration::from_millis(1);

/// The ledger of one kind of work: what it is called, how long it may take, how long its end is told again. Cheap to clone.
///
/// `O` is the outbox of the application's own transactions: [`postgres::Outbox`](crate::postgres::Outbox),
/// [`sqlite::Outbox`](crate::sqlite::Outbox), [`sqlite::AsyncOutbox`](crate::sqlite::AsyncOutbox), or that of SurrealDB.
#[derive(Clone)]
pub struct Ledger<O> {
    store: Arc<dyn Store>,
    outbox: O,
    scope: String,
    lease: Duration,
    retention: Duration,
    keep: Keep,
    patience: Duration,
}

/// Who goes on. Dropped without a word, it leaves the key to whoever comes when its time is up, and he is told so.
///
/// Every verb is fenced: of who has lost it, it changes nothing and is [`Error::HoldLost`]. Verbs whose names end in `_in` work in the caller's transaction;
/// when one fails, roll that back.
pub struct Guard<O> {
    ledger: Ledger<O>,
    hold: Hold,
    fingerprint: Fingerprint,
}

/// How something failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure(How);

#[derive(Clone, Debug, PartialEq, Eq)]
enum How {
    Permanent(String),
    Answered(Box<Answer>),
    Retryable(String),
}

impl Failure {
    /// It will never be: whoever asks again is told so.
    pub fn permanent(error: impl Into<String>) -> Self {
        Self(How::Permanent(error.into()))
    }

    /// The same, with the answer that is told again.
    pub fn answered(answer: Answer) -> Self {
        Self(How::Answered(Box::new(answer)))
    }

    /// It is not there, and may be tried again: the key is free at once.
    pub fn retryable(error: impl Into<String>) -> Self {
        Self(How::Retryable(error.into()))
    }

    /// The end that it is, with as much of an answer as is kept.
    fn end(self, keep: Keep) -> Conclusion {
        match self.0 {
            How::Permanent(error) => Conclusion::Failed(Kept::failure(error)),
            How::Answered(answer) => Conclusion::Failed(answer.kept(keep)),
            How::Retryable(error) => Conclusion::Released { error: Some(error) },
        }
    }
}

impl<O: Clone> Ledger<O> {
    /// The ledger of what is called `scope`, in this store; `outbox` is that of the application's transactions in the same database.
    pub fn new(store: Arc<dyn Store>, outbox: O, scope: impl Into<String>) -> Self {
        Self {
            store,
            outbox,
            scope: scope.into(),
            lease: LEASE,
            retention: RETENTION,
            keep: Keep::default(),
            patience: Duration::ZERO,
        }
    }

    /// How long a holder may be silent: 30 seconds unless it is said.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// How long an end is told again: a day unless it is said.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// How much is kept of an answer: up to 4 KiB unless it is said.
    pub fn keep(mut self, keep: Keep) -> Self {
        self.keep = keep;
        self
    }

    /// Waits so long for whoever is at it, instead of being told at once that somebody is.
    pub fn wait(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// The same of a part of this kind of work, whose answers are kept up to so many bytes.
    #[cfg(feature = "tower")]
    pub(crate) fn within(&self, part: &str, most: usize) -> Self {
        let scope = crate::idempotency::within(format!("{} {part}", self.scope));
        let keep = match self.keep {
            Keep::Digest => Keep::Digest,
            Keep::Result { .. } => Keep::Result { most },
        };
        Self {
            scope,
            keep,
            ..self.clone()
        }
    }

    /// How long a holder may be silent.
    #[cfg(feature = "tower")]
    pub(crate) fn lease_time(&self) -> Duration {
        self.lease
    }

    /// Begins something under a key. The tenant is whose key it is, so that nobody is told the answer of another; empty for nobody's.
    pub async fn begin(&self, tenant: &str, key: &str, fingerprint: Fingerprint) -> Result<Begun<Guard<O>>, Error> {
        let ask = Begin {
            key: EntryKey::new(&self.scope, key).tenant(tenant),
            fingerprint,
            lease: self.lease,
            retention: self.retention,
        };
        let since = Instant::now();
        let begun = loop {
            let begun = self.store.begin(&ask).await?;
            let left = self.patience.saturating_sub(since.elapsed());
            match begun {
                // Who is at it may be done long before his time is up.
                Begun::Busy { retry_after } if !left.is_zero() => sleep(retry_after.min(SOON).min(left)).await,
                begun => break begun,
            }
        };
        measures::begun(&begun);
        Ok(begun.map(|hold| Guard {
            ledger: self.clone(),
            hold,
            fingerprint,
        }))
    }
}

impl<O> Guard<O> {
    /// The entry.
    pub fn key(&self) -> &EntryKey {
        &self.hold.key
    }

    /// The fence.
    pub fn token(&self) -> LeaseToken {
        self.hold.token
    }

    /// Somebody held it before and was not heard of again: whether his effect is there is not known.
    pub fn taken_over(&self) -> bool {
        self.hold.taken_over
    }

    /// The last point that an earlier holder came to.
    pub fn checkpoint(&self) -> Option<&str> {
        self.hold.checkpoint.as_deref()
    }

    /// How much is kept of an answer.
    #[cfg(feature = "tower")]
    pub(crate) fn keeps(&self) -> Keep {
        self.ledger.keep
    }

    /// A key for a call that is made for this one: the same each time, and no other's.
    pub fn child_key(&self, name: &str) -> String {
        self.hold.key.child(name)
    }

    /// It is done. In a transaction of its own: if this program dies between the effect and this, the next holder is told that it was taken over. Told
    /// again, it is done.
    pub async fn finish(&self, answer: Answer) -> Result<Kept, Error> {
        let kept = answer.kept(self.ledger.keep);
        self.conclude(&Conclusion::Succeeded(kept.clone())).await?;
        Ok(kept)
    }

    /// It is not done. If it was taken over, what the one before did is still not known, and whoever comes next is told so.
    pub async fn fail(&self, failure: Failure) -> Result<(), Error> {
        if self.gives_up(&failure) {
            return self.abandon().await;
        }
        self.conclude(&failure.end(self.ledger.keep)).await
    }

    /// Goes on for so long from now.
    pub async fn renew(&self, lease: Duration) -> Result<(), Error> {
        let renewed = self.ledger.store.renew_hold(&self.hold, lease).await?;
        self.done(renewed)
    }

    /// Gives it up as if he had not been heard of again: whoever comes is told that it was taken over.
    pub(crate) async fn abandon(&self) -> Result<(), Error> {
        self.renew(AT_ONCE).await
    }

    pub(crate) async fn conclude(&self, conclusion: &Conclusion) -> Result<(), Error> {
        match self.ledger.store.conclude(&self.hold, conclusion).await? {
            Fenced::Done | Fenced::Before => Ok(()),
            Fenced::LeaseLost => Err(self.lost()),
        }
    }

    /// Whether the key is to be free again, and something may have been done under it.
    fn gives_up(&self, failure: &Failure) -> bool {
        matches!(failure.0, How::Retryable(_)) && self.hold.taken_over
    }

    /// In the caller's transaction only what is done now may be committed.
    fn done(&self, fenced: Fenced) -> Result<(), Error> {
        match fenced {
            Fenced::Done => Ok(()),
            Fenced::Before | Fenced::LeaseLost => Err(self.lost()),
        }
    }

    fn lost(&self) -> Error {
        Error::HoldLost(self.hold.key.scope.clone())
    }

    /// The message as it is sent under this entry.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
    fn bound(&self, message: Message) -> Result<Message, Invalid> {
        let EntryKey { tenant, scope, key } = &self.hold.key;
        if !message.tenant.is_empty() && message.tenant != *tenant {
            return Err(Invalid::new(
                "tenant",
                "is not that of the entry which is left to the message",
            ));
        }
        Ok(message.tenant(tenant).ledger(scope, key, self.fingerprint))
    }

    /// The message that an entry is left to must be a new one: nobody would end the entry for one that has ended.
    #[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
    fn new_one(enqueued: posthouse_core::Enqueued) -> Result<posthouse_core::MessageId, Error> {
        match enqueued {
            posthouse_core::Enqueued::New(id) => Ok(id),
            posthouse_core::Enqueued::Duplicate(existing) => Err(Error::DedupeConflict {
                key: "dedupe_key",
                existing,
            }),
        }
    }
}

/// The verbs in a transaction of an asynchronous driver.
#[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
macro_rules! in_transaction {
    ($outbox:ty, $run:path, & $($mutable:tt)?) => {
        impl Guard<$outbox> {
            /// It is done, with what the transaction did, or not at all: the effect is there exactly once.
            pub async fn finish_in<T: $run>(&self, tx: &$($mutable)? T, answer: Answer) -> Result<Kept, Error> {
                let kept = answer.kept(self.ledger.keep);
                let end = Conclusion::Succeeded(kept.clone());
                self.done(self.ledger.outbox.conclude_in(tx, &self.hold, &end).await?)?;
                Ok(kept)
            }

            /// It is not done, with what the transaction did.
            pub async fn fail_in<T: $run>(&self, tx: &$($mutable)? T, failure: Failure) -> Result<(), Error> {
                if self.gives_up(&failure) {
                    return self.renew_in(tx, AT_ONCE).await;
                }
                let end = failure.end(self.ledger.keep);
                self.done(self.ledger.outbox.conclude_in(tx, &self.hold, &end).await?)
            }

            /// Goes on for so long from now, inside the transaction.
            pub async fn renew_in<T: $run>(&self, tx: &$($mutable)? T, lease: Duration) -> Result<(), Error> {
                self.done(self.ledger.outbox.renew_in(tx, &self.hold, lease).await?)
            }

            /// Comes to a point from which another holder could go on, with what the transaction did to get there.
            pub async fn checkpoint_in<T: $run>(&self, tx: &$($mutable)? T, name: &str) -> Result<(), Error> {
                self.done(self.ledger.outbox.reach_in(tx, &self.hold, name).await?)
            }

            /// Enqueues a message and leaves the entry to it: the key is busy until the message has ended, and its end is that of the entry.
            pub async fn leave_to<T: $run>(
                &self,
                tx: &$($mutable)? T,
                message: Message,
            ) -> Result<posthouse_core::MessageId, Error> {
                let outbox = &self.ledger.outbox;
                let id = Self::new_one(outbox.enqueue(tx, self.bound(message)?).await?)?;
                self.done(outbox.leave_in(tx, &self.hold, id).await?)?;
                Ok(id)
            }
        }
    };
}

#[cfg(feature = "postgres")]
in_transaction!(posthouse_postgres::Outbox, posthouse_postgres::Run, &mut);
#[cfg(feature = "sqlite")]
in_transaction!(posthouse_sqlite::AsyncOutbox, posthouse_sqlite::Run, &mut);
#[cfg(feature = "surreal")]
in_transaction!(posthouse_surreal::Outbox, posthouse_surreal::Run, &);

/// The same in a transaction of rusqlite.
#[cfg(feature = "sqlite")]
impl Guard<posthouse_sqlite::Outbox> {
    /// It is done, with what the transaction did, or not at all: the effect is there exactly once.
    pub fn finish_in(&self, tx: &rusqlite::Transaction<'_>, answer: Answer) -> Result<Kept, Error> {
        let kept = answer.kept(self.ledger.keep);
        let end = Conclusion::Succeeded(kept.clone());
        self.done(self.ledger.outbox.conclude_in(tx, &self.hold, &end)?)?;
        Ok(kept)
    }

    /// It is not done, with what the transaction did.
    pub fn fail_in(&self, tx: &rusqlite::Transaction<'_>, failure: Failure) -> Result<(), Error> {
        if self.gives_up(&failure) {
            return self.renew_in(tx, AT_ONCE);
        }
        let end = failure.end(self.ledger.keep);
        self.done(self.ledger.outbox.conclude_in(tx, &self.hold, &end)?)
    }

    /// Goes on for so long from now, inside the transaction.
    pub fn renew_in(&self, tx: &rusqlite::Transaction<'_>, lease: Duration) -> Result<(), Error> {
        self.done(self.ledger.outbox.renew_in(tx, &self.hold, lease)?)
    }

    /// Comes to a point from which another holder could go on, with what the transaction did to get there.
    pub fn checkpoint_in(&self, tx: &rusqlite::Transaction<'_>, name: &str) -> Result<(), Error> {
        self.done(self.ledger.outbox.reach_in(tx, &self.hold, name)?)
    }

    /// Enqueues a message and leaves the entry to it: the key is busy until the message has ended, and its end is that of the entry.
    pub fn leave_to(
        &self,
        tx: &rusqlite::Transaction<'_>,
        message: Message,
    ) -> Result<posthouse_core::MessageId, Error> {
        let outbox = &self.ledger.outbox;
        let id = Self::new_one(outbox.enqueue(tx, self.bound(message)?)?)?;
        self.done(outbox.leave_in(tx, &self.hold, id)?)?;
        Ok(id)
    }
}
