//! What is PostgreSQL's own: the SQL contract beside the library.

use posthouse_core::{
    Admin, Claim, DeadReason, Effect, Enqueued, Error, Lease, Limits, Message, Next, Receipt, RetryPolicy, Settlement,
    Standing, State, Store,
    machine::{Ctx, Ending, end_lease},
};
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::{PostgresFixture, session};

const LEASE: Duration = Duration::from_secs(15);

/// A worker without a library asks `decide`; a worker with one asks the pure machine. They must answer alike.
#[tokio::test]
async fn the_sql_decision_is_the_machines_decision() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let sql = format!(
        "SELECT evidence, next, reason, delay_ms FROM {}.decide($1, $2, $3, $4, $5 * interval '1 millisecond', $6)",
        fx.schema
    );
    let statement = client.prepare(&sql).await.unwrap();
    let mut compared = 0;
    for (word, ending) in endings() {
        for (attempts, budget) in [
            (1, 12),
            (2, 12),
            (7, 12),
            (11, 12),
            (12, 12),
            (13, 12),
            (1, 1),
            (40, 1000),
        ] {
            for releases in [0, 99, 100, 101] {
                for (wish, roll) in [
                    (None, 0.0),
                    (None, 0.5),
                    (None, 0.93),
                    (Some(0), 0.5),
                    (Some(90_000), 0.2),
                    (Some(999_999_999), 1.0),
                ] {
                    let wished = wish.map(Duration::from_millis);
                    let held = Standing {
                        state: State::Leased,
                        attempts,
                        max_attempts: budget,
                        generation: 1,
                        epoch: 1,
                        releases,
                    };
                    let step = end_lease(
                        held,
                        ending(wished),
                        Ctx {
                            policy: &RetryPolicy::default(),
                            roll,
                        },
                    );
                    let wish = wish.map(|ms| ms as f64);
                    let row = client
                        .query_one(
                            &statement,
                            &[
                                &word,
                                &(attempts as i32),
                                &(budget as i32),
                                &(releases as i32),
                                &wish,
                                &roll,
                            ],
                        )
                        .await
                        .unwrap();
                    let (evidence, next): (i16, i16) = (row.get(0), row.get(1));
                    let (reason, delay): (Option<i16>, i64) = (row.get(2), row.get(3));
                    let by_core = (
                        step.evidence.map_or(0, |e| {
                            1 + posthouse_core::AttemptOutcome::ALL
                                .iter()
                                .position(|o| *o == e)
                                .unwrap() as i16
                        }),
                        match step.standing.state {
                            State::Done => 1,
                            State::Pending => 2,
                            _ => 3,
                        },
                        step.reason
                            .map(|r| 1 + DeadReason::ALL.iter().position(|o| *o == r).unwrap() as i16),
                        step.due_in.as_millis() as i64,
                    );
                    assert_eq!(
                        (evidence, next, reason, delay),
                        by_core,
                        "{word} attempts {attempts}/{budget} releases {releases} wish {wished:?} roll {roll}"
                    );
                    compared += 1;
                }
            }
        }
    }
    assert_eq!(compared, 5 * 8 * 4 * 6);
    driver.abort();
}

/// The release that counts reads the same in the evidence, whoever released: code and all. Asked again, it is answered again.
#[tokio::test]
async fn a_release_that_counts_has_the_same_code_through_sql() {
    let fx = PostgresFixture::new().await;
    let id = fx.one("SELECT posthouse.enqueue('t', '1')").await;
    fx.run("UPDATE posthouse.ready SET releases = 99").await;
    let mut complete = String::new();
    for expected in ["NULL", "released_too_often"] {
        let token = fx
            .one("SELECT lease_token FROM posthouse.claim_outbox_batch(1, 'w', 30)")
            .await;
        complete =
            format!("SELECT posthouse.complete_outbox_attempt('{id}', '{token}', 'w', 'released', code => 'mine')");
        assert_eq!(fx.one(&complete).await, "pending");
        let code = fx.one("SELECT max(code) FROM posthouse.attempts").await;
        assert_eq!(code, expected);
    }
    let before = fx.dump().await;
    assert_eq!(fx.one(&complete).await, "pending");
    assert_eq!(fx.dump().await, before);
}

