//! Errors by meaning, each with a stable code.
//!
//! An `Err` says "I could not do it, or could not find out". What a lease or a message turned out to be is an answer,
//! not an error: see [`Verdict`](crate::Verdict), [`Renewal`](crate::Renewal), [`Enqueued`](crate::Enqueued).

use std::fmt;

use crate::{MessageId, SagaId, State};

/// Any source error, kept for diagnosis.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// Input that was refused before any database traffic, with the field that was wrong.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct Invalid {
    /// Which field, as the user wrote it.
    pub field: &'static str,
    /// What is wrong with it, and what would be right.
    pub problem: String,
}

impl Invalid {
    /// A refusal of `field`.
    pub fn new(field: &'static str, problem: impl Into<String>) -> Self {
        Self {
            field,
            problem: problem.into(),
        }
    }
}

/// What went wrong, by what the caller can do about it.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The input is not acceptable; nothing was written.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The dedupe key (or id) is taken by a message with other content; nothing was written.
    #[error("the {key} is already used by message {existing}, which has other content")]
    DedupeConflict {
        /// `dedupe_key` or `id`.
        key: &'static str,
        /// The message that has it.
        existing: MessageId,
    },
    /// The lease is not, or no longer, held; nothing was changed.
    #[error("the lease on message {0} is lost")]
    LeaseLost(MessageId),
    /// An entry of the ledger is not, or no longer, held; or its holder had ended it before. Nothing was changed: roll back what was to go with it, and begin
    /// again to be told how it ended.
    #[error("the hold on an entry of {0:?} is lost, or was ended before")]
    HoldLost(String),
    /// The verb does not apply to the message's state; nothing was changed.
    #[error("cannot {verb} message {id}: it is {state}")]
    IllegalState {
        /// The message.
        id: MessageId,
        /// The state it was found in.
        state: State,
        /// What was asked.
        verb: &'static str,
    },
    /// No such message in this store.
    #[error("there is no message {0}")]
    NotFound(MessageId),
    /// The key is taken by a saga that was started with another input; nothing was written.
    #[error("the key is already used by saga {0}, which was started with another input")]
    SagaMismatch(SagaId),
    /// The verb does not apply to the saga as it stands; nothing was changed.
    #[error("cannot {} saga {id}: {why}", verb.replace('_', " "))]
    SagaRefused {
        /// The saga.
        id: SagaId,
        /// What was asked.
        verb: &'static str,
        /// Why not.
        why: String,
    },
    /// The message belongs to a saga, which decides what becomes of it; nothing was changed.
    #[error(
        "cannot {verb} message {id}: it belongs to saga {saga}; see `posthouse saga show {saga}`, and use the verbs of `posthouse saga`"
    )]
    OfSaga {
        /// The message.
        id: MessageId,
        /// Its saga.
        saga: SagaId,
        /// What was asked.
        verb: &'static str,
    },
    /// No such saga in this store.
    #[error("there is no saga {0}")]
    NoSaga(SagaId),
    /// A deadlock, serialisation failure or busy database: run the whole transaction again.
    #[error("the transaction lost a race in the database and must be run again: {0}")]
    Contention(#[source] BoxError),
    /// The store did not answer in time; whether the change was made is not known.
    #[error("the store did not answer in time: {0}")]
    Timeout(#[source] BoxError),
    /// The store cannot be reached.
    #[error("the store cannot be reached: {0}")]
    Unavailable(#[source] BoxError),
    /// The store was reached, and refuses: who asks has not the right to. The text says what was denied.
    #[error("the store does not allow it: {0}")]
    Denied(String),
    /// The store was reached, but its schema is missing, too old or too new. The text says what to do.
    #[error("{0}")]
    Schema(String),
    /// Anything else. A bug, or a database in a state that we do not know.
    #[error("internal error: {0}")]
    Internal(#[source] BoxError),
}

/// A stable name for a kind of error, for programs, logs and metrics.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Code {
    /// `SCHEMA.VALIDATION_FAILED`
    ValidationFailed,
    /// `STORAGE.CONFLICT`
    Conflict,
    /// `STORAGE.NOT_FOUND`
    NotFound,
    /// `STORAGE.SCHEMA_MISMATCH`
    SchemaMismatch,
    /// `TX.LEASE_LOST`
    LeaseLost,
    /// `TX.IDEMPOTENT_BUSY`
    IdempotentBusy,
    /// `TX.IDEMPOTENT_LAST_FAILED`
    IdempotentLastFailed,
    /// `TX.CONTENTION`
    Contention,
    /// `TX.TIMEOUT`
    Timeout,
    /// `PROVIDER.UNAVAILABLE`
    Unavailable,
    /// `AUTH.DENIED`
    Denied,
    /// `UNKNOWN.INTERNAL`
    Internal,
}

impl Code {
    /// Every code, for documentation and tests.
    pub const ALL: [Self; 12] = [
        Self::ValidationFailed,
        Self::Conflict,
        Self::NotFound,
        Self::SchemaMismatch,
        Self::LeaseLost,
        Self::IdempotentBusy,
        Self::IdempotentLastFailed,
        Self::Contention,
        Self::Timeout,
        Self::Unavailable,
        Self::Denied,
        Self::Internal,
    ];

    /// The stable name.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ValidationFailed => "SCHEMA.VALIDATION_FAILED",
            Self::Conflict => "STORAGE.CONFLICT",
            Self::NotFound => "STORAGE.NOT_FOUND",
            Self::SchemaMismatch => "STORAGE.SCHEMA_MISMATCH",
            Self::LeaseLost => "TX.LEASE_LOST",
            Self::IdempotentBusy => "TX.IDEMPOTENT_BUSY",
            Self::IdempotentLastFailed => "TX.IDEMPOTENT_LAST_FAILED",
            Self::Contention => "TX.CONTENTION",
            Self::Timeout => "TX.TIMEOUT",
            Self::Unavailable => "PROVIDER.UNAVAILABLE",
            Self::Denied => "AUTH.DENIED",
            Self::Internal => "UNKNOWN.INTERNAL",
        }
    }

    /// Whether the same call may succeed later, unchanged.
    pub const fn retryable(self) -> bool {
        matches!(
            self,
            Self::IdempotentBusy | Self::Contention | Self::Timeout | Self::Unavailable
        )
    }

    /// How much it should trouble whoever looks after the program.
    pub const fn severity(self) -> Severity {
        match self {
            Self::IdempotentBusy | Self::Contention => Severity::Info,
            Self::ValidationFailed | Self::Conflict | Self::NotFound | Self::LeaseLost | Self::IdempotentLastFailed => {
                Severity::Warning
            }
            Self::Timeout | Self::Unavailable | Self::Denied | Self::SchemaMismatch => Severity::Error,
            Self::Internal => Severity::Critical,
        }
    }
}

