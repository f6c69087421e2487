//! A fresh database, in memory or on the disk, with a clock that only moves when told.

use async_trait::async_trait;
use posthouse_core::{
    Admin, Enqueued, Error, Message, MessageId, Settlement, Store, StoreSettings, Timestamp, Verdict,
    ledger::{Conclusion, Fenced, Hold},
    saga::{Doing, Start, Started, Undoing},
};
use posthouse_surreal::{Database, Options, Outbox, SurrealDb, from_surreal};
use posthouse_testkit::{Caller, Fixture};
use std::{sync::Arc, time::Duration};
use surrealdb::{engine::any::Any, method::Transaction, types::Value};

use crate::invariants;

/// 2030-01-01T00:00:00Z.
const START: i64 = 1_893_456_000_000_000;

/// The tests' own tables have another prefix, so the dump leaves them out.
const TEST_TABLES: &str = "
    DEFINE TABLE test_clock SCHEMALESS;
    DEFINE TABLE test_note SCHEMALESS;
    DEFINE SEQUENCE test_line BATCH 1 START 1;
    CREATE test_clock:now SET now = $start;
    DEFINE FUNCTION OVERWRITE fn::posthouse_clock() { RETURN test_clock:now.now; };
";

pub struct SurrealFixture {
    pub db: Database,
    /// Gone after the database, which is in it.
    _folder: Option<tempfile::TempDir>,
}

/// What the suite asks for.
pub async fn fresh() -> SurrealFixture {
    SurrealFixture::new("mem://", None).await
}

/// The same on the disk. It is not waited for with each commit: whether it is has nothing to do with what the suite asks.
pub async fn on_disk() -> SurrealFixture {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("surrealkv://{}?sync=never", folder.path().join("test.db").display());
    SurrealFixture::new(&url, Some(folder)).await
}

impl SurrealFixture {
    pub async fn new(url: &str, folder: Option<tempfile::TempDir>) -> Self {
        let db = Database::connect(url).await.unwrap();
        SurrealDb::migrate(&db).await.unwrap();
        let made = db.client().query(TEST_TABLES).bind(("start", START)).await.unwrap();
        made.check().unwrap();
        Self { db, _folder: folder }
    }

    pub async fn open(&self) -> SurrealDb {
        SurrealDb::open(self.db.clone(), Options::default()).await.unwrap()
    }

    /// Every record of every table, the tests' own too.
    pub async fn records(&self) -> Vec<(String, Vec<Value>)> {
        let client = self.db.client();
        let mut info = client.query("RETURN (INFO FOR DB).tables.keys()").await.unwrap();
        let tables: Vec<String> = info.take(0).unwrap();
        let mut records = Vec::new();
        for table in tables {
            let mut all = client.query(format!("SELECT * FROM {table}")).await.unwrap();
            records.push((table, all.take(0).unwrap()));
        }
        records
    }

    /// Takes everything away, and puts these records into its place.
    pub async fn put_back(&self, records: &[(String, Vec<Value>)]) {
        for (table, records) in records {
            let sql = format!("DELETE {table} RETURN NONE; INSERT INTO {table} $records RETURN NONE");
            let put = self.db.client().query(sql).bind(("records", records.clone()));
            put.await.unwrap().check().unwrap();
        }
    }
}

#[async_trait]
impl Fixture for SurrealFixture {
    async fn store(&self) -> Arc<dyn Store> {
        Arc::new(self.open().await)
    }

    async fn admin(&self) -> Arc<dyn Admin> {
        Arc::new(self.open().await)
    }

    async fn begin(&self) -> Box<dyn Caller> {
        let tx = self.db.begin().await.unwrap();
        Box::new(SurrealCaller {
            tx,
            outbox: Outbox::default(),
        })
    }

    async fn configure(&self, settings: &StoreSettings) -> Result<(), Error> {
        self.open().await.configure(settings).await
    }

