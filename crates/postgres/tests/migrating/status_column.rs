//! From an outbox with a status column, and back.

use super::Shop;

/// The old table with a status column, with this type of id and of payload.
fn status_column(id: &str, payload: &str) -> String {
    format!(
        "CREATE TABLE outbox (id {id}, topic text, payload {payload}, status text, attempts int, next_attempt_at timestamptz, created_at timestamptz DEFAULT now())"
    )
}

const MOVE_STATUS: &str = "from_status_column.sql";
const BY_STATUS: &str = "SELECT d.old_id::int, v.state, v.attempts, v.content_type,
    (SELECT string_agg(a.outcome, ',' ORDER BY a.epoch) FROM posthouse.attempts a WHERE a.message_id = v.id) FROM outbox_moved d JOIN posthouse.messages v ON v.id = d.message_id ORDER BY 1";

const ROWS: &str = "
    INSERT INTO outbox (topic, payload, status, attempts, next_attempt_at, created_at) VALUES
        ('mail', '{\"k\": \"a\", \"n\": 1}', 'pending', 0, NULL, now() - interval '9 hours'),
        ('mail', '{\"k\": \"a\", \"n\": 2}', 'PENDING', 3, now() - interval '1 minute', now() - interval '8 hours'),
        ('mail', '{\"k\": \"b\", \"n\": 3}', 'pending', NULL, now() + interval '1 hour', NULL),
        ('mail', '{\"k\": \"c\", \"n\": 4}', 'processing', 2, NULL, now() - interval '40 days'),
        ('mail', '{\"k\": \"c\", \"n\": 5}', 'processing', 0, NULL, now() - interval '6 hours'),
        ('mail', '{\"k\": \"d\", \"n\": 6}', 'sent', 1, NULL, now() - interval '5 hours'),
        ('mail', '{\"k\": \"d\", \"n\": 7}', 'sent', 0, NULL, now() - interval '40 days'),
        ('mail', '{\"k\": \"d\", \"n\": 8}', 'failed', 5, NULL, now() - interval '4 hours'),
        ('mail', NULL, 'pending', -1, NULL, now() - interval '3 hours')";

