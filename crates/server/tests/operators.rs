//! What operators do: look, ask why, decide, and find it in the audit; on every store.

use posthouse::{AnyStore, Claim, Outcome, RetryPolicy, Settlement, presence};
use std::time::Duration;

use crate::support::{Place, Process, posthouse};

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

/// Claims everything and lets the only attempt of its budget fail.
async fn fails_once(url: &str) {
    let store = AnyStore::open(url).await.unwrap().store();
    let claim = Claim::new("w1", 100, Duration::from_secs(60));
    let policy = RetryPolicy {
        max_attempts: Some(1),
        ..RetryPolicy::default()
    };
    let failed = |lease| Settlement::of(lease, Outcome::retry("http_503", "down"), &policy, 0.5);
    let claimed = store.claim(&claim).await.unwrap();
    let batch: Vec<_> = claimed.iter().map(|one| failed(&one.lease)).collect();
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
            "--note",
            "fixed",
        ]);
        assert_eq!(done.ok(), "3 replayed\n");
        let again = place.run(&["dead", "replay", "--topic", "order.placed", "--yes", "--note", "fixed"]);
        assert_eq!(again.ok(), "0 replayed\n");
        // Nothing matches: the same document, whether it was confirmed or not.
        let nothing = place
            .run(&["dead", "replay", "--topic", "order.placed", "--json"])
            .json();
        let confirmed = place.run(&[
            "dead",
            "replay",
            "--topic",
            "order.placed",
            "--json",
            "--yes",
            "--note",
            "fixed",
        ]);
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
                .all(|line| line["action"] == "replay" && line["note"] == "fixed"),
            "{audit:#?}"
        );
        assert_eq!(
            place.run(&["dead", "discard", &other, "--note", "not ours"]).ok(),
            format!("{other}  discarded\n")
        );
        place
            .run(&["dead", "discard", &other, "--note", "not ours"])
            .failed_with(3);
    }
}

/// A relay that tells of itself and of where it sends to.
async fn tells(url: &str, routes: &[(&str, &str)]) {
    let store = AnyStore::open(url).await.unwrap().store();
    let route = |(topic, to): &(&str, &str)| presence::Route {
        topic: (*topic).to_owned(),
        destinations: vec![(*to).to_owned()],
        ..presence::Route::default()
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
            place.run(&["messages", "cancel", &first, "--note", "withdrawn"]).ok(),
            format!("{first}  cancelled\n")
        );
        assert_eq!(causes(&first), ["dead"]);
        assert_eq!(causes(&second), ["no_relay"]);
        place
            .run(&["messages", "cancel", &first, "--note", "withdrawn"])
            .failed_with(4);
        assert_eq!(
            place
                .run(&["messages", "resolve", &second, "--note", "by hand", "--receipt", "B-77"])
                .ok(),
            format!("{second}  resolved\n")
        );
        assert_eq!(causes(&second), ["resolved"]);
        assert_eq!(place.run(&["repair"]).ok(), "no lease has run out\n");
        place.run(&["prune", "--older-than", "30d"]).failed_with(2);
        let pruned = place.run(&["prune", "--older-than", "30d", "--yes", "--note", "a test"]);
        assert_eq!(
            pruned.ok(),
            "removed 0 done and 0 dead messages, 0 dedupe keys, 0 ledger entries, 0 inbox rows and 0 sagas\n"
        );
    }
}

