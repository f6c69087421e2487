//! Reads a history and says which promises it breaks. Believes nobody: a lease is what the store granted, a send is what a
//! destination saw, and each must have its reason in what the others wrote down.

mod leases;
mod lives;
mod messages;
mod sends;
mod truth;

use posthouse_core::{AttemptOutcome, DeadReason, Lease, LeaseToken, Message, MessageId, State};
use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Answer, Fact, Terms, Who};

/// How long before a deadline everything must have been well for an expiry to need another reason.
const WELL: Duration = Duration::from_secs(3);
const SECOND: Duration = Duration::from_secs(1);

/// A promise that was broken.
#[derive(Clone, Debug)]
pub struct Broken {
    /// Which.
    pub promise: &'static str,
    /// When.
    pub at: Duration,
    /// How.
    pub what: String,
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at {:.3}: {}", self.promise, self.at.as_secs_f64(), self.what)
    }
}

/// What the history says of a message.
pub(super) struct Track {
    pub message: Message,
    pub name: String,
    pub state: State,
    pub discarded: bool,
    pub deliver_by: Option<Duration>,
    /// How its leases ended.
    pub ends: Vec<(u64, LeaseToken, Option<AttemptOutcome>)>,
    pub sends: Vec<Send>,
    first_deliver_by: Option<Duration>,
    reason: Option<DeadReason>,
    freed: bool,
    place: u64,
    epoch: u64,
    live: Option<Live>,
}

struct Live {
    who: Who,
    lease: Lease,
    granted: Duration,
    until: Duration,
    /// As far as its holder was told; not at all when nobody heard of the grant.
    known: Option<Duration>,
}

pub(super) struct Send {
    pub epoch: u64,
    pub received: bool,
    pub answer: Option<Answer>,
    who: Who,
    began: Duration,
    ended: Option<Duration>,
    timeout: Duration,
}

struct Life {
    terms: Terms,
    crashed: bool,
    stopping: Option<Duration>,
    stopped: Option<Duration>,
    frozen: Option<Duration>,
    thawed: Option<Duration>,
    /// When its calls went wrong.
    trouble: Vec<(Duration, Duration)>,
    sending: BTreeMap<(MessageId, u64), String>,
}

/// The court: what it knows so far.
pub(super) struct Court {
    pub messages: BTreeMap<MessageId, Track>,
    pub broken: Vec<Broken>,
    /// Nothing ever went wrong in this world.
    pub calm: bool,
    keys: BTreeMap<(String, String, String), Vec<MessageId>>,
    relays: BTreeMap<Who, Life>,
    now: Duration,
    places: u64,
}

impl Court {
    /// Hears the whole history.
    pub fn hear(facts: &[(Duration, Fact)], calm: bool) -> Self {
        let mut court = Self {
            messages: BTreeMap::new(),
            broken: Vec::new(),
            calm,
            keys: BTreeMap::new(),
            relays: BTreeMap::new(),
            now: Duration::ZERO,
            places: 0,
        };
        for (at, fact) in facts {
            court.now = *at;
            court.fact(fact);
        }
        court
    }

    pub fn accuse(&mut self, promise: &'static str, what: String) {
        let at = self.now;
        self.broken.push(Broken { promise, at, what });
    }

    fn fact(&mut self, fact: &Fact) {
        let now = self.now;
        match fact {
            Fact::Began(who, terms) => {
                let life = Life {
                    terms: terms.clone(),
                    crashed: false,
                    stopping: None,
                    stopped: None,
                    frozen: None,
                    thawed: None,
                    trouble: Vec::new(),
                    sending: BTreeMap::new(),
                };
                self.relays.insert(*who, life);
            }
            Fact::Crashed(who) => self.crashed(*who),
            Fact::Frozen(who) => self.life(*who, |life| life.frozen = Some(now)),
            Fact::Thawed(who) => self.life(*who, |life| {
                let from = life.frozen.take().unwrap_or(now);
                life.thawed = Some(now);
                life.trouble.push((from, now));
            }),
            Fact::Stopping(who) => self.life(*who, |life| life.stopping = Some(now)),
            Fact::Stopped(who) => self.stopped(*who),
            Fact::Committed(messages) => messages.iter().for_each(|(message, at)| self.committed(message, *at)),
            Fact::Claimed {
                who,
                batch,
                lease,
                asked,
                granted,
            } => {
                if granted.len() > *batch as usize {
                    self.accuse(
                        "L8",
                        format!("{who} asked for {batch} and was granted {}", granted.len()),
                    );
                }
                granted
                    .iter()
                    .for_each(|grant| self.granted(*who, *asked + *lease, now + *lease, grant));
            }
            Fact::Renewed {
                who,
                lease,
                asked,
                answers,
                heard,
            } => {
                let frozen = self.relays.get(who).is_none_or(|life| life.frozen.is_some());
                let known = heard.filter(|_| !frozen).map(|at| (at, *asked + *lease));
                for (held, answer) in answers {
                    self.renewed(*who, held, *answer, now + *lease, known);
                }
            }
            Fact::Settled { who, batch } => self.settled(*who, batch),
            Fact::Conflict(who, id) => {
                if self.calm {
                    let name = self.name(*id);
                    self.accuse("P21", format!("{who} lost {name} although nothing went wrong"));
                }
            }
            Fact::Fault { who, until, .. } => self.life(*who, |life| life.trouble.push((now, *until))),
            Fact::Sent {
                who,
                destination,
                id,
                epoch,
                ..
            } => self.sent(*who, destination, *id, *epoch),
            Fact::Received(id, epoch) => {
                if let Some(send) = self.send(*id, *epoch) {
                    send.received = true;
                }
            }
            Fact::Answered { who, id, epoch, answer } => self.answered(*who, *id, *epoch, answer),
            Fact::Operated { verb, id, done: true } => self.operated(verb, *id),
            Fact::Broken(what) => self.accuse("L", what.clone()),
            Fact::Weather(_) | Fact::RolledBack(_) | Fact::Operated { .. } | Fact::Paused(..) => {}
        }
    }

    fn life(&mut self, who: Who, change: impl FnOnce(&mut Life)) {
        if let Some(life) = self.relays.get_mut(&who) {
            change(life);
        }
    }

    fn send(&mut self, id: MessageId, epoch: u64) -> Option<&mut Send> {
        self.messages
            .get_mut(&id)?
            .sends
            .iter_mut()
            .find(|send| send.epoch == epoch)
    }

    pub fn name(&self, id: MessageId) -> String {
        self.messages
            .get(&id)
            .map_or_else(|| id.to_string(), |track| track.name.clone())
    }
}
