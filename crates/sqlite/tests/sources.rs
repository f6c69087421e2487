//! What the sources promise about themselves.

use std::{collections::BTreeSet, fs, path::Path};

fn names(folder: &str, ending: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap());
    files.filter(|name| name.ends_with(ending)).collect()
}

fn sources() -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    names("src", ".rs")
        .iter()
        .map(|name| fs::read_to_string(folder.join(name)).unwrap())
        .collect()
}

/// A constant that nobody uses is a warning of the compiler, so to be included is to be run.
#[test]
fn every_sql_file_is_run() {
    let sources = sources();
    for folder in ["sql", "migrations"] {
        for name in names(folder, ".sql") {
            let included = format!("include_str!(\"../{folder}/{name}\")");
            assert!(sources.contains(&included), "nothing runs {folder}/{name}");
        }
    }
}

#[test]
fn migrations_are_numbered_without_a_gap() {
    let migrations = names("migrations", ".sql");
    for (number, name) in (1..).zip(&migrations) {
        assert!(name.starts_with(&format!("{number:04}_")), "{name}");
    }
}
