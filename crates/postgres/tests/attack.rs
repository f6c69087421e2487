//! Roles that want more than they were given, each in a database of its own: what is planted in `public` is there for everybody.

use posthouse_core::{Admin, AuditFilter, Claim, Error, Filter, Message, Prune, Settlement, Store};
use posthouse_postgres::{Options, Postgres, Schema};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session, session_at, url, url_as};

/// A database with a schema and its roles.
struct Town {
    name: String,
    schema: Schema,
    url: String,
    /// The superuser's session.
    client: Client,
    driver: JoinHandle<()>,
    /// Roles that were made for the test.
    logins: Vec<String>,
}

impl Town {
    async fn new() -> Self {
        let name = format!("town_{}", uuid::Uuid::new_v4().simple());
        let (control, driver) = session().await;
        control.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        driver.abort();
        let schema = Schema::new(&format!("t_{}", uuid::Uuid::new_v4().simple())).unwrap();
        let url = at(&url(), &name);
        let store = Postgres::open(&url, PostgresFixture::options(&schema)).unwrap();
        store.migrate().await.unwrap();
        store.make_roles().await.unwrap();
        let (client, driver) = session_at(&url).await;
        let logins = Vec::new();
        Self {
            name,
            schema,
            url,
            client,
            driver,
            logins,
        }
    }

    async fn store(&self) -> Postgres {
        self.store_at(&self.url).await
    }

    async fn store_at(&self, url: &str) -> Postgres {
        Postgres::connect_with(url, self.options()).await.unwrap()
    }

    fn options(&self) -> Options {
        Options {
            listen: None,
            ..PostgresFixture::options(&self.schema)
        }
    }

    /// Somebody who can log in and has the rights of a role of the schema. Answers the address.
    async fn login(&mut self, suffix: &str) -> String {
        let login = format!("l_{}", uuid::Uuid::new_v4().simple());
        self.run(&format!(
            "CREATE ROLE {login} LOGIN; GRANT {}_{suffix} TO {login}",
            self.schema
        ))
        .await;
        self.logins.push(login.clone());
        at(&url_as(&login), &self.name)
    }

    fn sql(&self, text: &str) -> String {
        text.replace("posthouse.", &format!("{}.", self.schema))
    }

    async fn run(&self, sql: &str) {
        let sql = self.sql(sql);
        let answer = self.client.batch_execute(&sql).await;
        answer.unwrap_or_else(|e| panic!("{sql}\n{e:?}"));
    }

    async fn close(self) {
        self.driver.abort();
        let (control, driver) = session().await;
        let drop = format!("DROP DATABASE {} WITH (FORCE)", self.name);
        control.batch_execute(&drop).await.unwrap();
        let suffixes = ["owner", "producer", "relay", "operator", "viewer"];
        let roles = suffixes.map(|suffix| format!("{}_{suffix}", self.schema));
        for role in roles.iter().chain(&self.logins) {
            control.batch_execute(&format!("DROP ROLE {role}")).await.unwrap();
        }
        driver.abort();
    }
}

fn at(url: &str, database: &str) -> String {
    format!("{}/{database}", url.rsplit_once('/').unwrap().0)
}

fn keyed() -> Message {
    Message::bytes("t", "text/plain", "x")
        .order_key("alice")
        .dedupe_key("d-1")
}

/// Each is a better match for a call than what the server has, and stops whoever runs it.
const PLANTED: &str = "
    CREATE FUNCTION public.hashtextextended(text, int) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE ''planted code runs as %'', current_user; END';
    CREATE FUNCTION public.int8send(int) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE ''planted code runs as %'', current_user; END';
    CREATE FUNCTION public.unnest(bigint[]) RETURNS SETOF bigint LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE ''planted code runs as %'', current_user; END';
    CREATE FUNCTION public.times(bigint, interval) RETURNS interval LANGUAGE plpgsql IMMUTABLE AS 'BEGIN RAISE ''planted code runs as %'', current_user; END';
    CREATE OPERATOR public.* (FUNCTION = public.times, LEFTARG = bigint, RIGHTARG = interval);";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_that_is_planted_runs_as_whoever_reads() {
    let mut town = Town::new().await;
    let producer = town.login("producer").await;
    // As every role could before PostgreSQL 15.
    town.run("GRANT CREATE ON SCHEMA public TO PUBLIC").await;
    let (mallory, driver) = session_at(&producer).await;
    mallory.batch_execute(PLANTED).await.unwrap();
    let trap = mallory.query("SELECT hashtextextended('x', 0)", &[]).await.unwrap_err();
    assert!(trap.as_db_error().unwrap().message().starts_with("planted"), "{trap:?}");
    driver.abort();

    let store = town.store().await;
    let made = store
        .enqueue_now(vec![keyed(), keyed().dedupe_key("d-2")])
        .await
        .unwrap();
    let id = made[0].id();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(60))).await.unwrap();
    let delivered = Settlement::delivered(&claimed[0].lease, Some("r"));
    assert!(store.settle(&[delivered]).await.unwrap()[0].is_settled());
    assert!(store.find(id).await.unwrap().is_some());
    assert_eq!(store.list(&Filter::default()).await.unwrap().messages.len(), 2);
    assert_eq!(store.attempts(id).await.unwrap().len(), 1);
    store.facts(id).await.unwrap();
    store.counts().await.unwrap();
    let (later, within) = (made[1].id(), Some(Duration::from_secs(60)));
    store.cancel(later, "anna", "no").await.unwrap();
    store.replay(later, "anna", "again", within).await.unwrap();
    store.audit(&AuditFilter::default()).await.unwrap();
    store
        .prune(&Prune::done(Duration::from_secs(60), 10, "op"))
        .await
        .unwrap();
    for view in [
        "live",
        "messages",
        "masked_messages",
        "attempts",
        "masked_attempts",
        "backlog",
    ] {
        town.run(&format!("SELECT to_jsonb(v) FROM posthouse.{view} v")).await;
    }
    town.run("SELECT posthouse.lane('a', 'b'), posthouse.key_hash('a', 'b', 'c'), posthouse.digest('t', 'x')")
        .await;
    // Nor does it become a part of the schema.
    store.migrate().await.unwrap();
    store.make_roles().await.unwrap();
    store.plan_roles().await.unwrap();
    town.run("SELECT to_jsonb(v) FROM posthouse.masked_messages v").await;
    town.close().await;
}

