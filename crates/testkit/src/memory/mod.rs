//! The reference store, in memory: the shortest code that keeps every promise, for other stores to be compared with.
//!
//! All tables sit behind one mutex, so each operation is a transaction by itself. A caller's transaction keeps its
//! changes aside ([`MemoryTx`]) and holds what others must wait for: dedupe keys, ids, turns, leases. What happens to a
//! message is decided by the state machine of the core; nothing here decides it again.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Attempt, AuditEntry, AuditFilter, Capabilities, Claim, Conflict, Counts, Durability, Effect, Error, Facts,
    Fate, Filter, Lease, Limits, Look, MessageId, MessageView, Page, Pause, Prune, Pruned, Receipt, Relay, RelayView,
    Renewal, SagaId, Settlement, Store, StoreSettings, Timestamp, Verdict, Wake,
    admin::{LOOKED_AT_MOST, check_cap, check_deliver_in},
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, Entry, EntryFilter, EntryKey, EntryPage, EntryView, Fenced, Hold},
    presence::check_destination,
    saga::{Change, Found, LogLine, SagaFilter, SagaPage},
};
use std::{
    ops::Bound,
    sync::{
        Arc, Mutex, PoisonError, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::sync::Notify;

mod admin;
mod claim;
mod dump;
mod enqueue;
mod fixture;
mod flaw;
mod ledger;
mod oversight;
mod presence;
mod saga;
mod settle;
mod tables;

pub use enqueue::MemoryTx;
pub use fixture::MemoryFixture;
pub use flaw::Flaw;
use tables::{Busy, Tables, TxId};

/// Tells the time. A test keeps the default, which stands still; a simulation gives its own.
pub type Clock = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// 2030-01-01T00:00:00Z, where the default clock stands.
pub const START: Timestamp = Timestamp::from_micros(1_893_456_000_000_000);

/// What a deployment of the store may choose.
#[derive(Clone, Debug)]
pub struct Options {
    /// How large a message may be.
    pub limits: Limits,
    /// How long a dedupe key stays taken after its message ended; for ever when absent.
    pub dedupe_lifetime: Option<Duration>,
    /// The attempt budget of a message that brings none.
    pub max_attempts: u32,
    /// Where the tokens of leases come from: the same seed, the same tokens. From chance when absent.
    pub seed: Option<u64>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            dedupe_lifetime: Some(Duration::from_secs(7 * 24 * 3600)),
            max_attempts: 12,
            seed: None,
        }
    }
}

/// A handle on a store in memory. A clone is another handle on the same store, as another process would have.
pub struct Memory {
    shared: Arc<Shared>,
    bell: Arc<Bell>,
}

/// Rung for a handle whose worker said that it sleeps, and for no other.
#[derive(Default)]
struct Bell {
    marked: AtomicBool,
    rung: Notify,
}

struct Shared {
    tables: Mutex<Tables>,
    clock: Clock,
    /// How far the clock was moved by hand, in microseconds.
    moved: AtomicU64,
    /// Rung at the end of every caller's transaction, for those that wait for it.
    ended: Notify,
    /// One for each handle; rung when there may be something to claim.
    bells: Mutex<Vec<Weak<Bell>>>,
}

impl Memory {
    /// An empty store whose clock stands at [`START`].
    pub fn new() -> Self {
        Self::open(Options::default(), Arc::new(|| START), None)
    }

    /// An empty store with a clock of its own.
    pub fn with_clock(options: Options, clock: Clock) -> Self {
        Self::open(options, clock, None)
    }

    /// An empty store with one mistake in it, to prove that the suite would notice.
    pub fn with_flaw(flaw: Flaw) -> Self {
        Self::open(Options::default(), Arc::new(|| START), Some(flaw))
    }

    /// An empty store with everything chosen: what it allows, its clock, and the mistake in it.
    pub fn open(options: Options, clock: Clock, flaw: Option<Flaw>) -> Self {
        let shared = Shared {
            tables: Mutex::new(Tables::new(options, flaw)),
            clock,
            moved: AtomicU64::new(0),
            ended: Notify::new(),
            bells: Mutex::new(Vec::new()),
        };
        Self::handle(Arc::new(shared))
    }

    fn handle(shared: Arc<Shared>) -> Self {
        let bell = Arc::new(Bell::default());
        let mut bells = shared.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.retain(|bell| bell.strong_count() > 0);
        bells.push(Arc::downgrade(&bell));
        drop(bells);
        Self { shared, bell }
    }

