//! Sagas, on whatever runs a statement: the store's own connection or a transaction of another driver. What becomes of a saga is decided by the core; here
//! it is read and written, under the write lock.

use posthouse_core::{
    Error, MessageId, STARTED_TOTAL, SagaId, Timestamp, Verdict,
    ledger::check_consumer,
    saga::{
        Beginning, Change, Doing, Found, Happened, Live, Loaded, LogLine, SagaFilter, SagaPage, SagaRow, Snapshot,
        Standing, Start, Started, Undoing, check_step_key,
    },
};
use rusqlite::{Connection, OptionalExtension, Row as SqlRow, params};
use uuid::Uuid;

use crate::{
    Options,
    call::{Call, Here, Run, Value, at_once},
    clock::CLOCK,
    error::{internal, plain},
    insert::{insert_all, integer, run},
    place::{ENTER_RESOLVED, LEAVE_DEAD, LEAVE_READY, LEAVE_SCHED, LOCATE, run as run_here},
    rows::{all, optional_text, optional_time, text, time, word},
    settings::Rules,
};

const LOCK: &str = include_str!("../sql/saga_lock.sql");
const DEFINE: &str = include_str!("../sql/saga_define.sql");
const DEFINED: &str = include_str!("../sql/saga_defined.sql");
const BY_KEY: &str = include_str!("../sql/saga_by_key.sql");
const INSERT: &str = include_str!("../sql/saga_insert.sql");
const REVISION: &str = include_str!("../sql/saga_revision.sql");
const UPDATE: &str = include_str!("../sql/saga_update.sql");
const LOG_ADD: &str = include_str!("../sql/saga_log_add.sql");
const LOAD: &str = include_str!("../sql/saga_load.sql");
const LIST: &str = include_str!("../sql/saga_list.sql");
const LOG: &str = include_str!("../sql/saga_log.sql");
const EXISTS: &str = include_str!("../sql/saga_exists.sql");
const OVER: &str = include_str!("../sql/saga_over.sql");
const REMOVE: &str = include_str!("../sql/remove_saga.sql");
const REMOVE_LOG: &str = include_str!("../sql/remove_saga_log.sql");
const OF: &str = include_str!("../sql/saga_of.sql");
const STEP_FIRST: &str = include_str!("../sql/step_first.sql");
const STEP_UNDONE: &str = include_str!("../sql/step_undone.sql");
const STEP_UNDO: &str = include_str!("../sql/step_undo.sql");
const STEP_PRUNE: &str = include_str!("../sql/step_prune.sql");
const NUMBER: &str = include_str!("../sql/number.sql");
const AUDIT_ADD: &str = include_str!("../sql/audit_add.sql");

/// Starts a saga: it exists if and only if the transaction commits.
pub(crate) async fn start<R: Run>(on: &mut R, options: &Options, start: Start) -> Result<Started, Error> {
    // First of all a write, so that a transaction that was begun DEFERRED sees nothing that somebody else changes meanwhile.
    run(on, LOCK, vec![start.id.0.as_bytes().as_slice().into()]).await?;
    let limits = Rules::read(on, options).await?.limits;
    let saga = start.begin(&limits)?;
    let (owner, definition) = (&saga.owner, &saga.definition);
    let hash = definition.hash();
    let version = i64::from(definition.version());
    let mut values = vec![
        owner.namespace.as_str().into(),
        definition.name().into(),
        version.into(),
        hash.as_bytes().into(),
        definition.json().into(),
    ];
    if let Some(found) = existing(on, &saga).await? {
        return found;
    }
    run(on, DEFINE, values.clone()).await?;
    values.truncate(3);
    let known = on.run(&Call { sql: DEFINED, values }).await?;
    let number = match known.as_deref() {
        Some([Value::Integer(n), Value::Blob(known)]) if **known == *hash.as_bytes() => *n,
        Some(_) => return Err(definition.known_otherwise().into()),
        None => return Err(internal("a definition that was written is not there")),
    };
    let now = integer(on, CLOCK).await?;
    let (state, reason) = saga.state_words();
    let values = vec![
        owner.id.0.as_bytes().as_slice().into(),
        owner.namespace.as_str().into(),
        owner.tenant.as_str().into(),
        definition.name().into(),
        saga.key.as_str().into(),
        number.into(),
        saga.digest.as_bytes().into(),
        state.into(),
        reason.into(),
        snapshot_json(&saga.snapshot)?.into(),
        now.into(),
    ];
    let seq = match on.run(&Call { sql: INSERT, values }).await?.as_deref() {
        Some([Value::Integer(seq)]) => *seq,
        other => return Err(internal(format!("a saga was not written: {other:?}"))),
    };
    write_down(on, seq, 1, now, "start", &saga.log).await?;
    insert_all(on, options, &saga.sends).await?;
    metrics::counter!(STARTED_TOTAL, "saga" => definition.name().to_owned()).increment(1);
    Ok(Started::New(owner.id))
}

