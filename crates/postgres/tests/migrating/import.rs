//! What the kit is made of: a message is given the past that it had elsewhere.

use posthouse_core::{Admin, Filter, Timestamp};
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::{PostgresFixture, session};

/// A message of the key `k` with this body, enqueued and given a past in one transaction.
fn imported(body: u32, more: &str, attempts: &str) -> String {
    format!(
        "SELECT posthouse.import_history(posthouse.enqueue('t', '{body}', order_key => 'k', ordering => 'relaxed' {more}), 'ops', '{attempts}')"
    )
}

const EXPIRED: &str = r#"{"outcome": "lease_expired", "finished_at": "2029-12-31T00:00:00Z"}"#;
const REJECTED: &str = r#"{"outcome": "rejected", "started_at": "2029-12-30T00:00:00Z", "finished_at": "2029-12-31T00:00:00Z", "code": "R1"}"#;

#[tokio::test]
async fn an_imported_past_decides_what_becomes_of_the_message() {
    let fx = PostgresFixture::new().await;
    let failed = r#"{"outcome": "retry", "finished_at": "2029-12-31T00:00:00Z"}"#;
    let sent = r#"{"outcome": "delivered", "finished_at": "2029-12-31T00:00:00Z", "receipt": "r"}"#;
    for (attempts, more, state) in [
        (String::new(), "", "pending"),
        (format!("{EXPIRED}, {failed}"), "", "pending"),
        (format!("{EXPIRED}, {sent}"), "", "done"),
        // What came after the delivery did not undo it.
        (format!("{EXPIRED}, {sent}, {failed}, {REJECTED}"), "", "done"),
        (format!("{failed}, {REJECTED}"), "", "dead"),
        (format!("{REJECTED}, {failed}"), "", "pending"),
        // There is one attempt left.
        (format!("{failed}, {EXPIRED}"), ", max_attempts => 2", "pending"),
    ] {
        let answer = fx.one(&imported(1, more, &format!("[{attempts}]"))).await;
        assert_eq!(answer, state, "{attempts}");
    }
    let budgets = "SELECT string_agg(reason || max_attempts, ',') || string_agg(DISTINCT max_attempts::text, ',') FROM posthouse.messages";
    assert_eq!(fx.one(budgets).await, "rejected1212,3");
    assert_eq!(
        fx.one("SELECT note FROM posthouse.audit WHERE actor = 'ops' AND action = 'import' ORDER BY n LIMIT 1")
            .await,
        "2 attempts of another outbox; pending"
    );
    fx.check().await;
}

/// A message that blocks its key goes on blocking it, in its place; the others of the key keep theirs.
#[tokio::test]
async fn an_imported_message_keeps_its_place_in_its_key() {
    let fx = PostgresFixture::new().await;
    let claim = "SELECT string_agg(convert_from(payload, 'UTF8'), ',') FROM posthouse.claim_outbox_batch(10, 'w', 60)";
    fx.run(&format!(
        "BEGIN; {}; SAVEPOINT s; {}; {}; COMMIT",
        imported(1, ", on_dead => 'block'", &format!("[{REJECTED}]")),
        imported(2, "", &format!("[{EXPIRED}]")),
        imported(3, "", "[]"),
    ))
    .await;
    // Committed, and then given a past: the same.
    fx.run("SELECT posthouse.enqueue('t', '4', order_key => 'k', delay => '1 hour')")
        .await;
    fx.run("SELECT posthouse.import_history((SELECT id FROM posthouse.messages ORDER BY seq DESC LIMIT 1), 'ops', due_at => '2030-01-01')")
        .await;
    fx.run("SELECT posthouse.enqueue('t', '5', order_key => 'k')").await;
    fx.check().await;
    assert_eq!(fx.one(claim).await, "NULL");
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.backlog").await, "4");
    fx.run("SELECT posthouse.replay(id, 'ops') FROM posthouse.messages WHERE state = 'dead'")
        .await;
    assert_eq!(fx.one(claim).await, "1,2,3,4,5");
    assert_eq!(
        fx.one("SELECT string_agg(attempts || '/' || epoch, ' ' ORDER BY seq) FROM posthouse.messages")
            .await,
        "1/2 2/2 1/1 1/1 1/1"
    );
    fx.check().await;
}

