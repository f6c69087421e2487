//! The migration kit (`docs/migrating/`), on old tables as they are found in the wild, in a database of its own each time.

mod delete_on_claim;
mod import;
mod status_column;

use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::page::run;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, NoTls, SimpleQueryMessage};

use crate::fixture::{session, url};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/migrating");

/// A database with Posthouse beside an old outbox.
struct Shop {
    name: String,
    url: String,
    client: Client,
    driver: JoinHandle<()>,
}

impl Shop {
    async fn with(tables: &str) -> Self {
        let name = format!("old_{}", uuid::Uuid::new_v4().simple());
        let (control, driver) = session().await;
        control.batch_execute(&format!("CREATE DATABASE {name}")).await.unwrap();
        driver.abort();
        let url = format!("{}/{name}", url().rsplit_once('/').unwrap().0);
        Postgres::open(&url, Options::default())
            .unwrap()
            .migrate()
            .await
            .unwrap();
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        let driver = tokio::spawn(async move {
            connection.await.ok();
        });
        client.batch_execute(tables).await.unwrap();
        Self {
            name,
            url,
            client,
            driver,
        }
    }

    async fn run(&self, sql: &str) {
        self.client
            .batch_execute(sql)
            .await
            .unwrap_or_else(|e| panic!("{sql}\n{e:?}"));
    }

    /// The rows, their columns joined by a bar.
    async fn rows(&self, sql: &str) -> Vec<String> {
        let found = self
            .client
            .simple_query(sql)
            .await
            .unwrap_or_else(|e| panic!("{sql}\n{e:?}"));
        let rows = found.iter().filter_map(|m| match m {
            SimpleQueryMessage::Row(row) => Some(row),
            _ => None,
        });
        rows.map(|row| {
            let columns = (0..row.len()).map(|at| row.get(at).unwrap_or("-"));
            columns.collect::<Vec<_>>().join("|")
        })
        .collect()
    }

    async fn one(&self, sql: &str) -> String {
        self.rows(sql).await.concat()
    }

    /// Runs a file of the kit as its head says; answers the rows it prints, or the error.
    fn kit(&self, file: &str) -> String {
        self.edited(file, |text| text)
    }

    /// The same, after somebody adapted it.
    fn edited(&self, file: &str, edit: impl Fn(String) -> String) -> String {
        let text = edit(std::fs::read_to_string(format!("{FOLDER}/{file}")).unwrap());
        let psql = std::env::var("POSTHOUSE_TEST_PSQL").unwrap_or_else(|_| "psql".to_owned());
        let command = format!(
            "cd {FOLDER} && exec {psql} -X -q -A -t -v ON_ERROR_STOP=1 -d '{}' 2>&1",
            self.url
        );
        run("sh", &["-c", &command], &text)
    }

    /// All that both sides hold.
    async fn everything(&self) -> Vec<String> {
        let tables = self
            .rows("SELECT format('%I.%I', schemaname, tablename) FROM pg_tables WHERE schemaname IN ('posthouse', 'public') ORDER BY 1")
            .await;
        let mut all = Vec::new();
        for table in tables {
            all.extend(
                self.rows(&format!("SELECT '{table}', to_jsonb(x) FROM {table} x ORDER BY 2"))
                    .await,
            );
        }
        all
    }

    /// A worker delivers whatever is due, one claim after the other; answers what it sent, in order.
    async fn drain(&self) -> Vec<String> {
        let mut sent = Vec::new();
        loop {
            let batch = self
                .rows("SELECT id, lease_token, topic, order_key, convert_from(payload, 'UTF8') FROM posthouse.claim_outbox_batch(3, 'w', 60)")
                .await;
            if batch.is_empty() {
                return sent;
            }
            for message in batch {
                let parts: Vec<_> = message.splitn(5, '|').collect();
                let done = format!(
                    "SELECT posthouse.complete_outbox_attempt('{}', '{}', 'w', 'delivered', receipt => 'r')",
                    parts[0], parts[1]
                );
                assert_eq!(self.one(&done).await, "done");
                sent.push(parts[2..].join("|"));
            }
        }
    }

    /// Posthouse's clock goes so much before the server's.
    async fn later(&self, by: &str) {
        self.run(&format!(
            "CREATE OR REPLACE FUNCTION posthouse.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$ SELECT clock_timestamp() + interval '{by}' $$"
        ))
        .await;
    }

    async fn close(self) {
        self.driver.abort();
        let (control, driver) = session().await;
        control
            .batch_execute(&format!("DROP DATABASE {} WITH (FORCE)", self.name))
            .await
            .unwrap();
        driver.abort();
    }
}
