//! The store as a relay and an operator see it. Each verb is one transaction; one that lost to another is run again.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Attempt, AuditEntry, AuditFilter, Capabilities, Claim, Conflict, Counts, Durability, Effect, Enqueued,
    Error, Facts, Fate, Filter, Lease, Look, Message, MessageId, MessageView, Page, Pause, Pruned, Receipt, Relay,
    RelayView, Renewal, SagaId, Settlement, Store, StoreSettings, Upgrade, Verdict, Wake,
    admin::{check_deliver_in, check_prune_limit},
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, EntryFilter, EntryKey, EntryPage, EntryView, Fenced, Hold},
    presence::check_destination,
    saga::{Change, Found, LogLine, SagaFilter, SagaPage, Start, Started},
};
use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use surrealdb::engine::any::Any;

use crate::{
    admin, claim,
    error::from_surreal,
    insert::insert_all,
    ledger,
    message::Lane,
    migrate,
    outbox::Outbox,
    presence, saga,
    settings::{self, Options},
    settle,
    wake::Bell,
    work::Work,
};

/// How often a transaction is run again that lost to another.
const MOST_TURNS: u32 = 200;
/// The longest wait before that, in milliseconds.
const LONGEST_WAIT: u64 = 50;

/// A store in a SurrealDB database: embedded, in memory or on disk, or a server's. A clone is the same handle.
#[derive(Clone)]
pub struct Surreal {
    inner: Arc<Inner>,
}

struct Inner {
    db: surrealdb::Surreal<Any>,
    options: Options,
    place: String,
    durability: Durability,
    /// The lane that was served last.
    served: Mutex<Option<Lane>>,
    /// Two claims of one handle at once would only take from each other.
    claiming: tokio::sync::Mutex<()>,
    bell: Bell,
}

/// One verb as a transaction: run, committed, and run again if it lost to another.
macro_rules! transact {
    ($store:expr, |$tx:ident| $body:expr) => {{
        let mut turn = 0;
        loop {
            let $tx = $store.begin_tx().await?;
            let done: Result<_, Error> = async { $body }.await;
            let done = match done {
                Ok(answer) => $tx.commit().await.map(|_| answer).map_err(from_surreal),
                Err(error) => {
                    // What it has written must not stay open; if even that fails, the connection is gone, and it with that.
                    let _ = $tx.cancel().await;
                    Err(error)
                }
            };
            match done {
                Err(Error::Contention(_)) if turn < MOST_TURNS => {
                    turn += 1;
                    backoff(turn).await;
                }
                done => break done,
            }
        }
    }};
}

/// The longer, the more often it lost; and never the same as the other's.
async fn backoff(turn: u32) {
    let most = (1_u64 << turn.min(6)).min(LONGEST_WAIT);
    let wait = fastrand::u64(0..=most * 1000);
    tokio::time::sleep(Duration::from_micros(wait)).await;
}

impl Surreal {
    /// The store in this database, whose namespace and database are selected, if it was migrated before.
    pub async fn open(db: surrealdb::Surreal<Any>, place: &str, options: Options) -> Result<Self, Error> {
        let inner = Inner {
            db,
            options,
            place: place.to_owned(),
            durability: durability(place),
            served: Mutex::default(),
            claiming: tokio::sync::Mutex::default(),
            bell: Bell::default(),
        };
        let store = Self { inner: Arc::new(inner) };
        transact!(store, |tx| migrate::check(&tx, &store.inner.place).await)?;
        Ok(store)
    }

    /// Brings the schema of a database up to date. Safe to call at any time, also by several at once. Answers what it did.
    pub async fn migrate(db: &surrealdb::Surreal<Any>, place: &str) -> Result<Upgrade, Error> {
        let mut turn = 0;
        loop {
            match migrate::migrate(db, place).await {
                Err(Error::Contention(_)) if turn < MOST_TURNS => turn += 1,
                done => return done,
            }
            backoff(turn).await;
        }
    }

