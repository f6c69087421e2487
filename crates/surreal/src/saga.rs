//! Sagas: a document that is changed only by who knows its revision, and a log.

use posthouse_core::{
    Error, MessageId, SagaId, State, Timestamp, Verdict,
    ledger::check_consumer,
    message::STARTED_TOTAL,
    saga::{
        Beginning, Change, Doing, Found, Happened, Live, Loaded, LogLine, SagaFilter, SagaPage, SagaRow, Snapshot,
        Standing, Start, Started, Undoing, check_step_key,
    },
};
use surrealdb::types::{Bytes, SurrealValue, Value};
use uuid::Uuid;

use crate::{
    admin::{About, write_audit},
    error::internal,
    insert::{Seq, insert_all},
    message::{ID, length},
    records::{self, Name, Part, Range, Run, name},
    settings::Options,
    work::{Work, decide},
};

const SAGA: &str = "posthouse_saga";
const BY_KEY: &str = "posthouse_saga_key";
const BY_NUMBER: &str = "posthouse_saga_number";
/// Sagas that are over, by when: saga_over:[time, id].
const OVER: &str = "posthouse_saga_over";
const DEFINITION: &str = "posthouse_saga_definition";
const LOG: &str = "posthouse_saga_log";
const STEP: &str = "posthouse_step";
/// The same by time: step_at:[time, consumer, key].
const STEP_AT: &str = "posthouse_step_at";

/// A saga, as it is kept.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Stored {
    uuid: Uuid,
    seq: i64,
    namespace: String,
    tenant: String,
    name: String,
    version: i64,
    key: String,
    digest: Bytes,
    state: String,
    reason: Option<String>,
    paused: bool,
    revision: i64,
    lines: i64,
    created_at: i64,
    updated_at: i64,
    finished_at: Option<i64>,
    snapshot: String,
    /// How large the snapshot is. Records of earlier versions do not say.
    bytes: Option<i64>,
}

