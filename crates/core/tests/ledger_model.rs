//! The rules of the ledger in every order of events: callers that begin, do, end, stall, crash and come back, with answers that are lost and a clock that goes on.
//!
//! The rules are those of the core. A planted mistake replaces one answer of one rule, and the promise that it breaks must be found broken.

use posthouse_core::{
    LeaseToken, Timestamp,
    ledger::{Answer, Begin, Begun, Conclusion, Entry, EntryKey, Fenced, Fingerprint, Hold, Keep, Kept, Status},
};
use stateright::{Checker, Model, Property};
use std::time::Duration;
use uuid::Uuid;

const TICK: Duration = Duration::from_secs(10);
const LEASE: Duration = Duration::from_secs(20);
const RETENTION: Duration = Duration::from_secs(1000);

/// A mistake that somebody who writes this by hand makes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bug {
    /// Select, then create: nobody asks whether somebody is at it.
    TwinsBothRun,
    /// What is in flight is never free again.
    BusyForEver,
    /// A success is done again.
    SuccessRunsAgain,
    /// A failure for good is done again.
    FailureRunsAgain,
    /// The answer of something else is told.
    MismatchReplays,
    /// What somebody else began, and did not end, is gone on with.
    MismatchTakesOver,
    /// Who takes over is not told that he does.
    SilentTakeover,
    /// The end of one whose time is up counts.
    LateEndCounts,
    /// Whoever ends it has ended it.
    EndWithoutFence,
    /// The effect is committed first, and its record then.
    EffectApart,
    /// What was let go of is held for ever.
    ReleaseKeeps,
    /// Who does it again, because he did not hear the answer, commits that.
    CommitsWhatWasBefore,
}

#[derive(Clone, Copy, Debug)]
struct Ledger {
    callers: &'static [u8],
    ticks: u8,
    bug: Option<Bug>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct World {
    now: u8,
    entry: Option<Entry>,
    callers: Vec<Caller>,
    /// The effects that are committed: what, and whose.
    effects: Vec<(u8, usize)>,
    /// How many tokens were drawn.
    drawn: u8,
    broken: Option<&'static str>,
}

/// A caller of the service: what he wants, what he holds, what he was told.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Caller {
    wants: u8,
    holds: Option<Hold>,
    /// He did it, and was not told whether that was written.
    unsure: bool,
    crashes: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Action {
    Begin(usize),
    /// The effect and the record, in one transaction; the answer is heard or not.
    Finish(usize, bool),
    /// He asks again what became of it.
    Repeat(usize),
    Fail(usize),
    Release(usize),
    Renew(usize),
    /// He forgets all about it, and may come back.
    Crash(usize),
    Tick,
}

const ONCE: &str = "the effect is there once";
const OWN: &str = "an answer is that of the effect that was asked for";
const HOLDER: &str = "one holder at a time";
const FREE: &str = "a dead holder is replaced";
const TOLD: &str = "who takes over is told so";
const STANDS: &str = "an end stands";
const LATE: &str = "a late end changes nothing";
const PROMISES: [&str; 7] = [ONCE, OWN, HOLDER, FREE, TOLD, STANDS, LATE];

fn print(what: u8) -> Fingerprint {
    Fingerprint::of_bytes(&[what])
}

fn ask(what: u8) -> Begin {
    Begin::new(EntryKey::new("orders", "k"), print(what))
        .lease(LEASE)
        .retention(RETENTION)
}

fn made(what: u8, who: usize) -> Kept {
    Answer::bytes(format!("{what} by {who}")).kept(Keep::default())
}

impl World {
    fn time(&self) -> Timestamp {
        Timestamp::from_micros(0).plus(TICK * u32::from(self.now))
    }

    fn is_live(&self, entry: &Entry) -> bool {
        entry.status == Status::InFlight && entry.lease_until.is_some_and(|until| until > self.time())
    }

    /// The rule, or the mistake.
    fn rule(&self, bug: Option<Bug>, who: usize, token: LeaseToken) -> (Option<Entry>, Begun) {
        let (wants, now) = (self.callers[who].wants, self.time());
        let fresh = || Entry::begin(None, &ask(wants), token, now);
        let found = self.entry.clone();
        let Some(entry) = &found else { return fresh() };
        let (same, live) = (entry.fingerprint == print(wants), self.is_live(entry));
        let ended = entry.status != Status::InFlight;
        match bug {
            Some(Bug::TwinsBothRun) if live && same => fresh(),
            Some(Bug::BusyForEver) if !live && !ended => (None, Begun::Busy { retry_after: TICK }),
            Some(Bug::ReleaseKeeps) if !ended && entry.lease_until.is_none() => {
                (None, Begun::Busy { retry_after: TICK })
            }
            Some(Bug::SuccessRunsAgain) if entry.status == Status::Succeeded && same => fresh(),
            Some(Bug::FailureRunsAgain) if entry.status == Status::Failed && same => fresh(),
            Some(Bug::MismatchReplays) if entry.status == Status::Succeeded => {
                (None, Begun::Replay(entry.kept.clone().unwrap_or_default()))
            }
            Some(Bug::MismatchTakesOver) if !live && !ended && !same => match fresh() {
                (entry, Begun::Acquired(hold)) => (
                    entry,
                    Begun::Acquired(Hold {
                        taken_over: true,
                        ..hold
                    }),
                ),
                other => other,
            },
            Some(Bug::SilentTakeover) => {
                let (entry, begun) = Entry::begin(found, &ask(wants), token, now);
                match begun {
                    Begun::Acquired(hold) => (
                        entry,
                        Begun::Acquired(Hold {
                            taken_over: false,
                            ..hold
                        }),
                    ),
                    other => (entry, other),
                }
            }
            _ => Entry::begin(found, &ask(wants), token, now),
        }
    }

