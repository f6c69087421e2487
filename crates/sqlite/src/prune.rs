//! Retention: what ended long ago leaves, with its evidence; the audit stays.

use posthouse_core::{Digest, Error, Prune, PruneRecord, Pruned, State, Timestamp};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    admin::{About, Hand},
    clock::{self, micros},
    error::plain,
    place::run,
    rows::{Stored, all, text},
    saga,
};

const WALK: &str = include_str!("../sql/prune_walk.sql");
const DEAD: &str = include_str!("../sql/prune_dead.sql");
const CHECK: &str = include_str!("../sql/prune_check.sql");
const PRUNE_INBOX: &str = include_str!("../sql/inbox_prune.sql");
const PRUNE_LEDGER: &str = include_str!("../sql/ledger_prune.sql");
const PRUNE_DEDUPE: &str = include_str!("../sql/prune_dedupe.sql");
const UNDIGESTED: &str = include_str!("../sql/undigested.sql");
const DEDUPE_DIGEST: &str = include_str!("../sql/dedupe_digest.sql");
const AUDIT_RUN: &str = include_str!("../sql/audit_run.sql");
const AUDIT_COUNTS: &str = include_str!("../sql/audit_counts.sql");
const REMOVE_MESSAGE: &str = include_str!("../sql/remove_message.sql");
const REMOVE_ATTEMPTS: &str = include_str!("../sql/remove_attempts.sql");
const REMOVE_RESOLVED: &str = include_str!("../sql/remove_resolved.sql");
const REMOVE_RECEIPT: &str = include_str!("../sql/remove_receipt.sql");
const REMOVE_DEAD: &str = include_str!("../sql/leave_dead.sql");

/// The messages that one call of a prune has found.
pub(crate) struct Old {
    done: Vec<i64>,
    dead: Vec<i64>,
    cutoff: i64,
}

/// The oldest messages that the prune takes, at most `limit` of each state. The walk passes every message that stays, so it runs
/// without the write lock.
pub(crate) fn find(db: &Connection, prune: &Prune) -> Result<Old, Error> {
    let now = clock::now(db)?;
    let cutoff = now.saturating_sub(micros(prune.older_than));
    let done = if prune.states.done() {
        done_before(db, cutoff, now, prune.limit as usize)?
    } else {
        Vec::new()
    };
    let dead = if prune.states.dead() {
        all(db, DEAD, params![cutoff, prune.limit], |row| row.get(0)).map_err(plain)?
    } else {
        Vec::new()
    };
    Ok(Old { done, dead, cutoff })
}

/// Removes them, unless they were replayed meanwhile; and, unless only dead letters go, what else is old, at most `limit` of each.
pub(crate) fn prune(tx: &Connection, old: &Old, prune: &Prune) -> Result<Pruned, Error> {
    let actor = prune.check()?;
    let mut pruned = Pruned {
        done: remove_ended(tx, &old.done, State::Done, old.cutoff)?,
        dead: remove_ended(tx, &old.dead, State::Dead, old.cutoff)?,
        ..Pruned::default()
    };
    let (now, limit) = (clock::now(tx)?, prune.limit);
    let mut counts = vec![old.done.len() as u64, old.dead.len() as u64];
    if prune.states.done() {
        pruned.dedupe_keys = run(tx, PRUNE_DEDUPE, params![now, limit])? as u64;
        pruned.entries = run(tx, PRUNE_LEDGER, params![now, limit])? as u64;
        let messages = run(tx, PRUNE_INBOX, params![old.cutoff, limit])? as u64;
        let steps = saga::prune_steps(tx, old.cutoff, limit)?;
        pruned.inbox = messages + steps;
        pruned.sagas = saga::prune(tx, old.cutoff, limit)?;
        counts.extend([pruned.dedupe_keys, pruned.entries, messages, steps, pruned.sagas]);
    }
    pruned.more = counts.contains(&u64::from(limit));
    if !prune.dry_run && !pruned.is_empty() {
        let record = PruneRecord::of(prune.states, Timestamp::from_micros(old.cutoff), &pruned);
        pruned.audit = Some(audit(tx, now, prune, actor, record)?);
    }
    Ok(pruned)
}

