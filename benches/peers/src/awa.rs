//! awa: append-only tables in rings of partitions; a claim is evidence in another table, what is done is kept until its partition goes.

use crate::peer::{Order, Peer, Result, Seen, Stop, Work};
use async_trait::async_trait;
use awa::{Client, InsertOpts, InsertParams, JobArgs, JobResult, QueueConfig, QueueStorage, QueueStorageConfig};
use serde::{Deserialize, Serialize};
use sqlx_08::{PgPool, postgres::PgPoolOptions};
use std::time::Duration;

const QUEUE: &str = "orders";

pub struct Awa {
    store: QueueStorage,
    producer: PgPool,
    worker: PgPool,
}

impl Awa {
    pub async fn open(url: &str) -> Result<Self> {
        let producer = PgPoolOptions::new().max_connections(1).connect(url).await?;
        awa::migrations::run(&producer).await?;
        // The first worker would do this too; without it, messages that come before go to the tables of an older version.
        let store = QueueStorage::new(QueueStorageConfig::default())?;
        store.install(&producer).await?;
        Ok(Self {
            store,
            producer,
            worker: PgPoolOptions::new()
                .min_connections(20)
                .max_connections(20)
                .connect(url)
                .await?,
        })
    }
}

#[derive(Serialize, Deserialize, JobArgs)]
#[serde(transparent)]
struct Job {
    order: Order,
}

fn options() -> InsertOpts {
    InsertOpts {
        queue: QUEUE.into(),
        ..InsertOpts::default()
    }
}

#[async_trait]
impl Peer for Awa {
    fn version(&self) -> String {
        env!("VERSION_AWA").into()
    }

    fn settings(&self, work: Work) -> &'static str {
        match work {
            Work::Insert => "QueueStorage::enqueue_params_copy of 1000",
            Work::InsertOne => "insert_with",
            Work::Drain | Work::Latency => {
                "1024 workers, batch 512, no deadlines (its short path), poll 50 ms, LISTEN, 20 connections"
            }
        }
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        let jobs = orders
            .into_iter()
            .map(|order| awa::model::insert::params_with(&Job { order }, options()))
            .collect::<std::result::Result<Vec<InsertParams>, _>>()?;
        self.store.enqueue_params_copy(&self.producer, &jobs).await?;
        Ok(())
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        awa::insert_with(&self.producer, &Job { order }, options()).await?;
        Ok(())
    }

    async fn start(&self, _work: Work, seen: &'static Seen) -> Result<Stop> {
        let queue = QueueConfig {
            max_workers: 1024,
            poll_interval: Duration::from_millis(50),
            deadline_duration: Duration::ZERO,
            ..QueueConfig::default()
        };
        let client = Client::builder(self.worker.clone())
            .queue(QUEUE, queue)
            .register::<Job, _, _>(move |job: Job, _context| async move {
                seen.handle(&job.order);
                Ok(JobResult::Completed)
            })
            .build()?;
        client.start().await?;
        Ok(Box::new(move || {
            Box::pin(async move {
                client.shutdown(Duration::from_secs(5)).await;
                Ok(())
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        let counts = self.store.queue_counts(&self.producer, QUEUE).await?;
        Ok(counts.available + counts.running)
    }

    async fn done(&self) -> Result<Option<i64>> {
        Ok(Some(self.store.queue_counts(&self.producer, QUEUE).await?.terminal))
    }
}
