//! The rules as they are: in no order of events is a promise broken.

use posthouse_core::{Event, OnDead, Order};
use stateright::{Checker, Model};
use std::{sync::Arc, time::Instant};

use super::{
    config::{Config, Plan, Start},
    promises::{Sight, Tally},
    worker::How,
    world::Outbox,
};

/// Walks through every state of a run, and answers how often the things happened that leave no trace.
fn holds(name: &str, config: Config) -> Arc<Tally> {
    let began = Instant::now();
    let model = Outbox::new(config);
    let tally = Arc::clone(&model.tally);
    let checker = model.checker().spawn_bfs().join();
    report(name, &checker, began);
    checker.assert_properties();
    tally
}

#[expect(clippy::print_stdout, reason = "how much was searched is part of the proof")]
fn report(name: &str, checker: &impl Checker<Outbox>, began: Instant) {
    let (unique, all, depth) = (checker.unique_state_count(), checker.state_count(), checker.max_depth());
    let seconds = began.elapsed().as_secs_f32();
    println!("{name}: {unique} unique states of {all}, depth {depth}, {seconds:.1} s");
}

fn free(count: usize) -> Config {
    Config::of(vec![Plan::free(2); count])
}

fn key(count: usize, on_dead: OnDead) -> Config {
    Config {
        batch: count,
        ..Config::of(vec![Plan::keyed(2, on_dead); count])
    }
}

/// A key whose messages are granted once in a generation, so that dying and replaying comes early.
fn key_of_one_chance(on_dead: OnDead) -> Config {
    Config {
        workers: vec![1, 1],
        batch: 2,
        ..Config::of([Plan::keyed(1, on_dead); 2])
    }
}

const VERBS: [Event; 4] = [Event::Replay, Event::Quarantine, Event::Cancel, Event::Resolve];

fn seen(counter: &std::sync::atomic::AtomicUsize) -> bool {
    counter.load(std::sync::atomic::Ordering::Relaxed) > 0
}

#[test]
fn two_workers_two_messages() {
    let config = Config {
        lease: 2,
        renews: true,
        releases: true,
        late_sends: true,
        sights: vec![
            Sight::AllDone,
            Sight::Exhausted,
            Sight::Rejected,
            Sight::TakenOver,
            Sight::SentByTwo,
        ],
        ..free(2)
    };
    let tally = holds("two workers, two messages", config);
    assert!(seen(&tally.stale_settlements_refused) && seen(&tally.late_sends) && seen(&tally.renewals_refused));
}

#[test]
fn three_workers_one_message() {
    let config = Config {
        workers: vec![3; 3],
        lease: 2,
        renews: true,
        releases: true,
        late_sends: true,
        slow_repair: true,
        lost_answers: true,
        replies: vec![How::Delivered, How::Retry, How::Unknown, How::Rejected],
        sights: vec![Sight::AllDone, Sight::Exhausted, Sight::TakenOver, Sight::SentByTwo],
        ..Config::of([Plan::free(3)])
    };
    let tally = holds("three workers, one message", config);
    assert!(seen(&tally.repetitions_answered) && seen(&tally.repetitions_refused));
    assert!(seen(&tally.expiries_answered_again));
}

#[test]
fn unknown_commits() {
    let config = Config {
        lost_answers: true,
        late_sends: true,
        sights: vec![Sight::AllDone, Sight::Exhausted, Sight::SentByTwo],
        ..free(2)
    };
    let tally = holds("unknown commits", config);
    assert!(seen(&tally.repetitions_answered) && seen(&tally.stale_settlements_refused));
}

#[test]
fn unknown_releases() {
    let config = Config {
        releases: true,
        lost_answers: true,
        late_sends: true,
        slow_repair: true,
        grants: 4,
        sights: vec![Sight::AllDone, Sight::Exhausted, Sight::SentByTwo],
        ..free(1)
    };
    let tally = holds("unknown releases", config);
    assert!(seen(&tally.repetitions_answered) && seen(&tally.repetitions_refused));
}

