//! The operator's hand.

use posthouse_core::{
    AuditEntry, AuditFilter, Count, Counts, DeadReason, Error, Event, Facts, Filter, MessageId, MessageView, Page,
    Prune, PruneRecord, Pruned, SagaId, State, Timestamp,
    admin::{COUNTED_AT_MOST, LOOKED_AT_MOST, check_cap, checked_actor, resolve_note},
    ledger::{Answer, End},
    prune::Ended,
    text::excerpt,
};
use std::{collections::BTreeSet, time::Duration};
use surrealdb::types::SurrealValue;
use uuid::Uuid;

use crate::{
    insert::Seq,
    ledger,
    message::{DEAD, Deadline, ENDED, ID, InLine, KEYED, LEASED, MESSAGE, READY, Record, SCHED, later, micros},
    presence,
    records::{self, Name, Range, Run, count, get, name},
    saga, settings, settle,
    work::{Key, Taken, Work, dedupe_name, line_of, over, run_of},
};

const AUDIT: &str = "posthouse_audit";
/// The same by message: audit_of:[id, number].
const AUDIT_OF: &str = "posthouse_audit_of";
/// Actors, notes and receipts of operators are cut to this many characters.
pub(crate) const TEXT_CHARS: usize = 512;
const PAGE: usize = 500;

/// A line of the audit, as it is kept.
#[derive(Clone, Debug, SurrealValue)]
#[surreal(crate = "surrealdb::types")]
struct Line {
    at: i64,
    actor: String,
    action: String,
    uuid: Option<Uuid>,
    destination: Option<String>,
    note: String,
    /// The counts of a prune, as JSON.
    pruned: Option<String>,
}

/// What a line of the audit is about.
pub(crate) enum About<'a> {
    Message(MessageId),
    Destination(&'a str),
}

pub(crate) async fn write_audit(
    work: &mut Work<'_>,
    about: About<'_>,
    actor: String,
    action: &str,
    note: String,
) -> Result<(), Error> {
    let (uuid, destination) = match about {
        About::Message(id) => (Some(id.0), None),
        About::Destination(name) => (None, Some(name.to_owned())),
    };
    let line = Line {
        at: work.now,
        actor,
        action: action.to_owned(),
        uuid,
        destination,
        note,
        pruned: None,
    };
    let n = work.number(0).await?;
    if let Some(id) = uuid {
        work.put(name!(AUDIT_OF, id, n), Seq { seq: n });
    }
    work.put(name!(AUDIT, n), line);
    Ok(())
}

/// What was done by hand and what conflicted, newest first.
pub(crate) async fn audit(on: &dyn Run, filter: &AuditFilter) -> Result<Vec<AuditEntry>, Error> {
    let (mut found, mut before) = (Vec::new(), filter.before.unwrap_or(i64::MAX));
    let wanted = filter.page_size() as usize;
    // Ends: numbers fall.
    while found.len() < wanted {
        let page = match filter.id {
            Some(id) => lines_of(on, id, before).await?,
            None => records::last::<Line>(on, AUDIT, before, PAGE).await?,
        };
        let Some((lowest, _)) = page.last() else { break };
        before = lowest.number(0)?;
        for (name, line) in page {
            let takes = filter.actor.as_ref().is_none_or(|actor| *actor == line.actor)
                && filter.action.as_ref().is_none_or(|action| *action == line.action);
            if takes && found.len() < wanted {
                found.push(AuditEntry {
                    n: name.number(0)?,
                    at: Timestamp::from_micros(line.at),
                    actor: line.actor,
                    action: line.action,
                    id: line.uuid.map(MessageId),
                    destination: line.destination,
                    note: line.note,
                    pruned: line.pruned.as_deref().map(PruneRecord::from_stored).transpose()?,
                });
            }
        }
    }
    Ok(found)
}

