//! Sagas: steps that are all done, or undone again, across crashes.
//!
//! **No process owns a saga.** A step is a message like any other; what comes after it is decided by [`decide`](fn@decide), a pure function, and stored by the very
//! settlement of that message, if nobody else has moved the saga meanwhile. Leases, attempts, waits and dead letters are the outbox's own.
//!
//! | to read about | open |
//! |---|---|
//! | what a saga does | [`definition`] |
//! | where it stands | [`snapshot`] |
//! | what comes next | [`decide`](mod@decide) |
//! | what is sent for it | [`carrier`] |
//! | how it begins | [`start`] |
//! | how a decision is written | [`change`], [`drive`] |
//! | what operators see | [`view`] |
//! | what a participant remembers | [`inbox`] |

pub mod carrier;
pub mod change;
pub mod decide;
pub mod definition;
pub mod drive;
pub mod inbox;
pub mod snapshot;
pub mod start;
pub mod view;

pub use carrier::{Errand, Owner, TIMER_TOPIC, Ticket, key};
pub use change::{Change, Found, Loaded, MOST_DEPTH, MOST_OUTPUT, Report};
pub use decide::{Answered, Ctx, Decision, Event, Happened, Live, Own, Refused, Standing, Verb, Withdrawal, decide};
pub use definition::{Declared, DeclaredStep, Definition, InputNames, Retry, StepDef, Warning};
pub use inbox::{Doing, Undoing, check_step_key};
pub use snapshot::{
    Carrier, Direction, Ended, HeldReason, Progress, Role, SagaState, Snapshot, StepSnapshot, StepState, Undo,
    UndoState,
};
pub use start::{Beginning, Start, Started};
pub use view::{LogLine, SagaFilter, SagaPage, SagaRow, SagaView, StepView};
