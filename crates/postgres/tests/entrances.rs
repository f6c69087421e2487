//! Every function that enqueues refuses the same messages; a producer cannot write messages of the engine; and an unreadable row does not hide the rest of
//! its page.

use posthouse_core::{
    Admin, Claim, Error, Filter, Message, MessageId, SagaId, Settlement, Store,
    saga::{Declared, Definition, SagaFilter, SagaState, Start, Started},
};
use posthouse_postgres::{Arg, Call, Outbox, Run};
use posthouse_testkit::Fixture;
use std::time::Duration;
use tokio_postgres::Client;

use crate::fixture::{PostgresFixture, session};

/// The arguments of `enqueue_many` for two messages that it accepts.
const TWO: [(&str, &str); 20] = [
    ("id", "ARRAY[gen_random_uuid(), gen_random_uuid()]"),
    ("tenant", "'{acme,acme}'"),
    ("namespace", "'{default,default}'"),
    ("topic", "'{t,t}'"),
    ("content_type", "'{application/json,application/json}'"),
    ("payload", "ARRAY['1'::bytea, '1']"),
    ("digest", "ARRAY[sha256('1'), sha256('1')]"),
    ("order_key", "NULL"),
    ("dedupe_key", "NULL"),
    ("headers", "NULL"),
    ("delay", "NULL"),
    ("deliver_in", "NULL"),
    ("max_attempts", "NULL"),
    ("on_dead", "NULL"),
    ("on_duplicate", "NULL"),
    ("ordering", "NULL"),
    ("kind", "NULL"),
    ("parent", "NULL"),
    ("destination", "NULL"),
    ("check_ids", "false"),
];

fn many(function: &str, changed: &[(&str, &str)]) -> String {
    let value = |(name, usual): (&str, &'static str)| {
        let other = changed.iter().find(|(field, _)| *field == name);
        other.map_or(usual.to_owned(), |(_, value)| (*value).to_owned())
    };
    let values: Vec<_> = TWO.into_iter().map(value).collect();
    format!("SELECT posthouse.{function}({})", values.join(", "))
}

/// The code and the text with which a role is refused. None if it is not refused.
async fn refusal(client: &Client, schema: &str, role: Option<&str>, sql: &str) -> Option<(String, String)> {
    let role = role.map_or_else(String::new, |role| format!("SET LOCAL ROLE {schema}_{role}; "));
    let sql = sql.replace("posthouse.", &format!("{schema}."));
    let answer = client.batch_execute(&format!("BEGIN; {role}{sql}")).await;
    client.batch_execute("ROLLBACK").await.unwrap();
    let refused = answer.err()?;
    let db = refused.as_db_error().expect("an answer of the server").clone();
    Some((db.code().code().to_owned(), db.message().to_owned()))
}

