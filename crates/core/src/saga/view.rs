//! A saga as operators see it.

use serde::Serialize;

use super::{
    Direction, HeldReason, Loaded, Progress, Role, SagaState, Snapshot, Standing, StepSnapshot, StepState, Undo,
    UndoState,
};
use crate::{MessageId, SagaId, Timestamp};

/// What is listed of a saga. Neither its input nor an output is part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SagaRow {
    /// Its identity.
    pub id: SagaId,
    /// Its number in the store.
    pub seq: i64,
    /// Which application owns it.
    pub namespace: String,
    /// Whose it is.
    pub tenant: String,
    /// What it is called.
    pub name: String,
    /// The version of its definition.
    pub version: u32,
    /// What the business knows it by.
    pub key: String,
    /// Where it stands.
    pub state: SagaState,
    /// Why it waits for a person.
    pub reason: Option<HeldReason>,
    /// Nothing is sent until it is resumed.
    pub paused: bool,
    /// How often it was changed.
    pub revision: u64,
    /// When it was started.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// Why this program cannot read the whole row. The fields that it cannot read hold placeholders.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unreadable: Option<String>,
}

impl SagaRow {
    /// A row that this program cannot read, with a placeholder in every field; the store fills in those that it can read. So one bad row does not hide the
    /// rest of its page.
    pub fn unreadable(id: SagaId, seq: i64, why: impl Into<String>) -> Self {
        Self {
            id,
            seq,
            namespace: String::new(),
            tenant: String::new(),
            name: String::new(),
            version: 0,
            key: String::new(),
            state: SagaState::Held,
            reason: None,
            paused: false,
            revision: 0,
            created_at: Timestamp::from_micros(0),
            updated_at: Timestamp::from_micros(0),
            finished_at: None,
            unreadable: Some(why.into()),
        }
    }
}

/// A step as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StepView {
    /// What it is called.
    pub name: String,
    /// What comes before it.
    pub after: Vec<String>,
    /// Those whose outputs it takes.
    pub takes: Vec<String>,
    /// It was done, and what it answered could not be kept.
    pub output_lost: bool,
    /// Where it stands.
    pub state: StepState,
    /// Why it waits for a person.
    pub stuck: Option<HeldReason>,
    /// Which run of it.
    pub run: u32,
    /// Attempts so far, in this run.
    pub attempts: u32,
    /// Where its compensation stands.
    pub compensation: UndoState,
    /// Attempts to undo it.
    pub compensation_attempts: u32,
    /// Whether it is the pivot.
    pub pivot: bool,
    /// The message that is under way for it.
    pub message: Option<MessageId>,
    /// It was once not known whether it was done, and nothing has undone it since. That it was not found does not say that it was not on its way.
    pub doubted: bool,
    /// The code of its last failure.
    pub code: Option<String>,
    /// What was said about it.
    pub error: Option<String>,
}

/// A saga as operators see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SagaView {
    /// What is listed of it.
    #[serde(flatten)]
    pub row: SagaRow,
    /// Why it goes back.
    pub cause: Option<String>,
    /// The note of whoever holds it.
    pub note: Option<String>,
    /// The pivot was done, or may have been, or somebody is at it: it goes back only if a person says that this is meant.
    pub past_pivot: bool,
    /// Steps that stay done in a saga that is compensated: nothing undoes them, and no operator has resolved them.
    pub stays_done: Vec<String>,
    /// Steps that nothing undoes and that may have been done. If one is the pivot, that is found out before the saga is compensated.
    pub in_doubt: Vec<String>,
    /// Its steps.
    pub steps: Vec<StepView>,
}

/// A line of a saga's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLine {
    /// Its number in the saga; rising.
    pub n: u64,
    /// The revision that it belongs to.
    pub revision: u64,
    /// When.
    pub at: Timestamp,
    /// Who: a relay, or a person.
    pub actor: String,
    /// What happened.
    pub what: String,
    /// To which step.
    pub step: Option<String>,
    /// What was said.
    pub detail: String,
}

/// Which sagas to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SagaFilter {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Only of this name.
    pub name: Option<String>,
    /// Only of this key.
    pub key: Option<String>,
    /// Only those that stand so.
    pub state: Option<SagaState>,
    /// Only those that wait for this reason.
    pub reason: Option<HeldReason>,
    /// Only those below this number: the `next` of the page before.
    pub below: Option<i64>,
    /// At most this many; 50 when zero, 1,000 at most.
    pub limit: u32,
}

impl SagaFilter {
    /// How many sagas a page holds. Read one more, to know whether there is another page.
    pub fn page_size(&self) -> u32 {
        if self.limit == 0 { 50 } else { self.limit.min(1000) }
    }

