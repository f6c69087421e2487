//! What really happened, as somebody who sees everything would tell it.
//!
//! It is kept apart from the store, from the answers alone, so that a store cannot hide a mistake by forgetting it.

use posthouse_core::{Event, Lease, LeaseToken, Settlement, State};

use super::{config::Config, record::number, store::Store, world::Answer};

/// The true history, cut down to what the promises ask for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Ghost {
    /// Grants that have not ended, those past their deadline included.
    pub grants: Vec<Grant>,
    /// What happened to each message.
    pub lives: Vec<Life>,
}

/// A lease from the grant to its end.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Grant {
    pub msg: usize,
    pub token: LeaseToken,
    /// Ticks until the deadline.
    pub left: u8,
}

/// The history of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Life {
    /// The epochs under which it was sent, one bit each.
    pub sent: u16,
    /// Leases that were released and not counted.
    pub freed: u8,
    /// Counted leases of this generation.
    pub spent: u8,
}

impl Ghost {
    pub fn new(messages: usize) -> Self {
        Self {
            grants: Vec::new(),
            lives: vec![Life::default(); messages],
        }
    }

    /// The grant behind a lease, while it has not ended.
    pub fn grant(&self, lease: &Lease) -> Option<&Grant> {
        self.grants.iter().find(|g| g.is(lease))
    }

    /// Whether its holder may rely on it.
    pub fn is_live(&self, lease: &Lease) -> bool {
        self.grant(lease).is_some_and(|g| g.left > 0)
    }

    /// Remembers what an answer said. `before` is the store that answered.
    pub fn follow(&mut self, config: &Config, before: &Store, answer: &Answer) {
        match answer {
            Answer::Nothing | Answer::Committed { .. } => {}
            Answer::Granted { leases, .. } => leases.iter().for_each(|lease| self.granted(config, lease)),
            Answer::Sent { lease, .. } => self.lives[number(lease.id)].sent |= 1 << lease.standing.epoch,
            Answer::Settled {
                settlement, won: true, ..
            } => self.settled(config, before, settlement),
            Answer::Settled { .. } => {}
            Answer::Renewed { lease, renewed } => self.renewed(config, lease, *renewed),
            Answer::Operated { verb, msg, done } => self.operated(*verb, *msg, *done),
            Answer::Ticked => self.grants.iter_mut().for_each(|g| g.left = g.left.saturating_sub(1)),
        }
    }

    fn granted(&mut self, config: &Config, lease: &Lease) {
        let msg = number(lease.id);
        let at = self.grants.partition_point(|g| g.msg <= msg);
        let (token, left) = (lease.token, config.lease);
        self.grants.insert(at, Grant { msg, token, left });
        self.lives[msg].spent += 1;
    }

    fn renewed(&mut self, config: &Config, lease: &Lease, renewed: bool) {
        let grant = self.grants.iter_mut().find(|g| g.is(lease));
        if let Some(grant) = grant.filter(|_| renewed) {
            grant.left = config.lease;
        }
    }

    fn settled(&mut self, config: &Config, before: &Store, settlement: &Settlement) {
        let lease = &settlement.lease;
        if !self.end(number(lease.id), lease.token, settlement.step.evidence.is_none()) {
            return;
        }
        let goes_back = match settlement.step.standing.state {
            State::Pending => true,
            State::Dead => config.blocks(number(lease.id)),
            _ => false,
        };
        if goes_back {
            self.free_the_rest(config, before, lease);
        }
    }

    /// The rest of a key's run goes back with the message that failed, or whose lease ran out.
    fn free_the_rest(&mut self, config: &Config, before: &Store, lease: &Lease) {
        let msg = number(lease.id);
        let Some(pos) = before.find(msg).map(|r| r.pos) else {
            return;
        };
        for record in before.line(config, msg) {
            let live = self.grants.iter().any(|g| g.msg == record.msg && g.left > 0);
            if record.pos > pos && live {
                self.end(record.msg, lease.token, true);
            }
        }
    }

    /// Ends a grant, if it had not ended.
    fn end(&mut self, msg: usize, token: LeaseToken, freed: bool) -> bool {
        let Some(at) = self.grants.iter().position(|g| (g.msg, g.token) == (msg, token)) else {
            return false;
        };
        self.grants.remove(at);
        if freed {
            self.lives[msg].freed += 1;
            self.lives[msg].spent -= 1;
        }
        true
    }

    fn operated(&mut self, verb: Event, msg: usize, done: bool) {
        if done && verb == Event::Replay {
            self.lives[msg].spent = 0;
        }
    }
}

impl Grant {
    fn is(&self, lease: &Lease) -> bool {
        (self.msg, self.token) == (number(lease.id), lease.token)
    }
}