/// How large a saga is.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Size {
    bytes: Option<i64>,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Defined {
    hash: Bytes,
    body: String,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Of {
    saga: Uuid,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Line {
    revision: i64,
    at: i64,
    actor: String,
    what: String,
    step: Option<String>,
    detail: String,
}

#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Known {
    undone: bool,
    at: i64,
}

impl Stored {
    fn row(&self) -> Result<SagaRow, Error> {
        let time = Timestamp::from_micros;
        Ok(SagaRow {
            id: SagaId(self.uuid),
            seq: self.seq,
            namespace: self.namespace.clone(),
            tenant: self.tenant.clone(),
            name: self.name.clone(),
            version: u32::try_from(self.version).map_err(internal)?,
            key: self.key.clone(),
            state: self.state.parse().map_err(Error::Invalid)?,
            reason: self
                .reason
                .as_ref()
                .map(|word| word.parse().map_err(Error::Invalid))
                .transpose()?,
            paused: self.paused,
            revision: self.revision.unsigned_abs(),
            created_at: time(self.created_at),
            updated_at: time(self.updated_at),
            finished_at: self.finished_at.map(time),
            unreadable: None,
        })
    }

    /// As it is listed. A record that cannot be read is marked, so that it does not hide the rest of its page.
    fn listed(&self) -> SagaRow {
        let why = match self.row() {
            Ok(row) => return row,
            Err(Error::Internal(why)) => why.to_string(),
            Err(why) => why.to_string(),
        };
        let view = SagaRow::unreadable(SagaId(self.uuid), self.seq, why);
        SagaRow {
            namespace: self.namespace.clone(),
            tenant: self.tenant.clone(),
            name: self.name.clone(),
            key: self.key.clone(),
            state: self.state.parse().unwrap_or(view.state),
            created_at: Timestamp::from_micros(self.created_at),
            updated_at: Timestamp::from_micros(self.updated_at),
            ..view
        }
    }

    fn key_name(&self) -> Name {
        name!(BY_KEY, &self.namespace, &self.tenant, &self.name, &self.key)
    }

    fn definition(&self) -> Name {
        name!(DEFINITION, &self.namespace, &self.name, self.version)
    }
}

fn json(snapshot: &Snapshot) -> Result<String, Error> {
    serde_json::to_string(snapshot).map_err(internal)
}

/// Starts a saga: it exists if and only if the transaction commits.
pub(crate) async fn start(work: &mut Work<'_>, options: &Options, start: Start) -> Result<Started, Error> {
    let saga = start.begin(&work.rules.limits)?;
    let (owner, definition) = (&saga.owner, &saga.definition);
    let by_key = name!(BY_KEY, &owner.namespace, &owner.tenant, definition.name(), &saga.key);
    if let Some(found) = existing(work, by_key.clone(), &saga).await? {
        return found;
    }
    let version = i64::from(definition.version());
    let defined = name!(DEFINITION, &owner.namespace, definition.name(), version);
    match work.get::<Defined>(defined.clone()).await? {
        Some(known) if known.hash.as_ref() != definition.hash().as_bytes() => {
            return Err(definition.known_otherwise().into());
        }
        Some(_) => {}
        None => {
            let hash = Bytes::from(definition.hash().0.to_vec());
            let body = definition.json();
            work.put(defined, Defined { hash, body });
        }
    }
    let seq = work.number(saga.sends.len()).await?;
    let row = saga.row(seq, Timestamp::from_micros(work.now));
    let (state, reason) = saga.state_words();
    let snapshot = json(&saga.snapshot)?;
    let mut stored = Stored {
        uuid: owner.id.0,
        seq,
        namespace: owner.namespace.clone(),
        tenant: owner.tenant.clone(),
        name: row.name,
        version,
        key: saga.key.clone(),
        digest: Bytes::from(saga.digest.0.to_vec()),
        state: state.to_owned(),
        reason: reason.map(str::to_owned),
        paused: false,
        revision: 1,
        lines: 0,
        created_at: work.now,
        updated_at: work.now,
        finished_at: None,
        bytes: Some(length(snapshot.len())),
        snapshot,
    };
    write_down(work, &mut stored, "start", &saga.log);
    work.put(by_key, Of { saga: owner.id.0 });
    work.put(name!(BY_NUMBER, seq), Of { saga: owner.id.0 });
    work.put(name!(SAGA, owner.id.0), stored);
    insert_all(work, options, &saga.sends, false).await?;
    metrics::counter!(STARTED_TOTAL, "saga" => definition.name().to_owned()).increment(1);
    Ok(Started::New(owner.id))
}

/// The saga that stands for it already, or that it is another.
async fn existing(work: &Work<'_>, by_key: Name, saga: &Beginning) -> Result<Option<Result<Started, Error>>, Error> {
    let Some(Of { saga: id }) = work.get(by_key).await? else {
        return Ok(None);
    };
    let Some(found) = work.get::<Stored>(name!(SAGA, id)).await? else {
        return Err(internal("a key leads to a saga that is not there"));
    };
    let same = found.digest.as_ref() == saga.digest.as_bytes();
    Ok(Some(match same {
        true => Ok(Started::Existing(SagaId(id))),
        false => Err(Error::SagaMismatch(SagaId(id))),
    }))
}

fn write_down(work: &mut Work<'_>, saga: &mut Stored, actor: &str, log: &[Happened]) {
    for happened in log {
        saga.lines += 1;
        let line = Line {
            revision: saga.revision,
            at: work.now,
            actor: actor.to_owned(),
            what: happened.what.to_owned(),
            step: happened.step.clone(),
            detail: happened.detail.clone(),
        };
        work.put(name!(LOG, saga.uuid, saga.lines), line);
    }
}

/// Where a saga is kept.
pub(crate) fn name_of(id: SagaId) -> Name {
    name!(SAGA, id.0)
}

/// Changes a saga that is as it was when this was decided, or answers [`Verdict::Stale`]: then the caller undoes what is written.
pub(crate) async fn change(work: &mut Work<'_>, options: &Options, change: &Change) -> Result<Verdict, Error> {
    let name = name_of(change.owner.id);
    let expected = i64::try_from(change.expected).unwrap_or(i64::MAX);
    let found = work.get::<Stored>(name.clone()).await?;
    let Some(mut saga) = found.filter(|saga| saga.revision == expected) else {
        return Ok(Verdict::Stale);
    };
    for one in &change.withdraw {
        if !withdraw(work, one.message, one.epoch).await? {
            return Ok(Verdict::Stale);
        }
    }
    let (state, reason) = change.state_words();
    let was = saga.finished_at;
    (saga.state, saga.reason) = (state.to_owned(), reason.map(str::to_owned));
    saga.paused = change.snapshot.paused;
    saga.revision = i64::try_from(change.revision()).unwrap_or(i64::MAX);
    saga.updated_at = work.now;
    saga.finished_at = change.snapshot.ended.map(|_| was.unwrap_or(work.now));
    saga.snapshot = json(&change.snapshot)?;
    saga.bytes = Some(length(saga.snapshot.len()));
    if saga.finished_at != was {
        if let Some(at) = was {
            work.drop(name!(OVER, at, saga.uuid));
        }
        if let Some(at) = saga.finished_at {
            work.put(name!(OVER, at, saga.uuid), Of { saga: saga.uuid });
        }
    }
    write_down(work, &mut saga, &change.actor, &change.log);
    work.put(name, saga);
    if let Some((action, note)) = &change.audit {
        let about = About::Message(MessageId(change.owner.id.0));
        write_audit(work, about, change.actor.clone(), action, note.clone()).await?;
    }
    let sends = change.sends_at(Timestamp::from_micros(work.now));
    insert_all(work, options, &sends, false).await?;
    Ok(Verdict::Settled)
}

/// Takes a message back that stands as it stood. Whether it did.
async fn withdraw(work: &mut Work<'_>, id: MessageId, epoch: u64) -> Result<bool, Error> {
    let Some(Seq { seq }) = work.get(name!(ID, id.0)).await? else {
        return Ok(false);
    };
    let Some(record) = work.message(seq).await? else {
        return Ok(false);
    };
    let free = matches!(record.state()?, State::Pending | State::Dead | State::Quarantined);
    if !free || record.epoch.unsigned_abs() != epoch {
        return Ok(false);
    }
    let step = decide(&record, posthouse_core::Event::Resolve)?;
    work.apply(seq, &step).await?;
    work.change(seq, |record| record.resolved = true).await?;
    Ok(true)
}

/// Sagas with how large they are: each may hold its input and an output for each step, so only few large ones are read at once.
pub(crate) async fn sized(on: &dyn Run, names: Vec<Name>) -> Result<Vec<(Name, usize)>, Error> {
    if names.len() < 2 {
        return Ok(names.into_iter().map(|name| (name, 0)).collect());
    }
    let sizes = records::sagas::<Size>(on, &names).await?;
    // One of which it is not known is read alone.
    let size = |size: Size| {
        size.bytes
            .map_or(usize::MAX, |bytes| usize::try_from(bytes).unwrap_or(0))
    };
    let sizes = sizes.into_iter().map(|found| found.map_or(0, size));
    Ok(names.into_iter().zip(sizes).collect())
}

/// Sagas as they are, with where their messages stand.
pub(crate) async fn load(work: &mut Work<'_>, ids: &[SagaId]) -> Result<Vec<Found>, Error> {
    let names = sized(work.on, ids.iter().copied().map(name_of).collect()).await?;
    let mut found = Vec::with_capacity(ids.len());
    for stored in records::get_sized::<Stored>(work.on, &names).await? {
        found.push(match stored {
            Some(stored) => loaded(work, stored).await,
            None => Ok(None),
        });
    }
    Ok(found)
}

async fn loaded(work: &mut Work<'_>, stored: Stored) -> Found {
    let defined: Option<Defined> = work.get(stored.definition()).await?;
    let body = defined.ok_or_else(|| internal("a saga has no definition"))?.body;
    let live = match serde_json::from_str::<Snapshot>(&stored.snapshot) {
        Ok(snapshot) => live(work, &snapshot).await?,
        Err(_) => Live::new(),
    };
    let now = Timestamp::from_micros(work.now);
    let most = work.rules.limits.payload_bytes;
    Loaded::of(stored.row()?, (&body, &stored.snapshot), |_| Ok(live), now, most).map(Some)
}

/// Where its messages stand.
async fn live(work: &mut Work<'_>, snapshot: &Snapshot) -> Result<Live, Error> {
    let ids: Vec<_> = snapshot.carriers().collect();
    let names: Vec<_> = ids.iter().map(|id| name!(ID, id.0)).collect();
    let mut live = Live::new();
    for (id, seq) in ids.into_iter().zip(records::get::<Seq>(work.on, &names).await?) {
        let Some(Seq { seq }) = seq else { continue };
        let Some(record) = work.message(seq).await? else {
            continue;
        };
        let standing = record.standing()?;
        let epoch = standing.epoch;
        let standing = match standing.state {
            State::Pending => Standing::Pending {
                epoch,
                attempts: standing.attempts,
            },
            State::Leased => Standing::Leased,
            State::Dead | State::Quarantined => Standing::Dead { epoch },
            State::Done => continue,
        };
        live.insert(id, standing);
    }
    Ok(live)
}

/// Whether a dead letter is there because a saga waits for a person.
pub(crate) async fn is_held_for(work: &Work<'_>, saga: Option<SagaId>) -> Result<bool, Error> {
    let Some(id) = saga else { return Ok(false) };
    let saga: Option<Stored> = work.get(name!(SAGA, id.0)).await?;
    Ok(saga.is_some_and(|saga| saga.finished_at.is_none()))
}

const PAGE: usize = 500;

/// Sagas by filter, newest first.
pub(crate) async fn list(on: &dyn Run, filter: &SagaFilter) -> Result<SagaPage, Error> {
    let (mut rows, mut below) = (Vec::new(), filter.below.unwrap_or(i64::MAX));
    let wanted = filter.page_size() as usize + 1;
    // Ends: numbers fall.
    while rows.len() < wanted {
        let page = records::last::<Of>(on, BY_NUMBER, below, PAGE).await?;
        let Some((lowest, _)) = page.last() else { break };
        below = lowest.number(0)?;
        let names: Vec<_> = page.iter().map(|(_, of)| name!(SAGA, of.saga)).collect();
        for stored in records::sagas::<Stored>(on, &names).await?.into_iter().flatten() {
            let row = stored.listed();
            if filter.takes(&row) {
                rows.push(row);
            }
        }
    }
    rows.truncate(wanted);
    Ok(SagaPage::of(rows, filter))
}

/// The log of a saga.
pub(crate) async fn log(on: &dyn Run, id: SagaId, after: u64, limit: u32) -> Result<Vec<LogLine>, Error> {
    if records::get_one::<Stored>(on, name!(SAGA, id.0)).await?.is_none() {
        return Err(Error::NoSaga(id));
    }
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let range = Range::under(name!(LOG, id.0)).above(name!(LOG, id.0, after));
    let lines = records::first::<Line>(on, range, limit as usize).await?;
    let line = |(name, line): (Name, Line)| {
        Ok(LogLine {
            n: name.number(1)?.unsigned_abs(),
            revision: line.revision.unsigned_abs(),
            at: Timestamp::from_micros(line.at),
            actor: line.actor,
            what: line.what,
            step: line.step,
            detail: line.detail,
        })
    };
    lines.into_iter().map(line).collect()
}

/// Removes sagas that ended at `cutoff` or before, with their logs; at most so many.
pub(crate) async fn prune(work: &mut Work<'_>, cutoff: i64, limit: usize) -> Result<u64, Error> {
    let range = Range::all(OVER).up_to(name!(OVER, cutoff, Part::End));
    let old = records::first::<Of>(work.on, range, limit).await?;
    let count = old.len() as u64;
    for (over, Of { saga: id }) in old {
        work.drop(over);
        let Some(saga) = work.get::<Stored>(name!(SAGA, id)).await? else {
            continue;
        };
        for (line, _) in records::first::<Value>(work.on, Range::under(name!(LOG, id)), records::ALL).await? {
            work.drop(line);
        }
        work.drop(saga.key_name());
        work.drop(name!(BY_NUMBER, saga.seq));
        work.drop(name!(SAGA, id));
    }
    Ok(count)
}

fn checked(consumer: &str, key: &str) -> Result<Name, Error> {
    check_consumer(consumer)?;
    check_step_key(key)?;
    Ok(name!(STEP, consumer, key))
}

fn know(work: &mut Work<'_>, name: Name, before: Option<Known>, undone: bool) -> Result<(), Error> {
    let (consumer, key) = (name.text(0)?.to_owned(), name.text(1)?.to_owned());
    if let Some(before) = before {
        work.drop(name!(STEP_AT, before.at, &consumer, &key));
    }
    let at = work.now;
    work.put(name!(STEP_AT, at, &consumer, &key), Seq { seq: 0 });
    work.put(name, Known { undone, at });
    Ok(())
}

/// A step comes to a participant.
pub(crate) async fn do_once(work: &mut Work<'_>, consumer: &str, key: &str) -> Result<Doing, Error> {
    let name = checked(consumer, key)?;
    match work.get::<Known>(name.clone()).await? {
        Some(known) if known.undone => Ok(Doing::Undone),
        Some(_) => Ok(Doing::Before),
        None => {
            know(work, name, None, false)?;
            Ok(Doing::First)
        }
    }
}

/// A step is to be undone by a participant.
pub(crate) async fn undo_once(work: &mut Work<'_>, consumer: &str, key: &str) -> Result<Undoing, Error> {
    let name = checked(consumer, key)?;
    let known = work.get::<Known>(name.clone()).await?;
    let answer = match &known {
        Some(known) if known.undone => return Ok(Undoing::Before),
        Some(_) => Undoing::Now,
        None => Undoing::Never,
    };
    know(work, name, known, true)?;
    Ok(answer)
}

/// Removes what participants heard of at `cutoff` or before; at most so many.
pub(crate) async fn prune_steps(work: &mut Work<'_>, cutoff: i64, limit: usize) -> Result<u64, Error> {
    let range = Range::all(STEP_AT).up_to(name!(STEP_AT, cutoff, Part::End));
    let old = records::first::<Value>(work.on, range, limit).await?;
    let count = old.len() as u64;
    for (name, _) in old {
        work.drop(name!(STEP, name.text(1)?, name.text(2)?));
        work.drop(name);
    }
    Ok(count)
}
