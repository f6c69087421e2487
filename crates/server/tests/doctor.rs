//! The doctor on real stores: what it sees of a server, and how it ends.

use crate::support::{Place, posthouse, run, server, sql};
use posthouse::{
    Message, Relay, presence,
    relay::{CancellationToken, Destination, local_delivery},
};
use serde_json::Value;
use std::time::Duration;
use tokio_postgres::NoTls;

fn findings(place: &Place, url: &str, more: &[&str]) -> Vec<Value> {
    let args = [&["--store", url, "doctor", "--json"], more].concat();
    let run: crate::support::Run = posthouse()
        .args(args)
        .current_dir(std::env::temp_dir())
        .output()
        .unwrap()
        .into();
    let documents = run.json();
    assert_eq!(documents[0]["sound"], true, "{} {run:?}", place.url);
    documents[0]["findings"].as_array().unwrap().clone()
}

fn of<'f>(findings: &'f [Value], check: &str) -> Vec<&'f Value> {
    findings.iter().filter(|finding| finding["check"] == check).collect()
}

/// Relays listen at a URL of its own where there is a pooler; a wrong one is not noticed by anything else.
#[test]
fn a_url_past_the_pooler_that_leads_nowhere_is_named() {
    let [_, place] = Place::both();
    let wake_ups = |direct: &str| -> Vec<Value> {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("posthouse.toml");
        let text = format!("[store]\nurl = \"{}\"\ndirect_url = \"{direct}\"\n", place.url);
        std::fs::write(&file, text).unwrap();
        let mut doctor = posthouse();
        doctor.arg("--config").arg(&file).args(["doctor", "--json"]);
        let run: crate::support::Run = doctor.output().unwrap().into();
        let found = run.json()[0]["findings"].as_array().unwrap().clone();
        of(&found, "wake-ups").into_iter().cloned().collect()
    };
    assert_eq!(wake_ups(&server()), Vec::<Value>::new());
    let found = &wake_ups("postgres://postgres@127.0.0.1:1/postgres")[0];
    assert_eq!(found["level"], "warn");
    assert!(found["found"].as_str().unwrap().contains("refused"), "{found}");
}

#[test]
fn a_session_that_stays_in_its_transaction_is_named() {
    let [_, place] = Place::both();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let (client, pid) = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&server(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
            .batch_execute("BEGIN; SELECT pg_current_xact_id()")
            .await
            .unwrap();
        let row = client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap();
        (client, row.get::<_, i32>(0))
    });
    let named = |findings: &[Value]| {
        let mut held = of(findings, "cleaning").into_iter();
        held.find(|f| f["found"].as_str().unwrap().contains(&format!("(pid {pid})")))
            .cloned()
    };
    let found = named(&findings(&place, &place.url, &["--old", "1ms"])).expect("the session is named");
    assert_eq!(found["level"], "warn");
    assert!(
        found["found"].as_str().unwrap().contains("idle in transaction"),
        "{found}"
    );
    assert!(
        found["todo"]
            .as_str()
            .unwrap()
            .contains(&format!("pg_terminate_backend({pid})")),
        "{found}"
    );
    assert_eq!(named(&findings(&place, &place.url, &["--old", "1d"])), None);
    runtime.block_on(client.batch_execute("ROLLBACK")).unwrap();
    assert_eq!(named(&findings(&place, &place.url, &["--old", "1ms"])), None);
}

#[test]
fn a_session_that_does_not_wait_for_the_disk_is_a_risk() {
    let [_, place] = Place::both();
    let off = format!("{}&options=-c%20synchronous_commit%3Doff", place.url);
    let found = findings(&place, &off, &[]);
    let durability = of(&found, "durability");
    assert_eq!(durability[0]["level"], "warn", "{durability:?}");
    assert!(
        durability[0]["found"]
            .as_str()
            .unwrap()
            .contains("synchronous_commit off")
    );
    let found = findings(&place, &place.url, &[]);
    assert_eq!(of(&found, "clock")[0]["level"], "ok");
    assert!(of(&found, "pooler").is_empty(), "{found:?}");
}

