//! `enqueue_batch`, the bulk enqueue of producers without a library, and the ids that the database makes.

use posthouse_testkit::Fixture;
use std::time::Duration;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session};

async fn refusal(client: &Client, sql: &str) -> (String, String) {
    let refused = client.batch_execute(sql).await.unwrap_err();
    let db = refused.as_db_error().unwrap();
    (db.code().code().to_owned(), db.message().to_owned())
}

/// Refused with the element and the field in front, counted as PostgreSQL counts in JSON: from zero.
#[tokio::test]
async fn a_wrong_element_is_refused_by_place_and_field() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let cases = [
        (r#""delay": "soon""#, "delay: is not an interval"),
        (r#""delay": 5"#, "delay: must be a text"),
        (r#""delay": "-1 s""#, "delay: must be between"),
        (r#""delay": "99999999999 years""#, "delay: is not an interval"),
        (r#""deliver_in": "tomorrow morning""#, "deliver_in: is not an interval"),
        (r#""deliver_in": true"#, "deliver_in: must be a text"),
        (r#""id": "42""#, "id: is not a UUID"),
        (r#""id": 42"#, "id: must be a text"),
        (r#""max_attempts": "many""#, "max_attempts: must be a whole number"),
        (r#""max_attempts": 1.5"#, "max_attempts: must be a whole number"),
        (r#""max_attempts": 1e300"#, "max_attempts: must be a whole number"),
        (r#""max_attempts": 0"#, "max_attempts: must be between"),
        (r#""topic": 7"#, "topic: must be a text"),
        (r#""topic": """#, "topic: is empty"),
        (r#""topic": null"#, "topic: must not be NULL"),
        (r#""tenant": ["a"]"#, "tenant: must be a text"),
        (r#""namespace": "a\nb""#, "namespace: holds a control character"),
        (r#""order_key": {}"#, "order_key: must be a text"),
        (r#""dedupe_key": """#, "dedupe_key: is empty"),
        (r#""headers": "x: y""#, "headers: is not a JSON object"),
        (r#""headers": {"host": "x"}"#, "headers: \"host\" is reserved"),
        (r#""on_duplicate": "maybe""#, "on_duplicate: must be"),
        (r#""on_dead": "maybe""#, "on_dead: must be"),
        (r#""ordering": "maybe""#, "ordering: must be"),
        (r#""key": "k""#, "there is no field \"key\""),
    ];
    for (field, expected) in cases {
        // Of two fields of one name, JSON takes the last.
        let batch = format!(r#"[{{"topic": "t", "payload": 1}}, {{"topic": "t", "payload": 1, {field}}}]"#);
        let (code, text) = refusal(&client, &format!("SELECT {}.enqueue_batch('{batch}')", fx.schema)).await;
        let place = if field.contains("\"key\"") {
            "messages[1]: "
        } else {
            "messages[1]."
        };
        assert!(
            code == "P7006" && text.starts_with(&format!("{place}{expected}")),
            "{field}: {code} {text}"
        );
    }
    for (batch, expected) in [
        ("NULL", "messages: is not a JSON array"),
        ("'{}'", "messages: is not a JSON array"),
        (
            "'[{\"topic\": \"t\", \"payload\": 1}, 7]'",
            "messages[1]: is not a JSON object",
        ),
        ("'[{\"topic\": \"t\"}]'", "messages[0].payload: must not be NULL"),
    ] {
        let (code, text) = refusal(&client, &format!("SELECT {}.enqueue_batch({batch})", fx.schema)).await;
        assert!(code == "P7006" && text.starts_with(expected), "{batch}: {code} {text}");
    }
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "0");
    driver.abort();
}

/// Everything that one enqueue takes, a batch takes; a field that is null is one that is not there.
#[tokio::test]
async fn a_batch_does_what_as_many_enqueues_do() {
    let fx = PostgresFixture::new().await;
    let one =
        "SELECT posthouse.enqueue('t', '{\"n\": 1}', 'acme', 'shop', 'k', 'd', '{\"a\": \"b\"}', '1 hour', '2 hours',
               '018f0000-0000-7000-8000-000000000001', 'keep', 3, 'block', 'relaxed')";
    let all = r#"SELECT string_agg(b::text, ',') FROM posthouse.enqueue_batch('[{"topic": "t", "payload": {"n": 1}, "tenant": "acme",
        "namespace": "shop", "order_key": "k", "dedupe_key": "d", "headers": {"a": "b"}, "delay": "1 hour", "deliver_in": "2 hours",
        "id": "018f0000-0000-7000-8000-000000000001", "on_duplicate": "keep", "max_attempts": 3, "on_dead": "block", "ordering": "relaxed"}]') b"#;
    let clear = "DELETE FROM posthouse.message; DELETE FROM posthouse.keyed; DELETE FROM posthouse.dedupe;
                 ALTER SEQUENCE posthouse.message_seq_seq RESTART";
    let id = fx.one(one).await;
    let by_one = fx.dump().await;
    fx.run(clear).await;
    assert_eq!(fx.one(all).await, id);
    assert_eq!(fx.dump().await, by_one);

    fx.run(clear).await;
    fx.one("SELECT posthouse.enqueue('t', 'null', id => '018f0000-0000-7000-8000-000000000001')")
        .await;
    let plain = fx.dump().await;
    fx.run(
        "DELETE FROM posthouse.message; DELETE FROM posthouse.ready; ALTER SEQUENCE posthouse.message_seq_seq RESTART",
    )
    .await;
    fx.one(
        r#"SELECT count(*) FROM posthouse.enqueue_batch('[{"topic": "t", "payload": null, "tenant": null, "namespace": null, "order_key": null,
        "dedupe_key": null, "headers": null, "delay": null, "deliver_in": null, "id": "018f0000-0000-7000-8000-000000000001",
        "on_duplicate": null, "max_attempts": null, "on_dead": null, "ordering": null}]')"#,
    )
    .await;
    assert_eq!(fx.dump().await, plain);
}

/// Answers stand in the order of the batch, also of those that were there; a batch of none answers none.
#[tokio::test]
async fn a_batch_is_answered_in_its_order() {
    let fx = PostgresFixture::new().await;
    let first = fx.one("SELECT posthouse.enqueue('t', '1', dedupe_key => 'a')").await;
    let ids = fx
        .one(
            r#"SELECT string_agg(b::text, ',' ORDER BY o) FROM posthouse.enqueue_batch('[
        {"topic": "t", "payload": 3, "order_key": "k"}, {"topic": "t", "payload": 1, "dedupe_key": "a"},
        {"topic": "t", "payload": 4, "dedupe_key": "b"}, {"topic": "t", "payload": 4, "dedupe_key": "b"}]') WITH ORDINALITY u(b, o)"#,
        )
        .await;
    let ids: Vec<_> = ids.split(',').collect();
    assert_eq!(ids[1], first);
    assert_eq!(ids[2], ids[3]);
    let stored = fx
        .one("SELECT string_agg(id::text, ',' ORDER BY seq) FROM posthouse.message")
        .await;
    assert_eq!(stored, [first.as_str(), ids[0], ids[2]].join(","));
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.enqueue_batch('[]')").await, "0");
}

/// Sessions that bring the same keys in opposite order wait for each other, and none is ended by a deadlock: neither when the
/// keys are new nor when they are taken over from messages that ended long ago.
#[tokio::test(flavor = "multi_thread")]
async fn opposite_orders_of_dedupe_keys_do_not_deadlock() {
    let fx = PostgresFixture::new().await;
    let batch = |keys: &mut dyn Iterator<Item = u32>| {
        let all: Vec<_> = keys
            .map(|k| format!(r#"{{"topic": "t", "payload": {k}, "dedupe_key": "k{k}"}}"#))
            .collect();
        format!(
            "SELECT count(*) FROM {}.enqueue_batch('[{}]')",
            fx.schema,
            all.join(",")
        )
    };
    let (up, down) = (batch(&mut (0..300)), batch(&mut (0..300).rev()));
    for round in 0..3 {
        let mut sessions = Vec::new();
        for n in 0..4 {
            let sql = if n % 2 == 0 { up.clone() } else { down.clone() };
            sessions.push(tokio::spawn(async move {
                let (client, driver) = session().await;
                let outcome = client.batch_execute(&sql).await.map_err(|e| e.to_string());
                driver.abort();
                outcome
            }));
        }
        for done in sessions {
            assert_eq!(done.await.unwrap(), Ok(()), "round {round}");
        }
        let expected = 300 * (round + 1);
        assert_eq!(
            fx.one("SELECT count(*) FROM posthouse.message").await,
            expected.to_string()
        );
        // All end, and their keys are free.
        fx.run("DELETE FROM posthouse.ready").await;
        fx.advance(Duration::from_secs(30 * 24 * 3600)).await;
    }
}

/// The ids that the database makes are of version 7 and in the order of the clock, like those of the library.
#[tokio::test]
async fn ids_made_by_the_database_follow_its_clock() {
    let fx = PostgresFixture::new().await;
    let mut ids = Vec::new();
    for n in 0..20 {
        let sql = match n % 3 {
            0 => "SELECT posthouse.enqueue('t', '1')",
            1 => "SELECT posthouse.enqueue_bytes('t', '')",
            _ => r#"SELECT posthouse.enqueue_batch('[{"topic": "t", "payload": 1}]')"#,
        };
        let id: uuid::Uuid = fx.one(sql).await.parse().unwrap();
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (secs, nanos) = id.get_timestamp().unwrap().to_unix();
        let millis = i64::try_from(secs * 1000).unwrap() + i64::from(nanos / 1_000_000);
        assert_eq!(millis, fx.now().await.as_micros() / 1000);
        ids.push(id);
        // Less than a millisecond: the order holds within one too.
        fx.advance(Duration::from_micros(300)).await;
    }
    assert!(ids.is_sorted(), "{ids:?}");
    let many = fx
        .one("SELECT count(DISTINCT posthouse.new_id()) FROM generate_series(1, 10000)")
        .await;
    assert_eq!(many, "10000", "one instant has room for many");
}