    fn begin(&mut self, bug: Option<Bug>, who: usize) {
        self.drawn += 1;
        let token = LeaseToken(Uuid::from_u128(u128::from(self.drawn)));
        let (entry, begun) = self.rule(bug, who, token);
        let (before, wants) = (self.entry.clone(), self.callers[who].wants);
        match begun {
            Begun::Acquired(hold) => {
                let abandoned = before
                    .as_ref()
                    .is_some_and(|e| e.status == Status::InFlight && e.lease_until.is_some());
                self.check(!before.as_ref().is_some_and(|e| self.is_live(e)), HOLDER);
                self.check(!abandoned || hold.taken_over, TOLD);
                self.check(before.as_ref().is_none_or(|e| e.status == Status::InFlight), STANDS);
                // What may have been half done by another is not gone on with as something else.
                self.check(!abandoned || before.is_some_and(|e| e.fingerprint == print(wants)), OWN);
                self.callers[who].holds = Some(hold);
                self.callers[who].unsure = false;
            }
            Begun::Replay(kept) => {
                let right = self
                    .effects
                    .iter()
                    .any(|(what, by)| *what == wants && made(*what, *by) == kept);
                self.check(right, OWN);
            }
            Begun::Busy { .. } => self.check(before.is_some_and(|e| self.is_live(&e)), FREE),
            Begun::Failed(_) | Begun::Mismatch => {}
        }
        self.write(entry);
    }

    fn conclude(&mut self, bug: Option<Bug>, who: usize, end: Conclusion) -> Fenced {
        let Some(hold) = self.callers[who].holds.clone() else {
            return Fenced::LeaseLost;
        };
        let (found, now) = (self.entry.clone(), self.time());
        let mine = found.as_ref().is_some_and(|entry| entry.token == Some(hold.token));
        let (entry, told) = match bug {
            Some(Bug::LateEndCounts) if mine => {
                let in_time = found.map(|entry| Entry {
                    lease_until: entry.lease_until.map(|_| now.plus(TICK)),
                    ..entry
                });
                Entry::conclude(in_time, hold.token, end, now)
            }
            Some(Bug::EndWithoutFence) => {
                let token = found.as_ref().and_then(|entry| entry.token).unwrap_or(hold.token);
                let in_time = found.map(|entry| Entry {
                    lease_until: Some(now.plus(TICK)),
                    status: Status::InFlight,
                    ..entry
                });
                Entry::conclude(in_time, token, end, now)
            }
            _ => Entry::conclude(found, hold.token, end, now),
        };
        if entry.is_some() {
            let live = self.entry.as_ref().is_some_and(|entry| self.is_live(entry));
            self.check(mine && live, LATE);
        }
        self.write(entry);
        told
    }

    /// What has ended is not written again.
    fn write(&mut self, entry: Option<Entry>) {
        if let Some(entry) = entry {
            let stands = self
                .entry
                .as_ref()
                .is_none_or(|before| before.status == Status::InFlight);
            self.check(stands, STANDS);
            self.entry = Some(entry);
        }
    }

    fn finish(&mut self, bug: Option<Bug>, who: usize, heard: bool) {
        let wants = self.callers[who].wants;
        if bug == Some(Bug::EffectApart) && !self.callers[who].unsure {
            self.effects.push((wants, who));
            self.callers[who].unsure = true;
            return;
        }
        let told = self.conclude(bug, who, Conclusion::Succeeded(made(wants, who)));
        // What is not done is rolled back, and that is all that he can see.
        let commits = told == Fenced::Done || bug == Some(Bug::CommitsWhatWasBefore) && told == Fenced::Before;
        if commits && bug != Some(Bug::EffectApart) {
            self.effects.push((wants, who));
        }
        if heard {
            self.callers[who].holds = None;
            self.callers[who].unsure = false;
        } else {
            self.callers[who].unsure = true;
        }
    }

