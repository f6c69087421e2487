//! Databases that the suite's cases use one after another. Each case empties its database first: to make a schema takes longer than most cases, and a
//! new database would need new sessions.

use posthouse_postgres::{Postgres, Schema};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session_at, sessions, url};

/// The schema in each of them: not the one that statements are written for, so that one which is not put into its place is noticed.
const SCHEMA: &str = "suite";

/// A database that no other test uses until this is dropped.
pub struct Taken {
    /// Its name on the server.
    pub name: String,
    pub schema: Schema,
    /// Has the lock; it goes with the connection, however the test ends.
    _owner: Client,
    driver: JoinHandle<()>,
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.driver.abort();
    }
}

/// The same server, another database.
pub fn at(url: &str, database: &str) -> String {
    let (server, _) = url.rsplit_once('/').expect("a URL with a database");
    format!("{server}/{database}")
}

/// Takes an empty database. Poolers keep idle sessions of it, which stay.
pub async fn take() -> Taken {
    let (owner, driver) = session_at(&sessions()).await;
    let name = format!("{SCHEMA}_{}", free(&owner).await);
    let schema = Schema::new(SCHEMA).unwrap();
    if !is_whole(&owner, &name).await {
        make(&owner, &name, &schema).await;
    }
    let (control, task) = session_at(&at(&sessions(), &name)).await;
    // Ends: each of these sessions ends after its current statement.
    while control.query_one(END_OTHERS, &[]).await.unwrap().get::<_, i64>(0) > 0 {
        tokio::task::yield_now().await;
    }
    control.batch_execute(include_str!("empty.sql")).await.unwrap();
    task.abort();
    Taken {
        name,
        schema,
        _owner: owner,
        driver,
    }
}

/// Ends the sessions of an earlier test that still work, and answers how many there were.
const END_OTHERS: &str = "
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend' AND state <> 'idle'";

/// The first number that no other test holds.
async fn free(owner: &Client) -> i32 {
    let mut number = 0;
    // Ends: a few tests run at a time.
    loop {
        let row = owner
            .query_one("SELECT pg_try_advisory_lock(1, $1)", &[&number])
            .await
            .unwrap();
        if row.get(0) {
            return number;
        }
        number += 1;
    }
}

/// Whether a database was made, to the end.
async fn is_whole(owner: &Client, name: &str) -> bool {
    let sql = "SELECT shobj_description(oid, 'pg_database') = 'whole' FROM pg_database WHERE datname = $1";
    let found = owner.query_opt(sql, &[&name]).await.unwrap();
    found.is_some_and(|row| row.get::<_, Option<bool>>(0) == Some(true))
}

async fn make(owner: &Client, name: &str, schema: &Schema) {
    for sql in ["DROP DATABASE IF EXISTS NAME WITH (FORCE)", "CREATE DATABASE NAME"] {
        owner.batch_execute(&sql.replace("NAME", name)).await.unwrap();
    }
    let own = at(&url(), name);
    let store = Postgres::open(&own, PostgresFixture::options(schema)).unwrap();
    store.migrate().await.unwrap();
    let (control, driver) = session_at(&own).await;
    let clock = include_str!("clock.sql").replace("posthouse.", &format!("{schema}."));
    control.batch_execute(&clock).await.unwrap();
    control.batch_execute(include_str!("keep.sql")).await.unwrap();
    driver.abort();
    let whole = format!("COMMENT ON DATABASE {name} IS 'whole'");
    owner.batch_execute(&whole).await.unwrap();
}
