//! Making and upgrading the schema.

use posthouse_core::{Error, Fit, Invalid, Migration, RolePlan, SchemaVersion, Upgrade};
use std::time::{Duration, Instant};
use tokio_postgres::{Client, GenericClient, IsolationLevel, Row, Transaction, error::SqlState, types::Type};

use crate::{Postgres, error::from_driver, lent::heard, objects};

/// The schema version that this library makes and needs.
pub const SCHEMA_VERSION: i32 = 1;
/// The oldest library version (by its `SCHEMA_VERSION`) that can work on the schema this one makes.
const OLDEST_COMPATIBLE: i32 = 1;
const TARGET: SchemaVersion = SchemaVersion {
    version: SCHEMA_VERSION as i64,
    oldest: OLDEST_COMPATIBLE as i64,
};

/// Changes of the tables, in order: number, name, text. Never edited once released.
///
/// One that raises `OLDEST_COMPATIBLE` also renames, or drops, what older programs call and would call wrongly: that is how one that
/// is running is stopped.
pub const MIGRATIONS: [(i32, &str, &str); 1] = [(1, "tables", include_str!("../migrations/0001_tables.sql"))];

/// The functions and views: there is one text of each, not a history. Every migration applies those that differ.
pub const FUNCTIONS: [(&str, &str); 36] = [
    ("clock", include_str!("../sql/clock.sql")),
    ("words", include_str!("../sql/words.sql")),
    ("lane", include_str!("../sql/lane.sql")),
    ("ranges", include_str!("../sql/ranges.sql")),
    ("messages", include_str!("../sql/messages.sql")),
    ("take_turns", include_str!("../sql/take_turns.sql")),
    ("ring", include_str!("../sql/ring.sql")),
    ("find_twins", include_str!("../sql/find_twins.sql")),
    ("enqueue_many", include_str!("../sql/enqueue_many.sql")),
    ("enqueue", include_str!("../sql/enqueue.sql")),
    ("promote", include_str!("../sql/promote.sql")),
    ("lanes", include_str!("../sql/lanes.sql")),
    ("lots", include_str!("../sql/lots.sql")),
    ("grant_leases", include_str!("../sql/grant_leases.sql")),
    ("pick_ready", include_str!("../sql/pick_ready.sql")),
    ("pick_keyed", include_str!("../sql/pick_keyed.sql")),
    ("sample_floor", include_str!("../sql/sample_floor.sql")),
    ("settle", include_str!("../sql/settle.sql")),
    ("check_dedup", include_str!("../sql/check_dedup.sql")),
    (
        "complete_outbox_attempt",
        include_str!("../sql/complete_outbox_attempt.sql"),
    ),
    ("renew_lease", include_str!("../sql/renew_lease.sql")),
    ("expired", include_str!("../sql/expired.sql")),
    ("claim_outbox_batch", include_str!("../sql/claim_outbox_batch.sql")),
    ("record_conflict", include_str!("../sql/record_conflict.sql")),
    ("operator", include_str!("../sql/operator.sql")),
    ("ledger", include_str!("../sql/ledger.sql")),
    ("ledger_relay", include_str!("../sql/ledger_relay.sql")),
    ("ledger_contract", include_str!("../sql/ledger_contract.sql")),
    ("saga", include_str!("../sql/saga.sql")),
    ("prune", include_str!("../sql/prune.sql")),
    ("find_messages", include_str!("../sql/find_messages.sql")),
    ("find_entries", include_str!("../sql/find_entries.sql")),
    ("counts", include_str!("../sql/counts.sql")),
    ("presence", include_str!("../sql/presence.sql")),
    ("roles", include_str!("../sql/roles.sql")),
    ("import_history", include_str!("../sql/import_history.sql")),
];

impl Postgres {
    /// Makes the schema, or brings it up to this version: one transaction, guarded against a second migrator. Answers what it did.
    ///
    /// It changes only the objects that differ, and locks nothing if none does. It waits for a lock that other sessions hold, 300 ms at first and 5 s at most, then releases all and tries
    /// again, for up to 60 s. A migration that fails changes nothing.
    pub async fn migrate(&self) -> Result<Upgrade, Error> {
        self.migrate_reporting(&|_| {}).await
    }

    /// The same, and reports each wait as it begins.
    pub async fn migrate_reporting(&self, report: Report<'_>) -> Result<Upgrade, Error> {
        let mut retries = Retries::default();
        loop {
            match self.migrate_once(retries.first_wait(), report).await {
                Err(e) if retries.again(&e, report).await => {}
                answer => return answer.map_err(|e| retries.given_up(e)),
            }
        }
    }

