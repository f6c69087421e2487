//! What is in force, as TOML that could be read again, or for programs; with where each value came from. Secrets are not in it.

use serde_json::json;
use std::fmt::Write as _;

use super::{
    keys::KEYS,
    read::Setting,
    value::{Value, name_in_toml},
};

/// As TOML.
pub fn toml(settings: &[Setting], with_sources: bool) -> String {
    let mut text = String::new();
    let mut open = "";
    for setting in in_order(settings) {
        let (heading, inner) = split(&setting.section);
        if heading != open {
            let gap = if open.is_empty() { "" } else { "\n" };
            open = heading;
            // Writing to a String cannot fail.
            let _ = writeln!(text, "{gap}{}", bracketed(heading));
        }
        let dot = if inner.is_empty() { "" } else { "." };
        let line = format!(
            "{inner}{dot}{} = {}",
            name_in_toml(setting.key.name()),
            setting.value.toml()
        );
        let mut notes: Vec<_> = hidden_word(setting).into_iter().map(str::to_owned).collect();
        notes.extend(with_sources.then(|| setting.source.words()));
        let _ = match notes.is_empty() {
            true => writeln!(text, "{line}"),
            false => writeln!(text, "{line:<40} # {}", crate::output::visible(&notes.join("; "))),
        };
    }
    text
}

/// As JSON: the settings in the same order.
pub fn document(settings: &[Setting]) -> serde_json::Value {
    let one = |setting: &&Setting| {
        json!({
            "key": format!("{}.{}", setting.section, setting.key.name()),
            "value": setting.value.json(),
            "source": { "kind": setting.source.kind(), "place": setting.source.words() },
        })
    };
    in_order(settings).iter().map(one).collect()
}

/// Says that there is a secret, where only its place is shown.
fn hidden_word(setting: &Setting) -> Option<&'static str> {
    let is_secret = setting.key.name().contains("secret") && matches!(setting.value, Value::Hidden(..));
    is_secret.then_some("***")
}

/// By section and key as the documentation has them; stores and routes in their own order.
fn in_order(settings: &[Setting]) -> Vec<&Setting> {
    let section = |name: &str| {
        KEYS.iter()
            .position(|key| key.section().split('.').next() == Some(name))
    };
    let heads = |setting: &Setting| {
        let (heading, _) = split(&setting.section);
        section(heading.split(['.', '[']).next().unwrap_or_default())
    };
    let number = |setting: &Setting| {
        settings
            .iter()
            .position(|other| split(&other.section).0 == split(&setting.section).0)
    };
    let place = |setting: &Setting| KEYS.iter().position(|key| key.path == setting.key.path);
    let mut sorted: Vec<_> = settings.iter().collect();
    sorted.sort_by_cached_key(|setting| (heads(setting), number(setting), place(setting)));
    sorted
}

/// A section's heading, and the table in it: `route[0].retry` is `route[0]` and `retry`.
fn split(section: &str) -> (&str, &str) {
    match section.split_once('.') {
        Some((heading, inner)) if heading != "store" => (heading, inner),
        _ => (section, ""),
    }
}

fn bracketed(heading: &str) -> String {
    match heading.split_once('[') {
        Some((list, _)) => format!("[[{list}]]"),
        None => format!("[{heading}]"),
    }
}
