//! Retention: which ended messages a prune removes, and what its audit row keeps.

use serde::Serialize;
use serde_json::{Value, json};
use std::time::Duration;

use crate::{Error, Invalid, State, Timestamp, admin::checked_actor, message::word_enum};

word_enum!(
    /// The ended messages that a prune removes.
    PruneStates, "state" {
        /// Messages in the state `done`: delivered, expanded, or resolved by an operator.
        Done = "done",
        /// Messages in the state `dead`: for any reason, `cancelled` included.
        Dead = "dead",
        /// Both.
        All = "all",
    }
);

impl PruneStates {
    /// True if messages in the state `done` go.
    pub const fn done(self) -> bool {
        matches!(self, Self::Done | Self::All)
    }

    /// True if messages in the state `dead` go.
    pub const fn dead(self) -> bool {
        matches!(self, Self::Dead | Self::All)
    }
}

/// One call of [`Admin::prune`](crate::Admin::prune).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prune {
    /// Messages that ended longer ago than this.
    pub older_than: Duration,
    /// At most this many of each kind; one or more.
    pub limit: u32,
    /// The messages that go.
    pub states: PruneStates,
    /// The operator or relay that prunes.
    pub actor: String,
    /// Why; kept in the audit.
    pub note: String,
    /// Counts what would go, and changes nothing.
    pub dry_run: bool,
    /// [`Pruned::audit`] of the call before, when this one continues its run: its counts are added to the same audit row, if that
    /// is of the same states and actor.
    pub audit: Option<i64>,
}

impl Prune {
    /// Removes messages in the state `done`.
    pub fn done(older_than: Duration, limit: u32, actor: impl Into<String>) -> Self {
        Self {
            older_than,
            limit,
            states: PruneStates::Done,
            actor: actor.into(),
            note: String::new(),
            dry_run: false,
            audit: None,
        }
    }

    /// Removes messages of these states instead.
    pub fn states(mut self, states: PruneStates) -> Self {
        self.states = states;
        self
    }

    /// The note for the audit.
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.note = note.into();
        self
    }

    /// Counts what would go, and changes nothing.
    pub fn dry_run(mut self) -> Self {
        self.dry_run = true;
        self
    }

    /// Refuses a limit of zero (a caller that continues until there is no more would not end) and an empty actor. Answers the
    /// actor as the audit keeps it.
    pub fn check(&self) -> Result<String, Invalid> {
        if self.limit == 0 {
            return Err(Invalid::new("max_rows", "must be one or more"));
        }
        checked_actor(&self.actor)
    }

    /// True if this prune removes a message: its state is chosen, it ended at `cutoff` or before, it does not block its order
    /// key, and no saga holds it.
    pub fn takes(&self, ended: &Ended, cutoff: Timestamp) -> bool {
        let chosen = match ended.state {
            State::Done => self.states.done(),
            State::Dead => self.states.dead() && !ended.blocks && !ended.held_by_saga,
            State::Pending | State::Leased | State::Quarantined => false,
        };
        chosen && ended.finished_at.is_some_and(|at| at <= cutoff)
    }
}

/// The facts that decide whether a message may be pruned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its state.
    pub state: State,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// True if it blocks its order key.
    pub blocks: bool,
    /// True if a saga that has not ended waits for an operator because of it.
    pub held_by_saga: bool,
}

/// The counts that one call of a prune removed, or would remove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Pruned {
    /// Messages in the state `done`, with their attempts.
    pub done: u64,
    /// Messages in the state `dead`, with their attempts.
    pub dead: u64,
    /// Dedupe keys.
    pub dedupe_keys: u64,
    /// Ledger entries.
    pub entries: u64,
    /// Inbox rows of consumers, and what participants of sagas remember.
    pub inbox: u64,
    /// Sagas, with their logs.
    pub sagas: u64,
    /// True if it stopped at a limit: the next call continues. Of a dry run: there are more than it counted.
    pub more: bool,
    /// The number of its audit row. None if nothing was removed.
    pub audit: Option<i64>,
}

impl Pruned {
    /// Messages of both states.
    pub const fn messages(&self) -> u64 {
        self.done + self.dead
    }

    /// True if it removed nothing.
    pub const fn is_empty(&self) -> bool {
        self.messages() + self.dedupe_keys + self.entries + self.inbox + self.sagas == 0
    }

    /// Adds what the next call of the same run removed. That call says whether there is more, and has the run's audit row.
    pub fn add(&mut self, next: &Self) {
        self.done += next.done;
        self.dead += next.dead;
        self.dedupe_keys += next.dedupe_keys;
        self.entries += next.entries;
        self.inbox += next.inbox;
        self.sagas += next.sagas;
        self.more = next.more;
        self.audit = next.audit.or(self.audit);
    }
}

/// The counts that the audit row of a prune keeps, over all calls of its run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct PruneRecord {
    /// The states that it removed.
    pub states: PruneStates,
    /// Messages that ended at this time or before were removed.
    pub cutoff: Timestamp,
    /// Messages in the state `done`.
    pub done: u64,
    /// Messages in the state `dead`.
    pub dead: u64,
    /// Dedupe keys.
    pub dedupe_keys: u64,
    /// Ledger entries.
    pub entries: u64,
    /// Inbox rows.
    pub inbox: u64,
    /// Sagas.
    pub sagas: u64,
}