/// Neither by functions of its own that the view might run, nor by trying keys.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_sees_no_key() {
    let mut town = Town::new().await;
    town.store().await.enqueue_now(vec![keyed()]).await.unwrap();
    let viewer = town.login("viewer").await;
    town.run(&format!("CREATE SCHEMA v AUTHORIZATION {}", town.logins[0]))
        .await;
    let (client, driver) = session_at(&viewer).await;
    client
        .batch_execute(
            "CREATE FUNCTION v.convert_to(text, name) RETURNS bytea LANGUAGE plpgsql AS 'BEGIN RAISE ''the key is %'', $1; END';
             CREATE FUNCTION v.sha256(bytea) RETURNS bytea LANGUAGE plpgsql AS 'BEGIN RAISE ''the key is %'', $1; END';
             SET search_path = v, pg_catalog",
        )
        .await
        .unwrap();
    let sql = town.sql("SELECT order_key, dedupe_key, pg_catalog.left(pg_catalog.encode(pg_catalog.sha256('alice'), 'hex'), 16) FROM posthouse.masked_messages");
    let row = client.query_one(&sql, &[]).await.unwrap();
    let [order, dedupe, guess] = [0, 1, 2].map(|at| row.get::<_, String>(at));
    assert!(
        order.len() == 16 && dedupe.len() == 16 && order != dedupe,
        "{order} {dedupe}"
    );
    assert_ne!(order, guess);
    let refused = client.query(&town.sql("SELECT salt FROM posthouse.secret"), &[]).await;
    assert_eq!(refused.unwrap_err().code().unwrap().code(), "42501");
    driver.abort();
    town.close().await;
}

/// The token of a claim stands in the evidence of its first message while the second is still on its way. An operator who had it, and
/// the right to settle, could end that one in the worker's name, and no audit would tell.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operator_cannot_settle_but_can_repair() {
    let mut town = Town::new().await;
    let store = town.store().await;
    let message = || Message::bytes("t", "text/plain", "x");
    store.enqueue_now(vec![message(), message()]).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 2, Duration::from_secs(60))).await.unwrap();
    let (first, second) = (&claimed[0].lease, &claimed[1].lease);
    store.settle(&[Settlement::delivered(first, Some("r"))]).await.unwrap();
    assert_eq!(store.attempts(first.id).await.unwrap()[0].token, first.token);

    let theirs = town.login("operator").await;
    let operator = town.store_at(&theirs).await;
    let shown = operator.attempts(first.id).await.unwrap();
    assert_eq!(shown[0].receipt.as_deref(), Some("r"));
    assert_ne!(shown[0].token, first.token);
    let (client, driver) = session_at(&theirs).await;
    let sql = town.sql("SELECT count(token) FROM posthouse.attempts");
    assert_eq!(client.query_one(&sql, &[]).await.unwrap().get::<_, i64>(0), 0);
    driver.abort();
    for forged in [
        Settlement::delivered(second, None),
        Settlement::delivered(second, Some("forged")),
    ] {
        let refused = operator.settle(&[forged]).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    }
    // With the token, and by saying that it has run out: it has not.
    let early = operator.settle(&[Settlement::expired(second)]).await.unwrap();
    assert!(early[0].is_lost(), "{early:?}");
    town.run("UPDATE posthouse.leased SET until = now() - interval '1 second'; UPDATE posthouse.deadline SET until = now() - interval '1 second'")
        .await;
    assert_eq!(posthouse_core::repair(&operator, 10).await.unwrap(), 1);
    let attempts = operator.attempts(second.id).await.unwrap();
    assert_eq!(attempts[0].code.as_deref(), Some("lease_expired"));
    town.close().await;
}

