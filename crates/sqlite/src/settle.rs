//! Settle and renew: everything behind the fence. What becomes of a message was decided before; here it is performed.

use posthouse_core::{
    Error, Lease, LeaseToken, Renewal, Settlement, State, Verdict, machine::let_go, settlement::Next,
};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use crate::{
    Options, clock,
    enqueue::{atomically, enqueue_one},
    error::plain,
    place::{Waiting, ended, free_head, locate, run, to_dead, to_pending},
    rows::{Key, Record, epoch, text},
};

const BEGIN: &str = include_str!("../sql/settle_begin.sql");
const TAKE: &str = include_str!("../sql/settle_take.sql");
const PLAIN: &str = include_str!("../sql/settle_plain.sql");
const WON: &str = include_str!("../sql/settle_won.sql");
const LEAVE: &str = include_str!("../sql/leave_leased.sql");
const ATTEMPT: &str = include_str!("../sql/settle_attempt.sql");
const BEFORE: &str = include_str!("../sql/settled_before.sql");
const REST_OF_RUN: &str = include_str!("../sql/rest_of_run.sql");
const KEEP: &str = include_str!("../sql/receipt_keep.sql");
const RENEW: &str = include_str!("../sql/renew.sql");

/// Takes the write lock of a caller's transaction that may not have it yet.
pub(crate) fn lock(tx: &Connection, lease: &Lease) -> Result<(), Error> {
    run(tx, BEGIN, params![lease.seq, lease.token.0.as_bytes()]).map(|_| ())
}

/// Moves the deadline of a lease that is held.
pub(crate) fn renew_one(tx: &Connection, lease: &Lease, by: Duration) -> Result<Renewal, Error> {
    let now = clock::now(tx)?;
    let values = params![lease.seq, lease.token.0.as_bytes(), clock::later(now, by), now];
    Ok(if run(tx, RENEW, values)? == 1 {
        Renewal::Renewed
    } else {
        Renewal::Lost
    })
}

/// Ends leases, in a transaction that holds the write lock. One that cannot be settled spoils no other.
pub(crate) fn settle(tx: &Connection, options: &Options, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
    let mut settling = Settling {
        tx,
        options,
        now: clock::now(tx)?,
        keys: HashSet::new(),
        runs: HashMap::new(),
        plain: tx.prepare_cached(PLAIN).map_err(plain)?,
        leave: tx.prepare_cached(LEAVE).map_err(plain)?,
    };
    let mut verdicts = Vec::with_capacity(batch.len());
    // In the order of the batch, because the first of two settlements for a lease wins.
    for alike in batch.chunk_by(are_alike) {
        settling.alike(alike, &mut verdicts)?;
    }
    settling.release_rests()?;
    settling.free_heads()?;
    Ok(verdicts)
}

/// Whether both are the same but for the message, and the second has the next number: so that a range of numbers says
/// which are meant.
fn are_alike(one: &Settlement, next: &Settlement) -> bool {
    one.lease.seq.checked_add(1) == Some(next.lease.seq)
        && one.lease.token == next.lease.token
        && (one.next(), one.step.evidence) == (next.next(), next.step.evidence)
        && one.step.standing.max_attempts == next.step.standing.max_attempts
        && (&one.code, &one.error, &one.receipt) == (&next.code, &next.error, &next.receipt)
        && one.follow_ups.is_empty()
        && next.follow_ups.is_empty()
}

/// One batch on its way.
struct Settling<'a> {
    tx: &'a Connection,
    options: &'a Options,
    now: i64,
    /// Keys of which something changed; looked after once, when all is settled.
    keys: HashSet<(i64, Key)>,
    /// Runs that must not go on, and from which place on; looked after once as well.
    runs: HashMap<(i64, Key, LeaseToken), i64>,
    /// The two statements of most messages, at hand for the whole batch.
    plain: CachedStatement<'a>,
    leave: CachedStatement<'a>,
}

/// Which of several settlements won together.
enum Won {
    None,
    Some(HashSet<i64>),
    All,
}

impl Won {
    fn holds(&self, seq: i64) -> bool {
        match self {
            Self::None => false,
            Self::Some(won) => won.contains(&seq),
            Self::All => true,
        }
    }
}

/// A lease that was taken back from its holder.
struct Held {
    record: Record,
    worker: String,
    granted_at: i64,
}

