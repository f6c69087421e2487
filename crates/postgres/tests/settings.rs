//! What the schema holds every producer to, whether it uses the library or plain SQL.

use posthouse_core::{Admin, Error, Limits, Message, StoreSettings};
use posthouse_postgres::{Options, Postgres};
use std::time::Duration;

use crate::fixture::{PostgresFixture, session, url};

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

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_configured_holds_for_everybody() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    assert_eq!(store.settings().await.unwrap(), StoreSettings::default());
    store.configure(&settings()).await.unwrap();
    assert_eq!(store.settings().await.unwrap(), settings());
    assert_eq!(field(store.enqueue_now(vec![of(2), of(1001)]).await), "payload");
    assert_eq!(field(store.enqueue_now(vec![of(1), of(1).tenant("")]).await), "tenant");
    let id = store.enqueue_now(vec![of(1000)]).await.unwrap()[0].id();
    assert_eq!(store.find(id).await.unwrap().unwrap().max_attempts, 3);
    let (client, driver) = session().await;
    for (payload, tenant, problem) in [(1001, "acme", "payload: "), (1, "", "tenant: ")] {
        let sql = format!("SELECT {}.enqueue_bytes('t', $1, tenant => $2)", fx.schema);
        let refused = client.query(&sql, &[&vec![7u8; payload], &tenant]).await.unwrap_err();
        let message = refused.as_db_error().unwrap().message().to_owned();
        assert!(message.starts_with(problem), "{message}");
    }
    driver.abort();
    let forever = StoreSettings {
        dedupe_lifetime: None,
        ..settings()
    };
    store.configure(&forever).await.unwrap();
    assert_eq!(store.settings().await.unwrap(), forever);
    let none = StoreSettings {
        max_attempts: 0,
        ..settings()
    };
    assert_eq!(field(store.configure(&none).await), "max_attempts");
}

/// More than a program allows by itself, for one that leaves it to the store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_larger_limit_holds_too() {
    let fx = PostgresFixture::new().await;
    let limits = |payload_bytes| Limits {
        payload_bytes,
        require_tenant: false,
    };
    let options = Options {
        limits: limits(Limits::HARD_PAYLOAD_BYTES),
        ..PostgresFixture::options(&fx.schema)
    };
    let store = Postgres::connect_with(&url(), options).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of(300 << 10)]).await), "payload");
    let wide = StoreSettings {
        limits: limits(300 << 10),
        ..settings()
    };
    store.configure(&wide).await.unwrap();
    store.enqueue_now(vec![of(300 << 10)]).await.unwrap();
    assert_eq!(field(store.enqueue_now(vec![of((300 << 10) + 1)]).await), "payload");
}
