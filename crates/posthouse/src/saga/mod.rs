//! Sagas: steps that are all done, or undone again, across crashes.
//!
//! ```
//! use posthouse::saga::{Do, Failure, Saga, Undo};
//! # use std::time::Duration;
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Trip { city: String }
//! # #[derive(serde::Serialize, serde::Deserialize)] struct Booking { code: String }
//! # async fn book_flight(trip: Do<Trip>) -> Result<Booking, Failure> { Ok(Booking { code: trip.city.clone() }) }
//! # async fn cancel_flight(flight: Undo<Trip, Booking>) -> Result<(), Failure> { Ok(()) }
//! # async fn book_hotel(trip: Do<Trip>) -> Result<Booking, Failure> { Ok(Booking { code: trip.city.clone() }) }
//! # async fn cancel_hotel(hotel: Undo<Trip, Booking>) -> Result<(), Failure> { Ok(()) }
//! # async fn charge(booked: Do<(Booking, Booking)>) -> Result<String, Failure> { Ok("paid".into()) }
//! # async fn find_charge(asked: Do<(Booking, Booking)>) -> Result<Option<String>, Failure> { Ok(None) }
//! let mut trip = Saga::<Trip>::define("trip", 1);
//! let flight = trip.step("flight", book_flight).compensate(cancel_flight).idempotent().add();
//! let hotel = trip.step("hotel", book_hotel).after(&flight).compensate(cancel_hotel).timeout(Duration::from_secs(10)).idempotent().add();
//! trip.step("charge", charge).input((flight, hotel)).verify(find_charge).pivot().add();
//! let trip = trip.build()?;
//! # Ok::<(), posthouse::Invalid>(())
//! ```
//!
//! It is started in the transaction that you have anyway (`outbox.start(&mut tx, trip.start("trip-42", &input)?)`), and done by any relay that has its
//! functions (`Relay::builder(store).saga(&trip)`). `docs/sagas.md` has the whole story, and the exact guarantees.
//!
//! A step takes the input of the saga, or what other steps answered. Something else does not compile:
//!
//! ```compile_fail,E0271
//! # use posthouse::saga::{Do, Failure, Saga};
//! # async fn book(city: Do<String>) -> Result<u32, Failure> { Ok(7) }
//! # async fn charge(amount: Do<String>) -> Result<(), Failure> { Ok(()) }
//! let mut trip = Saga::<String>::define("trip", 1);
//! let booked = trip.step("book", book).add();
//! trip.step("charge", charge).input(booked).add(); // a number is not a text
//! ```
//!
//! ```compile_fail,E0599
//! # use posthouse::saga::{Do, Failure, Saga};
//! # async fn charge(amount: Do<u32>) -> Result<(), Failure> { Ok(()) }
//! let mut trip = Saga::<String>::define("trip", 1);
//! trip.step("charge", charge).add(); // nor is the saga's input a number
//! ```
//!
//! ```compile_fail,E0631
//! # use posthouse::saga::{Do, Failure, Saga, Undo};
//! # async fn book(city: Do<String>) -> Result<u32, Failure> { Ok(7) }
//! # async fn cancel(booked: Undo<String, String>) -> Result<(), Failure> { Ok(()) }
//! let mut trip = Saga::<String>::define("trip", 1);
//! trip.step("book", book).compensate(cancel).add(); // it answers a number
//! ```

mod define;
mod function;
mod handle;

pub use define::{Define, Saga, Step, Unwired, Wired};
pub use function::{Do, Failure, Undo, action, compensation, verification};
pub use handle::{Handle, Inputs, Single};
pub use posthouse_core::saga::*;

use posthouse_core::{Invalid, SagaId};
use serde::Serialize;
use uuid::Uuid;

/// Reads a definition that is written in TOML. The error names the line, or step and field.
pub fn from_toml(text: &str) -> Result<Definition, Invalid> {
    let declared: Declared = toml::from_str(text).map_err(|e| {
        let before = e.span().and_then(|span| text.get(..span.start));
        let line = before.map_or(1, |before| before.matches('\n').count() + 1);
        Invalid::new("definition", format!("line {line}: {}", e.message()))
    })?;
    declared.compile()
}

/// Reads a definition that is written in JSON. The error names line and column, or step and field.
pub fn from_json(text: &str) -> Result<Definition, Invalid> {
    Declared::from_json(text)?.compile()
}

/// A saga to start: pass it to `start` of your outbox, in your transaction.
pub fn start<T: Serialize + ?Sized>(
    definition: &Definition,
    key: impl Into<String>,
    input: &T,
) -> Result<Start, Invalid> {
    Start::new(SagaId(Uuid::now_v7()), definition, key, input)
}