    /// What [`migrate`](Self::migrate) would do. Changes nothing.
    pub async fn plan_migration(db: &surrealdb::Surreal<Any>, place: &str) -> Result<Upgrade, Error> {
        let tx = db.clone().begin().await.map_err(from_surreal)?;
        let plan = migrate::plan(&tx, place).await;
        tx.cancel().await.map_err(from_surreal)?;
        plan
    }

    /// The verbs for an application's own transactions, with the options of this store.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.inner.options.clone())
    }

    async fn begin_tx(&self) -> Result<surrealdb::method::Transaction<Any>, Error> {
        self.inner.db.clone().begin().await.map_err(from_surreal)
    }

    /// Enqueues in a transaction of its own: for tools that have nothing else to write. All or none.
    pub async fn enqueue_now(&self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        let options = &self.inner.options;
        transact!(self, |tx| {
            let mut work = Work::begin(&tx, options).await?;
            let answers = insert_all(&mut work, options, &messages, true).await?;
            work.flush().await?;
            Ok(answers)
        })
    }

    /// Starts a saga in a transaction of its own: for tools.
    pub async fn start_now(&self, start: Start) -> Result<Started, Error> {
        let outbox = self.outbox();
        transact!(self, |tx| outbox.start(&tx, start.clone()).await)
    }

    /// Writes what every producer is held to from now on, in whatever language; before that, a program goes by its [`Options`]. A dedupe
    /// key keeps the lifetime that it was enqueued with.
    pub async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        settings.check()?;
        transact!(self, |tx| settings::configure(&tx, settings).await)
    }

    /// What every producer is held to, if somebody has said so.
    pub async fn settings(&self) -> Result<Option<StoreSettings>, Error> {
        transact!(self, |tx| Ok(settings::look(&tx).await?.1))
    }
}

/// What a commit survives, by the engine.
fn durability(place: &str) -> Durability {
    match place.starts_with("mem") {
        true => Durability::Process,
        false => Durability::Machine,
    }
}

/// A verb that works on messages.
macro_rules! with_work {
    ($store:expr, |$work:ident| $body:expr) => {{
        let options = &$store.inner.options;
        transact!($store, |tx| {
            let mut $work = Work::begin(&tx, options).await?;
            $body
        })
    }};
}

#[async_trait]
impl Store for Surreal {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            wakes_across_processes: self.inner.place.starts_with("ws"),
            parallel_claim: false,
            parallel_callers: true,
            callers_retry: true,
            durability: self.inner.durability,
        }
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        claim.check()?;
        let _one_at_a_time = self.inner.claiming.lock().await;
        let served = self.inner.served.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let granted = with_work!(self, |work| claim::claim(&mut work, claim, served.clone()).await)?;
        *self.inner.served.lock().unwrap_or_else(PoisonError::into_inner) = granted.served;
        if claim.wakes(granted.claimed.len()) {
            self.inner.bell.rest().await;
        }
        Ok(Look {
            granted: granted.claimed,
            ran_out: None,
            complete: granted.complete,
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        check_lease(lease)?;
        transact!(self, |tx| settle::renew(&tx, leases, lease).await)
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let options = &self.inner.options;
        with_work!(self, |work| settle::settle(&mut work, options, batch).await)
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        transact!(self, |tx| settle::fates(&tx, leases).await)
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        transact!(self, |tx| settle::earlier_receipts(&tx, effects).await)
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        transact!(self, |tx| {
            settle::tidy(&tx).await?;
            settle::expired(&tx, after, limit).await
        })
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        with_work!(self, |work| settle::record_conflict(&mut work, lease, worker).await)
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        relay.check(ttl)?;
        with_work!(self, |work| presence::heartbeat(&mut work, relay, ttl).await)
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        with_work!(self, |work| presence::leave(&mut work, relay).await)
    }

    async fn gone(&self, destination: &str, worker: &str, reason: &str) -> Result<(), Error> {
        Admin::pause(self, destination, worker, reason).await
    }

    async fn begin(&self, ask: &Begin) -> Result<Begun, Error> {
        ask.check()?;
        with_work!(self, |work| {
            let begun = ledger::begin(&mut work, ask).await?;
            work.flush().await?;
            Ok(begun)
        })
    }

    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        with_work!(self, |work| {
            let answer = ledger::conclude(&mut work, hold, conclusion).await?;
            work.flush().await?;
            Ok(answer)
        })
    }

    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        check_lease(lease)?;
        with_work!(self, |work| {
            let answer = ledger::renew(&mut work, hold, lease).await?;
            work.flush().await?;
            Ok(answer)
        })
    }

    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        with_work!(self, |work| {
            let answers = ledger::clear(&mut work, leases).await?;
            work.flush().await?;
            Ok(answers)
        })
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        with_work!(self, |work| saga::load(&mut work, ids).await)
    }

    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error> {
        let options = &self.inner.options;
        let done = with_work!(self, |work| {
            let verdict = saga::change(&mut work, options, change).await?;
            if verdict.is_settled() {
                work.flush().await?;
            }
            Ok(verdict)
        });
        match done {
            Err(error) if !error.retryable() => Ok(Verdict::Refused(error)),
            done => done,
        }
    }

    async fn asleep(&self, _worker: &str, _at_most: Duration) -> Result<(), Error> {
        self.inner.bell.listen(&self.inner.db).await
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        self.inner.bell.wait(at_most).await
    }
}

