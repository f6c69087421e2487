//! A message as the store keeps it, and what a lease's end writes into it.

use posthouse_core::{
    AttemptOutcome, DeadReason, Lease, LeaseToken, Limits, MessageId, Settlement, Standing, State, Step,
};
use std::time::Duration;
use uuid::Uuid;

use super::{
    bug::Bug,
    config::{Config, in_ticks},
};

/// A message in the store.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Record {
    pub msg: usize,
    pub standing: Standing,
    pub reason: Option<DeadReason>,
    /// Its place in its line.
    pub pos: u8,
    /// Ticks until it is due.
    pub wait: u8,
    /// Ticks until it lapses.
    pub lapses_in: Option<u8>,
    pub lease: Option<Granted>,
    /// The token of its last release, so that a repeated one is known.
    pub released_by: Option<LeaseToken>,
    /// It is terminal, and its key waits for it.
    pub blocks: bool,
    pub attempts: Vec<Evidence>,
}

/// A lease as the store keeps it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Granted {
    pub token: LeaseToken,
    /// Ticks until the deadline; at none it has passed.
    pub left: u8,
}

/// A record of how a lease ended.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Evidence {
    pub epoch: u64,
    pub generation: u32,
    pub attempt: u32,
    pub token: LeaseToken,
    pub outcome: AttemptOutcome,
}

/// How far a write gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Reach {
    Whole,
    /// Only the first half, where a bug made two halves of it.
    Torn,
}

impl Record {
    /// A message as its producer wrote it.
    pub fn new(config: &Config, msg: usize, pos: u8) -> Self {
        let plan = config.messages[msg];
        Self {
            msg,
            standing: Standing {
                releases: plan.releases,
                ..Standing::new(plan.budget)
            },
            reason: None,
            pos: if plan.key.is_some() { pos } else { 0 },
            wait: 0,
            lapses_in: plan.lapses_in,
            lease: None,
            released_by: None,
            blocks: false,
            attempts: Vec::new(),
        }
    }

    /// What a holder is told.
    pub fn as_lease(&self, config: &Config, token: LeaseToken) -> Lease {
        Lease {
            id: MessageId(Uuid::from_u128(self.msg as u128)),
            seq: self.msg as i64,
            token,
            standing: self.standing,
            on_dead: config.messages[self.msg].on_dead,
            bound: false,
            saga: None,
        }
    }

    /// Writes a settlement that passed the fence: the state and its evidence are one write.
    pub fn end(&mut self, config: &Config, settlement: &Settlement, reach: Reach) {
        let step = &settlement.step;
        self.take(step);
        self.blocks = self.standing.state == State::Dead && config.blocks(self.msg);
        let Some(outcome) = step.evidence else {
            self.released_by = Some(settlement.lease.token);
            self.standing.attempts += u32::from(config.has(Bug::ReleaseKeepsCount));
            return;
        };
        if reach == Reach::Torn && config.has(Bug::EvidenceApart) {
            return;
        }
        self.attempts.push(Evidence {
            epoch: settlement.lease.standing.epoch,
            generation: step.standing.generation,
            attempt: step.standing.attempts,
            token: settlement.lease.token,
            outcome,
        });
    }

    /// Goes back unsent, because another failed. That never counts, so core is not told of more releases than are free.
    pub fn let_go(&mut self, config: &Config, token: LeaseToken) {
        let mut lease = self.as_lease(config, token);
        lease.standing.releases = lease.standing.releases.min(Limits::FREE_RELEASES - 1);
        self.end(config, &Settlement::released(&lease, Duration::ZERO), Reach::Whole);
    }

    /// Goes where core says. Whatever happened, the lease is over and an earlier release is forgotten.
    pub fn take(&mut self, step: &Step) {
        self.standing = step.standing;
        self.reason = step.reason;
        self.wait = in_ticks(step.due_in);
        self.lease = None;
        self.released_by = None;
    }
}

/// The model's number of a message.
pub fn number(id: MessageId) -> usize {
    usize::try_from(id.0.as_u128()).expect("the model numbers its messages")
}
