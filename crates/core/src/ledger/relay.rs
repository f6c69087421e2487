//! The entry of a message: what a relay asks before it sends, and what becomes of the entry when the message ends.

use std::time::Duration;

use super::{Answer, Entry, Fingerprint, Held, Keep, Kept, RETENTION, Status};
use crate::{DeadReason, MessageId, Timestamp};

/// Under which entry a message is sent; its tenant is the message's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Binding {
    /// The entry's scope.
    pub scope: String,
    /// Its key.
    pub key: String,
    /// What is to be done.
    pub fingerprint: Fingerprint,
}

/// Whether a message may be sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Clearance {
    /// It may.
    Send,
    /// It need not: it was done. This was the answer.
    Done(Kept),
    /// It must not: the key was used for something else.
    Conflict,
    /// Not now: somebody else is at it, for so long at most.
    Wait(Duration),
}

/// How a message ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// It was delivered.
    Delivered(Answer),
    /// It is dead.
    Dead {
        /// Why.
        reason: DeadReason,
        /// The destination's own code.
        code: Option<String>,
        /// What was said.
        error: Option<String>,
    },
}

/// The code of a message whose key was used for something else.
pub const CONFLICT: &str = "IDEMPOTENCY_CONFLICT";

impl Entry {
    /// A message is about to be sent.
    pub fn clearance(found: Option<&Self>, fingerprint: Fingerprint, message: MessageId, now: Timestamp) -> Clearance {
        let Some(entry) = found.filter(|entry| !entry.is_expired(now)) else {
            return Clearance::Send;
        };
        match (entry.status, entry.held(now)) {
            _ if entry.is_blank(now) => Clearance::Send,
            _ if entry.fingerprint != fingerprint => Clearance::Conflict,
            (Status::Succeeded, _) => Clearance::Done(entry.kept.clone().unwrap_or_default()),
            (Status::InFlight, Held::For(long)) => Clearance::Wait(long),
            (Status::InFlight, Held::ByMessage) if entry.message != Some(message) => {
                Clearance::Wait(super::MESSAGE_RETRY_AFTER)
            }
            _ => Clearance::Send,
        }
    }

    /// A message has ended. What succeeded is never taken back, and the entry of something else is not touched; a success counts also after a
    /// failure, and after whoever held it meanwhile.
    pub fn message_ended(
        found: Option<Self>,
        fingerprint: Fingerprint,
        message: MessageId,
        end: &End,
        now: Timestamp,
    ) -> Option<Self> {
        let found = found.filter(|entry| !entry.is_expired(now));
        let (status, kept) = match end {
            End::Delivered(answer) => (Status::Succeeded, answer.clone().kept(Keep::default())),
            End::Dead { reason, code, error } => (Status::Failed, failure(*reason, code.as_deref(), error.as_deref())),
        };
        let blank = || Self {
            fingerprint,
            status: Status::InFlight,
            token: None,
            lease_until: None,
            message: Some(message),
            checkpoint: None,
            kept: None,
            retention: RETENTION,
            created_at: now,
            updated_at: now,
            expires_at: None,
        };
        let entry = match found {
            None => blank(),
            // As if nothing had been there: see `clearance`.
            Some(entry) if entry.is_blank(now) => blank(),
            Some(entry) if entry.status == Status::Succeeded => return None,
            Some(entry) if entry.fingerprint != fingerprint => return None,
            // Who holds it goes on, and says himself how it ends.
            Some(entry) if status == Status::Failed && matches!(entry.held(now), Held::For(_)) => return None,
            Some(entry) if status == Status::Failed && entry.message.is_some_and(|other| other != message) => {
                return None;
            }
            Some(entry) => entry,
        };
        let mut entry = entry.ended(status, Some(kept), now);
        (entry.token, entry.message) = (None, Some(message));
        Some(entry)
    }

    /// A message that ended this entry by its failure is tried again: it holds the entry again.
    pub fn reopened(found: Option<Self>, message: MessageId, now: Timestamp) -> Option<Self> {
        let mut entry = found.filter(|entry| entry.status == Status::Failed && entry.message == Some(message))?;
        entry.status = Status::InFlight;
        entry.kept = None;
        entry.updated_at = now;
        entry.expires_at = None;
        Some(entry)
    }
}

/// What is kept of a message that died: with the status that a service would answer.
fn failure(reason: DeadReason, code: Option<&str>, error: Option<&str>) -> Kept {
    Kept::failure(error.or(code).unwrap_or(reason.as_str())).status(status_of(reason, code))
}

