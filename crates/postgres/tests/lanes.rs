//! Claims beside other claims, which hold what they took until they commit: what those leave hides from nobody.

use posthouse_core::{Claim, Claimed, Message, Settlement, Store};
use posthouse_postgres::{Options, Postgres};
use std::{collections::BTreeSet, time::Duration};
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session};

const LEASE: Duration = Duration::from_secs(15);

/// A session in which a claim or anything else stays under way until it is told to end.
struct Other {
    client: Client,
    driver: JoinHandle<()>,
    schema: String,
}

impl Other {
    async fn begin(fx: &PostgresFixture) -> Self {
        let (client, driver) = session().await;
        let other = Self {
            client,
            driver,
            schema: fx.schema.to_string(),
        };
        other.run("BEGIN").await;
        other
    }

    async fn run(&self, sql: &str) {
        let sql = sql.replace("posthouse.", &format!("{}.", self.schema));
        self.client.batch_execute(&sql).await.unwrap();
    }

    /// Takes so many, and holds them.
    async fn claims(&self, batch: u32) {
        self.run(&format!(
            "DO $$ BEGIN ASSERT {batch} = (SELECT count(seq) FROM posthouse.grant_leases({batch}, 'other', gen_random_uuid(), 15000, NULL, NULL, NULL, '{{}}', '{{}}', '{{}}', -9223372036854775808, 9223372036854775807)); END $$"
        ))
        .await;
    }

    async fn end(self, how: &str) {
        self.run(how).await;
        self.driver.abort();
    }
}

fn plain(body: &str) -> Message {
    Message::bytes("t", "text/plain", body)
}

async fn put(store: &Postgres, messages: impl Iterator<Item = Message>) {
    store.enqueue_now(messages.collect()).await.unwrap();
}

async fn take(store: &Postgres, batch: u32) -> Vec<Claimed> {
    store.claim(&Claim::new("w", batch, LEASE)).await.unwrap()
}

/// Claims until nothing comes any more, and tells how much that was.
async fn drain(store: &Postgres, batch: u32) -> usize {
    let mut found = 0;
    loop {
        match take(store, batch).await.len() {
            0 => return found,
            n => found += n,
        }
    }
}

/// How often a handle looks below its floors.
async fn opened(fx: &PostgresFixture, full_pass_every: Duration) -> Postgres {
    let options = Options {
        full_pass_every,
        ..PostgresFixture::options(&fx.schema)
    };
    Postgres::connect_with(&crate::fixture::url(), options).await.unwrap()
}

/// New tenants are found from a random one on. Those of one namespace, however many have something, do not hide another namespace until they are all known.
#[tokio::test]
async fn a_namespace_is_not_hidden_behind_the_tenants_of_another() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let spaces = ["a", "b", "c", "d"];
    put(
        &store,
        (0..1000).map(|n| plain("x").namespace(spaces[n % 4]).tenant(format!("t{n}"))),
    )
    .await;
    let mut served = BTreeSet::new();
    // The first one finds some tenants, whosever they are; the next one sees what is before and behind them.
    for _ in 0..2 {
        served.extend(take(&store, 16).await.into_iter().map(|c| c.delivery.namespace));
    }
    assert_eq!(served.len(), 4, "{served:?}");
}

/// A claim that is full keeps nobody from what it did not take. Whoever passed such messages would come back to them only much later.
#[tokio::test]
async fn a_claim_keeps_others_from_nothing_but_what_it_takes() {
    let fx = PostgresFixture::new().await;
    let store = opened(&fx, Duration::from_secs(3600)).await;
    for (tenants, batch) in [(3, 10), (20, 7), (5, 5)] {
        put(&store, (0..300).map(|n| plain("x").tenant(format!("t{}", n % tenants)))).await;
        let other = Other::begin(&fx).await;
        other.claims(batch).await;
        assert_eq!(
            drain(&store, 32).await,
            300 - batch as usize,
            "{tenants} tenants, a claim of {batch}"
        );
        other.end("COMMIT").await;
    }
}

/// A claim that is not committed, after all, gives back what others have passed meanwhile. They look below their floors now and then.
#[tokio::test]
async fn what_a_failed_claim_left_below_the_floors_is_found() {
    let fx = PostgresFixture::new().await;
    let seldom = opened(&fx, Duration::from_secs(3600)).await;
    let often = opened(&fx, Duration::ZERO).await;
    put(&seldom, (0..300).map(|n| plain("x").tenant(format!("t{}", n % 3)))).await;
    // They learn how far floors may rise: when nobody who was at it before is at it any more, on the whole server.
    for _ in 0..3 {
        assert_eq!(take(&seldom, 10).await.len() + take(&often, 10).await.len(), 20);
        let now = fx.one("SELECT pg_current_xact_id()").await;
        let open = format!("SELECT pg_snapshot_xmin(pg_current_snapshot()) <= '{now}'::xid8");
        while fx.one(&open).await == "t" {
            tokio::task::yield_now().await;
        }
    }
    let other = Other::begin(&fx).await;
    other.claims(9).await;
    for _ in 0..3 {
        assert_eq!(take(&seldom, 30).await.len() + take(&often, 30).await.len(), 60);
    }
    assert_eq!(drain(&often, 10).await + drain(&seldom, 10).await, 51);
    other.end("ROLLBACK").await;
    assert_eq!(
        take(&seldom, 20).await.len(),
        0,
        "its floors hide it, or this shows nothing"
    );
    // It looks as often as it may: so that this takes a tenth of its time.
    let mut found = 0;
    for _ in 0..5000 {
        found += take(&often, 20).await.len();
        if found == 9 {
            return;
        }
    }
    panic!("{found} of 9 were found");
}

