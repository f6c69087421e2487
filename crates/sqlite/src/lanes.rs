//! Who is next: the lines that a claim takes from.
//!
//! A lane is a namespace and a tenant. It has a line of messages without an order key, and the heads of its keys; both
//! carry places from one sequence, so the older comes first. Where a head comes first, its key's run follows it, because
//! all leases of a key must belong to one claim.

use posthouse_core::{Claim, Error, Standing, State};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::VecDeque;

use crate::{
    claim::lane_name,
    error::plain,
    rows::{Key, standing},
};

const NEXT_LANE: &str = include_str!("../sql/next_lane.sql");
const NEXT_LANE_SCOPED: &str = include_str!("../sql/next_lane_scoped.sql");
const CLAIM_READY: &str = include_str!("../sql/claim_ready.sql");
const CLAIM_HEADS: &str = include_str!("../sql/claim_heads.sql");
const LINE_END: &str = include_str!("../sql/line_end.sql");
const CLAIM_RUN: &str = include_str!("../sql/claim_run.sql");

/// How many records the first look into a line reads; each further one reads four times as many, up to what the claim can
/// take. Little is read in vain when many lanes share a claim, and little is asked when one lane fills it.
const FIRST_LOOK: u32 = 16;

/// What a claim may touch, in the forms that SQL takes.
pub(crate) struct Scope {
    /// A JSON list; all when absent.
    pub namespaces: Option<String>,
    pub tenant: Option<String>,
    /// A JSON list; none when absent.
    pub not_topics: Option<String>,
    not_tenants: Vec<String>,
    /// The most that is granted.
    pub batch: u32,
    pub now: i64,
}

impl Scope {
    pub fn new(claim: &Claim, now: i64) -> Self {
        let list = |names: &[String]| (!names.is_empty()).then(|| serde_json::json!(names).to_string());
        Self {
            namespaces: list(&claim.namespaces),
            tenant: claim.tenant.clone(),
            not_topics: list(&claim.not_topics),
            not_tenants: claim.not_tenants.clone(),
            batch: claim.batch,
            now,
        }
    }

    /// Whether it is about every namespace and tenant, but for some that are left.
    pub fn is_all(&self) -> bool {
        self.namespaces.is_none() && self.tenant.is_none()
    }

    /// Whether a lane is of a tenant that is left.
    fn leaves(&self, tx: &Connection, lane: i64) -> Result<bool, Error> {
        Ok(!self.not_tenants.is_empty() && self.not_tenants.contains(&lane_name(tx, lane)?.1))
    }
}

/// The lanes with work in turn, once round, beginning after the one that was served last.
pub(crate) struct Round {
    start: i64,
    at: i64,
    wrapped: bool,
}

impl Round {
    pub fn after(served: i64) -> Self {
        Self {
            start: served,
            at: served,
            wrapped: false,
        }
    }

    /// The next lane, or none when the round is over.
    pub fn next(&mut self, tx: &Connection, scope: &Scope) -> Result<Option<i64>, Error> {
        let mut found = next_lane(tx, scope, self.at)?;
        while let Some(lane) = found
            && scope.leaves(tx, lane)?
        {
            found = next_lane(tx, scope, lane)?;
        }
        match found {
            Some(lane) if !self.wrapped || lane <= self.start => {
                self.at = lane;
                Ok(Some(lane))
            }
            None if !self.wrapped => {
                self.wrapped = true;
                self.at = i64::MIN;
                self.next(tx, scope)
            }
            _ => Ok(None),
        }
    }
}

fn next_lane(tx: &Connection, scope: &Scope, after: i64) -> Result<Option<i64>, Error> {
    let found = if scope.is_all() {
        tx.prepare_cached(NEXT_LANE)
            .and_then(|mut next| next.query_row([after], |row| row.get(0)))
    } else {
        let mut next = tx.prepare_cached(NEXT_LANE_SCOPED).map_err(plain)?;
        next.query_row(params![after, scope.namespaces, scope.tenant], |row| row.get(0))
            .optional()
            .map(Option::flatten)
    };
    found.map_err(plain)
}

