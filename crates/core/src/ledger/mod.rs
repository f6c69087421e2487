//! The ledger: the record under which an effect is done once.
//!
//! Whoever is about to do something under a key begins there ([`Entry::begin`]), and is told one of five things. One of them is "go on":
//! then he holds the entry under a token, like a lease, until he says how it ended, or until his time is up. What is decided is decided here:
//! each rule takes the entry as it was found, and gives the entry as it is to be written, if anything is. A store reads, asks and writes,
//! under one lock.
//!
//! | found | answer |
//! |---|---|
//! | nothing; or what is past its retention | [`Begun::Acquired`] |
//! | in flight, and its holder's time is up; or let go of | [`Begun::Acquired`], which says whether it was taken over |
//! | in flight, held | [`Begun::Busy`] |
//! | succeeded | [`Begun::Replay`] |
//! | failed for good | [`Begun::Failed`] |
//! | any of them, for something else; but nothing, and what was let go of before its first checkpoint | [`Begun::Mismatch`] |

mod answer;
mod fingerprint;
mod key;
mod relay;
mod view;

pub use answer::{Answer, Keep, Kept};
pub use fingerprint::Fingerprint;
pub use key::EntryKey;
pub use relay::{Binding, CONFLICT, Clearance, End, waits};
pub use view::{EntryFilter, EntryPage, EntryView, Waits};

use std::time::Duration;

use crate::{
    Code, Invalid, LeaseToken, Limits, MessageId, Timestamp,
    lease::check_lease,
    message::{check_name, word_enum},
};

/// How long a holder has, unless he says so.
pub const LEASE: Duration = Duration::from_secs(30);
/// How long an end is kept, unless he says so.
pub const RETENTION: Duration = Duration::from_secs(24 * 3600);
/// How long to wait for whoever is just writing an entry.
pub const SOON: Duration = Duration::from_millis(50);
/// How long to wait for an entry that a message holds: nobody knows how long that takes.
pub const MESSAGE_RETRY_AFTER: Duration = Duration::from_secs(1);

word_enum!(
    /// Where an entry stands.
    Status, "status" {
        /// Somebody is at it, or was when he was last heard of.
        InFlight = "in_flight",
        /// The effect is there, and its answer.
        Succeeded = "succeeded",
        /// There will be no effect.
        Failed = "failed",
    }
);

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// Under which key.
    pub key: EntryKey,
    /// What is to be done.
    pub fingerprint: Fingerprint,
    /// How long it is held, unless it is renewed.
    pub lease: Duration,
    /// How long its end is kept.
    pub retention: Duration,
}

/// What a holder holds.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hold {
    /// The entry.
    pub key: EntryKey,
    /// The fence.
    pub token: LeaseToken,
    /// Somebody held it before and was not heard of again: whether his effect is there is not known.
    pub taken_over: bool,
    /// The last point that an earlier holder came to.
    pub checkpoint: Option<String>,
}

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Begun<H = Hold> {
    /// Go on: nobody else does.
    Acquired(H),
    /// It was done before. This was the answer.
    Replay(Kept),
    /// Somebody is at it.
    Busy {
        /// When his time is up, if he is not heard of again.
        retry_after: Duration,
    },
    /// It failed for good before.
    Failed(Kept),
    /// The key was used for something else. Nothing was changed.
    Mismatch,
}

impl<H> Begun<H> {
    /// The same, with what is made of the hold.
    pub fn map<G>(self, make: impl FnOnce(H) -> G) -> Begun<G> {
        match self {
            Self::Acquired(hold) => Begun::Acquired(make(hold)),
            Self::Replay(kept) => Begun::Replay(kept),
            Self::Busy { retry_after } => Begun::Busy { retry_after },
            Self::Failed(kept) => Begun::Failed(kept),
            Self::Mismatch => Begun::Mismatch,
        }
    }

    /// The code of what keeps it from being done, or done again; none if nothing does, or it was done.
    pub const fn code(&self) -> Option<Code> {
        match self {
            Self::Acquired(_) | Self::Replay(_) => None,
            Self::Busy { .. } => Some(Code::IdempotentBusy),
            Self::Failed(_) => Some(Code::IdempotentLastFailed),
            Self::Mismatch => Some(Code::Conflict),
        }
    }
}

