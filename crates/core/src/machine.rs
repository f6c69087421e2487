//! What may happen to a message: one pure function, and the table in `docs/state-machine.md` that it is compared with.

use std::time::Duration;

use crate::{AttemptOutcome, Limits, RetryPolicy, message::word_enum};

word_enum!(
    /// Where a message stands. A failed try is an attempt, not a state.
    State, "state" {
        /// Waiting for its time, its key's turn, or a worker.
        Pending = "pending",
        /// Held by exactly one worker until its deadline.
        Leased = "leased",
        /// Delivered, or declared so by an operator.
        Done = "done",
        /// Ended without delivery; the reason is kept.
        Dead = "dead",
        /// Held by an operator.
        Quarantined = "quarantined",
    }
);

impl State {
    /// Whether only an operator can move it.
    pub const fn is_terminal(self) -> bool {
        matches!(self, Self::Done | Self::Dead | Self::Quarantined)
    }
}

word_enum!(
    /// Why a message is dead.
    DeadReason, "reason" {
        /// The last attempt of its budget failed.
        Exhausted = "exhausted",
        /// The destination refused it for good.
        Rejected = "rejected",
        /// Its deliver-by passed.
        Lapsed = "lapsed",
        /// Its ledger key was used for something else.
        Conflict = "conflict",
        /// An operator cancelled it.
        Cancelled = "cancelled",
    }
);

/// All that the rules need to know of a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Standing {
    /// Its state.
    pub state: State,
    /// Leases counted in this generation, the present one included.
    pub attempts: u32,
    /// Leases allowed in a generation.
    pub max_attempts: u32,
    /// 1, and one more with each replay.
    pub generation: u32,
    /// Grants so far, over replays too.
    pub epoch: u64,
    /// Releases in a row.
    pub releases: u32,
}

impl Standing {
    /// A message that was just enqueued.
    pub const fn new(max_attempts: u32) -> Self {
        Self {
            state: State::Pending,
            attempts: 0,
            max_attempts,
            generation: 1,
            epoch: 0,
            releases: 0,
        }
    }
}

/// What happens to a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// A worker is granted a lease.
    Claimed,
    /// The lease ends.
    Ended(Ending),
    /// Its deliver-by passes while nobody holds it.
    Lapsed,
    /// An operator sends it round again.
    Replay,
    /// An operator holds it.
    Quarantine,
    /// An operator gives it up.
    Cancel,
    /// An operator states that it was delivered.
    Resolve,
}

/// How a lease ends.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Ending {
    /// The destination acknowledged.
    Delivered,
    /// It had been delivered before.
    Duplicate,
    /// It was replaced by its children.
    Expanded,
    /// It has served, whatever was answered: what comes of that is its saga's to know.
    Concluded(AttemptOutcome),
    /// It failed and may be tried again; the destination may have said when.
    Retry {
        /// The destination's `Retry-After`.
        wish: Option<Duration>,
    },
    /// It failed for good.
    Rejected,
    /// Its ledger key belongs to other content.
    Conflict,
    /// The deadline passed and nobody reported.
    Expired,
    /// No send began; the count is given back.
    Released {
        /// Not due before this has passed.
        after: Duration,
    },
    /// Its deliver-by passed before the send.
    Lapsed,
}

/// What a step needs besides the message: the retry rule and the chance, as arguments.
#[derive(Clone, Copy, Debug)]
pub struct Ctx<'a> {
    /// The retry rule of the route.
    pub policy: &'a RetryPolicy,
    /// A number from 0 to 1 for the jitter.
    pub roll: f64,
}

/// What became of the message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Step {
    /// Where it stands now.
    pub standing: Standing,
    /// Why, when it is dead.
    pub reason: Option<DeadReason>,
    /// How long until it is due, when it is pending.
    pub due_in: Duration,
    /// The evidence to append, when a counted lease ended.
    pub evidence: Option<AttemptOutcome>,
}

/// The event does not apply to the state; nothing happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a {state} message cannot meet this event")]
pub struct Illegal {
    /// The state it was in.
    pub state: State,
}

