//! Sends: under a lease, in order, and not too many.

use posthouse_core::MessageId;

use super::{Court, Send};
use crate::simulation::{Answer, Who};

impl Court {
    pub(super) fn sent(&mut self, who: Who, destination: &str, id: MessageId, epoch: u64) {
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

    pub(super) fn answered(&mut self, who: Who, id: MessageId, epoch: u64, answer: &Answer) {
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
}
