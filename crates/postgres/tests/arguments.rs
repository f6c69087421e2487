//! The public functions, called with what nobody should call them with: every argument, one after another. Whatever comes back
//! is in the words of the contract, never PostgreSQL's own.

use posthouse_core::Error;
use posthouse_postgres::from_sqlstate;
use std::collections::BTreeMap;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session};

/// The functions of `docs/sql.md`, and arguments that they accept. `{id}` and `{token}` are of a message that is leased.
/// `{dead}` and `{pending}` are ids too.
const PUBLIC: [(&str, &[(&str, &str)]); 26] = [
    ("enqueue", &[("topic", "'t'"), ("payload", "'1'")]),
    ("enqueue_bytes", &[("topic", "'t'"), ("payload", "'x'")]),
    ("enqueue_batch", &[("messages", "'[]'")]),
    (
        "claim_outbox_batch",
        &[("batch_size", "1"), ("worker_id", "'w'"), ("lease_seconds", "30")],
    ),
    (
        "complete_outbox_attempt",
        &[
            ("id", "{id}"),
            ("lease_token", "{token}"),
            ("worker_id", "'w'"),
            ("outcome", "'retry'"),
        ],
    ),
    (
        "complete_outbox_attempt",
        &[
            ("id", "{id}"),
            ("lease_token", "{token}"),
            ("worker_id", "'w'"),
            ("outcome", "'released'"),
        ],
    ),
    (
        "renew_lease",
        &[
            ("id", "{id}"),
            ("lease_token", "{token}"),
            ("worker_id", "'w'"),
            ("lease_seconds", "30"),
        ],
    ),
    ("repair_expired_leases", &[]),
    (
        "record_conflict",
        &[("id", "{id}"), ("lease_token", "{token}"), ("worker_id", "'w'")],
    ),
    (
        "check_dedup",
        &[
            ("tenant", "''"),
            ("namespace", "'default'"),
            ("topic", "'t'"),
            ("digest", "'x'"),
        ],
    ),
    ("prune", &[("older_than", "'1 day'"), ("max_rows", "10")]),
    ("replay", &[("id", "{dead}"), ("actor", "'ops'")]),
    ("quarantine", &[("id", "{dead}"), ("actor", "'ops'")]),
    ("cancel", &[("id", "{pending}"), ("actor", "'ops'")]),
    ("resolve", &[("id", "{dead}"), ("actor", "'ops'")]),
    ("discard", &[("id", "{dead}"), ("actor", "'ops'")]),
    (
        "ledger_begin",
        &[("scope", "'s'"), ("key", "'k'"), ("fingerprint", "sha256('x')")],
    ),
    (
        "ledger_finish",
        &[("scope", "'s'"), ("key", "'k'"), ("token", "{hold}")],
    ),
    ("ledger_fail", &[("scope", "'s'"), ("key", "'k'"), ("token", "{hold}")]),
    ("ledger_renew", &[("scope", "'s'"), ("key", "'k'"), ("token", "{hold}")]),
    (
        "ledger_checkpoint",
        &[("scope", "'s'"), ("key", "'k'"), ("token", "{hold}"), ("name", "'n'")],
    ),
    (
        "ledger_leave",
        &[
            ("scope", "'s'"),
            ("key", "'k'"),
            ("token", "{hold}"),
            ("topic", "'t'"),
            ("payload", "'1'"),
        ],
    ),
    ("ledger_clear", &[("id", "{id}"), ("lease_token", "{token}")]),
    ("inbox_once", &[("consumer", "'c'"), ("message_id", "{id}")]),
    ("inbox_do_once", &[("consumer", "'c'"), ("key", "'k'")]),
    ("inbox_undo_once", &[("consumer", "'c'"), ("key", "'k'")]),
];