/// The saga that stands for it already, or that it is another.
async fn existing<R: Run>(on: &mut R, saga: &Beginning) -> Result<Option<Result<Started, Error>>, Error> {
    let values = vec![
        saga.owner.namespace.as_str().into(),
        saga.owner.tenant.as_str().into(),
        saga.definition.name().into(),
        saga.key.as_str().into(),
    ];
    let found = on.run(&Call { sql: BY_KEY, values }).await?;
    Ok(match found.as_deref() {
        None => None,
        Some([Value::Blob(id), Value::Blob(digest)]) => {
            let id = SagaId(Uuid::from_slice(id).map_err(internal)?);
            let same = **digest == *saga.digest.as_bytes();
            Some(if same {
                Ok(Started::Existing(id))
            } else {
                Err(Error::SagaMismatch(id))
            })
        }
        other => return Err(internal(format!("not a saga: {other:?}"))),
    })
}

fn snapshot_json(snapshot: &Snapshot) -> Result<String, Error> {
    serde_json::to_string(snapshot).map_err(internal)
}

async fn write_down<R: Run>(
    on: &mut R,
    seq: i64,
    revision: u64,
    now: i64,
    actor: &str,
    log: &[Happened],
) -> Result<(), Error> {
    for happened in log {
        let values = vec![
            seq.into(),
            i64::try_from(revision).unwrap_or(i64::MAX).into(),
            now.into(),
            actor.into(),
            happened.what.into(),
            happened.step.as_deref().into(),
            happened.detail.as_str().into(),
        ];
        run(on, LOG_ADD, values).await?;
    }
    Ok(())
}

/// Changes a saga that is as it was when this was decided, or answers [`Verdict::Stale`]: then the caller undoes what is written.
pub(crate) async fn change<R: Run>(on: &mut R, options: &Options, change: &Change) -> Result<Verdict, Error> {
    let now = integer(on, CLOCK).await?;
    let expected = i64::try_from(change.expected).unwrap_or(i64::MAX);
    let values = vec![change.owner.id.0.as_bytes().as_slice().into(), expected.into()];
    let found = on.run(&Call { sql: REVISION, values }).await?;
    let Some([Value::Integer(seq)]) = found.as_deref() else {
        return Ok(Verdict::Stale);
    };
    for one in &change.withdraw {
        if !withdraw(on, one.message, one.epoch, now).await? {
            return Ok(Verdict::Stale);
        }
    }
    let ((state, reason), ended) = (change.state_words(), change.snapshot.ended.is_some());
    let values = vec![
        (*seq).into(),
        state.into(),
        reason.into(),
        i64::from(change.snapshot.paused).into(),
        i64::try_from(change.revision()).unwrap_or(i64::MAX).into(),
        snapshot_json(&change.snapshot)?.into(),
        now.into(),
        i64::from(ended).into(),
    ];
    run(on, UPDATE, values).await?;
    write_down(on, *seq, change.revision(), now, &change.actor, &change.log).await?;
    if let Some((action, note)) = &change.audit {
        let values = vec![
            now.into(),
            change.actor.as_str().into(),
            (*action).into(),
            change.owner.id.0.as_bytes().as_slice().into(),
            Value::Null,
            note.as_str().into(),
        ];
        run(on, AUDIT_ADD, values).await?;
    }
    insert_all(on, options, &change.sends_at(Timestamp::from_micros(now))).await?;
    Ok(Verdict::Settled)
}

/// Where a message is that has not ended.
struct Place {
    table: String,
    seq: i64,
    lane: i64,
    pos: i64,
    attempts: i64,
    max_attempts: i64,
    epoch: i64,
    generation: i64,
}

async fn place<R: Run>(on: &mut R, id: MessageId) -> Result<Option<Place>, Error> {
    let values = vec![id.0.as_bytes().as_slice().into()];
    let found = on.run(&Call { sql: NUMBER, values }).await?;
    let Some([Value::Integer(seq), ..]) = found.as_deref() else {
        return Ok(None);
    };
    let values = vec![(*seq).into()];
    let Some(row) = on.run(&Call { sql: LOCATE, values }).await? else {
        return Ok(None);
    };
    let number = |at: usize| match row.get(at) {
        Some(Value::Integer(n)) => Ok(*n),
        other => Err(internal(format!("not a number: {other:?}"))),
    };
    let Some(Value::Text(table)) = row.first() else {
        return Err(internal(format!("not a place: {row:?}")));
    };
    Ok(Some(Place {
        table: table.to_string(),
        seq: *seq,
        lane: number(2)?,
        pos: number(4)?,
        attempts: number(6)?,
        max_attempts: number(7)?,
        epoch: number(8)?,
        generation: number(9)?,
    }))
}

