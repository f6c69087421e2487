//! Rows of the database as types of the core.

use posthouse_core::{
    Attempt, AuditEntry, BoxError, Claimed, Conflict, Count, Counts, Delivery, Digest, Error, Headers, Kind, Lease,
    LeaseToken, MessageId, MessageView, OnDead, Pause, PruneRecord, Pruned, Receipt, Relay, RelayView, Standing, State,
    Timestamp,
    headers::{take_binding, take_ticket},
    lease::saga_of,
    ledger::{EntryView, Fingerprint},
};
use std::{
    str::FromStr,
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use tokio_postgres::{Row, row::RowIndex, types::FromSql};
use uuid::Uuid;

use crate::error::from_driver;

/// A granted message and where it was.
pub(crate) struct Granted {
    pub(crate) claimed: Claimed,
    pub(crate) lane: i64,
    pub(crate) pos: i64,
    pub(crate) unkeyed: bool,
}

pub(crate) fn get<'a, T: FromSql<'a>>(row: &'a Row, column: impl RowIndex + std::fmt::Display) -> Result<T, Error> {
    row.try_get(column).map_err(from_driver)
}

pub(crate) fn number<T: TryFrom<i64>>(row: &Row, name: &str) -> Result<T, Error>
where
    T::Error: Into<BoxError>,
{
    T::try_from(get(row, name)?).map_err(|e| Error::Internal(e.into()))
}

fn small(row: &Row, name: impl RowIndex + std::fmt::Display) -> Result<u32, Error> {
    u32::try_from(get::<i32>(row, name)?).map_err(|e| Error::Internal(e.into()))
}

pub(crate) fn word<T: FromStr>(row: &Row, name: &str) -> Result<T, Error>
where
    T::Err: Into<BoxError>,
{
    get::<&str>(row, name)?
        .parse()
        .map_err(|e: T::Err| Error::Internal(e.into()))
}

fn time(at: SystemTime) -> Timestamp {
    let micros = match at.duration_since(UNIX_EPOCH) {
        Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
        Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |m| -m),
    };
    Timestamp::from_micros(micros)
}

/// A row of `earlier_receipts`: the place in the list that was asked for, and what was kept.
pub(crate) fn receipt(row: &Row) -> Result<(usize, Receipt), Error> {
    let at = number::<usize>(row, "o")?.saturating_sub(1);
    let text = get(row, "receipt")?;
    Ok((at, Receipt { text }))
}

pub(crate) fn when(row: &Row, name: &str) -> Result<Option<Timestamp>, Error> {
    Ok(get::<Option<SystemTime>>(row, name)?.map(time))
}

pub(crate) fn at(row: &Row, name: &str) -> Result<Timestamp, Error> {
    Ok(time(get::<SystemTime>(row, name)?))
}

const fn on_dead(blocks: bool) -> OnDead {
    if blocks { OnDead::Block } else { OnDead::Pass }
}

fn headers(row: &Row) -> Result<Headers, Error> {
    let value: Option<serde_json::Value> = get(row, column::HEADERS)?;
    value.map_or_else(
        || Ok(Headers::new()),
        |v| serde_json::from_value(v).map_err(|e| Error::Internal(e.into())),
    )
}

const fn kind(number: i16) -> Kind {
    match number {
        1 => Kind::Child,
        2 => Kind::Step,
        3 => Kind::Compensation,
        4 => Kind::Timer,
        _ => Kind::Message,
    }
}

/// The columns of `grant_leases`, by place: looking up twenty names for each of five hundred rows costs more than decoding them.
mod column {
    pub(super) const SEQ: usize = 0;
    pub(super) const LANE: usize = 1;
    pub(super) const POS: usize = 2;
    pub(super) const ID: usize = 3;
    pub(super) const EPOCH: usize = 4;
    pub(super) const ATTEMPT: usize = 5;
    pub(super) const GENERATION: usize = 6;
    pub(super) const MAX_ATTEMPTS: usize = 7;
    pub(super) const RELEASES: usize = 8;
    pub(super) const BLOCKS: usize = 9;
    pub(super) const TENANT: usize = 10;
    pub(super) const NAMESPACE: usize = 11;
    pub(super) const TOPIC: usize = 12;
    pub(super) const ORDER_KEY: usize = 13;
    pub(super) const CONTENT_TYPE: usize = 14;
    pub(super) const PAYLOAD: usize = 15;
    pub(super) const HEADERS: usize = 16;
    pub(super) const DELIVER_MS: usize = 17;
    pub(super) const KIND: usize = 18;
    pub(super) const PARENT: usize = 19;
    pub(super) const DESTINATION: usize = 20;
}

