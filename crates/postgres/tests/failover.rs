//! Claims on a server that lost commits: a real standby that takes over on the primary's port without the last transactions, and a server after a crash.

use posthouse_core::{Claim, Message, Settlement, Store};
use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::Fixture;
use std::{
    collections::BTreeMap,
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    time::Duration,
};

use crate::fixture::{PostgresFixture, url};

const LEASE: Duration = Duration::from_secs(60);
const KEYS: usize = 10;

/// A primary and its streaming standby. Both stop when the script's input is closed, so also when this process is killed.
struct Pair {
    child: Child,
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    url: String,
    _folder: tempfile::TempDir,
}

/// $1 is the folder. Reads one order from each line, and answers each with a line on descriptor 3.
const SCRIPT: &str = r#"
set -euo pipefail
. scripts/postgres.sh
folder=$1 as=()
as_postgres
start_postgres "$folder" fast -c full_page_writes=on -c synchronous_commit=on
port=${PG_URL##*:} port=${port%%/*}
primary=$PG_PID standby=
stop() {
    for pid in $primary $standby; do kill -KILL "$pid" 2>/dev/null || true; done
}
trap stop EXIT
serve_standby() {
    (cd "$folder/standby" && exec "${as[@]}" "$PG_BIN/postgres" -D "$folder/standby/data" -p "$1" -c listen_addresses=127.0.0.1 \
        -c unix_socket_directories="$folder/standby" -c max_connections=400 -c fsync=off) >"$folder/standby.log" 2>&1 &
    standby=$!
    for _ in $(seq 400); do
        if "$PG_BIN/pg_isready" -q -h 127.0.0.1 -p "$1"; then return; fi
        kill -0 "$standby" 2>/dev/null || break
        sleep 0.05
    done
    cat "$folder/standby.log" >&2
    return 1
}
sql() {
    "$PG_BIN/psql" -X -q -A -t -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$port" -U postgres postgres -c "$1"
}
echo "$PG_URL" >&3
while read -r order; do
    case $order in
        stream)
            mkdir "$folder/standby"
            [ "$(id -u)" -ne 0 ] || chown postgres "$folder/standby"
            "${as[@]}" "$PG_BIN/pg_basebackup" -h 127.0.0.1 -p "$port" -U postgres -D "$folder/standby/data" -c fast -R --no-sync
            serve_standby "$(free_port)"
            ;;
        # The standby has everything up to here, and nothing that comes later.
        fall-behind)
            now=$(sql "SELECT pg_current_wal_lsn()")
            until [ "$(sql "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= '$now'")" = 1 ]; do sleep 0.02; done
            kill -INT "$standby"
            wait "$standby" || true
            ;;
        fail-over)
            kill -KILL "$primary"
            wait "$primary" || true
            serve_standby "$port"
            sql "SELECT pg_promote()" >&2
            ;;
    esac
    echo "$order" >&3
done
"#;

impl Pair {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec 3>&1 >&2\n{SCRIPT}"), "start"])
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

    fn order(&mut self, order: &str) {
        writeln!(self.orders.as_mut().unwrap(), "{order}").unwrap();
        assert_eq!(next_line(&mut self.answers), order);
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        drop(self.orders.take());
        self.child.wait().ok();
    }
}

fn next_line(answers: &mut impl BufRead) -> String {
    let mut line = String::new();
    answers.read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the script failed; its output is above");
    line.trim().to_owned()
}

/// Messages over ten keys; each payload is the number of its message.
fn numbered(numbers: std::ops::Range<usize>) -> Vec<Message> {
    let message = |n: usize| Message::bytes("t", "text/plain", n.to_string()).order_key(format!("k{}", n % KEYS));
    numbers.map(message).collect()
}

/// Delivers everything, and answers the numbers of each key in the order of their grants.
async fn drain(store: &Postgres) -> BTreeMap<String, Vec<usize>> {
    let mut order: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    loop {
        let granted = store.claim(&Claim::new("w", 50, LEASE)).await.unwrap();
        if granted.is_empty() {
            return order;
        }
        for one in &granted {
            let number = std::str::from_utf8(&one.delivery.payload).unwrap().parse().unwrap();
            order
                .entry(one.delivery.order_key.clone().unwrap())
                .or_default()
                .push(number);
        }
        let delivered: Vec<_> = granted
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&delivered).await.unwrap();
    }
}

