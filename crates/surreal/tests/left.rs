//! Topics that claims leave, with very much that waits for them.

use posthouse_core::{Claim, Claimed, Message, Settlement, Store};
use posthouse_surreal::{SurrealDb, from_surreal};
use posthouse_testkit::Fixture;
use std::time::Duration;
use surrealdb::{engine::any::Any, method::Transaction};

use crate::fixture::{SurrealFixture, fresh, on_disk};

const SECOND: Duration = Duration::from_secs(1);

fn message(topic: &str, body: &str) -> Message {
    Message::bytes(topic, "text/plain", body.as_bytes().to_vec())
}

async fn wait_in_vain(store: &SurrealDb) {
    store.enqueue_now(vec![message("paused", "left"); 500]).await.unwrap();
}

/// A transaction that has its place in the line, and is not committed.
async fn slow(fx: &SurrealFixture, store: &SurrealDb, body: &str) -> Transaction<Any> {
    let tx = fx.db.begin().await.unwrap();
    store.outbox().enqueue(&tx, message("open", body)).await.unwrap();
    tx
}

async fn ask(store: &SurrealDb, most: u32) -> Vec<Claimed> {
    let claim = Claim::new("w", most, SECOND * 600).not_topic("paused");
    store.look(&claim).await.unwrap().granted
}

/// Takes some, and ends them.
async fn take(store: &SurrealDb, most: u32) -> Vec<String> {
    let granted = ask(store, most).await;
    let ends: Vec<_> = granted
        .iter()
        .map(|claimed| Settlement::delivered(&claimed.lease, None))
        .collect();
    assert!(
        store
            .settle(&ends)
            .await
            .unwrap()
            .iter()
            .all(|verdict| verdict.is_settled())
    );
    granted
        .into_iter()
        .map(|claimed| String::from_utf8(claimed.delivery.payload.to_vec()).unwrap())
        .collect()
}

/// What was read over for a while is not read over again; and what is committed late, with an early place, is found all the same.
async fn a_long_pause(fx: SurrealFixture) {
    let store = fx.open().await;
    wait_in_vain(&store).await;
    let (late, later) = (slow(&fx, &store, "late").await, slow(&fx, &store, "later").await);
    wait_in_vain(&store).await;
    store.enqueue_now(vec![message("open", "free"); 30]).await.unwrap();
    for _ in 0..2 {
        assert_eq!(take(&store, 1).await, ["free"]);
        fx.advance(SECOND * 10).await;
    }
    assert_eq!(take(&store, 1).await, ["free"]);

    // It has the first place of all that are free. A claim would take it first if it read from the beginning.
    late.commit().await.map_err(from_surreal).unwrap();
    assert_eq!(
        take(&store, 1).await,
        ["free"],
        "all that is left is read over with each claim"
    );
    let mut claims = 0;
    while take(&store, 1).await != ["late"] {
        claims += 1;
        assert!(claims < 12, "what is committed late is not found");
    }

    let rest = take(&store, 100).await;
    assert!(rest.len() > 10 && rest.iter().all(|body| body == "free"), "{rest:?}");
    later.commit().await.map_err(from_surreal).unwrap();
    assert_eq!(
        take(&store, 10).await,
        ["later"],
        "where nothing else is free, all is looked through at once"
    );
    assert!(take(&store, 10).await.is_empty());

    // Somebody who leaves nothing gets all.
    let all = store.look(&Claim::new("w", 1000, SECOND * 600)).await.unwrap();
    assert_eq!(all.granted.len(), 1000);
    fx.check().await;
}

#[tokio::test]
async fn what_is_left_for_long_is_not_read_over_each_time_and_hides_nothing() {
    a_long_pause(fresh().await).await;
    a_long_pause(on_disk().await).await;
}

#[tokio::test]
async fn what_lapses_below_a_floor_stops_no_claim() {
    let fx = fresh().await;
    let store = fx.open().await;
    wait_in_vain(&store).await;
    let late = fx.db.begin().await.unwrap();
    let short = message("open", "late").deliver_in(SECOND * 60);
    store.outbox().enqueue(&late, short).await.unwrap();
    wait_in_vain(&store).await;
    store.enqueue_now(vec![message("open", "free"); 4]).await.unwrap();
    for _ in 0..3 {
        assert_eq!(take(&store, 1).await, ["free"]);
        fx.advance(SECOND * 10).await;
    }
    late.commit().await.map_err(from_surreal).unwrap();
    fx.advance(SECOND * 60).await;
    assert_eq!(take(&store, 1).await, ["free"]);
    // Where nothing else is to be done, one claim comes by there twice.
    for _ in 0..3 {
        assert!(take(&store, 10).await.is_empty());
    }
    let counts = fx.admin().await.counts().await.unwrap();
    assert_eq!(counts.dead.value, 1, "{counts:?}");
    fx.check().await;
}

/// How many claims find nothing before one does.
async fn claims_in_vain(store: &SurrealDb) -> u32 {
    let mut claims = 0;
    while take(store, 10).await.is_empty() {
        claims += 1;
        assert!(claims < 50, "it is never found");
    }
    claims
}

/// Each line has its turn to be looked through, also if another one has very much.
#[tokio::test]
async fn what_is_below_the_floor_of_a_second_line_is_found_soon() {
    let fx = fresh().await;
    let store = fx.open().await;
    let left = |tenant: &str, n: usize| vec![message("paused", "left").tenant(tenant); n];
    store.enqueue_now(left("a", 2500)).await.unwrap();
    store.enqueue_now(left("b", 500)).await.unwrap();
    let late = fx.db.begin().await.unwrap();
    let of_b = message("open", "late").tenant("b");
    store.outbox().enqueue(&late, of_b).await.unwrap();
    store.enqueue_now(left("b", 500)).await.unwrap();
    for _ in 0..3 {
        assert!(take(&store, 10).await.is_empty());
        fx.advance(SECOND * 10).await;
    }
    late.commit().await.map_err(from_surreal).unwrap();
    let claims = claims_in_vain(&store).await;
    assert!(claims < 3, "{claims}");
    fx.check().await;
}

/// A claim does not go round all tenants whose messages are left: its leases would be over before it is.
#[tokio::test]
async fn a_claim_goes_on_behind_tenants_that_have_nothing_to_grant() {
    let fx = fresh().await;
    let store = fx.open().await;
    let left = (0..520).map(|n| message("paused", "left").tenant(format!("t{n:04}")));
    store.enqueue_now(left.collect()).await.unwrap();
    let last = message("open", "free").tenant("u");
    store.enqueue_now(vec![last; 3]).await.unwrap();
    assert_eq!(claims_in_vain(&store).await, 1);
    fx.check().await;
}
