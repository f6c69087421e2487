//! Messages that have an entry in the ledger, through a relay; on the store in memory, in a time that moves when everybody sleeps.

use async_trait::async_trait;
use metrics_exporter_prometheus::PrometheusBuilder;
use posthouse::{
    Admin, AttemptOutcome, DeadReason, Delivery, Error, Message, Outcome, Relay, RetryPolicy, State, Store,
    ledger::{Answer, Begin, Begun, CONFLICT, Conclusion, EntryKey, Fenced, Fingerprint, Hold, Keep, Kept},
    relay::{Destination, local_delivery},
};
use posthouse_testkit::{
    Memory, Wrapped,
    wrapped::{Call, Hook, Reply},
};
use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use crate::relay::{Running, SECOND, all, evidence, put, states, store, until, until_all};

fn print(of: &str) -> Fingerprint {
    Fingerprint::of_bytes(of.as_bytes())
}

fn order(of: &str) -> Message {
    Message::bytes("order.place", "text/plain", of).ledger("orders", "k", print(of))
}

fn ask() -> Begin {
    Begin::new(EntryKey::new("orders", "k"), print("a"))
}

fn placed() -> Answer {
    Answer::bytes(r#"{"order":7}"#).status(201)
}

async fn acquire(store: &Memory) -> Hold {
    match Store::begin(store, &ask()).await.unwrap() {
        Begun::Acquired(hold) => hold,
        other => panic!("{other:?}"),
    }
}

async fn told(store: &Memory) -> Begun {
    Store::begin(store, &ask()).await.unwrap()
}

/// A broker that remembers what it was asked to place, and answers as it is told to, once for each time.
#[derive(Clone, Default)]
struct Broker {
    asked: Arc<Mutex<Vec<String>>>,
    fails: Arc<AtomicUsize>,
}

impl Broker {
    fn destination(&self) -> Destination {
        let broker = self.clone();
        let take = move |delivery: Delivery| {
            let broker = broker.clone();
            async move {
                tokio::time::sleep(SECOND / 10).await;
                let mut asked = broker.asked.lock().unwrap();
                asked.push(String::from_utf8(delivery.payload).unwrap());
                assert!(delivery.headers.is_empty(), "{:?}", delivery.headers);
                let fails = broker
                    .fails
                    .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
                match fails {
                    Ok(_) => Outcome::unknown("timeout", "no answer"),
                    Err(_) => Outcome::answered(placed()),
                }
            }
        };
        Destination::new("broker", local_delivery(take)).retry(RetryPolicy::table(3, [SECOND]))
    }

    fn asked(&self) -> Vec<String> {
        self.asked.lock().unwrap().clone()
    }
}

fn relay(store: impl Store + 'static, broker: &Broker) -> Running {
    Running::start(Relay::builder(Arc::new(store)).route("*", broker.destination()))
}

#[tokio::test(start_paused = true)]
async fn what_the_destination_answered_is_told_again() {
    let (store, broker) = (store(), Broker::default());
    broker.fails.store(2, Ordering::SeqCst);
    let relay = relay(store.clone(), &broker);
    put(&store, [order("a")]).await;
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(broker.asked(), ["a", "a", "a"]);
    assert_eq!(told(&store).await, Begun::Replay(placed().kept(Keep::default())));
}

/// W-105, and nothing is sent.
#[tokio::test(start_paused = true)]
async fn what_was_done_is_settled_with_its_answer_and_not_sent() {
    let (store, broker) = (store(), Broker::default());
    let hold = acquire(&store).await;
    let done = Conclusion::Succeeded(placed().kept(Keep::default()));
    assert_eq!(store.conclude(&hold, &done).await.unwrap(), Fenced::Done);
    let relay = relay(store.clone(), &broker);
    put(&store, [order("a")]).await;
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert!(broker.asked().is_empty());
    let attempts = evidence(&store, 0).await;
    assert_eq!(attempts.len(), 1);
    let found = (attempts[0].outcome, attempts[0].receipt.as_deref());
    assert_eq!(found, (AttemptOutcome::Duplicate, Some(r#"{"order":7}"#)));
}

#[tokio::test(start_paused = true)]
async fn a_key_that_was_used_for_something_else_is_never_sent() {
    let (store, broker) = (store(), Broker::default());
    let hold = acquire(&store).await;
    let done = Conclusion::Succeeded(placed().kept(Keep::default()));
    assert_eq!(store.conclude(&hold, &done).await.unwrap(), Fenced::Done);
    let relay = relay(store.clone(), &broker);
    put(&store, [order("b")]).await;
    until_all(&store, State::Dead).await;
    relay.stop().await;
    assert!(broker.asked().is_empty());
    let found = all(&store).await.remove(0);
    assert_eq!(
        (found.reason, found.last_code.as_deref()),
        (Some(DeadReason::Conflict), Some(CONFLICT))
    );
    assert_eq!(told(&store).await, Begun::Replay(placed().kept(Keep::default())));
}

/// However many there are, and however long the first one takes.
#[tokio::test(start_paused = true)]
async fn of_several_messages_of_one_key_one_is_sent() {
    let (store, broker) = (store(), Broker::default());
    broker.fails.store(2, Ordering::SeqCst);
    let relay = relay(store.clone(), &broker);
    put(&store, (0..20).map(|_| order("a"))).await;
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(broker.asked(), ["a", "a", "a"]);
    let mut outcomes = Vec::new();
    for at in 0..20 {
        outcomes.push(evidence(&store, at).await.last().unwrap().outcome);
    }
    let delivered = |outcome: &&AttemptOutcome| **outcome == AttemptOutcome::Delivered;
    assert_eq!(outcomes.iter().filter(delivered).count(), 1);
}

#[tokio::test(start_paused = true)]
async fn exhausted_it_fails_and_a_replay_tries_again() {
    let (store, broker) = (store(), Broker::default());
    broker.fails.store(3, Ordering::SeqCst);
    let relay = relay(store.clone(), &broker);
    put(&store, [order("a")]).await;
    until_all(&store, State::Dead).await;
    let failed = Kept::failure("no answer").status(504);
    assert_eq!(told(&store).await, Begun::Failed(failed));
    let id = all(&store).await[0].id;
    store.replay(id, "op", "the broker is back", None).await.unwrap();
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(broker.asked().len(), 4);
    assert_eq!(told(&store).await, Begun::Replay(placed().kept(Keep::default())));
}

/// Does not say whether a message may be sent, so often first.
struct Silent(AtomicUsize);

#[async_trait]
impl Hook for Silent {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        let fails = |left: usize| left.checked_sub(1);
        let asked = matches!(call, Call::Clear(_));
        if asked && self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fails).is_ok() {
            return Err(Error::Timeout("no answer".into()));
        }
        call.to(store).await
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_of_the_store_nothing_is_sent() {
    let (store, broker) = (store(), Broker::default());
    let silent = Wrapped::new(Arc::new(store.clone()), Silent(AtomicUsize::new(usize::MAX)));
    let relay = relay(silent, &broker);
    put(&store, [order("a")]).await;
    until(|| async { all(&store).await[0].epoch > 5 }).await;
    relay.stop().await;
    assert!(broker.asked().is_empty());
    assert_eq!(states(&store).await, [State::Pending]);
    let relay = self::relay(store.clone(), &broker);
    until_all(&store, State::Done).await;
    relay.stop().await;
    assert_eq!(broker.asked(), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_the_ledger_answers_is_measured() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let (store, broker) = (store(), Broker::default());
    let relay = relay(store.clone(), &broker);
    put(&store, [order("a"), order("a"), order("b")]).await;
    until(|| async { !states(&store).await.contains(&State::Pending) && broker.asked().len() == 1 }).await;
    until(|| async { states(&store).await.iter().all(|state| state.is_terminal()) }).await;
    relay.stop().await;
    let measured = recorder.handle().render();
    for line in [
        "posthouse_ledger_hits_total 1\n",
        "posthouse_ledger_conflicts_total 1\n",
        "posthouse_ledger_busy_total ",
    ] {
        assert!(measured.contains(line), "{line}{measured}");
    }
}
