//! The store as a relay sees it: one connection that writes, one that reads, one that watches.
//!
//! SQLite has one writer, so a second writing connection would only wait for the first. The calls block, so they run on
//! the runtime's blocking threads; a call that is given up there still ends as a whole.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Capabilities, Claim, Conflict, Durability, Effect, Enqueued, Error, Fate, Lease, Look, Message, Pause,
    Receipt, Relay, Renewal, SagaId, Settlement, Store, StoreSettings, Upgrade, Verdict, Wake, class,
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, Fenced, Hold, SOON},
    saga::{Change, Found, Start, Started},
    text::excerpt,
};
use rusqlite::{Connection, OptionalExtension, Transaction, params};
use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use crate::{
    Options, Outbox,
    admin::{About, Hand},
    call::{Here, at_once},
    claim, clock, connect, end, enqueue,
    error::{internal, of_file, plain},
    floors::Floors,
    ledger, migrate, presence, rows, saga, settings, settle,
    wake::Watch,
};

const EXPIRED: &str = include_str!("../sql/expired.sql");
const FATE: &str = include_str!("../sql/fate.sql");
const EARLIER: &str = include_str!("../sql/receipt_earlier.sql");
const CONFLICT: &str = include_str!("../sql/conflict.sql");

/// Nobody waits for a relay here; but another migration may take its time.
const MIGRATION_PATIENCE: Duration = Duration::from_secs(30);

/// A store in a SQLite file. A clone is the same handle; another process, or another call of [`Sqlite::open`], has a
/// handle of its own.
#[derive(Clone)]
pub struct Sqlite {
    inner: Arc<Inner>,
}

struct Inner {
    path: PathBuf,
    options: Options,
    writer: Mutex<Connection>,
    reader: Mutex<Connection>,
    watch: Watch,
    floors: Mutex<Floors>,
}

impl Sqlite {
    /// Opens a database that was migrated before. Anything else is refused with an error that names the file and says
    /// what to do.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        Self::open_with(path, Options::default())
    }

    /// The same, with options.
    pub fn open_with(path: impl AsRef<Path>, options: Options) -> Result<Self, Error> {
        let (path, busy) = (path.as_ref(), options.busy_timeout);
        let mut writer = connect::open(path, busy)?;
        migrate::check(path, &writer)?;
        connect::check_writable(path, &mut writer)?;
        let reader = connect::open(path, busy)?;
        // A reader waits only while another process recovers the file after a crash.
        reader.busy_timeout(busy).map_err(plain)?;
        let inner = Inner {
            path: path.to_owned(),
            options,
            writer: Mutex::new(writer),
            reader: Mutex::new(reader),
            watch: Watch::new(connect::open(path, busy)?),
            floors: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Creates the database if it is not there, and brings its schema up to date. Safe to call at any time, also by
    /// several processes at once. Answers what it did.
    pub fn migrate(path: impl AsRef<Path>) -> Result<Upgrade, Error> {
        migrate::migrate(path.as_ref(), MIGRATION_PATIENCE)
    }

    /// What [`migrate`](Self::migrate) would do. Changes nothing, and creates no file.
    pub fn plan_migration(path: impl AsRef<Path>) -> Result<Upgrade, Error> {
        migrate::plan(path.as_ref(), MIGRATION_PATIENCE)
    }

    /// The verbs for an application's own transactions, with the options of this store.
    pub fn outbox(&self) -> Outbox {
        Outbox::new(self.inner.options.clone())
    }

    /// Enqueues in a transaction of its own: for tools that have nothing else to write. All or none.
    pub async fn enqueue_now(&self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        let options = self.inner.options.clone();
        self.write(move |tx| enqueue::enqueue_all(tx, &options, &messages))
            .await
    }

    /// Starts a saga in a transaction of its own: for tools.
    pub async fn start_now(&self, start: Start) -> Result<Started, Error> {
        let options = self.inner.options.clone();
        self.write(move |tx| at_once(saga::start(&mut Here(tx), &options, start)))
            .await
    }

    /// Writes what every producer is held to from now on, in whatever language; before that, a program goes by its [`Options`]. A dedupe
    /// key keeps the lifetime that it was enqueued with.
    pub async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        settings.check()?;
        let settings = settings.clone();
        self.write(move |tx| settings::write(tx, &settings)).await
    }

    /// What every producer is held to, if somebody has said so.
    pub async fn settings(&self) -> Result<Option<StoreSettings>, Error> {
        self.write(settings::stored).await
    }

    pub(crate) fn path(&self) -> &Path {
        &self.inner.path
    }

    /// Runs `work` in a transaction of the one writer, and commits it if it succeeds.
    pub(crate) async fn write<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || inner.write(work)).await
    }

    /// Runs `work` in a write transaction, rolls it back, and returns its answer.
    pub(crate) async fn rehearse<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || inner.transact(work, |tx| tx.rollback())).await
    }

    /// The same, unless a look without the write lock says that there is nothing to do.
    async fn write_if<T: Send + 'static>(
        &self,
        any: fn(&Connection) -> Result<bool, Error>,
        nothing: fn() -> T,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            let found = any(&inner.reader.lock().unwrap_or_else(PoisonError::into_inner))?;
            if found { inner.write(work) } else { Ok(nothing()) }
        })
        .await
    }

    /// Runs `work` on the reading connection. A single statement sees one state of the database.
    pub(crate) async fn read<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> rusqlite::Result<T> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            let reader = inner.reader.lock().unwrap_or_else(PoisonError::into_inner);
            migrate::still_fits(&inner.path, &reader)?;
            work(&reader).map_err(|error| of_file(&inner.path, error))
        })
        .await
    }

    /// Runs a long look on a connection of its own, so that nobody waits for it.
    pub(crate) async fn aside<T: Send + 'static>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        let inner = self.inner.clone();
        blocking(move || {
            let db = connect::open(&inner.path, inner.options.busy_timeout)?;
            migrate::still_fits(&inner.path, &db)?;
            work(&db)
        })
        .await
    }
}

