//! Making, checking and keeping the schema; what is said when there is none.

use posthouse_core::{Admin, Claim, Error, Message, Settlement, Store};
use posthouse_postgres::{Options, Postgres, Schema, from_sqlstate, sql};
use std::{collections::BTreeSet, time::Duration};

use crate::fixture::{PostgresFixture, session, url, url_as};

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

/// A migration takes the files apart at the lines that begin a statement, and knows each object by its kind and name.
#[test]
fn every_file_holds_statements_that_make_one_object_each() {
    const BEGINS: &str = "CREATE OR REPLACE ";
    let mut names = BTreeSet::new();
    for (file, text) in sql::FUNCTIONS {
        for line in text.lines() {
            let Some(rest) = line.strip_prefix(BEGINS) else {
                let others = ["CREATE", "DROP", "ALTER", "GRANT", "REVOKE", "DO ", "COMMENT ON"];
                assert!(!others.iter().any(|word| line.starts_with(word)), "{file}: {line}");
                continue;
            };
            let mut words = rest.split([' ', '(']);
            let (kind, name) = (words.next().unwrap(), words.next().unwrap());
            assert!(["FUNCTION", "VIEW", "TRIGGER"].contains(&kind), "{file}: {line}");
            assert!(names.insert((kind, name)), "{file} makes {kind} {name} again");
        }
    }
    assert!(names.len() > 100, "{}", names.len());
}

/// Somebody may replicate all tables of a database, and then nothing can be changed that cannot be told apart.
#[tokio::test]
async fn every_record_can_be_told_apart_by_a_replica() {
    let fx = PostgresFixture::new().await;
    let sql = format!(
        "SELECT coalesce(string_agg(c.relname, ', '), 'none') FROM pg_class c
         WHERE c.relnamespace = '{}'::regnamespace AND c.relkind = 'r' AND c.relname NOT LIKE 'test\\_%' AND c.relreplident <> 'f'
           AND NOT EXISTS (SELECT FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary)",
        fx.schema
    );
    assert_eq!(fx.one(&sql).await, "none");
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
                "message", "ready", "sched", "parked", "keyed", "leased", "lot", "attempt", "dead", "dedupe", "receipt",
            ] {
                let plain = function.contains(&format!("JOIN {table} ")) && !function.contains("= ANY (ARRAY[");
                assert!(!plain, "{file}: {} joins {table}", function.lines().next().unwrap());
            }
        }
    }
    assert!(pinned > 10, "{pinned}");
}

/// A plan that had to use what is switched off looks so dear that the server would compile it, at ten milliseconds for each call.
#[test]
fn no_pinned_function_is_compiled() {
    for (file, text) in sql::FUNCTIONS {
        for function in text.split("CREATE OR REPLACE FUNCTION ").skip(1) {
            let name = function.split('(').next().unwrap();
            let pinned = function.contains("enable_seqscan = off");
            assert!(!pinned || function.contains("SET jit = off"), "{file}: {name}");
        }
    }
}

