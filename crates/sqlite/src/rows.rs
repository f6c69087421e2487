//! Records as they are read and bound. Text is read leniently: another language may have written bytes that are no
//! UTF-8, and no content may stop the line.

use posthouse_core::{
    Attempt, AuditEntry, Digest, Headers, Lease, LeaseToken, MessageId, MessageView, OnDead, Pause, PruneRecord, Relay,
    RelayView, Standing, State, Timestamp,
    lease::saga_of,
    ledger::{EntryView, Fingerprint},
};
use rusqlite::{
    Connection, Row,
    types::{FromSql, FromSqlError, FromSqlResult, ToSql, ToSqlOutput, ValueRef},
};
use std::str::FromStr;
use uuid::Uuid;

use crate::call::Value;

type Read<T> = rusqlite::Result<T>;

/// An order key, byte for byte: it must match itself whatever was written.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Key(Vec<u8>);

impl FromSql for Key {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        value.as_bytes().map(|bytes| Self(bytes.to_vec()))
    }
}

impl Key {
    /// As bytes, because drivers read and bind text as UTF-8; the statements make a text of it again.
    pub fn value(&self) -> Value<'_> {
        self.0.as_slice().into()
    }
}

impl ToSql for Key {
    fn to_sql(&self) -> Read<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(&self.0)))
    }
}

/// Text, with U+FFFD in place of what is no UTF-8.
pub(crate) struct Text(pub String);

impl FromSql for Text {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let bytes = value.as_bytes()?;
        Ok(Self(String::from_utf8_lossy(bytes).into_owned()))
    }
}

/// One of the words that the core knows: a state, a reason, an outcome.
pub(crate) struct Word<T>(pub T);

impl<T: FromStr<Err = posthouse_core::Invalid>> FromSql for Word<T> {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let text = value.as_str()?;
        text.parse()
            .map(Self)
            .map_err(|unknown| FromSqlError::Other(Box::new(unknown)))
    }
}

/// The counts of a prune.
pub(crate) struct Stored(pub PruneRecord);

impl FromSql for Stored {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<Self> {
        let record = PruneRecord::from_stored(value.as_str()?);
        record
            .map(Self)
            .map_err(|unreadable| FromSqlError::Other(Box::new(unreadable)))
    }
}

/// The live record of a message: what moves from table to table.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    pub seq: i64,
    pub lane: i64,
    pub key: Option<Key>,
    pub pos: i64,
    pub bytes: i64,
    pub standing: Standing,
    pub deliver_by: Option<i64>,
    /// Whether it has a dedupe key, so that those without one pay nothing for it.
    pub deduped: bool,
}

