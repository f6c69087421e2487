//! How many messages of one tenant a relay takes upon itself.
//!
//! The same idea as for destinations (see [`ask`](super::ask)): a tenant that got more than it may have is left out of the large
//! claim, and has claims of its own, no larger than its room, until one finds less.

use posthouse_core::Invalid;
use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex},
};

use super::locked;

/// Tenants that are remembered because they got more than they had room for. Beyond it they are forgotten, and learnt again.
const MOST_NARROW: usize = 10_000;

/// The most messages in flight of one tenant.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct TenantLimits {
    pub named: HashMap<String, u32>,
    pub others: Option<u32>,
}

impl TenantLimits {
    /// Refuses a limit under which nothing would ever be sent.
    pub fn check(&self) -> Result<(), Invalid> {
        if let Some((tenant, _)) = self.named.iter().find(|(_, most)| **most == 0) {
            return Err(Invalid::new(
                "tenant_limit",
                format!("of {tenant:?} must be at least 1"),
            ));
        }
        if self.others == Some(0) {
            return Err(Invalid::new("tenants_limit", "must be at least 1"));
        }
        Ok(())
    }

    fn of(&self, tenant: &str) -> Option<u32> {
        self.named.get(tenant).copied().or(self.others)
    }
}

pub(super) struct Tenants(Mutex<State>);

struct State {
    limits: TenantLimits,
    /// Those that have something in flight here, or are narrow; without a limit, nobody.
    known: BTreeMap<String, Tenant>,
}

#[derive(Default)]
struct Tenant {
    here: u32,
    narrow: bool,
}

/// A message's part of what its tenant may have; free again when dropped. Without a limit, none.
pub(super) struct Seat(Option<(Arc<Tenants>, String)>);

/// A tenant that is left out of the large claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Limited {
    pub tenant: String,
    pub room: u32,
    /// Whether its room is worth a claim of its own.
    pub worthwhile: bool,
}

impl Tenants {
    pub fn new(limits: TenantLimits) -> Arc<Self> {
        Arc::new(Self(Mutex::new(State {
            limits,
            known: BTreeMap::new(),
        })))
    }

    /// Whether anybody has a limit.
    pub fn has_limits(&self) -> bool {
        locked(&self.0).limits != TenantLimits::default()
    }

    /// Room for one message of this tenant. None when it has as many as it may.
    pub fn enter(self: &Arc<Self>, tenant: &str) -> Option<Seat> {
        let State { limits, known } = &mut *locked(&self.0);
        let Some(limit) = limits.of(tenant) else {
            return Some(Seat(None));
        };
        if known.len() >= MOST_NARROW && !known.contains_key(tenant) {
            known.retain(|_, tenant| tenant.here > 0);
            known.values_mut().for_each(|tenant| tenant.narrow = false);
        }
        let entry = known.entry(tenant.to_owned()).or_default();
        if entry.here >= limit {
            entry.narrow = true;
            return None;
        }
        entry.here += 1;
        Some(Seat(Some((self.clone(), tenant.to_owned()))))
    }

    /// How many more of this tenant may come.
    pub fn room(&self, tenant: &str) -> u32 {
        locked(&self.0).room(tenant)
    }

    /// Those that are full, or got more than they had room for.
    pub fn limited(&self) -> Vec<Limited> {
        let state = locked(&self.0);
        let limited = |(tenant, Tenant { narrow, .. }): (&String, &Tenant)| {
            let (room, limit) = (state.room(tenant), state.limits.of(tenant)?);
            (*narrow || room == 0).then(|| Limited {
                tenant: tenant.clone(),
                room,
                worthwhile: *narrow && room >= (limit / 4).max(1),
            })
        };
        state.known.iter().filter_map(limited).collect()
    }

    /// There was less of it than it had room for.
    pub fn widen(&self, tenant: &str) {
        let mut state = locked(&self.0);
        if let Some(entry) = state.known.get_mut(tenant) {
            entry.narrow = false;
        }
        state.forget(tenant);
    }

    /// Other limits from now on. What is in flight stays, also where it is more.
    pub fn replace(&self, limits: TenantLimits) {
        locked(&self.0).limits = limits;
    }
}

impl State {
    fn room(&self, tenant: &str) -> u32 {
        let here = self.known.get(tenant).map_or(0, |tenant| tenant.here);
        self.limits
            .of(tenant)
            .map_or(u32::MAX, |limit| limit.saturating_sub(here))
    }

    fn forget(&mut self, tenant: &str) {
        if self.known.get(tenant).is_some_and(|t| t.here == 0 && !t.narrow) {
            self.known.remove(tenant);
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let Some((tenants, tenant)) = &self.0 else { return };
        let mut state = locked(&tenants.0);
        if let Some(entry) = state.known.get_mut(tenant) {
            entry.here = entry.here.saturating_sub(1);
        }
        state.forget(tenant);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limits(named: &[(&str, u32)], others: Option<u32>) -> TenantLimits {
        let named = named.iter().map(|(t, n)| ((*t).to_owned(), *n)).collect();
        TenantLimits { named, others }
    }

    #[test]
    fn a_tenant_has_its_own_limit_or_that_of_all_others() {
        let tenants = Tenants::new(limits(&[("a", 2)], Some(1)));
        let held = [tenants.enter("a"), tenants.enter("a"), tenants.enter("b")];
        assert!(held.iter().all(Option::is_some));
        assert!(tenants.enter("a").is_none() && tenants.enter("b").is_none());
        assert!(tenants.enter("c").is_some());
        drop(held);
        assert_eq!((tenants.room("a"), tenants.room("b")), (2, 1));
        let free = Tenants::new(limits(&[("a", 3)], None));
        assert_eq!((free.room("b"), free.room("a")), (u32::MAX, 3));
        assert!(free.enter("b").is_some() && free.limited().is_empty());
    }

    #[test]
    fn who_got_too_much_is_narrow_until_there_is_less() {
        let tenants = Tenants::new(limits(&[], Some(8)));
        let mut held: Vec<_> = (0..8).filter_map(|_| tenants.enter("a")).collect();
        let limited = |room, worthwhile| {
            vec![Limited {
                tenant: "a".into(),
                room,
                worthwhile,
            }]
        };
        assert_eq!(tenants.limited(), limited(0, false));
        held.pop();
        assert!(tenants.limited().is_empty());
        held.push(tenants.enter("a").unwrap());
        assert!(tenants.enter("a").is_none());
        held.pop();
        assert_eq!(tenants.limited(), limited(1, false));
        held.pop();
        assert_eq!(tenants.limited(), limited(2, true));
        tenants.widen("a");
        assert!(tenants.limited().is_empty());
    }
}
