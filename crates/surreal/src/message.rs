//! A message as it stands: one record, and the lines that lead to it.

use posthouse_core::{
    DeadReason, Digest, Error, Kind, Lease, LeaseToken, Limits, Message, MessageId, MessageView, OnDead, Standing,
    State, Step, Timestamp,
    headers::{of_message, take_binding, take_ticket},
    lease::saga_of,
};
use std::time::Duration;
use surrealdb::types::{Bytes, SurrealValue, Value};
use uuid::Uuid;

use crate::{
    error::internal,
    records::{Name, name},
};

pub(crate) const MESSAGE: &str = "posthouse_message";
pub(crate) const BODY: &str = "posthouse_body";
pub(crate) const ID: &str = "posthouse_id";
pub(crate) const READY: &str = "posthouse_ready";
pub(crate) const SCHED: &str = "posthouse_sched";
pub(crate) const SCHED_TENANT: &str = "posthouse_sched_tenant";
pub(crate) const KEYED: &str = "posthouse_keyed";
pub(crate) const HEAD: &str = "posthouse_head";
pub(crate) const LEASED: &str = "posthouse_leased";
pub(crate) const RUN: &str = "posthouse_run";
pub(crate) const DEAD: &str = "posthouse_dead";
pub(crate) const ENDED: &str = "posthouse_ended";

/// A namespace and a tenant: those that take turns in a claim.
pub(crate) type Lane = (String, String);

/// All that is known of a message but its content.
#[derive(Clone, Debug, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct Record {
    pub seq: i64,
    pub uuid: Uuid,
    pub namespace: String,
    pub tenant: String,
    pub topic: String,
    pub order_key: Option<String>,
    pub dedupe_key: Option<String>,
    pub dedupe_for: Option<i64>,
    pub content_type: String,
    pub kind: String,
    pub parent: Option<Uuid>,
    pub destination: Option<String>,
    pub digest: Bytes,
    pub bytes: i64,
    /// How large its headers are, as they are kept. Records of earlier versions do not say.
    pub header_bytes: Option<i64>,
    pub bound: bool,
    pub relaxed: bool,
    pub created_at: i64,
    /// The deliver-by that it was enqueued with, for a replay.
    pub first_deliver_by: Option<i64>,

    pub state: String,
    pub reason: Option<String>,
    pub attempts: i64,
    pub max_attempts: i64,
    pub epoch: i64,
    pub generation: i64,
    pub releases: i64,
    pub on_dead: String,
    /// Its place in the line.
    pub pos: i64,
    pub due_at: i64,
    pub deliver_by: Option<i64>,
    /// When to look at it, while it waits for a time.
    pub wake_at: Option<i64>,
    pub updated_at: i64,
    pub finished_at: Option<i64>,
    pub token: Option<Uuid>,
    pub worker: Option<String>,
    pub granted_at: Option<i64>,
    /// The token of its last release, while nothing else has happened since.
    pub released_by: Option<Uuid>,
    /// An operator cancelled it: it let its key go, and does not hold it again until it is replayed.
    pub freed: bool,
    /// An operator declared it delivered.
    pub resolved: bool,
    pub note: Option<String>,
    pub last_code: Option<String>,
    pub last_error: Option<String>,
}

/// What was enqueued.
#[derive(Clone, Debug, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct Body {
    pub headers: Option<String>,
    pub payload: Bytes,
}

/// A message in a line: enough to choose by.
#[derive(Clone, Debug, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct InLine {
    pub seq: i64,
    pub topic: String,
    pub key: Option<String>,
    pub bytes: i64,
    pub due_at: i64,
    pub deliver_by: Option<i64>,
    pub blocks: bool,
}

/// The deadline of a lease.
#[derive(Clone, Debug, PartialEq, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
pub(crate) struct Deadline {
    pub token: Uuid,
    pub until: i64,
}

/// Microseconds, as they are kept.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX)
}

