//! A broker to try it with. What it does depends on what is ordered:
//!
//! | symbol | it |
//! |---|---|
//! | `SLOW` | answers the first time after three seconds, then at once |
//! | `DOWN` | answers 503 until somebody says `POST /up` |
//! | `HANG` | does not answer until somebody says `POST /up` |
//! | `NONE` | answers 422: there is no such thing |
//! | any other | executes it |
//!
//! It executes an order once, by the id that the worker sends with it (`webhook-id`), and answers the same again.

use axum::{
    Router,
    body::Bytes,
    extract::{Path, State},
    http::{HeaderMap, StatusCode},
    routing::{get, post},
};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use super::{ExecResult, OrderRequest};

#[derive(Clone, Default)]
struct Broker(Arc<Mutex<Books>>);

#[derive(Default)]
struct Books {
    up: bool,
    /// How often each symbol was asked for.
    asked: BTreeMap<String, u32>,
    /// What was executed, by the order's id.
    executed: BTreeMap<String, ExecResult>,
}

/// The broker.
pub fn router() -> Router {
    Router::new()
        .route("/orders", post(execute))
        .route("/up", post(up))
        .route("/asked/{symbol}", get(asked))
        .route("/executed", get(executed))
        .with_state(Broker::default())
}

impl Broker {
    fn with<T>(&self, work: impl FnOnce(&mut Books) -> T) -> T {
        work(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

async fn execute(State(broker): State<Broker>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let id = headers
        .get("webhook-id")
        .and_then(|id| id.to_str().ok())
        .unwrap_or_default()
        .to_owned();
    let Ok(order) = OrderRequest::read(&body) else {
        return (StatusCode::BAD_REQUEST, "this is no order".to_owned());
    };
    let (time, up) = broker.with(|books| {
        let asked = books.asked.entry(order.symbol.clone()).or_default();
        *asked += 1;
        (*asked, books.up)
    });
    match order.symbol.as_str() {
        "SLOW" if time == 1 => tokio::time::sleep(Duration::from_secs(3)).await,
        "DOWN" if !up => return (StatusCode::SERVICE_UNAVAILABLE, "the market is closed".to_owned()),
        "HANG" if !up => loop {
            tokio::time::sleep(Duration::from_millis(20)).await;
            if broker.with(|books| books.up) {
                break;
            }
        },
        "NONE" => return (StatusCode::UNPROCESSABLE_ENTITY, "there is no such symbol".to_owned()),
        _ => {}
    }
    let result = broker.with(|books| {
        let next = books.executed.len() + 1;
        let result = books.executed.entry(id).or_insert_with(|| ExecResult {
            status: "ok".to_owned(),
            execution: format!("B-{next}"),
            filled: order.quantity,
        });
        serde_json::json!(result)
    });
    (StatusCode::OK, format!("{result}\n"))
}

async fn up(State(broker): State<Broker>) -> &'static str {
    broker.with(|books| books.up = true);
    "the market is open\n"
}

async fn asked(State(broker): State<Broker>, Path(symbol): Path<String>) -> String {
    let asked = broker.with(|books| books.asked.get(&symbol).copied().unwrap_or_default());
    format!("{asked}\n")
}

async fn executed(State(broker): State<Broker>) -> String {
    format!("{}\n", broker.with(|books| books.executed.len()))
}
