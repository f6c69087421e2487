//! Handlers that settle in their own transaction: their writes and the settlement commit together, or not at all.
//!
//! # How the relay finds out
//!
//! Once a handler has asked for a settlement, what it answers is only an opinion: it may return Ok without having committed, fail after a
//! commit whose answer was lost, panic or hang in between. The truth is in the store, and is read back there:
//!
//! 1. [`Store::fates`](posthouse_core::Store::fates): is the end of this lease committed? Then that is what happened, and there is nothing to write. A lease that was
//!    taken over is a conflict, and goes into the audit.
//! 2. Nothing is committed: the lease is renewed. `Locked` means that the handler's transaction is open still; it is waited for, and asked
//!    about again from 1, for as long as the lease holds.
//! 3. `Renewed`: no transaction has it. It is settled with what is known to be true, that nothing happened: a retry, or what the handler
//!    answered if that is a failure. The handler's settlement is never repeated, because to repeat it would make it win (P16). If a commit
//!    gets in between after all, the token decides which of the two wins, the other changes nothing, and 1 tells which it was.
//! 4. A transaction that is open past the deadline is left to itself. Its lock keeps everybody else away; when it commits the message is
//!    settled, and when it does not the lease has run out, like any other.
//!
//! So no message is called delivered without its commit, none is committed twice, and none has two attempts for one lease.

use async_trait::async_trait;
use posthouse_core::{
    AttemptOutcome, Delivery, Error, Fate, Lease, Outcome, Renewal, RetryPolicy, Settlement, Verdict,
};
use serde::de::DeserializeOwned;
use std::{
    future::Future,
    ops::Deref,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use super::{
    Engine, IntoOutcome,
    line::{self, Next, Work},
    local::read_json,
    target::Target,
};

/// The waits between two looks at a transaction that is open; they double up to the second.
const WAITS: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));
/// How long the last look may take when the lease has run out already.
const LAST_LOOK: Duration = Duration::from_secs(1);

/// A handler that settles in its own transaction, of its own driver, with [`Handling::settle_in`]: what it writes and the settlement
/// commit together or not at all. So its effect happens exactly once, however often the message is sent.
///
/// The outbox is the one that the application enqueues with; it says which driver's transactions are taken:
///
/// | database | outbox | transactions of |
/// |---|---|---|
/// | PostgreSQL | `posthouse::postgres::Outbox` | tokio-postgres, deadpool-postgres, sqlx, SeaORM, diesel-async |
/// | SQLite | `posthouse::sqlite::AsyncOutbox` | sqlx, SeaORM |
/// | SQLite | `posthouse::sqlite::Outbox` | rusqlite, in `spawn_blocking` |
/// | SurrealDB (feature `surreal`) | `posthouse::surreal::Outbox` | surrealdb; a commit that is told of a conflict has not happened, and the message is sent again |
///
/// It must be the database of the relay's store. With sqlx on PostgreSQL:
///
#[cfg_attr(all(feature = "postgres", feature = "sqlx"), doc = "```no_run")]
#[cfg_attr(not(all(feature = "postgres", feature = "sqlx")), doc = "```ignore")]
/// use posthouse::{Message, Outcome, Relay, postgres::Outbox, relay::{Failure, Handling, transactional}};
///
/// #[derive(serde::Deserialize)]
/// struct Usage { tokens: i64 }
///
/// async fn bill(pool: sqlx::PgPool, delivery: Handling<Outbox>) -> Result<(), Failure> {
///     let usage: Usage = delivery.json()?; // rejects what cannot be read
///     let mut tx = pool.begin().await?;
///     sqlx::query("insert into bill (tokens) values ($1)").bind(usage.tokens).execute(&mut *tx).await?;
///     // What follows from it may go with it.
///     delivery.outbox().enqueue(&mut tx, Message::json("bill.written", &usage.tokens)?).await?;
///     delivery.settle_in(&mut tx, Outcome::delivered()).await?;
///     tx.commit().await?;
///     Ok(())
/// }
///
/// # async fn example(store: std::sync::Arc<dyn posthouse::Store>, pool: sqlx::PgPool) {
/// let billing = transactional(Outbox::default(), move |delivery| bill(pool.clone(), delivery));
/// let relay = Relay::builder(store).route("usage.*", billing);
/// # }
/// ```
///
/// Settle last, then commit: from `settle_in` on, the message is locked. A handler may settle as a failure too, with
/// [`Outcome::retry`] or [`Outcome::reject`], and what it writes about it commits with that.
///
/// A handler that does not call `settle_in` is taken by its word if it fails. One that answers Ok without it has made a mistake, since
/// it may have committed its writes alone: that is a failure with the code `not_settled`, and the message is sent again.
pub fn transactional<O, F, A>(outbox: O, handler: F) -> Transactional
where
    O: Clone + Send + Sync + 'static,
    F: Fn(Handling<O>) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send + 'static,
{
    Transactional(Arc::new(Handler { outbox, handler }))
}

