//! The schema: made once, by whomever, and refused where it does not fit.

use posthouse_core::{Claim, Error, Fit, Message, SagaId, Store, saga};
use posthouse_surreal::{Database, Options, SurrealDb};
use std::time::Duration;

async fn memory() -> Database {
    Database::connect("mem://").await.unwrap()
}

#[tokio::test]
async fn it_is_made_once() {
    let db = memory().await;
    let made = SurrealDb::migrate(&db).await.unwrap();
    assert!(!made.migrations.is_empty());
    let again = SurrealDb::migrate(&db).await.unwrap();
    assert!(again.migrations.is_empty(), "{again:?}");
    assert_eq!(again.fit, Fit::Current);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_several_migrators_one_makes_it() {
    let db = memory().await;
    let mut migrators = tokio::task::JoinSet::new();
    for _ in 0..8 {
        let db = db.clone();
        migrators.spawn(async move { SurrealDb::migrate(&db).await.unwrap().migrations.len() });
    }
    let made: Vec<_> = migrators
        .join_all()
        .await
        .into_iter()
        .filter(|made| *made > 0)
        .collect();
    assert_eq!(made.len(), 1, "{made:?}");
}

#[tokio::test]
async fn a_database_that_was_not_migrated_is_refused_with_what_to_do() {
    let refused = SurrealDb::open(memory().await, Options::default()).await;
    let Err(Error::Schema(said)) = refused.map(drop) else {
        panic!("it was opened");
    };
    assert!(said.contains("migrate"), "{said}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_unless_it_admits_this_program() {
    let db = memory().await;
    SurrealDb::migrate(&db).await.unwrap();
    let newer = |oldest: i64| {
        let sql = format!("UPDATE posthouse_record:['schema', 'only'] SET version = 99, oldest = {oldest}");
        let client = db.client().clone();
        async move { client.query(sql).await.unwrap().check().unwrap() }
    };
    newer(1).await;
    let admitted = SurrealDb::open(db.clone(), Options::default()).await.unwrap();
    assert!(admitted.expired(i64::MIN, 1).await.unwrap().is_empty());
    newer(99).await;
    let refused = SurrealDb::open(db.clone(), Options::default()).await.map(drop);
    assert!(matches!(refused, Err(Error::Schema(_))), "{refused:?}");
}

/// Records of earlier versions do not say how large they are on their way.
#[tokio::test]
async fn records_of_earlier_versions_are_read() {
    let db = memory().await;
    SurrealDb::migrate(&db).await.unwrap();
    let store = SurrealDb::open(db.clone(), Options::default()).await.unwrap();
    let declared = r#"{ "name": "one", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a" }] }"#;
    let declared: saga::Declared = serde_json::from_str(declared).unwrap();
    let (declared, mut ids) = (declared.compile().unwrap(), Vec::new());
    for key in ["k", "l", "m"] {
        let start = saga::Start::new(SagaId(uuid::Uuid::now_v7()), &declared, key, &1).unwrap();
        ids.push(store.start_now(start).await.unwrap().id());
    }
    let message = Message::bytes("t", "text/plain", b"one".to_vec()).header("x-by", "hand");
    store.enqueue_now(vec![message; 100]).await.unwrap();
    let older = "UPDATE posthouse_message UNSET header_bytes;
        UPDATE posthouse_record:['saga']..=['saga', {}] UNSET bytes;";
    db.client().query(older).await.unwrap().check().unwrap();
    let granted = store.claim(&Claim::new("w", 200, Duration::from_secs(60))).await;
    assert_eq!(granted.unwrap().len(), 103);
    let found = store.load_sagas(&ids).await.unwrap();
    assert!(found.into_iter().all(|found| found.unwrap().is_some()));
}
