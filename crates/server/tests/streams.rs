//! What goes where: data, notes, colours, escapes.

use crate::support::{Place, Run, posthouse};

fn ready() -> Place {
    let place = Place::sqlite();
    place.run(&["migrate"]).ok();
    place
}

#[test]
fn data_goes_to_standard_output_and_notes_to_standard_error() {
    let place = ready();
    let run = place.run(&["enqueue", "t", "--data", "12"]);
    assert_eq!((run.ok().len(), &*run.stderr), (37, "Enqueued t, 2 B.\n"));
    let quiet = place.run(&["enqueue", "t", "--data", "12", "--quiet"]);
    assert_eq!((quiet.ok().len(), &*quiet.stderr), (37, ""));
    let none = place.run(&["messages", "list", "--topic", "nothing"]);
    assert_eq!((none.ok(), &*none.stderr), ("", "No messages.\n"));
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let place = ready();
    place.enqueue(&["t", "--data", "1"]);
    for args in [
        &["messages", "list"][..],
        &["messages", "list", "--json"],
        &["demo"],
        &["--help"],
    ] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let run: Run = posthouse()
            .args(["--store", &place.url])
            .args(args)
            .stdout(writer)
            .output()
            .unwrap()
            .into();
        assert_eq!((run.code, &*run.stderr), (Some(0), ""), "{args:?}");
    }
}

#[test]
fn colours_are_for_terminals_unless_asked_for() {
    let place = ready();
    place.enqueue(&["t", "--data", "1"]);
    let has_colour = |run: &Run| run.stdout.contains('\x1b') || run.stderr.contains('\x1b');
    assert!(!has_colour(&place.run(&["messages", "list"])));
    assert!(has_colour(&place.run(&["messages", "list", "--color", "always"])));
    assert!(!has_colour(&place.run(&["messages", "list", "--color", "never"])));
    assert!(has_colour(
        &place.run(&["messages", "list", "--color", "always", "--limit", "0"])
    ));
}

#[test]
fn stored_control_characters_do_not_reach_the_terminal() {
    let place = ready();
    let id = place.enqueue(&["t", "--data", "1"]);
    // Nothing that we offer stores such a topic; a damaged file, or a hand in it, may.
    let file = rusqlite::Connection::open(place.folder().join("test.db")).unwrap();
    file.execute("UPDATE posthouse_message SET topic = ?1", ["a\x1b]0;b\x07\u{202e}\n"])
        .unwrap();
    for args in [&["messages", "list"][..], &["messages", "show", &id]] {
        let run = place.run(args);
        assert!(run.ok().contains(r"a\u{1b}]0;b\u{7}\u{202e}\n"), "{run:?}");
        assert!(!run.stdout.contains(['\x1b', '\x07', '\u{202e}']), "{run:?}");
    }
}
