//! The relay: claims messages, sends them, and settles what became of them.
//!
//! ```no_run
//! # use posthouse::{AnyStore, Relay, relay::{CancellationToken, local}};
//! # #[derive(serde::Deserialize)] struct Usage { tokens: u64 }
//! # async fn example() -> Result<(), posthouse::Error> {
//! # let cancel = CancellationToken::new();
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

mod ask;
mod control;
mod destination;
mod explicit;
mod hand_out;
mod held;
mod line;
mod load;
mod local;
pub mod measures;
mod points;
mod profile;
mod queue;
mod repairs;
mod round;
mod route;
mod sagas;
mod settler;
mod side_by_side;
mod target;
mod tasks;
mod tell;
mod tenants;
mod transactional;
mod unrouted;
mod watchdog;

pub use control::Control;
use control::Pulse;
pub use destination::Destination;
pub(crate) use local::read_json;
pub use local::{IntoOutcome, local, local_delivery, local_with};
pub use profile::Profile;
/// What stops a relay.
pub use tokio_util::sync::CancellationToken;
pub use transactional::{Failure, Handling, Transactional, transactional};

use posthouse_core::{Error, Invalid, Store, lease::check_lease, presence, tally::Tally, topic::shown};
use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

use crate::saga::Saga;
use explicit::Maker;
use held::Held;
use load::Load;
use repairs::Expiry;
use route::Routes;
use settler::Settler;
use target::Bounds;
use tasks::{EndTasks, Tasks};
use tenants::{TenantLimits, Tenants};
use unrouted::Unrouted;

/// Tenants at their limit that are told of.
const MOST_TOLD: usize = 1000;

/// What a relay may be told.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    name: String,
    namespaces: Vec<String>,
    lease: Duration,
    batch: u32,
    max_bytes: u64,
    concurrency: u32,
    poll: Duration,
    grace: Duration,
    weights: HashMap<String, u32>,
    tenant_limits: TenantLimits,
    seed: Option<u64>,
}

/// A database, and the namespaces that are served there.
type Served = (Arc<dyn Store>, Vec<String>);

/// A relay that is being put together. See [`Relay::builder`].
pub struct Relay {
    stores: Vec<Served>,
    routes: Vec<(String, Destination)>,
    makers: Vec<(String, Maker)>,
    settings: Settings,
    control: Control,
}

impl Relay {
    /// A relay on this store: leases of 15 seconds, 2000 messages and 64 MiB in flight, 500 in a claim. Relays that share one handle also
    /// share its wake-ups, of which each reaches one of them: give each a handle of its own.
    pub fn builder(store: Arc<dyn Store>) -> Self {
        Self {
            stores: vec![(store, Vec::new())],
            routes: Vec::new(),
            makers: Vec::new(),
            settings: Settings {
                name: default_name(),
                namespaces: Vec::new(),
                lease: Duration::from_secs(15),
                batch: Profile::Balanced.batch(),
                max_bytes: 64 << 20,
                concurrency: Profile::Balanced.concurrency(),
                poll: Profile::Balanced.poll(),
                grace: Duration::from_secs(25),
                weights: HashMap::new(),
                tenant_limits: TenantLimits::default(),
                seed: None,
            },
            control: Control::default(),
        }
    }

    /// Sets what goes together for a purpose: the size of claims, what is in flight, how often it looks. Each of them can be set
    /// after it.
    pub fn profile(self, profile: Profile) -> Self {
        self.batch(profile.batch())
            .concurrency(profile.concurrency())
            .poll(profile.poll())
    }

    /// Serves another database as well, by the same routes and within the same limits.
    pub fn also(mut self, store: Arc<dyn Store>) -> Self {
        self.stores.push((store, Vec::new()));
        self
    }

    /// Sends messages whose topic is of this pattern there. The first route that matches a topic serves it.
    pub fn route(mut self, topic: impl Into<String>, to: impl Into<Destination>) -> Self {
        self.routes.push((topic.into(), to.into()));
        self
    }

    /// Sends messages whose topic begins with this prefix (`http:`) to what the rest of it names, before any route is asked. Only what
    /// the maker makes a destination of: a producer must not aim the relay. What it answers [`Error::Invalid`] for is rejected with
    /// the code `not_allowed` and that error's text, so neither the text nor the destination's name may hold the address itself.
    pub fn explicit<F>(mut self, prefix: impl Into<String>, maker: F) -> Self
    where
        F: Fn(&str) -> Result<Destination, Error> + Send + Sync + 'static,
    {
        self.makers.push((prefix.into(), Arc::new(maker)));
        self
    }