/// Takes a message back that stands as it stood. Whether it did.
async fn withdraw<R: Run>(on: &mut R, id: MessageId, epoch: u64, now: i64) -> Result<bool, Error> {
    let Some(place) = place(on, id).await? else {
        return Ok(false);
    };
    if place.epoch.unsigned_abs() != epoch {
        return Ok(false);
    }
    match place.table.as_str() {
        "ready" => run(on, LEAVE_READY, vec![place.lane.into(), place.pos.into()]).await?,
        "sched" => run(on, LEAVE_SCHED, vec![place.seq.into()]).await?,
        "dead" | "quarantined" => run(on, LEAVE_DEAD, vec![place.seq.into()]).await?,
        _ => return Ok(false),
    }
    let values = vec![
        place.seq.into(),
        now.into(),
        place.attempts.into(),
        place.max_attempts.into(),
        place.epoch.into(),
        place.generation.into(),
    ];
    run(on, ENTER_RESOLVED, values).await?;
    Ok(true)
}

/// A step comes to a participant.
pub(crate) async fn do_once<R: Run>(on: &mut R, consumer: &str, key: &str) -> Result<Doing, Error> {
    if first_heard(on, consumer, key, false).await? {
        return Ok(Doing::First);
    }
    let (sql, values) = (STEP_UNDONE, vec![consumer.into(), key.into()]);
    match on.run(&Call { sql, values }).await?.as_deref() {
        Some([Value::Integer(0)]) => Ok(Doing::Before),
        Some([Value::Integer(_)]) => Ok(Doing::Undone),
        other => Err(internal(format!("not a step: {other:?}"))),
    }
}

/// A step is to be undone by a participant.
pub(crate) async fn undo_once<R: Run>(on: &mut R, consumer: &str, key: &str) -> Result<Undoing, Error> {
    if first_heard(on, consumer, key, true).await? {
        return Ok(Undoing::Never);
    }
    let (sql, values) = (STEP_UNDO, vec![consumer.into(), key.into()]);
    let undone = on.run(&Call { sql, values }).await?.is_some();
    Ok(if undone { Undoing::Now } else { Undoing::Before })
}

/// Whether a participant hears of a step for the first time; it knows of it from then on.
async fn first_heard<R: Run>(on: &mut R, consumer: &str, key: &str, undone: bool) -> Result<bool, Error> {
    check_consumer(consumer)?;
    check_step_key(key)?;
    let (sql, values) = (STEP_FIRST, vec![consumer.into(), key.into(), i64::from(undone).into()]);
    Ok(on.run(&Call { sql, values }).await?.is_some())
}

/// A saga as it is.
pub(crate) fn load(db: &Connection, options: &Options, id: SagaId) -> Found {
    let mut statement = db.prepare_cached(LOAD).map_err(plain)?;
    let found = statement.query_row([id.0.as_bytes()], |row| {
        Ok((saga_row(row)?, text(row, 14)?, text(row, 15)?))
    });
    let Some((row, body, snapshot)) = found.optional().map_err(plain)? else {
        return Ok(None);
    };
    let on = &mut Here(db);
    let rules = at_once(Rules::read(on, options))?;
    let (now, payload_bytes) = (Timestamp::from_micros(rules.now), rules.limits.payload_bytes);
    Loaded::of(
        row,
        (&body, &snapshot),
        |snapshot| live(on, snapshot),
        now,
        payload_bytes,
    )
    .map(Some)
}

/// Where its messages stand.
fn live(on: &mut Here<'_>, snapshot: &Snapshot) -> Result<Live, Error> {
    let mut live = Live::new();
    for message in snapshot.carriers() {
        let Some(place) = at_once(place(on, message))? else {
            continue;
        };
        let epoch = place.epoch.unsigned_abs();
        let standing = match place.table.as_str() {
            "leased" => Standing::Leased,
            "dead" | "quarantined" => Standing::Dead { epoch },
            _ => Standing::Pending {
                epoch,
                attempts: u32::try_from(place.attempts).unwrap_or(u32::MAX),
            },
        };
        live.insert(message, standing);
    }
    Ok(live)
}

