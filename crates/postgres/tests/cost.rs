//! What looking something up costs, in pages that the server touches: it must not grow with what is beside it.

use posthouse_core::{Admin, Prune};
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::{PostgresFixture, session};

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

/// The rows of our tables that a statement reads. Pages would count the catalogue too, which a session reads again after
/// somebody else's DDL.
async fn rows_read(fx: &PostgresFixture, sql: &str) -> u64 {
    let so_far = format!(
        "SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_xact_user_tables WHERE schemaname = '{}'",
        fx.schema
    );
    fx.run("BEGIN").await;
    let before: u64 = fx.one(&so_far).await.parse().unwrap();
    fx.one(sql).await;
    let after: u64 = fx.one(&so_far).await.parse().unwrap();
    fx.run("COMMIT").await;
    after - before
}

/// A session that planned while the store was empty goes on in it when there are many leases, and nobody has counted them.
#[tokio::test]
async fn what_was_planned_on_an_empty_store_stays_cheap() {
    let fx = PostgresFixture::new().await;
    for table in [
        "message", "ready", "keyed", "leased", "lot", "attempt", "dead", "audit", "resolved", "receipt", "dedupe",
    ] {
        fx.run(&format!("ALTER TABLE posthouse.{table} SET (autovacuum_enabled = off)"))
            .await;
        fx.run(&format!("VACUUM ANALYZE posthouse.{table}")).await;
    }
    let verbs = [
        "SELECT posthouse.cancel('{id}', 'ops')",
        "SELECT posthouse.replay('{id}', 'ops')",
        "SELECT posthouse.quarantine('{id}', 'ops')",
        "SELECT posthouse.discard('{id}', 'ops')",
    ];
    // The completion comes twice: the reply to the first was lost.
    let complete = "SELECT posthouse.complete_outbox_attempt('{id}', '{token}', 'w', 'retry')";
    let calls = [
        "SELECT posthouse.renew_lease('{id}', '{token}', 'w', 30)",
        "SELECT posthouse.record_conflict('{id}', gen_random_uuid(), 'w')",
        complete,
        complete,
        "SELECT posthouse.resolve('{id}', 'ops')",
    ];
    let all = async || {
        let mut read = Vec::new();
        let id = fx.one("SELECT posthouse.enqueue('t', '1', tenant => 'z')").await;
        for sql in verbs {
            read.push((sql, rows_read(&fx, &sql.replace("{id}", &id)).await));
        }
        let id = fx.one("SELECT posthouse.enqueue('t', '1', tenant => 'z')").await;
        let claim = "SELECT lease_token FROM posthouse.claim_outbox_batch(1, 'w', 30, tenant => 'z')";
        let token = fx.one(claim).await;
        for sql in calls {
            let sql_now = sql.replace("{id}", &id).replace("{token}", &token);
            read.push((sql, rows_read(&fx, &sql_now).await));
        }
        read
    };
    // A plan is kept after some calls.
    for _ in 0..8 {
        all().await;
    }
    for _ in 0..2 {
        fx.run("SELECT posthouse.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', 1)) FROM generate_series(1, 10000)))").await;
        fx.run("SELECT count(*) FROM posthouse.claim_outbox_batch(10000, 'w', 3000)")
            .await;
    }
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.leased").await, "20000");
    for (sql, read) in all().await {
        assert!(read < 100, "{sql}: {read} rows");
    }
}

/// What waits for its time, with a key or without, is in nobody's way, also for a session that planned while there was none of it.
#[tokio::test]
async fn a_claim_does_not_walk_over_what_waits() {
    let fx = PostgresFixture::new().await;
    for table in ["ready", "keyed", "sched", "parked"] {
        fx.run(&format!("ALTER TABLE posthouse.{table} SET (autovacuum_enabled = off)"))
            .await;
        fx.run(&format!("VACUUM ANALYZE posthouse.{table}")).await;
    }
    let claim = async || {
        fx.run("SELECT posthouse.enqueue('t', '1')").await;
        rows_read(&fx, "SELECT count(*) FROM posthouse.claim_outbox_batch(1, 'w', 30)").await
    };
    // A plan is kept after some calls.
    for _ in 0..8 {
        claim().await;
    }
    fx.run(
        "SELECT posthouse.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', 1, 'delay', '1 hour',
             'order_key', CASE WHEN n % 2 = 0 THEN 'k' || n END)) FROM generate_series(1, 10000) n))",
    )
    .await;
    let read = claim().await;
    assert!(read < 100, "{read} rows");
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.leased").await, "9");
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
        let pruned = admin
            .prune(&Prune::done(Duration::from_secs(24 * 3600), 20, "op"))
            .await
            .unwrap();
        (removed, calls) = (removed + pruned.messages(), calls + 1);
        if !pruned.more {
            break;
        }
        assert!(calls < 100, "it does not end");
    }
    assert_eq!(removed, 50);
    assert!((10..=14).contains(&calls), "{calls} calls");
}

