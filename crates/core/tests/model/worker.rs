//! What a worker knows: the leases it was given, and how far it got with each. It knows nothing else, and what it knows
//! may be out of date.

use posthouse_core::{Lease, Outcome, RetryPolicy, Settlement, State};

use super::{bug::Bug, config::Config, record::number};

/// The leases of one claim, in the order they were given. A crash empties it.
pub type Run = Vec<Held>;

/// A lease in a worker's hands.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Held {
    pub lease: Lease,
    /// Where it stood when it was granted. The worker does not know it; the judge asks.
    pub place: Place,
    pub phase: Phase,
}

/// Where a message stood in its line.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Place {
    pub pos: u8,
    /// The messages that the store knew, one bit each.
    pub known: u8,
}

/// How far a worker got with a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Phase {
    /// Claimed, and no send began.
    Fresh,
    /// A message before it in its key failed, so it must not be sent.
    Spoiled,
    /// The send began, and no answer came yet.
    Sending,
    /// It was settled, and the answer to the commit was lost. `won` is what the answer would have been, if the
    /// settlement was written at all; the worker does not know it.
    Unsure { how: How, won: Option<bool> },
}

/// How a worker ends a lease.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum How {
    Delivered,
    Retry,
    Unknown,
    Rejected,
    Released,
    Lapsed,
}

impl How {
    /// The settlement, decided by core from what the lease says.
    pub fn settlement(self, lease: &Lease, policy: &RetryPolicy) -> Settlement {
        let of = |outcome| Settlement::of(lease, outcome, policy, 0.5);
        let (code, error) = (String::new, String::new);
        match self {
            Self::Delivered => of(Outcome::delivered()),
            Self::Retry => of(Outcome::Retry {
                after: None,
                code: code(),
                error: error(),
            }),
            Self::Unknown => of(Outcome::Unknown {
                code: code(),
                error: error(),
            }),
            Self::Rejected => of(Outcome::Reject {
                code: code(),
                error: error(),
            }),
            Self::Released => Settlement::released(lease, std::time::Duration::ZERO),
            Self::Lapsed => Settlement::lapsed(lease),
        }
    }
}

/// Whether the worker may begin to send: nothing of the same key that was claimed before it is still in its hands.
pub fn in_turn(config: &Config, run: &Run, at: usize) -> bool {
    let msg = number(run[at].lease.id);
    run[..at]
        .iter()
        .all(|earlier| !config.same_line(number(earlier.lease.id), msg))
}

/// Puts a lease away. Unless the message is over, nothing of its key behind it may be sent under this claim.
pub fn put_away(config: &Config, run: &mut Run, at: usize, over: bool) {
    let gone = run.remove(at);
    let msg = number(gone.lease.id);
    for later in &mut run[at..] {
        let behind_it = config.same_line(number(later.lease.id), msg) && !config.has(Bug::GoesOnAfterLoss);
        if behind_it && !over && later.phase == Phase::Fresh {
            later.phase = Phase::Spoiled;
        }
    }
}

/// Whether a settlement that won lets the next of the key go.
pub fn is_over(config: &Config, settlement: &Settlement) -> bool {
    match settlement.step.standing.state {
        State::Done => true,
        State::Dead => !config.blocks(number(settlement.lease.id)),
        State::Pending | State::Leased | State::Quarantined => false,
    }
}
