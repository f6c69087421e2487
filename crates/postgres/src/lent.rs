//! Connections on loan, what is asked on them, and how long their answers are waited for.

use deadpool_postgres::{Hook, Object, Pool};
use posthouse_core::Error;
use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio_postgres::{Client, IsolationLevel, Row};

use crate::{
    error::{from_driver, from_pool},
    reach::Target,
    store::Args,
    tls::Connector,
};

/// What has had no answer for so long is asked again, on another connection. It is long, because a server may only be slow, and what it
/// is asked again does not make it faster; that its machine is gone is noticed by the system before, see `store::configured`.
const SILENCE: Duration = Duration::from_secs(20);

/// How long a connection of the pool that is in use is waited for.
pub(crate) const WAIT: Duration = Duration::from_secs(10);

/// Waits for what a relay asked, and not for ever: a connection whose other end is gone without a word is silent for good.
pub(crate) async fn heard<T>(answer: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    heard_within(SILENCE, answer).await
}

/// The same for what is of use for so long.
pub(crate) async fn heard_within<T>(
    useful: Duration,
    answer: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    let limit = useful.max(SILENCE);
    let silent = format!("the database has not answered for {} seconds", limit.as_secs());
    tokio::time::timeout(limit, answer)
        .await
        .unwrap_or_else(|_| Err(Error::Timeout(silent.into())))
}

/// Where connections are had.
#[derive(Clone)]
pub(crate) struct Lender {
    pool: Pool,
    /// The server.
    target: Arc<Target>,
    /// Transactions must ask for READ COMMITTED, because the database begins them otherwise.
    explicit: Arc<AtomicBool>,
    lost: Lost,
}

/// How many connections were found closed by the server, or by the network.
#[derive(Clone, Default)]
pub(crate) struct Lost(Arc<AtomicU64>);

impl Lost {
    fn one_more(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }

    /// Counts the idle connections that a pool finds closed when it lends them: it replaces them without an error.
    pub(crate) fn in_pool(&self) -> Hook {
        let lost = self.clone();
        Hook::sync_fn(move |client, _| {
            if client.is_closed() {
                lost.one_more();
            }
            Ok(())
        })
    }
}

impl Lender {
    pub(crate) fn new(pool: Pool, target: Target, lost: Lost) -> Self {
        Self {
            pool,
            target: Arc::new(target),
            explicit: Arc::default(),
            lost,
        }
    }

    /// How many connections were lost so far.
    pub(crate) fn lost(&self) -> u64 {
        self.lost.0.load(Ordering::SeqCst)
    }

    /// How the database begins transactions.
    pub(crate) fn set_explicit(&self, explicit: bool) {
        self.explicit.store(explicit, Ordering::Relaxed);
    }

    pub(crate) async fn client(&self) -> Result<Object, Error> {
        self.pool.get().await.map_err(|e| from_pool(e, &self.target))
    }

    /// A connection that goes back only when everything that was asked on it has its answer.
    pub(crate) async fn lend(&self) -> Result<Lent, Error> {
        // The connector is for the cancel request, should the caller stop waiting.
        Ok(Lent::new(self.client().await?, Connector::clone(&self.target.tls)))
    }

    /// Runs one statement as a transaction of its own.
    pub(crate) async fn query_once(&self, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
        self.query_on(self.lend().await?, sql, args).await
    }

    /// The same on a connection that was lent before.
    pub(crate) async fn query_on(&self, mut lent: Lent, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
        let answer = match self.explicit.load(Ordering::Relaxed) {
            true => in_read_committed(lent.client(), sql, args).await,
            false => by_itself(lent.client(), sql, args).await,
        };
        lent.answered();
        if matches!(answer, Err(Error::Unavailable(_))) {
            self.lost.one_more();
        }
        answer
    }
}

/// Runs one statement as a transaction of its own.
async fn by_itself(client: &Client, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
    let answer = client.query_typed(sql, args).await;
    if answer.as_ref().is_err_and(|e| e.as_db_error().is_some()) {
        // The server tells of an error before it has let go of the locks. One more round trip, and they are gone: who is told
        // no finds nothing in the way because of having asked.
        client.simple_query("").await.ok();
    }
    answer.map_err(from_driver)
}

/// Runs one statement as a transaction of its own that sees what others have just committed, whatever the database begins by default.
pub(crate) async fn in_read_committed(client: &mut Client, sql: &str, args: Args<'_>) -> Result<Vec<Row>, Error> {
    let begin = client
        .build_transaction()
        .isolation_level(IsolationLevel::ReadCommitted);
    let tx = begin.start().await.map_err(from_driver)?;
    match tx.query_typed(sql, args).await {
        Ok(rows) => tx.commit().await.map_err(from_driver).map(|()| rows),
        Err(e) => {
            // Waited for, so that the locks are gone.
            tx.rollback().await.ok();
            Err(from_driver(e))
        }
    }
}

/// A connection of the pool, which goes back when everything that was asked on it has its answer. If somebody stops waiting before, it
/// is closed, because the next question would wait behind theirs, and the server is told that nobody waits.
pub(crate) struct Lent {
    client: Option<Object>,
    tls: Connector,
    answered: bool,
}

impl Lent {
    pub fn new(client: Object, tls: Connector) -> Self {
        Self {
            client: Some(client),
            tls,
            answered: false,
        }
    }

    pub fn client(&mut self) -> &mut Client {
        self.client.as_mut().expect("it is there until it is dropped")
    }

    /// Gives it back.
    pub fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        let Some(client) = self.client.take().filter(|_| !self.answered) else {
            return;
        };
        let (cancel, tls) = (client.cancel_token(), Connector::clone(&self.tls));
        drop(Object::take(client));
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            // A kindness to the server, which may not hear it.
            runtime.spawn(async move { tokio::time::timeout(SILENCE, cancel.cancel_query(tls)).await });
        }
    }
}
