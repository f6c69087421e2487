//! What happened, in its order, as those saw it who were there: producers, the store, destinations, operators and whoever made the faults.

use posthouse_core::{Lease, Message, MessageId, Outcome, Renewal, Settlement};
use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    fmt::Write as _,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};
use tokio::time::Instant;

use super::{Fault, Sky};

/// One life of one relay; a restart is another.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Who(pub usize);

/// What a relay was told.
#[derive(Clone, Debug)]
pub struct Terms {
    /// Its name.
    pub name: String,
    /// How long its leases last.
    pub lease: Duration,
    /// The most of one claim.
    pub batch: u32,
    /// The most in flight.
    pub concurrency: u32,
    /// How often it looks.
    pub poll: Duration,
    /// How long it may go on after it was told to stop.
    pub grace: Duration,
    /// The timeout of each destination, and how many sends at a time it takes.
    pub destinations: BTreeMap<String, (Duration, u32)>,
}

/// A lease that was granted.
#[derive(Clone, Debug)]
pub struct Grant {
    /// The lease.
    pub lease: Lease,
    /// Whether whoever asked is told.
    pub heard: bool,
}

/// What the store answered to a settlement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Ended {
    /// It is written.
    Settled,
    /// The lease was lost.
    Lost,
    /// It was refused.
    Refused,
}

/// How a send ended for the relay.
#[derive(Clone, Debug)]
pub enum Answer {
    /// By an answer.
    Said(Outcome),
    /// By a panic.
    Panicked,
    /// The relay did not wait any longer.
    GivenUp,
}

/// One thing that happened.
#[derive(Clone, Debug)]
pub enum Fact {
    /// A relay begins.
    Began(Who, Terms),
    /// It is killed.
    Crashed(Who),
    /// Nothing of it passes.
    Frozen(Who),
    /// It goes on.
    Thawed(Who),
    /// It is told to stop.
    Stopping(Who),
    /// It has.
    Stopped(Who),
    /// The weather changes.
    Weather(Sky),
    /// Messages are there, each with when it was enqueued.
    Committed(Vec<(Message, Duration)>),
    /// Messages are not there.
    RolledBack(Vec<MessageId>),
    /// Leases were granted.
    Claimed {
        /// To whom.
        who: Who,
        /// How many were asked for.
        batch: u32,
        /// For how long.
        lease: Duration,
        /// When it asked.
        asked: Duration,
        /// Which.
        granted: Vec<Grant>,
    },
    /// Leases were to be renewed.
    Renewed {
        /// By whom.
        who: Who,
        /// For how long.
        lease: Duration,
        /// When it asked.
        asked: Duration,
        /// Which, and what became of it.
        answers: Vec<(Lease, Renewal)>,
        /// When whoever asked is told, if it is.
        heard: Option<Duration>,
    },
    /// Leases were to be ended.
    Settled {
        /// By whom.
        who: Who,
        /// Which, and what became of it.
        batch: Vec<(Settlement, Ended)>,
    },
    /// A relay told of a lease that it lost.
    Conflict(Who, MessageId),
    /// A call goes wrong.
    Fault {
        /// Of whom.
        who: Who,
        /// Which call.
        verb: &'static str,
        /// How.
        fault: Fault,
        /// Until when.
        until: Duration,
    },
    /// A send begins.
    Sent {
        /// By whom.
        who: Who,
        /// Where to.
        destination: String,
        /// Of what.
        id: MessageId,
        /// Under which grant.
        epoch: u64,
        /// In which generation.
        generation: u32,
        /// The how manieth attempt.
        attempt: u32,
    },
    /// The destination has it.
    Received(MessageId, u64),
    /// A send ends.
    Answered {
        /// By whom.
        who: Who,
        /// Of what.
        id: MessageId,
        /// Under which grant.
        epoch: u64,
        /// How.
        answer: Answer,
    },
    /// An operator did, or tried to do, something to a message.
    Operated {
        /// What.
        verb: &'static str,
        /// To which.
        id: MessageId,
        /// Whether it was allowed.
        done: bool,
    },
    /// An operator stopped (true) or freed a destination.
    Paused(String, bool),
    /// A promise of the world's own was broken, in words.
    Broken(String),
}

/// The list of all of it. A clone writes into the same.
#[derive(Clone)]
pub struct History {
    start: Instant,
    facts: Arc<Mutex<Vec<(Duration, Fact)>>>,
    closed: Arc<AtomicBool>,
}

impl History {
    /// An empty one, which begins now.
    pub fn begin() -> Self {
        Self {
            start: Instant::now(),
            facts: Arc::default(),
            closed: Arc::default(),
        }
    }

    /// How long ago it began.
    pub fn now(&self) -> Duration {
        self.start.elapsed()
    }

