//! One change of a saga, decided on one version of it and written only if that still stands.

use super::{
    Answered, Ctx, Definition, Event, Happened, Live, Own, Owner, Refused, Snapshot, Verb, Withdrawal, decide,
    view::{SagaRow, state_words},
};
use crate::{
    AttemptOutcome, Error, Invalid, Lease, Message, Outcome, Settlement, Timestamp,
    admin::checked_actor,
    ledger::Answer,
    saga::{HeldReason, Role, SagaState, Ticket},
};
use serde_json::Value;
use std::{borrow::Cow, time::Duration};

/// The largest output of a step that is kept.
pub const MOST_OUTPUT: usize = 64 << 10;

/// A change of a saga.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Whose it is.
    pub owner: Owner,
    /// What it is called.
    pub name: String,
    /// Where it stood before.
    pub was: (SagaState, Option<HeldReason>),
    /// The revision on which it was decided.
    pub expected: u64,
    /// When it was decided, by the store's clock. The `deliver_in` of its messages counts from here, not from when they are written.
    pub decided_at: Timestamp,
    /// Where it stands then.
    pub snapshot: Snapshot,
    /// Messages to enqueue with it.
    pub sends: Vec<Message>,
    /// Messages to take back with it.
    pub withdraw: Vec<Withdrawal>,
    /// What to write down.
    pub log: Vec<Happened>,
    /// Who did it.
    pub actor: String,
    /// For the audit: what an operator did, and why.
    pub audit: Option<(&'static str, String)>,
}

impl Change {
    /// The words of its state, as a store keeps them.
    pub fn state_words(&self) -> (&'static str, Option<&'static str>) {
        state_words(&self.snapshot)
    }

    /// The revision that it makes.
    pub const fn revision(&self) -> u64 {
        self.expected + 1
    }

    /// When one of its messages lapses, by the store's clock.
    pub fn deliver_by(&self, message: &Message) -> Option<Timestamp> {
        message.deliver_in.map(|within| self.decided_at.plus(within))
    }

    /// Its messages as they are enqueued at `now`: their `deliver_in` counts from then. A change is written later than it was decided, and a deadline
    /// does not move by that.
    pub fn sends_at(&self, now: Timestamp) -> Cow<'_, [Message]> {
        if self.sends.iter().all(|message| message.deliver_in.is_none()) {
            return Cow::Borrowed(&self.sends);
        }
        let left = |message: &Message| Message {
            deliver_in: self.deliver_by(message).map(|at| at.since(now)),
            ..message.clone()
        };
        self.sends.iter().map(left).collect()
    }
}

/// What ended a lease on a message of a saga.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// An answer, or that there was none.
    Sent(Outcome),
    /// Its time ran out, and nobody reported.
    Expired,
    /// No send began. It is not to be due before this has passed.
    Released(Duration),
    /// No send began: its deliver-by, the deadline of its saga, had passed.
    Lapsed,
}

/// A saga as it was found.
#[derive(Clone, Debug, PartialEq)]
pub struct Loaded {
    /// What is listed of it.
    pub row: SagaRow,
    /// What it does.
    pub definition: Definition,
    /// Where it stands.
    pub snapshot: Snapshot,
    /// Where its messages stand.
    pub live: Live,
    /// The store's clock.
    pub now: Timestamp,
    /// The largest payload that the store takes.
    pub payload_bytes: usize,
}

/// A saga, if there is one; or that it cannot be read.
pub type Found = Result<Option<Loaded>, Error>;

impl Loaded {
    /// A saga as a store keeps it. Refuses what is not whole: nothing is decided on that.
    pub fn of(
        row: SagaRow,
        (definition, snapshot): (&str, &str),
        live: impl FnOnce(&Snapshot) -> Result<Live, Error>,
        now: Timestamp,
        payload_bytes: usize,
    ) -> Result<Self, Error> {
        let broken = |why: String| Error::Internal(format!("saga {} cannot be read: {why}", row.id).into());
        let definition = Definition::parse(definition).map_err(|e| broken(e.to_string()))?;
        let snapshot: Snapshot = serde_json::from_str(snapshot).map_err(|e| broken(e.to_string()))?;
        if snapshot.steps.len() != definition.steps().len() {
            return Err(broken("it has other steps than its definition".to_owned()));
        }
        Ok(Self {
            live: live(&snapshot)?,
            row,
            definition,
            snapshot,
            now,
            payload_bytes,
        })
    }

