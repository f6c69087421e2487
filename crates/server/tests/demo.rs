//! The demo tells its story, on one screen, in a few seconds, and leaves nothing behind.

use crate::support::{Place, posthouse, run};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
};

/// What must be told, in this order.
const STORY: [&str; 21] = [
    "1  An order and its message are committed in one transaction.",
    "   -> 1 order, 1 message in the file; order.placed is pending",
    "2  A second order is rolled back, and its message with it.",
    "   -> 1 order, 1 message in the file, as before",
    "3  Worker alpha claims it, under a lease of 300 ms.",
    "   -> leased by alpha, epoch 1, attempt 1 of 12",
    "4  Alpha falls silent, as if dead. Its lease runs out, and worker beta takes over.",
    "   -> leased by beta, epoch 2, attempt 2 of 12",
    "   -> on record: epoch 1 of alpha ended in lease_expired",
    "5  Alpha comes back and reports \"delivered\" with its old token.",
    "   -> refused: the lease is lost; not a byte of the message changed",
    "   -> on record: lease of epoch 1 lost; found leased by beta at epoch 2",
    "6  Beta sends it to the warehouse, which acknowledges.",
    "   -> done at epoch 2; the receipt: \"received order.placed\"",
    "7  Another message. The warehouse is closed; the budget is 3 attempts.",
    "   -> attempt 1: http_503; again after 200 ms",
    "   -> attempt 2: http_503; again after 400 ms",
    "   -> attempt 3: http_503; dead (exhausted), and left alone from now on",
    "8  The warehouse opens, an operator replays the dead message.",
    "   -> done at epoch 4, with the same id and its whole history:",
    "Look at it:  posthouse --store sqlite://demo.db messages list",
];

#[test]
fn the_story_fits_on_one_screen_and_is_told_in_order() {
    let run = run(&["demo"]);
    let told = run.ok();
    let mut lines = told.lines();
    for expected in STORY {
        assert!(
            lines.any(|line| line == expected),
            "{expected:?} is missing, or out of order, in\n{told}"
        );
    }
    assert!(told.lines().count() <= 45, "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
    assert!(!told.contains('\x1b'), "colours are for terminals: {told}");
    assert_eq!(run.stderr, "");
}

#[test]
fn the_history_of_the_replayed_message_is_complete() {
    let run = run(&["demo"]);
    let words = |line: &str| line.split_whitespace().skip(1).map(str::to_owned).collect::<Vec<_>>();
    let table: Vec<_> = run
        .ok()
        .lines()
        .skip_while(|line| !line.starts_with("AT "))
        .take(6)
        .map(words)
        .collect();
    assert_eq!(table[0], ["WHAT", "GEN", "ATTEMPT", "EPOCH", "BY", "TOOK", "DETAIL"]);
    for (n, line) in table[1..4].iter().enumerate() {
        let n = (n + 1).to_string();
        assert_eq!(line[..5], ["retry", "1", &*n, &*n, "beta"]);
    }
    assert_eq!(table[4], ["replay", "operator", "open", "again"]);
    assert_eq!(table[5][..5], ["delivered", "2", "1", "4", "beta"]);
}

#[test]
fn its_file_is_removed_unless_it_is_kept() {
    let gone = run(&["demo", "--json"]).json();
    assert!(!Path::new(gone[0]["file"].as_str().unwrap()).parent().unwrap().exists());
    assert_eq!((&gone[8]["step"], gone.len()), (&8.into(), 10));

    let place = Place::sqlite();
    let file = place.folder().join("test.db");
    let kept = run(&["demo", "--keep", file.to_str().unwrap()]);
    assert!(
        kept.ok()
            .ends_with(&format!("Look at it:  posthouse --store {} messages list\n", place.url)),
        "{kept:?}"
    );
    let states: Vec<_> = place
        .run(&["messages", "list", "--json"])
        .json()
        .iter()
        .map(|m| m["state"].clone())
        .collect();
    assert_eq!(states, ["done", "done"]);
    let again = run(&["demo", "--keep", file.to_str().unwrap()]);
    assert!(again.failed_with(2).contains("exists already"), "{again:?}");
}

#[test]
fn interrupted_it_cleans_up_and_says_so() {
    let mut demo = posthouse()
        .args(["demo", "--json"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let first: serde_json::Value = serde_json::from_str(&lines.next().unwrap().unwrap()).unwrap();
    let file = Path::new(first["file"].as_str().unwrap()).to_owned();
    assert!(file.exists());
    // The shell's own `kill`: the program of that name is not on every machine.
    assert!(
        Command::new("sh")
            .args(["-c", "kill -INT \"$0\"", &demo.id().to_string()])
            .status()
            .unwrap()
            .success()
    );
    let said = std::io::read_to_string(demo.stderr.take().unwrap()).unwrap();
    assert_eq!(demo.wait().unwrap().code(), Some(130), "{said}");
    assert!(said.contains("interrupted"), "{said}");
    assert!(!file.parent().unwrap().exists(), "{} is left", file.display());
}