#[test]
fn one_claim_of_two_messages() {
    let config = Config {
        batch: 2,
        grants: 2,
        releases: true,
        late_sends: true,
        sights: vec![Sight::AllDone, Sight::Exhausted, Sight::DeadUnsent],
        ..free(2)
    };
    holds("one claim of two messages", config);
}

#[test]
fn operator() {
    let config = Config {
        verbs: VERBS.to_vec(),
        discards: true,
        releases: true,
        lost_answers: true,
        late_sends: true,
        generations: 2,
        sights: vec![
            Sight::DoneAfterReplay,
            Sight::DeadAfterReplay,
            Sight::Quarantined,
            Sight::Cancelled,
            Sight::Discarded,
        ],
        ..free(1)
    };
    let tally = holds("operator", config);
    assert!(seen(&tally.verbs_refused) && seen(&tally.repetitions_answered));
}

#[test]
fn operator_and_two_messages() {
    let config = Config {
        verbs: vec![Event::Replay, Event::Quarantine],
        replies: vec![How::Delivered, How::Rejected],
        late_sends: true,
        generations: 2,
        grants: 2,
        sights: vec![Sight::DoneAfterReplay, Sight::DeadAfterReplay],
        ..free(2)
    };
    holds("operator and two messages", config);
}

#[test]
fn key_of_two() {
    let config = Config {
        lease: 2,
        renews: true,
        releases: true,
        late_sends: true,
        grants: 3,
        sights: vec![
            Sight::AllDone,
            Sight::Exhausted,
            Sight::RunOfAKey,
            Sight::DeadUnsent,
            Sight::TakenOver,
        ],
        ..key(2, OnDead::Pass)
    };
    holds("key of two", config);
}

/// Each lease of a run is renewed for itself, so that some of it runs out and some does not. Nobody releases by hand, so what
/// was let go was let go by an expiry.
fn key_renewed_in_part(name: &str, messages: Vec<Plan>, sights: Vec<Sight>) {
    let config = Config {
        lease: 2,
        renews: true,
        late_sends: true,
        batch: messages.len(),
        replies: vec![How::Delivered],
        grants: 2,
        sights,
        ..Config::of(messages)
    };
    let tally = holds(name, config);
    assert!(seen(&tally.renewals_refused) && seen(&tally.stale_settlements_refused));
}

#[test]
fn key_renewed_in_part_goes_back() {
    let sights = vec![Sight::AllDone, Sight::RunLetGoByExpiry, Sight::TakenOver];
    key_renewed_in_part("key renewed in part", vec![Plan::keyed(2, OnDead::Pass); 3], sights);
}

#[test]
fn key_renewed_in_part_is_blocked() {
    let sights = vec![Sight::KeyBlocked, Sight::RunLetGoByExpiry];
    let messages = vec![Plan::keyed(1, OnDead::Block); 3];
    key_renewed_in_part("key renewed in part, blocked", messages, sights);
}

#[test]
fn key_renewed_in_part_is_passed() {
    let sights = vec![Sight::Exhausted, Sight::RunKeptAfterDeath];
    let messages = vec![Plan::keyed(1, OnDead::Pass); 3];
    key_renewed_in_part("key renewed in part, passed", messages, sights);
}

#[test]
fn key_with_unknown_commits() {
    let config = Config {
        releases: true,
        lost_answers: true,
        late_sends: true,
        grants: 2,
        sights: vec![Sight::AllDone, Sight::RunOfAKey],
        ..key(2, OnDead::Pass)
    };
    let tally = holds("key with unknown commits", config);
    assert!(seen(&tally.repetitions_answered) && seen(&tally.repetitions_refused));
}

#[test]
fn key_of_three() {
    let config = Config {
        releases: true,
        late_sends: true,
        grants: 2,
        sights: vec![Sight::AllDone, Sight::Exhausted, Sight::RunOfAKey],
        ..key(3, OnDead::Pass)
    };
    holds("key of three", config);
}