    /// Whose it is.
    pub fn owner(&self) -> Owner {
        Owner {
            id: self.row.id,
            namespace: self.row.namespace.clone(),
            tenant: self.row.tenant.clone(),
        }
    }

    /// The end of a lease on one of its messages, and what follows from it. `roll` is the chance for the jitter.
    pub fn settle(&self, lease: &Lease, report: &Report, actor: &str, roll: f64) -> Settlement {
        let role = self.role(lease);
        let ended = |answer| Event::Ended {
            message: lease.id,
            attempt: lease.standing.attempts,
            answer,
        };
        let event = match report {
            Report::Sent(outcome) => ended(Answered::of(outcome, role)),
            Report::Expired => ended(Answered::Unknown {
                code: "lease_expired".to_owned(),
                error: "nobody reported before the lease ran out".to_owned(),
            }),
            Report::Released(after) => Event::Released {
                message: lease.id,
                attempts: lease.standing.attempts.saturating_sub(1),
                after: *after,
            },
            Report::Lapsed => Event::Lapsed {
                message: lease.id,
                attempts: lease.standing.attempts.saturating_sub(1),
            },
        };
        // Only what an operator asks for is ever refused.
        match self.decide(&event, actor, roll) {
            Ok((own, change)) => Settlement::of_saga(lease, report, own.unwrap_or(Own::Concluded), Some(change)),
            Err(Refused(_)) => Settlement::of_saga(lease, report, Own::Concluded, None),
        }
    }

    /// An answer that came after its lease was lost.
    pub fn late(&self, ticket: &Ticket, outcome: &Outcome, actor: &str) -> Option<Change> {
        let event = Event::Late {
            step: self.definition.find(&ticket.step)?,
            run: ticket.run,
            role: ticket.role,
            answer: Answered::of(outcome, ticket.role),
        };
        Some(self.decide(&event, actor, 0.5).ok()?.1)
    }

    /// What an operator asks for.
    pub fn ask(&self, verb: &Verb, actor: &str, note: &str) -> Result<Change, Error> {
        let actor = checked_actor(actor)?;
        if let Verb::Complete { output, .. } = verb {
            if !fits(output) {
                return Err(Invalid::new("output", format!("is nested more than {MOST_DEPTH} deep")).into());
            }
            let size = output.to_string().len();
            if size > MOST_OUTPUT {
                let problem = format!("has {size} bytes, at most {MOST_OUTPUT} are kept");
                return Err(Invalid::new("output", problem).into());
            }
        }
        let event = Event::Asked {
            verb: verb.clone(),
            actor: actor.clone(),
            note: note.to_owned(),
        };
        let (_, change) = self
            .decide(&event, &actor, 0.5)
            .map_err(|Refused(why)| Error::SagaRefused {
                id: self.row.id,
                verb: verb.as_str(),
                why,
            })?;
        let about = match verb.step() {
            Some(step) => format!("{step}: {note}"),
            None => note.to_owned(),
        };
        Ok(Change {
            audit: Some((verb.action(), crate::text::error_text(&about))),
            ..change
        })
    }

    /// The saga as it would stand after a change that is not written. Its row stays as it is.
    pub fn changed(self, change: Change) -> Self {
        Self {
            snapshot: change.snapshot,
            ..self
        }
    }

    fn decide(&self, event: &Event, actor: &str, roll: f64) -> Result<(Option<Own>, Change), Refused> {
        let ctx = Ctx {
            now: self.now,
            began: self.row.created_at,
            roll,
            payload_bytes: self.payload_bytes,
        };
        let decision = decide(&self.definition, self.row.id, &self.snapshot, &self.live, event, ctx)?;
        let owner = self.owner();
        let sends = decision.sends.into_iter();
        let change = Change {
            sends: sends
                .map(|errand| errand.message(&self.definition, &owner, self.now))
                .collect(),
            owner,
            name: self.row.name.clone(),
            was: self.snapshot.state(),
            expected: self.row.revision,
            decided_at: self.now,
            snapshot: decision.snapshot,
            withdraw: decision.withdraw,
            log: decision.log,
            actor: crate::text::excerpt(actor, 512),
            audit: None,
        };
        Ok((decision.own, change))
    }