    /// Whether it is listed.
    pub fn takes(&self, row: &SagaRow) -> bool {
        let is = |wanted: &Option<String>, found: &String| wanted.as_ref().is_none_or(|wanted| wanted == found);
        is(&self.namespace, &row.namespace)
            && is(&self.tenant, &row.tenant)
            && is(&self.name, &row.name)
            && is(&self.key, &row.key)
            && self.state.is_none_or(|state| state == row.state)
            && (self.reason.is_none() || self.reason == row.reason)
            && self.below.is_none_or(|below| row.seq < below)
    }
}

/// A page of sagas, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SagaPage {
    /// The sagas.
    pub sagas: Vec<SagaRow>,
    /// Where the next page begins, when there is one.
    pub next: Option<i64>,
}

impl SagaPage {
    /// Makes a page from one row more than it holds.
    pub fn of(mut rows: Vec<SagaRow>, filter: &SagaFilter) -> Self {
        let size = filter.page_size() as usize;
        let more = rows.len() > size;
        rows.truncate(size);
        let next = if more { rows.last().map(|row| row.seq) } else { None };
        Self { sagas: rows, next }
    }
}

/// The words of a state, as a store keeps them.
pub(super) fn state_words(snapshot: &Snapshot) -> (&'static str, Option<&'static str>) {
    let (state, reason) = snapshot.state();
    (state.as_str(), reason.map(HeldReason::as_str))
}

impl Loaded {
    /// As operators see it.
    pub fn view(&self) -> SagaView {
        SagaView {
            row: self.row.clone(),
            cause: self.snapshot.cause.clone(),
            note: self.snapshot.quarantined.clone(),
            past_pivot: self.definition.pivot().is_some_and(|at| self.is_past(at)),
            stays_done: self.left_by(|step| step.progress == Progress::Done),
            in_doubt: self.left_by(|step| {
                let under_way = step.progress == Progress::Ready && step.carrier.is_some();
                step.progress == Progress::Uncertain || under_way
            }),
            steps: (0..self.snapshot.steps.len()).map(|at| self.step(at)).collect(),
        }
    }

    /// Steps of a saga that is being compensated, without a compensation of their own, for which `is` holds.
    fn left_by(&self, is: impl Fn(&StepSnapshot) -> bool) -> Vec<String> {
        if self.snapshot.direction == Direction::Forward {
            return Vec::new();
        }
        let steps = self.definition.steps().iter().zip(&self.snapshot.steps);
        let left = steps.filter(|(def, step)| def.compensate.is_none() && step.undo != Undo::Compensated && is(step));
        left.map(|(def, _)| def.name.clone()).collect()
    }

    fn is_past(&self, pivot: usize) -> bool {
        let step = &self.snapshot.steps[pivot];
        step.may_have_happened() || step.standing(&self.live) == Some(Standing::Leased)
    }

    fn step(&self, at: usize) -> StepView {
        let (def, step) = (&self.definition.steps()[at], &self.snapshot.steps[at]);
        let carrier = step.carrier;
        let standing = step.standing(&self.live);
        let leased = standing == Some(Standing::Leased);
        let made = match standing {
            Some(Standing::Pending { attempts, .. }) => attempts,
            // One at least; how many before it, its message knows.
            Some(Standing::Leased) => 1,
            _ => 0,
        };
        let undoing = carrier.is_some_and(|carrier| carrier.role == Role::Undo);
        let name = |at: &usize| self.definition.steps()[*at].name.clone();
        StepView {
            name: def.name.clone(),
            after: def.after.iter().map(name).collect(),
            takes: (0..at)
                .filter(|from| def.input.takes(*from))
                .map(|from| name(&from))
                .collect(),
            output_lost: step.progress == Progress::Done && step.output.is_none(),
            state: match step.progress {
                Progress::Waiting => StepState::Waiting,
                Progress::Ready if leased && !undoing => StepState::Running,
                Progress::Ready => StepState::Ready,
                Progress::Done => StepState::Done,
                Progress::Rejected => StepState::Rejected,
                Progress::Uncertain => StepState::Uncertain,
                Progress::Skipped => StepState::Skipped,
                Progress::NotDone => StepState::NotDone,
            },
            stuck: step.stuck,
            run: step.run,
            attempts: step.attempts + if undoing { 0 } else { made },
            compensation: match step.undo {
                _ if def.compensate.is_none() => UndoState::None,
                Undo::Compensated => UndoState::Compensated,
                Undo::Held => UndoState::Held,
                Undo::Open if undoing && leased => UndoState::Running,
                Undo::Open if step.may_leave_something() || carrier.is_some() => UndoState::Ready,
                Undo::Open => UndoState::NotNeeded,
            },
            compensation_attempts: step.undo_attempts + if undoing { made } else { 0 },
            pivot: def.pivot,
            message: carrier.map(|carrier| carrier.message),
            doubted: step.doubted && step.undo != Undo::Compensated,
            code: step.code.clone(),
            error: step.error.clone(),
        }
    }
}
