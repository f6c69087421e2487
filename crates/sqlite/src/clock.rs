//! The one clock: the view `posthouse_clock` in the database. Microseconds since 1970.

use posthouse_core::{Error, Timestamp};
use rusqlite::Connection;
use std::time::Duration;

use crate::error::plain;

pub(crate) const CLOCK: &str = include_str!("../sql/clock.sql");

/// What the store's clock says, in a transaction that holds the write lock already.
pub(crate) fn now(tx: &Connection) -> Result<i64, Error> {
    tx.prepare_cached(CLOCK)
        .and_then(|mut clock| clock.query_row([], |row| row.get(0)))
        .map_err(plain)
}

/// How long ago this was, by the store's clock.
pub(crate) fn since(tx: &Connection, at: i64) -> Result<Duration, Error> {
    let passed = now(tx)?.saturating_sub(at);
    Ok(Duration::from_micros(u64::try_from(passed).unwrap_or_default()))
}

/// A duration in the clock's unit; cut where a time could overflow.
pub(crate) fn micros(duration: Duration) -> i64 {
    i64::try_from(duration.as_micros()).unwrap_or(i64::MAX / 4)
}

/// `at`, later by `by`; saturates at the end of time.
pub(crate) fn later(at: i64, by: Duration) -> i64 {
    Timestamp::from_micros(at).plus(by).as_micros()
}
