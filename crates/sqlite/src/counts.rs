//! How many messages there are: counted while they are few, estimated from samples when they are many.
//!
//! No counter is kept, because every enqueue would have to write it. What is counted is read from the tables of the live, a
//! bounded number of records each. Where a table holds more, ranges of numbers are sampled: the newest messages whole, the
//! older ones ever more thinly, because most of what lives is new, and what is old is mostly done.

use posthouse_core::{Count, Counts, Error, Timestamp, admin::COUNTED_AT_MOST};
use rusqlite::{Connection, Row, params};

use crate::{clock, error::plain};

const WALK: &str = include_str!("../sql/counts.sql");
const OLDEST: &str = include_str!("../sql/counts_oldest.sql");
const MESSAGES: &str = include_str!("../sql/counts_messages.sql");
const RANGE: &str = include_str!("../sql/counts_range.sql");
const WINDOW: &str = include_str!("../sql/counts_window.sql");

/// How many numbers are looked at in each range.
const WIDTH: i64 = 128;

/// How much wider a range is than the newer one beside it: a hundred ranges for ten million messages.
const GROWTH: f64 = 1.1;

/// One more than is counted: where as many are read, there may be more.
const CAP: u32 = COUNTED_AT_MOST + 1;

/// One state of the database, counted.
pub(crate) fn counts(db: &Connection) -> Result<Counts, Error> {
    let tx = db.unchecked_transaction().map_err(plain)?;
    let now = clock::now(&tx)?;
    let walked = Walked::read(&tx, now).map_err(plain)?;
    let done = walked.done(&tx).map_err(plain)?;
    let sample = match done {
        Some(_) => Sample::default(),
        None => Sample::take(&tx, now).map_err(plain)?,
    };
    let mut counts = walked.counts(&sample);
    counts.done = match done {
        Some(done) => Count::exact(done.into()),
        None => sample.done(&counts),
    };
    counts.oldest_due = oldest(&tx, now, &walked).map_err(plain)?.map(Timestamp::from_micros);
    counts.now = Some(Timestamp::from_micros(now));
    Ok(counts)
}

/// What was read of one table.
#[derive(Clone, Copy)]
struct Table {
    rows: u32,
    /// Those of them that are of another kind.
    other: u32,
}

impl Table {
    fn read(row: &Row<'_>, at: usize) -> rusqlite::Result<Self> {
        Ok(Self {
            rows: row.get(at)?,
            other: row.get(at + 1)?,
        })
    }

    const fn is_whole(self) -> bool {
        self.rows < CAP
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
    /// Whether all of sched that are due were read.
    due_is_whole: bool,
    oldest: Option<i64>,
}

impl Walked {
    fn read(db: &Connection, now: i64) -> rusqlite::Result<Self> {
        db.prepare_cached(WALK)?.query_row(params![CAP, now], |row| {
            let sched = Table::read(row, 4)?;
            let oldest: [Option<i64>; 4] = [row.get(2)?, row.get(3)?, row.get(6)?, row.get(10)?];
            Ok(Self {
                ready: Table::read(row, 0)?,
                sched,
                keyed: Table::read(row, 8)?,
                leased: Table::read(row, 11)?,
                dead: Table::read(row, 13)?,
                blocked: row.get(15)?,
                due_is_whole: sched.is_whole() || row.get::<_, Option<i64>>(7)? > Some(now),
                oldest: oldest.into_iter().flatten().filter(|at| *at <= now).min(),
            })
        })
    }

    fn tables(&self) -> [Table; 5] {
        [self.ready, self.sched, self.keyed, self.leased, self.dead]
    }

    /// How many are done, if all that live were read and no more than are counted are done.
    fn done(&self, db: &Connection) -> rusqlite::Result<Option<u32>> {
        if !self.tables().into_iter().all(Table::is_whole) {
            return Ok(None);
        }
        let live: u32 = self.tables().iter().map(|table| table.rows).sum();
        let mut statement = db.prepare_cached(MESSAGES)?;
        let messages: u32 = statement.query_row([live + CAP], |row| row.get(0))?;
        let done = messages.saturating_sub(live);
        Ok((done < CAP).then_some(done))
    }