/// What became of a verb of a holder's. In a transaction of his own only [`Done`](Self::Done) is to be committed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use = "unless it is done, what was done for it must be rolled back"]
pub enum Fenced {
    /// It is written.
    Done,
    /// He said so before, and it is written since then. In a transaction of his own: its effect is there already, so roll back.
    Before,
    /// It is not his, or not any more. Nothing was changed.
    LeaseLost,
}

/// How a holder ends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conclusion {
    /// The effect is there.
    Succeeded(Kept),
    /// It will never be.
    Failed(Kept),
    /// It is not there, and may be tried again: the key is free.
    Released {
        /// Why.
        error: Option<String>,
    },
}

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Entry {
    /// What it is for.
    pub fingerprint: Fingerprint,
    /// Where it stands.
    pub status: Status,
    /// Its holder, or who ended it.
    pub token: Option<LeaseToken>,
    /// Until when it is held; nothing when nobody holds it, or a message does.
    pub lease_until: Option<Timestamp>,
    /// The message that holds it, or that ended it.
    pub message: Option<MessageId>,
    /// The last point that a holder came to.
    pub checkpoint: Option<String>,
    /// How it ended; of an entry that was let go of, why.
    pub kept: Option<Kept>,
    /// How long its end is kept.
    pub retention: Duration,
    /// When it was first begun.
    pub created_at: Timestamp,
    /// When it last changed.
    pub updated_at: Timestamp,
    /// From when on it is as if it were not there: its retention after its end, or after the time of a holder who was not heard of again. Never, while a message holds it.
    pub expires_at: Option<Timestamp>,
}

/// An entry as it is to be written, if it is, and what the caller is told.
pub type Ruling<T> = (Option<Entry>, T);

/// Who has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Held {
    /// A holder, for so long.
    For(Duration),
    /// A holder who was not heard of again.
    Abandoned,
    /// A message.
    ByMessage,
    /// Nobody: it was let go of.
    Free,
}

impl Begin {
    /// To do this under that key.
    pub fn new(key: EntryKey, fingerprint: Fingerprint) -> Self {
        Self {
            key,
            fingerprint,
            lease: LEASE,
            retention: RETENTION,
        }
    }

    /// Holds it for so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.lease = lease;
        self
    }

    /// Keeps its end for so long.
    pub fn retention(mut self, retention: Duration) -> Self {
        self.retention = retention;
        self
    }

    /// Refuses what no store can keep.
    pub fn check(&self) -> Result<(), Invalid> {
        self.key.check()?;
        check_lease(self.lease)?;
        if self.retention > Limits::FARTHEST {
            return Err(Invalid::new("retention", "must be at most ten years"));
        }
        Ok(())
    }
}

/// Refuses a name that no checkpoint can have.
pub fn check_point(name: &str) -> Result<(), Invalid> {
    check_name("checkpoint", name)
}

/// Why an entry is not left to a message.
pub fn not_under_it() -> Invalid {
    Invalid::new("message_id", "is not of a message that was enqueued under this entry")
}

/// Refuses a name that no consumer can have.
pub fn check_consumer(name: &str) -> Result<(), Invalid> {
    check_name("consumer", name)
}

impl Entry {
    /// Somebody asks for it. `token` is his, if he is to go on.
    pub fn begin(found: Option<Self>, ask: &Begin, token: LeaseToken, now: Timestamp) -> Ruling<Begun> {
        let Some(entry) = found.filter(|entry| !entry.is_expired(now)) else {
            return Self::acquired(None, ask, token, now);
        };
        let same = entry.fingerprint == ask.fingerprint;
        match (entry.status, entry.held(now)) {
            // Nothing was done under it.
            _ if entry.is_blank(now) => Self::acquired(None, ask, token, now),
            _ if !same => (None, Begun::Mismatch),
            (Status::Succeeded, _) => (None, Begun::Replay(entry.kept.unwrap_or_default())),
            (Status::Failed, _) => (None, Begun::Failed(entry.kept.unwrap_or_default())),
            (Status::InFlight, Held::For(retry_after)) => (None, Begun::Busy { retry_after }),
            (Status::InFlight, Held::ByMessage) => {
                let retry_after = MESSAGE_RETRY_AFTER;
                (None, Begun::Busy { retry_after })
            }
            (Status::InFlight, Held::Abandoned | Held::Free) => Self::acquired(Some(entry), ask, token, now),
        }
    }