/// The state machine: where `event` takes a message that stands at `from`.
pub fn step(from: Standing, event: Event, ctx: Ctx<'_>) -> Result<Step, Illegal> {
    use State::{Dead, Done, Leased, Pending, Quarantined};
    match (from.state, event) {
        (Pending, Event::Claimed) => Ok(claimed(from)),
        (Leased, Event::Ended(ending)) => Ok(end_lease(from, ending, ctx)),
        (Pending, Event::Lapsed) => Ok(dead(from, DeadReason::Lapsed, None)),
        (Dead | Quarantined, Event::Replay) => Ok(replayed(from)),
        (Pending | Dead, Event::Quarantine) => Ok(moved(from, Quarantined)),
        (Pending | Quarantined, Event::Cancel) => Ok(dead(from, DeadReason::Cancelled, None)),
        (Pending | Dead | Quarantined, Event::Resolve) => Ok(moved(from, Done)),
        (state, _) => Err(Illegal { state }),
    }
}

/// The part of the machine that a worker drives: how the end of a lease moves a leased message.
///
/// It cannot fail: whoever holds the lease knows the standing, and the fence keeps it true.
pub fn end_lease(held: Standing, ending: Ending, ctx: Ctx<'_>) -> Step {
    match ending {
        Ending::Delivered => done(held, AttemptOutcome::Delivered),
        Ending::Duplicate => done(held, AttemptOutcome::Duplicate),
        Ending::Expanded => done(held, AttemptOutcome::Expanded),
        Ending::Concluded(evidence) => done(held, evidence),
        Ending::Retry { wish } => again_or_dead(
            held,
            AttemptOutcome::Retry,
            ctx.policy.wait_or_wish(held.attempts, ctx.roll, wish),
        ),
        Ending::Rejected => dead(held, DeadReason::Rejected, Some(AttemptOutcome::Rejected)),
        Ending::Conflict => dead(held, DeadReason::Conflict, Some(AttemptOutcome::Rejected)),
        Ending::Expired => again_or_dead(held, AttemptOutcome::LeaseExpired, Duration::ZERO),
        // A message that is claimed and put back for ever would never end. After a hundred times, putting it back counts.
        Ending::Released { after } if held.releases >= Limits::FREE_RELEASES => {
            again_or_dead(held, AttemptOutcome::Retry, after)
        }
        Ending::Released { after } => released(held, after),
        Ending::Lapsed => dead(held, DeadReason::Lapsed, Some(AttemptOutcome::Lapsed)),
    }
}

/// What becomes of the later messages of a key's run when one before them went back, or died in their way: they go back too,
/// and it is never counted, because it says nothing about them. When: [`Settlement::stops_run`](crate::Settlement::stops_run).
pub fn let_go(held: Standing) -> Step {
    let releases = (held.releases + 1).min(Limits::FREE_RELEASES);
    let standing = Standing {
        state: State::Pending,
        attempts: held.attempts.saturating_sub(1),
        releases,
        ..held
    };
    Step {
        standing,
        reason: None,
        due_in: Duration::ZERO,
        evidence: None,
    }
}

fn claimed(from: Standing) -> Step {
    let standing = Standing {
        state: State::Leased,
        attempts: from.attempts + 1,
        epoch: from.epoch + 1,
        ..from
    };
    Step {
        standing,
        reason: None,
        due_in: Duration::ZERO,
        evidence: None,
    }
}

fn done(held: Standing, evidence: AttemptOutcome) -> Step {
    Step {
        evidence: Some(evidence),
        ..moved(Standing { releases: 0, ..held }, State::Done)
    }
}

fn again_or_dead(held: Standing, evidence: AttemptOutcome, due_in: Duration) -> Step {
    if held.attempts >= held.max_attempts {
        return dead(held, DeadReason::Exhausted, Some(evidence));
    }
    let standing = Standing {
        state: State::Pending,
        releases: 0,
        ..held
    };
    Step {
        standing,
        reason: None,
        due_in,
        evidence: Some(evidence),
    }
}

fn released(held: Standing, due_in: Duration) -> Step {
    let standing = Standing {
        state: State::Pending,
        attempts: held.attempts.saturating_sub(1),
        releases: held.releases + 1,
        ..held
    };
    Step {
        standing,
        reason: None,
        due_in,
        evidence: None,
    }
}

fn dead(from: Standing, reason: DeadReason, evidence: Option<AttemptOutcome>) -> Step {
    Step {
        reason: Some(reason),
        evidence,
        ..moved(Standing { releases: 0, ..from }, State::Dead)
    }
}

