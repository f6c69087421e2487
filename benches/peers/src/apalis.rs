//! apalis-postgres: one table of jobs with a status column; what is done stays.

use crate::peer::{Order, Peer, Result, Seen, Stop, Work, count, session};
use apalis_core::{
    backend::{TaskSink, ext::BackendExt},
    error::BoxDynError,
    task::data::Data,
    worker::{builder::WorkerBuilder, context::WorkerContext, ext::parallelize::ParallelizeExt},
};
use apalis_postgres::{Config, PostgresStorage};
use async_trait::async_trait;
use sqlx_09::{PgPool, postgres::PgPoolOptions};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio_postgres::Client;

pub struct Apalis {
    control: Client,
    producer: Mutex<PostgresStorage<Order>>,
    worker: PgPool,
}

fn config() -> Config {
    Config::default().queue("orders").batch_size(2000).lock_tasks(false)
}

impl Apalis {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
        PostgresStorage::setup(&pool).await?;
        Ok(Self {
            control: session(url).await?,
            producer: Mutex::new(PostgresStorage::new(&pool).with_config(config())),
            worker: PgPoolOptions::new()
                .min_connections(5)
                .max_connections(5)
                .connect(url)
                .await?,
        })
    }
}

async fn handle(order: Order, seen: Data<&'static Seen>) -> std::result::Result<(), BoxDynError> {
    seen.handle(&order);
    Ok(())
}

#[async_trait]
impl Peer for Apalis {
    fn version(&self) -> String {
        env!("VERSION_APALIS_POSTGRES").into()
    }

    fn settings(&self, work: Work) -> &'static str {
        match work {
            Work::Insert => "push_bulk of 1000",
            Work::InsertOne => "push",
            Work::Drain | Work::Latency => {
                "batch 2000, handlers spawned, no lock events, results kept; LISTEN, and a poll every 100 ms"
            }
        }
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        Ok(self.producer.lock().await.push_bulk(orders).await?)
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        Ok(self.producer.lock().await.push(order).await?)
    }

    async fn start(&self, _work: Work, seen: &'static Seen) -> Result<Stop> {
        let backend = PostgresStorage::<Order>::new(&self.worker)
            .with_config(config())
            .with_pubsub()
            .poll_with_interval(Duration::from_millis(100));
        let context = WorkerContext::new("peers");
        let worker = WorkerBuilder::new(&context)
            .backend(backend)
            .data(seen)
            .parallelize(tokio::spawn)
            .build(handle);
        let running = tokio::spawn(worker.run());
        Ok(Box::new(move || {
            Box::pin(async move {
                context.stop()?;
                Ok(running.await??)
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        count(&self.control, "SELECT count(*) FROM apalis.jobs WHERE status <> 'Done'").await
    }

    async fn done(&self) -> Result<Option<i64>> {
        Ok(Some(
            count(&self.control, "SELECT count(*) FROM apalis.jobs WHERE status = 'Done'").await?,
        ))
    }
}