type EndingOf = fn(Option<Duration>) -> Ending;

fn endings() -> [(&'static str, EndingOf); 5] {
    [
        ("delivered", |_| Ending::Delivered),
        ("duplicate", |_| Ending::Duplicate),
        ("rejected", |_| Ending::Rejected),
        ("released", |wish| Ending::Released {
            after: wish.unwrap_or_default(),
        }),
        ("retry", |wish| Ending::Retry { wish }),
    ]
}

/// The numbers that Rust writes are the words that SQL reads.
#[tokio::test]
async fn numbers_and_words_agree() {
    let fx = PostgresFixture::new().await;
    for (at, outcome) in posthouse_core::AttemptOutcome::ALL.iter().enumerate() {
        assert_eq!(
            fx.one(&format!("SELECT posthouse.outcome_word({}::smallint)", at + 1))
                .await,
            outcome.as_str()
        );
    }
    for (at, reason) in DeadReason::ALL.iter().enumerate() {
        assert_eq!(
            fx.one(&format!("SELECT posthouse.reason_word({}::smallint)", at + 1))
                .await,
            reason.as_str()
        );
    }
}

/// Both ways of enqueueing compute the same digest.
#[tokio::test]
async fn rust_and_sql_agree_on_digests() {
    let fx = PostgresFixture::new().await;
    let message = Message::bytes("t", "text/plain", "hello");
    let by_sql = fx
        .one("SELECT encode(posthouse.digest('text/plain', 'hello'), 'hex')")
        .await;
    assert_eq!(by_sql, message.digest().to_string());
}

/// Refused in the database too, for producers in other languages, with the field in front.
#[tokio::test]
async fn plain_sql_input_is_checked_in_the_database() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let cases = [
        ("repeat('x', 300), '{}'", "topic: has 300 bytes"),
        ("'', '{}'", "topic: is empty"),
        ("NULL, '{}'", "topic: must not be NULL"),
        ("'t', NULL", "payload: must not be NULL"),
        ("'t', to_jsonb(repeat('x', 262144))", "payload: has 262146 bytes"),
        (
            "'t', '{}', order_key => E'a\\nb'",
            "order_key: holds a control character",
        ),
        ("'t', '{}', dedupe_key => ''", "dedupe_key: is empty"),
        ("'t', '{}', tenant => repeat('x', 256)", "tenant: has 256 bytes"),
        (
            "'t', '{}', headers => '{\"webhook-id\": \"x\"}'",
            "headers: \"webhook-id\" is reserved",
        ),
        (
            "'t', '{}', headers => '{\"a b\": \"x\"}'",
            "headers: \"a b\" is not a header name",
        ),
        (
            "'t', '{}', headers => '{\"a\": 1}'",
            "headers: the value of \"a\" must be a text",
        ),
        ("'t', '{}', headers => '[]'", "headers: is not a JSON object"),
        ("'t', '{}', delay => '-1 s'", "delay: must be"),
        (
            "'t', '{}', delay => '1 h', deliver_in => '1 h'",
            "deliver_in: must be longer",
        ),
        ("'t', '{}', max_attempts => 0", "max_attempts: must be"),
        ("'t', '{}', on_dead => 'maybe'", "on_dead: must be pass or block"),
        (
            "'http:https://u:p@example.com/', '{}'",
            "topic: holds a user name or password",
        ),
    ];
    for (args, expected) in cases {
        let refused = client
            .batch_execute(&format!("SELECT {}.enqueue({args})", fx.schema))
            .await
            .unwrap_err();
        let db = refused.as_db_error().unwrap();
        assert!(
            db.code().code() == "P7006" && db.message().starts_with(expected),
            "{args}: {} {}",
            db.code().code(),
            db.message()
        );
    }
    let odd = client
        .batch_execute(&format!(
            "SELECT {}.enqueue_batch('[{{\"topic\": \"t\", \"payload\": 1, \"key\": 2}}]')",
            fx.schema
        ))
        .await
        .unwrap_err();
    assert!(odd.as_db_error().unwrap().message().contains("no field \"key\""));
    assert_eq!(
        fx.one("SELECT count(*) FROM posthouse.message").await,
        "0",
        "nothing was written"
    );
    driver.abort();
}