/// A length, as it is kept.
pub(crate) fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

/// This much later.
pub(crate) fn later(now: i64, by: Duration) -> i64 {
    Timestamp::from_micros(now).plus(by).as_micros()
}

pub(crate) fn digest_of(bytes: &Bytes) -> Result<Digest, Error> {
    let bytes: [u8; 32] = bytes
        .as_ref()
        .try_into()
        .map_err(|_| internal("a digest has another size"))?;
    Ok(Digest(bytes))
}

/// The most that headers are taken for where it is not known.
const MOST_HEADERS: usize = Limits::HEADERS * (Limits::NAME_BYTES + Limits::HEADER_BYTES);

fn small(number: i64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

impl Record {
    /// A message that is enqueued now.
    pub fn new(message: &Message, id: MessageId, seq: i64, rules: &crate::settings::Rules) -> (Self, Body) {
        let now = rules.now;
        let deliver_by = message.deliver_in.map(|within| later(now, within));
        let standing = Standing::new(message.max_attempts.unwrap_or(rules.max_attempts));
        let headers = of_message(message);
        let mut record = Self {
            seq,
            uuid: id.0,
            namespace: message.namespace.clone(),
            tenant: message.tenant.clone(),
            topic: message.topic.clone(),
            order_key: message.order_key.clone(),
            dedupe_key: message.dedupe_key.clone(),
            dedupe_for: rules.dedupe_for,
            content_type: message.content_type.clone(),
            kind: message.kind.as_str().to_owned(),
            parent: message.parent.map(|parent| parent.0),
            destination: message.destination.clone(),
            digest: Bytes::from(message.digest().0.to_vec()),
            bytes: length(message.payload.len()),
            header_bytes: Some(length(headers.as_ref().map_or(0, String::len))),
            bound: message.ledger.is_some(),
            relaxed: message.order == posthouse_core::Order::Relaxed,
            created_at: now,
            first_deliver_by: deliver_by,
            state: String::new(),
            reason: None,
            attempts: 0,
            max_attempts: 0,
            epoch: 0,
            generation: 0,
            releases: 0,
            on_dead: message.on_dead.as_str().to_owned(),
            pos: seq,
            due_at: later(now, message.delay),
            // A step of a saga does not lapse in the store: a claim grants it, and its saga decides.
            deliver_by: deliver_by.filter(|_| message.kind != Kind::Step),
            wake_at: None,
            updated_at: now,
            finished_at: None,
            token: None,
            worker: None,
            granted_at: None,
            released_by: None,
            freed: false,
            resolved: false,
            note: None,
            last_code: None,
            last_error: None,
        };
        record.stand(standing);
        record.wait(now);
        let body = Body {
            headers,
            payload: Bytes::from(message.payload.clone()),
        };
        (record, body)
    }

    /// From when it is looked at, while it is not due.
    pub fn wait(&mut self, now: i64) {
        let first = self.deliver_by.map_or(self.due_at, |at| at.min(self.due_at));
        self.wake_at = (self.due_at > now).then_some(first);
    }

    /// About how many bytes its content has on its way: more than [`bytes`](Self::bytes), which is what claims are bounded by.
    pub fn content_size(&self) -> usize {
        let known = |bytes: i64| usize::try_from(bytes).unwrap_or(0);
        known(self.bytes) + self.header_bytes.map_or(MOST_HEADERS, known)
    }

    pub fn lane(&self) -> Lane {
        (self.namespace.clone(), self.tenant.clone())
    }

    pub fn key(&self) -> Option<(Lane, String)> {
        Some((self.lane(), self.order_key.clone()?))
    }

    pub fn state(&self) -> Result<State, Error> {
        self.state.parse().map_err(Error::Invalid)
    }

    pub fn is(&self, state: State) -> bool {
        self.state == state.as_str()
    }

    pub fn reason(&self) -> Option<DeadReason> {
        self.reason.as_ref().and_then(|word| word.parse().ok())
    }

    pub fn standing(&self) -> Result<Standing, Error> {
        Ok(Standing {
            state: self.state()?,
            attempts: small(self.attempts),
            max_attempts: small(self.max_attempts),
            generation: small(self.generation),
            epoch: self.epoch.unsigned_abs(),
            releases: small(self.releases),
        })
    }

    fn stand(&mut self, standing: Standing) {
        standing.state.as_str().clone_into(&mut self.state);
        self.attempts = standing.attempts.into();
        self.max_attempts = standing.max_attempts.into();
        self.generation = standing.generation.into();
        self.epoch = i64::try_from(standing.epoch).unwrap_or(i64::MAX);
        self.releases = standing.releases.into();
    }

    /// Stands where the machine says. Whoever calls it adds what only he knows: the lease, the note, a place in the line.
    pub fn apply(&mut self, step: &Step, now: i64) {
        self.stand(step.standing);
        self.reason = step.reason.map(|reason| reason.as_str().to_owned());
        (self.token, self.worker, self.granted_at) = (None, None, None);
        (self.released_by, self.note, self.wake_at) = (None, None, None);
        self.updated_at = now;
        self.finished_at = step.standing.state.is_terminal().then_some(now);
        if step.standing.state == State::Pending {
            self.due_at = later(now, step.due_in);
            self.wait(now);
        }
    }

    /// Whether it ended in a way that holds the later ones of its key.
    pub fn blocks(&self) -> bool {
        let ended = match self.state.as_str() {
            "dead" => self.reason() != Some(DeadReason::Cancelled),
            "quarantined" => true,
            _ => false,
        };
        ended && !self.freed && self.order_key.is_some() && self.blocks_when_dead()
    }

    pub fn blocks_when_dead(&self) -> bool {
        self.on_dead == OnDead::Block.as_str()
    }

    /// When it must not be sent any more. The live deliver-by of a step of a saga is none, because the store does not act on it.
    pub fn lapses_at(&self) -> Option<i64> {
        match self.kind == Kind::Step.as_str() {
            true => self.first_deliver_by,
            false => self.deliver_by,
        }
    }

    pub fn lapsed(&self, now: i64) -> bool {
        self.deliver_by.is_some_and(|at| at <= now)
    }

    pub fn lease(&self, token: LeaseToken) -> Result<Lease, Error> {
        let kind = self.kind.parse().map_err(Error::Invalid)?;
        Ok(Lease {
            id: MessageId(self.uuid),
            seq: self.seq,
            token,
            standing: self.standing()?,
            on_dead: self.on_dead.parse().map_err(Error::Invalid)?,
            bound: self.bound,
            saga: saga_of(kind, self.parent.map(MessageId)),
        })
    }

    /// The lines that lead to it, where it stands now. That it may be the first of its key is another matter.
    pub fn lines(&self) -> Vec<(Name, Value)> {
        let in_line = InLine {
            seq: self.seq,
            topic: self.topic.clone(),
            key: self.order_key.clone(),
            bytes: self.bytes,
            due_at: self.due_at,
            deliver_by: self.deliver_by,
            blocks: self.blocks_when_dead(),
        };
        let (namespace, tenant) = (&self.namespace, &self.tenant);
        let mut names = Vec::new();
        match self.state.as_str() {
            "pending" => {
                match (&self.order_key, self.wake_at) {
                    (Some(key), _) => names.push(name!(KEYED, namespace, tenant, key, self.pos)),
                    (None, None) => names.push(name!(READY, namespace, tenant, self.pos)),
                    (None, Some(_)) => {}
                }
                if let Some(at) = self.wake_at {
                    names.push(name!(SCHED, namespace, at, self.seq));
                    names.push(name!(SCHED_TENANT, tenant, namespace, at, self.seq));
                }
            }
            "dead" | "quarantined" => names.push(name!(DEAD, self.seq)),
            "leased" => names.extend(
                self.order_key
                    .as_ref()
                    .map(|key| name!(RUN, namespace, tenant, key, self.pos)),
            ),
            _ => {}
        }
        if let Some(at) = self.finished_at.filter(|_| self.state != "quarantined") {
            names.push(name!(ENDED, &self.state, at, self.seq));
        }
        let content = in_line.into_value();
        names.into_iter().map(|name| (name, content.clone())).collect()
    }

    /// As operators see it. `until` is the deadline of its lease. A record that cannot be read is marked, so that it does not hide the rest of its page.
    pub fn view(&self, until: Option<i64>) -> MessageView {
        let why = match self.whole_view(until) {
            Ok(view) => return view,
            Err(Error::Internal(why)) => why.to_string(),
            Err(why) => why.to_string(),
        };
        let view = MessageView::unreadable(MessageId(self.uuid), self.seq, why);
        MessageView {
            tenant: self.tenant.clone(),
            namespace: self.namespace.clone(),
            topic: self.topic.clone(),
            content_type: self.content_type.clone(),
            state: self.state().unwrap_or(view.state),
            kind: self.kind.parse().unwrap_or(view.kind),
            created_at: Timestamp::from_micros(self.created_at),
            updated_at: Timestamp::from_micros(self.updated_at),
            ..view
        }
    }

    fn whole_view(&self, until: Option<i64>) -> Result<MessageView, Error> {
        let time = Timestamp::from_micros;
        let (standing, state) = (self.standing()?, self.state()?);
        let deliver_by = match state.is_terminal() {
            true => self.first_deliver_by,
            false => self.lapses_at(),
        };
        Ok(MessageView {
            id: MessageId(self.uuid),
            seq: self.seq,
            tenant: self.tenant.clone(),
            namespace: self.namespace.clone(),
            topic: self.topic.clone(),
            order_key: self.order_key.clone(),
            dedupe_key: self.dedupe_key.clone(),
            state,
            reason: self.reason(),
            attempts: standing.attempts,
            max_attempts: standing.max_attempts,
            epoch: standing.epoch,
            generation: standing.generation,
            worker: self.worker.clone(),
            lease_until: until.filter(|_| state == State::Leased).map(time),
            due_at: (state == State::Pending).then(|| time(self.due_at)),
            deliver_by: deliver_by.map(time),
            created_at: time(self.created_at),
            updated_at: time(self.updated_at),
            finished_at: self.finished_at.map(time),
            last_code: self.last_code.clone(),
            last_error: self.last_error.clone(),
            content_type: self.content_type.clone(),
            bytes: self.bytes.unsigned_abs(),
            digest: Some(digest_of(&self.digest)?),
            kind: self.kind.parse().map_err(Error::Invalid)?,
            parent: self.parent.map(MessageId),
            destination: self.destination.clone(),
            note: self.note.clone(),
            unreadable: None,
        })
    }

    /// What a transport is given.
    pub fn delivery(&self, body: Body) -> Result<posthouse_core::Delivery, Error> {
        let mut headers = match &body.headers {
            Some(text) => serde_json::from_str(text).map_err(internal)?,
            None => posthouse_core::Headers::default(),
        };
        take_binding(&mut headers);
        let ticket = take_ticket(&mut headers);
        let standing = self.standing()?;
        Ok(posthouse_core::Delivery {
            id: MessageId(self.uuid),
            epoch: standing.epoch,
            generation: standing.generation,
            attempt: standing.attempts,
            tenant: self.tenant.clone(),
            namespace: self.namespace.clone(),
            topic: self.topic.clone(),
            order_key: self.order_key.clone(),
            content_type: self.content_type.clone(),
            payload: body.payload.as_ref().to_vec(),
            headers,
            kind: self.kind.parse().map_err(Error::Invalid)?,
            parent: self.parent.map(MessageId),
            destination: self.destination.clone(),
            ticket,
        })
    }
}
