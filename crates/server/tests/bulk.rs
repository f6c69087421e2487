//! Replaying many at once: only what was meant, only what was there, and never without a word about how far it came.

use posthouse::{
    AnyStore, Claim, Outcome, RetryPolicy, Settlement,
    bulk::BulkReplay,
    saga::{
        Report,
        drive::{self, Decided},
    },
};
use serde_json::{Value, json};
use std::time::Duration;

use crate::{
    story::{Story, id},
    support::{Place, Process, posthouse},
};

/// A runtime of its own, so that it can also be called from within another.
fn wait<T: Send>(work: impl Future<Output = T> + Send) -> T {
    let run = || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .unwrap();
        runtime.block_on(work)
    };
    std::thread::scope(|scope| scope.spawn(run).join().unwrap())
}

/// Claims everything that is due, and the destination is down; each may have so many attempts.
fn fail_all(url: &str, max_attempts: u32) {
    wait(async {
        let store = AnyStore::open(url).await.unwrap().store();
        let claim = Claim::new("w1", 100, Duration::from_secs(60));
        let failed = |lease| {
            let (code, error) = ("http_503".to_owned(), "down".to_owned());
            let after = None;
            let policy = RetryPolicy {
                max_attempts: Some(max_attempts),
                ..RetryPolicy::default()
            };
            Settlement::of(lease, Outcome::Retry { code, error, after }, &policy, 0.5)
        };
        let claimed = store.claim(&claim).await.unwrap();
        let batch: Vec<_> = claimed.iter().map(|one| failed(&one.lease)).collect();
        assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    });
}

fn states(place: &Place, state: &str) -> Vec<Value> {
    let listed = place.run(&["messages", "list", "--json", "--state", state]).json();
    let mut topics: Vec<_> = listed.iter().map(|message| message["topic"].clone()).collect();
    topics.sort_by_key(Value::to_string);
    topics
}

/// The oldest of them all belongs to a saga that is held.
#[test]
fn a_dead_letter_of_a_saga_keeps_no_other_from_being_replayed() {
    for place in Place::both() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("saga.json");
        let definition = r#"{ "name": "s", "version": 1, "steps": [{ "name": "one", "action_uri": "fn:one" }] }"#;
        std::fs::write(&file, definition).unwrap();
        place.run(&["saga", "start", file.to_str().unwrap(), "--key", "k"]).ok();
        wait(async {
            let store = AnyStore::open(&place.url).await.unwrap().store();
            let claim = Claim::new("w1", 1, Duration::from_secs(60));
            let lease = store.claim(&claim).await.unwrap().remove(0).lease;
            let report = Report::Sent(Outcome::unknown("timeout", "no answer"));
            let decided = drive::settlements(&*store, "w1", vec![(&lease, &report, 0.5)]).await;
            let Decided::Settle(settlement) = decided.unwrap().remove(0) else {
                panic!("nothing was decided")
            };
            assert!(store.settle(&[*settlement]).await.unwrap()[0].is_settled());
        });
        place.enqueue(&["plain", "--data", "1"]);
        fail_all(&place.url, 1);
        let told = "Left out, because they belong to sagas: 1. To see those: posthouse saga list --state held\n";
        let dry = place.run(&["dead", "replay", "--all", "--dry-run"]);
        assert!(dry.ok().starts_with("1 message would be replayed"), "{dry:#?}");
        let done = place.run(&["dead", "replay", "--all", "--yes", "--note", "a test"]);
        assert_eq!((done.ok(), &*done.stderr), ("1 replayed\n", told));
        assert_eq!(states(&place, "pending"), ["plain"]);
    }
}

#[test]
fn what_was_cancelled_or_has_lapsed_is_replayed_only_when_named() {
    for place in Place::both() {
        let withdrawn = place.enqueue(&["withdrawn", "--data", "1"]);
        fail_all(&place.url, 2);
        place.run(&["messages", "cancel", &withdrawn, "--note", "a test"]).ok();
        place.enqueue(&["exhausted", "--data", "1"]);
        place.enqueue(&["late", "--data", "1", "--deliver-in", "1s"]);
        fail_all(&place.url, 1);
        place.enqueue(&["lapsed", "--data", "1", "--deliver-in", "1ms"]);
        std::thread::sleep(Duration::from_millis(1100));
        fail_all(&place.url, 1);
        assert_eq!(states(&place, "dead"), ["exhausted", "lapsed", "late", "withdrawn"]);

        let told = "Left out, because an operator cancelled them: 1. To replay them: --reason cancelled\n\
                    Left out, because their deliver-by has passed: 2. To replay them: --deliver-in TIME, or --reason lapsed\n";
        let dry = place.run(&["dead", "replay", "--all", "--dry-run"]);
        assert!(dry.ok().starts_with("1 message would be replayed"), "{dry:#?}");
        assert_eq!(dry.stderr, told);
        let dry = place
            .run(&["dead", "replay", "--all", "--dry-run", "--json"])
            .json()
            .remove(0);
        assert_eq!(dry["left_out"], json!({"cancelled": 1, "lapsed": 2, "of_sagas": 0}));
        let done = place.run(&["dead", "replay", "--all", "--yes", "--note", "a test"]);
        assert_eq!((done.ok(), &*done.stderr), ("1 replayed\n", told));
        assert_eq!(states(&place, "pending"), ["exhausted"]);
        // It kept the code of its last attempt.
        let by_code = place.run(&["dead", "replay", "--code", "http_503", "--yes", "--note", "a test"]);
        assert_eq!(by_code.ok(), "0 replayed\n");
        assert_eq!(states(&place, "dead"), ["lapsed", "late", "withdrawn"]);

        let lapsed = place.run(&["dead", "replay", "--reason", "lapsed", "--yes", "--note", "a test"]);
        assert_eq!((lapsed.ok(), &*lapsed.stderr), ("1 replayed\n", ""));
        let in_time = place.run(&[
            "dead",
            "replay",
            "--all",
            "--deliver-in",
            "1h",
            "--yes",
            "--json",
            "--note",
            "a test",
        ]);
        let in_time = in_time.json().remove(0);
        assert_eq!(
            in_time,
            json!({"replayed": 1, "moved": 0, "left_out": {"cancelled": 1, "lapsed": 0, "of_sagas": 0}, "later": 0, "stopped": null, "complete": true})
        );
        assert_eq!(states(&place, "dead"), ["withdrawn"]);
        let all = place.run(&["dead", "replay", "--reason", "cancelled", "--yes", "--note", "a test"]);
        assert_eq!((all.ok(), &*all.stderr), ("1 replayed\n", ""));
    }
}

