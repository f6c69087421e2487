//! Sagas: steps that are all done, or undone again, across crashes.
//!
//! **No process owns a saga.** A step is a message like any other; what comes after it is decided by [`decide`], a pure function, and stored by the very
//! settlement of that message, if nobody else has moved the saga meanwhile. Leases, attempts, waits and dead letters are the outbox's own.
//!
//! | to read about | open |
//! |---|---|
//! | what a saga does | [`definition`] |
//! | where it stands | [`snapshot`] |
//! | what comes next | [`decide`](mod@decide) |
//! | what is sent for it | [`carrier`] |

pub mod carrier;
pub mod decide;
pub mod definition;
pub mod snapshot;

pub use carrier::{Errand, Owner, TIMER_TOPIC, Ticket, key};
pub use decide::{Answered, Ctx, Decision, Event, Happened, Live, Own, Refused, Standing, Verb, Withdrawal, decide};
pub use definition::{Declared, DeclaredStep, Definition, InputNames, Retry, StepDef, Warning};
pub use snapshot::{
    Carrier, Direction, Ended, HeldReason, Progress, Role, SagaState, Snapshot, StepSnapshot, StepState, Undo,
    UndoState,
};
