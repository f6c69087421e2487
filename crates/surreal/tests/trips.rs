//! What an application does with it: a relay, a saga whose participants have SurrealDB too, something that is done once under a key, and a handler that settles in
//! its own transaction.

use posthouse::{
    AnyStore, Backoff, Message, Outcome, Relay, RetryPolicy, Store,
    ledger::{Answer, Begun, Fingerprint, Ledger},
    relay::{CancellationToken, Destination, Failure, Handling, local_delivery, transactional},
    saga::{Do, Doing, Saga, SagaState, Undo, Undoing, drive},
    surreal::{Database, Options, Outbox, SurrealDb, from_surreal},
};
use serde::{Deserialize, Serialize};
use std::{
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Trip {
    city: String,
    card: String,
}

/// An airline, a hotel and a bank, with a table in the database.
#[derive(Clone)]
struct Participants {
    db: Database,
}

type Answered<T> = std::pin::Pin<Box<dyn Future<Output = Result<T, posthouse::saga::Failure>> + Send>>;

impl Participants {
    /// Books it, once for a key; run again for as long as it is told of conflicts.
    async fn book(&self, who: &str, key: &str, what: &str) -> Result<String, posthouse::saga::Failure> {
        // Ends: of those that conflict one commits.
        loop {
            let tx = self.db.begin().await.map_err(unsure)?;
            let code = format!("{who}: {what}");
            match Outbox::default().do_once(&tx, who, key).await.map_err(unsure)? {
                Doing::First => {
                    let booked = tx
                        .query("CREATE booking CONTENT { key: $key, code: $code, cancelled: false }")
                        .bind(("key", key.to_owned()))
                        .bind(("code", code.clone()));
                    booked.await.and_then(|booked| booked.check()).map_err(unsure)?;
                }
                Doing::Before => {}
                Doing::Undone => {
                    return Err(posthouse::saga::Failure::reject(
                        "refused",
                        "it was cancelled before it came",
                    ));
                }
            }
            match tx.commit().await.map_err(from_surreal) {
                Ok(_) => return Ok(code),
                Err(posthouse::Error::Contention(_)) => {}
                Err(error) => return Err(unsure(error)),
            }
        }
    }

    async fn cancel(&self, who: &str, key: &str) -> Result<(), posthouse::saga::Failure> {
        let tx = self.db.begin().await.map_err(unsure)?;
        if Outbox::default().undo_once(&tx, who, key).await.map_err(unsure)? == Undoing::Now {
            let cancelled = tx
                .query("UPDATE booking SET cancelled = true WHERE key = $key")
                .bind(("key", key.to_owned()));
            cancelled
                .await
                .and_then(|cancelled| cancelled.check())
                .map_err(unsure)?;
        }
        tx.commit().await.map(drop).map_err(unsure)
    }

    async fn all(&self) -> Vec<(String, bool)> {
        let mut codes = self
            .db
            .client()
            .query("SELECT VALUE code FROM booking ORDER BY code")
            .await
            .unwrap();
        let mut cancelled = self
            .db
            .client()
            .query("SELECT VALUE code FROM booking WHERE cancelled ORDER BY code")
            .await
            .unwrap();
        let (codes, cancelled): (Vec<String>, Vec<String>) = (codes.take(0).unwrap(), cancelled.take(0).unwrap());
        codes
            .into_iter()
            .map(|code| (code.clone(), cancelled.contains(&code)))
            .collect()
    }
}

fn unsure(error: impl std::fmt::Display) -> posthouse::saga::Failure {
    posthouse::saga::Failure::unknown("unsure", error.to_string())
}

fn trip(all: &Participants) -> Saga<Trip> {
    let book = |who: &'static str| {
        let all = all.clone();
        move |trip: Do<Trip>| -> Answered<String> {
            let all = all.clone();
            Box::pin(async move { all.book(who, &trip.key, &trip.city).await })
        }
    };
    let cancel = |who: &'static str| {
        let all = all.clone();
        move |undo: Undo<Trip, String>| -> Answered<()> {
            let all = all.clone();
            Box::pin(async move { all.cancel(who, &undo.forward_key).await })
        }
    };
    let charge = {
        let all = all.clone();
        move |trip: Do<Trip>| -> Answered<String> {
            let all = all.clone();
            Box::pin(async move {
                match trip.card.as_str() {
                    "declined" => Err(posthouse::saga::Failure::reject("declined", "the card was declined")),
                    card => all.book("bank", &trip.key, card).await,
                }
            })
        }
    };
    let mut saga = Saga::<Trip>::define("trip", 1);
    let flight = saga
        .step("flight", book("airline"))
        .compensate(cancel("airline"))
        .idempotent()
        .add();
    let hotel = saga
        .step("hotel", book("hotel"))
        .after(&flight)
        .compensate(cancel("hotel"))
        .idempotent()
        .add();
    saga.step("charge", charge).after(&hotel).idempotent().pivot().add();
    saga.build().unwrap()
}

