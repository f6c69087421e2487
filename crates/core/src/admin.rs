//! The operator's hand on a store. Every change names an actor and a reason, and is written into the audit.

use async_trait::async_trait;
use serde::Serialize;
use std::time::Duration;

use crate::{Attempt, DeadReason, Digest, Error, Invalid, Kind, Limits, MessageId, State, Timestamp};

/// Looking at messages, and moving those that the relay will not.
#[async_trait]
pub trait Admin: Send + Sync {
    /// One message.
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error>;

    /// Messages by filter, newest first.
    async fn list(&self, filter: &Filter) -> Result<Page, Error>;

    /// The evidence of one message, oldest first.
    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error>;

    /// Sends a dead or quarantined message round again, with a new budget. A deliver-by that has passed is dropped
    /// unless a new one is given.
    async fn replay(&self, id: MessageId, actor: &str, reason: &str, deliver_in: Option<Duration>)
    -> Result<(), Error>;

    /// Holds a pending or dead message.
    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error>;

    /// Gives up a pending or quarantined message. It frees its order key.
    async fn cancel(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error>;

    /// States that a pending, dead or quarantined message was delivered.
    async fn resolve(&self, id: MessageId, actor: &str, receipt: &str) -> Result<(), Error>;

    /// Removes a dead or quarantined message with its evidence, and frees its dedupe key. The audit remembers.
    async fn discard(&self, id: MessageId, actor: &str, reason: &str) -> Result<(), Error>;

    /// Removes messages that ended longer than `older_than` ago, and dedupe keys whose lifetime is over; at most
    /// `limit` of each, which is one or more. A dead message that blocks its key stays. To remove all that can be, call it until there is no more.
    async fn prune(&self, older_than: Duration, limit: u32) -> Result<Pruned, Error>;

    /// What was done by hand and what conflicted, newest first; of one message, or of all.
    async fn audit(&self, id: Option<MessageId>, limit: u32) -> Result<Vec<AuditEntry>, Error>;
}

/// Refuses a new deliver-by that would be over at once, or is out of sight.
pub fn check_deliver_in(deliver_in: Option<Duration>) -> Result<(), Invalid> {
    if deliver_in.is_some_and(|within| within.is_zero() || within > Limits::FARTHEST) {
        return Err(Invalid::new(
            "deliver_in",
            "must be more than zero and at most ten years",
        ));
    }
    Ok(())
}

/// Refuses to remove at most nothing: a caller that goes on until there is no more would never end.
pub fn check_prune_limit(limit: u32) -> Result<(), Invalid> {
    if limit == 0 {
        return Err(Invalid::new("max_rows", "must be one or more"));
    }
    Ok(())
}

/// Which messages to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only this topic.
    pub topic: Option<String>,
    /// Only this state.
    pub state: Option<State>,
    /// Only this order key.
    pub order_key: Option<String>,
    /// Only messages enqueued before this one: the `next` of the page before.
    pub before: Option<i64>,
    /// At most this many; 50 when zero, 1,000 at most.
    pub limit: u32,
}

impl Filter {
    /// How many rows to read: one more than a page, to know whether there is another.
    pub fn page_size(&self) -> u32 {
        if self.limit == 0 { 50 } else { self.limit.min(1000) }
    }
}

/// A page of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The messages, newest first.
    pub messages: Vec<MessageView>,
    /// Where the next page begins, when there is one.
    pub next: Option<i64>,
}

impl Page {
    /// Makes a page from one row more than it holds.
    pub fn of(mut rows: Vec<MessageView>, filter: &Filter) -> Self {
        let size = filter.page_size() as usize;
        let more = rows.len() > size;
        rows.truncate(size);
        let next = if more { rows.last().map(|m| m.seq) } else { None };
        Self { messages: rows, next }
    }
}

/// A message as operators see it. The payload is not part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct MessageView {
    /// Its identity.
    pub id: MessageId,
    /// Its number in the store.
    pub seq: i64,
    /// Whose it is.
    pub tenant: String,
    /// Which application owns it.
    pub namespace: String,
    /// What it is about.
    pub topic: String,
    /// Its order key.
    pub order_key: Option<String>,
    /// Its dedupe key.
    pub dedupe_key: Option<String>,
    /// Where it stands.
    pub state: State,
    /// Why it is dead.
    pub reason: Option<DeadReason>,
    /// Leases counted in this generation.
    pub attempts: u32,
    /// Leases allowed in a generation.
    pub max_attempts: u32,
    /// Grants so far.
    pub epoch: u64,
    /// 1, and one more with each replay.
    pub generation: u32,
    /// Who holds it.
    pub worker: Option<String>,
    /// Until when.
    pub lease_until: Option<Timestamp>,
    /// When it is, or was, due.
    pub due_at: Option<Timestamp>,
    /// When it is given up.
    pub deliver_by: Option<Timestamp>,
    /// When it was enqueued.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// The code of its last attempt.
    pub last_code: Option<String>,
    /// The error of its last attempt.
    pub last_error: Option<String>,
    /// What the body is.
    pub content_type: String,
    /// How large the body is.
    pub bytes: u64,
    /// The digest of the content, where the producer gave one.
    #[serde(serialize_with = "digest_text")]
    pub digest: Option<Digest>,
    /// What it is to the engine.
    pub kind: Kind,
    /// The message it follows from.
    pub parent: Option<MessageId>,
    /// The operator's note, when it is quarantined.
    pub note: Option<String>,
}

fn digest_text<S: serde::Serializer>(digest: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => serializer.collect_str(digest),
        None => serializer.serialize_none(),
    }
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What: `replay`, `quarantine`, `cancel`, `resolve`, `discard` or `outbox_flush_conflict`.
    pub action: String,
    /// Which message.
    pub id: MessageId,
    /// Why, or what was found.
    pub detail: String,
}

/// What retention removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Messages, with their evidence.
    pub messages: u64,
    /// Dedupe keys.
    pub dedupe_keys: u64,
    /// Whether it stopped before it had looked at everything: the next call goes on from there.
    pub more: bool,
}
