//! What is different between two configurations, and what of it a running relay takes up.

use std::collections::BTreeMap;

use super::{Loaded, keys, read::Setting};

/// The differences.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    /// A running relay takes these up.
    pub live: Vec<Change>,
    /// These hold from the next start on; until then the old ones are in force.
    pub restart: Vec<Change>,
    /// These hold when `posthouse migrate` has written them into the store.
    pub migrate: Vec<Change>,
}

/// One difference. Secrets are not in it.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// The key, with the name of its route: `outbox.lease_ms`, `route "billing": timeout_ms`.
    pub key: String,
    /// What it was; nothing when it was not set.
    pub from: Option<String>,
    /// What it is; nothing when it is not set any more.
    pub to: Option<String>,
}

/// Compares two configurations, value by value. Where a value came from makes no difference.
pub fn diff(old: &Loaded, new: &Loaded) -> Changes {
    let mut changes = Changes::default();
    let (before, after) = (by_key(old), by_key(new));
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    for key in keys {
        let (from, to) = (before.get(key), after.get(key));
        if from.map(|s| &s.value) == to.map(|s| &s.value) {
            continue;
        }
        let list = match from.or(to).map(|setting| setting.key.change) {
            Some(keys::Change::AtOnce) => &mut changes.live,
            Some(keys::Change::Migrate) => &mut changes.migrate,
            Some(keys::Change::Restart) | None => &mut changes.restart,
        };
        let shown = |setting: Option<&&Setting>| setting.map(|setting| setting.value.toml());
        let (from, to) = (shown(from), shown(to));
        list.push(Change {
            key: key.clone(),
            from,
            to,
        });
    }
    let order = |loaded: &Loaded| loaded.config.routes.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    let (from, to) = (order(old), order(new));
    if from != to {
        let names = |names: Vec<String>| Some(names.join(", "));
        let key = "the order of routes".to_owned();
        changes.live.push(Change {
            key,
            from: names(from),
            to: names(to),
        });
    }
    changes
}

/// The settings by key; those of routes by the route's name, because a number says nothing after one was put in front.
fn by_key(loaded: &Loaded) -> BTreeMap<String, &Setting> {
    let key = |setting: &Setting| {
        let name = setting.key.name();
        let Some(rest) = setting.section.strip_prefix("route[") else {
            return format!("{}.{name}", setting.section);
        };
        let (number, inner) = rest.split_once(']').unwrap_or((rest, ""));
        let route = number.parse().ok().and_then(|n: usize| loaded.config.routes.get(n));
        let route = route.map_or(number, |route| &route.name);
        let inner = inner.trim_start_matches('.');
        let dot = if inner.is_empty() { "" } else { "." };
        format!("route {route:?}: {inner}{dot}{name}")
    };
    loaded.settings.iter().map(|setting| (key(setting), setting)).collect()
}
