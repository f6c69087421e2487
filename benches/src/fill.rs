//! Fills a store as if it had been in use for thirty days: `fill URL N`. For measuring what operators ask of it.
//!
//! Nearly all of the N messages are done. A few of those are enqueued and delivered by the engine, in each of a hundred rounds; the
//! rest are copies of the records that it left: another number, id, time, token and dedupe key, and nothing else. The other hundredth
//! went through the engine itself, one by one, and stands everywhere: waiting, delayed, behind another of its key, leased, dead of
//! every reason, cancelled, in quarantine, resolved. The store's clock is set back for it, and put right at the end.

use posthouse::AnyStore;
use posthouse_core::{
    Claim, Claimed, Message, MessageId, OnDead, Outcome, RetryPolicy, Settlement, State, admin::Admin, store::Store,
};
use rusqlite::{Connection, params};
use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_postgres::{Client, NoTls};
use uuid::{NoContext, Timestamp, Uuid};

const SECOND: i64 = 1_000_000;
const DAY: i64 = 86_400 * SECOND;
const TENANTS: [&str; 4] = ["", "acme", "globex", "initech"];
/// How many of a round the engine delivers, to be copied.
const MODELS: i64 = 100;

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [url, n] = args.as_slice() else {
        panic!("usage: fill URL N");
    };
    let n: i64 = n.parse().expect("N is a number");
    let rounds = (n / 10_000).clamp(1, 100);
    AnyStore::migrate(url).await.unwrap();
    let raw = Raw::open(url).await;
    raw.stop_clock().await;
    let any = AnyStore::open(url).await.unwrap();
    let mut fill = Fill {
        store: any.store(),
        admin: any.admin(),
        any,
        raw,
        now: 0,
        behind: format!("account-{}-7", rounds - 1),
    };
    let start = micros() - 30 * DAY;
    let span = (30 * DAY - 60 * SECOND) / rounds;
    for round in 0..rounds {
        fill.round(round, start + round * span, span, n / rounds).await;
        if round % 10 == 9 {
            eprintln!("  {} of {n}", n / rounds * (round + 1));
        }
    }
    fill.alike().await;
    fill.print_ids().await;
    fill.raw.finish(url).await;
}

fn micros() -> i64 {
    i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_micros()).unwrap()
}

struct Fill {
    any: AnyStore,
    store: Arc<dyn Store>,
    admin: Arc<dyn Admin>,
    raw: Raw,
    now: i64,
    /// A key of which the first waits for its time.
    behind: String,
}

/// A message of about 200 bytes of JSON.
fn message(topic: String, n: i64) -> Message {
    let body = format!("{{\"order\":{n:010},\"pad\":\"{}\"}}", "x".repeat(167)).into_bytes();
    Message::bytes(topic, "application/json", body)
}

/// Three dozen topics, some of them a hundred times as common as others.
fn topic(n: i64) -> String {
    const OF: [&str; 6] = ["order", "payment", "invoice", "parcel", "mail", "account"];
    const WHAT: [&str; 6] = ["placed", "made", "changed", "due", "closed", "moved"];
    let mixed = (n * 7919 % 1000) as f64 / 1000.0;
    let at = (36.0 * mixed * mixed) as usize;
    format!("{}.{}", OF[at % 6], WHAT[at / 6])
}

fn tenant(n: i64) -> &'static str {
    TENANTS[(n / 7 % 4) as usize]
}

impl Fill {
    async fn at(&mut self, now: i64) {
        self.now = now;
        self.raw.set_clock(now).await;
    }

    async fn enqueue(&self, messages: Vec<Message>) -> Vec<MessageId> {
        let done = self.any.enqueue(messages).await.unwrap();
        done.into_iter().map(posthouse_core::Enqueued::id).collect()
    }

    /// Claims all that is due of a namespace.
    async fn claim(&self, namespace: &str, worker: &str, lease: u64) -> Vec<Claimed> {
        let claim = Claim::new(worker, 1000, Duration::from_secs(lease)).namespace(namespace);
        let mut all = Vec::new();
        loop {
            let some = self.store.claim(&claim).await.unwrap();
            if some.is_empty() {
                return all;
            }
            all.extend(some);
        }
    }

