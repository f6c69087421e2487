//! Claim: what is due is chosen fairly, and put under a lease.
//!
//! A lane is a namespace and a tenant. It has a line of messages without an order key, and hints at the heads of its keys; both carry places from one
//! sequence, so the older comes first. Where a head comes first its key's run follows it, because all leases of a key must belong to one claim.

use posthouse_core::{
    Claim, Claimed, Error, Event, LeaseToken, Timestamp,
    floors::{Floors, Known, Walk},
};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::{
    error::internal,
    message::{BODY, Body, Deadline, HEAD, InLine, KEYED, LEASED, Lane, READY, SCHED, SCHED_TENANT, later},
    records::{self, Name, Part, Range, name},
    work::{Key, Work, decide, line_of},
};

/// How many fall due in one claim, beyond what it asks for.
const PROMOTED: usize = 500;
/// How many tenants are visited while a flood falls due.
const TENANTS: usize = 100;
/// How many of a line are read first; each further look reads four times as many.
const FIRST_LOOK: usize = 16;
/// The most that one look reads.
const MOST_LOOK: usize = 1000;
/// How often a claim that lost leaves more to others each time.
const MOST_LOST: usize = 16;
/// How many may have passed their deliver-by in the way of one claim: the next one goes on.
const LAPSED: usize = 200;
/// How much of a key's run is read with its head.
const BEGUN: usize = 4;
/// From how many hints on those of a key that somebody is at are taken away: a claim that has nothing else to write writes nothing for a few.
const CROWD: usize = 20;
/// How many below a floor are looked at by each claim.
const SWEPT: usize = 100;
/// How many stretches more a claim looks at that has found nothing, each as long as a look can be.
const SWEEPS: usize = 2;
/// How many lanes with nothing to grant a claim visits: its leases begin with it, and must not be over when it is. The next claim goes on there.
const BARREN: usize = 500;

/// Where a handle's claims have come to, so that everybody has a turn.
#[derive(Clone, Debug, Default)]
pub(crate) struct Turns {
    /// The lane that was served last; and by claims of one tenant, which say nothing of the others' turn.
    served: Option<Lane>,
    own: Option<Lane>,
    /// Whose line was looked through last, where there was nothing else to do.
    looked: Option<Lane>,
    /// The tenant that was visited last while a flood fell due, and its namespace.
    visited: Option<(String, String)>,
}

/// What a handle remembers from claim to claim.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    turns: Turns,
    floors: Floors,
}

impl Turns {
    /// Whose turn a claim takes, and moves.
    fn of(&mut self, claim: &Claim) -> &mut Option<Lane> {
        match &claim.tenant {
            None => &mut self.served,
            Some(tenant) => {
                self.own.take_if(|(_, own)| own != tenant);
                &mut self.own
            }
        }
    }
}

impl Memory {
    /// A claim that leaves these topics is committed.
    pub fn learn(&mut self, left: &[String], learnt: Learnt) {
        self.turns = learnt.turns;
        if !left.is_empty() {
            self.floors.learn(left, learnt.at, learnt.walks);
        }
    }
}

/// What is to be remembered of a claim if it is committed.
pub(crate) struct Learnt {
    turns: Turns,
    at: i64,
    walks: Vec<(Lane, Walk)>,
}

/// What was granted, and what is known of the rest.
pub(crate) struct Granted {
    pub claimed: Vec<Claimed>,
    pub complete: bool,
    pub learnt: Learnt,
}

