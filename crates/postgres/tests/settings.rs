//! What the schema holds every producer to, beyond what the suite tells: in plain SQL, and beside what a program allows by itself.

use posthouse_core::{Limits, Message, StoreSettings};
use posthouse_postgres::{Options, Postgres};
use posthouse_testkit::{
    Fixture,
    suite::{configured::strict, tools::field},
};

use crate::fixture::{PostgresFixture, session, url};

fn limits(payload_bytes: usize) -> Limits {
    Limits {
        payload_bytes,
        require_tenant: false,
    }
}

fn of(bytes: usize) -> Message {
    Message::bytes("t", "text/plain", vec![b'x'; bytes])
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_configured_holds_in_plain_sql() {
    let fx = PostgresFixture::new().await;
    fx.configure(&strict()).await.unwrap();
    let (client, driver) = session().await;
    for (payload, tenant, problem) in [(1001, "acme", "payload: "), (1, "", "tenant: ")] {
        let sql = format!("SELECT {}.enqueue_bytes('t', $1, tenant => $2)", fx.schema);
        let refused = client.query(&sql, &[&vec![7u8; payload], &tenant]).await.unwrap_err();
        let message = refused.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with(problem), "{message}");
    }
    driver.abort();
}

/// More than a program allows by itself, for one that leaves it to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_larger_limit_holds_too() {
    let fx = PostgresFixture::new().await;
    let options = Options {
        limits: limits(Limits::HARD_PAYLOAD_BYTES),
        ..PostgresFixture::options(&fx.schema)
    };
    let store = Postgres::connect_with(&url(), options).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of(300 << 10)]).await), "payload");
    let wide = StoreSettings {
        limits: limits(300 << 10),
        ..StoreSettings::default()
    };
    store.configure(&wide).await.unwrap();
    store.enqueue_now(vec![of(300 << 10)]).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of((300 << 10) + 1)]).await), "payload");
}
