//! The relay's handle on a PostgreSQL database.

use async_trait::async_trait;
use deadpool_postgres::{Manager, ManagerConfig, Pool, RecyclingMethod};
use posthouse_core::{
    Admin, Capabilities, Claim, Conflict, Durability, Effect, Enqueued, Error, Fate, Lease, Limits, Look, Message,
    Pause, Receipt, Relay, Renewal, SagaId, Settlement, Store, StoreSettings, Verdict, Wake,
    lease::check_lease,
    ledger::{Begin, Begun, Clearance, Conclusion, Fenced, Hold},
    saga::{Change, Found, Start, Started},
    text::error_text,
};
use std::{
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio_postgres::{
    Row,
    types::{ToSql, Type},
};

use crate::{
    Outbox, Schema,
    below::Pass,
    call::answer,
    enqueue::millis,
    error::from_driver,
    floors::FloorBook,
    lent::{Lender, Lost, WAIT, heard, heard_within},
    reach::Target,
    rows, settle,
    tls::Connector,
    wake::Bell,
};

/// What a handle may be told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The schema.
    pub schema: Schema,
    /// The most connections.
    pub connections: usize,
    /// The limits of what is enqueued through this handle, besides those that the store holds everybody to.
    pub limits: Limits,
    /// How often the floor below which nothing new can appear is looked at. Zero: at every claim.
    pub floor_every: Duration,
    /// How often it is looked, beside the claims, for what a claim that failed left below the floors.
    pub full_pass_every: Duration,
    /// From how many messages on the leases of a claim stand together in one record, where the claim allows it.
    pub lot: u32,
    /// A URL of the server itself to listen at, when the other one goes through a pooler in transaction mode, which cannot. Without
    /// it a relay behind a pooler is not woken, and polls.
    pub listen: Option<String>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            schema: Schema::default(),
            connections: 16,
            limits: Limits::default(),
            floor_every: Duration::from_millis(500),
            full_pass_every: Duration::from_secs(30),
            lot: 16,
            listen: None,
        }
    }
}

/// A database with Posthouse's schema in it.
pub struct Postgres {
    pub(crate) lender: Lender,
    pub(crate) schema: Schema,
    pub(crate) options: Options,
    pub(crate) floors: Arc<Mutex<FloorBook>>,
    pub(crate) bell: Bell,
    /// What is under way beside the claims.
    pub(crate) pass: Pass,
}

impl Postgres {
    /// Opens a database whose schema [`migrate`](Self::migrate) has made. Says clearly when it has not, or by another version.
    ///
    /// Connections are encrypted as `sslmode` and `sslrootcert` in the URL say, with libpq's meaning of them:
    ///
    /// | `sslmode` | encrypted | the server's certificate |
    /// |---|---|---|
    /// | `disable` | no | |
    /// | `prefer` (when none is given) | if the server can | any |
    /// | `require` | yes | any; with `sslrootcert` it must come from there |
    /// | `verify-ca` | yes | from an authority in the file `sslrootcert`, else one that the system trusts |
    /// | `verify-full` | yes | the same, and made for the host in the URL |
    ///
    /// The last three need the feature `tls`; without it, `prefer` is `disable`.
    pub async fn connect(url: &str) -> Result<Self, Error> {
        Self::connect_with(url, Options::default()).await
    }

    /// The same with options.
    pub async fn connect_with(url: &str, options: Options) -> Result<Self, Error> {
        let store = Self::open(url, options)?;
        heard(store.check_schema()).await?;
        Ok(store)
    }

