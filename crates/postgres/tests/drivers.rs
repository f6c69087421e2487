//! The application's own drivers, against the real database.

use posthouse_core::{Enqueued, Error, Message};
use posthouse_postgres::Outbox;
use std::time::Duration;

use crate::fixture::{PostgresFixture, session, url};

/// The same enqueue through the transactions of each driver; committed it is there, rolled back it is not.
#[tokio::test(flavor = "multi_thread")]
async fn tokio_postgres_and_its_pool_enqueue_in_their_transactions() {
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let (mut client, driver) = session().await;
    let mut tx = client.transaction().await.unwrap();
    let Enqueued::New(id) = outbox
        .enqueue(&mut tx, Message::json("t", "committed").unwrap())
        .await
        .unwrap()
    else {
        panic!()
    };
    tx.commit().await.unwrap();
    let mut tx = client.transaction().await.unwrap();
    outbox
        .enqueue(&mut tx, Message::json("t", "rolled back").unwrap())
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(
        fx.one("SELECT string_agg(id::text, ',') FROM posthouse.messages").await,
        id.to_string()
    );
    driver.abort();
}

#[cfg(feature = "sqlx")]
#[tokio::test(flavor = "multi_thread")]
async fn sqlx_enqueues_in_its_transaction() {
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(2)
        .connect(&url())
        .await
        .unwrap();
    let mut tx = pool.begin().await.unwrap();
    let message = Message::json("t", "committed")
        .unwrap()
        .order_key("k")
        .dedupe_key("d")
        .header("x", "y")
        .delay(Duration::from_secs(1));
    let Enqueued::New(id) = outbox.enqueue(&mut tx, message.clone()).await.unwrap() else {
        panic!()
    };
    tx.commit().await.unwrap();
    let mut tx = pool.begin().await.unwrap();
    assert_eq!(
        outbox.enqueue(&mut tx, message.clone()).await.unwrap(),
        Enqueued::Duplicate(id)
    );
    let conflict = outbox
        .enqueue(
            &mut tx,
            Message {
                payload: b"2".to_vec(),
                ..message
            },
        )
        .await;
    assert!(
        matches!(conflict, Err(Error::DedupeConflict { key: "dedupe_key", existing }) if existing == id),
        "{conflict:?}"
    );
    drop(tx);
    let mut tx = pool.begin().await.unwrap();
    outbox
        .enqueue_all(&mut tx, vec![Message::bytes("t", "text/plain", "rolled back"); 3])
        .await
        .unwrap();
    tx.rollback().await.unwrap();
    assert_eq!(
        fx.one("SELECT string_agg(id::text, ',') FROM posthouse.messages").await,
        id.to_string()
    );
    pool.close().await;
}

/// More than a statement's thousand, in order, with duplicates told apart.
#[tokio::test(flavor = "multi_thread")]
async fn a_bulk_enqueue_of_several_statements_keeps_its_order() {
    let fx = PostgresFixture::new().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let (mut client, driver) = session().await;
    let mut tx = client.transaction().await.unwrap();
    let messages: Vec<_> = (0..2500)
        .map(|n| Message::bytes("t", "text/plain", (n % 2400).to_string()).dedupe_key((n % 2400).to_string()))
        .collect();
    let answers = outbox.enqueue_all(&mut tx, messages).await.unwrap();
    tx.commit().await.unwrap();
    assert!(answers[..2400].iter().all(|a| matches!(a, Enqueued::New(_))));
    assert!(
        answers[2400..]
            .iter()
            .zip(&answers)
            .all(|(again, first)| *again == Enqueued::Duplicate(first.id()))
    );
    assert_eq!(fx.one("SELECT count(*) FROM posthouse.message").await, "2400");
    driver.abort();
}
