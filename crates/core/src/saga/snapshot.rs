//! Where a saga stands: all that [`decide`](fn@super::decide) needs to know of it, kept as one versioned document.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Definition, Live, Standing};
use crate::{MessageId, message::word_enum};

word_enum!(
    /// Where a saga stands.
    SagaState, "state" {
        /// It goes forward.
        Running = "running",
        /// It is being undone.
        Compensating = "compensating",
        /// It waits for a person; the reason is kept.
        Held = "held",
        /// All steps are done.
        Completed = "completed",
        /// All that was done is undone.
        Compensated = "compensated",
        /// A person has given it up.
        Abandoned = "abandoned",
    }
);

impl SagaState {
    /// Whether nothing happens to it any more by itself.
    pub const fn is_over(self) -> bool {
        matches!(self, Self::Completed | Self::Compensated | Self::Abandoned)
    }
}

word_enum!(
    /// Why a saga waits for a person.
    HeldReason, "reason" {
        /// Nobody knows whether a step was done, and it may not be sent again.
        Unknown = "unknown",
        /// A step at or after the pivot failed too often.
        RetriesExhausted = "retries_exhausted",
        /// A step after the pivot was refused.
        Rejected = "rejected",
        /// A compensation failed for good.
        CompensationFailed = "compensation_failed",
        /// A person holds it.
        Operator = "operator",
        /// Nobody may, or can, do a step.
        NoHandler = "no_handler",
        /// A step needs an output that is too large to be kept, or was cut off.
        Output = "output",
    }
);

word_enum!(
    /// Where a step stands.
    StepState, "step" {
        /// Others come before it.
        Waiting = "waiting",
        /// It is about to be sent.
        Ready = "ready",
        /// Somebody is at it.
        Running = "running",
        /// It was done.
        Done = "done",
        /// It was not done, and will not be.
        Rejected = "rejected",
        /// It may have been done.
        Uncertain = "uncertain",
        /// It was left out, and never sent.
        Skipped = "skipped",
        /// It was sent, it was not done, and it is not sent again.
        NotDone = "not_done",
    }
);

word_enum!(
    /// Where the compensation of a step stands.
    UndoState, "compensation" {
        /// There is none.
        None = "none",
        /// It would be sent if the saga were undone; or is about to be.
        Ready = "ready",
        /// Somebody is at it.
        Running = "running",
        /// It was done.
        Compensated = "compensated",
        /// There is nothing to undo.
        NotNeeded = "not_needed",
        /// It failed for good, and waits for a person.
        Held = "held",
    }
);

word_enum!(
    /// What a message of a saga is sent for.
    Role, "role" {
        /// To do a step.
        Do = "do",
        /// To ask whether it was done.
        Verify = "verify",
        /// To undo it.
        Undo = "undo",
        /// To say that the time is over.
        Timer = "timer",
    }
);

/// Which way it goes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// To do all steps.
    Forward,
    /// To undo them.
    Backward,
}

/// How it ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// All steps are done.
    Completed,
    /// All that was done is undone.
    Compensated,
    /// A person has given it up.
    Abandoned,
}

/// How far a step came. Whether somebody is at it just now is known to the store alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Progress {
    /// Others come before it.
    Waiting,
    /// It is sent, or about to be.
    Ready,
    /// It was done.
    Done,
    /// It was not done, and will not be.
    Rejected,
    /// It may have been done.
    Uncertain,
    /// It was left out, and never sent; or an operator skipped it.
    Skipped,
    /// It was sent, it was not done, and it is not sent again.
    NotDone,
}

/// How far its compensation came.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Undo {
    /// Nothing was undone.
    Open,
    /// It was undone.
    Compensated,
    /// Undoing it failed for good.
    Held,
}

/// The message that is under way for a step.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Carrier {
    /// The message.
    pub message: MessageId,
    /// What it is sent for.
    pub role: Role,
}

/// What was answered too late.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Late {
    /// What was asked.
    pub role: Role,
    /// What was answered.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Value>,
}

/// Where a step stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct StepSnapshot {
    /// How far it came.
    pub progress: Progress,
    /// One, and one more whenever it is done again after it was undone: part of its key.
    pub run: u32,
    /// An attempt of this run may have done it. Only that it is done, or was asked for and is not, takes this away.
    pub tainted: bool,
    /// It was once not known whether it was done, in this run. That it was not, when somebody asked, does not mean that it will not be: what is on its way may
    /// arrive yet. So if the saga goes back it is undone all the same.
    #[serde(default)]
    pub doubted: bool,
    /// A person has left it out.
    #[serde(default)]
    pub by_hand: bool,
    /// A person has said that it is undone.
    #[serde(default)]
    pub resolved: bool,
    /// When it may begin, if it waits for a time: microseconds by the store's clock.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub due: Option<i64>,
    /// Attempts that were made by messages that are gone.
    pub attempts: u32,
    /// The same of questions whether it was done.
    pub verifies: u32,
    /// How often in a row the participant answered that it was not done.
    #[serde(default)]
    pub denials: u32,
    /// What it answered; none if that could not be kept.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    pub output: Option<Value>,
    /// The how many-th it began.
    pub started: Option<u32>,
    /// How far its compensation came.
    pub undo: Undo,
    /// Attempts to undo it, by messages that are gone.
    pub undo_attempts: u32,
    /// The message that is under way for it.
    pub carrier: Option<Carrier>,
    /// What was answered too late, while somebody had the message again: it was done, or undone, whatever is answered now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub late: Option<Late>,
    /// Why it waits for a person.
    pub stuck: Option<HeldReason>,
    /// The code of its last failure.
    pub code: Option<String>,
    /// What was said about it.
    pub error: Option<String>,
}

