//! The one way out of a lease: a settlement, decided before it is written.

use std::time::Duration;

use crate::{
    AttemptOutcome, DeadReason, Effect, Error, Invalid, Lease, Limits, Message, OnDead, Outcome, RetryPolicy, Standing,
    State, Step,
    ledger::{Answer, CONFLICT, End},
    machine::{Ctx, Ending, end_lease},
    saga::{Change, Own, Report},
    text,
};

/// The end of one lease: what happened, what becomes of the message, and what follows from it, as one atomic change.
///
/// Built by a named constructor, each of which asks the state machine; a store only performs it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settlement {
    /// The lease that ends.
    pub lease: Lease,
    /// What becomes of the message.
    pub step: Step,
    /// The destination's own code.
    pub code: Option<String>,
    /// What was said about a failure, cleaned and cut.
    pub error: Option<String>,
    /// What the destination returned, cleaned and cut.
    pub receipt: Option<String>,
    /// All that the destination answered, for the message's entry in the ledger.
    pub answer: Option<Box<Answer>>,
    /// The effect for which its receipt is kept: a later message of the same effect need not be sent.
    pub keeps: Option<Effect>,
    /// Messages to enqueue with it, in the same transaction.
    pub follow_ups: Vec<Message>,
    /// What becomes of its saga, in the same transaction, if that is as it was.
    pub saga: Option<Box<Change>>,
}

/// What becomes of the message, in the words a store needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Next {
    /// It is done.
    Done,
    /// It is pending again, due after this long.
    Pending(Duration),
    /// It is dead.
    Dead(DeadReason),
}

impl Settlement {
    /// What a transport answered, under the route's retry rule. `roll` is the chance for the jitter, from 0 to 1.
    ///
    /// An attempt budget that the policy sets replaces the one the message was stamped with; without one the stamped budget stays.
    pub fn of(lease: &Lease, outcome: Outcome, policy: &RetryPolicy, roll: f64) -> Self {
        let standing = Standing {
            max_attempts: policy.budget(lease.standing.max_attempts),
            ..lease.standing
        };
        let mut told = None;
        let (ending, code, error, receipt) = match outcome {
            Outcome::Delivered { receipt, answer } => {
                told = answer;
                (Ending::Delivered, None, None, receipt)
            }
            Outcome::Retry { after, code, error } => (Ending::Retry { wish: after }, Some(code), Some(error), None),
            Outcome::Reject { code, error } => (Ending::Rejected, Some(code), Some(error), None),
            // A plain message treats "it may have happened" as a reason to try again; the receiver has the id.
            Outcome::Duplicate { receipt } => (Ending::Duplicate, None, None, receipt),
            Outcome::Pending { .. } => {
                let error =
                    "the destination wants to answer later, and nobody would be waiting: only steps of a saga may";
                let (code, error) = ("pending".to_owned(), error.to_owned());
                (Ending::Retry { wish: None }, Some(code), Some(error), None)
            }
            Outcome::Unknown { code, error } => (Ending::Retry { wish: None }, Some(code), Some(error), None),
        };
        let step = end_lease(standing, ending, Ctx { policy, roll });
        let settlement = Self::new(lease, step).code(code).error(error).receipt(receipt);
        Self {
            answer: told.filter(|_| lease.bound),
            ..settlement
        }
    }

    /// The destination acknowledged it.
    pub fn delivered(lease: &Lease, receipt: Option<&str>) -> Self {
        Self::plain(lease, Ending::Delivered).receipt(receipt.map(str::to_owned))
    }

    /// It had been delivered before; the earlier receipt stands.
    pub fn duplicate(lease: &Lease, receipt: Option<&str>) -> Self {
        Self::plain(lease, Ending::Duplicate).receipt(receipt.map(str::to_owned))
    }

    /// It is replaced by its children, which are its follow-ups.
    pub fn expanded(lease: &Lease, children: Vec<Message>) -> Self {
        Self::plain(lease, Ending::Expanded).follow_ups(children)
    }

