//! From an outbox that deletes a row when it claims it, and back.

use super::Shop;

/// The tables of a payment service that deletes a row when it claims it. `pay` and `tried` only make the cases below short: the
/// id of payment n is `id(n)`.
const DELETE_ON_CLAIM: &str = "
    CREATE TABLE payment_outbox_pending (
        outbox_id uuid PRIMARY KEY, instruction_id text, participant_id text, sequence_id bigint, idempotency_key text, rail_type text, payload jsonb,
        attempt_count int NOT NULL DEFAULT 0, next_attempt_at timestamptz DEFAULT now(), created_at timestamptz DEFAULT now(), UNIQUE (instruction_id, idempotency_key));
    CREATE TABLE payment_outbox_attempts (
        outbox_id uuid, instruction_id text, participant_id text, sequence_id bigint, idempotency_key text, rail_type text, payload jsonb,
        attempt_no int, state text, claimed_at timestamptz, completed_at timestamptz, rail_reference text, error_code text, error_message text,
        created_at timestamptz DEFAULT now(), UNIQUE (outbox_id, attempt_no));
    CREATE FUNCTION id(n int) RETURNS uuid LANGUAGE sql IMMUTABLE AS $$ SELECT ('00000000-0000-0000-0000-' || lpad(n::text, 12, '0'))::uuid $$;
    CREATE FUNCTION pay(n int, participant text, sequence int, due_in interval DEFAULT '-1 minute') RETURNS void LANGUAGE sql AS $$
        INSERT INTO payment_outbox_pending VALUES (id(n), 'i' || n, participant, sequence, 'k' || n, 'SWIFT', jsonb_build_object('n', n), 0, now() + due_in, now() - interval '1 day' + n * interval '1 second') $$;
    -- Words and when, in order; the row is gone from the pending ones unless `pay` put it there.
    CREATE FUNCTION tried(n int, participant text, sequence int, VARIADIC steps text[]) RETURNS void LANGUAGE sql AS $$
        INSERT INTO payment_outbox_attempts
        SELECT id(n), 'i' || n, participant, sequence, 'k' || n, 'SWIFT', jsonb_build_object('n', n), o, split_part(s, ' ', 1),
               at.t, CASE WHEN split_part(s, ' ', 1) IN ('DISPATCHED', 'FAILED') THEN at.t END,
               CASE WHEN s LIKE 'DISPATCHED%' THEN 'rail-' || n END, CASE WHEN s LIKE 'FAILED%' THEN 'R01' END, CASE WHEN s LIKE 'FAILED%' THEN 'closed account' END, at.t
        FROM unnest(steps) WITH ORDINALITY u(s, o) CROSS JOIN LATERAL (SELECT date_trunc('second', now()) - substr(s, strpos(s, ' '))::interval AS t) at $$;";

const MOVE_PAYMENTS: &str = "from_delete_on_claim.sql";

/// The state, attempts, budget and outcomes of every message, by its number.
const STANDING: &str = "SELECT right(v.id::text, 2)::int AS n, v.state, v.attempts, v.epoch,
    (SELECT string_agg(a.outcome, ',' ORDER BY a.epoch) FROM posthouse.attempts a WHERE a.message_id = v.id) FROM posthouse.messages v ORDER BY 1";