/// What [`transactional`] makes: a destination, which needs a relay. A clone is the same handler.
#[derive(Clone)]
pub struct Transactional(pub(super) Arc<dyn Handle>);

/// A delivery in the hands of a handler that settles it itself. It is the [`Delivery`], and the right to end its lease.
pub struct Handling<O> {
    delivery: Arc<Delivery>,
    outbox: O,
    grant: Arc<Grant>,
}

impl<O> Deref for Handling<O> {
    type Target = Delivery;

    fn deref(&self) -> &Delivery {
        &self.delivery
    }
}

impl<O> Handling<O> {
    /// The payload, read from JSON. What cannot be read as `T` is rejected, with `SCHEMA.VALIDATION_FAILED`.
    pub fn json<T: DeserializeOwned>(&self) -> Result<T, Failure> {
        read_json(&self.delivery).map_err(Failure)
    }

    /// For messages that follow from this one, in the same transaction.
    pub fn outbox(&self) -> &O {
        &self.outbox
    }

    /// The end of its lease under the route's rules, for the `settle_in` of an outbox; to add follow-ups, or for a driver of your own.
    /// Mind its answer: on [`Verdict::LeaseLost`] do not commit. [`settle_in`](Self::settle_in) does it for you.
    pub fn settlement(&self, outcome: Outcome) -> Settlement {
        // From here on the answer is in the store.
        self.grant.used.store(true, Ordering::SeqCst);
        self.grant.settlement(outcome)
    }
}

#[cfg(feature = "postgres")]
impl Handling<posthouse_postgres::Outbox> {
    /// Ends the lease in this transaction. When the lease is lost it is an error, [`Error::LeaseLost`]: roll back, somebody else may
    /// be handling the message.
    pub async fn settle_in<T: posthouse_postgres::Run>(&self, tx: &mut T, outcome: Outcome) -> Result<(), Error> {
        let settlement = self.settlement(outcome);
        won(&settlement, self.outbox.settle_in(tx, &settlement).await?)
    }
}

#[cfg(feature = "surreal")]
impl Handling<posthouse_surreal::Outbox> {
    /// Ends the lease in this transaction. When the lease is lost it is an error, [`Error::LeaseLost`]: cancel it, somebody else may
    /// be handling the message.
    pub async fn settle_in<T: posthouse_surreal::Run>(&self, tx: &T, outcome: Outcome) -> Result<(), Error> {
        let settlement = self.settlement(outcome);
        won(&settlement, self.outbox.settle_in(tx, &settlement).await?)
    }
}

#[cfg(feature = "sqlite")]
impl Handling<posthouse_sqlite::AsyncOutbox> {
    /// Ends the lease in this transaction. When the lease is lost it is an error, [`Error::LeaseLost`]: roll back, somebody else may
    /// be handling the message.
    pub async fn settle_in<T: posthouse_sqlite::Run>(&self, tx: &mut T, outcome: Outcome) -> Result<(), Error> {
        let settlement = self.settlement(outcome);
        won(&settlement, self.outbox.settle_in(tx, &settlement).await?)
    }

    /// Takes the write lock and renews the lease in this transaction, as its first step: nobody else can write from then on, so nobody
    /// takes the message away however long the handler works.
    pub async fn hold_in<T: posthouse_sqlite::Run>(&self, tx: &mut T) -> Result<(), Error> {
        let Grant { lease, lasts, .. } = &*self.grant;
        held(lease, self.outbox.hold(tx, lease, *lasts).await?)
    }
}

/// `rusqlite` is synchronous: the whole transaction belongs into [`spawn_blocking`](tokio::task::spawn_blocking). When the relay stops
/// waiting for it (a timeout, a shutdown) it goes on all the same, and what it settles then counts if it commits in time.
#[cfg(feature = "sqlite")]
impl Handling<posthouse_sqlite::Outbox> {
    /// Ends the lease in this transaction. When the lease is lost it is an error, [`Error::LeaseLost`]: roll back, somebody else may
    /// be handling the message.
    pub fn settle_in(&self, tx: &rusqlite::Transaction<'_>, outcome: Outcome) -> Result<(), Error> {
        let settlement = self.settlement(outcome);
        won(&settlement, self.outbox.settle_in(tx, &settlement)?)
    }

