//! A store that stumbles twice, and is itself otherwise.

use async_trait::async_trait;
use posthouse::{Error, Store};
use posthouse_testkit::wrapped::{Call, Hook, Reply, Wrapped};
use std::sync::{
    Arc,
    atomic::{AtomicBool, Ordering},
};

/// The first claim finds no database, and the first settlement gets no answer in time.
#[derive(Default)]
struct Stumbling {
    claimed: AtomicBool,
    settled: AtomicBool,
}

/// The store, which will stumble.
pub fn stumbling(store: Arc<dyn Store>) -> Arc<dyn Store> {
    Arc::new(Wrapped::new(store, Stumbling::default()))
}

#[async_trait]
impl Hook for Stumbling {
    async fn call(&self, call: Call, store: &Arc<dyn Store>) -> Result<Reply, Error> {
        match call {
            Call::Look(_) if !self.claimed.swap(true, Ordering::SeqCst) => {
                Err(Error::Unavailable("connection refused".into()))
            }
            Call::Settle(_) if !self.settled.swap(true, Ordering::SeqCst) => {
                // It was written, and only the answer is late: what is unknown is asked again.
                call.to(store).await?;
                Err(Error::Timeout("statement timeout".into()))
            }
            call => call.to(store).await,
        }
    }
}
