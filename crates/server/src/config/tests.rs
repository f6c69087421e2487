//! The configuration as a whole: what is read, what is refused, what is told of it.

use posthouse::{Backoff, RetryPolicy};
use proptest::prelude::*;
use std::{collections::BTreeSet, time::Duration};

use super::{
    keys::{self, KEYS, Key},
    value::Source,
    *,
};

const EXAMPLE: &str = include_str!("../../../../posthouse.example.toml");
const PAGE: &str = include_str!("../../../../docs/configuration.md");

fn with(text: &str, environment: Environment, store: Option<&str>) -> Result<Loaded, Problems> {
    let sources = Sources {
        file: None,
        environment,
        store: store.map(str::to_owned),
    };
    finish(read_text(text, &sources), |_| true)
}

fn read(text: &str) -> Result<Loaded, Problems> {
    with(text, Environment::default(), None)
}

#[track_caller]
fn sound(text: &str) -> Config {
    read(text)
        .unwrap_or_else(|problems| panic!("{}", told(&problems)))
        .config
}

fn told(problems: &Problems) -> String {
    problems.all.iter().map(Problem::render).collect()
}

/// The one thing that is wrong: its key, its line, and what is said.
#[track_caller]
fn wrong(text: &str) -> (String, usize, String) {
    let problems = read(text).expect_err("something is wrong");
    assert_eq!(problems.errors(), 1, "{}", told(&problems));
    let one = &problems.all[0];
    let help = one.help.clone().unwrap_or_default();
    (
        one.key.clone(),
        one.line().unwrap_or(0),
        format!("{} {help}", one.message),
    )
}

#[track_caller]
fn refused(text: &str, key: &str, part: &str) {
    let (found, line, said) = wrong(text);
    assert_eq!(found, key, "{said}");
    assert!(line > 0 && said.contains(part), "line {line}: {said}");
}

fn route(more: &str) -> String {
    format!("[[route]]\ntopic = \"a.*\"\nto = \"https://a.example/in\"\n{more}\n")
}

#[test]
fn nothing_is_the_defaults() {
    let config = sound("");
    assert_eq!(config.stores.len(), 1);
    assert_eq!(config.stores[0].url.expose(), "sqlite://posthouse.db");
    assert_eq!(config.outbox.retry, RetryPolicy::default());
    assert_eq!(config.outbox.limits, posthouse::Limits::default());
    assert_eq!((config.outbox.batch, config.outbox.concurrency), (50, 64));
    assert_eq!(config.outbox.lease, Duration::from_secs(15));
    assert_eq!(config.outbox.grace, Duration::from_secs(25));
    assert_eq!(
        (config.retention.ended, config.retention.dedupe),
        (None, Some(Duration::from_secs(7 * 86_400)))
    );
    assert!(config.admin.bind.is_some_and(|address| address.ip().is_loopback()));
    assert!(config.routes.is_empty() && config.explicit.http.is_empty() && config.breaker.enabled);
}

/// The sample of the specification, but for what later parts bring.
#[test]
fn a_route_is_read_whole() {
    let text = route(
        "retry = { max_attempts = 6, table_s = [5, 10, 0.5] }\ntimeout_ms = 2500\nconcurrency = 8\nrate = \"100/s\"\non_dead = \"block\"\n\
         headers = { x-a = \"1\" }\nreject = [404]\nreuse_receipts = true\nbreaker = { failures = 2 }\nallow = [\"10.0.0.0/8\"]",
    );
    let config = sound(&format!("[breaker]\nopen_ms = 7\n{text}"));
    let route = &config.routes[0];
    assert_eq!(
        (route.topic.as_str(), route.name.as_str()),
        ("a.*", "https://a.example#d26afada")
    );
    assert_eq!(route.retry.max_attempts, 6);
    assert_eq!(
        route.retry.backoff,
        Backoff::Table([5000, 10_000, 500].map(Duration::from_millis).into())
    );
    assert_eq!((route.timeout, route.concurrency), (Duration::from_millis(2500), 8));
    assert_eq!(route.rate.map(|rate| rate.to_string()).as_deref(), Some("100/s"));
    assert_eq!(route.on_dead, Some(posthouse::OnDead::Block));
    assert_eq!((route.reject.as_slice(), route.reuse_receipts), (&[404][..], true));
    assert_eq!(
        (route.breaker.failures, route.breaker.open),
        (2, Duration::from_millis(7))
    );
    assert_eq!((route.headers.len(), route.allow.len(), route.secrets.len()), (1, 1, 0));
}

