//! Settle, a batch at a time: what is alike ends in two statements, the rest one by one.

use posthouse_core::{Error, Settlement, Verdict, settlement::Next};
use rusqlite::{CachedStatement, Connection, params};
use std::collections::HashSet;

use crate::{
    Options,
    call::{Here, at_once},
    clock,
    end::Ending,
    error::plain,
};

const PLAIN: &str = include_str!("../sql/settle_plain.sql");
const WON: &str = include_str!("../sql/settle_won.sql");
const LEAVE: &str = include_str!("../sql/leave_leased.sql");

/// Ends leases, in a transaction that holds the write lock. One that cannot be settled spoils no other.
pub(crate) fn settle(tx: &Connection, options: &Options, batch: &[Settlement]) -> Result<Vec<Verdict>, Error> {
    let (now, mut here) = (clock::now(tx)?, Here(tx));
    let mut settling = Settling {
        tx,
        now,
        ending: Ending::new(&mut here, options, now),
        plain: tx.prepare_cached(PLAIN).map_err(plain)?,
        leave: tx.prepare_cached(LEAVE).map_err(plain)?,
    };
    let mut verdicts = Vec::with_capacity(batch.len());
    // In the order of the batch, because the first of two settlements for a lease wins.
    for alike in batch.chunk_by(are_alike) {
        settling.alike(alike, &mut verdicts)?;
    }
    at_once(settling.ending.finish())?;
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
        && one.lease.bound == next.lease.bound
        && one.follow_ups.is_empty()
        && next.follow_ups.is_empty()
        && one.saga.is_none()
        && next.saga.is_none()
}

/// One batch on its way.
struct Settling<'a> {
    tx: &'a Connection,
    now: i64,
    ending: Ending<'a, Here<'a>>,
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

impl Settling<'_> {
    /// Settlements that are alike: those that [`Self::plain`] settles together, and the others one by one.
    fn alike(&mut self, alike: &[Settlement], verdicts: &mut Vec<Verdict>) -> Result<(), Error> {
        let plain = self.plain(alike)?;
        for settlement in alike {
            verdicts.push(if plain.holds(settlement.lease.seq) {
                at_once(self.ending.keep(settlement))?;
                Verdict::Settled
            } else {
                at_once(self.ending.one(settlement))?
            });
        }
        Ok(())
    }

    /// The way of most messages, in two statements for all of them: done, without followers, order key, dedupe key or entry in the ledger.
    /// Answers which of them were so and are settled; nothing has happened to the others.
    fn plain(&mut self, alike: &[Settlement]) -> Result<Won, Error> {
        let ([first, ..], [.., last]) = (alike, alike) else {
            return Ok(Won::None);
        };
        let lone = first.follow_ups.is_empty() && !first.lease.bound && first.saga.is_none();
        let (Next::Done, Some(outcome), true) = (first.next(), first.step.evidence, lone) else {
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
}
