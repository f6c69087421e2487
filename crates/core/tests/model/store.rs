//! The store: records, a fence around them, and a clock. What becomes of a message is decided by core.
//!
//! Times are told as ticks that are left, so that two states that differ only in their date are one state, and time has
//! no end.

use posthouse_core::{
    DeadReason, Event, Lease, LeaseToken, Limits, RetryPolicy, Settlement, Standing, State, Step, Verdict,
    machine::{Ctx, step},
};
use uuid::Uuid;

use super::{
    bug::Bug,
    config::Config,
    record::{Evidence, Granted, Reach, Record, number},
};

/// All that is committed.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Store {
    /// One for each message, by number.
    pub records: Vec<Record>,
    /// Places drawn so far.
    drawn: u8,
    /// How far a poll has come, for the store that polls by cursor.
    cursor: usize,
}

impl Store {
    /// The place that a producer, or a replay, takes at the tail.
    pub fn draw(&mut self) -> u8 {
        self.drawn += 1;
        self.drawn
    }

    /// What a producer's commit makes visible.
    pub fn insert(&mut self, config: &Config, msg: usize, pos: u8) {
        let at = self.records.partition_point(|r| r.msg < msg);
        self.records.insert(at, Record::new(config, msg, pos));
    }

    pub fn find(&self, msg: usize) -> Option<&Record> {
        self.records.iter().find(|r| r.msg == msg)
    }

    fn find_mut(&mut self, msg: usize) -> Option<&mut Record> {
        self.records.iter_mut().find(|r| r.msg == msg)
    }

    /// The messages of a line that are in the store, in their order.
    pub fn line<'a>(&'a self, config: &'a Config, line: usize) -> Vec<&'a Record> {
        let mut records: Vec<_> = self.records.iter().filter(|r| config.same_line(r.msg, line)).collect();
        records.sort_by_key(|r| r.pos);
        records
    }

    /// Grants up to a batch: the run at the head of the first line, then of the others, all under one token.
    pub fn claim(&mut self, config: &Config, first: usize) -> Vec<Lease> {
        let mut lines: Vec<_> = config.lines().collect();
        lines.sort_by_key(|&line| line != first);
        let mut leases = Vec::new();
        for line in lines {
            self.claim_line(config, line, &mut leases);
        }
        leases
    }

    fn claim_line(&mut self, config: &Config, line: usize, leases: &mut Vec<Lease>) {
        let order: Vec<_> = self.line(config, line).iter().map(|r| r.msg).collect();
        if order.iter().any(|&msg| self.is_taken(config, msg)) {
            return;
        }
        for msg in order {
            if leases.len() == config.batch {
                return;
            }
            match self.look_at(config, msg) {
                Turn::Passed => {}
                Turn::Holds => return,
                Turn::Lapsed => self.lapse(config, msg),
                Turn::Due => leases.push(self.grant(config, msg, leases.first().map(|l| l.token))),
            }
            // A message that has just lapsed may block its key, like any dead one.
            if self.find(msg).is_some_and(|r| r.blocks) {
                return;
            }
        }
    }

    /// Whether a lease, even one that ran out and waits for its repair, keeps this line from others.
    fn is_taken(&self, config: &Config, msg: usize) -> bool {
        let early = u8::from(config.has(Bug::GrantBeforeDeadline));
        self.find(msg)
            .and_then(|r| r.lease)
            .is_some_and(|lease| early == 0 || lease.left != early)
    }

    /// What a message means for a claim that has come to it.
    fn look_at(&self, config: &Config, msg: usize) -> Turn {
        let Some(record) = self.find(msg) else {
            return Turn::Passed;
        };
        let skipped = config.has(Bug::CursorPolling) && msg < self.cursor;
        match record.standing.state {
            State::Pending if record.lapses_in == Some(0) => Turn::Lapsed,
            State::Pending if record.wait == 0 && !skipped => Turn::Due,
            State::Pending if config.has(Bug::KeyByCount) => Turn::Passed,
            State::Pending => Turn::Holds,
            State::Leased => Turn::Due,
            State::Dead if config.has(Bug::DeadIsClaimed) && record.reason == Some(DeadReason::Exhausted) => Turn::Due,
            State::Done | State::Dead | State::Quarantined if record.blocks => Turn::Holds,
            State::Done | State::Dead | State::Quarantined => Turn::Passed,
        }
    }

