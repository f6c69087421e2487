//! A destination, as its user describes it.

use posthouse_core::{BreakerPolicy, Error, Invalid, Rate, RetryPolicy, Transport, presence};
use std::{fmt, sync::Arc, time::Duration};

/// A destination, with the rules for sending to it.
///
/// Every [`Transport`] becomes one with the usual rules; [`Destination::new`] gives it a name, which is what operators pause and
/// resume. Several routes share one, with its limits, when each gets a clone of it.
#[derive(Clone)]
pub struct Destination {
    pub(super) name: Option<String>,
    pub(super) transport: Arc<dyn Transport>,
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
}

impl Destination {
    /// A destination of this name: 10 seconds for each send, 16 sends at a time, 12 attempts, and a breaker that opens after 10
    /// failures in a row.
    pub fn new(name: impl Into<String>, transport: impl Transport + 'static) -> Self {
        Self {
            name: Some(name.into()),
            ..transport.into()
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

    /// How often and how soon a message is tried again.
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
        Arc::as_ptr(&self.transport).cast::<()>() == Arc::as_ptr(&other.transport).cast::<()>()
            && self.rules == other.rules
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
        Self {
            name: None,
            transport: Arc::new(transport),
            rules: Rules {
                timeout: Duration::from_secs(10),
                concurrency: 16,
                retry: RetryPolicy::default(),
                rate: None,
                breaker: Some(BreakerPolicy::default()),
                reuse_receipts: false,
            },
        }
    }
}

/// How much longer than a send its lease must hold, so that its outcome can still be settled.
pub(super) fn margin(lease: Duration) -> Duration {
    lease / 10
}