    /// A handle that has not looked at the database yet: for [`migrate`](Self::migrate).
    pub fn open(url: &str, options: Options) -> Result<Self, Error> {
        let target = Target::read(url)?;
        let manager = Manager::from_config(
            target.config.clone(),
            Connector::clone(&target.tls),
            ManagerConfig {
                recycling_method: RecyclingMethod::Fast,
            },
        );
        let lost = Lost::default();
        let pool = Pool::builder(manager)
            .pre_recycle(lost.in_pool())
            .max_size(options.connections)
            .runtime(deadpool_postgres::Runtime::Tokio1)
            .wait_timeout(Some(WAIT))
            .create_timeout(Some(target.within()))
            .build()
            .map_err(|e| Error::Internal(e.into()))?;
        let direct = match &options.listen {
            Some(url) => Target::read(url)?,
            None => target.clone(),
        };
        let bell = Bell::new(direct, options.schema.clone());
        Ok(Self {
            lender: Lender::new(pool, target, lost),
            schema: options.schema.clone(),
            options,
            floors: Arc::default(),
            bell,
            pass: Pass::default(),
        })
    }

    /// Enqueues in a transaction of its own: for tools, not for applications that have a change to commit with it.
    pub async fn enqueue_now(&self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        let mut client = self.lender.client().await?;
        let mut tx = client.transaction().await.map_err(from_driver)?;
        let outbox = Outbox::in_schema(self.schema.clone()).limits(self.options.limits.clone());
        let answers = outbox.enqueue_all(&mut tx, messages).await?;
        tx.commit().await.map_err(from_driver)?;
        Ok(answers)
    }

    /// Starts a saga in a transaction of its own: for tools.
    pub async fn start_now(&self, start: Start) -> Result<Started, Error> {
        let mut client = self.lender.client().await?;
        let mut tx = client.transaction().await.map_err(from_driver)?;
        let outbox = Outbox::in_schema(self.schema.clone()).limits(self.options.limits.clone());
        let started = outbox.start(&mut tx, start).await?;
        tx.commit().await.map_err(from_driver)?;
        Ok(started)
    }

    /// Writes what every producer is held to from now on, in whatever language. Needs the rights of the schema's owner: those of a
    /// relay are not enough, because it must not loosen what holds for others.
    pub async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        settings.check()?;
        let payload_bytes = i32::try_from(settings.limits.payload_bytes).unwrap_or(i32::MAX);
        let max_attempts = i32::try_from(settings.max_attempts).unwrap_or(i32::MAX);
        let lifetime = settings.dedupe_lifetime.map(millis);
        let args: Args<'_> = &[
            (&payload_bytes, Type::INT4),
            (&settings.limits.require_tenant, Type::BOOL),
            (&max_attempts, Type::INT4),
            (&lifetime, Type::INT8),
        ];
        let sql = self.schema.apply(include_str!("../sql/configure.sql"));
        self.query(&sql, args).await.map(drop)
    }

    /// What every producer is held to. For the schema's owner.
    pub async fn settings(&self) -> Result<StoreSettings, Error> {
        let sql = self.schema.apply(include_str!("../sql/configured.sql"));
        let rows = self.query(&sql, &[]).await?;
        let row = rows.first().ok_or_else(|| Error::Internal("no settings".into()))?;
        let payload_bytes: i32 = row.try_get(0).map_err(from_driver)?;
        let max_attempts: i32 = row.try_get(2).map_err(from_driver)?;
        let lifetime: Option<i64> = row.try_get(3).map_err(from_driver)?;
        Ok(StoreSettings {
            limits: Limits {
                payload_bytes: payload_bytes.unsigned_abs() as usize,
                require_tenant: row.try_get(1).map_err(from_driver)?,
            },
            max_attempts: max_attempts.unsigned_abs(),
            dedupe_lifetime: lifetime.map(|ms| Duration::from_millis(ms.unsigned_abs())),
        })
    }

    /// Runs one statement as a transaction of its own, and again while it only lost a race.
    pub(crate) async fn query(&self, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let rows = self.query_if(sql, args, || true).await?;
        Ok(rows.unwrap_or_default())
    }

    /// The same, but each run asks `holds` after it has a connection, and sends nothing and returns `None` if that is false.
    pub(crate) async fn query_if(
        &self,
        sql: &str,
        args: Args<'_>,
        holds: impl Fn() -> bool + Send + Sync,
    ) -> Result<Option<Vec<Row>>, Error> {
        let mut patience = Patience::default();
        loop {
            let answer = async {
                let lent = self.lender.lend().await?;
                if !holds() {
                    lent.answered();
                    return Ok(None);
                }
                self.lender.query_on(lent, sql, args).await.map(Some)
            };
            match answer.await {
                Err(e) if patience.again(&e).await => {}
                Err(e) => return Err(self.told(e).await),
                answer => return answer,
            }
        }
    }
}

