//! Connections on loan, and how long their answers are waited for.

use deadpool_postgres::{Object, Pool};
use posthouse_core::Error;
use std::{future::Future, time::Duration};
use tokio_postgres::Client;

use crate::{error::from_pool, tls::Connector};

/// What has had no answer for so long is asked again, on another connection. It is long, because a server may only be slow, and what it
/// is asked again does not make it faster; that its machine is gone is noticed by the system before, see `store::configured`.
const SILENCE: Duration = Duration::from_secs(20);

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
    pub(crate) pool: Pool,
    /// To tell the server that nobody waits any more.
    pub(crate) tls: Connector,
}

impl Lender {
    pub(crate) async fn client(&self) -> Result<Object, Error> {
        self.pool.get().await.map_err(from_pool)
    }

    /// A connection that goes back only when everything that was asked on it has its answer.
    pub(crate) async fn lend(&self) -> Result<Lent, Error> {
        Ok(Lent::new(self.client().await?, Connector::clone(&self.tls)))
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