    /// No send began. The count is given back, and nothing is recorded.
    pub fn released(lease: &Lease, after: Duration) -> Self {
        // What becomes of a saga's message is decided for an answer, and there was none: it is never counted.
        let mut lease = lease.clone();
        if lease.saga.is_some() {
            lease.standing.releases = lease.standing.releases.min(Limits::FREE_RELEASES - 1);
        }
        let settlement = Self::plain(&lease, Ending::Released { after });
        let counted = settlement.step.evidence.is_some();
        settlement.code(counted.then(|| "released_too_often".to_owned()))
    }

    /// The deadline passed and nobody reported. The one settlement that a store accepts only after the deadline.
    pub fn expired(lease: &Lease) -> Self {
        Self::plain(lease, Ending::Expired).code(Some("lease_expired".to_owned()))
    }

    /// The deliver-by passed before the send.
    pub fn lapsed(lease: &Lease) -> Self {
        Self::plain(lease, Ending::Lapsed).code(Some("lapsed".to_owned()))
    }

    /// Its key of the ledger was used for something else.
    pub fn conflict(lease: &Lease) -> Self {
        Self::plain(lease, Ending::Conflict)
            .code(Some(CONFLICT.to_owned()))
            .error(Some("its key of the ledger was used for something else".to_owned()))
    }

    /// The end of a lease on a message of a saga, as was decided for it.
    pub fn of_saga(lease: &Lease, report: &Report, own: Own, change: Option<Change>) -> Self {
        let (attempts, expired) = (lease.standing.attempts, *report == Report::Expired);
        let again = if expired {
            Ending::Expired
        } else {
            Ending::Retry { wish: None }
        };
        let mut lease = lease.clone();
        // Given back as often as it may be: without an answer there is nothing to decide.
        lease.standing.releases = lease.standing.releases.min(Limits::FREE_RELEASES - 1);
        let concluded = (
            Ending::Concluded(report.evidence()),
            lease.standing.max_attempts,
            Duration::ZERO,
        );
        let (ending, budget, wait) = match own {
            // The one settlement that is accepted past the deadline says so.
            Own::Delivered if expired => concluded,
            Own::Delivered if matches!(report, Report::Sent(Outcome::Duplicate { .. })) => {
                (Ending::Duplicate, lease.standing.max_attempts, Duration::ZERO)
            }
            Own::Delivered => (Ending::Delivered, lease.standing.max_attempts, Duration::ZERO),
            Own::Concluded => concluded,
            Own::Released(after) => (Ending::Released { after }, lease.standing.max_attempts, Duration::ZERO),
            Own::Again(wait) => (again, lease.standing.max_attempts.max(attempts + 1), wait),
            Own::Dead(DeadReason::Rejected) if !expired => {
                (Ending::Rejected, lease.standing.max_attempts, Duration::ZERO)
            }
            Own::Dead(_) => (again, attempts, Duration::ZERO),
        };
        let standing = Standing {
            max_attempts: budget,
            ..lease.standing
        };
        let policy = RetryPolicy::table(budget, [wait]);
        let step = end_lease(
            standing,
            ending,
            Ctx {
                policy: &policy,
                roll: 0.5,
            },
        );
        let (code, error, receipt) = match report {
            Report::Expired => (Some("lease_expired".to_owned()), None, None),
            Report::Released(_) if step.evidence.is_none() => (None, None, None),
            Report::Released(_) => (Some("withdrawn".to_owned()), None, None),
            Report::Lapsed => (Some("lapsed".to_owned()), None, None),
            Report::Sent(Outcome::Delivered { receipt, .. } | Outcome::Duplicate { receipt }) => {
                (None, None, receipt.clone())
            }
            Report::Sent(Outcome::Pending { .. }) => (Some("pending".to_owned()), None, None),
            Report::Sent(
                Outcome::Retry { code, error, .. } | Outcome::Reject { code, error } | Outcome::Unknown { code, error },
            ) => (Some(code.clone()), Some(error.clone()), None),
        };
        let settlement = Self::new(&lease, step).code(code).error(error).receipt(receipt);
        Self {
            saga: change.map(Box::new),
            ..settlement
        }
    }