    /// Takes the write lock and renews the lease in this transaction, as its first step: nobody else can write from then on, so nobody
    /// takes the message away however long the handler works.
    pub fn hold_in(&self, tx: &rusqlite::Transaction<'_>) -> Result<(), Error> {
        let Grant { lease, lasts, .. } = &*self.grant;
        held(lease, self.outbox.hold(tx, lease, *lasts)?)
    }
}

#[cfg(any(feature = "postgres", feature = "sqlite", feature = "surreal"))]
fn won(settlement: &Settlement, verdict: Verdict) -> Result<(), Error> {
    match verdict {
        Verdict::Settled => Ok(()),
        Verdict::LeaseLost | Verdict::Stale => Err(Error::LeaseLost(settlement.lease.id)),
        Verdict::Refused(error) => Err(error),
    }
}

#[cfg(feature = "sqlite")]
fn held(lease: &Lease, renewal: Renewal) -> Result<(), Error> {
    match renewal {
        Renewal::Renewed => Ok(()),
        Renewal::Locked | Renewal::Lost => Err(Error::LeaseLost(lease.id)),
    }
}

/// Why a handler did not finish. Any error becomes one with `?`, and means that it may be tried again; to say more there is
/// [`Failure::of`].
#[derive(Debug)]
pub struct Failure(Outcome);

impl Failure {
    /// A failure with this outcome. To answer that it was delivered is none: see [`transactional`].
    pub fn of(outcome: Outcome) -> Self {
        Self(outcome)
    }

    /// It never can be handled.
    pub fn reject(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self(Outcome::reject(code, error))
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        Self(Outcome::retry("handler_failed", error.to_string()))
    }
}

impl<T: IntoOutcome> IntoOutcome for Result<T, Failure> {
    fn into_outcome(self) -> Outcome {
        match self {
            Ok(answer) => answer.into_outcome(),
            Err(Failure(outcome)) => outcome,
        }
    }
}

/// What a handler needs to end a lease, and whether it has tried to.
pub(super) struct Grant {
    lease: Lease,
    destination: String,
    retry: RetryPolicy,
    roll: f64,
    lasts: Duration,
    used: AtomicBool,
}

impl Grant {
    pub fn new(lease: &Lease, target: &Target, roll: f64, lasts: Duration) -> Arc<Self> {
        Arc::new(Self {
            lease: lease.clone(),
            destination: target.name.clone(),
            retry: target.rules().retry.clone(),
            roll,
            lasts,
            used: AtomicBool::new(false),
        })
    }

    /// Nobody waits for the handler any more, and it may settle yet.
    pub fn interrupt(&self) {
        self.used.store(true, Ordering::SeqCst);
    }

    pub fn is_used(&self) -> bool {
        self.used.load(Ordering::SeqCst)
    }

    fn settlement(&self, outcome: Outcome) -> Settlement {
        Settlement::of(&self.lease, outcome, &self.retry, self.roll)
    }

    /// How the line goes on after an end with this evidence: what the store has done with the rest of the run follows from it.
    fn after(&self, outcome: AttemptOutcome) -> Next {
        let stops = match outcome {
            AttemptOutcome::Delivered | AttemptOutcome::Duplicate | AttemptOutcome::Expanded => false,
            AttemptOutcome::Retry => self.settlement(Outcome::retry("", "")).stops_run(),
            AttemptOutcome::Rejected | AttemptOutcome::Lapsed | AttemptOutcome::LeaseExpired => {
                self.settlement(Outcome::reject("", "")).stops_run()
            }
        };
        if stops { Next::Stop } else { Next::Go }
    }
}

/// The seam between the engine and a handler of any outbox.
#[async_trait]
pub(super) trait Handle: Send + Sync {
    async fn handle(&self, delivery: Arc<Delivery>, grant: Arc<Grant>) -> Outcome;
}

struct Handler<O, F> {
    outbox: O,
    handler: F,
}

