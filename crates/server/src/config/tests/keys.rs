//! The list of keys, the page about it, the example and the defaults say the same.

use std::collections::BTreeSet;

use super::{
    super::{
        keys::{self, KEYS, Key, Kind},
        value::Source,
    },
    *,
};

const PAGE: &str = include_str!("../../../../../docs/configuration.md");

/// What the page says of a key.
fn row(key: &Key) -> String {
    let default = match key.default {
        "" => key.unset.to_owned(),
        written => format!("`{written}`"),
    };
    let change = match key.change {
        keys::Change::AtOnce => "at once",
        keys::Change::Restart => "restart",
        keys::Change::Migrate => "migrate",
    };
    let range = match key.kind {
        Kind::Whole(least, most) => format!(" From {least} to {most}."),
        Kind::WholeOrNever(least, most) => format!(" From {least} to {most}, or `\"never\"`."),
        Kind::Real(least, most) => format!(" From {least} to {most}."),
        Kind::Wholes(least, most) | Kind::WholeOf(least, most) => format!(" Each from {least} to {most}."),
        Kind::Switch | Kind::Text | Kind::Word(_) | Kind::Texts | Kind::Waits | Kind::Headers => String::new(),
    };
    format!("| `{}` | {default} | {change} | {}{range} |", key.path, key.meaning)
}

#[test]
fn the_page_lists_every_key_and_no_other() {
    let rows: Vec<_> = KEYS.iter().map(row).collect();
    let listed = |line: &&str| line.starts_with("| `") && line.matches(" | ").count() == 3;
    let page: Vec<_> = PAGE.lines().filter(listed).collect();
    assert_eq!(page, rows, "the table should be:\n{}\n", rows.join("\n"));
}

#[test]
fn the_page_shows_the_name_that_a_destination_has_by_default() {
    let config = sound("[[route]]\ntopic = \"a\"\nto = \"https://shop.example/hooks\"\n");
    assert!(
        PAGE.contains(&format!(
            "`{}`, for `https://shop.example/hooks`",
            config.routes[0].name
        )),
        "{}",
        config.routes[0].name
    );
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
