//! Reads a history and says which promises it breaks. Believes nobody: a lease is what the store granted, a send is what a
//! destination saw, and each must have its reason in what the others wrote down.

use posthouse_core::{
    AttemptOutcome, DeadReason, Lease, LeaseToken, Message, MessageId, OnDead, Outcome, Renewal, Settlement, State,
};
use std::{collections::BTreeMap, fmt, time::Duration};

use super::{Answer, Ended, Fact, Grant, Terms, Who};

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

    /// What a dead process was sending ends with it, as far as it is concerned.
    fn crashed(&mut self, who: Who) {
        let now = self.now;
        self.life(who, |life| {
            life.crashed = true;
            life.sending.clear();
        });
        for send in self.messages.values_mut().flat_map(|track| &mut track.sends) {
            if send.who == who && send.ended.is_none() {
                send.ended = Some(now);
            }
        }
    }

    /// In time, and with nothing in hand.
    fn stopped(&mut self, who: Who) {
        let now = self.now;
        self.life(who, |life| life.stopped = Some(now));
        let Some(life) = self.relays.get(&who) else { return };
        let told = life.stopping.unwrap_or(now);
        if life.troubled(told.saturating_sub(SECOND), now) {
            return;
        }
        let mut wrong = Vec::new();
        if now > told + life.terms.grace + SECOND {
            wrong.push(format!(
                "{who} was told to stop at {:.3}, and its grace is over",
                told.as_secs_f64()
            ));
        }
        for track in self.messages.values() {
            if track
                .live
                .as_ref()
                .is_some_and(|live| live.who == who && live.until > now && live.known.is_some())
            {
                wrong.push(format!("{who} left, and holds {}", track.name));
            }
        }
        wrong.into_iter().for_each(|what| self.accuse("L6", what));
    }

    /// Whether a release comes too late after the relay was told to stop.
    fn too_late_for(&self, who: Who, time: Duration) -> bool {
        let Some(life) = self.relays.get(&who) else {
            return false;
        };
        let told = life.stopping.filter(|told| *told + time < self.now);
        told.is_some_and(|told| !life.troubled(told.saturating_sub(SECOND), self.now))
    }

    fn committed(&mut self, message: &Message, at: Duration) {
        let Some(id) = message.id else { return };
        self.places += 1;
        let deliver_by = message.deliver_in.map(|within| at + within);
        let track = Track {
            message: message.clone(),
            name: String::from_utf8_lossy(&message.payload).into_owned(),
            state: State::Pending,
            discarded: false,
            deliver_by,
            ends: Vec::new(),
            sends: Vec::new(),
            first_deliver_by: deliver_by,
            reason: None,
            freed: false,
            place: self.places,
            epoch: 0,
            live: None,
        };
        if let Some(key) = key_of(message) {
            self.keys.entry(key).or_default().push(id);
        }
        self.messages.insert(id, track);
    }

    fn granted(&mut self, who: Who, known: Duration, until: Duration, grant: &Grant) {
        let (now, lease) = (self.now, &grant.lease);
        let Some(track) = self.messages.get(&lease.id) else {
            return self.accuse("P1", format!("{who} was granted {}, which nobody committed", lease.id));
        };
        let (name, standing, mut wrong) = (track.name.clone(), lease.standing, Vec::new());
        if let Some(live) = &track.live {
            wrong.push(("P3", format!("{who} was granted {name}, which {} holds", live.who)));
        }
        if track.state != State::Pending && track.live.is_none() {
            wrong.push(("P7", format!("{who} was granted {name}, which is {}", track.state)));
        }
        if standing.epoch != track.epoch + 1 {
            wrong.push((
                "P5",
                format!("{name} was granted epoch {} after {}", standing.epoch, track.epoch),
            ));
        }
        if standing.attempts > standing.max_attempts {
            wrong.push((
                "P8",
                format!("attempt {} of {} of {name}", standing.attempts, standing.max_attempts),
            ));
        }
        let others = self
            .of_key(lease.id)
            .filter_map(|other| other.live.as_ref().map(|live| (other, live)));
        for (other, live) in others.filter(|(_, live)| live.lease.token != lease.token) {
            wrong.push((
                "P10",
                format!(
                    "{who} was granted {name} while {} holds {} of its key",
                    live.who, other.name
                ),
            ));
        }
        wrong.into_iter().for_each(|(promise, what)| self.accuse(promise, what));
        if let Some(track) = self.messages.get_mut(&lease.id) {
            (track.epoch, track.state) = (standing.epoch, State::Leased);
            track.live = Some(Live {
                who,
                lease: lease.clone(),
                granted: now,
                until,
                known: grant.heard.then_some(known),
            });
        }
    }

    fn renewed(
        &mut self,
        who: Who,
        lease: &Lease,
        answer: Renewal,
        until: Duration,
        known: Option<(Duration, Duration)>,
    ) {
        let now = self.now;
        let track = self.messages.get_mut(&lease.id);
        let held = track.and_then(|track| track.live.as_mut().filter(|live| live.holds(lease, now)));
        let holds = held.is_some();
        if let Some(live) = held.filter(|_| answer == Renewal::Renewed) {
            live.until = until;
            // Who has given it up by its own clock has it no more.
            live.known = match (live.known, known) {
                (Some(before), Some((at, until))) if before > at => Some(until),
                (before, _) => before,
            };
        }
        let name = self.name(lease.id);
        match answer {
            Renewal::Renewed if !holds => self.accuse("P4", format!("{who} renewed {name}, which it does not hold")),
            Renewal::Lost if holds => self.accuse("P4", format!("{who} was refused {name}, which it holds")),
            _ => {}
        }
    }

    fn settled(&mut self, who: Who, batch: &[(Settlement, Ended)]) {
        for (settlement, ended) in batch {
            let lease = &settlement.lease;
            let (name, now) = (self.name(lease.id), self.now);
            let Some(track) = self.messages.get(&lease.id) else {
                continue;
            };
            let held = track.live.as_ref().filter(|live| live.lease.token == lease.token);
            let in_time = held.is_some_and(|live| (live.until <= now) == settlement.is_expiry());
            let end = (lease.standing.epoch, lease.token, settlement.step.evidence);
            match ended {
                Ended::Settled if in_time => self.ended(who, settlement, batch),
                Ended::Settled if track.ends.contains(&end) => {}
                Ended::Settled => self.accuse("P4", format!("{who} settled {name}@{}, which it does not hold", end.0)),
                Ended::Lost if in_time => self.accuse("P4", format!("{who} was refused {name}, which it holds")),
                Ended::Refused => self.accuse("P17", format!("a settlement of {name} was refused")),
                Ended::Lost => {}
            }
        }
    }

    /// A lease ended in time: by what, and is it true?
    fn ended(&mut self, who: Who, settlement: &Settlement, batch: &[(Settlement, Ended)]) {
        let (lease, now) = (&settlement.lease, self.now);
        let epoch = lease.standing.epoch;
        if let Some(why_not) = self.untrue(settlement) {
            let name = self.name(lease.id);
            self.accuse(
                why_not.0,
                format!(
                    "{who} settled {name}@{epoch} as {:?}: {}",
                    settlement.step.evidence, why_not.1
                ),
            );
        }
        let Some(track) = self.messages.get_mut(&lease.id) else {
            return;
        };
        track.live = None;
        track.ends.push((epoch, lease.token, settlement.step.evidence));
        (track.state, track.reason) = (settlement.step.standing.state, settlement.step.reason);
        let place = track.place;
        if !settlement.stops_run() || track.message.order_key.is_none() {
            return;
        }
        let rest: Vec<_> = self
            .of_key(lease.id)
            .filter(|later| later.place > place)
            .filter(|later| {
                later
                    .live
                    .as_ref()
                    .is_some_and(|live| live.lease.token == lease.token && live.until > now)
            })
            .filter_map(|later| later.message.id)
            .filter(|id| {
                !batch
                    .iter()
                    .any(|(s, _)| s.lease.id == *id && s.lease.token == lease.token && !s.is_expiry())
            })
            .collect();
        for id in rest {
            self.let_go(id);
        }
    }

    fn let_go(&mut self, id: MessageId) {
        let Some(track) = self.messages.get_mut(&id) else {
            return;
        };
        let Some(live) = track.live.take() else { return };
        let epoch = live.lease.standing.epoch;
        track.state = State::Pending;
        track.ends.push((epoch, live.lease.token, None));
        if track.sends.iter().any(|send| send.epoch == epoch) {
            let what = format!("{}@{epoch} went back with its key, although it was sent", track.name);
            self.accuse("P21", what);
        }
    }

    /// Why a settlement is not what happened.
    fn untrue(&self, settlement: &Settlement) -> Option<(&'static str, String)> {
        let track = self.messages.get(&settlement.lease.id)?;
        let live = track.live.as_ref()?;
        let send = track
            .sends
            .iter()
            .find(|send| send.epoch == settlement.lease.standing.epoch);
        let code = settlement.code.as_deref();
        let said = send.and_then(|send| match &send.answer {
            Some(Answer::Said(outcome)) => Some(outcome),
            _ => None,
        });
        let no = |promise, what: &str| Some((promise, what.to_owned()));
        match settlement.step.evidence {
            None | Some(AttemptOutcome::Lapsed) if send.is_some() => no("P21", "but a send had begun"),
            None if self.too_late_for(live.who, SECOND) => no("L6", "long after it was told to stop"),
            None | Some(AttemptOutcome::Lapsed) => None,
            Some(AttemptOutcome::Delivered) => match (said, send) {
                (Some(Outcome::Delivered { .. }), Some(send)) if send.received => None,
                (Some(Outcome::Delivered { .. }), _) => no("P16", "but the destination does not have it"),
                _ => no("P16", "but the destination did not say so"),
            },
            Some(AttemptOutcome::Rejected) => match said {
                Some(Outcome::Reject { .. }) => None,
                _ => no("P16", "but the destination did not say so"),
            },
            Some(AttemptOutcome::Retry) if code == Some("released_too_often") => None,
            Some(AttemptOutcome::Retry) => {
                let Some(send) = send else {
                    return no("P21", "but it was never sent");
                };
                let took = send.ended.unwrap_or(self.now) - send.began;
                let told = self.relays.get(&send.who).is_some_and(|life| life.stopping.is_some());
                let true_to = match (&send.answer, code) {
                    (Some(Answer::Said(Outcome::Retry { code, .. } | Outcome::Unknown { code, .. })), said) => {
                        said == Some(code)
                    }
                    (Some(Answer::Panicked), code) => code == Some("panic"),
                    // It is told to end in the instant in which the outcome may already be written.
                    (Some(Answer::GivenUp) | None, Some("timeout")) => took >= send.timeout,
                    (Some(Answer::GivenUp), Some("shutdown")) => told,
                    _ => false,
                };
                (!true_to).then(|| {
                    (
                        "P21",
                        format!("but the send ended with {:?}, code {code:?}", send.answer),
                    )
                })
            }
            Some(AttemptOutcome::LeaseExpired) => self.unexplained(live),
            Some(AttemptOutcome::Duplicate | AttemptOutcome::Expanded) => no("P16", "which nobody asked for"),
        }
    }

    /// Why nothing explains that a lease ran out: its holder was there, and was heard.
    fn unexplained(&self, live: &Live) -> Option<(&'static str, String)> {
        let life = self.relays.get(&live.who)?;
        let known = live.known?.min(live.until);
        let to = life.stopped.map_or(live.until, |at| at.min(live.until));
        let from = known.min(to).saturating_sub(WELL).max(live.granted);
        (!life.crashed && !life.troubled(from, to)).then(|| {
            (
                "P21",
                format!(
                    "but nothing kept {} from reporting since {:.3}",
                    live.who,
                    from.as_secs_f64()
                ),
            )
        })
    }

    fn sent(&mut self, who: Who, destination: &str, id: MessageId, epoch: u64) {
        let now = self.now;
        let Some((life, track)) = self.relays.get(&who).zip(self.messages.get(&id)) else {
            return self.accuse("P1", format!("{who} sent {id}, which nobody committed"));
        };
        let (timeout, at_a_time) = life.terms.destinations.get(destination).copied().unwrap_or_default();
        let (name, mut wrong) = (track.name.clone(), Vec::new());
        match track
            .live
            .as_ref()
            .filter(|live| live.who == who && live.lease.standing.epoch == epoch)
        {
            None => wrong.push(("P18", format!("{who} sent {name}@{epoch} without a lease"))),
            Some(live) if live.until <= now => {
                wrong.push(("P18", format!("{who} sent {name}@{epoch} after its lease was over")));
            }
            Some(live) if live.until < now + timeout => {
                wrong.push((
                    "1.6",
                    format!("{who} sent {name}@{epoch} under a lease that is shorter than its timeout"),
                ));
            }
            Some(_) => {}
        }
        if track.sends.last().is_some_and(|send| send.epoch >= epoch) {
            wrong.push((
                "P5",
                format!("{name} was sent under epoch {epoch} again, or after a later one"),
            ));
        }
        if track.deliver_by.is_some_and(|by| by <= now) {
            wrong.push(("1.1", format!("{name} was sent after its deliver-by")));
        }
        let of_key = self.of_key(id).filter(|other| other.message.id != Some(id));
        for other in of_key.chain([track]) {
            if other.sends.iter().any(|send| send.ended.is_none()) {
                wrong.push(("P10", format!("{who} sent {name} while {} is under way", other.name)));
            }
            if other.place < track.place && other.in_the_way(now) {
                wrong.push((
                    "P10",
                    format!("{who} sent {name} before {}, which is {}", other.name, other.state),
                ));
            }
        }
        if life.has_heard_the_stop(now) {
            wrong.push(("L6", format!("{who} sent {name} after it was told to stop")));
        }
        let there = life.sending.values().filter(|to| *to == destination).count();
        if life.sending.len() >= life.terms.concurrency as usize || there >= at_a_time as usize {
            wrong.push((
                "L8",
                format!(
                    "{who} has {} under way, {there} of them there, and sends {name}",
                    life.sending.len()
                ),
            ));
        }
        wrong.into_iter().for_each(|(promise, what)| self.accuse(promise, what));
        self.life(who, |life| {
            life.sending.insert((id, epoch), destination.to_owned());
        });
        if let Some(track) = self.messages.get_mut(&id) {
            track.sends.push(Send {
                epoch,
                received: false,
                answer: None,
                who,
                began: now,
                ended: None,
                timeout,
            });
        }
    }

    fn answered(&mut self, who: Who, id: MessageId, epoch: u64, answer: &Answer) {
        let now = self.now;
        self.life(who, |life| {
            life.sending.remove(&(id, epoch));
        });
        let name = self.name(id);
        let Some(send) = self.send(id, epoch).filter(|send| send.ended.is_none()) else {
            return;
        };
        (send.ended, send.answer) = (Some(now), Some(answer.clone()));
        if now - send.began > send.timeout {
            let what = format!(
                "{who} waited for {name}@{epoch} from {:.3}, longer than it may",
                send.began.as_secs_f64()
            );
            self.accuse("L4", what);
        }
    }

    fn operated(&mut self, verb: &str, id: MessageId) {
        let now = self.now;
        self.places += 1;
        let tail = self.places;
        let Some(track) = self.messages.get_mut(&id) else {
            return;
        };
        let wrong = track
            .live
            .is_some()
            .then(|| format!("an operator could {verb} {}, which is held", track.name));
        match verb {
            "replay" => {
                if !track.blocks(now) {
                    track.place = tail;
                }
                (track.state, track.reason, track.freed) = (State::Pending, None, false);
                track.deliver_by = track.first_deliver_by.filter(|by| *by > now);
            }
            "quarantine" => (track.state, track.reason) = (State::Quarantined, None),
            "cancel" => (track.state, track.reason, track.freed) = (State::Dead, Some(DeadReason::Cancelled), true),
            "resolve" => (track.state, track.reason) = (State::Done, None),
            _ => track.discarded = true,
        }
        wrong.into_iter().for_each(|what| self.accuse("P7", what));
    }

    /// The messages of a message's key, itself among them.
    fn of_key(&self, id: MessageId) -> impl Iterator<Item = &Track> {
        let key = self.messages.get(&id).and_then(|track| key_of(&track.message));
        let ids = key.and_then(|key| self.keys.get(&key)).into_iter().flatten();
        ids.filter_map(|id| self.messages.get(id))
    }
}

