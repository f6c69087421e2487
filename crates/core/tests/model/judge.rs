//! What no single step may do. It looks at the store before and after, at the answer, and at the true history.

use posthouse_core::{AttemptOutcome, Event, Lease, Order, Settlement, State};
use std::ops::BitOrAssign;

use super::{
    config::{Config, Start},
    ghost::Grant,
    record::{Evidence, Record, number},
    store::Store,
    worker::Place,
    world::{Answer, Outbox, Producer, World},
};

/// A promise of the outbox, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Promise {
    AtomicEnqueue = 1,
    NoLoss = 2,
    OneLease = 3,
    StaleWrite = 4,
    Epoch = 5,
    OneOutcome = 6,
    Terminal = 7,
    Bounded = 8,
    Replay = 9,
    KeyOrder = 10,
    NoSkipping = 11,
    /// The second half of the fourth: a settlement that won says so again.
    Repeated = 14,
    ExplainedDuplicates = 21,
}

/// A set of promises that were broken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Wrongs(u32);

impl Wrongs {
    pub fn has(self, promise: Promise) -> bool {
        self.0 & (1 << promise as u32) != 0
    }

    fn unless(&mut self, kept: bool, promise: Promise) {
        if !kept {
            self.0 |= 1 << promise as u32;
        }
    }
}

impl BitOrAssign for Wrongs {
    fn bitor_assign(&mut self, other: Self) {
        self.0 |= other.0;
    }
}

/// The promises that a step broke.
pub fn step(model: &Outbox, before: &World, answer: &Answer, after: &World) -> Wrongs {
    let config = &model.config;
    let mut wrongs = Wrongs::default();
    for was in &before.store.records {
        match after.store.find(was.msg) {
            Some(is) => record(was, is, answer, &mut wrongs),
            None => wrongs.unless(may_vanish(before, after, was.msg), Promise::NoLoss),
        }
    }
    match answer {
        Answer::Committed { msg, pos } => committed(config, &before.store, *msg, *pos, &mut wrongs),
        Answer::Granted { line, leases } => granted(config, before, *line, leases, &mut wrongs),
        Answer::Sent { lease, place } => sent(config, before, lease, *place, &mut wrongs),
        Answer::Settled { settlement, won, first } => {
            settled(before, after, settlement, *won, &mut wrongs);
            repeated(before, after, settlement, *won, *first, &mut wrongs);
        }
        Answer::Renewed { lease, renewed } => {
            wrongs.unless(*renewed == before.ghost.is_live(lease), Promise::StaleWrite);
            wrongs.unless(*renewed || before.store == after.store, Promise::StaleWrite);
        }
        Answer::Nothing | Answer::Operated { .. } | Answer::Ticked => {}
    }
    wrongs
}

/// What holds for every message in every step.
fn record(was: &Record, is: &Record, answer: &Answer, wrongs: &mut Wrongs) {
    let (old, new) = (was.standing, is.standing);
    let by_hand = matches!(answer, Answer::Operated { msg, .. } if *msg == was.msg);
    let granted = matches!(answer, Answer::Granted { leases, .. } if leases.iter().any(|l| number(l.id) == was.msg));
    wrongs.unless(new.epoch == old.epoch + u64::from(granted), Promise::Epoch);
    wrongs.unless(is.attempts.starts_with(&was.attempts), Promise::OneOutcome);
    wrongs.unless(!old.state.is_terminal() || old == new || by_hand, Promise::Terminal);
    wrongs.unless(left_with_its_outcome(was, is), Promise::OneOutcome);
    let replayed = matches!(
        answer,
        Answer::Operated {
            verb: Event::Replay,
            ..
        }
    ) && by_hand;
    let from_the_end = matches!(old.state, State::Dead | State::Quarantined);
    let raised = new.generation != old.generation;
    wrongs.unless(!raised || replayed && from_the_end, Promise::Replay);
}

/// A lease that ends leaves one piece of evidence, of its own epoch; a free release leaves none.
fn left_with_its_outcome(was: &Record, is: &Record) -> bool {
    let fresh = &is.attempts[was.attempts.len().min(is.attempts.len())..];
    let left = was.lease.is_some() && is.lease != was.lease && is.standing.state != State::Leased;
    match fresh {
        [] => !left || is.released_by == was.lease.map(|l| l.token),
        [one] => left && one.epoch == was.standing.epoch && speaks_for(one, is),
        _ => false,
    }
}

/// The state is what the evidence says.
fn speaks_for(evidence: &Evidence, is: &Record) -> bool {
    use AttemptOutcome::{Delivered, Duplicate, Expanded, Lapsed, LeaseExpired, Rejected, Retry};
    match evidence.outcome {
        Delivered | Duplicate | Expanded => is.standing.state == State::Done,
        Rejected | Lapsed => is.standing.state == State::Dead,
        Retry | LeaseExpired => matches!(is.standing.state, State::Pending | State::Dead),
    }
}

/// A message leaves the store only by an operator's discard, or because it never was committed.
fn may_vanish(before: &World, after: &World, msg: usize) -> bool {
    let never = matches!(before.producers[msg], Producer::Open { .. });
    never || after.producers[msg] == Producer::Discarded
}

/// In a strict key, nobody commits behind what was already granted.
fn committed(config: &Config, before: &Store, msg: usize, pos: u8, wrongs: &mut Wrongs) {
    let relaxed = config.start == Start::Producers(Order::Relaxed);
    wrongs.unless(relaxed || !is_late(config, before, msg, pos), Promise::KeyOrder);
}

