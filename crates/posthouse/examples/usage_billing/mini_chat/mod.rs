//! A chat service that bills what its turns use: what it knows, in plain words. The transactions are in `service.rs`.

pub mod dispatcher;
pub mod postgres;
pub mod sqlite;

use posthouse::{Invalid, Message, MessageId};
use serde::{Deserialize, Serialize};
use std::future::Future;

/// The service's own corner of the outbox.
pub const NAMESPACE: &str = "mini-chat";
pub const TOPIC: &str = "usage_snapshot";

pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Names a turn. It is all that a client may say about one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TurnId {
    pub tenant: String,
    pub turn: String,
    pub request: String,
}

impl TurnId {
    pub fn new(tenant: &str, turn: &str, request: &str) -> Self {
        let [tenant, turn, request] = [tenant, turn, request].map(str::to_owned);
        Self { tenant, turn, request }
    }
}

/// How a turn ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Completed,
    Failed,
    /// By the user, or because the connection was lost: the provider has said nothing final.
    Cancelled,
}

impl Ending {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::Failed => "failed",
            Self::Cancelled => "cancelled",
        }
    }
}

/// Where the counters of a snapshot come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Basis {
    /// The provider's own count.
    Actual,
    /// What the server has passed on, never more than the turn was allowed.
    Estimate,
}

/// What the server knows of a turn; nothing of it comes from a client.
#[derive(Clone, Debug)]
pub struct Turn {
    pub id: TurnId,
    pub user: Option<String>,
    /// The policy as it was when the turn began.
    pub policy_version: i64,
    pub effective_model: String,
    pub max_output_tokens: i64,
    /// Counted by the server before it asked the provider.
    pub prompt_tokens: i64,
    /// Passed on to the client so far.
    pub streamed_bytes: i64,
    /// What the provider says it used, input and output, once it has said so.
    pub reported: Option<(i64, i64)>,
}

impl Turn {
    /// What it is billed for: what the provider counted, or else a bounded estimate.
    pub fn settle(&self, ending: Ending) -> UsageSnapshot {
        let estimated = (self.streamed_bytes + 3) / 4;
        let (basis, (input_tokens, output_tokens)) = match self.reported {
            Some(reported) => (Basis::Actual, reported),
            None => (
                Basis::Estimate,
                (self.prompt_tokens, estimated.min(self.max_output_tokens)),
            ),
        };
        UsageSnapshot {
            tenant_id: self.id.tenant.clone(),
            turn_id: self.id.turn.clone(),
            request_id: self.id.request.clone(),
            user_id: self.user.clone(),
            outcome: ending,
            policy_version_applied: self.policy_version,
            effective_model: self.effective_model.clone(),
            input_tokens,
            output_tokens,
            basis,
        }
    }
}

/// The payload: what the billing system is told. There is no field for anything of the provider's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UsageSnapshot {
    pub tenant_id: String,
    pub turn_id: String,
    pub request_id: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user_id: Option<String>,
    pub outcome: Ending,
    pub policy_version_applied: i64,
    pub effective_model: String,
    pub input_tokens: i64,
    pub output_tokens: i64,
    pub basis: Basis,
}

impl UsageSnapshot {
    pub fn tokens(&self) -> i64 {
        self.input_tokens + self.output_tokens
    }

    /// The same for every telling of this turn: the outbox keeps one message for it, the billing system one bill.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.tenant_id, self.turn_id, self.request_id)
    }

    pub fn message(&self) -> Result<Message, Invalid> {
        let message = Message::json(TOPIC, self)?;
        Ok(message
            .namespace(NAMESPACE)
            .tenant(&self.tenant_id)
            .dedupe_key(self.key()))
    }
}

/// What became of an attempt to end a turn.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finalized {
    /// This one ended it: the quota is settled, and the message is there.
    Won(UsageSnapshot, MessageId),
    /// Somebody else had ended it before. Nothing was changed.
    AlreadyFinal,
}

/// The service, on either database.
pub trait Chat: Clone + Send + Sync + Sized + 'static {
    /// Makes the tables where they are missing, those of the outbox too.
    fn install(url: &str) -> impl Future<Output = Result<(), Failure>> + Send;
    fn open(url: &str) -> impl Future<Output = Result<Self, Failure>> + Send;

    /// A new policy: turns that begin from now on use this model, and so many tokens at most. Answers its version.
    fn set_policy(&self, model: &str, max_output_tokens: i64) -> impl Future<Output = Result<i64, Failure>> + Send;
    fn begin(
        &self,
        id: &TurnId,
        user: Option<&str>,
        prompt_tokens: i64,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// So much was passed on to the client, of the response that the provider calls this.
    fn streamed(
        &self,
        id: &TurnId,
        bytes: i64,
        provider_response_id: &str,
    ) -> impl Future<Output = Result<(), Failure>> + Send;
    /// The provider's last word.
    fn reported(&self, id: &TurnId, input: i64, output: i64) -> impl Future<Output = Result<(), Failure>> + Send;

    /// Ends a turn, settles the quota and tells the billing system, all at once or not at all. Whoever comes first wins.
    fn finalize(&self, id: &TurnId, ending: Ending) -> impl Future<Output = Result<Finalized, Failure>> + Send;
    /// The same by a process that dies before it commits.
    fn finalize_and_die(&self, id: &TurnId, ending: Ending) -> impl Future<Output = Result<Finalized, Failure>> + Send;

    fn state(&self, id: &TurnId) -> impl Future<Output = Result<String, Failure>> + Send;
    /// The tokens that a user has spent.
    fn spent(&self, tenant: &str, user: &str) -> impl Future<Output = Result<i64, Failure>> + Send;

    /// The billing system's side: books a snapshot under its key. Says no when it has done so before.
    fn book(&self, usage: &UsageSnapshot) -> impl Future<Output = Result<bool, Failure>> + Send;
    /// What was booked for a tenant: key and tokens, by key.
    fn bills(&self, tenant: &str) -> impl Future<Output = Result<Vec<(String, i64)>, Failure>> + Send;
}