/// Grants leases. What was chosen is written; the caller commits it. One that has lost to others leaves some of what comes first to them: so many that claim at once
/// soon take different ones.
pub(crate) async fn claim(work: &mut Work<'_>, claim: &Claim, memory: &Memory, lost: usize) -> Result<Granted, Error> {
    let mut turns = memory.turns.clone();
    let all_fell_due = fall_due(work, claim, &mut turns).await?;
    work.flush().await?;
    let token = Work::token();
    let mut choosing = Choosing {
        claim,
        known: memory.floors.known(&claim.not_topics),
        chosen: Vec::new(),
        walks: Vec::new(),
        bytes: 0,
        served: turns.of(claim).take(),
        complete: all_fell_due,
        passing: Passing {
            left: fastrand::usize(0..=lost.min(MOST_LOST) * claim.batch as usize),
            lapsed: 0,
        },
    };
    let leaves = choosing.passing.left > 0;
    choosing.choose(work).await?;
    if leaves {
        choosing.complete = false;
        if choosing.chosen.is_empty() {
            // There was not more than what it left. What has lapsed on the way must be gone for the second look.
            work.flush().await?;
            choosing.passing.left = 0;
            choosing.choose(work).await?;
        }
    }
    if choosing.chosen.is_empty() && choosing.walks.iter().any(|(_, walk)| walk.below().is_some()) {
        work.flush().await?;
        choosing.look_deeper(work, &mut turns.looked).await?;
    }
    let Choosing {
        chosen,
        walks,
        mut complete,
        served,
        ..
    } = choosing;
    complete &= walks.iter().all(|(_, walk)| walk.saw_all());
    *turns.of(claim) = served;
    work.load(chosen.iter().map(|chosen| chosen.line.seq)).await?;
    let mut granted = Vec::with_capacity(chosen.len());
    for Chosen { lane, pos, line } in chosen {
        if grant(work, claim, token, line.seq).await? {
            granted.push(line.seq);
        } else {
            work.forget_line(&lane, pos, &line);
            complete = false;
        }
    }
    work.flush().await?;
    Ok(Granted {
        claimed: read(work, &granted, token).await?,
        complete,
        learnt: Learnt {
            turns,
            at: work.now,
            walks,
        },
    })
}

/// Puts it under the lease. Whether it is there.
async fn grant(work: &mut Work<'_>, claim: &Claim, token: LeaseToken, seq: i64) -> Result<bool, Error> {
    let Some(record) = work.message(seq).await? else {
        return Ok(false);
    };
    let step = decide(&record, Event::Claimed)?;
    let now = work.now;
    work.change(seq, |record| {
        record.apply(&step, now);
        (record.token, record.worker, record.granted_at) = (Some(token.0), Some(claim.worker.clone()), Some(now));
    })
    .await?;
    let until = later(now, claim.lease);
    let (name, deadline) = (name!(LEASED, seq), Deadline { token: token.0, until });
    // Of an earlier lease it may still be there: see the remarks on leases in the schema.
    match record.epoch {
        0 => work.make(name, deadline),
        _ => work.put(name, deadline),
    }
    Ok(true)
}

/// What was granted, with its content.
async fn read(work: &mut Work<'_>, chosen: &[i64], token: LeaseToken) -> Result<Vec<Claimed>, Error> {
    let mut names = Vec::with_capacity(chosen.len());
    for seq in chosen {
        let size = work.message(*seq).await?.map_or(0, |record| record.content_size());
        names.push((name!(BODY, *seq), size));
    }
    let bodies = records::get_sized::<Body>(work.on, &names).await?;
    let mut claimed = Vec::with_capacity(chosen.len());
    for (seq, body) in chosen.iter().zip(bodies) {
        let (Some(record), Some(body)) = (work.message(*seq).await?, body) else {
            return Err(internal(format!("message {seq} has no content")));
        };
        let now = Timestamp::from_micros(work.now);
        claimed.push(Claimed {
            lease: record.lease(token)?,
            deliver_within: record.lapses_at().map(|at| Timestamp::from_micros(at).since(now)),
            delivery: record.delivery(body)?,
        });
    }
    Ok(claimed)
}

/// What waited for a time that has come goes into its line. Answers whether that was all.
async fn fall_due(work: &mut Work<'_>, claim: &Claim, turns: &mut Turns) -> Result<bool, Error> {
    let most = PROMOTED + claim.batch as usize;
    // Nothing of another tenant than the claim's is touched, not even to tidy up.
    let ranges = match &claim.tenant {
        Some(tenant) => {
            let all = Range::under(name!(SCHED_TENANT, tenant));
            let namespaces = namespaces_of(work, claim, &all, 1).await?.into_iter();
            let due = |namespace| due_of(&(namespace, tenant.clone()), work.now);
            namespaces.map(due).collect()
        }
        None => {
            let namespaces = namespaces_of(work, claim, &Range::all(SCHED), 0).await?.into_iter();
            let due = |namespace| {
                let up_to = name!(SCHED, &namespace, work.now, i64::MAX);
                Range::under(name!(SCHED, &namespace)).up_to(up_to)
            };
            namespaces.map(due).collect()
        }
    };
    let (due, all) = shared(work, with_any(work, ranges).await?, most).await?;
    let mut seqs: Vec<_> = due.iter().map(|(_, due)| due.seq).collect();
    if !all && claim.tenant.is_none() {
        // A flood of one tenant is in nobody's way.
        seqs.extend(due_of_each(work, claim, turns, most).await?);
        seqs.sort_unstable();
        seqs.dedup();
    }
    work.load(seqs.iter().copied()).await?;
    for (name, line) in due {
        // Half of an enqueue that was committed.
        if work.message(line.seq).await?.is_none() {
            work.drop(name);
        }
    }
    let count = seqs.len();
    for (at, seq) in seqs.into_iter().enumerate() {
        fell_due(work, seq, count - at - 1).await?;
    }
    Ok(all)
}

