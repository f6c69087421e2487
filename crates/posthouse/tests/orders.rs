//! `examples/order_execution`: what its service and its worker promise, over real HTTP, on both databases. The tests W-101 to W-105 are those of its protocol.

use axum::Router;
use posthouse::{
    AnyStore, AttemptOutcome, DeadReason, Filter, Message, MessageView, State,
    ledger::{Begin, Begun, CONFLICT, Conclusion, Fenced, Fingerprint, Keep, Status},
    repair,
};
use std::{env, net::SocketAddr, process::Stdio, sync::Arc, time::Duration};
use tokio::{
    io::{AsyncBufReadExt, BufReader},
    process::Command,
};

use crate::{
    billing::on_server,
    http::{Told, ask, request, serve, tell, told, until},
    relay::Running,
    transactional::SECOND,
};
use do_layer::{
    OrderRequest, TOPIC, broker,
    database::{OnPostgres, OnSqlite},
    entry, service,
    settings::Settings,
    worker::worker,
};

#[path = "../examples/order_execution/do_layer/mod.rs"]
mod do_layer;

/// Tells a child which database and which broker to work for.
const DATABASE: &str = "POSTHOUSE_TEST_ORDERS_DATABASE";
const BROKER: &str = "POSTHOUSE_TEST_ORDERS_BROKER";

const JSON: (&str, &str) = ("content-type", "application/json");

/// Service, broker and database.
struct Place {
    url: String,
    store: AnyStore,
    service: SocketAddr,
    broker: SocketAddr,
    _folder: Option<Arc<tempfile::TempDir>>,
}

impl Place {
    async fn on_sqlite() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let url = format!("sqlite://{}", folder.path().join("orders.db").display());
        AnyStore::migrate(&url).await.unwrap();
        let app = service::router::<OnSqlite>(&url).await.unwrap();
        Self::open(url, app, Some(Arc::new(folder))).await
    }

    async fn on_postgres() -> Self {
        let name = format!("orders_{}", uuid::Uuid::new_v4().simple());
        on_server(&format!("CREATE DATABASE {name}")).await;
        let server = env::var("POSTHOUSE_TEST_POSTGRES").unwrap();
        let url = format!("{}/{name}", server.rsplit_once('/').unwrap().0);
        AnyStore::migrate(&url).await.unwrap();
        let app = service::router::<OnPostgres>(&url).await.unwrap();
        Self::open(url, app, None).await
    }

    async fn open(url: String, app: Router, folder: Option<Arc<tempfile::TempDir>>) -> Self {
        Self {
            store: AnyStore::open(&url).await.unwrap(),
            url,
            service: serve(app).await,
            broker: serve(broker::router()).await,
            _folder: folder,
        }
    }

    fn broker_url(&self) -> String {
        format!("http://{}/orders", self.broker)
    }

    /// A worker, with waits that a test can wait for.
    fn worker(&self, name: &str) -> Running {
        let relay = worker(self.store.store(), name, &self.broker_url(), &brisk()).unwrap();
        Running::start(relay)
    }

    async fn post(&self, key: &str, order: &str) -> Told {
        let headers = [("x-account", "acme"), ("idempotency-key", key), JSON];
        told(self.service, "POST /do/order", &headers, order).await
    }

    /// The answer when the order has ended.
    async fn ended(&self, key: &str, order: &str) -> Told {
        until(|| async {
            told_of(self, key)
                .await
                .is_some_and(|status| status != Status::InFlight)
        })
        .await;
        let told = self.post(key, order).await;
        assert!(told.status != 409 || told.header("retry-after").is_none(), "{told:?}");
        told
    }

    async fn messages(&self) -> Vec<MessageView> {
        let filter = Filter {
            oldest_first: true,
            ..Filter::default()
        };
        self.store.admin().list(&filter).await.unwrap().messages
    }

    async fn message(&self) -> MessageView {
        let mut messages = self.messages().await;
        assert_eq!(messages.len(), 1);
        messages.remove(0)
    }

    async fn outcomes(&self) -> Vec<(AttemptOutcome, Option<String>)> {
        let id = self.message().await.id;
        let attempts = self.store.admin().attempts(id).await.unwrap();
        attempts
            .into_iter()
            .map(|attempt| (attempt.outcome, attempt.code))
            .collect()
    }

    async fn ask_broker(&self, what: &str) -> String {
        let told = ask(self.broker, request(what, &[], "")).await.unwrap();
        told.body.trim().to_owned()
    }

    async fn close(self) {
        if let Some((_, name)) = self.url.strip_prefix("postgres").and_then(|rest| rest.rsplit_once('/')) {
            let name = name.to_owned();
            drop(self.store);
            on_server(&format!("DROP DATABASE {name} WITH (FORCE)")).await;
        }
    }
}

