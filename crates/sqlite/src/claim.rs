//! Claim: what is due is chosen fairly, moved under a lease in a few statements, and read back whole.

use posthouse_core::{
    Claim, Claimed, DeadReason, Delivery, Error, Event, Lease, LeaseToken, OnDead, RetryPolicy, State, Timestamp,
    headers::{take_binding, take_ticket},
    lease::saga_of,
    ledger::End,
    machine::Ctx,
    step,
};
use rusqlite::{Connection, Row, params};
use std::collections::{HashMap, VecDeque, hash_map::Entry};
use uuid::Uuid;

use crate::{
    call::{Here, at_once},
    clock,
    error::{internal, plain},
    floors::Floors,
    lanes::{InLine, Lane, Next, Round, Scope},
    ledger,
    place::{self, Waiting, draw, free_head, locate, run, to_dead, to_ready},
    rows::{Key, Record, headers, id, optional_id, optional_text, standing, text, word},
};

const ANY: &str = include_str!("../sql/claim_any.sql");
const PROMOTE: &str = include_str!("../sql/promote.sql");
const PROMOTE_SCOPED: &str = include_str!("../sql/promote_scoped.sql");
const PROMOTE_HEADS: &str = include_str!("../sql/promote_heads.sql");
const PROMOTE_HEADS_SCOPED: &str = include_str!("../sql/promote_heads_scoped.sql");
const TURN: &str = include_str!("../sql/turn.sql");
const TURN_SET: &str = include_str!("../sql/turn_set.sql");
const LANE: &str = include_str!("../sql/lane.sql");
const GRANT_READY: &str = include_str!("../sql/grant_ready.sql");
const GRANT_READY_BUT: &str = include_str!("../sql/grant_ready_but.sql");
const FORGET_READY: &str = include_str!("../sql/forget_ready.sql");
const FORGET_READY_BUT: &str = include_str!("../sql/forget_ready_but.sql");
const GRANT_KEYED: &str = include_str!("../sql/grant_keyed.sql");
const FORGET_KEYED: &str = include_str!("../sql/forget_keyed.sql");
const GRANTED: &str = include_str!("../sql/granted.sql");

/// How many waiting messages one claim moves into line when their time comes; the rest follow with the next claims. More
/// than a claim can take, so that a line never runs dry while something is due.
const PROMOTED: u32 = 10_000;

/// Whether there may be something to claim.
pub(crate) fn any(db: &Connection) -> Result<bool, Error> {
    db.prepare_cached(ANY)
        .and_then(|mut any| any.query_row([], |row| row.get(0)))
        .map_err(plain)
}

/// Grants leases in a transaction that holds the write lock. What it learns about the lines is true once that commits.
pub(crate) fn claim(tx: &Connection, claim: &Claim, floors: &mut Floors) -> Result<Vec<Claimed>, Error> {
    let scope = Scope::new(claim, clock::now(tx)?);
    promote(tx, &scope)?;
    let served = turn(tx)?;
    let chosen = choose(tx, claim, &scope, served, floors)?;
    lapse(tx, &chosen.lapsed, scope.now)?;
    let Some(last) = chosen.free.last().map(|last| last.lane) else {
        return Ok(Vec::new());
    };
    // With one lane the turn stays where it is, and nothing is written for it.
    if last != served {
        run(tx, TURN_SET, [last])?;
    }
    let token = LeaseToken(Uuid::new_v4());
    grant(tx, claim, &scope, token, &chosen.free)?;
    let granted = granted(tx, &chosen.free, token, scope.now)?;
    // The leases began when the transaction had the write lock. An error rolls it back.
    claim.check_in_time(clock::since(tx, scope.now)?)?;
    Ok(granted)
}

/// Moves into line what has become due, or has lapsed.
fn promote(tx: &Connection, scope: &Scope) -> Result<(), Error> {
    if scope.is_all() {
        run(tx, PROMOTE_HEADS, params![scope.now, PROMOTED])?;
    } else {
        run(
            tx,
            PROMOTE_HEADS_SCOPED,
            params![scope.now, PROMOTED, scope.namespaces, scope.tenant],
        )?;
    }
    let mut due = due(tx, scope)?;
    if due.is_empty() {
        return Ok(());
    }
    due.sort_by_key(|(record, waiting)| (waiting.due_at, record.seq));
    let first = at_once(draw(&mut Here(tx), due.len()))?;
    for (pos, (record, waiting)) in (first..).zip(due) {
        at_once(to_ready(&mut Here(tx), &Record { pos, ..record }, waiting))?;
    }
    Ok(())
}