/// What is due of a lane.
fn due_of((namespace, tenant): &Lane, now: i64) -> Range {
    let up_to = name!(SCHED_TENANT, tenant, namespace, now, i64::MAX);
    Range::under(name!(SCHED_TENANT, tenant, namespace)).up_to(up_to)
}

/// Those that hold anything. One alone is as well looked into.
async fn with_any(work: &Work<'_>, ranges: Vec<Range>) -> Result<Vec<Range>, Error> {
    if ranges.len() < 2 {
        return Ok(ranges);
    }
    let firsts = records::first_each::<InLine>(work.on, ranges.clone(), 1).await?;
    let found = ranges.into_iter().zip(firsts).filter(|(_, first)| !first.is_empty());
    Ok(found.map(|(range, _)| range).collect())
}

/// The first of each of these, which share what is taken in at once, and whether that was all. Where there are more of them than that, some are left for other claims, never the
/// same ones each time.
async fn shared(work: &Work<'_>, mut ranges: Vec<Range>, most: usize) -> Result<(Vec<(Name, InLine)>, bool), Error> {
    let fits = ranges.len() <= most;
    if !fits {
        fastrand::shuffle(&mut ranges);
        ranges.truncate(most);
    }
    let share = most / ranges.len().max(1);
    let found = records::first_each::<InLine>(work.on, ranges, share).await?;
    let all = fits && found.iter().all(|some| some.len() < share);
    Ok((found.into_iter().flatten().collect(), all))
}

/// Some of each tenant that are due, of so many tenants, beginning after the one that was visited last. They share what is taken in at once.
async fn due_of_each(work: &Work<'_>, claim: &Claim, turns: &mut Turns, most: usize) -> Result<Vec<i64>, Error> {
    let (mut visited, mut lanes, all) = (BTreeSet::new(), Vec::new(), Range::all(SCHED_TENANT));
    // Ends: so many are visited.
    for _ in 0..TENANTS {
        let next = match &turns.visited {
            Some((tenant, namespace)) => all.clone().above(past(&name!(SCHED_TENANT, tenant, namespace), 2)),
            None => all.clone(),
        };
        let Some((at, _)) = records::first::<InLine>(work.on, next, 1).await?.pop() else {
            if turns.visited.take().is_none() {
                break;
            }
            continue;
        };
        let (tenant, namespace) = (at.text(0)?.to_owned(), at.text(1)?.to_owned());
        let lane = (namespace.clone(), tenant.clone());
        if !visited.insert(lane.clone()) {
            // Once round.
            break;
        }
        let asked = claim.namespaces.is_empty() || claim.namespaces.contains(&namespace);
        if asked && at.number(2)? <= work.now {
            lanes.push(lane);
        }
        turns.visited = Some((tenant, namespace));
    }
    let most = most.min(lanes.len() * claim.batch as usize);
    let ranges = lanes.iter().map(|lane| due_of(lane, work.now)).collect();
    let (due, _) = shared(work, ranges, most).await?;
    Ok(due.into_iter().map(|(_, line)| line.seq).collect())
}

