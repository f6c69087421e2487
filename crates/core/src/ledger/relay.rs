//! The entry of a message: what a relay asks before it sends, and what becomes of the entry when the message ends.

use serde::{Deserialize, Serialize};
use std::{fmt, str::FromStr, time::Duration};

use super::{
    Answer, Entry, EntryKey, Fingerprint, Held, Keep, Kept, MESSAGE_RETRY_AFTER, RETENTION, Ruling, SOON, Status,
};
use crate::{DeadReason, Invalid, MessageId, Timestamp};

/// The longest that a message waits for another one that has its entry, before it looks again.
const LONGEST_LOOK: Duration = Duration::from_secs(60);

/// Under which entry a message is sent; its tenant is the message's.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Binding {
    /// The entry's scope.
    pub scope: String,
    /// Its key.
    pub key: String,
    /// What is to be done.
    pub fingerprint: Fingerprint,
}

impl Binding {
    /// Whose entry it is, for a message of this tenant.
    pub fn entry(&self, tenant: &str) -> EntryKey {
        EntryKey::new(&self.scope, &self.key).tenant(tenant)
    }

    /// Refuses what no store can keep.
    pub fn check(&self) -> Result<(), Invalid> {
        self.entry("").check()
    }
}

/// As it is kept with the headers of its message: JSON.
impl fmt::Display for Binding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::json!(self);
        write!(f, "{json}")
    }
}

impl FromStr for Binding {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        serde_json::from_str(text).map_err(|e| Invalid::new("ledger", e.to_string()))
    }
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

impl End {
    /// Nobody will send it: it was given up, or is past its deliver-by.
    pub const fn unsent(reason: DeadReason) -> Self {
        Self::Dead {
            reason,
            code: None,
            error: None,
        }
    }

    /// Where its entry stands then, and what is kept of it.
    pub fn kept(&self) -> (Status, Kept) {
        match self {
            Self::Delivered(answer) => (Status::Succeeded, answer.clone().kept(Keep::default()).clean()),
            Self::Dead { reason, code, error } => (Status::Failed, failure(*reason, code.as_deref(), error.as_deref())),
        }
    }
}

/// The code of a message whose key was used for something else.
pub const CONFLICT: &str = "IDEMPOTENCY_CONFLICT";

impl Entry {
    /// A message is about to be sent: it may be, if the entry is its own, or becomes so.
    pub fn clear(
        found: Option<Self>,
        fingerprint: Fingerprint,
        message: MessageId,
        now: Timestamp,
    ) -> Ruling<Clearance> {
        let Some(entry) = found.filter(|entry| !entry.is_expired(now) && !entry.is_blank(now)) else {
            return (Some(Self::of_message(fingerprint, message, now)), Clearance::Send);
        };
        if entry.is_left_to(message, now) {
            return (None, Clearance::Send);
        }
        if entry.fingerprint != fingerprint {
            return (None, Clearance::Conflict);
        }
        match (entry.status, entry.held(now)) {
            (Status::Succeeded, _) => (None, Clearance::Done(entry.kept.unwrap_or_default())),
            (Status::InFlight, Held::For(long)) => (None, Clearance::Wait(long.min(LONGEST_LOOK))),
            (Status::InFlight, Held::ByMessage) => {
                // Nobody knows how long that takes: the longer it has, the longer it may.
                let age = now.since(entry.updated_at);
                (None, Clearance::Wait(age.clamp(MESSAGE_RETRY_AFTER, LONGEST_LOOK)))
            }
            // It was this one that failed it: whoever asks has lost his lease, or it would be open again.
            (Status::Failed, _) if entry.message == Some(message) => (None, Clearance::Wait(Duration::ZERO)),
            (Status::Failed, _) | (Status::InFlight, Held::Abandoned | Held::Free) => {
                (Some(entry.taken_by(message, now)), Clearance::Send)
            }
        }
    }

    /// A message has it, and nobody had it before.
    fn of_message(fingerprint: Fingerprint, message: MessageId, now: Timestamp) -> Self {
        Self {
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
        }
    }

    /// A message has it from now on, for as long as it takes.
    fn taken_by(mut self, message: MessageId, now: Timestamp) -> Self {
        (self.status, self.kept) = (Status::InFlight, None);
        (self.token, self.lease_until, self.expires_at) = (None, None, None);
        (self.message, self.updated_at) = (Some(message), now);
        self
    }

    /// Whether this message has it.
    fn is_left_to(&self, message: MessageId, now: Timestamp) -> bool {
        self.status == Status::InFlight && self.held(now) == Held::ByMessage && self.message == Some(message)
    }