#[test]
fn a_route_inherits_what_it_does_not_say() {
    let text = format!(
        "[outbox]\nmax_attempts = 3\nbackoff.base_ms = 7\n{}",
        route("retry.cap_ms = 900")
    );
    let retry = sound(&text).routes.remove(0).retry;
    let Backoff::Exponential { base, cap, .. } = retry.backoff else {
        panic!("a curve")
    };
    assert_eq!(
        (retry.max_attempts, base, cap),
        (3, Duration::from_millis(7), Duration::from_millis(900))
    );
    let table = sound(&format!("[outbox]\nbackoff.table_s = [4]\n{}", route("")));
    assert_eq!(table.routes[0].retry, table.outbox.retry);
}

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
fn the_stronger_wins_and_is_named() {
    let file = "[store]\nurl = \"sqlite://file.db\"\n[outbox]\nbatch = 7\n";
    let environment = || {
        Environment::from([
            ("POSTHOUSE_STORE__URL", "sqlite://env.db"),
            ("POSTHOUSE_OUTBOX__LEASE_MS", "20000"),
            ("POSTHOUSE_OUTBOX__BATCH", ""),
        ])
    };
    let source = |loaded: &Loaded, path: &str| {
        loaded
            .settings
            .iter()
            .find(|s| s.key.path == path)
            .map(|s| s.source.words())
    };
    let by_flag = with(file, environment(), Some("sqlite://flag.db")).unwrap();
    assert_eq!(by_flag.config.stores[0].url.expose(), "sqlite://flag.db");
    assert_eq!(source(&by_flag, "store.url").as_deref(), Some("--store"));
    let by_variable = with(file, environment(), None).unwrap();
    assert_eq!(by_variable.config.stores[0].url.expose(), "sqlite://env.db");
    assert_eq!(
        source(&by_variable, "store.url").as_deref(),
        Some("POSTHOUSE_STORE__URL")
    );
    assert_eq!(
        source(&by_variable, "outbox.lease_ms").as_deref(),
        Some("POSTHOUSE_OUTBOX__LEASE_MS")
    );
    // An empty variable is none.
    assert_eq!(
        (
            by_variable.config.outbox.batch,
            source(&by_variable, "outbox.batch").as_deref()
        ),
        (7, Some("posthouse.toml:4"))
    );
    assert_eq!(source(&by_variable, "outbox.poll_ms").as_deref(), Some("default"));
}

#[test]
fn variables_take_every_type() {
    let environment = Environment::from([
        ("POSTHOUSE_OUTBOX__BACKOFF__TABLE_S", "[1, 2]"),
        ("POSTHOUSE_TENANTS__WEIGHTS", "{ acme = 3 }"),
        ("POSTHOUSE_STORE__NAMESPACES", "[\"a\", \"b\"]"),
        ("POSTHOUSE_RETENTION__DEDUPE_DAYS", "never"),
        ("POSTHOUSE_RETENTION__ENDED_DAYS", "30"),
        ("POSTHOUSE_LOG__FORMAT", "json"),
        ("POSTHOUSE_BREAKER__ENABLED", "false"),
    ]);
    let config = with("", environment, None).unwrap().config;
    assert_eq!(
        config.outbox.retry.backoff,
        Backoff::Table([1, 2].map(Duration::from_secs).into())
    );
    assert_eq!(config.tenants.weights.get("acme"), Some(&3));
    assert_eq!(config.stores[0].namespaces, ["a", "b"]);
    assert_eq!(
        (config.retention.dedupe, config.retention.ended),
        (None, Some(Duration::from_secs(30 * 86_400)))
    );
    assert!(config.log.json && !config.breaker.enabled);
}