/// The word that looked is the word that replays.
#[test]
fn the_reason_that_lists_dead_letters_is_the_one_that_replays_them() {
    for place in Place::both() {
        let exhausted = place.enqueue(&["order.placed", "--data", "1"]);
        wait(fails_once(&place.url));
        let rejected = place.enqueue(&["order.placed", "--data", "2"]);
        wait(reject_all(&place.url));
        let listed = place.run(&["dead", "list", "--reason", "exhausted", "--json"]).json();
        let ids: Vec<_> = listed.iter().map(|message| message["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [exhausted.as_str()]);
        let replay = ["dead", "replay", "--reason", "exhausted", "--yes", "--actor", "anna"];
        // The old habit, a text for the audit as --reason, is refused with the reasons that there are.
        let mistaken = place.run(&["dead", "replay", "--all", "--yes", "--reason", "it is back"]);
        let said = mistaken.failed_with(2);
        for part in [
            "exhausted, rejected, lapsed, conflict, cancelled",
            "the text for the audit is --note",
        ] {
            assert!(said.contains(part), "{said}");
        }
        let noteless = place.run(&replay);
        assert!(noteless.failed_with(2).contains("--note is missing"), "{noteless:#?}");
        assert_eq!(
            place.run(&["dead", "list", "--json"]).json().len(),
            2,
            "nothing was changed"
        );
        let done = place.run(&[&replay[..], &["--note", "the shop is back"]].concat());
        assert_eq!(done.ok(), "1 replayed\n");
        let dead = place.run(&["dead", "list", "--json"]).json();
        let ids: Vec<_> = dead.iter().map(|message| message["id"].as_str().unwrap()).collect();
        assert_eq!(ids, [rejected.as_str()], "the one that was not listed stays dead");
        let audit = place.run(&["audit", "--json"]).json();
        let lines: Vec<_> = audit
            .iter()
            .map(|line| (&line["action"], &line["id"], &line["note"]))
            .collect();
        assert_eq!(
            lines,
            [(&"replay".into(), &exhausted.into(), &"the shop is back".into())]
        );
    }
}

/// Every verb that writes to the audit asks for a note, and changes nothing without one.
#[test]
fn verbs_without_a_note_are_refused() {
    for place in Place::both() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("saga.json");
        let definition = r#"{ "name": "s", "version": 1, "steps": [{ "name": "one", "action_uri": "fn:one" }] }"#;
        std::fs::write(&file, definition).unwrap();
        let waits = place.enqueue(&["order.placed", "--data", "1", "--delay", "1h"]);
        let dead = place.enqueue(&["order.placed", "--data", "2"]);
        wait(reject_all(&place.url));
        place.run(&["saga", "start", file.to_str().unwrap(), "--key", "k"]).ok();
        let before = place.run(&["stats", "--json"]).json();
        let verbs: [&[&str]; 20] = [
            &["messages", "cancel", &waits],
            &["messages", "resolve", &waits, "--receipt", "B-77"],
            &["dead", "replay", &dead],
            &["dead", "replay", "--all", "--yes"],
            &["dead", "quarantine", &dead],
            &["dead", "discard", &dead],
            &["prune", "--older-than", "1ms", "--state", "all", "--yes"],
            &["destinations", "pause", "shop"],
            &["destinations", "resume", "shop"],
            &["saga", "pause", "s/k"],
            &["saga", "resume", "s/k"],
            &["saga", "quarantine", "s/k"],
            &["saga", "compensate", "s/k"],
            &["saga", "replay", "s/k"],
            &["saga", "abandon", "s/k"],
            &["saga", "pause", "--name", "s", "--yes"],
            &["saga", "retry", "s/k", "one"],
            &["saga", "skip", "s/k", "one"],
            &["saga", "resolve", "s/k", "one"],
            &["saga", "complete", "s/k", "one", "--output", "1"],
        ];
        for verb in verbs {
            for note in [&[][..], &["--note", " "]] {
                let refused = place.run(&[verb, note].concat());
                let said = refused.failed_with(2);
                assert!(said.contains("--note is missing"), "{verb:?}: {said}");
                assert!(said.contains("add for instance: --note '"), "{verb:?}: {said}");
            }
        }
        assert_eq!(place.run(&["audit", "--json"]).stdout, "");
        let after = place.run(&["stats", "--json"]).json();
        assert_eq!(before[0]["messages"]["dead"], after[0]["messages"]["dead"]);
        assert_eq!(place.run(&["destinations", "list", "--json"]).stdout, "");
    }
}

/// Dead letters stay unless they are asked for; a dry run tells how many of each; the audit has one row for a run.
#[test]
fn prune_leaves_dead_letters_and_is_audited() {
    for place in Place::both() {
        place.enqueue(&["order.placed", "--data", "1"]);
        wait(reject_all(&place.url));
        let done = place.enqueue(&["order.placed", "--data", "2"]);
        place.run(&["messages", "resolve", &done, "--note", "by phone"]).ok();
        let prune = ["prune", "--older-than", "1ms"];
        let run = |more: &[&str]| place.run(&[&prune[..], more].concat());
        let told = run(&["--state", "all", "--dry-run", "--json"]).json();
        assert_eq!((&told[0]["done"], &told[0]["dead"]), (&1.into(), &1.into()));
        assert_eq!((&told[0]["dry_run"], &told[0]["exact"]), (&true.into(), &true.into()));
        let told = run(&["--dry-run"]);
        assert!(
            told.ok().starts_with("would remove 1 done and 0 dead messages"),
            "{told:#?}"
        );
        assert_eq!(place.run(&["messages", "list", "--json"]).json().len(), 2);
        let note = ["--yes", "--actor", "anna", "--note", "cleaning"];
        let removed = run(&note);
        assert!(
            removed.ok().starts_with("removed 1 done and 0 dead messages"),
            "{removed:#?}"
        );
        assert_eq!(place.run(&["dead", "list", "--json"]).json().len(), 1);
        let removed = run(&[&["--state", "dead"][..], &note[..]].concat());
        assert!(
            removed.ok().starts_with("removed 0 done and 1 dead messages"),
            "{removed:#?}"
        );
        let audit = place.run(&["audit", "--action", "prune", "--json"]).json();
        let lines: Vec<_> = audit
            .iter()
            .map(|line| {
                let pruned = &line["pruned"];
                assert_eq!((&line["actor"], &line["note"]), (&"anna".into(), &"cleaning".into()));
                assert!(pruned["cutoff"].is_string(), "{line}");
                (pruned["states"].clone(), pruned["done"].clone(), pruned["dead"].clone())
            })
            .collect();
        assert_eq!(
            lines,
            [("dead".into(), 0.into(), 1.into()), ("done".into(), 1.into(), 0.into())]
        );
        let unknown = run(&["--state", "quarantined", "--yes"]);
        assert!(unknown.failed_with(2).contains("done, dead, all"), "{unknown:#?}");
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
            "--note",
            "maintenance",
        ]);
        assert_eq!(paused.ok(), "shop  paused\n");
        assert!(paused.stderr.contains("check its spelling"), "{paused:#?}");
        let listed = place.run(&["destinations", "list", "--json"]).json();
        assert_eq!(listed[0]["paused"]["actor"], "anna");
        assert_eq!(
            place.run(&["destinations", "resume", "shop", "--note", "done"]).ok(),
            "shop  resumed\n"
        );
        assert_eq!(
            place.run(&["destinations", "resume", "shop", "--note", "done"]).ok(),
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

/// A configuration whose first route sets no budget and whose second sets 1. The address refuses connections.
fn routes_to_nowhere(url: &str) -> String {
    let route = |topic: &str, retry: &str| {
        format!(
            "[[route]]\ntopic = \"{topic}\"\nname = \"{topic}\"\nto = \"http://127.0.0.1:1/\"\nallow_private = true\nretry = {{ {retry} }}\nbreaker = false\n"
        )
    };
    let open = route("order.*", "table_s = [0.01]");
    let strict = route("strict.*", "max_attempts = 1");
    format!("[store]\nurl = \"{url}\"\n[outbox]\nmax_attempts = 12\n[admin]\nbind = \"off\"\n{open}{strict}")
}

/// The producer's budget wins over `[outbox] max_attempts`, and the route's over both, where it is set.
#[test]
fn the_relay_applies_the_producers_budget_unless_the_route_sets_one() {
    for place in Place::both() {
        let own = place.enqueue(&["order.placed", "--data", "1", "--max-attempts", "2"]);
        let strict = place.enqueue(&["strict.placed", "--data", "1", "--max-attempts", "5"]);
        let dir = tempfile::TempDir::new().unwrap();
        let file = dir.path().join("posthouse.toml");
        std::fs::write(&file, routes_to_nowhere(&place.url)).unwrap();
        let mut relay = posthouse();
        let relay = Process::start(relay.arg("--config").arg(&file).arg("relay"));
        let attempts = |id: &str| {
            let document = place.run(&["messages", "show", "--json", id]).json().remove(0);
            let message = &document["message"];
            (
                message["state"].clone(),
                message["attempts"].clone(),
                message["max_attempts"].clone(),
            )
        };
        while attempts(&own).0 != "dead" || attempts(&strict).0 != "dead" {
            std::thread::sleep(Duration::from_millis(50));
        }
        drop(relay);
        assert_eq!(attempts(&own), ("dead".into(), 2.into(), 2.into()));
        assert_eq!(attempts(&strict), ("dead".into(), 1.into(), 1.into()));
    }
}

/// The budget by which the next failure is judged, where it differs from the one that is stamped.
#[test]
fn the_budget_that_will_be_applied_is_shown() {
    for place in Place::both() {
        let own = place.enqueue(&["order.placed", "--data", "1", "--max-attempts", "2"]);
        let shown = || {
            let list = place.run(&["messages", "list", "--json"]).json()[0]["max_attempts"].clone();
            let table = place.run(&["messages", "list"]).ok().to_owned();
            let show = place.run(&["messages", "show", &own]).ok().to_owned();
            (list, table, show)
        };
        let (list, table, show) = shown();
        assert_eq!(list, 2);
        assert!(table.contains(" 0/2 ") && show.contains("0 of 2"), "{table}{show}");
        let relay = presence::Relay {
            name: "relay-a".to_owned(),
            routes: vec![presence::Route {
                topic: "order.*".to_owned(),
                destinations: vec!["orders".to_owned()],
                max_attempts: Some(6),
            }],
            ..presence::Relay::default()
        };
        wait(async {
            let store = AnyStore::open(&place.url).await.unwrap().store();
            store.heartbeat(&relay, Duration::from_secs(3600)).await.unwrap();
        });
        let (list, table, show) = shown();
        assert_eq!(list, 6);
        assert!(table.contains(" 0/6 ") && show.contains("0 of 6"), "{table}{show}");
    }
}
