//! Changing a relay while it runs.

use posthouse_core::Error;
use std::sync::{Arc, OnceLock};
use tokio::sync::watch;

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
}

impl Control {
    pub(super) fn begin(&self, routes: Arc<Routes>, tenants: Arc<Tenants>, freed: Arc<watch::Sender<()>>) {
        // Only the one run of its relay begins it.
        let _ = self.0.set(Running { routes, tenants, freed });
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
}
