//! What operators ask of a store that holds more than anybody would want to walk over.

use posthouse_core::{
    Admin, Claim, Count, Counts, Filter, Message, MessageId, Settlement, State, Store,
    admin::{COUNTED_AT_MOST, LOOKED_AT_MOST},
};
use posthouse_sqlite::Sqlite;
use std::time::Duration;

use crate::fixture::SqliteFixture;

fn message(topic: &str) -> Message {
    Message::bytes(topic, "text/plain", "x")
}

async fn put(store: &Sqlite, message: Message) -> MessageId {
    store.enqueue_now(vec![message]).await.unwrap()[0].id()
}

/// Puts one and ends it, rejected.
async fn put_dead(store: &Sqlite, message: Message) -> MessageId {
    let id = put(store, message).await;
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(1))).await.unwrap();
    assert_eq!(claimed[0].lease.id, id);
    let outcome = posthouse_core::Outcome::Reject {
        code: "no".into(),
        error: String::new(),
    };
    let policy = posthouse_core::RetryPolicy::default();
    let rejected = Settlement::of(&claimed[0].lease, outcome, &policy, 0.5);
    assert!(store.settle(&[rejected]).await.unwrap()[0].is_settled());
    id
}

/// Writes messages that were delivered long ago, or wait (as if enqueued), as fast as SQLite can.
fn fill(fixture: &SqliteFixture, tenant: &str, done: u32, waiting: u32) {
    let db = fixture.connect();
    let sql = format!(
        "BEGIN;
        INSERT OR IGNORE INTO posthouse_lane (namespace, tenant) VALUES ('default', '{tenant}');
        WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {all})
        INSERT INTO posthouse_message (
            id, lane, topic, content_type, kind, on_dead, max_attempts, created_at, due_at, bytes, payload
        )
        SELECT
            randomblob(16), (SELECT lane FROM posthouse_lane WHERE tenant = '{tenant}'), 'orders', 'text/plain',
            'message', 'pass', 12, (SELECT now FROM posthouse_clock), (SELECT now FROM posthouse_clock), 1, X'78'
        FROM n;
        INSERT INTO posthouse_ready (
            lane, pos, seq, bytes, attempts, max_attempts, epoch, generation, releases, deduped
        )
        SELECT lane, seq, seq, 1, 0, 12, 0, 1, 0, 0
        FROM (SELECT lane, seq FROM posthouse_message ORDER BY seq DESC LIMIT {waiting});
        COMMIT;",
        all = done + waiting
    );
    db.execute_batch(&sql).unwrap();
}

/// Every page of a list: how many there were, and what was on them.
async fn paged(store: &Sqlite, filter: &Filter) -> (usize, Vec<MessageId>) {
    let (mut pages, mut found, mut beyond) = (0, Vec::new(), None);
    loop {
        let page = Filter {
            beyond,
            ..filter.clone()
        };
        let page = store.list(&page).await.unwrap();
        pages += 1;
        found.extend(page.messages.iter().map(|m| m.id));
        assert!(
            page.next.is_none() || page.next != beyond,
            "a page that leads to itself"
        );
        beyond = page.next;
        if beyond.is_none() {
            return (pages, found);
        }
    }
}

fn about(topic: &str) -> Filter {
    Filter {
        topic: Some(topic.to_owned()),
        ..Filter::default()
    }
}

#[tokio::test]
async fn a_page_looks_at_a_bounded_number_of_messages() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let first = put_dead(&store, message("rare")).await;
    fill(&fixture, "", LOOKED_AT_MOST * 2, 0);
    let last = put_dead(&store, message("rare")).await;

    let page = store.list(&about("rare")).await.unwrap();
    assert_eq!(page.messages.iter().map(|m| m.id).collect::<Vec<_>>(), [last]);
    let looked_to = page.next.expect("there is more to look at");
    let newest = page.messages[0].seq;
    assert_eq!(
        newest - looked_to + 1,
        i64::from(LOOKED_AT_MOST),
        "no message has a gap before it"
    );

    assert_eq!(paged(&store, &about("rare")).await, (3, vec![last, first]));
    let oldest_first = Filter {
        oldest_first: true,
        ..about("rare")
    };
    assert_eq!(paged(&store, &oldest_first).await, (3, vec![first, last]));
    // Exactly as many as may be looked at, and no more: there is no further page.
    let beyond = Filter {
        beyond: Some(i64::from(LOOKED_AT_MOST) + 1),
        ..about("nothing")
    };
    assert_eq!(store.list(&beyond).await.unwrap().next, None);
}

