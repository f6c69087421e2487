//! Conflicts: what is lost is told, and nothing else is.

use posthouse_core::{Error, Filter, Message};
use posthouse_surreal::{Database, Outbox, Run, from_surreal};
use posthouse_testkit::Fixture;
use std::time::Duration;

use crate::fixture::{SurrealFixture, fresh, on_disk};

/// Adds one to the application's own count, and enqueues a message that tells of it, in one transaction.
async fn count_once(db: &Database, order_key: Option<&str>) -> Result<(), Error> {
    let tx = db.begin().await?;
    let added = tx.query("UPSERT count:only SET n = (n ?? 0) + 1").await;
    added.and_then(|added| added.check()).map_err(from_surreal)?;
    let mut message = Message::bytes("counted", "text/plain", b"one".to_vec());
    if let Some(key) = order_key {
        message = message.order_key(key);
    }
    Outbox::default().enqueue(&tx, message).await?;
    tx.commit().await.map(drop).map_err(from_surreal)
}

async fn counted(db: &Database) -> i64 {
    let mut answer = db.client().query("RETURN count:only.n ?? 0").await.unwrap();
    answer.take::<Option<i64>>(0).unwrap().unwrap()
}

/// Two transactions that change the same: the second is told at its commit, and nothing of it has happened.
async fn the_second_is_told(fx: SurrealFixture) {
    let db = &fx.db;
    count_once(db, None).await.unwrap();
    let (one, other) = (db.begin().await.unwrap(), db.begin().await.unwrap());
    for tx in [&one, &other] {
        tx.query("UPDATE count:only SET n += 1").await.unwrap().check().unwrap();
        Outbox::default()
            .enqueue(tx, Message::bytes("counted", "text/plain", b"two".to_vec()))
            .await
            .unwrap();
    }
    one.commit().await.unwrap();
    let told = other.commit().await.map_err(from_surreal).unwrap_err();
    assert!(matches!(told, Error::Contention(_)), "{told:?}");
    assert!(told.retryable());
    assert_eq!(counted(db).await, 2);
    let page = fx.admin().await.list(&Filter::default()).await.unwrap();
    assert_eq!(page.messages.len(), 2, "the message of the one that lost is there");
    fx.check().await;
}

#[tokio::test]
async fn a_commit_that_loses_is_never_a_success() {
    the_second_is_told(fresh().await).await;
    the_second_is_told(on_disk().await).await;
}

/// A statement that fails does not keep its transaction from being committed: whoever does not look at its own result takes it for done.
#[tokio::test]
async fn a_statement_that_fails_is_told_by_its_own_result() {
    let fx = fresh().await;
    let sql = "CREATE note:1 SET line = 'first'; CREATE note:1 SET line = 'again'; CREATE note:2 SET line = 'last';";
    let tx = fx.db.begin().await.unwrap();
    // As a program would that looks at the answer alone: nothing seems wrong.
    let unchecked = tx.query(sql).await;
    assert!(unchecked.is_ok(), "then there is nothing to look at: {unchecked:?}");
    tx.commit().await.unwrap();
    let tx = fx.db.begin().await.unwrap();
    let checked = tx.run(sql, Vec::new()).await;
    assert!(checked.is_err(), "{checked:?}");
    tx.cancel().await.unwrap();
}

/// So many at once count, each until it is not told of a conflict: no count is lost, and each has its message.
async fn storm(fx: SurrealFixture, order_key: Option<&'static str>) {
    const EACH: usize = 15;
    let db = &fx.db;
    let mut producers = tokio::task::JoinSet::new();
    for _ in 0..16 {
        let db = db.clone();
        producers.spawn(async move {
            let mut lost = 0;
            for _ in 0..EACH {
                // Ends: of those that conflict one commits.
                while let Err(error) = count_once(&db, order_key).await {
                    assert!(matches!(error, Error::Contention(_)), "{error:?}");
                    lost += 1;
                    tokio::time::sleep(Duration::from_millis(fastrand::u64(0..20))).await;
                }
            }
            lost
        });
    }
    let lost: usize = producers.join_all().await.into_iter().sum();
    assert!(lost > 0, "there was no storm");
    let all = 16 * EACH;
    assert_eq!(counted(db).await, i64::try_from(all).unwrap());
    let counts = fx.admin().await.counts().await.unwrap();
    assert_eq!(counts.ready.value, all as u64);
    fx.check().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_count_is_lost_in_a_storm_of_conflicts() {
    storm(fresh().await, None).await;
    storm(on_disk().await, Some("one")).await;
}