/// What the audit has of a message below this number, newest first: as many as people have had their hands on it.
async fn lines_of(on: &dyn Run, id: MessageId, below: i64) -> Result<Vec<(Name, Line)>, Error> {
    let range = Range::under(name!(AUDIT_OF, id.0)).below(name!(AUDIT_OF, id.0, below));
    let of = records::first::<Seq>(on, range, records::ALL).await?;
    let names: Vec<_> = of.iter().rev().map(|(_, of)| name!(AUDIT, of.seq)).collect();
    let lines = get::<Line>(on, &names).await?;
    Ok(names
        .into_iter()
        .zip(lines)
        .filter_map(|(name, line)| Some((name, line?)))
        .collect())
}

/// The number of a message.
async fn number_of(on: &dyn Run, id: MessageId) -> Result<Option<i64>, Error> {
    Ok(records::get_one::<Seq>(on, name!(ID, id.0))
        .await?
        .map(|found| found.seq))
}

/// Messages as operators see them, those that are there.
async fn views(on: &dyn Run, seqs: &[i64]) -> Result<Vec<MessageView>, Error> {
    let names: Vec<_> = seqs.iter().map(|seq| name!(MESSAGE, *seq)).collect();
    let records: Vec<_> = get::<Record>(on, &names).await?.into_iter().flatten().collect();
    with_deadlines(on, records).await
}

async fn with_deadlines(on: &dyn Run, records: Vec<Record>) -> Result<Vec<MessageView>, Error> {
    let leased: Vec<_> = records
        .iter()
        .filter(|record| record.is(State::Leased))
        .map(|record| name!(LEASED, record.seq))
        .collect();
    let mut deadlines = get::<Deadline>(on, &leased).await?.into_iter();
    let mut views = Vec::with_capacity(records.len());
    for record in records {
        let until = match record.is(State::Leased) {
            true => deadlines.next().flatten().map(|deadline| deadline.until),
            false => None,
        };
        views.push(record.view(until));
    }
    Ok(views)
}

pub(crate) async fn find(on: &dyn Run, id: MessageId) -> Result<Option<MessageView>, Error> {
    match number_of(on, id).await? {
        Some(seq) => Ok(views(on, &[seq]).await?.pop()),
        None => Ok(None),
    }
}

pub(crate) async fn attempts(on: &dyn Run, id: MessageId) -> Result<Vec<posthouse_core::Attempt>, Error> {
    match number_of(on, id).await? {
        Some(seq) => settle::attempts(on, seq).await,
        None => Ok(Vec::new()),
    }
}

/// Messages by filter. Only so many are looked at for one page.
pub(crate) async fn list(on: &dyn Run, filter: &Filter) -> Result<Page, Error> {
    let wanted = filter.page_size() as usize + 1;
    let (mut found, mut looked, mut over) = (Vec::new(), 0, false);
    let mut beyond = filter.beyond.unwrap_or(match filter.oldest_first {
        true => i64::MIN,
        false => i64::MAX,
    });
    // Those that are dead have a line of their own; all others are met on the way.
    let ended = matches!(filter.state, Some(State::Dead | State::Quarantined));
    let table = if ended { DEAD } else { MESSAGE };
    // Ends: numbers rise, or fall; and the number of looks is bounded.
    while found.len() < wanted && looked < LOOKED_AT_MOST as usize && !over {
        let seqs = page(on, table, beyond, filter.oldest_first).await?;
        over = seqs.len() < PAGE;
        let Some(last) = seqs.last() else { break };
        (beyond, looked) = (*last, looked + seqs.len());
        let names: Vec<_> = seqs.iter().map(|seq| name!(MESSAGE, *seq)).collect();
        let records = get::<Record>(on, &names).await?.into_iter().flatten().collect();
        let views = with_deadlines(on, records).await?;
        found.extend(views.into_iter().filter(|view| filter.takes(view)));
    }
    let more = found.len() > wanted;
    found.truncate(wanted);
    let looked_to = (!over && !more).then_some(beyond);
    Ok(Page::of(found, filter, looked_to))
}

