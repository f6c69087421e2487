//! The hand-written reference: the best plain SQL we can write on the same tables, for one lane and no frills. It has no
//! dedupe, no keys, no retries, no fairness, and settles only what was delivered.

use tokio_postgres::{Client, Statement};
use uuid::Uuid;

pub const BULK: &str = "
WITH m AS (
    INSERT INTO posthouse.message (id, created_at, tenant, namespace, topic, content_type, payload, digest)
    SELECT u.id, clock_timestamp(), '', 'default', u.topic, u.ct, u.p, u.dg FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bytea[], $5::bytea[]) u(id, topic, ct, p, dg)
    RETURNING seq, octet_length(payload) AS bytes)
INSERT INTO posthouse.ready (lane, pos, seq, due_at, bytes, max_attempts) SELECT 0, m.seq, m.seq, clock_timestamp(), m.bytes, 12 FROM m";

pub const ONE: &str = "
INSERT INTO posthouse.message (id, created_at, tenant, namespace, topic, content_type, payload, digest)
VALUES ($1, clock_timestamp(), '', 'default', 'bench', 'application/json', $2, $3) RETURNING seq";

pub const ONE_READY: &str = "INSERT INTO posthouse.ready (lane, pos, seq, due_at, bytes, max_attempts) VALUES (0, $1, $1, clock_timestamp(), 200, 12)";

pub const CLAIM: &str = "
WITH d AS (
    DELETE FROM posthouse.ready r WHERE r.ctid = ANY (ARRAY(SELECT q.ctid FROM posthouse.ready q ORDER BY q.lane, q.pos LIMIT $1 FOR UPDATE SKIP LOCKED)) RETURNING r.*),
l AS (
    INSERT INTO posthouse.leased (seq, token, until, started_at, lane, epoch, attempts, generation, bytes, max_attempts, releases, worker)
    SELECT d.seq, $2, clock_timestamp() + interval '15 s', clock_timestamp(), d.lane, d.epoch + 1, d.attempts + 1, d.generation, d.bytes, d.max_attempts, 0, $3 FROM d)
SELECT d.seq, d.epoch + 1, d.attempts + 1, m.id, m.tenant, m.namespace, m.topic, m.content_type, m.payload, m.headers
FROM d JOIN posthouse.message m ON m.seq = d.seq";

pub const SETTLE: &str = "
WITH d AS (DELETE FROM posthouse.leased l WHERE l.seq = ANY ($1) AND l.token = $2 AND l.until > clock_timestamp() RETURNING l.*)
INSERT INTO posthouse.attempt (seq, epoch, generation, attempt, outcome, max_attempts, worker, token, started_at, finished_at)
SELECT d.seq, d.epoch, d.generation, d.attempts, 1, d.max_attempts, d.worker, d.token, d.started_at, clock_timestamp() FROM d";

/// A worker that drains by hand.
pub struct Worker {
    client: Client,
    claim: Statement,
    settle: Statement,
}

impl Worker {
    pub async fn new(client: Client) -> Self {
        // The same pins that our functions set: without them the plans collapse.
        let pins = "SET plan_cache_mode = force_generic_plan; SET enable_seqscan = off; SET enable_bitmapscan = off; SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_sort = off; SET jit = off";
        client.batch_execute(pins).await.unwrap();
        let claim = client.prepare(CLAIM).await.unwrap();
        let settle = client.prepare(SETTLE).await.unwrap();
        Self { client, claim, settle }
    }

    /// Drains until nothing is left; answers how many.
    pub async fn drain(&self, batch: i64) -> usize {
        let mut done = 0;
        loop {
            let token = Uuid::new_v4();
            let rows = self.client.query(&self.claim, &[&batch, &token, &"raw"]).await.unwrap();
            if rows.is_empty() {
                return done;
            }
            // Touch what a worker would read.
            let seqs: Vec<i64> = rows
                .iter()
                .map(|r| {
                    std::hint::black_box(r.get::<_, Vec<u8>>(8));
                    r.get(0)
                })
                .collect();
            let settled = self.client.execute(&self.settle, &[&seqs, &token]).await.unwrap();
            assert_eq!(settled as usize, seqs.len());
            done += seqs.len();
        }
    }
}
