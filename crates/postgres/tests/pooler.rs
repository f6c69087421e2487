//! A pooler that is killed while everybody works through it, and comes back.

use posthouse_core::{Claim, Error, Lease, Message, Settlement, Store, Verdict};
use posthouse_postgres::{Outbox, Postgres};
use posthouse_testkit::Fixture;
use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use crate::fixture::PostgresFixture;

const LEASE: Duration = Duration::from_secs(60);
const KEYS: u32 = 20;
const EACH: u32 = 20;

/// A private pooler, killed and started again with each line of input. It stops when its input is closed, so also when this
/// process is killed.
struct Pooler {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    url: String,
    _folder: tempfile::TempDir,
}

const START: &str = r#"
set -euo pipefail
. scripts/postgres.sh
. scripts/pgbouncer.sh
PG_URL=$POSTHOUSE_TEST_POSTGRES PG_BIN=$(dirname "$POSTHOUSE_TEST_PSQL")
trap stop_pgbouncer EXIT
start_pgbouncer "$1"
echo "$BOUNCER_URL"
while read -r _; do
    kill -KILL "$BOUNCER_PID"
    wait "$BOUNCER_PID" || true
    start_pgbouncer "$1"
    echo "$BOUNCER_URL"
done
"#;

impl Pooler {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("bash")
            .args(["-c", START, "start"])
            .arg(folder.path())
            .current_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("bash is installed");
        let orders = child.stdin.take();
        let mut answers = BufReader::new(child.stdout.take().unwrap());
        let url = next_line(&mut answers);
        Self {
            child,
            orders,
            answers,
            url,
            _folder: folder,
        }
    }

    fn kill_and_restart(&mut self) {
        writeln!(self.orders.as_mut().unwrap()).unwrap();
        assert_eq!(next_line(&mut self.answers), self.url, "it comes back where it was");
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.child.wait().ok();
    }
}

fn next_line(answers: &mut impl BufRead) -> String {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the pooler did not start; what it said is above");
    line.trim().to_owned()
}

/// Everything is done once, in order and with its evidence, though answers were lost on the way; nobody opens a new store.
#[tokio::test(flavor = "multi_thread")]
async fn a_killed_pooler_loses_nothing_and_everybody_goes_on() {
    let fx = PostgresFixture::new().await;
    let mut pooler = Pooler::start();
    let store = Postgres::connect_with(&pooler.url, PostgresFixture::options(&fx.schema))
        .await
        .unwrap();
    let store = Arc::new(store);
    let lines = (0..KEYS * EACH).map(|n| {
        Message::json("t", &n)
            .unwrap()
            .order_key((n % KEYS).to_string())
            .max_attempts(1000)
    });
    store.enqueue_now(lines.collect()).await.unwrap();

    // The application's transaction is open through the pooler when that dies.
    let (mut client, connection) = tokio_postgres::connect(&pooler.url, tokio_postgres::NoTls)
        .await
        .unwrap();
    let driver = tokio::spawn(connection);
    let mut tx = client.transaction().await.unwrap();
    let outbox = Outbox::in_schema(fx.schema.clone());
    outbox
        .enqueue(&mut tx, Message::json("never", &1).unwrap())
        .await
        .unwrap();

    let settled = Arc::new(AtomicU32::new(0));
    let workers: Vec<_> = (0..3)
        .map(|n| tokio::spawn(work(store.clone(), format!("w{n}"), settled.clone())))
        .collect();
    for kill in 1..=3 {
        until_settled(&fx, &settled, kill * KEYS * EACH / 5).await;
        pooler = tokio::task::spawn_blocking(move || {
            pooler.kill_and_restart();
            pooler
        })
        .await
        .unwrap();
    }
    let lost = tx.commit().await;
    assert!(lost.is_err(), "a transaction does not outlive its connection");
    until_settled(&fx, &settled, KEYS * EACH).await;
    let mut refusals = 0;
    for worker in workers {
        refusals += worker.await.unwrap();
    }
    assert!(refusals > 0, "nobody noticed that the pooler was gone");

    let total = (KEYS * EACH).to_string();
    assert_eq!(
        fx.one("SELECT count(*) FROM posthouse.messages WHERE state = 'done'")
            .await,
        total
    );
    assert_eq!(
        fx.one("SELECT count(*) FROM posthouse.message").await,
        total,
        "nor of what never was"
    );
    let delivered = "SELECT count(*), count(DISTINCT message_id) FROM posthouse.attempts WHERE outcome = 'delivered'";
    assert_eq!(
        fx.one(delivered).await,
        total,
        "each is delivered once, by the evidence"
    );
    let gaps = "SELECT count(*) FROM (SELECT attempt - row_number() OVER (PARTITION BY message_id ORDER BY epoch) AS gap FROM posthouse.attempts) x WHERE gap <> 0";
    assert_eq!(fx.one(gaps).await, "0");
    fx.check().await;
    driver.abort();
}

/// Waits, and lets leases run out meanwhile: a grant whose answer was lost is held by nobody, and may be committed late.
async fn until_settled(fx: &PostgresFixture, settled: &AtomicU32, enough: u32) {
    for round in 1.. {
        if settled.load(Ordering::Relaxed) >= enough {
            return;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
        if round % 100 == 0 {
            fx.advance(LEASE + Duration::from_secs(1)).await;
        }
    }
}

/// Repairs, claims and settles until nothing is left; answers how often the store could not be reached.
async fn work(store: Arc<Postgres>, name: String, settled: Arc<AtomicU32>) -> u32 {
    let mut refusals = 0;
    while settled.load(Ordering::Relaxed) < KEYS * EACH {
        if let Err(e) = posthouse_core::repair(&*store, 100).await {
            refusals += refusal(e).await;
        }
        match store.claim(&Claim::new(&*name, 5, LEASE)).await {
            Ok(claimed) => {
                let leases: Vec<_> = claimed.into_iter().map(|c| c.lease).collect();
                refusals += settle(&store, &leases, &settled).await;
            }
            Err(e) => refusals += refusal(e).await,
        }
        tokio::task::yield_now().await;
    }
    refusals
}

/// Asks again until there is an answer: that it was settled, then or now, or that the lease is lost.
async fn settle(store: &Postgres, leases: &[Lease], settled: &AtomicU32) -> u32 {
    let batch: Vec<_> = leases.iter().map(|lease| Settlement::delivered(lease, None)).collect();
    let mut refusals = 0;
    loop {
        match store.settle(&batch).await {
            Ok(verdicts) => {
                let won = verdicts.iter().filter(|v| matches!(v, Verdict::Settled)).count();
                settled.fetch_add(u32::try_from(won).unwrap(), Ordering::Relaxed);
                return refusals;
            }
            Err(e) => refusals += refusal(e).await,
        }
    }
}

async fn refusal(e: Error) -> u32 {
    assert!(matches!(e, Error::Unavailable(_)), "{e:?}");
    tokio::time::sleep(Duration::from_millis(5)).await;
    1
}
