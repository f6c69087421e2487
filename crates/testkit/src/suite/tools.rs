//! Small steps that cases are told in.

use posthouse_core::{
    Claim, Claimed, Enqueued, Error, Filter, Lease, Message, MessageId, MessageView, Outcome, Prune, PruneStates,
    RetryPolicy, Settlement, State, Store, Verdict,
};
use std::{future::Future, pin::Pin, task::Poll, time::Duration};
use tokio::task::JoinHandle;

pub use super::invariants::{assert_keys_in_order, assert_sound};
use crate::{Caller, Fixture};

/// The lease of most cases.
pub const LEASE: Duration = Duration::from_secs(15);

/// A second.
pub const SECOND: Duration = Duration::from_secs(1);

/// A day.
pub const DAY: Duration = Duration::from_secs(24 * 3600);

/// A prune of all that ended longer ago than this, done or dead.
pub fn ended(older_than: Duration, limit: u32) -> Prune {
    Prune::done(older_than, limit, "op").states(PruneStates::All)
}

/// A small message.
pub fn message(body: &str) -> Message {
    Message::bytes("orders", "text/plain", body)
}

/// A small message with an order key.
pub fn keyed(key: &str, body: &str) -> Message {
    message(body).order_key(key)
}

/// Messages of one order key.
pub fn line(key: &str, bodies: &[&str]) -> Vec<Message> {
    bodies.iter().map(|body| keyed(key, body)).collect()
}

/// Enqueues in a transaction of its own, committed if it was accepted.
pub async fn offer(fx: &dyn Fixture, message: Message) -> Result<Enqueued, Error> {
    let mut tx = fx.begin().await;
    let answer = tx.enqueue(message).await;
    match answer {
        Ok(_) => tx.commit().await.unwrap(),
        Err(_) => tx.rollback().await,
    }
    answer
}

/// The field for which something was refused.
#[track_caller]
pub fn field<T: std::fmt::Debug>(answer: Result<T, Error>) -> &'static str {
    match answer {
        Err(Error::Invalid(invalid)) => invalid.field,
        other => panic!("{other:?}"),
    }
}

/// Enqueues and commits what was not there before.
pub async fn put(fx: &dyn Fixture, message: Message) -> MessageId {
    let Enqueued::New(id) = offer(fx, message).await.unwrap() else {
        panic!("the message was there already")
    };
    id
}

/// Enqueues many in one call and commits.
pub async fn put_all(fx: &dyn Fixture, messages: Vec<Message>) -> Vec<MessageId> {
    let mut tx = fx.begin().await;
    let ids = tx
        .enqueue_all(messages)
        .await
        .unwrap()
        .into_iter()
        .map(Enqueued::id)
        .collect();
    tx.commit().await.unwrap();
    ids
}

/// Claims up to `batch` as `worker`.
pub async fn claim(store: &dyn Store, worker: &str, batch: u32) -> Vec<Claimed> {
    store.claim(&Claim::new(worker, batch, LEASE)).await.unwrap()
}

/// Claims exactly one.
pub async fn claim_one(store: &dyn Store, worker: &str) -> Claimed {
    let mut claimed = claim(store, worker, 1).await;
    assert_eq!(claimed.len(), 1, "one message was to be claimed");
    claimed.remove(0)
}

/// Enqueues one and claims it; nothing else may be due.
pub async fn put_and_claim(fx: &dyn Fixture, message: Message) -> Lease {
    let id = put(fx, message).await;
    let claimed = claim_one(&*fx.store().await, "w1").await;
    assert_eq!(claimed.lease.id, id, "another message was due");
    claimed.lease
}

/// Enqueues one, claims it and has it rejected; nothing else may be due.
pub async fn put_dead(fx: &dyn Fixture, message: Message) -> MessageId {
    let lease = put_and_claim(fx, message).await;
    assert!(settle(&*fx.store().await, rejected(&lease)).await.is_settled());
    lease.id
}

/// Enqueues one, claims it and delivers it; nothing else may be due.
pub async fn put_done(fx: &dyn Fixture, message: Message) -> MessageId {
    let lease = put_and_claim(fx, message).await;
    assert!(settle(&*fx.store().await, delivered(&lease)).await.is_settled());
    lease.id
}

/// The payloads of a claim, as text.
pub fn bodies(claimed: &[Claimed]) -> Vec<String> {
    claimed
        .iter()
        .map(|c| String::from_utf8_lossy(&c.delivery.payload).into_owned())
        .collect()
}

/// The leases of a claim.
pub fn leases(claimed: &[Claimed]) -> Vec<Lease> {
    claimed.iter().map(|c| c.lease.clone()).collect()
}

/// Settles one.
pub async fn settle(store: &dyn Store, settlement: Settlement) -> Verdict {
    let mut verdicts = store.settle(&[settlement]).await.unwrap();
    assert_eq!(verdicts.len(), 1, "one verdict for one settlement");
    verdicts.remove(0)
}

/// Settles them in one call; every one of them must win.
pub async fn settle_all(store: &dyn Store, batch: &[Settlement]) {
    let verdicts = store.settle(batch).await.unwrap();
    assert_eq!(verdicts.len(), batch.len(), "one verdict for each settlement");
    assert!(verdicts.iter().all(Verdict::is_settled), "{verdicts:?}");
}

/// Settles all that was claimed as delivered.
pub async fn deliver(store: &dyn Store, claimed: &[Claimed]) {
    let batch: Vec<_> = claimed.iter().map(|c| delivered(&c.lease)).collect();
    settle_all(store, &batch).await;
}

