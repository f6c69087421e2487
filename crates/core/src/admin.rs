//! The operator's hand on a store. Every change names an actor and a note, and is written into the audit.

use async_trait::async_trait;
use serde::Serialize;
use std::{fmt, time::Duration};

use crate::{
    Attempt, DeadReason, Digest, Error, Invalid, Kind, Limits, MessageId, Prune, PruneRecord, Pruned, SagaId, State,
    Timestamp,
    explain::{Cause, Facts, explain},
    ledger::{EntryFilter, EntryKey, EntryPage, EntryView},
    presence::{DestinationView, Pause, RelayView, destinations},
    saga::{LogLine, SagaFilter, SagaPage},
    topic::shown,
};

/// Looking at messages, and moving those that the relay will not.
#[async_trait]
pub trait Admin: Send + Sync {
    /// One message.
    async fn find(&self, id: MessageId) -> Result<Option<MessageView>, Error>;

    /// Messages by filter, newest first unless it says otherwise. A store looks at a bounded number of messages for one page,
    /// so that a rare filter over millions answers at once; the page tells where to go on.
    async fn list(&self, filter: &Filter) -> Result<Page, Error>;

    /// Counts messages by state, up to `cap` of each ([`check_cap`]), all in one snapshot. Bounded work, however many messages there
    /// are, and however much that is deleted a held snapshot keeps.
    async fn counts_to(&self, cap: u32) -> Result<Counts, Error>;

    /// Counts messages by state, up to [`COUNTED_AT_MOST`] of each.
    async fn counts(&self) -> Result<Counts, Error> {
        self.counts_to(COUNTED_AT_MOST).await
    }

    /// What bears on one message, for [`explain`](Self::explain).
    async fn facts(&self, id: MessageId) -> Result<Option<Facts>, Error>;

    /// Why a message is not delivered: every cause that applies, the one that must change first in front.
    async fn explain(&self, id: MessageId) -> Result<Vec<Cause>, Error> {
        let facts = self.facts(id).await?.ok_or(Error::NotFound(id))?;
        Ok(explain(&facts))
    }

    /// The evidence of one message, oldest first.
    async fn attempts(&self, id: MessageId) -> Result<Vec<Attempt>, Error>;

    /// Sends a dead or quarantined message round again, with a new budget. A deliver-by that has passed is dropped
    /// unless a new one is given.
    async fn replay(&self, id: MessageId, actor: &str, note: &str, deliver_in: Option<Duration>) -> Result<(), Error>;

