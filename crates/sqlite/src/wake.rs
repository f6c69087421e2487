//! Waking up: a sleeper looks every few milliseconds whether anybody, in any process, has committed.
//!
//! The look is at a counter in shared memory. It has a connection of its own, because the counter tells about *other*
//! connections, the store's own writer among them.

use posthouse_core::{Error, Wake};
use rusqlite::Connection;
use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};
use tokio::time::{Instant, sleep};

use crate::error::{is_busy, plain};

const DATA_VERSION: &str = include_str!("../sql/data_version.sql");

/// How often a sleeper looks.
const INTERVAL: Duration = Duration::from_millis(5);

/// The connection that looks, and what it saw last.
pub(crate) struct Watch(Mutex<(Connection, Option<i64>)>);

impl Watch {
    pub fn new(db: Connection) -> Self {
        Self(Mutex::new((db, None)))
    }

    /// Remembers where the counter stands: whatever is committed from here on wakes.
    pub fn mark(&self) -> Result<(), Error> {
        self.look().map(|_| ())
    }

    /// Sleeps until something was committed since the last look, at most this long.
    pub async fn wait(&self, at_most: Duration) -> Result<Wake, Error> {
        let until = Instant::now() + at_most;
        // Ends: when the time is up.
        loop {
            if self.look()? {
                return Ok(Wake::Rung);
            }
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(Wake::Elapsed);
            }
            sleep(left.min(INTERVAL)).await;
        }
    }

    /// Whether the counter has moved since the last look.
    fn look(&self) -> Result<bool, Error> {
        let mut watch = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (db, seen) = &mut *watch;
        let version: rusqlite::Result<i64> = db
            .prepare_cached(DATA_VERSION)
            .and_then(|mut statement| statement.query_row([], |row| row.get(0)));
        match version {
            Ok(version) => Ok(seen.replace(version).is_some_and(|before| before != version)),
            // Somebody has the file for itself for a moment; the next look will tell.
            Err(error) if is_busy(&error) => Ok(false),
            Err(error) => Err(plain(error)),
        }
    }
}
