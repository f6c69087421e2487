//! What must be true of every message at every moment, whatever happened to it: told from what operators can see.

use posthouse_core::{Admin, Attempt, AttemptOutcome, AuditFilter, DeadReason, MessageId, MessageView, State};
use std::collections::BTreeMap;

use crate::Fixture;

/// What a store tells about one message.
struct Told {
    view: MessageView,
    attempts: Vec<Attempt>,
    /// What was done by hand, newest first.
    actions: Vec<String>,
}

/// Asserts of each message that its state, its counts, its evidence and its audit agree, and of each order key that all
/// its leases belong to one worker. Nothing may be under way meanwhile.
pub async fn assert_sound(fx: &dyn Fixture, ids: &[MessageId]) {
    assert_all_sound(&*fx.admin().await, ids).await;
}

/// The same, of a store without a fixture.
pub async fn assert_all_sound(admin: &dyn Admin, ids: &[MessageId]) {
    let mut holders = BTreeMap::new();
    for id in ids {
        let told = ask(admin, *id).await;
        told.evidence_is_in_order();
        told.counts_are_its_evidence();
        told.state_is_its_last_outcome();
        told.shape_fits_the_state();
        let Some(worker) = told.view.worker.clone() else {
            continue;
        };
        let key = (told.view.namespace, told.view.tenant, told.view.order_key);
        if key.2.is_some() {
            let holder = holders.entry(key).or_insert_with(|| worker.clone());
            assert_eq!(*holder, worker, "two workers hold messages of one key");
        }
    }
}

/// Asserts of ended messages that none was granted before its predecessors of the key had ended, unless the same claim held
/// them too. Told from the evidence, so it holds for what a moving clock did as well; replays would upset it.
pub async fn assert_keys_in_order(fx: &dyn Fixture, ids: &[MessageId]) {
    let (admin, mut keys) = (fx.admin().await, BTreeMap::<_, Vec<Told>>::new());
    for id in ids {
        let told = ask(&*admin, *id).await;
        let (view, key) = (&told.view, told.view.order_key.clone());
        let Some(key) = key else { continue };
        keys.entry((view.namespace.clone(), view.tenant.clone(), key))
            .or_default()
            .push(told);
    }
    for line in keys.values_mut() {
        line.sort_by_key(|told| told.view.seq);
        for pair in line.windows(2) {
            pair[1].came_after(&pair[0]);
        }
    }
}

async fn ask(admin: &dyn Admin, id: MessageId) -> Told {
    let view = admin.find(id).await.unwrap();
    let all = AuditFilter {
        limit: 1000,
        ..AuditFilter::of(id)
    };
    let audit = admin.audit(&all).await.unwrap();
    Told {
        view: view.unwrap_or_else(|| panic!("message {id} is lost")),
        attempts: admin.attempts(id).await.unwrap(),
        actions: audit.into_iter().map(|entry| entry.action).collect(),
    }
}

impl Told {
    /// Epochs rise; attempts have no gap within a generation; an end is the last of its generation; P8 holds.
    fn evidence_is_in_order(&self) {
        let mut last: Option<&Attempt> = None;
        for attempt in &self.attempts {
            let begins = last.is_none_or(|last| last.generation < attempt.generation);
            let expected = match last {
                Some(last) if !begins => last.attempt + 1,
                _ => 1,
            };
            assert_eq!(attempt.attempt, expected, "a gap in {self}");
            if let Some(last) = last {
                assert!(last.epoch < attempt.epoch, "epochs do not rise in {self}");
                assert!(last.generation <= attempt.generation, "generations fall in {self}");
                assert!(
                    begins || goes_on(last.outcome),
                    "something came after the end in {self}"
                );
            }
            last = Some(attempt);
        }
        let epoch = last.map_or(0, |last| last.epoch);
        assert!(epoch <= self.view.epoch, "evidence of a grant to come in {self}");
    }

    /// The counted leases of this generation are the evidence, and the one that is held.
    fn counts_are_its_evidence(&self) {
        if self.view.state == State::Done && self.did("resolve") {
            return;
        }
        let replays = self.actions.iter().filter(|action| *action == "replay").count();
        assert_eq!(self.view.generation as usize, replays + 1, "the generation of {self}");
        let held = u32::from(self.view.state == State::Leased);
        let rows = self.attempts.iter().filter(|a| a.generation == self.view.generation);
        assert_eq!(
            self.view.attempts as usize,
            rows.count() + held as usize,
            "the count of {self}"
        );
        if self.view.state != State::Done {
            assert!(self.view.attempts <= self.view.max_attempts, "the budget of {self}");
        }
    }

    fn state_is_its_last_outcome(&self) {
        let last = self.attempts.last().filter(|a| a.generation == self.view.generation);
        let last = last.map(|attempt| attempt.outcome);
        let open = last.is_none_or(goes_on);
        let fits = match (self.view.state, self.view.reason) {
            (State::Pending | State::Leased, None) => open,
            (State::Done, None) => self.did("resolve") || last.is_some_and(succeeds),
            (State::Dead, Some(DeadReason::Exhausted)) => {
                last.is_some() && open && self.view.attempts >= self.view.max_attempts
            }
            (State::Dead, Some(DeadReason::Rejected | DeadReason::Conflict)) => last == Some(AttemptOutcome::Rejected),
            (State::Dead, Some(DeadReason::Lapsed)) => open || last == Some(AttemptOutcome::Lapsed),
            (State::Dead, Some(DeadReason::Cancelled)) => self.did("cancel"),
            (State::Quarantined, None) => self.did("quarantine") && !last.is_some_and(succeeds),
            _ => false,
        };
        assert!(fits, "the state is not what its evidence says: {self}");
    }

    fn shape_fits_the_state(&self) {
        let MessageView { state, .. } = self.view;
        let (held, due) = (self.view.worker.is_some(), self.view.due_at.is_some());
        assert_eq!(held, state == State::Leased, "the holder of {self}");
        assert_eq!(self.view.lease_until.is_some(), held, "the deadline of {self}");
        assert!(due || state != State::Pending, "the due time of {self}");
        assert_eq!(
            self.view.finished_at.is_some(),
            state.is_terminal(),
            "the end of {self}"
        );
    }

    fn came_after(&self, before: &Self) {
        for attempt in &self.attempts {
            let together = before.attempts.iter().any(|earlier| earlier.token == attempt.token);
            let ended = before.view.finished_at.is_some_and(|at| at <= attempt.started_at);
            assert!(together || ended, "{self} was granted before the end of {before}");
        }
    }

    /// Whether the last thing done to it by hand was this.
    fn did(&self, verb: &str) -> bool {
        let by_hand = self.actions.iter().find(|action| *action != "outbox_flush_conflict");
        by_hand.is_some_and(|action| action == verb)
    }
}

/// Whether a message may be tried again after this.
const fn goes_on(outcome: AttemptOutcome) -> bool {
    matches!(outcome, AttemptOutcome::Retry | AttemptOutcome::LeaseExpired)
}

const fn succeeds(outcome: AttemptOutcome) -> bool {
    use AttemptOutcome::{Delivered, Duplicate, Expanded};
    matches!(outcome, Delivered | Duplicate | Expanded)
}

impl std::fmt::Display for Told {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self {
            view,
            attempts,
            actions,
        } = self;
        write!(f, "{view:?}, attempts {attempts:?}, by hand {actions:?}")
    }
}
