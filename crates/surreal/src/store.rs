//! The store as a relay and an operator see it. Each verb is one transaction; one that lost to another is run again.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Attempt, AuditEntry, AuditFilter, Capabilities, Claim, Conflict, Counts, Effect, Enqueued, Error, Facts,
    Fate, Filter, Lease, Look, Message, MessageId, MessageView, Page, Pause, Prune, Pruned, Receipt, Relay, RelayView,
    Renewal, SagaId, Settlement, Store, StoreSettings, Upgrade, Verdict, Wake,
    admin::check_deliver_in,
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, EntryFilter, EntryKey, EntryPage, EntryView, Fenced, Hold},
    presence::check_destination,
    saga::{Change, Found, LogLine, SagaFilter, SagaPage, Start, Started},
    schema::MIGRATE,
};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use surrealdb::{Connection, engine::any::Any};

use crate::{
    address::Address,
    admin,
    claim::{self, Memory},
    database::{Database, is_there},
    error::is_expiry,
    ledger, migrate,
    outbox::Outbox,
    presence,
    records::Written,
    saga,
    settings::{self, Options},
    settle,
    wake::Bell,
    work::{Key, Work},
};

/// How often a transaction is run again that lost to another.
const MOST_TURNS: u32 = 200;
/// What is left as it is when it lost.
const ONCE: u32 = 0;
/// Of how many keys the producers' turns are forgotten at once.
const TURNS: usize = 50;
/// The longest wait before that, in milliseconds.
const LONGEST_WAIT: u64 = 50;

/// A store in a SurrealDB database: embedded, in memory or on disk, or a server's. A clone is the same handle.
pub struct SurrealDb<C: Connection = Any> {
    inner: Arc<Inner<C>>,
}

struct Inner<C: Connection> {
    db: Database<C>,
    options: Options,
    /// What claims remember. Two of one handle at once would only take from each other.
    claims: tokio::sync::Mutex<Memory>,
    bell: Bell<C>,
}

impl<C: Connection> Clone for SurrealDb<C> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
        }
    }
}