impl PruneRecord {
    /// The record of the first call of a run.
    pub const fn of(states: PruneStates, cutoff: Timestamp, pruned: &Pruned) -> Self {
        Self {
            states,
            cutoff,
            done: pruned.done,
            dead: pruned.dead,
            dedupe_keys: pruned.dedupe_keys,
            entries: pruned.entries,
            inbox: pruned.inbox,
            sagas: pruned.sagas,
        }
    }

    /// Adds the record of another call of the run.
    pub fn add(&mut self, other: &Self) {
        self.cutoff = self.cutoff.max(other.cutoff);
        self.done += other.done;
        self.dead += other.dead;
        self.dedupe_keys += other.dedupe_keys;
        self.entries += other.entries;
        self.inbox += other.inbox;
        self.sagas += other.sagas;
    }

    /// As a store keeps it: JSON, with the cutoff in microseconds.
    pub fn to_stored(&self) -> String {
        json!({
            "states": self.states, "cutoff": self.cutoff.as_micros(), "done": self.done, "dead": self.dead,
            "dedupe_keys": self.dedupe_keys, "entries": self.entries, "inbox": self.inbox, "sagas": self.sagas,
        })
        .to_string()
    }

    /// Reads what [`to_stored`](Self::to_stored) wrote.
    pub fn from_stored(text: &str) -> Result<Self, Error> {
        let unreadable = || Error::Internal(format!("the record of a prune cannot be read: {text}").into());
        let stored: Value = serde_json::from_str(text).map_err(|_| unreadable())?;
        let count = |name: &str| stored[name].as_u64().ok_or_else(unreadable);
        Ok(Self {
            states: stored["states"]
                .as_str()
                .and_then(|word| word.parse().ok())
                .ok_or_else(unreadable)?,
            cutoff: Timestamp::from_micros(stored["cutoff"].as_i64().ok_or_else(unreadable)?),
            done: count("done")?,
            dead: count("dead")?,
            dedupe_keys: count("dedupe_keys")?,
            entries: count("entries")?,
            inbox: count("inbox")?,
            sagas: count("sagas")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CUTOFF: Timestamp = Timestamp::from_micros(1000);

    fn ended(state: State) -> Ended {
        Ended {
            state,
            finished_at: Some(CUTOFF),
            blocks: false,
            held_by_saga: false,
        }
    }

    fn prune(states: PruneStates) -> Prune {
        Prune::done(Duration::ZERO, 1, "ada").states(states)
    }

    #[test]
    fn prune_takes_done_messages_unless_asked_for_dead_ones() {
        for (states, done, dead) in [
            (PruneStates::Done, true, false),
            (PruneStates::Dead, false, true),
            (PruneStates::All, true, true),
        ] {
            let takes = |state| prune(states).takes(&ended(state), CUTOFF);
            assert_eq!((takes(State::Done), takes(State::Dead)), (done, dead), "{states}");
            for never in [State::Pending, State::Leased, State::Quarantined] {
                assert!(!takes(never), "{states} takes {never}");
            }
        }
        assert_eq!(Prune::done(Duration::ZERO, 1, "ada").states, PruneStates::Done);
    }

    #[test]
    fn prune_leaves_young_blocking_and_held_messages() {
        let dead = ended(State::Dead);
        let all = prune(PruneStates::All);
        let takes = |ended| all.takes(&ended, CUTOFF);
        let later = Some(CUTOFF.plus(Duration::from_micros(1)));
        assert!(takes(dead));
        for finished_at in [None, later] {
            assert!(!takes(Ended { finished_at, ..dead }));
        }
        assert!(!takes(Ended { blocks: true, ..dead }));
        assert!(!takes(Ended {
            held_by_saga: true,
            ..dead
        }));
    }

    #[test]
    fn prune_without_actor_or_limit_is_refused() {
        let field = |prune: Prune| prune.check().unwrap_err().field;
        assert_eq!(field(Prune::done(Duration::ZERO, 0, "ada")), "max_rows");
        assert_eq!(field(Prune::done(Duration::ZERO, 1, "")), "actor");
    }

    #[test]
    fn prune_record_is_read_as_it_was_stored() {
        let pruned = Pruned {
            done: 1,
            dead: 2,
            dedupe_keys: 3,
            entries: 4,
            inbox: 5,
            sagas: 6,
            ..Pruned::default()
        };
        let mut record = PruneRecord::of(PruneStates::All, CUTOFF, &pruned);
        assert_eq!(PruneRecord::from_stored(&record.to_stored()).unwrap(), record);
        record.add(&record.clone());
        assert_eq!((record.done, record.sagas, record.cutoff), (2, 12, CUTOFF));
        for unreadable in ["", "{}", "{\"states\":\"done\"}"] {
            assert!(PruneRecord::from_stored(unreadable).is_err());
        }
    }
}
