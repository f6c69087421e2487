//! The receiver of the demo: a warehouse that takes orders in over HTTP, from whoever signs them.

use axum::{
    Router,
    body::Bytes,
    extract::State as Shared,
    http::{HeaderMap, StatusCode},
    routing::post,
};
use posthouse::{
    MessageId,
    webhook::{Secret, Verifier},
};
use serde::Deserialize;
use std::{
    collections::BTreeSet,
    future::pending,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Instant, SystemTime},
};
use tokio::{net::TcpListener, task::JoinHandle};

use crate::exit::Failure;

/// The order on which it is busy, twice.
pub const BUSY: u64 = 3;
/// The order that it takes in, and does not answer for.
pub const SILENT: u64 = 4;
/// The order that it does not understand, until it is repaired.
pub const STRANGE: u64 = 5;

/// A request that was genuine, and how it was answered.
#[derive(Clone, Debug)]
pub struct Visit {
    pub at: Instant,
    pub id: MessageId,
    pub epoch: u64,
    pub topic: String,
    /// Nothing, when it was taken in and never answered.
    pub answer: Option<u16>,
    /// It was taken in before.
    pub duplicate: bool,
}

#[derive(Default)]
struct Books {
    visits: Vec<Visit>,
    taken_in: BTreeSet<MessageId>,
    repaired: bool,
}

/// The warehouse. It closes with this value.
pub struct Warehouse {
    pub url: String,
    books: Arc<Mutex<Books>>,
    work: JoinHandle<()>,
}

impl Warehouse {
    /// Opens it at a free port of this machine.
    pub async fn open(secret: &str) -> Result<Self, Failure> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let url = format!("http://{}/orders", listener.local_addr()?);
        let books = Arc::<Mutex<Books>>::default();
        let desk = Desk {
            verifier: Verifier::new(Secret::parse(secret)?),
            books: books.clone(),
        };
        let router = Router::new().route("/orders", post(receive)).with_state(Arc::new(desk));
        let work = tokio::spawn(async move {
            // It accepts until it is dropped; what goes wrong with a connection is the other side's to notice.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { url, books, work })
    }

    /// What came for one message, in order.
    pub fn visits(&self, id: MessageId) -> Vec<Visit> {
        let books = lock(&self.books);
        books.visits.iter().filter(|visit| visit.id == id).cloned().collect()
    }

    /// Everything it was brought and took in, each once.
    pub fn taken_in(&self) -> usize {
        lock(&self.books).taken_in.len()
    }

    /// It understands everything from now on.
    pub fn repair(&self) {
        lock(&self.books).repaired = true;
    }
}

impl Drop for Warehouse {
    fn drop(&mut self) {
        self.work.abort();
    }
}

struct Desk {
    verifier: Verifier,
    books: Arc<Mutex<Books>>,
}

fn lock(books: &Mutex<Books>) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Deserialize)]
struct Order {
    order: u64,
}

/// What any receiver does: verify, look whether it is known, do it, write the id down with it, answer.
async fn receive(Shared(desk): Shared<Arc<Desk>>, headers: HeaderMap, body: Bytes) -> (StatusCode, String) {
    let header = |name: &str| headers.get(name)?.to_str().ok();
    let webhook = match desk.verifier.verify(header, &body, SystemTime::now()) {
        Ok(webhook) => webhook,
        Err(refused) => return (StatusCode::UNAUTHORIZED, refused.to_string()),
    };
    let (Ok(id), Ok(Order { order })) = (webhook.id.parse::<MessageId>(), serde_json::from_slice(&body)) else {
        return (StatusCode::BAD_REQUEST, "this is no order".to_owned());
    };
    let epoch = header("posthouse-epoch").and_then(|text| text.parse().ok());
    let (answer, text) = desk.judge(
        id,
        order,
        epoch.unwrap_or(0),
        header("posthouse-topic").unwrap_or_default(),
    );
    match answer {
        Some(status) => (status, text),
        None => pending().await,
    }
}

impl Desk {
    fn judge(&self, id: MessageId, order: u64, epoch: u64, topic: &str) -> (Option<StatusCode>, String) {
        let mut books = lock(&self.books);
        let before = books.visits.iter().filter(|visit| visit.id == id).count();
        let duplicate = books.taken_in.contains(&id);
        let placed = topic == "order.placed";
        let (answer, text) = match order {
            _ if duplicate => (Some(StatusCode::OK), format!("order {order}: duplicate")),
            BUSY if placed && before < 2 => (Some(StatusCode::SERVICE_UNAVAILABLE), "busy".to_owned()),
            STRANGE if !books.repaired => (Some(StatusCode::UNPROCESSABLE_ENTITY), "no such item".to_owned()),
            SILENT => (None, String::new()),
            _ => (Some(StatusCode::OK), format!("order {order}: taken in")),
        };
        if answer.is_none_or(|status| status.is_success()) {
            books.taken_in.insert(id);
        }
        books.visits.push(Visit {
            at: Instant::now(),
            id,
            epoch,
            topic: topic.to_owned(),
            answer: answer.map(|status| status.as_u16()),
            duplicate,
        });
        (answer, text)
    }
}
