//! Conflicts: what is lost is told, and nothing else is.

use posthouse_core::{Claim, Error, Filter, Message, Settlement, Store};
use posthouse_surreal::{Database, Outbox, Run, from_surreal};
use posthouse_testkit::Fixture;
use std::time::Duration;
use surrealdb::types::Value;

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

/// Somebody has committed half of an enqueue that had failed, or taken records away by hand. What leads to a message that is not there stops nobody, and is gone after the claim.
#[tokio::test]
async fn what_leads_to_no_message_stops_nobody() {
    let (fx, hour) = (fresh().await, Duration::from_secs(3600));
    let store = fx.open().await;
    let message = |topic: &str| Message::bytes(topic, "text/plain", topic.as_bytes().to_vec());
    // Each of a kind, with a sound one behind it.
    let kinds: [fn(Message) -> Message; 5] = [
        |message| message,
        |message| message.order_key("k"),
        |message| message.delay(Duration::from_secs(60)),
        |message| message.deliver_in(Duration::from_secs(60)),
        |message| message.order_key("l").deliver_in(Duration::from_secs(60)),
    ];
    let all = kinds.iter().flat_map(|kind| {
        let behind = message("sound").deliver_in(hour * 2);
        let behind = match kind(message("kind")).order_key {
            Some(key) => behind.order_key(key),
            None => behind,
        };
        [kind(message("broken")), behind]
    });
    store.enqueue_now(all.collect()).await.unwrap();
    let broken = "DELETE posthouse_message WHERE topic = 'broken' RETURN BEFORE";
    let mut taken = fx.db.client().query(broken).await.unwrap();
    assert_eq!(taken.take::<Vec<Value>>(0).unwrap().len(), kinds.len());
    fx.advance(hour).await;
    let mut got = 0;
    // A claim grants something, or takes something away, as long as there is something. What waits for its time is found in two ways.
    for n in 0..2 * kinds.len() {
        let all = Claim::new("w", 10, hour);
        let claim = if n % 2 == 0 { all } else { all.tenant("") };
        let granted = store.claim(&claim).await.unwrap();
        assert!(granted.iter().all(|one| one.delivery.topic == "sound"));
        let delivered: Vec<_> = granted
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&delivered).await.unwrap();
        got += granted.len();
    }
    assert_eq!(got, kinds.len());
    fx.check().await;
}

/// A handler is at a key, in a transaction of his own, while producers add very much to it and a relay looks for work: they are not in his way. What is to be looked at again
/// meanwhile has a bound.
#[tokio::test]
async fn a_handler_of_a_busy_key_is_in_nobodys_way() {
    let fx = fresh().await;
    let (store, hour) = (fx.open().await, Duration::from_secs(3600));
    let add = |n: usize| {
        let (store, body) = (store.clone(), n.to_string().into_bytes());
        async move {
            let message = Message::bytes("busy", "text/plain", body).order_key("k");
            store.enqueue_now(vec![message]).await.unwrap();
        }
    };
    let claim = Claim::new("w", 100, hour);
    add(0).await;
    let first = store.claim(&claim).await.unwrap().remove(0).lease;
    let tx = fx.db.begin().await.unwrap();
    tx.query("CREATE note SET line = 'handled'")
        .await
        .unwrap()
        .check()
        .unwrap();
    for n in 1..50 {
        add(n).await;
        assert!(store.claim(&claim).await.unwrap().is_empty());
    }
    assert!(hints(&fx).await < 25);
    let settled = store
        .outbox()
        .settle_in(&tx, &Settlement::delivered(&first, None))
        .await;
    assert!(settled.unwrap().is_settled());
    for n in 50..90 {
        add(n).await;
        assert!(store.claim(&claim).await.unwrap().is_empty());
    }
    fx.db.commit(tx).await.unwrap();
    let run = store.claim(&claim).await.unwrap();
    assert_eq!(run.len(), 89);
    for n in 90..140 {
        add(n).await;
        assert!(store.claim(&claim).await.unwrap().is_empty());
    }
    assert!(hints(&fx).await < 25);
    let delivered: Vec<_> = run.iter().map(|one| Settlement::delivered(&one.lease, None)).collect();
    store.settle(&delivered).await.unwrap();
    let rest = store.claim(&claim).await.unwrap();
    let bodies = rest
        .iter()
        .map(|one| String::from_utf8_lossy(&one.delivery.payload).into_owned());
    assert!(bodies.eq((90..140).map(|n| n.to_string())));
    fx.check().await;
}

/// How many hints there are that a message may be the first of its key.
async fn hints(fx: &SurrealFixture) -> i64 {
    let hints = fx.db.client().query("RETURN count(SELECT * FROM posthouse_head)");
    hints.await.unwrap().take::<Option<i64>>(0).unwrap().unwrap()
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
