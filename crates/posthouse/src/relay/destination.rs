//! A destination, as its user describes it.

use posthouse_core::{
    BreakerPolicy, Delivery, Error, Invalid, OnDead, Outcome, Rate, RetryPolicy, Transport, presence,
};
use std::{fmt, sync::Arc, time::Duration};

use super::transactional::{Grant, Handle, Transactional};

/// A destination, with the rules for sending to it.
///
/// Every [`Transport`] becomes one with the usual rules; [`Destination::new`] gives it a name, which is what operators pause and
/// resume. Several routes share one, with its limits, when each gets a clone of it.
#[derive(Clone)]
pub struct Destination {
    pub(super) name: Option<String>,
    pub(super) way: Way,
    pub(super) rules: Rules,
}

/// The rules for sending to a destination.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rules {
    pub timeout: Duration,
    pub concurrency: u32,
    pub retry: RetryPolicy,
    pub rate: Option<Rate>,
    pub breaker: Option<BreakerPolicy>,
    pub reuse_receipts: bool,
    pub on_dead: Option<OnDead>,
}

impl Destination {
    /// A destination of this name: 10 seconds for each send, 16 sends at a time, as many attempts as each message allows, and a breaker
    /// that opens after 10 failures in a row.
    pub fn new(name: impl Into<String>, to: impl Into<Self>) -> Self {
        Self {
            name: Some(name.into()),
            ..to.into()
        }
    }

    /// How long one send may take. Must be shorter than the relay's lease.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.rules.timeout = timeout;
        self
    }

    /// How many sends may be under way at a time.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.rules.concurrency = concurrency;
        self
    }

    /// How often and how soon a message is tried again. Its [`RetryPolicy::max_attempts`], where it sets one, replaces the budget that
    /// the message was enqueued with ([`Message::max_attempts`](posthouse_core::Message::max_attempts), else the store's default).
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.rules.retry = retry;
        self
    }

    /// How many messages it takes in a time, from this relay.
    pub fn rate(mut self, rate: Rate) -> Self {
        self.rules.rate = Some(rate);
        self
    }

    /// When it is left alone after failures, and for how long.
    pub fn breaker(mut self, policy: BreakerPolicy) -> Self {
        self.rules.breaker = Some(policy);
        self
    }

    /// It is never left alone, however much fails.
    pub fn without_breaker(mut self) -> Self {
        self.rules.breaker = None;
        self
    }

    /// Keeps the receipt of each delivery, and does not send again what was delivered: a message with the same namespace, tenant, topic,
    /// content type and payload as one that this destination (by its name) has acknowledged is settled as `duplicate`, unsent, with
    /// that one's receipt. For destinations that cannot deduplicate by themselves.
    ///
    /// A receipt is kept as long as its message is (see `posthouse prune`). It costs a look into the store before each send.
    ///
    /// This is an extra, not a lock: of two such messages that are in flight at the same time both are sent. The promise is the dedupe
    /// key, by which a message is not even enqueued twice: [`Message::dedupe_key`](posthouse_core::Message::dedupe_key).
    pub fn reuse_receipts(mut self) -> Self {
        self.rules.reuse_receipts = true;
        self
    }

    /// What the death of a message does to its order key, whatever the message was enqueued with.
    pub fn on_dead(mut self, on_dead: OnDead) -> Self {
        self.rules.on_dead = Some(on_dead);
        self
    }

    /// Checks it against the lease under which its sends happen.
    pub(super) fn check(&self, name: &str, lease: Duration) -> Result<(), Error> {
        presence::check_destination(name)?;
        let rules = &self.rules;
        if rules.timeout.is_zero() || rules.timeout + margin(lease) >= lease {
            let problem = format!(
                "a send to {name} may take {:?}, and the lease of {lease:?} must be longer than that by a tenth and more",
                rules.timeout
            );
            return Err(Invalid::new("timeout", problem).into());
        }
        if rules.concurrency == 0 {
            return Err(Invalid::new("concurrency", format!("of {name} must be at least 1")).into());
        }
        if let Some(breaker) = &rules.breaker {
            breaker.check()?;
        }
        Ok(())
    }

    /// Whether it is one destination with another: the same thing under the same rules.
    pub(super) fn is(&self, other: &Self) -> bool {
        self.way.is(&other.way) && self.rules == other.rules
    }

    fn by(way: Way) -> Self {
        Self {
            name: None,
            way,
            rules: Rules {
                timeout: Duration::from_secs(10),
                concurrency: 16,
                retry: RetryPolicy::default(),
                rate: None,
                breaker: Some(BreakerPolicy::default()),
                reuse_receipts: false,
                on_dead: None,
            },
        }
    }
}

/// Shows its name, and nothing of where it sends.
impl fmt::Debug for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Destination")
            .field("name", &self.name)
            .field("rules", &self.rules)
            .finish_non_exhaustive()
    }
}

impl<T: Transport + 'static> From<T> for Destination {
    fn from(transport: T) -> Self {
        Self::by(Way::Send(Arc::new(transport)))
    }
}

impl From<Transactional> for Destination {
    fn from(handler: Transactional) -> Self {
        Self::by(Way::Handle(handler.0))
    }
}

/// How a message gets there.
#[derive(Clone)]
pub(super) enum Way {
    /// It is sent, and the relay settles what became of it.
    Send(Arc<dyn Transport>),
    /// It is handled by somebody who settles it.
    Handle(Arc<dyn Handle>),
}

impl Way {
    pub async fn go(self, delivery: Arc<Delivery>, grant: Option<Arc<Grant>>) -> Outcome {
        match (self, grant) {
            (Self::Handle(handler), Some(grant)) => handler.handle(delivery, grant).await,
            (Self::Send(transport), _) => transport.send(&delivery).await,
            // Of a step the saga decides what becomes of it, and no handler.
            (Self::Handle(_), None) => Outcome::reject(
                Outcome::NOT_ALLOWED,
                "a handler that settles by itself cannot do a step of a saga; let it be a function that answers",
            ),
        }
    }

    fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Send(one), Self::Send(two)) => Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(two).cast::<()>(),
            (Self::Handle(one), Self::Handle(two)) => Arc::as_ptr(one).cast::<()>() == Arc::as_ptr(two).cast::<()>(),
            _ => false,
        }
    }
}

/// How much longer than a send its lease must hold, so that its outcome can still be settled.
pub(super) fn margin(lease: Duration) -> Duration {
    lease / 10
}
