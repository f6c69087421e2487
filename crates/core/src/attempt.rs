//! The evidence of a lease: one append-only row for each that ended in an outcome.

use serde::Serialize;

use crate::{LeaseToken, Timestamp, class, message::word_enum};

word_enum!(
    /// How a counted lease ended.
    AttemptOutcome, "outcome" {
        /// The destination acknowledged it.
        Delivered = "delivered",
        /// It had been delivered before; the earlier receipt stands.
        Duplicate = "duplicate",
        /// It was replaced by one child for each destination.
        Expanded = "expanded",
        /// It failed and may be tried again.
        Retry = "retry",
        /// It failed for good.
        Rejected = "rejected",
        /// Nobody reported before the deadline.
        LeaseExpired = "lease_expired",
        /// Its deliver-by passed before the send.
        Lapsed = "lapsed",
    }
);

impl AttemptOutcome {
    /// Whether the destination has the message: it acknowledged it now, or had it before.
    pub const fn is_delivery(self) -> bool {
        matches!(self, Self::Delivered | Self::Duplicate)
    }

    /// The stable class string of this outcome, for logs, metrics and audits; `dead` says that it ended the message.
    pub const fn class(self, dead: bool) -> &'static str {
        match self {
            Self::Delivered | Self::Expanded => class::SUCCESS,
            Self::Duplicate => class::DEDUP_HIT,
            Self::Rejected | Self::Lapsed => class::DEAD,
            Self::Retry | Self::LeaseExpired if dead => class::DEAD,
            Self::Retry | Self::LeaseExpired => class::RETRY,
        }
    }
}

/// One row of evidence. Never updated; gone only with its message.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Attempt {
    /// The grant it belongs to; unique for the message, rising over replays too.
    pub epoch: u64,
    /// The generation: 1, and one more with each replay.
    pub generation: u32,
    /// The number within the generation, gapless from 1.
    pub attempt: u32,
    /// The label of the worker that held the lease.
    pub worker: String,
    /// The fence of that lease; nil where whoever asks may not act in its name.
    #[serde(skip)]
    pub token: LeaseToken,
    /// How it ended.
    pub outcome: AttemptOutcome,
    /// The destination's own code: `http_503`, `timeout`, ...
    pub code: Option<String>,
    /// What was said about the failure, cleaned and cut.
    pub error: Option<String>,
    /// What the destination returned.
    pub receipt: Option<String>,
    /// When the lease was granted.
    pub started_at: Timestamp,
    /// When the outcome was recorded.
    pub finished_at: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::AttemptOutcome::*;

    #[test]
    fn classes_are_the_published_strings() {
        assert_eq!(Delivered.class(false), "outbox_flush_success");
        assert_eq!(Duplicate.class(false), "outbox_flush_dedup_hit");
        assert_eq!(Retry.class(false), "outbox_flush_retry");
        assert_eq!(Retry.class(true), "outbox_flush_dead");
        assert_eq!(Rejected.class(true), "outbox_flush_dead");
        assert_eq!(LeaseExpired.class(false), "outbox_flush_retry");
    }
}
