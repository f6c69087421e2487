//! What is refused, and where and how that is told.

use super::*;

#[test]
fn everything_that_is_wrong_is_told_at_once_in_the_order_of_the_file() {
    let text = "[outbox]\nlease = 1\nbatch = 0\n[log]\nlevel = 3\n[nonsense]\n[[route]]\nto = \"kafka:x\"\n";
    let problems = read(text).unwrap_err();
    let found: Vec<_> = problems
        .all
        .iter()
        .map(|p| (p.line().unwrap_or(0), p.key.as_str()))
        .collect();
    let expected = [
        (2, "outbox.lease"),
        (3, "outbox.batch"),
        (5, "log.level"),
        (6, "nonsense"),
        (7, "route[0].topic"),
        (8, "route[0].to"),
    ];
    assert_eq!(found, expected, "{}", told(&problems));
}

#[test]
fn what_is_no_toml_is_told_with_what_else_is_wrong() {
    let problems =
        read("[outbox]\nbatch = \nlease = 5\n[log\nlevel = 7\n[[route]]\ntopic = \"a\"\nto = \n").unwrap_err();
    let lines: Vec<_> = problems.all.iter().map(|p| p.line().unwrap_or(0)).collect();
    assert!(
        [2, 3, 4, 8].iter().all(|line| lines.contains(line)),
        "{}",
        told(&problems)
    );
    assert!(
        !problems.all.iter().any(|p| p.message.contains("is missing")),
        "{}",
        told(&problems)
    );
    let broken = read("[outbox\nbatch = 5\nleas = 4\n[log]\nlevl = 1\n").unwrap_err();
    let lines: Vec<_> = broken.all.iter().filter_map(Problem::line).collect();
    assert_eq!(lines, [1, 5], "{}", told(&broken));
    refused("[log]\nlevel = \"info\"\nlevel = \"warn\"\n", "", "duplicate key");
}

#[test]
fn unknown_names_have_the_nearest_right_one() {
    refused("[outbox]\nlease = 15000\n", "outbox.lease", "did you mean `lease_ms`?");
    refused("[outbox]\nlevel = 15000\n", "outbox.level", "it belongs into [log]");
    refused("[outbx]\n", "outbx", "did you mean `outbox`?");
    refused(
        "[outbox.backoff]\nbas_ms = 3\n",
        "outbox.backoff.bas_ms",
        "did you mean `base_ms`?",
    );
    refused(
        &route("retry = { attempts = 3 }"),
        "route[0].retry.attempts",
        "did you mean `max_attempts`?",
    );
    refused("zzz = 1\n", "zzz", "there are store, outbox");
    refused("[saga]\n", "saga", "not in this version");
    refused("route = 3\n", "route", "[[route]]");
    refused("outbox = 3\n", "outbox", "must be a table");
    refused("[[route]]\ntopic = \"a\"\n", "route[0].to", "is missing");
}

#[test]
fn values_out_of_range_name_the_range() {
    refused(
        "[outbox]\nlease_ms = 99\n",
        "outbox.lease_ms",
        "from 100 to 86400000, and is 99",
    );
    refused("[outbox]\nlease_ms = -1\n", "outbox.lease_ms", "and is -1");
    refused(
        "[outbox]\nlease_ms = 99999999999999999999\n",
        "outbox.lease_ms",
        "from 100 to 86400000",
    );
    refused("[outbox]\nlease_ms = 2.5\n", "outbox.lease_ms", "a whole number");
    refused(
        "[outbox]\nbackoff.jitter = 1.5\n",
        "outbox.backoff.jitter",
        "from 0.0 to 1.0, and is 1.5",
    );
    refused(
        "[outbox]\nbackoff.factor = nan\n",
        "outbox.backoff.factor",
        "from 1.0 to 100.0",
    );
    refused(
        "[outbox]\nbackoff.table_s = []\n",
        "outbox.backoff.table_s",
        "a list of seconds",
    );
    refused(
        "[outbox]\nbackoff = { base_ms = 5, cap_ms = 4 }\n",
        "outbox.backoff.cap_ms",
        "shorter than the first",
    );
    refused(
        "[outbox]\nbackoff.floor_ms = 400000\n",
        "outbox.backoff.floor_ms",
        "longer than the longest",
    );
    refused(
        "[outbox]\nbackoff = { base_ms = 5, table_s = [1] }\n",
        "outbox.backoff.base_ms",
        "beside table_s",
    );
    refused("[outbox]\nname = \"a\\u0007\"\n", "outbox.name", "control character");
    refused(
        "[retention]\nended_days = \"soon\"\n",
        "retention.ended_days",
        "or \"never\", and is other text",
    );
    refused("[log]\nlevel = \"loud\"\n", "log.level", "one of \"error\", \"warn\"");
    refused("[tenants]\nweights = { a = 0 }\n", "tenants.weights", "from 1 to 1000");
    refused(
        "[tenants]\ncaps = { \"a\\u0007\" = 1 }\n",
        "tenants.caps",
        "control character",
    );
    refused(&route("reject = [99]"), "route[0].reject", "from 300 to 599");
    refused(&route("rate = \"5\""), "route[0].rate", "100/s");
    refused("[explicit]\nhttp = [\"https://a\"]\n", "explicit.http", "is no host");
    refused(
        &route("allow = [\"10.0.0.1/8\"]"),
        "route[0].allow",
        "neither a host nor a network",
    );
}

