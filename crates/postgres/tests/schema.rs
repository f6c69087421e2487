//! Making, checking and keeping the schema; what is said when there is none.

use posthouse_core::Error;
use posthouse_postgres::{Options, Postgres, Schema, sql};
use std::collections::BTreeSet;

use crate::fixture::{PostgresFixture, url};

/// Every file in `sql/` and `migrations/` is compiled in somewhere; text that nothing runs would rot.
#[test]
fn no_sql_file_is_left_out() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: String = std::fs::read_dir(root.join("src"))
        .unwrap()
        .map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap())
        .collect();
    let mut files = 0;
    for folder in ["sql", "migrations"] {
        for file in std::fs::read_dir(root.join(folder)).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(
                sources.contains(&format!("../{folder}/{name}")),
                "{folder}/{name} is not used"
            );
            files += 1;
        }
    }
    assert!(files > 20, "{files}");
}

/// Each function is used by another, by the library or by the contract; a forgotten one would look alive for ever.
#[tokio::test]
async fn every_function_is_called_or_documented() {
    let all: String = sql::FUNCTIONS.iter().map(|(_, text)| *text).collect();
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let sources: String = std::fs::read_dir(root.join("src"))
        .unwrap()
        .map(|f| std::fs::read_to_string(f.unwrap().path()).unwrap())
        .collect();
    let page = include_str!("../../../docs/sql.md");
    let names: BTreeSet<_> = all
        .split("FUNCTION posthouse.")
        .skip(1)
        .map(|rest| rest.split('(').next().unwrap())
        .collect();
    assert!(names.len() > 30);
    for name in names {
        let called = all.matches(&format!("{name}(")).count() > 1;
        let by_rust = sources.contains(&format!(".{name}(")) || sources.contains(&format!("}}.{name}("));
        assert!(
            called || by_rust || page.contains(name),
            "nothing calls posthouse.{name}"
        );
    }
}

/// In a function with a pinned plan, a plain join may walk a whole table that looked empty when it was planned (decision 7).
#[test]
fn no_pinned_function_joins_a_table_plainly() {
    let mut pinned = 0;
    for (file, text) in sql::FUNCTIONS {
        for function in text
            .split("CREATE OR REPLACE FUNCTION ")
            .skip(1)
            .filter(|f| f.contains("force_generic_plan"))
        {
            pinned += 1;
            for table in [
                "message", "ready", "sched", "parked", "keyed", "leased", "attempt", "dead", "dedupe",
            ] {
                let plain = function.contains(&format!("JOIN {table} ")) && !function.contains("= ANY (ARRAY[");
                assert!(!plain, "{file}: {} joins {table}", function.lines().next().unwrap());
            }
        }
    }
    assert!(pinned > 10, "{pinned}");
}

/// Two migrators at once: one works, the other finds it done; a third time nothing changes.
#[tokio::test(flavor = "multi_thread")]
async fn two_migrators_do_not_meet() {
    let schema = Schema::new(&format!("t_{}", uuid::Uuid::new_v4().simple())).unwrap();
    let options = || Options {
        schema: schema.clone(),
        ..Options::default()
    };
    let (a, b) = (
        Postgres::open(&url(), options()).unwrap(),
        Postgres::open(&url(), options()).unwrap(),
    );
    let (a, b) = tokio::join!(a.migrate(), b.migrate());
    let mut from = [a.unwrap().from, b.unwrap().from];
    from.sort_unstable();
    assert_eq!(from, [0, posthouse_postgres::SCHEMA_VERSION]);
    Postgres::connect_with(&url(), options()).await.unwrap();
}

#[tokio::test]
async fn a_missing_schema_says_what_to_do() {
    let options = Options {
        schema: Schema::new("t_nothing_here").unwrap(),
        ..Options::default()
    };
    let Err(Error::Schema(text)) = Postgres::connect_with(&url(), options).await else {
        panic!("no schema error")
    };
    assert!(text.contains("posthouse migrate"), "{text}");
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_a_compatible_one_is_not() {
    let fx = PostgresFixture::new().await;
    let options = || PostgresFixture::options(&fx.schema);
    fx.run("UPDATE posthouse.schema_version SET version = 99").await;
    Postgres::connect_with(&url(), options()).await.unwrap();
    fx.run("UPDATE posthouse.schema_version SET oldest = 99").await;
    let Err(Error::Schema(text)) = Postgres::connect_with(&url(), options()).await else {
        panic!("no schema error")
    };
    assert!(text.contains("upgrade the program"), "{text}");
    let refused = Postgres::open(&url(), options()).unwrap().migrate().await;
    assert!(matches!(refused, Err(Error::Schema(_))), "{refused:?}");
}

#[test]
fn a_schema_name_with_a_quote_is_refused() {
    for bad in ["a\"b", "a'b", "", "Posthouse", "pg_mine", "1a", "a-b", &"x".repeat(64)] {
        assert_eq!(Schema::new(bad).unwrap_err().field, "schema", "{bad}");
    }
}

#[tokio::test]
async fn an_unreachable_server_is_unavailable() {
    let refused = Postgres::connect("postgres://postgres@127.0.0.1:1/postgres")
        .await
        .err()
        .unwrap();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
    assert!(refused.retryable());
}

#[tokio::test]
async fn a_wrong_url_is_a_clear_error() {
    let refused = Postgres::connect("postgres://host:notaport/x").await.err().unwrap();
    assert!(
        matches!(&refused, Error::Invalid(i) if i.field == "store"),
        "{refused:?}"
    );
}
