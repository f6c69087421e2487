//! Sixteen workers at once, each with a handle of its own: on one order key, and on a thousand.

use posthouse_core::Settlement;
use posthouse_testkit::{
    Fixture,
    suite::crew::{Crew, assert_in_order, numbered},
};

use crate::fixture::{SurrealFixture, fresh, on_disk};

/// Each message is sent once and in the order of its key, whoever has it.
async fn sixteen(fx: SurrealFixture, keys: usize, each: usize, batch: u32) {
    let (store, messages) = (fx.open().await, numbered(keys, each));
    for some in messages.chunks(500) {
        store.enqueue_now(some.to_vec()).await.unwrap();
    }
    let crew = Crew {
        workers: 16,
        batch,
        ends: keys * each,
        handle: |claimed| Settlement::delivered(&claimed.lease, None),
        may_lose: false,
    };
    let sent = crew.run(&fx, async {}).await;
    assert_eq!(sent.len(), keys * each, "each is sent once");
    assert_in_order(&sent);
    assert!(sent.iter().all(|one| one.epoch == 1), "none was granted twice");
    let counts = fx.admin().await.counts().await.unwrap();
    assert_eq!(
        (counts.done.value, counts.ready.value, counts.leased.value),
        ((keys * each) as u64, 0, 0)
    );
    fx.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_workers_on_one_key() {
    sixteen(fresh().await, 1, 100, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_workers_on_one_key_on_disk() {
    sixteen(on_disk().await, 1, 100, 5).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_workers_on_a_thousand_keys() {
    sixteen(fresh().await, 1000, 1, 50).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_workers_on_a_thousand_keys_on_disk() {
    sixteen(on_disk().await, 1000, 1, 50).await;
}