/// P10. The handle that claims stays open over the failover, as a relay's does. Its floors are numbers of the old server: the new one gives 500 new messages numbers
/// around them.
#[tokio::test]
async fn keys_stay_in_order_over_a_failover_that_loses_commits() {
    let mut pair = Pair::start();
    let options = || Options {
        floor_every: Duration::ZERO,
        ..Options::default()
    };
    Postgres::open(&pair.url, options()).unwrap().migrate().await.unwrap();
    let store = Postgres::connect_with(&pair.url, options()).await.unwrap();
    pair.order("stream");
    store.enqueue_now(numbered(0..200)).await.unwrap();
    assert_eq!(drain(&store).await.len(), KEYS);
    pair.order("fall-behind");
    // 1,000 numbers that the standby never hears of; the floors rise to about the 300th.
    for first in [200, 300, 400] {
        store.enqueue_now(numbered(first..first + 100)).await.unwrap();
        drain(&store).await;
    }
    store.enqueue_now(numbered(500..1200)).await.unwrap();
    pair.order("fail-over");
    let producer = Postgres::connect_with(&pair.url, options()).await.unwrap();
    producer.enqueue_now(numbered(2000..2500)).await.unwrap();

    // Connections of the old server are found closed at the first claims.
    let order = drain(&store).await;
    let late: Vec<_> = order.iter().filter(|(_, numbers)| !numbers.is_sorted()).collect();
    assert!(late.is_empty(), "{} of {KEYS} keys out of order: {late:?}", late.len());
    assert_eq!(order.values().map(Vec::len).sum::<usize>(), 500);
}

fn plain(body: &str) -> Message {
    Message::bytes("t", "text/plain", body)
}

/// The number of grants, and of remarks about the server, at floors that hide all messages but the last of the key and the last without a key.
async fn granted_at_floors(fx: &PostgresFixture, server: &str) -> String {
    fx.one(&format!(
        "WITH g AS (
             SELECT * FROM posthouse.grant_leases(10, 'w', gen_random_uuid(), 15000, NULL, NULL, NULL, '{{}}',
                 ARRAY(SELECT DISTINCT lane FROM posthouse.ready), ARRAY[(SELECT max(pos) - 1 FROM posthouse.ready)], -9223372036854775808, 9223372036854775807,
                 p_keys => (SELECT max(line) - 1 FROM posthouse.keyed), p_server => {server}))
         SELECT (SELECT count(seq) FROM g) || ', ' || (SELECT count(*) FROM g WHERE seq IS NULL AND kind = 5)"
    ))
    .await
}

/// P10. After a failover that lost commits, new messages get numbers below the floors of the old server.
#[tokio::test]
async fn claim_ignores_the_floors_of_another_server() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let put = async || {
        let line = ["1", "2", "3"].map(|body| plain(body).order_key("k"));
        let messages = line.into_iter().chain(["1", "2", "3"].map(plain)).collect();
        store.enqueue_now(messages).await.unwrap();
    };
    put().await;
    assert_eq!(granted_at_floors(&fx, "pg_postmaster_start_time()").await, "2, 0");
    fx.run("DELETE FROM posthouse.leased; DELETE FROM posthouse.ready; DELETE FROM posthouse.keyed")
        .await;
    put().await;
    let other = "pg_postmaster_start_time() - interval '1 microsecond'";
    assert_eq!(granted_at_floors(&fx, other).await, "6, 1");
    fx.run("DELETE FROM posthouse.leased").await;
    put().await;
    assert_eq!(
        granted_at_floors(&fx, "NULL").await,
        "6, 0",
        "without a server the floors prove nothing"
    );
}

/// A server that crashes closes every connection, and without `synchronous_commit` it comes back without its last commits: under the same postmaster, so its start time
/// is the same.
#[tokio::test]
async fn lost_connections_forget_the_floors() {
    let fx = PostgresFixture::new().await;
    let options = Options {
        floor_every: Duration::ZERO,
        ..PostgresFixture::options(&fx.schema)
    };
    let store = Postgres::connect_with(&url(), options).await.unwrap();
    let claim = Claim::new("floors", 20, LEASE);
    let line = |numbers: std::ops::Range<u32>| numbers.map(|n| plain(&n.to_string()).order_key("k")).collect();
    store.enqueue_now(line(0..200)).await.unwrap();
    loop {
        let granted = store.claim(&claim).await.unwrap();
        let delivered: Vec<_> = granted
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&delivered).await.unwrap();
        fx.pass().await;
        if granted.is_empty() {
            break;
        }
    }
    let theirs = format!(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE '%{}.%' AND application_name = 'posthouse'",
        fx.schema
    );
    fx.one(&theirs).await;
    // The last hundred numbers were never committed.
    fx.run("SELECT setval('posthouse.message_seq_seq', 100)").await;
    let producer = fx.open().await;
    fx.run("DELETE FROM posthouse.attempt; DELETE FROM posthouse.message")
        .await;
    producer.enqueue_now(line(300..420)).await.unwrap();
    let mut order: Vec<u32> = Vec::new();
    while order.len() < 120 {
        let granted = store.claim(&claim).await.unwrap();
        assert!(!granted.is_empty(), "{} of 120", order.len());
        let number = |body: &[u8]| std::str::from_utf8(body).unwrap().parse::<u32>().unwrap();
        order.extend(granted.iter().map(|one| number(&one.delivery.payload)));
        let delivered: Vec<_> = granted
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&delivered).await.unwrap();
    }
    assert!(order.is_sorted(), "{order:?}");
}
