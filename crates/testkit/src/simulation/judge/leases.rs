//! Leases: who is granted what, and how it ends.

use posthouse_core::{Lease, MessageId, Renewal, Settlement, State};
use std::time::Duration;

use super::{Court, Live};
use crate::simulation::{Ended, Grant, Who};

impl Court {
    pub(super) fn granted(&mut self, who: Who, known: Duration, until: Duration, grant: &Grant) {
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

    pub(super) fn renewed(
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

    pub(super) fn settled(&mut self, who: Who, batch: &[(Settlement, Ended)]) {
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
}

impl Live {
    fn holds(&self, lease: &Lease, now: Duration) -> bool {
        self.lease.token == lease.token && self.until > now
    }
}
