//! The saga itself: ten lines, and the functions that they name.

use posthouse::{
    Invalid,
    saga::{Do, Failure, Saga, Undo},
};
use std::{sync::Arc, time::Duration};

use super::{
    Booking, Trip,
    participants::{Kind, Participants, Refusal},
};

/// Flight, then hotel, then charge. Once the card is charged the trip is made.
// A step is read as one line.
#[rustfmt::skip]
pub fn trip(participants: Participants) -> Result<Saga<Trip>, Invalid> {
    let all = Arc::new(participants);
    let mut trip = Saga::<Trip>::define("trip", 1);
    let flight = trip.step("flight", book(&all, Kind::Flight)).compensate(cancel(&all, Kind::Flight)).idempotent().add();
    let hotel = trip.step("hotel", book(&all, Kind::Hotel)).compensate(cancel(&all, Kind::Hotel))
        .after(&flight).timeout(Duration::from_secs(10)).idempotent().add();
    let bill = (trip.input(), flight, hotel);
    trip.step("charge", charge(&all)).input(bill).verify(find_charge(&all)).verify_after(Duration::from_secs(1)).pivot().add();
    trip.build()
}

/// What a charge takes: the wish, the flight and the hotel.
type Bill = (Trip, Booking, Booking);

fn book(all: &Arc<Participants>, kind: Kind) -> impl Fn(Do<Trip>) -> Answer<Booking> + Send + Sync + 'static {
    let all = all.clone();
    move |trip| {
        let all = all.clone();
        at_leisure(move || Ok(all.book(kind, &trip.key, &trip.city)?))
    }
}

fn cancel(all: &Arc<Participants>, kind: Kind) -> impl Fn(Undo<Trip, Booking>) -> Answer<()> + Send + Sync + 'static {
    let all = all.clone();
    move |undo| {
        let all = all.clone();
        at_leisure(move || Ok(all.cancel(kind, &undo.forward_key)?))
    }
}

fn charge(all: &Arc<Participants>) -> impl Fn(Do<Bill>) -> Answer<Booking> + Send + Sync + 'static {
    let all = all.clone();
    move |bill| {
        let all = all.clone();
        at_leisure(move || Ok(all.charge(&bill.key, &bill.0.card)?))
    }
}

fn find_charge(all: &Arc<Participants>) -> impl Fn(Do<Bill>) -> Answer<Option<Booking>> + Send + Sync + 'static {
    let all = all.clone();
    move |bill| {
        let all = all.clone();
        at_leisure(move || Ok(all.find(Kind::Charge, &bill.key)?))
    }
}

type Answer<T> = std::pin::Pin<Box<dyn Future<Output = Result<T, Failure>> + Send>>;

/// SQLite waits on the thread that asks.
fn at_leisure<T: Send + 'static>(work: impl FnOnce() -> Result<T, Failure> + Send + 'static) -> Answer<T> {
    Box::pin(async move { tokio::task::spawn_blocking(work).await? })
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::No(why) => Self::reject("refused", why),
            Refusal::Unsure(why) => Self::unknown("unsure", why),
        }
    }
}
