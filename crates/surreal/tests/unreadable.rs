//! Records that this program cannot read, and a server that says nothing.

use posthouse_core::{Admin, Error, Filter, Message, SagaId, saga};
use posthouse_surreal::Database;
use std::time::Duration;
use tokio::net::TcpListener;

use crate::fixture::fresh;

fn trip(key: &str, n: u8) -> saga::Start {
    let json = r#"{"name": "trip", "version": 1, "steps": [{"name": "flight", "action_uri": "fn:book"}]}"#;
    let definition = saga::Declared::from_json(json).unwrap().compile().unwrap();
    saga::Start::new(SagaId(uuid::Uuid::from_bytes([n; 16])), &definition, key, &1).unwrap()
}

/// A database has no tables that refuse anything: any client may write what no program knows.
#[tokio::test]
async fn a_record_that_cannot_be_read_is_listed_beside_the_others() {
    let fx = fresh().await;
    let store = fx.open().await;
    let message = |topic: &str| Message::bytes(topic, "text/plain", "x");
    let made = store.enqueue_now(["a", "b", "c"].map(message).to_vec()).await.unwrap();
    for (n, key) in [(1, "k-1"), (2, "k-2"), (3, "k-3")] {
        store.start_now(trip(key, n)).await.unwrap();
    }
    let spoiled = "UPDATE posthouse_message SET kind = 'sprocket' WHERE topic = 'b' RETURN NONE;
                   UPDATE posthouse_record SET state = 'sprocket' WHERE key = 'k-2' AND snapshot != NONE RETURN NONE";
    fx.db.client().query(spoiled).await.unwrap().check().unwrap();
    let page = store.list(&Filter::default()).await.unwrap().messages;
    let told: Vec<_> = page
        .iter()
        .map(|m| (m.topic.as_str(), m.unreadable.is_some()))
        .collect();
    let plain: Vec<_> = told.into_iter().filter(|(topic, _)| topic.len() == 1).collect();
    assert_eq!(plain, [("c", false), ("b", true), ("a", false)]);
    let found = store.find(made[1].id()).await.unwrap().unwrap();
    let why = found.unreadable.unwrap();
    assert!(why.contains("kind: \"sprocket\" is not one of message"), "{why}");
    let page = store.sagas(&saga::SagaFilter::default()).await.unwrap().sagas;
    let told: Vec<_> = page.iter().map(|s| (s.key.as_str(), s.unreadable.is_some())).collect();
    assert_eq!(told, [("k-3", false), ("k-2", true), ("k-1", false)]);
}

#[tokio::test]
async fn a_silent_server_is_given_up_and_named() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let accepting = tokio::spawn(async move {
        let mut open = Vec::new();
        while let Ok((stream, _)) = listener.accept().await {
            open.push(stream);
        }
    });
    let url = format!("surrealdb://ann:s3cret@{address}/shop/orders");
    let reached = tokio::time::timeout(Duration::from_secs(60), Database::connect(&url)).await;
    match reached.expect("it is given up") {
        Err(Error::Timeout(text)) => {
            let text = text.to_string();
            assert!(
                text.contains(&address.to_string()) && !text.contains("s3cret"),
                "{text}"
            );
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("nobody answered"),
    }
    accepting.abort();
}