/// The arguments of a statement, with their types: so it needs no name on the server, which is what lets it pass through a
/// pooler in transaction mode.
pub(crate) type Args<'a> = &'a [(&'a (dyn ToSql + Sync), Type)];

/// How long the engine's own transactions put up with losing races in the database (L7). Nothing is counted for it.
#[derive(Default)]
pub(crate) struct Patience {
    lost: u32,
}

impl Patience {
    /// Whether to run it again; waits a little before it says yes.
    pub(crate) async fn again(&mut self, e: &Error) -> bool {
        if !matches!(e, Error::Contention(_)) || self.lost >= 8 {
            return false;
        }
        self.lost += 1;
        // Spread by a number that differs between contenders, so that they do not meet again.
        let spread = u64::from(uuid::Uuid::new_v4().as_bytes()[0] % 8);
        tokio::time::sleep(Duration::from_millis(u64::from(self.lost * self.lost) + spread)).await;
        true
    }
}

#[async_trait]
impl Store for Postgres {
    fn capabilities(&self) -> Capabilities {
        Capabilities {
            wakes_across_processes: true,
            parallel_claim: true,
            parallel_callers: true,
            callers_retry: false,
            durability: Durability::Machine,
        }
    }

    async fn look(&self, claim: &Claim) -> Result<Look, Error> {
        claim.check()?;
        // A grant that comes after its lease would be of no use; before that it is.
        heard_within(claim.lease, self.grant(claim)).await
    }

    async fn renew(&self, leases: &[Lease], lease: Duration) -> Result<Vec<Renewal>, Error> {
        check_lease(lease)?;
        let seqs: Vec<_> = leases.iter().map(|l| l.seq).collect();
        let tokens: Vec<_> = leases.iter().map(|l| l.token.0).collect();
        let sql = format!("SELECT {}.renew($1, $2, $3)", self.schema);
        let args: Args<'_> = &[
            (&seqs, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&millis(lease), Type::INT8),
        ];
        let answers = answer(heard(self.query(&sql, args)).await?)?.unwrap_or_default();
        Ok(answers
            .iter()
            .map(|a| match a.as_deref() {
                Some("renewed") => Renewal::Renewed,
                Some("locked") => Renewal::Locked,
                _ => Renewal::Lost,
            })
            .collect())
    }

    async fn fates(&self, leases: &[Lease]) -> Result<Vec<Fate>, Error> {
        let seqs: Vec<_> = leases.iter().map(|l| l.seq).collect();
        let tokens: Vec<_> = leases.iter().map(|l| l.token.0).collect();
        let epoch = |l: &Lease| i64::try_from(l.standing.epoch).unwrap_or(i64::MAX);
        let epochs: Vec<_> = leases.iter().map(epoch).collect();
        let sql = format!("SELECT {}.fates($1, $2, $3)", self.schema);
        let args: Args<'_> = &[
            (&seqs, Type::INT8_ARRAY),
            (&tokens, Type::UUID_ARRAY),
            (&epochs, Type::INT8_ARRAY),
        ];
        let answers = answer(heard(self.query(&sql, args)).await?)?.unwrap_or_default();
        settle::read_fates(&answers, leases.len())
    }

    async fn settle(&self, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
        heard(self.settle_batch(batch)).await
    }

    async fn earlier_receipts(&self, effects: &[Effect]) -> Result<Vec<Option<Receipt>>, Error> {
        let hashes: Vec<_> = effects.iter().map(Effect::as_bytes).collect();
        let sql = format!("SELECT o, receipt FROM {}.earlier_receipts($1)", self.schema);
        let mut receipts = vec![None; effects.len()];
        for row in self.query(&sql, &[(&hashes, Type::BYTEA_ARRAY)]).await? {
            let (at, receipt) = rows::receipt(&row)?;
            if let Some(place) = receipts.get_mut(at) {
                *place = Some(receipt);
            }
        }
        Ok(receipts)
    }

    async fn expired(&self, after: i64, limit: u32) -> Result<Vec<Lease>, Error> {
        let sql = format!("SELECT * FROM {}.expired($1, $2)", self.schema);
        let limit = i32::try_from(limit).unwrap_or(i32::MAX);
        let rows = heard(self.query(&sql, &[(&after, Type::INT8), (&limit, Type::INT4)])).await?;
        rows.iter().map(rows::expired_lease).collect()
    }

    async fn record_conflict(&self, lease: &Lease, worker: &str) -> Result<Conflict, Error> {
        let sql = format!(
            "SELECT state, worker, epoch, recorded FROM {}.record_conflict($1, $2, $3, $4)",
            self.schema
        );
        let worker = error_text(worker);
        let epoch = i64::try_from(lease.standing.epoch).unwrap_or(i64::MAX);
        let args: Args<'_> = &[
            (&lease.id.0, Type::UUID),
            (&lease.token.0, Type::UUID),
            (&worker, Type::TEXT),
            (&epoch, Type::INT8),
        ];
        let rows = heard(self.query(&sql, args)).await?;
        rows.first()
            .map(rows::conflict)
            .unwrap_or_else(|| Err(Error::NotFound(lease.id)))
    }

    async fn heartbeat(&self, relay: &Relay, ttl: Duration) -> Result<Vec<Pause>, Error> {
        relay.check(ttl)?;
        // The schema may have been upgraded since it was opened.
        heard(self.check_schema()).await?;
        let info = serde_json::to_value(relay).map_err(|e| Error::Internal(e.into()))?;
        let sql = self.schema.apply("SELECT * FROM posthouse.heartbeat($1, $2, $3)");
        let args: Args<'_> = &[
            (&relay.name, Type::TEXT),
            (&millis(ttl), Type::INT8),
            (&info, Type::JSONB),
        ];
        heard(self.query(&sql, args)).await?.iter().map(rows::pause).collect()
    }

    async fn leave(&self, relay: &str) -> Result<(), Error> {
        let sql = self.schema.apply("SELECT posthouse.leave($1)");
        heard(self.query(&sql, &[(&relay, Type::TEXT)])).await.map(drop)
    }

    async fn gone(&self, destination: &str, worker: &str, note: &str) -> Result<(), Error> {
        heard(Admin::pause(self, destination, worker, note)).await
    }

    async fn begin(&self, ask: &Begin) -> Result<Begun, Error> {
        ask.check()?;
        heard(self.begin_entry(ask)).await
    }

    async fn conclude(&self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        heard(self.conclude_entry(hold, conclusion)).await
    }

    async fn renew_hold(&self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        heard(self.renew_entry(hold, lease)).await
    }

    async fn clear(&self, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
        heard(self.clear_messages(leases)).await
    }

    async fn load_sagas(&self, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
        heard(self.load(ids)).await
    }

    async fn change_saga(&self, change: &Change) -> Result<Verdict, Error> {
        heard(self.change(change)).await
    }

    async fn asleep(&self, worker: &str, at_most: Duration) -> Result<(), Error> {
        self.bell.listen();
        let (bell, worker) = (self.bell.id(), error_text(worker));
        let sql = format!("SELECT {}.fall_asleep($1, $2, $3)", self.schema);
        let args: Args<'_> = &[
            (&bell, Type::UUID),
            (&worker, Type::TEXT),
            (&millis(at_most), Type::INT8),
        ];
        heard(self.query(&sql, args)).await?;
        self.bell.mark(&worker);
        Ok(())
    }

    async fn wake(&self, at_most: Duration) -> Result<Wake, Error> {
        self.bell.wait(at_most).await
    }
}
