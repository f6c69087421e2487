//! What comes next: one pure function over a definition, a snapshot and what happened.
//!
//! It writes nothing. Its result (the new snapshot, messages to send, messages to take back, lines of the log) is stored by the very settlement of the
//! message that it is about, with the version that it was decided on; whoever is told [`Stale`](crate::Verdict::Stale) loads it again and decides again.

mod asked;

use serde_json::Value;
use std::{collections::BTreeMap, time::Duration};

use super::{
    Definition, Direction, Ended, HeldReason, Progress, Role, Snapshot, StepDef, StepSnapshot, Undo,
    carrier::{self, Errand},
    snapshot::{Carrier, Late},
};
use crate::{DeadReason, Limits, MessageId, SagaId, Timestamp, text};

/// What became of a message of a saga, as its destination answered.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Answered {
    /// It was done; this is what was answered, unless that could not be kept.
    Done(Option<Value>),
    /// Asked whether it was done: it was not.
    NotDone,
    /// Nothing happened, and it may be tried again.
    Retry {
        /// The destination's own wish.
        after: Option<Duration>,
        /// Its code.
        code: String,
        /// What was said.
        error: String,
    },
    /// Nothing happened, and nothing will.
    Rejected {
        /// The destination's code.
        code: String,
        /// What was said.
        error: String,
    },
    /// It may have happened.
    Unknown {
        /// The destination's code.
        code: String,
        /// What was said.
        error: String,
    },
    /// Nobody may, or can, do it: nothing happened.
    NoHandler {
        /// The code.
        code: String,
        /// What was said.
        error: String,
    },
}

/// What an operator wants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Verb {
    /// Nothing more is sent.
    Pause,
    /// It goes on, after a pause or a quarantine.
    Resume,
    /// It is held.
    Quarantine,
    /// A step, or its compensation, is sent now, with a new budget.
    Retry {
        /// The step.
        step: String,
    },
    /// A step was done, with this output.
    Complete {
        /// The step.
        step: String,
        /// Its output.
        output: Value,
    },
    /// It goes on without a step.
    Skip {
        /// The step.
        step: String,
    },
    /// It is undone.
    Compensate {
        /// Also if the pivot was done, or may have been.
        past_pivot: bool,
    },
    /// A compensation that failed was done by hand.
    Resolve {
        /// The step.
        step: String,
    },
    /// What failed is tried again, whichever way it goes.
    Replay {
        /// In place of that, a saga that was compensated does everything once more.
        again: bool,
    },
    /// It is given up as it is.
    Abandon,
}

impl Verb {
    /// The step that it is about.
    pub fn step(&self) -> Option<&str> {
        match self {
            Self::Retry { step } | Self::Complete { step, .. } | Self::Skip { step } | Self::Resolve { step } => {
                Some(step)
            }
            _ => None,
        }
    }

    /// Its word in the audit, where messages have verbs of the same name.
    pub const fn action(&self) -> &'static str {
        match self {
            Self::Pause => "saga_pause",
            Self::Resume => "saga_resume",
            Self::Quarantine => "saga_quarantine",
            Self::Retry { .. } => "saga_retry",
            Self::Complete { .. } => "saga_complete",
            Self::Skip { .. } => "saga_skip",
            Self::Compensate { .. } => "saga_compensate",
            Self::Resolve { .. } => "saga_resolve",
            Self::Replay { again: false } => "saga_replay",
            Self::Replay { again: true } => "saga_replay_again",
            Self::Abandon => "saga_abandon",
        }
    }

    /// Its word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Resume => "resume",
            Self::Quarantine => "quarantine",
            Self::Retry { .. } => "retry",
            Self::Complete { .. } => "complete",
            Self::Skip { .. } => "skip",
            Self::Compensate { .. } => "compensate",
            Self::Resolve { .. } => "resolve",
            Self::Replay { again: false } => "replay",
            Self::Replay { again: true } => "replay_again",
            Self::Abandon => "abandon",
        }
    }
}

/// What happened to a saga.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Event {
    /// It begins.
    Started,
    /// The lease on one of its messages ends.
    Ended {
        /// The message.
        message: MessageId,
        /// Its attempts so far, this one included.
        attempt: u32,
        /// What its destination answered.
        answer: Answered,
    },
    /// One of its messages was given back unsent.
    Released {
        /// The message.
        message: MessageId,
        /// Its attempts before this one, which does not count.
        attempts: u32,
        /// Not due before this has passed.
        after: Duration,
    },
    /// One of its messages was not sent, because its deliver-by had passed.
    Lapsed {
        /// The message.
        message: MessageId,
        /// Its attempts before this one, which does not count.
        attempts: u32,
    },
    /// An answer came after its lease was lost.
    Late {
        /// The step.
        step: usize,
        /// Its run.
        run: u32,
        /// What was asked.
        role: Role,
        /// What was answered.
        answer: Answered,
    },
    /// An operator wants something.
    Asked {
        /// What.
        verb: Verb,
        /// Who.
        actor: String,
        /// Why.
        note: String,
    },
}

/// Where a message of a saga stands in the store.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Standing {
    /// Nobody is at it.
    Pending {
        /// Grants so far.
        epoch: u64,
        /// Attempts so far.
        attempts: u32,
    },
    /// Somebody is at it.
    Leased,
    /// It waits for a person.
    Dead {
        /// Grants so far.
        epoch: u64,
    },
}

/// Where the messages of a saga stand. Those that are not in it have ended.
pub type Live = BTreeMap<MessageId, Standing>;