fn due(tx: &Connection, scope: &Scope) -> Result<Vec<(Record, Waiting)>, Error> {
    let read = |row: &Row<'_>| {
        let record = Record {
            seq: row.get(0)?,
            lane: row.get(1)?,
            key: None,
            pos: 0,
            bytes: row.get(2)?,
            standing: standing(row, 3, State::Pending)?,
            deliver_by: row.get(8)?,
            deduped: row.get(9)?,
        };
        let released_by: Option<[u8; 16]> = row.get(12)?;
        let released_by = released_by.map(|bytes| LeaseToken(Uuid::from_bytes(bytes)));
        Ok((
            record,
            Waiting {
                due_at: row.get(10)?,
                changed_at: row.get(11)?,
                released_by,
            },
        ))
    };
    let rows = if scope.is_all() {
        let mut statement = tx.prepare_cached(PROMOTE).map_err(plain)?;
        statement
            .query_map(params![scope.now, PROMOTED], read)
            .and_then(Iterator::collect)
    } else {
        let mut statement = tx.prepare_cached(PROMOTE_SCOPED).map_err(plain)?;
        let values = params![scope.now, PROMOTED, scope.namespaces, scope.tenant];
        statement.query_map(values, read).and_then(Iterator::collect)
    };
    rows.map_err(plain)
}

fn turn(tx: &Connection) -> Result<i64, Error> {
    tx.prepare_cached(TURN)
        .and_then(|mut turn| turn.query_row([], |row| row.get(0)))
        .map_err(plain)
}

/// What a claim takes, and what it found too late.
struct Chosen {
    free: Vec<InLine>,
    lapsed: Vec<InLine>,
}

/// Tenants take turns, one message each, beginning after the one that was served last.
fn choose(tx: &Connection, claim: &Claim, scope: &Scope, served: i64, floors: &mut Floors) -> Result<Chosen, Error> {
    let mut chosen = Chosen {
        free: Vec::new(),
        lapsed: Vec::new(),
    };
    let known = scope.not_topics.as_ref().map(|left| std::mem::take(floors).under(left));
    let (mut open, mut over, mut bytes) = (VecDeque::new(), Vec::new(), 0_u64);
    let (mut round, mut more) = (Round::after(served), true);
    // Ends: each turn takes a message, drops a lane, or opens one of finitely many.
    while chosen.free.len() < claim.batch as usize {
        let fresh = if more { round.next(tx, scope)? } else { None };
        more = fresh.is_some();
        let floor = |lane| known.as_ref().map_or(i64::MIN, |known| known.of(lane));
        let fresh = fresh.map(|lane| Lane::new(lane, floor(lane), scope));
        let Some(mut lane) = fresh.or_else(|| open.pop_front()) else {
            break;
        };
        let Some(next) = next_free(tx, scope, &mut lane, &mut chosen.lapsed)? else {
            over.push(lane);
            continue;
        };
        bytes = bytes.saturating_add(next.bytes);
        if !chosen.free.is_empty() && claim.max_bytes.is_some_and(|most| bytes > most) {
            break;
        }
        chosen.free.push(next);
        open.push_back(lane);
    }
    if let Some(known) = known {
        *floors = learn(tx, known, open.iter().chain(&over))?;
    }
    Ok(chosen)
}

/// Remembers how far the lines were read, where topics were left in them.
fn learn<'a>(tx: &Connection, mut known: Floors, lanes: impl Iterator<Item = &'a Lane>) -> Result<Floors, Error> {
    for lane in lanes {
        if let (lane, Some(passed)) = lane.passed(tx)? {
            known.raise(lane, passed);
        }
    }
    Ok(known)
}

fn next_free(
    tx: &Connection,
    scope: &Scope,
    lane: &mut Lane,
    lapsed: &mut Vec<InLine>,
) -> Result<Option<InLine>, Error> {
    // Ends: each turn takes one message out of a finite line.
    while let Some(next) = lane.next(tx, scope)? {
        match next {
            Next::Free(message) => return Ok(Some(message)),
            Next::Lapsed(message) => lapsed.push(message),
        }
    }
    Ok(None)
}

/// Their deliver-by has passed: they are dead, and never sent.
fn lapse(tx: &Connection, lapsed: &[InLine], now: i64) -> Result<(), Error> {
    for message in lapsed {
        let Some(located) = locate(tx, message.seq)? else {
            continue;
        };
        place::leave(tx, &located)?;
        let mut record = located.record;
        record.standing.releases = 0;
        at_once(to_dead(&mut Here(tx), &record, Some(DeadReason::Lapsed), true, now))?;
        at_once(ledger::message_ended(
            &mut Here(tx),
            record.seq,
            &End::unsent(DeadReason::Lapsed),
        ))?;
    }
    // Only now: the next of the same key may have lapsed too. A key that is granted below is claimed by its range.
    for message in lapsed {
        if let Some(key) = &message.key {
            at_once(free_head(&mut Here(tx), message.lane, key, now))?;
        }
    }
    Ok(())
}

/// The part of a line that is granted, by the first and the last place. In between there is nothing else but what is
/// left for its topic.
struct Range {
    first: i64,
    last: i64,
    count: usize,
}

