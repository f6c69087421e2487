//! A bell that rings when something comes into a line, for as long as somebody sleeps: a live query, which costs producers nothing while nobody does.
//!
//! A server queues what it has to tell of, and closes a connection that does not keep up. So where we have connected ourselves, the bell has a connection of its own: if that
//! is closed, nothing else is on it.

use futures_util::{FutureExt as _, StreamExt as _};
use posthouse_core::{Error, Wake};
use std::time::Duration;
use surrealdb::{Connection, Notification, Surreal, method::QueryStream, types::Value};
use tokio::{sync::Mutex, time::Instant};

use crate::{Database, database::in_time, error::from_surreal};

const LISTEN: &str = include_str!("../sql/listen.surql");

/// How long a bell that was lost is not missed: whoever sleeps looks by the clock meanwhile. Where so much comes in that connections are closed for it, he need not be
/// told of each.
const PAUSE: Duration = Duration::from_secs(5);

/// The bell of one handle.
pub(crate) struct Bell<C: Connection> {
    state: Mutex<State<C>>,
}

struct State<C: Connection> {
    /// What sessions are made from.
    client: Option<Surreal<C>>,
    rings: Option<Rings<C>>,
    lost: Option<Instant>,
}

struct Rings<C: Connection> {
    stream: QueryStream<Notification<Value>>,
    /// A session of its own; with it the query would end.
    _session: Surreal<C>,
}

impl<C: Connection> State<C> {
    fn lose(&mut self) {
        (self.client, self.rings, self.lost) = (None, None, Some(Instant::now()));
    }

    /// Asks to be told.
    async fn hang(&mut self, db: &Database<C>) -> Result<(), Error> {
        let client = match self.client.take() {
            Some(client) => client,
            None => db.apart().await?,
        };
        // Kept only if it is let in: a client may have become too old.
        let session = client.clone();
        let asked = async {
            session
                .query(LISTEN)
                .await
                .and_then(|live| live.check())
                .map_err(from_surreal)
        };
        let mut live = in_time(asked).await?;
        let stream = live.stream::<Notification<Value>>(()).map_err(from_surreal)?;
        self.client = Some(client);
        self.rings = Some(Rings {
            stream,
            _session: session,
        });
        Ok(())
    }
}

impl<C: Connection> Default for Bell<C> {
    fn default() -> Self {
        Self {
            state: Mutex::new(State {
                client: None,
                rings: None,
                lost: None,
            }),
        }
    }
}

impl<C: Connection> Bell<C> {
    /// From now on it rings, if it can be hung. What was there before is for the sleeper to look for; and without a bell he looks by the clock.
    pub async fn listen(&self, db: &Database<C>) {
        let mut state = self.state.lock().await;
        if state.rings.is_some() || state.lost.is_some_and(|at| at.elapsed() < PAUSE) {
            return;
        }
        if state.hang(db).await.is_err() {
            state.lose();
        }
    }

    /// It does not ring any more. Somebody else who sleeps by it goes on to.
    pub fn rest(&self) {
        if let Ok(mut state) = self.state.try_lock() {
            state.rings = None;
        }
    }

    /// Waits for it, at most so long. Nothing is lost if that is given up.
    pub async fn wait(&self, at_most: Duration) -> Result<Wake, Error> {
        let mut state = self.state.lock().await;
        let Some(Rings { stream, .. }) = &mut state.rings else {
            drop(state);
            tokio::time::sleep(at_most).await;
            return Ok(Wake::Elapsed);
        };
        match tokio::time::timeout(at_most, stream.next()).await {
            Ok(Some(Ok(_))) => {
                // One look is enough for all that has come.
                while let Some(Some(Ok(_))) = stream.next().now_or_never() {}
                Ok(Wake::Rung)
            }
            // The connection is gone, and the bell with it: the sleeper looks, and says again that it sleeps.
            Ok(_) => {
                state.lose();
                Ok(Wake::Rung)
            }
            Err(_) => Ok(Wake::Elapsed),
        }
    }
}