/// What a decision needs besides.
#[derive(Clone, Copy, Debug)]
pub struct Ctx {
    /// The time, by the store's clock.
    pub now: Timestamp,
    /// When the saga was started, by the same clock.
    pub began: Timestamp,
    /// A number from 0 to 1 for the jitter.
    pub roll: f64,
    /// The largest payload that the store takes.
    pub payload_bytes: usize,
}

/// What becomes of the message whose lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Own {
    /// It was acknowledged.
    Delivered,
    /// It has served, whatever was answered.
    Concluded,
    /// It is sent again.
    Again(Duration),
    /// It goes back unsent, and is not due before this has passed.
    Released(Duration),
    /// It waits for a person, among the dead letters.
    Dead(DeadReason),
}

/// A message that is taken back, if it still stands so.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Withdrawal {
    /// The message.
    pub message: MessageId,
    /// Its grants so far, as they were when this was decided: more mean that somebody has begun with it.
    pub epoch: u64,
}

/// A line of a saga's log.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Happened {
    /// What: `started`, `done`, `retry`, `rejected`, `unknown`, `late`, `compensating`, `held`, a verb, ...
    pub what: &'static str,
    /// To which step.
    pub step: Option<String>,
    /// What was said.
    pub detail: String,
}

/// What comes next.
#[derive(Clone, PartialEq, Debug)]
pub struct Decision {
    /// Where the saga stands then.
    pub snapshot: Snapshot,
    /// What becomes of the message whose lease ended.
    pub own: Option<Own>,
    /// Messages to send.
    pub sends: Vec<Errand>,
    /// Messages to take back.
    pub withdraw: Vec<Withdrawal>,
    /// What to write down.
    pub log: Vec<Happened>,
}

/// A verb that does not apply, and why.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

/// What comes next, when this has happened to a saga that stands so.
pub fn decide(
    definition: &Definition,
    id: SagaId,
    snapshot: &Snapshot,
    live: &Live,
    event: &Event,
    ctx: Ctx,
) -> Result<Decision, Refused> {
    let mut work = Work {
        definition,
        id,
        live,
        ctx,
        own: None,
        before: snapshot.state(),
        next: Decision {
            snapshot: snapshot.clone(),
            own: None,
            sends: Vec::new(),
            withdraw: Vec::new(),
            log: Vec::new(),
        },
    };
    match event {
        Event::Started => work.start(),
        Event::Ended {
            message,
            attempt,
            answer,
        } => {
            work.own = Some(*message);
            let own = work.ended(*message, *attempt, answer);
            work.next.own = Some(own);
        }
        Event::Released {
            message,
            attempts,
            after,
        } => {
            work.own = Some(*message);
            let own = work.unsent(*message, *attempts, Some(*after));
            work.next.own = Some(own);
        }
        Event::Lapsed { message, attempts } => {
            work.own = Some(*message);
            let own = work.unsent(*message, *attempts, None);
            work.next.own = Some(own);
        }
        Event::Late {
            step,
            run,
            role,
            answer,
        } => work.late(*step, *run, *role, answer),
        Event::Asked { verb, actor, note } => {
            work.log(verb.as_str(), verb.step().and_then(|step| definition.find(step)), note);
            work.asked(verb, actor, note)?;
        }
    }
    Ok(work.done())
}

struct Work<'a> {
    definition: &'a Definition,
    id: SagaId,
    live: &'a Live,
    ctx: Ctx,
    /// The message whose lease ends now.
    own: Option<MessageId>,
    before: (super::SagaState, Option<HeldReason>),
    next: Decision,
}

/// Why a saga waits whose pivot was done although it goes back.
const STRANDED: &str = "the pivot was done after all, and nothing undoes it";
/// Why a saga is held whose pivot is in doubt when it is compensated.
const IN_DOUBT: &str = "the pivot may have been done, it has no verify_uri to ask, and nothing undoes it; find out, undo it by hand if it was done, and resolve it";
/// The same when its participant was asked in vain.
const UNANSWERED: &str = "verify_uri did not answer whether the pivot was done, and nothing undoes it";
/// How often in a row a participant must answer that the pivot was not done. It may be at work when it is asked first.
const PIVOT_DENIALS: u32 = 2;

/// What a failure is to a step.
enum Failure {
    Rejected,
    Exhausted,
}

