//! Programs and schemas of different versions: side by side where they can, a clear refusal where they cannot. Other versions are
//! played by changing what the schema says of itself.

use posthouse_core::{Admin, Claim, Error, Filter, Fit, Message, Relay, Settlement, Store};
use posthouse_postgres::{Options, Postgres, SCHEMA_VERSION, Schema};
use std::time::Duration;

use crate::fixture::{PostgresFixture, session, session_at, url};

/// What the tables look like, and the text of a function that every migration applies: the tests have put their own clock there.
const SHAPE: &str =
    "SELECT (SELECT string_agg(format('%s.%s %s', c.table_name, c.column_name, c.data_type), ', ' ORDER BY c.table_name, c.column_name)
        FROM information_schema.columns c WHERE c.table_schema = trim(trailing '.' FROM 'posthouse.'))
    || (SELECT string_agg(p.oid::regprocedure || p.prosrc, ' ' ORDER BY p.oid) FROM pg_proc p
        WHERE p.pronamespace = trim(trailing '.' FROM 'posthouse.')::regnamespace)
    || (SELECT format('%s, %s', version, oldest) FROM posthouse.schema_version)";

async fn says(fx: &PostgresFixture, version: i32, oldest: i32) {
    fx.run(&format!(
        "UPDATE posthouse.schema_version SET version = {version}, oldest = {oldest}"
    ))
    .await;
}

/// A handle that has not looked at the schema yet.
fn unopened(fx: &PostgresFixture) -> Postgres {
    Postgres::open(&url(), PostgresFixture::options(&fx.schema)).unwrap()
}

async fn opened(fx: &PostgresFixture) -> Result<Postgres, Error> {
    Postgres::connect_with(&url(), PostgresFixture::options(&fx.schema)).await
}

#[track_caller]
fn refused<T>(answer: Result<T, Error>, parts: &[&str]) {
    match answer {
        Err(Error::Schema(text)) => {
            for part in parts {
                assert!(text.contains(part), "{part:?} is missing: {text}");
            }
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was not refused"),
    }
}

fn relay() -> Relay {
    Relay {
        name: "r".to_owned(),
        ..Relay::default()
    }
}

/// One message, the whole way.
async fn deliver(store: &Postgres) {
    let message = Message::bytes("t", "text/plain", "x");
    store.enqueue_now(vec![message]).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(9))).await.unwrap();
    let settled = store.settle(&[Settlement::delivered(&claimed[0].lease, None)]).await;
    assert!(settled.unwrap()[0].is_settled());
    assert!(!store.list(&Filter::default()).await.unwrap().messages.is_empty());
}

#[tokio::test]
async fn an_older_program_works_on_a_newer_schema_that_admits_it() {
    let fx = PostgresFixture::new().await;
    says(&fx, SCHEMA_VERSION + 1, SCHEMA_VERSION).await;
    deliver(&opened(&fx).await.unwrap()).await;
    // It has nothing to migrate, and must not put its own functions in the place of newer ones.
    let before = fx.one(SHAPE).await;
    assert!(before.contains("clock"), "{before}");
    let upgrade = unopened(&fx).migrate().await.unwrap();
    assert_eq!((upgrade.fit, upgrade.functions), (Fit::Newer, 0));
    assert_eq!(upgrade, unopened(&fx).plan_migration().await.unwrap());
    assert_eq!(fx.one(SHAPE).await, before);
}

#[tokio::test]
async fn an_older_program_is_refused_by_a_schema_that_does_not_admit_it() {
    let fx = PostgresFixture::new().await;
    says(&fx, 99, 98).await;
    let before = fx.one(SHAPE).await;
    let knows = format!("this one knows {SCHEMA_VERSION}");
    let place = format!("schema {}", fx.schema);
    let parts = [
        &place,
        "version 99",
        "version 98 or later",
        &knows,
        "upgrade this program",
    ];
    refused(opened(&fx).await, &parts);
    refused(unopened(&fx).migrate().await, &parts);
    refused(unopened(&fx).plan_migration().await, &parts);
    refused(unopened(&fx).make_roles().await, &parts);
    assert_eq!(fx.one(SHAPE).await, before);
}

#[tokio::test]
async fn a_newer_program_asks_for_a_migration_of_an_older_schema() {
    let fx = PostgresFixture::new().await;
    says(&fx, 0, 0).await;
    let needs = format!("needs version {SCHEMA_VERSION}");
    refused(opened(&fx).await, &["version 0", &needs, "run `posthouse migrate`"]);
    let plan = unopened(&fx).plan_migration().await.unwrap();
    assert_eq!((plan.fit, plan.migrations[0].name), (Fit::Older, "tables"));
    refused(unopened(&fx).make_roles().await, &["run `posthouse migrate`"]);
}

