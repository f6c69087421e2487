//! The rules of sagas in every order of events: relays that claim, send, stall, crash and report late, answers that are lost, operators, a deadline.
//!
//! The rules are those of the core, and the store is the least that keeps its contract: a settlement is written if its lease is held, the version is the
//! one that was decided on, and what is taken back stands as it stood. A planted mistake replaces one of them, and a promise must be found broken.

// Test code fails by panicking.
#![allow(clippy::unwrap_used)]

mod planted;
mod sound;
mod world;

use posthouse_core::saga::{Declared, DeclaredStep, Definition, Retry};
use stateright::{Checker, Model, Property};

pub(crate) use world::{Action, World};

/// A mistake of whoever writes a saga engine by hand. The first five are those of a published design.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Bug {
    /// A compensation that failed, and may be tried again, is taken for done.
    FailedUndoCounts,
    /// Forward and backward share a counter.
    SharedCounter,
    /// An error skips the save.
    LostSave,
    /// What was in flight when its worker died is never gone on with.
    NeverResumed,
    /// Nobody asks whether somebody else has moved the saga meanwhile.
    TwoDrivers,
    /// What may have happened is taken for a failure.
    UnknownIsFailure,
    /// A refusal after an unknown attempt washes that away.
    TaintWashed,
    /// What is taken back is taken back also from whoever is at it.
    BlindWithdrawal,
    /// Compensations are sent in the order of the steps.
    ForwardOrder,
    /// The pivot is a step like any other.
    PivotIgnored,
    /// A participant forgets that it has undone what it never saw.
    NoTombstone,
    /// A compensation that failed for good ends the saga as compensated.
    HeldCounts,
    /// What is given back unsent goes round again, whatever became of the saga.
    BlindRelease,
    /// What was done is forgotten when something else is written.
    ForgetsDone,
    /// A step begins when those right before it have passed, whatever is before those.
    ShortSighted,
    /// What was asked about and not found is done again under another key, although nothing undoes it.
    DoubtForgotten,
    /// The deadline is only a timer message: neither the relay nor the decision looks at the clock.
    LateFirstSend,
    /// `compensate --past-pivot` takes a pivot in doubt for not done.
    PivotUnasked,
    /// One "no" is enough to give up a pivot.
    OneQuestion,
}

/// What a participant is like.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Kind {
    /// It knows keys, and remembers what it has undone.
    Keyed,
    /// The same, and it can be asked.
    Asked,
    /// It does whatever comes in.
    Naive,
    /// It knows keys, and nothing undoes what it does.
    Lasting,
    /// The same, and it can be asked.
    LastingAsked,
}

impl Kind {
    fn lasts(self) -> bool {
        matches!(self, Self::Lasting | Self::LastingAsked)
    }

    fn is_asked(self) -> bool {
        matches!(self, Self::Asked | Self::LastingAsked)
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Saga {
    pub definition: Definition,
    pub kinds: Vec<Kind>,
    /// Things that go wrong.
    pub faults: u8,
    /// Things that operators do.
    pub verbs: u8,
    pub bug: Option<Bug>,
}

pub(crate) const ONCE: &str = "an effect is there once under its key";
pub(crate) const UNDONE: &str = "in a compensated saga all that was done is undone";
pub(crate) const ALL_DONE: &str = "in a completed saga all is done and nothing undone";
pub(crate) const GOES_ON: &str = "what is not over goes on, or waits for a person";
pub(crate) const KNOWN: &str = "every message under way is known to its saga";
pub(crate) const ORDER: &str = "steps are done in their order, and undone in the other";
pub(crate) const ALONE: &str = "nothing is undone while somebody is at it";
pub(crate) const BUDGET: &str = "doing and undoing have attempts of their own";
pub(crate) const FORWARD: &str = "past the pivot nothing is undone";
pub(crate) const FINAL: &str = "a result stands";
pub(crate) const QUIET: &str = "nothing waits to be sent for a saga that is stopped or over";
pub(crate) const IN_TIME: &str = "no step up to the pivot is sent for the first time after the deadline";
pub(crate) const PIVOT_KNOWN: &str = "a saga is compensated when its pivot was not done, or is known to be done";
pub(crate) const PROMISES: [&str; 13] = [
    ONCE,
    UNDONE,
    ALL_DONE,
    GOES_ON,
    KNOWN,
    ORDER,
    ALONE,
    BUDGET,
    FORWARD,
    FINAL,
    QUIET,
    IN_TIME,
    PIVOT_KNOWN,
];

/// The deadline of the sagas that have one.
pub(crate) const DEADLINE_MS: u64 = 1000;

/// A step: its name, what its participant is like, and what comes before it.
pub(crate) type Plan = (&'static str, Kind, &'static [&'static str]);

pub(crate) fn saga(plan: &[Plan], pivot: Option<&str>, deadline: bool) -> Saga {
    let retry = Retry {
        max_attempts: 2,
        ..Retry::default()
    };
    let steps = plan.iter().map(|(name, kind, after)| DeclaredStep {
        name: (*name).to_owned(),
        action_uri: format!("fn:{name}"),
        compensate_uri: (!kind.lasts()).then(|| format!("fn:{name}/undo")),
        verify_uri: kind.is_asked().then(|| format!("fn:{name}/verify")),
        idempotent: matches!(kind, Kind::Keyed | Kind::Lasting),
        timeout_ms: None,
        verify_after_ms: None,
        delay_ms: None,
        retry,
        compensate_retry: retry,
        concurrency_tag: None,
        after: Some(after.iter().map(|before| (*before).to_owned()).collect()),
        input: None,
        pivot: pivot == Some(*name),
        approval: false,
    });
    let declared = Declared {
        name: "model".into(),
        version: 1,
        deadline_ms: deadline.then_some(DEADLINE_MS),
        steps: steps.collect(),
    };
    Saga {
        definition: declared.compile().unwrap(),
        kinds: plan.iter().map(|(_, kind, _)| *kind).collect(),
        faults: 2,
        verbs: 0,
        bug: None,
    }
}

impl Model for Saga {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self)]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.broken.is_none() {
            world.actions(self, actions);
        }
    }

    fn next_state(&self, before: &World, action: Action) -> Option<World> {
        let mut world = before.clone();
        world.act(self, action).then_some(world)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        PROMISES
            .map(|promise| Property::always(promise, promise_kept(promise)))
            .to_vec()
    }
}

/// Whether the promise was kept on the way to a state.
fn promise_kept(promise: &'static str) -> fn(&Saga, &World) -> bool {
    macro_rules! kept {
        ($($name:ident),*) => {
            match promise {
                $($name => |_, world| world.broken != Some($name),)*
                other => panic!("there is no promise {other:?}"),
            }
        };
    }
    kept!(
        ONCE,
        UNDONE,
        ALL_DONE,
        GOES_ON,
        KNOWN,
        ORDER,
        ALONE,
        BUDGET,
        FORWARD,
        FINAL,
        QUIET,
        IN_TIME,
        PIVOT_KNOWN
    )
}

/// Looks at every state, and answers how many there are.
pub(crate) fn check(saga: Saga) -> usize {
    let checker = saga.checker().spawn_bfs().join();
    checker.assert_properties();
    checker.unique_state_count()
}
