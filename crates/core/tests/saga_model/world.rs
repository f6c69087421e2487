//! One saga, its messages, who is at them, and what its participants have really done.

use posthouse_core::{
    Limits, MessageId, SagaId, Timestamp,
    saga::{
        Answered, Ctx, Decision, Direction, Ended, Event, HeldReason, Live, Own, Progress, Role, SagaState, Snapshot,
        Standing, Undo, Verb, decide,
    },
};
use serde_json::Value;
use uuid::Uuid;

use std::time::Duration;

use super::{
    ALL_DONE, ALONE, BUDGET, Bug, DEADLINE_MS, FINAL, FORWARD, GOES_ON, IN_TIME, KNOWN, Kind, ONCE, ORDER, PIVOT_KNOWN,
    QUIET, Saga, UNDONE,
};

const ID: SagaId = SagaId(Uuid::from_u128(1));

/// There are two times: before the deadline, and after it. Both are before 1970, so that a message has the same id in both, and the states are fewer.
fn ctx(late: bool) -> Ctx {
    let deadline = Duration::from_millis(DEADLINE_MS);
    let began = Timestamp::from_micros(-2_000_000);
    Ctx {
        now: if late { began.plus(deadline) } else { began },
        began,
        roll: 0.5,
        payload_bytes: 1 << 20,
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct World {
    snapshot: Snapshot,
    rev: u16,
    messages: Vec<Sent>,
    /// What lost its lease, and may still do or say something.
    ghosts: Vec<Ghost>,
    /// By step and run.
    truth: Vec<Vec<Truth>>,
    faults: u8,
    verbs: u8,
    /// The deadline has passed.
    late: bool,
    /// An operator has compensated it past its pivot.
    forced: bool,
    pub broken: Option<&'static str>,
}

/// A message.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Sent {
    id: MessageId,
    role: Role,
    step: Option<(usize, u32)>,
    place: Place,
    epoch: u64,
    attempts: u32,
    /// It lapses at the deadline: a relay does not send it after that.
    lapses: bool,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Place {
    Pending,
    Claimed,
    Answered(Answered),
    /// Whoever is at it has loaded the saga, and is about to settle.
    Loaded(Answered, u16, Box<(Snapshot, Live)>),
    Dead,
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Ghost {
    step: usize,
    run: u32,
    role: Role,
    /// Its request has not arrived yet.
    floats: bool,
    answer: Option<Answered>,
}

/// What a participant has really done.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Truth {
    effects: u8,
    undone: bool,
    undo_claims: u32,
    do_claims: u32,
    /// An operator has vouched for it.
    vouched: bool,
}

/// What comes back from a participant.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Reply {
    Done,
    Retry,
    Rejected,
    /// It was done, and nobody heard of it.
    LostAfter,
    /// It never arrived.
    LostBefore,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Action {
    Claim(usize),
    Reply(usize, Reply),
    Load(usize),
    Commit(usize),
    /// It goes back unsent.
    Release(usize),
    /// The deadline passes.
    Deadline,
    /// The relay looks at the clock right before the send, and it is too late.
    Lapse(usize),
    /// The lease runs out and somebody takes it back.
    Expire(usize),
    GhostArrives(usize),
    GhostVanishes(usize),
    GhostReports(usize),
    Ask(Verb),
}

fn said(answer: &str) -> (String, String) {
    (answer.to_owned(), String::new())
}

impl World {
    pub fn new(saga: &Saga) -> Self {
        let snapshot = Snapshot::new(&saga.definition, Value::Null);
        let mut world = Self {
            truth: vec![vec![Truth::default()]; snapshot.steps.len()],
            snapshot,
            rev: 0,
            messages: Vec::new(),
            ghosts: Vec::new(),
            faults: saga.faults,
            verbs: saga.verbs,
            late: false,
            forced: false,
            broken: None,
        };
        let decision = decide(
            &saga.definition,
            ID,
            &world.snapshot,
            &Live::new(),
            &Event::Started,
            ctx(false),
        );
        world.store(saga, decision.unwrap());
        world
    }

    pub fn actions(&self, saga: &Saga, actions: &mut Vec<Action>) {
        // No rule looks at the clock while the saga is compensated, or after its end: a deadline that passes then makes only more states.
        let forward = self.snapshot.direction == Direction::Forward && self.snapshot.ended.is_none();
        if !self.late && forward && saga.definition.deadline().is_some() {
            actions.push(Action::Deadline);
        }
        for (at, message) in self.messages.iter().enumerate() {
            match &message.place {
                Place::Pending if message.role == Role::Timer && !self.late => continue,
                Place::Pending => actions.push(Action::Claim(at)),
                Place::Claimed if self.is_too_late(saga, message) => actions.push(Action::Lapse(at)),
                Place::Claimed if self.is_at_work(saga, message) => {}
                Place::Claimed => {
                    actions.push(Action::Reply(at, Reply::Done));
                    if self.faults > 0 {
                        actions.push(Action::Release(at));
                    }
                    if self.faults > 0 && message.role != Role::Timer {
                        let bad = [Reply::Retry, Reply::Rejected, Reply::LostAfter, Reply::LostBefore];
                        actions.extend(bad.map(|reply| Action::Reply(at, reply)));
                    }
                }
                Place::Answered(_) => actions.push(Action::Load(at)),
                Place::Loaded(..) => actions.push(Action::Commit(at)),
                Place::Dead | Place::Over => continue,
            }
            if self.faults > 0 && message.place != Place::Pending {
                actions.push(Action::Expire(at));
            }
        }
        for (at, ghost) in self.ghosts.iter().enumerate() {
            if ghost.floats && Self::can_find(saga, ghost.step) {
                actions.push(Action::GhostVanishes(at));
            }
            actions.push(if ghost.floats {
                Action::GhostArrives(at)
            } else {
                Action::GhostReports(at)
            });
        }
        if self.verbs > 0 {
            let steps = saga.definition.steps().iter().map(|step| step.name.clone());
            for step in steps {
                let output = Value::Null;
                actions.extend([
                    Action::Ask(Verb::Retry { step: step.clone() }),
                    Action::Ask(Verb::Complete {
                        step: step.clone(),
                        output,
                    }),
                    Action::Ask(Verb::Skip { step: step.clone() }),
                    Action::Ask(Verb::Resolve { step }),
                ]);
            }
            actions.extend([
                Action::Ask(Verb::Pause),
                Action::Ask(Verb::Quarantine),
                Action::Ask(Verb::Compensate { past_pivot: false }),
                Action::Ask(Verb::Compensate { past_pivot: true }),
                Action::Ask(Verb::Replay { again: false }),
                Action::Ask(Verb::Replay { again: true }),
                Action::Ask(Verb::Abandon),
            ]);
        }
        // To go on costs nothing, or a pause would end every story.
        if self.snapshot.paused || self.snapshot.quarantined.is_some() {
            actions.push(Action::Ask(Verb::Resume));
        }
    }

    /// Whether it is possible at all.
    pub fn act(&mut self, saga: &Saga, action: Action) -> bool {
        match action {
            Action::Claim(at) => self.claim(saga, at),
            Action::Reply(at, reply) => self.reply(saga, at, reply),
            Action::Load(at) => {
                let Place::Answered(answer) = self.messages[at].place.clone() else {
                    return false;
                };
                let loaded = Box::new((self.snapshot.clone(), self.live()));
                self.messages[at].place = Place::Loaded(answer, self.rev, loaded);
            }
            Action::Commit(at) => self.commit(saga, at),
            Action::Release(at) => return self.release(saga, at, true),
            Action::Deadline => self.late = true,
            Action::Lapse(at) => return self.release(saga, at, false),
            Action::Expire(at) => self.expire(saga, at),
            Action::GhostArrives(at) => self.ghost_arrives(saga, at),
            Action::GhostVanishes(at) => {
                self.ghosts.remove(at);
            }
            Action::GhostReports(at) => return self.ghost_reports(saga, at),
            Action::Ask(verb) => return self.ask(saga, verb),
        }
        true
    }

    /// Whether a relay does not send it, because it has lapsed.
    fn is_too_late(&self, saga: &Saga, message: &Sent) -> bool {
        self.late && message.lapses && saga.bug != Some(Bug::LateFirstSend)
    }

    /// Whether it is a pivot whose participant can be asked: two questions are far enough apart that it has done what it was sent, or never will, before the second.
    fn can_find(saga: &Saga, step: usize) -> bool {
        saga.definition.steps()[step].pivot && saga.kinds[step].is_asked()
    }

    /// Whether it is the second question, and the participant is at work on what it was sent yet.
    fn is_at_work(&self, saga: &Saga, message: &Sent) -> bool {
        let (Some((step, _)), Role::Verify) = (message.step, message.role) else {
            return false;
        };
        let under_way = |ghost: &Ghost| ghost.step == step && ghost.role == Role::Do && ghost.floats;
        let second = self.snapshot.steps[step].denials > 0;
        Self::can_find(saga, step) && second && self.ghosts.iter().any(under_way)
    }

    fn breaks(&mut self, promise: &'static str) {
        self.broken.get_or_insert(promise);
    }

    fn live(&self) -> Live {
        let standing = |message: &Sent| match message.place {
            Place::Pending => Some(Standing::Pending {
                epoch: message.epoch,
                attempts: message.attempts,
            }),
            Place::Claimed | Place::Answered(_) | Place::Loaded(..) => Some(Standing::Leased),
            Place::Dead => Some(Standing::Dead { epoch: message.epoch }),
            Place::Over => None,
        };
        let live = self.messages.iter();
        live.filter_map(|message| Some((message.id, standing(message)?)))
            .collect()
    }

    fn truth(&mut self, step: usize, run: u32) -> &mut Truth {
        let runs = &mut self.truth[step];
        let at = run as usize - 1;
        while runs.len() <= at {
            runs.push(Truth::default());
        }
        &mut runs[at]
    }

    fn claim(&mut self, saga: &Saga, at: usize) {
        let message = &mut self.messages[at];
        message.place = Place::Claimed;
        message.epoch += 1;
        message.attempts += 1;
        let (step, role) = (message.step, message.role);
        if let (Some((step, run)), Role::Do) = (step, role) {
            self.begins(saga, step, run);
        }
        let (Some((step, run)), Role::Undo) = (step, role) else {
            return;
        };
        self.truth(step, run).undo_claims += 1;
        let is_at_it = |message: &Sent| {
            message.step.is_some_and(|(other, _)| other == step)
                && message.role != Role::Undo
                && matches!(message.place, Place::Claimed | Place::Answered(_) | Place::Loaded(..))
        };
        if self.messages.iter().any(is_at_it) {
            self.breaks(ALONE);
        }
        let pivot = saga.definition.pivot();
        let done = |pivot: usize| self.truth[pivot].iter().any(|truth| truth.effects > 0);
        if !self.forced && pivot.is_some_and(done) {
            self.breaks(FORWARD);
        }
        for later in saga.definition.behind(step) {
            let (snapshot, truth) = (&self.snapshot.steps[later], self.truth[later].last());
            let undoable = saga.definition.steps()[later].compensate.is_some();
            let there = undoable && truth.is_some_and(|truth| truth.effects > 0 && !truth.undone);
            if there && snapshot.undo != Undo::Held {
                self.breaks(ORDER);
            }
        }
    }

    /// A step is about to be sent.
    fn begins(&mut self, saga: &Saga, step: usize, run: u32) {
        self.truth(step, run).do_claims += 1;
        let most = saga.definition.steps()[step].retry.budget(Limits::ATTEMPTS);
        if self.verbs == saga.verbs && self.truth(step, run).do_claims > most {
            self.breaks(BUDGET);
        }
        let passed = |before: usize| {
            let progress = self.snapshot.steps[before].progress;
            matches!(progress, Progress::Done | Progress::Skipped)
        };
        if !saga.definition.before(step).all(passed) {
            self.breaks(ORDER);
        }
    }

    fn release(&mut self, saga: &Saga, at: usize, is_fault: bool) -> bool {
        self.faults -= u8::from(is_fault);
        let message = &mut self.messages[at];
        message.attempts -= 1;
        if let (Some((step, run)), role) = (message.step, message.role) {
            let truth = self.truth(step, run);
            match role {
                Role::Do => truth.do_claims -= 1,
                Role::Undo => truth.undo_claims -= 1,
                Role::Verify | Role::Timer => {}
            }
        }
        let (message, attempts) = (self.messages[at].id, self.messages[at].attempts);
        let event = match is_fault {
            true => Event::Released {
                message,
                attempts,
                after: Duration::ZERO,
            },
            false => Event::Lapsed { message, attempts },
        };
        let (snapshot, live) = (self.snapshot.clone(), self.live());
        let Some(decision) = self.decide(saga, &snapshot, &live, &event) else {
            return false;
        };
        if saga.bug == Some(Bug::BlindRelease) {
            self.messages[at].place = Place::Pending;
            self.judge(saga, &snapshot);
            return true;
        }
        self.put(at, decision.own);
        self.store(saga, decision);
        true
    }

    /// What a participant does when a request arrives; and what it answers, if it agrees.
    fn arrives(&mut self, saga: &Saga, step: usize, run: u32, role: Role) -> Answered {
        let kind = saga.kinds[step];
        let forgets = saga.bug == Some(Bug::NoTombstone);
        let truth = self.truth(step, run);
        let (code, error) = said("tombstone");
        match role {
            Role::Do if kind == Kind::Naive => truth.effects += 1,
            Role::Do if truth.undone && !(forgets && truth.effects == 0) => return Answered::Rejected { code, error },
            Role::Do => {
                truth.effects = 1;
                truth.undone = false;
            }
            Role::Verify if truth.effects == 0 => return Answered::NotDone,
            Role::Undo => truth.undone = true,
            Role::Verify | Role::Timer => {}
        }
        if truth.effects > 1 {
            self.breaks(ONCE);
        }
        Answered::Done(Some(Value::Null))
    }

    fn reply(&mut self, saga: &Saga, at: usize, reply: Reply) {
        let Sent { step, role, .. } = self.messages[at];
        let Some((step, run)) = step else {
            self.messages[at].place = Place::Answered(Answered::Done(None));
            return;
        };
        let (code, error) = said("x");
        if reply != Reply::Done {
            self.faults -= 1;
        }
        let deadline = self.snapshot.deadline.map(Duration::from_micros);
        let over = self.late && deadline.is_some_and(|after| after <= Duration::from_millis(DEADLINE_MS));
        let ends = over && saga.definition.is_up_to_pivot(step);
        if role == Role::Do && ends && !self.snapshot.steps[step].tainted {
            self.breaks(IN_TIME);
        }
        let answer = match reply {
            Reply::Done => self.arrives(saga, step, run, role),
            Reply::Retry => Answered::Retry {
                after: None,
                code,
                error,
            },
            Reply::Rejected => Answered::Rejected { code, error },
            Reply::LostAfter => {
                self.arrives(saga, step, run, role);
                Answered::Unknown { code, error }
            }
            Reply::LostBefore => Answered::Unknown { code, error },
        };
        self.messages[at].place = Place::Answered(answer);
    }

    fn commit(&mut self, saga: &Saga, at: usize) {
        let Place::Loaded(answer, rev, loaded) = self.messages[at].place.clone() else {
            return;
        };
        if rev != self.rev && saga.bug != Some(Bug::TwoDrivers) {
            // Stale: it loads again.
            self.messages[at].place = Place::Answered(answer);
            return;
        }
        let (snapshot, live) = *loaded;
        self.settle(saga, at, &answer, &snapshot, &live);
    }

    fn settle(&mut self, saga: &Saga, at: usize, answer: &Answered, snapshot: &Snapshot, live: &Live) {
        let message = &self.messages[at];
        let (id, role, mut attempt, step) = (message.id, message.role, message.attempts, message.step);
        let (mut snapshot, mut answer) = (snapshot.clone(), answer.clone());
        let failed = matches!(answer, Answered::Retry { .. } | Answered::Unknown { .. });
        let of_step = step.map(|(step, _)| &mut snapshot.steps[step]);
        match (saga.bug, role, of_step) {
            (Some(Bug::FailedUndoCounts), Role::Undo, _) if failed => answer = Answered::Done(None),
            (Some(Bug::HeldCounts), Role::Undo, _) if matches!(answer, Answered::Rejected { .. }) => {
                answer = Answered::Done(None);
            }
            (Some(Bug::SharedCounter), Role::Undo, Some(step)) => attempt += step.attempts,
            (Some(Bug::UnknownIsFailure), Role::Do, _) if matches!(answer, Answered::Unknown { .. }) => {
                let (code, error) = said("x");
                let after = None;
                answer = Answered::Retry { after, code, error };
            }
            (Some(Bug::TaintWashed), Role::Do, Some(step)) if matches!(answer, Answered::Rejected { .. }) => {
                (step.tainted, step.doubted) = (false, false);
            }
            _ => {}
        }
        let event = Event::Ended {
            message: id,
            attempt,
            answer,
        };
        let Some(decision) = self.decide(saga, &snapshot, live, &event) else {
            return;
        };
        if saga.bug == Some(Bug::LostSave) && failed {
            self.put(at, decision.own);
            return;
        }
        if !self.stands(saga, &decision) {
            // What was to be taken back is somebody's: it loads again.
            if let Place::Loaded(answer, ..) = &self.messages[at].place {
                self.messages[at].place = Place::Answered(answer.clone());
            }
            return;
        }
        let exhausted = decision.own == Some(Own::Dead(posthouse_core::DeadReason::Exhausted));
        if let (true, Role::Undo, Some((step, run)), true) = (exhausted, role, step, self.verbs == saga.verbs)
            && self.truth(step, run).undo_claims
                != saga.definition.steps()[step].compensate_retry.budget(Limits::ATTEMPTS)
        {
            self.breaks(BUDGET);
        }
        self.put(at, decision.own);
        self.store(saga, decision);
    }

    fn decide(&self, saga: &Saga, snapshot: &Snapshot, live: &Live, event: &Event) -> Option<Decision> {
        let mut definition = saga.definition.clone();
        let mut snapshot = snapshot.clone();
        let mut live = live.clone();
        match saga.bug {
            Some(Bug::PivotIgnored) => {
                let mut declared: posthouse_core::saga::Declared = serde_json::from_str(&definition.json()).unwrap();
                declared.steps.iter_mut().for_each(|step| step.pivot = false);
                definition = declared.compile().unwrap();
            }
            Some(Bug::ForwardOrder) => {
                let mut declared: posthouse_core::saga::Declared = serde_json::from_str(&definition.json()).unwrap();
                let backward = snapshot.direction == Direction::Backward;
                for (written, step) in declared.steps.iter_mut().zip(&mut snapshot.steps).filter(|_| backward) {
                    written.after = Some(Vec::new());
                    step.started = step.started.map(|n| u32::MAX - n);
                }
                definition = declared.compile().unwrap();
            }
            Some(Bug::ShortSighted) => {
                let mut declared: posthouse_core::saga::Declared = serde_json::from_str(&definition.json()).unwrap();
                let passed = |name: &str| {
                    let at = saga.definition.find(name).unwrap();
                    matches!(snapshot.steps[at].progress, Progress::Done | Progress::Skipped)
                };
                // As if nothing were before what has passed.
                for written in &mut declared.steps {
                    if passed(&written.name) {
                        written.after = Some(Vec::new());
                    }
                }
                definition = declared.compile().unwrap();
            }
            Some(Bug::DoubtForgotten) => {
                let replays = matches!(
                    event,
                    Event::Asked {
                        verb: Verb::Replay { .. },
                        ..
                    }
                );
                for step in snapshot.steps.iter_mut().filter(|_| replays) {
                    step.doubted = false;
                }
            }
            Some(Bug::BlindWithdrawal) => {
                let (own, epoch) = (event_message(event), u64::MAX);
                for (id, standing) in &mut live {
                    if *standing == Standing::Leased && Some(*id) != own {
                        *standing = Standing::Dead { epoch };
                    }
                }
            }
            Some(Bug::PivotUnasked) => {
                if let Event::Asked {
                    verb: Verb::Compensate { past_pivot: true },
                    ..
                } = event
                {
                    snapshot.steps.iter_mut().for_each(|step| step.tainted = false);
                }
            }
            Some(Bug::OneQuestion) => snapshot.steps.iter_mut().for_each(|step| step.denials = 1),
            _ => {}
        }
        let late = self.late && saga.bug != Some(Bug::LateFirstSend);
        decide(&definition, ID, &snapshot, &live, event, ctx(late)).ok()
    }

    /// Whether all that is to be taken back stands as it stood.
    fn stands(&self, saga: &Saga, decision: &Decision) -> bool {
        let is = |id: MessageId, epoch: u64| {
            let found = self.messages.iter().find(|message| message.id == id);
            found.is_some_and(|message| message.epoch == epoch && matches!(message.place, Place::Pending | Place::Dead))
        };
        let blind = matches!(saga.bug, Some(Bug::BlindWithdrawal | Bug::TwoDrivers));
        blind || decision.withdraw.iter().all(|one| is(one.message, one.epoch))
    }

    fn put(&mut self, at: usize, own: Option<Own>) {
        self.messages[at].place = match own {
            Some(Own::Delivered | Own::Concluded) | None => Place::Over,
            Some(Own::Again(_) | Own::Released(_)) => Place::Pending,
            Some(Own::Dead(_)) => Place::Dead,
        };
    }

    /// What the store does with a decision.
    fn store(&mut self, saga: &Saga, decision: Decision) {
        let before = std::mem::replace(&mut self.snapshot, decision.snapshot);
        if saga.bug == Some(Bug::ForgetsDone) {
            let done = before.steps.iter().position(|step| step.progress == Progress::Done);
            if let Some(at) = done {
                self.snapshot.steps[at].progress = Progress::Skipped;
            }
        }
        self.rev += 1;
        for one in &decision.withdraw {
            if let Some(message) = self.messages.iter_mut().find(|message| message.id == one.message) {
                message.place = Place::Over;
            }
        }
        for errand in decision.sends {
            self.messages.push(Sent {
                id: errand.message,
                role: errand.role,
                step: errand.step,
                place: Place::Pending,
                epoch: 0,
                attempts: 0,
                lapses: errand.deliver_by.is_some_and(|at| at <= ctx(true).now),
            });
        }
        self.judge(saga, &before);
    }

    fn expire(&mut self, saga: &Saga, at: usize) {
        self.faults -= 1;
        let message = self.messages[at].clone();
        if let Some((step, run)) = message.step {
            let (floats, answer) = match message.place {
                Place::Answered(answer) | Place::Loaded(answer, ..) => (false, Some(answer)),
                _ => (true, None),
            };
            if !floats || message.role == Role::Do || !Self::can_find(saga, step) {
                self.ghosts.push(Ghost {
                    step,
                    run,
                    role: message.role,
                    floats,
                    answer,
                });
            }
        }
        if saga.bug == Some(Bug::NeverResumed) {
            self.messages[at].place = Place::Over;
            self.judge(saga, &self.snapshot.clone());
            return;
        }
        let (code, error) = said("lease_expired");
        let (snapshot, live) = (self.snapshot.clone(), self.live());
        self.settle(saga, at, &Answered::Unknown { code, error }, &snapshot, &live);
    }

    fn ghost_arrives(&mut self, saga: &Saga, at: usize) {
        let Ghost { step, run, role, .. } = self.ghosts[at];
        let answer = self.arrives(saga, step, run, role);
        let ghost = &mut self.ghosts[at];
        (ghost.floats, ghost.answer) = (false, Some(answer));
        self.judge(saga, &self.snapshot.clone());
    }

    fn ghost_reports(&mut self, saga: &Saga, at: usize) -> bool {
        let Ghost {
            step,
            run,
            role,
            answer,
            ..
        } = self.ghosts.remove(at);
        let Some(answer) = answer else { return true };
        let event = Event::Late {
            step,
            run,
            role,
            answer,
        };
        self.change(saga, &event)
    }

    fn ask(&mut self, saga: &Saga, verb: Verb) -> bool {
        self.forced |= verb == Verb::Compensate { past_pivot: true };
        if verb != Verb::Resume {
            self.verbs -= 1;
        }
        let event = Event::Asked {
            verb: verb.clone(),
            actor: "ann".into(),
            note: String::new(),
        };
        let runs: Vec<u32> = self.snapshot.steps.iter().map(|step| step.run).collect();
        let find = |step: &str| saga.definition.find(step);
        match &verb {
            Verb::Complete { step, .. } => {
                if let Some(at) = find(step) {
                    self.truth(at, runs[at]).vouched = true;
                }
            }
            Verb::Resolve { step } => {
                if let Some(at) = find(step) {
                    self.truth(at, runs[at]).undone = true;
                }
            }
            _ => {}
        }
        self.change(saga, &event)
    }

    fn change(&mut self, saga: &Saga, event: &Event) -> bool {
        let (snapshot, live) = (self.snapshot.clone(), self.live());
        match self.decide(saga, &snapshot, &live, event) {
            Some(decision) => {
                self.store(saga, decision);
                true
            }
            None => false,
        }
    }

    /// What must hold whenever something was written.
    fn judge(&mut self, saga: &Saga, before: &Snapshot) {
        let (state, reason) = self.snapshot.state();
        let waits = self.snapshot.paused || state == SagaState::Held;
        let is_live = |message: &&Sent| !matches!(message.place, Place::Dead | Place::Over);
        let known: Vec<_> = self.snapshot.carriers().collect();
        let under_way = self.messages.iter().filter(is_live);
        // A timer that nobody waits for any more says nothing.
        let unknown = under_way
            .clone()
            .any(|message| message.role != Role::Timer && !known.contains(&message.id));
        let any = under_way.clone().any(|message| message.role != Role::Timer);
        let missing = self
            .snapshot
            .steps
            .iter()
            .filter_map(|step| step.carrier)
            .any(|carrier| {
                let found = self.messages.iter().find(|message| message.id == carrier.message);
                found.is_none_or(|message| message.place == Place::Over)
            });
        let pending = |message: &Sent| message.place == Place::Pending && message.role != Role::Timer;
        let stopped = state.is_over() || self.snapshot.paused || self.snapshot.quarantined.is_some();
        if stopped && self.messages.iter().any(pending) {
            self.breaks(QUIET);
        }
        if unknown && !state.is_over() {
            self.breaks(KNOWN);
        }
        if !state.is_over() && !waits && (!any || missing) {
            self.breaks(GOES_ON);
        }
        self.judge_end(saga, state);
        if state == SagaState::Held && reason == Some(HeldReason::CompensationFailed) && !self.snapshot.paused {
            let open = |(step, def): (&posthouse_core::saga::StepSnapshot, &posthouse_core::saga::StepDef)| {
                step.undo == Undo::Open && step.may_have_happened() && def.compensate.is_some()
            };
            if self.snapshot.steps.iter().zip(saga.definition.steps()).any(open) {
                self.breaks(GOES_ON);
            }
        }
        for (old, new) in before.steps.iter().zip(&self.snapshot.steps) {
            let taken_back = old.progress == Progress::Done && new.progress != Progress::Done;
            if taken_back && new.run == old.run {
                self.broken.get_or_insert(FINAL);
            }
        }
        if before.ended == Some(Ended::Completed) && self.snapshot.ended != Some(Ended::Completed) {
            self.breaks(FINAL);
        }
    }

    fn judge_end(&mut self, saga: &Saga, state: SagaState) {
        for (at, step) in self.snapshot.steps.clone().iter().enumerate() {
            let runs = &self.truth[at];
            let now = &runs.get(step.run as usize - 1).cloned().unwrap_or_default();
            let there = runs.iter().filter(|truth| truth.effects > 0 && !truth.undone).count();
            let reported = self.ghosts.iter().any(|ghost| ghost.step == at && !ghost.floats);
            match state {
                // A pivot that is known to be done was compensated past on purpose.
                SagaState::Compensated
                    if there > 0
                        && !reported
                        && saga.kinds[at].lasts()
                        && saga.definition.steps()[at].pivot
                        && step.progress != Progress::Done =>
                {
                    self.breaks(PIVOT_KNOWN);
                }
                // Under two keys it is there twice.
                SagaState::Completed if there > 1 => self.breaks(ONCE),
                SagaState::Compensated
                    if there > 0 && saga.definition.steps()[at].compensate.is_some() && !reported =>
                {
                    self.breaks(UNDONE);
                }
                SagaState::Completed if step.progress == Progress::Done && now.effects == 0 && !now.vouched => {
                    self.breaks(ALL_DONE);
                }
                SagaState::Completed if step.progress == Progress::Done && now.undone => self.breaks(ALL_DONE),
                _ => {}
            }
        }
    }
}

fn event_message(event: &Event) -> Option<MessageId> {
    match event {
        Event::Ended { message, .. } => Some(*message),
        _ => None,
    }
}