impl Work<'_> {
    fn done(mut self) -> Decision {
        let after = self.next.snapshot.state();
        let told = self.next.log.iter().any(|line| line.what == after.0.as_str());
        if after != self.before && !told {
            let detail = after.1.map(|reason| reason.as_str()).unwrap_or_default();
            self.log(after.0.as_str(), None, detail);
        }
        self.next
    }

    fn def(&self, at: usize) -> &StepDef {
        &self.definition.steps()[at]
    }

    fn step(&mut self, at: usize) -> &mut StepSnapshot {
        &mut self.next.snapshot.steps[at]
    }

    fn look(&self, at: usize) -> &StepSnapshot {
        &self.next.snapshot.steps[at]
    }

    fn count(&self) -> usize {
        self.next.snapshot.steps.len()
    }

    fn log(&mut self, what: &'static str, step: Option<usize>, detail: &str) {
        let step = step.map(|at| self.def(at).name.clone());
        let detail = text::error_text(detail);
        self.next.log.push(Happened { what, step, detail });
    }

    fn is_forward(&self) -> bool {
        self.next.snapshot.direction == Direction::Forward && self.next.snapshot.ended.is_none()
    }

    /// Whether nothing may be sent.
    fn is_stopped(&self) -> bool {
        let saga = &self.next.snapshot;
        saga.paused || saga.quarantined.is_some() || saga.ended.is_some()
    }

    fn start(&mut self) {
        self.log("started", None, "");
        self.set_timer();
        self.advance();
    }

    fn set_timer(&mut self) {
        self.next.snapshot.deadline = None;
        if let Some(deadline) = self.definition.deadline() {
            let after = self.ctx.now.since(self.ctx.began) + deadline;
            self.next.snapshot.deadline = u64::try_from(after.as_micros()).ok();
            let message = self.draw();
            self.next.snapshot.timer = Some(message);
            self.next.sends.push(Errand::timer(message, deadline));
        }
    }

    /// The identity of a new message.
    fn draw(&mut self) -> MessageId {
        self.next.snapshot.serial += 1;
        carrier::message_id(self.id, self.next.snapshot.serial, self.ctx.now)
    }

    fn ended(&mut self, message: MessageId, attempt: u32, answer: &Answered) -> Own {
        if self.next.snapshot.timer == Some(message) {
            self.next.snapshot.timer = None;
            self.log("deadline", None, "");
            // Not if it will never go back; if nobody knows whether the pivot was done, that is seen later.
            let pivot_done = self.definition.pivot().map(|at| self.look(at).progress) == Some(Progress::Done);
            self.next.snapshot.overdue = self.is_forward() && !pivot_done;
            self.advance();
            return Own::Delivered;
        }
        let Some((at, role)) = self.next.snapshot.carried(message) else {
            return Own::Concluded;
        };
        self.tell(at, role, answer);
        // What is known from before counts, whatever came back now.
        if let Some(late) = self.step(at).late.take()
            && !matches!(answer, Answered::Done(_))
        {
            match (late.role, role) {
                (Role::Do, Role::Do | Role::Verify) => {
                    self.is_done(at, late.output);
                    return Own::Concluded;
                }
                (Role::Undo, Role::Undo) => {
                    self.is_undone(at);
                    return Own::Concluded;
                }
                _ => {}
            }
        }
        match role {
            Role::Do | Role::Timer => self.did(at, attempt, answer),
            Role::Verify => self.verified(at, attempt, answer),
            Role::Undo => self.undone(at, attempt, answer),
        }
    }

    /// The deadline, by the store's clock.
    fn deadline(&self) -> Option<Timestamp> {
        let after = self.next.snapshot.deadline?;
        Some(self.ctx.began.plus(Duration::from_micros(after)))
    }

    /// Whether the deadline has passed, also if its timer message is not processed yet.
    fn is_overdue(&self) -> bool {
        self.next.snapshot.overdue || self.deadline().is_some_and(|at| at <= self.ctx.now)
    }

    /// Handles a message whose lease ends unsent. It is released, due `after` this long, unless the saga no longer wants it sent. Without `after` its deliver-by has
    /// passed: it cannot be sent any more, and the deadline turns the saga back, or another message takes its place.
    fn unsent(&mut self, message: MessageId, attempts: u32, after: Option<Duration>) -> Own {
        let wanted = Own::Released(after.unwrap_or_default());
        if self.next.snapshot.timer == Some(message) {
            return wanted;
        }
        let Some((at, role)) = self.next.snapshot.carried(message) else {
            return Own::Concluded;
        };
        let going = match role {
            // Another may come first by now.
            Role::Undo => self.is_backward() && self.definition.behind(at).all(|later| self.is_closed(later)),
            _ => self.is_forward(),
        };
        let carrier = self.step(at).carrier.take();
        if after.is_none() && going {
            // The relay's clock counts from before the claim, so the store's may be some milliseconds behind it. Without a deadline an operator has retried a
            // step since: another message takes the place of this one.
            self.next.snapshot.overdue = self.next.snapshot.deadline.is_some();
            self.log("not_sent", Some(at), "its deadline passed before it was sent");
        }
        // It was waited for only because it may have been the pivot.
        let too_late = role != Role::Undo && self.is_overdue() && self.may_turn_back();
        let known = self.look(at).late.as_ref().map(|late| late.role);
        let answered = match role {
            Role::Undo => known == Some(Role::Undo),
            _ => known == Some(Role::Do),
        };
        if going && after.is_some() && !self.is_stopped() && !too_late && !answered {
            self.step(at).carrier = carrier;
            return wanted;
        }
        self.count_attempts(at, role, attempts);
        if let Some(late) = self.step(at).late.take_if(|_| answered) {
            match role {
                Role::Undo => self.is_undone(at),
                _ => {
                    self.is_done(at, late.output);
                }
            }
            return Own::Concluded;
        }
        if role != Role::Undo && !self.is_forward() {
            self.shut(at);
        }
        self.advance();
        Own::Concluded
    }

    /// Writes down what was answered.
    fn tell(&mut self, at: usize, role: Role, answer: &Answered) {
        let what = match (role, answer) {
            (Role::Do | Role::Timer, Answered::Done(_) | Answered::NotDone) => "done",
            (Role::Verify, Answered::Done(_)) => "verified_done",
            (Role::Verify, Answered::NotDone) => "verified_not_done",
            (Role::Undo, Answered::Done(_) | Answered::NotDone) => "undone",
            (Role::Do | Role::Timer, Answered::Retry { .. }) => "retry",
            (Role::Do | Role::Timer, Answered::Rejected { .. }) => "rejected",
            (Role::Do | Role::Timer, Answered::Unknown { .. }) => "unknown",
            (_, Answered::NoHandler { .. }) => "no_handler",
            (Role::Verify, _) => "verify_failed",
            (Role::Undo, _) => "undo_failed",
        };
        let (code, error) = said(answer);
        let detail = match (code, error) {
            (Some(code), Some(error)) => format!("{code}: {error}"),
            _ => String::new(),
        };
        self.log(what, Some(at), &detail);
        if code.is_some() {
            let (code, error) = (code.map(text::code), error.map(text::error_text));
            let step = self.step(at);
            (step.code, step.error) = (code, error);
        }
    }

    /// A step was sent.
    fn did(&mut self, at: usize, attempt: u32, answer: &Answered) -> Own {
        let total = self.look(at).attempts.saturating_add(attempt);
        match answer {
            Answered::Done(output) => self.is_done(at, output.clone()),
            Answered::NotDone => self.is_done(at, Some(Value::Null)),
            Answered::Rejected { .. } => {
                self.leave(at, total);
                self.failed(at, Failure::Rejected)
            }
            Answered::Retry { after, .. } => self.again(at, total, *after),
            Answered::NoHandler { .. } => {
                if !self.is_forward() || self.is_too_late() {
                    return self.not_again(at, total);
                }
                self.step(at).attempts = total;
                self.stuck(at, HeldReason::NoHandler, DeadReason::Rejected)
            }
            Answered::Unknown { .. } => {
                let step = self.step(at);
                (step.tainted, step.doubted, step.denials) = (true, true, 0);
                let (verify, idempotent) = (self.def(at).verify.is_some(), self.def(at).idempotent);
                if !self.is_forward() {
                    return self.not_again(at, total);
                }
                if verify {
                    // Whoever resumes it asks first.
                    self.leave(at, total);
                    self.advance();
                    return Own::Concluded;
                }
                if idempotent {
                    return self.again(at, total, None);
                }
                self.step(at).attempts = total;
                self.step(at).progress = Progress::Uncertain;
                self.stuck(at, HeldReason::Unknown, DeadReason::Exhausted)
            }
        }
    }

    /// Its message is done with; so many attempts were made.
    fn leave(&mut self, at: usize, total: u32) {
        let step = self.step(at);
        step.carrier = None;
        step.attempts = total;
    }

    /// It was done.
    fn is_done(&mut self, at: usize, output: Option<Value>) -> Own {
        let step = self.step(at);
        step.carrier = None;
        step.stuck = None;
        (step.tainted, step.doubted, step.denials, step.late) = (false, false, 0, None);
        step.progress = Progress::Done;
        step.output = output;
        (step.code, step.error) = (None, None);
        if self.is_stranded_by(at) {
            // It is not compensated until somebody says so.
            self.hold_undo(at, "late", STRANDED);
        }
        self.advance();
        Own::Delivered
    }

    /// Whether the saga goes back although this is done for good: it is the pivot, and nothing undoes it.
    fn is_stranded_by(&self, at: usize) -> bool {
        self.is_backward() && self.def(at).pivot && self.def(at).compensate.is_none()
    }

    /// It is tried again if it may be.
    fn again(&mut self, at: usize, total: u32, wish: Option<Duration>) -> Own {
        if !self.is_forward() || self.is_too_late() {
            return self.not_again(at, total);
        }
        let policy = &self.def(at).retry;
        if total >= policy.budget(Limits::ATTEMPTS) {
            self.leave(at, total);
            return self.failed(at, Failure::Exhausted);
        }
        let wait = policy.wait_or_wish(total, self.ctx.roll, wish);
        if self.is_stopped() {
            self.leave(at, total);
            return Own::Concluded;
        }
        Own::Again(wait)
    }

    /// Whether the deadline has passed and turns the saga back.
    fn is_too_late(&self) -> bool {
        self.is_overdue() && !self.is_past_pivot()
    }

    /// The saga goes back, or will at once, or is over: it is not sent again.
    fn not_again(&mut self, at: usize, total: u32) -> Own {
        self.leave(at, total);
        if !self.is_forward() {
            self.shut(at);
        }
        self.advance();
        Own::Concluded
    }

    /// Says how a step ends that is not sent again, because the saga is compensated.
    fn shut(&mut self, at: usize) {
        let step = self.step(at);
        if let Some(Late { role: Role::Do, output }) = step.late.take() {
            (step.progress, step.output) = (Progress::Done, output);
            return;
        }
        let was_sent = step.attempts > 0 || step.doubted;
        step.progress = match (step.tainted, was_sent) {
            (true, _) => Progress::Uncertain,
            (false, true) => Progress::NotDone,
            (false, false) => Progress::Skipped,
        };
    }

    /// A step failed for good.
    fn failed(&mut self, at: usize, how: Failure) -> Own {
        let step = self.step(at);
        step.progress = match step.tainted {
            true => Progress::Uncertain,
            false => Progress::Rejected,
        };
        if !self.is_forward() {
            self.advance();
            return Own::Concluded;
        }
        if self.is_past_pivot() {
            let (reason, dead) = match (self.look(at).progress, how) {
                (Progress::Uncertain, _) => (HeldReason::Unknown, DeadReason::Exhausted),
                (_, Failure::Rejected) => (HeldReason::Rejected, DeadReason::Rejected),
                (_, Failure::Exhausted) => (HeldReason::RetriesExhausted, DeadReason::Exhausted),
            };
            return self.stuck_with(at, self.own, reason, dead);
        }
        let (name, step) = (&self.def(at).name, self.look(at));
        let code = step.code.as_deref().unwrap_or_default();
        let error = step.error.as_deref().unwrap_or_default();
        let cause = match how {
            Failure::Rejected => format!("step {name:?} was rejected: {code}: {error}"),
            Failure::Exhausted => format!("step {name:?} failed too often: {code}: {error}"),
        };
        self.turn_back(cause);
        Own::Concluded
    }

    /// It waits for a person, and so does its message.
    fn stuck(&mut self, at: usize, reason: HeldReason, dead: DeadReason) -> Own {
        self.stuck_with(at, self.look(at).carrier.map(|carrier| carrier.message), reason, dead)
    }

    fn stuck_with(&mut self, at: usize, message: Option<MessageId>, reason: HeldReason, dead: DeadReason) -> Own {
        let step = self.step(at);
        step.stuck = Some(reason);
        let role = step.carrier.map_or(Role::Do, |carrier| carrier.role);
        // Whoever deals with it takes the dead letter away.
        step.carrier = message.map(|message| Carrier { message, role });
        Own::Dead(dead)
    }

    /// It was asked whether a step was done.
    fn verified(&mut self, at: usize, attempt: u32, answer: &Answered) -> Own {
        let asked = self.look(at).verifies.saturating_add(attempt);
        match answer {
            Answered::Done(output) => self.is_done(at, output.clone()),
            Answered::NotDone => {
                let wanted = if self.def(at).pivot { PIVOT_DENIALS } else { 1 };
                let step = self.step(at);
                (step.carrier, step.verifies, step.denials) = (None, 0, step.denials + 1);
                if step.denials < wanted {
                    // The participant may be at work: it is asked once more.
                    self.advance();
                    return Own::Delivered;
                }
                (step.tainted, step.denials) = (false, 0);
                if !self.is_forward() {
                    self.shut(at);
                    self.advance();
                } else if self.look(at).attempts >= self.def(at).retry.budget(Limits::ATTEMPTS)
                    && let Own::Dead(reason) = self.failed(at, Failure::Exhausted)
                {
                    return Own::Dead(reason);
                } else {
                    self.advance();
                }
                Own::Delivered
            }
            // While a saga is compensated only a pivot in doubt is asked about again.
            _ if !self.is_forward() && (!self.is_backward() || !self.is_in_doubt(at)) => {
                self.step(at).carrier = None;
                self.shut(at);
                self.advance();
                Own::Concluded
            }
            Answered::Retry { .. } | Answered::Unknown { .. } | Answered::Rejected { .. }
                if asked < self.def(at).retry.budget(Limits::ATTEMPTS) =>
            {
                let wish = match answer {
                    Answered::Retry { after, .. } => *after,
                    _ => None,
                };
                let wait = self.def(at).retry.wait_or_wish(asked, self.ctx.roll, wish);
                if self.is_stopped() {
                    let step = self.step(at);
                    (step.carrier, step.verifies) = (None, asked);
                    return Own::Concluded;
                }
                Own::Again(wait)
            }
            _ => {
                let step = self.step(at);
                (step.verifies, step.progress) = (asked, Progress::Uncertain);
                let reason = match answer {
                    Answered::NoHandler { .. } => HeldReason::NoHandler,
                    _ => HeldReason::Unknown,
                };
                if !self.is_forward() {
                    let said = self.look(at).error.clone().unwrap_or_default();
                    self.hold_undo(at, "in_doubt", &format!("{UNANSWERED}: {said}"));
                    self.advance();
                    return Own::Dead(DeadReason::Exhausted);
                }
                self.stuck(at, reason, DeadReason::Exhausted)
            }
        }
    }

    /// A compensation was sent.
    fn undone(&mut self, at: usize, attempt: u32, answer: &Answered) -> Own {
        let total = self.look(at).undo_attempts.saturating_add(attempt);
        let policy = &self.def(at).compensate_retry;
        let (dead, wish) = match answer {
            Answered::Done(_) | Answered::NotDone => {
                self.is_undone(at);
                return Own::Delivered;
            }
            Answered::Rejected { .. } | Answered::NoHandler { .. } => (Some(DeadReason::Rejected), None),
            Answered::Retry { .. } | Answered::Unknown { .. } if total >= policy.budget(Limits::ATTEMPTS) => {
                (Some(DeadReason::Exhausted), None)
            }
            Answered::Retry { after, .. } => (None, *after),
            Answered::Unknown { .. } => (None, None),
        };
        let wait = policy.wait_or_wish(total, self.ctx.roll, wish);
        if let Some(dead) = dead {
            let step = self.step(at);
            (step.undo, step.undo_attempts) = (Undo::Held, total);
            if self.next.snapshot.ended.is_some() {
                self.step(at).carrier = None;
                return Own::Concluded;
            }
            self.advance();
            return Own::Dead(dead);
        }
        // A person may have said that one that failed, and comes first, is tried again.
        let comes_later = self.definition.behind(at).any(|later| !self.is_closed(later));
        if self.is_stopped() || comes_later {
            let step = self.step(at);
            (step.carrier, step.undo_attempts) = (None, total);
            self.advance();
            return Own::Concluded;
        }
        Own::Again(wait)
    }

    fn is_undone(&mut self, at: usize) {
        let step = self.step(at);
        (step.carrier, step.undo, step.late) = (None, Undo::Compensated, None);
        (step.code, step.error) = (None, None);
        self.advance();
    }

    /// Whether the pivot was done, or may have been.
    fn is_past_pivot(&self) -> bool {
        let pivot = self.definition.pivot();
        pivot.is_some_and(|at| self.look(at).may_have_happened())
    }

    /// From now on it is undone. Nothing more is begun, and what nobody is at is taken back.
    fn turn_back(&mut self, cause: String) {
        self.log("compensating", None, &cause);
        let saga = &mut self.next.snapshot;
        (saga.direction, saga.cause, saga.overdue) = (Direction::Backward, Some(text::error_text(&cause)), false);
        for at in 0..self.count() {
            self.step(at).stuck = None;
            if !self.take_back(at) {
                continue;
            }
            // A question that failed for good is asked again, with a new budget.
            self.step(at).verifies = 0;
            if matches!(self.look(at).progress, Progress::Waiting | Progress::Ready) {
                self.shut(at);
            }
        }
        self.advance();
    }

    /// Takes back the message of a step, if nobody is at it. Whether there is none then.
    fn take_back(&mut self, at: usize) -> bool {
        let Some(carrier) = self.look(at).carrier else {
            return true;
        };
        // It may be one that was about to be sent.
        self.next.sends.retain(|errand| errand.message != carrier.message);
        let attempts = match self.live.get(&carrier.message) {
            Some(Standing::Leased) => return false,
            Some(Standing::Pending { epoch, attempts }) => {
                self.withdraw(carrier.message, *epoch);
                *attempts
            }
            Some(Standing::Dead { epoch }) => {
                self.withdraw(carrier.message, *epoch);
                0
            }
            None => 0,
        };
        self.step(at).carrier = None;
        self.count_attempts(at, carrier.role, attempts);
        true
    }

    /// Attempts of a message that is gone.
    fn count_attempts(&mut self, at: usize, role: Role, attempts: u32) {
        let step = self.step(at);
        let so_far = match role {
            Role::Do | Role::Timer => &mut step.attempts,
            Role::Verify => &mut step.verifies,
            Role::Undo => &mut step.undo_attempts,
        };
        *so_far = so_far.saturating_add(attempts);
    }

    fn withdraw(&mut self, message: MessageId, epoch: u64) {
        self.next.withdraw.push(Withdrawal { message, epoch });
    }

    /// Nobody waits for the deadline any more.
    fn drop_timer(&mut self) {
        if let Some(timer) = self.next.snapshot.timer.take()
            && let Some(Standing::Pending { epoch, .. } | Standing::Dead { epoch }) = self.live.get(&timer)
        {
            self.withdraw(timer, *epoch);
        }
    }

    fn end(&mut self, how: Ended) {
        let saga = &mut self.next.snapshot;
        (saga.ended, saga.paused) = (Some(how), false);
        self.drop_timer();
    }

    /// Sends whatever can be sent now, and ends the saga when there is nothing left to do.
    fn advance(&mut self) {
        if self.is_stopped() {
            // What comes next is known all the same: a person may say something about it.
            if self.is_forward() {
                self.get_ready();
            }
            return;
        }
        match self.next.snapshot.direction {
            Direction::Forward => self.forward(),
            Direction::Backward => self.backward(),
        }
    }

    fn forward(&mut self) {
        if self.is_overdue() && self.may_turn_back() {
            return self.turn_back("its deadline has passed".to_owned());
        }
        if self.next.snapshot.steps.iter().any(|step| step.stuck.is_some()) {
            return;
        }
        self.get_ready();
        for at in 0..self.count() {
            if self.look(at).progress == Progress::Ready && self.look(at).carrier.is_none() {
                self.set_out(at);
            }
        }
        if self.next.snapshot.steps.iter().all(StepSnapshot::has_passed) {
            self.end(Ended::Completed);
        }
    }

    /// Steps whose time has come.
    fn get_ready(&mut self) {
        for at in 0..self.count() {
            // All of them, not only those right before it: one in between may have been left out, or kept from an earlier run.
            let free = self.definition.before(at).all(|before| self.look(before).has_passed());
            if free && self.look(at).progress == Progress::Waiting {
                self.step(at).progress = Progress::Ready;
            }
        }
    }

    /// Whether it can still be undone as a whole: not while somebody is at the pivot.
    fn may_turn_back(&self) -> bool {
        !self.is_past_pivot() && !self.definition.pivot().is_some_and(|at| self.is_leased(at))
    }

    /// Whether somebody is at it just now.
    fn is_leased(&self, at: usize) -> bool {
        self.look(at).standing(self.live) == Some(Standing::Leased)
    }

    /// Sends a step, or asks whether it was done if that is not known.
    fn set_out(&mut self, at: usize) {
        if let Some(Late { role: Role::Do, output }) = self.step(at).late.take() {
            self.is_done(at, output);
            return;
        }
        let def = self.def(at);
        match (self.look(at).tainted, def.verify.is_some(), def.idempotent) {
            (true, true, _) => self.send(at, Role::Verify, self.verify_delay(at)),
            (true, false, false) => {
                let step = self.step(at);
                (step.progress, step.stuck) = (Progress::Uncertain, Some(HeldReason::Unknown));
            }
            _ => {
                let tried = self.look(at).attempts;
                let now = self.ctx.now;
                let delay = match (tried, self.look(at).due) {
                    // It was taken back meanwhile, and is not put off by that.
                    (0, Some(due)) => Timestamp::from_micros(due).since(now),
                    (0, None) => def.delay,
                    (tried, _) => def.retry.wait(tried, self.ctx.roll),
                };
                if tried == 0 && !delay.is_zero() && now > Timestamp::from_micros(0) {
                    self.step(at).due = Some(now.plus(delay).as_micros());
                }
                self.send(at, Role::Do, delay);
            }
        }
    }

    /// How long until a step in doubt is asked about: the participant may be at work on it, or the request on its way.
    fn verify_delay(&self, at: usize) -> Duration {
        let def = self.def(at);
        let wait = def.retry.wait(self.look(at).attempts.max(1), self.ctx.roll);
        wait.max(def.verify_after)
    }

    /// When a message for a step lapses: at the deadline, unless the step may have been done before, or the pivot is behind it.
    fn deliver_by(&self, at: usize, role: Role) -> Option<Timestamp> {
        let first = role == Role::Do && !self.look(at).tainted && self.definition.is_up_to_pivot(at);
        self.deadline().filter(|_| first)
    }

    fn send(&mut self, at: usize, role: Role, delay: Duration) {
        if self.look(at).started.is_none() {
            let order = self.next.snapshot.serial;
            self.step(at).started = Some(order);
        }
        let message = self.draw();
        match carrier::payload(
            self.definition,
            self.id,
            &self.next.snapshot,
            at,
            role,
            self.ctx.payload_bytes,
        ) {
            Some(payload) if payload.len() <= self.ctx.payload_bytes => {
                self.step(at).carrier = Some(Carrier { message, role });
                self.next.sends.push(Errand {
                    message,
                    step: Some((at, self.look(at).run)),
                    role,
                    delay,
                    deliver_by: self.deliver_by(at, role),
                    attempts: self.budget(at, role),
                    payload,
                });
            }
            too_large => self.cannot_send(at, role, too_large.map(|payload| payload.len())),
        }
    }

    /// What it would be sent with is too large, or is not there.
    fn cannot_send(&mut self, at: usize, role: Role, size: Option<usize>) {
        let error = match size {
            Some(size) => format!(
                "its message would have {size} bytes, and the store takes {}",
                self.ctx.payload_bytes
            ),
            None => {
                let lacks = |from: &usize| self.def(at).input.takes(*from) && self.look(*from).output.is_none();
                let names = (0..self.count())
                    .filter(lacks)
                    .map(|from| format!("{:?}", self.def(from).name));
                let names: Vec<_> = names.collect();
                format!(
                    "the output of {} was too large to be kept, or cut off; complete that with one that fits",
                    names.join(" and ")
                )
            }
        };
        self.log("held", Some(at), &error);
        let step = self.step(at);
        (step.code, step.error) = (Some("output".to_owned()), Some(error));
        match role {
            Role::Undo => step.undo = Undo::Held,
            _ => step.stuck = Some(HeldReason::Output),
        }
    }

    /// Attempts that are left.
    fn budget(&self, at: usize, role: Role) -> u32 {
        let (def, step) = (self.def(at), self.look(at));
        let (policy, used) = match role {
            Role::Do | Role::Timer => (&def.retry, step.attempts),
            Role::Verify => (&def.retry, step.verifies),
            Role::Undo => (&def.compensate_retry, step.undo_attempts),
        };
        policy.budget(Limits::ATTEMPTS).saturating_sub(used).max(1)
    }

    fn needs_undo(&self, at: usize) -> bool {
        self.def(at).compensate.is_some() && self.look(at).may_leave_something()
    }

    /// Whether it is the pivot, may have been done, and nothing undoes it: a saga is not compensated before that is known.
    fn is_in_doubt(&self, at: usize) -> bool {
        let step = self.look(at);
        self.is_pivot_in_doubt(at) && step.undo == Undo::Open
    }

    /// The same, also if it is held or resolved.
    fn is_pivot_in_doubt(&self, at: usize) -> bool {
        let (def, step) = (self.def(at), self.look(at));
        def.pivot && def.compensate.is_none() && step.tainted && step.progress != Progress::Done
    }

    /// Whether nothing more will happen to it on the way back.
    fn is_closed(&self, at: usize) -> bool {
        let step = self.look(at);
        match step.undo {
            Undo::Held | Undo::Compensated => true,
            Undo::Open => step.carrier.is_none() && !self.needs_undo(at) && !self.is_in_doubt(at),
        }
    }

    /// Asks whether the pivot was done, or holds it for an operator if nothing can be asked.
    fn find_out(&mut self, at: usize) {
        self.step(at).progress = Progress::Uncertain;
        match self.def(at).verify {
            Some(_) => self.send(at, Role::Verify, self.verify_delay(at)),
            None => self.hold_undo(at, "in_doubt", IN_DOUBT),
        }
    }

    /// One compensation at a time: of those behind which all is undone, the one that began last.
    fn backward(&mut self) {
        for at in 0..self.count() {
            let step = self.look(at);
            let role = step.carrier.map(|carrier| carrier.role);
            let asks = role == Some(Role::Verify) && (self.is_in_doubt(at) || step.undo == Undo::Held);
            let forward = role.is_some_and(|role| role != Role::Undo) && !asks;
            if forward && self.take_back(at) {
                self.shut(at);
            }
            if self.is_in_doubt(at) && self.look(at).carrier.is_none() {
                self.find_out(at);
            }
        }
        let undoing = |step: &StepSnapshot| {
            step.undo != Undo::Held && step.carrier.is_some_and(|carrier| carrier.role == Role::Undo)
        };
        // Ends: each turn closes a step, or is the last.
        loop {
            if self.next.snapshot.steps.iter().any(undoing) {
                return;
            }
            let free = |at: &usize| {
                let step = self.look(*at);
                let open = step.undo == Undo::Open && step.carrier.is_none() && self.needs_undo(*at);
                open && self.definition.behind(*at).all(|later| self.is_closed(later))
            };
            let candidates = (0..self.count()).filter(free);
            match candidates.max_by_key(|at| self.look(*at).started) {
                Some(at) => self.send(at, Role::Undo, Duration::ZERO),
                None => break,
            }
        }
        let all_closed = (0..self.count()).all(|at| self.is_closed(at));
        let any_held = self.next.snapshot.steps.iter().any(|step| step.undo == Undo::Held);
        if all_closed && !any_held {
            self.end(Ended::Compensated);
        }
    }

    /// What was answered after its lease was lost tells of an effect, if anything.
    fn late(&mut self, at: usize, run: u32, role: Role, answer: &Answered) {
        if at >= self.count() {
            return;
        }
        let (code, error) = said(answer);
        let said = format!(
            "{role}#{run}: {}{}",
            code.unwrap_or("done"),
            error.map(|e| format!(": {e}")).unwrap_or_default()
        );
        self.log("late", Some(at), &said);
        let (Answered::Done(output), true) = (answer, self.look(at).run == run) else {
            return;
        };
        match role {
            // Who was asked, and said yes, knows that it was done.
            Role::Do | Role::Verify => self.happened_after_all(at, output.clone()),
            Role::Undo if self.look(at).undo != Undo::Compensated && self.is_backward() => match self.take_back(at) {
                true => self.is_undone(at),
                false => self.remember(at, role, output.clone()),
            },
            Role::Undo | Role::Timer => {}
        }
    }

    /// Somebody is at it again: what he will tell is not the whole truth.
    fn remember(&mut self, at: usize, role: Role, output: Option<Value>) {
        self.step(at).late = Some(Late { role, output });
    }

    fn is_backward(&self) -> bool {
        self.next.snapshot.direction == Direction::Backward && self.next.snapshot.ended.is_none()
    }

    fn happened_after_all(&mut self, at: usize, output: Option<Value>) {
        let step = self.look(at);
        let undoing = step.carrier.is_some_and(|carrier| carrier.role == Role::Undo);
        match step.undo {
            // Nobody who knows both has undone it: a person said so before it came, or has not said anything yet.
            Undo::Compensated if step.resolved && step.progress != Progress::Done => {
                return self.done_after_resolve(at, output);
            }
            Undo::Held if step.progress != Progress::Done => {
                let step = self.step(at);
                (step.progress, step.output) = (Progress::Done, output);
                return;
            }
            // What undoes it has been sent, or was: whoever does both keeps them in order.
            Undo::Open if undoing => return self.known_to_its_undo(at, output),
            Undo::Compensated | Undo::Held => return,
            Undo::Open => {}
        }
        let progress = self.look(at).progress;
        match progress {
            Progress::Done => {}
            // A person has said that it goes on without it; but if it goes back, it is not forgotten.
            Progress::Skipped if self.is_forward() => {
                let step = self.step(at);
                (step.tainted, step.output) = (true, output);
            }
            _ if self.take_back(at) => {
                let (pivot, undoable) = (self.def(at).pivot, self.def(at).compensate.is_some());
                let saga = &mut self.next.snapshot;
                let back = saga.direction == Direction::Backward;
                if saga.ended == Some(Ended::Compensated) && (undoable || pivot) {
                    // All was taken for undone, and is not.
                    saga.ended = None;
                }
                if self.is_stranded_by(at) {
                    self.next.snapshot.quarantined = Some(STRANDED.to_owned());
                    self.stop();
                }
                if back {
                    self.in_order_again();
                }
                self.is_done(at, output);
            }
            _ => {
                self.step(at).tainted = true;
                self.remember(at, Role::Do, output);
            }
        }
    }

    /// It was done, as is heard while it is being undone. What was answered is worth knowing to whoever undoes it; but what was tried once is tried with the same
    /// words again, or a participant who remembers them would take it for another request under the same key.
    fn known_to_its_undo(&mut self, at: usize, output: Option<Value>) {
        if self.look(at).progress == Progress::Done {
            return;
        }
        let waits = self.look(at).standing(self.live);
        let untried = self.look(at).undo_attempts == 0 && matches!(waits, Some(Standing::Pending { attempts: 0, .. }));
        let step = self.step(at);
        (step.progress, step.output) = (Progress::Done, output);
        if untried && self.take_back(at) {
            self.advance();
        }
    }

    /// It was done, and a person had said before that it was undone. Nobody knows whether he saw it: he is asked again.
    fn done_after_resolve(&mut self, at: usize, output: Option<Value>) {
        let saga = &mut self.next.snapshot;
        if saga.direction == Direction::Forward || matches!(saga.ended, Some(Ended::Abandoned)) {
            return;
        }
        saga.ended = None;
        let step = self.step(at);
        (step.progress, step.output) = (Progress::Done, output);
        self.hold_undo(
            at,
            "late",
            "it was done, as was heard after its compensation had been resolved by hand",
        );
    }

    /// Its compensation waits for a person.
    fn hold_undo(&mut self, at: usize, code: &str, why: &str) {
        let step = self.step(at);
        (step.undo, step.resolved) = (Undo::Held, false);
        (step.code, step.error) = (Some(code.to_owned()), Some(why.to_owned()));
        self.log("held", Some(at), why);
    }

    /// One more is to be undone: what comes after it waits for it, unless somebody is at that.
    fn in_order_again(&mut self) {
        for at in 0..self.count() {
            let step = self.look(at);
            let undoing = step.carrier.is_some_and(|carrier| carrier.role == Role::Undo);
            if undoing && step.undo == Undo::Open {
                self.take_back(at);
            }
        }
    }

    /// What nobody is at is taken back.
    fn stop(&mut self) {
        for at in 0..self.count() {
            let step = self.look(at);
            if step.stuck.is_none() && step.undo != Undo::Held {
                self.take_back(at);
            }
        }
    }
}

/// What was said about a failure.
fn said(answer: &Answered) -> (Option<&str>, Option<&str>) {
    match answer {
        Answered::Done(_) | Answered::NotDone => (None, None),
        Answered::Retry { code, error, .. }
        | Answered::Rejected { code, error }
        | Answered::Unknown { code, error }
        | Answered::NoHandler { code, error } => (Some(code), Some(error)),
    }
}
