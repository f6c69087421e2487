//! Where a message's live record is, and moving it from one table to another.

use posthouse_core::{DeadReason, Error, LeaseToken, State};
use rusqlite::{Connection, OptionalExtension, Params, params};

use crate::{
    error::plain,
    rows::{Key, Record, epoch},
};

const DRAW: &str = include_str!("../sql/draw.sql");
const LOCATE: &str = include_str!("../sql/locate.sql");
const ENTER_READY: &str = include_str!("../sql/enter_ready.sql");
const ENTER_SCHED: &str = include_str!("../sql/enter_sched.sql");
const ENTER_KEYED: &str = include_str!("../sql/enter_keyed.sql");
const ENTER_DEAD: &str = include_str!("../sql/enter_dead.sql");
const ENTER_RESOLVED: &str = include_str!("../sql/enter_resolved.sql");
const LEAVE_READY: &str = include_str!("../sql/leave_ready.sql");
const LEAVE_SCHED: &str = include_str!("../sql/leave_sched.sql");
const LEAVE_KEYED: &str = include_str!("../sql/leave_keyed.sql");
const LEAVE_DEAD: &str = include_str!("../sql/leave_dead.sql");
const ON_DEAD: &str = include_str!("../sql/on_dead.sql");
const FREE_HEAD: &str = include_str!("../sql/free_head.sql");
const DEDUPE_END: &str = include_str!("../sql/dedupe_end.sql");
const DEDUPE_REOPEN: &str = include_str!("../sql/dedupe_reopen.sql");

/// The table that a live record is in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Table {
    Ready,
    Sched,
    Keyed,
    Leased,
    Dead,
}

/// A live record, and where it was found.
pub(crate) struct Located {
    pub table: Table,
    pub record: Record,
    /// The token of its last release, while it is pending and nothing else has happened since.
    pub released_by: Option<LeaseToken>,
    /// Whether it is dead or quarantined and holds its key.
    pub blocks: bool,
}

/// Runs a statement of this crate's own, and says how many records it changed.
pub(crate) fn run(tx: &Connection, sql: &str, params: impl Params) -> Result<usize, Error> {
    tx.prepare_cached(sql)
        .and_then(|mut statement| statement.execute(params))
        .map_err(plain)
}

/// The live record of a message. None means that it is done, or gone.
pub(crate) fn locate(tx: &Connection, seq: i64) -> Result<Option<Located>, Error> {
    let mut statement = tx.prepare_cached(LOCATE).map_err(plain)?;
    let found = statement.query_row([seq], |row| {
        let place: String = row.get(0)?;
        let (table, state) = match place.as_str() {
            "ready" => (Table::Ready, State::Pending),
            "sched" => (Table::Sched, State::Pending),
            "keyed" => (Table::Keyed, State::Pending),
            "leased" => (Table::Leased, State::Leased),
            "quarantined" => (Table::Dead, State::Quarantined),
            _ => (Table::Dead, State::Dead),
        };
        Ok(Located {
            table,
            record: Record::read(row, 1, state)?,
            released_by: row.get::<_, Option<[u8; 16]>>(13)?.map(token_of),
            blocks: row.get(14)?,
        })
    });
    found.optional().map_err(plain)
}

fn token_of(bytes: [u8; 16]) -> LeaseToken {
    LeaseToken(uuid::Uuid::from_bytes(bytes))
}

/// Takes a record out of its table; the caller puts it into another one in the same transaction. A leased record leaves
/// by its settlement only.
pub(crate) fn leave(tx: &Connection, located: &Located) -> Result<(), Error> {
    let record = &located.record;
    match located.table {
        Table::Ready => run(tx, LEAVE_READY, params![record.lane, record.pos]),
        Table::Sched => run(tx, LEAVE_SCHED, [record.seq]),
        Table::Keyed => run(tx, LEAVE_KEYED, params![record.lane, record.key, record.pos]),
        Table::Dead => run(tx, LEAVE_DEAD, [record.seq]),
        Table::Leased => Ok(0),
    }
    .map(|_| ())
}

/// Draws `count` fresh places and answers the first of them.
pub(crate) fn draw(tx: &Connection, count: usize) -> Result<i64, Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let last: i64 = tx
        .prepare_cached(DRAW)
        .and_then(|mut draw| draw.query_row([count], |row| row.get(0)))
        .map_err(plain)?;
    Ok(last - count + 1)
}