/// One verb as a transaction: run, committed, and run again if it lost to another. One that has written nothing has nothing to commit, which may cost
/// a write to the disk all the same.
macro_rules! transact {
    ($db:expr, |$tx:ident| $body:expr) => {
        transact!($db, MOST_TURNS, |$tx| $body)
    };
    ($db:expr, $turns:expr, |$tx:ident| $body:expr) => {{
        let mut turn = 0;
        loop {
            let $tx = Written::new($db.begin().await?);
            let done: Result<_, Error> = async { $body }.await;
            let done = match done {
                Err(error) if is_expiry(&error) && turn < 2 => {
                    $db.forget_sessions();
                    turn += 1;
                    continue;
                }
                // The transaction is gone with its connection.
                Err(error @ (Error::Unavailable(_) | Error::Timeout(_))) => Err(error),
                Ok(answer) if $tx.has_written() => $db.commit($tx.into_inner()).await.map(|()| answer),
                done => {
                    // What it has written must not stay open.
                    $db.cancel($tx.into_inner()).await;
                    done
                }
            };
            match done {
                Err(Error::Contention(_)) if turn < $turns => {
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

impl SurrealDb<Any> {
    /// The store that a URL names ([`Address`]), if it was migrated before. A folder that is not there is not made.
    pub async fn connect(url: &str, options: Options) -> Result<Self, Error> {
        let address = Address::parse(url)?;
        if !is_there(&address) {
            return Err(Error::Schema(format!("there is no database {address}; {MIGRATE}")));
        }
        Self::open(Database::connect_to(&address).await?, options).await
    }

    /// What [`migrate`](Self::migrate) would do to the database that a URL names. Changes nothing, and makes no folder.
    pub async fn plan_migration(url: &str) -> Result<Upgrade, Error> {
        let address = Address::parse(url)?;
        if !is_there(&address) {
            return migrate::from_nothing(&address.to_string());
        }
        let db = Database::connect_to(&address).await?;
        transact!(db, |tx| migrate::plan(&tx, db.place()).await)
    }
}

impl<C: Connection> SurrealDb<C> {
    /// The store in this database, if it was migrated before.
    pub async fn open(db: Database<C>, options: Options) -> Result<Self, Error> {
        transact!(db, |tx| migrate::check(&tx, db.place()).await)?;
        let inner = Inner {
            db,
            options,
            claims: tokio::sync::Mutex::default(),
            bell: Bell::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Brings the schema of a database up to date. Safe to call at any time, also by several at once: of two, one is told of the conflict, looks again, and
    /// finds it done. Answers what it did.
    pub async fn migrate(db: &Database<C>) -> Result<Upgrade, Error> {
        transact!(db, |tx| migrate::migrate(&tx, db.place()).await)
    }

    /// Forgets the producers' turns of keys whose messages are gone. Where a producer comes in between they stay until the next time.
    async fn forget_turns(&self, keys: &[Key]) -> Result<(), Error> {
        let options = &self.inner.options;
        let forgotten = transact!(self.inner.db, ONCE, |tx| {
            let mut work = Work::begin(&tx, options).await?;
            work.forget_turns(keys).await?;
            work.flush().await
        });
        match forgotten {
            Err(Error::Contention(_)) => Ok(()),
            done => done,
        }
    }

    /// The verbs for an application's own transactions, with the options of this store.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.inner.options.clone())
    }

    /// The time there.
    pub(crate) async fn now(&self) -> Result<i64, Error> {
        transact!(self.inner.db, |tx| Ok(settings::look(&tx).await?.0))
    }

    /// The database that it is in.
    pub fn database(&self) -> &Database<C> {
        &self.inner.db
    }

    /// Enqueues in a transaction of its own: for tools that have nothing else to write. All or none.
    pub async fn enqueue_now(&self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        let outbox = self.outbox();
        transact!(self.inner.db, |tx| outbox.enqueue_all(&tx, &messages).await)
    }

    /// Starts a saga in a transaction of its own: for tools.
    pub async fn start_now(&self, start: Start) -> Result<Started, Error> {
        let outbox = self.outbox();
        transact!(self.inner.db, |tx| outbox.start(&tx, start.clone()).await)
    }

    /// Writes what every producer is held to from now on, in whatever language; before that, a program goes by its [`Options`]. A dedupe
    /// key keeps the lifetime that it was enqueued with.
    pub async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        settings.check()?;
        transact!(self.inner.db, |tx| settings::configure(&tx, settings).await)
    }

    /// What every producer is held to, if somebody has said so.
    pub async fn settings(&self) -> Result<Option<StoreSettings>, Error> {
        transact!(self.inner.db, |tx| Ok(settings::look(&tx).await?.1))
    }
}

/// A verb that works on messages.
macro_rules! with_work {
    ($store:expr, |$work:ident| $body:expr) => {{
        let options = &$store.inner.options;
        transact!($store.inner.db, |tx| {
            let mut $work = Work::begin(&tx, options).await?;
            $body
        })
    }};
}

#[async_trait]
impl<C: Connection> Store for SurrealDb<C> {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            wakes_across_processes: self.inner.db.is_shared(),
            parallel_claim: false,
            parallel_callers: true,
            callers_retry: true,
            durability: self.inner.db.address().durability(),
        }
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        claim.check()?;
        let mut memory = self.inner.claims.lock().await;
        let (tries, late) = (AtomicUsize::new(0), AtomicBool::new(false));
        let options = &self.inner.options;
        // A claim that lost to others is tried again at once; one that was too slow is not, because it would be as slow again.
        let granted = transact!(
            self.inner.db,
            if late.load(Ordering::Relaxed) { 0 } else { MOST_TURNS },
            |tx| {
                let mut work = Work::begin(&tx, options).await?;
                let lost = tries.fetch_add(1, Ordering::Relaxed);
                let granted = claim::claim(&mut work, claim, &memory, lost).await?;
                if !granted.claimed.is_empty() {
                    // The leases began with the transaction, which an error cancels.
                    let took = settings::look(&tx).await?.0 - work.now;
                    let in_time = claim.check_in_time(Duration::from_micros(u64::try_from(took).unwrap_or_default()));
                    late.store(in_time.is_err(), Ordering::Relaxed);
                    in_time?;
                }
                Ok(granted)
            }
        )?;
        memory.learn(&claim.not_topics, granted.learnt);
        if claim.wakes(granted.claimed.len()) {
            self.inner.bell.rest();
        }
        Ok(Look {
            granted: granted.claimed,
            ran_out: None,
            complete: granted.complete,
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        check_lease(lease)?;
        transact!(self.inner.db, |tx| settle::renew(&tx, leases, lease).await)
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let options = &self.inner.options;
        with_work!(self, |work| settle::settle(&mut work, options, batch).await)
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        transact!(self.inner.db, |tx| settle::fates(&tx, leases).await)
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        transact!(self.inner.db, |tx| settle::earlier_receipts(&tx, effects).await)
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        transact!(self.inner.db, |tx| settle::expired(&tx, after, limit).await)
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

    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error> {
        Admin::pause(self, destination, worker, note).await
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
        self.inner.bell.listen(&self.inner.db).await;
        Ok(())
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        self.inner.bell.wait(at_most).await
    }
}

#[async_trait]
impl<C: Connection> Admin for SurrealDb<C> {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        transact!(self.inner.db, |tx| admin::find(&tx, id).await)
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        transact!(self.inner.db, |tx| admin::list(&tx, filter).await)
    }

    async fn counts_to(&self, cap: u32) -> Result<Counts, Error> {
        transact!(self.inner.db, |tx| admin::counts(&tx, cap).await)
    }

    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error> {
        with_work!(self, |work| admin::facts(&mut work, id).await)
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        transact!(self.inner.db, |tx| admin::attempts(&tx, id).await)
    }

    async fn replay(&self, id: MessageId, actor: &str, note: &str, deliver_in: Option<Duration>) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        with_work!(self, |work| admin::replay(&mut work, id, actor, note, deliver_in).await)
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::quarantine(&mut work, id, actor, note).await)
    }

    async fn cancel(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::cancel(&mut work, id, actor, note).await)
    }

    async fn resolve(&self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::resolve(&mut work, id, actor, note, receipt).await)
    }

    async fn discard(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        with_work!(self, |work| admin::discard(&mut work, id, actor, note).await)
    }

    async fn prune(&self, prune: &Prune) -> Result<Pruned, Error> {
        let (pruned, keys) = with_work!(self, |work| admin::prune(&mut work, prune).await)?;
        let keys: Vec<_> = keys.into_iter().collect();
        for some in keys.chunks(TURNS) {
            self.forget_turns(some).await?;
        }
        Ok(pruned)
    }

    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error> {
        transact!(self.inner.db, |tx| ledger::view(&tx, key).await)
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        transact!(self.inner.db, |tx| ledger::list(&tx, filter).await)
    }

    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        transact!(self.inner.db, |tx| saga::list(&tx, filter).await)
    }

    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        transact!(self.inner.db, |tx| saga::log(&tx, id, after, limit).await)
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        transact!(self.inner.db, |tx| admin::audit(&tx, filter).await)
    }

    async fn relays(&self) -> Result<Vec<RelayView>, Error> {
        transact!(self.inner.db, |tx| presence::relays(&tx).await)
    }

    async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        transact!(self.inner.db, |tx| presence::pauses(&tx).await)
    }

    async fn pause(&self, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
        check_destination(destination)?;
        with_work!(self, |work| presence::pause(&mut work, destination, actor, note).await)
    }

    async fn resume(&self, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
        check_destination(destination)?;
        with_work!(self, |work| presence::resume(&mut work, destination, actor, note).await)
    }
}