#[test]
fn variables_that_set_nothing_are_refused() {
    let problems = with(
        "",
        Environment::from([
            ("POSTHOUSE_OUTBOX__LEASE", "1"),
            ("POSTHOUSE_ROUTE__TOPIC", "a"),
            ("POSTHOUSE_ADMIN__TRUSTED_PROXY", "s3cret"),
            ("POSTHOUSE_TEST_X__Y", "1"),
            ("POSTHOUSE_ACTOR", "me"),
        ]),
        None,
    )
    .unwrap_err();
    let said = told(&problems);
    assert_eq!(problems.errors(), 3, "{said}");
    assert!(
        said.contains("did you mean POSTHOUSE_OUTBOX__LEASE_MS?") && said.contains("in the file alone"),
        "{said}"
    );
    assert!(
        said.contains("admin.trusted_proxy: must be true or false") && !said.contains("s3cret"),
        "{said}"
    );
}

#[test]
fn several_stores_have_names() {
    let file = "[store.shop]\nurl = \"postgres://u:s3cret@h/shop\"\nnamespaces = [\"web\"]\n[store.bill]\n";
    let environment = || Environment::from([("POSTHOUSE_STORE__BILL__URL", "postgres://h/bill")]);
    let loaded = with(file, environment(), None).unwrap();
    let names: Vec<_> = loaded
        .config
        .stores
        .iter()
        .map(|s| (s.name.as_deref(), s.url.expose()))
        .collect();
    assert_eq!(
        names,
        [
            (Some("shop"), "postgres://u:s3cret@h/shop"),
            (Some("bill"), "postgres://h/bill")
        ]
    );
    assert!(
        toml(&loaded.settings, false)
            .starts_with("[store.shop]\nurl = \"postgres://u@h/shop\"\nnamespaces = [\"web\"]\n\n[store.bill]\n")
    );
    let one = with(file, environment(), Some("bill")).unwrap().config.stores;
    assert_eq!((one.len(), one[0].name.as_deref()), (1, Some("bill")));
    let other = with(file, environment(), Some("sqlite://x.db")).unwrap().config.stores;
    assert_eq!((other.len(), other[0].url.expose()), (1, "sqlite://x.db"));
    refused(file, "store.bill.url", "is missing");
    refused(
        "[store]\nurl = \"sqlite://a\"\n[store.b]\nurl = \"sqlite://b\"\n",
        "store.url",
        "beside named stores",
    );
    refused("[store.A-b]\nurl = \"sqlite://b\"\n", "store.A-b", "small letters");
    refused(
        "[store.a]\nurl = \"sqlite://b\"\n[store.b]\nurl = \"sqlite://b\"\n",
        "store.b.url",
        "the same as that of store.a",
    );
    let stranger = with(file, environment(), Some("shpo")).unwrap_err();
    assert!(
        told(&stranger).contains("name one of the stores: shop, bill"),
        "{}",
        told(&stranger)
    );
}

#[test]
fn the_direct_url_goes_with_the_url() {
    let file = "[store]\nurl = \"postgres://h/a\"\ndirect_url = \"postgres://h:5433/a\"\n";
    let direct = |environment, store| {
        with(file, environment, store).unwrap().config.stores[0]
            .direct_url
            .clone()
    };
    assert!(direct(Environment::default(), None).is_some());
    assert_eq!(direct(Environment::default(), Some("postgres://other/b")), None);
    assert_eq!(
        direct(
            Environment::from([("POSTHOUSE_STORE__URL", "postgres://other/b")]),
            None
        ),
        None
    );
    let both = Environment::from([
        ("POSTHOUSE_STORE__URL", "postgres://o/b"),
        ("POSTHOUSE_STORE__DIRECT_URL", "postgres://o:1/b"),
    ]);
    assert!(direct(both, None).is_some());
    refused(
        "[store]\ndirect_url = \"postgres://h/a\"\n",
        "store.direct_url",
        "is for PostgreSQL",
    );
    refused(
        "[store]\nurl = \"mysql://u:s3cret@h/d\"\n",
        "store.url",
        "\"mysql://h\" is of no kind",
    );
}