impl Life {
    /// Whether it was told to stop before, and has heard it: only what is frozen has not. To begin no send it needs nobody, so it is no
    /// excuse that the store did not answer.
    fn has_heard_the_stop(&self, now: Duration) -> bool {
        let told = self.stopping.filter(|told| *told < now && self.frozen.is_none());
        told.is_some_and(|told| self.thawed.is_none_or(|thawed| thawed < told))
    }

    /// Whether anything of it went wrong in this time.
    fn troubled(&self, from: Duration, to: Duration) -> bool {
        self.frozen.is_some() || self.trouble.iter().any(|(begins, ends)| *begins <= to && *ends >= from)
    }
}

impl Live {
    fn holds(&self, lease: &Lease, now: Duration) -> bool {
        self.lease.token == lease.token && self.until > now
    }
}

impl Track {
    /// Its deliver-by has passed while nobody held it: the next claim finds it dead.
    pub fn has_lapsed(&self, now: Duration) -> bool {
        self.state == State::Pending && self.deliver_by.is_some_and(|by| by <= now)
    }

    /// Whether it ended in a way that holds its key.
    pub fn blocks(&self, now: Duration) -> bool {
        let ended = match self.state {
            State::Dead => self.reason != Some(DeadReason::Cancelled),
            State::Quarantined => true,
            _ => self.has_lapsed(now),
        };
        let keyed = self.message.order_key.is_some() && self.message.on_dead == OnDead::Block;
        ended && keyed && !self.freed && !self.discarded
    }

    fn in_the_way(&self, now: Duration) -> bool {
        let waits = !self.state.is_terminal() && !self.has_lapsed(now);
        !self.discarded && (waits || self.blocks(now))
    }
}

fn key_of(message: &Message) -> Option<(String, String, String)> {
    Some((
        message.namespace.clone(),
        message.tenant.clone(),
        message.order_key.clone()?,
    ))
}
