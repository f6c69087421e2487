//! `examples/payment_dispatch`: its tables, its queries and its workers in three languages.

use posthouse::AnyStore;
use posthouse_testkit::page::{python, run};
use sqlx::{Connection, PgConnection, PgPool};
use std::{collections::BTreeMap, process::Stdio};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines},
    process::{Child, ChildStdout, Command},
};

#[path = "../examples/payment_worker/worker.rs"]
mod worker;

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/payment_dispatch");
const RUN: &str = "test";

fn psql() -> String {
    std::env::var("POSTHOUSE_TEST_PSQL").unwrap_or_else(|_| "psql".to_owned())
}

/// The service and its bank, in a database of their own.
struct Service {
    name: String,
    url: String,
    pool: PgPool,
}

impl Service {
    async fn open() -> Self {
        let server = std::env::var("POSTHOUSE_TEST_POSTGRES")
            .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
        let name = format!("pay_{}", uuid::Uuid::new_v4().simple());
        Self::on_server(&format!("CREATE DATABASE {name}")).await;
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        AnyStore::migrate(&url).await.unwrap();
        let pool = PgPool::connect(&url).await.unwrap();
        let service = Self { name, url, pool };
        service.run(include_str!("../../postgres/tests/clock.sql")).await;
        // The bank of the tests is quick.
        let tables = include_str!("../../../examples/payment_dispatch/payments.sql");
        assert!(tables.contains("pg_sleep(0.1)"));
        service.run(&tables.replace("pg_sleep(0.1)", "pg_sleep(0)")).await;
        service
    }

    async fn on_server(sql: &str) {
        let server = std::env::var("POSTHOUSE_TEST_POSTGRES").unwrap();
        let mut control = PgConnection::connect(&server).await.unwrap();
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&mut control)
            .await
            .unwrap();
    }

    async fn run(&self, sql: &str) {
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql))
            .execute(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}\n{e}"));
    }

    /// The first column of each row, as text.
    async fn column(&self, sql: &str) -> Vec<String> {
        let sql = format!("SELECT (x.*)::text FROM ({sql}) x");
        let rows: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.as_str()))
            .fetch_all(&self.pool)
            .await
            .unwrap_or_else(|e| panic!("{sql}\n{e}"));
        rows.into_iter()
            .map(|row| row.trim_matches(['(', ')']).to_owned())
            .collect()
    }

    async fn one(&self, sql: &str) -> String {
        self.column(sql).await.concat()
    }

    async fn pay(&self, reference: &str, account: &str, amount: u32) {
        self.run(&format!(
            "SELECT payment_dispatch.pay('{RUN}', '{reference}', '{account}', {amount})"
        ))
        .await;
    }

    async fn advance(&self, seconds: u32) {
        self.run(&format!(
            "UPDATE posthouse.test_clock SET at = at + interval '{seconds} seconds'"
        ))
        .await;
    }

    /// Every row of every table, but for those of the audit.
    async fn rows(&self) -> Vec<String> {
        let tables = self
            .column("SELECT format('%s.%s', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('posthouse', 'payment_dispatch') AND tablename <> 'audit' ORDER BY 1")
            .await;
        let mut rows = Vec::new();
        for table in tables {
            rows.extend(
                self.column(&format!("SELECT '{table}', to_jsonb(t) FROM {table} t ORDER BY 2"))
                    .await,
            );
        }
        rows
    }

    fn python(&self, name: &str, options: &[&str]) -> Command {
        let mut command = Command::new(python());
        command
            .args([&format!("{FOLDER}/worker.py"), &self.url, name, RUN])
            .args(options);
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        command
    }

    fn shell(&self, name: &str) -> Command {
        let mut command = Command::new("bash");
        command
            .args([&format!("{FOLDER}/worker.sh"), &self.url, name, RUN, "once"])
            .env("PSQL", psql());
        command.kill_on_drop(true);
        command
    }

    async fn rust(&self, name: &str) -> Vec<String> {
        let told = std::sync::Mutex::new(Vec::new());
        let worker = worker::Worker::connect(&self.url, name, RUN).await.unwrap();
        worker.work(true, |line| told.lock().unwrap().push(line)).await.unwrap();
        told.into_inner().unwrap()
    }

    async fn close(self) {
        self.pool.close().await;
        Self::on_server(&format!("DROP DATABASE {} WITH (FORCE)", self.name)).await;
    }
}

