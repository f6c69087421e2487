//! What operators do: look, ask why, decide, and find it in the audit; on every store.

use posthouse::{AnyStore, Claim, Outcome, RetryPolicy, Settlement, presence};
use std::time::Duration;

use crate::support::Place;

/// Claims everything and lets the destination refuse it for good.
async fn reject_all(url: &str) {
    let store = AnyStore::open(url).await.unwrap().store();
    let claimed = store
        .claim(&Claim::new("w1", 100, Duration::from_secs(60)))
        .await
        .unwrap();
    let refused = |lease| {
        let (code, error) = ("http_422".to_owned(), "no such order".to_owned());
        Settlement::of(lease, Outcome::Reject { code, error }, &RetryPolicy::default(), 0.5)
    };
    let batch: Vec<_> = claimed.iter().map(|c| refused(&c.lease)).collect();
    assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
}

fn wait(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(work);
}

#[test]
fn dead_letters_are_looked_at_and_replayed_by_filter() {
    for place in Place::both() {
        for n in 0..3 {
            place.enqueue(&["order.placed", "--data", &n.to_string()]);
        }
        let other = place.enqueue(&["other", "--data", "1"]);
        wait(reject_all(&place.url));
        let stats = place.run(&["stats"]);
        assert!(stats.ok().contains("ready         0\n"), "{stats:#?}");
        assert!(stats.ok().contains("dead          4\n"), "{stats:#?}");
        assert_eq!(
            place
                .run(&["dead", "list", "--json", "--code", "http_422"])
                .json()
                .len(),
            4
        );
        assert_eq!(
            place
                .run(&["dead", "list", "--json", "--reason", "lapsed"])
                .json()
                .len(),
            0
        );

        let dry = place.run(&["dead", "replay", "--topic", "order.placed", "--dry-run"]);
        assert!(
            dry.ok()
                .starts_with("3 messages would be replayed; nothing was changed.\n       3  rejected after http_422\n"),
            "{dry:#?}"
        );
        let refused = place.run(&["dead", "replay", "--topic", "order.placed"]);
        assert!(
            refused
                .failed_with(2)
                .contains("this would replay 3 messages; nothing was changed"),
            "{refused:#?}"
        );
        let done = place.run(&[
            "dead",
            "replay",
            "--topic",
            "order.placed",
            "--yes",
            "--actor",
            "anna",
            "--reason",
            "fixed",
        ]);
        assert_eq!(done.ok(), "3 replayed\n");
        let again = place.run(&["dead", "replay", "--topic", "order.placed", "--yes"]);
        assert_eq!(again.ok(), "0 replayed\n");
        // Nothing matches: the same document, whether it was confirmed or not.
        let nothing = place
            .run(&["dead", "replay", "--topic", "order.placed", "--json"])
            .json();
        let confirmed = place.run(&["dead", "replay", "--topic", "order.placed", "--json", "--yes"]);
        assert_eq!(nothing, confirmed.json());
        assert_eq!(
            (&nothing[0]["replayed"], &nothing[0]["complete"]),
            (&0.into(), &true.into())
        );
        assert_eq!(
            place
                .run(&["messages", "list", "--json", "--state", "pending"])
                .json()
                .len(),
            3
        );

        let audit = place.run(&["audit", "--actor", "anna", "--json"]).json();
        assert_eq!(audit.len(), 3);
        assert!(
            audit
                .iter()
                .all(|line| line["action"] == "replay" && line["detail"] == "fixed"),
            "{audit:#?}"
        );
        assert_eq!(
            place.run(&["dead", "discard", &other, "--reason", "not ours"]).ok(),
            format!("{other}  discarded\n")
        );
        place.run(&["dead", "discard", &other]).failed_with(3);
    }
}

