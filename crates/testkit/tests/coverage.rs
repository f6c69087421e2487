//! A case that nobody lists is a case that nobody runs.

#![allow(clippy::unwrap_used)]

use posthouse_testkit::suite::CASES;

/// Every case written in a source file of the suite, found on disk, so that a new area cannot be forgotten here either.
fn written() -> Vec<(String, String)> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/suite");
    let mut cases = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let area = path.file_stem().unwrap().to_str().unwrap().to_owned();
        if ["mod", "tools", "crew", "invariants"].contains(&area.as_str()) {
            continue;
        }
        let source = std::fs::read_to_string(&path).unwrap();
        let names = source
            .lines()
            .filter_map(|line| line.strip_prefix("pub async fn ")?.split('(').next());
        cases.extend(names.map(|name| (area.clone(), name.to_owned())));
    }
    cases.sort();
    cases
}

#[test]
fn every_case_is_listed_once_in_its_area() {
    let mut listed: Vec<_> = CASES
        .iter()
        .map(|(area, case, _)| ((*area).to_owned(), (*case).to_owned()))
        .collect();
    listed.sort();
    assert_eq!(listed, written());
}

#[test]
fn no_two_cases_share_a_name() {
    let names: std::collections::BTreeSet<_> = CASES.iter().map(|(_, case, _)| case).collect();
    assert_eq!(names.len(), CASES.len());
}
