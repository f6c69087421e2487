//! A fresh database file with a clock that only moves when told.

use async_trait::async_trait;
use posthouse_core::{Admin, Error, Store, StoreSettings, Timestamp};
use posthouse_sqlite::Sqlite;
use posthouse_testkit::{Caller, Fixture};
use rusqlite::{Connection, types::ValueRef};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tempfile::TempDir;

use crate::caller::SqliteCaller;

/// 2030-01-01T00:00:00Z.
const START: i64 = 1_893_456_000_000_000;

/// The tests' own tables have no prefix, so the dump leaves them out.
const TEST_TABLES: &str = "
    CREATE TABLE test_clock (now INTEGER NOT NULL);
    CREATE TABLE test_note (line TEXT NOT NULL);
    DROP VIEW posthouse_clock;
    CREATE VIEW posthouse_clock (now) AS SELECT now FROM test_clock;
";

pub struct SqliteFixture {
    dir: TempDir,
}

/// What the suite asks for.
pub async fn fresh() -> SqliteFixture {
    SqliteFixture::new()
}

impl SqliteFixture {
    pub fn new() -> Self {
        let fixture = Self {
            dir: TempDir::new().unwrap(),
        };
        Sqlite::migrate(fixture.path()).unwrap();
        let db = fixture.connect();
        db.execute_batch(TEST_TABLES).unwrap();
        db.execute("INSERT INTO test_clock VALUES (?1)", [START]).unwrap();
        fixture
    }

    pub fn path(&self) -> PathBuf {
        self.dir.path().join("outbox.db")
    }

    pub fn open(&self) -> Sqlite {
        Sqlite::open(self.path()).unwrap()
    }

    /// A connection as an application has it.
    pub fn connect(&self) -> Connection {
        connect(&self.path())
    }
}

/// Waits for the writer in short steps: SQLite's own waits grow to a tenth of a second, and whoever waits like that among
/// busy neighbours may wait long.
pub fn connect(path: &Path) -> Connection {
    let db = Connection::open(path).unwrap();
    let wait = |tries| {
        std::thread::sleep(Duration::from_millis(1));
        tries < 20_000
    };
    db.busy_handler(Some(wait)).unwrap();
    db
}

#[async_trait]
impl Fixture for SqliteFixture {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open())
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.open())
    }

    async fn begin(&self) -> Box<dyn Caller> {
        Box::new(SqliteCaller::begin(self.path()).await)
    }

    async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        self.open().configure(settings).await
    }

    /// Until somebody says otherwise, a program goes by its own options: here, the usual.
    async fn settings(&self) -> StoreSettings {
        self.open().settings().await.unwrap().unwrap_or_default()
    }

    async fn advance(&self, by: Duration) {
        let (path, by) = (self.path(), i64::try_from(by.as_micros()).unwrap());
        // Aside, because it waits for the transaction of a caller who may be waiting for this thread.
        let moved = move || {
            connect(&path)
                .execute("UPDATE test_clock SET now = now + ?1", [by])
                .unwrap()
        };
        tokio::task::spawn_blocking(moved).await.unwrap();
    }

    async fn hold_up_claims(&self, by: Duration) {
        let by = by.as_micros();
        let trigger = format!(
            "DROP TRIGGER IF EXISTS test_hold_up;
             CREATE TRIGGER test_hold_up AFTER INSERT ON posthouse_leased WHEN (SELECT count(*) FROM posthouse_leased) = 1
             BEGIN UPDATE test_clock SET now = now + {by}; END;"
        );
        self.connect().execute_batch(&trigger).unwrap();
    }

    async fn now(&self) -> Timestamp {
        let now = self
            .connect()
            .query_row("SELECT now FROM posthouse_clock", [], |row| row.get(0));
        Timestamp::from_micros(now.unwrap())
    }

    async fn dump(&self) -> String {
        dump(&self.connect())
    }

    async fn notes(&self) -> Vec<String> {
        let db = self.connect();
        let mut statement = db.prepare("SELECT line FROM test_note ORDER BY rowid").unwrap();
        let lines = statement.query_map([], |row| row.get(0)).unwrap();
        lines.map(Result::unwrap).collect()
    }
}

/// Every record of every table of the store, in an order that depends on content alone.
pub fn dump(db: &Connection) -> String {
    let tables = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name GLOB 'posthouse_*' ORDER BY name";
    let mut statement = db.prepare(tables).unwrap();
    let tables = statement.query_map([], |row| row.get::<_, String>(0)).unwrap();
    let mut lines: Vec<String> = tables.flat_map(|table| records(db, &table.unwrap())).collect();
    lines.sort();
    lines.join("\n")
}

fn records(db: &Connection, table: &str) -> Vec<String> {
    let mut statement = db.prepare(&format!("SELECT * FROM {table}")).unwrap();
    let names: Vec<String> = statement.column_names().into_iter().map(str::to_owned).collect();
    let mut rows = statement.query([]).unwrap();
    let mut lines = Vec::new();
    while let Some(row) = rows.next().unwrap() {
        let values = names
            .iter()
            .enumerate()
            .map(|(at, name)| format!("{name}={}", shown(row.get_ref(at).unwrap())));
        lines.push(format!("{table} {}", values.collect::<Vec<_>>().join(" ")));
    }
    lines
}

fn shown(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "-".to_owned(),
        ValueRef::Integer(n) => n.to_string(),
        ValueRef::Real(x) => x.to_string(),
        ValueRef::Text(text) => format!("{:?}", String::from_utf8_lossy(text)),
        ValueRef::Blob(bytes) => bytes.iter().map(|byte| format!("{byte:02x}")).collect(),
    }
}