#[tokio::test]
async fn a_plan_changes_nothing() {
    let schema = Schema::new(&format!("t_{}", uuid::Uuid::new_v4().simple())).unwrap();
    let options = Options {
        schema: schema.clone(),
        ..Options::default()
    };
    let plan = Postgres::open(&url(), options).unwrap().plan_migration().await.unwrap();
    assert_eq!((plan.fit, plan.found, plan.migrations.len()), (Fit::Absent, None, 1));
    let (client, driver) = session().await;
    let there = "SELECT count(*) FROM pg_namespace WHERE nspname = $1";
    let count: i64 = client.query_one(there, &[&schema.as_str()]).await.unwrap().get(0);
    assert_eq!(count, 0);
    driver.abort();

    let fx = PostgresFixture::new().await;
    let before = fx.one(SHAPE).await;
    let plan = unopened(&fx).plan_migration().await.unwrap();
    assert_eq!((plan.fit, plan.migrations.len()), (Fit::Current, 0));
    assert_eq!(plan.functions, posthouse_postgres::sql::FUNCTIONS.len());
    assert_eq!(fx.one(SHAPE).await, before);
}

/// Whatever isolation the database begins transactions with: the second must see what the first has done.
#[tokio::test(flavor = "multi_thread")]
async fn of_two_migrators_at_once_one_waits_and_both_succeed() {
    let (control, control_driver) = session().await;
    for isolation in ["read committed", "serializable"] {
        // Of its own, so that nobody else's migration is among those that wait.
        let database = format!("two_{}", uuid::Uuid::new_v4().simple());
        control
            .batch_execute(&format!("CREATE DATABASE {database}"))
            .await
            .unwrap();
        control
            .batch_execute(&format!(
                "ALTER DATABASE {database} SET default_transaction_isolation = '{isolation}'"
            ))
            .await
            .unwrap();
        let here = format!("{}/{database}", url().rsplit_once('/').unwrap().0);
        // A third holds the turn until both wait for it.
        let (holder, driver) = session_at(&here).await;
        holder
            .batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED; SELECT pg_advisory_xact_lock(7260, 1)")
            .await
            .unwrap();
        let migrator = || {
            let store = Postgres::open(&here, Options::default()).unwrap();
            tokio::spawn(async move { store.migrate().await })
        };
        let (a, b) = (migrator(), migrator());
        let waiting = "SELECT count(*) FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                       WHERE d.datname = current_database() AND l.locktype = 'advisory' AND NOT l.granted";
        while holder.query_one(waiting, &[]).await.unwrap().get::<_, i64>(0) < 2 {
            assert!(!a.is_finished() && !b.is_finished(), "one did not wait");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        holder.batch_execute("COMMIT").await.unwrap();
        let mut found = [a.await.unwrap().unwrap().fit, b.await.unwrap().unwrap().fit];
        found.sort_unstable_by_key(|fit| *fit as u8);
        assert_eq!(found, [Fit::Absent, Fit::Current], "{isolation}");
        driver.abort();
        control
            .batch_execute(&format!("DROP DATABASE {database} WITH (FORCE)"))
            .await
            .unwrap();
    }
    control_driver.abort();
}

#[tokio::test]
async fn a_migration_that_fails_halfway_leaves_the_schema_as_it_was() {
    let fx = PostgresFixture::new().await;
    // One of the last texts to be applied cannot be: somebody's own function has the place.
    fx.run("DROP FUNCTION posthouse.make_roles(); CREATE FUNCTION posthouse.make_roles() RETURNS int LANGUAGE sql AS 'SELECT 1'")
        .await;
    let before = fx.one(SHAPE).await;
    let failed = unopened(&fx).migrate().await.unwrap_err();
    assert!(failed.to_string().contains("return type"), "{failed}");
    assert_eq!(fx.one(SHAPE).await, before);
    deliver(&opened(&fx).await.unwrap()).await;
    fx.run("DROP FUNCTION posthouse.make_roles()").await;
    unopened(&fx).migrate().await.unwrap();
    deliver(&opened(&fx).await.unwrap()).await;
}

#[tokio::test]
async fn a_handle_that_was_opened_before_an_upgrade_works_on_where_it_is_admitted() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    says(&fx, 99, SCHEMA_VERSION).await;
    deliver(&store).await;
    store.heartbeat(&relay(), Duration::from_secs(9)).await.unwrap();
    // Migrating again drops and makes functions under a handle that has used them.
    says(&fx, SCHEMA_VERSION, SCHEMA_VERSION).await;
    unopened(&fx).migrate().await.unwrap();
    deliver(&store).await;
}

/// By its heartbeat, and by the first call of something that is no longer there.
#[tokio::test]
async fn a_handle_that_was_opened_before_an_upgrade_is_told_where_it_is_not() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    deliver(&store).await;
    says(&fx, 99, 98).await;
    let parts = ["version 99", "version 98 or later", "upgrade this program"];
    refused(store.heartbeat(&relay(), Duration::from_secs(9)).await, &parts);
    fx.run(
        "DROP FUNCTION posthouse.grant_leases, posthouse.sample_floor, posthouse.settle_delivered, posthouse.settle, posthouse.find_messages,
         posthouse.record_conflict, posthouse.replay CASCADE",
    )
    .await;
    let claim = Claim::new("w", 1, Duration::from_secs(9));
    refused(store.claim(&claim).await, &parts);
    refused(store.claim(&claim.tenant("t")).await, &parts);
    refused(store.list(&Filter::default()).await, &parts);
    let id = posthouse_core::MessageId(uuid::Uuid::new_v4());
    refused(store.replay(id, "anna", "", None).await, &parts);
}
