//! The databases that a relay serves: `[store]` for one, `[store.NAME]` for each of several.

use posthouse::{AnyStore, presence::Relay};
use std::time::Duration;
use toml::{
    Spanned,
    de::{DeTable, DeValue},
};

use super::{
    Sources,
    problem::{Place, Problem},
    read::{Environment, Reader, Section, text_of},
    secret::Secret,
    value::{Source, Value},
};

/// A database.
#[derive(Clone, Debug, PartialEq)]
pub struct Store {
    /// Its name in the file, where there are several.
    pub name: Option<String>,
    /// Its URL.
    pub url: Secret,
    /// A URL past any pooler, to be woken by; the same when absent.
    pub direct_url: Option<Secret>,
    /// The namespaces that are served there; all when empty.
    pub namespaces: Vec<String>,
}

const FLAG: &str = "--store";

/// Reads them. A URL that a flag or the environment names stands in place of everything that the file says.
pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>, sources: &Sources) -> Vec<Store> {
    let value = root.get("store");
    let names = names(value);
    check_names(reader, value, &names);
    names
        .iter()
        .for_each(|name| reader.know_store(&format!("store.{name}")));
    reader.know_store("store");
    let (flag, variable) = (sources.store.as_deref(), is_in(reader.environment));
    let chosen = flag.and_then(|flag| names.iter().find(|name| *name == flag));
    if names.is_empty() || (chosen.is_none() && (flag.is_some() || variable)) {
        let section = Section::open(reader, "store", "store".to_owned(), value.filter(|_| names.is_empty()));
        return vec![one(reader, &section, None, flag, &names)];
    }
    let mut stores: Vec<Store> = Vec::new();
    for name in names.iter().filter(|name| chosen.is_none_or(|chosen| chosen == *name)) {
        let table = value
            .and_then(|value| value.get_ref().as_table())
            .and_then(|table| table.get(name.as_str()));
        let section = Section::open(reader, "store", format!("store.{name}"), table);
        let store = one(reader, &section, Some(name.clone()), None, &names);
        let twin = stores
            .iter()
            .find(|other| other.url == store.url && !store.url.expose().is_empty());
        if let Some(twin) = twin.and_then(|twin| twin.name.clone()) {
            section.refuse(
                reader,
                "url",
                format!("is the same as that of store.{twin}; name each database once"),
            );
        }
        stores.push(store);
    }
    stores
}

/// The names of the stores, where they have names.
fn names(value: Option<&Spanned<DeValue<'_>>>) -> Vec<String> {
    let table = value.and_then(|value| value.get_ref().as_table());
    let tables = table
        .into_iter()
        .flat_map(|table| table.iter().filter(|(_, value)| value.get_ref().is_table()));
    let mut names: Vec<_> = tables
        .map(|(name, _)| (name.span().start, name.get_ref().to_string()))
        .collect();
    names.sort();
    names.into_iter().map(|(_, name)| name).collect()
}

/// A name stands in variables too, and beside those without.
fn check_names(reader: &mut Reader<'_>, value: Option<&Spanned<DeValue<'_>>>, names: &[String]) {
    let Some(table) = value
        .and_then(|value| value.get_ref().as_table())
        .filter(|_| !names.is_empty())
    else {
        return;
    };
    for (name, value) in table.iter() {
        let place = reader.text.place(&name.span());
        let text = name.get_ref().as_ref();
        let plain = !text.is_empty()
            && text.len() <= 64
            && text
                .bytes()
                .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_');
        let message = match value.get_ref().is_table() {
            false => "stands beside named stores; put it into one of them",
            true if super::keys::find("store", text).is_some() => "is the name of a key; call the store something else",
            true if !plain => "is no name for a store; write small letters, digits and _",
            true => continue,
        };
        reader.wrong(place, format!("store.{text}"), message);
    }
}

/// Whether a URL is in the environment.
pub fn is_in(environment: &Environment) -> bool {
    ["POSTHOUSE_STORE__URL", "POSTHOUSE_STORE__URL_FILE"]
        .iter()
        .any(|name| environment.get(name).is_some())
}