#[test]
fn destinations_that_cannot_be_are_refused_with_the_reason() {
    let to = |to: &str| format!("[[route]]\ntopic = \"a\"\nto = {to}\n");
    refused(
        &to("[\"https://a.example\"]"),
        "route[0].to",
        "fan-out) is not built yet in this version; ",
    );
    for kind in ["nats:a", "amqp:a/b", "redis:a", "kafka:a", "mqtt:a"] {
        refused(
            &to(&format!("{kind:?}")),
            "route[0].to",
            "not built yet in this version; ",
        );
    }
    refused(
        &to("\"fn:hello\""),
        "route[0].to",
        "local functions live in the application",
    );
    refused(&to("\"http://127.0.0.1/\""), "route[0].to", "allow_private = true");
    refused(
        &to("\"https://u:p@a.example/\""),
        "route[0].to",
        "user name or password",
    );
    sound(&to("\"http://127.0.0.1/\"\nallow_private = true"));
    sound(&to("\"http://127.0.0.1/\"\nallow = [\"127.0.0.0/8\"]"));
    refused(
        "[[route]]\ntopic = \"http:*\"\nto = \"https://a.example\"\n",
        "route[0].topic",
        "[explicit]",
    );
}

#[test]
fn routes_are_compared_with_each_other() {
    let two = |one: &str, other: &str| format!("{}[[route]]\n{other}", route(one));
    refused(
        &two("", "topic = \"a.*\"\nto = \"https://b.example\""),
        "route[1].topic",
        "of an earlier route",
    );
    refused(
        &two("", "topic = \"b\"\nto = \"https://a.example/in\""),
        "route[1].to",
        "a name of its own",
    );
    refused(
        &two(
            "name = \"n\"",
            "topic = \"b\"\nto = \"https://b.example\"\nname = \"n\"",
        ),
        "route[1].name",
        "by name",
    );
    let covered = read(&two("", "topic = \"a.b\"\nto = \"https://b.example\"")).expect("a warning is no error");
    assert!(covered.warnings[0].message.contains("is never reached"));
}

#[test]
fn a_send_ends_before_its_lease() {
    refused(
        &route("timeout_ms = 13500"),
        "route[0].timeout_ms",
        "the lease (outbox.lease_ms) of 15000 ms",
    );
    sound(&route("timeout_ms = 13499"));
    // The route says nothing of it, so the place is the route.
    let (key, line, _) = wrong(&format!("[outbox]\nlease_ms = 9000\n{}", route("")));
    assert_eq!((key.as_str(), line), ("route[0].timeout_ms", 3));
}

#[test]
fn only_this_machine_may_ask_unless_a_proxy_is_trusted() {
    for open in ["0.0.0.0:80", "[::]:80", "192.168.1.1:80"] {
        refused(
            &format!("[admin]\nbind = {open:?}\n"),
            "admin.bind",
            "trusted_proxy = true",
        );
        sound(&format!("[admin]\nbind = {open:?}\ntrusted_proxy = true\n"));
    }
    for local in ["127.0.0.1:80", "[::1]:80", "localhost:80"] {
        assert!(sound(&format!("[admin]\nbind = {local:?}\n")).admin.bind.is_some());
    }
    assert_eq!(sound("[admin]\nbind = \"off\"\n").admin.bind, None);
    refused("[admin]\nbind = \"here\"\n", "admin.bind", "or \"off\"");
}

#[test]
fn a_file_that_cannot_be_read_is_told() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("posthouse.toml");
    let sources = |file: &Path| Sources {
        file: Some(file.to_owned()),
        ..Sources::default()
    };
    let said = |file: &Path| told(&load(&sources(file)).unwrap_err());
    assert!(said(&file).contains("does not exist"));
    assert!(said(folder.path()).contains("cannot be read"));
    std::fs::write(&file, b"[log]\nlevel = \"\xff\"").unwrap();
    assert!(
        said(&file).contains("posthouse.toml:2:10") && said(&file).contains("not UTF-8"),
        "{}",
        said(&file)
    );
    std::fs::write(&file, vec![b'#'; 2 << 20]).unwrap();
    assert!(said(&file).contains("more than"));
}