/// The numbers of some messages beyond this one.
async fn page(on: &dyn Run, table: &'static str, beyond: i64, rising: bool) -> Result<Vec<i64>, Error> {
    let all = Range::all(table);
    let page = match rising {
        true => records::first::<Seq>(on, all.above(name!(table, beyond)), PAGE).await?,
        false => records::last::<Seq>(on, table, beyond, PAGE).await?,
    };
    page.iter().map(|(name, _)| name.number(0)).collect()
}

/// Records of each table that are read, as a multiple of the cap: a table may hold two kinds.
const READ: u32 = 2;

/// The first records of a table, and whether these are all.
async fn some<T: SurrealValue>(on: &dyn Run, table: &'static str, most: u32) -> Result<(Vec<(Name, T)>, bool), Error> {
    let most = most as usize;
    // One more, to know whether there is more.
    let mut found = records::first::<T>(on, Range::all(table), most + 1).await?;
    let whole = found.len() <= most;
    found.truncate(most);
    Ok((found, whole))
}

/// Counts messages by state, up to `cap` of each, among a bounded number of records of each table.
pub(crate) async fn counts(on: &dyn Run, cap: u32) -> Result<Counts, Error> {
    check_cap(cap)?;
    let (now, _) = settings::look(on).await?;
    let most = READ * cap;
    let count = |seen: usize, whole: bool| Count::capped(seen as u64, whole, cap);
    let (plain, plain_whole) = some::<InLine>(on, READY, most).await?;
    let (mut waiting, waiting_whole) = some::<InLine>(on, SCHED, most).await?;
    let (keyed, keyed_whole) = some::<InLine>(on, KEYED, most).await?;
    // Those with a key stand in `keyed` as well.
    waiting.retain(|(_, line)| line.key.is_none());
    let due = |lines: &[(Name, InLine)]| lines.iter().filter(|(_, line)| line.due_at <= now).count();
    let (due_alone, due_keyed) = (due(&waiting), due(&keyed));
    let later = waiting.len() - due_alone + keyed.len() - due_keyed;
    let lines = [&plain, &waiting, &keyed].into_iter().flatten();
    let oldest = lines.map(|(_, line)| line.due_at).filter(|at| *at <= now).min();

    let (leases, leases_whole) = some::<Deadline>(on, LEASED, most).await?;
    let held = get::<Record>(on, &messages_of(&leases)?).await?;
    let own = leases.iter().zip(held).filter(|((_, deadline), record)| {
        let token = record.as_ref().and_then(|record| record.token);
        token == Some(deadline.token)
    });
    let own: Vec<_> = own.map(|((_, deadline), _)| deadline.until).collect();

    let (dead, dead_whole) = some::<InLine>(on, DEAD, most).await?;
    let buried = get::<Record>(on, &messages_of(&dead)?).await?;
    let buried: Vec<_> = buried.into_iter().flatten().collect();
    let of = |state: State| buried.iter().filter(|record| record.is(state)).count();
    let blocked: BTreeSet<_> = buried
        .iter()
        .filter(|record| record.blocks())
        .filter_map(Record::key)
        .collect();
    Ok(Counts {
        ready: count(
            plain.len() + due_alone + due_keyed,
            plain_whole && waiting_whole && keyed_whole,
        ),
        scheduled: count(later, waiting_whole && keyed_whole),
        leased: count(own.len(), leases_whole),
        done: done(on, cap).await?,
        dead: count(of(State::Dead), dead_whole),
        quarantined: count(of(State::Quarantined), dead_whole),
        expired: count(own.iter().filter(|until| **until <= now).count(), leases_whole),
        blocked_keys: count(blocked.len(), dead_whole),
        oldest_due: oldest.map(Timestamp::from_micros),
        now: Some(Timestamp::from_micros(now)),
    })
}

/// The messages that records with a number alone as id are about.
fn messages_of<T>(of: &[(Name, T)]) -> Result<Vec<Name>, Error> {
    of.iter().map(|(name, _)| Ok(name!(MESSAGE, name.number(0)?))).collect()
}