/// What is too large for a claim is locked by it all the same. Another claim of the same handle that passes it meanwhile does not hide it.
#[tokio::test]
async fn what_was_too_large_for_a_claim_is_taken_by_the_next() {
    let fx = PostgresFixture::new().await;
    let store = opened(&fx, Duration::from_secs(3600)).await;
    let large = "x".repeat(1000);
    let mut taken = 0;
    for _ in 0..20 {
        put(&store, (0..40).map(|n| plain(&large).tenant(format!("t{}", n % 4)))).await;
        let few = Claim::new("w", 30, LEASE).max_bytes(5000);
        let (one, two) = tokio::join!(store.claim(&few), store.claim(&few));
        taken += one.unwrap().len() + two.unwrap().len();
    }
    assert_eq!(taken + drain(&store, 100).await, 800);
}

/// A claim keeps next to nothing from others that it has no room for: it would wait until this one comes to it.
#[tokio::test]
async fn a_claim_of_few_bytes_leaves_the_rest_to_others() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    put(&store, (0..200).map(|_| plain("12345678"))).await;
    let other = Other::begin(&fx).await;
    other
        .run("SELECT FROM posthouse.grant_leases(100, 'other', gen_random_uuid(), 15000, 80, NULL, NULL, '{}', '{}', '{}', -9223372036854775808, 9223372036854775807)")
        .await;
    assert_eq!(drain(&store, 50).await, 190);
    other.end("ROLLBACK").await;
}

/// A relay that is told that it was given all goes to sleep. Lanes that it came upon may hide others, also if somebody else was there first.
#[tokio::test]
async fn who_comes_upon_new_tenants_has_not_seen_all() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let claim = Claim::new("w", 10, LEASE);
    put(&store, std::iter::once(plain("x").tenant("known"))).await;
    assert_eq!(take(&store, 10).await.len(), 1);
    put(&store, ["known", "new"].into_iter().map(|t| plain("x").tenant(t))).await;
    let other = Other::begin(&fx).await;
    other
        .run(
            "SELECT FROM posthouse.ready r JOIN posthouse.message m USING (seq) WHERE m.tenant = 'new' FOR UPDATE OF r",
        )
        .await;
    let look = store.look(&claim).await.unwrap();
    assert_eq!((look.granted.len(), look.complete), (1, false));
    other.end("ROLLBACK").await;
    assert_eq!(take(&store, 10).await.len(), 1);
    put(&store, std::iter::once(plain("x").tenant("known"))).await;
    let look = store.look(&claim).await.unwrap();
    assert_eq!((look.granted.len(), look.complete), (1, true));
}

/// A claim that finds keys free which another one takes before it has locked them, and lets go of at once, goes on to the others.
#[tokio::test]
async fn keys_that_others_have_just_taken_hide_no_others() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    put(&store, (0..100).map(|n| plain("x").order_key(format!("k{n}")))).await;
    let other = Other::begin(&fx).await;
    other.claims(32).await;
    // Whoever is about to lock a key has seen which ones are free, and waits at a gate.
    let gate = Other::begin(&fx).await;
    gate.run("SELECT pg_advisory_xact_lock(hashtextextended('posthouse.', 7))")
        .await;
    fx.run(
        "CREATE OR REPLACE FUNCTION posthouse.key_lock(key_hash bigint) RETURNS bigint LANGUAGE plpgsql AS
         $$ BEGIN PERFORM pg_advisory_xact_lock_shared(hashtextextended('posthouse.', 7)); RETURN key_hash; END $$",
    )
    .await;
    let claim = tokio::spawn(async move { take(&store, 32).await.len() });
    let waits =
        "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'advisory' AND query LIKE '%posthouse.grant_leases%'";
    while fx.one(waits).await == "0" && !claim.is_finished() {
        tokio::task::yield_now().await;
    }
    other.end("COMMIT").await;
    gate.end("COMMIT").await;
    assert_eq!(claim.await.unwrap(), 32);
}

/// Among very many messages with keys the oldest are looked at first. Also claims of one go to other keys now and then.
#[tokio::test]
async fn claims_of_one_come_to_keys_behind_very_many_messages() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    put(&store, (0..3000).map(|_| plain("x").order_key("busy"))).await;
    put(&store, std::iter::once(plain("x").order_key("rare"))).await;
    // One in sixteen goes from key to key.
    for _ in 0..400 {
        let found = take(&store, 1).await;
        if found[0].delivery.order_key.as_deref() == Some("rare") {
            return;
        }
        let delivered: Vec<_> = found.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
        store.settle(&delivered).await.unwrap();
    }
    panic!("the other key was not served");
}
