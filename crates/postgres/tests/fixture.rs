//! A fresh schema for each test, on the private server that `test.sh` starts; for the cases of the suite a database that was emptied.

use crate::emptied::{self, Taken};
use async_trait::async_trait;
use posthouse_core::{
    Admin, Enqueued, Error, Message, MessageId, Settlement, Store, StoreSettings, Timestamp, Verdict,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use posthouse_postgres::{Options, Outbox, Postgres, Schema};
use posthouse_testkit::{
    Caller, Fixture,
    wrapped::{Call, Hook, Reply, Wrapped},
};
use std::{
    sync::{Arc, Mutex},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio::task::JoinHandle;
use tokio_postgres::{
    Client, NoTls,
    types::{ToSql, Type},
};

/// The server, from `POSTHOUSE_TEST_POSTGRES`. Without one these tests cannot say anything, so they fail.
pub fn url() -> String {
    std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server")
}

/// The same server for another role, which needs no password there.
pub fn url_as(role: &str) -> String {
    let url = url();
    let (scheme, rest) = url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    format!("{scheme}://{role}@{host}")
}

/// The same server through a pooler in transaction mode.
fn pooler() -> String {
    std::env::var("POSTHOUSE_TEST_PGBOUNCER")
        .expect("POSTHOUSE_TEST_PGBOUNCER is not set; run ./test.sh, which starts a private PgBouncer")
}

/// The same server through a pooler in session mode: a client gets a session that an earlier client has used.
pub fn sessions() -> String {
    std::env::var("POSTHOUSE_TEST_SESSIONS")
        .expect("POSTHOUSE_TEST_SESSIONS is not set; run ./test.sh, which starts a private PgBouncer")
}

/// A session of its own, with the task that drives it.
pub async fn session() -> (Client, JoinHandle<()>) {
    session_at(&url()).await
}

/// The same at another address.
pub async fn session_at(url: &str) -> (Client, JoinHandle<()>) {
    let (client, connection) = tokio_postgres::connect(url, NoTls)
        .await
        .expect("the test server answers");
    let driver = tokio::spawn(async move {
        connection.await.ok();
    });
    (client, driver)
}

/// A schema of its own with a clock that stands still.
pub struct PostgresFixture {
    pub schema: Schema,
    /// Where stores and applications connect to.
    url: String,
    /// The same without a pooler.
    direct: String,
    control: Client,
    driver: JoinHandle<()>,
    /// Leases stand together wherever they may.
    together: bool,
    /// Applications' sessions whose last transaction is over, for the next: a new one has everything to learn again.
    idle: Idle,
    /// The database, where it is not the server's first one.
    _taken: Option<Taken>,
}

type Idle = Arc<Mutex<Vec<Session>>>;

/// A session, which ends with this.
struct Session {
    client: Client,
    driver: JoinHandle<()>,
}

impl Drop for Session {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// Claims as one does that settles nothing in a transaction of its own; a worker called `handler` does.
struct Together;

#[async_trait]
impl Hook for Together {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Look(claim) if claim.worker != "handler" => Call::Look(claim.together()).to(store).await,
            call => call.to(store).await,
        }
    }
}

impl PostgresFixture {
    /// A schema that was never used: for tests that change more in it than a store does.
    pub async fn new() -> Self {
        Self::fresh(false).await
    }

    /// The leases of a claim stand together in one record.
    pub async fn together() -> Self {
        Self::fresh(true).await
    }

    /// A database and sessions that earlier cases have used. A new session would compile and plan every function again.
    pub async fn emptied() -> Self {
        let taken = emptied::take().await;
        let url = emptied::at(&sessions(), &taken.name);
        Self::of(taken.schema.clone(), url.clone(), url, false, Some(taken)).await
    }

    /// The same, and everything but the tests' own hand on the clock goes through the pooler; and leases stand together, so that no third run is
    /// needed for those.
    pub async fn pooled() -> Self {
        let taken = emptied::take().await;
        let [through, direct] = [pooler(), sessions()].map(|url| emptied::at(&url, &taken.name));
        Self::of(taken.schema.clone(), through, direct, true, Some(taken)).await
    }

    async fn fresh(together: bool) -> Self {
        let name = format!("t_{}", uuid::Uuid::new_v4().simple());
        let schema = Schema::new(&name).unwrap();
        Postgres::open(&url(), Self::options(&schema))
            .unwrap()
            .migrate()
            .await
            .unwrap();
        let fixture = Self::of(schema, url(), url(), together, None).await;
        fixture.run(include_str!("clock.sql")).await;
        fixture
    }

    async fn of(schema: Schema, url: String, direct: String, together: bool, taken: Option<Taken>) -> Self {
        let (control, driver) = session_at(&direct).await;
        // A dump is a query of many columns on a few rows: the server would compile it for longer than it runs.
        control.batch_execute("SET jit = off").await.unwrap();
        Self {
            schema,
            url,
            direct,
            control,
            driver,
            together,
            idle: Idle::default(),
            _taken: taken,
        }
    }

    /// Looks at the floor in every claim, so that a wrong floor would show.
    pub fn options(schema: &Schema) -> Options {
        Options {
            schema: schema.clone(),
            connections: 4,
            floor_every: Duration::ZERO,
            listen: Some(url()),
            ..Options::default()
        }
    }

    pub async fn open(&self) -> Postgres {
        let mut options = Self::options(&self.schema);
        options.listen = Some(self.direct.clone());
        if self.together {
            options.lot = 1;
        }
        Postgres::connect_with(&self.url, options).await.unwrap()
    }

    /// Runs statements written for the schema `posthouse`.
    pub async fn run(&self, sql: &str) {
        self.control
            .batch_execute(&sql.replace("posthouse.", &format!("{}.", self.schema)))
            .await
            .unwrap();
    }

    /// The first column of the first row, as text.
    pub async fn one(&self, sql: &str) -> String {
        let rows = self
            .control
            .simple_query(&sql.replace("posthouse.", &format!("{}.", self.schema)))
            .await
            .unwrap();
        let found = rows.iter().find_map(|m| match m {
            tokio_postgres::SimpleQueryMessage::Row(row) => Some(row.get(0).unwrap_or("NULL").to_owned()),
            _ => None,
        });
        found.unwrap_or_default()
    }
}

impl Drop for PostgresFixture {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

#[async_trait]
impl Fixture for PostgresFixture {
    async fn store(&self) -> Arc<dyn Store> {
        let store = Arc::new(self.open().await);
        match self.together {
            true => Arc::new(Wrapped::new(store, Together)),
            false => store,
        }
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.open().await)
    }

    async fn begin(&self) -> Box<dyn Caller> {
        let kept = self.idle.lock().unwrap().pop();
        let session = match kept {
            Some(session) => session,
            None => {
                let (client, driver) = session_at(&self.url).await;
                Session { client, driver }
            }
        };
        session.client.batch_execute("BEGIN").await.unwrap();
        Box::new(PostgresCaller {
            session,
            idle: self.idle.clone(),
            outbox: Outbox::in_schema(self.schema.clone()),
            schema: self.schema.clone(),
        })
    }

    async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        self.open().await.configure(settings).await
    }

    async fn settings(&self) -> StoreSettings {
        self.open().await.settings().await.unwrap()
    }

    async fn advance(&self, by: Duration) {
        let sql = format!(
            "UPDATE posthouse.test_clock SET at = at + {} * interval '1 microsecond'",
            by.as_micros()
        );
        self.run(&sql).await;
    }

    async fn hold_up_claims(&self, by: Duration) {
        // Other cases use the database after this one, so no trigger may stay.
        if by.is_zero() {
            return self.run("DROP TRIGGER test_hold_up ON posthouse.leased").await;
        }
        let sql = format!(
            "UPDATE posthouse.test_clock SET claims_take = {} * interval '1 microsecond';
             CREATE OR REPLACE FUNCTION posthouse.test_hold_up() RETURNS trigger LANGUAGE plpgsql AS
                 'BEGIN UPDATE posthouse.test_clock SET at = at + claims_take; RETURN NULL; END';
             CREATE OR REPLACE TRIGGER test_hold_up AFTER INSERT ON posthouse.leased EXECUTE FUNCTION posthouse.test_hold_up()",
            by.as_micros()
        );
        self.run(&sql).await;
    }

    async fn now(&self) -> Timestamp {
        let row = self
            .control
            .query_one(&format!("SELECT {}.clock()", self.schema), &[])
            .await
            .unwrap();
        let at: SystemTime = row.get(0);
        Timestamp::from_micros(at.duration_since(UNIX_EPOCH).unwrap().as_micros() as i64)
    }

    async fn dump(&self) -> String {
        // Whether a lease stands alone or with others is nobody's business.
        const LEASED: &str = "(SELECT l.* FROM posthouse.leased l UNION ALL
            SELECT s, l.token, l.until, l.started_at, l.lane, NULL, NULL, NULL, 1, 1, 1, octet_length(m.payload), NULL, l.max_attempts, 0::smallint, false, l.worker, NULL
            FROM posthouse.lot l CROSS JOIN LATERAL posthouse.numbers(l.seqs) s JOIN posthouse.message m ON m.seq = s)";
        const TABLES: [&str; 13] = [
            "message", "ready", "sched", "parked", "keyed", "leased", "attempt", "dead", "dedupe", "audit", "receipt",
            "resolved", "settings",
        ];
        let mut lines = Vec::new();
        for table in TABLES {
            let from = match table {
                "leased" => LEASED.replace("posthouse.", &format!("{}.", self.schema)),
                table => format!("{}.{table}", self.schema),
            };
            let sql = format!("SELECT to_jsonb(x)::text FROM {from} x ORDER BY 1");
            let rows = self.control.query(&sql, &[]).await.unwrap();
            lines.extend(rows.iter().map(|row| format!("{table} {}", row.get::<_, String>(0))));
        }
        lines.join("\n")
    }

    async fn notes(&self) -> Vec<String> {
        let rows = self
            .control
            .query(&format!("SELECT line FROM {}.test_note ORDER BY n", self.schema), &[])
            .await
            .unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// Tests beside this one have transactions of their own on the same server.
    async fn pass(&self) {
        let own: i64 = self.one("SELECT pg_current_xact_id()").await.parse().unwrap();
        // Ends: no test keeps a transaction open for ever.
        while self
            .one("SELECT pg_snapshot_xmin(pg_current_snapshot())")
            .await
            .parse::<i64>()
            .unwrap()
            <= own
        {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// The first of a key is never behind: its key would wait for ever. And what waits for its time or a topic says for which.
    async fn check(&self) {
        let sql = format!(
            "SELECT count(*) FROM (SELECT DISTINCT ON (lane, key_hash, key) * FROM {schema}.keyed ORDER BY lane, key_hash, key, pos) k
             WHERE k.wait = 2 OR (k.wait = 3) <> (k.topic IS NOT NULL) OR k.wait = 0 AND k.due_at = 'infinity'",
            schema = self.schema
        );
        let row = self.control.query_one(&sql, &[]).await.unwrap();
        assert_eq!(row.get::<_, i64>(0), 0, "a key whose head is marked wrongly");
    }
}

/// An application's session with an open transaction. Statements are sent one by one, as any driver does.
struct PostgresCaller {
    session: Session,
    idle: Idle,
    outbox: Outbox,
    schema: Schema,
}

/// The open transaction of a session that owns itself: what an adapter for one more driver looks like.
struct Open<'a>(&'a Client);

impl posthouse_postgres::Run for Open<'_> {
    async fn run(&mut self, call: &posthouse_postgres::Call) -> Result<Option<Vec<Option<String>>>, Error> {
        let args: Vec<_> = call.args.iter().map(as_sql).collect();
        match self.0.query_typed(&call.sql, &args).await {
            Ok(rows) => Ok(rows[0].get(0)),
            Err(e) => {
                let db = e.as_db_error().expect("a database error").clone();
                Err(posthouse_postgres::from_sqlstate(
                    db.code().code(),
                    db.message(),
                    db.detail(),
                    db.hint(),
                    e.into(),
                ))
            }
        }
    }
}