/// A row of `grant_leases` without a number is no message, but a remark.
pub(crate) fn granted(row: &Row, token: LeaseToken) -> Result<Option<Granted>, Error> {
    let Some(seq) = get(row, column::SEQ)? else {
        return Ok(None);
    };
    let id = MessageId(get(row, column::ID)?);
    let epoch = u64::from(small(row, column::EPOCH)?);
    let (attempt, generation) = (small(row, column::ATTEMPT)?, small(row, column::GENERATION)?);
    let standing = Standing {
        state: State::Leased,
        attempts: attempt,
        max_attempts: small(row, column::MAX_ATTEMPTS)?,
        generation,
        epoch,
        releases: small(row, column::RELEASES)?,
    };
    let mut headers = headers(row)?;
    let kind = kind(get(row, column::KIND)?);
    let parent = get::<Option<Uuid>>(row, column::PARENT)?.map(MessageId);
    let lease = Lease {
        id,
        seq,
        token,
        standing,
        on_dead: on_dead(get(row, column::BLOCKS)?),
        bound: take_binding(&mut headers).is_some(),
        saga: saga_of(kind, parent),
    };
    let ticket = take_ticket(&mut headers);
    let order_key: Option<String> = get(row, column::ORDER_KEY)?;
    let unkeyed = order_key.is_none();
    let delivery = Delivery {
        id,
        epoch,
        generation,
        attempt,
        tenant: get(row, column::TENANT)?,
        namespace: get(row, column::NAMESPACE)?,
        topic: get(row, column::TOPIC)?,
        order_key,
        content_type: get(row, column::CONTENT_TYPE)?,
        payload: get(row, column::PAYLOAD)?,
        headers,
        kind,
        parent,
        destination: get(row, column::DESTINATION)?,
        ticket,
    };
    let within: Option<i64> = get(row, column::DELIVER_MS)?;
    let deliver_within = within.map(|ms| Duration::from_millis(u64::try_from(ms).unwrap_or(0)));
    let claimed = Claimed {
        lease,
        delivery,
        deliver_within,
    };
    Ok(Some(Granted {
        claimed,
        lane: get(row, column::LANE)?,
        pos: get(row, column::POS)?,
        unkeyed,
    }))
}

/// What a claim says besides what it was granted.
pub(crate) enum Remark {
    /// Free ones may be left.
    CutShort,
    /// From this place on it kept others away from messages that it did not take.
    Kept { lane: i64, pos: i64 },
    /// There may be more lanes with work than it found.
    MoreLanes,
    /// Whether there may be leases that have run out.
    RanOut(bool),
    /// The claim ignored its floors: they were sampled on another server.
    OtherServer,
}

pub(crate) fn remark(row: &Row) -> Result<Remark, Error> {
    Ok(match get::<i16>(row, column::KIND)? {
        1 => Remark::CutShort,
        2 => Remark::Kept {
            lane: get(row, column::LANE)?,
            pos: get(row, column::POS)?,
        },
        3 => Remark::MoreLanes,
        4 => Remark::RanOut(get(row, column::BLOCKS)?),
        5 => Remark::OtherServer,
        other => return Err(Error::Internal(format!("a claim made a remark of kind {other}").into())),
    })
}

pub(crate) fn expired_lease(row: &Row) -> Result<Lease, Error> {
    let standing = Standing {
        state: State::Leased,
        attempts: small(row, "attempts")?,
        max_attempts: small(row, "max_attempts")?,
        generation: small(row, "generation")?,
        epoch: u64::from(small(row, "epoch")?),
        releases: small(row, "releases")?,
    };
    Ok(Lease {
        id: MessageId(get(row, "id")?),
        seq: get(row, "seq")?,
        token: LeaseToken(get(row, "token")?),
        standing,
        on_dead: on_dead(get(row, "blocks")?),
        bound: get(row, "bound")?,
        saga: saga_of(
            kind(get(row, "kind")?),
            get::<Option<Uuid>>(row, "parent")?.map(MessageId),
        ),
    })
}