/// Whether a later one of the key had been granted when this one was committed.
fn is_late(config: &Config, before: &Store, msg: usize, pos: u8) -> bool {
    let line = before.line(config, msg);
    line.iter().any(|r| r.pos > pos && r.standing.epoch > 0)
}

/// A claim takes what is due and free; it may not overlook the head of the line that it was sent to.
fn granted(config: &Config, before: &World, line: usize, leases: &[Lease], wrongs: &mut Wrongs) {
    let Some(head) = head(config, before, line) else { return };
    let taken = leases.iter().any(|lease| number(lease.id) == head);
    wrongs.unless(taken, Promise::NoSkipping);
}

/// The message that a claim of this line must grant.
fn head(config: &Config, before: &World, line: usize) -> Option<usize> {
    let busy = before.ghost.grants.iter().any(|g| config.same_line(g.msg, line));
    let records = before.store.line(config, line);
    let first = records.iter().find(|r| !r.standing.state.is_terminal() || r.blocks)?;
    let due = first.standing.state == State::Pending && first.wait == 0 && first.lapses_in != Some(0);
    (due && !busy).then_some(first.msg)
}

fn sent(config: &Config, before: &World, lease: &Lease, place: Place, wrongs: &mut Wrongs) {
    wrongs.unless(is_in_order(config, before, number(lease.id), place), Promise::KeyOrder);
    wrongs.unless(is_explained(before, lease), Promise::ExplainedDuplicates);
}

/// Everything that was before it in its key when it was granted is over, except what a relaxed producer committed too
/// late for this grant. (A worker that was paused past its deadline may still send what has moved to the tail meanwhile:
/// no store can stop it, and the epoch tells the receiver.)
fn is_in_order(config: &Config, before: &World, msg: usize, place: Place) -> bool {
    let line = before.store.line(config, msg);
    let mut earlier = line
        .iter()
        .filter(|r| r.pos < place.pos && place.known & (1 << r.msg) != 0);
    earlier.all(|r| r.standing.state.is_terminal())
}

/// Of all the epochs under which a message was sent, only the last may be without a reason to send again.
fn is_explained(before: &World, lease: &Lease) -> bool {
    let sent = before.ghost.lives[number(lease.id)].sent;
    let this = 1 << lease.standing.epoch;
    let Some(record) = before.store.find(number(lease.id)) else {
        return true;
    };
    let all = sent | this;
    let last = all.ilog2();
    sent & this == 0 && (0..last).all(|epoch| all & (1 << epoch) == 0 || has_reason(record, epoch.into()))
}

/// Why a message was sent again after this epoch: it failed, its lease was lost, or an operator replayed it.
fn has_reason(record: &Record, epoch: u64) -> bool {
    record.attempts.iter().filter(|a| a.epoch == epoch).any(|a| {
        let again = matches!(a.outcome, AttemptOutcome::Retry | AttemptOutcome::LeaseExpired);
        again || a.generation < record.standing.generation
    })
}

/// A settlement under a live lease is written; any other changes nothing.
fn settled(before: &World, after: &World, settlement: &Settlement, won: bool, wrongs: &mut Wrongs) {
    let grant = before.ghost.grant(&settlement.lease);
    let held = grant.is_some_and(|g| (g.left == 0) == settlement.is_expiry());
    if held {
        wrongs.unless(won && others_were_live(before, after, settlement), Promise::StaleWrite);
        return;
    }
    wrongs.unless(before.store == after.store, Promise::StaleWrite);
    wrongs.unless(!won || is_recorded(&before.store, settlement), Promise::StaleWrite);
}

/// A settlement may free the rest of its run, and of that only what is live.
fn others_were_live(before: &World, after: &World, settlement: &Settlement) -> bool {
    let (msg, token) = (number(settlement.lease.id), settlement.lease.token);
    let others = before.store.records.iter().filter(|r| r.msg != msg);
    others.into_iter().all(|was| {
        let live = |g: &Grant| (g.msg, g.token) == (was.msg, token) && g.left > 0;
        after.store.find(was.msg) == Some(was) || before.ghost.grants.iter().any(live)
    })
}

/// Whether the store had this settlement already.
fn is_recorded(store: &Store, settlement: &Settlement) -> bool {
    let lease = &settlement.lease;
    let Some(record) = store.find(number(lease.id)) else {
        return false;
    };
    let own = |a: &&Evidence| a.epoch == lease.standing.epoch && a.token == lease.token;
    let evidence = record.attempts.iter().find(own).map(|a| a.outcome);
    let released = evidence.is_none() && record.released_by == Some(lease.token);
    evidence.map_or(released, |outcome| Some(outcome) == settlement.step.evidence)
}

/// A settlement that won says so again, and is not written again. A release is remembered only until the next grant.
fn repeated(
    before: &World,
    after: &World,
    settlement: &Settlement,
    won: bool,
    first: Option<bool>,
    wrongs: &mut Wrongs,
) {
    if first != Some(true) {
        return;
    }
    let gone = before.store.find(number(settlement.lease.id)).is_none();
    let forgettable = gone || settlement.step.evidence.is_none();
    wrongs.unless(won || forgettable, Promise::Repeated);
    wrongs.unless(before.store == after.store, Promise::Repeated);
}
