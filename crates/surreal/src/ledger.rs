//! The ledger and the inbox. What becomes of an entry is decided by the core.

use posthouse_core::{
    Digest, Error, Headers, Lease, LeaseToken, MessageId, State, Timestamp,
    admin::LOOKED_AT_MOST,
    headers::{take_binding, to_json},
    ledger::{
        Begin, Begun, Clearance, Conclusion, End, Entry, EntryFilter, EntryKey, EntryPage, EntryView, Fenced,
        Fingerprint, Hold, Kept, Ruling, check_consumer, check_point, not_under_it,
    },
};
use std::time::Duration;
use surrealdb::types::{Bytes, SurrealValue, Value};
use uuid::Uuid;

use crate::{
    error::internal,
    insert::Seq,
    message::{BODY, Body, ID, MESSAGE, digest_of, micros},
    records::{self, Name, Range, Run, name},
    work::Work,
};

const LEDGER: &str = "posthouse_ledger";
/// Entries by the time that their retention is over: ledger_over:[time, tenant, scope, key].
const OVER: &str = "posthouse_ledger_over";
const INBOX: &str = "posthouse_inbox";
/// The same by time: inbox_at:[time, consumer, message].
const INBOX_AT: &str = "posthouse_inbox_at";

/// An entry, as it is kept.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Stored {
    fingerprint: Bytes,
    status: String,
    token: Option<Uuid>,
    lease_until: Option<i64>,
    message: Option<Uuid>,
    checkpoint: Option<String>,
    http_status: Option<i64>,
    headers: Option<String>,
    body: Option<Bytes>,
    /// How large the body is, for lists, which are read without it.
    bytes: Option<i64>,
    digest: Option<Bytes>,
    error: Option<String>,
    has_kept: bool,
    retention: i64,
    created_at: i64,
    updated_at: i64,
    expires_at: Option<i64>,
}

impl Stored {
    fn of(entry: &Entry) -> Self {
        let kept = entry.kept.clone().unwrap_or_default();
        Self {
            fingerprint: Bytes::from(entry.fingerprint.0.0.to_vec()),
            status: entry.status.as_str().to_owned(),
            token: entry.token.map(|token| token.0),
            lease_until: entry.lease_until.map(Timestamp::as_micros),
            message: entry.message.map(|id| id.0),
            checkpoint: entry.checkpoint.clone(),
            http_status: kept.status.map(i64::from),
            headers: to_json(&kept.headers),
            bytes: kept.body.as_ref().and_then(|body| i64::try_from(body.len()).ok()),
            body: kept.body.map(Bytes::from),
            digest: kept.digest.map(|digest| Bytes::from(digest.0.to_vec())),
            error: kept.error,
            has_kept: entry.kept.is_some(),
            retention: micros(entry.retention),
            created_at: entry.created_at.as_micros(),
            updated_at: entry.updated_at.as_micros(),
            expires_at: entry.expires_at.map(Timestamp::as_micros),
        }
    }

    fn entry(self) -> Result<Entry, Error> {
        let headers: Headers = match &self.headers {
            Some(json) => serde_json::from_str(json).map_err(internal)?,
            None => Headers::new(),
        };
        let digest: Option<Digest> = self.digest.as_ref().map(digest_of).transpose()?;
        let kept = Kept {
            status: self.http_status.and_then(|status| u16::try_from(status).ok()),
            headers,
            body: self.body.map(|body| body.as_ref().to_vec()),
            digest,
            error: self.error,
        };
        let time = Timestamp::from_micros;
        Ok(Entry {
            fingerprint: Fingerprint(digest_of(&self.fingerprint)?),
            status: self.status.parse().map_err(Error::Invalid)?,
            token: self.token.map(LeaseToken),
            lease_until: self.lease_until.map(time),
            message: self.message.map(MessageId),
            checkpoint: self.checkpoint,
            kept: self.has_kept.then_some(kept),
            retention: Duration::from_micros(self.retention.unsigned_abs()),
            created_at: time(self.created_at),
            updated_at: time(self.updated_at),
            expires_at: self.expires_at.map(time),
        })
    }
}

fn name_of(key: &EntryKey) -> Name {
    name!(LEDGER, &key.tenant, &key.scope, &key.key)
}

fn over(key: &EntryKey, at: Timestamp) -> Name {
    name!(OVER, at.as_micros(), &key.tenant, &key.scope, &key.key)
}

