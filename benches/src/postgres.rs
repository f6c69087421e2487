//! B1 to B8 and B15 on a private, durable PostgreSQL.

mod copy;
mod held;
mod ledger;
mod saga;
mod single;

pub use held::Offer;

use futures_util::future::join_all;
use posthouse_core::{Claim, Message, Settlement, Store};
use posthouse_postgres::{Options, Outbox, Postgres};
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};
use tokio_postgres::{Client, NoTls};
use uuid::Uuid;

use crate::{
    median::median,
    raw,
    report::{Bar, Report},
};

const RUNS: usize = 3;
const LEASE: Duration = Duration::from_secs(15);
const BATCH: u32 = 500;
const WORKERS: usize = 2;

/// A 200-byte JSON body.
fn body(n: usize) -> Vec<u8> {
    format!("{{\"order\":{n:9},\"pad\":\"{}\"}}", "x".repeat(172)).into_bytes()
}

pub struct Bench {
    url: String,
    store: Arc<Postgres>,
    control: Client,
}

async fn session(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

impl Bench {
    pub async fn new() -> Self {
        let url = std::env::var("POSTHOUSE_BENCH_POSTGRES").expect("run benches/run, which starts a private server");
        Postgres::open(&url, Options::default())
            .unwrap()
            .migrate()
            .await
            .unwrap();
        let store = Arc::new(Postgres::connect(&url).await.unwrap());
        let control = session(&url).await;
        Self { url, store, control }
    }

    pub async fn conditions(&self) -> String {
        let one = async |sql: &str| self.control.query_one(sql, &[]).await.unwrap().get::<_, String>(0);
        let cores = std::thread::available_parallelism().map_or(0, usize::from);
        format!(
            "conditions: PostgreSQL {}, fsync {}, synchronous_commit {}, shared_buffers {}; {cores} cores for client and server; 200-byte JSON; \
             tokio-postgres; batch {BATCH}, {WORKERS} workers; default options; raw and ours interleaved, median of {RUNS}",
            one("SHOW server_version").await,
            one("SHOW fsync").await,
            one("SHOW synchronous_commit").await,
            one("SHOW shared_buffers").await,
        )
    }

    /// Empties everything, so that each run starts alike. Numbers go on: the store remembers how far it has passed.
    async fn clear(&self) {
        let sql = "TRUNCATE posthouse.message, posthouse.ready, posthouse.sched, posthouse.parked, posthouse.keyed, posthouse.leased, posthouse.lot, \
                   posthouse.deadline, posthouse.attempt, posthouse.dead, posthouse.dedupe, posthouse.audit; CHECKPOINT";
        self.control.batch_execute(sql).await.unwrap();
    }

    async fn count(&self, sql: &str) -> i64 {
        self.control.query_one(sql, &[]).await.unwrap().get(0)
    }

    /// Puts `n` messages into the tables the fastest way there is; with `keys` order keys when that is not zero.
    async fn load(&self, n: usize, keys: usize) {
        self.load_at(n, keys, "").await;
    }

    async fn load_at(&self, n: usize, keys: usize, tenant: &str) {
        let sql = format!(
            "WITH m AS (INSERT INTO posthouse.message (id, created_at, tenant, namespace, topic, order_key, content_type, payload, digest)
                 SELECT gen_random_uuid(), clock_timestamp(), '{tenant}', 'default', 'bench', CASE WHEN {keys} > 0 THEN 'key-' || g % greatest({keys}, 1) END,
                        'application/json', convert_to('{{\"order\":' || lpad(g::text, 9, ' ') || ',\"pad\":\"' || repeat('x', 172) || '\"}}', 'UTF8'), decode(repeat('00', 32), 'hex')
                 FROM generate_series(1, {n}) g RETURNING seq, order_key),
             k AS (INSERT INTO posthouse.keyed (lane, key_hash, key, pos, seq, line, due_at, bytes, max_attempts)
                 SELECT posthouse.lane('default', '{tenant}'), posthouse.key_hash('default', '{tenant}', order_key), order_key, seq, seq, seq, clock_timestamp(), 200, 12 FROM m WHERE order_key IS NOT NULL)
             INSERT INTO posthouse.ready (lane, pos, seq, due_at, bytes, max_attempts)
             SELECT posthouse.lane('default', '{tenant}'), seq, seq, clock_timestamp(), 200, 12 FROM m WHERE order_key IS NULL"
        );
        self.control.batch_execute(&sql).await.unwrap();
        self.control.batch_execute("ANALYZE; CHECKPOINT").await.unwrap();
    }

    /// Every message delivered once, with one attempt, and nothing left over.
    async fn verify_drained(&self, n: usize) {
        let done = self
            .count("SELECT count(*) FROM posthouse.attempt WHERE outcome = 1 AND epoch = 1 AND attempt = 1")
            .await;
        let distinct = self.count("SELECT count(DISTINCT seq) FROM posthouse.attempt").await;
        let left = self.count("SELECT (SELECT count(*) FROM posthouse.ready) + (SELECT count(*) FROM posthouse.leased) + (SELECT count(*) FROM posthouse.lot) + (SELECT count(*) FROM posthouse.keyed)").await;
        assert_eq!(
            (done, distinct, left),
            (n as i64, n as i64, 0),
            "verification failed: no number"
        );
    }

    /// No message of a key was settled before an earlier one.
    async fn verify_order(&self) {
        let disorder = self.count(
            "SELECT count(*) FROM (SELECT a.finished_at < lag(a.finished_at) OVER (PARTITION BY m.tenant, m.order_key ORDER BY m.seq) AS wrong
             FROM posthouse.attempt a JOIN posthouse.message m USING (seq) WHERE m.order_key IS NOT NULL) x WHERE wrong",
        ).await;
        assert_eq!(disorder, 0, "verification failed: a key was settled out of order");
    }

    pub async fn bulk_enqueue(&self, report: &mut Report) {
        const N: usize = 20_000;
        let outbox = Outbox::default();
        let (mut raws, mut copies, mut ours) = (Vec::new(), Vec::new(), Vec::new());
        let mut client = session(&self.url).await;
        let statement = client.prepare(raw::BULK).await.unwrap();
        for _ in 0..RUNS {
            self.clear().await;
            let start = Instant::now();
            for chunk in 0..N / 1000 {
                let messages: Vec<_> = (0..1000)
                    .map(|i| Message::bytes("bench", "application/json", body(chunk * 1000 + i)))
                    .collect();
                let mut tx = client.transaction().await.unwrap();
                outbox.enqueue_all(&mut tx, messages).await.unwrap();
                tx.commit().await.unwrap();
            }
            ours.push(N as f64 / start.elapsed().as_secs_f64());
            assert_eq!(self.count("SELECT count(*) FROM posthouse.ready").await, N as i64);

            self.clear().await;
            let start = Instant::now();
            for chunk in 0..N / 1000 {
                let ids: Vec<_> = (0..1000).map(|_| Uuid::now_v7()).collect();
                let bodies: Vec<_> = (0..1000).map(|i| body(chunk * 1000 + i)).collect();
                let digests: Vec<_> = bodies
                    .iter()
                    .map(|b| posthouse_core::Digest::of("application/json", b).0.to_vec())
                    .collect();
                let (topics, types) = (vec!["bench"; 1000], vec!["application/json"; 1000]);
                client
                    .execute(&statement, &[&ids, &topics, &types, &bodies, &digests])
                    .await
                    .unwrap();
            }
            raws.push(N as f64 / start.elapsed().as_secs_f64());
            assert_eq!(self.count("SELECT count(*) FROM posthouse.ready").await, N as i64);

            self.clear().await;
            let start = Instant::now();
            for chunk in 0..N / 1000 {
                copy::a_thousand(&mut client, chunk * 1000).await;
            }
            copies.push(N as f64 / start.elapsed().as_secs_f64());
            assert_eq!(self.count("SELECT count(*) FROM posthouse.ready").await, N as i64);
        }
        report.compare(
            "B1",
            "bulk enqueue, 1000 per transaction, against one INSERT",
            "/s",
            &raws,
            &ours,
            Bar::AtLeast(0.8),
        );
        report.compare(
            "B1",
            "bulk enqueue, against binary COPY into both tables",
            "/s",
            &copies,
            &ours,
            Bar::AtLeast(0.7),
        );
    }

    /// Drains through the store's interface, with as many workers as asked; answers the rate.
    async fn drain_ours(&self, workers: usize) -> f64 {
        let store = Arc::new(Postgres::connect(&self.url).await.unwrap());
        let start = Instant::now();
        let done: usize = join_all((0..workers).map(|n| {
            let store = store.clone();
            tokio::spawn(async move {
                let claim = Claim::new(format!("bench-{n}"), BATCH, LEASE).together();
                let (mut done, mut idle) = (0, 0);
                // A worker that finds its keys taken by the other tries again until both are idle.
                while idle < 20 {
                    let claimed = store.claim(&claim).await.unwrap();
                    if claimed.is_empty() {
                        idle += 1;
                        tokio::time::sleep(Duration::from_millis(1)).await;
                        continue;
                    }
                    idle = 0;
                    let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
                    let verdicts = store.settle(&batch).await.unwrap();
                    assert!(verdicts.iter().all(|v| v.is_settled()));
                    done += batch.len();
                }
                done
            })
        }))
        .await
        .into_iter()
        .map(Result::unwrap)
        .sum();
        done as f64 / (start.elapsed().as_secs_f64() - 0.03)
    }

    async fn drain_raw(&self) -> f64 {
        let mut workers = Vec::new();
        for _ in 0..WORKERS {
            workers.push(raw::Worker::new(session(&self.url).await).await);
        }
        let start = Instant::now();
        let done: usize = join_all(
            workers
                .into_iter()
                .map(|w| tokio::spawn(async move { w.drain(i64::from(BATCH)).await })),
        )
        .await
        .into_iter()
        .map(Result::unwrap)
        .sum();
        done as f64 / start.elapsed().as_secs_f64()
    }

    async fn wal(&self) -> f64 {
        self.control
            .query_one("SELECT (pg_current_wal_insert_lsn() - '0/0')::float8", &[])
            .await
            .unwrap()
            .get(0)
    }

    pub async fn drain(&self, report: &mut Report) {
        const N: usize = 50_000;
        let (mut raws, mut ours, mut wal_raw, mut wal_ours) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            self.clear().await;
            self.load(N, 0).await;
            let before = self.wal().await;
            ours.push(self.drain_ours(WORKERS).await);
            wal_ours.push((self.wal().await - before) / N as f64);
            self.verify_drained(N).await;
            self.clear().await;
            self.load(N, 0).await;
            let before = self.wal().await;
            raws.push(self.drain_raw().await);
            wal_raw.push((self.wal().await - before) / N as f64);
            self.verify_drained(N).await;
        }
        report.compare(
            "B3",
            "drain of 50k through the store, all delivered",
            "/s",
            &raws,
            &ours,
            Bar::AtLeast(0.6),
        );
        let (raw, own) = (median(&wal_raw), median(&wal_ours));
        report.bound(
            "B4",
            "WAL bytes per drained message (value: ours)",
            "B",
            (raw, own),
            own,
            Bar::AtMost(750.0),
        );
    }

    pub async fn keyed_drain(&self, report: &mut Report) {
        const N: usize = 30_000;
        let (mut unkeyed, mut one, mut thousand) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..RUNS {
            for (keys, into) in [(0, &mut unkeyed), (1, &mut one), (1000, &mut thousand)] {
                self.clear().await;
                self.load(N, keys).await;
                into.push(self.drain_ours(WORKERS).await);
                self.verify_drained(N).await;
                if keys > 0 {
                    self.verify_order().await;
                }
            }
        }
        report.compare(
            "B7",
            "drain of 30k on 1 key, against unkeyed",
            "/s",
            &unkeyed,
            &one,
            Bar::AtLeast(0.35),
        );
        report.compare(
            "B7",
            "drain of 30k on 1,000 keys, against unkeyed",
            "/s",
            &unkeyed,
            &thousand,
            Bar::AtLeast(0.5),
        );
    }

    /// Milliseconds of one claim of 100, after a few to warm up.
    async fn claim_ms(&self) -> f64 {
        let store = Postgres::connect(&self.url).await.unwrap();
        let claim = Claim::new("bench", 100, LEASE);
        let mut samples = Vec::new();
        for n in 0..40 {
            let start = Instant::now();
            assert_eq!(store.claim(&claim).await.unwrap().len(), 100);
            if n >= 10 {
                samples.push(start.elapsed().as_secs_f64() * 1000.0);
            }
        }
        median(&samples)
    }

    pub async fn claim_growth(&self, report: &mut Report) {
        let (mut small, mut large, mut future) = (Vec::new(), Vec::new(), Vec::new());
        self.clear().await;
        self.load(10_000, 0).await;
        small.push(self.claim_ms().await);
        self.clear().await;
        self.load(1_000_000, 0).await;
        for _ in 0..RUNS {
            large.push(self.claim_ms().await);
        }
        self.clear().await;
        self.control
            .batch_execute("INSERT INTO posthouse.sched (seq, due_at, lane, bytes, max_attempts) SELECT g + 10000000, clock_timestamp() + interval '1 day' + g * interval '1 ms', 0, 200, 12 FROM generate_series(1, 1000000) g; ANALYZE posthouse.sched")
            .await
            .unwrap();
        self.load(20_000, 0).await;
        for _ in 0..RUNS {
            future.push(self.claim_ms().await);
        }
        self.clear().await;
        for _ in 1..RUNS {
            self.clear().await;
            self.load(10_000, 0).await;
            small.push(self.claim_ms().await);
        }
        report.compare(
            "B5",
            "claim of 100 with 1 million pending, against 10k",
            "ms",
            &small,
            &large,
            Bar::AtMost(1.5),
        );
        report.compare(
            "B5",
            "claim of 100 with 1 million future ones, against 10k",
            "ms",
            &small,
            &future,
            Bar::AtMost(1.5),
        );
    }

    /// How soon a hundred small tenants are done that come behind a large one.
    pub async fn small_tenants(&self, report: &mut Report) {
        const LARGE: usize = 300_000;
        const TENANTS: usize = 100;
        let mut times = Vec::new();
        for _ in 0..RUNS {
            self.clear().await;
            self.load(LARGE, 0).await;
            let small = (0..10 * TENANTS)
                .map(|n| Message::bytes("bench", "application/json", body(n)).tenant(format!("small-{}", n % TENANTS)));
            self.store.enqueue_now(small.collect()).await.unwrap();
            let stop = Arc::new(AtomicBool::new(false));
            let start = Instant::now();
            let workers: Vec<_> = (0..WORKERS)
                .map(|n| tokio::spawn(drain_until(self.store.clone(), n, stop.clone(), start)))
                .collect();
            // The workers drain everything; when the small ones were done is seen from what they did.
            stop.store(true, Ordering::Relaxed);
            let rounds = join_all(workers).await.into_iter().flat_map(Result::unwrap);
            let small = rounds.filter(|round| round.of_tenants > 0).map(|round| round.at);
            times.push(small.max().unwrap().as_secs_f64());
            self.verify_drained(LARGE + 10 * TENANTS).await;
        }
        let time = median(&times);
        report.bound(
            "B8",
            "seconds until 100 small tenants behind 300k are done",
            "s",
            (1.0, time),
            time,
            Bar::AtMost(1.0),
        );
    }
}

/// A claim and its settlement: when that was over, how many there were, how many of them had a tenant, and what the claim took.
struct Round {
    at: Duration,
    count: usize,
    of_tenants: usize,
    claim_ms: f64,
}

/// Drains until it is told to stop and there is nothing left.
async fn drain_until(store: Arc<Postgres>, n: usize, stop: Arc<AtomicBool>, start: Instant) -> Vec<Round> {
    let mut rounds = Vec::new();
    let claim = Claim::new(format!("bench-{n}"), BATCH, LEASE).together();
    loop {
        // Before the claim, which may not see what was committed before the stop.
        let (asked, stopped) = (Instant::now(), stop.load(Ordering::Relaxed));
        let claimed = store.claim(&claim).await.unwrap();
        if claimed.is_empty() {
            if stopped {
                return rounds;
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
            continue;
        }
        let claim_ms = asked.elapsed().as_secs_f64() * 1e3;
        let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
        let verdicts = store.settle(&batch).await.unwrap();
        assert!(verdicts.iter().all(|v| v.is_settled()));
        rounds.push(Round {
            at: start.elapsed(),
            count: batch.len(),
            of_tenants: claimed.iter().filter(|c| !c.delivery.tenant.is_empty()).count(),
            claim_ms,
        });
    }
}
