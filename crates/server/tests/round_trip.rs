//! What is enqueued can be listed and shown, on every store, for people and for programs.

use crate::support::{Place, posthouse, run};
use posthouse::{AnyStore, Claim, Outcome, RetryPolicy, Settlement};
use std::time::Duration;

#[test]
fn migrate_makes_the_schema_once_and_check_tells() {
    for place in [Place::sqlite(), Place::postgres()] {
        let missing = place.run(&["migrate", "--check"]);
        assert!(
            missing.failed_with(1).contains("help: run `posthouse migrate`"),
            "{missing:?}"
        );
        assert!(place.run(&["migrate"]).stderr.contains("The schema is ready: version "));
        assert!(
            place
                .run(&["migrate"])
                .stderr
                .contains("The schema is up to date: version ")
        );
        assert_eq!(place.run(&["migrate", "--check"]).ok(), "");
        let told = place.run(&["migrate", "--json", "--quiet"]);
        assert_eq!(told.stderr, "");
        let told = told.json().remove(0);
        assert_eq!((&told["schema"], &told["changed"]), (&"current".into(), &false.into()));
    }
}

#[test]
fn a_message_is_enqueued_listed_and_shown_to_people() {
    for place in Place::both() {
        let id = place.enqueue(&[
            "order.placed",
            "--data",
            r#"{"order":42}"#,
            "--key",
            "o-42",
            "--tenant",
            "acme",
        ]);
        let list = place.run(&["messages", "list"]);
        let lines: Vec<_> = list
            .ok()
            .lines()
            .map(|line| line.split_whitespace().collect::<Vec<_>>())
            .collect();
        assert_eq!(
            lines[0],
            ["ID", "STATE", "TOPIC", "TENANT", "KEY", "ATTEMPTS", "CREATED", "DETAIL"]
        );
        assert_eq!(lines[1][..6], [&*id, "pending", "order.placed", "acme", "o-42", "0/12"]);
        assert_eq!(lines[1].last(), Some(&"due"));
        let shown = place.run(&["messages", "show", &id]);
        for line in [
            &*format!("message       {id}\n"),
            "state         pending\n",
            "topic         order.placed\n",
            "namespace     default\n",
            "tenant        acme\n",
            "order key     o-42\n",
            "payload       12 B, application/json\n",
            "attempts      0 of 12\n",
        ] {
            assert!(shown.ok().contains(line), "{line} in {shown:#?}");
        }
        assert!(!shown.stdout.contains("42}"), "the payload is never shown: {shown:#?}");
    }
}

#[test]
fn a_message_is_enqueued_listed_and_shown_to_programs() {
    for place in Place::both() {
        let data = r#"{"order":42}"#;
        let new = &place
            .run(&["--json", "enqueue", "order.placed", "--data", data, "--dedupe", "d"])
            .json()[0];
        assert_eq!(new["result"], "new");
        let again = &place
            .run(&["--json", "enqueue", "order.placed", "--data", data, "--dedupe", "d"])
            .json()[0];
        assert_eq!((&again["result"], &again["id"]), (&"duplicate".into(), &new["id"]));
        let listed = place.run(&["messages", "list", "--json"]).json();
        assert_eq!(
            (listed.len(), &listed[0]["id"], &listed[0]["dedupe_key"]),
            (1, &new["id"], &"d".into())
        );
        let shown = &place
            .run(&["messages", "show", new["id"].as_str().unwrap(), "--json"])
            .json()[0];
        assert_eq!(shown["message"], listed[0]);
        assert_eq!(shown["message"]["digest"].as_str().map(str::len), Some(64));
        assert_eq!(
            (&shown["attempts"], &shown["audit"]),
            (&serde_json::json!([]), &serde_json::json!([]))
        );
    }
}

#[test]
fn every_flag_of_enqueue_arrives() {
    let id = "0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10";
    let flags = "t --data hello --content-type text/plain --namespace shop --tenant acme --key k --dedupe d --delay 1h \
                 --deliver-in 2h --header a=b=c --header d= --max-attempts 3 --on-dead block --relaxed --keep";
    for place in Place::both() {
        let flags: Vec<_> = flags.split_whitespace().chain(["--id", id]).collect();
        assert_eq!(place.enqueue(&flags), id);
        let view = &place.run(&["messages", "show", id, "--json"]).json()[0]["message"];
        let expected = [
            ("namespace", "shop"),
            ("tenant", "acme"),
            ("topic", "t"),
            ("order_key", "k"),
            ("dedupe_key", "d"),
            ("content_type", "text/plain"),
        ];
        for (field, value) in expected {
            assert_eq!(view[field], value, "{field}");
        }
        assert_eq!((&view["max_attempts"], &view["bytes"]), (&3.into(), &5.into()));
        assert!(view["deliver_by"].as_str() > view["due_at"].as_str(), "{view}");
        assert!(view["due_at"].as_str() > view["created_at"].as_str(), "{view}");
        let other = ["--data", "other", "--content-type", "text/plain", "--id", id, "--keep"];
        assert_eq!(
            place.enqueue(&[&["t"][..], &other].concat()),
            id,
            "--keep accepts what is there"
        );
    }
}