/// It goes to the end of its line; one with an order key keeps its place, and may be the first of its key.
async fn fell_due(work: &mut Work<'_>, seq: i64, more: usize) -> Result<(), Error> {
    let Some(record) = work.message(seq).await? else {
        return Ok(());
    };
    if record.lapsed(work.now) && record.order_key.is_none() {
        work.lapse(seq).await?;
        return Ok(());
    }
    let place = match record.order_key {
        Some(_) => record.pos,
        None => work.number(more).await?,
    };
    let now = work.now;
    work.change(seq, |record| {
        (record.wake_at, record.pos) = (None, place);
        // One whose deliver-by came first is looked at all the same.
        debug_assert!(record.due_at <= now || record.lapsed(now));
    })
    .await?;
    Ok(())
}

/// The namespaces of a claim, in their order; or all that there are in a table whose ids have them in this place. Of others than a claim's own tenant no more is
/// read than that they are there.
async fn namespaces_of(work: &Work<'_>, claim: &Claim, range: &Range, at: usize) -> Result<Vec<String>, Error> {
    if !claim.namespaces.is_empty() {
        let own: BTreeSet<_> = claim.namespaces.iter().cloned().collect();
        return Ok(own.into_iter().collect());
    }
    let (mut found, mut next) = (Vec::new(), range.clone());
    // Ends: names rise.
    while let Some((name, _)) = records::first::<InLine>(work.on, next, 1).await?.pop() {
        found.push(name.text(at)?.to_owned());
        next = range.clone().above(past(&name, at + 1));
    }
    Ok(found)
}

/// Behind all that begin like this one does.
fn past(name: &Name, parts: usize) -> Name {
    let mut parts = name.parts[..parts.min(name.parts.len())].to_vec();
    parts.push(Part::End);
    Name {
        table: name.table,
        parts,
    }
}

/// A message that a claim will grant, and the line that leads to it.
struct Chosen {
    lane: Lane,
    pos: i64,
    line: InLine,
}

/// A claim that chooses.
struct Choosing<'c> {
    claim: &'c Claim,
    known: Known<'c>,
    chosen: Vec<Chosen>,
    /// How the lines were walked through, where topics are left.
    walks: Vec<(Lane, Walk)>,
    bytes: u64,
    served: Option<Lane>,
    complete: bool,
    passing: Passing,
}

/// What a claim passes by.
struct Passing {
    /// So many are left to others who claim at the same time.
    left: usize,
    /// How many have lapsed on the way.
    lapsed: usize,
}

impl Passing {
    /// Whether this one is left to others.
    fn leaves(&mut self) -> bool {
        let leaves = self.left > 0;
        self.left = self.left.saturating_sub(1);
        leaves
    }
}

