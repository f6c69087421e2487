//! A bell that rings when something comes into a line, for as long as somebody sleeps: a live query, which costs producers nothing while nobody does.

use futures_util::StreamExt as _;
use posthouse_core::{Error, Wake};
use std::time::Duration;
use surrealdb::{Notification, Surreal, engine::any::Any, method::QueryStream, types::Value};
use tokio::sync::Mutex;

use crate::error::from_surreal;

const LISTEN: &str = include_str!("../sql/listen.surql");

/// The bell of one handle.
#[derive(Default)]
pub(crate) struct Bell {
    rings: Mutex<Option<QueryStream<Notification<Value>>>>,
}

impl Bell {
    /// From now on it rings. What was there before is for the sleeper to look for.
    pub async fn listen(&self, db: &Surreal<Any>) -> Result<(), Error> {
        let mut rings = self.rings.lock().await;
        if rings.is_none() {
            let mut live = db
                .query(LISTEN)
                .await
                .and_then(|live| live.check())
                .map_err(from_surreal)?;
            *rings = Some(live.stream::<Notification<Value>>(()).map_err(from_surreal)?);
        }
        Ok(())
    }

    /// It does not ring any more.
    pub async fn rest(&self) {
        *self.rings.lock().await = None;
    }

    /// Waits for it, at most so long. Nothing is lost if that is given up.
    pub async fn wait(&self, at_most: Duration) -> Result<Wake, Error> {
        let mut rings = self.rings.lock().await;
        let Some(stream) = rings.as_mut() else {
            drop(rings);
            tokio::time::sleep(at_most).await;
            return Ok(Wake::Elapsed);
        };
        match tokio::time::timeout(at_most, stream.next()).await {
            Ok(Some(rung)) => {
                rung.map_err(from_surreal)?;
                Ok(Wake::Rung)
            }
            // The connection is gone, and the bell with it: the sleeper looks, and says again that it sleeps.
            Ok(None) => {
                *rings = None;
                Ok(Wake::Rung)
            }
            Err(_) => Ok(Wake::Elapsed),
        }
    }
}