impl Record {
    /// The same columns, with the key as a blob, from whatever driver.
    pub fn of(values: &[Value<'_>], state: State) -> Option<Self> {
        let long = |at: usize| match values.get(at) {
            Some(Value::Integer(n)) => Some(*n),
            _ => None,
        };
        let count = |at| long(at).and_then(|n| u32::try_from(n).ok());
        Some(Self {
            seq: long(0)?,
            lane: long(1)?,
            key: match values.get(2)? {
                Value::Blob(key) => Some(Key(key.to_vec())),
                _ => None,
            },
            pos: long(3)?,
            bytes: long(4)?,
            standing: Standing {
                state,
                attempts: count(5)?,
                max_attempts: count(6)?,
                epoch: long(7)?.unsigned_abs(),
                generation: count(8)?,
                releases: count(9)?,
            },
            deliver_by: long(10),
            deduped: long(11)? != 0,
        })
    }

    /// `seq, lane, key, pos, bytes, <standing>, deliver_by, deduped` from column `at`.
    pub fn read(row: &Row<'_>, at: usize, state: State) -> Read<Self> {
        Ok(Self {
            seq: row.get(at)?,
            lane: row.get(at + 1)?,
            key: row.get(at + 2)?,
            pos: row.get(at + 3)?,
            bytes: row.get(at + 4)?,
            standing: standing(row, at + 5, state)?,
            deliver_by: row.get(at + 10)?,
            deduped: row.get(at + 11)?,
        })
    }
}

/// `attempts, max_attempts, epoch, generation, releases` from column `at`.
pub(crate) fn standing(row: &Row<'_>, at: usize, state: State) -> Read<Standing> {
    Ok(Standing {
        state,
        attempts: row.get(at)?,
        max_attempts: row.get(at + 1)?,
        epoch: row.get::<_, i64>(at + 2)?.unsigned_abs(),
        generation: row.get(at + 3)?,
        releases: row.get(at + 4)?,
    })
}

/// An epoch as a column.
pub(crate) fn epoch(standing: &Standing) -> i64 {
    i64::try_from(standing.epoch).unwrap_or(i64::MAX)
}

/// Every record that a statement of this crate's own answers.
pub(crate) fn all<T>(db: &Connection, sql: &str, values: &[&dyn ToSql], read: fn(&Row<'_>) -> Read<T>) -> Read<Vec<T>> {
    db.prepare_cached(sql)?.query_map(values, read)?.collect()
}

/// `id, seq, token, <standing>, on_dead, bound, kind, parent`.
pub(crate) fn lease(row: &Row<'_>) -> Read<Lease> {
    Ok(Lease {
        id: id(row, 0)?,
        seq: row.get(1)?,
        token: LeaseToken(Uuid::from_bytes(row.get(2)?)),
        standing: standing(row, 3, State::Leased)?,
        on_dead: word(row, 8).unwrap_or(OnDead::Pass),
        bound: row.get(9)?,
        saga: saga_of(word(row, 10)?, optional_id(row, 11)?),
    })
}

pub(crate) fn id(row: &Row<'_>, at: usize) -> Read<MessageId> {
    Ok(MessageId(Uuid::from_bytes(row.get(at)?)))
}

pub(crate) fn optional_id(row: &Row<'_>, at: usize) -> Read<Option<MessageId>> {
    Ok(row
        .get::<_, Option<[u8; 16]>>(at)?
        .map(|bytes| MessageId(Uuid::from_bytes(bytes))))
}

pub(crate) fn text(row: &Row<'_>, at: usize) -> Read<String> {
    Ok(row.get::<_, Text>(at)?.0)
}

pub(crate) fn optional_text(row: &Row<'_>, at: usize) -> Read<Option<String>> {
    Ok(row.get::<_, Option<Text>>(at)?.map(|text| text.0))
}

pub(crate) fn word<T: FromStr<Err = posthouse_core::Invalid>>(row: &Row<'_>, at: usize) -> Read<T> {
    Ok(row.get::<_, Word<T>>(at)?.0)
}

pub(crate) fn time(row: &Row<'_>, at: usize) -> Read<Timestamp> {
    row.get(at).map(Timestamp::from_micros)
}

pub(crate) fn optional_time(row: &Row<'_>, at: usize) -> Read<Option<Timestamp>> {
    Ok(row.get::<_, Option<i64>>(at)?.map(Timestamp::from_micros))
}

/// The header map as the database keeps it. The triggers let only objects of text in; anything else is no header.
pub(crate) fn headers(row: &Row<'_>, at: usize) -> Read<Headers> {
    let Some(json) = optional_text(row, at)? else {
        return Ok(Headers::new());
    };
    Ok(serde_json::from_str(&json).unwrap_or_default())
}

/// The columns of `find.sql`. A row that cannot be read is marked, so that it does not hide the rest of its page: any process can write to the file.
pub(crate) fn message_view(row: &Row<'_>) -> Read<MessageView> {
    let why = match whole_message(row) {
        Ok(view) => return Ok(view),
        Err(why) => why.to_string(),
    };
    let text = |at| text(row, at).unwrap_or_default();
    let view = MessageView::unreadable(id(row, 0).unwrap_or(MessageId(Uuid::nil())), row.get(1)?, why);
    Ok(MessageView {
        tenant: text(2),
        namespace: text(3),
        topic: text(4),
        content_type: text(22),
        state: word(row, 7).unwrap_or(view.state),
        kind: word(row, 25).unwrap_or(view.kind),
        attempts: row.get(9).unwrap_or(view.attempts),
        max_attempts: row.get(10).unwrap_or(view.max_attempts),
        created_at: time(row, 17).unwrap_or(view.created_at),
        updated_at: time(row, 18).unwrap_or(view.updated_at),
        ..view
    })
}

fn whole_message(row: &Row<'_>) -> Read<MessageView> {
    let bytes: i64 = row.get(23)?;
    Ok(MessageView {
        id: id(row, 0)?,
        seq: row.get(1)?,
        tenant: text(row, 2)?,
        namespace: text(row, 3)?,
        topic: text(row, 4)?,
        order_key: optional_text(row, 5)?,
        dedupe_key: optional_text(row, 6)?,
        state: word(row, 7)?,
        reason: row.get::<_, Option<Word<_>>>(8)?.map(|reason| reason.0),
        attempts: row.get(9)?,
        max_attempts: row.get(10)?,
        epoch: row.get::<_, i64>(11)?.unsigned_abs(),
        generation: row.get(12)?,
        worker: optional_text(row, 13)?,
        lease_until: optional_time(row, 14)?,
        due_at: optional_time(row, 15)?,
        deliver_by: optional_time(row, 16)?,
        created_at: time(row, 17)?,
        updated_at: time(row, 18)?,
        finished_at: optional_time(row, 19)?,
        last_code: optional_text(row, 20)?,
        last_error: optional_text(row, 21)?,
        content_type: text(row, 22)?,
        bytes: bytes.unsigned_abs(),
        digest: row.get::<_, Option<[u8; 32]>>(24)?.map(Digest),
        kind: word(row, 25)?,
        parent: optional_id(row, 26)?,
        note: optional_text(row, 27)?,
        destination: optional_text(row, 28)?,
        unreadable: None,
    })
}

/// The columns of `attempts.sql`.
pub(crate) fn attempt(row: &Row<'_>) -> Read<Attempt> {
    Ok(Attempt {
        epoch: row.get::<_, i64>(0)?.unsigned_abs(),
        generation: row.get(1)?,
        attempt: row.get(2)?,
        worker: text(row, 3)?,
        token: LeaseToken(Uuid::from_bytes(row.get(4)?)),
        outcome: word(row, 5)?,
        code: optional_text(row, 6)?,
        error: optional_text(row, 7)?,
        receipt: optional_text(row, 8)?,
        started_at: time(row, 9)?,
        finished_at: time(row, 10)?,
    })
}

/// The columns of `audit_all.sql`.
pub(crate) fn audit_entry(row: &Row<'_>) -> Read<AuditEntry> {
    Ok(AuditEntry {
        n: row.get(0)?,
        at: time(row, 1)?,
        actor: text(row, 2)?,
        action: text(row, 3)?,
        id: optional_id(row, 4)?,
        destination: optional_text(row, 5)?,
        note: text(row, 6)?,
        pruned: row.get::<_, Option<Stored>>(7)?.map(|stored| stored.0),
    })
}

/// The columns of `ledger_view.sql`.
pub(crate) fn entry_view(row: &Row<'_>) -> Read<EntryView> {
    Ok(EntryView {
        tenant: text(row, 0)?,
        scope: text(row, 1)?,
        key: text(row, 2)?,
        status: word(row, 3)?,
        lease_until: optional_time(row, 4)?,
        message: optional_id(row, 5)?,
        checkpoint: optional_text(row, 6)?,
        http_status: row.get(7)?,
        result_bytes: row.get::<_, Option<i64>>(8)?.map(i64::unsigned_abs),
        result_digest: row.get::<_, Option<[u8; 32]>>(9)?.map(Digest),
        error: optional_text(row, 10)?,
        fingerprint: Fingerprint(Digest(row.get(11)?)),
        created_at: time(row, 12)?,
        updated_at: time(row, 13)?,
        expires_at: optional_time(row, 14)?,
    })
}

/// The columns of `relays.sql`. What a relay of another version says may not be understood; that it is there is told.
pub(crate) fn relay_view(row: &Row<'_>) -> Read<RelayView> {
    let (name, told) = (text(row, 0)?, text(row, 1)?);
    let relay = serde_json::from_str(&told).unwrap_or_default();
    Ok(RelayView {
        relay: Relay { name, ..relay },
        started_at: time(row, 2)?,
        seen_at: time(row, 3)?,
        live: row.get(4)?,
    })
}

/// The columns of `pauses.sql`.
pub(crate) fn pause(row: &Row<'_>) -> Read<Pause> {
    Ok(Pause {
        destination: text(row, 0)?,
        at: time(row, 1)?,
        actor: text(row, 2)?,
        note: text(row, 3)?,
    })
}
