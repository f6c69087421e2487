//! A page of messages: a walk by number that stops when the page is full, or after a bounded number of messages.

use posthouse_core::{DeadReason, Error, Filter, MessageView, Page, State, Timestamp, admin::LOOKED_AT_MOST};
use rusqlite::{Connection, OptionalExtension, params};

use crate::{
    error::plain,
    rows::{all, message_view},
};

const WALK: &str = include_str!("../sql/list_walk.sql");
const ONLY: &str = include_str!("../sql/list_only.sql");
const NEXT: &str = include_str!("../sql/list_next.sql");
const VIEWS: &str = include_str!("../sql/list.sql");
const PENDING: &str = include_str!("../sql/pending.sql");
const NUMBERS: &str = include_str!("../sql/numbers.sql");
const NUMBER_AT: &str = include_str!("../sql/number_at.sql");

/// What is walked over, in the words of SQL. Each but the last is read in the order of its numbers, as far as needed.
const MESSAGES: &str = "posthouse_message";
const DEAD: &str = "posthouse_dead";
const LEASED: &str = "posthouse_leased";
const WAITING: &str = "(SELECT seq FROM posthouse_ready UNION ALL SELECT seq FROM posthouse_sched \
                       UNION ALL SELECT seq FROM posthouse_keyed)";

/// How far a clock may have been set back without a message being missed: an hour.
const SET_BACK: i64 = 3_600_000_000;

/// One state of the database, told as a page.
pub(crate) fn list(db: &Connection, filter: &Filter) -> Result<Page, Error> {
    let tx = db.unchecked_transaction().map_err(plain)?;
    let Some((source, state)) = source(&tx, filter)? else {
        return Ok(Page::of(Vec::new(), filter, None));
    };
    let (numbers, looked_to) = walk(&tx, filter, source, state).map_err(plain)?;
    let mut views = views(&tx, &numbers).map_err(plain)?;
    views.sort_by_key(|view| if filter.oldest_first { view.seq } else { -view.seq });
    Ok(Page::of(views, filter, looked_to))
}

/// What to walk over, and which state to look for in it. None when nothing can be of this state and die of this reason.
fn source(db: &Connection, filter: &Filter) -> Result<Option<(&'static str, Option<State>)>, Error> {
    let state = match (filter.state, filter.reason) {
        (None | Some(State::Dead), Some(_)) => Some(State::Dead),
        (Some(_), Some(_)) => return Ok(None),
        (state, None) => state,
    };
    Ok(Some(match state {
        Some(State::Dead | State::Quarantined) => (DEAD, state),
        Some(State::Leased) => (LEASED, None),
        Some(State::Pending) if few_wait(db)? => (WAITING, None),
        other => (MESSAGES, other),
    }))
}

/// Whether so few messages wait that all of them can be sorted by number. Where there are more, a walk over all messages
/// meets them soon.
fn few_wait(db: &Connection) -> Result<bool, Error> {
    let most = LOOKED_AT_MOST;
    let mut statement = db.prepare_cached(PENDING).map_err(plain)?;
    let found: u32 = statement.query_row([most + 1], |row| row.get(0)).map_err(plain)?;
    Ok(found <= most)
}

/// A walk in one direction.
struct Walk<'a> {
    filter: &'a Filter,
    /// What of the filter is to be looked for in each.
    state: Option<State>,
    /// What is looked for is between these numbers, without them.
    low: i64,
    high: i64,
}

/// What a walk found, and the last number that it looked at if it stopped before the end.
type Found = (Vec<i64>, Option<i64>);

/// The numbers of one message more than a page holds.
fn walk(db: &Connection, filter: &Filter, source: &str, state: Option<State>) -> rusqlite::Result<Found> {
    let (low, high) = bounds(db, filter)?;
    let walk = Walk {
        filter,
        state,
        low,
        high,
    };
    if source == MESSAGES {
        walk.over_all(db)
    } else {
        walk.over(db, source)
    }
}

