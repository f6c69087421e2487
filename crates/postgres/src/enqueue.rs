//! Enqueueing in the application's own transaction.

use posthouse_core::{
    ENQUEUED_TOTAL, Enqueued, Error, Kind, Limits, Message, MessageId, OnDead, OnDuplicate, Order, Settlement, Verdict,
    headers,
};
use std::time::Duration;
use uuid::Uuid;

use crate::{Arg, Call, Run, Schema, settle};

/// Messages in one statement of a bulk enqueue. More arrive in several.
const CHUNK: usize = 1000;

/// The application's side: writes messages into its own transaction. Cheap to make and to clone; holds no connection.
///
/// ```no_run
/// # use posthouse_postgres::Outbox;
/// # use posthouse_core::Message;
/// # async fn example(client: &mut tokio_postgres::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let outbox = Outbox::default();
/// let mut tx = client.transaction().await?;
/// tx.execute("update orders set state = 'placed' where id = $1", &[&42i64]).await?;
/// outbox.enqueue(&mut tx, Message::json("order.placed", &42)?).await?;
/// tx.commit().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Outbox {
    schema: Schema,
    limits: Limits,
    keep: bool,
}

impl Outbox {
    /// An outbox in another schema than `posthouse`.
    pub fn in_schema(schema: Schema) -> Self {
        Self {
            schema,
            ..Self::default()
        }
    }

    pub(crate) const fn allowed(&self) -> &Limits {
        &self.limits
    }

    pub(crate) const fn schema(&self) -> &Schema {
        &self.schema
    }

    /// With other limits than the default ones.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Lets the driver keep the statement prepared on each connection, as it may do with your own: the server then parses and plans
    /// it once, not with each call. It matters where messages are enqueued one at a time.
    ///
    /// sqlx and deadpool-postgres keep statements. tokio-postgres alone keeps none, and diesel-async none of this kind; SeaORM keeps all,
    /// also without this.
    ///
    /// Not for a pooler in transaction mode that does not know prepared statements (PgBouncer before 1.21, or with
    /// `max_prepared_statements = 0`): there the statement would be looked for on a connection that never saw it, and fail.
    pub fn keep_statements(mut self) -> Self {
        self.keep = true;
        self
    }

    /// Enqueues one message in the caller's transaction. It exists if and only if that transaction commits.
    pub async fn enqueue<T: Run>(&self, tx: &mut T, message: Message) -> Result<Enqueued, Error> {
        let answers = self.enqueue_all(tx, vec![message]).await?;
        answers
            .into_iter()
            .next()
            .ok_or_else(|| Error::Internal("one message, no answer".into()))
    }

    /// Enqueues many, one statement for each thousand. Answers in the same order. After an error, or if the future is dropped before
    /// it ends, roll the transaction back: some of them may be written.
    pub async fn enqueue_all<T: Run>(&self, tx: &mut T, mut messages: Vec<Message>) -> Result<Vec<Enqueued>, Error> {
        messages.iter().try_for_each(|m| m.check(&self.limits))?;
        let mut answers = Vec::with_capacity(messages.len());
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(CHUNK));
            let (call, ids) = enqueue_call(&self.schema, messages);
            let twins = tx.run(&call.kept(self.keep)).await?;
            let chunk = read_answers(ids, twins)?;
            metrics::counter!(ENQUEUED_TOTAL).increment(Enqueued::new_ones(&chunk));
            answers.extend(chunk);
            messages = rest;
        }
        Ok(answers)
    }

    /// Settles a lease in the caller's own transaction: its writes and the settlement commit together or not at all.
    ///
    /// On [`Verdict::LeaseLost`] roll back: somebody else may finish the message now; or you did, in a transaction whose commit you did not hear of.
    pub async fn settle_in<T: Run>(&self, tx: &mut T, settlement: &Settlement) -> Result<Verdict, Error> {
        settlement.check_own()?;
        settlement.follow_ups.iter().try_for_each(|m| m.check(&self.limits))?;
        let call = settle::call(&self.schema, &[settlement]).kept(self.keep);
        let answers = tx.run(&call).await?;
        if !matches!(
            settle::read_verdicts(answers, 1)?.first(),
            Some(settle::Answer::Settled)
        ) {
            return Ok(Verdict::LeaseLost);
        }
        if !settlement.follow_ups.is_empty() {
            self.enqueue_all(tx, settlement.follow_ups.clone()).await?;
        }
        Ok(Verdict::Settled)
    }
}

