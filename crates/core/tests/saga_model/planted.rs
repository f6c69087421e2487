//! Each mistake, planted, is found.

use stateright::{Checker, Model};

use super::{
    ALL_DONE, ALONE, BUDGET, Bug, FINAL, FORWARD, GOES_ON, IN_TIME, KNOWN,
    Kind::{Keyed, LastingAsked, Naive},
    ONCE, ORDER, PIVOT_KNOWN, QUIET, Saga, UNDONE, saga,
};

fn finds(mut saga: Saga, bug: Bug, promises: &[&str]) {
    saga.bug = Some(bug);
    let checker = saga.checker().spawn_bfs().join();
    let found = checker.discoveries();
    assert!(
        promises.iter().any(|promise| found.contains_key(promise)),
        "{bug:?}: {:?}",
        found.keys()
    );
}

fn two() -> Saga {
    with(saga(&[("a", Keyed, &[]), ("b", Keyed, &["a"])], None, false), 3)
}

/// Three faults are enough for each of them.
fn with(saga: Saga, faults: u8) -> Saga {
    Saga { faults, ..saga }
}

fn four() -> Saga {
    let plan = [
        ("a", Keyed, &[][..]),
        ("b", Keyed, &["a"]),
        ("c", Keyed, &["b"]),
        ("d", Keyed, &["c"]),
    ];
    with(saga(&plan, None, false), 1)
}

fn naive() -> Saga {
    with(saga(&[("a", Naive, &[])], None, false), 3)
}

fn branches() -> Saga {
    with(saga(&[("a", Keyed, &[]), ("b", Keyed, &[])], None, false), 3)
}

fn pivot() -> Saga {
    with(saga(&[("a", Keyed, &[]), ("b", Keyed, &["a"])], Some("a"), false), 3)
}

/// Nothing undoes it; a person does one thing.
fn lasting() -> Saga {
    Saga {
        verbs: 1,
        ..with(saga(&[("a", LastingAsked, &[])], None, false), 2)
    }
}

/// A pivot that can be asked and that nothing undoes, behind a step that can be undone.
fn charge(deadline: bool) -> Saga {
    let plan = [("a", Keyed, &[][..]), ("b", LastingAsked, &["a"])];
    with(saga(&plan, Some("b"), deadline), 1)
}

fn overdue() -> Saga {
    charge(true)
}

fn forced() -> Saga {
    Saga {
        verbs: 1,
        ..charge(false)
    }
}

/// With a person who does one thing.
fn asked() -> Saga {
    Saga {
        verbs: 1,
        ..with(two(), 1)
    }
}

/// In the middle somebody may leave one out.
fn skipped() -> Saga {
    let plan = [("a", Keyed, &[][..]), ("b", Keyed, &["a"]), ("c", Keyed, &["b"])];
    let saga = saga(&plan, None, false);
    Saga {
        verbs: 1,
        ..with(saga, 0)
    }
}

macro_rules! planted {
    ($($name:ident: $bug:ident in $saga:ident breaks $($promise:ident),+;)*) => {
        $(#[test]
        fn $name() {
            finds($saga(), Bug::$bug, &[$($promise),+]);
        })*
    };
}

planted! {
    a_failed_compensation_that_counts_is_found: FailedUndoCounts in two breaks UNDONE;
    a_shared_counter_is_found: SharedCounter in two breaks BUDGET;
    a_lost_save_is_found: LostSave in two breaks GOES_ON, KNOWN, ONCE, UNDONE, ALL_DONE;
    what_is_never_resumed_is_found: NeverResumed in two breaks GOES_ON;
    two_drivers_are_found: TwoDrivers in branches breaks KNOWN, GOES_ON, UNDONE;
    an_unknown_taken_for_a_failure_is_found: UnknownIsFailure in naive breaks ONCE;
    an_unknown_that_is_forgotten_is_found: UnknownIsFailure in two breaks UNDONE;
    a_taint_that_is_washed_away_is_found: TaintWashed in two breaks UNDONE;
    a_blind_withdrawal_is_found: BlindWithdrawal in branches breaks ALONE, UNDONE, KNOWN;
    the_wrong_order_is_found: ForwardOrder in four breaks ORDER;
    a_pivot_that_is_ignored_is_found: PivotIgnored in pivot breaks FORWARD;
    a_forgotten_tombstone_is_found: NoTombstone in two breaks UNDONE;
    a_failure_for_good_that_counts_is_found: HeldCounts in two breaks UNDONE;
    a_release_that_asks_nobody_is_found: BlindRelease in asked breaks QUIET;
    a_result_that_is_forgotten_is_found: ForgetsDone in two breaks FINAL;
    a_doubt_that_a_replay_forgets_is_found: DoubtForgotten in lasting breaks ONCE;
    first_send_after_the_deadline_is_found: LateFirstSend in overdue breaks IN_TIME;
    pivot_in_doubt_compensated_past_unasked_is_found: PivotUnasked in forced breaks PIVOT_KNOWN;
    pivot_given_up_after_one_denial_is_found: OneQuestion in overdue breaks PIVOT_KNOWN, FORWARD;
    a_step_that_begins_too_early_is_found: ShortSighted in skipped breaks ORDER;
}
