//! The same participants over HTTP, as services of other teams are: they know an `Idempotency-Key`, and nothing of sagas.

use axum::{
    Json, Router,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
    routing::{get, post},
};
use serde::Deserialize;
use serde_json::{Value, json};

use super::{
    Booking, Trip,
    participants::{Kind, Participants, Refusal},
};

/// Flights, hotels and a bank.
pub fn router(participants: Participants) -> Router {
    let all = Router::new()
        .route(
            "/flights",
            post(|all, headers, trip| book(Kind::Flight, all, headers, trip)),
        )
        .route("/flights/cancel", post(|all, undo| cancel(Kind::Flight, all, undo)))
        .route(
            "/hotels",
            post(|all, headers, trip| book(Kind::Hotel, all, headers, trip)),
        )
        .route("/hotels/cancel", post(|all, undo| cancel(Kind::Hotel, all, undo)))
        .route("/charges", post(charge))
        .route("/charges/find", post(find))
        .route("/bookings", get(bookings));
    all.with_state(participants)
}

/// What comes with a compensation, or with a question.
#[derive(Deserialize)]
struct Told {
    forward_key: String,
}

type All = State<Participants>;

fn key(headers: &HeaderMap) -> String {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    key.unwrap_or_default().to_owned()
}

async fn book(kind: Kind, State(all): All, headers: HeaderMap, Json(trip): Json<Trip>) -> Response {
    answer(move || all.book(kind, &key(&headers), &trip.city)).await
}

async fn cancel(kind: Kind, State(all): All, Json(told): Json<Told>) -> Response {
    answer(move || all.cancel(kind, &told.forward_key)).await
}

/// It is given the wish, the flight and the hotel.
async fn charge(State(all): All, headers: HeaderMap, Json((trip, ..)): Json<(Trip, Booking, Booking)>) -> Response {
    answer(move || all.charge(&key(&headers), &trip.card)).await
}

/// 204: nothing is known under this key.
async fn find(State(all): All, Json(told): Json<Told>) -> Response {
    answer(move || {
        let found = all.find(Kind::Charge, &told.forward_key)?;
        Ok(found.map_or_else(
            || StatusCode::NO_CONTENT.into_response(),
            |charge| Json(charge).into_response(),
        ))
    })
    .await
}

async fn bookings(State(all): All) -> Response {
    let list = move || {
        let all = all.all()?.into_iter();
        Ok(Value::from_iter(all.map(
            |(what, cancelled)| json!({ "what": what, "cancelled": cancelled }),
        )))
    };
    answer(list).await
}

/// What can be answered.
trait Body {
    fn body(self) -> Response;
}

impl Body for Booking {
    fn body(self) -> Response {
        Json(self).into_response()
    }
}

impl Body for Value {
    fn body(self) -> Response {
        Json(self).into_response()
    }
}

impl Body for () {
    fn body(self) -> Response {
        StatusCode::OK.into_response()
    }
}

impl Body for Response {
    fn body(self) -> Response {
        self
    }
}

/// 422 is a refusal; 500 leaves open whether it was done.
async fn answer<T: Body + Send + 'static>(work: impl FnOnce() -> Result<T, Refusal> + Send + 'static) -> Response {
    match tokio::task::spawn_blocking(work).await {
        Ok(Ok(body)) => body.body(),
        Ok(Err(Refusal::No(why))) => (StatusCode::UNPROCESSABLE_ENTITY, why).into_response(),
        Ok(Err(Refusal::Unsure(why))) => (StatusCode::INTERNAL_SERVER_ERROR, why).into_response(),
        Err(panic) => (StatusCode::INTERNAL_SERVER_ERROR, panic.to_string()).into_response(),
    }
}
