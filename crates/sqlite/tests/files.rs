//! Files that are not what they should be: refused when they are opened, with their name and what to do.

use posthouse_core::{Error, Store};
use posthouse_sqlite::Sqlite;
use rusqlite::Connection;
use std::{
    env, fs,
    io::{Seek, SeekFrom, Write},
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::Command,
};
use tempfile::TempDir;

/// Tells a copy of this program, run by a user without rights, which file to open.
const READ_ONLY: &str = "POSTHOUSE_TEST_READ_ONLY";

fn dir() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    (dir, path)
}

fn schema_error(answer: Result<Sqlite, Error>, path: &Path) -> String {
    match answer {
        Err(Error::Schema(text)) => {
            assert!(text.contains(&path.display().to_string()), "the file is named: {text}");
            text
        }
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it was opened"),
    }
}

fn unavailable(answer: Result<(), Error>, path: &Path) {
    match answer {
        Err(error @ Error::Unavailable(_)) => {
            let text = error.to_string();
            assert!(text.contains(&path.display().to_string()), "the file is named: {text}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_not_there_asks_for_a_migration() {
    let (_dir, path) = dir();
    let text = schema_error(Sqlite::open(&path), &path);
    assert!(text.contains("run `posthouse migrate`"), "{text}");
    assert!(!path.exists(), "opening created it");
}

#[test]
fn a_database_without_a_schema_asks_for_a_migration() {
    let (_dir, path) = dir();
    Connection::open(&path)
        .unwrap()
        .execute_batch("CREATE TABLE orders (id)")
        .unwrap();
    let text = schema_error(Sqlite::open(&path), &path);
    assert!(text.contains("run `posthouse migrate`"), "{text}");
    Sqlite::migrate(&path).unwrap();
    Sqlite::open(&path).unwrap();
}

#[test]
fn an_enqueue_without_a_schema_asks_for_a_migration() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = db.transaction().unwrap();
    let message = posthouse_core::Message::bytes("t", "text/plain", "x");
    match posthouse_sqlite::Outbox::default().enqueue(&tx, &message) {
        Err(Error::Schema(text)) => assert!(text.contains("run `posthouse migrate`"), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_file_that_is_no_database_is_refused() {
    let (_dir, path) = dir();
    fs::write(&path, "not a database, however long it may be\n".repeat(100)).unwrap();
    let text = schema_error(Sqlite::open(&path), &path);
    assert!(text.contains("not a SQLite database"), "{text}");
    assert!(matches!(Sqlite::migrate(&path), Err(Error::Schema(_))));
    assert!(
        fs::read_to_string(&path).unwrap().starts_with("not a database"),
        "it was left as it was"
    );
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let (_dir, path) = dir();
    let missing = path.join("outbox.db");
    unavailable(Sqlite::open(&missing).map(drop), &missing);
    unavailable(Sqlite::migrate(&missing).map(drop), &missing);
}

#[test]
fn a_directory_in_place_of_a_file_is_refused() {
    let dir = TempDir::new().unwrap();
    unavailable(Sqlite::open(dir.path()).map(drop), dir.path());
}

#[tokio::test]
async fn a_migration_that_was_done_changes_nothing() {
    let (_dir, path) = dir();
    Sqlite::migrate(&path).unwrap();
    let store = Sqlite::open(&path).unwrap();
    store
        .enqueue_now(vec![posthouse_core::Message::bytes("t", "text/plain", "x")])
        .await
        .unwrap();
    let before = crate::fixture::dump(&Connection::open(&path).unwrap());
    Sqlite::migrate(&path).unwrap();
    assert_eq!(crate::fixture::dump(&Connection::open(&path).unwrap()), before);
    assert_eq!(
        store
            .claim(&posthouse_core::Claim::new("w", 1, std::time::Duration::from_secs(1)))
            .await
            .unwrap()
            .len(),
        1
    );
}

/// Every page but the first is overwritten, one at a time: each copy is refused or works, and none panics.
#[test]
fn a_damaged_page_is_refused() {
    let (_dir, path) = dir();
    Sqlite::migrate(&path).unwrap();
    let (pages, size) = {
        let db = Connection::open(&path).unwrap();
        db.pragma_update(None, "wal_checkpoint", "TRUNCATE").unwrap();
        let number = |name: &str| {
            db.query_row(&format!("PRAGMA {name}"), [], |row| row.get::<_, u32>(0))
                .unwrap()
        };
        (u64::from(number("page_count")), u64::from(number("page_size")))
    };
    let mut refused = 0;
    for page in 0..pages {
        let copy = path.with_extension(format!("{page}.db"));
        fs::copy(&path, &copy).unwrap();
        let mut file = fs::OpenOptions::new().write(true).open(&copy).unwrap();
        // The first hundred bytes say what the file is; that is another test.
        file.seek(SeekFrom::Start(page * size + if page == 0 { 100 } else { 0 }))
            .unwrap();
        file.write_all(&vec![0xA5; usize::try_from(size).unwrap() - 100])
            .unwrap();
        match Sqlite::open(&copy) {
            Err(Error::Schema(text)) => {
                assert!(
                    text.contains("damaged") && text.contains(&copy.display().to_string()),
                    "{text}"
                );
                refused += 1;
            }
            Err(other) => panic!("page {page}: {other:?}"),
            // Pages that opening does not read: the roots of indexes.
            Ok(_) => {}
        }
    }
    assert!(refused >= 12, "only {refused} of {pages} damaged pages were noticed");
}

/// An administrator can write everything, so where the tests are run by one, somebody else opens the file.
#[test]
fn a_read_only_file_is_refused() {
    if let Some(path) = env::var_os(READ_ONLY) {
        return unavailable(Sqlite::open(&path).map(drop), path.as_ref());
    }
    let (dir, path) = dir();
    Sqlite::migrate(&path).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
    if fs::OpenOptions::new().write(true).open(&path).is_err() {
        return unavailable(Sqlite::open(&path).map(drop), &path);
    }
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = dir.path().join("test");
    fs::copy(env::current_exe().unwrap(), &program).unwrap();
    let output = Command::new(&program)
        .args(["--exact", "files::a_read_only_file_is_refused", "--nocapture"])
        .env(READ_ONLY, &path)
        .current_dir(dir.path())
        .uid(65534)
        .gid(65534)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let told = String::from_utf8_lossy(&output.stdout);
    assert!(told.contains("1 passed"), "{told}");
}