/// A message past the hard limits is refused even when somebody writes into the tables through the internal function.
#[tokio::test]
async fn the_library_refuses_before_any_traffic() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let over = Message::bytes("t", "text/plain", vec![0; Limits::default().payload_bytes + 1]);
    assert!(matches!(store.enqueue_now(vec![over]).await, Err(Error::Invalid(i)) if i.field == "payload"));
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "0");
}

/// A claimer that was not given all because of its bytes must not take what is left for done: a remark says so.
#[tokio::test]
async fn a_claim_that_was_cut_by_its_bytes_says_so() {
    let fx = PostgresFixture::new().await;
    let remarks = async |bytes: &str| {
        let sql = format!(
            "SELECT count(*) FILTER (WHERE seq IS NULL AND kind = 1) || ' of ' || count(*) FILTER (WHERE seq IS NOT NULL) FROM posthouse.grant_leases(
                 10, 'w', gen_random_uuid(), 15000, {bytes}, NULL, NULL, '{{}}', '{{}}', '{{}}', -9223372036854775808, 9223372036854775807)"
        );
        fx.one(&sql).await
    };
    let put = async |n: u32, key: &str| {
        fx.run(&format!(
            "SELECT posthouse.enqueue('orders', '\"12345678\"', order_key => {key}) FROM generate_series(1, {n})"
        ))
        .await;
    };
    put(4, "NULL").await;
    assert_eq!(remarks("25").await, "1 of 2");
    assert_eq!(remarks("1000000").await, "0 of 2");
    put(1, "'k'").await;
    put(1, "NULL").await;
    assert_eq!(remarks("10").await, "1 of 1");
    assert_eq!(remarks("NULL").await, "0 of 1");
}

/// A number that was never given out may still come: the floor must stay below it.
#[tokio::test]
async fn the_floor_of_an_empty_store_is_below_its_first_message() {
    let fx = PostgresFixture::new().await;
    let floor = "SELECT s FROM posthouse.sample_floor()";
    assert_eq!(fx.one(floor).await, "0");
    fx.run("SELECT posthouse.enqueue('t', '1')").await;
    assert_eq!(fx.one("SELECT seq FROM posthouse.message").await, "1");
    assert_eq!(fx.one(floor).await, "1");
}

/// P19's lanes are hashes, and two tenants may share one: the names decide, not the hash.
#[tokio::test]
async fn tenants_that_share_a_lane_are_told_apart() {
    let fx = PostgresFixture::new().await;
    fx.run("CREATE OR REPLACE FUNCTION posthouse.lane(namespace text, tenant text) RETURNS bigint LANGUAGE sql IMMUTABLE AS 'SELECT 7::bigint'").await;
    let store = fx.open().await;
    let from = |tenant: &str, key: bool| {
        let m = Message::bytes("t", "text/plain", tenant.to_owned()).tenant(tenant);
        if key { m.order_key("k") } else { m }
    };
    store
        .enqueue_now(vec![
            from("a", false),
            from("b", false),
            from("b", true),
            from("a", true),
        ])
        .await
        .unwrap();
    let claimed = store
        .claim(&Claim::new("w", 10, LEASE).namespace("default").tenant("b"))
        .await
        .unwrap();
    assert!(claimed.iter().all(|c| c.delivery.tenant == "b"), "{claimed:?}");
    assert!(!claimed.is_empty());
}

/// A hint of a deadline follows renewals and is cleared away with the last lease of its claim.
#[tokio::test]
async fn deadline_hints_follow_the_leases() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store
        .enqueue_now(vec![Message::bytes("t", "text/plain", "x"); 3])
        .await
        .unwrap();
    let claimed = store.claim(&Claim::new("w", 10, LEASE)).await.unwrap();
    let leases: Vec<_> = claimed.iter().map(|c| c.lease.clone()).collect();
    fx.advance(Duration::from_secs(10)).await;
    store.renew(&leases[..2], LEASE).await.unwrap();
    fx.advance(Duration::from_secs(5)).await;
    assert_eq!(
        store.expired(-1, 10).await.unwrap(),
        leases[2..],
        "the one that was not renewed"
    );
    store
        .settle(&[Settlement::expired(&leases[2]), Settlement::delivered(&leases[0], None)])
        .await
        .unwrap();
    assert_eq!(store.expired(-1, 10).await.unwrap(), [], "the hint moved on");
    fx.advance(Duration::from_secs(10)).await;
    assert_eq!(store.expired(-1, 10).await.unwrap(), leases[1..2]);
    store.settle(&[Settlement::expired(&leases[1])]).await.unwrap();
    assert_eq!(store.expired(-1, 10).await.unwrap(), []);
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.deadline").await, "0");
}