    async fn migrate_once(&self, first_wait: Duration, report: Report<'_>) -> Result<Upgrade, Error> {
        let mut client = self.lender.client().await?;
        self.check_server(&client).await?;
        let tx = take_turn(&mut client, first_wait, report).await?;
        if !self.standing(&tx).await? {
            let make = self.schema.apply("CREATE SCHEMA posthouse");
            tx.batch_execute(&make).await.map_err(from_driver)?;
        }
        tx.batch_execute(&self.schema.apply(include_str!("../sql/migrate_make.sql")))
            .await
            .map_err(from_driver)?;
        let rows = tx.query_typed(&self.schema.apply(VERSION), &[]).await;
        let upgrade = self.upgrade(version(&rows.map_err(from_driver)?)?)?;
        if upgrade.fit == Fit::Newer {
            return Ok(upgrade);
        }
        for wanted in &upgrade.migrations {
            for (_, _, sql) in MIGRATIONS.iter().filter(|m| i64::from(m.0) == wanted.version) {
                tx.batch_execute(&self.schema.apply(sql)).await.map_err(from_driver)?;
            }
        }
        objects::apply(&tx, &self.schema).await?;
        let end = self.schema.apply(include_str!("../sql/migrate_end.sql"));
        tx.query_typed(&end, &[(&SCHEMA_VERSION, Type::INT4), (&OLDEST_COMPATIBLE, Type::INT4)])
            .await
            .map_err(from_driver)?;
        let grants = self.schema.apply(include_str!("../sql/migrate_grants.sql"));
        for grant in statements(&tx, &grants).await? {
            tx.batch_execute(&grant).await.map_err(from_driver)?;
        }
        tx.commit().await.map_err(from_driver)?;
        Ok(upgrade)
    }

    /// What [`migrate`](Self::migrate) would do. Changes nothing and locks nothing.
    pub async fn plan_migration(&self) -> Result<Upgrade, Error> {
        let look = async {
            let client = self.lender.client().await?;
            self.check_server(&client).await?;
            self.standing(&**client).await?;
            self.found(&client).await
        };
        self.upgrade(heard(look).await?)
    }