impl Inner {
    fn floors(&self) -> MutexGuard<'_, Floors> {
        self.floors.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write<T>(&self, work: impl FnOnce(&Connection) -> Result<T, Error>) -> Result<T, Error> {
        self.transact(work, |tx| tx.commit())
    }

    fn transact<T>(
        &self,
        work: impl FnOnce(&Connection) -> Result<T, Error>,
        end: fn(Transaction<'_>) -> rusqlite::Result<()>,
    ) -> Result<T, Error> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let tx = connect::begin(&mut writer, self.options.busy_timeout)?;
        // Under the write lock, so that no newer schema can come in between.
        migrate::still_fits(&self.path, &tx)?;
        let answer = work(&tx)?;
        end(tx).map_err(|error| of_file(&self.path, error))?;
        Ok(answer)
    }
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T, Error> + Send + 'static) -> Result<T, Error> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(internal(error)),
        },
    }
}

#[async_trait]
impl Store for Sqlite {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            wakes_across_processes: true,
            parallel_claim: false,
            parallel_callers: false,
            callers_retry: false,
            durability: Durability::Machine,
        }
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        claim.check()?;
        let (claim, mut floors) = (claim.clone(), self.inner.floors().clone());
        let work = move |tx: &Connection| claim::claim(tx, &claim, &mut floors).map(|claimed| Some((claimed, floors)));
        let Some((granted, floors)) = self.write_if(claim::any, || None, work).await? else {
            return Ok(Look::default());
        };
        *self.inner.floors() = floors;
        Ok(Look {
            granted,
            ..Look::default()
        })
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        check_lease(lease)?;
        let leases = leases.to_vec();
        self.write(move |tx| {
            leases
                .iter()
                .map(|held| at_once(end::renew_one(&mut Here(tx), held, lease)))
                .collect()
        })
        .await
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        let (batch, options) = (batch.to_vec(), self.inner.options.clone());
        self.write(move |tx| settle::settle(tx, &options, &batch)).await
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        let leases = leases.to_vec();
        self.read(move |db| leases.iter().map(|lease| fate(db, lease)).collect())
            .await
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        let effects = effects.to_vec();
        self.read(move |db| {
            let mut statement = db.prepare_cached(EARLIER)?;
            let mut earlier = |effect: &Effect| {
                let kept = statement.query_row([effect.as_bytes()], |row| {
                    Ok(Receipt {
                        text: rows::optional_text(row, 0)?,
                    })
                });
                kept.optional()
            };
            effects.iter().map(&mut earlier).collect()
        })
        .await
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        self.read(move |db| {
            db.prepare_cached(EXPIRED)?
                .query_map(params![after, limit], rows::lease)?
                .collect()
        })
        .await
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        let (lease, worker) = (lease.clone(), excerpt(worker, 512));
        self.write(move |tx| record_conflict(tx, &lease, &worker)).await
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        relay.check(ttl)?;
        let relay = relay.clone();
        self.write(move |tx| presence::heartbeat(tx, &relay, ttl)).await
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        let relay = relay.to_owned();
        self.write(move |tx| presence::leave(tx, &relay)).await
    }

    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error> {
        Admin::pause(self, destination, worker, note).await
    }

    async fn begin(&self, ask: &Begin) -> Result<Begun, Error> {
        ask.check()?;
        let (ask, inner) = (ask.clone(), self.inner.clone());
        blocking(move || {
            // What has an answer already needs no write lock, and nobody who has it is waited for.
            let seen = ledger::look(&inner.reader.lock().unwrap_or_else(PoisonError::into_inner), &ask)?;
            match seen.map_or_else(|| inner.write(|tx| ledger::begin(tx, &ask)), Ok) {
                // Somebody writes, whatever it is, and longer than anybody waits for.
                Err(Error::Contention(_)) => Ok(Begun::Busy { retry_after: SOON }),
                answer => answer,
            }
        })
        .await
    }

    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        let (hold, conclusion) = (hold.clone(), conclusion.clone());
        self.write(move |tx| at_once(ledger::conclude(&mut Here(tx), &hold, &conclusion)))
            .await
    }

    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        check_lease(lease)?;
        let hold = hold.clone();
        self.write(move |tx| at_once(ledger::renew(&mut Here(tx), &hold, lease)))
            .await
    }

    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        let (leases, inner) = (leases.to_vec(), self.inner.clone());
        blocking(move || {
            // A message that has its entry already needs no write lock.
            let seen = ledger::look_clear(&inner.reader.lock().unwrap_or_else(PoisonError::into_inner), &leases)?;
            seen.map_or_else(|| inner.write(|tx| ledger::clear(tx, &leases)), Ok)
        })
        .await
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        let (ids, inner) = (ids.to_vec(), self.inner.clone());
        blocking(move || {
            let reader = inner.reader.lock().unwrap_or_else(PoisonError::into_inner);
            migrate::still_fits(&inner.path, &reader)?;
            // One state of the database for all that belongs to a saga.
            let tx = reader.unchecked_transaction().map_err(plain)?;
            Ok(ids.iter().map(|id| saga::load(&tx, &inner.options, *id)).collect())
        })
        .await
    }

    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error> {
        let (change, options) = (change.clone(), self.inner.options.clone());
        self.write(move |tx| end::change_saga(tx, &options, &change)).await
    }

    async fn asleep(&self, _worker: &str, _at_most: Duration) -> Result<(), Error> {
        self.inner.watch.mark()
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        self.inner.watch.wait(at_most).await
    }
}