    /// Refuses to end a lease on a message of a saga in a handler's own transaction: what becomes of it is decided on the saga as it stands then.
    pub fn check_own(&self) -> Result<(), Invalid> {
        match self.lease.saga {
            Some(_) => Err(Invalid::new(
                "settlement",
                "is of a saga's message, which its relay settles; answer instead",
            )),
            None => Ok(()),
        }
    }

    /// Adds messages that are enqueued in the same transaction, if and only if this settlement wins.
    pub fn follow_ups(mut self, messages: Vec<Message>) -> Self {
        self.follow_ups = messages.into_iter().map(|m| m.follows(self.lease.id)).collect();
        self
    }

    /// Keeps the receipt for later messages of the same effect, if this is a delivery: nothing else proves that it was done.
    pub fn keeping(mut self, effect: Effect) -> Self {
        self.keeps = (self.step.evidence == Some(AttemptOutcome::Delivered)).then_some(effect);
        self
    }

    /// What becomes of the message.
    pub fn next(&self) -> Next {
        match (self.step.standing.state, self.step.reason) {
            (State::Dead, Some(reason)) => Next::Dead(reason),
            (State::Pending, _) => Next::Pending(self.step.due_in),
            _ => Next::Done,
        }
    }

    /// Whether it reports that the deadline passed.
    pub fn is_expiry(&self) -> bool {
        self.step.evidence == Some(AttemptOutcome::LeaseExpired)
    }

    /// Whether it was delivered, and there is nothing to say about it.
    pub fn is_plain(&self) -> bool {
        let silent = self.code.is_none() && self.error.is_none() && self.receipt.is_none() && self.keeps.is_none();
        silent && !self.lease.bound && self.saga.is_none() && self.step.evidence == Some(AttemptOutcome::Delivered)
    }

    /// What becomes of the message's entry in the ledger, if it has one and ends here.
    pub fn end(&self) -> Option<End> {
        match self.next() {
            _ if !self.lease.bound => None,
            Next::Pending(_) => None,
            Next::Done => Some(End::Delivered(match &self.answer {
                Some(answer) => Answer::clone(answer),
                None => Answer::bytes(self.receipt.as_deref().unwrap_or_default()),
            })),
            Next::Dead(reason) => Some(End::Dead {
                reason,
                code: self.code.clone(),
                error: self.error.clone(),
            }),
        }
    }

    /// Whether the later messages of its key's run go back with it ([`let_go`](crate::machine::let_go)), those that its claim
    /// still holds: it stands before them, pending or dead and blocking, and must not be overtaken. It does not matter how it
    /// came there: by a failure, a release, or because its own lease ran out while theirs were renewed.
    pub fn stops_run(&self) -> bool {
        match self.next() {
            Next::Done => false,
            Next::Pending(_) => true,
            Next::Dead(_) => self.lease.on_dead == OnDead::Block,
        }
    }

    fn plain(lease: &Lease, ending: Ending) -> Self {
        let policy = RetryPolicy::default();
        Self::new(
            lease,
            end_lease(
                lease.standing,
                ending,
                Ctx {
                    policy: &policy,
                    roll: 0.5,
                },
            ),
        )
    }

    fn new(lease: &Lease, step: Step) -> Self {
        Self {
            lease: lease.clone(),
            step,
            code: None,
            error: None,
            receipt: None,
            answer: None,
            keeps: None,
            follow_ups: Vec::new(),
            saga: None,
        }
    }

    fn code(mut self, code: Option<String>) -> Self {
        self.code = code.map(|c| text::code(&c));
        self
    }

    fn error(mut self, error: Option<String>) -> Self {
        self.error = error.map(|e| text::error_text(&e));
        self
    }

    fn receipt(mut self, receipt: Option<String>) -> Self {
        self.receipt = receipt.map(|r| text::receipt(&r));
        self
    }
}