#[test]
fn what_dies_while_it_runs_is_left() {
    for place in Place::both() {
        let put = |topic: &str| drop(place.enqueue(&[topic, "--data", "1"]));
        put("dead");
        put("dead");
        fail_all(&place.url, 1);
        put("dies later");
        let bulk = BulkReplay {
            actor: "anna".to_owned(),
            // One to a page, so that it looks again after each.
            per_second: Some(1),
            limit: Some(5),
            ..BulkReplay::default()
        };
        let mut rounds = 0;
        let (before, done) = wait(async {
            let admin = AnyStore::open(&place.url).await.unwrap().admin();
            let before = bulk.preview(&*admin).await.unwrap();
            let run = bulk.run(&*admin, |_| {
                rounds += 1;
                put("comes later");
                // A clock may have no finer steps than this.
                std::thread::sleep(Duration::from_millis(20));
                // The one that was just replayed among them.
                fail_all(&place.url, 1);
            });
            (before, run.await.unwrap())
        });
        assert_eq!((before.count.value, done.replayed, rounds, done.later), (2, 2, 2, 1));
        assert_eq!(
            states(&place, "dead"),
            ["comes later", "comes later", "dead", "dead", "dies later"]
        );
    }
}

fn dead(story: &Story, n: u32) {
    (1..=n).for_each(|n| story.enqueue(n, "t"));
    let (code, error) = ("http_422".to_owned(), "no".to_owned());
    story.send("w", &Outcome::Reject { code, error });
}

#[test]
fn an_error_halfway_does_not_hide_what_was_done() {
    let story = Story::new();
    dead(&story, 6);
    story.sql(
        "CREATE TRIGGER broken BEFORE INSERT ON posthouse_audit WHEN (SELECT count(*) FROM posthouse_audit) >= 2
         BEGIN SELECT RAISE(ABORT, 'this disk is broken'); END",
    );
    let (stdout, stderr, code) = story.run("posthouse dead replay --all --yes --note test");
    assert_eq!((&*stdout, code), ("2 replayed\n", 1), "{stderr}");
    assert!(
        stderr.contains("It did not come to its end") && stderr.contains("this disk is broken"),
        "{stderr}"
    );
    story.sql("DELETE FROM posthouse_audit");
    let (stdout, stderr, code) = story.run("posthouse dead replay --all --yes --json --note test");
    let done: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(
        (&done["replayed"], &done["complete"], code),
        (&json!(2), &json!(false), 1),
        "{stderr}"
    );
}

#[test]
fn those_that_were_not_tried_are_named() {
    let story = Story::new();
    (1..=4).for_each(|n| story.enqueue(n, "t"));
    story.run(&format!("posthouse messages cancel {} --note test", id(2)));
    let line = format!(
        "posthouse messages cancel {} {} {} {} --note test",
        id(1),
        id(2),
        id(3),
        id(4)
    );
    let (stdout, stderr, code) = story.run(&line);
    assert_eq!((stdout, code), (format!("{}  cancelled\n", id(1)), 4));
    assert!(
        stderr.ends_with(&format!(" not tried: {} {}\n", id(3), id(4))),
        "{stderr}"
    );
    let line = format!("posthouse dead replay --json {} {} {} --note test", id(2), id(3), id(4));
    let (_, stderr, code) = story.run(&line);
    let error: Value = serde_json::from_str(&stderr).unwrap();
    assert_eq!((&error["error"]["not_tried"], code), (&json!([id(4)]), 4));
    let (_, stderr, _) = story.run(&format!("posthouse messages cancel --json {} --note test", id(1)));
    assert!(!stderr.contains("not_tried"), "{stderr}");
}

#[test]
fn ctrl_c_does_not_hide_what_was_done() {
    let place = Place::sqlite();
    place.run(&["migrate"]).ok();
    (0..30).for_each(|_| drop(place.enqueue(&["t", "--data", "1"])));
    fail_all(&place.url, 1);
    let replayed = || place.run(&["audit", "--action", "replay", "--json"]).json().len();
    for json in [false, true] {
        let before = replayed();
        let mut command = posthouse();
        command.args([
            "--store", &place.url, "dead", "replay", "--all", "--yes", "--rate", "1", "--note", "a test",
        ]);
        if json {
            command.arg("--json");
        }
        let mut child = Process::start(&mut command);
        while replayed() == before && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(10));
        }
        child.signal("INT");
        let run = child.ended();
        let n = replayed() - before;
        assert_eq!(run.code, Some(130), "{run:#?}");
        if json {
            let done: Value = serde_json::from_str(&run.stdout).unwrap();
            assert_eq!((&done["replayed"], &done["complete"]), (&json!(n), &json!(false)));
        } else {
            assert_eq!(run.stdout, format!("{n} replayed\n"));
        }
    }
}