    /// Until somebody says otherwise, a program goes by its own options: here, the usual.
    async fn settings(&self) -> StoreSettings {
        self.open().await.settings().await.unwrap().unwrap_or_default()
    }

    async fn advance(&self, by: Duration) {
        let by = i64::try_from(by.as_micros()).unwrap();
        let moved = self
            .db
            .client()
            .query("UPDATE test_clock:now SET now += $by")
            .bind(("by", by))
            .await;
        moved.unwrap().check().unwrap();
    }

    async fn hold_up_claims(&self, by: Duration) {
        let by = by.as_micros();
        let event = format!(
            "DEFINE EVENT OVERWRITE test_hold_up ON posthouse_message WHEN $event != 'DELETE' AND $after.state = 'leased' THEN {{ UPDATE test_clock:now SET now += {by} }}"
        );
        self.db.client().query(event).await.unwrap().check().unwrap();
    }

    async fn now(&self) -> Timestamp {
        let mut now = self.db.client().query("RETURN fn::posthouse_clock()").await.unwrap();
        Timestamp::from_micros(now.take::<Option<i64>>(0).unwrap().unwrap())
    }

    async fn dump(&self) -> String {
        let mut lines = Vec::new();
        for (table, records) in self.records().await {
            if table.starts_with("posthouse_") {
                lines.extend(records.into_iter().map(|record| format!("{table} {record:?}")));
            }
        }
        lines.sort();
        lines.join("\n")
    }

    async fn notes(&self) -> Vec<String> {
        let mut notes = self
            .db
            .client()
            .query("SELECT VALUE line FROM test_note")
            .await
            .unwrap();
        notes.take(0).unwrap()
    }

    /// More than the thousand that a claim reads at a time.
    fn many(&self, count: usize) -> usize {
        count / 4
    }

    async fn check(&self) {
        invariants::check(self.db.client()).await;
    }
}

/// An application's transaction.
struct SurrealCaller {
    tx: Transaction<Any>,
    outbox: Outbox,
}

#[async_trait]
impl Caller for SurrealCaller {
    async fn note(&mut self, line: &str) {
        let sql = "CREATE type::record('test_note', sequence::nextval('test_line')) SET line = $line";
        let noted = self.tx.query(sql).bind(("line", line.to_owned())).await;
        noted.unwrap().check().unwrap();
    }

    async fn enqueue(&mut self, message: Message) -> Result<Enqueued, Error> {
        self.outbox.enqueue(&self.tx, message).await
    }

    async fn enqueue_all(&mut self, messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        self.outbox.enqueue_all(&self.tx, &messages).await
    }

    async fn settle_in(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        self.outbox.settle_in(&self.tx, settlement).await
    }

    async fn conclude_in(&mut self, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
        self.outbox.conclude_in(&self.tx, hold, conclusion).await
    }

    async fn reach_in(&mut self, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
        self.outbox.reach_in(&self.tx, hold, checkpoint).await
    }

    async fn renew_in(&mut self, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
        self.outbox.renew_in(&self.tx, hold, lease).await
    }

    async fn leave_in(&mut self, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
        self.outbox.leave_in(&self.tx, hold, message).await
    }

    async fn once(&mut self, consumer: &str, id: MessageId) -> Result<bool, Error> {
        self.outbox.once(&self.tx, consumer, id).await
    }

    async fn start(&mut self, start: Start) -> Result<Started, Error> {
        self.outbox.start(&self.tx, start).await
    }

    async fn do_once(&mut self, consumer: &str, key: &str) -> Result<Doing, Error> {
        self.outbox.do_once(&self.tx, consumer, key).await
    }

    async fn undo_once(&mut self, consumer: &str, key: &str) -> Result<Undoing, Error> {
        self.outbox.undo_once(&self.tx, consumer, key).await
    }

    async fn commit(self: Box<Self>) -> Result<(), Error> {
        self.tx.commit().await.map(|_| ()).map_err(from_surreal)
    }

    async fn rollback(self: Box<Self>) {
        self.tx.cancel().await.unwrap();
    }
}
