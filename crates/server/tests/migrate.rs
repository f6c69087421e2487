//! `posthouse migrate`: what it would do, what it did, and what it refuses.

use crate::support::{Place, Process, posthouse, run, server, sql};
use std::io::{BufRead, BufReader};
use tokio_postgres::NoTls;

/// Lets the schema say that it has another version.
fn says(place: &Place, version: u32, oldest: u32) {
    let table = if place.is_sqlite() {
        "posthouse_schema"
    } else {
        "posthouse.schema_version"
    };
    place.sql(&format!("UPDATE {table} SET version = {version}, oldest = {oldest}"));
}

#[test]
fn a_dry_run_says_what_would_be_done_and_does_nothing() {
    for place in [Place::sqlite(), Place::postgres()] {
        let dry = place.run(&["migrate", "--dry-run"]);
        assert!(dry.ok().starts_with("STEP    WHAT\ncreate  "), "{dry:#?}");
        assert!(dry.ok().contains("run     migration 1: tables\n"), "{dry:#?}");
        assert!(
            dry.stderr
                .starts_with("There is no schema yet; it would be made at version "),
            "{dry:#?}"
        );
        assert!(dry.stderr.ends_with("Nothing was changed.\n"), "{dry:#?}");
        let json = place.run(&["migrate", "--dry-run", "--json"]).json().remove(0);
        assert_eq!(
            (&json["schema"], &json["from"]),
            (&"absent".into(), &serde_json::Value::Null)
        );
        assert_eq!(json["migrations"][0]["name"], "tables");
        place.run(&["migrate", "--check"]).failed_with(1);

        place.run(&["migrate"]).ok();
        place.run(&["migrate", "--check"]).ok();
        let json = place.run(&["migrate", "--dry-run", "--json"]).json().remove(0);
        assert_eq!((&json["schema"], &json["from"]), (&"current".into(), &json["to"]));
        assert_eq!(json["migrations"].as_array().unwrap().len(), 0);
        assert_eq!(json["functions"] == 0, place.is_sqlite(), "{json}");

        says(&place, 0, 0);
        let dry = place.run(&["migrate", "--dry-run"]);
        assert!(
            dry.stderr.starts_with("The schema would go from version 0 to "),
            "{dry:#?}"
        );
        let behind = place.run(&["migrate", "--check"]);
        assert!(
            behind.failed_with(1).contains(" help: run `posthouse migrate`"),
            "{behind:#?}"
        );
    }
}

#[test]
fn a_newer_schema_is_left_alone_or_refused() {
    for place in Place::both() {
        says(&place, 99, 1);
        for args in [&["migrate"][..], &["migrate", "--dry-run"], &["migrate", "--check"]] {
            let run = place.run(args);
            assert_eq!(run.ok(), "");
            assert!(
                run.stderr
                    .starts_with("The schema has version 99, newer than this program"),
                "{run:#?}"
            );
        }
        place.run(&["stats"]).ok();
        says(&place, 99, 98);
        for args in [
            &["migrate"][..],
            &["migrate", "--dry-run"],
            &["migrate", "--check"],
            &["stats"],
            &["repair"],
            &["enqueue", "t", "--data", "1"],
        ] {
            let run = place.run(args);
            let error = run.failed_with(1);
            assert!(
                error.contains("has version 99") && error.contains("version 98 or later"),
                "{error}"
            );
            assert!(error.contains("\n help: upgrade this program"), "{error}");
        }
    }
}

#[test]
fn flags_that_contradict_each_other_are_usage_errors() {
    let place = Place::sqlite();
    for args in [["--check", "--dry-run"], ["--check", "--roles"]] {
        let run = place.run(&[&["migrate"][..], &args].concat());
        assert!(run.failed_with(2).contains("cannot be used with"), "{run:#?}");
    }
    for args in [&["migrate", "--roles"][..], &["migrate", "--roles", "--dry-run"]] {
        let run = place.run(args);
        assert!(run.failed_with(2).contains("roles: a SQLite file has none"), "{run:#?}");
    }
    assert_eq!(
        std::fs::read_dir(place.folder()).unwrap().count(),
        0,
        "nothing was made"
    );
}

