//! What a deployment may choose.

use posthouse_core::Limits;
use std::time::Duration;

/// What a deployment of the store may choose. The defaults are those of every store. What was written by
/// [`configure`](crate::Sqlite::configure) stands before it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How large a message may be.
    pub limits: Limits,
    /// How long a dedupe key stays taken after its message ended; for ever when absent. It is written with the message.
    pub dedupe_lifetime: Option<Duration>,
    /// The attempt budget of a message that brings none.
    pub max_attempts: u32,
    /// How long the store waits for the one writer before it answers `Contention`. A transaction of the application that
    /// is open for longer than this makes the relay's calls fail, and the relay tries again.
    pub busy_timeout: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            limits: Limits::default(),
            dedupe_lifetime: Some(Duration::from_secs(7 * 24 * 3600)),
            max_attempts: 12,
            busy_timeout: Duration::from_secs(10),
        }
    }
}
