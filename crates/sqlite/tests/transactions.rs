//! The caller's own transaction, and what one writer means for everybody else.

use posthouse_core::{
    Admin, Claim, Claimed, Enqueued, Error, Message, Outcome, Renewal, RetryPolicy, Settlement, State, Store, Verdict,
};
use posthouse_sqlite::{Options, Sqlite};
use posthouse_testkit::Fixture;
use rusqlite::TransactionBehavior::{Deferred, Immediate};
use std::time::Duration;

use crate::fixture::SqliteFixture;

const LEASE: Duration = Duration::from_secs(15);

fn message(body: &str) -> Message {
    Message::bytes("t", "text/plain", body)
}

async fn claim_one(store: &Sqlite) -> Claimed {
    store.claim(&Claim::new("w", 1, LEASE)).await.unwrap().remove(0)
}

fn impatient(fixture: &SqliteFixture) -> Sqlite {
    let options = Options {
        busy_timeout: Duration::from_millis(50),
        ..Options::default()
    };
    Sqlite::open_with(fixture.path(), options).unwrap()
}

#[tokio::test]
async fn the_engine_waits_for_an_open_transaction() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message("x")]).await.unwrap();
    let mut db = fixture.connect();
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    store.outbox().enqueue(&tx, message("y")).unwrap();
    let claiming = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&Claim::new("w", 10, LEASE)).await }
    });
    std::thread::sleep(Duration::from_millis(100));
    assert!(!claiming.is_finished());
    tx.commit().unwrap();
    let claimed = claiming.await.unwrap().unwrap();
    assert_eq!(claimed.len(), 2);
    assert!(
        claimed.iter().all(|c| c.lease.standing.epoch == 1),
        "waiting counts nothing"
    );
}

#[tokio::test]
async fn a_wait_that_is_too_long_is_retryable_and_changes_nothing() {
    let fixture = SqliteFixture::new();
    let store = impatient(&fixture);
    let id = store.enqueue_now(vec![message("x")]).await.unwrap()[0].id();
    let mut db = fixture.connect();
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    let error = store.claim(&Claim::new("w", 10, LEASE)).await.unwrap_err();
    assert!(matches!(error, Error::Contention(_)) && error.retryable(), "{error:?}");
    assert_eq!(
        store.find(id).await.unwrap().unwrap().epoch,
        0,
        "readers are not kept out"
    );
    drop(tx);
    assert_eq!(store.claim(&Claim::new("w", 10, LEASE)).await.unwrap().len(), 1);
}

/// A transaction that has read cannot write once another has: the caller is told to run it again.
#[tokio::test]
async fn a_deferred_transaction_that_was_overtaken_must_be_run_again() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let (mut db, outbox) = (fixture.connect(), store.outbox());
    let tx = db.transaction_with_behavior(Deferred).unwrap();
    let _: i64 = tx
        .query_row("SELECT count(*) FROM test_note", [], |row| row.get(0))
        .unwrap();
    store.enqueue_now(vec![message("overtakes")]).await.unwrap();
    let error = outbox.enqueue(&tx, message("late")).unwrap_err();
    assert!(matches!(error, Error::Contention(_)), "{error:?}");
    tx.rollback().unwrap();
    let tx = db.transaction_with_behavior(Deferred).unwrap();
    assert!(matches!(outbox.enqueue(&tx, message("again")), Ok(Enqueued::New(_))));
    tx.commit().unwrap();
}

#[tokio::test]
async fn a_bulk_that_is_refused_leaves_the_rest_of_the_transaction() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let (mut db, outbox) = (fixture.connect(), store.outbox());
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    tx.execute("INSERT INTO test_note VALUES ('kept')", []).unwrap();
    outbox.enqueue(&tx, message("a").dedupe_key("d")).unwrap();
    let bulk = [message("b"), message("other").dedupe_key("d"), message("c")];
    assert!(matches!(
        outbox.enqueue_all(&tx, &bulk),
        Err(Error::DedupeConflict { .. })
    ));
    tx.commit().unwrap();
    assert_eq!(fixture.notes().await, ["kept"]);
    let claimed = store.claim(&Claim::new("w", 10, LEASE)).await.unwrap();
    assert_eq!(claimed.len(), 1, "nothing of the bulk was written");
}

#[tokio::test]
async fn a_handler_that_holds_its_lease_may_outlive_it() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message("x")]).await.unwrap();
    let claimed = claim_one(&store).await;
    let (mut db, outbox) = (fixture.connect(), store.outbox());
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    assert_eq!(
        outbox.hold(&tx, &claimed.lease, Duration::from_secs(600)).unwrap(),
        Renewal::Renewed
    );
    // The clock is a table here, and the writer is this transaction.
    tx.execute("UPDATE test_clock SET now = now + 60 * 1000000", [])
        .unwrap();
    let verdict = outbox
        .settle_in(&tx, &Settlement::delivered(&claimed.lease, None))
        .unwrap();
    assert!(verdict.is_settled());
    tx.commit().unwrap();
    assert_eq!(store.find(claimed.lease.id).await.unwrap().unwrap().state, State::Done);
}