/// A relay's role counts, as the relay does; what it may not look at is named, and nothing fails.
#[test]
fn with_a_relays_role_it_says_what_it_did_not_look_at() {
    let [_, place] = Place::both();
    place.run(&["migrate", "--roles"]).ok();
    place.enqueue(&["order.placed", "--data", "1"]);
    let (schema, server) = (place.schema(), server());
    let login = format!("{schema}_ralf");
    sql(&server, &format!("CREATE ROLE {login} LOGIN IN ROLE {schema}_relay"));
    let (scheme, rest) = place.url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let url = format!("{scheme}://{login}@{host}");
    let found = findings(&place, &url, &[]);
    let counted = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
        .block_on(async { posthouse::AnyStore::open(&url).await.unwrap().admin().counts().await });
    sql(&server, &format!("DROP ROLE {login}"));
    for role in ["owner", "producer", "relay", "operator", "viewer"] {
        let role = format!("{schema}_{role}");
        sql(&server, &format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"));
    }
    assert_eq!(counted.unwrap().ready.value, 1);
    let rights = of(&found, "rights");
    assert!(
        rights[0]["found"]
            .as_str()
            .unwrap()
            .contains("relays, routes, destinations")
            && rights[0]["todo"].as_str().unwrap().contains("posthouse_operator"),
        "{found:#?}"
    );
    for check in ["relays", "routes", "destinations"] {
        assert!(of(&found, check).is_empty(), "{found:#?}");
    }
    for check in ["durability", "leases", "backlog", "dead"] {
        assert_eq!(of(&found, check).len(), 1, "{found:#?}");
    }
}

/// Operators may ask, too; they are told what they cannot see.
#[test]
fn an_operator_who_may_not_see_sessions_is_told_so() {
    let [_, place] = Place::both();
    place.run(&["migrate", "--roles"]).ok();
    let (schema, server) = (place.schema(), server());
    let login = format!("{schema}_anna");
    sql(&server, &format!("CREATE ROLE {login} LOGIN IN ROLE {schema}_operator"));
    let (scheme, rest) = place.url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let found = findings(&place, &format!("{scheme}://{login}@{host}"), &[]);
    sql(&server, &format!("DROP ROLE {login}"));
    for role in ["owner", "producer", "relay", "operator", "viewer"] {
        let role = format!("{schema}_{role}");
        sql(&server, &format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"));
    }
    let unseen = of(&found, "cleaning");
    assert!(
        unseen
            .iter()
            .any(|f| f["found"].as_str().unwrap().contains("may not see")),
        "{found:?}"
    );
    assert_eq!(of(&found, "dead")[0]["level"], "ok", "{found:?}");
}

#[test]
fn what_does_not_answer_or_does_not_fit_fails() {
    let away = run(&["--store", "postgres://nobody@127.0.0.1:1/none", "doctor"]);
    assert_eq!(away.code, Some(1), "{away:?}");
    assert!(away.stdout.contains("fail  store"), "{away:?}");
    let place = Place::postgres();
    let bare = place.run(&["doctor"]);
    assert_eq!(bare.code, Some(1), "{bare:?}");
    assert!(
        bare.stdout.contains("fail  schema") && bare.stdout.contains("posthouse migrate"),
        "{bare:?}"
    );
}

/// A relay that has claimed a message of a topic without a route reports it; the doctor finds it behind 1,500 others, on each database.
#[test]
fn a_topic_without_a_route_is_found_behind_a_thousand_others() {
    let [sqlite, postgres] = Place::both();
    for place in [sqlite, postgres] {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let stop = CancellationToken::new();
        let any = runtime.block_on(async {
            let any = posthouse::AnyStore::open(&place.url).await.unwrap();
            let of = |topic: &str| Message::json(topic, &1).unwrap();
            let mut messages = vec![of("order.placed"); 1500];
            messages.push(of("invoice.sent"));
            any.enqueue(messages).await.unwrap();
            any
        });
        let stuck = local_delivery(|_| async { std::future::pending::<()>().await });
        let relay = Relay::builder(any.store())
            .grace(Duration::from_millis(100))
            .route("order.*", Destination::new("shop", stuck).concurrency(1))
            // A relay whose destinations are all full claims nothing.
            .route("mail.*", Destination::new("mail", local_delivery(|_| async {})));
        let relay = runtime.spawn(relay.run(stop.clone()));
        runtime.block_on(async {
            for _ in 0..400 {
                if !presence::unrouted(&any.admin().relays().await.unwrap())
                    .topics
                    .is_empty()
                {
                    break;
                }
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        });
        let found = findings(&place, &place.url, &[]);
        let routes = of(&found, "routes")[0];
        stop.cancel();
        runtime.block_on(relay).unwrap().unwrap();
        assert_eq!(routes["level"], "warn", "{routes}");
        let text = routes["found"].as_str().unwrap();
        assert!(
            text.starts_with("no relay that is running has a route for invoice.sent"),
            "{text}"
        );
        assert!(text.contains("looked at the oldest 1,000"), "{text}");
        assert!(
            routes["todo"].as_str().unwrap().contains("posthouse messages explain "),
            "{routes}"
        );
    }
}

/// `[outbox] max_attempts` and its like bind producers only once `migrate` has written them into the store.
#[test]
fn settings_that_the_store_does_not_have_yet_are_named() {
    for place in Place::both() {
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("posthouse.toml");
        let text = format!("[store]\nurl = \"{}\"\n[outbox]\nmax_attempts = 5\n", place.url);
        std::fs::write(&file, text).unwrap();
        let run = |args: &[&str]| -> crate::support::Run {
            posthouse()
                .arg("--config")
                .arg(&file)
                .args(args)
                .output()
                .unwrap()
                .into()
        };
        let producers = || {
            let found = run(&["doctor", "--json"]).json()[0]["findings"]
                .as_array()
                .unwrap()
                .clone();
            of(&found, "producers").into_iter().cloned().collect::<Vec<_>>()
        };
        let found = producers();
        assert!(
            found[0]["found"].as_str().unwrap().ends_with("says: max_attempts"),
            "{found:?}"
        );
        run(&["migrate"]).ok();
        assert_eq!(producers(), Vec::<Value>::new());
    }
}