    /// Whether the schema is there. Refuses one that holds what is not ours: rights in it would be revoked.
    async fn standing(&self, client: &impl GenericClient) -> Result<bool, Error> {
        let (sql, name) = (include_str!("../sql/standing.sql"), self.schema.as_str());
        let rows = client.query_typed(sql, &[(&name, Type::TEXT)]).await;
        let rows = rows.map_err(from_driver)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::Internal("the server says nothing about the schema".into()))?;
        if let Some(foreign) = row.try_get::<_, Option<String>>(1).map_err(from_driver)? {
            return Err(Error::Schema(format!(
                "schema {name} is in use by something else: it holds {foreign}, and no Posthouse; choose another schema, or move that away"
            )));
        }
        row.try_get(0).map_err(from_driver)
    }

    fn upgrade(&self, found: Option<SchemaVersion>) -> Result<Upgrade, Error> {
        let all = MIGRATIONS.map(|(version, name, _)| Migration {
            version: version.into(),
            name,
        });
        Upgrade::plan(&self.place(), found, TARGET, all, FUNCTIONS.len())
    }

    /// Makes the roles of the schema (`posthouse_owner`, `_producer`, `_relay`, `_operator`, `_viewer`), or brings their rights up
    /// to date, and answers their names. Nobody can log in as one of them: grant them to those who can.
    ///
    /// It changes only the rights that differ. The tables get their owner one by one, so that no two of them are locked at a time.
    pub async fn make_roles(&self) -> Result<Vec<String>, Error> {
        self.make_roles_reporting(&|_| {}).await
    }

    /// The same, and reports each wait as it begins.
    pub async fn make_roles_reporting(&self, report: Report<'_>) -> Result<Vec<String>, Error> {
        self.check_schema().await?;
        let mut retries = Retries::default();
        let made = loop {
            match self.grant_roles(report).await {
                Err(e) if retries.again(&e, report).await => {}
                answer => break answer.map_err(|e| retries.given_up(e))?,
            }
        };
        // Ends: each round gives one relation its owner, or uses up the retries.
        loop {
            match self.move_one_relation(retries.first_wait(), report).await {
                Ok(true) => retries.succeeded(),
                Ok(false) => return Ok(made),
                Err(e) if retries.again(&e, report).await => {}
                Err(e) => return Err(retries.given_up(e)),
            }
        }
    }

    async fn grant_roles(&self, report: Report<'_>) -> Result<Vec<String>, Error> {
        let mut client = self.lender.client().await?;
        let tx = take_turn(&mut client, objects::LOCKS, report).await?;
        let names = statements(&tx, &self.schema.apply("SELECT posthouse.grant_roles()")).await?;
        tx.commit().await.map_err(from_driver)?;
        Ok(names)
    }

    /// Gives one table, view or type of the schema to its owner. Answers whether there was one.
    async fn move_one_relation(&self, first_wait: Duration, report: Report<'_>) -> Result<bool, Error> {
        let mut client = self.lender.client().await?;
        let tx = take_turn(&mut client, first_wait, report).await?;
        let moves = statements(&tx, &self.schema.apply("SELECT posthouse.owner_changes()")).await?;
        let Some(first) = moves.first() else { return Ok(false) };
        tx.batch_execute(first).await.map_err(from_driver)?;
        tx.commit().await.map_err(from_driver)?;
        Ok(true)
    }

    /// What [`make_roles`](Self::make_roles) would make and grant. Changes nothing, and needs no schema yet.
    pub async fn plan_roles(&self) -> Result<Vec<RolePlan>, Error> {
        // The body of the function that make_roles reads the same list from.
        let rights = include_str!("../sql/roles.sql").split("$$").nth(1).unwrap_or_default();
        let sql = format!(
            "SELECT n.name, EXISTS (SELECT FROM pg_roles p WHERE p.rolname = n.name), r.functions, r.tables
             FROM ({rights}) r (suffix, functions, tables) CROSS JOIN LATERAL (SELECT $1 || '_' || r.suffix) n (name)"
        );
        let rows = self.query(&sql, &[(&self.schema.as_str(), Type::TEXT)]).await?;
        let plan = |row: &Row| {
            Ok(RolePlan {
                name: row.try_get(0)?,
                exists: row.try_get(1)?,
                execute: row.try_get(2)?,
                select: row.try_get(3)?,
            })
        };
        rows.iter().map(|row| plan(row).map_err(from_driver)).collect()
    }

    /// Refuses a schema whose name would need quotes, and a database that cannot hold every text.
    async fn check_server(&self, client: &Client) -> Result<(), Error> {
        let encoding = self.check_name(client).await?;
        if encoding == "UTF8" {
            return Ok(());
        }
        Err(Error::Schema(format!(
            "the database has the encoding {encoding}, which has not every character; make another one: \
             CREATE DATABASE name ENCODING 'UTF8' TEMPLATE template0"
        )))
    }

    /// Refuses a schema whose name would need quotes. Answers the encoding of the database, and notes how it begins transactions.
    async fn check_name(&self, client: &Client) -> Result<String, Error> {
        let (sql, name) = (include_str!("../sql/server.sql"), self.schema.as_str());
        let rows = client
            .query_typed(sql, &[(&name, Type::TEXT)])
            .await
            .map_err(from_driver)?;
        let row = rows
            .first()
            .ok_or_else(|| Error::Internal("the server says nothing about itself".into()))?;
        self.lender.set_explicit(row.try_get(2).map_err(from_driver)?);
        if row.try_get(0).map_err(from_driver)? {
            return row.try_get(1).map_err(from_driver);
        }
        let problem = format!("{name:?} is a reserved word of PostgreSQL; choose another name");
        Err(Invalid::new("schema", problem).into())
    }

    /// Refuses a schema that is missing, older than this library, or newer than it can work with.
    pub(crate) async fn check_schema(&self) -> Result<(), Error> {
        let mut lent = self.lender.lend().await?;
        let found = self.find(lent.client()).await;
        lent.answered();
        TARGET.check(&self.place(), found?)
    }

    async fn find(&self, client: &Client) -> Result<Option<SchemaVersion>, Error> {
        self.check_name(client).await?;
        self.found(client).await
    }

    /// What to say of an error: when something of the schema is not there, whether the schema has been upgraded since it was
    /// opened is what matters.
    pub(crate) async fn told(&self, error: Error) -> Error {
        match error {
            Error::Schema(text) => match self.check_schema().await {
                Err(better @ Error::Schema(_)) => better,
                _ => Error::Schema(text),
            },
            other => other,
        }
    }

    fn place(&self) -> String {
        format!("schema {}", self.schema)
    }

    /// The version of the schema; none when there is no schema.
    async fn found(&self, client: &Client) -> Result<Option<SchemaVersion>, Error> {
        match client.query_typed(&self.schema.apply(VERSION), &[]).await {
            Ok(rows) => version(&rows),
            // No such schema, or no such table in it.
            Err(e) if matches!(e.code().map(SqlState::code), Some("3F000" | "42P01")) => Ok(None),
            Err(e) => Err(from_driver(e)),
        }
    }
}

