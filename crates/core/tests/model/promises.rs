//! What holds in every state, and what a run must come across so that it does not hold for nothing.

use posthouse_core::{AttemptOutcome, DeadReason, LeaseToken, Order, Settlement, State};
use stateright::Property;
use std::{
    collections::BTreeSet,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
};

use super::{
    config::{Config, Start},
    judge::Promise,
    record::Record,
    world::{Answer, Outbox, Producer, World},
};

/// The promises, and the sights that this run must see.
pub fn properties(config: &Config) -> Vec<Property<Outbox>> {
    let mut properties = promises();
    properties.extend(
        config
            .sights
            .iter()
            .map(|sight| Property::sometimes(sight.name(), sight.condition())),
    );
    properties
}

/// Each promise is kept by the state itself and by every step that led to it.
fn promises() -> Vec<Property<Outbox>> {
    vec![
        always(Promise::AtomicEnqueue, |_, w| atomic_enqueue(w)),
        always(Promise::NoLoss, |_, w| no_loss(w) && w.keeps(Promise::NoLoss)),
        always(Promise::OneLease, |_, w| one_lease(w)),
        always(Promise::StaleWrite, |_, w| w.keeps(Promise::StaleWrite)),
        always(Promise::Repeated, |_, w| w.keeps(Promise::Repeated)),
        always(Promise::Epoch, |_, w| w.keeps(Promise::Epoch)),
        always(Promise::OneOutcome, |_, w| {
            one_outcome(w) && w.keeps(Promise::OneOutcome)
        }),
        always(Promise::Terminal, |_, w| w.keeps(Promise::Terminal)),
        always(Promise::Bounded, |m, w| bounded(&m.config, w)),
        always(Promise::Replay, |_, w| w.keeps(Promise::Replay)),
        always(Promise::KeyOrder, |m, w| {
            one_claim_per_key(&m.config, w) && nobody_holds_what_must_wait(&m.config, w) && w.keeps(Promise::KeyOrder)
        }),
        always(Promise::NoSkipping, |_, w| w.keeps(Promise::NoSkipping)),
        always(Promise::ExplainedDuplicates, |_, w| {
            w.keeps(Promise::ExplainedDuplicates)
        }),
    ]
}

fn always(promise: Promise, kept: fn(&Outbox, &World) -> bool) -> Property<Outbox> {
    Property::always(promise.name(), kept)
}

impl Promise {
    /// The promise in words, with its number in the contract.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AtomicEnqueue => "P1: a message exists if and only if it was committed",
            Self::NoLoss => "P2: a committed message is in exactly one state",
            Self::OneLease => "P3: a message has at most one live lease",
            Self::StaleWrite => "P4: a stale write changes nothing",
            Self::Repeated => "P4: a repeated settlement is answered, and not written, again",
            Self::Epoch => "P5: each grant raises the epoch by one, and nothing else moves it",
            Self::OneOutcome => "P6: each counted lease ends in one outcome, without gaps",
            Self::Terminal => "P7: only an operator moves what is terminal",
            Self::Bounded => "P8: a generation has no more counted leases than its budget",
            Self::Replay => "P9: only what is dead or quarantined is replayed",
            Self::KeyOrder => "P10: a key is sent in order, by one claim at a time",
            Self::NoSkipping => "P11: what is due and free is granted",
            Self::ExplainedDuplicates => "P21: every second send has a reason in the history",
        }
    }
}

fn atomic_enqueue(world: &World) -> bool {
    let committed = |r: &Record| world.producers[r.msg] == Producer::Committed;
    world.store.records.iter().all(committed)
}

fn no_loss(world: &World) -> bool {
    let found = |msg: usize| world.store.records.iter().filter(|r| r.msg == msg).count();
    let kept = |(msg, producer): (usize, &Producer)| *producer != Producer::Committed || found(msg) == 1;
    world.producers.iter().enumerate().all(kept) && world.store.records.iter().all(is_one_state)
}

/// The parts of a record tell of the same state.
fn is_one_state(record: &Record) -> bool {
    let state = record.standing.state;
    (state == State::Leased) == record.lease.is_some()
        && (state == State::Dead) == record.reason.is_some()
        && (state.is_terminal() || !record.blocks)
}

fn one_lease(world: &World) -> bool {
    let live: Vec<_> = world
        .ghost
        .grants
        .iter()
        .filter(|g| g.left > 0)
        .map(|g| g.msg)
        .collect();
    live.iter().collect::<BTreeSet<_>>().len() == live.len()
}