    /// What a message was sent for.
    fn role(&self, lease: &Lease) -> Role {
        self.snapshot.carried(lease.id).map_or(Role::Do, |(_, role)| role)
    }
}

impl Answered {
    /// What a transport found out, as a saga takes it.
    pub fn of(outcome: &Outcome, role: Role) -> Self {
        let (code, error) = match outcome {
            Outcome::Delivered { receipt, answer } => {
                return Self::delivered(receipt.as_deref(), answer.as_deref(), role);
            }
            Outcome::Duplicate { receipt } => return Self::delivered(receipt.as_deref(), None, role),
            Outcome::Pending { .. } => {
                let error = "the destination wants to answer later, and that comes with a later version".to_owned();
                return Self::Unknown {
                    code: "pending".to_owned(),
                    error,
                };
            }
            Outcome::Retry { code, error, .. } | Outcome::Reject { code, error } | Outcome::Unknown { code, error } => {
                (code.clone(), error.clone())
            }
        };
        match outcome {
            Outcome::Retry { after, .. } => Self::Retry {
                after: *after,
                code,
                error,
            },
            Outcome::Reject { .. } if code == Outcome::NOT_ALLOWED => Self::NoHandler { code, error },
            Outcome::Reject { .. } => Self::Rejected { code, error },
            _ => Self::Unknown { code, error },
        }
    }

    fn delivered(receipt: Option<&str>, answer: Option<&Answer>, role: Role) -> Self {
        match answer {
            Some(answer) if role == Role::Verify && answer.status == Some(204) => Self::NotDone,
            Some(answer) if answer.cut => Self::Done(None),
            Some(answer) => Self::Done(value(&answer.body)),
            None => Self::Done(receipt.map_or(Some(Value::Null), |text| value(text.as_bytes()))),
        }
    }
}

/// What a body says: JSON if it is that, else text; none if that cannot be kept.
fn value(body: &[u8]) -> Option<Value> {
    if body.is_empty() {
        return Some(Value::Null);
    }
    if body.len() > MOST_OUTPUT {
        return None;
    }
    match serde_json::from_slice(body) {
        Ok(value) => Some(value).filter(fits),
        // It is JSON, as far as anybody went.
        Err(error) if error.to_string().contains("recursion limit") => None,
        Err(_) => Some(Value::String(String::from_utf8_lossy(body).into_owned())),
    }
}

/// How deep a value may be nested that is kept. What is deeper could be written, and never read again.
pub const MOST_DEPTH: usize = 64;

/// Whether a value can be kept.
pub fn fits(value: &Value) -> bool {
    fn shallow(value: &Value, left: usize) -> bool {
        match value {
            Value::Array(values) => left > 0 && values.iter().all(|value| shallow(value, left - 1)),
            Value::Object(values) => left > 0 && values.values().all(|value| shallow(value, left - 1)),
            _ => true,
        }
    }
    shallow(value, MOST_DEPTH)
}

impl Report {
    /// What is written down of an attempt that ended without an acknowledgement.
    pub(crate) const fn evidence(&self) -> AttemptOutcome {
        match self {
            Self::Sent(Outcome::Delivered { .. }) => AttemptOutcome::Delivered,
            Self::Sent(Outcome::Duplicate { .. }) => AttemptOutcome::Duplicate,
            Self::Sent(Outcome::Reject { .. }) => AttemptOutcome::Rejected,
            Self::Sent(Outcome::Retry { .. } | Outcome::Unknown { .. } | Outcome::Pending { .. }) => {
                AttemptOutcome::Retry
            }
            Self::Expired => AttemptOutcome::LeaseExpired,
            // Nothing was sent, and nothing will be.
            Self::Released(_) | Self::Lapsed => AttemptOutcome::Lapsed,
        }
    }
}
