//! graphile_worker: one table of jobs, deleted when done; many are fetched at once into a local queue, completions are written together.

use crate::peer::{Order, Peer, Result, Seen, Stop, Work, count, session};
use async_trait::async_trait;
use graphile_worker::{
    IntoTaskHandlerResult, JobSpec, LocalQueueConfig, TaskHandler, WorkerContext, WorkerOptions, WorkerUtils,
};
use sqlx_09::{PgPool, postgres::PgPoolOptions};
use std::{fmt, sync::Arc, time::Duration};
use tokio_postgres::Client;

const SCHEMA: &str = "graphile_worker";
const CONCURRENCY: usize = 20;

pub struct GraphileWorker {
    control: Client,
    producer: WorkerUtils,
    worker: PgPool,
}

impl GraphileWorker {
    pub async fn open(url: &str) -> Result<Self> {
        let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
        let producer = WorkerUtils::new(pool, SCHEMA);
        producer.migrate().await?;
        let connections = CONCURRENCY as u32 + 1;
        let worker = PgPoolOptions::new()
            .min_connections(connections)
            .max_connections(connections);
        Ok(Self {
            control: session(url).await?,
            producer,
            worker: worker.connect(url).await?,
        })
    }
}

#[derive(Clone)]
struct Handler(&'static Seen);

impl fmt::Debug for Handler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Handler")
    }
}

impl TaskHandler for Order {
    const IDENTIFIER: &'static str = "order";

    async fn run(self, context: WorkerContext) -> impl IntoTaskHandlerResult {
        let Handler(seen) = context.get_ext::<Handler>().ok_or("there is no handler")?;
        seen.handle(&self);
        Ok::<(), &str>(())
    }
}

#[async_trait]
impl Peer for GraphileWorker {
    fn version(&self) -> String {
        env!("VERSION_GRAPHILE_WORKER").into()
    }

    fn settings(&self, work: Work) -> &'static str {
        match work {
            Work::Insert => "add_jobs of 1000",
            Work::InsertOne => "add_job",
            Work::Drain => {
                "concurrency 20, 4 local queues of 1250, completions and failures written together after 5 ms, LISTEN"
            }
            Work::Latency => {
                "concurrency 20, local queue 500, completions and failures written together after 5 ms, LISTEN"
            }
        }
    }

    async fn insert(&self, orders: Vec<Order>) -> Result<()> {
        let spec = JobSpec::default();
        let jobs: Vec<_> = orders.into_iter().map(|order| (order, &spec)).collect();
        self.producer.add_jobs(&jobs).await?;
        Ok(())
    }

    async fn insert_one(&self, order: Order) -> Result<()> {
        self.producer.add_job(order, JobSpec::default()).await?;
        Ok(())
    }

    async fn start(&self, work: Work, seen: &'static Seen) -> Result<Stop> {
        // More queues claim faster; with little to do they only ask more often.
        let (queues, size) = if work == Work::Drain { (4, 1250) } else { (1, 500) };
        let worker = WorkerOptions::default()
            .schema(SCHEMA)
            .concurrency(CONCURRENCY)
            .local_queue(LocalQueueConfig::default().with_queue_count(queues).with_size(size))
            .complete_job_batch_delay(Duration::from_millis(5))
            .fail_job_batch_delay(Duration::from_millis(5))
            .add_extension(Handler(seen))
            .define_job::<Order>()
            .pg_pool(self.worker.clone())
            .init()
            .await?;
        let worker = Arc::new(worker);
        let running = tokio::spawn({
            let worker = worker.clone();
            async move { worker.run().await }
        });
        Ok(Box::new(move || {
            Box::pin(async move {
                worker.request_shutdown();
                Ok(running.await??)
            })
        }))
    }

    async fn undone(&self) -> Result<i64> {
        count(&self.control, "SELECT count(*) FROM graphile_worker._private_jobs").await
    }

    async fn done(&self) -> Result<Option<i64>> {
        Ok(None)
    }
}