    /// Does the steps of a saga by its functions. Relays that do not have them leave them to those that do; keep a version for as long as sagas of it are
    /// under way. Steps at addresses need [`explicit`](Self::explicit).
    pub fn saga<T>(mut self, saga: &Saga<T>) -> Self {
        self.routes.extend(saga.functions());
        self
    }

    /// What it is called in leases, attempts and `stats`.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = name.into();
        self
    }

    /// Serves this namespace only, and others that are named so, of the database that was named last.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        if let Some((_, namespaces)) = self.stores.last_mut() {
            namespaces.push(namespace.into());
        }
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

    /// The most bytes of payloads in flight. A message that is larger by itself is still taken, when there is any room.
    pub fn max_bytes(mut self, bytes: u64) -> Self {
        self.settings.max_bytes = bytes;
        self
    }

    /// A tenant that gets so many turns where others get one. When there is room for everybody, it makes no difference.
    pub fn weight(mut self, tenant: impl Into<String>, weight: u32) -> Self {
        self.settings.weights.insert(tenant.into(), weight);
        self
    }

    /// The most messages of this tenant in flight in this relay, whatever there is room for.
    pub fn tenant_limit(mut self, tenant: impl Into<String>, most: u32) -> Self {
        self.settings.tenant_limits.named.insert(tenant.into(), most);
        self
    }

    /// The same for each tenant that has no limit of its own, and for messages without a tenant together.
    pub fn tenants_limit(mut self, most: u32) -> Self {
        self.settings.tenant_limits.others = Some(most);
        self
    }

    /// The most messages in flight.
    pub fn concurrency(mut self, concurrency: u32) -> Self {
        self.settings.concurrency = concurrency;
        self
    }

    /// How often it looks for work when nobody wakes it.
    pub fn poll(mut self, poll: Duration) -> Self {
        self.settings.poll = poll;
        self
    }

    /// How long it may take to stop. Sends that are under way have four fifths of it; then they are given up as unknown.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// Makes chance (the jitter of waits) the same in each run: for tests, in which time is not real and nobody watches for blocked
    /// threads. Nothing else here is left to chance: whatever is ready at the same time is taken in a fixed order.
    pub fn seed(mut self, seed: u64) -> Self {
        self.settings.seed = Some(seed);
        self
    }

    /// What changes it while it runs.
    pub fn control(&self) -> Control {
        self.control.clone()
    }

    /// Runs until it is cancelled; then gives back what is not sent yet, waits for what is, and returns. Errors of the store are
    /// waited out; what is returned at once as an error is a setting that makes no sense.
    pub async fn run(self, cancel: CancellationToken) -> Result<(), Error> {
        let mut running = tokio::task::JoinSet::new();
        let tasks = Tasks::new();
        // Also when this future is dropped.
        let _end = EndTasks(tasks.clone());
        for (engine, settling) in Engine::start(self, &tasks)? {
            running.spawn(round::run(engine, settling, cancel.clone()));
        }
        while let Some(ended) = running.join_next().await {
            // A panic of ours is the caller's to see.
            if let Err(Ok(panic)) = ended.map_err(tokio::task::JoinError::try_into_panic) {
                std::panic::resume_unwind(panic);
            }
        }
        Ok(())
    }
}

/// A relay that runs, on one store. What it shares with those on other stores is behind an `Arc`.
struct Engine {
    store: Arc<dyn Store>,
    settings: Settings,
    routes: Arc<Routes>,
    load: Arc<Load>,
    pulse: Arc<Pulse>,
    tenants: Arc<Tenants>,
    /// Rung when something is free that was not.
    freed: Arc<watch::Sender<()>>,
    held: Arc<Held>,
    settler: Settler,
    tasks: Arc<Tasks>,
    /// There may be something to claim.
    look: Notify,
    /// What claims say of leases that run out.
    expiry: Expiry,
    /// There is something to tell of this relay.
    news: Notify,
    /// Nothing new is sent.
    stopping: CancellationToken,
    /// Nothing is waited for.
    stopped: CancellationToken,
    /// Destinations that operators have paused.
    paused: Mutex<BTreeSet<String>>,
    /// Destinations that said to us that they are gone, and whether the store knows it: an answer of the store may be older than that.
    gone: Mutex<BTreeMap<String, bool>>,
    /// Topics without a route.
    unrouted: Mutex<Unrouted>,
    /// Deliveries from this store, since `since`.
    tally: Mutex<Tally>,
    since: Instant,
    chance: Mutex<fastrand::Rng>,
}

type Started = (Arc<Engine>, tokio::task::JoinHandle<()>);

