//! The bell that wakes a sleeping relay: one connection of its own that listens.

use posthouse_core::{Error, Wake};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{sync::Notify, task::JoinHandle};
use tokio_postgres::AsyncMessage;
use uuid::Uuid;

use crate::{Schema, error::from_driver, reach::Target};

/// The wait after a connection that could not be made; it doubles up to the second.
const WAITS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));

/// A hint: while nobody listens, relays poll, and nothing waits for the connection.
pub(crate) struct Bell {
    /// Tells it from the bells of other processes, whose workers may have the same names.
    id: Uuid,
    /// The workers that said that they sleep.
    marked: Mutex<HashSet<String>>,
    line: Arc<Line>,
    /// Who listens, from the first sleep on.
    ear: Mutex<Option<Ear>>,
}

struct Line {
    target: Target,
    schema: Schema,
    rung: Notify,
    /// Why nobody listens, if that is news.
    failed: Mutex<Option<Error>>,
}

/// A task that ends when it is dropped.
struct Ear(JoinHandle<()>);

impl Drop for Ear {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Bell {
    pub(crate) fn new(target: Target, schema: Schema) -> Self {
        Self {
            id: Uuid::new_v4(),
            marked: Mutex::default(),
            line: Arc::new(Line {
                target,
                schema,
                rung: Notify::new(),
                failed: Mutex::default(),
            }),
            ear: Mutex::default(),
        }
    }

    pub(crate) const fn id(&self) -> Uuid {
        self.id
    }

    /// This worker said that it sleeps.
    pub(crate) fn mark(&self, worker: &str) {
        locked(&self.marked).insert(worker.to_owned());
    }

    /// Whether it said so, and was granted nothing since.
    pub(crate) fn is_marked(&self, worker: &str) -> bool {
        locked(&self.marked).contains(worker)
    }

    /// It is awake.
    pub(crate) fn unmark(&self, worker: &str) {
        locked(&self.marked).remove(worker);
    }

    /// Makes sure that somebody listens, or tries to.
    pub(crate) fn listen(&self) {
        let mut ear = locked(&self.ear);
        // It ends with the runtime that it was started in.
        if ear.as_ref().is_none_or(|ear| ear.0.is_finished()) {
            *ear = Some(Ear(tokio::spawn(listen_for_ever(self.line.clone()))));
        }
    }

    /// Waits for a ring, at most this long; not at all if there is news of why none can come.
    pub(crate) async fn wait(&self, at_most: Duration) -> Result<Wake, Error> {
        self.listen();
        if let Some(error) = locked(&self.line.failed).take() {
            return Err(error);
        }
        match tokio::time::timeout(at_most, self.line.rung.notified()).await {
            Ok(()) => Ok(Wake::Rung),
            Err(_) => Ok(Wake::Elapsed),
        }
    }
}

async fn listen_for_ever(line: Arc<Line>) {
    let mut wait = WAITS.0;
    loop {
        match line.listen().await {
            Ok(()) => wait = WAITS.0,
            Err(error) => {
                *locked(&line.failed) = Some(error);
                tokio::time::sleep(wait).await;
                wait = (2 * wait).min(WAITS.1);
            }
        }
    }
}

impl Line {
    /// Listens for as long as the connection lasts.
    async fn listen(&self) -> Result<(), Error> {
        let (client, mut connection) = self.target.connect().await?;
        let hear = async {
            // Ends with the connection.
            while let Some(Ok(message)) = std::future::poll_fn(|cx| connection.poll_message(cx)).await {
                if matches!(message, AsyncMessage::Notification(_)) {
                    self.rung.notify_one();
                }
            }
        };
        let begin = async {
            let listen = format!("LISTEN {}", self.schema);
            let begun = tokio::time::timeout(self.target.within(), client.batch_execute(&listen)).await;
            begun.map_err(|_| self.target.silent())?.map_err(from_driver)?;
            *locked(&self.failed) = None;
            // Nobody heard what rang before.
            self.rung.notify_one();
            Ok::<_, Error>(())
        };
        tokio::pin!(hear, begin);
        tokio::select! {
            begun = &mut begin => begun?,
            () = &mut hear => return Err(Error::Unavailable("the connection that listens was closed".into())),
        }
        hear.await;
        // Nobody rings a dead line: wake once, so that the sleeper looks.
        self.rung.notify_one();
        Ok(())
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