#[tokio::test]
async fn a_delete_on_claim_outbox_is_moved_with_its_history() {
    let shop = Shop::with(DELETE_ON_CLAIM).await;
    shop.run(
        "SELECT pay(1, 'alice', 1);
         -- Failed once, and waits; the next of its participant waits behind it.
         SELECT pay(2, 'bob', 1, '1 hour'), tried(2, 'bob', 1, 'DISPATCHING 20 min', 'RETRYABLE 19 min');
         SELECT pay(3, 'bob', 2);
         -- The worker died: the row is gone, and all that is left is the attempt.
         SELECT tried(4, 'alice', 2, 'DISPATCHING 1 hour');
         -- It died, and a repair put the row back; with and without a word of it.
         SELECT pay(5, 'carol', 1), tried(5, 'carol', 1, 'DISPATCHING 1 hour', 'ZOMBIE_REQUEUE 50 min');
         SELECT pay(6, 'carol', 2), tried(6, 'carol', 2, 'DISPATCHING 3 hours', 'DISPATCHING 2 hours', 'DISPATCHING 1 hour');
         SELECT tried(7, 'alice', 0, 'DISPATCHING 25 hours', 'DISPATCHED 24 hours');
         SELECT tried(8, 'alice', 0, 'DISPATCHING 30 days', 'DISPATCHED 30 days');
         SELECT tried(9, 'dave', 1, 'DISPATCHING 25 hours', 'RETRYABLE 24 hours', 'DISPATCHING 24 hours', 'FAILED 23 hours');
         SELECT tried(10, 'dave', 1, 'DISPATCHING 30 days', 'FAILED 30 days');
         -- Failed, and put back by hand.
         SELECT pay(11, 'dave', 2), tried(11, 'dave', 2, 'DISPATCHING 2 hours', 'FAILED 1 hour');
         -- The stale worker's race: A is given up, B claims, A comes back and completes; the row is pending all the same.
         SELECT pay(12, 'erin', 1), tried(12, 'erin', 1, 'DISPATCHING 3 hours', 'DISPATCHING 2 hours', 'DISPATCHED 1 hour', 'RETRYABLE 30 min');
         -- Sent yesterday; then accepted again under the same key, because the row had been deleted.
         INSERT INTO payment_outbox_pending SELECT id(13), 'i7', 'alice', 3, 'k7', 'SWIFT', '{\"n\": 7}';
         -- A crash between the outcome and the requeue.
         SELECT tried(14, 'erin', 2, 'DISPATCHING 2 hours', 'RETRYABLE 1 hour');
         -- What constraints that nobody made do not keep out.
         INSERT INTO payment_outbox_pending (outbox_id, rail_type, next_attempt_at, created_at) VALUES (id(15), 'ACH', NULL, NULL);
         INSERT INTO payment_outbox_attempts (outbox_id, rail_type, attempt_no, state, created_at) VALUES (id(16), 'ACH', 1, 'DISPATCHING', NULL);
         INSERT INTO payment_outbox_attempts (outbox_id, rail_type, attempt_no, state, created_at) VALUES (id(17), 'ACH', 3, 'DISPATCHED', NULL)",
    )
    .await;
    let before = shop.rows("TABLE payment_outbox_pending").await;

    // fate, old rows, moved before, moved now, merged, attempts there, attempts here.
    let compared = "failed|1|0|1|0|2|2\nin flight|3|0|3|0|3|3\npending|8|0|8|1|6|6\nsent|3|0|3|0|5|5\n";
    assert_eq!(shop.kit(MOVE_PAYMENTS), compared);
    assert_eq!(
        shop.rows(STANDING).await,
        [
            "1|pending|0|0|-",
            "2|pending|1|1|retry",
            "3|pending|0|0|-",
            "4|pending|1|1|lease_expired",
            "5|pending|1|1|lease_expired",
            "6|pending|3|3|lease_expired,lease_expired,lease_expired",
            "7|done|1|1|delivered",
            "9|dead|2|2|retry,rejected",
            "11|pending|1|1|retry",
            "12|done|3|3|lease_expired,delivered,retry",
            "14|pending|1|1|retry",
            "15|pending|0|0|-",
            "16|pending|1|1|lease_expired",
            "17|done|1|1|delivered",
        ]
    );
    assert_eq!(
        shop.rows("TABLE payment_outbox_pending").await,
        before,
        "the old rows are as they were"
    );
    let kept = "SELECT count(*) FROM posthouse.messages v JOIN payment_outbox_pending p ON p.outbox_id = v.id
                WHERE v.due_at = p.next_attempt_at AND v.created_at = p.created_at AND v.topic = p.rail_type AND v.state = 'pending'";
    assert_eq!(shop.one(kept).await, "6", "due and creation times are kept");
    assert_eq!(
        shop.rows("SELECT started_at = finished_at - interval '1 hour', worker, receipt FROM posthouse.attempts WHERE message_id = id(7)").await,
        ["t|payment_outbox|rail-7"]
    );
    assert_eq!(
        shop.rows("SELECT code, error, finished_at - started_at FROM posthouse.attempts WHERE message_id = id(9) ORDER BY epoch").await,
        ["-|-|01:00:00", "R01|closed account|01:00:00"]
    );
    assert_eq!(
        shop.rows("SELECT finished_at - started_at FROM posthouse.attempts WHERE message_id = id(6)")
            .await,
        ["00:02:00", "00:02:00", "00:02:00"]
    );
    assert_eq!(
        shop.one("SELECT old_id, message_id, fate FROM outbox_moved WHERE fate = 'merged'")
            .await,
        "00000000-0000-0000-0000-000000000013|00000000-0000-0000-0000-000000000007|merged"
    );

    // Once more: nothing.
    let all = shop.everything().await;
    let again = compared
        .lines()
        .map(|line| {
            let old = line.split('|').nth(1).unwrap();
            format!("{}|{old}|{old}|0|0|0|0\n", line.split('|').next().unwrap())
        })
        .collect::<String>();
    assert_eq!(shop.kit(MOVE_PAYMENTS), again);
    assert_eq!(shop.everything().await, all);

    // What is due is sent, in the order of each participant; bob waits for his first one.
    let mut sent = shop.drain().await;
    let of = |sent: &[String], who: &str| -> Vec<String> {
        let theirs = sent.iter().filter(|s| s.split('|').nth(1) == Some(who));
        theirs.map(|s| s.rsplit('|').next().unwrap().to_owned()).collect()
    };
    assert_eq!(of(&sent, "bob"), [""; 0]);
    shop.later("2 hours").await;
    sent.extend(shop.drain().await);
    assert_eq!(of(&sent, "alice"), [r#"{"n": 1}"#, r#"{"n": 4}"#]);
    assert_eq!(of(&sent, "bob"), [r#"{"n": 2}"#, r#"{"n": 3}"#]);
    assert_eq!(of(&sent, "carol"), [r#"{"n": 5}"#, r#"{"n": 6}"#]);
    assert_eq!(of(&sent, "dave"), [r#"{"n": 11}"#]);
    assert_eq!(of(&sent, "erin"), [r#"{"n": 14}"#]);
    assert_eq!(of(&sent, "-"), ["null", "null"]);
    assert_eq!(sent.len(), 10);
    assert_eq!(
        shop.rows("SELECT epoch, attempt, outcome FROM posthouse.attempts WHERE message_id = id(6) ORDER BY epoch DESC LIMIT 1").await,
        ["4|4|delivered"]
    );

    // And once more after all is done and forgotten: still nothing.
    shop.later("2 years").await;
    shop.run("SELECT posthouse.prune('1 day', 1000, 'all'); UPDATE posthouse.settings SET dedupe_lifetime = '1 day'; SELECT posthouse.prune('1 day', 1000, 'all')")
        .await;
    assert_eq!(shop.one("SELECT count(*) FROM posthouse.messages").await, "0");
    let third = shop.kit(MOVE_PAYMENTS);
    assert!(third.lines().all(|line| line.contains("|0|0|0|0")), "{third}");
    assert_eq!(shop.one("SELECT count(*) FROM posthouse.messages").await, "0");
    shop.close().await;
}

/// Whatever cannot be moved is named, and nothing else is moved either.
#[tokio::test]
async fn a_row_that_cannot_be_moved_stops_the_migration_and_is_named() {
    for (rows, told) in [
        (
            "SELECT tried(2, 'a', 2, 'DISPATCHING 10 s')",
            &[
                "the old relay claimed 00000000-0000-0000-0000-000000000002",
                "wait two minutes",
            ][..],
        ),
        (
            "SELECT tried(2, 'a', 2, 'DISPATCHING 1 hour'); INSERT INTO payment_outbox_pending SELECT id(3), 'i2', 'a', 3, 'k2', 'SWIFT', '{\"n\": 99}'",
            &[
                "nothing was moved; old row 00000000-0000-0000-0000-000000000003: the dedupe_key is already used by message 00000000-0000-0000-0000-000000000002, which has other content",
                "DETAIL:  00000000-0000-0000-0000-000000000002",
            ],
        ),
        (
            "SELECT pay(2, 'a', 2); UPDATE payment_outbox_pending SET payload = jsonb_build_object('x', repeat('x', 300000)) WHERE outbox_id = id(2)",
            &[
                "old row 00000000-0000-0000-0000-000000000002: payload: has 300009 bytes",
                "fate pending, topic SWIFT, dedupe_key i2/k2",
                "correct the row",
            ],
        ),
        (
            "SELECT pay(2, 'a', 2); UPDATE payment_outbox_pending SET next_attempt_at = 'infinity' WHERE outbox_id = id(2)",
            &["old row 00000000-0000-0000-0000-000000000002: due_at: must be at most ten years from now"],
        ),
        (
            "SELECT pay(2, 'a', 2); UPDATE payment_outbox_pending SET rail_type = NULL WHERE outbox_id = id(2)",
            &["old row 00000000-0000-0000-0000-000000000002: topic: must not be NULL"],
        ),
        (
            "SELECT tried(2, 'a', 2, 'HELD 1 hour')",
            &["old row 00000000-0000-0000-0000-000000000002: attempts[0].outcome: must be"],
        ),
    ] {
        let shop = Shop::with(DELETE_ON_CLAIM).await;
        shop.run(&format!("SELECT pay(1, 'a', 1); {rows}")).await;
        let printed = shop.kit(MOVE_PAYMENTS);
        assert!(told.iter().all(|t| printed.contains(t)), "{rows}\n{printed}");
        assert_eq!(shop.one("SELECT count(*) FROM posthouse.messages").await, "0");
        assert_eq!(shop.one("SELECT to_regclass('outbox_moved') IS NULL").await, "t");
        shop.close().await;
    }
}

/// What producers that enqueue on both sides add to each payment.
const BOTH: &str = "
    CREATE FUNCTION pay_both(n int, participant text, sequence int) RETURNS void LANGUAGE sql AS $$
        SELECT pay(n, participant, sequence);
        SELECT posthouse.enqueue('SWIFT', jsonb_build_object('n', n), namespace => 'payments', order_key => participant, dedupe_key => 'i' || n || '/k' || n, id => id(n),
            headers => jsonb_build_object('instruction-id', 'i' || n, 'participant-id', participant, 'sequence-id', sequence::text)) $$;
    -- The old relay, which still does the work.
    CREATE FUNCTION claims(n int) RETURNS void LANGUAGE sql AS $$ DELETE FROM payment_outbox_pending WHERE outbox_id = id(n) $$;";

#[tokio::test]
async fn side_by_side_the_switch_knows_what_the_old_relay_has_sent() {
    let shop = Shop::with(&[DELETE_ON_CLAIM, BOTH].concat()).await;
    shop.run(
        "SELECT pay(1, 'a', 1); SELECT pay_both(n, 'a', n) FROM generate_series(2, 5) n; SELECT pay_both(6, 'b', 1)",
    )
    .await;
    // Switching while something from before is pending would put it behind what came later.
    let refused = shop.kit(MOVE_PAYMENTS);
    assert!(
        refused.contains("old row 00000000-0000-0000-0000-000000000001 of the order key a would come after message 00000000-0000-0000-0000-00000000000"),
        "{refused}"
    );
    // The old relay works on: one sent long ago, one just now, one failed, one in flight when it is stopped.
    shop.run(
        "SELECT claims(n) FROM generate_series(1, 4) n;
         SELECT tried(1, 'a', 1, 'DISPATCHING 40 days', 'DISPATCHED 40 days'), tried(2, 'a', 2, 'DISPATCHING 40 days', 'DISPATCHED 40 days'),
                tried(3, 'a', 3, 'DISPATCHING 1 hour', 'FAILED 1 hour'), tried(4, 'a', 4, 'DISPATCHING 1 hour')",
    )
    .await;
    assert_eq!(
        shop.kit(MOVE_PAYMENTS),
        "failed|1|0|1|0|1|1\nin flight|1|0|1|0|1|1\npending|2|0|2|0|0|0\nsent|1|0|1|0|1|1\n"
    );
    assert_eq!(
        shop.rows(STANDING).await,
        [
            "2|done|1|1|delivered",
            "3|dead|1|1|rejected",
            "4|pending|1|1|lease_expired",
            "5|pending|0|0|-",
            "6|pending|0|0|-"
        ]
    );
    // Producers go on with both for a while; relays start; the order holds.
    shop.run("SELECT pay_both(7, 'a', 6)").await;
    let sent = shop.drain().await;
    let of_a: Vec<_> = sent.iter().filter_map(|s| s.strip_prefix("SWIFT|a|")).collect();
    assert_eq!(of_a, [r#"{"n": 4}"#, r#"{"n": 5}"#, r#"{"n": 7}"#]);
    shop.close().await;
}

/// A relay that was started too early has a message that the old one sent: the switch says so, and changes nothing.
#[tokio::test]
async fn a_relay_that_runs_before_the_switch_is_noticed() {
    let shop = Shop::with(&[DELETE_ON_CLAIM, BOTH].concat()).await;
    shop.run("SELECT pay_both(1, 'a', 1); SELECT claims(1), tried(1, 'a', 1, 'DISPATCHING 1 hour', 'DISPATCHED 1 hour'); SELECT posthouse.claim_outbox_batch(1, 'early', 60)").await;
    let printed = shop.kit(MOVE_PAYMENTS);
    assert!(printed.contains("old row 00000000-0000-0000-0000-000000000001: it is sent, but message 00000000-0000-0000-0000-000000000001 is leased"), "{printed}");
    assert_eq!(shop.one("SELECT count(*) FROM posthouse.attempts").await, "0");

    // Nor is one that was enqueued here under another id sent again.
    shop.run(
        "SELECT pay(2, 'a', 2); SELECT claims(2), tried(2, 'a', 2, 'DISPATCHING 1 hour', 'DISPATCHED 1 hour'); SELECT claims(1);
         DELETE FROM payment_outbox_attempts WHERE outbox_id = id(1);
         SELECT posthouse.enqueue('SWIFT', '{\"n\": 2}', namespace => 'payments', dedupe_key => 'i2/k2')",
    )
    .await;
    let printed = shop.kit(MOVE_PAYMENTS);
    assert!(
        printed.contains("old row 00000000-0000-0000-0000-000000000002: it is sent, but message")
            && printed.contains("is pending"),
        "{printed}"
    );
    assert!(printed.contains("uses the same id"), "{printed}");
    shop.close().await;
}

#[tokio::test]
async fn the_way_back_to_delete_on_claim() {
    let shop = Shop::with(&[DELETE_ON_CLAIM, BOTH].concat()).await;
    shop.run(
        "SELECT pay(1, 'a', 1), tried(1, 'a', 1, 'DISPATCHING 2 hours', 'RETRYABLE 1 hour');
         SELECT pay(2, 'b', 1); SELECT pay(3, 'c', 1), tried(3, 'c', 1, 'DISPATCHING 1 hour'); SELECT pay(4, 'd', 1, '3 hours');
         SELECT pay(5, 'e', 1); SELECT pay(6, 'f', 1);
         SELECT tried(8, 'g', 1, 'DISPATCHING 1 hour', 'DISPATCHED 1 hour'); INSERT INTO payment_outbox_pending SELECT id(9), 'i8', 'g', 2, 'k8', 'SWIFT', '{\"n\": 8}'",
    )
    .await;
    shop.kit(MOVE_PAYMENTS);
    let finish = |n: u32, outcome: &str| {
        format!(
            "SELECT posthouse.complete_outbox_attempt(id, lease_token, 'w', '{outcome}', code => 'c{n}', receipt => 'r{n}') FROM one WHERE id = id({n});"
        )
    };
    let early = shop.kit("back_to_delete_on_claim.sql");
    assert_eq!(early, "done|1|ended here\npending|6|back in the old outbox\n");
    assert_eq!(shop.one("SELECT state FROM posthouse.messages").await, "done");
    // Forward again: all is as at the first time.
    let forward = shop.kit(MOVE_PAYMENTS);
    assert_eq!(forward, "pending|6|0|6|0|2|2\nsent|1|1|0|0|0|0\n");
    shop.run(&format!(
        "CREATE TEMP TABLE one AS SELECT id, lease_token FROM posthouse.claim_outbox_batch(10, 'w', 3600); {}{}{}",
        finish(1, "delivered"),
        finish(2, "retry"),
        finish(3, "rejected")
    ))
    .await;
    let held = shop.kit("back_to_delete_on_claim.sql");
    assert!(held.contains("worker w holds leases until"), "{held}");
    shop.run(&format!("{}{}", finish(5, "released"), finish(6, "released")))
        .await;
    // Enqueued since: on both sides, and here alone; and one that was delivered here alone.
    shop.run(
        "SELECT pay_both(10, 'g', 1); SELECT pay_both(11, 'h', 1); DELETE FROM payment_outbox_pending WHERE outbox_id = id(11);
         SELECT posthouse.quarantine(id(6), 'ops', 'ask first'); SELECT posthouse.cancel(id(5), 'ops', 'not wanted')",
    )
    .await;
    let printed = shop.kit("back_to_delete_on_claim.sql");
    assert_eq!(
        printed,
        "dead|2|ended here\ndone|2|ended here\npending|4|back in the old outbox\nquarantined|1|held here\n"
    );
    assert_eq!(
        shop.rows("SELECT right(outbox_id::text, 2)::int, attempt_count, instruction_id, participant_id, sequence_id, idempotency_key, payload FROM payment_outbox_pending ORDER BY 1").await,
        [
            r#"2|1|i2|b|1|k2|{"n": 2}"#,
            r#"4|0|i4|d|1|k4|{"n": 4}"#,
            r#"10|0|i10|g|1|k10|{"n": 10}"#,
            r#"11|0|i11|h|1|k11|{"n": 11}"#,
        ]
    );
    assert_eq!(
        shop.rows("SELECT right(outbox_id::text, 2)::int, string_agg(state, ',' ORDER BY attempt_no), max(rail_reference) FROM payment_outbox_attempts GROUP BY 1 ORDER BY 1").await,
        ["1|DISPATCHING,RETRYABLE,DISPATCHED|r1", "2|RETRYABLE|r2", "3|DISPATCHING,FAILED|r3", "5|FAILED|-", "8|DISPATCHING,DISPATCHED|rail-8"]
    );
    assert_eq!(
        shop.one(
            "SELECT next_attempt_at > now() + interval '2 hours' FROM payment_outbox_pending WHERE outbox_id = id(4)"
        )
        .await,
        "t"
    );
    let all = shop.everything().await;
    assert_eq!(
        shop.kit("back_to_delete_on_claim.sql"),
        "dead|2|ended here\ndone|2|ended here\nquarantined|1|held here\n"
    );
    assert_eq!(shop.everything().await, all, "the way back, gone twice");
    assert_eq!(shop.drain().await, [""; 0], "nothing is left to send here");
    shop.close().await;
}