    /// Ends it: what happens while the world is taken down is no part of it.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    /// Writes it down.
    pub fn add(&self, fact: Fact) {
        if self.closed.load(Ordering::Relaxed) {
            return;
        }
        let at = self.now();
        self.locked().push((at, fact));
    }

    /// All of it.
    pub fn facts(&self) -> Vec<(Duration, Fact)> {
        self.locked().clone()
    }

    /// All of it, to be read: messages by number, leases by epoch.
    pub fn trace(&self) -> String {
        let (facts, mut text, mut names) = (self.locked(), String::new(), Names::default());
        for (at, fact) in facts.iter() {
            let _ = write!(text, "{:>9.3} ", at.as_secs_f64());
            let _ = names.line(&mut text, fact);
            text.push('\n');
        }
        text
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<(Duration, Fact)>> {
        self.facts.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Short names for identities.
#[derive(Default)]
struct Names(HashMap<MessageId, usize>);

impl Names {
    fn of(&mut self, id: MessageId) -> String {
        let next = self.0.len();
        format!("m{}", self.0.entry(id).or_insert(next))
    }

    fn line(&mut self, f: &mut String, fact: &Fact) -> fmt::Result {
        match fact {
            Fact::Began(who, terms) => write!(f, "{who} begins: {terms:?}"),
            Fact::Crashed(who) => write!(f, "{who} CRASHES"),
            Fact::Frozen(who) => write!(f, "{who} FREEZES"),
            Fact::Thawed(who) => write!(f, "{who} thaws"),
            Fact::Stopping(who) => write!(f, "{who} is told to stop"),
            Fact::Stopped(who) => write!(f, "{who} has stopped"),
            Fact::Weather(sky) => write!(f, "weather: {sky:?}"),
            Fact::Committed(messages) => {
                write!(f, "committed:")?;
                messages.iter().try_for_each(|(m, _)| {
                    let id = m.id.map(|id| self.of(id)).unwrap_or_default();
                    write!(f, " {id}")?;
                    m.order_key
                        .as_ref()
                        .map_or(Ok(()), |key| write!(f, "({}/{key} {})", m.tenant, m.on_dead))
                })
            }
            Fact::RolledBack(ids) => {
                write!(f, "rolled back:")?;
                ids.iter().try_for_each(|id| write!(f, " {}", self.of(*id)))
            }
            Fact::Claimed {
                who, batch, granted, ..
            } => {
                write!(f, "{who} claims {batch}:")?;
                granted.iter().try_for_each(|grant| {
                    let unheard = if grant.heard { "" } else { " unheard" };
                    let (id, epoch) = (self.of(grant.lease.id), grant.lease.standing.epoch);
                    write!(f, " {id}@{epoch}{unheard}")
                })
            }
            Fact::Renewed {
                who, answers, heard, ..
            } => {
                write!(f, "{who} renews{}:", if heard.is_some() { "" } else { " unheard" })?;
                answers.iter().try_for_each(|(lease, answer)| {
                    write!(f, " {}@{} {answer:?}", self.of(lease.id), lease.standing.epoch)
                })
            }
            Fact::Settled { who, batch } => {
                write!(f, "{who} settles:")?;
                batch.iter().try_for_each(|(s, ended)| {
                    let (id, epoch, code) = (self.of(s.lease.id), s.lease.standing.epoch, s.code.as_deref());
                    let what = s.step.evidence.map_or("released", |outcome| outcome.as_str());
                    write!(
                        f,
                        " {id}@{epoch} {what} {} -> {:?} {ended:?};",
                        code.unwrap_or(""),
                        s.next()
                    )
                })
            }
            Fact::Conflict(who, id) => write!(f, "{who} tells of a lost lease on {}", self.of(*id)),
            Fact::Fault {
                who,
                verb,
                fault,
                until,
            } => {
                write!(f, "{who} {verb}: FAULT {fault:?} until {:.3}", until.as_secs_f64())
            }
            Fact::Sent {
                who,
                destination,
                id,
                epoch,
                attempt,
                ..
            } => {
                write!(
                    f,
                    "{who} sends {}@{epoch} to {destination}, attempt {attempt}",
                    self.of(*id)
                )
            }
            Fact::Received(id, epoch) => write!(f, "received {}@{epoch}", self.of(*id)),
            Fact::Answered { who, id, epoch, answer } => {
                write!(f, "{who} has the answer to {}@{epoch}: {answer:?}", self.of(*id))
            }
            Fact::Operated { verb, id, done } => {
                write!(
                    f,
                    "operator: {verb} {} {}",
                    self.of(*id),
                    if *done { "done" } else { "refused" }
                )
            }
            Fact::Paused(destination, paused) => {
                write!(
                    f,
                    "operator: {destination} {}",
                    if *paused { "paused" } else { "resumed" }
                )
            }
            Fact::Broken(what) => write!(f, "BROKEN: {what}"),
        }
    }
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "r{}", self.0)
    }
}