#[tokio::test]
async fn a_handler_that_does_not_hold_its_lease_loses_it_at_the_deadline() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message("x")]).await.unwrap();
    let claimed = claim_one(&store).await;
    fixture.advance(LEASE).await;
    let (mut db, outbox) = (fixture.connect(), store.outbox());
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    let before = crate::fixture::dump(&tx);
    let verdict = outbox
        .settle_in(&tx, &Settlement::delivered(&claimed.lease, None))
        .unwrap();
    assert!(matches!(verdict, Verdict::LeaseLost));
    assert_eq!(
        outbox.hold(&tx, &claimed.lease, LEASE).unwrap(),
        Renewal::Lost,
        "too late to hold it"
    );
    assert_eq!(crate::fixture::dump(&tx), before);
}

#[tokio::test]
async fn a_handler_that_rolls_back_leaves_the_lease_as_it_was() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message("x")]).await.unwrap();
    let claimed = claim_one(&store).await;
    let before = fixture.dump().await;
    let (mut db, outbox) = (fixture.connect(), store.outbox());
    let tx = db.transaction_with_behavior(Immediate).unwrap();
    outbox.hold(&tx, &claimed.lease, Duration::from_secs(600)).unwrap();
    assert!(
        outbox
            .settle_in(&tx, &Settlement::delivered(&claimed.lease, None))
            .unwrap()
            .is_settled()
    );
    tx.rollback().unwrap();
    assert_eq!(fixture.dump().await, before);
}

/// A backed-off message whose time to be delivered passes before its next try is dead at once, not at that try.
#[tokio::test]
async fn a_backed_off_message_lapses_in_its_wait() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let keyed = message("keyed").order_key("k").deliver_in(Duration::from_secs(60));
    let ids: Vec<_> = store
        .enqueue_now(vec![message("plain").deliver_in(Duration::from_secs(60)), keyed])
        .await
        .unwrap();
    for claimed in store.claim(&Claim::new("w", 10, LEASE)).await.unwrap() {
        let outcome = Outcome::Retry {
            after: None,
            code: "c".into(),
            error: "e".into(),
        };
        let policy = RetryPolicy::table(5, [Duration::from_secs(3600)]);
        let verdicts = store
            .settle(&[Settlement::of(&claimed.lease, outcome, &policy, 0.5)])
            .await
            .unwrap();
        assert!(verdicts[0].is_settled());
    }
    fixture.advance(Duration::from_secs(61)).await;
    assert!(store.claim(&Claim::new("w", 10, LEASE)).await.unwrap().is_empty());
    for id in ids {
        let found = store.find(id.id()).await.unwrap().unwrap();
        assert_eq!(
            (found.state, found.reason),
            (State::Dead, Some(posthouse_core::DeadReason::Lapsed))
        );
    }
}

/// A handle remembers how far it searched a line in vain; it must not pass over anything by that.
#[tokio::test]
async fn left_topics_are_found_again_when_they_are_wanted() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let paused = |n: usize| Message::bytes("paused", "text/plain", n.to_string());
    store.enqueue_now((0..40).map(paused).collect()).await.unwrap();
    let open = Claim::new("w", 10, LEASE).not_topic("paused");
    assert!(store.claim(&open).await.unwrap().is_empty());
    let mut more = vec![message("x"), paused(40), message("y"), message("z")];
    more.extend((41..60).map(paused));
    store.enqueue_now(more).await.unwrap();
    let one = Claim {
        batch: 1,
        ..open.clone()
    };
    let first = store.claim(&one).await.unwrap().remove(0);
    assert_eq!(first.delivery.payload, b"x");
    assert_eq!(store.claim(&one).await.unwrap()[0].delivery.payload, b"y");
    assert!(
        store
            .settle(&[Settlement::released(&first.lease, Duration::ZERO)])
            .await
            .unwrap()[0]
            .is_settled()
    );
    let rest: Vec<_> = store
        .claim(&open)
        .await
        .unwrap()
        .into_iter()
        .map(|c| c.delivery.payload)
        .collect();
    assert_eq!(rest, [b"z", b"x"], "what came back is found behind what was passed");
    assert!(store.claim(&open).await.unwrap().is_empty());
    let other = Claim::new("w", 5, LEASE).not_topic("another");
    assert_eq!(store.claim(&other).await.unwrap().len(), 5);
    assert_eq!(store.claim(&Claim::new("w", 100, LEASE)).await.unwrap().len(), 55);
}
