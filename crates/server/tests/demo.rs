//! The demo tells its story, in a few seconds, with relays that are processes; and leaves neither files nor processes behind.

use crate::support::{Place, Process, posthouse, run};
use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Lines},
    path::{Path, PathBuf},
    process::ChildStdout,
    sync::mpsc,
    thread,
    time::Duration,
};

/// What must be told, in this order; each is how a line begins.
const STORY: [&str; 24] = [
    "An outbox, on a real SQLite file (",
    "1  The shop commits an order and its message in one transaction.",
    "   -> 1 order, 1 message in the file; order.placed is pending",
    "2  It rolls a second order back, and its message with it.",
    "   -> 1 order, 1 message in the file, as before",
    "3  Relay alpha starts as process ",
    "   -> the warehouse: signature genuine, epoch 1",
    "   -> done at epoch 1; the receipt: \"order 1: taken in\"",
    "4  Two messages of one customer. The warehouse is busy, and answers the first with 503, twice.",
    "   -> order.placed: 503, after ",
    "   -> order.placed: 200, after ",
    "   -> order.paid: 200; of the same order key, so it waited behind the first",
    "5  The warehouse takes an order in, but does not answer. Alpha is killed meanwhile (SIGKILL).",
    "6  Relay beta starts as process ",
    "   -> the warehouse: the same webhook-id, now with epoch 2: known, and not done twice",
    "7  The warehouse refuses an order with 422. An operator asks why it is not delivered.",
    "   -> explain: it is dead (rejected) after 1 attempt: answered 422: no such item; replay it when",
    "8  The warehouse is repaired, and the operator replays the dead message.",
    "9  Two orders as sagas: reserve the item, then charge the card, or neither. One card is declined.",
    "   -> fulfil/order-6: completed; asked for reserve, charge",
    "   -> fulfil/order-7: compensated; asked for reserve, charge (declined), put-back",
    "   -> 6 orders, 5 messages: 5 done; the warehouse took in 5, each once",
    "AT ",
    "Look at it:  posthouse --store sqlite://",
];

#[test]
fn the_story_is_told_in_order_and_its_file_has_the_evidence() {
    let place = Place::sqlite();
    let file = place.folder().join("test.db");
    let run = |args: &[&str]| -> crate::support::Run {
        let mut command = posthouse();
        // Meant for the user's own relays, and for none of these.
        command.env("POSTHOUSE_OUTBOX__LEASE_MS", "600000");
        command.args(args).output().unwrap().into()
    };
    let kept = run(&["demo", "--keep", file.to_str().unwrap()]);
    let told = kept.ok();
    let mut lines = told.lines();
    for expected in STORY {
        assert!(
            lines.any(|line| line.starts_with(expected)),
            "{expected:?} is missing, or out of order, in\n{told}"
        );
    }
    assert!(told.lines().count() <= 55, "{told}");
    assert!(told.lines().all(|line| line.chars().count() <= 100), "{told}");
    assert!(!told.contains('\x1b'), "colours are for terminals: {told}");
    assert_eq!(kept.stderr, "");
    let look = format!("Look at it:  posthouse --store {} messages list\n", place.url);
    assert!(told.contains(&look), "{told}");
    let show = format!(" posthouse --store {} saga show fulfil/order-7\n", place.url);
    assert!(told.ends_with(&show), "{told}");
    let shown = place.run(&["saga", "show", "fulfil/order-7", "--json"]).json();
    assert_eq!(shown[0]["state"], "compensated", "{shown:?}");

    let mut messages = place.run(&["messages", "list", "--json"]).json();
    messages.retain(|message| message["topic"].as_str().unwrap().starts_with("order."));
    let of = |key: &str| -> Vec<_> { messages.iter().rev().map(|m| m[key].clone()).collect() };
    assert_eq!(of("state"), ["done"; 5]);
    assert_eq!(
        of("topic"),
        [
            "order.placed",
            "order.placed",
            "order.paid",
            "order.placed",
            "order.placed"
        ]
    );
    assert_eq!(of("generation"), [1, 1, 1, 1, 2]);
    let attempts: Vec<_> = of("id")
        .iter()
        .map(|id| attempts(&place, id.as_str().unwrap()))
        .collect();
    let outcomes = |n: usize| -> Vec<&str> { attempts[n].iter().map(|a| a["outcome"].as_str().unwrap()).collect() };
    assert_eq!((outcomes(0), outcomes(2)), (vec!["delivered"], vec!["delivered"]));
    assert_eq!(outcomes(1), ["retry", "retry", "delivered"]);
    // Killed in the middle of a send, and taken over.
    assert_eq!(outcomes(3), ["lease_expired", "delivered"]);
    let by: Vec<_> = attempts[3].iter().map(|a| (&a["worker"], &a["epoch"])).collect();
    assert_eq!(by, [(&"alpha".into(), &1.into()), (&"beta".into(), &2.into())]);
    assert_eq!(attempts[3][1]["receipt"], "order 4: duplicate");
    // Refused, and replayed.
    assert_eq!(outcomes(4), ["rejected", "delivered"]);
    let audit = place.run(&["audit", "--json"]).json();
    assert_eq!((audit.len(), &audit[0]["action"]), (1, &"replay".into()));

    let again = run(&["demo", "--keep", file.to_str().unwrap()]);
    assert!(again.failed_with(2).contains("exists already"), "{again:?}");
}

