//! Where messages go, and under which rules.

use posthouse_core::{Delivery, Error, Invalid, Outcome, RetryPolicy, TopicPattern, Transport, presence};
use std::{
    collections::HashSet,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};
use tokio::sync::Semaphore;

use super::transactional::{Grant, Handle, Transactional};

/// A destination, with the rules for sending to it.
///
/// Every [`Transport`] becomes one with the usual rules; [`Destination::new`] gives it a name, which is what operators pause and resume.
pub struct Destination {
    name: Option<String>,
    way: Way,
    timeout: Duration,
    concurrency: usize,
    retry: RetryPolicy,
}

impl Destination {
    /// A destination of this name: 10 seconds for each send, 16 sends at a time, 12 attempts.
    pub fn new(name: impl Into<String>, to: impl Into<Self>) -> Self {
        Self {
            name: Some(name.into()),
            ..to.into()
        }
    }

    /// How long one send may take. Must be shorter than the relay's lease.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// How many sends may be under way at a time.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.concurrency = concurrency;
        self
    }

    /// How often and how soon a message is tried again.
    pub fn retry(mut self, retry: RetryPolicy) -> Self {
        self.retry = retry;
        self
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

impl Destination {
    fn by(way: Way) -> Self {
        Self {
            name: None,
            way,
            timeout: Duration::from_secs(10),
            concurrency: 16,
            retry: RetryPolicy::default(),
        }
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
    pub async fn go(self, delivery: Delivery, grant: Option<Arc<Grant>>) -> Outcome {
        match (self, grant) {
            (Self::Handle(handler), Some(grant)) => handler.handle(delivery, grant).await,
            (Self::Send(transport), _) => transport.send(&delivery).await,
            (Self::Handle(_), None) => Outcome::retry("internal", "a handler needs a grant"),
        }
    }
}

/// A route of a relay that runs.
pub(super) struct Route {
    pattern: TopicPattern,
    text: String,
    pub name: String,
    pub way: Way,
    pub timeout: Duration,
    pub retry: RetryPolicy,
    pub room: Arc<Semaphore>,
    concurrency: usize,
    /// Messages that are here, sent or waiting for room.
    here: AtomicUsize,
    paused: AtomicBool,
    /// Topics that came this way: what a claim leaves when nothing more can be taken for it.
    seen: Mutex<HashSet<String>>,
}

/// Somebody's place on a route; free again when dropped.
pub(super) struct Place(Arc<Route>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.here.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Route {
    /// Checks a route against the lease under which its sends happen.
    pub fn new(topic: &str, to: Destination, lease: Duration) -> Result<Self, Error> {
        let name = to.name.unwrap_or_else(|| format!("fn:{topic}"));
        presence::check_destination(&name)?;
        if to.timeout + margin(lease) >= lease {
            let problem = format!(
                "a send to {name} may take {:?}, and the lease of {lease:?} must be longer than that by a tenth and more",
                to.timeout
            );
            return Err(Invalid::new("timeout", problem).into());
        }
        if to.concurrency == 0 {
            return Err(Invalid::new("concurrency", format!("of {name} must be at least 1")).into());
        }
        Ok(Self {
            pattern: TopicPattern::parse(topic)?,
            text: topic.to_owned(),
            name,
            way: to.way,
            timeout: to.timeout,
            retry: to.retry,
            room: Arc::new(Semaphore::new(to.concurrency)),
            concurrency: to.concurrency,
            here: AtomicUsize::new(0),
            paused: AtomicBool::new(false),
            seen: Mutex::default(),
        })
    }

    pub fn serves(&self, topic: &str) -> bool {
        self.pattern.matches(topic)
    }

    /// A place for a message of this topic: one is sent, or waits for its turn. None when it is paused, or too many wait already.
    pub fn enter(self: &Arc<Self>, topic: &str) -> Option<Place> {
        self.seen().insert(topic.to_owned());
        let before = self.here.fetch_add(1, Ordering::Relaxed);
        let place = Place(self.clone());
        (!self.is_paused() && before < 2 * self.concurrency).then_some(place)
    }

    pub fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    pub fn pause(&self, paused: bool) {
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// The topics that are not to be claimed now.
    pub fn left_topics(&self) -> Vec<String> {
        if self.is_paused() || self.here.load(Ordering::Relaxed) >= self.concurrency {
            self.seen().iter().cloned().collect()
        } else {
            Vec::new()
        }
    }

    pub fn told(&self) -> presence::Route {
        presence::Route {
            topic: self.text.clone(),
            destinations: vec![self.name.clone()],
        }
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, HashSet<String>> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How much longer than a send its lease must hold, so that its outcome can still be settled.
pub(super) fn margin(lease: Duration) -> Duration {
    lease / 10
}