impl Choosing<'_> {
    /// Tenants take turns, one message each, beginning after the one that was served last.
    async fn choose(&mut self, work: &mut Work<'_>) -> Result<(), Error> {
        let (mut open, mut round) = (VecDeque::new(), Round::new(self.claim, self.served.clone()));
        self.walks.clear();
        self.take_turns(work, &mut round, &mut open).await?;
        self.walks
            .extend(open.into_iter().filter_map(|line| line.walked(self.claim)));
        if round.barren >= BARREN {
            // Those behind have their turn before the ones that were just visited.
            (self.complete, self.served) = (false, round.at);
        }
        Ok(())
    }

    /// Nothing is free above the floors: looks through some of what is below them, in one line after the other, a line more with each claim.
    async fn look_deeper(&mut self, work: &mut Work<'_>, looked: &mut Option<Lane>) -> Result<(), Error> {
        let mut walks = std::mem::take(&mut self.walks);
        walks.sort_unstable_by(|(one, _), (other, _)| one.cmp(other));
        let after = walks.partition_point(|(lane, _)| Some(lane) <= looked.as_ref());
        let places = walks.len();
        walks.rotate_left(after % places.max(1));
        let mut looks = SWEEPS;
        for (lane, walk) in walks {
            let mut line = Line::below(lane, walk);
            // Ends: each look is one of a few.
            while looks > 0 && self.chosen.is_empty() && line.sweep(work, self.claim, MOST_LOOK).await? {
                (looks, *looked) = (looks - 1, Some(line.lane.clone()));
                self.take_all(work, &mut line).await?;
            }
            self.walks.extend(line.walked(self.claim));
        }
        Ok(())
    }

    /// What is in sight of one line, as much as there is room for.
    async fn take_all(&mut self, work: &mut Work<'_>, line: &mut Line) -> Result<(), Error> {
        // Ends: each turn takes a message.
        while self.has_room() {
            let Some((pos, next)) = line.next(work, self.claim, &mut self.passing).await? else {
                break;
            };
            if !self.take(line, pos, next) {
                break;
            }
        }
        Ok(())
    }

    fn has_room(&mut self) -> bool {
        let room = self.chosen.len() < self.claim.batch as usize && self.passing.lapsed < LAPSED;
        self.complete &= room;
        room
    }

    /// Chooses this one, unless it is too large.
    fn take(&mut self, line: &mut Line, pos: i64, next: InLine) -> bool {
        let size = u64::try_from(next.bytes).unwrap_or(0);
        let too_large = !self.chosen.is_empty() && self.claim.max_bytes.is_some_and(|most| self.bytes + size > most);
        if too_large {
            line.stays(pos, &next);
            self.complete = false;
            return false;
        }
        self.bytes += size;
        self.chosen.push(Chosen {
            lane: line.lane.clone(),
            pos,
            line: next,
        });
        self.served = Some(line.lane.clone());
        true
    }

    async fn take_turns(
        &mut self,
        work: &mut Work<'_>,
        round: &mut Round<'_>,
        lanes: &mut VecDeque<Line>,
    ) -> Result<(), Error> {
        // Ends: each turn takes a message, or a lane is over.
        while self.has_room() {
            // A lane that was not visited yet comes before those that were.
            let (mut line, new) = match round.next(work).await? {
                Some(lane) => (Line::new(lane, self.claim, &self.known), true),
                None => match lanes.pop_front() {
                    Some(line) => (line, false),
                    None => return Ok(()),
                },
            };
            match line.next(work, self.claim, &mut self.passing).await? {
                Some((pos, next)) => {
                    let taken = self.take(&mut line, pos, next);
                    lanes.push_back(line);
                    if !taken {
                        return Ok(());
                    }
                }
                None => {
                    round.barren += usize::from(new);
                    self.walks.extend(line.walked(self.claim));
                }
            }
        }
        Ok(())
    }
}

/// The lanes with work in turn, once round, beginning after the one that was served last.
struct Round<'c> {
    claim: &'c Claim,
    start: Option<Lane>,
    at: Option<Lane>,
    wrapped: bool,
    over: bool,
    /// How many had nothing to grant.
    barren: usize,
}

impl<'c> Round<'c> {
    fn new(claim: &'c Claim, served: Option<Lane>) -> Self {
        Self {
            claim,
            at: served.clone(),
            wrapped: served.is_none(),
            start: served,
            over: false,
            barren: 0,
        }
    }

    /// The next lane, or none when the round is over, or was long enough.
    async fn next(&mut self, work: &Work<'_>) -> Result<Option<Lane>, Error> {
        // Ends: lanes rise, and the round is made once.
        while !self.over && self.barren < BARREN {
            let found = self.above(work, self.at.as_ref()).await?;
            match found {
                Some(lane) => {
                    let back = self.wrapped && self.start.as_ref().is_some_and(|start| lane > *start);
                    self.over = back;
                    self.at = Some(lane.clone());
                    if !back && self.takes(&lane) {
                        return Ok(Some(lane));
                    }
                }
                None if self.wrapped => self.over = true,
                None => (self.wrapped, self.at) = (true, None),
            }
        }
        Ok(None)
    }

    fn takes(&self, (_, tenant): &Lane) -> bool {
        !self.claim.not_tenants.contains(tenant)
    }

    /// The first lane with work above this one, of those that the claim is about.
    async fn above(&self, work: &Work<'_>, at: Option<&Lane>) -> Result<Option<Lane>, Error> {
        let mut first: Option<Lane> = None;
        for table in [READY, HEAD] {
            let found = match (&self.claim.tenant, self.claim.namespaces.is_empty()) {
                (None, true) => lane_in(work, Range::all(table), table, at).await?,
                (tenant, _) => self.own(work, table, tenant.as_deref(), at).await?,
            };
            first = match (first, found) {
                (Some(one), Some(other)) => Some(one.min(other)),
                (one, other) => one.or(other),
            };
        }
        Ok(first)
    }