/// How much something should trouble whoever looks after the program.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Severity {
    /// It belongs to the day's work.
    Info,
    /// Somebody was refused; if that goes on, look.
    Warning,
    /// Something is missing or in the way.
    Error,
    /// It should not be possible.
    Critical,
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl Error {
    /// The stable code of this error.
    pub const fn code(&self) -> Code {
        match self {
            Self::Invalid(_) => Code::ValidationFailed,
            Self::DedupeConflict { .. }
            | Self::IllegalState { .. }
            | Self::SagaMismatch(_)
            | Self::SagaRefused { .. }
            | Self::OfSaga { .. } => Code::Conflict,
            Self::LeaseLost(_) | Self::HoldLost(_) => Code::LeaseLost,
            Self::NotFound(_) | Self::NoSaga(_) => Code::NotFound,
            Self::Contention(_) => Code::Contention,
            Self::Timeout(_) => Code::Timeout,
            Self::Unavailable(_) => Code::Unavailable,
            Self::Denied(_) => Code::Denied,
            Self::Schema(_) => Code::SchemaMismatch,
            Self::Internal(_) => Code::Internal,
        }
    }

    /// Whether the same call may succeed later, unchanged.
    pub const fn retryable(&self) -> bool {
        self.code().retryable()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_only_passing_troubles_are_retryable() {
        let names: std::collections::BTreeSet<_> = Code::ALL.iter().map(|c| c.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
        let retryable: Vec<_> = Code::ALL.iter().filter(|c| c.retryable()).map(|c| c.as_str()).collect();
        let passing = [
            "TX.IDEMPOTENT_BUSY",
            "TX.CONTENTION",
            "TX.TIMEOUT",
            "PROVIDER.UNAVAILABLE",
        ];
        assert_eq!(retryable, passing);
    }

    #[test]
    fn what_passes_by_itself_is_no_critical_trouble() {
        for code in Code::ALL {
            assert!(!code.retryable() || code.severity() < Severity::Critical, "{code}");
        }
        assert!(Code::IdempotentBusy.severity() < Code::Unavailable.severity());
    }
}
