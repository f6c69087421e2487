//! Claiming work, and the lease that says who may finish it.

use std::time::Duration;

use crate::{
    AttemptOutcome, Delivery, Error, Invalid, Kind, LeaseToken, Limits, MessageId, OnDead, SagaId, Standing, State,
};

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    /// A label for people. Never a fence: two workers of one name are told apart by their tokens.
    pub worker: String,
    /// The most messages to take.
    pub batch: u32,
    /// Stop before the payloads together pass this; one message is taken even if it alone does.
    pub max_bytes: Option<u64>,
    /// How long the lease lasts.
    pub lease: Duration,
    /// Only these namespaces; all when empty.
    pub namespaces: Vec<String>,
    /// Only this tenant.
    pub tenant: Option<String>,
    /// Leave these topics: their destinations are paused, open or not routed here.
    pub not_topics: Vec<String>,
    /// Leave these tenants: they are at their limit here.
    pub not_tenants: Vec<String>,
    /// Each lease stands for itself: its holder may end it in a transaction of its own, for which the others must not wait. Without it
    /// a store may keep them together, which costs less.
    pub apart: bool,
}

impl Claim {
    /// Whether a worker that was granted so many is awake, and not rung for any more. A single message is a trickle: to say that it is
    /// awake, and then that it sleeps, would cost more than the message, and would be in the way of the next. When there is more, a
    /// ring with each commit costs more.
    pub const fn wakes(&self, granted: usize) -> bool {
        granted > 1 || granted > 0 && granted >= self.batch as usize
    }

    /// A claim of up to `batch` messages of every namespace and tenant.
    pub fn new(worker: impl Into<String>, batch: u32, lease: Duration) -> Self {
        Self {
            worker: worker.into(),
            batch,
            max_bytes: None,
            lease,
            namespaces: Vec::new(),
            tenant: None,
            not_topics: Vec::new(),
            not_tenants: Vec::new(),
            apart: true,
        }
    }

    /// Whoever claims settles many together, in no transaction but the store's own.
    pub fn together(mut self) -> Self {
        self.apart = false;
        self
    }

    /// Limits the sum of the payloads.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.max_bytes = Some(bytes);
        self
    }

    /// Adds a namespace.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.namespaces.push(namespace.into());
        self
    }

    /// Restricts it to a tenant.
    pub fn tenant(mut self, tenant: impl Into<String>) -> Self {
        self.tenant = Some(tenant.into());
        self
    }

    /// Leaves a topic.
    pub fn not_topic(mut self, topic: impl Into<String>) -> Self {
        self.not_topics.push(topic.into());
        self
    }

    /// Leaves a tenant.
    pub fn not_tenant(mut self, tenant: impl Into<String>) -> Self {
        self.not_tenants.push(tenant.into());
        self
    }

    /// Refuses a claim that took this long, from the start of its leases to its commit, by the store's clock: less than half of each lease would be left. The
    /// store rolls the claim back. A message that is granted so late can hardly be sent, and its attempt would count.
    pub fn check_in_time(&self, took: Duration) -> Result<(), Error> {
        if took <= self.lease / 2 {
            return Ok(());
        }
        let late = format!(
            "the claim took {} ms, longer than half of its lease of {} ms, and grants nothing",
            took.as_millis(),
            self.lease.as_millis()
        );
        Err(Error::Contention(late.into()))
    }

    /// Refuses what makes no sense.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.worker.is_empty() || self.worker.len() > Limits::NAME_BYTES || self.worker.chars().any(char::is_control)
        {
            return Err(Invalid::new(
                "worker",
                "must have 1 to 255 bytes and no control characters",
            ));
        }
        if self.batch == 0 || self.batch > Limits::BATCH {
            return Err(Invalid::new(
                "batch",
                format!("{} is not between 1 and {}", self.batch, Limits::BATCH),
            ));
        }
        if self.max_bytes == Some(0) {
            return Err(Invalid::new("max_bytes", "must be at least 1"));
        }
        check_lease(self.lease)
    }
}

/// Refuses a lease that is too short to mean anything or too long to be repaired.
pub fn check_lease(lease: Duration) -> Result<(), Invalid> {
    if lease < Duration::from_millis(1) || lease > Limits::LEASE {
        return Err(Invalid::new("lease", "must be between 1 ms and 24 hours"));
    }
    Ok(())
}