async fn told_of(place: &Place, key: &str) -> Option<Status> {
    let entry = entry("acme", key).unwrap();
    place
        .store
        .admin()
        .entry(&entry)
        .await
        .unwrap()
        .map(|entry| entry.status)
}

fn brisk() -> Settings {
    Settings {
        poll: Duration::from_millis(50),
        lease: 4 * SECOND,
        backoff: vec![Duration::from_millis(10)],
        timeout: SECOND,
        ..Settings::default()
    }
}

fn order(symbol: &str) -> String {
    format!(r#"{{"symbol":"{symbol}","side":"buy","quantity":3}}"#)
}

/// W-101: pending, sending, succeeded.
async fn w_101_an_order_is_executed_and_its_result_is_told_again(place: Place) {
    let accepted = place.post("k", &order("ACME")).await;
    assert_eq!(accepted.status, 202, "{accepted:?}");
    assert_eq!(place.message().await.state, State::Pending);
    let busy = place.post("k", &order("ACME")).await;
    busy.assert_refused(409, "TX.IDEMPOTENT_BUSY");
    assert_eq!(busy.header("retry-after"), Some("1"));
    let worker = place.worker("A");
    let told = place.ended("k", &order("ACME")).await;
    worker.stop().await;
    assert_eq!((told.status, told.is_replayed()), (200, true));
    assert_eq!(told.body, "{\"execution\":\"B-1\",\"filled\":3,\"status\":\"ok\"}\n");
    let message = place.message().await;
    assert_eq!((message.state, message.attempts), (State::Done, 1));
    assert_eq!(place.ask_broker("GET /executed").await, "1");
    place.close().await;
}

/// W-102: a timeout, and the second try succeeds.
async fn w_102_after_a_timeout_it_is_tried_again(place: Place) {
    place.post("k", &order("SLOW")).await;
    let worker = place.worker("A");
    let told = place.ended("k", &order("SLOW")).await;
    worker.stop().await;
    assert_eq!(told.status, 200);
    let outcomes = place.outcomes().await;
    assert_eq!(
        outcomes,
        [
            (AttemptOutcome::Retry, Some("timeout".to_owned())),
            (AttemptOutcome::Delivered, None)
        ]
    );
    place.close().await;
}

/// W-103: a worker dies while it sends. When its lease is over another one executes the order.
async fn w_103_a_dead_workers_order_is_taken_over(place: Place) {
    place.post("k", &order("HANG")).await;
    let mut child = Command::new(env::current_exe().unwrap())
        .args(["--exact", "orders::a_worker_of_its_own", "--nocapture"])
        .env(DATABASE, &place.url)
        .env(BROKER, place.broker_url())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while lines.next_line().await.unwrap().expect("the child has ended") != "told at work" {}
    until(|| async { place.ask_broker("GET /asked/HANG").await == "1" }).await;
    let kill = format!("kill -9 {}", child.id().unwrap());
    assert!(Command::new("sh").args(["-c", &kill]).status().await.unwrap().success());
    child.wait().await.unwrap();
    place.ask_broker("POST /up").await;
    let heir = place.worker("B");
    let told = place.ended("k", &order("HANG")).await;
    heir.stop().await;
    assert_eq!(told.status, 200);
    let outcomes: Vec<_> = place.outcomes().await.into_iter().map(|(outcome, _)| outcome).collect();
    assert_eq!(outcomes, [AttemptOutcome::LeaseExpired, AttemptOutcome::Delivered]);
    place.close().await;
}

/// Works until it is killed. Its broker has all the time there is.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_of_its_own() {
    let Ok(url) = env::var(DATABASE) else { return };
    let store = AnyStore::open(&url).await.unwrap().store();
    let settings = Settings {
        timeout: 6 * SECOND,
        lease: 8 * SECOND,
        ..brisk()
    };
    let relay = worker(store, "A", &env::var(BROKER).unwrap(), &settings).unwrap();
    let running = Running::start(relay);
    tell("at work");
    std::future::pending::<()>().await;
    running.stop().await;
}

/// W-104: the last attempt fails, and the order is aborted. A person queues it again, and it is executed.
async fn w_104_an_aborted_order_is_queued_again_by_hand(place: Place) {
    place.post("k", &order("DOWN")).await;
    let worker = place.worker("A");
    let told = place.ended("k", &order("DOWN")).await;
    told.assert_refused(502, "TX.IDEMPOTENT_LAST_FAILED");
    assert!(!told.body.contains("market"), "what the broker said is for operators");
    let message = place.message().await;
    assert_eq!(
        (message.state, message.reason),
        (State::Dead, Some(DeadReason::Exhausted))
    );
    assert_eq!((message.attempts, message.last_code.as_deref()), (6, Some("http_503")));
    place.ask_broker("POST /up").await;
    let admin = place.store.admin();
    admin
        .replay(message.id, "anna", "the market is open", None)
        .await
        .unwrap();
    let told = place.ended("k", &order("DOWN")).await;
    worker.stop().await;
    assert_eq!(told.status, 200);
    place.close().await;
}