pub(crate) fn conflict(row: &Row) -> Result<Conflict, Error> {
    Ok(Conflict {
        state: word(row, "state")?,
        worker: get(row, "worker")?,
        epoch: number(row, "epoch")?,
        recorded: get(row, "recorded")?,
    })
}

/// A row of `messages`. One that cannot be read is marked, so that it does not hide the rest of its page.
pub(crate) fn message_view(row: &Row) -> Result<MessageView, Error> {
    let why = match whole_message(row) {
        Ok(view) => return Ok(view),
        Err(why) => cause(why),
    };
    let (id, seq) = (MessageId(get(row, "id")?), get(row, "seq")?);
    let text = |name: &str| get(row, name).unwrap_or_default();
    let view = MessageView::unreadable(id, seq, why);
    Ok(MessageView {
        tenant: text("tenant"),
        namespace: text("namespace"),
        topic: text("topic"),
        content_type: text("content_type"),
        state: word(row, "state").unwrap_or(view.state),
        kind: word(row, "kind").unwrap_or(view.kind),
        created_at: at(row, "created_at").unwrap_or(view.created_at),
        updated_at: at(row, "updated_at").unwrap_or(view.updated_at),
        attempts: small(row, "attempts").unwrap_or(view.attempts),
        max_attempts: small(row, "max_attempts").unwrap_or(view.max_attempts),
        ..view
    })
}

/// The cause of an error, without the words that introduce an internal error.
pub(crate) fn cause(error: Error) -> String {
    match error {
        Error::Internal(source) => source.to_string(),
        other => other.to_string(),
    }
}

fn whole_message(row: &Row) -> Result<MessageView, Error> {
    let digest: Vec<u8> = get(row, "digest")?;
    let reason: Option<&str> = get(row, "reason")?;
    Ok(MessageView {
        id: MessageId(get(row, "id")?),
        seq: get(row, "seq")?,
        tenant: get(row, "tenant")?,
        namespace: get(row, "namespace")?,
        topic: get(row, "topic")?,
        order_key: get(row, "order_key")?,
        dedupe_key: get(row, "dedupe_key")?,
        state: word(row, "state")?,
        reason: reason.map(str::parse).transpose()?,
        attempts: small(row, "attempts")?,
        max_attempts: small(row, "max_attempts")?,
        epoch: number(row, "epoch")?,
        generation: small(row, "generation")?,
        worker: get(row, "worker")?,
        lease_until: when(row, "lease_until")?,
        due_at: when(row, "due_at")?,
        deliver_by: when(row, "deliver_by")?,
        created_at: at(row, "created_at")?,
        updated_at: at(row, "updated_at")?,
        finished_at: when(row, "finished_at")?,
        last_code: get(row, "last_code")?,
        last_error: get(row, "last_error")?,
        content_type: get(row, "content_type")?,
        bytes: number(row, "bytes")?,
        digest: <[u8; 32]>::try_from(digest).ok().map(Digest),
        kind: word(row, "kind")?,
        parent: get::<Option<Uuid>>(row, "parent")?.map(MessageId),
        destination: get(row, "destination")?,
        note: get(row, "note")?,
        unreadable: None,
    })
}

pub(crate) fn attempt(row: &Row) -> Result<Attempt, Error> {
    Ok(Attempt {
        epoch: number(row, "epoch")?,
        generation: small(row, "generation")?,
        attempt: small(row, "attempt")?,
        worker: get(row, "worker")?,
        // Nothing, for those who may not act as a worker.
        token: LeaseToken(get::<Option<_>>(row, "token")?.unwrap_or_default()),
        outcome: word(row, "outcome")?,
        code: get(row, "code")?,
        error: get(row, "error")?,
        receipt: get(row, "receipt")?,
        started_at: at(row, "started_at")?,
        finished_at: at(row, "finished_at")?,
    })
}

pub(crate) fn audit_entry(row: &Row) -> Result<AuditEntry, Error> {
    Ok(AuditEntry {
        n: get(row, "n")?,
        at: at(row, "at")?,
        actor: get(row, "actor")?,
        action: get(row, "action")?,
        id: get::<Option<Uuid>>(row, "message_id")?.map(MessageId),
        destination: get(row, "destination")?,
        note: get(row, "note")?,
        pruned: get::<Option<&str>>(row, "pruned")?
            .map(PruneRecord::from_stored)
            .transpose()?,
    })
}