fn as_sql(arg: &posthouse_postgres::Arg) -> (&(dyn ToSql + Sync), Type) {
    use posthouse_postgres::Arg;
    match arg {
        Arg::Uuids(v) => (v, Type::UUID_ARRAY),
        Arg::Texts(v) => (v, Type::TEXT_ARRAY),
        Arg::Blobs(v) => (v, Type::BYTEA_ARRAY),
        Arg::Longs(v) => (v, Type::INT8_ARRAY),
        Arg::Flags(v) => (v, Type::BOOL_ARRAY),
        Arg::Flag(v) => (v, Type::BOOL),
    }
}

#[async_trait]
impl Caller for PostgresCaller {
    async fn note(&mut self, line: &str) {
        self.session
            .client
            .query_typed(
                &format!("INSERT INTO {}.test_note (line) VALUES ($1)", self.schema),
                &[(&line, Type::TEXT)],
            )
            .await
            .unwrap();
    }

    async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error> {
        self.outbox.enqueue(&mut Open(&self.session.client), message).await
    }

    async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        self.outbox.enqueue_all(&mut Open(&self.session.client), messages).await
    }

    async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        self.outbox.settle_in(&mut Open(&self.session.client), settlement).await
    }

    async fn conclude_in(&mut self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        self.outbox
            .conclude_in(&mut Open(&self.session.client), hold, conclusion)
            .await
    }

    async fn leave_in(&mut self, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        self.outbox
            .leave_in(&mut Open(&self.session.client), hold, message)
            .await
    }

    async fn reach_in(&mut self, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        self.outbox
            .reach_in(&mut Open(&self.session.client), hold, checkpoint)
            .await
    }

    async fn renew_in(&mut self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        self.outbox.renew_in(&mut Open(&self.session.client), hold, lease).await
    }

    async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error> {
        self.outbox.once(&mut Open(&self.session.client), consumer, id).await
    }

    async fn start(&mut self, start: Start) -> Result<Started, Error> {
        self.outbox.start(&mut Open(&self.session.client), start).await
    }

    async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error> {
        self.outbox
            .do_once(&mut Open(&self.session.client), consumer, key)
            .await
    }

    async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error> {
        self.outbox
            .undo_once(&mut Open(&self.session.client), consumer, key)
            .await
    }

    async fn commit(self: Box<Self>) -> Result<(), Error> {
        let committed = self.session.client.batch_execute("COMMIT").await;
        committed.map_err(|e| Error::Internal(e.into()))?;
        self.idle.lock().unwrap().push(self.session);
        Ok(())
    }

    async fn rollback(self: Box<Self>) {
        self.session.client.batch_execute("ROLLBACK").await.unwrap();
        self.idle.lock().unwrap().push(self.session);
    }
}