/// Counts the messages that are done, by their range of [`ENDED`].
async fn done(on: &dyn Run, cap: u32) -> Result<Count, Error> {
    let done = |at| name!(ENDED, State::Done.as_str(), at);
    let range = Range::all(ENDED).above(done(i64::MIN)).up_to(done(i64::MAX));
    Ok(Count::capped(count(on, range, cap + 1).await?, true, cap))
}

/// What bears on one message.
pub(crate) async fn facts(work: &mut Work<'_>, id: MessageId) -> Result<Option<Facts>, Error> {
    let Some(seq) = number_of(work.on, id).await? else {
        return Ok(None);
    };
    let (Some(record), Some(message)) = (work.message(seq).await?, views(work.on, &[seq]).await?.pop()) else {
        return Ok(None);
    };
    let ahead = match ahead(work, &record).await? {
        Some(seq) => views(work.on, &[seq]).await?.pop(),
        None => None,
    };
    Ok(Some(Facts {
        now: Timestamp::from_micros(work.now),
        message,
        last: settle::attempts(work.on, seq).await?.pop(),
        ahead,
        blocks: record.blocks(),
        resolved: record.resolved,
        relays: presence::relays(work.on).await?,
        pauses: presence::pauses(work.on).await?,
    }))
}

/// What must end before a pending message: one of its key that is in flight, or else the first of its key.
async fn ahead(work: &mut Work<'_>, record: &Record) -> Result<Option<i64>, Error> {
    let Some(key) = record.key().filter(|_| record.is(State::Pending)) else {
        return Ok(None);
    };
    if let Some((_, leased)) = records::first::<InLine>(work.on, run_of(&key), 1).await?.pop() {
        return Ok(Some(leased.seq));
    }
    let first = records::first::<InLine>(work.on, line_of(&key), 1).await?.pop();
    let (lane, key) = key;
    let mut first = match first {
        Some((name, first)) => Some((name.number(3)?, first.seq)),
        None => None,
    };
    let dead = records::first::<InLine>(work.on, Range::all(DEAD), COUNTED_AT_MOST as usize).await?;
    let of_key = dead
        .into_iter()
        .filter(|(_, dead)| dead.key.as_ref() == Some(&key))
        .map(|(_, dead)| dead.seq);
    for seq in of_key.collect::<Vec<_>>() {
        let Some(other) = work.message(seq).await? else {
            continue;
        };
        let same = other.blocks() && other.lane() == lane;
        if same && first.is_none_or(|(pos, _)| other.pos < pos) {
            first = Some((other.pos, other.seq));
        }
    }
    Ok(first.map(|(_, seq)| seq).filter(|seq| *seq != record.seq))
}

