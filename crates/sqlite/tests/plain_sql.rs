//! Enqueue from other languages: one INSERT, here by Python's own SQLite (3.40 or whatever it brings) and by hand.

use posthouse_core::{
    Admin, Claim, DeadReason, Digest, Enqueued, Error, Filter, Kind, Message, MessageView, Prune, SagaId, Store,
    saga::{Declared, HeldReason, SagaFilter, SagaState, Start},
};
use posthouse_sqlite::Sqlite;
use posthouse_testkit::Fixture;
use rusqlite::{Connection, TransactionBehavior};
use std::{path::Path, process::Command, time::Duration};

use crate::fixture::{SqliteFixture, dump};

const ID: &str = "0190abcd-ffee-7001-8002-aabbccddeeff";

/// Runs a script that finds the database in `db`, and returns what it prints.
fn python(path: &Path, script: &str) -> String {
    let prelude = "import sqlite3, sys\ndb = sqlite3.connect(sys.argv[1], timeout=10)\n";
    let output = Command::new("python3")
        .args(["-c", &format!("{prelude}{script}\ndb.commit()")])
        .arg(path)
        .output()
        .expect("python3 is installed");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

async fn all(store: &Sqlite) -> Vec<MessageView> {
    store.list(&Filter::default()).await.unwrap().messages
}

/// What an INSERT is refused with.
fn refused(db: &Connection, values: &str) -> String {
    let before = dump(db);
    let error = db
        .execute(&format!("INSERT INTO posthouse_enqueue {values}"), [])
        .unwrap_err();
    assert_eq!(dump(db), before, "{values} changed the store");
    error.to_string()
}

#[tokio::test]
async fn python_enqueues_json_bytes_and_everything_else() {
    let fixture = SqliteFixture::new();
    python(
        &fixture.path(),
        r#"
insert = "INSERT INTO posthouse_enqueue "
db.execute(insert + "(topic, payload) VALUES ('order.placed', ?)", ['{"order": 42}'])
db.execute(insert + "(topic, payload) VALUES ('photo', ?)", [b'\x00\xff'])
db.execute(
    insert + """(topic, payload, content_type, tenant, namespace, order_key, dedupe_key, headers, delay, deliver_in, id,
    on_duplicate, max_attempts, on_dead) VALUES ('mail', 'hello', 'text/plain', 'acme', 'shop', 'k', 'd',
    '{"X-Shop": "1"}', 1.5, 60, '0190abcd-ffee-7001-8002-aabbccddeeff', 'keep', 3, 'block')"""
)"#,
    );
    let store = fixture.open();
    fixture.advance(Duration::from_secs(2)).await;
    let mut claimed = store
        .claim(&Claim::new("w", 10, Duration::from_secs(15)))
        .await
        .unwrap();
    claimed.sort_by_key(|c| c.lease.seq);
    assert_eq!(claimed[0].delivery.payload, br#"{"order": 42}"#);
    assert_eq!(claimed[0].delivery.content_type, "application/json");
    assert_eq!(
        claimed[0].delivery.id.0.get_version_num(),
        7,
        "an absent id is made by the database"
    );
    assert_eq!(claimed[1].delivery.payload, [0, 255]);
    assert_eq!(claimed[1].delivery.content_type, "application/octet-stream");
    let full = &claimed[2];
    assert_eq!(full.delivery.id.to_string(), ID);
    assert_eq!(
        (full.delivery.tenant.as_str(), full.delivery.namespace.as_str()),
        ("acme", "shop")
    );
    assert_eq!(full.delivery.order_key.as_deref(), Some("k"));
    assert_eq!(full.delivery.headers.get("X-Shop").map(String::as_str), Some("1"));
    assert_eq!(full.lease.standing.max_attempts, 3);
    assert_eq!(full.lease.on_dead, posthouse_core::OnDead::Block);
    assert_eq!(full.deliver_within, Some(Duration::from_secs(58)));
}

#[tokio::test]
async fn pythons_delayed_and_keyed_messages_wait_their_turn() {
    let fixture = SqliteFixture::new();
    python(
        &fixture.path(),
        r#"
insert = "INSERT INTO posthouse_enqueue (topic, payload, order_key, delay) VALUES ('t', ?, ?, ?)"
db.executemany(insert, [('1', 'k', 10), ('2', 'k', 0), ('3', None, 5), ('4', 'other', 0)])"#,
    );
    let store = fixture.open();
    let mut order = Vec::new();
    for _ in 0..3 {
        let claimed = store
            .claim(&Claim::new("w", 10, Duration::from_secs(60)))
            .await
            .unwrap();
        order.push(
            claimed
                .into_iter()
                .map(|c| String::from_utf8(c.delivery.payload).unwrap())
                .collect::<Vec<_>>(),
        );
        fixture.advance(Duration::from_secs(5)).await;
    }
    assert_eq!(order, [vec!["4"], vec!["3"], vec!["1", "2"]]);
}

#[tokio::test]
async fn a_python_transaction_that_rolls_back_leaves_nothing() {
    let fixture = SqliteFixture::new();
    let before = fixture.dump().await;
    let script = "db.execute(\"INSERT INTO posthouse_enqueue (topic, payload) VALUES ('t', '1')\")\ndb.rollback()";
    python(&fixture.path(), script);
    assert_eq!(fixture.dump().await, before);
}

#[tokio::test]
async fn a_repeated_insert_writes_nothing_and_other_content_is_refused() {
    let fixture = SqliteFixture::new();
    let db = fixture.connect();
    let insert = |values: &str| {
        let columns = "INSERT INTO posthouse_enqueue (topic, payload, dedupe_key, id) VALUES";
        db.execute(&format!("{columns} {values}"), [])
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    insert(&format!("('t', '1', 'd', '{ID}')")).unwrap();
    let before = dump(&db);
    insert("('t', '1', 'd', NULL)").unwrap();
    insert(&format!("('t', '1', NULL, '{ID}')")).unwrap();
    insert(&format!("('t', '1', 'd', '{}')", ID.replace('-', "").to_uppercase())).unwrap();
    assert_eq!(dump(&db), before);
    let by_key = insert("('t', '2', 'd', NULL)").unwrap_err();
    assert!(
        by_key.starts_with("posthouse: STORAGE.CONFLICT: dedupe_key: "),
        "{by_key}"
    );
    let by_id = insert(&format!("('t', '2', NULL, '{ID}')")).unwrap_err();
    assert!(by_id.starts_with("posthouse: STORAGE.CONFLICT: id: "), "{by_id}");
    assert_eq!(dump(&db), before);
    insert("('u', '2', 'd', NULL)").unwrap();
}

#[tokio::test]
async fn rust_and_plain_sql_meet_in_one_dedupe_key() {
    let fixture = SqliteFixture::new();
    let (store, mut db) = (fixture.open(), fixture.connect());
    let sql =
        "INSERT INTO posthouse_enqueue (topic, payload, content_type, dedupe_key) VALUES ('t', 'x', 'text/plain', ?1)";
    db.execute(sql, ["a"]).unwrap();
    let id = all(&store).await[0].id;
    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let outbox = store.outbox();
    let same = Message::bytes("t", "text/plain", "x").dedupe_key("a");
    assert_eq!(outbox.enqueue(&tx, &same).unwrap(), Enqueued::Duplicate(id));
    let other = Message::bytes("t", "text/plain", "y").dedupe_key("a");
    match outbox.enqueue(&tx, &other) {
        Err(Error::DedupeConflict {
            key: "dedupe_key",
            existing,
        }) => assert_eq!(existing, id),
        answer => panic!("{answer:?}"),
    }
    outbox
        .enqueue(&tx, Message::bytes("t", "text/plain", "x").dedupe_key("b"))
        .unwrap();
    tx.commit().unwrap();
    db.execute(sql, ["b"]).unwrap();
    assert_eq!(all(&store).await.len(), 2);
}

/// The bytes are gone; the digest, which the producer did not bring, was kept in their place.
#[tokio::test]
async fn a_plain_sql_dedupe_key_outlives_its_body() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let sql =
        "INSERT INTO posthouse_enqueue (topic, payload, content_type, dedupe_key) VALUES ('t', 'x', 'text/plain', 'a')";
    fixture.connect().execute(sql, []).unwrap();
    let id = all(&store).await[0].id;
    store.resolve(id, "op", "seen", "").await.unwrap();
    fixture.advance(Duration::from_secs(3600)).await;
    assert_eq!(
        store
            .prune(&Prune::done(Duration::from_secs(60), 10, "op"))
            .await
            .unwrap()
            .messages(),
        1
    );
    let enqueue = async |body: &str| {
        store
            .enqueue_now(vec![Message::bytes("t", "text/plain", body).dedupe_key("a")])
            .await
    };
    assert_eq!(enqueue("x").await.unwrap(), [Enqueued::Duplicate(id)]);
    assert!(matches!(enqueue("y").await, Err(Error::DedupeConflict { existing, .. }) if existing == id));
    let kept: Vec<u8> = fixture
        .connect()
        .query_row("SELECT digest FROM posthouse_dedupe", [], |row| row.get(0))
        .unwrap();
    assert_eq!(kept, Digest::of("text/plain", b"x").as_bytes());
}

/// An id that the database makes is of version 7 and in the order of its clock, like those of the library.
#[tokio::test]
async fn ids_made_by_the_database_follow_its_clock() {
    let fixture = SqliteFixture::new();
    let db = Connection::open(fixture.path()).unwrap();
    for _ in 0..20 {
        db.execute("INSERT INTO posthouse_enqueue (topic, payload) VALUES ('t', '1')", [])
            .unwrap();
        let id = all(&fixture.open()).await[0].id.0;
        assert_eq!((id.get_version_num(), id.get_variant()), (7, uuid::Variant::RFC4122));
        let (secs, nanos) = id.get_timestamp().unwrap().to_unix();
        let millis = i64::try_from(secs * 1000).unwrap() + i64::from(nanos / 1_000_000);
        assert_eq!(millis, fixture.now().await.as_micros() / 1000);
        // Less than a millisecond: the order holds within one too.
        fixture.advance(Duration::from_micros(300)).await;
    }
    let newest_first: Vec<_> = all(&fixture.open()).await.iter().map(|m| m.id.0).collect();
    assert!(newest_first.is_sorted_by(|a, b| a > b), "{newest_first:?}");
}

#[tokio::test]
async fn what_no_store_may_accept_is_refused_with_its_field() {
    let fixture = SqliteFixture::new();
    let db = fixture.connect();
    let cases = [
        ("topic", "(topic, payload) VALUES ('', '1')"),
        ("topic", "(topic, payload) VALUES (NULL, '1')"),
        ("topic", "(topic, payload) VALUES (42, '1')"),
        ("topic", "(topic, payload) VALUES (printf('%.256c', 'x'), '1')"),
        ("topic", "(topic, payload) VALUES ('a' || char(10) || 'b', '1')"),
        ("topic", "(topic, payload) VALUES ('a' || char(0) || 'b', '1')"),
        ("topic", "(topic, payload) VALUES ('http:', '1')"),
        (
            "topic",
            "(topic, payload) VALUES ('http://user:secret@example.com/', '1')",
        ),
        ("payload", "(topic, payload) VALUES ('t', NULL)"),
        ("payload", "(topic, payload) VALUES ('t', 42)"),
        ("payload", "(topic, payload) VALUES ('t', 'no json')"),
        ("payload", "(topic, payload) VALUES ('t', zeroblob(16777217))"),
        ("content_type", "(topic, payload, content_type) VALUES ('t', 'x', '')"),
        (
            "tenant",
            "(topic, payload, tenant) VALUES ('t', '1', printf('%.256c', 'x'))",
        ),
        ("namespace", "(topic, payload, namespace) VALUES ('t', '1', '')"),
        ("order_key", "(topic, payload, order_key) VALUES ('t', '1', '')"),
        (
            "dedupe_key",
            "(topic, payload, dedupe_key) VALUES ('t', '1', char(133))",
        ),
        ("headers", "(topic, payload, headers) VALUES ('t', '1', 'no json')"),
        ("headers", "(topic, payload, headers) VALUES ('t', '1', '[1]')"),
        ("headers", "(topic, payload, headers) VALUES ('t', '1', '{\"a\": 1}')"),
        (
            "headers",
            "(topic, payload, headers) VALUES ('t', '1', '{\"Host\": \"x\"}')",
        ),
        (
            "headers",
            "(topic, payload, headers) VALUES ('t', '1', '{\"a b\": \"x\"}')",
        ),
        (
            "headers",
            "(topic, payload, headers) VALUES ('t', '1', '{\"a\": \"x\\r\\ny\"}')",
        ),
        (
            "headers",
            "(topic, payload, headers) VALUES ('t', '1', '{\"a\": \"x\\u0000y\"}')",
        ),
        ("delay", "(topic, payload, delay) VALUES ('t', '1', -1)"),
        ("delay", "(topic, payload, delay) VALUES ('t', '1', 1e9)"),
        ("delay", "(topic, payload, delay) VALUES ('t', '1', 'soon')"),
        ("deliver_in", "(topic, payload, deliver_in) VALUES ('t', '1', 0)"),
        (
            "deliver_in",
            "(topic, payload, delay, deliver_in) VALUES ('t', '1', 5, 5)",
        ),
        ("id", "(topic, payload, id) VALUES ('t', '1', 'me')"),
        ("id", "(topic, payload, id) VALUES ('t', '1', X'0102')"),
        ("max_attempts", "(topic, payload, max_attempts) VALUES ('t', '1', 0)"),
        ("on_dead", "(topic, payload, on_dead) VALUES ('t', '1', 'stop')"),
        ("kind", "(topic, payload, kind) VALUES ('t', '1', 'sprocket')"),
        (
            "kind",
            "(topic, payload, kind, parent) VALUES ('t', '1', 'step', zeroblob(16))",
        ),
        (
            "kind",
            "(topic, payload, kind, parent) VALUES ('t', '1', 'child', zeroblob(16))",
        ),
        ("parent", "(topic, payload, parent) VALUES ('t', '1', zeroblob(16))"),
        (
            "destination",
            "(topic, payload, destination) VALUES ('t', '1', 'billing')",
        ),
        (
            "headers",
            "(topic, payload, headers) VALUES ('t', '1', '{\"posthouse-step\": \"x\"}')",
        ),
        (
            "on_duplicate",
            "(topic, payload, on_duplicate) VALUES ('t', '1', 'maybe')",
        ),
    ];
    for (field, values) in cases {
        let error = refused(&db, values);
        assert!(
            error.starts_with(&format!("posthouse: SCHEMA.VALIDATION_FAILED: {field}: ")),
            "{values}: {error}"
        );
    }
}

#[tokio::test]
async fn the_limits_hold_to_the_byte() {
    let fixture = SqliteFixture::new();
    let db = fixture.connect();
    for values in [
        "(topic, payload) VALUES (printf('%.255c', 'x'), '1')",
        "(topic, payload) VALUES ('http://example.com/' || printf('%.2029c', 'x'), '1')",
        "(topic, payload) VALUES ('http://example.com/a@b', '1')",
        "(topic, payload) VALUES ('t', zeroblob(16777216))",
        "(topic, payload, order_key) VALUES ('t', '1', printf('%.255c', 'ü'))",
    ] {
        let inserted = db.execute(&format!("INSERT INTO posthouse_enqueue {values}"), []);
        assert_eq!(inserted.is_ok(), !values.contains('ü'), "{values}: {inserted:?}");
    }
}

/// A C program can bind any bytes as text. They must not stop those behind them.
#[tokio::test]
async fn text_that_is_no_utf8_is_delivered_and_settled() {
    let fixture = SqliteFixture::new();
    let db = fixture.connect();
    let insert = "INSERT INTO posthouse_enqueue (topic, payload, order_key, content_type)
        VALUES (CAST(X'74FF' AS TEXT), X'01', CAST(X'6BFE' AS TEXT), CAST(X'63FD' AS TEXT))";
    db.execute(insert, []).unwrap();
    db.execute(insert, []).unwrap();
    let store = fixture.open();
    let claimed = store
        .claim(&Claim::new("w", 10, Duration::from_secs(15)))
        .await
        .unwrap();
    assert_eq!(claimed.len(), 2);
    assert_eq!(claimed[0].delivery.topic, "t\u{fffd}");
    let settlements: Vec<_> = claimed
        .iter()
        .map(|c| posthouse_core::Settlement::released(&c.lease, Duration::ZERO))
        .collect();
    assert!(store.settle(&settlements).await.unwrap().iter().all(|v| v.is_settled()));
    assert_eq!(
        store
            .claim(&Claim::new("w", 10, Duration::from_secs(15)))
            .await
            .unwrap()
            .len(),
        2
    );
}

fn trip(key: &str, n: u8) -> Start {
    let json = r#"{"name": "trip", "version": 1, "steps": [{"name": "flight", "action_uri": "fn:book"}]}"#;
    let definition = Declared::from_json(json).unwrap().compile().unwrap();
    Start::new(SagaId(uuid::Uuid::from_bytes([n; 16])), &definition, key, &1).unwrap()
}

/// Past the view that checks, what no program could read is refused by the tables themselves.
#[tokio::test]
async fn the_tables_refuse_words_that_no_program_knows() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let message = Message::bytes("t", "text/plain", "x");
    let id = store.enqueue_now(vec![message]).await.unwrap()[0].id();
    store.start_now(trip("k", 1)).await.unwrap();
    store.cancel(id, "ann", "no").await.unwrap();
    let db = Connection::open(fixture.path()).unwrap();
    for (table, change) in [
        ("message", "kind = 'sprocket'"),
        ("message", "kind = 'step', parent = NULL"),
        ("message", "on_dead = 'stop'"),
        ("message", "max_attempts = 0"),
        ("dead", "state = 'sprocket'"),
        ("dead", "reason = 'because'"),
        ("saga", "state = 'sprocket'"),
        ("saga", "reason = 'because'"),
        ("saga", "paused = 7"),
        ("saga", "revision = 0"),
    ] {
        let refused = db
            .execute(&format!("UPDATE posthouse_{table} SET {change}"), [])
            .unwrap_err();
        assert!(
            refused.to_string().contains("CHECK constraint failed"),
            "{change}: {refused}"
        );
    }
    for state in SagaState::ALL {
        db.execute("UPDATE posthouse_saga SET state = ?1", [state.as_str()])
            .unwrap();
    }
    for reason in HeldReason::ALL {
        db.execute("UPDATE posthouse_saga SET reason = ?1", [reason.as_str()])
            .unwrap();
    }
    for kind in Kind::ALL {
        db.execute("UPDATE posthouse_message SET kind = ?1, parent = id", [kind.as_str()])
            .unwrap();
    }
    for reason in DeadReason::ALL {
        db.execute("UPDATE posthouse_dead SET reason = ?1", [reason.as_str()])
            .unwrap();
    }
}

/// Any process can write to the file, also past the constraints.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_listed_beside_the_others() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let message = |topic: &str| Message::bytes(topic, "text/plain", "x");
    let made = store
        .enqueue_now(["a", "b", "c", "d"].map(message).to_vec())
        .await
        .unwrap();
    for (n, key) in [(1, "k-1"), (2, "k-2"), (3, "k-3")] {
        store.start_now(trip(key, n)).await.unwrap();
    }
    let db = Connection::open(fixture.path()).unwrap();
    db.execute_batch(
        "PRAGMA ignore_check_constraints = ON;
         UPDATE posthouse_message SET kind = 'sprocket' WHERE topic = 'b';
         UPDATE posthouse_message SET digest = X'01' WHERE topic = 'c';
         UPDATE posthouse_saga SET state = 'sprocket' WHERE key = 'k-2'",
    )
    .unwrap();
    let page = all(&store).await;
    let plain: Vec<_> = page.iter().filter(|m| m.kind == Kind::Message).collect();
    let told: Vec<_> = plain
        .iter()
        .map(|m| (m.topic.as_str(), m.unreadable.is_some()))
        .collect();
    assert_eq!(told, [("d", false), ("c", true), ("b", true), ("a", false)]);
    let why = plain[2].unreadable.as_ref().unwrap();
    assert!(why.contains("kind: \"sprocket\" is not one of message"), "{why}");
    assert!(store.find(made[1].id()).await.unwrap().unwrap().unreadable.is_some());
    let page = store.sagas(&SagaFilter::default()).await.unwrap().sagas;
    let told: Vec<_> = page.iter().map(|s| (s.key.as_str(), s.unreadable.is_some())).collect();
    assert_eq!(told, [("k-3", false), ("k-2", true), ("k-1", false)]);
    let why = page[1].unreadable.as_ref().unwrap();
    assert!(why.contains("state: \"sprocket\" is not one of running"), "{why}");
}