#[cfg(unix)]
#[test]
fn secrets_come_from_variables_and_files_that_nobody_else_may_read() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let place = |name: &str| folder.path().join(name);
    let write = |name: &str, text: &str, mode: u32| {
        std::fs::write(place(name), text).unwrap();
        std::fs::set_permissions(place(name), std::fs::Permissions::from_mode(mode)).unwrap();
    };
    let keys =
        "secret_env = \"FIRST\"\nsecond_secret_file = \"second\"\nheaders = { authorization = { file = \"token\" } }";
    write("posthouse.toml", &route(keys), 0o644);
    write("second", "s3cret-2\n", 0o600);
    write("token", "Bearer s3cret-3", 0o600);
    write("url", "postgres://u:s3cret-4@h/d\n", 0o600);
    let mut sources = Sources {
        file: Some(place("posthouse.toml")),
        environment: Environment::from([
            ("FIRST", "s3cret-1"),
            ("POSTHOUSE_STORE__URL_FILE", place("url").to_str().unwrap()),
        ]),
        store: None,
    };
    let loaded = load(&sources).unwrap_or_else(|problems| panic!("{}", told(&problems)));
    let signing: Vec<_> = loaded.config.routes[0].secrets.iter().map(|s| s.expose()).collect();
    assert_eq!(signing, ["s3cret-1", "s3cret-2"]);
    assert_eq!(loaded.config.routes[0].headers[0].1.expose(), "Bearer s3cret-3");
    assert_eq!(loaded.config.stores[0].url.expose(), "postgres://u:s3cret-4@h/d");
    assert_eq!(loaded.files.len(), 4, "{:?}", loaded.files);
    let everything = format!(
        "{loaded:?}{}{}{sources:?}",
        toml(&loaded.settings, true),
        document(&loaded.settings)
    );
    assert!(!everything.contains("s3cret"), "{everything}");
    assert!(everything.contains("secret_env = \"FIRST\""), "{everything}");

    write("second", "s3cret-2\n", 0o640);
    sources.environment = Environment::from([
        ("POSTHOUSE_STORE__URL_FILE", "/nowhere/url"),
        ("POSTHOUSE_STORE__URL", "sqlite://s3cret"),
    ]);
    let said = told(&load(&sources).unwrap_err());
    for part in [
        "FIRST is not set",
        "chmod 600 ",
        "/nowhere/url does not exist",
        "are both set",
    ] {
        assert!(said.contains(part), "{said}");
    }
    assert!(!said.contains("s3cret"), "{said}");
}

#[test]
fn secrets_that_make_no_sense_are_refused() {
    let environment = || Environment::from([("A", "a"), ("B", "b\nb")]);
    let said = |keys: &str| told(&with(&route(keys), environment(), None).unwrap_err());
    assert!(said("secret_env = \"A\"\nsecret_file = \"x\"").contains("says the same as secret_env"));
    assert!(said("second_secret_env = \"A\"").contains("no first one"));
    assert!(said("secret_env = \"B\"").contains("B holds a control character or more than one line"));
    assert!(!said("secret_env = \"whsec_s3cret\"").contains("s3cret"));
    assert!(!said("secret = \"s3cret\"").contains("s3cret"));
    assert!(said("headers = { authorization = \"s3cret\" }").contains("is a credential"));
    assert!(said("headers = { x = { vault = \"a\" } }").contains("{ env = "));
    assert!(said("headers = { host = \"a\" }").contains("reserved"));
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

/// An operator reaches his store whatever is wrong elsewhere.
#[test]
fn stores_are_found_in_a_file_with_other_mistakes() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("posthouse.toml");
    let mut sources = Sources {
        file: Some(file.clone()),
        ..Sources::default()
    };
    std::fs::write(&file, "[store]\nurl = \"sqlite://a.db\"\n[log]\nlevel = 3\n[[route]]\n").unwrap();
    assert!(load(&sources).is_err());
    assert_eq!(load_stores(&sources).unwrap()[0].url.expose(), "sqlite://a.db");
    std::fs::write(&file, "[store]\nurl = \"sqlite://a.db\"\n[log\n").unwrap();
    assert!(load_stores(&sources).is_err());
    sources.store = Some("sqlite://b.db".to_owned());
    assert_eq!(load_stores(&sources).unwrap()[0].url.expose(), "sqlite://b.db");
}