/// Producers use the library too, and it asks for the version first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_producer_enqueues_with_the_library() {
    let mut town = Town::new().await;
    let producer = town.login("producer").await;
    town.store_at(&producer).await.enqueue_now(vec![keyed()]).await.unwrap();
    town.close().await;
}

/// Who is a member of the owner and nothing else: no right to make schemas, nor roles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_member_of_the_owner_migrates() {
    let mut town = Town::new().await;
    let member = town.login("owner").await;
    let store = town.store_at(&member).await;
    store.migrate().await.unwrap();
    store.make_roles().await.unwrap();
    town.close().await;
}

/// They would trip over the same catalogue rows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_make_the_roles_and_migrate_at_once() {
    let town = Town::new().await;
    town.run(&format!(
        "ALTER DATABASE {} SET default_transaction_isolation = 'repeatable read'",
        town.name
    ))
    .await;
    let mut running = Vec::new();
    for n in 0..8 {
        let store = town.store().await;
        running.push(tokio::spawn(async move {
            if n % 2 == 0 {
                return store.migrate().await.map(drop);
            }
            store.make_roles().await.map(drop)
        }));
    }
    for one in running {
        one.await.unwrap().unwrap();
    }
    town.close().await;
}

/// Neither a verb nor a claim may work on an old snapshot, and nobody should have to know.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn everything_works_where_transactions_are_serializable_by_default() {
    let town = Town::new().await;
    for isolation in ["serializable", "repeatable read"] {
        town.run(&format!(
            "ALTER DATABASE {} SET default_transaction_isolation = '{isolation}'",
            town.name
        ))
        .await;
        let store = town.store().await;
        let message = || Message::bytes("t", "text/plain", "x");
        let made = store.enqueue_now(vec![message(), message(), message()]).await.unwrap();
        let [a, b, c] = [0, 1, 2].map(|at: usize| made[at].id());
        store.quarantine(a, "anna", "look").await.unwrap();
        store.replay(a, "anna", "go", None).await.unwrap();
        store.cancel(a, "anna", "no").await.unwrap();
        store.discard(a, "anna", "gone").await.unwrap();
        store.cancel(b, "anna", "no").await.unwrap();
        store.resolve(b, "anna", "sent by hand", "").await.unwrap();
        store.pause("d", "anna", "why").await.unwrap();
        assert!(store.resume("d", "anna", "done").await.unwrap());
        let claimed = store.claim(&Claim::new("w", 9, Duration::from_secs(60))).await.unwrap();
        assert_eq!(claimed.iter().map(|m| m.lease.id).collect::<Vec<_>>(), [c]);
        let settled = store.settle(&[Settlement::delivered(&claimed[0].lease, None)]).await;
        assert!(settled.unwrap()[0].is_settled());
        // A refusal leaves nothing behind.
        assert!(store.replay(c, "anna", "", None).await.is_err());
        assert!(store.find(c).await.unwrap().is_some());
    }
    town.close().await;
}

/// Rights in it would be revoked, and what it holds might have our names.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schema_of_somebody_else_is_left_alone() {
    let town = Town::new().await;
    town.run(
        "CREATE SCHEMA shop; CREATE FUNCTION shop.price() RETURNS int LANGUAGE sql AS 'SELECT 1'; CREATE SCHEMA empty",
    )
    .await;
    let open = |name: &str| {
        let schema = Schema::new(name).unwrap();
        Postgres::open(&town.url, PostgresFixture::options(&schema)).unwrap()
    };
    for refused in [open("shop").migrate().await, open("shop").plan_migration().await] {
        let Err(Error::Schema(text)) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            text.contains("schema shop") && text.contains("price") && text.contains("choose another"),
            "{text}"
        );
    }
    let sql = "SELECT proacl IS NULL, (SELECT count(*) FROM pg_class WHERE relnamespace = pronamespace) FROM pg_proc WHERE proname = 'price'";
    let row = town.client.query_one(sql, &[]).await.unwrap();
    assert_eq!((row.get::<_, bool>(0), row.get::<_, i64>(1)), (true, 0));
    open("empty").migrate().await.unwrap();
    town.close().await;
}

/// The least who can do it all: the right to make schemas here, and roles.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_has_to_be_a_superuser_to_make_schema_and_roles() {
    let mut town = Town::new().await;
    let (login, name) = (town.login("viewer").await, town.logins[0].clone());
    town.run(&format!(
        "ALTER ROLE {name} CREATEROLE; GRANT CREATE ON DATABASE {} TO {name}",
        town.name
    ))
    .await;
    let schema = Schema::new(&format!("{name}_s")).unwrap();
    let store = Postgres::open(&login, PostgresFixture::options(&schema)).unwrap();
    for _ in 0..2 {
        store.migrate().await.unwrap();
        town.logins.extend(store.make_roles().await.unwrap());
    }
    // Its roles go first, and once.
    town.logins.sort();
    town.logins.dedup();
    town.logins.reverse();
    town.close().await;
}
