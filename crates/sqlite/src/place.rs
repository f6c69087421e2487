//! Where a message's live record is, and moving it from one table to another.

use posthouse_core::{DeadReason, Error, LeaseToken, State};
use rusqlite::{Connection, OptionalExtension, Params, params};

use crate::{
    call::{Call, Here, Run, Value, at_once},
    error::{internal, plain},
    insert::run as perform,
    rows::{Key, Record, epoch},
};

const DRAW: &str = include_str!("../sql/draw.sql");
pub(crate) const LOCATE: &str = include_str!("../sql/locate.sql");
const ENTER_READY: &str = include_str!("../sql/enter_ready.sql");
const ENTER_SCHED: &str = include_str!("../sql/enter_sched.sql");
const ENTER_KEYED: &str = include_str!("../sql/enter_keyed.sql");
const ENTER_DEAD: &str = include_str!("../sql/enter_dead.sql");
pub(crate) const ENTER_RESOLVED: &str = include_str!("../sql/enter_resolved.sql");
pub(crate) const LEAVE_READY: &str = include_str!("../sql/leave_ready.sql");
pub(crate) const LEAVE_SCHED: &str = include_str!("../sql/leave_sched.sql");
const LEAVE_KEYED: &str = include_str!("../sql/leave_keyed.sql");
pub(crate) const LEAVE_DEAD: &str = include_str!("../sql/leave_dead.sql");
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
            blocks: row.get(14)?,
        })
    });
    found.optional().map_err(plain)
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
pub(crate) async fn draw<R: Run>(on: &mut R, count: usize) -> Result<i64, Error> {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    let values = vec![count.into()];
    match on.run(&Call { sql: DRAW, values }).await?.as_deref() {
        Some([Value::Integer(last)]) => Ok(last - count + 1),
        other => Err(internal(format!("no place was drawn: {other:?}"))),
    }
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
pub(crate) async fn to_pending<R: Run>(on: &mut R, record: &Record, waiting: Waiting, now: i64) -> Result<(), Error> {
    if record.key.is_some() {
        return enter(on, ENTER_KEYED, record, waiting).await;
    }
    if waiting.due_at > now {
        return enter(on, ENTER_SCHED, record, waiting).await;
    }
    let pos = draw(on, 1).await?;
    to_ready(on, &Record { pos, ..record.clone() }, waiting).await
}

/// Puts it into its lane's line, at the place it carries.
pub(crate) async fn to_ready<R: Run>(on: &mut R, record: &Record, waiting: Waiting) -> Result<(), Error> {
    enter(on, ENTER_READY, record, waiting).await
}

async fn enter<R: Run>(on: &mut R, sql: &'static str, record: &Record, waiting: Waiting) -> Result<(), Error> {
    let standing = &record.standing;
    let mut values = vec![
        record.lane.into(),
        record.pos.into(),
        record.seq.into(),
        record.bytes.into(),
        i64::from(standing.attempts).into(),
        i64::from(standing.max_attempts).into(),
        epoch(standing).into(),
        i64::from(standing.generation).into(),
        i64::from(standing.releases).into(),
        record.deliver_by.into(),
        i64::from(record.deduped).into(),
        waiting.due_at.into(),
        waiting.changed_at.into(),
        waiting
            .released_by
            .as_ref()
            .map(|token| token.0.as_bytes().as_slice())
            .into(),
    ];
    // Only keyed messages have a column for the key.
    values.extend(record.key.as_ref().map(Key::value));
    perform(on, sql, values).await
}

/// Makes it dead, for this reason, or quarantined when there is none. It blocks its key if the message says so; one that
/// was cancelled never does, nor one that does not hold its place in it (any more).
pub(crate) async fn to_dead<R: Run>(
    on: &mut R,
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
    let may_block = holds && record.key.is_some() && reason != Some(DeadReason::Cancelled);
    let blocks = may_block && on_dead_blocks(on, record.seq).await?;
    let standing = &record.standing;
    let values = vec![
        record.seq.into(),
        state.as_str().into(),
        reason.map(DeadReason::as_str).into(),
        now.into(),
        record.lane.into(),
        record.key.as_ref().map(Key::value).unwrap_or(Value::Null),
        record.pos.into(),
        i64::from(blocks).into(),
        record.bytes.into(),
        i64::from(standing.attempts).into(),
        i64::from(standing.max_attempts).into(),
        epoch(standing).into(),
        i64::from(standing.generation).into(),
        i64::from(record.deduped).into(),
    ];
    perform(on, ENTER_DEAD, values).await?;
    ended(on, record, now).await
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
    at_once(ended(&mut Here(tx), record, now))
}

/// The lifetime of its dedupe key, if it has one, begins.
pub(crate) async fn ended<R: Run>(on: &mut R, record: &Record, now: i64) -> Result<(), Error> {
    if record.deduped {
        perform(on, DEDUPE_END, vec![record.seq.into(), now.into()]).await?;
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

async fn on_dead_blocks<R: Run>(on: &mut R, seq: i64) -> Result<bool, Error> {
    let values = vec![seq.into()];
    match on.run(&Call { sql: ON_DEAD, values }).await?.as_deref() {
        Some([Value::Integer(blocks)]) => Ok(*blocks != 0),
        other => Err(internal(format!("no message of number {seq}: {other:?}"))),
    }
}

/// Something of this key has changed: its first message becomes claimable if nothing holds it.
pub(crate) async fn free_head<R: Run>(on: &mut R, lane: i64, key: &Key, now: i64) -> Result<(), Error> {
    perform(on, FREE_HEAD, vec![lane.into(), key.value(), now.into()]).await
}
