//! The rules with a mistake in them: the promise it breaks is named, and the checker must find the way there.

use posthouse_core::{Event, OnDead, Order};
use stateright::{Checker, HasDiscoveries, Model};
use std::collections::BTreeSet;

use super::{
    actions::Action,
    bug::Bug,
    config::{Config, Plan, Start},
    judge::Promise,
    worker::How,
    world::Outbox,
};

/// No planted mistake needs a longer story than this.
const LONGEST: usize = 16;

/// Searches for the shortest way to break this promise, and fails if there is none.
fn finds(bug: Bug, promise: Promise, config: Config) {
    let config = config.with(bug);
    let story = (2..=LONGEST).find_map(|depth| story(&config, promise, depth));
    let story = story.unwrap_or_else(|| panic!("{bug:?} was not found by {}", promise.name()));
    tell(bug, promise, &story);
}

/// A way to break this promise in fewer than `depth` steps. The checker stops a little after its first find, so only a
/// limit on the depth makes it the shortest.
fn story(config: &Config, promise: Promise, depth: usize) -> Option<Vec<Action>> {
    let found = HasDiscoveries::AllOf(BTreeSet::from([promise.name()]));
    let checker = Outbox::new(config.clone()).checker().finish_when(found);
    let checker = checker.target_max_depth(depth).spawn_bfs().join();
    checker.discovery(promise.name()).map(|path| path.into_actions())
}

#[expect(clippy::print_stdout, reason = "the way to the mistake is worth reading")]
fn tell(bug: Bug, promise: Promise, story: &[Action]) {
    println!("{bug:?} breaks {} in {} steps", promise.name(), story.len());
    story.iter().for_each(|step| println!("    {step:?}"));
}

fn free(count: usize) -> Config {
    Config {
        late_sends: true,
        slow_repair: true,
        ..Config::of(vec![Plan::free(2); count])
    }
}

fn key(on_dead: OnDead) -> Config {
    Config {
        batch: 2,
        verbs: vec![Event::Replay, Event::Quarantine, Event::Cancel],
        generations: 2,
        ..Config::of([Plan::keyed(2, on_dead); 2])
    }
}

#[test]
fn no_fence() {
    finds(Bug::NoFence, Promise::StaleWrite, free(1));
}

#[test]
fn fence_by_the_workers_name() {
    finds(Bug::FenceByName, Promise::StaleWrite, free(1));
}

#[test]
fn fence_without_deadline() {
    finds(Bug::FenceWithoutDeadline, Promise::StaleWrite, free(1));
}

#[test]
fn repair_without_guard() {
    finds(Bug::RepairWithoutGuard, Promise::StaleWrite, free(1));
}

#[test]
fn repair_without_guard_overwrites_what_is_done() {
    finds(Bug::RepairWithoutGuard, Promise::Terminal, free(1));
}

#[test]
fn renewal_after_the_deadline() {
    let config = Config {
        renews: true,
        ..free(1)
    };
    finds(Bug::RenewAfterDeadline, Promise::StaleWrite, config);
}

#[test]
fn rest_of_a_run_freed_after_its_deadline() {
    let config = Config {
        lease: 2,
        renews: true,
        ..key(OnDead::Pass)
    };
    finds(Bug::RestFreedAfterDeadline, Promise::StaleWrite, config);
}

#[test]
fn rest_of_a_run_kept_when_its_head_ran_out() {
    let config = Config {
        lease: 2,
        renews: true,
        ..key(OnDead::Pass)
    };
    finds(Bug::ExpiryKeepsTheRest, Promise::KeyOrder, config);
}

#[test]
fn rest_of_a_run_kept_when_its_head_ran_out_and_blocks() {
    let config = Config {
        lease: 2,
        renews: true,
        messages: vec![Plan::keyed(1, OnDead::Block), Plan::keyed(2, OnDead::Pass)],
        ..key(OnDead::Pass)
    };
    finds(Bug::ExpiryKeepsTheRest, Promise::KeyOrder, config);
}