    /// The same of a claim of one tenant, or of some namespaces: it asks in each namespace, and walks over no other's lanes.
    async fn own(
        &self,
        work: &Work<'_>,
        table: &'static str,
        tenant: Option<&str>,
        at: Option<&Lane>,
    ) -> Result<Option<Lane>, Error> {
        for namespace in namespaces_of(work, self.claim, &Range::all(table), 0).await? {
            let within = match tenant {
                Some(tenant) if at.is_some_and(|at| (&*namespace, tenant) <= (&*at.0, &*at.1)) => continue,
                Some(tenant) => Range::under(name!(table, &namespace, tenant)),
                None => Range::under(name!(table, &namespace)),
            };
            let found = match at.filter(|at| tenant.is_none() && at.0 >= namespace) {
                Some(at) if at.0 > namespace => None,
                at => lane_in(work, within, table, at).await?,
            };
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }
}

/// The lane of the first in a range, above this one.
async fn lane_in(work: &Work<'_>, range: Range, table: &'static str, at: Option<&Lane>) -> Result<Option<Lane>, Error> {
    let range = match at {
        Some((namespace, tenant)) => range.above(past(&name!(table, namespace, tenant), 2)),
        None => range,
    };
    match records::first::<InLine>(work.on, range, 1).await?.pop() {
        Some((name, _)) => Ok(Some((name.text(0)?.to_owned(), name.text(1)?.to_owned()))),
        None => Ok(None),
    }
}

/// The line of one lane, read a little at a time.
struct Line {
    lane: Lane,
    ready: Stretch,
    heads: Stretch,
    /// The beginnings of the runs of keys whose heads were read.
    begun: BTreeMap<String, VecDeque<(i64, InLine)>>,
    /// Hints that were left, of keys that somebody is at.
    left: BTreeMap<String, Vec<i64>>,
    run: Option<Run>,
    /// Where topics are left.
    walk: Option<Walk>,
    /// Whether it was looked below its floor.
    swept: bool,
}

/// Part of a line: what was read and not taken yet, and where reading goes on.
struct Stretch {
    table: &'static str,
    read: VecDeque<(i64, InLine)>,
    after: Option<Name>,
    limit: usize,
    over: bool,
}

impl Stretch {
    const fn new(table: &'static str) -> Self {
        Self {
            table,
            read: VecDeque::new(),
            after: None,
            limit: FIRST_LOOK,
            over: false,
        }
    }

    /// Reads on when everything read is taken. Whether it has.
    async fn fill(&mut self, work: &Work<'_>, (namespace, tenant): &Lane) -> Result<bool, Error> {
        if self.over || !self.read.is_empty() {
            return Ok(false);
        }
        let mut range = Range::under(name!(self.table, namespace, tenant));
        if let Some(after) = self.after.take() {
            range = range.above(after);
        }
        let page = records::first::<InLine>(work.on, range, self.limit).await?;
        self.over = page.len() < self.limit;
        self.limit = (self.limit * 4).min(MOST_LOOK);
        for (name, in_line) in page {
            self.read.push_back((name.number(2)?, in_line));
            self.after = Some(name);
        }
        Ok(true)
    }
}

impl Line {
    fn new(lane: Lane, claim: &Claim, known: &Known<'_>) -> Self {
        let walk = (!claim.not_topics.is_empty()).then(|| known.walk(&lane));
        let mut ready = Stretch::new(READY);
        if let Some(walk) = &walk {
            ready.after = Some(name!(READY, &lane.0, &lane.1, walk.floor()));
        }
        Self {
            lane,
            ready,
            heads: Stretch::new(HEAD),
            begun: BTreeMap::new(),
            left: BTreeMap::new(),
            run: None,
            walk,
            swept: false,
        }
    }

    /// What is below the floor, after all above it was looked through.
    fn below(lane: Lane, walk: Walk) -> Self {
        let over = |table| Stretch {
            over: true,
            ..Stretch::new(table)
        };
        Self {
            lane,
            ready: over(READY),
            heads: over(HEAD),
            begun: BTreeMap::new(),
            left: BTreeMap::new(),
            run: None,
            walk: Some(walk),
            swept: true,
        }
    }

