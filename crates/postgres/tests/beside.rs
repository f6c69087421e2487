//! Migrations beside traffic change only the objects that differ, and abort no session.

use posthouse_core::{Claim, Message, Store};
use posthouse_postgres::{Options, Postgres};
use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{task::JoinSet, time::timeout};
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session, session_at, url};

const LONG: Duration = Duration::from_secs(60);

/// Sessions that work in plain SQL: the library would retry an aborted statement, and hide it.
#[derive(Clone)]
struct Traffic {
    schema: String,
    over: Arc<AtomicBool>,
    /// Statements that succeeded, by what they do.
    done: Arc<[AtomicU64; 3]>,
    /// Errors, by SQLSTATE and text.
    failed: Arc<Mutex<BTreeMap<String, u64>>>,
}

impl Traffic {
    /// Runs one of these statements after another until it is over.
    async fn session(self, kind: usize, statements: &'static [&'static str]) {
        let (client, driver) = session().await;
        client.batch_execute("SET jit = off").await.unwrap();
        let all: Vec<_> = statements
            .iter()
            .map(|sql| sql.replace("posthouse.", &format!("{}.", self.schema)))
            .collect();
        for sql in all.iter().cycle() {
            if self.over.load(Ordering::Relaxed) {
                break;
            }
            match client.simple_query(sql).await {
                Ok(_) => _ = self.done[kind].fetch_add(1, Ordering::Relaxed),
                Err(e) => {
                    let db = e.as_db_error().expect("an answer of the server");
                    let said = format!("{} {}", db.code().code(), db.message());
                    *self.failed.lock().unwrap().entry(said).or_default() += 1;
                }
            }
        }
        driver.abort();
    }
}

const PRODUCE: &[&str] = &[
    "SELECT posthouse.enqueue('t', '1', order_key => 'k' || (random() * 20)::int)",
    "SELECT posthouse.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', i)) FROM generate_series(1, 20) i))",
];
const WORK: &[&str] = &[
    "BEGIN; SELECT posthouse.complete_outbox_attempt(c.id, c.lease_token, 'w', 'delivered') FROM posthouse.claim_outbox_batch(20, 'w', 30) c; COMMIT",
    "SELECT posthouse.complete_outbox_attempt(c.id, c.lease_token, 'v', 'duplicate') FROM posthouse.claim_outbox_batch(3, 'v', 30) c",
];
const READ: &[&str] = &[
    "SELECT count(*) FROM (SELECT * FROM posthouse.messages LIMIT 50) m",
    "BEGIN; SELECT count(*) FROM posthouse.backlog; SELECT * FROM posthouse.messages ORDER BY seq DESC LIMIT 5; COMMIT",
    "SELECT count(*) FROM posthouse.sagas",
    "SELECT * FROM posthouse.counts(100)",
];