#[test]
fn grant_before_the_deadline() {
    finds(Bug::GrantBeforeDeadline, Promise::OneLease, free(1));
}

#[test]
fn attempts_counted_at_settle() {
    finds(Bug::CountAtSettle, Promise::Bounded, free(1));
}

#[test]
fn release_that_keeps_its_count() {
    let config = Config {
        releases: true,
        ..free(1)
    };
    finds(Bug::ReleaseKeepsCount, Promise::OneOutcome, config);
}

#[test]
fn epoch_kept_at_takeover() {
    finds(Bug::EpochKeptAtTakeover, Promise::Epoch, free(1));
}

#[test]
fn epoch_reset_at_replay() {
    finds(Bug::EpochResetAtReplay, Promise::Epoch, key(OnDead::Pass));
}

#[test]
fn dead_retried_by_the_engine() {
    finds(Bug::DeadIsClaimed, Promise::Terminal, free(1));
}

#[test]
fn replay_of_any_state() {
    finds(Bug::ReplayOfAnyState, Promise::Replay, key(OnDead::Pass));
}

#[test]
fn quarantine_of_a_leased_message() {
    finds(Bug::QuarantineOfLeased, Promise::OneOutcome, key(OnDead::Pass));
}

#[test]
fn evidence_in_a_transaction_of_its_own() {
    finds(Bug::EvidenceApart, Promise::OneOutcome, free(1));
}

#[test]
fn settlement_in_two_transactions() {
    finds(Bug::MoveApart, Promise::NoLoss, free(1));
}

#[test]
fn repeated_settlement_written_again() {
    let config = Config {
        lost_answers: true,
        ..free(1)
    };
    finds(Bug::RepeatWritten, Promise::Repeated, config);
}

#[test]
fn repeated_settlement_called_lost() {
    let config = Config {
        lost_answers: true,
        ..free(1)
    };
    finds(Bug::RepeatRefused, Promise::Repeated, config);
}

#[test]
fn key_limited_by_count() {
    finds(Bug::KeyByCount, Promise::KeyOrder, key(OnDead::Pass));
}

#[test]
fn replay_at_its_old_place() {
    finds(Bug::ReplayInOldPlace, Promise::KeyOrder, key(OnDead::Pass));
}

#[test]
fn cancelled_message_that_blocks_again() {
    finds(Bug::CancelledBlocksAgain, Promise::KeyOrder, key(OnDead::Block));
}

#[test]
fn turn_taken_after_the_place_is_drawn() {
    let config = Config {
        start: Start::Producers(Order::Strict),
        ..key(OnDead::Pass)
    };
    finds(Bug::TurnAfterDraw, Promise::KeyOrder, config);
}

#[test]
fn cursor_polling() {
    let config = Config {
        start: Start::Producers(Order::Relaxed),
        ..free(2)
    };
    finds(Bug::CursorPolling, Promise::NoSkipping, config);
}

#[test]
fn message_seen_before_its_commit() {
    let config = Config {
        start: Start::Producers(Order::Strict),
        ..free(1)
    };
    finds(Bug::DirtyRead, Promise::AtomicEnqueue, config);
}

#[test]
fn next_of_a_key_sent_ahead() {
    finds(Bug::SendAhead, Promise::KeyOrder, key(OnDead::Pass));
}

#[test]
fn next_of_a_key_sent_after_the_one_before_was_lost() {
    let config = Config {
        lease: 2,
        renews: true,
        ..key(OnDead::Pass)
    };
    finds(Bug::GoesOnAfterLoss, Promise::KeyOrder, config);
}

#[test]
fn release_of_what_was_sent() {
    finds(Bug::ReleaseAfterSend, Promise::ExplainedDuplicates, free(1));
}

#[test]
fn second_send_after_an_unknown_commit() {
    let config = Config {
        lost_answers: true,
        replies: vec![How::Delivered],
        ..free(1)
    };
    finds(Bug::SendTwice, Promise::ExplainedDuplicates, config);
}