    /// Looks through a stretch below the floor, and puts what is free there before all else. Whether there was one.
    async fn sweep(&mut self, work: &Work<'_>, claim: &Claim, most: usize) -> Result<bool, Error> {
        let Some((walk, (after, up_to))) = self
            .walk
            .as_mut()
            .and_then(|walk| walk.below().map(|below| (walk, below)))
        else {
            return Ok(false);
        };
        let place = |pos: i64| name!(READY, &self.lane.0, &self.lane.1, pos);
        let range = Range::under(name!(READY, &self.lane.0, &self.lane.1));
        let range = range.above(place(after)).up_to(place(up_to));
        let page = records::first::<InLine>(work.on, range, most).await?;
        let last = match page.last() {
            Some((name, _)) if page.len() == most => Some(name.number(2)?),
            _ => None,
        };
        walk.swept(last);
        for (name, in_line) in page.into_iter().rev() {
            if !claim.not_topics.contains(&in_line.topic) {
                self.ready.read.push_front((name.number(2)?, in_line));
            }
        }
        Ok(true)
    }

    /// That this one, which it gave, was not taken.
    fn stays(&mut self, pos: i64, line: &InLine) {
        if let (Some(walk), None) = (&mut self.walk, &line.key) {
            walk.passes(pos);
        }
    }

    /// How it was walked through, where topics are left.
    fn walked(self, claim: &Claim) -> Option<(Lane, Walk)> {
        let mut walk = self.walk?;
        // What was read and not looked at yet.
        if let Some((pos, _)) = self
            .ready
            .read
            .front()
            .filter(|(_, next)| !claim.not_topics.contains(&next.topic))
        {
            walk.passes(*pos);
        }
        Some((self.lane, walk))
    }

    /// Reads what must be known of the keys whose heads were read, all at once: what holds them, and how their runs begin.
    async fn look_ahead(&mut self, work: &mut Work<'_>, claim: &Claim) -> Result<(), Error> {
        let heads = self.heads.read.iter();
        let wanted: BTreeSet<_> = heads
            .filter(|(_, head)| !claim.not_topics.contains(&head.topic))
            .filter_map(|(_, head)| head.key.clone())
            .collect();
        let keys: Vec<Key> = wanted.into_iter().map(|key| (self.lane.clone(), key)).collect();
        work.know_keys(keys.iter().cloned()).await?;
        let ranges = keys.iter().map(line_of).collect();
        let begun = records::first_each::<InLine>(work.on, ranges, BEGUN).await?;
        for ((_, key), run) in keys.into_iter().zip(begun) {
            let run: Result<_, Error> = run
                .into_iter()
                .map(|(name, in_line)| Ok((name.number(3)?, in_line)))
                .collect();
            self.begun.insert(key, run?);
        }
        Ok(())
    }

    /// The next message of this lane that may be granted, with its place; the oldest first, of what is in sight.
    async fn next(
        &mut self,
        work: &mut Work<'_>,
        claim: &Claim,
        passing: &mut Passing,
    ) -> Result<Option<(i64, InLine)>, Error> {
        // Ends: each turn takes from a line, and lines are finite within one transaction.
        loop {
            if passing.lapsed >= LAPSED {
                return Ok(None);
            }
            if let Some(run) = &mut self.run {
                if let Some(next) = run.next(work, claim, &mut passing.lapsed).await? {
                    return Ok(Some(next));
                }
                self.run = None;
            }
            if !std::mem::replace(&mut self.swept, true) {
                self.sweep(work, claim, SWEPT).await?;
            }
            self.ready.fill(work, &self.lane).await?;
            if self.heads.fill(work, &self.lane).await? {
                self.look_ahead(work, claim).await?;
            }
            let place = |part: &Stretch| part.read.front().map(|(pos, _)| *pos);
            let ready_first = match (place(&self.ready), place(&self.heads)) {
                (None, None) => return Ok(None),
                (Some(ready), head) => head.is_none_or(|head| ready < head),
                (None, Some(_)) => false,
            };
            if !ready_first {
                let Some((pos, head)) = self.heads.read.pop_front() else {
                    continue;
                };
                if !claim.not_topics.contains(&head.topic) && !passing.leaves() {
                    self.run = self.run_from(work, pos, &head).await?;
                }
                continue;
            }
            let Some((pos, ready)) = self.ready.read.pop_front() else {
                continue;
            };
            if claim.not_topics.contains(&ready.topic) {
                self.walk.as_mut().into_iter().for_each(|walk| walk.leaves(pos));
                continue;
            }
            // Others do not see what is below the floor of this handle.
            let below = self.walk.as_ref().is_some_and(|walk| walk.is_below(pos));
            if !below && passing.leaves() {
                self.stays(pos, &ready);
                continue;
            }
            self.walk.as_mut().into_iter().for_each(|walk| walk.takes(pos));
            if ready.deliver_by.is_some_and(|at| at <= work.now) {
                if !work.lapse(ready.seq).await? {
                    work.forget_line(&self.lane, pos, &ready);
                }
                passing.lapsed += 1;
                continue;
            }
            return Ok(Some((pos, ready)));
        }
    }
}

impl Line {
    /// The run that begins at a hint, if that is the first of its key and nothing holds it. If it is not, the hints of the key are taken away:
    /// whoever frees it makes another.
    async fn run_from(&mut self, work: &mut Work<'_>, pos: i64, head: &InLine) -> Result<Option<Run>, Error> {
        let Some(order_key) = head.key.clone() else {
            return Err(internal("a head has no key"));
        };
        let part = self.begun.get(&order_key).cloned().unwrap_or_default();
        let key = (self.lane.clone(), order_key);
        let first = part.front().map(|(first, _)| *first);
        if work.is_leased(&key) {
            self.thin_out(work, &key, pos, first);
            return Ok(None);
        }
        if work.is_free(&key, pos).await? && first == Some(pos) {
            return Ok(Some(Run {
                after: part.back().map_or(i64::MIN, |(pos, _)| *pos),
                over: part.len() < BEGUN,
                part,
                key,
            }));
        }
        work.unhint(&key, pos);
        for (pos, _) in &part {
            work.unhint(&key, *pos);
        }
        Ok(None)
    }

