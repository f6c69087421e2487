//! `POST /do/order`: takes an order under its `Idempotency-Key`, and has it executed.
//!
//! The ledger is the truth. The first request is answered 202, and its key is busy until the order has been executed or given up: 409 and `Retry-After`. From then on every request
//! with the key is told what the broker answered. Another order under the same key is refused with 409.

use axum::{
    Extension, Router,
    body::Bytes,
    extract::{Path, State},
    http::{StatusCode, request::Parts},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use posthouse::{
    AnyStore,
    idempotency::{Hold, Idempotency},
    ledger::Ledger,
};
use serde_json::json;

use super::{Failure, OrderRequest, SCOPE, database::Orders, entry};

/// The header that says whose order it is. A real service would ask its authentication.
pub const ACCOUNT: &str = "x-account";

#[derive(Clone)]
struct Service<D> {
    store: AnyStore,
    orders: D,
}

/// The service on this database.
pub async fn router<D: Orders>(url: &str) -> Result<Router, Failure> {
    let (store, orders) = (AnyStore::open(url).await?, D::open(url).await?);
    let ledger = Ledger::new(store.store(), orders.outbox(), SCOPE);
    let once = Idempotency::new(ledger, account)
        .required()
        .mismatch_status(StatusCode::CONFLICT);
    let service = Service { store, orders };
    Ok(Router::new()
        .route("/do/order", post(place::<D>).layer(once))
        .route("/do/order/{account}/{key}", get(look::<D>))
        .with_state(service))
}

fn account(parts: &Parts) -> Option<String> {
    let account = parts.headers.get(ACCOUNT)?.to_str().ok()?;
    (!account.is_empty()).then(|| account.to_owned())
}

async fn place<D: Orders>(
    State(service): State<Service<D>>,
    Extension(hold): Extension<Hold<D::Outbox>>,
    body: Bytes,
) -> Response {
    let order = match OrderRequest::read(&body) {
        Ok(order) => order,
        // Kept as well: the same request is told the same again.
        Err(problem) => return answer(StatusCode::UNPROCESSABLE_ENTITY, &json!({ "error": problem })),
    };
    match service.orders.accept(&hold, &order).await {
        Ok(id) => answer(StatusCode::ACCEPTED, &json!({ "status": "accepted", "outbox_id": id })),
        Err(error) => {
            tracing::error!(%error, "an order could not be taken");
            let told = json!({ "error": "the order was not taken; send it again" });
            answer(StatusCode::SERVICE_UNAVAILABLE, &told)
        }
    }
}

/// Where an order stands, as the ledger knows it.
async fn look<D: Orders>(State(service): State<Service<D>>, Path((account, key)): Path<(String, String)>) -> Response {
    let found = async { service.store.admin().entry(&entry(&account, &key)?).await };
    match found.await {
        Ok(Some(entry)) => {
            // What was said about a failure is for operators.
            let told = json!({ "status": entry.status, "http_status": entry.http_status, "outbox_id": entry.message });
            answer(StatusCode::OK, &told)
        }
        Ok(None) => answer(StatusCode::NOT_FOUND, &json!({ "error": "there is no such order" })),
        Err(error) => answer(
            StatusCode::SERVICE_UNAVAILABLE,
            &json!({ "error": error.code().as_str() }),
        ),
    }
}

fn answer(status: StatusCode, body: &serde_json::Value) -> Response {
    let json = [("content-type", "application/json")];
    (status, json, format!("{body}\n")).into_response()
}