/// Times are kept as they are; what was claimed here, or has a past, is left as it is.
#[tokio::test]
async fn only_an_untouched_message_is_given_a_past() {
    let fx = PostgresFixture::new().await;
    let import = format!(
        "SELECT posthouse.import_history(id, 'ops', '[{EXPIRED}]', '2029-06-01', '2030-01-01 00:00:01.000001') FROM posthouse.messages WHERE topic = 't'"
    );
    fx.run("SELECT posthouse.enqueue('t', '1')").await;
    assert_eq!(fx.one(&import).await, "pending");
    assert_eq!(
        fx.one("SELECT due_at = '2030-01-01 00:00:01.000001' AND created_at = '2029-06-01' FROM posthouse.messages")
            .await,
        "t"
    );
    let all = fx.dump().await;
    assert_eq!(fx.one(&import).await, "pending");
    assert_eq!(fx.dump().await, all);
    fx.run("SELECT posthouse.cancel(id, 'ops') FROM posthouse.messages; SELECT posthouse.enqueue('u', '1')")
        .await;
    fx.run("SELECT posthouse.claim_outbox_batch(1, 'w', 60)").await;
    let all = fx.dump().await;
    assert_eq!(fx.one(&import).await, "dead");
    assert_eq!(fx.one(&import.replace("topic = 't'", "topic = 'u'")).await, "leased");
    assert_eq!(fx.dump().await, all);
}

/// A migration moves more keys than a server has locks: what a transaction enqueued itself is not locked.
#[tokio::test]
async fn an_import_takes_no_lock_on_keys() {
    let fx = PostgresFixture::new().await;
    fx.run(
        "BEGIN; SELECT posthouse.import_history(posthouse.enqueue('t', '1', order_key => 'k' || n, ordering => 'relaxed'), 'ops') FROM generate_series(1, 20) n; SAVEPOINT s;
         SELECT posthouse.import_history(posthouse.enqueue('t', '1', order_key => 'l' || n, ordering => 'relaxed'), 'ops') FROM generate_series(1, 20) n",
    )
    .await;
    let locks = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid()";
    assert_eq!(fx.one(locks).await, "0");
    fx.run("COMMIT").await;
    fx.run("BEGIN; SELECT posthouse.import_history(id, 'ops') FROM posthouse.messages LIMIT 3")
        .await;
    assert_eq!(fx.one(locks).await, "3", "others may have these in their hands");
    fx.run("COMMIT").await;
}