/// Something in the schema is made different by hand, as an operator or an older program would leave it.
async fn alter(client: &Client, schema: &str, round: usize) {
    let function = ["counts", "grant_leases", "enqueue_bytes", "settle"][round % 4];
    let marked = format!(
        "DO $do$ BEGIN EXECUTE replace(pg_get_functiondef('{schema}.{function}'::regproc), 'BEGIN', 'BEGIN /* altered by the test */'); END $do$"
    );
    client.batch_execute(&marked).await.unwrap();
    let view = ["messages", "backlog", "live"][round % 3];
    let other = match round % 2 {
        0 => format!(
            "DO $do$ BEGIN EXECUTE 'CREATE OR REPLACE VIEW {schema}.{view} WITH (security_barrier = true) AS ' || pg_get_viewdef('{schema}.{view}'::regclass); END $do$"
        ),
        _ => format!("ALTER TABLE {schema}.inbox OWNER TO CURRENT_USER"),
    };
    // This session must not hold up the traffic either, so it asks for the lock until it gets it.
    while let Err(e) = client
        .batch_execute(&format!("BEGIN; SET LOCAL lock_timeout = 100; {other}; COMMIT"))
        .await
    {
        assert_eq!(e.code().map(|c| c.code()), Some("55P03"), "{e:?}");
        client.batch_execute("ROLLBACK").await.unwrap();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The objects that still differ.
async fn differs(client: &Client, schema: &str) -> Vec<String> {
    let sql = "SELECT p.proname::text FROM pg_proc p WHERE p.pronamespace = $1::text::regnamespace AND p.prosrc LIKE '%altered by the test%'
               UNION ALL SELECT c.relname::text FROM pg_class c WHERE c.relnamespace = $1::text::regnamespace AND c.reloptions::text LIKE '%barrier%'";
    let rows = client.query(sql, &[&schema]).await.unwrap();
    rows.iter().map(|row| row.get(0)).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twelve_migrations_beside_traffic_abort_no_session() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let schema = fx.schema.to_string();
    let traffic = Traffic {
        schema: schema.clone(),
        over: Arc::default(),
        done: Arc::default(),
        failed: Arc::default(),
    };
    let mut sessions = JoinSet::new();
    for (kind, statements) in [PRODUCE, PRODUCE, WORK, WORK, READ, READ].into_iter().enumerate() {
        sessions.spawn(traffic.clone().session(kind / 2, statements));
    }
    let store = fx.open().await;
    let mut failed = Vec::new();
    for round in 0..12 {
        alter(&client, &schema, round).await;
        if let Err(e) = store.migrate().await {
            failed.push(format!("migrate in round {round}: {e}"));
        }
        if round % 2 == 1
            && let Err(e) = store.make_roles().await
        {
            failed.push(format!("roles in round {round}: {e}"));
        }
        let left = differs(&client, &schema).await;
        assert_eq!(left, Vec::<String>::new(), "round {round}: {failed:?}");
    }
    traffic.over.store(true, Ordering::Relaxed);
    while let Some(ended) = sessions.join_next().await {
        ended.unwrap();
    }
    let owners = client
        .query("SELECT DISTINCT relowner::regrole::text FROM pg_class WHERE relkind IN ('r', 'v') AND relnamespace = $1::text::regnamespace AND relname NOT LIKE 'test%'", &[&schema])
        .await
        .unwrap();
    let owners: Vec<String> = owners.iter().map(|row| row.get(0)).collect();
    assert_eq!(owners, [format!("{schema}_owner")]);
    let done = traffic.done.each_ref().map(|n| n.load(Ordering::Relaxed));
    let aborted = traffic.failed.lock().unwrap().clone();
    for role in ["producer", "relay", "operator", "viewer", "owner"] {
        fx.run(&format!(
            "DROP OWNED BY {schema}_{role} CASCADE; DROP ROLE {schema}_{role}"
        ))
        .await;
    }
    driver.abort();
    assert_eq!(
        (failed, aborted),
        (Vec::new(), BTreeMap::new()),
        "beside {done:?} statements"
    );
    assert!(done.iter().all(|n| *n > 50), "{done:?}");
}

/// A reader may hold what it read for as long as it likes.
#[tokio::test]
async fn a_migration_with_nothing_new_locks_nothing() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store.migrate().await.unwrap();
    store.make_roles().await.unwrap();
    let (reader, driver) = session().await;
    let hold = format!(
        "BEGIN; SELECT count(*) FROM {0}.messages; SELECT count(*) FROM {0}.sagas; LOCK TABLE {0}.dead IN ROW EXCLUSIVE MODE",
        fx.schema
    );
    reader.batch_execute(&hold).await.unwrap();
    timeout(LONG, store.migrate())
        .await
        .expect("nothing is locked")
        .unwrap();
    timeout(LONG, store.make_roles())
        .await
        .expect("nothing is locked")
        .unwrap();
    reader.batch_execute("COMMIT").await.unwrap();
    for role in ["producer", "relay", "operator", "viewer", "owner"] {
        fx.run(&format!(
            "DROP OWNED BY {0}_{role} CASCADE; DROP ROLE {0}_{role}",
            fx.schema
        ))
        .await;
    }
    driver.abort();
}

/// The reports of a migration.
type Reports = Arc<Mutex<Vec<String>>>;

async fn until_reported(reports: &Reports, part: &str) {
    let heard = async {
        while !reports.lock().unwrap().iter().any(|text| text.contains(part)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let in_time = timeout(LONG, heard).await;
    assert!(in_time.is_ok(), "{part:?} is missing: {:?}", reports.lock().unwrap());
}

/// In a separate database: migrators of one database wait for each other, and this one makes them wait.
#[tokio::test]
async fn a_migration_reports_its_waits() {
    let (control, control_driver) = session().await;
    let database = format!("waits_{}", uuid::Uuid::new_v4().simple());
    control
        .batch_execute(&format!("CREATE DATABASE {database}"))
        .await
        .unwrap();
    let here = format!("{}/{database}", url().rsplit_once('/').unwrap().0);
    let open = || Postgres::open(&here, Options::default()).unwrap();
    open().migrate().await.unwrap();
    let (holder, driver) = session_at(&here).await;
    let process: i32 = holder.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let reports = Reports::default();
    let migration = |store: Postgres| {
        let reports = reports.clone();
        tokio::spawn(async move {
            store
                .migrate_reporting(&|text| reports.lock().unwrap().push(text.to_owned()))
                .await
        })
    };
    holder
        .batch_execute("BEGIN; SELECT pg_advisory_xact_lock(7260, 1)")
        .await
        .unwrap();
    let waiting = migration(open());
    until_reported(&reports, "another migration of this database is under way").await;
    assert!(
        reports.lock().unwrap()[0].contains(&format!("server process {process}")),
        "{reports:?}"
    );
    holder.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap().unwrap();

    // A view that must be made anew, and a session that reads it.
    let alter = "ALTER VIEW posthouse.backlog SET (security_barrier = true)";
    holder.batch_execute(alter).await.unwrap();
    holder
        .batch_execute("BEGIN; SELECT count(*) FROM posthouse.backlog")
        .await
        .unwrap();
    let waiting = migration(open());
    until_reported(&reports, "waiting for a lock that other sessions hold").await;
    // Other readers go on between its attempts.
    let (other, other_driver) = session_at(&here).await;
    for _ in 0..3 {
        let sql = "SELECT count(*) FROM posthouse.backlog";
        timeout(LONG, other.query_one(sql, &[])).await.unwrap().unwrap();
    }
    assert!(!waiting.is_finished());
    holder.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(differs(&other, "posthouse").await, Vec::<String>::new());
    driver.abort();
    other_driver.abort();
    control
        .batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)"))
        .await
        .unwrap();
    control_driver.abort();
}

/// A message that was enqueued before the migration is claimed after it.
#[tokio::test]
async fn a_handle_goes_on_after_a_migration() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store
        .enqueue_now(vec![Message::bytes("t", "text/plain", "x")])
        .await
        .unwrap();
    fx.run("CREATE OR REPLACE FUNCTION posthouse.kind_word(kind smallint) RETURNS text LANGUAGE sql IMMUTABLE PARALLEL SAFE RETURN 'message'").await;
    store.migrate().await.unwrap();
    assert_eq!(fx.one("SELECT posthouse.kind_word(2::smallint)").await, "step");
    let claimed = store.claim(&Claim::new("w", 1, LONG)).await.unwrap();
    assert_eq!(claimed.len(), 1);
}