#[async_trait]
impl<O, F, A> Handle for Handler<O, F>
where
    O: Clone + Send + Sync + 'static,
    F: Fn(Handling<O>) -> A + Send + Sync + 'static,
    A: Future<Output: IntoOutcome> + Send + 'static,
{
    async fn handle(&self, delivery: Arc<Delivery>, grant: Arc<Grant>) -> Outcome {
        let handling = Handling {
            delivery,
            outbox: self.outbox.clone(),
            grant: grant.clone(),
        };
        match (self.handler)(handling).await.into_outcome() {
            Outcome::Delivered { .. } | Outcome::Duplicate { .. } if !grant.is_used() => Outcome::unknown(
                "not_settled",
                "the handler answered Ok without settle_in, so its writes may be committed without the settlement; call settle_in before the commit",
            ),
            outcome => outcome,
        }
    }
}

/// What one look at the store found.
enum Found {
    /// Its end is committed, and this follows from it.
    Ended(Next),
    /// Somebody else has ended it.
    Lost,
    /// Nothing is committed yet, and a transaction may be open that will.
    Open,
    /// The same, and its time is over.
    Late,
}

/// Finds out what became of a settlement that a handler has asked for, whatever the handler answered. Ends with the lease.
pub(super) async fn read_back(engine: &Engine, work: &Work, grant: &Grant, answer: Option<Outcome>) -> Next {
    let id = work.grip.lease().id;
    let nothing_happened = grant.settlement(failure(answer));
    let mut wait = WAITS.0;
    // Ends: the deadline moves only while no transaction has the lease locked, and then the look settles it.
    loop {
        let patience = work.grip.remaining().max(LAST_LOOK);
        let found = tokio::time::timeout(patience, look(engine, grant, &nothing_happened)).await;
        match found {
            Ok(Ok(Found::Ended(next))) => return next,
            Ok(Ok(Found::Lost)) => return line::lost(engine, work).await,
            Ok(Ok(Found::Open)) => {}
            Ok(Ok(Found::Late)) | Err(_) => {
                tracing::warn!(%id, "the lease of a handler is over and nothing is committed; if its transaction is open, its end will tell");
                return Next::Fail;
            }
            Ok(Err(error)) => tracing::warn!(%id, %error, "what became of a handler's settlement is not known yet"),
        }
        if work.grip.remaining().is_zero() {
            tracing::warn!(%id, "the lease ended before it was known what became of a handler's settlement; the store will tell");
            return Next::Fail;
        }
        tokio::time::sleep(wait.min(work.grip.remaining())).await;
        wait = (2 * wait).min(WAITS.1);
    }
}

/// What is true if nothing was committed.
fn failure(answer: Option<Outcome>) -> Outcome {
    match answer {
        Some(Outcome::Delivered { .. } | Outcome::Duplicate { .. }) => Outcome::retry(
            "rolled_back",
            "the handler answered Ok, but the transaction in which it settled was not committed",
        ),
        Some(failed) => failed,
        None => Outcome::retry("rolled_back", "the lease could not be renewed while the handler worked"),
    }
}

async fn look(engine: &Engine, grant: &Grant, nothing_happened: &Settlement) -> Result<Found, Error> {
    if let Some(found) = committed(engine, grant).await? {
        return Ok(found);
    }
    let leases = std::slice::from_ref(&grant.lease);
    match engine.store.renew(leases, grant.lasts).await?.first() {
        Some(Renewal::Locked) => Ok(Found::Open),
        Some(Renewal::Renewed) => {
            // Not by way of the settler: it waits here if a commit is just under way, and others must not wait with it.
            let verdicts = engine.store.settle(std::slice::from_ref(nothing_happened)).await?;
            match verdicts.first() {
                Some(Verdict::Settled) if nothing_happened.stops_run() => Ok(Found::Ended(Next::Stop)),
                Some(Verdict::Settled) => Ok(Found::Ended(Next::Go)),
                _ => Ok(Found::Open),
            }
        }
        // It may have ended between the two questions.
        _ => Ok(committed(engine, grant).await?.unwrap_or(Found::Late)),
    }
}

async fn committed(engine: &Engine, grant: &Grant) -> Result<Option<Found>, Error> {
    let fates = engine.store.fates(std::slice::from_ref(&grant.lease)).await?;
    Ok(match fates.first() {
        Some(Fate::Held) => None,
        Some(Fate::Ended(AttemptOutcome::LeaseExpired)) | Some(Fate::Gone) | None => Some(Found::Lost),
        Some(Fate::Ended(outcome)) => {
            if outcome.is_delivery() {
                engine.delivered(&grant.destination);
            }
            Some(Found::Ended(grant.after(*outcome)))
        }
    })
}
