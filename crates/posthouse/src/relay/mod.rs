//! The relay: claims messages, sends them, and settles what became of them.
//!
//! ```no_run
//! # use posthouse::{AnyStore, Relay, relay::local};
//! # #[derive(serde::Deserialize)] struct Usage { tokens: u64 }
//! # async fn example() -> Result<(), posthouse::Error> {
//! # let cancel = tokio_util::sync::CancellationToken::new();
//! async fn publish_usage(usage: Usage) -> Result<(), std::io::Error> {
//!     println!("{} tokens", usage.tokens);
//!     Ok(())
//! }
//!
//! let store = AnyStore::open("sqlite://shop.db").await?.store();
//! Relay::builder(store).route("usage.*", local(publish_usage)).run(cancel).await?;
//! # Ok(()) }
//! ```
//!
//! Any number of relays may run on one store, on any number of machines: they meet only there. A message is sent under a lease that
//! is renewed for as long as the send takes; one whose lease is lost is stopped, and what it would have written is refused.

mod held;
mod line;
mod local;
mod round;
mod route;
mod settler;
mod transactional;

pub use local::{IntoOutcome, local, local_delivery};
pub use route::Destination;
pub use transactional::{Failure, Handling, Transactional, transactional};

use posthouse_core::{Error, Invalid, Store, lease::check_lease, presence};
use std::{
    collections::HashSet,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use held::Held;
use route::Route;
use settler::Settler;

/// What a relay may be told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    name: String,
    namespaces: Vec<String>,
    lease: Duration,
    batch: u32,
    max_bytes: u64,
    concurrency: usize,
    poll: Duration,
    grace: Duration,
    seed: Option<u64>,
}

/// A relay that is being put together. See [`Relay::builder`].
pub struct Relay {
    store: Arc<dyn Store>,
    routes: Vec<(String, Destination)>,
    settings: Settings,
}

impl Relay {
    /// A relay on this store: leases of 15 seconds, 64 messages in flight, 50 in a claim.
    pub fn builder(store: Arc<dyn Store>) -> Self {
        Self {
            store,
            routes: Vec::new(),
            settings: Settings {
                name: format!("relay-{}", std::process::id()),
                namespaces: Vec::new(),
                lease: Duration::from_secs(15),
                batch: 50,
                max_bytes: 64 << 20,
                concurrency: 64,
                poll: Duration::from_millis(500),
                grace: Duration::from_secs(10),
                seed: None,
            },
        }
    }

    /// Sends messages whose topic is of this pattern there. The first route that matches a topic serves it.
    pub fn route(mut self, topic: impl Into<String>, to: impl Into<Destination>) -> Self {
        self.routes.push((topic.into(), to.into()));
        self
    }

    /// What it is called in leases, attempts and `stats`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Serves this namespace only, and others that are named so.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespaces.push(namespace.into());
        self
    }

    /// How long a lease lasts before it must be renewed. After a death of this relay, others wait so long.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.settings.lease = lease;
        self
    }

    /// The most messages of one claim.
    pub fn batch(mut self, batch: u32) -> Self {
        self.settings.batch = batch;
        self
    }

    /// The most messages in flight.
    pub fn concurrency(mut self, concurrency: usize) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How often it looks for work when nobody wakes it.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.settings.poll = poll;
        self
    }

    /// How long sends may go on after it was told to stop.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Makes chance (the jitter of waits) the same in each run: for tests.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// Runs until it is cancelled; then gives back what is not sent yet, waits for what is, and returns. Errors of the store are
    /// waited out; what is returned at once as an error is a setting that makes no sense.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let (engine, settling) = Engine::start(self)?;
        round::run(engine, settling, cancel).await;
        Ok(())
    }
}

/// A relay that runs.
struct Engine {
    store: Arc<dyn Store>,
    settings: Settings,
    routes: Vec<Arc<Route>>,
    held: Arc<Held>,
    settler: Settler,
    slots: Arc<Semaphore>,
    /// Something is free that was not.
    changed: Notify,
    /// Nothing new is sent.
    stopping: CancellationToken,
    /// Nothing is waited for.
    stopped: CancellationToken,
    /// Topics without a route.
    unrouted: Mutex<HashSet<String>>,
    chance: Mutex<fastrand::Rng>,
}

impl Engine {
    fn start(relay: Relay) -> Result<(Arc<Self>, tokio::task::JoinHandle<()>), Error> {
        let Relay {
            store,
            routes,
            settings,
        } = relay;
        check_lease(settings.lease)?;
        if settings.concurrency == 0 || settings.concurrency > Semaphore::MAX_PERMITS {
            return Err(Invalid::new("concurrency", "must be at least 1").into());
        }
        let route = |(topic, to): (String, Destination)| Route::new(&topic, to, settings.lease).map(Arc::new);
        let routes = routes.into_iter().map(route).collect::<Result<Vec<_>, _>>()?;
        let (settler, settling) = Settler::start(store.clone());
        let engine = Self {
            held: Held::new(settings.lease),
            slots: Arc::new(Semaphore::new(settings.concurrency)),
            changed: Notify::new(),
            stopping: CancellationToken::new(),
            stopped: CancellationToken::new(),
            unrouted: Mutex::default(),
            chance: Mutex::new(settings.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed)),
            store,
            settings,
            routes,
            settler,
        };
        engine.told().check(Duration::from_secs(1))?;
        engine.claim(1).check()?;
        Ok((Arc::new(engine), settling))
    }

    fn route(&self, topic: &str) -> Option<Arc<Route>> {
        self.routes.iter().find(|route| route.serves(topic)).cloned()
    }

    /// Does not claim this topic again: other relays may have a route for it.
    fn leave_topic(&self, topic: &str) {
        let mut unrouted = self.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
        if unrouted.insert(topic.to_owned()) {
            tracing::warn!(topic, "no route for this topic; it is left to other relays");
        }
    }

    /// A claim of up to so many, without the topics that nothing can be sent of now.
    fn claim(&self, batch: u32) -> posthouse_core::Claim {
        let mut not_topics: Vec<_> = self.routes.iter().flat_map(|route| route.left_topics()).collect();
        let unrouted = self.unrouted.lock().unwrap_or_else(PoisonError::into_inner);
        not_topics.extend(unrouted.iter().cloned());
        let claim = posthouse_core::Claim::new(&*self.settings.name, batch, self.settings.lease);
        posthouse_core::Claim {
            namespaces: self.settings.namespaces.clone(),
            not_topics,
            ..claim.max_bytes(self.settings.max_bytes)
        }
    }

    /// What it tells of itself.
    fn told(&self) -> presence::Relay {
        presence::Relay {
            name: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            namespaces: self.settings.namespaces.clone(),
            routes: self.routes.iter().map(|route| route.told()).collect(),
            ..presence::Relay::default()
        }
    }

    fn roll(&self) -> f64 {
        self.chance.lock().unwrap_or_else(PoisonError::into_inner).f64()
    }
}
