//! How a message is written, on whatever runs a statement: the store's own connection or the transaction of another driver.

use posthouse_core::{ENQUEUED_TOTAL, Enqueued, Error, Message, MessageId, OnDuplicate, headers};
use uuid::Uuid;

use crate::{
    Options,
    call::{Call, Run, Value},
    clock::micros,
    error::internal,
    settings::{Rules, before_any_look},
};

const ENQUEUE: &str = include_str!("../sql/enqueue.sql");
const ENQUEUE_PLAIN: &str = include_str!("../sql/enqueue_plain.sql");
const CHANGES: &str = include_str!("../sql/enqueue_changes.sql");
const EXISTING: &str = include_str!("../sql/enqueue_existing.sql");

/// All of them, or none and an error.
pub(crate) async fn insert_all<R: Run>(
    on: &mut R,
    options: &Options,
    messages: &[Message],
) -> Result<Vec<Enqueued>, Error> {
    let limits = before_any_look(options);
    messages.iter().try_for_each(|message| message.check(&limits))?;
    // Only a taken id or dedupe key can stop a bulk halfway. Without either there is no savepoint, because under one
    // SQLite writes every page that each statement touches into a side journal.
    if messages
        .iter()
        .all(|message| message.id.is_none() && message.dedupe_key.is_none())
    {
        return insert_each(on, options, messages).await;
    }
    run(on, "SAVEPOINT posthouse", vec![]).await?;
    let answers = insert_each(on, options, messages).await;
    if answers.is_err() {
        run(on, "ROLLBACK TO posthouse", vec![]).await?;
    }
    run(on, "RELEASE posthouse", vec![]).await?;
    answers
}

pub(crate) async fn insert_one<R: Run>(on: &mut R, options: &Options, message: &Message) -> Result<Enqueued, Error> {
    message.check(&before_any_look(options))?;
    let rules = Rules::read(on, options).await?;
    message.check_limits(&rules.limits)?;
    let answer = insert(on, &rules, message).await?;
    count(std::slice::from_ref(&answer));
    Ok(answer)
}

async fn insert_each<R: Run>(on: &mut R, options: &Options, messages: &[Message]) -> Result<Vec<Enqueued>, Error> {
    let rules = Rules::read(on, options).await?;
    messages
        .iter()
        .try_for_each(|message| message.check_limits(&rules.limits))?;
    let mut answers = Vec::with_capacity(messages.len());
    for message in messages {
        answers.push(insert(on, &rules, message).await?);
    }
    count(&answers);
    Ok(answers)
}

fn count(answers: &[Enqueued]) {
    metrics::counter!(ENQUEUED_TOTAL).increment(Enqueued::new_ones(answers));
}

async fn insert<R: Run>(on: &mut R, rules: &Rules, message: &Message) -> Result<Enqueued, Error> {
    let id = message.id.unwrap_or_else(|| MessageId(Uuid::now_v7()));
    // A fresh id without a dedupe key cannot be a repetition, so nothing is asked about it.
    if message.id.is_none() && message.dedupe_key.is_none() {
        write(on, rules, message, id).await?;
        return Ok(Enqueued::New(id));
    }
    let before = integer(on, CHANGES).await?;
    write(on, rules, message, id).await?;
    if integer(on, CHANGES).await? > before {
        return Ok(Enqueued::New(id));
    }
    let Existing { key, existing, same } = existing(on, message, id).await?;
    if same || message.on_duplicate == OnDuplicate::Keep {
        return Ok(Enqueued::Duplicate(existing));
    }
    Err(Error::DedupeConflict { key, existing })
}

async fn write<R: Run>(on: &mut R, rules: &Rules, message: &Message, id: MessageId) -> Result<(), Error> {
    let headers = headers::of_message(message);
    let digest = message.digest();
    let mut values = vec![
        id.0.as_bytes().as_slice().into(),
        rules.now.into(),
        message.topic.as_str().into(),
        message.payload.as_slice().into(),
        i64::try_from(message.payload.len()).unwrap_or(i64::MAX).into(),
        message.content_type.as_str().into(),
        message.tenant.as_str().into(),
        message.namespace.as_str().into(),
        headers.into(),
        message.deliver_in.map(micros).into(),
        i64::from(message.max_attempts.unwrap_or(rules.max_attempts)).into(),
        message.on_dead.as_str().into(),
        digest.as_bytes().into(),
        message.kind.as_str().into(),
        message
            .parent
            .as_ref()
            .map(|parent| parent.0.as_bytes().as_slice())
            .into(),
        message.destination.as_deref().into(),
    ];
    if message.order_key.is_none() && message.dedupe_key.is_none() && message.delay.is_zero() {
        return run(on, ENQUEUE_PLAIN, values).await;
    }
    values.extend([
        message.order_key.as_deref().into(),
        message.dedupe_key.as_deref().into(),
        micros(message.delay).into(),
        rules.dedupe_for.into(),
    ]);
    run(on, ENQUEUE, values).await
}

/// The message that stands for one that was not written.
struct Existing {
    key: &'static str,
    existing: MessageId,
    /// Whether it has the same content.
    same: bool,
}

async fn existing<R: Run>(on: &mut R, message: &Message, new: MessageId) -> Result<Existing, Error> {
    let digest = message.digest();
    let values = vec![
        new.0.as_bytes().as_slice().into(),
        message.namespace.as_str().into(),
        message.tenant.as_str().into(),
        message.topic.as_str().into(),
        message.dedupe_key.as_deref().into(),
        message.content_type.as_str().into(),
        message.payload.as_slice().into(),
        digest.as_bytes().into(),
    ];
    let row = on.run(&Call { sql: EXISTING, values }).await?;
    match row.as_deref() {
        Some([Value::Text(by), Value::Blob(id), Value::Integer(same)]) => Ok(Existing {
            key: if by == "id" { "id" } else { "dedupe_key" },
            existing: MessageId(Uuid::from_slice(id).map_err(internal)?),
            same: *same != 0,
        }),
        other => Err(internal(format!(
            "nothing stands for a message that was not written: {other:?}"
        ))),
    }
}

pub(crate) async fn run<R: Run>(on: &mut R, sql: &'static str, values: Vec<Value<'_>>) -> Result<(), Error> {
    on.run(&Call { sql, values }).await.map(|_| ())
}

pub(crate) async fn integer<R: Run>(on: &mut R, sql: &'static str) -> Result<i64, Error> {
    match on.run(&Call { sql, values: vec![] }).await?.as_deref() {
        Some([Value::Integer(integer)]) => Ok(*integer),
        other => Err(internal(format!("not a number: {other:?}"))),
    }
}