fn grant(tx: &Connection, claim: &Claim, scope: &Scope, token: LeaseToken, chosen: &[InLine]) -> Result<(), Error> {
    let mut ranges: HashMap<(i64, Option<&Key>), Range> = HashMap::new();
    for message in chosen {
        let new = Range {
            first: message.pos,
            last: message.pos,
            count: 0,
        };
        let range = ranges.entry((message.lane, message.key.as_ref())).or_insert(new);
        range.last = message.pos;
        range.count += 1;
    }
    let deadline = clock::later(scope.now, claim.lease);
    let token = token.0.into_bytes();
    for ((lane, key), Range { first, last, count }) in ranges {
        let (worker, left) = (&claim.worker, &scope.not_topics);
        let (granted, gone) = match (key, left) {
            (Some(key), _) => (
                run(
                    tx,
                    GRANT_KEYED,
                    params![lane, key, first, last, token, deadline, scope.now, worker],
                )?,
                run(tx, FORGET_KEYED, params![lane, key, first, last])?,
            ),
            (None, None) => (
                run(
                    tx,
                    GRANT_READY,
                    params![lane, first, last, token, deadline, scope.now, worker],
                )?,
                run(tx, FORGET_READY, params![lane, first, last])?,
            ),
            (None, Some(left)) => (
                run(
                    tx,
                    GRANT_READY_BUT,
                    params![lane, first, last, token, deadline, scope.now, worker, left],
                )?,
                run(tx, FORGET_READY_BUT, params![lane, first, last])?,
            ),
        };
        if (granted, gone) != (count, count) {
            let problem = format!("{count} messages were chosen, {granted} granted and {gone} taken out of line");
            return Err(internal(problem));
        }
    }
    Ok(())
}

/// Reads what is sent of those that were granted, and answers it in the order it was chosen.
fn granted(tx: &Connection, chosen: &[InLine], token: LeaseToken, now: i64) -> Result<Vec<Claimed>, Error> {
    let mut names: HashMap<i64, (String, String)> = HashMap::new();
    for message in chosen {
        if let Entry::Vacant(unknown) = names.entry(message.lane) {
            unknown.insert(lane_name(tx, message.lane)?);
        }
    }
    let mut by_number: Vec<(usize, &InLine)> = chosen.iter().enumerate().collect();
    by_number.sort_by_key(|(_, message)| message.seq);
    let mut statement = tx.prepare_cached(GRANTED).map_err(plain)?;
    let mut read = Vec::with_capacity(chosen.len());
    // Messages are mostly chosen as they came, so there are few ranges of numbers without a gap.
    for range in by_number.chunk_by(|(_, one), (_, next)| one.seq + 1 == next.seq) {
        let (first, last) = (range[0].1.seq, range[range.len() - 1].1.seq);
        let mut rows = statement.query([first, last]).map_err(plain)?;
        while let Some(row) = rows.next().map_err(plain)? {
            let seq: i64 = row.get(0).map_err(plain)?;
            let (place, message) = range[usize::try_from(seq - first).map_err(internal)?];
            let name = names.get(&message.lane).cloned().unwrap_or_default();
            let lease = lease(row, message, token)?;
            let claimed = claimed(row, lease, message.deliver_by, now, name).map_err(plain)?;
            read.push((place, claimed));
        }
    }
    read.sort_by_key(|(place, _)| *place);
    Ok(read.into_iter().map(|(_, claimed)| claimed).collect())
}

pub(crate) fn lane_name(tx: &Connection, lane: i64) -> Result<(String, String), Error> {
    let mut statement = tx.prepare_cached(LANE).map_err(plain)?;
    statement
        .query_row([lane], |row| Ok((text(row, 0)?, text(row, 1)?)))
        .map_err(plain)
}

/// The lease as it was written: under the write lock, so a message stands where it stood when it was chosen.
fn lease(row: &Row<'_>, message: &InLine, token: LeaseToken) -> Result<Lease, Error> {
    let ctx = Ctx {
        policy: &RetryPolicy::default(),
        roll: 0.0,
    };
    Ok(Lease {
        id: id(row, 1).map_err(plain)?,
        seq: message.seq,
        token,
        standing: step(message.standing, Event::Claimed, ctx).map_err(internal)?.standing,
        on_dead: word(row, 2).unwrap_or(OnDead::Pass),
        bound: false,
        saga: None,
    })
}

/// The columns of `granted.sql`.
fn claimed(
    row: &Row<'_>,
    mut lease: Lease,
    deliver_by: Option<i64>,
    now: i64,
    (namespace, tenant): (String, String),
) -> rusqlite::Result<Claimed> {
    let mut headers = headers(row, 6)?;
    lease.bound = take_binding(&mut headers).is_some();
    let (kind, parent) = (word(row, 7)?, optional_id(row, 8)?);
    lease.saga = saga_of(kind, parent);
    let ticket = take_ticket(&mut headers);
    let delivery = Delivery {
        id: lease.id,
        epoch: lease.standing.epoch,
        generation: lease.standing.generation,
        attempt: lease.standing.attempts,
        tenant,
        namespace,
        topic: text(row, 3)?,
        order_key: optional_text(row, 4)?,
        content_type: text(row, 5)?,
        payload: row.get(10)?,
        headers,
        kind,
        parent,
        destination: optional_text(row, 9)?,
        ticket,
    };
    let deliver_by = deliver_by.or(row.get(11)?);
    let deliver_within = deliver_by.map(|at| Timestamp::from_micros(at).since(Timestamp::from_micros(now)));
    Ok(Claimed {
        lease,
        delivery,
        deliver_within,
    })
}
