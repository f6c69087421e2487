//! How messages are written: everything is asked first, so that nothing is written if one of them is refused.

use posthouse_core::{ENQUEUED_TOTAL, Enqueued, Error, Message, MessageId, OnDuplicate, Order};
use std::collections::BTreeMap;
use surrealdb::types::SurrealValue;
use uuid::Uuid;

use crate::{
    message::{BODY, ID, Record, digest_of},
    records::{Name, name},
    settings::{Options, before_any_look},
    work::{Taken, Work, dedupe_name, over, turn_name},
};

/// All of them, or none and an error. What the engine sends by itself takes no producer's turn.
pub(crate) async fn insert_all(
    work: &mut Work<'_>,
    options: &Options,
    messages: &[Message],
    turns: bool,
) -> Result<Vec<Enqueued>, Error> {
    let limits = before_any_look(options);
    messages.iter().try_for_each(|message| message.check(&limits))?;
    messages
        .iter()
        .try_for_each(|message| message.check_limits(&work.rules.limits))?;
    let mut known = Known::read(work, messages).await?;
    let mut answers = Vec::with_capacity(messages.len());
    let mut fresh = Vec::new();
    for message in messages {
        let id = message.id.unwrap_or_else(|| MessageId(Uuid::now_v7()));
        match known.standing_for(work, message).await? {
            None => {
                known.add(message, id);
                fresh.push((message, id));
                answers.push(Enqueued::New(id));
            }
            Some((_, existing, same)) if same || message.on_duplicate == OnDuplicate::Keep => {
                answers.push(Enqueued::Duplicate(existing));
            }
            Some((key, existing, _)) => return Err(Error::DedupeConflict { key, existing }),
        }
    }
    let count = fresh.len();
    if turns {
        let of_key = |message: &Message| {
            let lane = (message.namespace.clone(), message.tenant.clone());
            Some(turn_name(&(lane, message.order_key.clone()?)))
        };
        work.prefetch(fresh.iter().filter_map(|(message, _)| of_key(message)))
            .await?;
    }
    for (at, (message, id)) in fresh.into_iter().enumerate() {
        let seq = work.number(count - at - 1).await?;
        let (mut record, body) = Record::new(message, id, seq, &work.rules);
        if let Some(key) = record.key().filter(|_| turns && message.order == Order::Strict) {
            record.pos = work.turn(&key, seq).await?;
        }
        if let Some(name) = dedupe_name(&record) {
            let before: Option<Taken> = work.get(name.clone()).await?;
            let there = before.is_some();
            if let Some(at) = before.and_then(|before| before.ends_at) {
                work.drop(over(&name, at));
            }
            let taken = Taken {
                uuid: id.0,
                digest: record.digest.clone(),
                ends_at: None,
            };
            match there {
                true => work.put(name, taken),
                false => work.make(name, taken),
            }
        }
        match message.id {
            // It may lead to a message that is not there: half of an enqueue that was committed.
            Some(_) => work.put(name!(ID, id.0), seq_of(seq)),
            None => work.make(name!(ID, id.0), seq_of(seq)),
        }
        work.make(name!(BODY, seq), body);
        work.add(record);
    }
    metrics::counter!(ENQUEUED_TOTAL).increment(Enqueued::new_ones(&answers));
    Ok(answers)
}

/// The number of an id.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct Seq {
    pub seq: i64,
}

const fn seq_of(seq: i64) -> Seq {
    Seq { seq }
}

/// What is there already of messages that are to be written, and what they add to it.
struct Known {
    ids: BTreeMap<Uuid, Option<i64>>,
    keys: BTreeMap<Name, Option<(Uuid, posthouse_core::Digest)>>,
    /// Those that are written together.
    own: BTreeMap<Uuid, posthouse_core::Digest>,
}

impl Known {
    async fn read(work: &mut Work<'_>, messages: &[Message]) -> Result<Self, Error> {
        let ids: Vec<_> = messages
            .iter()
            .filter_map(|message| message.id)
            .map(|id| id.0)
            .collect();
        let names: Vec<_> = ids.iter().map(|id| name!(ID, *id)).collect();
        let mut known = Self {
            ids: BTreeMap::new(),
            keys: BTreeMap::new(),
            own: BTreeMap::new(),
        };
        work.prefetch(names.into_iter().chain(messages.iter().filter_map(key_of)))
            .await?;
        for id in ids {
            let found: Option<Seq> = work.get(name!(ID, id)).await?;
            known.ids.insert(id, found.map(|found| found.seq));
        }
        for name in messages.iter().filter_map(key_of) {
            let taken: Option<Taken> = work.get(name.clone()).await?;
            let lasting = taken.filter(|taken| taken.ends_at.is_none_or(|at| at > work.now));
            let found = match lasting {
                Some(taken) => Some((taken.uuid, digest_of(&taken.digest)?)),
                None => None,
            };
            known.keys.insert(name, found);
        }
        Ok(known)
    }

    /// The message that stands for this one already, by what, and whether it has the same content.
    async fn standing_for(
        &self,
        work: &mut Work<'_>,
        message: &Message,
    ) -> Result<Option<(&'static str, MessageId, bool)>, Error> {
        let digest = message.digest();
        if let Some(id) = message.id {
            if let Some(own) = self.own.get(&id.0) {
                return Ok(Some(("id", id, *own == digest)));
            }
            // Also if it was written before in this transaction, and is not known to others.
            let seq = self.ids.get(&id.0).copied().flatten();
            if let Some(record) = match seq {
                Some(seq) => work.message(seq).await?,
                None => None,
            } {
                return Ok(Some(("id", id, digest_of(&record.digest)? == digest)));
            }
        }
        let Some(name) = key_of(message) else { return Ok(None) };
        let found = self.keys.get(&name).copied().flatten();
        Ok(found.map(|(id, found)| ("dedupe_key", MessageId(id), found == digest)))
    }

    fn add(&mut self, message: &Message, id: MessageId) {
        let digest = message.digest();
        self.own.insert(id.0, digest);
        if let Some(name) = key_of(message) {
            self.keys.insert(name, Some((id.0, digest)));
        }
    }
}

fn key_of(message: &Message) -> Option<Name> {
    let key = message.dedupe_key.as_ref()?;
    let (namespace, tenant, topic) = (&message.namespace, &message.tenant, &message.topic);
    Some(name!("posthouse_dedupe", namespace, tenant, topic, key))
}