    /// A message has ended. Its failure is that of the entry which it has, and of no other: whoever has it goes on, and what nobody has stays free. Its success counts also after a failure, and
    /// after whoever held it meanwhile; but what succeeded is never taken back, and the entry of something else is not touched.
    pub fn message_ended(
        found: Option<Self>,
        fingerprint: Fingerprint,
        message: MessageId,
        end: &End,
        now: Timestamp,
    ) -> Option<Self> {
        let found = found.filter(|entry| !entry.is_expired(now) && !entry.is_blank(now));
        let own = found.as_ref().is_some_and(|entry| entry.is_left_to(message, now));
        let (status, kept) = end.kept();
        let entry = match found {
            Some(entry) if own => entry,
            _ if status == Status::Failed => return None,
            None => Self::of_message(fingerprint, message, now),
            Some(entry) if entry.status == Status::Succeeded || entry.fingerprint != fingerprint => return None,
            Some(entry) => entry,
        };
        let mut entry = entry.ended(status, Some(kept), now);
        (entry.token, entry.message) = (None, Some(message));
        Some(entry)
    }

    /// A message that ended this entry by its failure is tried again: it holds the entry again.
    pub fn reopened(found: Option<Self>, message: MessageId, now: Timestamp) -> Option<Self> {
        let entry = found.filter(|entry| entry.status == Status::Failed && entry.message == Some(message))?;
        Some(entry.taken_by(message, now))
    }
}

/// How long a message waits that was told to, when it has waited so often since it was last sent: those who wait for each other for long look less often.
pub fn waits(asked: Duration, releases: u32) -> Duration {
    let often = SOON.saturating_mul(2u32.saturating_pow(releases.min(16)));
    asked.max(often.min(LONGEST_LOOK))
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
        Entry::clear(Some(found.clone()), print(of), message, NOW).1
    }

    #[test]
    fn a_message_is_sent_under_its_own_entry_and_under_none() {
        assert_eq!(Entry::clear(Some(left()), print("a"), A, NOW), (None, Clearance::Send));
        let failed = Entry::conclude(Some(held()), token(), Conclusion::Failed(Kept::default()), NOW).0;
        let long_gone = Timestamp::from_micros(NOW.as_micros() + 1_000_000_000_000);
        for (found, at) in [(None, NOW), (failed, NOW), (Some(held()), long_gone)] {
            let (entry, clearance) = Entry::clear(found, print("a"), A, at);
            assert_eq!(clearance, Clearance::Send);
            let entry = entry.unwrap();
            assert_eq!(
                (entry.status, entry.message, entry.token),
                (Status::InFlight, Some(A), None)
            );
            assert_eq!((entry.lease_until, entry.expires_at, entry.kept), (None, None, None));
        }
    }

    #[test]
    fn what_a_message_failed_is_not_sent_until_it_is_open_again() {
        let failed = after(Some(left()), &dead(DeadReason::Exhausted, "timeout")).unwrap();
        assert_eq!(clear(&failed, "a", A), Clearance::Wait(Duration::ZERO));
        let open = Entry::reopened(Some(failed), A, NOW).unwrap();
        assert_eq!(clear(&open, "a", A), Clearance::Send);
    }

    #[test]
    fn another_message_is_waited_for_the_longer_the_longer_it_takes() {
        for (seconds, wait) in [(0, 1), (1, 1), (20, 20), (3600, 60)] {
            let later = NOW.plus(Duration::from_secs(seconds));
            let (entry, clearance) = Entry::clear(Some(left()), print("a"), B, later);
            assert_eq!((entry, clearance), (None, Clearance::Wait(Duration::from_secs(wait))));
        }
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
        assert_eq!(clear(&left(), "b", B), Clearance::Conflict);
        let long = Begin::new(EntryKey::new("orders", "k"), print("a")).lease(Duration::from_secs(3600));
        let long = Entry::begin(None, &long, token(), NOW).0.unwrap();
        assert_eq!(clear(&long, "a", A), Clearance::Wait(LONGEST_LOOK));
    }

    #[test]
    fn who_waits_often_looks_less_often() {
        let table = [(0, 50), (1, 100), (3, 400), (10, 51_200), (11, 60_000), (100, 60_000)];
        for (releases, millis) in table {
            assert_eq!(waits(SOON, releases), Duration::from_millis(millis), "{releases}");
        }
        assert_eq!(waits(Duration::from_secs(30), 0), Duration::from_secs(30));
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
            assert_eq!(Entry::message_ended(Some(left()), print("b"), B, &end, NOW), None);
        }
        // But its own it ends, whatever it is for: nobody else would.
        let end = dead(DeadReason::Rejected, "no");
        let ended = Entry::message_ended(Some(left()), print("b"), A, &end, NOW).unwrap();
        assert_eq!(ended.status, Status::Failed);
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
        // Nor does it touch what nobody has, or what was not heard of again, or its own failure.
        assert_eq!(after(None, &end), None);
        let free = Entry::conclude(Some(held()), token(), Conclusion::Released { error: None }, NOW).0;
        assert_eq!(after(free, &end), None);
        let later = NOW.plus(super::super::LEASE);
        assert_eq!(Entry::message_ended(Some(held()), print("a"), A, &end, later), None);
        let failed = after(Some(left()), &end);
        assert_eq!(after(failed, &dead(DeadReason::Cancelled, "x")), None);
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
