//! Those who take part in the demo's saga, over HTTP: one keeps the stock, the other one charges cards.

use axum::{
    Json, Router,
    extract::{Path, State as Shared},
    http::{HeaderMap, StatusCode},
    routing::post,
};
use serde_json::{Value, json};
use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::exit::Failure;

/// The order whose card is declined.
pub const DECLINED: u64 = 7;

#[derive(Default)]
struct Books {
    /// What was asked for, by order and in order; each key once.
    heard: Vec<(u64, String)>,
    keys: BTreeSet<String>,
    reserved: BTreeSet<u64>,
    charged: BTreeSet<u64>,
}

/// The partners. They close with this value.
pub struct Partners {
    url: String,
    books: Arc<Mutex<Books>>,
    work: JoinHandle<()>,
}

impl Partners {
    /// Opens both at a free port of this machine.
    pub async fn open() -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}", listener.local_addr()?);
        let books = Arc::<Mutex<Books>>::default();
        let router = Router::new().route("/{verb}", post(asked)).with_state(books.clone());
        let work = tokio::spawn(async move {
            // It accepts until it is dropped; what goes wrong with a connection is the other side's to notice.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, books, work })
    }

    /// What the shop does for an order, as it would stand in a file.
    pub fn definition(&self) -> String {
        let url = &self.url;
        format!(
            r#"name = "fulfil"
version = 1

[[steps]]
name = "reserve"
action_uri = "{url}/reserve"
compensate_uri = "{url}/put-back"
idempotent = true

[[steps]]
name = "charge"
action_uri = "{url}/charge"
idempotent = true
pivot = true
"#
        )
    }

    /// What they were asked for one order, and what they answered.
    pub fn heard(&self, order: u64) -> Vec<String> {
        let books = lock(&self.books);
        let of = books.heard.iter().filter(|(number, _)| *number == order);
        of.map(|(_, what)| what.clone()).collect()
    }

    /// The orders of which something is reserved, and those that were charged.
    pub fn standing(&self) -> (Vec<u64>, Vec<u64>) {
        let books = lock(&self.books);
        let all = |orders: &BTreeSet<u64>| orders.iter().copied().collect();
        (all(&books.reserved), all(&books.charged))
    }
}

impl Drop for Partners {
    fn drop(&mut self) {
        self.work.abort();
    }
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A step brings the input of the saga; what undoes it brings that as well, with what is known of the step.
async fn asked(
    Shared(books): Shared<Arc<Mutex<Books>>>,
    Path(verb): Path<String>,
    headers: HeaderMap,
    Json(body): Json<Value>,
) -> (StatusCode, String) {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let order = body.get("order").or_else(|| body.get("input")?.get("order"));
    let (Some(key), Some(order)) = (key, order.and_then(Value::as_u64)) else {
        return (StatusCode::BAD_REQUEST, "there is no order, or no key".to_owned());
    };
    let mut books = lock(&books);
    let declined = verb == "charge" && order == DECLINED;
    if books.keys.insert(key.to_owned()) {
        let ending = if declined { " (declined)" } else { "" };
        books.heard.push((order, format!("{verb}{ending}")));
    }
    match verb.as_str() {
        _ if declined => return (StatusCode::UNPROCESSABLE_ENTITY, "the card is declined".to_owned()),
        "reserve" => books.reserved.insert(order),
        "put-back" => books.reserved.remove(&order),
        _ => books.charged.insert(order),
    };
    (StatusCode::OK, json!({ "order": order }).to_string())
}