#[test]
fn a_list_is_filtered_and_paged() {
    for place in Place::both() {
        for n in ["1", "2", "3"] {
            place.enqueue(&["a", "--data", n, "--key", n]);
        }
        place.enqueue(&["b", "--data", "4", "--tenant", "acme", "--namespace", "shop"]);
        let ids = |args: &[&str]| {
            place
                .run(&[&["messages", "list", "--json"], args].concat())
                .json()
                .len()
        };
        assert_eq!([ids(&[]), ids(&["--topic", "a"]), ids(&["--key", "2"])], [4, 3, 1]);
        assert_eq!(
            [
                ids(&["--tenant", "acme"]),
                ids(&["--tenant", ""]),
                ids(&["--namespace", "shop"])
            ],
            [1, 3, 1]
        );
        assert_eq!([ids(&["--state", "pending"]), ids(&["--state", "dead"])], [4, 0]);
        let page = place.run(&["messages", "list", "--json", "--limit", "3"]);
        let last = page.json()[2]["seq"].to_string();
        let next = format!("{{\"next\":{{\"before\":{last},\"stopped\":\"limit\"}}}}\n");
        assert_eq!(page.stderr, next);
        let page = place.run(&["messages", "list", "--limit", "3"]);
        assert_eq!(page.stderr, format!("There may be more: add --before {last}\n"));
        assert_eq!(ids(&["--before", &last]), 1);
    }
}

#[test]
fn a_payload_comes_from_a_file_or_from_standard_input() {
    let place = Place::sqlite();
    place.run(&["migrate"]).ok();
    let file = place.folder().join("payload.json");
    std::fs::write(&file, "[1, 2, 3]").unwrap();
    place.enqueue(&["t", "--file", file.to_str().unwrap()]);
    let stdin = std::fs::File::open(&file).unwrap();
    let read = posthouse()
        .args(["--store", &place.url, "enqueue", "t", "-"])
        .stdin(stdin)
        .output()
        .unwrap();
    assert!(read.status.success(), "{read:?}");
    let bytes: Vec<_> = place
        .run(&["messages", "list", "--json"])
        .json()
        .iter()
        .map(|m| m["bytes"].clone())
        .collect();
    assert_eq!(bytes, [9, 9]);
}

#[test]
fn the_store_may_be_named_by_the_environment_and_a_flag_wins() {
    let place = Place::sqlite();
    let env = |url: &str, args: &[&str]| {
        posthouse()
            .env("POSTHOUSE_STORE__URL", url)
            .args(args)
            .output()
            .unwrap()
    };
    assert!(env(&place.url, &["migrate"]).status.success());
    assert!(
        env("mysql://nowhere", &["--store", &place.url, "messages", "list"])
            .status
            .success()
    );
    assert_eq!(env("mysql://nowhere", &["messages", "list"]).status.code(), Some(2));
}

#[test]
fn help_has_examples_and_shows_no_secret_of_the_environment() {
    for args in [
        &["--help"][..],
        &["enqueue", "--help"],
        &["messages", "list", "--help"],
        &["migrate", "--help"],
        &["messages", "explain", "--help"],
        &["dead", "list", "--help"],
        &["dead", "replay", "--help"],
        &["audit", "--help"],
    ] {
        let help = posthouse()
            .env("POSTHOUSE_STORE__URL", "postgres://u:s3cret@h/d")
            .args(args)
            .output()
            .unwrap();
        let text = String::from_utf8(help.stdout).unwrap();
        assert!(help.status.success() && text.contains("Examples:"), "{text}");
        assert!(!text.contains("s3cret"), "{text}");
        assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
    }
    assert!(run(&["--version"]).ok().starts_with("posthouse 0."));
}

#[test]
fn what_happened_to_a_message_is_shown_and_a_discarded_one_is_remembered() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    for place in Place::both() {
        let id = place.enqueue(&["t", "--data", "1"]);
        let store = runtime.block_on(AnyStore::open(&place.url)).unwrap();
        runtime.block_on(reject(&store));
        let shown = place.run(&["messages", "show", &id]);
        assert!(shown.ok().contains("state         dead (rejected)\n"), "{shown:#?}");
        assert!(
            shown.ok().contains("last failure  http_422: no such order\n"),
            "{shown:#?}"
        );
        let line: Vec<_> = shown.ok().lines().last().unwrap().split_whitespace().skip(1).collect();
        assert_eq!(line[..5], ["rejected", "1", "1", "1", "w1"]);
        assert!(shown.stdout.ends_with("http_422: no such order\n"), "{shown:#?}");
        let list = place.run(&["messages", "list", "--state", "dead"]);
        assert!(list.ok().ends_with("rejected after http_422\n"), "{list:#?}");

        runtime
            .block_on(store.admin().discard(id.parse().unwrap(), "ann", "a test order"))
            .unwrap();
        let gone = place.run(&["messages", "show", &id]);
        assert!(
            gone.failed_with(3)
                .ends_with("the audit remembers: discard by ann, now: a test order\n"),
            "{gone:#?}"
        );
    }
}

async fn reject(store: &AnyStore) {
    let claimed = store
        .store()
        .claim(&Claim::new("w1", 1, Duration::from_secs(15)))
        .await
        .unwrap();
    let (code, error) = ("http_422".to_owned(), "no such order".to_owned());
    let policy = RetryPolicy::default();
    let rejected = Settlement::of(&claimed[0].lease, Outcome::Reject { code, error }, &policy, 0.5);
    assert!(store.store().settle(&[rejected]).await.unwrap()[0].is_settled());
}
