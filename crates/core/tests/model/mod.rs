//! The outbox under every order of events: a model that a checker walks through, state by state.
//!
//! A store, workers, a repairer, an operator and a clock act in any order that they could act in, with crashes, pauses
//! past the deadline, late replies and commits whose answer was lost. What an event does to a message is decided by
//! `posthouse_core` itself: the model only keeps the records, as a database would, and the fence around them.
//!
//! | to read about | open |
//! |---|---|
//! | what is assumed: messages, workers, bounds | [`config`] |
//! | the store, and the bugs that can be planted in it | [`store`], [`record`], [`bug`] |
//! | who acts, and how | [`worker`], [`world`], [`actions`] |
//! | what must hold | [`judge`] (each step), [`promises`] (each state) |
//! | the runs | [`sound`] (nothing is found), [`planted`] (each bug is found) |

mod actions;
mod bug;
mod config;
mod ghost;
mod judge;
mod planted;
mod promises;
mod record;
mod sound;
mod store;
mod worker;
mod world;