/// Values that a type allows and hardly anybody means.
fn silly(kind: &str) -> &'static [&'static str] {
    match kind {
        "text" => &["''", "' '", "E'\\x01'", "repeat('x', 3000)", "E'\\u2028'", "'null'"],
        "integer" => &["0", "-1", "2147483647", "-2147483648"],
        "bigint" => &["0", "-1", "9223372036854775807", "-9223372036854775808"],
        "double precision" => &["0", "-1", "'NaN'", "'Infinity'", "'-Infinity'", "1e300", "1e-300"],
        "interval" => &[
            "'0'",
            "'-1 s'",
            "'178000000 years'",
            "'-178000000 years'",
            "'1 microsecond'",
        ],
        "uuid" => &["'00000000-0000-0000-0000-000000000000'", "gen_random_uuid()"],
        "jsonb" => &[
            "'null'",
            "'1'",
            "'\"x\"'",
            "'[]'",
            "'{}'",
            "'[1]'",
            "'[[]]'",
            "'[null]'",
            "'{\"a\": {}}'",
        ],
        "bytea" => &["''", "decode(repeat('00', 300000), 'hex')"],
        "boolean" => &["true", "false"],
        "text[]" => &[
            "'{}'",
            "'{NULL}'",
            "'{\"\"}'",
            "ARRAY[repeat('x', 3000)]",
            "ARRAY[['a', 'b']]",
        ],
        other => panic!("no silly values for {other}"),
    }
}