/// The destination acknowledged it.
pub fn delivered(lease: &Lease) -> Settlement {
    Settlement::delivered(lease, Some("receipt"))
}

/// The destination acknowledged it and said nothing else: what a store may treat in a lean way.
pub fn acknowledged(lease: &Lease) -> Settlement {
    Settlement::delivered(lease, None)
}

/// The destination refused it for good.
pub fn rejected(lease: &Lease) -> Settlement {
    let (code, error) = ("http_422".to_owned(), "not like this".to_owned());
    Settlement::of(lease, Outcome::Reject { code, error }, &RetryPolicy::default(), 0.5)
}

/// It failed, is due again after ten seconds, and has this many attempts in all.
pub fn failed(lease: &Lease, max_attempts: u32) -> Settlement {
    let (code, error) = ("http_503".to_owned(), "not now".to_owned());
    let outcome = Outcome::Retry {
        after: None,
        code,
        error,
    };
    Settlement::of(lease, outcome, &RetryPolicy::table(max_attempts, [SECOND * 10]), 0.5)
}

/// It failed and is due again at once; it has this many attempts in all.
pub fn failed_again(lease: &Lease, max_attempts: u32) -> Settlement {
    let (code, error) = ("timeout".to_owned(), "no answer".to_owned());
    let policy = RetryPolicy::table(max_attempts, [Duration::ZERO]);
    Settlement::of(lease, Outcome::Unknown { code, error }, &policy, 0.5)
}

/// No send began.
pub fn released(lease: &Lease) -> Settlement {
    Settlement::released(lease, Duration::ZERO)
}

/// The message as operators see it.
pub async fn view(fx: &dyn Fixture, id: MessageId) -> MessageView {
    fx.admin()
        .await
        .find(id)
        .await
        .unwrap()
        .expect("the message is in the store")
}

/// Where the message stands.
pub async fn state(fx: &dyn Fixture, id: MessageId) -> State {
    view(fx, id).await.state
}

/// How many messages there are, up to a thousand.
pub async fn count(fx: &dyn Fixture) -> usize {
    let filter = Filter {
        limit: 1000,
        ..Filter::default()
    };
    fx.admin().await.list(&filter).await.unwrap().messages.len()
}

/// Runs out every lease that there is, and settles those as expired.
pub async fn expire(fx: &dyn Fixture) -> u32 {
    fx.advance(LEASE + SECOND).await;
    posthouse_core::repair(&*fx.store().await, 1000).await.unwrap()
}

/// Whether two callers' transactions can be open at once. Where not, a case asserts what is left of its promise. Asked
/// before a transaction is open, for where not, an open one may keep out everybody else.
pub async fn parallel_callers(fx: &dyn Fixture) -> bool {
    fx.store().await.capabilities().parallel_callers
}

/// Asserts that not one record of the store differs from before.
pub async fn assert_unchanged(fx: &dyn Fixture, before: &str, what: &str) {
    assert_eq!(fx.dump().await, before, "{what} changed the store");
}

/// Runs them all at the same time; the answers come in their order.
pub async fn at_once<T: Send + 'static>(runs: Vec<impl Future<Output = T> + Send + 'static>) -> Vec<T> {
    let running: Vec<_> = runs.into_iter().map(tokio::spawn).collect();
    let mut answers = Vec::with_capacity(running.len());
    for run in running {
        answers.push(run.await.unwrap());
    }
    answers
}

/// Runs them all at the same time in this task, so that they may use the fixture. Ends when all of them have.
pub async fn together<'a>(runs: Vec<Pin<Box<dyn Future<Output = ()> + Send + 'a>>>) {
    let mut running = runs;
    std::future::poll_fn(|cx| {
        running.retain_mut(|run| run.as_mut().poll(cx).is_pending());
        if running.is_empty() {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    })
    .await;
}

/// Whether callers are told of a conflict when they commit, in place of waiting for each other. Then a case asserts that: of those who need the same one commits, the
/// others are told to run their transactions again, and find what he has done.
pub async fn callers_retry(fx: &dyn Fixture) -> bool {
    fx.store().await.capabilities().callers_retry
}

/// Asserts that somebody else was faster, and that nothing of this was done.
pub async fn assert_told_to_retry(tx: Box<dyn Caller>, what: &str) {
    let told = tx.commit().await;
    assert!(matches!(told, Err(Error::Contention(_))), "{what} committed: {told:?}");
}

/// Whether a commit has come about; or somebody else was faster, and it is to be run again.
pub async fn came_about(tx: Box<dyn Caller>) -> bool {
    match tx.commit().await {
        Ok(()) => true,
        Err(Error::Contention(_)) => false,
        Err(error) => panic!("{error:?}"),
    }
}

/// Asserts that somebody has to wait. Only ever a proof that it was not there at once: a slow machine cannot break it.
pub async fn assert_waits<T>(waiting: &mut JoinHandle<T>, what: &str) {
    let early = tokio::time::timeout(Duration::from_millis(300), waiting).await;
    assert!(early.is_err(), "{what} did not wait");
}

/// What is said not to wait for an open transaction. Such a wait would have no end, so this ends it late and loudly.
pub async fn without_waiting<T>(what: &str, run: impl Future<Output = T>) -> T {
    tokio::time::timeout(Duration::from_secs(20), run)
        .await
        .unwrap_or_else(|_| panic!("{what} waits for an open transaction"))
}
