//! Databases that one case after another has, emptied for the next one: to make a schema takes longer than most cases, and everybody who is connected
//! has to forget what he knew of the others.

use posthouse_postgres::{Postgres, Schema};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session, session_at, url};

/// The schema in each of them: not the one that statements are written for, so that one which is not put into its place is noticed.
const SCHEMA: &str = "suite";

/// A database that nobody else has until this is dropped.
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

/// Takes an empty database. Those of a pooler are apart: it keeps connections to them, which whoever is not behind one ends.
pub async fn take(pooled: bool) -> Taken {
    let (owner, driver) = session().await;
    let number = free(&owner, pooled).await;
    let name = format!("{SCHEMA}_{}_{number}", if pooled { "pooled" } else { "direct" });
    let schema = Schema::new(SCHEMA).unwrap();
    if !is_whole(&owner, &name).await {
        make(&owner, &name, &schema).await;
    }
    let own = at(&url(), &name);
    let (control, task) = session_at(&own).await;
    let ask = include_str!("end_others.sql");
    // Ends: who is told to end does, as soon as his statement is over.
    while control.query_one(ask, &[&pooled]).await.unwrap().get::<_, i64>(0) > 0 {
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

/// The first number that no other test has.
async fn free(owner: &Client, pooled: bool) -> i32 {
    let mut number = 0;
    // Ends: there are not so many tests at a time.
    loop {
        let row = owner
            .query_one("SELECT pg_try_advisory_lock($1, $2)", &[&i32::from(pooled), &number])
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