fn one(
    reader: &mut Reader<'_>,
    section: &Section<'_>,
    name: Option<String>,
    flag: Option<&str>,
    names: &[String],
) -> Store {
    // Looked up in any case, so that what is wrong elsewhere is told too.
    let found = section.look(reader, "url");
    let (text, source) = match (flag, found) {
        (Some(flag), _) => (flag.to_owned(), Source::Flag(FLAG)),
        (None, Some((value, source))) => (text_of(value).unwrap_or_default(), source),
        (None, None) => (String::new(), Source::Default),
    };
    let missing = name.is_some() && source == Source::Default;
    if missing {
        section
            .refuse(reader, "url", "is missing: each named store has its own")
            .missing = true;
    } else if let Err(error) = AnyStore::check_url(&text) {
        let place = match &source {
            Source::Flag(flag) => Place::Flag(flag),
            Source::Variable(variable) => Place::Variable(variable.clone()),
            _ => section.place(reader, "url"),
        };
        let message = error.to_string();
        let problem = Problem::new(
            place,
            format!("{}.url", section.path),
            message.trim_start_matches("store: "),
        );
        let known = (!names.is_empty()).then(|| format!("or name one of the stores: {}", names.join(", ")));
        reader.problems.push(problem.help(known));
    }
    let url = Secret::new(text);
    if matches!(source, Source::File { .. }) {
        warn_of_readers(reader, section, &url);
    }
    let shown = Value::Hidden(url.clone(), AnyStore::shown_url(url.expose()));
    section.put(reader, "url", shown, source.clone());
    Store {
        direct_url: direct(reader, section, &url, &source),
        namespaces: namespaces(reader, section),
        name,
        url,
    }
}

/// Says so of a password in a file that everybody may read.
#[cfg(unix)]
fn warn_of_readers(reader: &mut Reader<'_>, section: &Section<'_>, url: &Secret) {
    use std::os::unix::fs::PermissionsExt;
    let file = reader.text.file;
    let open = std::fs::metadata(file).is_ok_and(|meta| meta.permissions().mode() & 0o004 != 0);
    let shown = AnyStore::shown_url(url.expose());
    if open && shown.starts_with("postgres") && shown != url.expose() {
        let key = format!("{}.url", section.path);
        let problem = Problem::new(
            section.place(reader, "url"),
            key,
            "may hold a password, and everybody may read this file",
        );
        let help = Some(format!(
            "run: chmod 600 {file}, or put the URL into a file of its own and name it in POSTHOUSE_STORE__URL_FILE"
        ));
        let warning = true;
        reader.problems.push(Problem {
            warning,
            ..problem.help(help)
        });
    }
}

#[cfg(not(unix))]
fn warn_of_readers(_reader: &mut Reader<'_>, _section: &Section<'_>, _url: &Secret) {}

/// The second URL goes with the first: that of the file is for the file's database.
fn direct(reader: &mut Reader<'_>, section: &Section<'_>, url: &Secret, source: &Source) -> Option<Secret> {
    let (value, from) = section.look(reader, "direct_url")?;
    let elsewhere =
        matches!(source, Source::Flag(_)) || matches!((source, &from), (Source::Variable(_), Source::File { .. }));
    if elsewhere {
        return None;
    }
    let direct = Secret::new(text_of(value)?);
    let postgres = |url: &Secret| url.expose().starts_with("postgres");
    if let Err(error) = AnyStore::check_url(direct.expose()) {
        let message = error.to_string();
        section.refuse(reader, "direct_url", message.trim_start_matches("store: "));
    } else if !postgres(url) || !postgres(&direct) {
        section.refuse(reader, "direct_url", "is for PostgreSQL; a SQLite store takes none");
    }
    let shown = AnyStore::shown_url(direct.expose());
    section.put(reader, "direct_url", Value::Hidden(direct.clone(), shown), from);
    Some(direct)
}

fn namespaces(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<String> {
    let namespaces = section.texts(reader, "namespaces");
    let relay = Relay {
        name: "relay".to_owned(),
        namespaces: namespaces.clone(),
        ..Relay::default()
    };
    if let Err(invalid) = relay.check(Duration::from_secs(1)) {
        section.refuse(reader, "namespaces", invalid.to_string());
    }
    namespaces
}
