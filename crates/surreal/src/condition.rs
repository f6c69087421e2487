//! How the database is.

use posthouse_core::{
    Durability, Error, Timestamp,
    condition::{Condition, Setting},
};
use surrealdb::Connection;

use crate::SurrealDb;

impl<C: Connection> SurrealDb<C> {
    /// How the database is, as far as it tells: a server does not say when it writes to its disk.
    pub async fn condition(&self) -> Result<Condition, Error> {
        let (db, now) = (self.database(), self.now().await?);
        let mut settings = vec![Setting {
            name: "engine",
            value: db.address().engine_name().to_owned(),
            risk: (db.address().durability() == Durability::Process)
                .then_some("it lives in memory, and is gone with the process"),
        }];
        settings.extend(db.address().sync().map(|sync| {
            Setting {
                name: "sync",
                value: sync.to_owned(),
                risk: (db.address().durability() == Durability::System)
                    .then_some("a crash of the machine may lose what was committed in its last moments"),
            }
        }));
        Ok(Condition {
            now: db.is_shared().then(|| Timestamp::from_micros(now)),
            durability: Some(db.address().durability()),
            settings,
            sees_all: true,
            mend: Some("open it with sync=every in its URL, which is the default"),
            ..Condition::default()
        })
    }
}