    /// A hint of a key that somebody is at, who may be a handler in his own transaction: he must not be disturbed, so the key's record is not written, and the hint of the first
    /// stays, which he will write. To take away the others is safe all the same. Whoever ends the lease writes the hint of what is first then; if that is one of these, which takes
    /// an operator who ended the first meanwhile, both have written the same record, and one of them is told.
    fn thin_out(&mut self, work: &mut Work<'_>, key: &Key, pos: i64, first: Option<i64>) {
        if first == Some(pos) {
            return;
        }
        let left = self.left.entry(key.1.clone()).or_default();
        left.push(pos);
        if left.len() >= CROWD {
            std::mem::take(left).into_iter().for_each(|pos| work.unhint(key, pos));
        }
    }
}

/// The run of a key from its head: consecutive messages that are due, as far as none stops it.
struct Run {
    key: Key,
    part: VecDeque<(i64, InLine)>,
    after: i64,
    over: bool,
}

impl Run {
    async fn fill(&mut self, work: &Work<'_>) -> Result<(), Error> {
        if self.over || !self.part.is_empty() {
            return Ok(());
        }
        let ((namespace, tenant), order_key) = &self.key;
        let range = line_of(&self.key).above(name!(KEYED, namespace, tenant, order_key, self.after));
        let page = records::first::<InLine>(work.on, range, MOST_LOOK).await?;
        self.over = page.len() < MOST_LOOK;
        for (name, in_line) in page {
            self.after = name.number(3)?;
            self.part.push_back((self.after, in_line));
        }
        Ok(())
    }

    async fn next(
        &mut self,
        work: &mut Work<'_>,
        claim: &Claim,
        lapses: &mut usize,
    ) -> Result<Option<(i64, InLine)>, Error> {
        // Ends: each turn takes one of the key.
        loop {
            if *lapses >= LAPSED {
                return Ok(None);
            }
            self.fill(work).await?;
            let Some((pos, next)) = self.part.pop_front() else {
                return Ok(None);
            };
            let lapsed = next.deliver_by.is_some_and(|at| at <= work.now);
            let left = claim.not_topics.contains(&next.topic) || work.is_blocked(&self.key, pos);
            if left || (!lapsed && next.due_at > work.now) {
                (self.over, self.part) = (true, VecDeque::new());
                return Ok(None);
            }
            if !lapsed {
                return Ok(Some((pos, next)));
            }
            *lapses += 1;
            if !work.lapse(next.seq).await? {
                work.forget_line(&self.key.0, pos, &next);
            } else if next.blocks {
                (self.over, self.part) = (true, VecDeque::new());
                return Ok(None);
            }
        }
    }
}
