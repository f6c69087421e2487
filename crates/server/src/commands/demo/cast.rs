//! Who plays in the demo: a place for the database, workers with handles of their own, and a destination.

use async_trait::async_trait;
use posthouse::{
    Claim, Claimed, Delivery, Error, Invalid, Outcome, RetryPolicy, Settlement, Store, Transport, sqlite::Sqlite,
};
use std::{
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, Ordering},
    time::{Duration, Instant},
};
use tempfile::TempDir;

use crate::exit::Failure;

/// Nothing here takes longer, unless something is wrong.
pub const PATIENCE: Duration = Duration::from_secs(5);

/// Where the database is: in a folder that goes away with this value, or in a file to keep.
pub struct Place {
    pub file: PathBuf,
    pub folder: Option<TempDir>,
}

impl Place {
    pub fn new(keep: Option<&Path>) -> Result<Self, Failure> {
        let Some(file) = keep else {
            let folder = tempfile::Builder::new().prefix("posthouse-demo-").tempdir()?;
            let file = folder.path().join("demo.db");
            return Ok(Self {
                file,
                folder: Some(folder),
            });
        };
        let refused = |problem: String| Failure::from(Invalid::new("keep", problem));
        if file.exists() {
            let failure = refused(format!("{} exists already", file.display()));
            return Err(failure.help("name a new file; the demo writes into nobody's data"));
        }
        match file.parent() {
            Some(folder) if !folder.as_os_str().is_empty() && !folder.is_dir() => {
                Err(refused(format!("there is no folder {}", folder.display())))
            }
            _ => Ok(Self {
                file: file.to_owned(),
                folder: None,
            }),
        }
    }
}

/// A worker as in any relay: a label, and a handle of its own on the store.
pub struct Worker {
    pub name: &'static str,
    pub store: Sqlite,
}

impl Worker {
    pub fn start(name: &'static str, file: &Path) -> Result<Self, Error> {
        Ok(Self {
            name,
            store: Sqlite::open(file)?,
        })
    }

    /// One message under a lease, as soon as one is due.
    pub async fn claim(&self, lease: Duration) -> Result<Claimed, Failure> {
        let since = Instant::now();
        loop {
            let mut claimed = self.store.claim(&Claim::new(self.name, 1, lease)).await?;
            if let Some(one) = claimed.pop() {
                return Ok(one);
            }
            found(since.elapsed() < PATIENCE, "something to claim")?;
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Sends it once, and settles what the destination answered.
    pub async fn send(&self, claimed: &Claimed, to: &dyn Transport, policy: &RetryPolicy) -> Result<(), Failure> {
        let outcome = to.send(&claimed.delivery).await;
        let verdicts = self
            .store
            .settle(&[Settlement::of(&claimed.lease, outcome, policy, 0.5)])
            .await?;
        found(verdicts.iter().all(|v| v.is_settled()), "the outcome settled")
    }
}

/// The destination: a warehouse that is open or closed.
pub struct Warehouse {
    pub open: AtomicBool,
}

#[async_trait]
impl Transport for Warehouse {
    async fn send(&self, delivery: &Delivery) -> Outcome {
        if self.open.load(Ordering::Relaxed) {
            return Outcome::Delivered {
                receipt: Some(format!("received {}", delivery.topic)),
            };
        }
        Outcome::Retry {
            after: None,
            code: "http_503".to_owned(),
            error: "closed".to_owned(),
        }
    }
}

/// The demo tells only what it has seen.
pub fn found(is_so: bool, what: &str) -> Result<(), Failure> {
    if is_so {
        Ok(())
    } else {
        Err(Failure::new(format!("the demo did not find {what}")))
    }
}