    async fn settle(&self, batch: Vec<Settlement>) {
        for part in batch.chunks(500) {
            let verdicts = self.store.settle(part).await.unwrap();
            assert!(verdicts.iter().all(posthouse_core::Verdict::is_settled));
        }
    }

    async fn round(&mut self, round: i64, start: i64, span: i64, n: i64) {
        let others = n / 100;
        self.at(start).await;
        let mut models: Vec<_> = (0..MODELS).map(|i| model(round, i)).collect();
        if round == 0 {
            models.extend((0..5).map(|i| message("rare.topic".to_owned(), i)));
        } else if round == 1 {
            models.extend((0..3).map(|i| message(topic(i), i).tenant("tiny")));
        }
        self.enqueue(models).await;
        self.deliver().await;
        let copies = n - others - MODELS;
        let (first, last) = self.raw.range_since(start, MODELS).await;
        let base = self
            .raw
            .copy(first, last, copies, span * 9 / 10 / (copies / MODELS + 1).max(1))
            .await;
        if round == 0 {
            self.check(first, base + 1, MODELS.min(copies)).await;
        }
        self.at(start + span * 95 / 100).await;
        self.others(round, others).await;
    }

    /// Compares copies with what the engine wrote: all that an operator can see of them.
    async fn check(&self, model: i64, copy: i64, n: i64) {
        for i in 0..n {
            let (model, copy) = (self.seen(model + i).await, self.seen(copy + i).await);
            assert_eq!(model, copy, "a copy is not like its model");
        }
    }

    /// A message and its evidence, without what tells it from its copies.
    async fn seen(&self, seq: i64) -> String {
        let id = self.raw.id_of(seq).await;
        let mut view = self.admin.find(id).await.unwrap().expect("it was copied");
        let created = view.created_at.as_micros();
        let after = |at: posthouse_core::Timestamp| {
            posthouse_core::Timestamp::from_micros((at.as_micros() - created) / 2000 * 2000)
        };
        (view.id, view.seq) = (MessageId(Uuid::nil()), 0);
        view.dedupe_key = view.dedupe_key.map(|_| String::new());
        (view.created_at, view.updated_at) = (after(view.created_at), after(view.updated_at));
        (view.due_at, view.finished_at) = (view.due_at.map(after), view.finished_at.map(after));
        let mut attempts = self.admin.attempts(id).await.unwrap();
        for attempt in &mut attempts {
            attempt.token = posthouse_core::LeaseToken(Uuid::nil());
            (attempt.started_at, attempt.finished_at) = (after(attempt.started_at), after(attempt.finished_at));
        }
        format!("{view:?} {attempts:?}")
    }

    /// Delivers all that is due in the application's own namespace; a few at the second attempt.
    async fn deliver(&mut self) {
        let policy = RetryPolicy::default();
        self.at(self.now + SECOND / 20).await;
        let claimed = self.claim("default", "relay-1", 30).await;
        self.at(self.now + SECOND / 30).await;
        let outcome = |claimed: &Claimed| match claimed.lease.seq % 50 {
            0 => failed("http_503"),
            _ => Outcome::receipt(format!("r-{}", claimed.lease.seq)),
        };
        self.settle(
            claimed
                .iter()
                .map(|c| Settlement::of(&c.lease, outcome(c), &policy, 0.5))
                .collect(),
        )
        .await;
        self.at(self.now + 2 * SECOND).await;
        // What was behind one that failed comes now, too.
        for _ in 0..4 {
            let claimed = self.claim("default", "relay-2", 30).await;
            self.settle(claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect())
                .await;
        }
    }