/// The store's answer to one settlement of a batch.
#[derive(Debug)]
pub enum Verdict {
    /// It is written; or it had been, and this is a repetition after an unknown commit. In the caller's own transaction it is written by that one.
    Settled,
    /// The lease is not, or no longer, held; nothing of this settlement was written. In the caller's own transaction that holds of a repetition too:
    /// what was done with the first is there already, and must not be done twice.
    LeaseLost,
    /// Its saga is not as it was when this was decided; nothing was written and the lease is as it was. Load it again, and decide again.
    Stale,
    /// One of its follow-ups cannot be enqueued; nothing of this settlement was written and the lease is as it was.
    Refused(Error),
}

impl Verdict {
    /// Whether it is written.
    pub const fn is_settled(&self) -> bool {
        matches!(self, Self::Settled)
    }

    /// Whether the lease was lost.
    pub const fn is_lost(&self) -> bool {
        matches!(self, Self::LeaseLost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{LeaseToken, MessageId};

    fn lease(attempts: u32) -> Lease {
        let standing = Standing {
            state: State::Leased,
            attempts,
            max_attempts: 3,
            generation: 1,
            epoch: 1,
            releases: 0,
        };
        Lease {
            id: MessageId(uuid::Uuid::nil()),
            seq: 1,
            token: LeaseToken(uuid::Uuid::nil()),
            standing,
            on_dead: OnDead::Pass,
            bound: false,
            saga: None,
        }
    }

    #[test]
    fn only_what_ends_a_bound_message_ends_its_entry() {
        let bound = Lease {
            bound: true,
            ..lease(1)
        };
        let answer = Answer::bytes("made").status(201);
        let delivered = |lease: &Lease, outcome| Settlement::of(lease, outcome, &RetryPolicy::default(), 0.5).end();
        let answered = Outcome::answered(answer.clone());
        assert_eq!(delivered(&bound, answered.clone()), Some(End::Delivered(answer)));
        assert_eq!(delivered(&lease(1), answered), None);
        let receipt = Outcome::receipt("id 7");
        assert_eq!(delivered(&bound, receipt), Some(End::Delivered(Answer::bytes("id 7"))));
        assert_eq!(delivered(&bound, Outcome::retry("busy", "later")), None);
        assert_eq!(Settlement::released(&bound, Duration::ZERO).end(), None);
        let Some(End::Dead { reason, code, .. }) = Settlement::conflict(&bound).end() else {
            panic!("a conflict ends it");
        };
        assert_eq!((reason, code.as_deref()), (DeadReason::Conflict, Some(CONFLICT)));
        assert!(!Settlement::delivered(&bound, None).is_plain());
    }

    #[test]
    fn the_routes_budget_replaces_the_stamped_one() {
        let failed = || Outcome::Retry {
            after: None,
            code: "x".into(),
            error: "y".into(),
        };
        let generous = RetryPolicy {
            max_attempts: Some(9),
            ..RetryPolicy::default()
        };
        assert!(matches!(
            Settlement::of(&lease(3), failed(), &generous, 0.5).next(),
            Next::Pending(_)
        ));
        let strict = RetryPolicy {
            max_attempts: Some(1),
            ..RetryPolicy::default()
        };
        assert_eq!(
            Settlement::of(&lease(1), failed(), &strict, 0.5).next(),
            Next::Dead(DeadReason::Exhausted)
        );
    }

    #[test]
    fn a_policy_without_a_budget_keeps_the_stamped_one() {
        let policy = RetryPolicy::default();
        let step = |attempts| Settlement::of(&lease(attempts), Outcome::retry("x", "y"), &policy, 0.5);
        assert!(matches!(step(2).next(), Next::Pending(_)));
        assert_eq!(step(3).next(), Next::Dead(DeadReason::Exhausted));
        assert_eq!(step(1).step.standing.max_attempts, 3);
    }

    #[test]
    fn a_budget_of_none_is_one() {
        let none = RetryPolicy {
            max_attempts: Some(0),
            ..RetryPolicy::default()
        };
        let failed = Outcome::Retry {
            after: None,
            code: "x".into(),
            error: "y".into(),
        };
        assert_eq!(
            Settlement::of(&lease(1), failed, &none, 0.5).step.standing.max_attempts,
            1
        );
    }

    #[test]
    fn an_unknown_answer_of_a_plain_message_is_tried_again() {
        let unknown = Outcome::Unknown {
            code: "timeout".into(),
            error: "no answer".into(),
        };
        let settlement = Settlement::of(&lease(1), unknown, &RetryPolicy::default(), 0.5);
        assert_eq!(settlement.next(), Next::Pending(Duration::from_millis(500)));
        assert_eq!(settlement.step.evidence, Some(AttemptOutcome::Retry));
    }

    #[test]
    fn a_destination_may_have_had_it_before() {
        let again = Outcome::Duplicate {
            receipt: Some("r".into()),
        };
        let settlement = Settlement::of(&lease(2), again, &RetryPolicy::default(), 0.5);
        assert_eq!(settlement.next(), Next::Done);
        assert_eq!(settlement.step.evidence, Some(AttemptOutcome::Duplicate));
        assert_eq!(settlement.receipt.as_deref(), Some("r"));
    }

    /// Nobody waits for the call, so it must not end as done.
    #[test]
    fn a_plain_message_cannot_be_answered_later() {
        let later = Outcome::Pending { callback: "c".into() };
        let settlement = Settlement::of(&lease(1), later, &RetryPolicy::default(), 0.5);
        assert!(matches!(settlement.next(), Next::Pending(_)));
        assert_eq!(settlement.code.as_deref(), Some("pending"));
    }

    #[test]
    fn what_a_destination_says_is_cleaned_and_cut() {
        let reject = Outcome::Reject {
            code: "c\0".repeat(90),
            error: "e\0".repeat(900),
        };
        let settlement = Settlement::of(&lease(1), reject, &RetryPolicy::default(), 0.5);
        assert_eq!(settlement.code.unwrap().len(), 64);
        let error = settlement.error.unwrap();
        assert_eq!(error.chars().count(), 512);
        assert!(!error.contains('\0'));
    }

    #[test]
    fn what_stands_in_the_way_stops_its_run() {
        let now = Duration::ZERO;
        for on_dead in [OnDead::Pass, OnDead::Block] {
            let at = |attempts| Lease {
                on_dead,
                ..lease(attempts)
            };
            let blocks = on_dead == OnDead::Block;
            for (settlement, stops) in [
                (Settlement::delivered(&at(1), None), false),
                (Settlement::duplicate(&at(1), None), false),
                (Settlement::expanded(&at(1), Vec::new()), false),
                (Settlement::released(&at(1), now), true),
                (Settlement::expired(&at(1)), true),
                (Settlement::expired(&at(3)), blocks),
                (Settlement::lapsed(&at(1)), blocks),
            ] {
                assert_eq!(settlement.stops_run(), stops, "{on_dead}: {settlement:?}");
            }
        }
    }

    #[test]
    fn only_a_delivery_keeps_its_receipt() {
        let (effect, at) = (Effect(crate::Digest([7; 32])), lease(1));
        assert_eq!(Settlement::delivered(&at, None).keeping(effect).keeps, Some(effect));
        for other in [
            Settlement::duplicate(&at, Some("r")),
            Settlement::expanded(&at, Vec::new()),
            Settlement::released(&at, Duration::ZERO),
            Settlement::lapsed(&at),
            Settlement::expired(&at),
        ] {
            assert_eq!(other.keeping(effect).keeps, None);
        }
    }

    #[test]
    fn follow_ups_name_their_parent_and_take_no_turn() {
        let child = Message::bytes("t", "text/plain", "").order_key("k");
        let settlement = Settlement::delivered(&lease(1), None).follow_ups(vec![child]);
        assert_eq!(settlement.follow_ups[0].parent, Some(lease(1).id));
        assert_eq!(settlement.follow_ups[0].order, crate::Order::Relaxed);
    }
}
