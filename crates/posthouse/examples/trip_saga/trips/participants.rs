//! Those who do the steps: an airline, a hotel and a bank, in a SQLite file of their own. Each step is done once under its key, and not after it was undone.

use posthouse::{
    saga::{Doing, Undoing},
    sqlite::{Outbox, Sqlite},
};
use rusqlite::{Connection, OptionalExtension, TransactionBehavior::Immediate, params};
use std::{path::PathBuf, time::Duration};

use super::{Booking, Fault};

/// What is booked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Flight,
    Hotel,
    Charge,
}

impl Kind {
    pub const fn name(self) -> &'static str {
        match self {
            Self::Flight => "flight",
            Self::Hotel => "hotel",
            Self::Charge => "charge",
        }
    }
}

/// Why a step was not done, or nobody can tell.
#[derive(Debug)]
pub enum Refusal {
    /// It was not done, and will not be.
    No(String),
    /// It may have been done.
    Unsure(String),
}

/// What goes wrong with the file leaves it open whether the commit was made.
impl<E: std::error::Error> From<E> for Refusal {
    fn from(error: E) -> Self {
        Self::Unsure(error.to_string())
    }
}

#[derive(Clone, Debug)]
pub struct Participants {
    file: PathBuf,
}

impl Participants {
    /// Makes the file if it is not there.
    pub fn open(file: &str) -> Result<Self, Fault> {
        Sqlite::migrate(file)?;
        let participants = Self { file: file.into() };
        participants.connect()?.execute_batch(
            "CREATE TABLE IF NOT EXISTS booking (key TEXT PRIMARY KEY, kind TEXT NOT NULL, code TEXT NOT NULL, cancelled INTEGER NOT NULL DEFAULT 0)",
        )?;
        Ok(participants)
    }

    fn connect(&self) -> rusqlite::Result<Connection> {
        let db = Connection::open(&self.file)?;
        db.busy_timeout(Duration::from_secs(5))?;
        Ok(db)
    }

    /// Books it, once for a key.
    pub fn book(&self, kind: Kind, key: &str, what: &str) -> Result<Booking, Refusal> {
        let mut db = self.connect()?;
        let tx = db.transaction_with_behavior(Immediate)?;
        match Outbox::default().do_once(&tx, kind.name(), key)? {
            Doing::First => {
                tx.execute(
                    "INSERT INTO booking (key, kind, code) VALUES (?1, ?2, ?2 || ' to ' || ?3)",
                    params![key, kind.name(), what],
                )?;
            }
            Doing::Before => {}
            Doing::Undone => return Err(Refusal::No("it was cancelled before it came".to_owned())),
        }
        let code = tx.query_row("SELECT code FROM booking WHERE key = ?1", [key], |row| row.get(0))?;
        tx.commit()?;
        Ok(Booking { code })
    }

    /// Cancels it, if it was booked; from then on it cannot be.
    pub fn cancel(&self, kind: Kind, forward_key: &str) -> Result<(), Refusal> {
        let mut db = self.connect()?;
        let tx = db.transaction_with_behavior(Immediate)?;
        // Also if it was never heard of: what is there under the key is taken away, however long ago it was booked.
        if Outbox::default().undo_once(&tx, kind.name(), forward_key)? != Undoing::Before {
            tx.execute("UPDATE booking SET cancelled = 1 WHERE key = ?1", [forward_key])?;
        }
        tx.commit()?;
        Ok(())
    }

    /// Charges a card: a good one, one that is declined, or one of which nobody hears whether it was.
    pub fn charge(&self, key: &str, card: &str) -> Result<Booking, Refusal> {
        if card == "declined" {
            return Err(Refusal::No("the card was declined".to_owned()));
        }
        let known = self.find(Kind::Charge, key)?;
        let charged = self.book(Kind::Charge, key, card)?;
        match card {
            "unsure" if known.is_none() => Err(Refusal::Unsure("the line to the bank broke".to_owned())),
            _ => Ok(charged),
        }
    }

    /// What was booked under a key, and not cancelled.
    pub fn find(&self, kind: Kind, key: &str) -> Result<Option<Booking>, Refusal> {
        let sql = "SELECT code FROM booking WHERE key = ?1 AND kind = ?2 AND NOT cancelled";
        let db = self.connect()?;
        let code = db.query_row(sql, [key, kind.name()], |row| row.get(0)).optional()?;
        Ok(code.map(|code| Booking { code }))
    }

    /// Everything, for whoever looks: what, and whether it was cancelled.
    pub fn all(&self) -> Result<Vec<(String, bool)>, Refusal> {
        let db = self.connect()?;
        let mut statement = db.prepare("SELECT code, cancelled FROM booking ORDER BY rowid")?;
        let rows = statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    }
}