fn fate(db: &Connection, lease: &Lease) -> rusqlite::Result<Fate> {
    let values = params![lease.seq, rows::epoch(&lease.standing), lease.token.0.as_bytes()];
    db.prepare_cached(FATE)?.query_row(values, |row| {
        let held: bool = row.get(0)?;
        let ended = row.get::<_, Option<rows::Word<_>>>(1)?;
        Ok(match ended {
            _ if held => Fate::Held,
            Some(outcome) => Fate::Ended(outcome.0),
            None => Fate::Gone,
        })
    })
}

fn record_conflict(tx: &Connection, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
    let mut statement = tx.prepare_cached(CONFLICT).map_err(plain)?;
    let found = statement.query_row(params![lease.id.0.as_bytes(), lease.token.0.as_bytes()], |row| {
        Ok(Conflict {
            state: rows::word(row, 0)?,
            worker: rows::optional_text(row, 1)?,
            epoch: row.get::<_, i64>(2)?.unsigned_abs(),
            recorded: row.get(3)?,
        })
    });
    let conflict = found.optional().map_err(plain)?.ok_or(Error::NotFound(lease.id))?;
    if !conflict.recorded {
        return Ok(conflict);
    }
    let hand = Hand {
        actor: worker.to_owned(),
        note: conflict.note(lease),
    };
    hand.sign(tx, clock::now(tx)?, class::CONFLICT, About::Message(lease.id))?;
    Ok(conflict)
}
