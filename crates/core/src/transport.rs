//! The seam towards destinations: what a transport is given and what it answers.

use async_trait::async_trait;
use std::{fmt, time::Duration};

use crate::{Headers, Kind, MessageId, ledger::Answer, saga::Ticket};

/// What is sent. A transport sees no lease and no row.
#[derive(Clone, PartialEq, Eq)]
pub struct Delivery {
    /// The message's identity, the same over attempts and replays.
    pub id: MessageId,
    /// The grant: rises with each lease, so a receiver can refuse what is older than what it has seen.
    pub epoch: u64,
    /// 1, and one more with each replay.
    pub generation: u32,
    /// The attempt within the generation, from 1.
    pub attempt: u32,
    /// Whose it is.
    pub tenant: String,
    /// Which application owns it.
    pub namespace: String,
    /// What it is about.
    pub topic: String,
    /// Its order key.
    pub order_key: Option<String>,
    /// What the body is.
    pub content_type: String,
    /// The body.
    pub payload: Vec<u8>,
    /// Trace context, correlation, the user's own.
    pub headers: Headers,
    /// What it is to the engine.
    pub kind: Kind,
    /// The message it follows from.
    pub parent: Option<MessageId>,
    /// The destination of a fan-out child.
    pub destination: Option<String>,
    /// What a message of a saga is sent for.
    pub ticket: Option<Ticket>,
}

/// Shows what it is about, never the payload.
impl fmt::Debug for Delivery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Delivery")
            .field("id", &self.id)
            .field("epoch", &self.epoch)
            .field("topic", &self.topic)
            .field("bytes", &self.payload.len())
            .finish_non_exhaustive()
    }
}

/// What a transport found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The destination acknowledged it.
    Delivered {
        /// What the destination returned.
        receipt: Option<String>,
        /// All that it answered, for the entry in the ledger of a message that has one. Without it the receipt is its answer.
        answer: Option<Box<Answer>>,
    },
    /// It did not happen, and may be tried again.
    Retry {
        /// The destination's own wish.
        after: Option<Duration>,
        /// The destination's own code.
        code: String,
        /// What was said.
        error: String,
    },
    /// It did not happen and never will.
    Reject {
        /// The destination's own code.
        code: String,
        /// What was said.
        error: String,
    },
    /// It was delivered before, and nothing was done now.
    Duplicate {
        /// What the destination returned then.
        receipt: Option<String>,
    },
    /// It was taken, and what becomes of it is told later, by a call that names this. Of a saga's steps only: for a plain message
    /// nobody would wait, so it counts as unknown.
    Pending {
        /// What the call names.
        callback: String,
    },
    /// It may have happened: a timeout, a reset, a server error.
    Unknown {
        /// The destination's own code.
        code: String,
        /// What was said.
        error: String,
    },
}

impl Outcome {
    /// The code by which a destination says that it is gone for good.
    pub const GONE: &str = "http_410";
    /// The code of a message whose topic names something that it may not.
    pub const NOT_ALLOWED: &str = "not_allowed";

    /// Whether the destination said that it is gone for good, so that nothing more is to be sent there.
    pub fn says_gone(&self) -> bool {
        matches!(self, Self::Reject { code, .. } | Self::Retry { code, .. } if code == Self::GONE)
    }

    /// The destination acknowledged it, and returned nothing to keep.
    pub const fn delivered() -> Self {
        Self::Delivered {
            receipt: None,
            answer: None,
        }
    }

    /// The destination acknowledged it, and returned this to keep.
    pub fn receipt(receipt: impl Into<String>) -> Self {
        Self::Delivered {
            receipt: Some(receipt.into()),
            answer: None,
        }
    }

    /// The destination acknowledged it, and this is its whole answer.
    pub fn answered(answer: Answer) -> Self {
        let said = String::from_utf8_lossy(&answer.body);
        Self::Delivered {
            receipt: (!said.is_empty()).then(|| said.into_owned()),
            answer: Some(Box::new(answer)),
        }
    }

    /// It did not happen, and may be tried again after the usual wait.
    pub fn retry(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self::Retry {
            after: None,
            code: code.into(),
            error: error.into(),
        }
    }

    /// It did not happen and never will.
    pub fn reject(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self::Reject {
            code: code.into(),
            error: error.into(),
        }
    }

    /// It may have happened.
    pub fn unknown(code: impl Into<String>, error: impl Into<String>) -> Self {
        Self::Unknown {
            code: code.into(),
            error: error.into(),
        }
    }
}

/// One kind of destination. One call is one try: no hidden retries.
#[async_trait]
pub trait Transport: Send + Sync {
    /// Sends it once, and says what was found out.
    async fn send(&self, delivery: &Delivery) -> Outcome;
}