/// The input arguments of a function, with their types, from the catalogue: a new one cannot be forgotten here.
async fn arguments(client: &Client, schema: &str, function: &str) -> Vec<(String, String)> {
    let sql = "SELECT a.name, format_type(a.type, NULL)
               FROM pg_proc p CROSS JOIN LATERAL unnest(p.proargnames[1:p.pronargs], p.proargtypes::oid[]) WITH ORDINALITY a(name, type, o)
               WHERE p.pronamespace = $1::text::regnamespace AND p.proname = $2 ORDER BY a.o";
    let rows = client.query(sql, &[&schema, &function]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

/// What stands for the names in braces.
type Names = Vec<(&'static str, String)>;

/// A message in each of the states that the functions need.
async fn messages(fx: &PostgresFixture) -> Names {
    fx.run("SELECT posthouse.enqueue('t', '1')").await;
    let both = fx
        .one("SELECT id || ' ' || lease_token FROM posthouse.claim_outbox_batch(1, 'w', 30)")
        .await;
    let (id, token) = both.split_once(' ').unwrap();
    let dead = fx.one("SELECT posthouse.enqueue('t', '2')").await;
    fx.run(&format!("SELECT posthouse.cancel('{dead}', 'ops')")).await;
    let pending = fx.one("SELECT posthouse.enqueue('t', '3')").await;
    let hold = fx
        .one("SELECT token::text FROM posthouse.ledger_begin('s', 'k', sha256('x'))")
        .await;
    let quoted = |value: &str| format!("'{value}'");
    vec![
        ("{hold}", quoted(&hold)),
        ("{id}", quoted(id)),
        ("{token}", quoted(token)),
        ("{dead}", quoted(&dead)),
        ("{pending}", quoted(&pending)),
    ]
}

/// Calls it in a transaction that is rolled back; answers how it was refused, if it was.
async fn call(
    client: &Client,
    schema: &str,
    function: &str,
    given: &BTreeMap<&str, String>,
) -> Option<(String, String)> {
    let named: Vec<_> = given.iter().map(|(name, value)| format!("{name} => {value}")).collect();
    client.batch_execute("BEGIN").await.unwrap();
    let outcome = client
        .batch_execute(&format!("SELECT * FROM {schema}.{function}({})", named.join(", ")))
        .await;
    client.batch_execute("ROLLBACK").await.unwrap();
    let refused = outcome.err()?;
    let db = refused.as_db_error().unwrap();
    Some((db.code().code().to_owned(), db.message().to_owned()))
}

fn filled(arguments: &[(&'static str, &str)], names: &Names) -> BTreeMap<&'static str, String> {
    let value = |v: &str| {
        names
            .iter()
            .fold(v.to_owned(), |text, (name, value)| text.replace(name, value))
    };
    arguments.iter().map(|(name, v)| (*name, value(v))).collect()
}

#[tokio::test]
async fn only_our_own_codes_come_back() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let names = messages(&fx).await;
    let schema = fx.schema.as_str();
    let mut calls = 0;
    for (function, accepted) in PUBLIC {
        let signature = arguments(&client, schema, function).await;
        assert!(!signature.is_empty(), "{function} has no arguments");
        for (name, kind) in &signature {
            for value in ["NULL"].iter().chain(silly(kind)) {
                let mut given = filled(accepted, &names);
                given.insert(name.as_str(), format!("({value})::{kind}"));
                calls += 1;
                let Some((code, text)) = call(&client, schema, function, &given).await else {
                    continue;
                };
                let said = format!("{function}({name} => {value}): {code} {text}");
                assert!(code.starts_with("P70"), "{said}");
                let named = text
                    .strip_prefix(name.as_str())
                    .is_some_and(|rest| rest.starts_with([':', '[']));
                assert!(code != "P7006" || named, "{said}");
            }
        }
    }
    assert!(calls > 300, "{calls}");
    driver.abort();
}

/// What has no default must be given, and is missed by its name before anything is looked up.
#[tokio::test]
async fn a_null_where_something_is_needed_is_named() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let names = messages(&fx).await;
    for (function, accepted) in PUBLIC {
        for (name, _) in accepted {
            let mut given = filled(accepted, &names);
            given.insert(name, "NULL".to_owned());
            let (code, text) = call(&client, fx.schema.as_str(), function, &given).await.unwrap();
            assert!(
                code == "P7006" && text.starts_with(&format!("{name}: ")),
                "{function}({name} => NULL): {code} {text}"
            );
        }
    }
    driver.abort();
}

/// A wrong argument is a mistake of the program, whatever became of the message; it must not read as a lost lease.
#[tokio::test]
async fn an_unknown_outcome_is_refused_before_the_lease_is_looked_at() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let names = messages(&fx).await;
    for outcome in ["'sent'", "''", "'lease_expired'", "'lapsed'", "NULL"] {
        let accepted = [
            ("id", "{id}"),
            ("lease_token", "gen_random_uuid()"),
            ("worker_id", "'w'"),
            ("outcome", outcome),
        ];
        let given = filled(&accepted, &names);
        let (code, text) = call(&client, fx.schema.as_str(), "complete_outbox_attempt", &given)
            .await
            .unwrap();
        assert!(
            code == "P7006" && text.starts_with("outcome: "),
            "{outcome}: {code} {text}"
        );
    }
    driver.abort();
}

/// A message that is not there is told apart from an argument that is wrong.
#[tokio::test]
async fn an_unknown_id_is_not_found() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let nobody = || "gen_random_uuid()".to_owned();
    let names = ["{id}", "{token}", "{dead}", "{pending}", "{hold}"]
        .map(|name| (name, nobody()))
        .to_vec();
    for (function, accepted) in PUBLIC
        .iter()
        .filter(|(_, accepted)| accepted.iter().any(|(name, _)| *name == "id"))
    {
        let given = filled(accepted, &names);
        let (code, text) = call(&client, fx.schema.as_str(), function, &given).await.unwrap();
        // Whoever brings a lease on a message that is gone has lost it.
        let expected = if ["complete_outbox_attempt", "renew_lease", "ledger_clear"].contains(function) {
            "P7002"
        } else {
            "P7005"
        };
        assert_eq!(code, expected, "{function}: {text}");
    }
    driver.abort();
}

/// The library tells its callers the argument by the same name.
#[tokio::test]
async fn the_library_knows_every_argument_by_name() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    let field = |text: &str| match from_sqlstate("P7006", text, None, None, "".into()) {
        Error::Invalid(invalid) => (invalid.field, invalid.problem),
        other => panic!("{other:?}"),
    };
    for (function, _) in PUBLIC {
        for (name, _) in arguments(&client, fx.schema.as_str(), function).await {
            assert_eq!(
                field(&format!("{name}: is wrong")),
                (name.as_str(), "is wrong".to_owned())
            );
        }
    }
    assert_eq!(
        field("messages[3].delay: is wrong"),
        ("messages", "[3].delay: is wrong".to_owned())
    );
    assert_eq!(field("something else"), ("argument", "something else".to_owned()));
    driver.abort();
}

/// Every function that the page of the contract tells of is walked through here.
#[test]
fn every_public_function_is_in_the_list() {
    let page = include_str!("../../../docs/sql.md");
    let mut named: Vec<_> = page
        .split("posthouse.")
        .skip(1)
        .filter_map(|rest| rest.split_once('('))
        .map(|(name, _)| name)
        .filter(|name| name.chars().all(|c| c.is_ascii_lowercase() || c == '_'))
        .collect();
    named.sort_unstable();
    named.dedup();
    for name in named {
        // A plain hash, which answers NULL for NULL; and one without arguments.
        let known = matches!(name, "digest" | "make_roles") || PUBLIC.iter().any(|(function, _)| *function == name);
        assert!(known, "{name}");
    }
}
