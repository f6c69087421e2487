//! Bad input, missing things and unreachable stores: each a clear error, each with its exit code.

use crate::support::{Place, posthouse, run, server, sql};
use serde_json::Value;

/// A store that is ready.
fn ready() -> Place {
    let place = Place::sqlite();
    place.run(&["migrate"]).ok();
    place
}

/// Asserts the exit code and a part of the error, on a ready store.
#[track_caller]
fn refused(code: i32, args: &[&str], part: &str) {
    let run = ready().run(args);
    let error = run.failed_with(code);
    assert!(error.starts_with("error: ") && error.contains(part), "{error}");
}

#[test]
fn a_payload_one_byte_over_the_limit_is_refused() {
    let place = ready();
    let file = place.folder().join("payload");
    let enqueue = |bytes: usize| {
        std::fs::write(&file, vec![b'7'; bytes]).unwrap();
        place.run(&[
            "enqueue",
            "t",
            "--content-type",
            "text/plain",
            "--file",
            file.to_str().unwrap(),
        ])
    };
    let over = enqueue(262_145);
    assert!(
        over.failed_with(2)
            .starts_with("error: payload: has 262145 bytes, at most 262144 are allowed"),
        "{over:?}"
    );
    enqueue(262_144).ok();
}

#[test]
fn names_that_no_store_accepts_are_refused() {
    let long = "x".repeat(300);
    refused(
        2,
        &["enqueue", &long, "--data", "1"],
        "topic: has 300 bytes, at most 255 are allowed",
    );
    let key = "order_key: holds the control character U+0001 at byte 1\n help: given by --key\n";
    refused(2, &["enqueue", "t", "--data", "1", "--key", "a\x01b"], key);
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--dedupe", "a\x1b[2J"],
        "dedupe_key: holds the control character U+001B",
    );
    refused(2, &["enqueue", "", "--data", "1"], "topic: is empty");
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--header", "host=x"],
        "headers: \"host\" is reserved",
    );
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--header", "a=1", "--header", "a=2"],
        "headers: \"a\" is given twice",
    );
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--header", "a=x\ny"],
        "control character",
    );
}

#[test]
fn a_payload_that_is_not_what_it_says_is_refused() {
    refused(2, &["enqueue", "t", "--data", "{oops"], "payload: is not JSON");
    refused(
        2,
        &["enqueue", "t", "--file", "/nowhere/at/all"],
        "payload: /nowhere/at/all cannot be read",
    );
    refused(
        2,
        &["enqueue", "t", "--file", "/dev/zero", "--content-type", "x/y"],
        "payload: has 16777217 bytes",
    );
}

#[test]
fn arguments_that_make_no_sense_are_usage_errors() {
    refused(2, &["enqueue", "t"], "--data");
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--file", "x"],
        "cannot be used with",
    );
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--delay", "5"],
        "write for instance 250ms, 30s, 15m, 2h or 7d",
    );
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--deliver-in", "1s", "--delay", "2s"],
        "deliver_in: ends before",
    );
    refused(
        2,
        &["enqueue", "t", "--data", "1", "--max-attempts", "1001"],
        "1001 is not in 1..=1000",
    );
    refused(2, &["enqueue", "t", "--data", "1", "--id", "7"], "is not a UUID");
    refused(
        2,
        &["messages", "list", "--state", "ded"],
        "a similar value exists: 'dead'",
    );
    refused(2, &["messages", "list", "--limit", "1001"], "1001 is not in 1..=1000");
    refused(2, &["messages", "show", "7"], "is not a UUID");
    refused(2, &["telegraph"], "unrecognized subcommand");
}

#[test]
fn a_message_that_is_not_there_is_not_found() {
    for place in Place::both() {
        let missing = place.run(&["messages", "show", "0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10"]);
        let error = "error: there is no message 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10\n \
                     help: see what there is: posthouse messages list\n";
        assert_eq!(missing.failed_with(3), error);
    }
}

