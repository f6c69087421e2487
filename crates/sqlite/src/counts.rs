//! Counts messages by state: up to a cap, with a bounded number of rows read of each table.
//!
//! No counter is kept, because every enqueue would have to write it. Done is what has no row in the tables of the live, so the first
//! messages are looked at one by one; below the first number that waits or is leased that costs two look-ups each.

use posthouse_core::{Count, Counts, Error, Timestamp, admin::check_cap};
use rusqlite::{Connection, Row, params};

use crate::{clock, error::plain};

const WALK: &str = include_str!("../sql/counts.sql");
const OLDEST: &str = include_str!("../sql/counts_oldest.sql");
const DONE: &str = include_str!("../sql/counts_done.sql");

/// Rows of each table that are read, as a multiple of the cap: where a table holds two kinds, few of one are found among many of the
/// other.
const ROWS: u32 = 10;
/// Messages that are looked at for those that are done, as a multiple of the cap.
const MESSAGES: u32 = 2;

/// Counts in one snapshot of the database.
pub(crate) fn counts(db: &Connection, cap: u32) -> Result<Counts, Error> {
    check_cap(cap)?;
    let tx = db.unchecked_transaction().map_err(plain)?;
    let now = clock::now(&tx)?;
    let walked = Walked::read(&tx, cap, now).map_err(plain)?;
    let oldest = oldest(&tx, cap, now, &walked).map_err(plain)?;
    Ok(Counts {
        done: done(&tx, cap, walked.low()).map_err(plain)?,
        oldest_due: oldest.map(Timestamp::from_micros),
        now: Some(Timestamp::from_micros(now)),
        ..walked.counts(cap)
    })
}

/// What was read of one table.
#[derive(Clone, Copy)]
struct Table {
    rows: u32,
    /// Those of them that are of another kind.
    other: u32,
    /// Whether these are all its rows.
    whole: bool,
}

impl Table {
    fn read(row: &Row<'_>, at: usize, most: u32) -> rusqlite::Result<Self> {
        let rows = row.get(at)?;
        Ok(Self {
            rows,
            other: row.get(at + 1)?,
            whole: rows < most,
        })
    }

    const fn rest(self) -> u32 {
        self.rows - self.other
    }
}

/// What was read of all of them.
struct Walked {
    /// Those of the first three that are not due yet are the other kind.
    ready: Table,
    sched: Table,
    keyed: Table,
    /// Expired.
    leased: Table,
    /// Quarantined.
    dead: Table,
    blocked: u32,
    blocked_whole: bool,
    /// Whether all of sched that are due were read.
    due_whole: bool,
    /// The first numbers that are ready, keyed, leased.
    lows: [Option<i64>; 3],
    oldest: Option<i64>,
}

impl Walked {
    fn read(db: &Connection, cap: u32, now: i64) -> rusqlite::Result<Self> {
        // One more, to know whether there is more.
        let most = ROWS * cap + 1;
        db.prepare_cached(WALK)?.query_row(params![most, now], |row| {
            let sched = Table::read(row, 5, most)?;
            let oldest: [Option<i64>; 4] = [row.get(2)?, row.get(3)?, row.get(7)?, row.get(11)?];
            let blocked = row.get(18)?;
            Ok(Self {
                ready: Table::read(row, 0, most)?,
                sched,
                keyed: Table::read(row, 9, most)?,
                leased: Table::read(row, 13, most)?,
                dead: Table::read(row, 16, most)?,
                blocked,
                blocked_whole: blocked < most,
                due_whole: sched.whole || row.get::<_, Option<i64>>(8)? > Some(now),
                lows: [row.get(4)?, row.get(12)?, row.get(15)?],
                oldest: oldest.into_iter().flatten().filter(|at| *at <= now).min(),
            })
        })
    }

    /// A number below which nothing waits or is leased, but what is scheduled.
    fn low(&self) -> i64 {
        match [self.ready, self.keyed, self.leased].iter().all(|table| table.whole) {
            true => self.lows.into_iter().flatten().min().unwrap_or(i64::MAX),
            false => i64::MIN,
        }
    }

    fn counts(&self, cap: u32) -> Counts {
        let count = |seen: u32, whole: bool| Count::capped(seen.into(), whole, cap);
        let (ready, sched, keyed) = (self.ready, self.sched, self.keyed);
        let (leased, dead) = (self.leased, self.dead);
        Counts {
            ready: count(
                ready.rest() + sched.rest() + keyed.rest(),
                ready.whole && keyed.whole && self.due_whole,
            ),
            scheduled: count(
                ready.other + sched.other + keyed.other,
                ready.whole && keyed.whole && sched.whole,
            ),
            leased: count(leased.rows, leased.whole),
            dead: count(dead.rest(), dead.whole),
            quarantined: count(dead.other, dead.whole),
            expired: count(leased.other, leased.whole),
            blocked_keys: count(self.blocked, self.blocked_whole),
            ..Counts::default()
        }
    }
}

/// How many are done among the first messages.
fn done(db: &Connection, cap: u32, low: i64) -> rusqlite::Result<Count> {
    let most = MESSAGES * cap + 1;
    let mut statement = db.prepare_cached(DONE)?;
    let read = |row: &Row<'_>| Ok((row.get::<_, u32>(0)?, row.get::<_, u32>(1)?));
    let (looked, done) = statement.query_row(params![most, low], read)?;
    Ok(Count::capped(done.into(), looked < most, cap))
}

/// Since when the oldest waits that is due, among what was read and the first of each line.
fn oldest(db: &Connection, cap: u32, now: i64, walked: &Walked) -> rusqlite::Result<Option<i64>> {
    let mut statement = db.prepare_cached(OLDEST)?;
    let first: Option<i64> = statement.query_row(params![cap + 1, now], |row| row.get(0))?;
    Ok(first.into_iter().chain(walked.oldest).min())
}
