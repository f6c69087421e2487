//! The messages of a saga: what is sent for a step, and under which key.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::{fmt, str::FromStr, time::Duration};
use uuid::Uuid;

use super::{Definition, Role, Snapshot, definition::Input, definition::Source};
use crate::{Digest, Invalid, Kind, Message, MessageId, Order, SagaId, Timestamp};

/// The topic of the messages that say that a time is over. They are sent nowhere.
pub const TIMER_TOPIC: &str = "posthouse.saga.timer";

/// A message to send for a saga.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Errand {
    /// Its identity.
    pub message: MessageId,
    /// For which step, and which run of it.
    pub step: Option<(usize, u32)>,
    /// What for.
    pub role: Role,
    /// Not before this has passed.
    pub delay: Duration,
    /// Not sent after this time, by the store's clock: the deadline of the saga, if this would be the first send of a step up to the pivot.
    pub deliver_by: Option<Timestamp>,
    /// Attempts that are left.
    pub attempts: u32,
    /// The body.
    pub payload: Vec<u8>,
}

/// What a message of a saga is sent for. It is kept with its headers, and never sent as such.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ticket {
    /// What its destination knows it by: the same over attempts, messages and relays.
    pub key: String,
    /// The name of the saga.
    pub saga: String,
    /// The step.
    pub step: String,
    /// Which run of it.
    pub run: u32,
    /// What for.
    pub role: Role,
    /// How long one attempt may take.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

impl Ticket {
    /// How long one attempt may take.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout_ms.map(Duration::from_millis)
    }
}

impl fmt::Display for Ticket {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", json!(self))
    }
}

impl FromStr for Ticket {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        serde_json::from_str(text).map_err(|e| Invalid::new("step", e.to_string()))
    }
}

/// Whose saga it is: its messages are too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// The saga.
    pub id: SagaId,
    /// Which application owns it.
    pub namespace: String,
    /// Whose it is.
    pub tenant: String,
}

impl Errand {
    /// The message that says that the time is over.
    pub(super) fn timer(message: MessageId, delay: Duration) -> Self {
        Self {
            message,
            step: None,
            role: Role::Timer,
            delay,
            deliver_by: None,
            attempts: crate::Limits::ATTEMPTS,
            payload: Vec::new(),
        }
    }

    /// As it is enqueued, when it was decided on at this time.
    pub fn message(self, definition: &Definition, owner: &Owner, decided_at: Timestamp) -> Message {
        let step = self.step.map(|(at, run)| (&definition.steps()[at], run));
        let topic = match (step, self.role) {
            (Some((step, _)), Role::Do) => step.action.clone(),
            (Some((step, _)), Role::Verify) => step.verify.clone().unwrap_or_default(),
            (Some((step, _)), Role::Undo) => step.compensate.clone().unwrap_or_default(),
            (None, _) | (_, Role::Timer) => TIMER_TOPIC.to_owned(),
        };
        let ticket = step.map(|(step, run)| Ticket {
            key: key(owner.id, &step.name, run, self.role),
            saga: definition.name().to_owned(),
            step: step.name.clone(),
            run,
            role: self.role,
            timeout_ms: step
                .timeout
                .map(|time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX)),
        });
        let kind = match self.role {
            Role::Do | Role::Verify => Kind::Step,
            Role::Undo => Kind::Compensation,
            Role::Timer => Kind::Timer,
        };
        Message {
            id: Some(self.message),
            delay: self.delay,
            deliver_in: self.deliver_by.map(|at| at.since(decided_at)),
            max_attempts: Some(self.attempts),
            order: Order::Relaxed,
            kind,
            parent: Some(MessageId(owner.id.0)),
            ticket,
            ..Message::bytes(topic, "application/json", self.payload)
                .tenant(&owner.tenant)
                .namespace(&owner.namespace)
        }
    }
}

/// What a participant knows a step by, or its compensation.
pub fn key(saga: SagaId, step: &str, run: u32, role: Role) -> String {
    format!("{saga}:{step}#{run}:{role}")
}

/// The body of a message for a step: none if something that belongs into it is not there.
pub(super) fn payload(
    definition: &Definition,
    id: SagaId,
    snapshot: &Snapshot,
    at: usize,
    role: Role,
    most: usize,
) -> Option<Vec<u8>> {
    let (def, step) = (&definition.steps()[at], &snapshot.steps[at]);
    let input = input(&def.input, snapshot);
    let forward_key = key(id, &def.name, step.run, Role::Do);
    // What is not known is left out: null may be an answer.
    let told = |input: Option<&Value>, output: Option<&Value>| {
        let reason = snapshot.cause.as_ref().filter(|_| role == Role::Undo);
        let mut body = json!({ "forward_key": forward_key });
        let given = [
            ("input", input.cloned()),
            ("output", output.cloned()),
            ("reason", reason.map(|text| json!(text))),
        ];
        for (name, value) in given.into_iter().filter_map(|(name, value)| Some((name, value?))) {
            body[name] = value;
        }
        serde_json::to_vec(&body).ok()
    };
    let output = step
        .output
        .as_ref()
        .filter(|_| role == Role::Undo && step.may_have_happened());
    // It is known by its key: better without the input, or without the answer, than not at all.
    match role {
        Role::Do => serde_json::to_vec(&input?).ok(),
        Role::Timer => Some(Vec::new()),
        Role::Verify | Role::Undo => told(input.as_ref(), output)
            .filter(|body| body.len() <= most)
            .or_else(|| told(None, output).filter(|body| body.len() <= most))
            .or_else(|| told(None, None)),
    }
}

fn input(input: &Input, snapshot: &Snapshot) -> Option<Value> {
    let value = |source: &Source| match source {
        Source::Saga => Some(snapshot.input.clone()),
        Source::Step(at) => snapshot.steps[*at].output.clone(),
    };
    match input {
        Input::One(source) => value(source),
        Input::Many(sources) => sources.iter().map(value).collect::<Option<Vec<_>>>().map(Value::Array),
    }
}

/// The identity of the nth message of a saga: a UUID of version 7 whose rest is a hash, so that a decision needs no chance.
pub(super) fn message_id(saga: SagaId, serial: u32, now: Timestamp) -> MessageId {
    let hash = Digest::of_fields(&[saga.0.as_bytes(), &serial.to_be_bytes()]);
    let millis = u64::try_from(now.as_micros() / 1000).unwrap_or(0);
    let mut rest = [0; 10];
    rest.copy_from_slice(&hash.0[..10]);
    MessageId(uuid::Builder::from_unix_timestamp_millis(millis, &rest).into_uuid())
}

/// When a saga was begun, by its identity.
pub(super) fn time_of(id: SagaId) -> Timestamp {
    let [a, b, c, d, e, f, ..] = *id.0.as_bytes();
    let millis = i64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    match Uuid::get_version_num(&id.0) {
        7 => Timestamp::from_micros(millis.saturating_mul(1000)),
        _ => Timestamp::from_micros(0),
    }
}
