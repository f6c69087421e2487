//! The rules as they are: no promise is broken in any order of events.

use super::{
    Kind::{Asked, Keyed, Lasting, LastingAsked, Naive},
    Saga, check, saga,
};

fn sound(mut saga: Saga, faults: u8, verbs: u8) {
    (saga.faults, saga.verbs) = (faults, verbs);
    let states = check(saga);
    assert!(states > 50, "{states}");
}

#[test]
fn one_step_whatever_goes_wrong() {
    sound(saga(&[("a", Keyed, &[])], None, false), 2, 1);
    // With a deadline there are ten times as many states.
    sound(saga(&[("a", Keyed, &[])], None, true), 2, 0);
    sound(saga(&[("a", Keyed, &[])], None, true), 1, 1);
}

#[test]
fn one_step_that_can_be_asked() {
    sound(saga(&[("a", Asked, &[])], None, false), 3, 1);
}

#[test]
fn one_step_of_a_naive_participant() {
    sound(saga(&[("a", Naive, &[])], None, false), 4, 0);
}

#[test]
fn two_steps() {
    sound(saga(&[("a", Keyed, &[]), ("b", Keyed, &["a"])], None, false), 3, 1);
}

#[test]
fn two_steps_and_a_deadline() {
    sound(saga(&[("a", Keyed, &[]), ("b", Keyed, &["a"])], None, true), 2, 0);
}

#[test]
fn two_steps_with_a_pivot() {
    sound(saga(&[("a", Keyed, &[]), ("b", Asked, &["a"])], Some("b"), true), 3, 0);
}

#[test]
fn a_step_behind_the_pivot() {
    let plan = [("a", Keyed, &[][..]), ("b", Keyed, &["a"])];
    sound(saga(&plan, Some("a"), false), 2, 1);
    sound(saga(&plan, Some("a"), true), 2, 0);
    sound(saga(&plan, Some("a"), true), 1, 1);
}

#[test]
fn two_branches() {
    sound(saga(&[("a", Keyed, &[]), ("b", Keyed, &[])], None, false), 2, 1);
}

#[test]
fn two_branches_and_a_deadline() {
    sound(saga(&[("a", Keyed, &[]), ("b", Asked, &[])], None, true), 1, 0);
}

#[test]
fn three_steps() {
    sound(
        saga(
            &[("a", Keyed, &[]), ("b", Naive, &["a"]), ("c", Keyed, &["b"])],
            None,
            false,
        ),
        2,
        0,
    );
}

#[test]
fn three_steps_and_an_operator() {
    sound(
        saga(
            &[("a", Keyed, &[]), ("b", Keyed, &["a"]), ("c", Keyed, &["b"])],
            None,
            false,
        ),
        2,
        1,
    );
}

#[test]
fn four_steps() {
    let plan = [
        ("a", Keyed, &[][..]),
        ("b", Keyed, &["a"]),
        ("c", Asked, &["b"]),
        ("d", Keyed, &["c"]),
    ];
    sound(saga(&plan, Some("c"), false), 2, 0);
}

#[test]
fn four_steps_and_an_operator() {
    let plan = [
        ("a", Keyed, &[][..]),
        ("b", Lasting, &["a"]),
        ("c", Asked, &["b"]),
        ("d", Keyed, &["c"]),
    ];
    sound(saga(&plan, Some("d"), false), 1, 1);
}

fn fork_and_join() -> Saga {
    let plan = [
        ("a", Keyed, &[][..]),
        ("b", Keyed, &["a"]),
        ("c", Keyed, &["a"]),
        ("d", Keyed, &["b", "c"]),
    ];
    saga(&plan, None, false)
}

#[test]
fn a_fork_and_a_join() {
    sound(fork_and_join(), 2, 0);
}

#[test]
fn a_fork_a_join_and_an_operator() {
    sound(fork_and_join(), 1, 1);
}

#[test]
fn what_was_not_found_and_nothing_undoes() {
    sound(
        saga(&[("a", Keyed, &[]), ("b", LastingAsked, &["a"])], None, false),
        2,
        1,
    );
}

#[test]
fn a_pivot_that_was_not_found_and_nothing_undoes() {
    let plan = [("a", Keyed, &[][..]), ("b", LastingAsked, &["a"])];
    sound(saga(&plan, Some("b"), false), 2, 1);
}

#[test]
fn a_pivot_that_was_not_found_and_a_deadline() {
    sound(saga(&[("a", LastingAsked, &[])], Some("a"), false), 2, 1);
    sound(saga(&[("a", LastingAsked, &[])], Some("a"), true), 2, 0);
    sound(saga(&[("a", LastingAsked, &[])], Some("a"), true), 1, 1);
}

#[test]
fn pivot_in_doubt_with_a_deadline_and_an_operator() {
    let plan = [("a", Keyed, &[][..]), ("b", LastingAsked, &["a"])];
    sound(saga(&plan, Some("b"), true), 1, 1);
}

#[test]
fn pivot_that_cannot_be_asked_with_a_deadline_and_an_operator() {
    let plan = [("a", Keyed, &[][..]), ("b", Lasting, &["a"])];
    sound(saga(&plan, Some("b"), true), 1, 1);
}

#[test]
fn what_nothing_undoes_is_kept() {
    let plan = [("a", Keyed, &[][..]), ("b", Lasting, &["a"]), ("c", Keyed, &["b"])];
    sound(saga(&plan, None, false), 1, 2);
}
