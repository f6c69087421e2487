//! Retention: what ended long ago leaves, with its evidence; the audit stays.

use posthouse_core::{Digest, Error, Pruned};
use rusqlite::{Connection, OptionalExtension, params};
use std::time::Duration;

use crate::{
    clock::{self, micros},
    error::plain,
    place::run,
    rows::text,
    saga,
};

const WALK: &str = include_str!("../sql/prune_walk.sql");
const CHECK: &str = include_str!("../sql/prune_check.sql");
const PRUNE_INBOX: &str = include_str!("../sql/inbox_prune.sql");
const PRUNE_LEDGER: &str = include_str!("../sql/ledger_prune.sql");
const PRUNE_DEDUPE: &str = include_str!("../sql/prune_dedupe.sql");
const UNDIGESTED: &str = include_str!("../sql/undigested.sql");
const DEDUPE_DIGEST: &str = include_str!("../sql/dedupe_digest.sql");
const REMOVE_MESSAGE: &str = include_str!("../sql/remove_message.sql");
const REMOVE_ATTEMPTS: &str = include_str!("../sql/remove_attempts.sql");
const REMOVE_RESOLVED: &str = include_str!("../sql/remove_resolved.sql");
const REMOVE_RECEIPT: &str = include_str!("../sql/remove_receipt.sql");
const REMOVE_DEAD: &str = include_str!("../sql/leave_dead.sql");

/// What one round of retention has found.
pub(crate) struct Old {
    numbers: Vec<i64>,
    cutoff: i64,
}

/// The oldest messages that ended longer than `older_than` ago, at most `limit`. A long walk over what is still alive, so
/// it is made without the write lock.
pub(crate) fn find(db: &Connection, older_than: Duration, limit: u32) -> Result<Old, Error> {
    let now = clock::now(db)?;
    let cutoff = now.saturating_sub(micros(older_than));
    let numbers = ended_before(db, cutoff, now, limit as usize)?;
    Ok(Old { numbers, cutoff })
}

/// Removes them, unless they were replayed meanwhile, and dedupe keys whose lifetime is over; at most `limit`.
pub(crate) fn prune(tx: &Connection, old: &Old, limit: u32) -> Result<Pruned, Error> {
    let mut pruned = Pruned::default();
    for seq in &old.numbers {
        if still_ended(tx, *seq, old.cutoff)? {
            keep_digest(tx, *seq)?;
            run(tx, REMOVE_DEAD, [seq])?;
            remove(tx, *seq)?;
            pruned.messages += 1;
        }
    }
    pruned.dedupe_keys = run(tx, PRUNE_DEDUPE, params![clock::now(tx)?, limit])? as u64;
    pruned.entries = run(tx, PRUNE_LEDGER, params![clock::now(tx)?, limit])? as u64;
    let messages = run(tx, PRUNE_INBOX, params![old.cutoff, limit])? as u64;
    let steps = saga::prune_steps(tx, old.cutoff, limit)?;
    pruned.inbox = messages + steps;
    pruned.sagas = saga::prune(tx, old.cutoff, limit)?;
    let counts = [
        old.numbers.len() as u64,
        pruned.dedupe_keys,
        pruned.entries,
        messages,
        steps,
        pruned.sagas,
    ];
    pruned.more = counts.contains(&u64::from(limit));
    Ok(pruned)
}

fn still_ended(tx: &Connection, seq: i64, cutoff: i64) -> Result<bool, Error> {
    tx.prepare_cached(CHECK)
        .and_then(|mut check| check.exists(params![seq, cutoff]))
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

/// The oldest messages that ended at `cutoff` or before.
fn ended_before(tx: &Connection, cutoff: i64, now: i64, limit: usize) -> Result<Vec<i64>, Error> {
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