/// Reads an entry, asks what becomes of it, and writes that with the rest of the transaction.
async fn change<T>(
    work: &mut Work<'_>,
    key: &EntryKey,
    rule: impl FnOnce(Option<Entry>, Timestamp) -> Ruling<T>,
) -> Result<T, Error> {
    let found = match work.get::<Stored>(name_of(key)).await? {
        Some(stored) => Some(stored.entry()?),
        None => None,
    };
    let was = found.as_ref().and_then(|entry| entry.expires_at);
    let (entry, told) = rule(found, Timestamp::from_micros(work.now));
    if entry.is_none() {
        // What is decided on an entry that stays as it is, or is not there, must be so at the commit too: a message that ends without one must not be
        // given one meanwhile.
        records::watch(work.on, &[name_of(key)]).await?;
    }
    if let Some(entry) = entry {
        if let Some(at) = was.filter(|_| was != entry.expires_at) {
            work.drop(over(key, at));
        }
        if let Some(at) = entry.expires_at {
            work.put(over(key, at), Seq { seq: 0 });
        }
        work.put(name_of(key), Stored::of(&entry));
    }
    Ok(told)
}

pub(crate) async fn begin(work: &mut Work<'_>, ask: &Begin) -> Result<Begun, Error> {
    let token = Work::token();
    change(work, &ask.key, |found, now| Entry::begin(found, ask, token, now)).await
}

pub(crate) async fn conclude(work: &mut Work<'_>, hold: &Hold, conclusion: &Conclusion) -> Result<Fenced, Error> {
    let rule = |found, now| Entry::conclude(found, hold.token, conclusion.clone(), now);
    change(work, &hold.key, rule).await
}

pub(crate) async fn renew(work: &mut Work<'_>, hold: &Hold, lease: Duration) -> Result<Fenced, Error> {
    change(work, &hold.key, |found, now| {
        Entry::renew(found, hold.token, lease, now)
    })
    .await
}

pub(crate) async fn reach(work: &mut Work<'_>, hold: &Hold, checkpoint: &str) -> Result<Fenced, Error> {
    check_point(checkpoint)?;
    change(work, &hold.key, |found, now| {
        Entry::reach(found, hold.token, checkpoint, now)
    })
    .await
}

pub(crate) async fn leave(work: &mut Work<'_>, hold: &Hold, message: MessageId) -> Result<Fenced, Error> {
    // Any other would never end it.
    let seq: Option<Seq> = work.get(name!(ID, message.0)).await?;
    let (record, bound) = match seq {
        Some(Seq { seq }) => {
            // Nor would one that ends meanwhile.
            records::watch(work.on, &[name!(MESSAGE, seq)]).await?;
            (work.message(seq).await?, bound(work, seq).await?)
        }
        None => (None, None),
    };
    let waits = record.is_some_and(|record| record.is(State::Pending));
    if !waits || bound.is_none_or(|bound| bound.key != hold.key) {
        return Err(not_under_it().into());
    }
    change(work, &hold.key, |found, now| {
        Entry::leave_to(found, hold.token, message, now)
    })
    .await
}

/// A message and its entry.
struct Bound {
    id: MessageId,
    key: EntryKey,
    fingerprint: Fingerprint,
}

/// The entry of a message, if it has one.
async fn bound(work: &mut Work<'_>, seq: i64) -> Result<Option<Bound>, Error> {
    let Some(record) = work.message(seq).await?.filter(|record| record.bound) else {
        return Ok(None);
    };
    let body: Option<Body> = work.get(name!(BODY, seq)).await?;
    let headers = body.and_then(|body| body.headers);
    let mut headers: Headers = match headers {
        Some(json) => serde_json::from_str(&json).map_err(internal)?,
        None => return Ok(None),
    };
    Ok(take_binding(&mut headers).map(|binding| Bound {
        id: MessageId(record.uuid),
        key: binding.entry(&record.tenant),
        fingerprint: binding.fingerprint,
    }))
}

/// Whether messages may be sent. Those that may have their entries from now on. Not of who has lost his lease: nobody would ever end it.
pub(crate) async fn clear(work: &mut Work<'_>, leases: &[Lease]) -> Result<Vec<Clearance>, Error> {
    let mut answers = Vec::with_capacity(leases.len());
    // Whoever ends a message that has no entry yet writes none: he must not do it while it is given one here.
    let under_keys = leases.iter().filter(|lease| lease.bound);
    let messages: Vec<_> = under_keys.map(|lease| name!(MESSAGE, lease.seq)).collect();
    records::watch(work.on, &messages).await?;
    for lease in leases {
        let Some(Bound { id, key, fingerprint }) = bound(work, lease.seq).await? else {
            answers.push(Clearance::Send);
            continue;
        };
        let held = work.message(lease.seq).await?;
        let own = held.is_some_and(|record| record.is(State::Leased) && record.token == Some(lease.token.0));
        let rule = |found: Option<Entry>, now| {
            let (entry, clearance) = Entry::clear(found, fingerprint, id, now);
            match own || entry.is_none() {
                true => (entry, clearance),
                false => (None, Clearance::Wait(Duration::ZERO)),
            }
        };
        answers.push(change(work, &key, rule).await?);
    }
    Ok(answers)
}

/// A message has ended, and its entry with it.
pub(crate) async fn message_ended(work: &mut Work<'_>, seq: i64, end: &End) -> Result<(), Error> {
    let Some(Bound { id, key, fingerprint }) = bound(work, seq).await? else {
        return Ok(());
    };
    let rule = |found, now| (Entry::message_ended(found, fingerprint, id, end, now), ());
    change(work, &key, rule).await
}