/// The right to finish one message, once.
///
/// It is (message, token): the token is random and fresh for every claim. The rest is what the store said when it
/// granted the lease; the fence keeps it true until the lease ends, so the holder can decide without asking again.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Lease {
    /// The message.
    pub id: MessageId,
    /// Its number in the store.
    pub seq: i64,
    /// The fence.
    pub token: LeaseToken,
    /// Where the message stands: `leased`, with this lease counted.
    pub standing: Standing,
    /// What its death would do to its order key. A settlement writes what stands here: a relay puts its route's word in the place of
    /// the one that was stamped before.
    pub on_dead: OnDead,
    /// Whether the message has an entry in the ledger: then that is asked before a send ([`Store::clear`](crate::Store::clear)).
    pub bound: bool,
    /// The saga whose message it is: then that decides what becomes of it ([`Store::load_sagas`](crate::Store::load_sagas)).
    pub saga: Option<SagaId>,
}

impl Lease {
    /// The same under a route that says what a death does to the order key; if it says nothing, what was stamped stands.
    pub fn under(&self, on_dead: Option<OnDead>) -> Self {
        Self {
            on_dead: on_dead.unwrap_or(self.on_dead),
            ..self.clone()
        }
    }
}

/// The saga of a message of this kind that follows from this.
pub fn saga_of(kind: Kind, parent: Option<MessageId>) -> Option<SagaId> {
    parent.filter(|_| kind.is_of_saga()).map(|id| SagaId(id.0))
}

/// A granted message: the lease for the relay, the delivery for the transport.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// Who may finish it.
    pub lease: Lease,
    /// What is sent.
    pub delivery: Delivery,
    /// How long until its deliver-by passes, by the store's clock at the grant.
    pub deliver_within: Option<Duration>,
}

/// What became of a lease that was to be renewed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Renewal {
    /// Its deadline moved.
    Renewed,
    /// A handler's own transaction has the message locked: not lost, and not moved.
    Locked,
    /// It is not, or no longer, held.
    Lost,
}

/// What became of a lease, as far as it is committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fate {
    /// Nothing that ends it is committed, whether or not its deadline has passed. A transaction that ends it may be open.
    Held,
    /// It ended, with this evidence.
    Ended(AttemptOutcome),
    /// It ended without evidence: it was released, or the message is gone.
    Gone,
}

/// What a worker found in the place of the lease it lost.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conflict {
    /// The state of the message.
    pub state: State,
    /// Who holds it now.
    pub worker: Option<String>,
    /// Its epoch now.
    pub epoch: u64,
    /// Whether it went into the audit. Not if the lease holds the message still: then there is no conflict.
    pub recorded: bool,
}

impl Conflict {
    /// The note of its audit row.
    pub fn note(&self, lost: &Lease) -> String {
        let Self {
            state, worker, epoch, ..
        } = self;
        let by = worker
            .as_ref()
            .map(|worker| format!(" by {worker}"))
            .unwrap_or_default();
        let lost = lost.standing.epoch;
        format!("lease of epoch {lost} lost; found {state}{by} at epoch {epoch}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_is_in_time_while_half_of_its_lease_is_left() {
        let claim = Claim::new("w", 10, Duration::from_secs(15));
        let half = Duration::from_millis(7500);
        claim.check_in_time(Duration::ZERO).unwrap();
        claim.check_in_time(half).unwrap();
        let late = claim.check_in_time(half + Duration::from_millis(1));
        assert!(matches!(late, Err(Error::Contention(_))), "{late:?}");
    }

    #[test]
    fn a_claim_is_checked_before_any_traffic() {
        let claim = || Claim::new("w", 10, Duration::from_secs(15));
        claim().check().unwrap();
        let field = |claim: Claim| claim.check().unwrap_err().field;
        assert_eq!(field(Claim { batch: 0, ..claim() }), "batch");
        assert_eq!(
            field(Claim {
                batch: 10_001,
                ..claim()
            }),
            "batch"
        );
        assert_eq!(
            field(Claim {
                worker: String::new(),
                ..claim()
            }),
            "worker"
        );
        assert_eq!(
            field(Claim {
                worker: "a\nb".into(),
                ..claim()
            }),
            "worker"
        );
        assert_eq!(
            field(Claim {
                lease: Duration::ZERO,
                ..claim()
            }),
            "lease"
        );
        assert_eq!(
            field(Claim {
                lease: Duration::MAX,
                ..claim()
            }),
            "lease"
        );
    }
}