#[test]
fn what_is_shown_can_be_read_again() {
    let text = format!("{EXAMPLE}\n");
    let loaded = read(&text).unwrap();
    let again = read(&toml(&loaded.settings, true)).unwrap_or_else(|problems| panic!("{}", told(&problems)));
    assert_eq!(again.config, loaded.config);
    assert_eq!(again.settings.len(), loaded.settings.len());
}

#[test]
fn changes_are_told_apart_by_what_they_need() {
    let base = format!("[outbox]\nmax_attempts = 5\n{}", route("secret_env = \"A\""));
    let at = |text: &str, secret: &str| with(text, Environment::from([("A", secret)]), None).unwrap();
    let keys = |changes: &[Change]| changes.iter().map(|c| c.key.clone()).collect::<Vec<_>>();
    let old = at(&base, "one");
    assert_eq!(diff(&old, &at(&format!("# moved\n{base}"), "one")), Changes::default());
    let new = at(
        &base
            .replace("max_attempts = 5", "name = \"r\"\nmax_attempts = 6")
            .replace("[outbox]", "[store]\nurl = \"sqlite://b.db\"\n[outbox]"),
        "one",
    );
    let changes = diff(&old, &new);
    assert_eq!(keys(&changes.live), ["outbox.max_attempts"]);
    assert_eq!(keys(&changes.restart), ["outbox.name", "store.url"]);
    assert_eq!(
        (changes.live[0].from.as_deref(), changes.live[0].to.as_deref()),
        (Some("5"), Some("6"))
    );
    let secret = diff(&old, &at(&base, "two"));
    assert_eq!(keys(&secret.live), ["route \"https://a.example#d26afada\": secret_env"]);
    assert!(!format!("{secret:?}").contains("two"));
    // A route in front of it changes nothing of the other.
    let first = "[[route]]\ntopic = \"b\"\nto = \"https://b.example/\"\n";
    let added = diff(
        &old,
        &at(&base.replace("[[route]]", &format!("{first}[[route]]")), "one"),
    );
    assert!(
        added.restart.is_empty()
            && added
                .live
                .iter()
                .all(|c| c.key.contains("b.example") || c.key.contains("order")),
        "{added:?}"
    );
    assert!(!added.live.is_empty());
}

/// What the page says of a key.
fn row(key: &Key) -> String {
    let default = match key.default {
        "" => key.unset.to_owned(),
        written => format!("`{written}`"),
    };
    let change = if key.live { "at once" } else { "restart" };
    format!("| `{}` | {default} | {change} | {} |", key.path, key.meaning)
}

#[test]
fn the_page_lists_every_key_and_no_other() {
    let rows: Vec<_> = KEYS.iter().map(row).collect();
    let listed = |line: &&str| line.starts_with("| `") && line.matches(" | ").count() == 3;
    let page: Vec<_> = PAGE.lines().filter(listed).collect();
    assert_eq!(page, rows, "the table should be:\n{}\n", rows.join("\n"));
}

#[test]
fn keys_are_sound() {
    let paths: BTreeSet<_> = KEYS.iter().map(|key| key.path).collect();
    assert_eq!(paths.len(), KEYS.len());
    for key in KEYS {
        assert!(key.default.is_empty() != key.unset.is_empty(), "{}", key.path);
        let default = key.kind.take_text(key.default.trim_matches('"'));
        assert!(key.default.is_empty() || default.is_ok(), "{}: {default:?}", key.path);
        assert_eq!(keys::find(key.section(), key.name()), Some(key));
    }
}