/// P10, for workers without a library: what ran out goes back with the later ones of its key, also when SQL repairs it.
#[tokio::test]
async fn a_repair_in_sql_lets_go_of_the_rest_of_a_run() {
    let fx = PostgresFixture::new().await;
    fx.run(
        "SELECT posthouse.enqueue_bytes('t', '1', order_key := 'k'), posthouse.enqueue_bytes('t', '2', order_key := 'k');
         CREATE TABLE posthouse.run AS SELECT * FROM posthouse.claim_outbox_batch(10, 'w', 15);",
    )
    .await;
    fx.advance(Duration::from_secs(10)).await;
    fx.run("SELECT posthouse.renew_lease(id, lease_token, 'w', 15) FROM posthouse.run WHERE payload = '2'")
        .await;
    fx.advance(Duration::from_secs(5)).await;
    assert_eq!(fx.one("SELECT posthouse.repair_expired_leases(10)").await, "1");
    let states = "SELECT string_agg(state || ' ' || attempts, ', ' ORDER BY seq) FROM posthouse.messages";
    assert_eq!(fx.one(states).await, "pending 1, pending 0");
    let again = "SELECT string_agg(encode(payload, 'escape'), ', ') FROM posthouse.claim_outbox_batch(10, 'w', 15)";
    assert_eq!(fx.one(again).await, "1, 2");
}

/// Topics that a claimer leaves do not stand in its way, however many; a claimer that can send them gets them back.
#[tokio::test]
async fn a_left_topic_is_parked_and_comes_back() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let mut messages = vec![Message::bytes("paused", "text/plain", "x"); 300];
    messages.push(Message::bytes("open", "text/plain", "y"));
    store.enqueue_now(messages).await.unwrap();
    let leaving = Claim::new("w", 10, LEASE).not_topic("paused");
    let mut got = Vec::new();
    for _ in 0..10 {
        got.extend(store.claim(&leaving).await.unwrap());
    }
    assert_eq!(
        got.iter().map(|c| c.delivery.topic.as_str()).collect::<Vec<_>>(),
        ["open"]
    );
    assert_eq!(
        fx.one("SELECT count(*) FROM posthouse.messages WHERE state = 'pending'")
            .await,
        "300"
    );
    let mut back = 0;
    for _ in 0..40 {
        back += store.claim(&Claim::new("w", 10, LEASE)).await.unwrap().len();
    }
    assert_eq!(back, 300);
}

/// The view finds a message wherever its record is.
#[tokio::test]
async fn the_view_shows_one_state_for_each_message() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let text = |body: &str| Message::bytes("t", "text/plain", body.to_owned());
    let ids: Vec<_> = store
        .enqueue_now(vec![
            text("retry"),
            text("dead"),
            text("done"),
            text("leased"),
            text("later").delay(LEASE),
            text("keyed").order_key("k").delay(LEASE),
        ])
        .await
        .unwrap()
        .into_iter()
        .map(Enqueued::id)
        .collect();
    let claimed = store.claim(&Claim::new("w", 10, LEASE)).await.unwrap();
    let of = |body: &str| {
        claimed
            .iter()
            .find(|c| c.delivery.payload == body.as_bytes())
            .unwrap()
            .lease
            .clone()
    };
    let outcome = |lease| {
        posthouse_core::Settlement::of(
            &lease,
            posthouse_core::Outcome::Retry {
                after: None,
                code: "c".into(),
                error: "e".into(),
            },
            &RetryPolicy::default(),
            0.5,
        )
    };
    let reject = posthouse_core::Outcome::Reject {
        code: "no".into(),
        error: "never".into(),
    };
    let batch = [
        outcome(of("retry")),
        Settlement::of(&of("dead"), reject, &RetryPolicy::default(), 0.5),
        Settlement::delivered(&of("done"), None),
    ];
    assert!(matches!(batch[0].next(), Next::Pending(_)));
    store.settle(&batch).await.unwrap();
    let mut states = Vec::new();
    for id in &ids {
        states.push(store.find(*id).await.unwrap().unwrap().state.to_string());
    }
    assert_eq!(states, ["pending", "dead", "done", "leased", "pending", "pending"]);
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.live").await, "5");
}

