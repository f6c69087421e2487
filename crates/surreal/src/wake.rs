//! A bell that rings when something comes into a line, for as long as somebody sleeps: a live query, which costs producers nothing while nobody does.

use futures_util::StreamExt as _;
use posthouse_core::{Error, Wake};
use std::time::Duration;
use surrealdb::{Connection, Notification, Surreal, method::QueryStream, types::Value};
use tokio::sync::Mutex;

use crate::{Database, database::in_time, error::from_surreal};

const LISTEN: &str = include_str!("../sql/listen.surql");

/// The bell of one handle.
pub(crate) struct Bell<C: Connection> {
    rings: Mutex<Option<Rings<C>>>,
}

struct Rings<C: Connection> {
    stream: QueryStream<Notification<Value>>,
    /// A session of its own, which is young; with it the query would end.
    _session: Surreal<C>,
}

impl<C: Connection> Default for Bell<C> {
    fn default() -> Self {
        Self {
            rings: Mutex::new(None),
        }
    }
}

impl<C: Connection> Bell<C> {
    /// From now on it rings. What was there before is for the sleeper to look for.
    pub async fn listen(&self, db: &Database<C>) -> Result<(), Error> {
        let mut rings = self.rings.lock().await;
        if rings.is_none() {
            let (session, _) = db.session();
            let asked = async {
                session
                    .query(LISTEN)
                    .await
                    .and_then(|live| live.check())
                    .map_err(from_surreal)
            };
            let mut live = in_time(asked).await?;
            let stream = live.stream::<Notification<Value>>(()).map_err(from_surreal)?;
            *rings = Some(Rings {
                stream,
                _session: session,
            });
        }
        Ok(())
    }

    /// It does not ring any more. Somebody else who sleeps by it goes on to.
    pub fn rest(&self) {
        if let Ok(mut rings) = self.rings.try_lock() {
            *rings = None;
        }
    }

    /// Waits for it, at most so long. Nothing is lost if that is given up.
    pub async fn wait(&self, at_most: Duration) -> Result<Wake, Error> {
        let mut rings = self.rings.lock().await;
        let Some(Rings { stream, .. }) = rings.as_mut() else {
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