    fn counts(&self, sample: &Sample) -> Counts {
        let count = |walked: u32, exact: bool, kind: Kind| {
            let walked = u64::from(walked);
            // What was read is there, whatever the sample says.
            let value = if exact { walked } else { sample.of(kind).max(walked) };
            Count { value, exact }
        };
        let (ready, sched, keyed) = (self.ready, self.sched, self.keyed);
        let due = ready.rest() + sched.rest() + keyed.rest();
        let later = ready.other + sched.other + keyed.other;
        let (leased, dead) = (self.leased, self.dead);
        let due_exact = ready.is_whole() && keyed.is_whole() && self.due_is_whole;
        let later_exact = ready.is_whole() && keyed.is_whole() && sched.is_whole();
        Counts {
            ready: count(due, due_exact, Kind::Ready),
            scheduled: count(later, later_exact, Kind::Scheduled),
            leased: count(leased.rows, leased.is_whole(), Kind::Leased),
            dead: count(dead.rest(), dead.is_whole(), Kind::Dead),
            quarantined: count(dead.other, dead.is_whole(), Kind::Quarantined),
            expired: count(leased.other, leased.is_whole(), Kind::Expired),
            blocked_keys: count(self.blocked, self.blocked < CAP, Kind::Blocks),
            ..Counts::default()
        }
    }
}

/// Since when the oldest waits that is due, among what was read and the first of each line.
fn oldest(db: &Connection, now: i64, walked: &Walked) -> rusqlite::Result<Option<i64>> {
    let mut statement = db.prepare_cached(OLDEST)?;
    let first: Option<i64> = statement.query_row(params![CAP, now], |row| row.get(0))?;
    Ok(first.into_iter().chain(walked.oldest).min())
}

/// The columns of `counts_window.sql`.
#[derive(Clone, Copy)]
enum Kind {
    Message,
    Ready,
    Scheduled,
    Leased,
    Expired,
    Dead,
    Quarantined,
    Blocks,
}

/// How many of each kind there are, told from a part of them.
#[derive(Default)]
struct Sample([f64; 8]);

impl Sample {
    fn take(db: &Connection, now: i64) -> rusqlite::Result<Self> {
        let mut sample = Self::default();
        let mut range = db.prepare_cached(RANGE)?;
        let range: (Option<i64>, Option<i64>) = range.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        let (Some(first), Some(last)) = range else {
            return Ok(sample);
        };
        let mut window = db.prepare_cached(WINDOW)?;
        for (from, to) in ranges(first, last + 1) {
            // The middle of the range stands for all of it.
            let width = (to - from).min(WIDTH);
            let at = from + (to - from - width) / 2;
            let weight = (to - from) as f64 / width as f64;
            window.query_row(params![at, at + width, now], |row| {
                for (kind, sum) in sample.0.iter_mut().enumerate() {
                    *sum += weight * f64::from(row.get::<_, u32>(kind)?);
                }
                Ok(())
            })?;
        }
        Ok(sample)
    }

    fn of(&self, kind: Kind) -> u64 {
        self.0[kind as usize].round() as u64
    }

    /// What is left of all messages when those that live are taken away.
    fn done(&self, counts: &Counts) -> Count {
        let Counts {
            ready,
            scheduled,
            leased,
            dead,
            quarantined,
            ..
        } = *counts;
        let live = [ready, scheduled, leased, dead, quarantined].map(|count| count.value);
        Count {
            value: self.of(Kind::Message).saturating_sub(live.iter().sum()),
            exact: false,
        }
    }
}

/// Ranges from the newest on, each wider than the last, as far as the first number.
fn ranges(first: i64, end: i64) -> impl Iterator<Item = (i64, i64)> {
    let (mut to, mut width) = (end, WIDTH as f64);
    std::iter::from_fn(move || {
        let from = to.saturating_sub(width as i64).max(first);
        width *= GROWTH;
        let range = (from, std::mem::replace(&mut to, from));
        (range.0 < range.1).then_some(range)
    })
}