fn status_of(reason: DeadReason, code: Option<&str>) -> u16 {
    let told = code
        .and_then(|code| code.strip_prefix("http_"))
        .and_then(|digits| digits.parse().ok());
    match reason {
        _ if code == Some(CONFLICT) => 409,
        DeadReason::Rejected => told.filter(|status| (400..=599).contains(status)).unwrap_or(422),
        DeadReason::Lapsed => 410,
        DeadReason::Exhausted if code.is_some_and(|code| code.contains("timeout")) => 504,
        _ => 502,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        LeaseToken,
        ledger::{Begin, Conclusion, EntryKey},
    };
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const A: MessageId = MessageId(Uuid::from_u128(1));
    const B: MessageId = MessageId(Uuid::from_u128(2));

    fn print(of: &str) -> Fingerprint {
        Fingerprint::of_bytes(of.as_bytes())
    }

    fn token() -> LeaseToken {
        LeaseToken(Uuid::from_u128(9))
    }

    /// Begun, and held by whoever began it.
    fn held() -> Entry {
        let ask = Begin::new(EntryKey::new("orders", "k"), print("a"));
        Entry::begin(None, &ask, token(), NOW).0.unwrap()
    }

    /// Begun, and left to message A.
    fn left() -> Entry {
        Entry::leave_to(Some(held()), token(), A, NOW).0.unwrap()
    }

    fn delivered() -> End {
        End::Delivered(Answer::bytes("made").status(200))
    }

    fn dead(reason: DeadReason, code: &str) -> End {
        End::Dead {
            reason,
            code: Some(code.into()),
            error: Some("said so".into()),
        }
    }

    fn after(found: Option<Entry>, end: &End) -> Option<Entry> {
        Entry::message_ended(found, print("a"), A, end, NOW)
    }

    fn clear(found: &Entry, of: &str, message: MessageId) -> Clearance {
        Entry::clearance(Some(found), print(of), message, NOW)
    }

    #[test]
    fn a_message_is_sent_under_its_own_entry_and_under_none() {
        assert_eq!(Entry::clearance(None, print("a"), A, NOW), Clearance::Send);
        assert_eq!(clear(&left(), "a", A), Clearance::Send);
        let failed = after(Some(left()), &dead(DeadReason::Exhausted, "timeout")).unwrap();
        assert_eq!(clear(&failed, "a", A), Clearance::Send);
    }

    #[test]
    fn what_is_done_is_not_sent_again() {
        let done = after(Some(left()), &delivered()).unwrap();
        let kept = Answer::bytes("made").status(200).kept(Keep::default());
        assert_eq!(clear(&done, "a", A), Clearance::Done(kept));
        assert_eq!(clear(&done, "b", A), Clearance::Conflict);
    }

    #[test]
    fn who_holds_it_is_waited_for() {
        assert_eq!(clear(&held(), "a", A), Clearance::Wait(super::super::LEASE));
        assert_eq!(
            clear(&left(), "a", B),
            Clearance::Wait(super::super::MESSAGE_RETRY_AFTER)
        );
        assert_eq!(clear(&left(), "b", A), Clearance::Conflict);
    }

    #[test]
    fn success_is_never_taken_back_and_overwrites_failure() {
        let failed = after(Some(left()), &dead(DeadReason::Rejected, "http_400")).unwrap();
        assert_eq!(failed.status, Status::Failed);
        let done = after(Some(failed), &delivered()).unwrap();
        assert_eq!(done.status, Status::Succeeded);
        assert_eq!(after(Some(done), &dead(DeadReason::Exhausted, "timeout")), None);
    }

    #[test]
    fn the_entry_of_something_else_is_not_touched() {
        for end in [delivered(), dead(DeadReason::Conflict, CONFLICT)] {
            assert_eq!(Entry::message_ended(Some(left()), print("b"), A, &end, NOW), None);
        }
    }

    #[test]
    fn what_was_let_go_of_is_as_if_nothing_had_been_there() {
        let free = Entry::conclude(Some(held()), token(), Conclusion::Released { error: None }, NOW)
            .0
            .unwrap();
        assert_eq!(clear(&free, "b", A), Clearance::Send);
        let done = Entry::message_ended(Some(free), print("b"), A, &delivered(), NOW).unwrap();
        assert_eq!((done.status, done.fingerprint), (Status::Succeeded, print("b")));
    }

    #[test]
    fn a_failure_leaves_others_alone() {
        let end = dead(DeadReason::Exhausted, "timeout");
        assert_eq!(after(Some(held()), &end), None);
        assert_eq!(Entry::message_ended(Some(left()), print("a"), B, &end, NOW), None);
    }

    #[test]
    fn retention_starts_when_the_message_has_ended() {
        assert_eq!(left().expires_at, None);
        let done = after(Some(left()), &delivered()).unwrap();
        assert_eq!(done.expires_at, Some(NOW.plus(RETENTION)));
        assert_eq!(after(None, &delivered()).unwrap().expires_at, Some(NOW.plus(RETENTION)));
    }

    #[test]
    fn a_replay_opens_what_the_message_failed() {
        let failed = after(Some(left()), &dead(DeadReason::Exhausted, "timeout")).unwrap();
        let open = Entry::reopened(Some(failed.clone()), A, NOW).unwrap();
        assert_eq!(
            (open.status, open.message, open.expires_at),
            (Status::InFlight, Some(A), None)
        );
        assert_eq!(Entry::reopened(Some(failed), B, NOW), None);
        let done = after(Some(left()), &delivered()).unwrap();
        assert_eq!(Entry::reopened(Some(done), A, NOW), None);
        let by_hand = Entry::conclude(Some(held()), token(), Conclusion::Failed(Kept::default()), NOW).0;
        assert_eq!(Entry::reopened(by_hand, A, NOW), None);
    }

    #[test]
    fn the_status_tells_how_it_died() {
        let table = [
            (DeadReason::Rejected, "http_404", 404),
            (DeadReason::Rejected, "http_200", 422),
            (DeadReason::Rejected, "bad_json", 422),
            (DeadReason::Exhausted, "timeout", 504),
            (DeadReason::Exhausted, "http_503", 502),
            (DeadReason::Lapsed, "lapsed", 410),
            (DeadReason::Conflict, CONFLICT, 409),
            (DeadReason::Cancelled, "cancelled", 502),
        ];
        for (reason, code, status) in table {
            assert_eq!(status_of(reason, Some(code)), status, "{reason} {code}");
        }
    }
}