/// A database in a folder, with a relay's store in it.
async fn shop(folder: &tempfile::TempDir) -> (Database, Arc<SurrealDb>) {
    let url = format!("surrealkv://{}", folder.path().join("shop.db").display());
    AnyStore::migrate(&url).await.unwrap();
    let db = Database::connect(&url).await.unwrap();
    let store = SurrealDb::open(db.clone(), Options::default()).await.unwrap();
    (db, Arc::new(store))
}

/// Waits for it, for as long as a slow machine may take.
async fn until<F: Future<Output = bool>>(holds: impl Fn() -> F) {
    let since = Instant::now();
    while !holds().await {
        assert!(since.elapsed() < Duration::from_secs(60), "it does not come");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_trip_is_booked_as_a_whole_or_not_at_all() {
    let folder = tempfile::tempdir().unwrap();
    let (db, store) = shop(&folder).await;
    let participants = Participants { db };
    let (trip, cancel) = (trip(&participants), CancellationToken::new());
    let relay = tokio::spawn(Relay::builder(store.clone()).saga(&trip).run(cancel.clone()));
    for (card, end) in [("good", SagaState::Completed), ("declined", SagaState::Compensated)] {
        let wish = Trip {
            city: format!("Rome with {card}"),
            card: card.to_owned(),
        };
        let id = store.start_now(trip.start(card, &wish).unwrap()).await.unwrap().id();
        until(|| async { drive::load(&*store, id).await.unwrap().row.state.is_over() }).await;
        assert_eq!(drive::load(&*store, id).await.unwrap().row.state, end);
    }
    cancel.cancel();
    relay.await.unwrap().unwrap();
    let booked = |code: &str, cancelled| (code.to_owned(), cancelled);
    assert_eq!(
        participants.all().await,
        [
            booked("airline: Rome with declined", true),
            booked("airline: Rome with good", false),
            booked("bank: good", false),
            booked("hotel: Rome with declined", true),
            booked("hotel: Rome with good", false),
        ]
    );
}

/// Fifty ask for the same at once: it is done once, and all are told the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_order_is_placed_once_under_its_key() {
    let folder = tempfile::tempdir().unwrap();
    let (db, store) = shop(&folder).await;
    let ledger = Ledger::new(store.clone(), Outbox::default(), "orders");
    let mut asked = tokio::task::JoinSet::new();
    for _ in 0..50 {
        let (db, ledger) = (db.clone(), ledger.clone());
        asked.spawn(async move {
            // Ends: when it is done.
            loop {
                match ledger
                    .begin("", "order-42", Fingerprint::of_bytes(b"42"))
                    .await
                    .unwrap()
                {
                    Begun::Acquired(guard) => {
                        let tx = db.begin().await.unwrap();
                        tx.query("CREATE placed CONTENT { number: 42 }")
                            .await
                            .unwrap()
                            .check()
                            .unwrap();
                        let told = Message::json("order.placed", &42).unwrap();
                        Outbox::default().enqueue(&tx, told).await.unwrap();
                        let kept = guard.finish_in(&tx, Answer::bytes("placed")).await.unwrap();
                        tx.commit().await.unwrap();
                        return kept.body;
                    }
                    Begun::Replay(kept) => return kept.body,
                    Begun::Busy { .. } => tokio::time::sleep(Duration::from_millis(5)).await,
                    other => panic!("{:?}", other.map(drop)),
                }
            }
        });
    }
    let answers = asked.join_all().await;
    assert!(
        answers.iter().all(|answer| answer.as_deref() == Some(b"placed")),
        "{answers:?}"
    );
    let mut placed = db.client().query("RETURN count(SELECT * FROM placed)").await.unwrap();
    assert_eq!(placed.take::<Option<i64>>(0).unwrap(), Some(1));
    assert_eq!(posthouse::Admin::counts(&*store).await.unwrap().ready.value, 1);
}

/// A handler writes and settles in one transaction. The first time it is told of a conflict: then it is sent again, and its effect is there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_handler_does_is_there_once_also_after_a_conflict() {
    let folder = tempfile::tempdir().unwrap();
    let (db, store) = shop(&folder).await;
    db.client()
        .query("CREATE bill:only SET tokens = 0")
        .await
        .unwrap()
        .check()
        .unwrap();
    let bill = {
        let db = db.clone();
        move |delivery: Handling<Outbox>| {
            let db = db.clone();
            async move {
                let tokens: i64 = delivery.json()?;
                let tx = db.begin().await?;
                let billed = tx
                    .query("UPDATE bill:only SET tokens += $tokens")
                    .bind(("tokens", tokens));
                billed.await?.check()?;
                if delivery.attempt == 1 {
                    // Somebody else is faster.
                    db.client().query("UPDATE bill:only SET tokens += 1").await?.check()?;
                }
                delivery.settle_in(&tx, Outcome::delivered()).await?;
                tx.commit().await?;
                Ok::<_, Failure>(())
            }
        }
    };
    let cancel = CancellationToken::new();
    let relay = Relay::builder(store.clone()).route("usage", transactional(Outbox::default(), bill));
    let relay = tokio::spawn(relay.run(cancel.clone()));
    let sent = store
        .enqueue_now(vec![Message::json("usage", &1000).unwrap()])
        .await
        .unwrap();
    let admin: &dyn posthouse::Admin = &*store;
    until(|| async { admin.counts().await.unwrap().done.value == 1 }).await;
    cancel.cancel();
    relay.await.unwrap().unwrap();
    let mut tokens = db.client().query("RETURN bill:only.tokens").await.unwrap();
    assert_eq!(tokens.take::<Option<i64>>(0).unwrap(), Some(1001));
    let attempts = admin.attempts(sent[0].id()).await.unwrap();
    assert_eq!(attempts.len(), 2, "{attempts:?}");
    assert!(store.capabilities().callers_retry);
}