/// What a function calls is found when it is made, or by its own path: never by the path of whoever calls it. Two are called for each
/// lane, where a path of their own would cost more than what they do; the owner alone may call them, and does so from functions that have one.
#[tokio::test]
async fn no_function_runs_by_its_callers_path() {
    let fx = PostgresFixture::new().await;
    // The tests have put their own clock there.
    fx.open().await.migrate().await.unwrap();
    let open = "SELECT string_agg(p.proname, ' ' ORDER BY p.proname) FROM pg_proc p
        WHERE p.pronamespace = trim(trailing '.' FROM 'posthouse.')::regnamespace AND p.prosqlbody IS NULL
          AND NOT EXISTS (SELECT FROM unnest(p.proconfig) c WHERE c LIKE 'search_path=%, pg_temp')";
    assert_eq!(fx.one(open).await, "next_lane next_topic");
    let granted = "SELECT count(*) FROM pg_proc p CROSS JOIN LATERAL aclexplode(p.proacl) a
        WHERE p.pronamespace = trim(trailing '.' FROM 'posthouse.')::regnamespace AND p.proname IN ('next_lane', 'next_topic') AND a.grantee <> p.proowner";
    assert_eq!(fx.one(granted).await, "0");
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

#[test]
fn a_schema_name_with_a_quote_is_refused() {
    for bad in ["a\"b", "a'b", "", "Posthouse", "pg_mine", "1a", "a-b", &"x".repeat(55)] {
        assert_eq!(Schema::new(bad).unwrap_err().field, "schema", "{bad}");
    }
    let refused = Schema::new(&"x".repeat(55)).unwrap_err();
    assert!(refused.problem.contains("at most 54"), "{}", refused.problem);
    assert!(Schema::new(&"x".repeat(54)).is_ok());
}

/// Only the server knows its reserved words: they differ between its versions.
#[tokio::test]
async fn a_reserved_word_is_no_schema_name() {
    for word in ["select", "user", "order", "table", "current_role"] {
        let options = || Options {
            schema: Schema::new(word).unwrap(),
            ..Options::default()
        };
        let made = Postgres::open(&url(), options()).unwrap().migrate().await.map(drop);
        let opened = Postgres::connect_with(&url(), options()).await.map(drop);
        for refused in [made, opened] {
            assert!(
                matches!(&refused, Err(Error::Invalid(i)) if i.field == "schema" && i.problem.contains("reserved word")),
                "{word}: {refused:?}"
            );
        }
    }
}

/// Texts of every language must fit; found out at the first Chinese topic, it would be too late.
#[tokio::test]
async fn a_database_that_is_not_utf8_is_refused() {
    let (control, driver) = session().await;
    for encoding in ["LATIN1", "SQL_ASCII"] {
        let name = format!("enc_{}", uuid::Uuid::new_v4().simple());
        let make =
            format!("CREATE DATABASE {name} ENCODING '{encoding}' TEMPLATE template0 LC_COLLATE 'C' LC_CTYPE 'C'");
        control.batch_execute(&make).await.unwrap();
        let here = format!("{}/{name}", url().rsplit_once('/').unwrap().0);
        let refused = Postgres::open(&here, Options::default()).unwrap().migrate().await;
        let Err(Error::Schema(text)) = refused else {
            panic!("{refused:?}")
        };
        assert!(
            text.contains(encoding) && text.contains("CREATE DATABASE") && text.contains("ENCODING 'UTF8'"),
            "{text}"
        );
        control
            .batch_execute(&format!("DROP DATABASE {name} WITH (FORCE)"))
            .await
            .unwrap();
    }
    driver.abort();
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

/// A role that may log in and nothing else is told what it may not do: the server is there, and trying again does not help.
#[tokio::test]
async fn a_role_without_rights_is_denied() {
    let fx = PostgresFixture::new().await;
    let role = format!("nobody_{}", uuid::Uuid::new_v4().simple());
    fx.run(&format!("CREATE ROLE {role} LOGIN")).await;
    let theirs = url_as(&role);
    let options = || PostgresFixture::options(&fx.schema);
    let denied = |what: String| {
        let (fx, theirs) = (&fx, &theirs);
        async move {
            let Err(error) = Postgres::connect_with(theirs, PostgresFixture::options(&fx.schema)).await else {
                panic!("let in, to {what}")
            };
            assert!(
                matches!(&error, Error::Denied(text) if text.contains(&what)),
                "{error:?}"
            );
            assert!(error.to_string().contains(&what) && !error.retryable(), "{error}");
            assert_eq!(error.code().as_str(), "AUTH.DENIED");
        }
    };
    denied(format!("permission denied for schema {}", fx.schema)).await;
    fx.run(&format!("GRANT USAGE ON SCHEMA {} TO {role}", fx.schema)).await;
    denied("permission denied for table schema_version".to_owned()).await;
    fx.run(&format!("GRANT SELECT ON posthouse.schema_version TO {role}"))
        .await;
    let store = Postgres::connect_with(&theirs, options()).await.unwrap();
    let refused = store.audit(&posthouse_core::AuditFilter::default()).await.unwrap_err();
    assert!(
        matches!(&refused, Error::Denied(text) if text.contains("table audit")),
        "{refused:?}"
    );
    let other = Options {
        schema: Schema::new(&format!("{role}_s")).unwrap(),
        ..options()
    };
    let refused = Postgres::open(&theirs, other).unwrap().migrate().await.unwrap_err();
    assert!(
        matches!(&refused, Error::Denied(text) if text.contains("permission denied for database")),
        "{refused:?}"
    );
    fx.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// A relay with the rights that the page of the contract lists does all of a relay's work, and none of an operator's.
#[tokio::test]
async fn a_relay_needs_only_the_rights_that_are_listed() {
    let fx = PostgresFixture::new().await;
    let role = format!("relay_{}", uuid::Uuid::new_v4().simple());
    let page = include_str!("../../../docs/sql.md");
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("| `posthouse_relay` | "))
        .unwrap();
    let (functions, table) = line.split_once(" | `").unwrap();
    let functions: Vec<_> = functions
        .split(", ")
        .map(|name| format!("posthouse.{}", name.trim_matches('`')))
        .collect();
    fx.run(&format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {} TO {role}; GRANT EXECUTE ON FUNCTION {} TO {role}; GRANT SELECT ON posthouse.{} TO {role}",
        fx.schema,
        functions.join(", "),
        table.trim_end_matches("` |"),
    ))
    .await;
    let relay = Postgres::connect_with(&url_as(&role), PostgresFixture::options(&fx.schema))
        .await
        .unwrap();
    let message = || Message::bytes("t", "text/plain", "x");
    relay.enqueue_now(vec![message(), message(), message()]).await.unwrap();
    relay.asleep("w", Duration::from_secs(60)).await.unwrap();
    let claimed = relay
        .claim(&Claim::new("w", 10, Duration::from_secs(15)))
        .await
        .unwrap();
    let lease = |n: usize| &claimed[n].lease;
    relay.renew(&[lease(0).clone()], Duration::from_secs(20)).await.unwrap();
    let batch = [
        Settlement::delivered(lease(0), None),
        Settlement::released(lease(1), Duration::ZERO).follow_ups(vec![message()]),
    ];
    assert!(relay.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
    let delivered = [Settlement::delivered(lease(2), None)];
    assert!(relay.settle(&delivered).await.unwrap()[0].is_settled());
    relay.record_conflict(lease(0), "w").await.unwrap();
    assert_eq!(relay.expired(-1, 10).await.unwrap(), []);
    let refused = relay.cancel(lease(1).id, "relay", "why").await;
    assert!(matches!(refused, Err(Error::Denied(_))), "{refused:?}");
    drop(relay);
    fx.run(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
}

/// What an SQLSTATE means decides whether a caller tries again.
#[test]
fn sqlstates_have_their_meanings() {
    let code = |state: &str| from_sqlstate(state, "x", None, None, "".into()).code().as_str();
    for (state, expected) in [
        ("40001", "TX.CONTENTION"),
        ("40P01", "TX.CONTENTION"),
        ("55P03", "TX.CONTENTION"),
        // The lock table is full: too many keys are being claimed at once.
        ("53200", "TX.CONTENTION"),
        ("57014", "TX.TIMEOUT"),
        ("42501", "AUTH.DENIED"),
        ("57P01", "PROVIDER.UNAVAILABLE"),
        ("28P01", "PROVIDER.UNAVAILABLE"),
        ("3D000", "PROVIDER.UNAVAILABLE"),
        ("42P01", "STORAGE.SCHEMA_MISMATCH"),
        ("P7006", "SCHEMA.VALIDATION_FAILED"),
        ("22012", "UNKNOWN.INTERNAL"),
    ] {
        assert_eq!(code(state), expected, "{state}");
    }
}

#[tokio::test]
async fn a_wrong_url_is_a_clear_error() {
    let refused = Postgres::connect("postgres://host:notaport/x").await.err().unwrap();
    assert!(
        matches!(&refused, Error::Invalid(i) if i.field == "store"),
        "{refused:?}"
    );
}

#[test]
fn an_sslmode_that_is_not_known_is_refused_with_those_that_are() {
    for mode in ["allow", "", "REQUIRE", "%ff"] {
        let url = format!("postgres://u:s3cret@h/d?connect_timeout=1&sslmode={mode}");
        let refused = Postgres::open(&url, Options::default()).err().unwrap().to_string();
        assert!(refused.starts_with("store: sslmode: "), "{refused}");
        assert!(!refused.contains("s3cret"), "{refused}");
    }
}

/// Not a connection in plain text, and not a riddle.
#[cfg(not(feature = "tls"))]
#[test]
fn a_program_without_tls_says_so() {
    for url in [
        "postgres://u@h/d?sslmode=require",
        "postgres://u@h/d?sslmode=verify-ca",
        "postgres://u@h/d?sslmode=verify-full",
        "host=h user=u sslmode=require",
    ] {
        let refused = Postgres::open(url, Options::default()).err().unwrap().to_string();
        assert!(refused.contains("without the feature \"tls\""), "{url}: {refused}");
    }
    for url in [
        "postgres://u@h/d",
        "postgres://u@h/d?sslmode=prefer",
        "postgres://u@h/d?sslmode=disable",
    ] {
        assert!(Postgres::open(url, Options::default()).is_ok(), "{url}");
    }
}