/// A message that waits in a line.
pub(crate) struct InLine {
    pub lane: i64,
    pub key: Option<Key>,
    pub pos: i64,
    pub seq: i64,
    pub bytes: u64,
    pub deliver_by: Option<i64>,
    /// Where it stands while it waits.
    pub standing: Standing,
}

/// What a line gives next.
pub(crate) enum Next {
    /// It may be granted.
    Free(InLine),
    /// Its deliver-by has passed.
    Lapsed(InLine),
}

/// The line of one lane, read a little at a time.
pub(crate) struct Lane {
    lane: i64,
    ready: Line<Waiting>,
    heads: Line<(i64, Key)>,
    run: Option<Run>,
}

/// What is read of a waiting message.
struct Waiting {
    pos: i64,
    seq: i64,
    bytes: i64,
    deliver_by: Option<i64>,
    standing: Standing,
}

impl Waiting {
    /// `pos, seq, bytes, deliver_by, <standing>`.
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            pos: row.get(0)?,
            seq: row.get(1)?,
            bytes: row.get(2)?,
            deliver_by: row.get(3)?,
            standing: standing(row, 4, State::Pending)?,
        })
    }
}

impl Lane {
    /// The line from above this place.
    pub fn new(lane: i64, floor: i64, scope: &Scope) -> Self {
        Self {
            lane,
            ready: Line::new(floor, scope.batch),
            heads: Line::new(i64::MIN, scope.batch),
            run: None,
        }
    }

    /// The next message of this lane, the oldest first.
    pub fn next(&mut self, tx: &Connection, scope: &Scope) -> Result<Option<Next>, Error> {
        // Ends: each turn takes from a line, and lines are finite within one transaction.
        loop {
            if let Some(run) = &mut self.run {
                if let Some(next) = run.next(tx, scope, self.lane)? {
                    return Ok(Some(next));
                }
                self.run = None;
            }
            self.look(tx, scope)?;
            let (ready, head) = (self.ready.first(|w| w.pos), self.heads.first(|(pos, _)| *pos));
            match (ready, head) {
                (None, None) => return Ok(None),
                (Some(ready), head) if head.is_none_or(|head| ready < head) => {
                    let Some(waiting) = self.ready.read.pop_front() else {
                        return Ok(None);
                    };
                    return Ok(Some(judge(waiting, self.lane, None, scope.now)));
                }
                _ => self.run = self.heads.read.pop_front().map(|(pos, key)| Run::new(key, pos, scope)),
            }
        }
    }

    /// The lane, and the place up to which everything was taken or is to be left.
    pub fn passed(&self, tx: &Connection) -> Result<(i64, Option<i64>), Error> {
        let waiting = self.ready.first(|w| w.pos).map(|first| first - 1);
        if waiting.is_some() || !self.ready.over {
            return Ok((self.lane, Some(waiting.unwrap_or(self.ready.after))));
        }
        let mut statement = tx.prepare_cached(LINE_END).map_err(plain)?;
        let end = statement.query_row([self.lane], |row| row.get(0)).map_err(plain)?;
        Ok((self.lane, end))
    }

    fn look(&mut self, tx: &Connection, scope: &Scope) -> Result<(), Error> {
        let lane = self.lane;
        self.ready.fill(|after, limit| {
            let mut statement = tx.prepare_cached(CLAIM_READY).map_err(plain)?;
            let rows = statement.query_map(params![lane, after, limit, scope.not_topics], Waiting::read);
            rows.and_then(Iterator::collect).map_err(plain)
        })?;
        self.heads.fill(|after, limit| {
            let mut statement = tx.prepare_cached(CLAIM_HEADS).map_err(plain)?;
            let rows = statement.query_map(params![lane, after, limit, scope.not_topics], |row| {
                Ok((row.get(0)?, row.get(1)?))
            });
            rows.and_then(Iterator::collect).map_err(plain)
        })?;
        self.ready.passed(|w| w.pos);
        self.heads.passed(|(pos, _)| *pos);
        Ok(())
    }
}