/// Attempts are numbered without gaps in each generation, and every grant is accounted for: it left evidence, was freed,
/// or is still out.
fn one_outcome(world: &World) -> bool {
    world.store.records.iter().all(|record| {
        let out = u64::from(record.standing.state == State::Leased);
        let freed = u64::from(world.ghost.lives[record.msg].freed);
        is_gapless(record) && record.attempts.len() as u64 + freed + out == record.standing.epoch
    })
}

fn is_gapless(record: &Record) -> bool {
    let (mut generation, mut attempt, mut epoch) = (0, 0, 0);
    record.attempts.iter().all(|a| {
        attempt = if a.generation == generation { attempt + 1 } else { 1 };
        let follows = a.generation >= generation && a.attempt == attempt && a.epoch > epoch;
        (generation, epoch) = (a.generation, a.epoch);
        follows
    })
}

fn bounded(config: &Config, world: &World) -> bool {
    world.store.records.iter().all(|record| {
        let spent = u32::from(world.ghost.lives[record.msg].spent);
        let within = record.standing.state != State::Leased || record.standing.attempts <= record.standing.max_attempts;
        spent <= config.most_attempts(record.msg) && within
    })
}

fn one_claim_per_key(config: &Config, world: &World) -> bool {
    let live: Vec<_> = world.ghost.grants.iter().filter(|g| g.left > 0).collect();
    live.iter().all(|a| {
        let meet = |b: &&&super::ghost::Grant| config.same_line(a.msg, b.msg);
        live.iter().filter(meet).all(|b| a.token == b.token)
    })
}

/// No live lease is behind a message of its key that waits for a grant, or blocks: its holder could finish it first. What a
/// relaxed producer committed late waits behind the lease that was there before it.
fn nobody_holds_what_must_wait(config: &Config, world: &World) -> bool {
    let relaxed = config.start == Start::Producers(Order::Relaxed);
    let waits = |r: &Record| r.blocks || r.standing.state == State::Pending && (r.standing.epoch > 0 || !relaxed);
    config.lines().all(|line| {
        let line = world.store.line(config, line);
        let behind = line.into_iter().skip_while(|r| !waits(r));
        behind.into_iter().all(|r| r.lease.is_none_or(|lease| lease.left == 0))
    })
}

/// A state that a run must come across.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Sight {
    AllDone,
    Exhausted,
    Rejected,
    Lapsed,
    TakenOver,
    DoneAfterReplay,
    DeadAfterReplay,
    Quarantined,
    Cancelled,
    Discarded,
    RunOfAKey,
    KeyBlocked,
    ReleaseCounted,
    RunLetGoByExpiry,
    RunKeptAfterDeath,
    SentByTwo,
    /// Not a promise broken, but worth knowing: it was never sent, and its budget is gone, because the workers that held
    /// it died of something else.
    DeadUnsent,
    StampedBelowItsAttempts,
}