fn attempts(place: &Place, id: &str) -> Vec<Value> {
    let shown = place.run(&["messages", "show", id, "--json"]).json();
    shown[0]["attempts"].as_array().unwrap().clone()
}

#[test]
fn for_programs_each_step_is_a_line_and_its_file_is_removed() {
    let told = run(&["demo", "--json", "--quiet"]).json();
    assert!(!folder(&told[0]).exists());
    assert_eq!((&told[10]["step"], told.len()), (&10.into(), 12));
    assert_eq!(told[11]["attempts"].as_array().unwrap().len(), 2);
}

fn folder(opening: &Value) -> PathBuf {
    Path::new(opening["file"].as_str().unwrap())
        .parent()
        .unwrap()
        .to_owned()
}

/// A demo that has told so many steps; a relay of its own is running since the third.
fn demo(steps: usize) -> (Process, Lines<BufReader<ChildStdout>>, PathBuf) {
    let mut demo = Process::start(posthouse().args(["demo", "--json"]));
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines();
    let mut next = || serde_json::from_str::<Value>(&lines.next().unwrap().unwrap()).unwrap();
    let folder = folder(&next());
    for _ in 0..steps {
        next();
    }
    (demo, lines, folder)
}

/// What was said until nobody could say anything any more: relays inherit standard error, so it ends when the last of them has.
fn said_to_the_end(demo: &mut Process) -> String {
    let stderr = demo.stderr.take().unwrap();
    let (send, receive) = mpsc::channel();
    thread::spawn(move || send.send(std::io::read_to_string(stderr).unwrap()));
    let said = receive.recv_timeout(Duration::from_secs(60));
    said.expect("a relay has outlived the demo that started it")
}

#[test]
fn interrupted_it_cleans_up_and_says_so() {
    for steps in [0, 3, 5] {
        let (mut demo, _lines, folder) = demo(steps);
        assert!(folder.exists());
        demo.signal("INT");
        let said = said_to_the_end(&mut demo);
        assert_eq!(demo.wait().unwrap().code(), Some(130), "{said}");
        assert!(said.contains("interrupted"), "{said}");
        assert!(!folder.exists(), "{} is left", folder.display());
    }
}

#[test]
fn killed_it_leaves_no_relay_behind() {
    let (mut demo, _lines, folder) = demo(3);
    demo.kill().unwrap();
    said_to_the_end(&mut demo);
    demo.wait().unwrap();
    // Nobody was there to do it.
    std::fs::remove_dir_all(folder).unwrap();
}
