//! The ledger, on whatever runs a statement: the store's own connection or a transaction of another driver. What becomes of an entry is decided by the
//! core; here it is read and written, under the write lock.

use posthouse_core::{
    Digest, Error, Headers, Lease, LeaseToken, MessageId, Timestamp,
    headers::{take_binding, to_json},
    ledger::{
        Begin, Begun, Clearance, Conclusion, End, Entry, EntryKey, Fenced, Fingerprint, Hold, Kept, Ruling, Status,
        check_consumer, check_point, not_under_it,
    },
};
use rusqlite::Connection;
use std::time::Duration;
use uuid::Uuid;

use crate::{
    call::{Call, Here, Run, Value, at_once},
    clock::{CLOCK, micros},
    error::internal,
    insert::{integer, run},
    place::LOCATE,
};

const LOCK: &str = include_str!("../sql/ledger_lock.sql");
const FIND: &str = include_str!("../sql/ledger_find.sql");
const PUT: &str = include_str!("../sql/ledger_put.sql");
const NUMBER: &str = include_str!("../sql/number.sql");
const BOUND: &str = include_str!("../sql/ledger_bound.sql");
const HELD: &str = include_str!("../sql/ledger_held.sql");
const ONCE: &str = include_str!("../sql/inbox_once.sql");

/// The answer, if it takes no more than a look.
pub(crate) fn look(db: &Connection, ask: &Begin) -> Result<Option<Begun>, Error> {
    let on = &mut Here(db);
    let found = at_once(find(on, &ask.key))?;
    let now = Timestamp::from_micros(at_once(integer(on, CLOCK))?);
    let (entry, begun) = Entry::begin(found, ask, LeaseToken(Uuid::nil()), now);
    Ok(entry.is_none().then_some(begun))
}

pub(crate) fn begin(tx: &Connection, ask: &Begin) -> Result<Begun, Error> {
    let token = LeaseToken(Uuid::new_v4());
    at_once(change(&mut Here(tx), &ask.key, |found, now| {
        Entry::begin(found, ask, token, now)
    }))
}

pub(crate) async fn conclude<R: Run>(on: &mut R, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
    change(on, &hold.key, |found, now| {
        Entry::conclude(found, hold.token, conclusion.clone(), now)
    })
    .await
}

pub(crate) async fn renew<R: Run>(on: &mut R, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
    change(on, &hold.key, |found, now| Entry::renew(found, hold.token, lease, now)).await
}

pub(crate) async fn reach<R: Run>(on: &mut R, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
    check_point(checkpoint)?;
    change(on, &hold.key, |found, now| {
        Entry::reach(found, hold.token, checkpoint, now)
    })
    .await
}

pub(crate) async fn leave<R: Run>(on: &mut R, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
    // Any other would never end it.
    let values = vec![message.0.as_bytes().as_slice().into()];
    let found = on.run(&Call { sql: NUMBER, values }).await?;
    let bound = match found.as_deref() {
        Some([Value::Integer(seq), ..]) => bound(on, *seq).await?.filter(|bound| bound.key == hold.key),
        _ => None,
    };
    let place = match &bound {
        Some(bound) => {
            on.run(&Call {
                sql: LOCATE,
                values: vec![bound.seq.into()],
            })
            .await?
        }
        None => None,
    };
    let place = place.as_ref().and_then(|row| text(row.first()?));
    if !place.is_some_and(|place| ["ready", "sched", "keyed"].contains(&place.as_str())) {
        return Err(not_under_it().into());
    }
    change(on, &hold.key, |found, now| {
        Entry::leave_to(found, hold.token, message, now)
    })
    .await
}

/// A message and its entry.
struct Bound {
    seq: i64,
    id: MessageId,
    key: EntryKey,
    fingerprint: Fingerprint,
}

/// The entry of a message, if it has one.
async fn bound<R: Run>(on: &mut R, seq: i64) -> Result<Option<Bound>, Error> {
    let values = vec![seq.into()];
    let Some(row) = on.run(&Call { sql: BOUND, values }).await? else {
        return Ok(None);
    };
    let read = |row: &[Value<'_>]| {
        let mut headers: Headers = serde_json::from_str(&text(&row[2])?).ok()?;
        let binding = take_binding(&mut headers)?;
        Some(Bound {
            seq,
            id: MessageId(uuid(&row[0])?),
            key: binding.entry(&text(&row[1])?),
            fingerprint: binding.fingerprint,
        })
    };
    Ok(read(&row))
}

/// Whether messages may be sent, if it takes no more than a look at their entries.
pub(crate) fn look_clear(db: &Connection, leases: &[Lease]) -> Result<Option<Vec<Clearance>>, Error> {
    let on = &mut Here(db);
    let now = Timestamp::from_micros(at_once(integer(on, CLOCK))?);
    let mut answers = Vec::with_capacity(leases.len());
    for lease in leases {
        let Some(Bound {
            id, key, fingerprint, ..
        }) = at_once(bound(on, lease.seq))?
        else {
            answers.push(Clearance::Send);
            continue;
        };
        let (entry, clearance) = Entry::clear(at_once(find(on, &key))?, fingerprint, id, now);
        if entry.is_some() {
            return Ok(None);
        }
        answers.push(clearance);
    }
    Ok(Some(answers))
}

