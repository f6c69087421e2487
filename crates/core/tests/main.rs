//! The rules in every order of events: models of the outbox, of the ledger and of sagas, over the same code that stores and relays perform.
//!
//! They are here, and not in the testkit, because this crate is the one that is optimised also for tests; the suite would take minutes to compile so.

mod ledger_model;
mod model;
mod saga_model;
