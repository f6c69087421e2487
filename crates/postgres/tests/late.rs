//! Claims that are held up: by locks, or by a clock that moves on while they work.

use posthouse_core::{Admin, Claim, Message, Outcome, RetryPolicy, Settlement, State, Store};
use posthouse_testkit::Fixture;
use std::{future::Future, sync::Arc, time::Duration};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session};

const LEASE: Duration = Duration::from_secs(15);
const PLAIN_SQL: &str = "SELECT id FROM posthouse.claim_outbox_batch(10, 'worker', 15)";

fn message(body: &str) -> Message {
    Message::bytes("t", "text/plain", body).max_attempts(3)
}

/// A worker that claims in plain SQL. Answers how many it was granted, or the SQLSTATE.
fn worker(fx: &PostgresFixture) -> JoinHandle<Result<usize, String>> {
    let sql = PLAIN_SQL.replace("posthouse.", &format!("{}.", fx.schema));
    tokio::spawn(async move {
        let (client, _driver) = session().await;
        let granted = client.query(&sql, &[]).await;
        granted
            .map(|rows| rows.len())
            .map_err(|e| e.code().unwrap().code().to_owned())
    })
}

/// A transaction that locks a table, until it ends.
async fn locked(fx: &PostgresFixture, table: &str, mode: &str) -> (Client, JoinHandle<()>) {
    let (client, driver) = session().await;
    let lock = format!("BEGIN; LOCK TABLE {}.{table} IN {mode} MODE", fx.schema);
    client.batch_execute(&lock).await.unwrap();
    (client, driver)
}