    /// Says what every producer is held to from now on.
    pub fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        settings.check()?;
        let settings = settings.clone();
        self.with(|tables| {
            let options = &mut tables.options;
            options.limits = settings.limits;
            options.max_attempts = settings.max_attempts;
            options.dedupe_lifetime = settings.dedupe_lifetime;
        });
        Ok(())
    }

    /// What every producer is held to.
    pub fn settings(&self) -> StoreSettings {
        self.with(|tables| StoreSettings {
            limits: tables.options.limits.clone(),
            max_attempts: tables.options.max_attempts,
            dedupe_lifetime: tables.options.dedupe_lifetime,
        })
    }

    /// Begins a caller's transaction.
    pub fn begin(&self) -> MemoryTx {
        MemoryTx::begin(self.clone())
    }

    /// The store's clock.
    pub fn now(&self) -> Timestamp {
        let moved = Duration::from_micros(self.shared.moved.load(Ordering::SeqCst));
        (self.shared.clock)().plus(moved)
    }

    /// Moves the store's clock forward.
    pub fn advance(&self, by: Duration) {
        let micros = u64::try_from(by.as_micros()).unwrap_or(u64::MAX);
        self.shared.moved.fetch_add(micros, Ordering::SeqCst);
        self.ring();
    }

    /// From now on each claim takes this long by the store's clock.
    pub fn hold_up_claims(&self, by: Duration) {
        self.with(|tables| tables.claims_take = by);
    }

    /// Every record of every table, one on each line.
    pub fn dump(&self) -> String {
        self.with(|tables| tables.dump())
    }

    /// What applications noted and committed.
    pub fn notes(&self) -> Vec<String> {
        self.with(|tables| tables.notes.clone())
    }

    /// One transaction: nobody else sees the tables meanwhile.
    fn with<T>(&self, run: impl FnOnce(&mut Tables) -> T) -> T {
        let mut tables = self.shared.tables.lock().unwrap_or_else(PoisonError::into_inner);
        tables.now = self.now();
        let answer = run(&mut tables);
        let news = std::mem::take(&mut tables.news);
        drop(tables);
        if news {
            self.ring();
        }
        answer
    }

    /// Runs `attempt` until it needs nothing that an open transaction holds. Ends when that transaction does; two that
    /// wait for each other would never end, so the one that would close the circle is refused.
    async fn wait_for<T>(
        &self,
        tx: Option<TxId>,
        mut attempt: impl FnMut(&mut Tables) -> Result<T, Busy>,
    ) -> Result<T, Error> {
        loop {
            // Registered before looking, so that an end in between is not missed.
            let ended = self.shared.ended.notified();
            let answer = self.with(|tables| match attempt(tables) {
                Ok(answer) => Ok(Some(answer)),
                Err(busy) => tables.wait(tx, busy).map(|()| None),
            })?;
            match answer {
                Some(answer) => return Ok(answer),
                None => ended.await,
            }
        }
    }

    /// A bell that nobody waits at yet stays rung, so a commit between the last claim and the sleep is not missed.
    fn ring(&self) {
        let bells = self.shared.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells
            .iter()
            .filter_map(Weak::upgrade)
            .filter(|bell| bell.marked.load(Ordering::Relaxed))
            .for_each(|bell| bell.rung.notify_one());
    }
}

impl Default for Memory {
    fn default() -> Self {
        Self::new()
    }
}

impl Clone for Memory {
    fn clone(&self) -> Self {
        Self::handle(self.shared.clone())
    }
}