    /// What does not end well, or has not ended.
    async fn others(&mut self, round: i64, n: i64) {
        let messages = (0..n).map(|i| other(round, i)).collect();
        let ids = self.enqueue(messages).await;
        // Those with a deliver-by are over it.
        self.at(self.now + 2 * SECOND).await;
        let held = self.claim("slow", "relay-9", 86_400).await;
        assert!(n < 100 || !held.is_empty());
        let policy = RetryPolicy::default();
        let (mut batch, mut rare) = (Vec::new(), if round == 0 { 2 } else { 0 });
        for claimed in self.claim("default", "relay-3", 30).await {
            let settlement = if claimed.deliver_within.is_some() {
                Settlement::lapsed(&claimed.lease)
            } else {
                let outcome = match end(&claimed) {
                    Outcome::Reject { .. } if rare > 0 => {
                        rare -= 1;
                        rejected("tls_expired")
                    }
                    common => common,
                };
                Settlement::of(&claimed.lease, outcome, &policy, 0.5)
            };
            batch.push(settlement);
        }
        self.settle(batch).await;
        for (i, id) in ids.into_iter().enumerate() {
            match i % 100 {
                78..83 => self.admin.cancel(id, "anna", "withdrawn").await.unwrap(),
                83..86 => self.admin.quarantine(id, "ben", "who ordered this?").await.unwrap(),
                86..88 => self.admin.resolve(id, "anna", "confirmed by phone", "").await.unwrap(),
                _ => {}
            }
        }
    }
}

/// What an operator finds dead after an hour in which a destination was not there.
const ALIKE: i64 = 1000;

impl Fill {
    async fn alike(&mut self) {
        self.enqueue((0..ALIKE).map(|i| message("statement.sent".to_owned(), i)).collect())
            .await;
        let claimed = self.claim("default", "relay-3", 30).await;
        let policy = RetryPolicy::default();
        self.settle(
            claimed
                .iter()
                .map(|c| Settlement::of(&c.lease, rejected("http_410"), &policy, 0.5))
                .collect(),
        )
        .await;
    }

    /// Some to ask about: one that waits, one behind another of its key, a dead one, a delivered one.
    async fn print_ids(&self) {
        let of = |state, namespace: &str, topic: &str| posthouse_core::Filter {
            state: Some(state),
            namespace: Some(namespace.to_owned()),
            topic: Some(topic.to_owned()),
            limit: 1,
            ..posthouse_core::Filter::default()
        };
        let behind = posthouse_core::Filter {
            topic: None,
            order_key: Some(self.behind.clone()),
            ..of(State::Pending, "legacy", "")
        };
        for filter in [
            of(State::Pending, "mail", &topic(92)),
            behind,
            of(State::Dead, "default", "statement.sent"),
            of(State::Done, "default", &topic(3)),
        ] {
            let page = self.admin.list(&filter).await.unwrap();
            println!("{} {}", filter.state.map_or("", State::as_str), page.messages[0].id);
        }
    }
}

/// One that is delivered, and copied.
fn model(round: i64, i: i64) -> Message {
    let plain = message(topic(i), i).tenant(tenant(i));
    match i % 20 {
        0 | 1 => plain.order_key(format!("customer-{}", i / 20)),
        2 => plain.dedupe_key(format!("{round}/{i}")),
        _ => plain,
    }
}

/// One that is not delivered; what becomes of it goes by its place.
fn other(round: i64, i: i64) -> Message {
    let plain = message(topic(i), i).tenant(tenant(i));
    let fate = i % 100;
    match fate {
        // A namespace whose relay was switched off: they wait.
        0..20 => plain.namespace("legacy"),
        // Three to a key, the first of them for another month.
        20..29 => {
            let keyed = plain
                .namespace("legacy")
                .tenant("acme")
                .order_key(format!("account-{round}-{}", i / 3));
            if fate % 3 == 0 {
                keyed.delay(Duration::from_secs(60 * 86_400))
            } else {
                keyed
            }
        }
        29..35 => plain.delay(Duration::from_secs(60 * 86_400)),
        55..70 => plain.max_attempts(1),
        70..75 => plain.deliver_in(Duration::from_secs(1)),
        // It is rejected, and blocks its key and the one behind it.
        75..77 => plain
            .tenant("globex")
            .order_key(format!("ledger-{round}-{}", i / 100))
            .on_dead(OnDead::Block),
        77 | 91..100 => plain.namespace("mail"),
        78..88 => plain.namespace("legacy"),
        88..91 => plain.namespace("slow"),
        _ => plain,
    }
}