/// Field, and values of `enqueue_many` that hold something bad in the second message.
const BAD: &[(&str, &str)] = &[
    ("id", "ARRAY[gen_random_uuid(), NULL]"),
    ("tenant", "'{acme,NULL}'"),
    ("tenant", "ARRAY['acme', repeat('x', 256)]"),
    ("tenant", "ARRAY['acme', E'a\\nb']"),
    ("tenant", "'{acme}'"),
    ("tenant", "NULL"),
    ("tenant", "'[0:1]={acme,acme}'"),
    ("tenant", "'{{acme,acme}}'"),
    ("namespace", "'{default,\"\"}'"),
    ("namespace", "'{default,NULL}'"),
    ("topic", "ARRAY['t', repeat('x', 256)]"),
    ("topic", "ARRAY['t', 'fn:' || repeat('x', 2046)]"),
    ("topic", "'{t,\"\"}'"),
    ("topic", "'{t,fn:}'"),
    ("topic", "'{t,http:https://ann:secret@example.com}'"),
    ("topic", "ARRAY['t', E'a\\x01']"),
    ("topic", "'{t,t,t}'"),
    ("content_type", "'{application/json,\"\"}'"),
    ("payload", "ARRAY['1'::bytea, NULL]"),
    ("payload", "ARRAY['1'::bytea, decode(repeat('00', 262145), 'hex')]"),
    ("digest", "ARRAY[sha256('1'), '1']"),
    ("digest", "ARRAY[sha256('1'), NULL]"),
    ("order_key", "'{NULL,\"\"}'"),
    ("order_key", "ARRAY['k', repeat('x', 256)]"),
    ("dedupe_key", "ARRAY['k', E'k\\x7f']"),
    ("headers", r#"ARRAY[NULL, '{"a": 1}']"#),
    ("headers", r#"ARRAY[NULL, '{"a": ']"#),
    ("headers", r#"ARRAY[NULL, '{"a": "b" "c": "d"}']"#),
    ("headers", r#"ARRAY[NULL, '{"a": "\u0000"}']"#),
    ("headers", r#"ARRAY[NULL, '{"a": "x\r\ny: z"}']"#),
    ("headers", r#"ARRAY[NULL, '{"a b": "x"}']"#),
    ("headers", r#"ARRAY[NULL, '{"Host": "x"}']"#),
    ("headers", r#"ARRAY[NULL, '{"posthouse-epoch": "1"}']"#),
    ("headers", r#"ARRAY[NULL, '{"posthouse-ledger": "x"}']"#),
    ("headers", "ARRAY[NULL, '[1]']"),
    (
        "headers",
        "ARRAY[NULL, (SELECT jsonb_object_agg('h' || i, '')::text FROM generate_series(1, 65) i)]",
    ),
    (
        "headers",
        "ARRAY[NULL, jsonb_build_object('a', repeat('x', 4097))::text]",
    ),
    ("delay", "'{NULL,-1}'"),
    ("delay", "'{NULL,9223372036854775807}'"),
    ("deliver_in", "'{NULL,0}'"),
    ("max_attempts", "'{NULL,0}'"),
    ("max_attempts", "'{NULL,1001}'"),
    ("max_attempts", "'{NULL,100000}'"),
    ("on_dead", "'{t}'"),
    ("kind", "'{NULL,7}'"),
    ("kind", "'{NULL,-1}'"),
];

#[tokio::test]
async fn enqueue_many_refuses_a_bad_message_and_names_the_field() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    assert_eq!(
        refusal(&client, fx.schema.as_str(), None, &many("enqueue_many", &[])).await,
        None
    );
    for (field, values) in BAD {
        let sql = many("enqueue_many", &[(field, values)]);
        let (code, text) = refusal(&client, fx.schema.as_str(), None, &sql)
            .await
            .unwrap_or_default();
        let named = text.starts_with(&format!("{field}[2]: ")) || text.starts_with(&format!("{field}: "));
        assert!(code == "P7006" && named, "{field} {values}: {code} {text}");
    }
    driver.abort();
}

/// Field, and the value of it for one message, as `enqueue`, `enqueue_bytes` and `enqueue_batch` take it.
const BAD_ONE: &[(&str, &str)] = &[
    ("topic", "repeat('x', 256)"),
    ("topic", "'fn:'"),
    ("topic", "'http:https://ann:secret@example.com'"),
    ("tenant", "repeat('x', 256)"),
    ("tenant", "E'a\\nb'"),
    ("namespace", "''"),
    ("order_key", "''"),
    ("dedupe_key", "repeat('x', 256)"),
    ("headers", r#"'{"a": 1}'::jsonb"#),
    ("headers", r#"'{"posthouse-step": "x"}'::jsonb"#),
    ("headers", r#"'{"posthouse-ledger": "x"}'::jsonb"#),
    ("headers", r#"'{"Webhook-Id": "x"}'::jsonb"#),
    ("headers", "'[1]'::jsonb"),
    ("delay", "'-1 second'"),
    ("delay", "'11 years'"),
    ("deliver_in", "'0 seconds'"),
    ("max_attempts", "0"),
    ("max_attempts", "1001"),
    ("on_dead", "'stop'"),
    ("on_duplicate", "'maybe'"),
    ("ordering", "'any'"),
];

#[tokio::test]
async fn every_entrance_for_one_message_refuses_the_same() {
    let fx = PostgresFixture::new().await;
    let (client, driver) = session().await;
    for (field, value) in BAD_ONE {
        let topic = if *field == "topic" { "" } else { "topic => 't', " };
        let one = format!("SELECT posthouse.enqueue({topic}payload => '1', {field} => {value})");
        let bytes = format!("SELECT posthouse.enqueue_bytes({topic}payload => '1', {field} => {value})");
        let object =
            format!("jsonb_build_object('topic', 't', 'payload', 1) || jsonb_build_object('{field}', {value})");
        let batch = format!("SELECT posthouse.enqueue_batch(jsonb_build_array({object}))");
        let mut said = Vec::new();
        for (sql, place) in [(one, ""), (bytes, ""), (batch, "messages[0].")] {
            let (code, text) = refusal(&client, fx.schema.as_str(), None, &sql)
                .await
                .unwrap_or_default();
            assert_eq!(code, "P7006", "{sql}: {text}");
            let text = text.strip_prefix(place).unwrap_or_else(|| panic!("{sql}: {text}"));
            assert!(text.starts_with(&format!("{field}: ")), "{sql}: {text}");
            said.push(text.to_owned());
        }
        assert!(said.iter().all(|text| *text == said[0]), "{said:?}");
    }
    driver.abort();
}

#[tokio::test]
async fn a_producer_cannot_forge_messages_of_the_engine() {
    let fx = PostgresFixture::new().await;
    fx.open().await.make_roles().await.unwrap();
    let (client, driver) = session().await;
    let schema = fx.schema.as_str();
    let parent = ("parent", "ARRAY[gen_random_uuid(), gen_random_uuid()]");
    let forged: [(&str, &[(&str, &str)]); 7] = [
        ("kind", &[("kind", "'{1,1}'"), parent]),
        ("kind", &[("kind", "'{2,2}'"), parent]),
        ("kind", &[("kind", "'{3,3}'"), parent]),
        ("kind", &[("kind", "'{4,4}'"), parent]),
        ("parent", &[parent]),
        ("destination", &[("destination", "'{billing,billing}'")]),
        (
            "headers",
            &[("headers", r#"ARRAY['{"posthouse-step": "{\"key\": \"k\"}"}', NULL]"#)],
        ),
    ];
    for (field, changed) in forged {
        let sql = many("enqueue_many", changed);
        let (code, text) = refusal(&client, schema, Some("producer"), &sql)
            .await
            .unwrap_or_default();
        assert!(
            code == "P7006" && text.starts_with(&format!("{field}[1]: ")),
            "{changed:?}: {code} {text}"
        );
    }
    // Neither by the functions that may.
    for function in ["enqueue_follow_ups", "write_messages"] {
        let sql = many(function, &[]).replace("write_messages(", "write_messages(NULL, 'saga', ");
        let (code, _) = refusal(&client, schema, Some("producer"), &sql)
            .await
            .unwrap_or_default();
        assert_eq!(code, "42501", "{function}");
    }
    // A relay may send children, but no steps.
    let child = many("enqueue_follow_ups", &[("kind", "'{1,1}'"), parent]);
    assert_eq!(refusal(&client, schema, Some("relay"), &child).await, None);
    let step = many("enqueue_follow_ups", &[("kind", "'{2,2}'"), parent]);
    let (code, text) = refusal(&client, schema, Some("relay"), &step).await.unwrap_or_default();
    assert!(code == "P7006" && text.starts_with("kind[1]: "), "{code} {text}");
    driver.abort();
}

fn trip() -> Definition {
    let json = r#"{"name": "trip", "version": 1, "steps": [{"name": "flight", "action_uri": "fn:book", "compensate_uri": "fn:cancel"}]}"#;
    Declared::from_json(json).unwrap().compile().unwrap()
}

fn start(id: SagaId, key: &str) -> Start {
    Start::new(id, &trip(), key, &serde_json::json!({ "city": "Rome" })).unwrap()
}

/// A producer's open transaction that calls with other arguments than the library gave it.
struct Tampering<'a> {
    client: &'a Client,
    change: &'a (dyn Fn(&mut Vec<Arg>) + Sync),
}

impl Run for Tampering<'_> {
    async fn run(&mut self, call: &Call) -> Result<Option<Vec<Option<String>>>, Error> {
        let mut args = call.args.clone();
        (self.change)(&mut args);
        let literals: Vec<_> = args.iter().map(Arg::literal).collect();
        let mut sql = call.sql.clone();
        // From the last, so that $1 is not found in $12.
        for (at, (arg, literal)) in args.iter().zip(&literals).enumerate().rev() {
            let text = literal
                .as_ref()
                .map_or("NULL".to_owned(), |text| format!("'{}'", text.replace('\'', "''")));
            sql = sql.replace(
                &format!("${}::{}", at + 1, arg.type_name()),
                &format!("{text}::{}", arg.type_name()),
            );
        }
        match self.client.query(&sql, &[]).await {
            Ok(rows) => Ok(rows[0].get(0)),
            Err(e) => {
                let db = e.as_db_error().expect("a database error").clone();
                let (code, message) = (db.code().code(), db.message());
                Err(posthouse_postgres::from_sqlstate(
                    code,
                    message,
                    db.detail(),
                    db.hint(),
                    message.to_owned().into(),
                ))
            }
        }
    }
}

fn texts(arg: &mut Arg) -> &mut Vec<Option<String>> {
    match arg {
        Arg::Texts(Some(texts)) => texts,
        other => panic!("{other:?}"),
    }
}

/// The places of arguments of `saga_start`.
mod place {
    pub const TEXT: usize = 1;
    pub const CARRIERS: usize = 4;
    pub const TENANT: usize = 10;
    pub const HEADERS: usize = 18;
    pub const KIND: usize = 25;
    pub const PARENT: usize = 26;
}

/// A forged start is refused: with a message of another saga, with a state that lists cannot show, with a step under another saga's key.
#[tokio::test]
async fn a_start_carries_messages_of_its_own_saga_only() {
    type Change = (&'static str, Box<dyn Fn(&mut Vec<Arg>) + Sync>);
    let fx = PostgresFixture::new().await;
    fx.open().await.make_roles().await.unwrap();
    let (client, driver) = session().await;
    let outbox = Outbox::in_schema(fx.schema.clone());
    let own = |n: u8| SagaId(uuid::Uuid::from_bytes([n; 16]));
    let begin = format!("BEGIN; SET LOCAL ROLE {}_producer", fx.schema);
    client.batch_execute(&begin).await.unwrap();
    let change = |_: &mut Vec<Arg>| {};
    let mut honest = Tampering {
        client: &client,
        change: &change,
    };
    let started = outbox.start(&mut honest, start(own(1), "honest")).await.unwrap();
    assert_eq!(started, Started::New(own(1)));
    client.batch_execute("COMMIT").await.unwrap();

    let word = |at: usize, word: &'static str| {
        Box::new(move |args: &mut Vec<Arg>| texts(&mut args[place::TEXT])[at] = Some(word.to_owned())) as Box<_>
    };
    let other = own(1).0;
    let forged: Vec<Change> = vec![
        ("state", word(5, "sprocket")),
        ("reason", word(6, "because")),
        ("namespace", word(0, "")),
        ("key", word(3, "a\u{1}b")),
        ("snapshot", word(7, "no json")),
        ("definition", word(4, "[]")),
        (
            "tenant",
            Box::new(|args| texts(&mut args[place::TENANT])[0] = Some("other".to_owned())),
        ),
        (
            "parent",
            Box::new(move |args| args[place::PARENT] = Arg::Uuids(Some(vec![Some(other)]))),
        ),
        (
            "kind",
            Box::new(|args| args[place::KIND] = Arg::Longs(Some(vec![Some(3)]))),
        ),
        ("kind", Box::new(|args| args[place::KIND] = Arg::Longs(None))),
        (
            "messages",
            Box::new(move |args| args[place::CARRIERS] = Arg::Uuids(Some(vec![Some(other)]))),
        ),
        ("headers", Box::new(|args| args[place::HEADERS] = Arg::Texts(None))),
        (
            "headers",
            Box::new(move |args| {
                let headers = &mut texts(&mut args[place::HEADERS])[0];
                let forged = headers
                    .as_ref()
                    .unwrap()
                    .replace(&own(9).to_string(), &own(1).to_string());
                *headers = Some(forged);
            }),
        ),
    ];
    for (field, change) in &forged {
        client.batch_execute(&begin).await.unwrap();
        let mut tampering = Tampering {
            client: &client,
            change,
        };
        let answer = outbox.start(&mut tampering, start(own(9), "forged")).await;
        client.batch_execute("ROLLBACK").await.unwrap();
        assert!(
            matches!(&answer, Err(Error::Invalid(i)) if i.field == *field),
            "{field}: {answer:?}"
        );
    }

    // The honest saga is claimed.
    let claim = Claim::new("w", 10, Duration::from_secs(60));
    let claimed = fx.open().await.claim(&claim).await.unwrap();
    assert_eq!(claimed.iter().map(|c| c.lease.saga).collect::<Vec<_>>(), [Some(own(1))]);
    driver.abort();
}

/// Follow-ups are sent in the rights of a relay.
#[tokio::test]
async fn a_relay_sends_follow_ups_of_a_settlement() {
    let fx = PostgresFixture::new().await;
    fx.open().await.make_roles().await.unwrap();
    let store = fx.open().await;
    let made = store
        .enqueue_now(vec![Message::bytes("t", "text/plain", "x")])
        .await
        .unwrap();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(60))).await.unwrap();
    let (client, driver) = session().await;
    client
        .batch_execute(&format!("BEGIN; SET LOCAL ROLE {}_relay", fx.schema))
        .await
        .unwrap();
    let settlement =
        Settlement::delivered(&claimed[0].lease, None).follow_ups(vec![Message::bytes("after", "text/plain", "y")]);
    let change = |_: &mut Vec<Arg>| {};
    let mut handler = Tampering {
        client: &client,
        change: &change,
    };
    let verdict = Outbox::in_schema(fx.schema.clone())
        .settle_in(&mut handler, &settlement)
        .await
        .unwrap();
    assert!(verdict.is_settled());
    client.batch_execute("COMMIT").await.unwrap();
    let child = store.list(&Filter::default()).await.unwrap().messages.remove(0);
    assert_eq!((child.topic.as_str(), child.parent), ("after", Some(made[0].id())));
    driver.abort();
}

/// A row of a later version, or one that was written by hand past the constraints.
#[tokio::test]
async fn a_row_that_cannot_be_read_is_listed_beside_the_others() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    let message = |topic: &str| Message::bytes(topic, "text/plain", "x");
    let made = store
        .enqueue_now(vec![message("a"), message("b"), message("c")])
        .await
        .unwrap();
    let bad = made[1].id();
    fx.run(&format!(
        "ALTER TABLE posthouse.message DROP CONSTRAINT message_kind_check, DROP CONSTRAINT message_check;
         UPDATE posthouse.message SET kind = 7 WHERE id = '{bad}'"
    ))
    .await;
    let page = store.list(&Filter::default()).await.unwrap().messages;
    let told: Vec<_> = page
        .iter()
        .map(|m| (m.topic.as_str(), m.unreadable.as_deref()))
        .collect();
    let why = "kind: \"7\" is not one of message, child, step, compensation, timer";
    assert_eq!(told, [("c", None), ("b", Some(why)), ("a", None)]);
    let found = store.find(bad).await.unwrap().unwrap();
    assert_eq!(found.unreadable.as_deref(), Some(why));
    assert_eq!(store.counts().await.unwrap().ready.value, 3);

    for (n, key) in [(1, "k-1"), (2, "k-2"), (3, "k-3")] {
        store
            .start_now(start(SagaId(uuid::Uuid::from_bytes([n; 16])), key))
            .await
            .unwrap();
    }
    fx.run(
        "ALTER TABLE posthouse.saga DROP CONSTRAINT saga_state_check, DROP CONSTRAINT saga_reason_check;
         UPDATE posthouse.saga SET state = 'sprocket' WHERE key = 'k-2'",
    )
    .await;
    let page = store.sagas(&SagaFilter::default()).await.unwrap().sagas;
    let told: Vec<_> = page.iter().map(|s| (s.key.as_str(), s.unreadable.is_some())).collect();
    assert_eq!(told, [("k-3", false), ("k-2", true), ("k-1", false)]);
    assert!(
        page[1]
            .unreadable
            .as_ref()
            .unwrap()
            .starts_with("state: \"sprocket\" is not one of"),
        "{:?}",
        page[1]
    );
}

/// The constraints, and the check of a start, list the words of the core.
#[tokio::test]
async fn the_tables_take_the_words_of_the_core_and_no_others() {
    let fx = PostgresFixture::new().await;
    let store = fx.open().await;
    store
        .start_now(start(SagaId(uuid::Uuid::from_bytes([1; 16])), "k"))
        .await
        .unwrap();
    for state in SagaState::ALL {
        fx.run(&format!("UPDATE posthouse.saga SET state = '{state}'")).await;
    }
    for reason in posthouse_core::saga::HeldReason::ALL {
        fx.run(&format!("UPDATE posthouse.saga SET reason = '{reason}'")).await;
    }
    store
        .enqueue_now(vec![
            Message::bytes("t", "text/plain", "x").id(MessageId(uuid::Uuid::from_bytes([2; 16]))),
        ])
        .await
        .unwrap();
    for kind in 0..posthouse_core::Kind::ALL.len() {
        fx.run(&format!("UPDATE posthouse.message SET kind = {kind}, parent = id"))
            .await;
    }
    let (client, driver) = session().await;
    for sql in [
        "UPDATE posthouse.saga SET state = 'sprocket'",
        "UPDATE posthouse.saga SET reason = 'because'",
        "UPDATE posthouse.message SET kind = 5",
        "UPDATE posthouse.message SET kind = 1, parent = NULL",
    ] {
        let (code, _) = refusal(&client, fx.schema.as_str(), None, sql)
            .await
            .unwrap_or_default();
        assert_eq!(code, "23514", "{sql}");
    }
    fx.check().await;
    driver.abort();
}