#[async_trait]
impl Store for Memory {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            wakes_across_processes: false,
            parallel_claim: true,
            parallel_callers: true,
            callers_retry: false,
            durability: Durability::Process,
        }
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        claim.check()?;
        let (ran_out, granted, took) = self.with(|tables| {
            let ran_out = !tables.expired(i64::MIN, 1).is_empty();
            (ran_out, tables.claim(claim), tables.claims_take)
        });
        if !took.is_zero() {
            self.advance(took);
        }
        let (granted, complete) = granted?;
        if claim.wakes(granted.len()) {
            self.bell.marked.store(false, Ordering::Relaxed);
        }
        Ok(Look {
            granted,
            ran_out: Some(ran_out),
            complete,
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        check_lease(lease)?;
        Ok(self.with(|tables| leases.iter().map(|held| tables.renew(held, lease)).collect()))
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let mut verdicts = Vec::with_capacity(batch.len());
        for settlement in batch {
            verdicts.push(
                self.wait_for(None, |tables| tables.settle(None, settlement, batch))
                    .await?,
            );
        }
        Ok(verdicts)
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        Ok(self.with(|tables| leases.iter().map(|lease| tables.fate(lease)).collect()))
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        Ok(self.with(|tables| effects.iter().map(|effect| tables.earlier_receipt(effect)).collect()))
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        Ok(self.with(|tables| tables.expired(after, limit)))
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        self.with(|tables| tables.record_conflict(lease, worker))
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        relay.check(ttl)?;
        Ok(self.with(|tables| tables.heartbeat(relay, ttl)))
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        self.with(|tables| tables.leave(relay));
        Ok(())
    }

    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error> {
        Admin::pause(self, destination, worker, note).await
    }

    async fn begin(&self, ask: &Begin) -> Result<Begun, Error> {
        ask.check()?;
        Ok(self.with(|tables| {
            let token = tables.token();
            tables.begin_entry(ask, token)
        }))
    }

    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        let rule = |found, now| Entry::conclude(found, hold.token, conclusion.clone(), now);
        self.wait_for(None, |tables| tables.change_entry(None, &hold.key, rule))
            .await
    }

    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        check_lease(lease)?;
        let rule = |found, now| Entry::renew(found, hold.token, lease, now);
        self.wait_for(None, |tables| tables.change_entry(None, &hold.key, rule))
            .await
    }

    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        Ok(self.with(|tables| leases.iter().map(|lease| tables.clear(lease)).collect()))
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        Ok(self.with(|tables| ids.iter().map(|id| Ok(tables.load_saga(*id))).collect()))
    }

    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error> {
        self.wait_for(None, |tables| tables.change_saga(change)).await
    }

    async fn asleep(&self, _worker: &str, _at_most: Duration) -> Result<(), Error> {
        self.bell.marked.store(true, Ordering::Relaxed);
        Ok(())
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        match tokio::time::timeout(at_most, self.bell.rung.notified()).await {
            Ok(()) => Ok(Wake::Rung),
            Err(_) => Ok(Wake::Elapsed),
        }
    }
}

#[async_trait]
impl Admin for Memory {
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error> {
        Ok(self.with(|tables| tables.find(id)))
    }

    async fn list(&self, filter: &Filter) -> Result<Page, Error> {
        Ok(self.with(|tables| tables.list(filter)))
    }

    async fn counts_to(&self, cap: u32) -> Result<Counts, Error> {
        check_cap(cap)?;
        Ok(self.with(|tables| tables.counts(cap)))
    }

    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error> {
        Ok(self.with(|tables| tables.facts(id)))
    }

    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error> {
        Ok(self.with(|tables| tables.attempts_of(id)))
    }

    async fn replay(&self, id: MessageId, actor: &str, note: &str, deliver_in: Option<Duration>) -> Result<(), Error> {
        check_deliver_in(deliver_in)?;
        self.wait_for(None, |tables| tables.replay(id, actor, note, deliver_in))
            .await?
    }

    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.with(|tables| tables.quarantine(id, actor, note))
    }

    async fn cancel(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.with(|tables| tables.cancel(id, actor, note))
    }

    async fn resolve(&self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error> {
        self.with(|tables| tables.resolve(id, actor, note, receipt))
    }

    async fn discard(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
        self.with(|tables| tables.discard(id, actor, note))
    }

    async fn prune(&self, prune: &Prune) -> Result<Pruned, Error> {
        self.with(|tables| tables.prune(prune))
    }

    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error> {
        Ok(self.with(|tables| Some(EntryView::of(key, tables.ledger.get(key)?))))
    }

    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error> {
        self.with(|tables| {
            let from = (Bound::Excluded(filter.start()), Bound::Unbounded);
            let looked = tables
                .ledger
                .range(from)
                .map(|(key, entry)| Ok(EntryView::of(key, entry)));
            EntryPage::of(looked, filter, LOOKED_AT_MOST)
        })
    }

    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error> {
        Ok(self.with(|tables| tables.list_sagas(filter)))
    }

    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
        self.with(|tables| tables.saga_log(id, after, limit))
    }

    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
        Ok(self.with(|tables| tables.audit_of(filter)))
    }

    async fn relays(&self) -> Result<Vec<RelayView>, Error> {
        Ok(self.with(|tables| tables.relays()))
    }

    async fn pauses(&self) -> Result<Vec<Pause>, Error> {
        Ok(self.with(|tables| tables.pauses()))
    }

    async fn pause(&self, destination: &str, actor: &str, note: &str) -> Result<(), Error> {
        check_destination(destination)?;
        self.with(|tables| tables.pause(destination, actor, note))
    }

    async fn resume(&self, destination: &str, actor: &str, note: &str) -> Result<bool, Error> {
        check_destination(destination)?;
        self.with(|tables| tables.resume(destination, actor, note))
    }
}
