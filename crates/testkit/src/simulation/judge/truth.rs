//! Whether a settlement is what happened.

use posthouse_core::{AttemptOutcome, Outcome, Settlement};

use super::{Court, Live, SECOND, WELL};
use crate::simulation::Answer;

impl Court {
    /// Why a settlement is not what happened.
    pub(super) fn untrue(&self, settlement: &Settlement) -> Option<(&'static str, String)> {
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
}
