//! `examples/trip_saga`: trips over functions and over real HTTP, on both databases, with participants that have a database of their own.

use posthouse::{
    AnyStore, Relay, SagaId,
    http::Http,
    relay::Destination,
    saga::{Definition, SagaState, Start, drive, from_toml, start},
};
use std::{env, net::SocketAddr, path::Path};

use crate::{
    billing::on_server,
    http::{serve, until},
    relay::Running,
};
use trips::{Trip, participants::Participants, saga::trip, services};

#[path = "../examples/trip_saga/trips/mod.rs"]
mod trips;

/// A store for the sagas, and a file of the participants.
struct Place {
    store: AnyStore,
    participants: Participants,
    _folder: tempfile::TempDir,
}

impl Place {
    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("sagas.db").display());
        Self::open(&url, folder).await
    }

    async fn on_postgres() -> Self {
        let name = format!("trips_{}", uuid::Uuid::new_v4().simple());
        on_server(&format!("CREATE DATABASE {name}")).await;
        let server = env::var("POSTHOUSE_TEST_POSTGRES").unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        Self::open(&url, tempfile::tempdir().unwrap()).await
    }

    async fn open(url: &str, folder: tempfile::TempDir) -> Self {
        AnyStore::migrate(url).await.unwrap();
        let file = folder.path().join("trips.db");
        Self {
            store: AnyStore::open(url).await.unwrap(),
            participants: Participants::open(file.to_str().unwrap()).unwrap(),
            _folder: folder,
        }
    }

    async fn ends(&self, start: Start, wanted: SagaState) -> SagaId {
        let id = self.store.start(start).await.unwrap().id();
        let store = self.store.store();
        until(|| async {
            let row = drive::load(&*store, id).await.unwrap().row;
            row.state.is_over() || row.state == SagaState::Held
        })
        .await;
        let saga = drive::load(&*store, id).await.unwrap();
        assert_eq!(saga.row.state, wanted, "{:#?}", saga.view());
        id
    }

    /// What was booked, and whether it was cancelled.
    fn bookings(&self) -> Vec<(String, bool)> {
        self.participants.all().unwrap()
    }
}

fn wish(card: &str) -> Trip {
    Trip {
        city: "Rome".into(),
        card: card.into(),
    }
}

/// A good card, one that is declined, and one of which nobody hears.
async fn three_trips(place: &Place, started: impl Fn(&str) -> Start) {
    place.ends(started("good"), SagaState::Completed).await;
    let booked = |what: &str, cancelled| (what.to_owned(), cancelled);
    let made = [booked("flight to Rome", false), booked("hotel to Rome", false)];
    let all = place.bookings();
    assert_eq!(all[..2], made);
    assert_eq!(all[2..], [booked("charge to good", false)]);
    place.ends(started("declined"), SagaState::Compensated).await;
    assert_eq!(place.bookings()[3..], made.map(|(what, _)| (what, true)));
    place.ends(started("unsure"), SagaState::Completed).await;
    assert_eq!(
        place.bookings()[5..7],
        [booked("flight to Rome", false), booked("hotel to Rome", false)]
    );
    // Charged once, although nobody heard of it.
    assert_eq!(place.bookings()[7..], [booked("charge to unsure", false)]);
}

async fn over_functions(place: Place) {
    let trip = trip(place.participants.clone()).unwrap();
    let relay = Running::start(Relay::builder(place.store.store()).saga(&trip));
    three_trips(&place, |card| trip.start(card, &wish(card)).unwrap()).await;
    relay.stop().await;
}

/// The file of the example, at this address.
fn written(address: SocketAddr) -> Definition {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/trip_saga/trip.toml");
    let text = std::fs::read_to_string(path).unwrap();
    from_toml(&text.replace("127.0.0.1:7410", &address.to_string())).unwrap()
}

async fn over_http(place: Place) {
    let definition = written(serve(services::router(place.participants.clone())).await);
    assert!(definition.lint().is_empty(), "{:?}", definition.lint());
    let here = |url: &str| {
        let http = Http::builder(url).allow_private(true).build()?;
        Ok(Destination::new(http.name().to_owned(), http))
    };
    let relay = Running::start(Relay::builder(place.store.store()).explicit("http:", here));
    three_trips(&place, |card| start(&definition, card, &wish(card)).unwrap()).await;
    relay.stop().await;
}

#[tokio::test]
async fn trips_over_functions_on_sqlite() {
    over_functions(Place::on_sqlite().await).await;
}

#[tokio::test]
async fn trips_over_functions_on_postgres() {
    over_functions(Place::on_postgres().await).await;
}

#[tokio::test]
async fn trips_over_http_on_sqlite() {
    over_http(Place::on_sqlite().await).await;
}

#[tokio::test]
async fn trips_over_http_on_postgres() {
    over_http(Place::on_postgres().await).await;
}
