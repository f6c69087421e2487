//! What the file holds every producer to, beyond what the suite tells: in plain SQL, and before what a program allows by itself.

use posthouse_core::{Limits, Message, StoreSettings};
use posthouse_testkit::suite::{configured::strict, tools::field};

use crate::fixture::SqliteFixture;

fn of(bytes: usize) -> Message {
    Message::bytes("t", "text/plain", vec![b'x'; bytes]).tenant("acme")
}

/// One INSERT, as any language does it.
fn plain(fixture: &SqliteFixture, tenant: &str, bytes: usize) -> Result<usize, String> {
    let sql = "INSERT INTO posthouse_enqueue (topic, payload, tenant, dedupe_key) VALUES ('p', ?1, ?2, 'k' || ?2)";
    let db = fixture.connect();
    db.execute(sql, rusqlite::params![vec![b'x'; bytes], tenant])
        .map_err(|e| e.to_string())
}

#[tokio::test]
async fn what_is_configured_holds_in_plain_sql_and_for_whoever_was_there_before() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    assert_eq!(store.settings().await.unwrap(), None);
    fixture.open().configure(&strict()).await.unwrap();
    assert_eq!(store.settings().await.unwrap(), Some(strict()));
    assert_eq!(field(store.enqueue_now(vec![of(1001)]).await), "payload");
    store.enqueue_now(vec![of(1000)]).await.unwrap();
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

/// It may also be more than a program allows by itself.
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
        ..strict()
    };
    assert_eq!(field(store.enqueue_now(vec![of(300 << 10)]).await), "payload");
    store.configure(&wide).await.unwrap();
    store.enqueue_now(vec![of(300 << 10)]).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of((300 << 10) + 1)]).await), "payload");
    plain(&fixture, "acme", 1).unwrap();
    let sql = "SELECT dedupe_for FROM posthouse_message WHERE topic = 'p'";
    let forever: Option<i64> = fixture.connect().query_row(sql, [], |row| row.get(0)).unwrap();
    assert_eq!(forever, None);
}
