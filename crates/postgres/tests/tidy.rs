//! Expired leases are found whoever looks, whatever is in the way.

use posthouse_core::{Claim, Message, Store};
use std::time::Duration;

use crate::fixture::{PostgresFixture, session};

const LEASE: Duration = Duration::from_secs(15);

fn message(tenant: &str) -> Message {
    Message::bytes("t", "text/plain", "x").tenant(tenant)
}

/// Workers of one tenant tidy up after themselves, however many claims they make, and touch no hint of others.
#[tokio::test]
async fn a_tenants_workers_clear_their_own_hints() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store
        .enqueue_now(vec![message("acme"), message("other")])
        .await
        .unwrap();
    store.claim(&Claim::new("w", 1, LEASE).tenant("other")).await.unwrap();
    store.claim(&Claim::new("w", 1, LEASE).tenant("acme")).await.unwrap();
    // As after very many claims that have all been settled.
    fx.run(
        "INSERT INTO posthouse.deadline (until, token, half, seqs)
         SELECT posthouse.clock(), gen_random_uuid(), posthouse.tenant_half('acme'), '{1}' FROM generate_series(1, 30000)",
    )
    .await;
    fx.run("UPDATE posthouse.test_clock SET at = at + interval '1 hour'")
        .await;
    assert_eq!(fx.one("SELECT posthouse.repair_expired_leases(10, 'acme')").await, "1");
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.deadline").await, "2");
    assert_eq!(fx.one("SELECT posthouse.repair_expired_leases(10)").await, "1");
}

/// L2. A handler that hangs with a lease in its transaction keeps nobody from taking back the others.
#[tokio::test]
async fn a_locked_lease_hides_no_other() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store.enqueue_now(vec![message(""); 3]).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 3, LEASE)).await.unwrap();
    let (handler, _driver) = session().await;
    let lock = format!(
        "BEGIN; SELECT FROM {}.leased WHERE seq = {} FOR UPDATE",
        fx.schema, claimed[0].lease.seq
    );
    handler.batch_execute(&lock).await.unwrap();
    fx.run("UPDATE posthouse.test_clock SET at = at + interval '1 hour'")
        .await;
    for _ in 0..2 {
        assert_eq!(fx.one("SELECT posthouse.repair_expired_leases(1)").await, "1");
    }
    assert_eq!(fx.one("SELECT posthouse.repair_expired_leases(1)").await, "0");
}

/// An idle operator holds the key that it works on, and no other that falls due.
#[tokio::test]
async fn a_locked_key_hides_no_other() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let waiting = |key: &str| message("").order_key(key).delay(LEASE);
    let mut all = vec![waiting("held"); 200];
    all.push(waiting("free"));
    store.enqueue_now(all).await.unwrap();
    let (operator, _driver) = session().await;
    let lock = format!(
        "BEGIN; SELECT {0}.cancel(id, 'op') FROM {0}.message ORDER BY seq LIMIT 1",
        fx.schema
    );
    operator.batch_execute(&lock).await.unwrap();
    fx.run("UPDATE posthouse.test_clock SET at = at + interval '1 hour'")
        .await;
    let found = store.claim(&Claim::new("w", 5, LEASE)).await.unwrap();
    let keys: Vec<_> = found.iter().map(|c| c.delivery.order_key.as_deref()).collect();
    assert_eq!(keys, [Some("free")]);
}
