//! The attempt budget that a relay applies: the route's where it sets one, else the message's own; on each database.

use posthouse::{
    Admin, AnyStore, Backoff, Filter, Message, MessageView, OnDead, Outcome, Relay, RetryPolicy, State, presence,
    relay::{Destination, local_delivery},
};
use std::{sync::Arc, time::Duration};

use crate::relay::{Running, SECOND, all, numbered, put, store, until, until_all};

/// A destination that refuses everything, with waits of 10 ms. It sets no budget.
fn closed(name: &str) -> Destination {
    let refuse = local_delivery(|_| async { Outcome::retry("closed", "the shop is closed") });
    Destination::new(name, refuse).without_breaker().retry(RetryPolicy {
        backoff: Backoff::Table(vec![Duration::from_millis(10)]),
        ..RetryPolicy::default()
    })
}

fn strict() -> Destination {
    closed("strict").retry(RetryPolicy::table(1, [Duration::ZERO]))
}

/// Messages with and without a budget of their own, to a route that sets none and to one that sets 1.
fn budgets() -> Vec<Message> {
    let of = |topic: &str| Message::json(topic, &1).unwrap();
    vec![
        of("order.placed").max_attempts(2),
        of("order.placed").max_attempts(3).order_key("k").on_dead(OnDead::Pass),
        of("strict.placed").max_attempts(5),
    ]
}

fn attempts(messages: &[MessageView]) -> Vec<(u32, u32)> {
    messages.iter().map(|m| (m.attempts, m.max_attempts)).collect()
}

/// Of each message: how often it was sent, and its budget in the end.
const APPLIED: [(u32, u32); 3] = [(2, 2), (3, 3), (1, 1)];

#[tokio::test(start_paused = true)]
async fn a_relay_applies_the_messages_budget_unless_the_route_sets_one() {
    let store = store();
    put(&store, budgets()).await;
    let relay = Relay::builder(Arc::new(store.clone()));
    let relay = Running::start(relay.route("order.*", closed("shop")).route("*", strict()));
    until_all(&store, State::Dead).await;
    relay.stop().await;
    assert_eq!(attempts(&all(&store).await), APPLIED);
}

/// The store's default is the budget of a message that brings none.
#[tokio::test(start_paused = true)]
async fn a_message_without_a_budget_has_the_stores_default() {
    let store = store();
    put(&store, [numbered(1)]).await;
    let relay = Relay::builder(Arc::new(store.clone()));
    let relay = Running::start(relay.route("order.*", closed("shop")));
    until_all(&store, State::Dead).await;
    relay.stop().await;
    assert_eq!(attempts(&all(&store).await), [(12, 12)]);
}

async fn budgets_on(url: &str) {
    AnyStore::migrate(url).await.unwrap();
    let any = AnyStore::open(url).await.unwrap();
    any.enqueue(budgets()).await.unwrap();
    let relay = Relay::builder(AnyStore::open(url).await.unwrap().store());
    let relay = Running::start(relay.route("order.*", closed("shop")).route("*", strict()));
    let oldest = Filter {
        oldest_first: true,
        ..Filter::default()
    };
    let admin = any.admin();
    let messages = async || admin.list(&oldest).await.unwrap().messages;
    while messages().await.iter().any(|m| m.state != State::Dead) {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    relay.stop().await;
    assert_eq!(attempts(&messages().await), APPLIED);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_applies_the_messages_budget_on_sqlite() {
    let folder = tempfile::tempdir().unwrap();
    budgets_on(&format!("sqlite://{}", folder.path().join("shop.db").display())).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_relay_applies_the_messages_budget_on_postgresql() {
    let server = std::env::var("POSTHOUSE_TEST_POSTGRES")
        .expect("POSTHOUSE_TEST_POSTGRES is not set; run ./test.sh, which starts a private server");
    let schema = format!("r_{}", uuid::Uuid::new_v4().simple());
    budgets_on(&format!("{server}?schema={schema}")).await;
}

/// Operators see the budget that will be applied, before it is.
#[tokio::test(start_paused = true)]
async fn the_heartbeat_reports_the_budgets_of_routes() {
    let store = store();
    let relay = Relay::builder(Arc::new(store.clone()));
    let relay = Running::start(relay.route("order.*", closed("shop")).route("*", strict()));
    until(|| async { !store.relays().await.unwrap().is_empty() }).await;
    let relays = store.relays().await.unwrap();
    let budgets: Vec<_> = relays[0].relay.routes.iter().map(|route| route.max_attempts).collect();
    assert_eq!(budgets, [None, Some(1)]);
    put(
        &store,
        [
            numbered(1).delay(SECOND),
            Message::json("any", &1).unwrap().delay(SECOND),
        ],
    )
    .await;
    let applied = all(&store)
        .await
        .iter()
        .map(|m| presence::budget(m, &relays))
        .collect::<Vec<_>>();
    assert_eq!(applied, [12, 1]);
    relay.stop().await;
}
