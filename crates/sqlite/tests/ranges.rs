//! Messages with consecutive numbers are settled and read together; what is not alike among them must not be.

use posthouse_core::{Admin, Claim, Claimed, Enqueued, Message, Prune, Settlement, State, Store};
use posthouse_sqlite::Sqlite;
use posthouse_testkit::Fixture;
use rusqlite::params;
use std::time::Duration;

use crate::fixture::SqliteFixture;

fn message() -> Message {
    Message::bytes("t", "text/plain", "x")
}

async fn claim(store: &Sqlite, batch: u32) -> Vec<Claimed> {
    let claim = Claim::new("w", batch, Duration::from_secs(15));
    store.claim(&claim).await.unwrap()
}

#[tokio::test]
async fn a_range_with_keys_in_it_is_settled_whole() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let keyed = || message().order_key("k");
    let deduped = || message().dedupe_key("d");
    let (first, second) = (keyed(), keyed());
    let all = vec![message(), first, message(), deduped(), message()];
    store.enqueue_now(all).await.unwrap();
    let claimed = claim(&store, 5).await;
    let id = store.enqueue_now(vec![second]).await.unwrap()[0].id();
    let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
    assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    for c in &claimed {
        assert_eq!(store.find(c.lease.id).await.unwrap().unwrap().state, State::Done);
        assert_eq!(store.attempts(c.lease.id).await.unwrap().len(), 1);
    }
    assert_eq!(claim(&store, 5).await[0].lease.id, id, "the key is free again");
    let again = store.enqueue_now(vec![deduped()]).await.unwrap();
    assert!(
        matches!(again[0], Enqueued::Duplicate(_)),
        "the dedupe key is still taken"
    );
}

#[tokio::test]
async fn a_lease_that_was_not_meant_stays() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message(); 5]).await.unwrap();
    let claimed = claim(&store, 5).await;
    let batch: Vec<_> = [0, 1, 3, 4]
        .map(|n: usize| Settlement::delivered(&claimed[n].lease, None))
        .to_vec();
    assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    let left = claimed[2].lease.id;
    assert_eq!(store.find(left).await.unwrap().unwrap().state, State::Leased);
    assert!(store.attempts(left).await.unwrap().is_empty());
}

#[tokio::test]
async fn what_a_claim_answers_is_what_it_wrote() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let of = |tenant: &str| message().tenant(tenant);
    let lines = vec![of("a"), of("a"), of("b"), of("a").order_key("k"), of("b"), message()];
    store.enqueue_now(lines).await.unwrap();
    // Once given back, so that numbers, places and counts differ.
    let released = claim(&store, 2).await;
    let batch: Vec<_> = released
        .iter()
        .map(|c| Settlement::released(&c.lease, Duration::ZERO))
        .collect();
    store.settle(&batch).await.unwrap();
    let claimed = claim(&store, 6).await;
    assert_eq!(claimed.len(), 6);
    let db = fixture.connect();
    for c in &claimed {
        let sql = "SELECT l.attempts, l.max_attempts, l.epoch, l.generation, l.releases, n.tenant
                   FROM posthouse_leased AS l
                   JOIN posthouse_message AS m ON m.seq = l.seq
                   JOIN posthouse_lane AS n ON n.lane = m.lane
                   WHERE m.id = ?1 AND l.seq = ?2 AND l.token = ?3";
        let key = params![c.lease.id.0.as_bytes(), c.lease.seq, c.lease.token.0.as_bytes()];
        let written = db.query_row(sql, key, |row| {
            let counts = (
                row.get(0)?,
                row.get(1)?,
                row.get::<_, i64>(2)?,
                row.get(3)?,
                row.get(4)?,
            );
            Ok((counts, row.get::<_, String>(5)?))
        });
        let s = &c.lease.standing;
        let epoch = i64::try_from(s.epoch).unwrap();
        let counts = (s.attempts, s.max_attempts, epoch, s.generation, s.releases);
        assert_eq!(written.unwrap(), (counts, c.delivery.tenant.clone()));
    }
}

/// A message from the future (somebody's clock was wrong) does not keep retention from what is behind it.
#[tokio::test]
async fn retention_goes_past_a_message_from_the_future() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    store.enqueue_now(vec![message(); 200]).await.unwrap();
    let claimed = claim(&store, 200).await;
    let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
    store.settle(&batch).await.unwrap();
    fixture.advance(Duration::from_secs(10 * 24 * 3600)).await;
    let later = "UPDATE posthouse_message SET created_at = created_at + ?1 * 86400000000 WHERE seq BETWEEN ?2 AND ?3";
    let db = fixture.connect();
    let first = claimed.iter().map(|c| c.lease.seq).min().unwrap();
    for (days, from, to) in [(3650, 0, 149), (10, 160, 160)] {
        db.execute(later, params![days, first + from, first + to]).unwrap();
    }
    // Those with a wrong time ended when they ended, all the same.
    let pruned = store
        .prune(&Prune::done(Duration::from_secs(24 * 3600), 1000, "op"))
        .await
        .unwrap();
    assert_eq!((pruned.messages(), pruned.more), (200, false));
}