/// Whoever watches reads what waits and what is in flight; what has ended is not looked at.
#[tokio::test]
async fn watching_does_not_walk_what_has_ended() {
    let fx = backlog().await;
    fx.run("TRUNCATE posthouse.ready, posthouse.sched, posthouse.keyed")
        .await;
    fx.run("SELECT posthouse.enqueue('t', '1'); SELECT posthouse.claim_outbox_batch(1, 'w', 60); SELECT posthouse.enqueue('t', '1', order_key => 'k')")
        .await;
    for query in [
        "SELECT worker, count(*) FROM posthouse.backlog WHERE state = 'leased' GROUP BY worker",
        "SELECT count(*), min(due_at) FROM posthouse.backlog WHERE state = 'pending'",
    ] {
        fx.one(query).await;
        let touched = pages(&fx, query).await;
        assert!(touched < 20, "{query}: {touched} pages");
    }
}

/// A message from the future (somebody's clock was wrong) does not keep retention from what is behind it; nor does a young one
/// with a low number. But what is really young is not walked through.
#[tokio::test]
async fn retention_goes_past_a_message_from_the_future() {
    let fx = backlog().await;
    fx.advance(Duration::from_secs(10 * 24 * 3600)).await;
    fx.run("DELETE FROM posthouse.ready; DELETE FROM posthouse.keyed; DELETE FROM posthouse.sched")
        .await;
    fx.run("UPDATE posthouse.message SET created_at = created_at + interval '10 years' WHERE seq < 500")
        .await;
    fx.run("UPDATE posthouse.message SET created_at = created_at + interval '10 days' WHERE seq BETWEEN 1000 AND 1009")
        .await;
    fx.run("UPDATE posthouse.message SET created_at = created_at + interval '10 days' WHERE seq > 1500")
        .await;
    let admin = fx.open().await;
    for expected in [1500 - 499 - 10, 0] {
        let (mut removed, mut calls) = (0, 0);
        loop {
            let pruned = admin
                .prune(&Prune::done(Duration::from_secs(24 * 3600), 20, "op"))
                .await
                .unwrap();
            (removed, calls) = (removed + pruned.messages(), calls + 1);
            if !pruned.more {
                break;
            }
            assert!(calls < 100, "it does not end");
        }
        assert_eq!(removed, expected);
        let looked_at = 499 + 10 + expected + 100;
        assert!(calls <= looked_at / 300 + expected / 20 + 2, "{calls} calls");
    }
    let touched = pages(&fx, "SELECT * FROM posthouse.prune('1 day', 1000)").await;
    assert!(touched < (499 + 10 + 100) * 60, "{touched} pages");
}

/// Three of a topic and tenant of their own behind more that are done than one page looks at; and the summaries of the pages.
async fn many_done() -> PostgresFixture {
    let fx = PostgresFixture::new().await;
    fx.run("SELECT posthouse.enqueue('rare', '1', tenant => 'tiny') FROM generate_series(1, 3)")
        .await;
    fx.run(
        "INSERT INTO posthouse.message (id, created_at, tenant, namespace, topic, content_type, payload, digest)
         SELECT gen_random_uuid(), posthouse.clock(), '', 'default', 'common', 'text/plain', 'x', sha256('x') FROM generate_series(1, 150000)",
    )
    .await;
    fx.run("VACUUM ANALYZE posthouse.message").await;
    fx
}

fn listed(filter: &str) -> String {
    format!(
        "SELECT cardinality(seqs) || coalesce(', looked to ' || looked_to, '') FROM posthouse.find_messages(p_most => 51, p_look => 100000, {filter})"
    )
}

const ALL: [(&str, &str); 11] = [
    ("p_namespace", "NULL"),
    ("p_tenant", "NULL"),
    ("p_topic", "NULL"),
    ("p_state", "NULL"),
    ("p_order_key", "NULL"),
    ("p_reason", "NULL"),
    ("p_code", "NULL"),
    ("p_since", "NULL"),
    ("p_until", "NULL"),
    ("p_oldest_first", "false"),
    ("p_beyond", "NULL"),
];