impl Engine {
    fn start(relay: Relay, tasks: &Arc<Tasks>) -> Result<Vec<Started>, Error> {
        let Relay {
            stores,
            routes,
            makers,
            settings,
            control,
        } = relay;
        check(&settings)?;
        points::begin();
        let bounds = Bounds {
            lease: settings.lease,
            share: settings.concurrency / 2,
        };
        let routes = Arc::new(Routes::new(bounds, routes, makers)?);
        let load = Load::new(settings.concurrency as usize, settings.max_bytes);
        let freed = Arc::new(watch::Sender::new(()));
        let tenants = Tenants::new(settings.tenant_limits.clone());
        let pulses: Vec<_> = stores.iter().map(|_| Arc::new(Pulse::new())).collect();
        control.begin(routes.clone(), tenants.clone(), freed.clone(), pulses.clone());
        let mut chance = settings.seed.map_or_else(fastrand::Rng::new, fastrand::Rng::with_seed);
        let start = |((store, namespaces), pulse): (Served, Arc<Pulse>)| {
            let (settler, settling) = Settler::start(store.clone(), &settings.name, freed.clone());
            let engine = Self {
                held: Held::new(settings.lease),
                load: load.clone(),
                tenants: tenants.clone(),
                routes: routes.clone(),
                freed: freed.clone(),
                look: Notify::new(),
                expiry: Expiry::default(),
                news: Notify::new(),
                stopping: CancellationToken::new(),
                stopped: CancellationToken::new(),
                paused: Mutex::default(),
                gone: Mutex::default(),
                unrouted: Mutex::new(Unrouted::new()),
                tally: Mutex::default(),
                since: Instant::now(),
                chance: Mutex::new(chance.fork()),
                settings: Settings {
                    namespaces,
                    ..settings.clone()
                },
                pulse,
                store,
                settler,
                tasks: tasks.clone(),
            };
            engine.told().check(Duration::from_secs(1))?;
            Ok((Arc::new(engine), settling))
        };
        stores.into_iter().zip(pulses).map(start).collect()
    }

    /// Does not claim this topic again: other relays may have a route for it.
    fn leave_topic(&self, topic: &str, namespace: &str) {
        if locked(&self.unrouted).add(topic, namespace) {
            tracing::warn!(topic = %shown(topic), namespace, "no route for this topic; it is left to other relays");
            self.news.notify_one();
        }
    }

    /// The topics without a route that are still without one.
    fn unrouted(&self) -> BTreeSet<String> {
        let mut unrouted = locked(&self.unrouted);
        unrouted.forget_routed(&self.routes);
        unrouted.topics()
    }

    /// Counts a delivery, for the heartbeat.
    fn delivered(&self, destination: &str) {
        locked(&self.tally).count(destination, self.since.elapsed());
    }

    fn is_paused(&self, destination: &str) -> bool {
        locked(&self.paused).contains(destination)
    }

    /// What it tells of itself.
    fn told(&self) -> presence::Relay {
        let mut unrouted = locked(&self.unrouted);
        unrouted.forget_routed(&self.routes);
        presence::Relay {
            deliveries: locked(&self.tally).report(self.since.elapsed()),
            unrouted: unrouted.report(),
            name: self.settings.name.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            namespaces: self.settings.namespaces.clone(),
            routes: self.routes.told(),
            destinations: self.routes.health(),
            limited_tenants: self.limited_tenants(),
        }
    }

    /// Tenants at their limit, so many as can be told.
    fn limited_tenants(&self) -> Vec<String> {
        let limited = self.tenants.limited().into_iter().map(|limited| limited.tenant);
        limited.take(MOST_TOLD).collect()
    }

    fn roll(&self) -> f64 {
        locked(&self.chance).f64()
    }

    /// Somebody may go on who could not.
    fn freed(&self) {
        self.freed.send_replace(());
    }
}

/// Refuses settings that make no sense.
/// The name of a relay that was given none: it names the process.
pub fn default_name() -> String {
    format!("relay-{}", std::process::id())
}

fn check(settings: &Settings) -> Result<(), Error> {
    let told = presence::Relay {
        name: settings.name.clone(),
        ..presence::Relay::default()
    };
    told.check(Duration::from_secs(1))?;
    check_lease(settings.lease)?;
    if settings.concurrency == 0 {
        return Err(Invalid::new("concurrency", "must be at least 1").into());
    }
    if settings.poll < Duration::from_millis(1) || settings.poll > Duration::from_secs(3600) {
        return Err(Invalid::new("poll", "must be between 1 ms and an hour").into());
    }
    if let Some((tenant, _)) = settings.weights.iter().find(|(_, weight)| **weight == 0) {
        return Err(Invalid::new("weight", format!("of {tenant:?} must be at least 1")).into());
    }
    settings.tenant_limits.check()?;
    let claim = posthouse_core::Claim::new(&*settings.name, settings.batch, settings.lease);
    claim.max_bytes(settings.max_bytes).check()?;
    Ok(())
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
