//! Who may do what: each role is tried against every table and every function.

use std::{collections::BTreeSet, time::Duration};

use tokio_postgres::Client;

use posthouse_core::{
    Admin, Claim, Error, Message, Outcome, Prune, PruneStates, RetryPolicy, Settlement, State, Store,
};
use posthouse_postgres::Postgres;
use posthouse_testkit::Fixture;

use crate::fixture::{PostgresFixture, session, session_at, url_as};

const PRODUCER: &[&str] = &[
    "conclude_in",
    "enqueue",
    "enqueue_batch",
    "enqueue_bytes",
    "enqueue_many",
    "inbox_do_once",
    "inbox_once",
    "inbox_undo_once",
    "leave_in",
    "ledger_begin",
    "ledger_checkpoint",
    "ledger_fail",
    "ledger_finish",
    "ledger_leave",
    "ledger_renew",
    "once_in",
    "reach_in",
    "renew_entry",
    "saga_start",
    "schema_version",
    "step_once",
];
const RELAY: &[&str] = &[
    "below_floors",
    "check_dedup",
    "claim_outbox_batch",
    "complete_outbox_attempt",
    "conclude_in",
    "counts",
    "earlier_receipts",
    "enqueue_follow_ups",
    "enqueue_many",
    "expired",
    "fall_asleep",
    "fates",
    "grant_leases",
    "heartbeat",
    "inbox_do_once",
    "inbox_once",
    "inbox_undo_once",
    "leave",
    "leave_in",
    "ledger_begin",
    "ledger_checkpoint",
    "ledger_clear",
    "ledger_fail",
    "ledger_finish",
    "ledger_leave",
    "ledger_renew",
    "once_in",
    "pause_destination",
    "prune",
    "prune_done",
    "reach_in",
    "record_conflict",
    "renew",
    "renew_entry",
    "renew_lease",
    "repair_expired_leases",
    "saga_change",
    "saga_load",
    "saga_settle",
    "saga_start",
    "sample_floor",
    "schema_version",
    "settle",
    "settle_bound",
    "settle_delivered",
    "settle_expired",
    "step_once",
];
const OPERATOR: &[&str] = &[
    "attempts",
    "audit",
    "backlog",
    "bearing",
    "cancel",
    "clock",
    "counts",
    "discard",
    "entries",
    "expired",
    "find_entries",
    "find_messages",
    "messages",
    "pause",
    "pause_destination",
    "prune",
    "prune_done",
    "prune_states",
    "quarantine",
    "relay",
    "repair_expired_leases",
    "replay",
    "resolve",
    "resume_destination",
    "saga_change",
    "saga_history",
    "saga_load",
    "sagas",
    "schema_version",
    "settle_expired",
];
const VIEWER: &[&str] = &["counts", "masked_attempts", "masked_messages"];
/// Plain arithmetic that the views need, open to everybody.
const OPEN: &[&str] = &[
    "digest",
    "key_hash",
    "kind_word",
    "lane",
    "outcome_word",
    "prefixed",
    "reason_word",
];