fn failed(code: &str) -> Outcome {
    Outcome::Unknown {
        code: code.to_owned(),
        error: "the destination did not answer".to_owned(),
    }
}

fn rejected(code: &str) -> Outcome {
    Outcome::Reject {
        code: code.to_owned(),
        error: "the destination does not want it".to_owned(),
    }
}

/// How the last attempt ends.
fn end(claimed: &Claimed) -> Outcome {
    let seq = claimed.lease.seq;
    if claimed.lease.standing.max_attempts == 1 {
        return failed(if seq % 3 == 0 { "timeout" } else { "http_503" });
    }
    match seq {
        n if n % 7 == 0 => rejected("http_422"),
        n if n % 2 == 0 => rejected("http_404"),
        _ => rejected("http_400"),
    }
}

/// The tables themselves.
enum Raw {
    Postgres(Client),
    Sqlite { db: Connection, clock: String },
}

impl Raw {
    async fn open(url: &str) -> Self {
        let Some(path) = url.strip_prefix("sqlite://") else {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
            tokio::spawn(connection);
            return Self::Postgres(client);
        };
        let db = Connection::open(path).unwrap();
        db.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -500000")
            .unwrap();
        let sql = "SELECT sql FROM sqlite_master WHERE name = 'posthouse_clock'";
        let clock = db.query_row(sql, [], |row| row.get(0)).unwrap();
        Self::Sqlite { db, clock }
    }

    async fn stop_clock(&self) {
        match self {
            Self::Postgres(client) => client
                .batch_execute(
                    "CREATE TABLE public.bench_clock AS SELECT now() AS at; ALTER TABLE public.bench_clock SET (autovacuum_enabled = off);
                     CREATE OR REPLACE FUNCTION posthouse.clock() RETURNS timestamptz LANGUAGE sql VOLATILE PARALLEL SAFE AS 'SELECT at FROM public.bench_clock'",
                )
                .await
                .unwrap(),
            Self::Sqlite { db, .. } => db
                .execute_batch(
                    "CREATE TABLE bench_clock AS SELECT 0 AS now; DROP VIEW posthouse_clock;
                     CREATE VIEW posthouse_clock (now) AS SELECT now FROM bench_clock",
                )
                .unwrap(),
        }
    }

    async fn set_clock(&mut self, at: i64) {
        match self {
            Self::Postgres(client) => {
                let sql = format!(
                    "TRUNCATE public.bench_clock; INSERT INTO public.bench_clock VALUES (to_timestamp({at} / 1000000.0))"
                );
                client.batch_execute(&sql).await.unwrap();
            }
            // Whole milliseconds, as its own clock has.
            Self::Sqlite { db, .. } => {
                db.execute("UPDATE bench_clock SET now = ?1 / 1000 * 1000", [at])
                    .unwrap();
            }
        }
    }

