//! The rules of Posthouse, without a database, a clock, a runtime or a dice.
//!
//! A message is enqueued in the caller's transaction, claimed under a [`Lease`], sent, and settled. What a settlement
//! does to the message is decided here, by [`machine::step`], and nowhere else; a store performs what was decided and
//! guards it with the lease. Time and chance are arguments, so every rule can be tested, and model-checked, by calling it.
//!
//! | to read about | open |
//! |---|---|
//! | what is sent | [`message`], [`limits`], [`headers`] |
//! | what may happen to it | [`machine`], [`retry`], [`attempt`], [`receipt`], [`class`] |
//! | who may finish it | [`lease`], [`settlement`] |
//! | what is done once | [`ledger`] |
//! | what is undone when it cannot be completed | [`saga`] |
//! | when a destination is spared | [`breaker`], [`rate`] |
//! | how much is held, and how | [`pace`], [`bulk`] |
//! | how far a line was searched in vain | [`floors`] |
//! | operators' answers | [`explain`], [`presence`], [`tally`], [`condition`] |
//! | what a store and a transport must do | [`store`], [`admin`], [`transport`] |
//! | which program works on which schema | [`schema`] |

pub mod admin;
pub mod attempt;
pub mod breaker;
pub mod bulk;
pub mod class;
pub mod condition;
pub mod digest;
pub mod error;
pub mod explain;
pub mod floors;
pub mod headers;
pub mod id;
pub mod lease;
pub mod ledger;
pub mod limits;
pub mod machine;
pub mod message;
pub mod pace;
pub mod presence;
pub mod prune;
pub mod rate;
pub mod receipt;
pub mod retry;
pub mod saga;
pub mod schema;
pub mod settlement;
pub mod store;
pub mod tally;
pub mod text;
pub mod timestamp;
pub mod topic;
pub mod transport;

pub use admin::{Admin, AuditEntry, AuditFilter, Count, Counts, Filter, MessageView, Page};
pub use attempt::{Attempt, AttemptOutcome};
pub use breaker::{BreakerPolicy, Circuit};
pub use bulk::Bulk;
pub use digest::Digest;
pub use error::{BoxError, Code, Error, Invalid, Severity};
pub use explain::{Cause, Facts};
pub use headers::Headers;
pub use id::{LeaseToken, MessageId, SagaId};
pub use lease::{Claim, Claimed, Conflict, Fate, Lease, Renewal};
pub use limits::{Limits, StoreSettings};
pub use machine::{DeadReason, Event, Illegal, Standing, State, Step, step};
pub use message::{ENQUEUED_TOTAL, Enqueued, Kind, Message, OnDead, OnDuplicate, Order, STARTED_TOTAL};
pub use pace::Pace;
pub use presence::{Breaker, DestinationView, Health, Pause, Relay, RelayView, Route};
pub use prune::{Prune, PruneRecord, PruneStates, Pruned};
pub use rate::{Meter, Rate};
pub use receipt::{Effect, Receipt};
pub use retry::{Backoff, RetryPolicy};
pub use schema::{Fit, Migration, RolePlan, SchemaVersion, Upgrade};
pub use settlement::{Next, Settlement, Verdict};
pub use store::{Capabilities, Durability, Look, Store, Wake, repair, repair_telling};
pub use timestamp::Timestamp;
pub use topic::TopicPattern;
pub use transport::{Delivery, Outcome, Transport};
