//! The configuration as commands use it: where the store comes from, and a check that goes on.

use serde_json::Value;
use std::{
    io::{BufRead, BufReader, Read},
    path::Path,
};

use crate::support::{Place, Process, Run, posthouse};

fn run(folder: &Path, args: &[&str]) -> Run {
    posthouse().current_dir(folder).args(args).output().unwrap().into()
}

/// A folder with this configuration, and two stores that are ready.
fn folder(text: &str) -> Place {
    let place = Place::sqlite();
    for file in ["a.db", "b.db"] {
        run(place.folder(), &["--store", &format!("sqlite://{file}"), "migrate"]).ok();
    }
    std::fs::write(place.folder().join("posthouse.toml"), text).unwrap();
    place
}

#[test]
fn commands_find_their_store_in_the_file() {
    let place = folder("[store]\nurl = \"sqlite://a.db\"\n");
    run(place.folder(), &["enqueue", "t", "--data", "1"]).ok();
    let ready = |args: &[&str]| {
        let stats = run(place.folder(), &[args, &["stats", "--json"]].concat()).json();
        stats[0]["messages"]["ready"]["value"].clone()
    };
    assert_eq!(ready(&[]), 1);
    let shown = run(place.folder(), &["config", "show", "--json"]).json().remove(0);
    let expected = serde_json::json!({
        "key": "store.url",
        "value": "sqlite://a.db",
        "source": { "kind": "file", "place": "posthouse.toml:2" },
    });
    assert_eq!(
        (&shown["file"], &shown["settings"][0]),
        (&"posthouse.toml".into(), &expected)
    );
    assert_eq!(ready(&["--store", "sqlite://b.db"]), 0);
    let elsewhere = posthouse()
        .env("POSTHOUSE_CONFIG", place.folder().join("posthouse.toml"))
        .env(
            "POSTHOUSE_STORE__URL",
            format!("sqlite://{}", place.folder().join("b.db").display()),
        )
        .args(["stats", "--json"])
        .output()
        .unwrap();
    assert_eq!(Run::from(elsewhere).json()[0]["messages"]["ready"]["value"], 0);
}

#[test]
fn of_several_stores_one_is_named() {
    let place = folder("[store.a]\nurl = \"sqlite://a.db\"\n[store.b]\nurl = \"sqlite://b.db\"\n");
    let unnamed = run(place.folder(), &["stats"]);
    let error = unnamed.failed_with(2);
    assert!(error.contains("choose one with --store: a, b"), "{error}");
    run(place.folder(), &["--store", "b", "stats"]).ok();
    let stranger = run(place.folder(), &["--store", "c", "stats"]);
    let error = stranger.failed_with(2);
    assert!(error.contains("name one of the stores: a, b"), "{error}");
}

#[test]
fn a_mistake_in_a_route_keeps_nobody_from_a_store() {
    let place = folder("[store]\nurl = \"sqlite://a.db\"\n[[route]]\ntopik = \"a\"\n");
    run(place.folder(), &["stats"]).ok();
    assert_eq!(run(place.folder(), &["config", "check"]).code, Some(2));
    std::fs::write(
        place.folder().join("posthouse.toml"),
        "[store]\nurl = \"mysql://u:s3cret@h/d\"\n",
    )
    .unwrap();
    let bad = run(place.folder(), &["stats"]);
    let error = bad.failed_with(2);
    assert!(
        error.contains("posthouse.toml:2:7") && !error.contains("s3cret"),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn a_check_may_go_on_and_tells_what_changed() {
    let place = folder("[outbox]\nmax_attempts = 1\n");
    let file = place.folder().join("posthouse.toml");
    let mut child = Process::start(
        posthouse()
            .current_dir(place.folder())
            .args(["--json", "config", "check", "--watch"]),
    );
    let mut said = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut complaints = BufReader::new(child.stderr.take().unwrap()).lines();
    let read =
        |line: Option<std::io::Result<String>>| -> Value { serde_json::from_str(&line.unwrap().unwrap()).unwrap() };
    assert_eq!(read(said.next())["sound"], true);
    std::fs::write(&file, "[outbox]\nmax_attempts = 2\nname = \"r\"\n").unwrap();
    let changes = &read(said.next())["changes"];
    assert_eq!(
        (&changes["migrate"][0], &changes["restart"][0]),
        (&"outbox.max_attempts".into(), &"outbox.name".into())
    );
    std::fs::write(&file, "[outbox]\nmax_attempts = 0\n").unwrap();
    assert_eq!(read(complaints.next())["error"]["problems"][0]["line"], 2);
    std::fs::write(&file, "[outbox]\nmax_attempts = 2\nname = \"r\"\n").unwrap();
    assert_eq!(read(said.next())["changes"]["live"], Value::Array(Vec::new()));
    // Asked for, it answers though nothing changed.
    child.signal("HUP");
    assert_eq!(read(said.next())["sound"], true);
    child.signal("INT");
    assert_eq!(child.wait().unwrap().code(), Some(130));
}

/// What the check calls sound, a relay runs with: hosts that topics may name are enough, and need no route.
#[test]
fn a_relay_runs_with_nothing_but_hosts_that_topics_may_name() {
    let place = folder("[store]\nurl = \"sqlite://a.db\"\n[admin]\nbind = \"off\"\n");
    let none = run(place.folder(), &["relay"]);
    assert!(none.failed_with(1).contains("[explicit]"), "{none:#?}");
    let text = "[store]\nurl = \"sqlite://a.db\"\n[admin]\nbind = \"off\"\n[explicit]\nhttp = [\"shop.example\"]\n";
    std::fs::write(place.folder().join("posthouse.toml"), text).unwrap();
    run(place.folder(), &["config", "check"]).ok();
    let mut relay = Process::start(posthouse().current_dir(place.folder()).arg("relay"));
    let mut stderr = BufReader::new(relay.stderr.take().unwrap());
    let mut said = String::new();
    while !said.contains("relaying: ") {
        assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "{said}");
    }
    relay.signal("TERM");
    stderr.read_to_string(&mut said).unwrap();
    assert_eq!(relay.wait().unwrap().code(), Some(0), "{said}");
}