/// W-105: the ledger says that it was done, and the outbox still has it. It is settled, and nothing is sent.
async fn w_105_what_the_ledger_has_is_not_sent(place: Place) {
    let first = Fingerprint::of_bytes(b"the order");
    let entry = entry("acme", "k").unwrap();
    let store = place.store.store();
    let Begun::Acquired(hold) = store.begin(&Begin::new(entry.clone(), first)).await.unwrap() else {
        panic!("nobody has it")
    };
    let made = posthouse::ledger::Answer::bytes("executed by hand").status(200);
    let done = Conclusion::Succeeded(made.kept(Keep::default()));
    assert_eq!(store.conclude(&hold, &done).await.unwrap(), Fenced::Done);
    let stray = |of: Fingerprint| {
        let order = OrderRequest::read(order("ACME").as_bytes()).unwrap();
        let message = Message::json(TOPIC, &order).unwrap().tenant("acme");
        message.ledger(&entry.scope, "k", of)
    };
    place.store.enqueue(vec![stray(first)]).await.unwrap();
    let worker = place.worker("A");
    until(|| async { place.message().await.state == State::Done }).await;
    assert_eq!(place.outcomes().await, [(AttemptOutcome::Duplicate, None)]);
    // Another order under the same key never goes out either, and the ledger stays as it is.
    let other = Fingerprint::of_bytes(b"another order");
    place.store.enqueue(vec![stray(other)]).await.unwrap();
    until(|| async { place.messages().await.iter().all(|message| message.state.is_terminal()) }).await;
    worker.stop().await;
    let last = place.messages().await.pop().unwrap();
    assert_eq!((last.state, last.reason), (State::Dead, Some(DeadReason::Conflict)));
    assert_eq!(last.last_code.as_deref(), Some(CONFLICT));
    assert_eq!(place.ask_broker("GET /asked/ACME").await, "0");
    assert_eq!(told_of(&place, "k").await, Some(Status::Succeeded));
    place.close().await;
}

async fn another_order_under_the_same_key_is_a_conflict(place: Place) {
    assert_eq!(place.post("k", &order("ACME")).await.status, 202);
    place
        .post("k", &order("OTHER"))
        .await
        .assert_refused(409, "STORAGE.CONFLICT");
    // The same order, written in another way, is the same.
    let again = r#"{ "quantity": 3, "symbol": "ACME", "side": "buy" }"#;
    place.post("k", again).await.assert_refused(409, "TX.IDEMPOTENT_BUSY");
    let other = [("x-account", "other"), ("idempotency-key", "k")];
    let others = told(place.service, "POST /do/order", &other, &order("OTHER")).await;
    assert_eq!(others.status, 202, "another account has nothing to do with it");
    assert_eq!(place.messages().await.len(), 2);
    place.close().await;
}