/// Runs a worker to its end, which must be a good one; answers what it said.
async fn ended(mut command: Command) -> String {
    let output = command.output().await.unwrap();
    let said = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
    assert!(output.status.success(), "{said}");
    said
}

/// A Python worker that has sent a payment, and has not reported.
struct Frozen {
    child: Child,
    said: Lines<BufReader<ChildStdout>>,
}

impl Frozen {
    async fn start(service: &Service, name: &str) -> Self {
        let mut child = service.python(name, &["hold"]).spawn().unwrap();
        let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = said.next_line().await.unwrap().unwrap();
        assert!(line.contains("booked, and it freezes"), "{line}");
        Self { child, said }
    }

    async fn thaw(mut self) -> String {
        self.child.stdin.take().unwrap().write_all(b"\n").await.unwrap();
        let line = self.said.next_line().await.unwrap().unwrap();
        assert!(self.child.wait().await.unwrap().success());
        line
    }
}

const ATTEMPTS: &str = "SELECT string_agg(worker || ' ' || outcome, ', ' ORDER BY epoch) FROM posthouse.attempts";

#[tokio::test]
async fn a_payment_and_its_message_are_committed_together() {
    let service = Service::open().await;
    service
        .run("BEGIN; SELECT payment_dispatch.pay('test', 'p', 'alice', 11); ROLLBACK")
        .await;
    let counts = "SELECT (SELECT count(*) FROM payment_dispatch.payment), (SELECT count(*) FROM posthouse.messages)";
    assert_eq!(service.one(counts).await, "0,0");
    service.pay("p", "alice", 11).await;
    service.pay("p", "alice", 11).await;
    assert_eq!(service.one(counts).await, "1,1");
    // Another payment under the same reference is no repetition.
    let other = sqlx::query("SELECT payment_dispatch.pay('test', 'p', 'alice', 12)")
        .execute(&service.pool)
        .await
        .unwrap_err();
    assert_eq!(other.as_database_error().unwrap().code().unwrap(), "P7004");
    service.close().await;
}

