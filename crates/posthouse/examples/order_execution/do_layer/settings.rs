//! The variables of the environment, with the values that hold without them.

use std::{str::FromStr, time::Duration};

/// How the worker works.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// `OUTBOX_ENABLED`: whether a worker runs beside the service. Without it orders are taken, and wait.
    pub enabled: bool,
    /// `OUTBOX_CONCURRENCY`: how many orders are sent at the same time.
    pub concurrency: u32,
    /// `OUTBOX_BATCH`: how many are claimed at once.
    pub batch: u32,
    /// `OUTBOX_POLL_INTERVAL_SEC`: how long a worker rests when there is nothing to do.
    pub poll: Duration,
    /// `OUTBOX_LOCK_LEASE_SEC`: how long a worker may be silent before another takes its orders. It is renewed while it works.
    pub lease: Duration,
    /// `OUTBOX_MAX_ATTEMPTS`: after so many an order is aborted.
    pub max_attempts: u32,
    /// `OUTBOX_BACKOFF_SEC`: the waits between them; the last one repeats.
    pub backoff: Vec<Duration>,
    /// `BROKER_TIMEOUT_MS`: how long the broker has for an answer.
    pub timeout: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            enabled: false,
            concurrency: 4,
            batch: 32,
            poll: Duration::from_millis(500),
            lease: Duration::from_secs(120),
            max_attempts: 6,
            backoff: [5, 10, 20, 40, 80, 160].map(Duration::from_secs).to_vec(),
            timeout: Duration::from_millis(2500),
        }
    }
}

impl Settings {
    /// What the environment says. A variable that cannot be read is named.
    pub fn read(variable: impl Fn(&str) -> Option<String>) -> Result<Self, String> {
        let usual = Self::default();
        let read = Reader(variable);
        Ok(Self {
            enabled: read.value("OUTBOX_ENABLED", usual.enabled)?,
            concurrency: read.value("OUTBOX_CONCURRENCY", usual.concurrency)?,
            batch: read.value("OUTBOX_BATCH", usual.batch)?,
            poll: read.seconds("OUTBOX_POLL_INTERVAL_SEC", usual.poll)?,
            lease: read.seconds("OUTBOX_LOCK_LEASE_SEC", usual.lease)?,
            max_attempts: read.value("OUTBOX_MAX_ATTEMPTS", usual.max_attempts)?,
            backoff: read.list("OUTBOX_BACKOFF_SEC", usual.backoff)?,
            timeout: read.millis("BROKER_TIMEOUT_MS", usual.timeout)?,
        })
    }
}

struct Reader<F>(F);

impl<F: Fn(&str) -> Option<String>> Reader<F> {
    fn value<T: FromStr>(&self, name: &str, usual: T) -> Result<T, String> {
        match (self.0)(name) {
            None => Ok(usual),
            Some(text) => text.trim().parse().map_err(|_| format!("{name}: cannot read {text:?}")),
        }
    }

    fn seconds(&self, name: &str, usual: Duration) -> Result<Duration, String> {
        let seconds = self.value(name, usual.as_secs_f64())?;
        Duration::try_from_secs_f64(seconds).map_err(|e| format!("{name}: {e}"))
    }

    fn millis(&self, name: &str, usual: Duration) -> Result<Duration, String> {
        let usual = u64::try_from(usual.as_millis()).unwrap_or(u64::MAX);
        self.value(name, usual).map(Duration::from_millis)
    }

    /// `[5,10,20]`, or `5,10,20`.
    fn list(&self, name: &str, usual: Vec<Duration>) -> Result<Vec<Duration>, String> {
        let Some(text) = (self.0)(name) else {
            return Ok(usual);
        };
        let inner = text.trim().trim_start_matches('[').trim_end_matches(']');
        let seconds = inner.split(',').map(|part| part.trim().parse::<f64>().ok());
        let waits = seconds.map(|seconds| Duration::try_from_secs_f64(seconds?).ok());
        waits
            .collect::<Option<_>>()
            .ok_or_else(|| format!("{name}: cannot read {text:?}; write it as in [5,10,20]"))
    }
}
