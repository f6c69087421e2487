//! How the server is.

use posthouse_core::{
    Error,
    condition::{Condition, Holder, HolderKind, Setting},
};
use tokio_postgres::Row;

use crate::{Postgres, error::from_driver, rows};

/// What is at risk where one of these is off.
const RISKS: [(&str, &str); 3] = [
    (
        "synchronous_commit",
        "a crash may lose what was committed in its last moments, messages and settlements",
    ),
    ("fsync", "a crash of the machine may destroy the database"),
    ("full_page_writes", "a crash of the machine may destroy the database"),
];

impl Postgres {
    /// How the server is, as far as this role may see it.
    pub async fn condition(&self) -> Result<Condition, Error> {
        let found = self.query(include_str!("../sql/condition.sql"), &[]).await?;
        let row = found
            .first()
            .ok_or_else(|| Error::Internal("the database answered nothing".into()))?;
        let mut settings = Vec::with_capacity(RISKS.len());
        for (name, risk) in RISKS {
            let value: String = row.try_get(name).map_err(from_driver)?;
            settings.push(Setting {
                name,
                risk: (value == "off").then_some(risk),
                value,
            });
        }
        let port: Option<i32> = row.try_get("port").map_err(from_driver)?;
        let holders = self.query(include_str!("../sql/holders.sql"), &[]).await?;
        Ok(Condition {
            now: Some(rows::at(row, "now")?),
            settings,
            holders: holders.iter().map(holder).collect::<Result<_, _>>()?,
            sees_all: row.try_get("sees_all").map_err(from_driver)?,
            port: port.and_then(|port| u16::try_from(port).ok()),
            log_bytes: None,
            ..Condition::default()
        })
    }
}

fn holder(row: &Row) -> Result<Holder, Error> {
    let read = || -> Result<Holder, tokio_postgres::Error> {
        Ok(Holder {
            kind: match row.try_get("kind")? {
                "prepared" => HolderKind::Prepared,
                "slot" => HolderKind::Slot,
                "standby" => HolderKind::Standby,
                _ => HolderKind::Session,
            },
            pid: row.try_get("pid")?,
            name: row.try_get("name")?,
            state: row.try_get("state")?,
            seconds: row.try_get("seconds")?,
            transactions: row.try_get("transactions")?,
        })
    };
    read().map_err(from_driver)
}