impl Settling<'_> {
    /// Settlements that are alike: those that [`Self::plain`] settles together, and the others one by one.
    fn alike(&mut self, alike: &[Settlement], verdicts: &mut Vec<Verdict>) -> Result<(), Error> {
        let plain = self.plain(alike)?;
        for settlement in alike {
            verdicts.push(if plain.holds(settlement.lease.seq) {
                self.keep(settlement)?;
                Verdict::Settled
            } else {
                self.one(settlement)?
            });
        }
        Ok(())
    }

    fn one(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        // Without follow-ups there is nothing to refuse, and no need of a savepoint.
        if settlement.follow_ups.is_empty() {
            return self.end(settlement);
        }
        let (tx, keys, runs) = (self.tx, self.keys.clone(), self.runs.clone());
        match atomically(tx, || self.end(settlement)) {
            Err(error @ (Error::Contention(_) | Error::Unavailable(_) | Error::Timeout(_))) => Err(error),
            Err(error) => {
                (self.keys, self.runs) = (keys, runs);
                Ok(Verdict::Refused(error))
            }
            verdict => verdict,
        }
    }

    /// The way of most messages, in two statements for all of them: done, without followers, order key or dedupe key.
    /// Answers which of them were so and are settled; nothing has happened to the others.
    fn plain(&mut self, alike: &[Settlement]) -> Result<Won, Error> {
        let ([first, ..], [.., last]) = (alike, alike) else {
            return Ok(Won::None);
        };
        let (Next::Done, Some(outcome), true) = (first.next(), first.step.evidence, first.follow_ups.is_empty()) else {
            return Ok(Won::None);
        };
        let (from, to, token) = (first.lease.seq, last.lease.seq, first.lease.token.0.as_bytes());
        let values = params![
            from,
            to,
            token,
            self.now,
            first.step.standing.max_attempts,
            outcome.as_str(),
            first.code,
            first.error,
            first.receipt,
        ];
        let won = self.plain.execute(values).map_err(plain)?;
        if won == 0 {
            return Ok(Won::None);
        }
        // The numbers have no gap, so as many as were asked for are those that were asked for.
        if won == alike.len() {
            self.leave.execute([from, to]).map_err(plain)?;
            return Ok(Won::All);
        }
        self.leave_some(from, to, token).map(Won::Some)
    }

    /// Some of a range were lost before, or are not plain: only those that won leave it.
    fn leave_some(&mut self, from: i64, to: i64, token: &[u8; 16]) -> Result<HashSet<i64>, Error> {
        let mut statement = self.tx.prepare_cached(WON).map_err(plain)?;
        let rows = statement.query_map(params![from, to, token, self.now], |row| row.get(0));
        let won: HashSet<i64> = rows.and_then(Iterator::collect).map_err(plain)?;
        for seq in &won {
            self.leave.execute([seq, seq]).map_err(plain)?;
        }
        Ok(won)
    }

    fn end(&mut self, settlement: &Settlement) -> Result<Verdict, Error> {
        let lease = &settlement.lease;
        let Some(held) = self.take(lease.seq, lease.token, settlement.is_expiry())? else {
            let repeated = self.settled_before(settlement)?;
            return Ok(if repeated { Verdict::Settled } else { Verdict::LeaseLost });
        };
        self.perform(settlement, &held)?;
        self.keep(settlement)?;
        if settlement.stops_run() {
            self.stop_run(lease.token, &held.record);
        }
        for message in &settlement.follow_ups {
            enqueue_one(self.tx, self.options, message)?;
        }
        Ok(Verdict::Settled)
    }

    /// Takes the lease out of `leased`, if it is held.
    fn take(&self, seq: i64, token: LeaseToken, expiry: bool) -> Result<Option<Held>, Error> {
        let mut statement = self.tx.prepare_cached(TAKE).map_err(plain)?;
        let values = params![seq, token.0.as_bytes(), self.now, expiry];
        let held = statement.query_row(values, |row| {
            Ok(Held {
                record: Record::read(row, 0, State::Leased)?,
                worker: text(row, 12)?,
                granted_at: row.get(13)?,
            })
        });
        held.optional().map_err(plain)
    }

    /// Whether this settlement won before: its caller may not have heard the answer.
    fn settled_before(&self, settlement: &Settlement) -> Result<bool, Error> {
        let lease = &settlement.lease;
        let Some(outcome) = settlement.step.evidence else {
            let located = locate(self.tx, lease.seq)?;
            return Ok(located.is_some_and(|l| l.released_by == Some(lease.token)));
        };
        let values = params![
            lease.seq,
            epoch(&lease.standing),
            lease.token.0.as_bytes(),
            outcome.as_str()
        ];
        self.tx
            .prepare_cached(BEFORE)
            .and_then(|mut statement| statement.exists(values))
            .map_err(plain)
    }

    /// Writes the evidence and moves the record.
    fn perform(&mut self, settlement: &Settlement, held: &Held) -> Result<(), Error> {
        self.attest(settlement, held)?;
        let record = Record {
            standing: settlement.step.standing,
            ..held.record.clone()
        };
        if let Some(key) = &record.key {
            self.keys.insert((record.lane, key.clone()));
        }
        match settlement.next() {
            Next::Done => ended(self.tx, &record, self.now),
            Next::Dead(reason) => to_dead(self.tx, &record, Some(reason), true, self.now),
            Next::Pending(due_in) => {
                let released_by = settlement.step.evidence.is_none().then_some(settlement.lease.token);
                self.put_back(&record, due_in, released_by)
            }
        }
    }

    fn put_back(&self, record: &Record, due_in: Duration, released_by: Option<LeaseToken>) -> Result<(), Error> {
        let due_at = clock::later(self.now, due_in);
        let waiting = Waiting {
            due_at,
            changed_at: Some(self.now),
            released_by,
        };
        to_pending(self.tx, record, waiting, self.now)
    }

    /// One line of evidence, if the lease counted.
    fn attest(&self, settlement: &Settlement, held: &Held) -> Result<(), Error> {
        let Some(outcome) = settlement.step.evidence else {
            return Ok(());
        };
        let standing = &settlement.step.standing;
        let values = params![
            held.record.seq,
            epoch(standing),
            standing.generation,
            standing.attempts,
            standing.max_attempts,
            held.worker,
            settlement.lease.token.0.as_bytes(),
            outcome.as_str(),
            settlement.code,
            settlement.error,
            settlement.receipt,
            held.granted_at,
            self.now,
        ];
        run(self.tx, ATTEMPT, values).map(|_| ())
    }

    /// Keeps the receipt of a settlement that won, if it asks for that.
    fn keep(&self, settlement: &Settlement) -> Result<(), Error> {
        let Some(effect) = &settlement.keeps else {
            return Ok(());
        };
        let values = params![effect.as_bytes(), settlement.lease.seq, settlement.receipt];
        run(self.tx, KEEP, values).map(|_| ())
    }

    /// A message of a key went back, or stays and blocks: the rest of the same claim's run must not overtake it.
    fn stop_run(&mut self, token: LeaseToken, record: &Record) {
        if let Some(key) = record.key.clone() {
            let first = self.runs.entry((record.lane, key, token)).or_insert(record.pos);
            *first = record.pos.min(*first);
        }
    }

    /// The later ones of these runs that are still held go back. None of them is counted, however often it happens. A lease
    /// that ran out is left to the repairer.
    fn release_rests(&self) -> Result<(), Error> {
        for ((lane, key, token), pos) in &self.runs {
            for seq in self.rest_of_run(*lane, key, *token, *pos)? {
                let Some(Held { mut record, .. }) = self.take(seq, *token, false)? else {
                    continue;
                };
                record.standing = let_go(record.standing).standing;
                self.put_back(&record, Duration::ZERO, Some(*token))?;
            }
        }
        Ok(())
    }

    fn rest_of_run(&self, lane: i64, key: &Key, token: LeaseToken, pos: i64) -> Result<Vec<i64>, Error> {
        let mut statement = self.tx.prepare_cached(REST_OF_RUN).map_err(plain)?;
        let values = params![lane, key, pos, token.0.as_bytes(), self.now];
        let rows = statement.query_map(values, |row| row.get(0));
        rows.and_then(Iterator::collect).map_err(plain)
    }

    fn free_heads(&self) -> Result<(), Error> {
        self.keys
            .iter()
            .try_for_each(|(lane, key)| free_head(self.tx, *lane, key, self.now))
    }
}