/// One operator's change: asked of the machine, performed and written into the audit.
async fn operate(
    work: &mut Work<'_>,
    id: MessageId,
    actor: &str,
    (verb, event): (&'static str, Event),
    note: &str,
) -> Result<Record, Error> {
    let actor = checked_actor(actor)?;
    let record = existing(work, id).await?;
    not_of_saga(&record, verb)?;
    let policy = posthouse_core::RetryPolicy::default();
    let ctx = posthouse_core::machine::Ctx {
        policy: &policy,
        roll: 0.5,
    };
    let step = posthouse_core::step(record.standing()?, event, ctx).map_err(|illegal| Error::IllegalState {
        id,
        state: illegal.state,
        verb,
    })?;
    work.apply(record.seq, &step).await?;
    write_audit(work, About::Message(id), actor, verb, excerpt(note, TEXT_CHARS)).await?;
    Ok(record)
}

async fn existing(work: &mut Work<'_>, id: MessageId) -> Result<Record, Error> {
    let seq = number_of(work.on, id).await?.ok_or(Error::NotFound(id))?;
    work.message(seq).await?.ok_or(Error::NotFound(id))
}

/// Of a saga's messages the saga decides.
fn not_of_saga(record: &Record, verb: &'static str) -> Result<(), Error> {
    let id = MessageId(record.uuid);
    match saga_of(record)? {
        Some(saga) => Err(Error::OfSaga { id, saga, verb }),
        None => Ok(()),
    }
}

fn saga_of(record: &Record) -> Result<Option<SagaId>, Error> {
    let kind = record.kind.parse().map_err(Error::Invalid)?;
    Ok(posthouse_core::lease::saga_of(kind, record.parent.map(MessageId)))
}

/// One that blocks its key comes back to its place; any other goes to the end, under the producers' turn.
pub(crate) async fn replay(
    work: &mut Work<'_>,
    id: MessageId,
    actor: &str,
    note: &str,
    deliver_in: Option<Duration>,
) -> Result<(), Error> {
    let old = operate(work, id, actor, ("replay", Event::Replay), note).await?;
    let number = work.number(0).await?;
    let pos = match old.key() {
        _ if old.blocks() => old.pos,
        Some(key) if !old.relaxed => work.turn(&key, number).await?,
        _ => number,
    };
    let now = work.now;
    work.change(old.seq, |record| {
        let first = record.first_deliver_by.filter(|at| *at > now);
        record.deliver_by = deliver_in.map(|within| later(now, within)).or(first);
        (record.freed, record.resolved, record.pos) = (false, false, pos);
        record.wait(now);
    })
    .await?;
    ledger::reopened(work, old.seq).await?;
    work.flush().await
}

pub(crate) async fn quarantine(work: &mut Work<'_>, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
    let old = operate(work, id, actor, ("quarantine", Event::Quarantine), note).await?;
    work.change(old.seq, |record| record.note = Some(excerpt(note, TEXT_CHARS)))
        .await?;
    work.flush().await
}

pub(crate) async fn cancel(work: &mut Work<'_>, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
    let old = operate(work, id, actor, ("cancel", Event::Cancel), note).await?;
    work.change(old.seq, |record| record.freed = true).await?;
    ledger::message_ended(work, old.seq, &End::unsent(DeadReason::Cancelled)).await?;
    work.flush().await
}

pub(crate) async fn resolve(
    work: &mut Work<'_>,
    id: MessageId,
    actor: &str,
    note: &str,
    receipt: &str,
) -> Result<(), Error> {
    let note = resolve_note(note, receipt);
    let old = operate(work, id, actor, ("resolve", Event::Resolve), &note).await?;
    work.change(old.seq, |record| record.resolved = true).await?;
    let answer = Answer::bytes(excerpt(receipt, TEXT_CHARS));
    ledger::message_ended(work, old.seq, &End::Delivered(answer)).await?;
    work.flush().await
}

pub(crate) async fn discard(work: &mut Work<'_>, id: MessageId, actor: &str, note: &str) -> Result<(), Error> {
    let actor = checked_actor(actor)?;
    let record = existing(work, id).await?;
    not_of_saga(&record, "discard")?;
    let state = record.state()?;
    if !matches!(state, State::Dead | State::Quarantined) {
        let verb = "discard";
        return Err(Error::IllegalState { id, state, verb });
    }
    if state == State::Quarantined {
        ledger::message_ended(work, record.seq, &End::unsent(DeadReason::Cancelled)).await?;
    }
    work.remove(&[record.seq]).await?;
    if let Some(name) = dedupe_name(&record) {
        let taken: Option<Taken> = work.get(name.clone()).await?;
        if let Some(taken) = taken.filter(|taken| taken.uuid == record.uuid) {
            if let Some(at) = taken.ends_at {
                work.drop(over(&name, at));
            }
            work.drop(name);
        }
    }
    write_audit(work, About::Message(id), actor, "discard", excerpt(note, TEXT_CHARS)).await?;
    work.flush().await
}

/// Removes old messages, and old rows of the other kinds; at most `limit` of each. Returns the order keys of the removed messages, too.
/// A dry run changes the work in memory, and writes nothing.
pub(crate) async fn prune(work: &mut Work<'_>, prune: &Prune) -> Result<(Pruned, BTreeSet<Key>), Error> {
    let actor = prune.check()?;
    let cutoff = work.now.saturating_sub(micros(prune.older_than));
    let limit = prune.limit as usize;
    let mut keys = BTreeSet::new();
    let mut pruned = Pruned::default();
    if prune.states.done() {
        pruned.done = prune_messages(work, prune, State::Done, cutoff, &mut keys).await?;
    }
    if prune.states.dead() {
        pruned.dead = prune_messages(work, prune, State::Dead, cutoff, &mut keys).await?;
    }
    let mut counts = vec![pruned.done, pruned.dead];
    if prune.states.done() {
        pruned.dedupe_keys = work.prune_dedupe(limit).await?;
        pruned.entries = ledger::prune(work, limit).await?;
        let had = ledger::prune_inbox(work, cutoff, limit).await?;
        let steps = saga::prune_steps(work, cutoff, limit).await?;
        pruned.inbox = had + steps;
        pruned.sagas = saga::prune(work, cutoff, limit).await?;
        counts.extend([pruned.dedupe_keys, pruned.entries, had, steps, pruned.sagas]);
    }
    pruned.more = counts.contains(&u64::from(prune.limit));
    if prune.dry_run {
        return Ok((pruned, BTreeSet::new()));
    }
    if !pruned.is_empty() {
        let record = PruneRecord::of(prune.states, Timestamp::from_micros(cutoff), &pruned);
        pruned.audit = Some(audit_prune(work, prune, actor, record).await?);
    }
    work.flush().await?;
    Ok((pruned, keys))
}

/// Adds the counts to the row of the run, or writes its row. Returns the row's number.
async fn audit_prune(work: &mut Work<'_>, prune: &Prune, actor: String, mut record: PruneRecord) -> Result<i64, Error> {
    let line: Option<Line> = match prune.audit {
        Some(n) => work.get(name!(AUDIT, n)).await?,
        None => None,
    };
    let of_run = line.filter(|line| line.action == "prune" && line.actor == actor);
    let before = of_run.as_ref().and_then(|line| line.pruned.as_deref());
    let before = before.map(PruneRecord::from_stored).transpose()?;
    if let (Some(n), Some(mut line), Some(before)) = (prune.audit, of_run, before)
        && before.states == record.states
    {
        record.add(&before);
        line.pruned = Some(record.to_stored());
        work.put(name!(AUDIT, n), line);
        return Ok(n);
    }
    let n = work.number(0).await?;
    let line = Line {
        at: work.now,
        actor,
        action: "prune".to_owned(),
        uuid: None,
        destination: None,
        note: excerpt(&prune.note, TEXT_CHARS),
        pruned: Some(record.to_stored()),
    };
    work.put(name!(AUDIT, n), line);
    Ok(n)
}

async fn prune_messages(
    work: &mut Work<'_>,
    prune: &Prune,
    state: State,
    cutoff: i64,
    keys: &mut BTreeSet<Key>,
) -> Result<u64, Error> {
    let (mut gone, mut after) = (0, name!(ENDED, state.as_str(), i64::MIN));
    let limit = u64::from(prune.limit);
    // Ends: `after` rises with each page.
    while gone < limit {
        let range = Range::all(ENDED)
            .above(after.clone())
            .up_to(name!(ENDED, state.as_str(), cutoff, i64::MAX));
        let page = records::first::<InLine>(work.on, range, PAGE).await?;
        let Some((last, _)) = page.last() else { break };
        after = last.clone();
        work.load(page.iter().map(|(_, line)| line.seq)).await?;
        let mut old = Vec::new();
        for (_, line) in page {
            let Some(record) = work.message(line.seq).await? else {
                continue;
            };
            let ended = Ended {
                state: record.state()?,
                finished_at: record.finished_at.map(Timestamp::from_micros),
                blocks: record.blocks(),
                held_by_saga: record.is(State::Dead) && saga::is_held_for(work, saga_of(&record)?).await?,
            };
            if gone < limit && prune.takes(&ended, Timestamp::from_micros(cutoff)) {
                keys.extend(record.key());
                old.push(record.seq);
                gone += 1;
            }
        }
        work.remove(&old).await?;
    }
    Ok(gone)
}