/// Adds the counts to the row of the run, or writes its row. Returns the row's number.
fn audit(tx: &Connection, now: i64, prune: &Prune, actor: String, mut record: PruneRecord) -> Result<i64, Error> {
    let mut statement = tx.prepare_cached(AUDIT_RUN).map_err(plain)?;
    let run_of = statement.query_row(params![prune.audit, actor], |row| row.get::<_, Stored>(0));
    let n = match (prune.audit, run_of.optional().map_err(plain)?) {
        (Some(n), Some(Stored(before))) if before.states == record.states => {
            record.add(&before);
            n
        }
        _ => {
            let hand = Hand::new(&actor, &prune.note)?;
            hand.sign(tx, now, "prune", About::Store)?;
            tx.last_insert_rowid()
        }
    };
    run(tx, AUDIT_COUNTS, params![n, record.to_stored()])?;
    Ok(n)
}

fn remove_ended(tx: &Connection, numbers: &[i64], state: State, cutoff: i64) -> Result<u64, Error> {
    let mut removed = 0;
    for seq in numbers {
        if still_ended(tx, *seq, state, cutoff)? {
            keep_digest(tx, *seq)?;
            run(tx, REMOVE_DEAD, [seq])?;
            remove(tx, *seq)?;
            removed += 1;
        }
    }
    Ok(removed)
}

fn still_ended(tx: &Connection, seq: i64, state: State, cutoff: i64) -> Result<bool, Error> {
    tx.prepare_cached(CHECK)
        .and_then(|mut check| check.exists(params![seq, cutoff, state.as_str()]))
        .map_err(plain)
}

/// Removes a message that has no live record any more, with its evidence.
pub(crate) fn remove(tx: &Connection, seq: i64) -> Result<(), Error> {
    run(tx, REMOVE_ATTEMPTS, [seq])?;
    run(tx, REMOVE_RECEIPT, [seq])?;
    run(tx, REMOVE_RESOLVED, [seq])?;
    run(tx, REMOVE_MESSAGE, [seq]).map(|_| ())
}

/// So many young ones in a row mean that what follows is young too. Fewer, or any number from the future, had their time from a
/// clock that was wrong, and are passed.
const YOUNG: u32 = 100;

/// The oldest messages that were done at `cutoff` or before.
fn done_before(tx: &Connection, cutoff: i64, now: i64, limit: usize) -> Result<Vec<i64>, Error> {
    let (mut old, mut young) = (Vec::new(), 0);
    let mut statement = tx.prepare_cached(WALK).map_err(plain)?;
    let mut rows = statement.query([]).map_err(plain)?;
    while let Some(row) = rows.next().map_err(plain)? {
        let read = || Ok((row.get(0)?, row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?));
        let (seq, created_at, ended_at) = read().map_err(plain)?;
        young = if created_at > cutoff && created_at <= now {
            young + 1
        } else {
            0
        };
        if young == YOUNG || old.len() >= limit {
            break;
        }
        if ended_at.is_some_and(|at| at <= cutoff) {
            old.push(seq);
        }
    }
    Ok(old)
}

/// A dedupe key outlives its message. A producer that brought no digest could be compared by its bytes until now.
fn keep_digest(tx: &Connection, seq: i64) -> Result<(), Error> {
    let mut statement = tx.prepare_cached(UNDIGESTED).map_err(plain)?;
    let found = statement.query_row([seq], |row| {
        let payload: Vec<u8> = row.get(1)?;
        Ok(Digest::of(&text(row, 0)?, &payload))
    });
    if let Some(digest) = found.optional().map_err(plain)? {
        run(tx, DEDUPE_DIGEST, params![seq, digest.as_bytes()])?;
    }
    Ok(())
}
