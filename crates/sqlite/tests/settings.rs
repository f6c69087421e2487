//! What the file holds every producer to, whether it uses the library or plain SQL.

use posthouse_core::{Admin, Error, Limits, Message, Outcome, RetryPolicy, Settlement, Store, StoreSettings, Verdict};
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::SqliteFixture;

const DAY: Duration = Duration::from_secs(24 * 3600);

fn settings() -> StoreSettings {
    StoreSettings {
        limits: Limits {
            payload_bytes: 1000,
            require_tenant: true,
        },
        max_attempts: 3,
        dedupe_lifetime: Some(2 * DAY),
    }
}

fn of(bytes: usize) -> Message {
    Message::bytes("t", "text/plain", vec![b'x'; bytes]).tenant("acme")
}

fn field<T: std::fmt::Debug>(answer: Result<T, Error>) -> &'static str {
    match answer {
        Err(Error::Invalid(invalid)) => invalid.field,
        other => panic!("{other:?}"),
    }
}

/// One INSERT, as any language does it.
fn plain(fixture: &SqliteFixture, tenant: &str, bytes: usize) -> Result<usize, String> {
    let sql = "INSERT INTO posthouse_enqueue (topic, payload, tenant, dedupe_key) VALUES ('p', ?1, ?2, 'k' || ?2)";
    let db = fixture.connect();
    db.execute(sql, rusqlite::params![vec![b'x'; bytes], tenant])
        .map_err(|e| e.to_string())
}

#[tokio::test]
async fn what_is_configured_holds_for_everybody() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    assert_eq!(store.settings().await.unwrap(), None);
    store.configure(&settings()).await.unwrap();
    // Also for one that opened the file with other options, before or after.
    for store in [store, fixture.open()] {
        assert_eq!(store.settings().await.unwrap(), Some(settings()));
        assert_eq!(field(store.enqueue_now(vec![of(1001)]).await), "payload");
        assert_eq!(field(store.enqueue_now(vec![of(1).tenant("")]).await), "tenant");
        let id = store.enqueue_now(vec![of(1000)]).await.unwrap()[0].id();
        assert_eq!(store.find(id).await.unwrap().unwrap().max_attempts, 3);
        let mut db = fixture.connect();
        let tx = db.transaction().unwrap();
        assert_eq!(field(store.outbox().enqueue(&tx, of(1001))), "payload");
        store.outbox().enqueue(&tx, of(2).max_attempts(9)).unwrap();
    }
    assert!(plain(&fixture, "", 1).unwrap_err().contains("tenant: is empty"));
    assert!(
        plain(&fixture, "acme", 1001)
            .unwrap_err()
            .contains("payload: is larger")
    );
    plain(&fixture, "acme", 1000).unwrap();
    let sql = "SELECT max_attempts, dedupe_for FROM posthouse_message WHERE topic = 'p'";
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, Option<i64>>(1)?));
    let found = fixture.connect().query_row(sql, [], row).unwrap();
    assert_eq!(found, (3, Some(2 * 24 * 3600 * 1_000_000)));
}

/// It may also be more than a program allows by itself, and a follow-up is a message like any other.
#[tokio::test]
async fn a_larger_limit_and_an_endless_lifetime_hold_too() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let wide = StoreSettings {
        limits: Limits {
            payload_bytes: 300 << 10,
            require_tenant: false,
        },
        dedupe_lifetime: None,
        ..settings()
    };
    assert_eq!(field(store.enqueue_now(vec![of(300 << 10)]).await), "payload");
    store.configure(&wide).await.unwrap();
    store.enqueue_now(vec![of(300 << 10)]).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of((300 << 10) + 1)]).await), "payload");
    plain(&fixture, "acme", 1).unwrap();
    let sql = "SELECT dedupe_for FROM posthouse_message WHERE topic = 'p'";
    let forever: Option<i64> = fixture.connect().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(forever, None);
    store.configure(&settings()).await.unwrap();
    let claim = posthouse_core::Claim::new("w", 1, Duration::from_secs(15));
    let lease = store.claim(&claim).await.unwrap().remove(0).lease;
    let done = Outcome::Delivered { receipt: None };
    let settled =
        |follow_up| Settlement::of(&lease, done.clone(), &RetryPolicy::default(), 0.5).follow_ups(vec![follow_up]);
    let verdicts = store.settle(&[settled(of(1).tenant(""))]).await.unwrap();
    assert!(matches!(&verdicts[0], Verdict::Refused(Error::Invalid(i)) if i.field == "tenant"));
    assert!(store.settle(&[settled(of(1))]).await.unwrap()[0].is_settled());
    fixture.check().await;
}

#[tokio::test]
async fn senseless_settings_are_refused() {
    let fixture = SqliteFixture::new();
    let none = StoreSettings {
        max_attempts: 0,
        ..settings()
    };
    assert_eq!(field(fixture.open().configure(&none).await), "max_attempts");
}
