//! A server that does not answer: whoever stops waiting for it leaves nothing behind that others would wait for.

use posthouse_core::{Admin, Claim, Error, Message, Store};
use posthouse_postgres::{Options, Postgres};
use std::{net::SocketAddr, time::Duration};
use tokio::{net::TcpListener, task::JoinHandle, time::timeout};

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

/// A server that accepts connections and never answers.
async fn silent() -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    (address, accepting)
}

#[track_caller]
fn names(error: &Error, address: SocketAddr) {
    let Error::Timeout(text) = error else {
        panic!("{error:?}")
    };
    let place = format!("127.0.0.1 port {}", address.port());
    assert!(
        text.to_string().contains(&place) && text.to_string().contains("within 1 seconds"),
        "{text}"
    );
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_named() {
    let (address, accepting) = silent().await;
    let url = format!("postgres://{address}/shop?connect_timeout=1");
    let opened = timeout(LONG, Postgres::connect(&url)).await.expect("it is given up");
    names(&opened.err().unwrap(), address);
    let store = Postgres::open(&url, Options::default()).unwrap();
    for attempt in [
        store.migrate().await.err(),
        store.plan_migration().await.err(),
        store.make_roles().await.err(),
    ] {
        names(&attempt.unwrap(), address);
    }
    accepting.abort();
}

/// Each host of the URL has its time, and all are named, without the password.
#[tokio::test]
async fn every_host_of_the_url_is_named() {
    let ((a, one), (b, other)) = (silent().await, silent().await);
    let url = format!("postgres://ann:s3cret@{a},{b}/shop?connect_timeout=1");
    let opened = timeout(LONG, Postgres::connect(&url)).await.expect("it is given up");
    let said = opened.err().unwrap().to_string();
    let places = format!("127.0.0.1 port {}, 127.0.0.1 port {}", a.port(), b.port());
    assert!(said.contains(&places) && said.contains("within 2 seconds"), "{said}");
    assert!(!said.contains("s3cret"), "{said}");
    one.abort();
    other.abort();
}

/// The connection that listens is of another URL where there is a pooler.
#[tokio::test]
async fn a_silent_server_to_listen_at_is_named_and_polled_for() {
    let (address, accepting) = silent().await;
    let fx = PostgresFixture::new().await;
    let options = Options {
        listen: Some(format!("postgres://{address}/shop?connect_timeout=1")),
        ..PostgresFixture::options(&fx.schema)
    };
    let store = Postgres::connect_with(&url(), options).await.unwrap();
    store.asleep("w", LONG).await.unwrap();
    let said = async {
        // Ends: the connection is given up after a second.
        loop {
            if let Err(error) = store.wake(Duration::from_millis(50)).await {
                break error;
            }
        }
    };
    names(&timeout(LONG, said).await.expect("it is given up"), address);
    accepting.abort();
}