pub(crate) fn pruned(row: &Row) -> Result<Pruned, Error> {
    let count = |name: &str| get::<i64>(row, name).map(i64::unsigned_abs);
    Ok(Pruned {
        done: count("done")?,
        dead: count("dead")?,
        dedupe_keys: count("dedupe_keys")?,
        entries: count("entries")?,
        inbox: count("inbox")?,
        sagas: count("sagas")?,
        more: get(row, "more")?,
        audit: get(row, "audit")?,
    })
}

pub(crate) fn entry_view(row: &Row) -> Result<EntryView, Error> {
    let digest = |bytes: &[u8]| {
        let bytes = bytes.try_into();
        bytes.map(Digest).map_err(|e| Error::Internal(Box::new(e)))
    };
    let status: Option<i32> = get(row, "http_status")?;
    Ok(EntryView {
        tenant: get(row, "tenant")?,
        scope: get(row, "scope")?,
        key: get(row, "key")?,
        status: word(row, "status")?,
        lease_until: when(row, "lease_until")?,
        message: get::<Option<Uuid>>(row, "message")?.map(MessageId),
        checkpoint: get(row, "checkpoint")?,
        http_status: status.and_then(|status| u16::try_from(status).ok()),
        result_bytes: get::<Option<i64>>(row, "result_bytes")?.map(i64::unsigned_abs),
        result_digest: get::<Option<&[u8]>>(row, "result_digest")?.map(digest).transpose()?,
        error: get(row, "error")?,
        fingerprint: Fingerprint(digest(get(row, "fingerprint")?)?),
        created_at: at(row, "created_at")?,
        updated_at: at(row, "updated_at")?,
        expires_at: when(row, "expires_at")?,
    })
}

pub(crate) fn pause(row: &Row) -> Result<Pause, Error> {
    Ok(Pause {
        destination: get(row, "destination")?,
        at: at(row, "at")?,
        actor: get(row, "actor")?,
        note: get(row, "note")?,
    })
}

/// What a relay of another version says may not be understood; that it is there is told.
pub(crate) fn relay(row: &Row) -> Result<RelayView, Error> {
    let told: serde_json::Value = get(row, "info")?;
    let relay = serde_json::from_value(told).unwrap_or_default();
    Ok(RelayView {
        relay: Relay {
            name: get(row, "name")?,
            ..relay
        },
        started_at: at(row, "started_at")?,
        seen_at: at(row, "seen_at")?,
        live: get(row, "live")?,
    })
}

/// A number of `counts` with its column that says whether these are all.
fn count(row: &Row, name: &str) -> Result<Count, Error> {
    Ok(Count {
        value: number(row, name)?,
        exact: get(row, format!("{name}_exact").as_str())?,
    })
}

pub(crate) fn counts(row: &Row) -> Result<Counts, Error> {
    Ok(Counts {
        ready: count(row, "ready")?,
        scheduled: count(row, "scheduled")?,
        leased: count(row, "leased")?,
        done: count(row, "done")?,
        dead: count(row, "dead")?,
        quarantined: count(row, "quarantined")?,
        expired: count(row, "expired")?,
        blocked_keys: count(row, "blocked_keys")?,
        oldest_due: when(row, "oldest_due")?,
        now: when(row, "now")?,
    })
}

/// What bears on one message besides its view: what is ahead of it, whether it blocks, whether it was resolved, and the time.
pub(crate) fn bearing(row: &Row) -> Result<(Option<MessageId>, bool, bool, Timestamp), Error> {
    Ok((
        get::<Option<Uuid>>(row, "ahead")?.map(MessageId),
        get(row, "blocks")?,
        get(row, "resolved")?,
        at(row, "now")?,
    ))
}

/// The time as the driver takes it.
pub(crate) fn system_time(at: Timestamp) -> SystemTime {
    let micros = at.as_micros();
    let by = Duration::from_micros(micros.unsigned_abs());
    if micros < 0 { UNIX_EPOCH - by } else { UNIX_EPOCH + by }
}