    /// Holds a pending or dead message.
    async fn quarantine(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error>;

    /// Gives up a pending or quarantined message. It frees its order key.
    async fn cancel(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error>;

    /// States that a pending, dead or quarantined message was delivered. `receipt` is the answer that its ledger entry keeps; the
    /// audit row holds it behind the note ([`resolve_note`]).
    async fn resolve(&self, id: MessageId, actor: &str, note: &str, receipt: &str) -> Result<(), Error>;

    /// Removes a dead or quarantined message with its evidence, and frees its dedupe key. The audit remembers.
    async fn discard(&self, id: MessageId, actor: &str, note: &str) -> Result<(), Error>;

    /// Removes messages of the chosen states that ended longer than [`Prune::older_than`] ago, at most [`Prune::limit`] of each
    /// state. A dead message that blocks its order key stays, and so does one of a saga that is held.
    ///
    /// With [`Done`](crate::PruneStates::Done) and [`All`](crate::PruneStates::All) it also removes, at most `limit` of each: dedupe
    /// keys whose lifetime is over, ledger entries past their retention, inbox rows of that age whose message is not in this store, and
    /// sagas that ended that long ago. [`Dead`](crate::PruneStates::Dead) removes dead letters alone.
    ///
    /// Writes one audit row in the transaction that removes, and none if nothing was removed. To remove all, call it until
    /// [`Pruned::more`] is false, and pass [`Pruned::audit`] on: the run then has one row.
    async fn prune(&self, prune: &Prune) -> Result<Pruned, Error>;

    /// One entry of the ledger, also when it is past its retention and not removed yet.
    async fn entry(&self, key: &EntryKey) -> Result<Option<EntryView>, Error>;

    /// Entries of the ledger by filter, by tenant, scope and key. A store looks at a bounded number of them for one page, and the page tells where to go on.
    async fn entries(&self, filter: &EntryFilter) -> Result<EntryPage, Error>;

    /// Sagas by filter, newest first.
    async fn sagas(&self, filter: &SagaFilter) -> Result<SagaPage, Error>;

    /// The log of a saga, oldest first; at most so many lines from above `after`.
    async fn saga_log(&self, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error>;

    /// What was done by hand and what conflicted, newest first.
    async fn audit(&self, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error>;

    /// The relays that have told of themselves, by name. One that has been silent for a day is forgotten.
    async fn relays(&self) -> Result<Vec<RelayView>, Error>;

    /// The destinations that are paused, by name.
    async fn pauses(&self) -> Result<Vec<Pause>, Error>;

    /// Every destination that a live relay sends to or that is paused.
    async fn destinations(&self) -> Result<Vec<DestinationView>, Error> {
        Ok(destinations(&self.relays().await?, &self.pauses().await?))
    }

    /// Stops all relays from sending to a destination. Pausing one that is paused changes nothing but the audit.
    async fn pause(&self, destination: &str, actor: &str, note: &str) -> Result<(), Error>;

    /// Lets them go on. Answers whether it was paused; the audit has it in either case.
    async fn resume(&self, destination: &str, actor: &str, note: &str) -> Result<bool, Error>;
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

/// Refuses an operator without a name, and cuts one that is long.
pub fn checked_actor(actor: &str) -> Result<String, Invalid> {
    if actor.is_empty() {
        return Err(Invalid::new("actor", "is empty; say who you are"));
    }
    Ok(crate::text::excerpt(actor, 512))
}

/// The note that the audit keeps of a `resolve`: the operator's note, and the receipt behind it.
pub fn resolve_note(note: &str, receipt: &str) -> String {
    match (note, receipt) {
        (note, "") => note.to_owned(),
        ("", receipt) => format!("receipt: {receipt}"),
        (note, receipt) => format!("{note}; receipt: {receipt}"),
    }
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
    /// Only dead ones of this reason.
    pub reason: Option<DeadReason>,
    /// Only those whose last attempt ended with this code.
    pub code: Option<String>,
    /// Only those enqueued at this time or later.
    pub since: Option<Timestamp>,
    /// Only those enqueued before this time.
    pub until: Option<Timestamp>,
    /// Oldest first: for work that must keep the order of keys.
    pub oldest_first: bool,
    /// Only messages beyond this one, in the order of the list: the `next` of the page before.
    pub beyond: Option<i64>,
    /// At most this many; 50 when zero, 1,000 at most.
    pub limit: u32,
}

impl Filter {
    /// How many messages a page holds. Read one more, to know whether there is another page.
    pub fn page_size(&self) -> u32 {
        if self.limit == 0 { 50 } else { self.limit.min(1000) }
    }

    /// Whether a message is among those that are asked for, wherever the list begins.
    pub fn takes(&self, message: &MessageView) -> bool {
        let is = |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|wanted| wanted == found);
        is(&self.namespace, &message.namespace)
            && is(&self.tenant, &message.tenant)
            && is(&self.topic, &message.topic)
            && self.state.is_none_or(|state| state == message.state)
            && (self.order_key.is_none() || self.order_key == message.order_key)
            && (self.reason.is_none() || self.reason == message.reason)
            && (self.code.is_none() || self.code == message.last_code)
            && self.since.is_none_or(|since| message.created_at >= since)
            && self.until.is_none_or(|until| message.created_at < until)
    }
}

/// A page of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// The messages, in the order of the list.
    pub messages: Vec<MessageView>,
    /// Where the next page begins, when there is one.
    pub next: Option<i64>,
}

impl Page {
    /// Makes a page from one row more than it holds. `looked_to` is the last message that the store looked at when it stopped
    /// before the end.
    pub fn of(mut rows: Vec<MessageView>, filter: &Filter, looked_to: Option<i64>) -> Self {
        let size = filter.page_size() as usize;
        let more = rows.len() > size;
        rows.truncate(size);
        let next = if more { rows.last().map(|m| m.seq) } else { looked_to };
        Self { messages: rows, next }
    }
}

/// How many messages one page looks at before it answers with what it has.
pub const LOOKED_AT_MOST: u32 = 100_000;

/// A number of messages. Never an estimate: `value` of them were seen.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Count {
    /// How many were counted.
    pub value: u64,
    /// Whether these are all. If not, there are at least this many: counting stopped at the cap, or at the most rows that one count
    /// looks at.
    pub exact: bool,
}

impl Count {
    /// All were counted.
    pub const fn exact(value: u64) -> Self {
        Self { value, exact: true }
    }

    /// `seen` of them were seen, and all that there are if `whole`; more than `cap` are not told apart.
    pub const fn capped(seen: u64, whole: bool, cap: u32) -> Self {
        let cap = cap as u64;
        Self {
            value: if seen > cap { cap } else { seen },
            exact: whole && seen <= cap,
        }
    }

    /// The sum; exact when both are.
    pub const fn plus(self, other: Self) -> Self {
        Self {
            value: self.value.saturating_add(other.value),
            exact: self.exact && other.exact,
        }
    }
}

/// Shown as `10000+` when there are more, or may be.
impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let more = if self.exact { "" } else { "+" };
        f.pad(&format!("{}{more}", self.value))
    }
}

