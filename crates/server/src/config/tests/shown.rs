//! What is shown of a configuration, and of what changed in it.

use super::*;

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
            .replace(
                "max_attempts = 5",
                "name = \"r\"\nmax_attempts = 6\nretry_after_max_ms = 5",
            )
            .replace("[outbox]", "[store]\nurl = \"sqlite://b.db\"\n[outbox]"),
        "one",
    );
    let changes = diff(&old, &new);
    assert_eq!(keys(&changes.migrate), ["outbox.max_attempts"]);
    assert_eq!(keys(&changes.live), ["outbox.retry_after_max_ms"]);
    assert_eq!(keys(&changes.restart), ["outbox.name", "store.url"]);
    assert_eq!(
        (changes.migrate[0].from.as_deref(), changes.migrate[0].to.as_deref()),
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