#[test]
fn a_dry_run_says_which_roles_and_grants_would_be_made() {
    let place = Place::postgres();
    let schema = place.schema();
    let dry = place.run(&["migrate", "--roles", "--dry-run"]);
    assert!(
        dry.ok().contains(&format!("create  role {schema}_producer\n")),
        "{dry:#?}"
    );
    assert!(
        dry.ok()
            .contains("grant   SELECT on masked_messages, masked_attempts to"),
        "{dry:#?}"
    );
    let json = || {
        place
            .run(&["migrate", "--roles", "--dry-run", "--json"])
            .json()
            .remove(0)
    };
    let plan = json();
    assert_eq!(plan["roles"][3]["name"], format!("{schema}_operator"));
    assert!(
        plan["roles"]
            .as_array()
            .unwrap()
            .iter()
            .all(|role| role["exists"] == false),
        "{plan}"
    );
    place.run(&["migrate", "--check"]).failed_with(1);

    let made = place.run(&["migrate", "--roles", "--json"]).json().remove(0);
    let names: Vec<_> = plan["roles"]
        .as_array()
        .unwrap()
        .iter()
        .map(|role| role["name"].clone())
        .collect();
    assert_eq!(made["roles"].as_array().unwrap(), &names);
    let plan = json();
    assert!(
        plan["roles"]
            .as_array()
            .unwrap()
            .iter()
            .all(|role| role["exists"] == true),
        "{plan}"
    );
    for role in names {
        let role = role.as_str().unwrap();
        place.sql(&format!("DROP OWNED BY {role} CASCADE; DROP ROLE {role}"));
    }
}

/// What the operators' page says of the role: every command but those that migrate and enqueue.
#[test]
fn a_login_with_the_role_of_an_operator_does_an_operators_work() {
    let place = Place::postgres();
    let (schema, login) = (place.schema().to_owned(), format!("login_{}", place.schema()));
    place.run(&["migrate", "--roles"]).ok();
    place.sql(&format!(
        "CREATE ROLE {login} LOGIN; GRANT {schema}_operator TO {login}"
    ));
    let waits = place.enqueue(&["t", "--data", "1", "--delay", "1h"]);
    let other = place.enqueue(&["t", "--data", "2", "--delay", "1h"]);
    let (scheme, rest) = place.url.split_once("://").unwrap();
    let host = rest.split_once('@').map_or(rest, |(_, host)| host);
    let url = format!("{scheme}://{login}@{host}");
    for command in [
        "stats",
        "messages list",
        &format!("messages show {waits}"),
        &format!("messages explain {waits}"),
        &format!("messages cancel {waits} --note test"),
        "dead list",
        "dead replay --all --dry-run",
        "dead replay --all --yes --note test",
        &format!("dead quarantine {waits} --note test"),
        &format!("dead replay {waits} --note test"),
        &format!("messages cancel {waits} --note test"),
        &format!("dead discard {waits} --note test"),
        &format!("messages resolve {other} --note test"),
        "destinations pause shop --note test",
        "destinations list",
        "destinations resume shop --note test",
        "repair",
        "prune --older-than 30d --yes --note test",
        "audit",
        "migrate --check",
        "migrate --dry-run",
    ] {
        let args: Vec<_> = command.split(' ').collect();
        run(&[&["--store", &url][..], &args].concat()).ok();
    }
    let denied = run(&["--store", &url, "enqueue", "t", "--data", "1"]);
    assert!(denied.failed_with(1).contains("permission denied"), "{denied:#?}");
    let denied = run(&["--store", &url, "migrate"]);
    assert!(
        denied
            .failed_with(1)
            .contains("help: connect as somebody who may; on PostgreSQL the owner of the schema grants roles"),
        "{denied:#?}"
    );
    place.sql(&format!("DROP ROLE {login}"));
    for role in ["owner", "producer", "relay", "operator", "viewer"] {
        place.sql(&format!(
            "DROP OWNED BY {schema}_{role} CASCADE; DROP ROLE {schema}_{role}"
        ));
    }
}

#[test]
fn migrate_says_that_it_waits_for_another_migrator() {
    // A separate database: migrators of one database wait for each other, and other tests compare what theirs say.
    let place = Place::postgres();
    let name = format!("{}_own", place.schema());
    sql(&server(), &format!("CREATE DATABASE {name}"));
    let url = format!("{}/{name}", server().rsplit_once('/').unwrap().0);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let holder = runtime.block_on(async {
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let lock = "BEGIN; SELECT pg_advisory_xact_lock(7260, 1)";
        client.batch_execute(lock).await.unwrap();
        client
    });
    let mut migration = Process::start(posthouse().args(["--store", &url, "migrate"]));
    let mut said = String::new();
    // Kept until the end, so that the migration can go on writing to it.
    let mut stderr = BufReader::new(migration.stderr.take().unwrap());
    stderr.read_line(&mut said).unwrap();
    runtime.block_on(holder.batch_execute("COMMIT")).unwrap();
    assert!(
        said.contains("another migration of this database is under way (server process "),
        "{said}"
    );
    assert_eq!(migration.wait().unwrap().code(), Some(0));
    drop((holder, runtime));
    sql(&server(), &format!("DROP DATABASE {name} WITH (FORCE)"));
}