impl Walk<'_> {
    /// A text of SQL with this direction in it.
    fn directed(&self, sql: &str) -> String {
        let (beyond, within, order) = if self.filter.oldest_first {
            (">", "<=", "ASC")
        } else {
            ("<", ">=", "DESC")
        };
        sql.replace("{beyond}", beyond)
            .replace("{within}", within)
            .replace("{order}", order)
    }

    const fn start(&self) -> i64 {
        if self.filter.oldest_first { self.low } else { self.high }
    }

    const fn is_within(&self, seq: i64) -> bool {
        self.low < seq && seq < self.high
    }

    fn is_full(&self, found: &[i64]) -> bool {
        found.len() > self.filter.page_size() as usize
    }

    /// Reads one after the other, of those that are in a table of their own. Tells each number, and whether the filter takes it.
    fn read(
        &self,
        db: &Connection,
        source: &str,
        from: i64,
        edge: Option<i64>,
        mut told: impl FnMut(i64, bool) -> bool,
    ) -> rusqlite::Result<()> {
        let filter = self.filter;
        let only = if edge.is_some() { ONLY } else { "" };
        let sql = self.directed(&WALK.replace("{source}", source).replace("{only}", only));
        let mut statement = db.prepare_cached(&sql)?;
        let values = params![
            from,
            filter.namespace,
            filter.tenant,
            filter.topic,
            filter.order_key,
            filter.since.map(Timestamp::as_micros),
            filter.until.map(Timestamp::as_micros),
            self.state.map(State::as_str),
            filter.reason.map(DeadReason::as_str),
            filter.code,
            edge,
        ];
        let given = if edge.is_some() { 11 } else { 10 };
        let mut rows = statement.query(&values[..given])?;
        while let Some(row) = rows.next()? {
            let seq = row.get(0)?;
            if !self.is_within(seq) || !told(seq, row.get(1)?) {
                break;
            }
        }
        Ok(())
    }

    fn over(&self, db: &Connection, source: &str) -> rusqlite::Result<Found> {
        let (mut found, mut looked, mut last, mut stopped) = (Vec::new(), 0, None, false);
        self.read(db, source, self.start(), None, |seq, takes| {
            stopped = looked == LOOKED_AT_MOST;
            if stopped {
                return false;
            }
            (looked, last) = (looked + 1, Some(seq));
            if takes {
                found.push(seq);
            }
            !self.is_full(&found)
        })?;
        Ok((found, last.filter(|_| stopped)))
    }

    /// Over all messages, in steps that grow: within a step SQLite itself passes over what the filter does not take. A step is so
    /// many numbers, from the next message on; some of them may be nobody's.
    fn over_all(&self, db: &Connection) -> rusqlite::Result<Found> {
        let (mut found, mut from, mut looked) = (Vec::new(), self.start(), 0);
        let mut width = 4 * self.filter.page_size();
        while let Some(next) = self.next(db, from)? {
            if looked >= LOOKED_AT_MOST {
                return Ok((found, Some(from)));
            }
            let far = i64::from(width) - 1;
            let far = if self.filter.oldest_first {
                next + far
            } else {
                next - far
            };
            self.read(db, MESSAGES, from, Some(far), |seq, takes| {
                if takes {
                    found.push(seq);
                }
                !self.is_full(&found)
            })?;
            if self.is_full(&found) {
                break;
            }
            looked += width;
            (from, width) = (far, (4 * width).min(LOOKED_AT_MOST - looked));
        }
        Ok((found, None))
    }

    /// The next message from here on.
    fn next(&self, db: &Connection, from: i64) -> rusqlite::Result<Option<i64>> {
        let mut statement = db.prepare_cached(&self.directed(NEXT))?;
        let next = statement.query_row([from], |row| row.get(0)).optional()?;
        Ok(next.filter(|seq| self.is_within(*seq)))
    }
}

/// The numbers between which, without them, all is that the filter can take.
fn bounds(db: &Connection, filter: &Filter) -> rusqlite::Result<(i64, i64)> {
    let (mut low, mut high) = (i64::MIN, i64::MAX);
    if let Some(since) = filter.since {
        low = number_at(db, since.as_micros().saturating_sub(SET_BACK))?.saturating_sub(1);
    }
    if let Some(until) = filter.until {
        high = number_at(db, until.as_micros().saturating_add(SET_BACK))?;
    }
    Ok(match filter.beyond {
        Some(beyond) if filter.oldest_first => (low.max(beyond), high),
        Some(beyond) => (low, high.min(beyond)),
        None => (low, high),
    })
}

/// The first number of a time. Numbers and times rise together, unless the clock was set back.
fn number_at(db: &Connection, at: i64) -> rusqlite::Result<i64> {
    let range: (Option<i64>, Option<i64>) = db
        .prepare_cached(NUMBERS)?
        .query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(mut low), Some(newest)) = range else {
        return Ok(i64::MAX);
    };
    let mut high = newest + 1;
    let mut statement = db.prepare_cached(NUMBER_AT)?;
    while low < high {
        let middle = low + (high - low) / 2;
        let (seq, created_at): (i64, i64) = statement.query_row([middle], |row| Ok((row.get(0)?, row.get(1)?)))?;
        if created_at >= at {
            high = middle;
        } else {
            low = seq + 1;
        }
    }
    Ok(low)
}

/// The views of these messages, in no order.
pub(crate) fn views(db: &Connection, numbers: &[i64]) -> rusqlite::Result<Vec<MessageView>> {
    let numbers = serde_json::json!(numbers).to_string();
    all(db, VIEWS, params![numbers], message_view)
}
