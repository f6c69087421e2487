//! The worker: a relay that has orders executed by the broker.

use async_trait::async_trait;
use posthouse::{Delivery, Outcome, Relay, RetryPolicy, Store, Transport, http::Http, relay::Destination};
use std::sync::Arc;

use super::{Failure, OrderRequest, TOPIC, settings::Settings};

/// A worker of this name, until it is cancelled. Any number may run.
pub fn worker(store: Arc<dyn Store>, name: &str, broker: &str, settings: &Settings) -> Result<Relay, Failure> {
    let http = Http::builder(broker)
        .allow_private(true)
        .timeout(settings.timeout)
        .build()?;
    let destination = Destination::new("broker", Adapter(http))
        .timeout(settings.timeout)
        .concurrency(settings.concurrency)
        .retry(RetryPolicy::table(settings.max_attempts, settings.backoff.clone()));
    Ok(Relay::builder(store)
        .name(name)
        .lease(settings.lease)
        .batch(settings.batch)
        .poll(settings.poll)
        .route(TOPIC, destination))
}

/// Sends an order to the broker, if it is one.
struct Adapter(Http);

#[async_trait]
impl Transport for Adapter {
    async fn send(&self, delivery: &Delivery) -> Outcome {
        match OrderRequest::read(&delivery.payload) {
            Ok(_) => self.0.send(delivery).await,
            Err(problem) => Outcome::reject("BROKEN_ORDER", problem),
        }
    }
}