#[tokio::test]
async fn a_list_by_time_ends_where_its_time_does() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let old = put(&store, message("old")).await;
    fill(&fixture, "", LOOKED_AT_MOST * 2, 0);
    let start = store.counts().await.unwrap().now.unwrap();
    let day = Duration::from_secs(24 * 3600);
    let advance = || {
        fixture
            .connect()
            .execute("UPDATE test_clock SET now = now + 86400000000", [])
    };
    advance().unwrap();
    let new = put(&store, message("new")).await;
    let since = Filter {
        since: Some(start.plus(day)),
        ..Filter::default()
    };
    assert_eq!(paged(&store, &since).await, (1, vec![new]));
    let since = Filter {
        oldest_first: true,
        ..since
    };
    assert_eq!(paged(&store, &since).await, (1, vec![new]), "it begins there, too");
    advance().unwrap();
    fill(&fixture, "", LOOKED_AT_MOST * 2, 0);
    let until = Filter {
        until: Some(start.plus(day)),
        oldest_first: true,
        ..about("old")
    };
    assert_eq!(
        paged(&store, &until).await,
        (3, vec![old]),
        "two of its time, one beyond"
    );
    let until = Filter {
        oldest_first: false,
        ..until
    };
    assert_eq!(
        paged(&store, &until).await,
        (3, vec![old]),
        "what is younger is not looked at"
    );
}

#[tokio::test]
async fn what_lives_is_found_at_once_among_all_that_is_done() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let dead = put_dead(&store, message("orders")).await;
    let held = put(&store, message("orders")).await;
    store.quarantine(held, "op", "hold").await.unwrap();
    let leased = put(&store, message("orders")).await;
    store.claim(&Claim::new("w", 1, Duration::from_secs(1))).await.unwrap();
    let waiting = [
        put(&store, message("orders")).await,
        put(&store, message("orders").delay(Duration::from_secs(60))).await,
        put(&store, message("orders").order_key("k")).await,
    ];
    fill(&fixture, "", LOOKED_AT_MOST + 1, 0);
    for (state, expected) in [
        (State::Dead, vec![dead]),
        (State::Quarantined, vec![held]),
        (State::Leased, vec![leased]),
        (State::Pending, waiting.to_vec()),
    ] {
        let filter = Filter {
            state: Some(state),
            oldest_first: true,
            ..about("orders")
        };
        assert_eq!(paged(&store, &filter).await, (1, expected), "{state}");
    }
    let code = Filter {
        code: Some("no".into()),
        state: Some(State::Dead),
        ..Filter::default()
    };
    assert_eq!(paged(&store, &code).await, (1, vec![dead]));
}

#[tokio::test]
async fn a_large_backlog_is_listed_by_walking_over_all() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let first = put(&store, message("rare")).await;
    let done = put(&store, message("rare")).await;
    store.resolve(done, "op", "seen", "").await.unwrap();
    fill(&fixture, "", 10, LOOKED_AT_MOST);
    let last = put(&store, message("rare").order_key("k")).await;
    let pending = Filter {
        state: Some(State::Pending),
        ..about("rare")
    };
    assert_eq!(paged(&store, &pending).await, (2, vec![last, first]));
    let all = Filter {
        state: Some(State::Pending),
        ..Filter::default()
    };
    let page = store.list(&all).await.unwrap();
    assert_eq!((page.messages.len(), page.messages[0].id), (50, last));
}

/// More than are counted.
const MORE: Count = Count::capped(COUNTED_AT_MOST as u64 + 1, true, COUNTED_AT_MOST);

#[tokio::test]
async fn as_many_as_are_counted_are_exact() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    // One less: the quarantined one is looked at as well.
    fill(&fixture, "", COUNTED_AT_MOST - 1, COUNTED_AT_MOST);
    let dead = put(&store, message("orders").order_key("k")).await;
    store.quarantine(dead, "op", "hold").await.unwrap();
    let counts = store.counts().await.unwrap();
    let most = Count::exact(u64::from(COUNTED_AT_MOST));
    assert_eq!(
        (counts.ready, counts.done),
        (most, Count::exact(u64::from(COUNTED_AT_MOST) - 1))
    );
    assert_eq!(counts.quarantined, Count::exact(1));
    put(&store, message("orders")).await;
    fill(&fixture, "", 2, 0);
    let counts = store.counts().await.unwrap();
    // The last two are beyond the first 20,001 messages, which are those that it looks at.
    let done = Count {
        value: u64::from(COUNTED_AT_MOST) - 1,
        exact: false,
    };
    assert_eq!((counts.ready, counts.done), (MORE, done));
    assert_eq!(counts.quarantined, Count::exact(1), "few are counted beside many");
}

