//! Where secrets come from, and that nobody is told of them.

use super::*;

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
