//! The bell that wakes a sleeping relay: one connection of its own that listens.

use posthouse_core::{Error, Wake};
use std::{
    collections::HashSet,
    sync::{Arc, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Mutex, Notify},
    task::JoinHandle,
};
use tokio_postgres::{AsyncMessage, Client, Config};
use uuid::Uuid;

use crate::{Schema, error::from_driver, tls::Connector};

/// Opened when the first relay sleeps; opened again when it is found dead. A hint: while it is dead, relays poll.
pub(crate) struct Bell {
    /// Tells it from the bells of other processes, whose workers may have the same names.
    id: Uuid,
    /// The workers that said that they sleep.
    marked: std::sync::Mutex<HashSet<String>>,
    config: Config,
    tls: Connector,
    schema: Schema,
    rung: Arc<Notify>,
    ear: Mutex<Option<Ear>>,
}

/// The listening connection and the task that reads it. Dropping it ends both.
struct Ear {
    client: Client,
    reader: JoinHandle<()>,
}

/// The line to the database.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Line {
    /// Somebody has listened all the time.
    Heard,
    /// Somebody listens from now on.
    New,
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.reader.abort();
    }
}

impl Bell {
    pub(crate) fn new(config: Config, tls: Connector, schema: Schema) -> Self {
        Self {
            id: Uuid::new_v4(),
            marked: std::sync::Mutex::default(),
            config,
            tls,
            schema,
            rung: Arc::new(Notify::new()),
            ear: Mutex::new(None),
        }
    }

    pub(crate) const fn id(&self) -> Uuid {
        self.id
    }

    /// This worker said that it sleeps.
    pub(crate) fn mark(&self, worker: &str) {
        self.marked().insert(worker.to_owned());
    }

    /// It is awake. Whether it had said that it sleeps.
    pub(crate) fn unmark(&self, worker: &str) -> bool {
        self.marked().remove(worker)
    }

    fn marked(&self) -> MutexGuard<'_, HashSet<String>> {
        self.marked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes sure that somebody listens.
    pub(crate) async fn listen(&self) -> Result<Line, Error> {
        let mut ear = self.ear.lock().await;
        if ear.as_ref().is_some_and(|ear| !ear.client.is_closed()) {
            return Ok(Line::Heard);
        }
        let (client, mut connection) = self
            .config
            .connect(Connector::clone(&self.tls))
            .await
            .map_err(from_driver)?;
        let rung = self.rung.clone();
        let reader = tokio::spawn(async move {
            // Ends with the connection.
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    rung.notify_one();
                }
            }
            // Nobody rings a dead line: wake once, so that the sleeper looks and listens anew.
            rung.notify_one();
        });
        client
            .batch_execute(&format!("LISTEN {}", self.schema))
            .await
            .map_err(from_driver)?;
        *ear = Some(Ear { client, reader });
        Ok(Line::New)
    }

    pub(crate) async fn wait(&self, at_most: Duration) -> Wake {
        match tokio::time::timeout(at_most, self.rung.notified()).await {
            Ok(()) => Wake::Rung,
            Err(_) => Wake::Elapsed,
        }
    }
}
