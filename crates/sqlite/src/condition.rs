//! How the file is.

use posthouse_core::{
    Error,
    condition::{Condition, Setting},
};

use crate::{Sqlite, connect};

impl Sqlite {
    /// How the file is, as far as a connection of this store can tell: one of the application's own has settings of its own.
    pub async fn condition(&self) -> Result<Condition, Error> {
        let (journal, synchronous) = self
            .read(|db| {
                let journal: String = db.pragma_query_value(None, "journal_mode", |row| row.get(0))?;
                let synchronous: i64 = db.pragma_query_value(None, "synchronous", |row| row.get(0))?;
                Ok((journal, synchronous))
            })
            .await?;
        let word = ["off", "normal", "full", "extra"]
            .get(usize::try_from(synchronous).unwrap_or(usize::MAX))
            .map_or_else(|| synchronous.to_string(), |word| (*word).to_owned());
        let risk = "a crash of the machine may lose what was committed in its last moments";
        Ok(Condition {
            settings: vec![
                Setting {
                    name: "journal_mode",
                    value: journal,
                    risk: None,
                },
                Setting {
                    name: "synchronous",
                    value: word,
                    risk: (synchronous < 2).then_some(risk),
                },
            ],
            sees_all: true,
            log_bytes: std::fs::metadata(connect::log_of(self.path()))
                .ok()
                .map(|log| log.len()),
            ..Condition::default()
        })
    }
}