#[test]
fn a_taken_key_with_other_content_is_a_conflict() {
    for place in Place::both() {
        let id = place.enqueue(&["t", "--data", "1", "--dedupe", "d"]);
        let taken = place.run(&["enqueue", "t", "--data", "2", "--dedupe", "d"]);
        let error = taken.failed_with(4);
        assert!(
            error.contains(&format!("dedupe_key is already used by message {id}")),
            "{error}"
        );
        assert!(error.contains("--keep"), "{error}");
        place.run(&["enqueue", "t", "--data", "2", "--id", &id]).failed_with(4);
        assert_eq!(
            place.run(&["messages", "list", "--json"]).json().len(),
            1,
            "nothing was written"
        );
    }
}

#[test]
fn an_error_for_programs_is_one_object() {
    let place = ready();
    let error = |store: &str, args: &[&str]| -> Value {
        let run = run(&[&["--json", "--store", store], args].concat());
        let lines: Vec<_> = run.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "{run:?}");
        serde_json::from_str::<Value>(lines[0]).unwrap()["error"].clone()
    };
    let missing = error(
        &place.url,
        &["messages", "show", "0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10"],
    );
    assert_eq!(
        (&missing["code"], &missing["retryable"]),
        (&"STORAGE.NOT_FOUND".into(), &false.into())
    );
    assert_eq!(
        missing["message"],
        "there is no message 0197c6a4-5b1e-7cc0-8a53-0f0f6d3f9f10"
    );
    let usage = error(&place.url, &["enqueue", "t"]);
    assert_eq!(usage["code"], "SCHEMA.VALIDATION_FAILED");
    assert!(usage["message"].as_str().unwrap().contains("--data <TEXT>"), "{usage}");
    let unreachable = error("postgres://u@127.0.0.1:1/d", &["messages", "list"]);
    assert_eq!(
        (&unreachable["code"], &unreachable["retryable"]),
        (&"PROVIDER.UNAVAILABLE".into(), &true.into())
    );
}

#[test]
fn a_store_of_no_known_kind_is_named_without_its_password() {
    let run = run(&["--store", "mysql://root:s3cret@db.example/shop", "messages", "list"]);
    let error = run.failed_with(2);
    assert!(error.contains("\"mysql://db.example\""), "{error}");
    assert!(
        error.contains("write sqlite://PATH or postgres://USER@HOST/DATABASE"),
        "{error}"
    );
    assert!(!error.contains("s3cret"), "{error}");
}

#[test]
fn a_schema_name_with_a_quote_is_refused() {
    for name in ["a\"b", "a'b", "a%22b", "Shop", ""] {
        let url = format!("{}?schema={name}", server());
        let run = run(&["--store", &url, "migrate"]);
        assert!(run.failed_with(2).contains("is not a usable schema name"), "{run:?}");
    }
}

#[test]
fn an_unreachable_server_is_unavailable() {
    let since = std::time::Instant::now();
    for command in [
        &["messages", "list"][..],
        &["migrate"],
        &["enqueue", "t", "--data", "1"],
    ] {
        let args = [&["--store", "postgres://me:s3cret@127.0.0.1:1/shop"], command].concat();
        let run = run(&args);
        let error = run.failed_with(5);
        assert!(
            error.contains("Connection refused") && error.contains("help: check --store"),
            "{error}"
        );
        assert!(!error.contains("s3cret"), "{error}");
    }
    assert!(since.elapsed().as_secs() < 10);
}

#[test]
fn a_database_that_is_not_there_is_unavailable() {
    let url = server()
        .rsplit_once('/')
        .map(|(server, _)| format!("{server}/no_such_database"))
        .unwrap();
    let run = run(&["--store", &url, "messages", "list"]);
    assert!(run.failed_with(5).contains("no_such_database"), "{run:?}");
}