#[tokio::test]
async fn a_past_that_makes_no_sense_is_refused_by_its_field() {
    let fx = PostgresFixture::new().await;
    fx.run("SELECT posthouse.enqueue('t', '1')").await;
    let (client, driver) = session().await;
    for (arguments, told) in [
        ("NULL, 'ops'", "id: must not be NULL"),
        ("id, ''", "actor: is empty"),
        ("id, 'ops', NULL", "attempts: is not a JSON array"),
        ("id, 'ops', '{}'", "attempts: is not a JSON array"),
        (
            "id, 'ops', (SELECT jsonb_agg(n) FROM generate_series(1, 1001) n)",
            "attempts: has 1001 elements, at most 1000",
        ),
        ("id, 'ops', '[1]'", "attempts[0]: is not a JSON object"),
        (
            r#"id, 'ops', '[{"outcome": "retry", "when": 1}]'"#,
            "attempts[0]: there is no field \"when\"",
        ),
        (
            r#"id, 'ops', '[{"outcome": "lost", "finished_at": "2029-01-01"}]'"#,
            "attempts[0].outcome: must be delivered",
        ),
        (
            r#"id, 'ops', '[{"finished_at": "2029-01-01"}]'"#,
            "attempts[0].outcome: must be delivered",
        ),
        (
            r#"id, 'ops', '[{"outcome": "retry"}]'"#,
            "attempts[0].finished_at: must not be NULL",
        ),
        (
            r#"id, 'ops', '[{"outcome": "retry", "finished_at": "soon"}]'"#,
            "attempts[0].finished_at: is not a time",
        ),
        (
            r#"id, 'ops', '[{"outcome": "retry", "finished_at": 7}]'"#,
            "attempts[0].finished_at: must be a text",
        ),
        (
            r#"id, 'ops', '[{"outcome": "retry", "finished_at": "infinity"}]'"#,
            "attempts[0].finished_at: must be finite",
        ),
        (
            r#"id, 'ops', '[{"outcome": "retry", "finished_at": "2029-01-01", "worker": ""}]'"#,
            "attempts[0].worker: is empty",
        ),
        ("id, 'ops', '[]', 'infinity'", "created_at: must be finite"),
        (
            "id, 'ops', due_at => 'infinity'",
            "due_at: must be at most ten years from now",
        ),
    ] {
        let sql = format!(
            "SELECT {}.import_history({arguments}) FROM {}.messages",
            fx.schema, fx.schema
        );
        let Err(refused) = client.simple_query(&sql).await else {
            panic!("not refused: {arguments}")
        };
        let refused = refused.as_db_error().unwrap();
        assert!(
            refused.message().starts_with(told),
            "{arguments}: {}",
            refused.message()
        );
        assert_eq!(refused.code().code(), "P7006", "{arguments}");
    }
    let sql = format!("SELECT {}.import_history(gen_random_uuid(), 'ops')", fx.schema);
    let refused = client.simple_query(&sql).await.unwrap_err();
    assert_eq!(refused.code().unwrap().code(), "P7005");
    driver.abort();
}

/// An import gives new numbers to old messages; lists by time find them all the same, and what is in order around them.
#[tokio::test(flavor = "multi_thread")]
async fn lists_by_time_find_what_was_imported() {
    let fx = PostgresFixture::new().await;
    let enqueue = "SELECT posthouse.enqueue('live', to_jsonb(n)) FROM generate_series(1, 300) n";
    fx.run(enqueue).await;
    fx.run(
        "SELECT posthouse.import_history(posthouse.enqueue('old', to_jsonb(n)), 'test', created_at => posthouse.clock() - interval '5 days')
         FROM generate_series(1, 300) n",
    )
    .await;
    fx.advance(Duration::from_secs(24 * 3600)).await;
    fx.run(enqueue).await;
    let now = fx.now().await;
    let ago = |hours: i64| Some(Timestamp::from_micros(now.as_micros() - hours * 3_600_000_000));
    let store = fx.open().await;
    for (since, until, expected) in [
        (None, ago(48), vec![("old", 300)]),
        (ago(12), None, vec![("live", 300)]),
        (ago(48), None, vec![("live", 600)]),
        (ago(24 * 7), ago(12), vec![("live", 300), ("old", 300)]),
        (ago(24 * 7), ago(48), vec![("old", 300)]),
    ] {
        for oldest_first in [false, true] {
            let filter = Filter {
                since,
                until,
                oldest_first,
                limit: 1000,
                ..Filter::default()
            };
            let found = store.list(&filter).await.unwrap().messages;
            let count = |topic: &str| found.iter().filter(|m| m.topic == topic).count();
            let counts = [("live", count("live")), ("old", count("old"))];
            let counts: Vec<_> = counts.into_iter().filter(|(_, n)| *n > 0).collect();
            assert_eq!(counts, expected, "{since:?} {until:?}");
        }
    }
}
