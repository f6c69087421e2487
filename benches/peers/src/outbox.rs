//! outbox-core with outbox-postgres: one table with a status column; what is sent stays until the garbage collector comes.

use crate::peer::{Order, Peer, Result, Seen, Stop, Work, count, session};
use async_trait::async_trait;
use outbox_core::prelude::*;
use outbox_postgres::{PostgresOutbox, PostgresWriter};
use sqlx_08::{PgPool, postgres::PgPoolOptions};
use std::sync::Arc;
use tokio::sync::watch;
use tokio_postgres::Client;

pub struct Outbox {
    control: Client,
    producer: PgPool,
    worker: PgPool,
    config: Arc<OutboxConfig<Order>>,
    service: OutboxService<PostgresWriter, NoIdempotency, Order>,
}

impl Outbox {
    pub async fn open(url: &str) -> Result<Self> {
        let control = session(url).await?;
        control
            .batch_execute(include_str!(concat!(env!("OUT_DIR"), "/outbox-postgres.sql")))
            .await?;
        let mut config = OutboxConfig::default();
        config.batch_size = BATCH;
        let config = Arc::new(config);
        Ok(Self {
            control,
            producer: PgPoolOptions::new().max_connections(1).connect(url).await?,
            worker: PgPoolOptions::new().max_connections(4).connect(url).await?,
            service: OutboxService::new(Arc::new(PostgresWriter), config.clone()),
            config,
        })
    }
}

const BATCH: u32 = 2000;

struct Handler(&'static Seen);

#[async_trait]
impl Transport<Order> for Handler {
    async fn publish(&self, event: Event<Order>) -> std::result::Result<(), OutboxError> {
        self.0.handle(event.payload.as_value());
        Ok(())
    }
}

#[async_trait]
impl Peer for Outbox {
    fn version(&self) -> String {
        format!(
            "{} with outbox-postgres {}",
            env!("VERSION_OUTBOX_CORE"),
            env!("VERSION_OUTBOX_POSTGRES")
        )
    }

    fn settings(&self, work: Work) -> &'static str {
        match work {
            Work::Insert => "1000 add_event in a transaction: there is no call for many",
            Work::InsertOne => "add_event in a transaction",
            Work::Drain | Work::Latency => {
                "one manager, batch 2000, the rest as it comes: LISTEN, poll 10 s, no idempotency, no dead letters"
            }
        }
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        let mut tx = self.producer.begin().await?;
        for order in orders {
            self.service.add_event("order", order, None, &mut *tx).await?;
        }
        Ok(tx.commit().await?)
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        self.insert(vec![order]).await
    }

    async fn start(&self, _work: Work, seen: &'static Seen) -> Result<Stop> {
        let (shutdown, shutdown_rx) = watch::channel(false);
        let manager = OutboxManagerBuilder::new()
            .storage(Arc::new(PostgresOutbox::new(self.worker.clone(), self.config.clone())))
            .publisher(Arc::new(Handler(seen)))
            .config(self.config.clone())
            .shutdown_rx(shutdown_rx)
            .build()?;
        let running = tokio::spawn(manager.run());
        Ok(Box::new(move || {
            Box::pin(async move {
                shutdown.send(true)?;
                Ok(running.await??)
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        count(
            &self.control,
            "SELECT count(*) FROM outbox_events WHERE status <> 'Sent'",
        )
        .await
    }

    async fn done(&self) -> Result<Option<i64>> {
        Ok(Some(
            count(
                &self.control,
                "SELECT count(*) FROM outbox_events WHERE status = 'Sent'",
            )
            .await?,
        ))
    }
}