/// Since when a pending record is what it is, and from when it is due.
#[derive(Clone, Copy)]
pub(crate) struct Waiting {
    pub due_at: i64,
    pub changed_at: Option<i64>,
    pub released_by: Option<LeaseToken>,
}

/// Makes it pending. Without an order key it goes to the end of its lane; with one it takes the place it carries, and
/// the caller must look after the key ([`free_head`]).
pub(crate) fn to_pending(tx: &Connection, record: &Record, waiting: Waiting, now: i64) -> Result<(), Error> {
    if record.key.is_some() {
        return enter(tx, ENTER_KEYED, record, waiting);
    }
    if waiting.due_at > now {
        return enter(tx, ENTER_SCHED, record, waiting);
    }
    let pos = draw(tx, 1)?;
    to_ready(tx, &Record { pos, ..record.clone() }, waiting)
}

/// Puts it into its lane's line, at the place it carries.
pub(crate) fn to_ready(tx: &Connection, record: &Record, waiting: Waiting) -> Result<(), Error> {
    enter(tx, ENTER_READY, record, waiting)
}

fn enter(tx: &Connection, sql: &str, record: &Record, waiting: Waiting) -> Result<(), Error> {
    let standing = &record.standing;
    let released_by = waiting.released_by.map(|token| token.0.into_bytes());
    let values = params![
        record.lane,
        record.pos,
        record.seq,
        record.bytes,
        standing.attempts,
        standing.max_attempts,
        epoch(standing),
        standing.generation,
        standing.releases,
        record.deliver_by,
        record.deduped,
        waiting.due_at,
        waiting.changed_at,
        released_by,
        record.key,
    ];
    // The key comes last, and only keyed messages have a column for it.
    let given = if record.key.is_some() { values } else { &values[..14] };
    run(tx, sql, given).map(|_| ())
}

/// Makes it dead, for this reason, or quarantined when there is none. It blocks its key if the message says so; one that
/// was cancelled never does, nor one that does not hold its place in it (any more).
pub(crate) fn to_dead(
    tx: &Connection,
    record: &Record,
    reason: Option<DeadReason>,
    holds: bool,
    now: i64,
) -> Result<(), Error> {
    let state = if reason.is_some() {
        State::Dead
    } else {
        State::Quarantined
    };
    let blocks =
        holds && record.key.is_some() && reason != Some(DeadReason::Cancelled) && on_dead_blocks(tx, record.seq)?;
    let standing = &record.standing;
    let values = params![
        record.seq,
        state.as_str(),
        reason.map(DeadReason::as_str),
        now,
        record.lane,
        record.key,
        record.pos,
        blocks,
        record.bytes,
        standing.attempts,
        standing.max_attempts,
        epoch(standing),
        standing.generation,
        record.deduped,
    ];
    run(tx, ENTER_DEAD, values)?;
    ended(tx, record, now)
}

/// Makes it done by an operator's word.
pub(crate) fn to_resolved(tx: &Connection, record: &Record, now: i64) -> Result<(), Error> {
    let standing = &record.standing;
    let values = params![
        record.seq,
        now,
        standing.attempts,
        standing.max_attempts,
        epoch(standing),
        standing.generation
    ];
    run(tx, ENTER_RESOLVED, values)?;
    ended(tx, record, now)
}

/// The lifetime of its dedupe key, if it has one, begins.
pub(crate) fn ended(tx: &Connection, record: &Record, now: i64) -> Result<(), Error> {
    if record.deduped {
        run(tx, DEDUPE_END, params![record.seq, now])?;
    }
    Ok(())
}

/// The lifetime of its dedupe key, if it has one, is forgotten.
pub(crate) fn reopened(tx: &Connection, record: &Record) -> Result<(), Error> {
    if record.deduped {
        run(tx, DEDUPE_REOPEN, [record.seq])?;
    }
    Ok(())
}

fn on_dead_blocks(tx: &Connection, seq: i64) -> Result<bool, Error> {
    tx.prepare_cached(ON_DEAD)
        .and_then(|mut statement| statement.query_row([seq], |row| row.get(0)))
        .map_err(plain)
}

/// Something of this key has changed: its first message becomes claimable if nothing holds it.
pub(crate) fn free_head(tx: &Connection, lane: i64, key: &Key, now: i64) -> Result<(), Error> {
    run(tx, FREE_HEAD, params![lane, key, now]).map(|_| ())
}