/// Defaults that are there are in force when nobody says anything.
#[test]
fn every_default_is_in_force() {
    let loaded = read(&route("")).unwrap();
    for key in KEYS
        .iter()
        .filter(|key| !key.default.is_empty() && key.path != "route.headers")
    {
        let setting = loaded
            .settings
            .iter()
            .find(|setting| setting.key == key)
            .unwrap_or_else(|| panic!("{}", key.path));
        assert_eq!(
            (setting.value.toml().as_str(), &setting.source),
            (key.default, &Source::Default),
            "{}",
            key.path
        );
    }
}

#[test]
fn the_example_is_sound_and_has_every_key() {
    let loaded = read(EXAMPLE).unwrap_or_else(|problems| panic!("{}", told(&problems)));
    assert_eq!((loaded.config.routes.len(), loaded.warnings.len()), (2, 0));
    let words: BTreeSet<_> = EXAMPLE
        .split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .collect();
    for key in KEYS {
        assert!(
            words.contains(key.name()),
            "{} is not in posthouse.example.toml",
            key.path
        );
    }
    // Where it says that a value is the default, it is.
    let own = ["retention.ended_days", "tenants.weights", "tenants.caps"];
    for setting in loaded
        .settings
        .iter()
        .filter(|setting| !setting.section.starts_with("route"))
    {
        let is_default = setting.value.toml() == setting.key.default;
        assert!(is_default || own.contains(&setting.key.path), "{}", setting.key.path);
    }
}

/// Whatever is in a file, there is an answer, and what is wrong is in it.
fn answers(text: &str) -> Result<(), TestCaseError> {
    let Err(problems) = read(text) else { return Ok(()) };
    prop_assert!(problems.errors() > 0);
    let lines: Vec<_> = text.split('\n').collect();
    for problem in &problems.all {
        problem.render();
        if let Place::At { line, column, .. } = problem.place {
            prop_assert!((1..=lines.len()).contains(&line), "{problem:?}");
            prop_assert!(
                (1..=lines[line - 1].chars().count() + 1).contains(&column),
                "{problem:?}"
            );
        } else {
            prop_assert!(false, "{problem:?}");
        }
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_text_has_an_answer(text in ".{0,200}") {
        answers(&text)?;
    }

    #[test]
    fn any_bytes_have_an_answer(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        answers(&String::from_utf8_lossy(&bytes))?;
    }

    /// The example with a few places overwritten, cut or doubled.
    #[test]
    fn a_spoilt_example_has_an_answer(cuts in proptest::collection::vec((any::<prop::sample::Index>(), 0..3u8, "[\\PC\\n\"'=\\[\\]{}.,#0-9-]{0,4}"), 1..6)) {
        let mut text: Vec<char> = EXAMPLE.chars().collect();
        for (at, how, with) in cuts {
            let at = at.index(text.len());
            let end = (at + with.chars().count() + usize::from(how)).min(text.len());
            match how {
                0 => drop(text.splice(at..end, with.chars())),
                1 => drop(text.splice(at..at, with.chars())),
                _ => { let again: Vec<_> = text[at..end].to_vec(); text.splice(at..at, again); }
            }
        }
        answers(&text.into_iter().collect::<String>())?;
    }

    /// Values of every kind under every key.
    #[test]
    fn any_value_under_any_key_has_an_answer(key in 0..KEYS.len(), value in "(-?[0-9]{1,22}|[0-9]\\.[0-9]|true|\"[a-z:/0-9.*@%-]{0,12}\"|\\[(\"[a-z/.:]{0,4}\",? ?){0,3}\\]|\\{ a = [0-9] \\}|nan|1979-05-27)") {
        let key = &KEYS[key];
        let text = match key.path.strip_prefix("route.") {
            Some(inner) if !["topic", "to"].contains(&inner) => route(&format!("{inner} = {value}")),
            Some(inner) => format!("[[route]]\n{inner} = {value}\n"),
            None => format!("{} = {value}\n", key.path),
        };
        answers(&text)?;
    }
}