/// Everything in the schema: its name, and a statement that uses it.
async fn everything(client: &Client, schema: &str) -> Vec<(String, String)> {
    let sql = "SELECT c.relname::text, format('SELECT FROM %I.%I LIMIT 0', n.nspname, c.relname)
         FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = $1 AND c.relkind IN ('r', 'v')
         UNION ALL
         SELECT p.proname::text, format('SELECT %I.%I(%s)', n.nspname, p.proname,
                (SELECT string_agg(format('NULL::%s', format_type(t.oid, NULL)), ', ' ORDER BY a.o)
                 FROM unnest(p.proargtypes) WITH ORDINALITY a(t, o) JOIN pg_type t ON t.oid = a.t))
         FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace WHERE n.nspname = $1";
    let rows = client.query(sql, &[&schema]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What a role can use: tried, not looked up. A refusal of anything but the right to it counts as use; but whoever may call something may
/// use what that needs.
async fn usable(client: &Client, schema: &str, role: &str) -> BTreeSet<String> {
    let mut usable = BTreeSet::new();
    for (name, statement) in everything(client, schema).await {
        let tried = format!("BEGIN; SET LOCAL ROLE {role}; {statement}; ROLLBACK");
        let refused = match client.batch_execute(&tried).await {
            Ok(()) => false,
            Err(e) => {
                client.batch_execute("ROLLBACK").await.unwrap();
                let db = e.as_db_error().expect("an answer of the server");
                let own = [
                    format!("function {name}"),
                    format!("table {name}"),
                    format!("view {name}"),
                ];
                let refused = db.code().code() == "42501";
                let itself = own.iter().any(|what| db.message().ends_with(what));
                let reads = !statement.contains('(');
                assert!(!(refused && reads) || itself, "{role} may read {name}, but: {db}");
                refused && itself
            }
        };
        if !refused {
            usable.insert(name);
        }
    }
    usable
}

/// What the page of the contract lists for each role is what a dry run tells, and so what is granted.
#[tokio::test]
async fn the_page_lists_what_each_role_is_granted() {
    let fx = PostgresFixture::new().await;
    let page = include_str!("../../../docs/sql.md");
    let words = |cell: &str| -> Vec<String> {
        let words = cell.split(", ").map(|word| word.trim().trim_matches('`').to_owned());
        words.filter(|word| !word.is_empty()).collect()
    };
    for role in fx.open().await.plan_roles().await.unwrap() {
        let suffix = role.name.strip_prefix(&format!("{}_", fx.schema)).unwrap();
        let line = page
            .lines()
            .find_map(|line| line.strip_prefix(&format!("| `posthouse_{suffix}` | ")))
            .unwrap();
        let (execute, select) = line.trim_end_matches('|').split_once('|').unwrap();
        if suffix != "owner" {
            assert_eq!((role.execute, role.select), (words(execute), words(select)), "{suffix}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_role_can_do_its_work_and_nothing_else() {
    let fx = PostgresFixture::new().await;
    let (client, _driver) = session().await;
    let schema = fx.schema.to_string();
    let made = fx.open().await.make_roles().await.unwrap();
    let suffixes = ["owner", "producer", "relay", "operator", "viewer"];
    assert_eq!(made, suffixes.map(|suffix| format!("{schema}_{suffix}")));
    // Twice is as good as once.
    assert_eq!(fx.open().await.make_roles().await.unwrap(), made);
    for (suffix, own) in [
        ("producer", PRODUCER),
        ("relay", RELAY),
        ("operator", OPERATOR),
        ("viewer", VIEWER),
    ] {
        let expected: BTreeSet<_> = own.iter().chain(OPEN).map(|name| (*name).to_owned()).collect();
        assert_eq!(
            usable(&client, &schema, &format!("{schema}_{suffix}")).await,
            expected,
            "{suffix}"
        );
    }
    let owned = usable(&client, &schema, &format!("{schema}_owner")).await;
    assert_eq!(
        owned.len(),
        everything(&client, &schema)
            .await
            .iter()
            .map(|(n, _)| n)
            .collect::<BTreeSet<_>>()
            .len()
    );
    for role in &made {
        fx.run(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
    }
}

/// A login with the rights of a relay removes messages that are done; dead letters are refused to it by the database, however it asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn relay_role_may_prune_done_messages_and_no_dead_letters() {
    let fx = PostgresFixture::new().await;
    let made = fx.open().await.make_roles().await.unwrap();
    let login = format!("{}_ralf", fx.schema);
    fx.run(&format!(
        "CREATE ROLE {login} LOGIN; GRANT {}_relay TO {login}",
        fx.schema
    ))
    .await;
    let store = Postgres::connect_with(&url_as(&login), PostgresFixture::options(&fx.schema))
        .await
        .unwrap();
    let owner = fx.open().await;
    let messages = || vec![Message::bytes("t", "text/plain", "x")];
    let [done, dead] = [owner.enqueue_now(messages()).await, owner.enqueue_now(messages()).await];
    let (done, dead) = (done.unwrap()[0].id(), dead.unwrap()[0].id());
    let claimed = store.claim(&Claim::new("w", 2, Duration::from_secs(15))).await.unwrap();
    let batch: Vec<_> = claimed
        .iter()
        .map(|one| match one.lease.id == done {
            true => Settlement::delivered(&one.lease, None),
            false => Settlement::of(&one.lease, Outcome::reject("no", "never"), &RetryPolicy::default(), 0.5),
        })
        .collect();
    assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    fx.advance(Duration::from_secs(3600)).await;

    let (client, driver) = session_at(&url_as(&login)).await;
    for call in [
        "prune('1 minute', 10, 'dead')",
        "prune('1 minute', 10, 'all')",
        "prune('1 minute', 10, 'dead', dry_run => true)",
        "prune_states('1 minute', 10, 'dead', 'ralf', '', false, NULL)",
        "prune_work(now(), now(), 10, 'dead', false)",
    ] {
        let refused = client
            .query(&format!("SELECT * FROM {}.{call}", fx.schema), &[])
            .await
            .unwrap_err();
        assert_eq!(
            refused.code().map(|state| state.code()),
            Some("42501"),
            "{call}: {refused:?}"
        );
    }
    let old = Duration::from_secs(60);
    for states in [PruneStates::Dead, PruneStates::All] {
        let refused = store.prune(&Prune::done(old, 10, "ralf").states(states)).await;
        assert!(matches!(refused, Err(Error::Denied(_))), "{states}: {refused:?}");
    }
    let told = store.prune(&Prune::done(old, 10, "ralf").dry_run()).await.unwrap();
    assert_eq!((told.done, told.dead), (1, 0));
    let pruned = store.prune(&Prune::done(old, 10, "ralf")).await.unwrap();
    assert_eq!((pruned.done, pruned.dead), (1, 0));
    assert_eq!(owner.find(done).await.unwrap(), None);
    assert_eq!(
        owner.find(dead).await.unwrap().map(|found| found.state),
        Some(State::Dead)
    );
    let audit = fx
        .one("SELECT actor || ' ' || action || ' ' || (pruned ->> 'done') FROM posthouse.audit")
        .await;
    assert_eq!(audit, "ralf prune 1");
    driver.abort();
    drop(store);
    fx.run(&format!("DROP OWNED BY {login}; DROP ROLE {login}")).await;
    for role in &made {
        fx.run(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}")).await;
    }
}
