//! A page of messages: a walk by number that stops when the page is full, or after a bounded number of messages.

use posthouse_core::{DeadReason, Error, Filter, MessageView, Page, State, Timestamp, admin::LOOKED_AT_MOST};
use rusqlite::{Connection, params};
use std::time::Duration;

use crate::{
    error::plain,
    rows::{all, message_view},
};

const WALK: &str = include_str!("../sql/list_walk.sql");
const VIEWS: &str = include_str!("../sql/list.sql");
const PENDING: &str = include_str!("../sql/pending.sql");

/// What is walked over, in the words of SQL. Each but the last is read in the order of its numbers, as far as needed.
const MESSAGES: &str = "posthouse_message";
const DEAD: &str = "posthouse_dead";
const LEASED: &str = "posthouse_leased";
const WAITING: &str = "(SELECT seq FROM posthouse_ready UNION ALL SELECT seq FROM posthouse_sched \
                       UNION ALL SELECT seq FROM posthouse_keyed)";

/// How far a clock may have been set back without a message being missed.
const SET_BACK: Duration = Duration::from_secs(3600);

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

/// The numbers of one message more than a page holds, and the last that was looked at if it stopped before the end.
fn walk(
    db: &Connection,
    filter: &Filter,
    source: &str,
    state: Option<State>,
) -> rusqlite::Result<(Vec<i64>, Option<i64>)> {
    let (beyond, order, start) = if filter.oldest_first {
        (">", "ASC", i64::MIN)
    } else {
        ("<", "DESC", i64::MAX)
    };
    let sql = WALK.replace("{source}", source).replace("{beyond}", beyond);
    let mut statement = db.prepare_cached(&sql.replace("{order}", order))?;
    let mut rows = statement.query(params![
        filter.beyond.unwrap_or(start),
        filter.namespace,
        filter.tenant,
        filter.topic,
        filter.order_key,
        filter.since.map(Timestamp::as_micros),
        filter.until.map(Timestamp::as_micros),
        state.map(State::as_str),
        filter.reason.map(DeadReason::as_str),
        filter.code,
    ])?;
    let (mut found, mut looked, mut last) = (Vec::new(), 0, None);
    while let Some(row) = rows.next()? {
        let seq = row.get(0)?;
        if looked == LOOKED_AT_MOST {
            let over = is_over(filter, Timestamp::from_micros(row.get(2)?));
            return Ok((found, last.filter(|_| !over)));
        }
        (looked, last) = (looked + 1, Some(seq));
        if row.get(1)? {
            found.push(seq);
        }
        if found.len() > filter.page_size() as usize {
            break;
        }
    }
    Ok((found, None))
}

/// Whether all that follows a message of this time is out of the filter's time. Numbers and times rise together, unless the
/// clock was set back; an hour is left for that.
fn is_over(filter: &Filter, created_at: Timestamp) -> bool {
    if filter.oldest_first {
        filter.until.is_some_and(|until| created_at > until.plus(SET_BACK))
    } else {
        filter.since.is_some_and(|since| since > created_at.plus(SET_BACK))
    }
}

/// The views of these messages, in no order.
pub(crate) fn views(db: &Connection, numbers: &[i64]) -> rusqlite::Result<Vec<MessageView>> {
    let numbers = serde_json::json!(numbers).to_string();
    all(db, VIEWS, params![numbers], message_view)
}
