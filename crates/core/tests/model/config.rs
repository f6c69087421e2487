//! What a run assumes: which messages, which workers, which faults, and where it stops.

use posthouse_core::{Event, OnDead, Order, RetryPolicy};
use std::time::Duration;

use super::{bug::Bug, promises::Sight, worker::How};

/// A message that a producer will write.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Its order key.
    pub key: Option<u8>,
    /// What its death does to its key.
    pub on_dead: OnDead,
    /// The attempts it is stamped with.
    pub budget: u32,
    /// Ticks until it lapses.
    pub lapses_in: Option<u8>,
    /// Releases in a row that it has behind it, so that the hundredth is within reach.
    pub releases: u32,
}

impl Plan {
    /// A message without a key, with this many attempts.
    pub const fn free(budget: u32) -> Self {
        Self {
            key: None,
            on_dead: OnDead::Pass,
            budget,
            lapses_in: None,
            releases: 0,
        }
    }

    /// A message of the one key.
    pub const fn keyed(budget: u32, on_dead: OnDead) -> Self {
        Self {
            key: Some(0),
            on_dead,
            ..Self::free(budget)
        }
    }
}

/// How a run begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Start {
    /// Every message is committed: the run is about what follows.
    Committed,
    /// Producers begin, commit and roll back in any order that their turns allow.
    Producers(Order),
}

/// What a run assumes.
#[derive(Clone, Debug)]
pub struct Config {
    /// The messages.
    pub messages: Vec<Plan>,
    /// The attempt budget of each worker's route. All workers share one name, because a name is no fence.
    pub workers: Vec<u32>,
    /// The most messages of one claim.
    pub batch: usize,
    /// How many ticks a lease lasts.
    pub lease: u8,
    /// How many ticks a retry waits.
    pub backoff: u8,
    /// How the run begins.
    pub start: Start,
    /// What a destination may answer.
    pub replies: Vec<How>,
    /// What an operator may do.
    pub verbs: Vec<Event>,
    /// Whether an operator may also discard.
    pub discards: bool,
    /// Whether workers release what they did not send.
    pub releases: bool,
    /// Whether leases are renewed.
    pub renews: bool,
    /// Whether the answer to a commit may be lost.
    pub lost_answers: bool,
    /// Whether a worker may stop between its look at the clock and its send.
    pub late_sends: bool,
    /// Whether a second, slow repairer acts on what it saw earlier.
    pub slow_repair: bool,
    /// The run stops at this many grants of one message.
    pub grants: u64,
    /// The run stops at this generation.
    pub generations: u32,
    /// What the run must come across, or it shows nothing.
    pub sights: Vec<Sight>,
    /// The mistake planted in it.
    pub bug: Option<Bug>,
}

impl Config {
    /// Two workers and these messages, with crashes and pauses and nothing else: the ground of every run.
    pub fn of(messages: impl Into<Vec<Plan>>) -> Self {
        Self {
            messages: messages.into(),
            workers: vec![2, 2],
            batch: 1,
            lease: 1,
            backoff: 1,
            start: Start::Committed,
            replies: vec![How::Delivered, How::Retry, How::Rejected],
            verbs: Vec::new(),
            discards: false,
            releases: false,
            renews: false,
            lost_answers: false,
            late_sends: false,
            slow_repair: false,
            grants: 3,
            generations: 1,
            sights: Vec::new(),
            bug: None,
        }
    }

    /// The same, with a mistake in it.
    pub fn with(self, bug: Bug) -> Self {
        Self { bug: Some(bug), ..self }
    }

    /// Whether the mistake is planted.
    pub fn has(&self, bug: Bug) -> bool {
        self.bug == Some(bug)
    }

    /// The retry rule of a worker's route.
    pub fn policy(&self, worker: usize) -> RetryPolicy {
        RetryPolicy::table(self.workers[worker], [ticks(self.backoff)])
    }

    /// The most counted leases that anyone allows a generation of this message.
    pub fn most_attempts(&self, msg: usize) -> u32 {
        let routes = self.workers.iter().copied().max().unwrap_or(0);
        routes.max(self.messages[msg].budget)
    }

    /// The messages that wait for each other with this one: those of its key, or itself alone.
    pub fn same_line(&self, a: usize, b: usize) -> bool {
        a == b || (self.messages[a].key.is_some() && self.messages[a].key == self.messages[b].key)
    }

    /// The lines of the store, each named by its first message.
    pub fn lines(&self) -> impl Iterator<Item = usize> + '_ {
        let first = |&m: &usize| (0..m).all(|earlier| !self.same_line(earlier, m));
        (0..self.messages.len()).filter(first)
    }

    /// Whether this message blocks its key when it is dead.
    pub fn blocks(&self, msg: usize) -> bool {
        self.messages[msg].key.is_some() && self.messages[msg].on_dead == OnDead::Block
    }
}

/// A tick is a second to core.
pub fn ticks(n: u8) -> Duration {
    Duration::from_secs(n.into())
}

/// A second of core is a tick.
pub fn in_ticks(wait: Duration) -> u8 {
    u8::try_from(wait.as_secs()).expect("no wait of the model is long")
}