    fn grant(&mut self, config: &Config, msg: usize, token: Option<LeaseToken>) -> Lease {
        self.cursor = if config.has(Bug::CursorPolling) { msg + 1 } else { 0 };
        let record = self.find_mut(msg).expect("it was just looked at");
        // Only a planted bug grants anything but a pending message; core would refuse it.
        record.standing.state = State::Pending;
        let before = record.standing;
        let after = apply(before, Event::Claimed).expect("a pending message can be claimed");
        record.standing = after.standing;
        if config.has(Bug::EpochKeptAtTakeover) && before.attempts > 0 {
            record.standing.epoch = before.epoch;
        }
        let token = token.unwrap_or_else(|| fresh_token(msg, record.standing.epoch));
        record.reason = None;
        record.released_by = None;
        record.lease = Some(Granted {
            token,
            left: config.lease,
        });
        let lease = record.as_lease(config, token);
        if config.has(Bug::CountAtSettle) {
            record.standing.attempts = before.attempts;
        }
        lease
    }

    fn lapse(&mut self, config: &Config, msg: usize) {
        let record = self.find_mut(msg).expect("it was just looked at");
        let step = apply(record.standing, Event::Lapsed).expect("a pending message can lapse");
        record.take(&step);
        record.blocks = config.blocks(msg);
    }

    /// Ends a lease, if it is held; says so again, if this very settlement had ended it.
    pub fn settle(&mut self, config: &Config, settlement: &Settlement, reach: Reach) -> Verdict {
        let held = self.holds(config, &settlement.lease, settlement.is_expiry());
        let repeated = !held && self.has_won(settlement);
        if held || (repeated && config.has(Bug::RepeatWritten)) {
            self.write(config, settlement, reach);
            return Verdict::Settled;
        }
        if repeated && !config.has(Bug::RepeatRefused) {
            return Verdict::Settled;
        }
        Verdict::LeaseLost
    }

    /// The fence: the same token, and a deadline that is ahead; or, for an expiry, one that is not.
    fn holds(&self, config: &Config, lease: &Lease, expiry: bool) -> bool {
        let Some(record) = self.find(number(lease.id)) else {
            return false;
        };
        let guarded = !(config.has(Bug::NoFence) || expiry && config.has(Bug::RepairWithoutGuard));
        let Some(granted) = record.lease else { return !guarded };
        let named = config.has(Bug::FenceByName) && !expiry;
        let timeless = config.has(Bug::FenceWithoutDeadline) && !expiry;
        !guarded || (named || granted.token == lease.token) && (timeless || (granted.left == 0) == expiry)
    }

    /// Whether this settlement is in the records: by its evidence, or, for a release, by the token it left behind.
    fn has_won(&self, settlement: &Settlement) -> bool {
        let lease = &settlement.lease;
        let Some(record) = self.find(number(lease.id)) else {
            return false;
        };
        match settlement.step.evidence {
            Some(outcome) => {
                let this = |a: &Evidence| (a.epoch, a.token, a.outcome) == (lease.standing.epoch, lease.token, outcome);
                record.attempts.iter().any(this)
            }
            None => record.released_by == Some(lease.token),
        }
    }

    fn write(&mut self, config: &Config, settlement: &Settlement, reach: Reach) {
        let msg = number(settlement.lease.id);
        if reach == Reach::Torn && config.has(Bug::MoveApart) {
            self.records.retain(|r| r.msg != msg);
            return;
        }
        let Some(record) = self.find_mut(msg) else { return };
        record.end(config, settlement, reach);
        let kept = settlement.is_expiry() && config.has(Bug::ExpiryKeepsTheRest);
        if config.messages[msg].key.is_some() && settlement.stops_run() && !kept {
            let pos = record.pos;
            self.free_the_rest(config, &settlement.lease, pos);
        }
    }

    /// A worker that goes on with the rest of a run would pass the message that went back, so the rest goes back with it.
    /// A lease that ran out is not touched, even here: it is the repairer's.
    fn free_the_rest(&mut self, config: &Config, lease: &Lease, pos: u8) {
        let timeless = config.has(Bug::RestFreedAfterDeadline);
        let rest = |r: &&mut Record| {
            let under_it = |l: Granted| l.token == lease.token && (l.left > 0 || timeless);
            r.lease.is_some_and(under_it) && r.pos > pos && config.same_line(r.msg, number(lease.id))
        };
        for record in self.records.iter_mut().filter(rest) {
            record.let_go(config, lease.token);
        }
    }

