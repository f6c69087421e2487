//! Changing a relay while it runs, and asking how it is.

use posthouse_core::Error;
use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};
use tokio::{sync::watch, time::Instant};

use super::{
    destination::Destination,
    explicit::Maker,
    route::Routes,
    tenants::{TenantLimits, Tenants},
};

/// Changes a relay while it runs. From [`Relay::control`](super::Relay::control).
#[derive(Clone, Default)]
pub struct Control(Arc<OnceLock<Running>>);

struct Running {
    routes: Arc<Routes>,
    tenants: Arc<Tenants>,
    freed: Arc<watch::Sender<()>>,
    pulses: Vec<Arc<Pulse>>,
}

impl Control {
    pub(super) fn begin(
        &self,
        routes: Arc<Routes>,
        tenants: Arc<Tenants>,
        freed: Arc<watch::Sender<()>>,
        pulses: Vec<Arc<Pulse>>,
    ) {
        // Only the one run of its relay begins it.
        let _ = self.0.set(Running {
            routes,
            tenants,
            freed,
            pulses,
        });
    }

    /// Puts these routes in the place of the relay's, if all of them are sound; else nothing changes. Sends that are under way end
    /// by the old ones. A destination that stays the same (a clone of the one before, under the same rules) keeps its breaker and
    /// its rate. Before the relay runs there is nothing to replace, and nothing happens.
    pub fn replace_routes(&self, routes: Vec<(String, Destination)>) -> Result<(), Error> {
        if let Some(running) = self.0.get() {
            running.routes.replace(routes)?;
            running.freed.send_replace(());
        }
        Ok(())
    }

    /// Puts this maker in the place of those that the relay was given ([`Relay::explicit`](super::Relay::explicit)); without one, no
    /// topic names its destination any more.
    pub fn replace_explicit<F>(&self, maker: Option<(String, F)>)
    where
        F: Fn(&str) -> Result<Destination, Error> + Send + Sync + 'static,
    {
        if let Some(running) = self.0.get() {
            let maker = maker.map(|(prefix, maker)| (prefix, Arc::new(maker) as Maker));
            running.routes.explicit.replace(maker.into_iter().collect());
            running.freed.send_replace(());
        }
    }

    /// Puts these limits in the place of the relay's: of tenants by name, and of each of the others. What is in flight stays.
    pub fn replace_tenant_limits(
        &self,
        named: impl IntoIterator<Item = (String, u32)>,
        others: Option<u32>,
    ) -> Result<(), Error> {
        let limits = TenantLimits {
            named: named.into_iter().collect(),
            others,
        };
        limits.check()?;
        if let Some(running) = self.0.get() {
            running.tenants.replace(limits);
            running.freed.send_replace(());
        }
        Ok(())
    }

    /// For how long each database has not answered what the relay asked when it last had room: in the order in which they were named.
    /// Nothing before the relay runs.
    pub fn silences(&self) -> Vec<Duration> {
        let running = self.0.get();
        running.map_or_else(Vec::new, |running| {
            running.pulses.iter().map(|pulse| pulse.silence()).collect()
        })
    }
}

/// When the loop on one store last came round.
pub(super) struct Pulse {
    since: Instant,
    /// Milliseconds, of the first question that has no answer; none when zero.
    asked: AtomicU64,
}

impl Pulse {
    pub fn new() -> Self {
        Self {
            since: Instant::now(),
            asked: AtomicU64::new(0),
        }
    }

    /// The store is asked for work.
    pub fn ask(&self) {
        // Only the first question without an answer counts.
        let _ = self
            .asked
            .compare_exchange(0, self.now().max(1), Ordering::Relaxed, Ordering::Relaxed);
    }

    /// It has answered.
    pub fn answer(&self) {
        self.asked.store(0, Ordering::Relaxed);
    }

    fn silence(&self) -> Duration {
        match self.asked.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            asked => Duration::from_millis(self.now().saturating_sub(asked)),
        }
    }

    fn now(&self) -> u64 {
        u64::try_from(self.since.elapsed().as_millis()).unwrap_or(u64::MAX)
    }
}
