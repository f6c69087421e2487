//! sqlxmq: messages and payloads in two tables, deleted when done; handlers run side by side, each completes its own message.

use crate::peer::{Error, Order, Peer, Result, Seen, Stop, Work, count, session};
use async_trait::async_trait;
use sqlx_08::{PgPool, postgres::PgPoolOptions};
use sqlxmq::{CurrentJob, JobRegistry, job};
use tokio_postgres::{Client, types::ToSql};

pub struct Sqlxmq {
    control: Client,
    producer: PgPool,
    worker: PgPool,
}

impl Sqlxmq {
    pub async fn open(url: &str) -> Result<Self> {
        let control = session(url).await?;
        control
            .batch_execute(include_str!(concat!(env!("OUT_DIR"), "/sqlxmq.sql")))
            .await?;
        Ok(Self {
            control,
            producer: PgPoolOptions::new().max_connections(1).connect(url).await?,
            worker: PgPoolOptions::new()
                .min_connections(40)
                .max_connections(40)
                .connect(url)
                .await?,
        })
    }
}

/// Its own insert function, which takes many at once; the crate itself always gives it one.
const INSERT: &str = "SELECT mq_insert(array_agg((gen_random_uuid(), '0 s', 4, '1 s', '', '', NULL, false, $2::text, payload, NULL)::mq_new_t))
    FROM unnest($1::text[]) payload";

#[job]
async fn handle(mut job: CurrentJob, seen: &'static Seen) -> std::result::Result<(), Error> {
    let order: Order = job.json()?.ok_or("a message without a payload")?;
    seen.handle(&order);
    job.complete().await?;
    Ok(())
}

#[async_trait]
impl Peer for Sqlxmq {
    fn version(&self) -> String {
        env!("VERSION_SQLXMQ").into()
    }

    fn settings(&self, work: Work) -> &'static str {
        match work {
            Work::Insert => "1000 in a call of its SQL function mq_insert; its Rust API sends one at a time",
            Work::InsertOne => "builder().spawn(pool)",
            Work::Drain | Work::Latency => {
                "concurrency 50 to 150 (so up to 150 in a poll), 40 connections, LISTEN, keep-alive on"
            }
        }
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        let payloads = orders
            .iter()
            .map(serde_json::to_string)
            .collect::<std::result::Result<Vec<_>, _>>()?;
        let parameters: [&(dyn ToSql + Sync); 2] = [&payloads, &handle.name()];
        self.control.execute(INSERT, &parameters).await?;
        Ok(())
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        handle.builder().set_json(&order)?.spawn(&self.producer).await?;
        Ok(())
    }

    async fn start(&self, _work: Work, seen: &'static Seen) -> Result<Stop> {
        let mut registry = JobRegistry::new(&[handle]);
        registry.set_error_handler(|name, error| eprintln!("{name}: {error}"));
        registry.set_context(seen);
        let mut runner = registry.runner(&self.worker).set_concurrency(50, 150).run().await?;
        Ok(Box::new(move || {
            Box::pin(async move {
                runner.stop().await;
                Ok(())
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        // One row is a sentinel of its own.
        let sql = "SELECT (SELECT count(*) FROM mq_msgs WHERE id <> uuid_nil()) + (SELECT count(*) FROM mq_payloads p
            WHERE NOT EXISTS (SELECT FROM mq_msgs m WHERE m.id = p.id))";
        count(&self.control, sql).await
    }

    async fn done(&self) -> Result<Option<i64>> {
        Ok(None)
    }
}