async fn bad_orders_are_refused_and_not_sent(place: Place) {
    for (n, (body, said)) in [
        ("{", "EOF"),
        (r#"{"symbol":"","side":"buy","quantity":1}"#, "symbol: must have"),
        (r#"{"symbol":"A","side":"buy","quantity":0}"#, "quantity: must be"),
        (r#"{"symbol":"A","side":"hold","quantity":1}"#, "hold"),
    ]
    .into_iter()
    .enumerate()
    {
        let key = format!("k{n}");
        for replayed in [false, true] {
            let told = place.post(&key, body).await;
            assert_eq!((told.status, told.is_replayed()), (422, replayed));
            assert!(told.body.contains(said), "{told:?}");
        }
    }
    let told = told(place.service, "POST /do/order", &[("x-account", "acme")], &order("A")).await;
    told.assert_refused(400, "key_missing");
    let told = ask(
        place.service,
        request("POST /do/order", &[("idempotency-key", "k")], &order("A")),
    );
    told.await.unwrap().assert_refused(401, "caller_unknown");
    assert!(place.messages().await.is_empty());
    // What came in by another door is aborted at once.
    let broken = Message::bytes(TOPIC, "application/json", "{");
    place.store.enqueue(vec![broken]).await.unwrap();
    let worker = place.worker("A");
    until(|| async { place.message().await.state == State::Dead }).await;
    worker.stop().await;
    let message = place.message().await;
    assert_eq!(
        (message.attempts, message.last_code.as_deref()),
        (1, Some("BROKEN_ORDER"))
    );
    place.close().await;
}

/// What the broker refuses is told as it refuses it.
async fn what_the_broker_refuses_is_failed(place: Place) {
    place.post("k", &order("NONE")).await;
    let worker = place.worker("A");
    let told = place.ended("k", &order("NONE")).await;
    worker.stop().await;
    told.assert_refused(422, "TX.IDEMPOTENT_LAST_FAILED");
    place.close().await;
}

/// Abort, resolve and repair, by hand.
async fn operators_have_the_last_word(place: Place) {
    let admin = place.store.admin();
    place.post("aborted", &order("ACME")).await;
    admin
        .cancel(place.message().await.id, "anna", "not wanted")
        .await
        .unwrap();
    place
        .post("aborted", &order("ACME"))
        .await
        .assert_refused(502, "TX.IDEMPOTENT_LAST_FAILED");
    place.post("resolved", &order("ACME")).await;
    let waiting = place.messages().await.pop().unwrap();
    admin
        .resolve(waiting.id, "anna", "they were asked", "executed by phone: B-77")
        .await
        .unwrap();
    let told = place.post("resolved", &order("ACME")).await;
    assert_eq!((told.status, told.body.as_str()), (200, "executed by phone: B-77"));
    place.post("stuck", &order("ACME")).await;
    // Long enough that half of it is left when the claim commits.
    let claim = posthouse::Claim::new("dead", 10, Duration::from_millis(500));
    assert_eq!(place.store.store().claim(&claim).await.unwrap().len(), 1);
    tokio::time::sleep(Duration::from_millis(520)).await;
    assert_eq!(repair(&*place.store.store(), 10).await.unwrap(), 1);
    let worker = place.worker("A");
    assert_eq!(place.ended("stuck", &order("ACME")).await.status, 200);
    worker.stop().await;
    assert_eq!(place.ask_broker("GET /asked/ACME").await, "1");
    place.close().await;
}

macro_rules! on_both {
    ($($case:ident),* $(,)?) => {
        mod on_postgres {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Place::on_postgres().await).await;
            })*
        }
        mod on_sqlite {
            $(#[tokio::test(flavor = "multi_thread")]
            async fn $case() {
                super::$case(super::Place::on_sqlite().await).await;
            })*
        }
    };
}

on_both! {
    w_101_an_order_is_executed_and_its_result_is_told_again,
    w_102_after_a_timeout_it_is_tried_again,
    w_103_a_dead_workers_order_is_taken_over,
    w_104_an_aborted_order_is_queued_again_by_hand,
    w_105_what_the_ledger_has_is_not_sent,
    another_order_under_the_same_key_is_a_conflict,
    bad_orders_are_refused_and_not_sent,
    what_the_broker_refuses_is_failed,
    operators_have_the_last_word,
}

#[test]
fn the_environment_is_read_and_what_cannot_be_read_is_named() {
    let read = |pairs: &[(&str, &str)]| {
        let pairs: Vec<_> = pairs
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_string()))
            .collect();
        Settings::read(|name| {
            pairs
                .iter()
                .find(|(own, _)| own == name)
                .map(|(_, value)| value.clone())
        })
    };
    assert_eq!(read(&[]), Ok(Settings::default()));
    let all = read(&[
        ("OUTBOX_ENABLED", "true"),
        ("OUTBOX_CONCURRENCY", "2"),
        ("OUTBOX_BATCH", "8"),
        ("OUTBOX_POLL_INTERVAL_SEC", "0.25"),
        ("OUTBOX_LOCK_LEASE_SEC", "30"),
        ("OUTBOX_MAX_ATTEMPTS", "3"),
        ("OUTBOX_BACKOFF_SEC", "[1, 2.5]"),
        ("BROKER_TIMEOUT_MS", "900"),
    ]);
    let expected = Settings {
        enabled: true,
        concurrency: 2,
        batch: 8,
        poll: Duration::from_millis(250),
        lease: 30 * SECOND,
        max_attempts: 3,
        backoff: vec![SECOND, Duration::from_millis(2500)],
        timeout: Duration::from_millis(900),
    };
    assert_eq!(all, Ok(expected));
    for (name, value) in [
        ("OUTBOX_ENABLED", "yes please"),
        ("OUTBOX_BATCH", "-1"),
        ("OUTBOX_POLL_INTERVAL_SEC", "soon"),
        ("OUTBOX_BACKOFF_SEC", "[5,ten]"),
        ("BROKER_TIMEOUT_MS", "2.5s"),
    ] {
        let error = read(&[(name, value)]).unwrap_err();
        assert!(error.starts_with(name) && error.contains(value), "{error}");
    }
}
