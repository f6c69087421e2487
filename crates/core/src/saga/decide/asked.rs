//! What operators ask for.

use serde_json::Value;
use std::time::Duration;

use super::{
    super::{Direction, Ended, HeldReason, Progress, Role, StepSnapshot, Undo, snapshot::Late},
    Refused, Verb, Work,
};
use crate::text;

fn refused<T>(why: impl Into<String>) -> Result<T, Refused> {
    Err(Refused(why.into()))
}

impl Work<'_> {
    pub(super) fn asked(&mut self, verb: &Verb, actor: &str, note: &str) -> Result<(), Refused> {
        let of_compensated =
            matches!(verb, Verb::Replay { .. }) && self.next.snapshot.ended == Some(Ended::Compensated);
        if let (Some(ended), false) = (self.next.snapshot.ended, of_compensated) {
            let how = match ended {
                Ended::Completed => "completed",
                Ended::Compensated => "compensated",
                Ended::Abandoned => "abandoned",
            };
            return refused(format!("the saga is {how}"));
        }
        match verb {
            Verb::Pause => {
                self.next.snapshot.paused = true;
                self.stop();
            }
            Verb::Quarantine => {
                self.next.snapshot.quarantined = Some(text::error_text(note));
                self.stop();
            }
            Verb::Resume => {
                let saga = &mut self.next.snapshot;
                if !saga.paused && saga.quarantined.is_none() {
                    return refused("the saga is neither paused nor quarantined");
                }
                (saga.paused, saga.quarantined) = (false, None);
                self.advance();
            }
            Verb::Retry { step } => {
                let at = self.free_step(step)?;
                self.may_send()?;
                self.retry(at)?;
            }
            Verb::Complete { step, output } => {
                let at = self.free_step(step)?;
                self.complete(at, output)?;
            }
            Verb::Skip { step } => {
                let at = self.free_step(step)?;
                self.skip(at)?;
            }
            Verb::Compensate { past_pivot } => {
                if !self.is_forward() {
                    let more = match self.failed_undos().is_empty() {
                        true => String::new(),
                        false => format!(
                            "; to try again what has failed: posthouse saga replay {} --note TEXT",
                            self.id
                        ),
                    };
                    return refused(format!("the saga is being compensated already{more}"));
                }
                if let (Some(at), false, false) = (self.definition.pivot(), *past_pivot, self.may_turn_back()) {
                    let name = &self.def(at).name;
                    return refused(format!(
                        "the pivot {name:?} was done, may have been done, or is being sent; to compensate all the same, type: posthouse saga compensate --past-pivot {} --note TEXT",
                        self.id
                    ));
                }
                let why = if note.is_empty() {
                    String::new()
                } else {
                    format!(": {note}")
                };
                self.turn_back(format!("{actor} asked for it{why}"));
            }
            Verb::Resolve { step } => {
                let at = self.free_step(step)?;
                let open = match self.look(at).undo {
                    Undo::Open => self.needs_undo(at) || self.is_in_doubt(at),
                    Undo::Held => true,
                    Undo::Compensated => false,
                };
                if !self.is_backward() || !open {
                    return refused(format!("step {step:?} has no compensation that waits"));
                }
                self.take_back(at);
                self.step(at).resolved = true;
                self.is_undone(at);
            }
            Verb::Replay { again: false } => self.replay()?,
            Verb::Replay { again: true } => self.do_again()?,
            Verb::Abandon => {
                for at in 0..self.count() {
                    self.take_back(at);
                }
                self.end(Ended::Abandoned);
            }
        }
        Ok(())
    }

    /// A step that nobody is at.
    fn free_step(&self, name: &str) -> Result<usize, Refused> {
        let Some(at) = self.definition.find(name) else {
            let names: Vec<_> = self.definition.steps().iter().map(|step| step.name.as_str()).collect();
            return refused(format!("there is no step {name:?}; there are {}", names.join(", ")));
        };
        if self.is_leased(at) {
            return refused(format!(
                "somebody is at step {name:?} just now; wait until that has ended"
            ));
        }
        Ok(at)
    }

    fn may_send(&self) -> Result<(), Refused> {
        if self.is_stopped() {
            return refused("the saga is paused or quarantined; resume it first");
        }
        Ok(())
    }

    fn retry(&mut self, at: usize) -> Result<(), Refused> {
        let step = self.look(at);
        match (self.next.snapshot.direction, step.progress) {
            (Direction::Backward, _) => {
                if step.undo == Undo::Compensated || !(self.needs_undo(at) || self.can_be_asked(at)) {
                    return refused(format!("there is nothing to undo in step {:?}", self.def(at).name));
                }
                self.undo_once_more(&[at]);
            }
            (Direction::Forward, Progress::Ready | Progress::Uncertain | Progress::Rejected) => self.once_more(at),
            (Direction::Forward, Progress::Waiting | Progress::Done | Progress::Skipped | Progress::NotDone) => {
                return refused(self.how_it_stands(at));
            }
        }
        Ok(())
    }

    /// Why nothing can be done about a step.
    fn how_it_stands(&self, at: usize) -> String {
        let (name, step) = (&self.def(at).name, self.look(at));
        match step.progress {
            Progress::Waiting => format!("others come before step {name:?}"),
            Progress::Done => format!("step {name:?} is done"),
            Progress::Skipped => format!("step {name:?} was left out"),
            Progress::NotDone => format!("step {name:?} was sent and not done, and the saga is being compensated"),
            Progress::Ready | Progress::Rejected | Progress::Uncertain => {
                format!("the saga goes back, and step {name:?} with it")
            }
        }
    }

    /// Compensations are sent now, with a new budget, in their order.
    fn undo_once_more(&mut self, these: &[usize]) {
        self.in_order_again();
        for at in these {
            self.take_back(*at);
            let step = self.step(*at);
            (step.undo, step.undo_attempts) = (Undo::Open, 0);
            (step.verifies, step.denials) = (0, 0);
            if self.is_in_doubt(*at) {
                self.send(*at, Role::Verify, Duration::ZERO);
            }
        }
        self.advance();
    }

    /// Whether the participant can be asked if the pivot was done, which nothing undoes.
    fn can_be_asked(&self, at: usize) -> bool {
        self.is_pivot_in_doubt(at) && self.def(at).verify.is_some()
    }

    /// Compensations that failed, and can be tried again.
    fn failed_undos(&self) -> Vec<usize> {
        let open = |at: &usize| self.needs_undo(*at) || self.can_be_asked(*at);
        let failed = |at: &usize| self.look(*at).undo == Undo::Held && open(at);
        (0..self.count()).filter(failed).collect()
    }

    /// A step is sent now, whatever is known of it, with a new budget.
    fn once_more(&mut self, at: usize) {
        self.take_back(at);
        // An operator who retries a step after the deadline wants the saga to go on without one.
        if self.is_overdue() {
            (self.next.snapshot.overdue, self.next.snapshot.deadline) = (false, None);
            self.drop_timer();
        }
        let step = self.step(at);
        (step.stuck, step.attempts, step.verifies) = (None, 0, 0);
        // A question that is asked at once is no second one.
        step.denials = 0;
        step.progress = Progress::Ready;
        if let Some(Late { role: Role::Do, output }) = step.late.take() {
            self.is_done(at, output);
            return;
        }
        let role = match self.look(at).tainted && self.def(at).verify.is_some() {
            true => Role::Verify,
            false => Role::Do,
        };
        self.send(at, role, Duration::ZERO);
        self.advance();
    }

    fn complete(&mut self, at: usize, output: &Value) -> Result<(), Refused> {
        let step = self.look(at);
        // Or it does not fit together with others into the message of one that takes it.
        let waits =
            |later: usize| self.look(later).stuck == Some(HeldReason::Output) && self.def(later).input.takes(at);
        let lost = step.output.is_none() || (0..self.count()).any(waits);
        let progress = step.progress;
        match (self.next.snapshot.direction, progress) {
            (Direction::Forward, Progress::Ready | Progress::Uncertain | Progress::Rejected)
            | (Direction::Backward, Progress::Uncertain)
                if self.look(at).undo == Undo::Open =>
            {
                self.take_back(at);
                self.is_done(at, Some(output.clone()));
            }
            (Direction::Forward, Progress::Done) if lost => {
                self.replace_output(at, output);
                for later in 0..self.count() {
                    if self.look(later).stuck == Some(HeldReason::Output) {
                        self.step(later).stuck = None;
                    }
                }
                self.advance();
            }
            // What undoes it may have failed for want of it. It is tried again when a person says so.
            (Direction::Backward, Progress::Done | Progress::Uncertain) if self.look(at).undo == Undo::Held => {
                let known = self.look(at).output.as_ref().is_some_and(|known| !known.is_null());
                if known && output.is_null() {
                    return refused(format!(
                        "what step {:?} answered is known; null would take it away",
                        self.def(at).name
                    ));
                }
                self.step(at).progress = Progress::Done;
                self.replace_output(at, output);
            }
            _ => return refused(self.how_it_stands(at)),
        }
        Ok(())
    }

    /// A person knows better what it answered.
    fn replace_output(&mut self, at: usize, output: &Value) {
        if let Some(before) = self.step(at).output.replace(output.clone()) {
            let bytes = before.to_string().len();
            self.log("replaced", Some(at), &format!("what it had answered, {bytes} bytes"));
        }
    }

    fn skip(&mut self, at: usize) -> Result<(), Refused> {
        if !self.is_forward() {
            return refused("the saga is being compensated; resolve a compensation instead");
        }
        if self.look(at).has_passed() {
            return refused(self.how_it_stands(at));
        }
        let waits = |later: &usize| self.def(*later).input.takes(at) && !self.look(*later).has_passed();
        let taking = (0..self.count()).find(waits);
        if let Some(later) = taking {
            let name = &self.def(later).name;
            return refused(format!(
                "step {name:?} takes its output; complete it with an output instead"
            ));
        }
        self.take_back(at);
        let step = self.step(at);
        (step.progress, step.stuck, step.by_hand) = (Progress::Skipped, None, true);
        self.advance();
        Ok(())
    }

    /// What failed is tried again: steps, or what undoes them.
    fn replay(&mut self) -> Result<(), Refused> {
        if self.next.snapshot.ended == Some(Ended::Compensated) {
            self.may_do_again()?;
            return refused(format!(
                "the saga is compensated; to do it all once more, under new keys, say that it is meant: posthouse saga replay --again {} --note TEXT",
                self.id
            ));
        }
        self.may_send()?;
        if self.is_backward() {
            let failed = self.failed_undos();
            if failed.is_empty() && self.next.snapshot.steps.iter().any(|step| step.undo == Undo::Held) {
                return refused("nothing undoes what was done; resolve it when that is seen to");
            }
            if failed.is_empty() {
                return refused("it is being compensated; wait until that has ended");
            }
            self.undo_once_more(&failed);
            return Ok(());
        }
        let stuck: Vec<_> = (0..self.count()).filter(|at| self.look(*at).stuck.is_some()).collect();
        if stuck.is_empty() {
            return refused("nothing in it has failed");
        }
        stuck.into_iter().for_each(|at| self.once_more(at));
        Ok(())
    }

    /// A saga that was compensated does everything once more.
    fn do_again(&mut self) -> Result<(), Refused> {
        if self.next.snapshot.ended.is_none() {
            let state = self.next.snapshot.state().0;
            return refused(format!(
                "the saga is {state}, and not compensated; to try again what has failed in it: posthouse saga replay {} --note TEXT",
                self.id
            ));
        }
        self.may_do_again()?;
        let saga = &mut self.next.snapshot;
        (saga.direction, saga.ended, saga.cause, saga.overdue) = (Direction::Forward, None, None, false);
        for at in 0..self.count() {
            self.take_back(at);
            let anew = self.anew(at);
            let step = self.step(at);
            match anew {
                Anew::Kept => {}
                // What may have happened is asked about first, as it was before.
                Anew::InDoubt => {
                    (step.progress, step.attempts, step.verifies) = (Progress::Waiting, 0, 0);
                    step.denials = 0;
                }
                // Under the old key a participant would answer as it did, or refuse it because it was undone.
                Anew::Afresh => {
                    let run = step.run + u32::from(step.started.is_some());
                    *step = StepSnapshot {
                        run,
                        ..StepSnapshot::default()
                    };
                }
            }
        }
        self.drop_timer();
        self.set_timer();
        self.advance();
        Ok(())
    }

    fn may_do_again(&self) -> Result<(), Refused> {
        for at in 0..self.count() {
            let fresh = |from: &usize| self.def(at).input.takes(*from) && self.anew(*from) == Anew::Afresh;
            if self.anew(at) == Anew::InDoubt && (0..at).any(|from| fresh(&from)) {
                return refused(format!(
                    "the saga is compensated, and cannot be done once more: step {:?} was in doubt, nothing undoes it, and it would be given something else under its old key. Find out whether it was done, undo it by hand if it was, and start a saga under another key",
                    self.def(at).name
                ));
            }
        }
        Ok(())
    }

    /// What becomes of a step when everything is done once more.
    fn anew(&self, at: usize) -> Anew {
        let step = self.look(at);
        let undone = step.undo == Undo::Compensated;
        match step.progress {
            Progress::Done if !undone => Anew::Kept,
            Progress::Skipped if step.by_hand || step.tainted && !undone => Anew::Kept,
            Progress::Uncertain if !undone => Anew::InDoubt,
            _ if step.doubted && !undone => Anew::InDoubt,
            _ => Anew::Afresh,
        }
    }
}

/// What becomes of a step when everything is done once more.
#[derive(PartialEq, Eq)]
enum Anew {
    /// It stays as it is: nothing has undone it.
    Kept,
    /// It goes on under its old key. Nothing undoes it, and what is on its way may arrive yet: under another key it might be done twice.
    InDoubt,
    /// It begins as if it had not been there, under a new key.
    Afresh,
}