/// The columns of `saga_list.sql`. A row that cannot be read is marked, so that it does not hide the rest of its page: any process can write to the file.
fn listed(row: &SqlRow<'_>) -> rusqlite::Result<SagaRow> {
    let why = match saga_row(row) {
        Ok(row) => return Ok(row),
        Err(why) => why.to_string(),
    };
    let id = row.get(0).map_or(Uuid::nil(), Uuid::from_bytes);
    let text = |at| text(row, at).unwrap_or_default();
    let view = SagaRow::unreadable(SagaId(id), row.get(1)?, why);
    Ok(SagaRow {
        namespace: text(2),
        tenant: text(3),
        name: text(4),
        key: text(6),
        state: word(row, 7).unwrap_or(view.state),
        created_at: time(row, 11).unwrap_or(view.created_at),
        updated_at: time(row, 12).unwrap_or(view.updated_at),
        ..view
    })
}

/// The first columns of `saga_load.sql` and `saga_list.sql`.
fn saga_row(row: &SqlRow<'_>) -> rusqlite::Result<SagaRow> {
    Ok(SagaRow {
        id: SagaId(Uuid::from_bytes(row.get(0)?)),
        seq: row.get(1)?,
        namespace: text(row, 2)?,
        tenant: text(row, 3)?,
        name: text(row, 4)?,
        version: row.get(5)?,
        key: text(row, 6)?,
        state: word(row, 7)?,
        reason: match row.get::<_, Option<String>>(8)? {
            Some(_) => Some(word(row, 8)?),
            None => None,
        },
        paused: row.get(9)?,
        revision: row.get::<_, i64>(10)?.unsigned_abs(),
        created_at: time(row, 11)?,
        updated_at: time(row, 12)?,
        finished_at: optional_time(row, 13)?,
        unreadable: None,
    })
}

pub(crate) fn list(db: &Connection, filter: &SagaFilter) -> rusqlite::Result<SagaPage> {
    let (state, reason) = (filter.state.map(|s| s.as_str()), filter.reason.map(|r| r.as_str()));
    let values = params![
        filter.below.unwrap_or(i64::MAX),
        filter.namespace,
        filter.tenant,
        filter.name,
        filter.key,
        state,
        reason,
        filter.page_size() + 1,
    ];
    let rows = all(db, LIST, values, listed)?;
    Ok(SagaPage::of(rows, filter))
}

/// The lines of a saga's log; none if there is no such saga.
pub(crate) fn log(db: &Connection, id: SagaId, after: u64, limit: u32) -> rusqlite::Result<Option<Vec<LogLine>>> {
    if !db.prepare_cached(EXISTS)?.exists([id.0.as_bytes()])? {
        return Ok(None);
    }
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    all(db, LOG, params![id.0.as_bytes(), after, limit], log_line).map(Some)
}

fn log_line(row: &SqlRow<'_>) -> rusqlite::Result<LogLine> {
    Ok(LogLine {
        n: row.get::<_, i64>(0)?.unsigned_abs(),
        revision: row.get::<_, i64>(1)?.unsigned_abs(),
        at: time(row, 2)?,
        actor: text(row, 3)?,
        what: text(row, 4)?,
        step: optional_text(row, 5)?,
        detail: text(row, 6)?,
    })
}

/// Removes sagas that ended at `cutoff` or before, with their logs; at most `limit`.
pub(crate) fn prune(tx: &Connection, cutoff: i64, limit: u32) -> Result<u64, Error> {
    let over: Vec<i64> = all(tx, OVER, params![cutoff, limit], |row| row.get(0)).map_err(plain)?;
    for seq in &over {
        run_here(tx, REMOVE_LOG, [seq])?;
        run_here(tx, REMOVE, [seq])?;
    }
    Ok(over.len() as u64)
}

/// Removes what participants heard of at `cutoff` or before; at most `limit`.
pub(crate) fn prune_steps(tx: &Connection, cutoff: i64, limit: u32) -> Result<u64, Error> {
    Ok(run_here(tx, STEP_PRUNE, params![cutoff, limit])? as u64)
}

/// The saga whose message it is.
pub(crate) fn of(tx: &Connection, seq: i64) -> Result<Option<SagaId>, Error> {
    let mut statement = tx.prepare_cached(OF).map_err(plain)?;
    let found = statement.query_row([seq], |row| row.get::<_, [u8; 16]>(0));
    let found = found.optional().map_err(plain)?;
    Ok(found.map(|bytes| SagaId(Uuid::from_bytes(bytes))))
}