#[async_trait]
impl Admin for Surreal {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        transact!(self, |tx| admin::find(&tx, id).await)
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        transact!(self, |tx| admin::list(&tx, filter).await)
    }

    async fn counts(&self) -> Result<Counts, Error> {
        transact!(self, |tx| admin::counts(&tx).await)
    }

    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error> {
        with_work!(self, |work| admin::facts(&mut work, id).await)
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        transact!(self, |tx| admin::attempts(&tx, id).await)
    }

    async fn replay(
        &self,
        id: MessageId,
        actor: &str,
        reason: &str,
        deliver_in: Option<Duration>,
    ) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        with_work!(self, |work| admin::replay(&mut work, id, actor, reason, deliver_in)
            .await)
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::quarantine(&mut work, id, actor, note).await)
    }

    async fn cancel(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::cancel(&mut work, id, actor, reason).await)
    }

    async fn resolve(&self, id: MessageId, actor: &str, receipt: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::resolve(&mut work, id, actor, receipt).await)
    }

    async fn discard(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::discard(&mut work, id, actor, reason).await)
    }

    async fn prune(&self, older_than: Duration, limit: u32) -> Result<Pruned, Error> {
        check_prune_limit(limit)?;
        with_work!(self, |work| admin::prune(&mut work, older_than, limit).await)
    }

    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error> {
        transact!(self, |tx| ledger::view(&tx, key).await)
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        transact!(self, |tx| ledger::list(&tx, filter).await)
    }

    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        transact!(self, |tx| saga::list(&tx, filter).await)
    }

    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        transact!(self, |tx| saga::log(&tx, id, after, limit).await)
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        transact!(self, |tx| admin::audit(&tx, filter).await)
    }

    async fn relays(&self) -> Result<Vec<RelayView>, Error> {
        transact!(self, |tx| presence::relays(&tx).await)
    }

    async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        transact!(self, |tx| presence::pauses(&tx).await)
    }

    async fn pause(&self, destination: &str, actor: &str, reason: &str) -> Result<(), Error> {
        check_destination(destination)?;
        with_work!(self, |work| presence::pause(&mut work, destination, actor, reason)
            .await)
    }

    async fn resume(&self, destination: &str, actor: &str, reason: &str) -> Result<bool, Error> {
        check_destination(destination)?;
        with_work!(self, |work| presence::resume(&mut work, destination, actor, reason)
            .await)
    }
}