/// Up to this many of a kind are counted; beyond it a number says "at least".
pub const COUNTED_AT_MOST: u32 = 10_000;

/// Refuses a cap that counts nothing, or that makes a count unbounded.
pub fn check_cap(cap: u32) -> Result<(), Invalid> {
    if cap == 0 || cap > COUNTED_AT_MOST {
        return Err(Invalid::new("cap", format!("must be between 1 and {COUNTED_AT_MOST}")));
    }
    Ok(())
}

/// How many messages there are, by where they stand.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// Free: due, or behind another of their key.
    pub ready: Count,
    /// Not due yet: delayed or backed off.
    pub scheduled: Count,
    /// In flight.
    pub leased: Count,
    /// Delivered, and not pruned yet. Of a store with more messages than twice the cap, those are counted that are done among the
    /// first of them, so the number may be "at least" below the cap.
    pub done: Count,
    /// Given up.
    pub dead: Count,
    /// Held by operators.
    pub quarantined: Count,
    /// Leases that have run out and were not taken back yet.
    pub expired: Count,
    /// Keys that a dead or quarantined message blocks.
    pub blocked_keys: Count,
    /// When the oldest of those that are free fell due; of more than a count looks at, the oldest that it saw.
    pub oldest_due: Option<Timestamp>,
    /// The store's clock.
    pub now: Option<Timestamp>,
}

impl Counts {
    /// Messages that are due or in flight.
    pub const fn backlog(&self) -> Count {
        self.ready.plus(self.leased)
    }

    /// In how many seconds the backlog is empty at this rate of deliveries, if nothing is added: exact when the backlog is, else at
    /// least. None while something is due and nothing is delivered.
    pub const fn seconds_to_empty(&self, per_minute: u64) -> Option<Count> {
        let backlog = self.backlog();
        let value = match (backlog.value, per_minute) {
            (0, _) => 0,
            (_, 0) => return None,
            (value, rate) => value.saturating_mul(60).div_ceil(rate),
        };
        Some(Count { value, ..backlog })
    }
}

/// Which lines of the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only of this message.
    pub id: Option<MessageId>,
    /// Only by this actor.
    pub actor: Option<String>,
    /// Only of this action.
    pub action: Option<String>,
    /// Only lines older than this one: the number of the last line of the page before.
    pub before: Option<i64>,
    /// At most this many; 50 when zero, 1,000 at most.
    pub limit: u32,
}

impl AuditFilter {
    /// The lines of one message.
    pub fn of(id: MessageId) -> Self {
        Self {
            id: Some(id),
            ..Self::default()
        }
    }