/// The same, and those that may be sent have their entries from now on. Not of who has lost his lease: nobody would ever end it.
pub(crate) fn clear(tx: &Connection, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
    let on = &mut Here(tx);
    let one = |lease: &Lease| {
        let Some(Bound {
            id, key, fingerprint, ..
        }) = at_once(bound(on, lease.seq))?
        else {
            return Ok(Clearance::Send);
        };
        let values = vec![lease.seq.into(), lease.token.0.as_bytes().as_slice().into()];
        if at_once(on.run(&Call { sql: HELD, values }))?.is_none() {
            return Ok(Clearance::Wait(Duration::ZERO));
        }
        at_once(change(on, &key, |found, now| Entry::clear(found, fingerprint, id, now)))
    };
    leases.iter().map(one).collect()
}

/// A message has ended, and its entry with it.
pub(crate) async fn message_ended<R: Run>(on: &mut R, seq: i64, end: &End) -> Result<(), Error> {
    let Some(Bound {
        id, key, fingerprint, ..
    }) = bound(on, seq).await?
    else {
        return Ok(());
    };
    change(on, &key, |found, now| {
        (Entry::message_ended(found, fingerprint, id, end, now), ())
    })
    .await
}

/// A message is tried again, and has the entry again that it had failed.
pub(crate) async fn reopened<R: Run>(on: &mut R, seq: i64) -> Result<(), Error> {
    let Some(Bound { id, key, .. }) = bound(on, seq).await? else {
        return Ok(());
    };
    change(on, &key, |found, now| (Entry::reopened(found, id, now), ())).await
}

/// Whether a consumer has this message for the first time.
pub(crate) async fn once<R: Run>(on: &mut R, consumer: &str, message: MessageId) -> Result<bool, Error> {
    check_consumer(consumer)?;
    let values = vec![consumer.into(), message.0.as_bytes().as_slice().into()];
    Ok(on.run(&Call { sql: ONCE, values }).await?.is_some())
}

/// Reads, asks, and writes.
async fn change<R: Run, T>(
    on: &mut R,
    key: &EntryKey,
    rule: impl FnOnce(Option<Entry>, Timestamp) -> Ruling<T>,
) -> Result<T, Error> {
    run(on, LOCK, names(key)).await?;
    let now = Timestamp::from_micros(integer(on, CLOCK).await?);
    let (entry, told) = rule(find(on, key).await?, now);
    if let Some(entry) = entry {
        put(on, key, &entry).await?;
    }
    Ok(told)
}

fn names(key: &EntryKey) -> Vec<Value<'_>> {
    [&key.tenant, &key.scope, &key.key]
        .map(|name| name.as_str().into())
        .to_vec()
}

async fn find<R: Run>(on: &mut R, key: &EntryKey) -> Result<Option<Entry>, Error> {
    let values = names(key);
    let row = on.run(&Call { sql: FIND, values }).await?;
    row.map(|row| read(&row).ok_or_else(|| internal(format!("not an entry: {row:?}"))))
        .transpose()
}

async fn put<R: Run>(on: &mut R, key: &EntryKey, entry: &Entry) -> Result<(), Error> {
    let kept = entry.kept.clone().unwrap_or_default();
    let headers = to_json(&kept.headers);
    let mut values = names(key);
    values.extend([
        entry.fingerprint.0.as_bytes().into(),
        entry.status.as_str().into(),
        entry.token.as_ref().map(|token| token.0.as_bytes().as_slice()).into(),
        entry.lease_until.map(Timestamp::as_micros).into(),
        entry.message.as_ref().map(|id| id.0.as_bytes().as_slice()).into(),
        entry.checkpoint.as_deref().into(),
        kept.status.map(i64::from).into(),
        headers.into(),
        kept.body.as_deref().into(),
        kept.digest.as_ref().map(Digest::as_bytes).into(),
        kept.error.as_deref().into(),
        micros(entry.retention).into(),
        entry.created_at.as_micros().into(),
        entry.updated_at.as_micros().into(),
        entry.expires_at.map(Timestamp::as_micros).into(),
    ]);
    run(on, PUT, values).await
}

fn read(row: &[Value<'_>]) -> Option<Entry> {
    let status: Status = text(&row[1])?.parse().ok()?;
    let headers = match text(&row[7]) {
        Some(json) => serde_json::from_str(&json).ok()?,
        None => Headers::new(),
    };
    let kept = Kept {
        status: number(&row[6]).and_then(|status| u16::try_from(status).ok()),
        headers,
        body: blob(&row[8]),
        digest: blob(&row[9]).and_then(digest),
        error: text(&row[10]),
    };
    Some(Entry {
        fingerprint: Fingerprint(digest(blob(&row[0])?)?),
        status,
        token: uuid(&row[2]).map(LeaseToken),
        lease_until: number(&row[3]).map(Timestamp::from_micros),
        message: uuid(&row[4]).map(MessageId),
        checkpoint: text(&row[5]),
        kept: (status != Status::InFlight || kept.error.is_some()).then_some(kept),
        retention: Duration::from_micros(number(&row[11])?.unsigned_abs()),
        created_at: Timestamp::from_micros(number(&row[12])?),
        updated_at: Timestamp::from_micros(number(&row[13])?),
        expires_at: number(&row[14]).map(Timestamp::from_micros),
    })
}

fn number(value: &Value<'_>) -> Option<i64> {
    match value {
        Value::Integer(number) => Some(*number),
        _ => None,
    }
}

fn text(value: &Value<'_>) -> Option<String> {
    match value {
        Value::Text(text) => Some(text.to_string()),
        _ => None,
    }
}

fn blob(value: &Value<'_>) -> Option<Vec<u8>> {
    match value {
        Value::Blob(blob) => Some(blob.to_vec()),
        _ => None,
    }
}

fn uuid(value: &Value<'_>) -> Option<Uuid> {
    Uuid::from_slice(&blob(value)?).ok()
}

fn digest(bytes: Vec<u8>) -> Option<Digest> {
    bytes.try_into().ok().map(Digest)
}