/// Receives a sentence for each wait of a migration, as the wait begins.
pub type Report<'a> = &'a (dyn Fn(&str) + Send + Sync);

/// Begins a transaction that changes the schema, after any other migrator's. READ COMMITTED, whatever the database's default is: a migrator that waited must
/// see the changes of the one before it.
///
/// It waits for its first lock for at most `first_wait`.
async fn take_turn<'a>(
    client: &'a mut Client,
    first_wait: Duration,
    report: Report<'_>,
) -> Result<Transaction<'a>, Error> {
    let begin = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted);
    let tx = begin.start().await.map_err(from_driver)?;
    tx.batch_execute(include_str!("../sql/migrate_begin.sql"))
        .await
        .map_err(from_driver)?;
    let rows = tx.query_typed(include_str!("../sql/migrate_turn.sql"), &[]).await;
    let rows = rows.map_err(from_driver)?;
    let busy: Option<i32> = rows
        .first()
        .map_or(Ok(None), |row| row.try_get(0))
        .map_err(from_driver)?;
    if let Some(process) = busy {
        let turn = tx.batch_execute("SELECT pg_advisory_xact_lock(7260, 1)");
        tokio::pin!(turn);
        let taken = match tokio::time::timeout(QUIET, &mut turn).await {
            Ok(taken) => taken,
            Err(_) => {
                report(&format!(
                    "another migration of this database is under way (server process {process}); waiting until it has ended"
                ));
                turn.await
            }
        };
        taken.map_err(from_driver)?;
    }
    objects::wait_at_most(&tx, first_wait).await?;
    Ok(tx)
}

/// The texts that a statement answers.
async fn statements(tx: &Transaction<'_>, sql: &str) -> Result<Vec<String>, Error> {
    let rows = tx.query_typed(sql, &[]).await.map_err(from_driver)?;
    rows.iter().map(|row| row.try_get(0).map_err(from_driver)).collect()
}

/// A wait for another migrator that is shorter than this is not reported.
const QUIET: Duration = Duration::from_secs(5);

/// How long a migration goes on asking for locks that traffic holds.
const PATIENCE: Duration = Duration::from_secs(60);

/// Decides whether a migration that did not get its locks runs again, and when.
#[derive(Default)]
struct Retries {
    /// When it first did not get them.
    since: Option<Instant>,
    attempts: u32,
    reported: bool,
}

impl Retries {
    /// Whether to run it again; waits a little before it says yes.
    async fn again(&mut self, e: &Error, report: Report<'_>) -> bool {
        if !matches!(e, Error::Contention(_)) {
            return false;
        }
        if !std::mem::replace(&mut self.reported, true) {
            let seconds = PATIENCE.as_secs();
            report(&format!(
                "waiting for a lock that other sessions hold; trying again for up to {seconds} seconds"
            ));
        }
        let since = *self.since.get_or_insert_with(Instant::now);
        self.attempts += 1;
        // A random pause, so that the next attempt does not meet the same statement at the same moment.
        let spread = u64::from(uuid::Uuid::new_v4().as_bytes()[0]);
        tokio::time::sleep(Duration::from_millis(50 + spread)).await;
        since.elapsed() < PATIENCE
    }

    /// It got them: the next ones may take as long again.
    fn succeeded(&mut self) {
        (self.since, self.attempts) = (None, 0);
    }

    /// How long the first lock is waited for: 300 ms, and twice as long after each attempt that failed, up to 4.8 s. Statements that take longer than the
    /// wait would keep the migration out always; sessions that begin meanwhile wait behind it.
    fn first_wait(&self) -> Duration {
        objects::LOCKS * 2_u32.pow(self.attempts.min(4))
    }

    fn given_up(&self, e: Error) -> Error {
        match e {
            Error::Contention(source) if self.since.is_some() => {
                let seconds = PATIENCE.as_secs();
                let text = format!(
                    "the schema was not changed: other sessions held its locks for {seconds} seconds ({source}); end long transactions (pg_stat_activity shows them), then run it again"
                );
                Error::Timeout(text.into())
            }
            other => other,
        }
    }
}

const VERSION: &str = "SELECT version, oldest FROM posthouse.schema_version";

fn version(rows: &[Row]) -> Result<Option<SchemaVersion>, Error> {
    let number = |row: &Row, at: usize| row.try_get::<_, i32>(at).map(i64::from).map_err(from_driver);
    let version = |row| {
        Ok(SchemaVersion {
            version: number(row, 0)?,
            oldest: number(row, 1)?,
        })
    };
    rows.first().map(version).transpose()
}
