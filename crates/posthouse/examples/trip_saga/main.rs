//! A trip: flight, hotel and charge, all of them or none. See `examples/trip_saga`.
//!
//! ```text
//! trip_saga services LISTEN FILE         flights, hotels and a bank over HTTP, with a SQLite file of their own
//! trip_saga book DATABASE FILE KEY CITY CARD   books a trip by functions of this program, which ask the same file
//! ```
//!
//! A card is `good`, `declined`, or `unsure`: then it is charged, and nobody hears of it.

// It is a program for people to look at.
#![allow(clippy::print_stdout)]

mod trips;

use posthouse::{
    AnyStore, Relay,
    relay::CancellationToken,
    saga::{SagaState, drive},
};
use std::time::Duration;
use tokio::net::TcpListener;
use trips::{Fault, Trip, participants::Participants, saga::trip, services};

#[tokio::main]
async fn main() -> Result<(), Fault> {
    let args: Vec<_> = std::env::args().skip(1).collect();
    let args: Vec<_> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["services", listen, file] => {
            let app = services::router(Participants::open(file)?);
            let listener = TcpListener::bind(listen).await?;
            println!("flights, hotels and a bank at http://{}", listener.local_addr()?);
            Ok(axum::serve(listener, app).await?)
        }
        ["book", database, file, key, city, card] => {
            let wish = Trip {
                city: city.to_owned(),
                card: card.to_owned(),
            };
            book(database, Participants::open(file)?, key, &wish).await
        }
        _ => Err("usage: trip_saga services LISTEN FILE | book DATABASE FILE KEY CITY CARD".into()),
    }
}

/// Starts a trip and does it, in one program; any number of others may help.
async fn book(database: &str, participants: Participants, key: &str, wish: &Trip) -> Result<(), Fault> {
    AnyStore::migrate(database).await?;
    let any = AnyStore::open(database).await?;
    let trip = trip(participants)?;
    // In a namespace of its own: version 1 of `trip` is what trip.toml says, where that is used beside it.
    let start = trip.start(key, wish)?.namespace("functions");
    let id = any.start(start).await?.id();
    let (store, cancel) = (any.store(), CancellationToken::new());
    let relay = tokio::spawn(Relay::builder(store.clone()).saga(&trip).run(cancel.clone()));
    loop {
        let row = drive::load(&*store, id).await?.row;
        if row.state.is_over() || row.state == SagaState::Held {
            println!("{id}  {}", row.state);
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    cancel.cancel();
    Ok(relay.await??)
}