    /// Moves the deadline of a lease that is held.
    pub fn renew(&mut self, config: &Config, lease: &Lease) -> bool {
        let late = config.has(Bug::RenewAfterDeadline);
        let granted = self.find_mut(number(lease.id)).and_then(|r| r.lease.as_mut());
        match granted.filter(|g| g.token == lease.token && (g.left > 0 || late)) {
            Some(granted) => {
                granted.left = config.lease;
                true
            }
            None => false,
        }
    }

    /// The lease of a message that ran out.
    pub fn expired(&self, config: &Config, msg: usize) -> Option<Lease> {
        let record = self.find(msg)?;
        let granted = record.lease.filter(|g| g.left == 0)?;
        Some(record.as_lease(config, granted.token))
    }

    /// An operator's verb; core says whether it applies.
    pub fn operate(&mut self, config: &Config, msg: usize, verb: Event) -> bool {
        let Some(record) = self.find(msg) else { return false };
        let Ok(step) = apply(seen_by_operator(config, record, verb), verb) else {
            return false;
        };
        let blocks = blocks_after(config, record, verb);
        let in_place = record.blocks || config.messages[msg].key.is_none() || config.has(Bug::ReplayInOldPlace);
        let tail = (verb == Event::Replay && !in_place).then(|| self.draw());
        let record = self.find_mut(msg).expect("it was just found");
        record.take(&step);
        record.blocks = blocks;
        record.pos = tail.unwrap_or(record.pos);
        if verb == Event::Replay {
            record.lapses_in = record.lapses_in.filter(|left| *left > 0);
            record.standing.epoch *= u64::from(!config.has(Bug::EpochResetAtReplay));
        }
        true
    }

    /// Removes a dead or quarantined message with its evidence.
    pub fn discard(&mut self, msg: usize) {
        let ended = |r: &Record| matches!(r.standing.state, State::Dead | State::Quarantined);
        self.records.retain(|r| r.msg != msg || !ended(r));
    }

    /// A tick of the one clock that counts.
    pub fn tick(&mut self) {
        for record in &mut self.records {
            record.wait = record.wait.saturating_sub(1);
            record.lapses_in = record.lapses_in.map(|left| left.saturating_sub(1));
            if let Some(lease) = &mut record.lease {
                lease.left = lease.left.saturating_sub(1);
            }
        }
    }
}

/// What a message means for a claim that has come to it.
enum Turn {
    /// It is over; the next one's turn.
    Passed,
    /// The line waits for it.
    Holds,
    /// Nobody wants it any more.
    Lapsed,
    /// It can be granted.
    Due,
}

/// The standing that an operator's verb is judged by: the true one, unless the store is too obliging.
fn seen_by_operator(config: &Config, record: &Record, verb: Event) -> Standing {
    let state = match (verb, record.standing.state) {
        (Event::Replay, State::Pending | State::Leased) if config.has(Bug::ReplayOfAnyState) => State::Dead,
        (Event::Quarantine, State::Leased) if config.has(Bug::QuarantineOfLeased) => State::Pending,
        (_, state) => state,
    };
    Standing {
        state,
        ..record.standing
    }
}

/// Whether the key waits for a message after this verb.
///
/// A message that once let its key go does not hold it again: later ones may be under way, and a replay in its old
/// place would put it before them.
fn blocks_after(config: &Config, record: &Record, verb: Event) -> bool {
    let was_over = record.standing.state.is_terminal();
    match verb {
        Event::Quarantine if config.has(Bug::CancelledBlocksAgain) => config.blocks(record.msg),
        Event::Quarantine if was_over => record.blocks,
        Event::Quarantine => config.blocks(record.msg),
        _ => false,
    }
}

fn apply(from: Standing, event: Event) -> Result<Step, posthouse_core::Illegal> {
    // No verb of the store itself backs off, so neither the policy nor the chance is ever asked.
    let policy = RetryPolicy::table(Limits::ATTEMPTS, []);
    let ctx = Ctx {
        policy: &policy,
        roll: 0.5,
    };
    step(from, event, ctx)
}

/// Unique, as a random one would be, and the same in every order of events that leads to the same grant, so that fewer
/// states differ by name alone. (The first message of a claim, and its epoch.)
fn fresh_token(msg: usize, epoch: u64) -> LeaseToken {
    LeaseToken(Uuid::from_u128((msg as u128 + 1) << 64 | u128::from(epoch)))
}