/// Asked for an encrypted connection, it makes one or none.
#[test]
fn a_server_without_tls_is_not_spoken_to_in_plain_text() {
    let over = |mode: &str| run(&["--store", &format!("{}?sslmode={mode}", server()), "messages", "list"]);
    for mode in ["require", "verify-full"] {
        let list = over(mode);
        assert!(list.failed_with(5).contains("server does not support TLS"), "{list:?}");
    }
    let unknown = over("maybe");
    assert!(
        unknown.failed_with(2).contains("sslmode: must be disable, prefer"),
        "{unknown:?}"
    );
}

/// The server is there, and says no: that is not "cannot be reached", and no reason to try again.
#[test]
fn a_role_without_rights_is_told_what_it_may_not_do() {
    let place = Place::postgres();
    place.run(&["migrate"]).ok();
    let role = format!("nobody_{}", uuid::Uuid::new_v4().simple());
    sql(&server(), &format!("CREATE ROLE {role} LOGIN"));
    let (scheme, rest) = place.url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let url = format!("{scheme}://{role}@{host}");
    let list = run(&["--store", &url, "messages", "list"]);
    let error = list.failed_with(1);
    assert!(
        error.contains("does not allow it: permission denied for schema") && error.contains("docs/sql.md"),
        "{error}"
    );
    let json = run(&["--store", &url, "--json", "messages", "list"]);
    let error: Value = serde_json::from_str(json.failed_with(1)).unwrap();
    assert_eq!(
        (&error["error"]["code"], &error["error"]["retryable"]),
        (&"AUTH.DENIED".into(), &false.into()),
        "{error}"
    );
    sql(&server(), &format!("DROP ROLE {role}"));
}

/// It can be reached, and is a standby or set to be read only.
#[test]
fn a_database_that_is_read_only_is_called_that() {
    let place = Place::postgres();
    place.run(&["migrate"]).ok();
    let url = format!("{}&options=-c%20default_transaction_read_only%3Don", place.url);
    let run = run(&["--store", &url, "enqueue", "t", "--data", "1"]);
    let error = run.failed_with(5);
    assert!(
        error.starts_with("error: the store cannot be written: ") && error.contains("name the primary"),
        "{error}"
    );
}

#[test]
fn a_store_without_schema_says_to_migrate() {
    for place in [Place::sqlite(), Place::postgres()] {
        for command in [&["messages", "list"][..], &["enqueue", "t", "--data", "1"]] {
            let run = place.run(command);
            assert!(
                run.failed_with(1)
                    .ends_with(" help: run `posthouse migrate` with the same --store\n"),
                "{run:?}"
            );
        }
    }
}

#[test]
fn a_missing_sqlite_file_is_not_created_by_looking() {
    let place = Place::sqlite();
    assert!(
        place
            .run(&["messages", "list"])
            .failed_with(1)
            .starts_with("error: there is no database ")
    );
    assert_eq!(std::fs::read_dir(place.folder()).unwrap().count(), 0);
}

#[test]
fn a_file_that_is_not_a_database_is_left_alone() {
    let place = Place::sqlite();
    let file = place.folder().join("test.db");
    let text = "this is no database, but somebody's letter\n".repeat(100);
    std::fs::write(&file, &text).unwrap();
    for command in [
        &["messages", "list"][..],
        &["migrate"],
        &["enqueue", "t", "--data", "1"],
    ] {
        let run = place.run(command);
        assert!(run.failed_with(1).contains("is not a SQLite database"), "{run:?}");
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
}

#[test]
fn a_folder_that_is_not_there_is_unavailable() {
    let run = run(&["--store", "sqlite:///nowhere/at/all.db", "migrate"]);
    assert!(run.failed_with(5).contains("/nowhere/at/all.db"), "{run:?}");
}

#[test]
fn output_that_cannot_be_written_is_a_failure() {
    let place = ready();
    place.enqueue(&["t", "--data", "1"]);
    let full = std::fs::File::options().write(true).open("/dev/full").unwrap();
    let output = posthouse()
        .args(["--store", &place.url, "messages", "list"])
        .stdout(full)
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("standard output cannot be written"));
}