    fn check(&mut self, kept: bool, promise: &'static str) {
        if !kept && self.broken.is_none() {
            self.broken = Some(promise);
        }
    }
}

impl Model for Ledger {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let caller = |wants: &u8| Caller {
            wants: *wants,
            holds: None,
            unsure: false,
            crashes: 0,
        };
        vec![World {
            now: 0,
            entry: None,
            callers: self.callers.iter().map(caller).collect(),
            effects: Vec::new(),
            drawn: 0,
            broken: None,
        }]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_some() {
            return;
        }
        for (who, caller) in world.callers.iter().enumerate() {
            match &caller.holds {
                None => actions.push(Action::Begin(who)),
                Some(_) if caller.unsure => actions.push(Action::Repeat(who)),
                Some(_) => actions.extend([
                    Action::Finish(who, true),
                    Action::Finish(who, false),
                    Action::Fail(who),
                    Action::Release(who),
                    Action::Renew(who),
                ]),
            }
            if caller.holds.is_some() && caller.crashes < 1 {
                actions.push(Action::Crash(who));
            }
        }
        if world.now < self.ticks {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        match action {
            Action::Begin(who) => world.begin(self.bug, who),
            Action::Finish(who, heard) => world.finish(self.bug, who, heard),
            Action::Repeat(who) => world.finish(self.bug, who, true),
            Action::Fail(who) => {
                let _ = world.conclude(self.bug, who, Conclusion::Failed(Kept::failure("no")));
                world.callers[who].holds = None;
            }
            Action::Release(who) => {
                let _ = world.conclude(self.bug, who, Conclusion::Released { error: None });
                world.callers[who].holds = None;
            }
            Action::Renew(who) => {
                let token = world.callers[who].holds.as_ref()?.token;
                let (entry, told) = Entry::renew(world.entry.clone(), token, LEASE, world.time());
                world.write(entry);
                if told == Fenced::LeaseLost {
                    world.callers[who].holds = None;
                }
            }
            Action::Crash(who) => {
                let caller = &mut world.callers[who];
                (caller.holds, caller.unsure, caller.crashes) = (None, false, caller.crashes + 1);
            }
            Action::Tick => world.now += 1,
        }
        let once = world.effects.len() <= 1;
        world.check(once, ONCE);
        Some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        PROMISES
            .map(|promise| Property::always(promise, promise_kept(promise)))
            .to_vec()
    }

    fn within_boundary(&self, world: &World) -> bool {
        world.drawn <= 5
    }
}

/// Whether the promise was kept on the way to a state.
fn promise_kept(promise: &'static str) -> fn(&Ledger, &World) -> bool {
    macro_rules! kept {
        ($($name:ident),*) => {
            match promise {
                $($name => |_, world| world.broken != Some($name),)*
                other => panic!("there is no promise {other:?}"),
            }
        };
    }
    kept!(ONCE, OWN, HOLDER, FREE, TOLD, STANDS, LATE)
}

fn sound(callers: &'static [u8], ticks: u8) {
    let model = Ledger {
        callers,
        ticks,
        bug: None,
    };
    let checker = model.checker().spawn_bfs().join();
    checker.assert_properties();
    assert!(checker.unique_state_count() > 1000, "{}", checker.unique_state_count());
}

#[test]
fn two_that_want_the_same() {
    sound(&[1, 1], 4);
}

#[test]
fn three_that_want_the_same() {
    sound(&[1, 1, 1], 3);
}

#[test]
fn one_who_wants_something_else() {
    sound(&[1, 2], 4);
}

#[test]
fn two_and_one_who_wants_something_else() {
    sound(&[1, 1, 2], 3);
}

fn finds(bug: Bug, promises: &[&str]) {
    let model = Ledger {
        callers: &[1, 1, 2],
        ticks: 3,
        bug: Some(bug),
    };
    let checker = model.checker().spawn_bfs().join();
    let found = checker.discoveries();
    assert!(
        promises.iter().any(|promise| found.contains_key(promise)),
        "{bug:?}: {:?}",
        found.keys()
    );
}

macro_rules! planted {
    ($($name:ident: $bug:ident breaks $($promise:ident),+;)*) => {
        $(#[test]
        fn $name() {
            finds(Bug::$bug, &[$($promise),+]);
        })*
    };
}

planted! {
    twins_that_both_run_are_found: TwinsBothRun breaks HOLDER;
    a_key_that_is_busy_for_ever_is_found: BusyForEver breaks FREE;
    a_success_that_runs_again_is_found: SuccessRunsAgain breaks STANDS, ONCE;
    a_failure_that_runs_again_is_found: FailureRunsAgain breaks STANDS;
    an_answer_to_something_else_is_found: MismatchReplays breaks OWN;
    a_takeover_by_something_else_is_found: MismatchTakesOver breaks OWN;
    a_silent_takeover_is_found: SilentTakeover breaks TOLD;
    a_late_end_is_found: LateEndCounts breaks LATE;
    an_end_without_a_fence_is_found: EndWithoutFence breaks LATE, STANDS;
    an_effect_apart_is_found: EffectApart breaks ONCE;
    a_release_that_keeps_is_found: ReleaseKeeps breaks FREE;
    an_effect_that_is_done_again_is_found: CommitsWhatWasBefore breaks ONCE;
}
