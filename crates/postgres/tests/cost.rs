//! What looking something up costs, in pages that the server touches: it must not grow with what is beside it.

use posthouse_core::Admin;
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::PostgresFixture;

/// A backlog of every kind, and no statistics about it: the planner thinks that the tables are nearly empty.
async fn backlog() -> PostgresFixture {
    let fx = PostgresFixture::new().await;
    fx.run(
        "SELECT posthouse.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', 1, 'dedupe_key', 'd' || n,
             'order_key', CASE WHEN n % 2 = 0 THEN 'k' || n % 1000 END, 'delay', CASE WHEN n % 7 = 0 THEN '1 s' END)) FROM generate_series(1, 3000) n))",
    )
    .await;
    fx
}

/// The pages that a statement touches, read from its plan.
async fn pages(fx: &PostgresFixture, sql: &str) -> u64 {
    let plan = fx.one(&format!("EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}")).await;
    let plan: serde_json::Value = serde_json::from_str(&plan).unwrap();
    let top = &plan[0]["Plan"];
    let count = |name: &str| top[name].as_u64().unwrap();
    count("Shared Hit Blocks") + count("Shared Read Blocks")
}

#[tokio::test]
async fn one_message_is_seen_without_walking_the_others() {
    let fx = backlog().await;
    for seq in [1, 2, 7, 14, 2999, 3000] {
        let id = fx
            .one(&format!("SELECT id FROM posthouse.message WHERE seq = {seq}"))
            .await;
        let touched = pages(&fx, &format!("SELECT * FROM posthouse.messages WHERE id = '{id}'")).await;
        assert!(touched < 200, "message {seq}: {touched} pages");
    }
}

/// The first time in a session reads the catalogue too, so the second is measured.
#[tokio::test]
async fn a_duplicate_is_found_without_walking_the_others() {
    let fx = backlog().await;
    let again = "SELECT posthouse.enqueue('t', '1', dedupe_key => 'd1501')";
    fx.one(again).await;
    let touched = pages(&fx, again).await;
    assert!(touched < 200, "{touched} pages");
}

/// Old messages that must stay do not make each round of retention walk all of them; and the rounds come to an end.
#[tokio::test]
async fn retention_goes_on_where_it_stopped() {
    let fx = backlog().await;
    fx.advance(Duration::from_secs(10 * 24 * 3600)).await;
    // The last of them ended long ago: only a walk over all the others finds them.
    fx.run("DELETE FROM posthouse.ready WHERE seq > 2950; DELETE FROM posthouse.keyed WHERE seq > 2950; DELETE FROM posthouse.sched WHERE seq > 2950")
        .await;
    let prune = "SELECT * FROM posthouse.prune('1 day', 20)";
    // A call looks at 300 messages, so ten of these are a walk over all of them.
    for round in 0..2 {
        let touched = pages(&fx, prune).await;
        assert!(touched < 300 * 60, "round {round}: {touched} pages");
    }
    let admin = fx.open().await;
    let (mut removed, mut calls) = (0, 2);
    loop {
        let pruned = admin.prune(Duration::from_secs(24 * 3600), 20).await.unwrap();
        (removed, calls) = (removed + pruned.messages, calls + 1);
        if !pruned.more {
            break;
        }
        assert!(calls < 100, "it does not end");
    }
    assert_eq!(removed, 50);
    assert!((10..=14).contains(&calls), "{calls} calls");
}