impl Sight {
    const fn name(self) -> &'static str {
        match self {
            Self::AllDone => "every message is done",
            Self::Exhausted => "a message spends its budget",
            Self::Rejected => "a message is rejected",
            Self::Lapsed => "a message lapses",
            Self::TakenOver => "a message is taken over after its worker's lease ran out",
            Self::DoneAfterReplay => "a replayed message is done",
            Self::DeadAfterReplay => "a replayed message is dead again",
            Self::Quarantined => "a message is quarantined",
            Self::Cancelled => "a message is cancelled",
            Self::Discarded => "a message is discarded",
            Self::RunOfAKey => "two messages of a key are leased by one claim",
            Self::KeyBlocked => "a dead message blocks its key",
            Self::ReleaseCounted => "a release counts after a hundred in a row",
            Self::RunLetGoByExpiry => "the rest of a run goes back with a message whose lease ran out",
            Self::RunKeptAfterDeath => {
                "the rest of a run stays with its holder when a lease runs out for the last time"
            }
            Self::SentByTwo => "a message was sent under two leases",
            Self::DeadUnsent => "a message is exhausted and was never sent",
            Self::StampedBelowItsAttempts => "a message has more attempts than the budget of the last route",
        }
    }

    fn condition(self) -> fn(&Outbox, &World) -> bool {
        match self {
            Self::AllDone => |m, w| {
                let done = w.store.records.iter().filter(|r| r.standing.state == State::Done);
                done.count() == m.config.messages.len()
            },
            Self::Exhausted => |_, w| any(w, |r| r.reason == Some(DeadReason::Exhausted)),
            Self::Rejected => |_, w| any(w, |r| r.reason == Some(DeadReason::Rejected)),
            Self::Lapsed => |_, w| any(w, |r| r.reason == Some(DeadReason::Lapsed)),
            Self::TakenOver => |_, w| any(w, was_taken_over),
            Self::DoneAfterReplay => |_, w| any(w, |r| r.standing.generation > 1 && r.standing.state == State::Done),
            Self::DeadAfterReplay => |_, w| any(w, |r| r.standing.generation > 1 && r.standing.state == State::Dead),
            Self::Quarantined => |_, w| any(w, |r| r.standing.state == State::Quarantined),
            Self::Cancelled => |_, w| any(w, |r| r.reason == Some(DeadReason::Cancelled)),
            Self::Discarded => |_, w| w.producers.contains(&Producer::Discarded),
            Self::RunOfAKey => |m, w| {
                let tokens = w.store.line(&m.config, 0).into_iter().filter_map(|r| r.lease);
                tokens.count() > 1
            },
            Self::KeyBlocked => |_, w| any(w, |r| r.blocks),
            Self::ReleaseCounted => |_, w| any(w, was_charged_for_releases),
            Self::RunLetGoByExpiry => |_, w| expiries(w).any(|(_, token)| any(w, |r| r.released_by == Some(token))),
            Self::RunKeptAfterDeath => |_, w| {
                let live = |r: &Record, token| r.lease.is_some_and(|l| l.token == token && l.left > 0);
                expiries(w).any(|(dead, token)| any(w, |r| r.pos > dead.pos && live(r, token)))
            },
            Self::SentByTwo => |_, w| w.ghost.lives.iter().any(|life| life.sent.count_ones() > 1),
            Self::DeadUnsent => |_, w| {
                let unsent = |r: &Record| w.ghost.lives[r.msg].sent == 0;
                any(w, |r| r.reason == Some(DeadReason::Exhausted) && unsent(r))
            },
            Self::StampedBelowItsAttempts => |_, w| any(w, |r| r.standing.attempts > r.standing.max_attempts),
        }
    }
}

fn any(world: &World, is_it: impl Fn(&Record) -> bool) -> bool {
    world.store.records.iter().any(is_it)
}

/// The messages that lost a lease by its deadline, and its token.
fn expiries(world: &World) -> impl Iterator<Item = (&Record, LeaseToken)> {
    world.store.records.iter().flat_map(|r| {
        let lost = r.attempts.iter().filter(|a| a.outcome == AttemptOutcome::LeaseExpired);
        lost.map(move |a| (r, a.token))
    })
}

fn was_taken_over(record: &Record) -> bool {
    let lost = record
        .attempts
        .iter()
        .any(|a| a.outcome == AttemptOutcome::LeaseExpired);
    lost && record.standing.state == State::Done
}

fn was_charged_for_releases(record: &Record) -> bool {
    record.attempts.iter().any(|a| a.outcome == AttemptOutcome::Retry) && record.standing.releases == 0
}

/// How often something happened that leaves no trace in a state.
#[derive(Default, Debug)]
pub struct Tally {
    pub stale_settlements_refused: AtomicUsize,
    /// A repetition of a settlement that won.
    pub repetitions_answered: AtomicUsize,
    /// A repetition of a release that won, after the message was granted again: the store has forgotten it.
    pub repetitions_refused: AtomicUsize,
    /// An expiry that another repairer had written, answered as if it were a repetition.
    pub expiries_answered_again: AtomicUsize,
    pub late_sends: AtomicUsize,
    pub renewals_refused: AtomicUsize,
    pub verbs_refused: AtomicUsize,
}

impl Tally {
    fn is_again(&self, before: &World, settlement: &Settlement) -> bool {
        settlement.is_expiry() && before.ghost.grant(&settlement.lease).is_none()
    }

    pub fn count(&self, before: &World, answer: &Answer) {
        let counter = match answer {
            Answer::Settled {
                won: true,
                first: Some(true),
                ..
            } => &self.repetitions_answered,
            Answer::Settled {
                won: false,
                first: Some(true),
                ..
            } => &self.repetitions_refused,
            Answer::Settled { won: false, .. } => &self.stale_settlements_refused,
            Answer::Settled { settlement, .. } if self.is_again(before, settlement) => &self.expiries_answered_again,
            Answer::Sent { lease, .. } if !before.ghost.is_live(lease) => &self.late_sends,
            Answer::Renewed { renewed: false, .. } => &self.renewals_refused,
            Answer::Operated { done: false, .. } => &self.verbs_refused,
            _ => return,
        };
        counter.fetch_add(1, Relaxed);
    }
}