/// The call that enqueues these messages, and the ids they have if they are new.
pub(crate) fn enqueue_call(schema: &Schema, messages: Vec<Message>) -> (Call, Vec<MessageId>) {
    let check_ids = messages.iter().any(|m| m.id.is_some());
    let ids: Vec<_> = messages
        .iter()
        .map(|m| m.id.unwrap_or_else(|| MessageId(Uuid::now_v7())))
        .collect();
    let mut args = message_args(&messages, &ids);
    args.push(Arg::Flag(check_ids));
    // Children need the rights of a relay: they follow from a settlement.
    let function = match messages.iter().any(|m| m.kind == Kind::Child) {
        true => "enqueue_follow_ups",
        false => "enqueue_many",
    };
    (Call::new(schema, function, args), ids)
}

/// The messages as the functions take them: all arguments of `enqueue_many` but the last.
pub(crate) fn message_args(messages: &[Message], ids: &[MessageId]) -> Vec<Arg> {
    let text = |f: fn(&Message) -> &str| Arg::Texts(Some(messages.iter().map(|m| Some(f(m).to_owned())).collect()));
    vec![
        Arg::Uuids(Some(ids.iter().map(|id| Some(id.0)).collect())),
        text(|m| &m.tenant),
        text(|m| &m.namespace),
        text(|m| &m.topic),
        text(|m| &m.content_type),
        Arg::Blobs(Some(messages.iter().map(|m| m.payload.clone()).collect())),
        Arg::Blobs(Some(messages.iter().map(|m| m.digest().0.to_vec()).collect())),
        Arg::Texts(unless_all_none(messages, |m| m.order_key.clone())),
        Arg::Texts(unless_all_none(messages, |m| m.dedupe_key.clone())),
        Arg::Texts(unless_all_none(messages, headers::of_message)),
        Arg::Longs(unless_all_none(messages, |m| {
            (!m.delay.is_zero()).then(|| millis(m.delay))
        })),
        Arg::Longs(unless_all_none(messages, |m| m.deliver_in.map(millis))),
        Arg::Longs(unless_all_none(messages, |m| m.max_attempts.map(i64::from))),
        Arg::Flags(unless_all_false(messages, |m| m.on_dead == OnDead::Block)),
        Arg::Flags(unless_all_false(messages, |m| m.on_duplicate == OnDuplicate::Keep)),
        Arg::Flags(unless_all_false(messages, |m| m.order == Order::Relaxed)),
        Arg::Longs(unless_all_none(messages, |m| kind_number(m.kind))),
        Arg::Uuids(unless_all_none(messages, |m| m.parent.map(|p| p.0))),
        Arg::Texts(unless_all_none(messages, |m| m.destination.clone())),
    ]
}

/// The number of the tables; an ordinary message says nothing.
const fn kind_number(kind: Kind) -> Option<i64> {
    match kind {
        Kind::Message => None,
        Kind::Child => Some(1),
        Kind::Step => Some(2),
        Kind::Compensation => Some(3),
        Kind::Timer => Some(4),
    }
}

/// NULL means that all are new; else the id of the one that was there already, for each that is not.
pub(crate) fn read_answers(ids: Vec<MessageId>, twins: Option<Vec<Option<String>>>) -> Result<Vec<Enqueued>, Error> {
    let Some(twins) = twins else {
        return Ok(ids.into_iter().map(Enqueued::New).collect());
    };
    let answer = |(id, twin): (MessageId, Option<String>)| match twin {
        None => Ok(Enqueued::New(id)),
        Some(text) => text.parse().map(Enqueued::Duplicate).map_err(Error::Invalid),
    };
    ids.into_iter().zip(twins).map(answer).collect()
}

/// An array that says nothing is not sent.
fn unless_all_none<T>(messages: &[Message], get: impl Fn(&Message) -> Option<T>) -> Option<Vec<Option<T>>> {
    let values: Vec<_> = messages.iter().map(get).collect();
    values.iter().any(Option::is_some).then_some(values)
}

fn unless_all_false(messages: &[Message], get: impl Fn(&Message) -> bool) -> Option<Vec<bool>> {
    let values: Vec<_> = messages.iter().map(get).collect();
    values.contains(&true).then_some(values)
}

/// A duration as the functions take it; cut where adding it to a time could leave PostgreSQL's calendar.
pub(crate) fn millis(duration: Duration) -> i64 {
    const MOST: Duration = Duration::from_secs(300_000 * 24 * 3600);
    i64::try_from(duration.min(MOST).as_millis()).unwrap_or(i64::MAX)
}
