//! The worker: a relay that has orders executed by the broker.

use async_trait::async_trait;
use posthouse::{Delivery, Outcome, Relay, RetryPolicy, Store, Transport, http::Http, relay::Destination};
use std::sync::Arc;

use super::{ExecResult, Failure, OrderRequest, TOPIC, settings::Settings};

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
        if let Err(problem) = OrderRequest::read(&delivery.payload) {
            return Outcome::reject("BROKEN_ORDER", problem);
        }
        executed(self.0.send(delivery).await)
    }
}

/// A broker may answer 200, and say that it did not execute it.
fn executed(outcome: Outcome) -> Outcome {
    let Outcome::Delivered {
        answer: Some(answer), ..
    } = &outcome
    else {
        return outcome;
    };
    match serde_json::from_slice::<ExecResult>(&answer.body) {
        Ok(result) if result.status == "ok" => outcome,
        Ok(result) => Outcome::retry("NOT_EXECUTED", result.status),
        Err(problem) => Outcome::unknown("STRANGE_ANSWER", problem.to_string()),
    }
}