    /// The numbers of the models: the first so many that were enqueued from then on.
    async fn range_since(&self, start: i64, models: i64) -> (i64, i64) {
        match self {
            Self::Postgres(client) => {
                let sql = "SELECT min(seq), max(seq) FROM (SELECT seq FROM posthouse.message WHERE seq > (SELECT max(seq) FROM posthouse.message) - 1000
                           AND created_at >= to_timestamp($1::bigint / 1000000.0) - interval '1 s' ORDER BY seq LIMIT $2) m";
                let row = client.query_one(sql, &[&start, &models]).await.unwrap();
                (row.get(0), row.get(1))
            }
            Self::Sqlite { db, .. } => {
                let sql = "SELECT min(seq), max(seq) FROM (SELECT seq FROM posthouse_message WHERE seq > (SELECT max(seq) FROM posthouse_message) - 1000
                           AND created_at >= ?1 - 1000000 ORDER BY seq LIMIT ?2)";
                db.query_row(sql, [start, models], |row| Ok((row.get(0)?, row.get(1)?)))
                    .unwrap()
            }
        }
    }

    async fn id_of(&self, seq: i64) -> MessageId {
        MessageId(match self {
            Self::Postgres(client) => {
                let row = client
                    .query_one("SELECT id FROM posthouse.message WHERE seq = $1", &[&seq])
                    .await;
                row.unwrap().get(0)
            }
            Self::Sqlite { db, .. } => {
                let sql = "SELECT id FROM posthouse_message WHERE seq = ?1";
                Uuid::from_bytes(db.query_row(sql, [seq], |row| row.get(0)).unwrap())
            }
        })
    }

    /// Copies the models, all of them again and again, each time `later` than before. Answers the number before the first copy.
    async fn copy(&mut self, first: i64, last: i64, copies: i64, later: i64) -> i64 {
        let base = self.newest().await;
        match self {
            Self::Postgres(client) => {
                let sql = COPY
                    .replace("{first}", &first.to_string())
                    .replace("{last}", &last.to_string())
                    .replace("{copies}", &copies.to_string())
                    .replace("{models}", &(last - first + 1).to_string())
                    .replace("{later}", &later.to_string());
                client.batch_execute(&sql).await.unwrap();
            }
            Self::Sqlite { db, .. } => copy_sqlite(db, first, last, copies, later),
        }
        base
    }

    async fn newest(&self) -> i64 {
        match self {
            Self::Postgres(client) => {
                let row = client.query_one("SELECT max(seq) FROM posthouse.message", &[]).await;
                row.unwrap().get(0)
            }
            Self::Sqlite { db, .. } => {
                let sql = "SELECT max(seq) FROM posthouse_message";
                db.query_row(sql, [], |row| row.get(0)).unwrap()
            }
        }
    }

    /// Puts the clock right, and lets the database count what it has.
    async fn finish(self, url: &str) {
        match self {
            Self::Postgres(client) => {
                // Every migration puts all functions in place anew.
                AnyStore::migrate(url).await.unwrap();
                client
                    .batch_execute("DROP TABLE public.bench_clock; CHECKPOINT")
                    .await
                    .unwrap();
            }
            Self::Sqlite { db, clock } => {
                let sql = format!(
                    "DROP VIEW posthouse_clock; {clock}; DROP TABLE bench_clock; PRAGMA wal_checkpoint(TRUNCATE)"
                );
                db.execute_batch(&sql).unwrap();
            }
        }
    }
}

/// The numbers go on from the models' own, so that numbers and times rise together.
const COPY: &str = "
CREATE TEMP TABLE model AS
    SELECT m.*, row_number() OVER (ORDER BY m.seq) AS o, (SELECT count(*) FROM posthouse.message x WHERE x.seq BETWEEN {first} AND {last}) AS all_of_them,
           (SELECT max(x.seq) FROM posthouse.message x) AS base
    FROM posthouse.message m WHERE m.seq BETWEEN {first} AND {last};
CREATE TEMP TABLE copied AS
    SELECT m.base + (g - 1) * m.all_of_them + m.o AS seq, m.seq AS from_seq, g * interval '{later} microseconds' AS later, g
    FROM generate_series(1, {copies} / {models} + 1) g CROSS JOIN model m WHERE (g - 1) * m.all_of_them + m.o <= {copies};
INSERT INTO posthouse.message (seq, id, created_at, deliver_by, parent, kind, tenant, namespace, topic, order_key, dedupe_key, destination, content_type, digest, headers, payload)
OVERRIDING SYSTEM VALUE
    SELECT c.seq, encode(substr(int8send(t.us / 1000), 3) || substr(int4send((28672 + t.us % 1000 * 4096 / 1000)::int), 3) || substr(uuid_send(gen_random_uuid()), 9), 'hex')::uuid,
           m.created_at + c.later, m.deliver_by, m.parent, m.kind, m.tenant, m.namespace, m.topic, m.order_key, m.dedupe_key || '-' || c.g, m.destination, m.content_type, m.digest, m.headers, m.payload
    FROM copied c JOIN model m ON m.seq = c.from_seq
    CROSS JOIN LATERAL (SELECT (extract(epoch FROM m.created_at + c.later) * 1000000)::bigint AS us) t ORDER BY c.seq;
