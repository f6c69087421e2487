//! Runs the example of `docs/sqlite.md` and compares what it prints with what the page says.

use posthouse_sqlite::Sqlite;
use posthouse_testkit::page::{examples, masked, python, run};

#[test]
fn the_example_of_the_sqlite_page_prints_what_it_says() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("shop.db");
    Sqlite::migrate(&file).unwrap();
    let examples = examples(include_str!("../../../docs/sqlite.md"));
    assert_eq!(examples.len(), 1);
    let printed = run(&python(), &["-"], &format!("FILE = {file:?}\n{}", examples[0].code));
    assert_eq!(masked(&printed), masked(&examples[0].printed), "printed\n{printed}");
}