    fn acquired(earlier: Option<Self>, ask: &Begin, token: LeaseToken, now: Timestamp) -> Ruling<Begun> {
        let taken_over = earlier.as_ref().is_some_and(|entry| entry.held(now) == Held::Abandoned);
        let checkpoint = earlier.as_ref().and_then(|entry| entry.checkpoint.clone());
        let created_at = earlier.map_or(now, |entry| entry.created_at);
        let hold = Hold {
            key: ask.key.clone(),
            token,
            taken_over,
            checkpoint: checkpoint.clone(),
        };
        let entry = Self {
            fingerprint: ask.fingerprint,
            status: Status::InFlight,
            token: Some(token),
            lease_until: Some(now.plus(ask.lease)),
            message: None,
            checkpoint,
            kept: None,
            retention: ask.retention,
            created_at,
            updated_at: now,
            expires_at: Some(now.plus(ask.lease).plus(ask.retention)),
        };
        (Some(entry), Begun::Acquired(hold))
    }

    /// Its holder ends it. What has ended stays as it is: told again by the same holder, it was before.
    pub fn conclude(found: Option<Self>, token: LeaseToken, conclusion: Conclusion, now: Timestamp) -> Ruling<Fenced> {
        let Some(entry) = found.filter(|entry| entry.token == Some(token)) else {
            return (None, Fenced::LeaseLost);
        };
        if entry.is_held_by(token, now) {
            let (status, kept) = match conclusion {
                Conclusion::Succeeded(kept) => (Status::Succeeded, Some(kept.clean())),
                Conclusion::Failed(kept) => (Status::Failed, Some(kept.clean())),
                Conclusion::Released { error } => (Status::InFlight, error.map(Kept::failure)),
            };
            return (Some(entry.ended(status, kept, now)), Fenced::Done);
        }
        let repeated = match conclusion {
            Conclusion::Succeeded(_) => entry.status == Status::Succeeded,
            Conclusion::Failed(_) => entry.status == Status::Failed,
            Conclusion::Released { .. } => entry.status == Status::InFlight && entry.held(now) == Held::Free,
        };
        (None, if repeated { Fenced::Before } else { Fenced::LeaseLost })
    }

    /// Its holder goes on for so long from now.
    pub fn renew(found: Option<Self>, token: LeaseToken, lease: Duration, now: Timestamp) -> Ruling<Fenced> {
        Self::while_held(found, token, now, |entry| {
            let until = now.plus(lease);
            entry.lease_until = Some(until);
            entry.expires_at = Some(until.plus(entry.retention));
        })
    }

    /// Its holder has come to a point from which another one could go on. The last point counts: told again, it was before.
    pub fn reach(found: Option<Self>, token: LeaseToken, checkpoint: &str, now: Timestamp) -> Ruling<Fenced> {
        let point = |entry: &Self| entry.checkpoint.as_deref() == Some(checkpoint);
        if found
            .as_ref()
            .is_some_and(|entry| entry.is_held_by(token, now) && point(entry))
        {
            return (None, Fenced::Before);
        }
        Self::while_held(found, token, now, |entry| {
            entry.checkpoint = Some(checkpoint.to_owned())
        })
    }

    /// Its holder leaves it to a message: it is held until that has ended, however long that takes.
    pub fn leave_to(found: Option<Self>, token: LeaseToken, message: MessageId, now: Timestamp) -> Ruling<Fenced> {
        Self::while_held(found, token, now, |entry| {
            entry.token = None;
            entry.lease_until = None;
            entry.expires_at = None;
            entry.message = Some(message);
        })
    }

    fn while_held(
        found: Option<Self>,
        token: LeaseToken,
        now: Timestamp,
        change: impl FnOnce(&mut Self),
    ) -> Ruling<Fenced> {
        let Some(mut entry) = found.filter(|entry| entry.is_held_by(token, now)) else {
            return (None, Fenced::LeaseLost);
        };
        change(&mut entry);
        entry.updated_at = now;
        (Some(entry), Fenced::Done)
    }

    /// The end of it, by whomever.
    fn ended(mut self, status: Status, kept: Option<Kept>, now: Timestamp) -> Self {
        self.status = status;
        self.kept = kept;
        self.lease_until = None;
        self.updated_at = now;
        self.expires_at = Some(now.plus(self.retention));
        self
    }