#[tokio::test]
async fn more_than_ten_thousand_are_at_least_ten_thousand() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    put_dead(&store, message("orders")).await;
    let oldest = store.counts().await.unwrap().now;
    fill(&fixture, "", 100_000, 5);
    fixture
        .connect()
        .execute("UPDATE test_clock SET now = now + 1000000", [])
        .unwrap();
    let of = |counts: &Counts| {
        [
            counts.ready,
            counts.scheduled,
            counts.leased,
            counts.dead,
            counts.quarantined,
        ]
    };
    let counts = store.counts().await.unwrap();
    let exact = [5, 0, 0, 1, 0].map(Count::exact);
    assert_eq!(of(&counts), exact, "what lives is counted, however much is done");
    assert_eq!(counts.done, MORE);
    fill(&fixture, "acme", 0, 60_000);
    let later = message("orders").delay(Duration::from_secs(60));
    store.enqueue_now(vec![later; 20_000]).await.unwrap();
    let counts = store.counts().await.unwrap();
    assert_eq!((counts.ready, counts.scheduled, counts.done), (MORE, MORE, MORE));
    assert_eq!((counts.leased, counts.dead), (Count::exact(0), Count::exact(1)));
    assert_eq!(counts.oldest_due, oldest, "the first of another tenant's line");
}

#[tokio::test]
async fn what_is_due_is_counted_beside_many_that_are_not() {
    let fixture = SqliteFixture::new();
    let store = fixture.open();
    let later = |seconds| message("orders").delay(Duration::from_secs(seconds));
    store.enqueue_now(vec![later(60); 12_000]).await.unwrap();
    store.enqueue_now(vec![later(5); 7]).await.unwrap();
    fixture
        .connect()
        .execute("UPDATE test_clock SET now = now + 6000000", [])
        .unwrap();
    let counts = store.counts().await.unwrap();
    assert_eq!(counts.ready, Count::exact(7));
    assert_eq!(counts.scheduled, MORE);
}

/// The steps in which SQLite performs a statement.
fn plan(fixture: &SqliteFixture, sql: &str) -> String {
    let db = fixture.connect();
    let mut statement = db.prepare(&format!("EXPLAIN QUERY PLAN {sql}")).unwrap();
    let steps = statement.raw_query().mapped(|row| row.get::<_, String>(3));
    steps.collect::<Result<Vec<_>, _>>().unwrap().join("\n")
}

#[test]
fn a_walk_reads_in_the_order_of_the_list() {
    let fixture = SqliteFixture::new();
    let walk = include_str!("../sql/list_walk.sql");
    let only = include_str!("../sql/list_only.sql");
    for (source, only) in [
        ("posthouse_message", only),
        ("posthouse_dead", ""),
        ("posthouse_leased", ""),
    ] {
        for (beyond, within, order) in [("<", ">=", "DESC"), (">", "<=", "ASC")] {
            let sql = walk.replace("{source}", source).replace("{only}", only);
            let sql = sql.replace("{beyond}", beyond).replace("{within}", within);
            let plan = plan(&fixture, &sql.replace("{order}", order));
            assert!(
                plan.starts_with("SEARCH c USING INTEGER PRIMARY KEY (rowid"),
                "{source} {order}: {plan}"
            );
            assert!(!plan.contains("TEMP B-TREE"), "{source} {order}: {plan}");
            // Of the lanes, which are few, there may be a list.
            let scans = plan.lines().filter(|step| step.contains("SCAN"));
            assert!(
                scans.clone().all(|step| step.contains("SCAN posthouse_lane")),
                "{source} {order}: {plan}"
            );
        }
    }
}

#[test]
fn questions_are_answered_by_indexes() {
    let fixture = SqliteFixture::new();
    for (sql, index) in [
        (include_str!("../sql/audit_of.sql"), "posthouse_audit_id (id=? AND n<?)"),
        (
            include_str!("../sql/audit_by.sql"),
            "posthouse_audit_actor (actor=? AND n<?)",
        ),
        (
            include_str!("../sql/audit_action.sql"),
            "posthouse_audit_action (action=? AND n<?)",
        ),
        (include_str!("../sql/find.sql"), "posthouse_audit_id (id=?)"),
        (
            include_str!("../sql/ahead.sql"),
            "posthouse_leased_key (lane=? AND key=?)",
        ),
        (
            include_str!("../sql/ahead.sql"),
            "posthouse_dead_blocks (lane=? AND key=?)",
        ),
        (
            include_str!("../sql/counts_oldest.sql"),
            "posthouse_keyed_free (lane>?)",
        ),
    ] {
        let plan = plan(&fixture, sql);
        assert!(plan.contains(index), "{index} is not used:\n{plan}");
        assert!(!plan.contains("SCAN posthouse"), "{plan}");
    }
}
