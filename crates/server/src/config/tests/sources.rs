//! Where a setting comes from: the file, the environment, the command line; and which stores there are.

use posthouse::Backoff;
use std::time::Duration;

use super::*;

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
    assert_eq!(source(&by_variable, "outbox.grace_ms").as_deref(), Some("default"));
}

#[test]
fn variables_take_every_type() {
    let environment = Environment::from([
        ("POSTHOUSE_OUTBOX__BACKOFF__TABLE_S", "[1, 2]"),
        ("POSTHOUSE_TENANTS__WEIGHTS", "{ acme = 3 }"),
        ("POSTHOUSE_STORE__NAMESPACES", "[\"a\", \"b\"]"),
        ("POSTHOUSE_RETENTION__DEDUPE_DAYS", "never"),
        ("POSTHOUSE_RETENTION__ENDED_DAYS", "30"),
        ("POSTHOUSE_RETENTION__DEAD_DAYS", "365"),
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
        (config.retention.dedupe, config.retention.ended, config.retention.dead),
        (
            None,
            Some(Duration::from_secs(30 * 86_400)),
            Some(Duration::from_secs(365 * 86_400))
        )
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