/// A message is tried again, and has the entry again that it had failed.
pub(crate) async fn reopened(work: &mut Work<'_>, seq: i64) -> Result<(), Error> {
    let Some(Bound { id, key, .. }) = bound(work, seq).await? else {
        return Ok(());
    };
    change(work, &key, |found, now| (Entry::reopened(found, id, now), ())).await
}

/// When somebody had something.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Had {
    at: i64,
}

/// Whether a consumer has this message for the first time.
pub(crate) async fn once(work: &mut Work<'_>, consumer: &str, message: MessageId) -> Result<bool, Error> {
    check_consumer(consumer)?;
    let name = name!(INBOX, consumer, message.0);
    if work.get::<Had>(name.clone()).await?.is_some() {
        return Ok(false);
    }
    work.put(name, Had { at: work.now });
    work.put(name!(INBOX_AT, work.now, consumer, message.0), Seq { seq: 0 });
    Ok(true)
}

pub(crate) async fn view(on: &dyn Run, key: &EntryKey) -> Result<Option<EntryView>, Error> {
    let stored: Option<Stored> = records::get_one(on, name_of(key)).await?;
    stored
        .map(|stored| Ok(EntryView::of(key, &stored.entry()?)))
        .transpose()
}

/// Entries by filter. Some are read at a time, without their bodies and headers, until there are enough or so many were looked at.
pub(crate) async fn list(on: &dyn Run, filter: &EntryFilter) -> Result<EntryPage, Error> {
    let start = filter.start();
    let (mut looked, mut after) = (Vec::new(), name_of(&start));
    let all = match (&filter.tenant, &filter.scope) {
        (Some(tenant), Some(scope)) => Range::under(name!(LEDGER, tenant, scope)),
        (Some(tenant), None) => Range::under(name!(LEDGER, tenant)),
        (None, _) => Range::all(LEDGER),
    };
    // Ends: names rise, and the number of looks is bounded.
    while looked.len() < LOOKED_AT_MOST as usize {
        let page = records::entries::<Stored>(on, all.clone().above(after.clone()), PAGE).await?;
        let full = page.len() == PAGE;
        for (name, stored) in page {
            let key = EntryKey {
                tenant: name.text(0)?.to_owned(),
                scope: name.text(1)?.to_owned(),
                key: name.text(2)?.to_owned(),
            };
            let result_bytes = stored.bytes.map(i64::unsigned_abs);
            looked.push(EntryView {
                result_bytes,
                ..EntryView::of(&key, &stored.entry()?)
            });
            after = name;
        }
        let found = looked.iter().filter(|view| filter.takes(view)).count();
        if !full || found > filter.page_size() as usize {
            break;
        }
    }
    EntryPage::of(looked.into_iter().map(Ok), filter, LOOKED_AT_MOST)
}

const PAGE: usize = 500;

/// Removes entries past their retention; at most so many.
pub(crate) async fn prune(work: &mut Work<'_>, limit: usize) -> Result<u64, Error> {
    let range = Range::all(OVER).up_to(name!(OVER, work.now, records::Part::End));
    let old = records::first::<Value>(work.on, range, limit).await?;
    let mut gone = 0;
    for (name, _) in old {
        let entry = name!(LEDGER, name.text(1)?, name.text(2)?, name.text(3)?);
        work.drop(name);
        work.drop(entry);
        gone += 1;
    }
    Ok(gone)
}

/// Removes what consumers had at `cutoff` or before, of messages that nobody can deliver again; at most so many.
pub(crate) async fn prune_inbox(work: &mut Work<'_>, cutoff: i64, limit: usize) -> Result<u64, Error> {
    let all = Range::all(INBOX_AT).up_to(name!(INBOX_AT, cutoff, records::Part::End));
    let (mut gone, mut looked, mut range) = (0, 0, all.clone());
    // Ends: each page is behind the one before, and the number of looks is bounded: most are of messages that are gone.
    while gone < limit as u64 && looked < 10 * limit {
        let page = records::first::<Value>(work.on, range, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        (looked, range) = (looked + page.len(), all.clone().above(last.clone()));
        let message = |name: &Name| match name.parts.get(2) {
            Some(records::Part::Uuid(message)) => Ok(*message),
            other => Err(internal(format!("not a message in an id: {other:?}"))),
        };
        let ids: Result<Vec<_>, Error> = page.iter().map(|(name, _)| Ok(name!(ID, message(name)?))).collect();
        work.prefetch(ids?).await?;
        for (name, _) in page {
            let message = message(&name)?;
            if gone < limit as u64 && work.get::<Seq>(name!(ID, message)).await?.is_none() {
                let consumer = name.text(1)?.to_owned();
                work.drop(name!(INBOX, &consumer, message));
                work.drop(name);
                gone += 1;
            }
        }
    }
    Ok(gone)
}