#[tokio::test]
async fn an_outbox_with_a_status_column_is_moved() {
    let shop = Shop::with(&status_column(
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "jsonb",
    ))
    .await;
    shop.run(ROWS).await;
    assert_eq!(
        shop.kit(MOVE_STATUS),
        "failed|1|0|1|0|5|5\nin flight|2|0|2|0|3|3\npending|4|0|4|0|3|3\nsent|1|0|1|0|1|1\n"
    );
    assert_eq!(
        shop.rows(BY_STATUS).await,
        [
            "1|pending|0|application/json|-",
            "2|pending|3|application/json|retry,retry,retry",
            "3|pending|0|application/json|-",
            "4|pending|2|application/json|retry,lease_expired",
            "5|pending|1|application/json|lease_expired",
            "6|done|1|application/json|delivered",
            "8|dead|5|application/json|retry,retry,retry,retry,rejected",
            "9|pending|0|application/json|-",
        ]
    );
    let all = shop.everything().await;
    let again = shop.kit(MOVE_STATUS);
    assert!(again.lines().all(|l| l.ends_with("|0|0|0|0")), "{again}");
    assert_eq!(shop.everything().await, all);
    // First come, first served; and not before its time.
    assert_eq!(
        shop.drain().await,
        [
            r#"mail|-|{"k": "c", "n": 4}"#,
            r#"mail|-|{"k": "a", "n": 1}"#,
            r#"mail|-|{"k": "a", "n": 2}"#,
            r#"mail|-|{"k": "c", "n": 5}"#,
            "mail|-|null"
        ]
    );
    shop.later("2 hours").await;
    assert_eq!(shop.drain().await, [r#"mail|-|{"k": "b", "n": 3}"#]);
    shop.close().await;
}

/// What the head of the file says may be changed: an order key, ids that are UUIDs; and texts go as texts.
#[tokio::test]
async fn the_status_column_kit_can_be_adapted() {
    let shop = Shop::with(&status_column(
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "text",
    ))
    .await;
    shop.run(ROWS).await;
    let keyed = |text: String| text.replace("NULL::text AS order_key", "o.payload::jsonb ->> 'k' AS order_key");
    let printed = shop.edited(MOVE_STATUS, keyed);
    assert!(printed.contains("pending|4|0|4|0|3|3"), "{printed}");
    shop.later("2 hours").await;
    let sent = shop.drain().await;
    for (key, numbers) in [("a", &[1, 2][..]), ("b", &[3]), ("c", &[4, 5])] {
        let of_key: Vec<_> = sent
            .iter()
            .filter_map(|s| s.strip_prefix(&format!("mail|{key}|")))
            .collect();
        let expected: Vec<_> = numbers
            .iter()
            .map(|n| format!(r#"{{"k": "{key}", "n": {n}}}"#))
            .collect();
        assert_eq!(of_key, expected);
    }
    assert!(sent.contains(&"mail|-|".to_owned()), "{sent:?}");
    assert_eq!(
        shop.one("SELECT DISTINCT content_type FROM posthouse.messages").await,
        "text/plain; charset=utf-8"
    );
    shop.close().await;

    let shop = Shop::with(&status_column("uuid DEFAULT gen_random_uuid() PRIMARY KEY", "jsonb")).await;
    shop.run(ROWS).await;
    shop.edited(MOVE_STATUS, |text| {
        text.replace("md5('outbox/' || o.id)::uuid AS id", "o.id AS id")
    });
    assert_eq!(
        shop.one("SELECT count(*) FROM posthouse.messages v JOIN outbox o ON o.id = v.id")
            .await,
        "8"
    );
    shop.close().await;

    let shop = Shop::with(&status_column("int PRIMARY KEY", "text")).await;
    for (status, told) in [
        ("'paused'", "the status of row 1 is paused"),
        ("NULL", "the status of row 1 is NULL"),
    ] {
        shop.run(&format!(
            "DELETE FROM outbox; INSERT INTO outbox VALUES (1, 't', 'x', {status}, 0, NULL)"
        ))
        .await;
        let printed = shop.kit(MOVE_STATUS);
        assert!(printed.contains(told), "{printed}");
    }
    shop.close().await;
}

#[tokio::test]
async fn the_way_back_to_a_status_column() {
    let shop = Shop::with(&status_column(
        "bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
        "jsonb",
    ))
    .await;
    shop.run(ROWS).await;
    shop.kit(MOVE_STATUS);
    shop.run(
        "CREATE TEMP TABLE mine AS SELECT c.id, c.lease_token, d.old_id::int AS n FROM posthouse.claim_outbox_batch(10, 'w', 60) c JOIN outbox_moved d ON d.message_id = c.id;
         SELECT posthouse.complete_outbox_attempt(id, lease_token, 'w', CASE n WHEN 1 THEN 'delivered' WHEN 2 THEN 'retry' WHEN 4 THEN 'rejected' ELSE 'released' END) FROM mine;
         -- Since then: one on both sides, one here alone, one that ended here alone.
         INSERT INTO outbox (topic, payload, status, attempts) VALUES ('mail', '{\"n\": 10}', 'pending', 0);
         SELECT posthouse.enqueue('mail', payload, dedupe_key => 'outbox/' || id, id => md5('outbox/' || id)::uuid) FROM outbox WHERE payload ->> 'n' = '10';
         SELECT posthouse.enqueue('mail', '{\"n\": 11}');
         SELECT posthouse.resolve(posthouse.enqueue('mail', '{\"n\": 12}'), 'ops')",
    )
    .await;
    let printed = shop.kit("back_to_status_column.sql");
    assert_eq!(
        printed,
        "dead|2|ended here\ndone|3|ended here\npending|6|back in the old outbox\n"
    );
    assert_eq!(
        shop.rows("SELECT id, payload ->> 'n', status, attempts FROM outbox ORDER BY id")
            .await,
        [
            "1|1|sent|1",
            "2|2|pending|4",
            "3|3|pending|0",
            "4|4|failed|3",
            "5|5|pending|1",
            "6|6|sent|1",
            "7|7|sent|0",
            "8|8|failed|5",
            "9|-|pending|0",
            "10|10|pending|0",
            "11|11|pending|0"
        ]
    );
    assert_eq!(
        shop.one("SELECT bool_and(next_attempt_at IS NOT NULL) FROM outbox WHERE status = 'pending'")
            .await,
        "t"
    );
    let all = shop.everything().await;
    assert_eq!(
        shop.kit("back_to_status_column.sql"),
        "dead|2|ended here\ndone|3|ended here\n"
    );
    assert_eq!(shop.everything().await, all, "the way back, gone twice");
    // And forward again.
    let forward = shop.kit(MOVE_STATUS);
    assert!(forward.contains("pending|6|0|6|0|5|5"), "{forward}");
    shop.close().await;
}