    /// How many lines to read.
    pub fn page_size(&self) -> u32 {
        if self.limit == 0 { 50 } else { self.limit.min(1000) }
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
    /// What it is about. Written out (`Serialize`) as it is [`shown`].
    #[serde(serialize_with = "topic_text")]
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
    /// Which of its topic's destinations it is for, when it is for one alone.
    pub destination: Option<String>,
    /// The operator's note, when it is quarantined.
    pub note: Option<String>,
    /// Why this program cannot read the whole row. The fields that it cannot read hold placeholders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl MessageView {
    /// A row that this program cannot read, with a placeholder in every field; the store fills in those that it can read. So one bad row does not hide the
    /// rest of its page.
    pub fn unreadable(id: MessageId, seq: i64, why: impl Into<String>) -> Self {
        Self {
            id,
            seq,
            tenant: String::new(),
            namespace: String::new(),
            topic: String::new(),
            order_key: None,
            dedupe_key: None,
            state: State::Quarantined,
            reason: None,
            attempts: 0,
            max_attempts: 0,
            epoch: 0,
            generation: 1,
            worker: None,
            lease_until: None,
            due_at: None,
            deliver_by: None,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            finished_at: None,
            last_code: None,
            last_error: None,
            content_type: String::new(),
            bytes: 0,
            digest: None,
            kind: Kind::Message,
            parent: None,
            destination: None,
            note: None,
            unreadable: Some(why.into()),
        }
    }
}

fn topic_text<S: serde::Serializer>(topic: &str, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&shown(topic))
}

pub(crate) fn digest_text<S: serde::Serializer>(digest: &Option<Digest>, serializer: S) -> Result<S::Ok, S::Error> {
    match digest {
        Some(digest) => serializer.collect_str(digest),
        None => serializer.serialize_none(),
    }
}

/// One line of the audit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct AuditEntry {
    /// Its number; rising.
    pub n: i64,
    /// When.
    pub at: Timestamp,
    /// Who.
    pub actor: String,
    /// What: `replay`, `quarantine`, `cancel`, `resolve`, `discard`, `prune`, `pause`, `resume` or `outbox_flush_conflict`; of a saga `saga_pause`, `saga_resume`, ...
    pub action: String,
    /// Which message, or saga.
    pub id: Option<MessageId>,
    /// Or which destination.
    pub destination: Option<String>,
    /// Why: the operator's note. Of a conflict, what was found.
    pub note: String,
    /// The counts of a prune.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pruned: Option<PruneRecord>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_beyond_the_cap_says_at_least() {
        assert_eq!(Count::capped(10, true, 10), Count::exact(10));
        let more = Count {
            value: 10,
            exact: false,
        };
        assert_eq!(Count::capped(11, true, 10), more);
        assert_eq!(Count::capped(10, false, 10), more);
        assert_eq!(
            (more.to_string(), Count::exact(7).to_string()),
            ("10+".to_owned(), "7".to_owned())
        );
        assert_eq!(Count::capped(3, false, 10).to_string(), "3+");
    }

    #[test]
    fn a_cap_is_one_to_ten_thousand() {
        check_cap(1).and(check_cap(COUNTED_AT_MOST)).unwrap();
        for cap in [0, COUNTED_AT_MOST + 1] {
            assert_eq!(check_cap(cap).unwrap_err().field, "cap");
        }
    }

    #[test]
    fn the_time_to_empty_follows_the_backlog_and_the_rate() {
        let counts = |ready, leased| Counts {
            ready,
            leased,
            ..Counts::default()
        };
        let some = counts(Count::exact(90), Count::exact(10));
        assert_eq!(some.seconds_to_empty(100), Some(Count::exact(60)));
        assert_eq!(some.seconds_to_empty(99), Some(Count::exact(61)), "rounded up");
        assert_eq!(some.seconds_to_empty(0), None);
        let many = counts(Count::capped(20_000, true, 10_000), Count::exact(0));
        assert_eq!(
            many.seconds_to_empty(600),
            Some(Count {
                value: 1000,
                exact: false
            })
        );
        let none = counts(Count::exact(0), Count::exact(0));
        assert_eq!(none.seconds_to_empty(0), Some(Count::exact(0)));
    }
}