#[test]
fn key_that_passes_its_dead_under_an_operator() {
    let config = Config {
        verbs: VERBS.to_vec(),
        replies: vec![How::Delivered, How::Rejected],
        late_sends: true,
        grants: 2,
        generations: 2,
        sights: vec![Sight::DoneAfterReplay, Sight::Quarantined, Sight::RunOfAKey],
        ..key_of_one_chance(OnDead::Pass)
    };
    holds("key that passes its dead", config);
}

#[test]
fn key_that_is_blocked_by_its_dead_under_an_operator() {
    let config = Config {
        verbs: VERBS.to_vec(),
        replies: vec![How::Delivered, How::Rejected],
        late_sends: true,
        grants: 2,
        generations: 2,
        sights: vec![
            Sight::DoneAfterReplay,
            Sight::Quarantined,
            Sight::KeyBlocked,
            Sight::RunOfAKey,
        ],
        ..key_of_one_chance(OnDead::Block)
    };
    holds("key that is blocked by its dead", config);
}

#[test]
fn key_with_strict_producers() {
    let config = Config {
        start: Start::Producers(Order::Strict),
        verbs: vec![Event::Replay],
        replies: vec![How::Delivered, How::Rejected],
        late_sends: true,
        grants: 2,
        generations: 2,
        sights: vec![Sight::AllDone, Sight::DoneAfterReplay, Sight::RunOfAKey],
        ..key_of_one_chance(OnDead::Pass)
    };
    holds("key with strict producers", config);
}

#[test]
fn key_with_relaxed_producers() {
    let config = Config {
        start: Start::Producers(Order::Relaxed),
        late_sends: true,
        grants: 2,
        sights: vec![Sight::AllDone, Sight::RunOfAKey],
        ..key(2, OnDead::Pass)
    };
    holds("key with relaxed producers", config);
}

#[test]
fn key_beside_a_free_message() {
    let plans = [
        Plan::keyed(2, OnDead::Pass),
        Plan::keyed(2, OnDead::Block),
        Plan::free(2),
    ];
    let config = Config {
        batch: 3,
        grants: 2,
        late_sends: true,
        replies: vec![How::Delivered, How::Retry],
        sights: vec![Sight::AllDone, Sight::RunOfAKey, Sight::KeyBlocked],
        ..Config::of(plans)
    };
    holds("key beside a free message", config);
}

#[test]
fn producers_of_free_messages() {
    let config = Config {
        start: Start::Producers(Order::Strict),
        slow_repair: true,
        late_sends: true,
        sights: vec![Sight::AllDone],
        ..free(2)
    };
    holds("producers of free messages", config);
}

#[test]
fn deliver_by() {
    let lapsing = |lapses_in, on_dead| Plan {
        lapses_in: Some(lapses_in),
        ..Plan::keyed(2, on_dead)
    };
    let config = Config {
        verbs: vec![Event::Replay],
        batch: 2,
        grants: 2,
        generations: 2,
        releases: true,
        sights: vec![Sight::AllDone, Sight::Lapsed, Sight::KeyBlocked],
        ..Config::of([lapsing(2, OnDead::Block), lapsing(1, OnDead::Pass)])
    };
    holds("deliver by", config);
}

#[test]
fn routes_of_two_budgets() {
    let config = Config {
        workers: vec![1, 3],
        lost_answers: true,
        late_sends: true,
        releases: true,
        grants: 4,
        sights: vec![Sight::Exhausted, Sight::StampedBelowItsAttempts],
        ..Config::of([Plan::free(2)])
    };
    holds("routes of two budgets", config);
}

#[test]
fn hundredth_release() {
    let weary = |plan| Plan { releases: 99, ..plan };
    let config = Config {
        batch: 2,
        releases: true,
        late_sends: true,
        sights: vec![Sight::ReleaseCounted, Sight::RunOfAKey, Sight::AllDone],
        ..Config::of(vec![weary(Plan::keyed(2, OnDead::Pass)); 2])
    };
    holds("hundredth release", config);
}