/// A relay that tells of itself and of where it sends to.
async fn tells(url: &str, routes: &[(&str, &str)]) {
    let store = AnyStore::open(url).await.unwrap().store();
    let route = |(topic, to): &(&str, &str)| presence::Route {
        topic: (*topic).to_owned(),
        destinations: vec![(*to).to_owned()],
    };
    let told = presence::Relay {
        name: "relay-a".to_owned(),
        routes: routes.iter().map(route).collect(),
        ..presence::Relay::default()
    };
    store.heartbeat(&told, Duration::from_secs(3600)).await.unwrap();
}

#[test]
fn of_a_topic_that_holds_a_url_the_secret_part_is_told_by_nobody() {
    const TOPIC: &str = "http:https://shop.example/SECRETPATH?token=SECRET";
    for place in Place::both() {
        place.enqueue(&[TOPIC, "--data", "1"]);
        wait(reject_all(&place.url));
        let waits = place.enqueue(&[TOPIC, "--data", "2"]);
        // Without a relay, with one that has no route for it, and with one that has.
        for routes in [&[][..], &[("order.*", "orders")], &[(TOPIC, "hooks")]] {
            if !routes.is_empty() {
                wait(tells(&place.url, routes));
            }
            let commands: [&[&str]; 9] = [
                &["messages", "list", "--topic", TOPIC],
                &["messages", "show", &waits],
                &["messages", "explain", &waits],
                &["dead", "list"],
                &["dead", "replay", "--all", "--dry-run"],
                &["doctor"],
                &["stats"],
                &["destinations", "list"],
                &["enqueue", TOPIC, "--data", "3"],
            ];
            for command in commands {
                for more in [&[][..], &["--json"]] {
                    let told = place.run(&[command, more].concat());
                    assert_eq!(told.code, Some(0), "{command:?} {told:#?}");
                    let text = format!("{}{}", told.stdout, told.stderr);
                    assert!(!text.contains("SECRET"), "{command:?} {more:?}: {text}");
                    let lists = matches!(command, ["messages" | "dead", "list", ..]);
                    assert!(
                        !lists || text.contains("http:https://shop.example#"),
                        "{command:?} {more:?}: {text}"
                    );
                }
            }
        }
        assert_eq!(
            place.run(&["messages", "explain", &waits, "--json"]).json()[0]["causes"][0]["cause"],
            "free"
        );
    }
}