/// Runs a claim that waits for a lock on this table, does something meanwhile, and lets the claim go on.
async fn held_up<T>(
    fx: &PostgresFixture,
    (table, mode): (&str, &str),
    claim: impl FnOnce() -> JoinHandle<T>,
    meanwhile: impl Future<Output = ()>,
) -> T {
    let (blocker, _driver) = locked(fx, table, mode).await;
    let claim = claim();
    let waits = format!("SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'posthouse.{table}'::regclass");
    while fx.one(&waits).await == "0" {
        assert!(!claim.is_finished(), "the claim did not wait for the lock on {table}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
    meanwhile.await;
    blocker.batch_execute("COMMIT").await.unwrap();
    claim.await.unwrap()
}

/// P8. `CREATE INDEX` locks the leases against writes: the claim waits where it writes them, longer than they would last. Three times, which is the budget.
#[tokio::test]
async fn claim_held_up_for_longer_than_its_lease_counts_no_attempt() {
    let fx = PostgresFixture::new().await;
    let store = Arc::new(fx.open().await);
    let made = store
        .enqueue_now(vec![message("plain"), message("keyed").order_key("k")])
        .await
        .unwrap();
    for _ in 0..3 {
        let refused = held_up(&fx, ("leased", "SHARE"), || worker(&fx), fx.advance(LEASE * 2)).await;
        let found = store.find(made[0].id()).await.unwrap().unwrap();
        assert_eq!((refused, found.attempts), (Err("P7012".to_owned()), 0));
        posthouse_core::repair(&*store, 10).await.unwrap();
    }
    for one in &made {
        let found = store.find(one.id()).await.unwrap().unwrap();
        assert_eq!((found.state, found.attempts, found.epoch), (State::Pending, 0, 0));
    }
    // The store's handle claims again without an error.
    let claims = || {
        let store = store.clone();
        tokio::spawn(async move { store.claim(&Claim::new("w", 10, LEASE)).await.unwrap() })
    };
    let granted = held_up(&fx, ("leased", "SHARE"), claims, fx.advance(LEASE * 2)).await;
    assert_eq!(granted.len(), 2);
    for one in &granted {
        let found = store.find(one.lease.id).await.unwrap().unwrap();
        assert_eq!(
            (found.attempts, found.lease_until),
            (1, Some(fx.now().await.plus(LEASE)))
        );
    }
}

/// A worker in plain SQL would send beside the next holder of a lease that is over.
#[tokio::test]
async fn claim_that_waits_before_it_picks_grants_whole_leases() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let made = store
        .enqueue_now(vec![message("plain"), message("keyed").order_key("k")])
        .await
        .unwrap();
    let granted = held_up(
        &fx,
        ("parked", "ACCESS EXCLUSIVE"),
        || worker(&fx),
        fx.advance(LEASE * 2),
    )
    .await;
    assert_eq!(granted, Ok(2));
    for one in &made {
        let found = store.find(one.id()).await.unwrap().unwrap();
        assert_eq!(found.lease_until, Some(fx.now().await.plus(LEASE)));
    }
}

/// The claim begins before the attempt ends that it follows, and waits.
#[tokio::test]
async fn attempt_starts_after_the_one_before_it_finished() {
    let fx = PostgresFixture::new().await;
    let store = Arc::new(fx.open().await);
    let policy = RetryPolicy::table(3, [Duration::ZERO]);
    for one in [message("plain"), message("keyed").order_key("k")] {
        let id = store.enqueue_now(vec![one]).await.unwrap()[0].id();
        let first = store.claim(&Claim::new("w", 1, LEASE)).await.unwrap().remove(0).lease;
        let failed = async {
            fx.advance(Duration::from_millis(570)).await;
            let retry = Settlement::of(&first, Outcome::retry("busy", "busy"), &policy, 0.5);
            assert!(store.settle(&[retry]).await.unwrap()[0].is_settled());
            fx.advance(Duration::from_millis(1)).await;
        };
        assert_eq!(
            held_up(&fx, ("parked", "ACCESS EXCLUSIVE"), || worker(&fx), failed).await,
            Ok(1)
        );
        fx.advance(LEASE * 2).await;
        assert_eq!(posthouse_core::repair(&*store, 10).await.unwrap(), 1);
        let attempts = store.attempts(id).await.unwrap();
        let (before, after) = (&attempts[0], &attempts[1]);
        assert!(
            after.started_at >= before.finished_at,
            "started {:?} before the attempt before it finished",
            before.finished_at.since(after.started_at)
        );
        store.cancel(id, "anna", "enough").await.unwrap();
    }
}

/// P11, and never past its deliver-by: with a clock that moves on by 3 ms whenever it is read, some deliver-bys pass between the pick and the grant.
#[tokio::test]
async fn nothing_is_granted_past_its_deliver_by() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    fx.run(
        "CREATE SEQUENCE posthouse.test_tick;
         CREATE OR REPLACE FUNCTION posthouse.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS
             $$ SELECT at + nextval('posthouse.test_tick') * interval '3 milliseconds' FROM posthouse.test_clock $$",
    )
    .await;
    let lapsing = |n: u64| {
        let within = Duration::from_millis(60 + n);
        [
            message("x").order_key(format!("k{}", n % 3)).deliver_in(within),
            message("x").deliver_in(within),
        ]
    };
    store.enqueue_now((0..200).flat_map(lapsing).collect()).await.unwrap();
    let mut granted = 0;
    // Ends: the clock moves on.
    for _ in 0..1000 {
        let found = store.claim(&Claim::new("w", 16, LEASE)).await.unwrap();
        let late = fx
            .one("SELECT count(*) FROM posthouse.leased WHERE deliver_by <= started_at")
            .await;
        assert_eq!(late, "0");
        granted += found.len();
        let delivered: Vec<_> = found
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&delivered).await.unwrap();
        if found.is_empty() {
            break;
        }
    }
    let dead = fx.one("SELECT count(*) FROM posthouse.dead WHERE reason = 3").await;
    let dead: usize = dead.parse().unwrap();
    assert!(granted > 0 && dead > 0, "{granted} granted, {dead} dead");
    assert_eq!(granted + dead, 400);
}