/// Phase 4: a worker dies in flight. Its lease runs out, is repaired with evidence, and another takes over.
#[tokio::test]
async fn phase_4_an_expired_lease_is_repaired_and_taken_over() {
    let service = Service::open().await;
    service.pay("p", "alice", 11).await;
    let died = service.python("doomed", &["die"]).output().await.unwrap();
    assert!(!died.status.success());
    // In flight, and seen to be.
    let leased = "SELECT state, worker, attempts FROM posthouse.backlog";
    assert_eq!(service.one(leased).await, "leased,doomed,1");
    let repair = format!("SELECT posthouse.repair_expired_leases(10, '{RUN}')");
    service.advance(29).await;
    assert_eq!(service.one(&repair).await, "0");
    assert_eq!(ended(service.shell("psql")).await, "");
    service.advance(1).await;
    assert_eq!(service.one(&repair).await, "1");
    assert_eq!(service.one(&repair).await, "0");
    assert_eq!(
        service.one("SELECT state, attempts FROM posthouse.backlog").await,
        "pending,1"
    );
    assert_eq!(service.one(ATTEMPTS).await, r#""doomed lease_expired""#);
    let said = ended(service.shell("psql")).await;
    assert!(said.contains("attempt 2: booked -> done"), "{said}");
    assert_eq!(service.one(ATTEMPTS).await, r#""doomed lease_expired, psql delivered""#);
    assert_eq!(
        service
            .one("SELECT state, receipt IS NOT NULL FROM payment_dispatch.payment")
            .await,
        "booked,t"
    );
    service.close().await;
}

/// A claim settles what ran out by itself; so does a worker with the library.
#[tokio::test]
async fn phase_4_the_next_claim_repairs_too() {
    let service = Service::open().await;
    for (n, account) in ["alice", "bob"].into_iter().enumerate() {
        service.pay(&format!("p{n}"), account, 11).await;
    }
    for name in ["doomed", "doomed-too"] {
        service.python(name, &["die"]).output().await.unwrap();
    }
    service.advance(30).await;
    let (by_rust, by_python) = (
        service.rust("rust").await,
        ended(service.python("python", &["once"])).await,
    );
    assert_eq!(by_rust.len() + by_python.lines().count(), 2, "{by_rust:?} {by_python}");
    assert_eq!(
        service
            .one("SELECT count(*) FROM posthouse.attempts WHERE outcome = 'lease_expired'")
            .await,
        "2"
    );
    service.close().await;
}

/// Phase 5: A has paid and freezes; its lease runs out; B takes over and finishes; A comes back and reports. It is refused, and not a
/// row changes: neither of the outbox, nor of the service.
#[tokio::test]
async fn phase_5_a_stale_worker_is_refused_after_another_finished() {
    let service = Service::open().await;
    service.pay("p", "alice", 11).await;
    let a = Frozen::start(&service, "A").await;
    service.advance(30).await;
    let b = service.rust("B").await.concat();
    assert!(b.contains("attempt 2: booked before -> done"), "{b}");
    let before = service.rows().await;
    let said = a.thaw().await;
    assert!(said.contains("P7002: the lease on message"), "{said}");
    assert_eq!(service.rows().await, before);
    assert_eq!(service.one(ATTEMPTS).await, r#""A lease_expired, B delivered""#);
    assert_eq!(
        service.one("SELECT actor, action, note FROM posthouse.audit").await,
        r#"A,outbox_flush_conflict,"lease of epoch 1 lost; found done at epoch 2""#
    );
    assert_eq!(service.one("SELECT count(*) FROM payment_dispatch.booking").await, "1");
    service.close().await;
}

/// Phase 5, while B is still at work: A is refused, and B finishes all the same.
#[tokio::test]
async fn phase_5_a_stale_worker_does_not_disturb_the_one_that_took_over() {
    let service = Service::open().await;
    service.pay("p", "alice", 11).await;
    let a = Frozen::start(&service, "A").await;
    service.advance(30).await;
    let mut b = service.python("B", &["hold"]).spawn().unwrap();
    let mut said = BufReader::new(b.stdout.take().unwrap()).lines();
    assert!(
        said.next_line()
            .await
            .unwrap()
            .unwrap()
            .contains("booked before, and it freezes")
    );
    let before = service.rows().await;
    assert!(a.thaw().await.contains("P7002"));
    assert_eq!(service.rows().await, before);
    b.stdin.take().unwrap().write_all(b"\n").await.unwrap();
    let done = said.next_line().await.unwrap().unwrap();
    assert!(done.contains("attempt 2: booked before -> done"), "{done}");
    b.wait().await.unwrap();
    service.close().await;
}

/// A claim may hold two payments of an account. When the first goes back, the second goes with it; a worker that sent it all the same
/// would break the order.
#[tokio::test]
async fn after_a_failure_the_rest_of_the_account_is_not_sent() {
    let service = Service::open().await;
    for kind in ["python", "psql", "rust"] {
        service.pay(&format!("{kind}-1"), kind, 15).await;
        service.pay(&format!("{kind}-2"), kind, 16).await;
        for (answers, seconds) in [("busy", 10), ("busy booked booked", 0)] {
            match kind {
                "python" => drop(ended(service.python(kind, &["once"])).await),
                "psql" => drop(ended(service.shell(kind)).await),
                _ => drop(service.rust(kind).await),
            }
            let asked =
                format!("SELECT string_agg(answer, ' ' ORDER BY n) FROM payment_dispatch.call WHERE worker = '{kind}'");
            assert_eq!(service.one(&asked).await.trim_matches('"'), answers, "{kind}");
            service.advance(seconds).await;
        }
    }
    assert_eq!(
        service
            .one("SELECT string_agg(reference, ' ' ORDER BY n) FROM payment_dispatch.booking")
            .await,
        r#""python-1 python-2 psql-1 psql-2 rust-1 rust-2""#
    );
    assert_eq!(service.one("SELECT count(*) FROM posthouse.audit").await, "0");
    service.close().await;
}

/// Many workers of three languages claim the same work, with a rail that is busy at times and refuses some: each payment is booked
/// once, by one attempt, in the order of its account; nobody loses a lease.
#[tokio::test(flavor = "multi_thread")]
async fn many_workers_book_each_payment_once_and_in_order() {
    let service = Service::open().await;
    service
        .run("SELECT payment_dispatch.pay('test', 'p' || n, CASE WHEN n % 10 = 3 THEN 'closed' ELSE 'account-' END || n % 12, 100 + n) FROM generate_series(1, 90) n")
        .await;
    // The clock stands still, so leases do not end by themselves; busy ones come back when it is moved.
    for _ in 0..12 {
        let commands = [
            service.python("python-1", &["once"]),
            service.python("python-2", &["once"]),
            service.shell("psql-1"),
            service.shell("psql-2"),
        ];
        let others = commands.map(|command| tokio::spawn(ended(command)));
        tokio::join!(service.rust("rust-1"), service.rust("rust-2"));
        for other in others {
            other.await.unwrap();
        }
        if service.one("SELECT count(*) FROM posthouse.backlog").await == "0" {
            break;
        }
        service.advance(10).await;
    }
    assert_eq!(
        service
            .column("SELECT state, count(*) FROM posthouse.messages GROUP BY state ORDER BY state")
            .await,
        ["dead,9", "done,81"]
    );
    assert_eq!(
        service
            .column("SELECT state, count(*) FROM payment_dispatch.payment GROUP BY state ORDER BY state")
            .await,
        ["booked,81", "refused,9"]
    );
    // One attempt that delivered, or was refused, for each; and one more where the rail was busy.
    assert_eq!(
        service.column("SELECT outcome, count(*), count(DISTINCT message_id) FROM posthouse.attempts GROUP BY outcome ORDER BY outcome").await,
        ["delivered,81,81", "rejected,9,9", "retry,18,18"]
    );
    // The rail was asked as often as there are attempts: nobody sent what it did not hold.
    assert_eq!(service.one("SELECT count(*) FROM payment_dispatch.call").await, "108");
    assert_eq!(
        service
            .one("SELECT count(*) FROM payment_dispatch.call WHERE answer = 'booked before'")
            .await,
        "0"
    );
    assert_eq!(service.one("SELECT count(*) FROM posthouse.audit").await, "0");
    let mut booked: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    for row in service
        .column("SELECT account, substr(reference, 2) FROM payment_dispatch.booking ORDER BY n")
        .await
    {
        let (account, n) = row.split_once(',').unwrap();
        booked.entry(account.to_owned()).or_default().push(n.parse().unwrap());
    }
    for (account, numbers) in &booked {
        assert!(numbers.is_sorted(), "{account}: {numbers:?}");
    }
    service.close().await;
}

/// The queries to watch with: the page has those that the example prints, and each finds what it is for.
#[tokio::test]
async fn the_queries_to_watch_with_find_what_they_are_for() {
    let text = std::fs::read_to_string(format!("{FOLDER}/watch.sql")).unwrap();
    let page = include_str!("../../../docs/watching.md");
    let queries: Vec<_> = text
        .split("\\echo ")
        .skip(1)
        .map(|part| part.split_once('\n').unwrap().1)
        .collect();
    assert_eq!(queries.len(), 6);
    for query in &queries {
        assert!(page.contains(query), "docs/watching.md has not\n{query}");
    }
    let service = Service::open().await;
    service.pay("p", "alice", 11).await;
    let a = Frozen::start(&service, "A").await;
    for account in ["bob", "carol", "closed"] {
        service.pay(account, account, 11).await;
    }
    // By the clock of the store, which is not the server's in this test.
    let found = |n: usize| {
        let query = queries[n].replace("clock_timestamp()", "posthouse.clock()");
        run(&psql(), &["-X", "-q", "-A", "-t", "-d", &service.url], &query)
    };
    assert_eq!(
        [found(0), found(1), found(2)],
        ["A|1|00:00:30\n", "", "payment_dispatch|rail.transfer|3|00:00:00\n"]
    );
    service.advance(31).await;
    let late = found(1);
    assert!(
        found(0).is_empty() && late.starts_with("A|rail.transfer|") && late.ends_with("|1|12|00:00:01\n"),
        "{late}"
    );
    ended(service.python("B", &["once"])).await;
    a.thaw().await;
    service.advance(5).await;
    assert_eq!(
        found(3),
        "delivered|3|1|00:00:00\nlease_expired|1|1|00:00:31\nrejected|1|1|00:00:00\n"
    );
    assert_eq!(found(4), "A|1|00:00:05\n");
    assert_eq!(found(5), "A|lease of epoch 1 lost; found done at epoch 2|00:00:05\n");
    service.close().await;
}