#[test]
fn a_message_that_waits_is_explained_and_decided_about() {
    for place in Place::both() {
        let first = place.enqueue(&["t", "--data", "1", "--key", "k", "--delay", "1h"]);
        let second = place.enqueue(&["t", "--data", "2", "--key", "k"]);
        let causes = |id: &str| {
            let told = place.run(&["messages", "explain", id, "--json"]).json().remove(0);
            let causes = told["causes"].as_array().unwrap().clone();
            causes
                .iter()
                .map(|c| c["cause"].as_str().unwrap().to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(causes(&first), ["delayed", "no_relay"]);
        assert_eq!(causes(&second), ["behind", "no_relay"]);
        let text = place.run(&["messages", "explain", &second]);
        assert!(
            text.ok()
                .contains(&format!("behind          message {first} of its order key comes first")),
            "{text:#?}"
        );
        assert_eq!(
            place.run(&["messages", "cancel", &first, "--reason", "withdrawn"]).ok(),
            format!("{first}  cancelled\n")
        );
        assert_eq!(causes(&first), ["dead"]);
        assert_eq!(causes(&second), ["no_relay"]);
        place.run(&["messages", "cancel", &first]).failed_with(4);
        assert_eq!(
            place
                .run(&["messages", "resolve", &second, "--receipt", "by hand"])
                .ok(),
            format!("{second}  resolved\n")
        );
        assert_eq!(causes(&second), ["resolved"]);
        assert_eq!(place.run(&["repair"]).ok(), "no lease has run out\n");
        place.run(&["prune", "--older-than", "30d"]).failed_with(2);
        let pruned = place.run(&["prune", "--older-than", "30d", "--yes"]);
        assert_eq!(
            pruned.ok(),
            "removed 0 messages, 0 dedupe keys, 0 entries of the ledger, 0 of the inbox and 0 sagas\n"
        );
    }
}

#[test]
fn destinations_are_paused_and_resumed() {
    for place in Place::both() {
        place.run(&["migrate"]).ok();
        assert_eq!(
            place.run(&["destinations", "list"]).stderr,
            "No relay is running, and nothing is paused.\n"
        );
        let paused = place.run(&[
            "destinations",
            "pause",
            "shop",
            "--actor",
            "anna",
            "--reason",
            "maintenance",
        ]);
        assert_eq!(paused.ok(), "shop  paused\n");
        assert!(paused.stderr.contains("check its spelling"), "{paused:#?}");
        let listed = place.run(&["destinations", "list", "--json"]).json();
        assert_eq!(listed[0]["paused"]["actor"], "anna");
        assert_eq!(place.run(&["destinations", "resume", "shop"]).ok(), "shop  resumed\n");
        assert_eq!(
            place.run(&["destinations", "resume", "shop"]).ok(),
            "shop  was not paused\n"
        );
        let audit = place.run(&["audit"]);
        assert!(audit.ok().contains("maintenance"), "{audit:#?}");
    }
}

#[test]
fn roles_are_for_postgresql() {
    let refused = Place::sqlite();
    let said = refused.run(&["migrate", "--roles"]);
    assert!(
        said.failed_with(2).contains("roles: a SQLite file has none"),
        "{said:#?}"
    );
}

/// What the list of everything rare says beside it, which is nothing when there is no more.
fn all_of(place: &Place) -> String {
    place.run(&["messages", "list", "--json", "--topic", "rare"]).stderr
}

/// A store looks at so many messages for one answer; the program goes on, for as long as it is told.
#[test]
fn a_list_that_stops_says_how_far_it_looked() {
    let place = Place::sqlite();
    place.run(&["migrate"]).ok();
    let oldest = place.enqueue(&["rare", "--data", "1"]);
    wait(async {
        let store = AnyStore::open(&place.url).await.unwrap();
        for _ in 0..=posthouse::admin::LOOKED_AT_MOST / 10_000 {
            let messages = (0..10_000).map(|_| posthouse::Message::bytes("t", "text/plain", "x"));
            store.enqueue(messages.collect()).await.unwrap();
        }
    });
    let list = ["messages", "list", "--json", "--topic", "rare"];
    let all = place.run(&list).json();
    assert_eq!((all.len(), &all[0]["id"]), (1, &oldest.into()));
    let stopped = place.run(&[&list[..], &["--patience", "0s"]].concat());
    assert_eq!(stopped.ok(), "");
    let next = |run: &crate::support::Run| -> serde_json::Value {
        serde_json::from_str(run.stderr.lines().last().unwrap()).unwrap()
    };
    assert_eq!(
        next(&stopped),
        serde_json::json!({"next": {"before": 10002, "stopped": "patience"}})
    );
    // Not silenced: for a program it is no remark.
    let full = place.run(&["messages", "list", "--json", "--quiet", "--limit", "2"]);
    assert_eq!(full.json().len(), 2);
    let last = full.json()[1]["seq"].clone();
    assert_eq!(
        next(&full),
        serde_json::json!({"next": {"before": last, "stopped": "limit"}})
    );
    assert_eq!(all_of(&place), "");

    let list = ["messages", "list", "--topic", "rare"];
    let stopped = place.run(&[&list[..], &["--patience", "0s"]].concat());
    let told: Vec<_> = stopped.stderr.lines().collect();
    assert_eq!(told[0], "No messages.");
    assert!(told[1].starts_with("Looked at the messages from 20"), "{told:?}");
    assert!(
        told[1].ends_with("and stopped. There may be more: add --before 10002, or a longer --patience"),
        "{told:?}"
    );
    let rest = place.run(&[&list[..], &["--json", "--patience", "0s", "--before", "10002"]].concat());
    assert_eq!(rest.json().len(), 1);
}