/// Part of a line: what was read and not yet taken, and where reading goes on.
struct Line<T> {
    read: VecDeque<T>,
    after: i64,
    limit: u32,
    /// How many more the claim could take, if all that was read is free.
    wanted: u32,
    over: bool,
}

impl<T> Line<T> {
    fn new(after: i64, batch: u32) -> Self {
        Self {
            read: VecDeque::new(),
            after,
            limit: FIRST_LOOK,
            wanted: batch,
            over: false,
        }
    }

    fn first(&self, pos: impl Fn(&T) -> i64) -> Option<i64> {
        self.read.front().map(pos)
    }

    /// Reads on when everything read is taken.
    fn fill(&mut self, read: impl FnOnce(i64, u32) -> Result<VecDeque<T>, Error>) -> Result<(), Error> {
        if self.over || !self.read.is_empty() {
            return Ok(());
        }
        // Some may have been read that were not free, so it never looks for nothing.
        let limit = self.limit.min(self.wanted.max(FIRST_LOOK));
        self.read = read(self.after, limit)?;
        self.over = self.read.len() < limit as usize;
        self.wanted = self.wanted.saturating_sub(limit);
        self.limit = self.limit.saturating_mul(4);
        Ok(())
    }

    /// Remembers how far was read.
    fn passed(&mut self, pos: impl Fn(&T) -> i64) {
        if let Some(last) = self.read.back() {
            self.after = pos(last);
        }
    }
}

/// The run of a key from its free head: consecutive messages that are due, as far as none stops it.
struct Run {
    key: Key,
    line: Line<InRun>,
    stopped: bool,
}

/// What is read of a message of a run.
struct InRun {
    waiting: Waiting,
    due_at: i64,
    left: bool,
    blocks: bool,
}

impl Run {
    fn new(key: Key, head: i64, scope: &Scope) -> Self {
        Self {
            key,
            line: Line::new(head - 1, scope.batch),
            stopped: false,
        }
    }

    fn next(&mut self, tx: &Connection, scope: &Scope, lane: i64) -> Result<Option<Next>, Error> {
        if self.stopped {
            return Ok(None);
        }
        let key = &self.key;
        self.line.fill(|after, limit| {
            let mut statement = tx.prepare_cached(CLAIM_RUN).map_err(plain)?;
            let rows = statement.query_map(params![lane, key, after, limit, scope.not_topics], |row| {
                Ok(InRun {
                    waiting: Waiting::read(row)?,
                    due_at: row.get(9)?,
                    left: row.get(10)?,
                    blocks: row.get(11)?,
                })
            });
            rows.and_then(Iterator::collect).map_err(plain)
        })?;
        self.line.passed(|m| m.waiting.pos);
        let Some(InRun {
            waiting,
            due_at,
            left,
            blocks,
        }) = self.line.read.pop_front()
        else {
            return Ok(None);
        };
        let lapsed = waiting.deliver_by.is_some_and(|at| at <= scope.now);
        if left || (!lapsed && due_at > scope.now) {
            self.stopped = true;
            return Ok(None);
        }
        self.stopped = lapsed && blocks;
        Ok(Some(judge(waiting, lane, Some(key.clone()), scope.now)))
    }
}

fn judge(waiting: Waiting, lane: i64, key: Option<Key>, now: i64) -> Next {
    let lapsed = waiting.deliver_by.is_some_and(|at| at <= now);
    let in_line = InLine {
        lane,
        key,
        pos: waiting.pos,
        seq: waiting.seq,
        bytes: waiting.bytes.unsigned_abs(),
        deliver_by: waiting.deliver_by,
        standing: waiting.standing,
    };
    if lapsed {
        Next::Lapsed(in_line)
    } else {
        Next::Free(in_line)
    }
}
