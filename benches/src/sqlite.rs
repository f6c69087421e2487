//! B9 on a file in the bench's folder, WAL and synchronous = FULL.

use posthouse_core::{Claim, Settlement, Store};
use posthouse_sqlite::Sqlite;
use rusqlite::{Connection, TransactionBehavior, params};
use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};
use uuid::Uuid;

use crate::report::{Bar, Report};

const RUNS: usize = 3;
const N: usize = 50_000;
const BATCH: u32 = 500;

pub async fn drain(report: &mut Report) {
    let folder = PathBuf::from(std::env::var("POSTHOUSE_BENCH_FOLDER").expect("run benches/run"));
    let (mut raws, mut ours) = (Vec::new(), Vec::new());
    for run in 0..RUNS {
        let file = loaded(&folder.join(format!("ours-{run}.db")));
        ours.push(drain_ours(&file).await);
        verify(&file);
        let file = loaded(&folder.join(format!("raw-{run}.db")));
        raws.push(drain_raw(&file));
        verify(&file);
    }
    report.compare(
        "B9",
        "SQLite drain of 50k, batch 500, one worker",
        "/s",
        &raws,
        &ours,
        Bar::AtLeast(0.6),
    );
}

fn open(file: &Path) -> Connection {
    let db = Connection::open(file).unwrap();
    db.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")
        .unwrap();
    db
}

/// A new database with the messages in it, through the same view that every language uses.
fn loaded(file: &Path) -> PathBuf {
    Sqlite::migrate(file).unwrap();
    let mut db = open(file);
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let pad = "x".repeat(167);
    for n in 0..N {
        let body = format!("{{\"order\":{n:010},\"pad\":\"{pad}\"}}");
        tx.prepare_cached(
            "INSERT INTO posthouse_enqueue (topic, payload, content_type) VALUES ('bench', ?1, 'application/json')",
        )
        .unwrap()
        .execute(params![body.as_bytes()])
        .unwrap();
    }
    tx.commit().unwrap();
    file.to_owned()
}

/// Every message delivered once, with one attempt, and nothing left over.
fn verify(file: &Path) {
    let db = open(file);
    let count = |sql: &str| db.query_row(sql, [], |r| r.get::<_, i64>(0)).unwrap();
    let done = count("SELECT count(*) FROM posthouse_attempt WHERE outcome = 'delivered' AND epoch = 1");
    let left = count("SELECT (SELECT count(*) FROM posthouse_ready) + (SELECT count(*) FROM posthouse_leased)");
    assert_eq!((done, left), (N as i64, 0), "verification failed: no number");
}

async fn drain_ours(file: &Path) -> f64 {
    let store = Sqlite::open(file).unwrap();
    let claim = Claim::new("bench", BATCH, Duration::from_secs(15));
    let start = Instant::now();
    loop {
        let claimed = store.claim(&claim).await.unwrap();
        if claimed.is_empty() {
            return N as f64 / start.elapsed().as_secs_f64();
        }
        let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
        assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    }
}

/// The best plain SQL we can write on the same tables, for one lane and no frills.
fn drain_raw(file: &Path) -> f64 {
    let mut db = open(file);
    let start = Instant::now();
    let mut from = 0i64;
    loop {
        let token = Uuid::new_v4().into_bytes();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let to: Option<i64> = tx.prepare_cached("SELECT max(pos) FROM (SELECT pos FROM posthouse_ready WHERE lane = 1 AND pos > ?1 ORDER BY pos LIMIT ?2)").unwrap().query_row(params![from, BATCH], |r| r.get(0)).unwrap();
        let Some(to) = to else {
            return N as f64 / start.elapsed().as_secs_f64();
        };
        let lease = "INSERT INTO posthouse_leased (seq, token, deadline, granted_at, worker, lane, key, pos, bytes, attempts, max_attempts, epoch, generation, releases, deliver_by, deduped)
                     SELECT seq, ?3, 9000000000000000, 0, 'raw', lane, NULL, pos, bytes, attempts + 1, max_attempts, epoch + 1, generation, releases, deliver_by, deduped
                     FROM posthouse_ready WHERE lane = 1 AND pos > ?1 AND pos <= ?2";
        tx.prepare_cached(lease)
            .unwrap()
            .execute(params![from, to, token])
            .unwrap();
        tx.prepare_cached("DELETE FROM posthouse_ready WHERE lane = 1 AND pos > ?1 AND pos <= ?2")
            .unwrap()
            .execute(params![from, to])
            .unwrap();
        {
            // Read what a worker would read.
            let mut select = tx.prepare_cached("SELECT m.id, m.topic, m.content_type, m.payload, l.epoch FROM posthouse_leased l JOIN posthouse_message m ON m.seq = l.seq WHERE l.seq > ?1 AND l.seq <= ?2").unwrap();
            let mut rows = select.query(params![from, to]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                std::hint::black_box((
                    row.get::<_, Vec<u8>>(0).unwrap(),
                    row.get::<_, String>(1).unwrap(),
                    row.get::<_, String>(2).unwrap(),
                    row.get::<_, Vec<u8>>(3).unwrap(),
                ));
            }
        }
        tx.commit().unwrap();
        let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        let evidence = "INSERT INTO posthouse_attempt (seq, epoch, generation, attempt, max_attempts, worker, token, outcome, started_at, finished_at)
                        SELECT seq, epoch, generation, attempts, max_attempts, worker, token, 'delivered', granted_at, 0 FROM posthouse_leased WHERE seq > ?1 AND seq <= ?2 AND token = ?3";
        tx.prepare_cached(evidence)
            .unwrap()
            .execute(params![from, to, token])
            .unwrap();
        tx.prepare_cached("DELETE FROM posthouse_leased WHERE seq > ?1 AND seq <= ?2 AND token = ?3")
            .unwrap()
            .execute(params![from, to, token])
            .unwrap();
        tx.commit().unwrap();
        from = to;
    }
}