/// All of a filter's arguments, with these for what they are said to be.
fn filter(given: &[(&str, &str)]) -> String {
    let value = |name: &str, all: &str| {
        let given = given.iter().find(|(other, _)| *other == name);
        format!("{name} => {}", given.map_or(all, |(_, value)| value))
    };
    ALL.map(|(name, all)| value(name, all)).join(", ")
}

#[tokio::test]
async fn what_is_rare_is_found_without_walking_the_others() {
    let fx = many_done().await;
    for given in [
        &[("p_topic", "'rare'")][..],
        &[("p_tenant", "'tiny'")],
        &[("p_tenant", "'tiny'"), ("p_topic", "'rare'"), ("p_state", "'pending'")],
        &[("p_topic", "'rare'"), ("p_oldest_first", "true")],
    ] {
        let sql = listed(&filter(given));
        assert_eq!(fx.one(&sql).await, "3", "{given:?}");
        let read = rows_read(&fx, &sql).await;
        assert!(read < 60_000, "{given:?}: {read} rows");
    }
    assert_eq!(fx.one(&listed(&filter(&[("p_topic", "'none'")]))).await, "0");
    // Nothing tells where a rare order key is.
    let key = listed(&filter(&[("p_order_key", "'none'")]));
    assert!(fx.one(&key).await.starts_with("0, looked to "));
}

#[tokio::test]
async fn a_list_by_time_begins_and_ends_where_its_time_does() {
    let fx = many_done().await;
    let start = fx.one("SELECT posthouse.clock()").await;
    fx.advance(Duration::from_secs(86_400)).await;
    fx.run("SELECT posthouse.enqueue('new', '1')").await;
    let (half, later) = (
        format!("'{start}'::timestamptz + '12 h'"),
        format!("'{start}'::timestamptz + '25 h'"),
    );
    for given in [
        &[("p_since", half.as_str())][..],
        &[
            ("p_since", half.as_str()),
            ("p_until", later.as_str()),
            ("p_oldest_first", "true"),
        ],
    ] {
        let sql = listed(&filter(given));
        assert_eq!(fx.one(&sql).await, "1", "{given:?}");
        let read = rows_read(&fx, &sql).await;
        assert!(read < 1000, "{given:?}: {read} rows");
    }
    fx.run(
        "INSERT INTO posthouse.message (id, created_at, tenant, namespace, topic, content_type, payload, digest)
         SELECT gen_random_uuid(), posthouse.clock(), '', 'default', 'common', 'text/plain', 'x', sha256('x') FROM generate_series(1, 150000)",
    )
    .await;
    let sql = listed(&filter(&[("p_until", half.as_str())]));
    assert_eq!(fx.one(&sql).await, "51");
    let read = rows_read(&fx, &sql).await;
    assert!(read < 2000, "{read} rows");
}

/// Deleted rows that a held snapshot keeps cost a count as much as live ones, so it reads a bounded number of pages of each table,
/// and says that there may be more.
#[tokio::test]
async fn counting_is_bounded_behind_a_held_snapshot() {
    let fx = PostgresFixture::new().await;
    let (keeper, _driver) = session().await;
    fx.run("ALTER TABLE posthouse.ready SET (autovacuum_enabled = off)")
        .await;
    fx.run(
        "INSERT INTO posthouse.ready (lane, pos, seq, due_at, bytes, max_attempts)
         SELECT 1, n, n, posthouse.clock(), 1, 12 FROM generate_series(1, 50000) n",
    )
    .await;
    keeper
        .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM pg_class")
        .await
        .unwrap();
    fx.run("DELETE FROM posthouse.ready WHERE pos <= 49990").await;
    fx.run("VACUUM posthouse.ready").await;
    let ready = "SELECT ready || ' ' || ready_exact || ' ' || done FROM posthouse.counts";
    // The first time in a session reads the catalogue too.
    assert_eq!(fx.one(&format!("{ready}(1000, 100)")).await, "10 false 0");
    let touched = pages(&fx, &format!("{ready}(1000, 100)")).await;
    assert!(touched < 200, "{touched} pages");
    assert_eq!(fx.one(&format!("{ready}(1000)")).await, "10 true 0");
    keeper.batch_execute("ROLLBACK").await.unwrap();
}