    /// Whether it is as if it were not there. Nobody who holds it is put out: neither a holder nor a message.
    pub fn is_expired(&self, now: Timestamp) -> bool {
        let held = matches!(self.held(now), Held::For(_) | Held::ByMessage) && self.status == Status::InFlight;
        !held && self.expires_at.is_some_and(|at| at <= now)
    }

    /// Let go of, and nothing was done under it.
    fn is_blank(&self, now: Timestamp) -> bool {
        self.status == Status::InFlight && self.held(now) == Held::Free && self.checkpoint.is_none()
    }

    fn is_held_by(&self, token: LeaseToken, now: Timestamp) -> bool {
        self.status == Status::InFlight && self.token == Some(token) && matches!(self.held(now), Held::For(_))
    }

    fn held(&self, now: Timestamp) -> Held {
        match (self.lease_until, self.message) {
            (Some(until), _) if until > now => Held::For(until.since(now)),
            (Some(_), _) => Held::Abandoned,
            (None, Some(_)) => Held::ByMessage,
            (None, None) => Held::Free,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use uuid::Uuid;

    const NOW: Timestamp = Timestamp::from_micros(1_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn token(n: u128) -> LeaseToken {
        LeaseToken(Uuid::from_u128(n))
    }

    fn at(seconds: u64) -> Timestamp {
        NOW.plus(SECOND * u32::try_from(seconds).unwrap())
    }

    fn ask(what: &str) -> Begin {
        Begin::new(EntryKey::new("orders", "k"), Fingerprint::of_bytes(what.as_bytes()))
            .lease(SECOND * 30)
            .retention(SECOND * 100)
    }

    fn answer(body: &str) -> Kept {
        Answer::bytes(body).status(201).kept(Keep::default())
    }

    /// An entry that was begun for "a" by holder 1.
    fn begun() -> Entry {
        Entry::begin(None, &ask("a"), token(1), NOW).0.unwrap()
    }

    fn ended(conclusion: Conclusion) -> Entry {
        Entry::conclude(Some(begun()), token(1), conclusion, at(1)).0.unwrap()
    }

    fn released() -> Conclusion {
        Conclusion::Released { error: None }
    }

    fn asked(found: Entry, what: &str, seconds: u64) -> Begun {
        Entry::begin(Some(found), &ask(what), token(2), at(seconds)).1
    }

    fn goes_on(begun: &Begun) -> Option<bool> {
        match begun {
            Begun::Acquired(hold) => Some(hold.taken_over),
            _ => None,
        }
    }

    #[test]
    fn what_is_not_there_is_acquired() {
        let (entry, begun) = Entry::begin(None, &ask("a"), token(1), NOW);
        let entry = entry.unwrap();
        assert_eq!(goes_on(&begun), Some(false));
        assert_eq!(
            (entry.status, entry.token, entry.lease_until),
            (Status::InFlight, Some(token(1)), Some(at(30)))
        );
        assert_eq!(entry.expires_at, Some(at(130)));
    }

    #[test]
    fn a_live_holder_is_waited_for_until_his_time_is_up() {
        assert_eq!(
            asked(begun(), "a", 10),
            Begun::Busy {
                retry_after: SECOND * 20
            }
        );
        assert_eq!(goes_on(&asked(begun(), "a", 30)), Some(true));
    }

    #[test]
    fn an_answer_is_replayed_as_it_was_until_its_retention_ends() {
        let done = ended(Conclusion::Succeeded(answer("made")));
        assert_eq!(asked(done.clone(), "a", 100), Begun::Replay(answer("made")));
        assert_eq!(goes_on(&asked(done, "a", 101)), Some(false));
    }

    #[test]
    fn a_failure_for_good_is_told() {
        let failure = Kept::failure("no stock").status(422);
        let failed = ended(Conclusion::Failed(failure.clone()));
        assert_eq!(asked(failed, "a", 2), Begun::Failed(failure));
    }

    #[test]
    fn something_else_under_the_same_key_is_a_mismatch_and_changes_nothing() {
        let point = Entry::reach(Some(begun()), token(1), "charged", at(1)).0.unwrap();
        let half = Entry::conclude(Some(point), token(1), released(), at(2)).0.unwrap();
        let all = [
            begun(),
            ended(Conclusion::Succeeded(answer("made"))),
            ended(Conclusion::Failed(Kept::failure("no"))),
            half,
        ];
        for found in all {
            for seconds in [2, 40] {
                let ruling = Entry::begin(Some(found.clone()), &ask("b"), token(2), at(seconds));
                assert_eq!(ruling, (None, Begun::Mismatch), "{found:?}");
            }
        }
    }

    #[test]
    fn what_was_let_go_of_is_free_for_anything() {
        let free = ended(released());
        for what in ["a", "b"] {
            assert_eq!(goes_on(&asked(free.clone(), what, 2)), Some(false));
        }
    }

    #[test]
    fn the_next_holder_goes_on_from_the_last_point() {
        let point = Entry::reach(Some(begun()), token(1), "charged", at(1)).0.unwrap();
        let Begun::Acquired(hold) = asked(point, "a", 31) else {
            panic!()
        };
        assert_eq!((hold.taken_over, hold.checkpoint.as_deref()), (true, Some("charged")));
    }

    #[test]
    fn only_the_holder_ends_it_and_only_in_time() {
        let end = || Conclusion::Succeeded(answer("made"));
        let lost = (None, Fenced::LeaseLost);
        assert_eq!(Entry::conclude(None, token(1), end(), at(1)), lost);
        assert_eq!(Entry::conclude(Some(begun()), token(2), end(), at(1)), lost);
        assert_eq!(Entry::conclude(Some(begun()), token(1), end(), at(30)), lost);
        assert_eq!(Entry::renew(Some(begun()), token(1), SECOND, at(30)), lost);
        assert_eq!(Entry::reach(Some(begun()), token(1), "p", at(30)), lost);
        assert_eq!(
            Entry::leave_to(Some(begun()), token(1), MessageId(Uuid::nil()), at(30)),
            lost
        );
    }

    #[test]
    fn an_end_is_told_twice_and_changed_never() {
        let all = || {
            [
                Conclusion::Succeeded(answer("other")),
                Conclusion::Failed(Kept::failure("other")),
                released(),
            ]
        };
        for (at_first, first) in all().into_iter().enumerate() {
            let found = ended(first);
            for (at_second, second) in all().into_iter().enumerate() {
                let verdict = if at_first == at_second {
                    Fenced::Before
                } else {
                    Fenced::LeaseLost
                };
                assert_eq!(
                    Entry::conclude(Some(found.clone()), token(1), second, at(2)),
                    (None, verdict)
                );
            }
        }
    }

    #[test]
    fn who_was_not_heard_of_is_remembered_for_the_retention() {
        let entry = Entry::renew(Some(begun()), token(1), SECOND * 300, at(1)).0.unwrap();
        assert_eq!((entry.lease_until, entry.expires_at), (Some(at(301)), Some(at(401))));
        assert_eq!(goes_on(&asked(entry.clone(), "a", 400)), Some(true));
        assert_eq!(asked(entry.clone(), "b", 400), Begun::Mismatch);
        assert_eq!(goes_on(&asked(entry, "b", 401)), Some(false));
    }

    /// Who does it again because he did not hear the answer must not commit that.
    #[test]
    fn a_point_is_reached_once() {
        let point = Entry::reach(Some(begun()), token(1), "charged", at(1)).0.unwrap();
        assert_eq!(
            Entry::reach(Some(point.clone()), token(1), "charged", at(2)),
            (None, Fenced::Before)
        );
        assert_eq!(Entry::reach(Some(point), token(1), "booked", at(2)).1, Fenced::Done);
    }

    #[test]
    fn what_a_message_holds_does_not_end_before_it() {
        let message = MessageId(Uuid::from_u128(7));
        let entry = Entry::leave_to(Some(begun()), token(1), message, at(1)).0.unwrap();
        assert!(!entry.is_expired(at(1_000_000)));
        assert_eq!(
            asked(entry.clone(), "a", 1_000_000),
            Begun::Busy {
                retry_after: MESSAGE_RETRY_AFTER
            }
        );
        let end = Conclusion::Succeeded(answer("made"));
        assert_eq!(
            Entry::conclude(Some(entry), token(1), end, at(2)),
            (None, Fenced::LeaseLost),
            "it is the message's"
        );
    }
}