/// An old snapshot would show the key as it was before its lock was there: what the claims did meanwhile would be missed, and the
/// key could stand for ever.
#[tokio::test]
async fn verbs_are_refused_in_a_transaction_with_an_old_snapshot() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let id = fx.one("SELECT posthouse.enqueue('t', '1', order_key => 'k')").await;
    let before = fx.dump().await;
    for level in ["REPEATABLE READ", "SERIALIZABLE"] {
        for verb in ["replay", "quarantine", "cancel", "resolve", "discard"] {
            let sql = format!(
                "BEGIN ISOLATION LEVEL {level}; SELECT {}.{verb}('{id}', 'ops')",
                fx.schema
            );
            let refused = client.batch_execute(&sql).await.unwrap_err();
            client.batch_execute("ROLLBACK").await.unwrap();
            let refused = refused.as_db_error().unwrap();
            assert_eq!(refused.code().code(), "P7006", "{level} {verb}: {refused:?}");
            let text = refused.message();
            assert!(
                text.starts_with("transaction: ") && text.ends_with("must run under READ COMMITTED"),
                "{text}"
            );
        }
    }
    assert_eq!(fx.dump().await, before);
    driver.abort();
}

/// Returns when the session waits for a lock of somebody else.
async fn waits(fx: &PostgresFixture, pid: i32) {
    let sql = format!("SELECT cardinality(pg_blocking_pids({pid})) > 0");
    while fx.one(&sql).await != "t" {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Everybody locks leases by number. A replayed message has a low number and a late place: whoever gives an earlier one of its
/// key back must lock it first all the same.
#[tokio::test]
async fn a_retry_and_a_settlement_of_its_run_do_not_deadlock() {
    let fx = PostgresFixture::new().await;
    let first = fx.one("SELECT posthouse.enqueue('t', '1', order_key => 'k')").await;
    let second = fx.one("SELECT posthouse.enqueue('t', '2', order_key => 'k')").await;
    fx.run(&format!(
        "SELECT posthouse.cancel('{first}', 'ops'), posthouse.replay('{first}', 'ops')"
    ))
    .await;
    let token = fx
        .one("SELECT lease_token FROM posthouse.claim_outbox_batch(10, 'w', 30)")
        .await;
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.leased").await, "2");

    let (other, others_driver) = session().await;
    let lock = |seq: i32| format!("SELECT FROM {}.leased WHERE seq = {seq} FOR UPDATE", fx.schema);
    other.batch_execute(&format!("BEGIN; {}", lock(1))).await.unwrap();
    let (client, driver) = session().await;
    let pid: i32 = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let sql = format!(
        "SELECT {}.complete_outbox_attempt('{second}', '{token}', 'w', 'retry')",
        fx.schema
    );
    let retry = tokio::spawn(async move { client.query_one(&sql, &[]).await.map(|row| row.get::<_, String>(0)) });
    waits(&fx, pid).await;
    other.batch_execute(&format!("{}; COMMIT", lock(2))).await.unwrap();
    assert_eq!(retry.await.unwrap().unwrap(), "pending");
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.leased").await, "0");
    driver.abort();
    others_driver.abort();
}

/// What ran out is taken back in somebody's transaction, which lasts. Whoever had it, and comes back with that and with what it still holds,
/// is answered at once.
#[tokio::test]
async fn a_settlement_does_not_wait_for_who_takes_leases_back() {
    let fx = PostgresFixture::together().await;
    let (store, mut held) = (fx.store().await, Vec::new());
    for lease in [LEASE, 4 * LEASE] {
        fx.run("SELECT posthouse.enqueue_batch((SELECT jsonb_agg(jsonb_build_object('topic', 't', 'payload', 1)) FROM generate_series(1, 20)))").await;
        held.extend(store.claim(&Claim::new("w", 20, lease)).await.unwrap());
    }
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.lot").await, "2");
    fx.advance(2 * LEASE).await;
    let (other, driver) = session().await;
    let take_back = format!("BEGIN; SELECT {}.repair_expired_leases(100)", fx.schema);
    other.batch_execute(&take_back).await.unwrap();
    let ends = [None, Some("a receipt".to_owned())];
    for (at, receipt) in ends.into_iter().enumerate() {
        let chosen = held.iter().skip(at).step_by(2);
        let batch: Vec<_> = chosen
            .map(|c| Settlement::delivered(&c.lease, receipt.as_deref()))
            .collect();
        let verdicts = tokio::time::timeout(LEASE, store.settle(&batch))
            .await
            .expect("an answer")
            .unwrap();
        let settled: Vec<_> = verdicts.iter().map(|verdict| verdict.is_settled()).collect();
        assert_eq!(settled, [[false; 10], [true; 10]].concat());
    }
    other.batch_execute("COMMIT").await.unwrap();
    assert_eq!(
        fx.one("SELECT count(*) FROM posthouse.attempt WHERE outcome = 6").await,
        "20"
    );
    driver.abort();
}

/// A verb takes what is dead first and the message after it; retention comes the other way, so it must not wait.
#[tokio::test]
async fn retention_does_not_wait_for_a_verb() {
    let fx = PostgresFixture::new().await;
    for n in 1..=2 {
        let id = fx.one(&format!("SELECT posthouse.enqueue('t', '{n}')")).await;
        fx.run(&format!("SELECT posthouse.cancel('{id}', 'ops')")).await;
    }
    fx.advance(Duration::from_secs(3600)).await;
    let (other, driver) = session().await;
    other
        .batch_execute(&format!("BEGIN; DELETE FROM {}.dead WHERE seq = 1", fx.schema))
        .await
        .unwrap();
    let prune = "SELECT dead FROM posthouse.prune('1 minute', 10, 'dead')";
    fx.run("SET lock_timeout = '10s'").await;
    assert_eq!(fx.one(prune).await, "1");
    other.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(fx.one(prune).await, "1");
    driver.abort();
}

/// A relay of another version, or one that is wrong, hides nobody else.
#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_that_is_not_understood_is_told_by_its_name() {
    let fx = PostgresFixture::new().await;
    fx.run(r#"SELECT posthouse.heartbeat('other', 60000, '{"name": "other", "routes": 5}')"#)
        .await;
    let relays = fx.admin().await.relays().await.unwrap();
    assert_eq!(
        relays.iter().map(|r| (&*r.relay.name, r.live)).collect::<Vec<_>>(),
        [("other", true)]
    );
}

/// Statistics of an empty store, and then those of a full one that has been drained since: no count goes by them.
#[tokio::test(flavor = "multi_thread")]
async fn counts_do_not_depend_on_statistics() {
    let fx = PostgresFixture::new().await;
    for table in ["ready", "message", "attempt"] {
        fx.run(&format!("ALTER TABLE posthouse.{table} SET (autovacuum_enabled = off)"))
            .await;
        fx.run(&format!("ANALYZE posthouse.{table}")).await;
    }
    let counted = async |names: &str| {
        fx.one(&format!("SELECT concat_ws(' ', {names}) FROM posthouse.counts(1000)"))
            .await
    };
    fx.run("SELECT posthouse.enqueue('t', to_jsonb(n)) FROM generate_series(1, 6000) n")
        .await;
    for _ in 0..2 {
        assert_eq!(counted("ready, ready_exact, done, done_exact").await, "1000 f 0 f");
        fx.run("ANALYZE posthouse.ready; ANALYZE posthouse.message").await;
    }
    fx.run("DELETE FROM posthouse.ready WHERE seq <= 1500").await;
    assert_eq!(counted("ready, ready_exact, done, done_exact").await, "1000 f 1000 f");
    fx.run("DELETE FROM posthouse.ready WHERE seq <= 5300").await;
    assert_eq!(counted("ready, ready_exact, done, done_exact").await, "700 t 1000 f");
    fx.run("DELETE FROM posthouse.ready; DELETE FROM posthouse.message WHERE seq > 900")
        .await;
    assert_eq!(counted("ready, ready_exact, done, done_exact").await, "0 t 900 t");
}

/// A worker in plain SQL goes on after a relay, and both keep to the producer's budget.
#[tokio::test]
async fn a_worker_in_sql_and_a_relay_keep_to_the_messages_budget() {
    let fx = PostgresFixture::new().await;
    let id = fx.one("SELECT posthouse.enqueue('t', '1', max_attempts => 2)").await;
    let store = fx.store().await;
    let claimed = store.claim(&Claim::new("r", 1, Duration::from_secs(30))).await.unwrap();
    let policy = RetryPolicy {
        backoff: posthouse_core::Backoff::Table(vec![Duration::ZERO]),
        ..RetryPolicy::default()
    };
    let failed = Settlement::of(
        &claimed[0].lease,
        posthouse_core::Outcome::retry("c", "e"),
        &policy,
        0.5,
    );
    assert!(store.settle(&[failed]).await.unwrap()[0].is_settled());
    let state = fx
        .one(&format!(
            "SELECT posthouse.complete_outbox_attempt('{id}', c.lease_token, 'w', 'retry') || ' ' || c.max_attempts
             FROM posthouse.claim_outbox_batch(1, 'w', 30) c"
        ))
        .await;
    assert_eq!(state, "dead 2");
}

/// What the library keeps is found by a worker in SQL, and the other way round; for the same destination alone.
#[tokio::test]
async fn workers_of_both_kinds_share_their_receipts() {
    let fx = PostgresFixture::new().await;
    let store = fx.store().await;
    let check = |body: &str, rest: &str| {
        format!(
            "SELECT coalesce(posthouse.check_dedup('acme', 'default', 'note', posthouse.digest('application/json', '{body}'){rest}), 'nothing')"
        )
    };
    let claim = async || {
        let claim = Claim::new("w", 1, Duration::from_secs(30));
        store.claim(&claim).await.unwrap().remove(0)
    };

    fx.run("SELECT posthouse.enqueue('note', '1', tenant => 'acme')").await;
    let claimed = claim().await;
    let effect = Effect::of(&claimed.delivery, "archive");
    let settlement = Settlement::delivered(&claimed.lease, Some("memory-1")).keeping(effect);
    assert!(store.settle(&[settlement]).await.unwrap()[0].is_settled());
    assert_eq!(fx.one(&check("1", ", 'archive'")).await, "memory-1");
    assert_eq!(fx.one(&check("1", "")).await, "nothing");
    assert_eq!(fx.one(&check("2", ", 'archive'")).await, "nothing");

    let complete = |lease: &Lease, rest: &str| {
        let (id, token) = (lease.id, lease.token.0);
        format!("SELECT posthouse.complete_outbox_attempt('{id}', '{token}', 'w', {rest})")
    };
    let kept = "'delivered', receipt => 'memory-2', keep_receipt => true, destination => 'archive'";
    for (body, rest, archive, plain) in [
        ("2", kept, "memory-2", "nothing"),
        ("3", "'delivered', keep_receipt => true", "nothing", ""),
        ("4", "'delivered', receipt => 'memory-4'", "nothing", "nothing"),
        (
            "5",
            "'rejected', receipt => 'memory-5', keep_receipt => true",
            "nothing",
            "nothing",
        ),
    ] {
        fx.run(&format!("SELECT posthouse.enqueue('note', '{body}', tenant => 'acme')"))
            .await;
        let claimed = claim().await;
        fx.run(&complete(&claimed.lease, rest)).await;
        assert_eq!(fx.one(&check(body, ", 'archive'")).await, archive, "{body}");
        assert_eq!(fx.one(&check(body, "")).await, plain, "{body}");
        let effects = ["archive", ""].map(|destination| Effect::of(&claimed.delivery, destination));
        let found = store.earlier_receipts(&effects).await.unwrap();
        let text = |found: &Option<Receipt>| {
            let text = found.as_ref().map(|receipt| receipt.text.clone().unwrap_or_default());
            text.unwrap_or_else(|| "nothing".into())
        };
        assert_eq!([text(&found[0]), text(&found[1])], [archive, plain], "{body}");
    }
}
