//! What only a database itself can tell of how it is: for those who look after it.

use crate::{Durability, Timestamp};

/// How a database is.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Condition {
    /// Its own clock, where that is not the clock of whoever asks.
    pub now: Option<Timestamp>,
    /// What a commit survives, where the settings do not say it.
    pub durability: Option<Durability>,
    /// The settings that decide what a commit survives.
    pub settings: Vec<Setting>,
    /// What to do where one of them puts something at risk, if that is not to switch it on.
    pub mend: Option<&'static str>,
    /// Who keeps it from cleaning up.
    pub holders: Vec<Holder>,
    /// Whether whoever asked may see since when others have been at work.
    pub sees_all: bool,
    /// The port at which the server was reached, where there is one.
    pub port: Option<u16>,
    /// How large the log is that has not been written into the file yet, where there is one: it grows while a reader stays.
    pub log_bytes: Option<u64>,
}

/// A setting that decides what a commit survives.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// What it is set to.
    pub value: String,
    /// What that puts at risk, if anything.
    pub risk: Option<&'static str>,
}

/// Somebody for whose sake rows are kept that nobody else needs any more.
#[derive(Clone, PartialEq, Debug)]
pub struct Holder {
    /// What it is.
    pub kind: HolderKind,
    /// The process on the server, where there is one.
    pub pid: Option<i32>,
    /// What it is called: a role, a prepared transaction, a slot, a standby.
    pub name: String,
    /// What it is doing, as the database calls it.
    pub state: String,
    /// Since when, in seconds, where that is known.
    pub seconds: Option<f64>,
    /// How many transactions have begun since.
    pub transactions: i64,
}

/// What can keep a database from cleaning up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HolderKind {
    /// A session in a transaction.
    Session,
    /// A transaction that was prepared, and neither committed nor rolled back.
    Prepared,
    /// A replication slot.
    Slot,
    /// A standby that tells what its queries need.
    Standby,
}
