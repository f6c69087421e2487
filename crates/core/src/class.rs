//! The stable names of what becomes of a send, for logs, metrics and audits.
//!
//! What became of a message is an attempt, and [`AttemptOutcome::class`](crate::AttemptOutcome::class) names it. A lease that was
//! lost, or a store that does not answer, is never an attempt: it is something that happens to a relay.
//!
//! | class | meaning | where |
//! |---|---|---|
//! | `outbox_flush_success` | delivered, or expanded into its children | attempt, log |
//! | `outbox_flush_retry` | failed, or its lease ran out; it is tried again | attempt, log |
//! | `outbox_flush_dead` | failed for good | attempt, log |
//! | `outbox_flush_dedup_hit` | delivered before; the earlier receipt stands | attempt, log |
//! | `outbox_flush_conflict` | somebody else has the lease; what was to be written was not | audit, log |
//! | `outbox_flush_db_timeout` | the store did not answer in time | log |
//! | `outbox_flush_db_error` | the store refused, or was not there | log |

use crate::Error;

/// A send went well.
pub const SUCCESS: &str = "outbox_flush_success";
/// A send failed, and is tried again.
pub const RETRY: &str = "outbox_flush_retry";
/// A message is dead.
pub const DEAD: &str = "outbox_flush_dead";
/// An earlier receipt stands for a message.
pub const DEDUP_HIT: &str = "outbox_flush_dedup_hit";
/// A lease was lost.
pub const CONFLICT: &str = "outbox_flush_conflict";
/// The store did not answer in time.
pub const DB_TIMEOUT: &str = "outbox_flush_db_timeout";
/// The store said no.
pub const DB_ERROR: &str = "outbox_flush_db_error";

/// All of them.
pub const ALL: [&str; 7] = [SUCCESS, RETRY, DEAD, DEDUP_HIT, CONFLICT, DB_TIMEOUT, DB_ERROR];

/// The class of what a store told a relay.
pub const fn of_error(error: &Error) -> &'static str {
    match error {
        Error::LeaseLost(_) => CONFLICT,
        Error::Timeout(_) => DB_TIMEOUT,
        _ => DB_ERROR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{AttemptOutcome::*, MessageId};

    #[test]
    fn they_are_the_published_strings() {
        let lost = Error::LeaseLost(MessageId(uuid::Uuid::nil()));
        let classes = [
            Delivered.class(false),
            Retry.class(false),
            Rejected.class(true),
            Duplicate.class(false),
            of_error(&lost),
            of_error(&Error::Timeout("statement timeout".into())),
            of_error(&Error::Unavailable("no server".into())),
        ];
        let published = "success retry dead dedup_hit conflict db_timeout db_error";
        let published: Vec<_> = published
            .split(' ')
            .map(|word| format!("outbox_flush_{word}"))
            .collect();
        assert_eq!(classes.to_vec(), published);
        assert_eq!(classes, ALL);
        assert_eq!(of_error(&Error::Contention("busy".into())), DB_ERROR);
    }
}