/// What is there is there, also if it is null.
fn present<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(deserializer).map(Some)
}

/// Where a saga stands.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct Snapshot {
    /// What it was started with.
    pub input: Value,
    /// Which way it goes.
    pub direction: Direction,
    /// How it ended.
    pub ended: Option<Ended>,
    /// Nothing is sent until it is resumed.
    pub paused: bool,
    /// A person holds it, and this is why.
    pub quarantined: Option<String>,
    /// Its deadline has passed, and nothing was done about it yet.
    pub overdue: bool,
    /// The deadline, in microseconds after the start of the saga. None if there is none, or if an operator retried a step after it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deadline: Option<u64>,
    /// Why it goes back.
    pub cause: Option<String>,
    /// The message that will say that the time is over.
    pub timer: Option<MessageId>,
    /// Messages that were made so far.
    pub serial: u32,
    /// Its steps, in the order of the definition.
    pub steps: Vec<StepSnapshot>,
}

impl Default for StepSnapshot {
    fn default() -> Self {
        Self {
            progress: Progress::Waiting,
            run: 1,
            tainted: false,
            doubted: false,
            by_hand: false,
            resolved: false,
            due: None,
            attempts: 0,
            verifies: 0,
            denials: 0,
            output: None,
            started: None,
            undo: Undo::Open,
            undo_attempts: 0,
            carrier: None,
            late: None,
            stuck: None,
            code: None,
            error: None,
        }
    }
}

impl StepSnapshot {
    /// Where the message that is under way for it stands.
    pub fn standing(&self, live: &Live) -> Option<Standing> {
        self.carrier.and_then(|carrier| live.get(&carrier.message)).copied()
    }

    /// Whether those behind it need not wait for it.
    pub fn has_passed(&self) -> bool {
        matches!(self.progress, Progress::Done | Progress::Skipped)
    }

    /// Whether an effect of it may be there.
    pub fn may_have_happened(&self) -> bool {
        self.tainted || matches!(self.progress, Progress::Done | Progress::Uncertain)
    }

    /// Whether there may be something to undo, now or yet.
    pub fn may_leave_something(&self) -> bool {
        self.doubted || self.may_have_happened()
    }
}

impl Snapshot {
    /// One that has not begun.
    pub fn new(definition: &Definition, input: Value) -> Self {
        Self {
            input,
            direction: Direction::Forward,
            ended: None,
            paused: false,
            quarantined: None,
            overdue: false,
            deadline: None,
            cause: None,
            timer: None,
            serial: 0,
            steps: definition.steps().iter().map(|_| StepSnapshot::default()).collect(),
        }
    }

    /// Where it stands, and why it waits if it does.
    pub fn state(&self) -> (SagaState, Option<HeldReason>) {
        let held = |reason| (SagaState::Held, Some(reason));
        match (self.ended, self.direction) {
            (Some(Ended::Completed), _) => (SagaState::Completed, None),
            (Some(Ended::Compensated), _) => (SagaState::Compensated, None),
            (Some(Ended::Abandoned), _) => (SagaState::Abandoned, None),
            _ if self.quarantined.is_some() => held(HeldReason::Operator),
            (None, Direction::Forward) => match self.steps.iter().find_map(|step| step.stuck) {
                Some(reason) => held(reason),
                None => (SagaState::Running, None),
            },
            (None, Direction::Backward) => {
                let busy = self
                    .steps
                    .iter()
                    .any(|step| step.carrier.is_some() && step.undo != Undo::Held);
                let failed = self.steps.iter().any(|step| step.undo == Undo::Held);
                match failed && !busy {
                    true => held(HeldReason::CompensationFailed),
                    false => (SagaState::Compensating, None),
                }
            }
        }
    }

    /// The step for which a message is under way, and what for.
    pub fn carried(&self, message: MessageId) -> Option<(usize, Role)> {
        let steps = self.steps.iter().enumerate();
        let mut carried = steps.filter_map(|(at, step)| Some((at, step.carrier?)));
        let found = carried.find(|(_, carrier)| carrier.message == message);
        found.map(|(at, carrier)| (at, carrier.role))
    }

    /// Messages that are under way for it.
    pub fn carriers(&self) -> impl Iterator<Item = MessageId> + '_ {
        let steps = self.steps.iter().filter_map(|step| Some(step.carrier?.message));
        steps.chain(self.timer)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_as_it_was() {
        let definition = r#"{ "name": "s", "version": 1, "steps": [{ "name": "a", "action_uri": "fn:a" }] }"#;
        let mut snapshot = Snapshot::new(&Definition::parse(definition).unwrap(), serde_json::json!({ "n": 1 }));
        for output in [None, Some(Value::Null), Some(serde_json::json!(["\0", 0.1]))] {
            snapshot.steps[0].output = output;
            snapshot.steps[0].carrier = Some(Carrier {
                message: MessageId(uuid::Uuid::nil()),
                role: Role::Verify,
            });
            let kept = serde_json::to_string(&snapshot).unwrap();
            assert_eq!(serde_json::from_str::<Snapshot>(&kept).unwrap(), snapshot);
        }
    }
}
