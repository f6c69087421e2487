//! A server that does not answer: whoever stops waiting for it leaves nothing behind that others would wait for.

use posthouse_core::{Admin, Claim, Message, Store};
use posthouse_postgres::{Options, Postgres};
use std::time::Duration;
use tokio::time::timeout;

use crate::fixture::{PostgresFixture, session, url};

const LONG: Duration = Duration::from_secs(60);

/// With one connection: if that went back with a question that has no answer yet, the next question would wait behind it.
#[tokio::test]
async fn a_call_that_is_given_up_leaves_nothing_behind() {
    let fx = PostgresFixture::new().await;
    let options = Options {
        connections: 1,
        ..PostgresFixture::options(&fx.schema)
    };
    let store = Postgres::connect_with(&url(), options).await.unwrap();
    store
        .enqueue_now(vec![Message::bytes("t", "text/plain", "x")])
        .await
        .unwrap();
    let (blocker, _reader) = session().await;
    let lock = format!("BEGIN; LOCK TABLE {}.leased IN ACCESS EXCLUSIVE MODE", fx.schema);
    blocker.batch_execute(&lock).await.unwrap();

    let claim = Claim::new("w", 1, LONG);
    let given_up = timeout(Duration::from_millis(300), store.claim(&claim)).await;
    assert!(given_up.is_err(), "the table is locked");
    let asked = timeout(LONG, store.pauses()).await;
    asked.expect("nobody waits behind what was given up").unwrap();

    // Nor does the server go on with it, and grant what nobody would hear of.
    let waiting = format!(
        "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{}.leased'::regclass",
        fx.schema
    );
    let is_over = async {
        while blocker.query_one(&waiting, &[]).await.unwrap().get::<_, i64>(0) > 0 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    timeout(LONG, is_over).await.expect("the server was told");
    blocker.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(store.claim(&claim).await.unwrap()[0].delivery.attempt, 1);
}