/// The producer's budget is the one that a relay applies where its route sets none.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_applies_the_messages_budget() {
    let folder = tempfile::tempdir().unwrap();
    let (_, store) = shop(&folder).await;
    let refuse = local_delivery(|_| async { Outcome::retry("closed", "the shop is closed") });
    let closed = Destination::new("shop", refuse).retry(RetryPolicy {
        backoff: Backoff::Table(vec![Duration::from_millis(10)]),
        ..RetryPolicy::default()
    });
    let strict = closed.clone().retry(RetryPolicy::table(1, [Duration::ZERO]));
    let strict = Destination::new("strict", strict);
    let of = |topic: &str, budget| Message::json(topic, &1).unwrap().max_attempts(budget);
    let sent = store
        .enqueue_now(vec![of("order.placed", 2), of("strict.placed", 5)])
        .await
        .unwrap();
    let cancel = CancellationToken::new();
    let relay = Relay::builder(store.clone())
        .route("order.*", closed)
        .route("strict.*", strict);
    let relay = tokio::spawn(relay.run(cancel.clone()));
    let admin: &dyn posthouse::Admin = &*store;
    until(|| async { admin.counts().await.unwrap().dead.value == 2 }).await;
    cancel.cancel();
    relay.await.unwrap().unwrap();
    let mut applied = Vec::new();
    for one in sent {
        let message = admin.find(one.id()).await.unwrap().unwrap();
        applied.push((message.attempts, message.max_attempts));
    }
    assert_eq!(applied, [(2, 2), (1, 1)]);
}