fn replayed(from: Standing) -> Step {
    let standing = Standing {
        attempts: 0,
        releases: 0,
        generation: from.generation + 1,
        ..from
    };
    moved(standing, State::Pending)
}

fn moved(from: Standing, state: State) -> Step {
    Step {
        standing: Standing { state, ..from },
        reason: None,
        due_in: Duration::ZERO,
        evidence: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(from: Standing, event: Event) -> Result<Step, Illegal> {
        step(
            from,
            event,
            Ctx {
                policy: &RetryPolicy::default(),
                roll: 0.5,
            },
        )
    }

    fn held(attempts: u32, max_attempts: u32) -> Standing {
        Standing {
            state: State::Leased,
            attempts,
            max_attempts,
            generation: 1,
            epoch: 7,
            releases: 0,
        }
    }

    /// The words of a cell of the published table, from what the function answers.
    fn cell(from: State, event: Event, attempts: u32) -> String {
        let before = Standing {
            state: from,
            ..held(attempts, 3)
        };
        let Ok(after) = run(before, event) else {
            return "-".to_owned();
        };
        let mut words = vec![after.standing.state.to_string()];
        if after.standing.state == State::Pending {
            words.push(match (event, after.due_in.is_zero()) {
                (Event::Ended(Ending::Released { .. }), _) => "due as told".to_owned(),
                (_, true) => "due now".to_owned(),
                (_, false) => "due after backoff".to_owned(),
            });
        }
        if after.standing.attempts < before.attempts && after.standing.generation == before.generation {
            words.push("not counted".to_owned());
        }
        if after.standing.generation > before.generation {
            assert_eq!(
                (after.standing.attempts, after.standing.generation),
                (0, before.generation + 1)
            );
            words.push("generation + 1".to_owned());
            words.push("budget reset".to_owned());
        }
        words.join(", ")
    }

    /// Each column of the table: its heading, and the events (with the attempts used of three) that it stands for.
    fn columns() -> Vec<(&'static str, Vec<(Event, u32)>)> {
        let ended = |e| (Event::Ended(e), 1);
        vec![
            ("claimed", vec![(Event::Claimed, 1)]),
            ("delivered", vec![ended(Ending::Delivered)]),
            (
                "duplicate, expanded",
                vec![ended(Ending::Duplicate), ended(Ending::Expanded)],
            ),
            (
                "concluded",
                vec![
                    ended(Ending::Concluded(AttemptOutcome::Rejected)),
                    ended(Ending::Concluded(AttemptOutcome::LeaseExpired)),
                ],
            ),
            ("retry, budget left", vec![ended(Ending::Retry { wish: None })]),
            ("retry, spent", vec![(Event::Ended(Ending::Retry { wish: None }), 3)]),
            ("rejected", vec![ended(Ending::Rejected), ended(Ending::Conflict)]),
            ("lease expired", vec![ended(Ending::Expired)]),
            ("lease expired, spent", vec![(Event::Ended(Ending::Expired), 3)]),
            (
                "released",
                vec![ended(Ending::Released {
                    after: Duration::from_secs(5),
                })],
            ),
            ("lapsed", vec![(Event::Lapsed, 1), ended(Ending::Lapsed)]),
            ("replay", vec![(Event::Replay, 1)]),
            ("quarantine", vec![(Event::Quarantine, 1)]),
            ("cancel", vec![(Event::Cancel, 1)]),
            ("resolve", vec![(Event::Resolve, 1)]),
        ]
    }

    #[test]
    fn the_published_table_is_the_function_cell_by_cell() {
        let page = include_str!("../../../docs/state-machine.md");
        let mut rows = page.lines().filter(|l| l.starts_with('|')).map(|l| {
            l.trim_matches('|')
                .split('|')
                .map(|c| c.trim().to_owned())
                .collect::<Vec<_>>()
        });
        let header = rows.next().expect("the page has a table");
        let headings: Vec<_> = columns().iter().map(|(name, _)| (*name).to_owned()).collect();
        assert_eq!(header[1..], headings[..], "the columns");
        let rows: Vec<_> = rows.skip(1).take(State::ALL.len()).collect();
        let mut cells = 0;
        for (row, state) in rows.iter().zip(State::ALL) {
            assert_eq!(row[0], state.as_str(), "the rows");
            for (written, (name, events)) in row[1..].iter().zip(columns()) {
                // A column may stand for two events that apply to different states: the cell is what either answers.
                let answers: Vec<_> = events
                    .iter()
                    .map(|(e, n)| cell(*state, *e, *n))
                    .filter(|c| c != "-")
                    .collect();
                let answer = answers.first().cloned().unwrap_or_else(|| "-".to_owned());
                assert!(answers.iter().all(|a| *a == answer), "{state} x {name}: {answers:?}");
                assert_eq!(*written, answer, "{state} x {name}");
                cells += 1;
            }
        }
        assert_eq!(cells, State::ALL.len() * columns().len());
    }

    #[test]
    fn a_claim_counts_and_raises_the_epoch() {
        let after = run(Standing::new(3), Event::Claimed).unwrap().standing;
        assert_eq!((after.state, after.attempts, after.epoch), (State::Leased, 1, 1));
    }

    #[test]
    fn a_release_gives_the_count_back_but_not_the_epoch() {
        let after = run(held(1, 3), Event::Ended(Ending::Released { after: Duration::ZERO })).unwrap();
        assert_eq!(
            (after.standing.attempts, after.standing.epoch, after.standing.releases),
            (0, 7, 1)
        );
        assert_eq!(after.evidence, None);
    }

    #[test]
    fn the_hundred_and_first_release_in_a_row_counts() {
        let release = Event::Ended(Ending::Released { after: Duration::ZERO });
        let free = run(
            Standing {
                releases: 99,
                ..held(1, 3)
            },
            release,
        )
        .unwrap();
        assert_eq!(
            (free.standing.attempts, free.standing.releases, free.evidence),
            (0, 100, None)
        );
        let counted = run(
            Standing {
                releases: 100,
                ..held(1, 3)
            },
            release,
        )
        .unwrap();
        assert_eq!((counted.standing.attempts, counted.standing.releases), (1, 0));
        assert_eq!(counted.evidence, Some(AttemptOutcome::Retry));
        let last = run(
            Standing {
                releases: 100,
                ..held(3, 3)
            },
            release,
        )
        .unwrap();
        assert_eq!(last.reason, Some(DeadReason::Exhausted));
    }

    #[test]
    fn what_is_let_go_is_never_counted() {
        let after = let_go(Standing {
            releases: 100,
            ..held(3, 3)
        });
        assert_eq!(
            (after.standing.state, after.standing.attempts, after.standing.releases),
            (State::Pending, 2, 100)
        );
        assert_eq!(after.evidence, None);
    }

    #[test]
    fn every_lease_leaves_evidence_but_a_free_release() {
        let wish = None;
        for ending in [
            Ending::Delivered,
            Ending::Duplicate,
            Ending::Expanded,
            Ending::Retry { wish },
            Ending::Rejected,
            Ending::Conflict,
            Ending::Expired,
            Ending::Lapsed,
        ] {
            assert!(
                run(held(1, 3), Event::Ended(ending)).unwrap().evidence.is_some(),
                "{ending:?}"
            );
        }
    }

    #[test]
    fn death_keeps_its_reason() {
        let reason = |ending, attempts| run(held(attempts, 3), Event::Ended(ending)).unwrap().reason;
        assert_eq!(reason(Ending::Retry { wish: None }, 3), Some(DeadReason::Exhausted));
        assert_eq!(reason(Ending::Expired, 3), Some(DeadReason::Exhausted));
        assert_eq!(reason(Ending::Rejected, 1), Some(DeadReason::Rejected));
        assert_eq!(reason(Ending::Conflict, 1), Some(DeadReason::Conflict));
        assert_eq!(reason(Ending::Lapsed, 1), Some(DeadReason::Lapsed));
        assert_eq!(
            run(Standing::new(3), Event::Cancel).unwrap().reason,
            Some(DeadReason::Cancelled)
        );
    }

    #[test]
    fn a_destinations_wish_moves_the_due_time() {
        let wish = Some(Duration::from_secs(90));
        let after = run(held(1, 3), Event::Ended(Ending::Retry { wish })).unwrap();
        assert_eq!(after.due_in, Duration::from_secs(90));
    }
}