INSERT INTO posthouse.attempt (seq, started_at, finished_at, token, epoch, generation, attempt, outcome, max_attempts, worker, code, error, receipt)
    SELECT c.seq, a.started_at + c.later, a.finished_at + c.later, md5(a.token::text || c.g)::uuid, a.epoch, a.generation, a.attempt, a.outcome, a.max_attempts, a.worker, a.code, a.error, a.receipt
    FROM copied c JOIN posthouse.attempt a ON a.seq = c.from_seq ORDER BY c.seq, a.epoch;
INSERT INTO posthouse.dedupe (key_hash, id, ended_at, digest)
    SELECT posthouse.dedupe_hash(n.namespace, n.tenant, n.topic, n.dedupe_key), n.id, d.ended_at, d.digest
    FROM copied c JOIN model m ON m.seq = c.from_seq JOIN posthouse.dedupe d ON d.id = m.id JOIN posthouse.message n ON n.seq = c.seq;
SELECT setval('posthouse.message_seq_seq', (SELECT max(seq) FROM posthouse.message));
DROP TABLE model, copied";

fn copy_sqlite(db: &mut Connection, first: i64, last: i64, copies: i64, later: i64) {
    let tx = db
        .transaction_with_behavior(rusqlite::TransactionBehavior::Immediate)
        .unwrap();
    {
        let mut numbers = tx.prepare("SELECT seq, created_at, dedupe_key IS NOT NULL FROM posthouse_message WHERE seq BETWEEN ?1 AND ?2 ORDER BY seq").unwrap();
        let models: Vec<(i64, i64, bool)> = numbers
            .query_map([first, last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .unwrap()
            .map(Result::unwrap)
            .collect();
        let base: i64 = tx
            .query_row("SELECT max(seq) FROM posthouse_message", [], |row| row.get(0))
            .unwrap();
        let mut message = tx.prepare(
            "INSERT INTO posthouse_message SELECT ?2, ?3, lane, topic, order_key, dedupe_key || '-' || ?5, content_type, headers, kind, parent, destination,
                 on_dead, max_attempts, digest, dedupe_for, created_at + ?4, due_at + ?4, deliver_by, bytes, payload
             FROM posthouse_message WHERE seq = ?1").unwrap();
        let mut attempt = tx.prepare(
            "INSERT INTO posthouse_attempt SELECT ?2, epoch, generation, attempt, max_attempts, worker, ?3, outcome, code, error, receipt, started_at + ?4, finished_at + ?4
             FROM posthouse_attempt WHERE seq = ?1").unwrap();
        let mut dedupe = tx.prepare(
            "INSERT INTO posthouse_dedupe SELECT lane, topic, key || '-' || ?5, ?2, ?3, digest, lifetime, ends_at + ?4 FROM posthouse_dedupe
             WHERE (lane, topic, key) = (SELECT lane, topic, dedupe_key FROM posthouse_message WHERE seq = ?1)").unwrap();
        let mut token = Uuid::new_v4();
        for n in 0..copies {
            let (round, at) = (n / models.len() as i64 + 1, (n % models.len() as i64) as usize);
            if at == 0 {
                token = Uuid::new_v4();
            }
            let (seq, created_at, deduped) = models[at];
            // Whole milliseconds, as its clock has them.
            let later = later * round / 1000 * 1000;
            let created = created_at + later;
            let stamp = Timestamp::from_unix(NoContext, (created / SECOND) as u64, (created % SECOND * 1000) as u32);
            let id = Uuid::new_v7(stamp);
            message
                .execute(params![seq, base + n + 1, id.as_bytes(), later, round])
                .unwrap();
            attempt
                .execute(params![seq, base + n + 1, token.as_bytes(), later])
                .unwrap();
            if deduped {
                dedupe
                    .execute(params![seq, base + n + 1, id.as_bytes(), later, round])
                    .unwrap();
            }
        }
    }
    tx.commit().unwrap();
}
