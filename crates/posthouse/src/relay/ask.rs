//! What a round asks the store for: as much as there is room for, and nothing that cannot be sent.
//!
//! A claim cannot say how much of each topic it wants. So a destination that got more than it had room for is left out of the large
//! claim from then on, and has a small one, which asks for no more in all than that destination has room for. When that finds less
//! than it asked for, there is nothing left to be careful about. Without it, a slow destination's messages would be claimed and
//! given back over and over. A tenant that got more than it may have is treated alike, but for that a claim can ask for one tenant.

use std::{collections::BTreeSet, sync::Arc};

use super::{route::Route, tenants::Limited};

/// One claim.
pub(super) struct Ask {
    /// The most that it takes.
    pub most: u32,
    /// Topics that nothing can be sent of now.
    pub not_topics: Vec<String>,
    /// The one tenant that it is for, no larger than that one's room.
    pub tenant: Option<String>,
    /// Tenants that are left out of it.
    pub not_tenants: Vec<String>,
    /// The routes that it is small for.
    narrow: Vec<Arc<Route>>,
}

impl Ask {
    /// It is for everybody who has room.
    pub fn is_wide(&self) -> bool {
        self.tenant.is_none() && self.narrow.is_empty()
    }

    /// It is for one tenant, or leaves some out.
    pub fn minds_tenants(&self) -> bool {
        self.tenant.is_some() || !self.not_tenants.is_empty()
    }

    /// It found less than it asked for. Where tenants were left out, that says nothing of the routes.
    pub fn found_all(&self) {
        self.narrow.iter().for_each(|route| route.widen());
    }
}

/// The claims of a round.
pub(super) struct Asks {
    pub asks: Vec<Ask>,
    /// The most that all of them may take: what the fullest of the fast destinations in use has room for.
    pub most: u32,
    /// Something was left out that a send which ends may make room for.
    pub limited: bool,
}

/// What to ask for, at most so many at once. `elsewhere` says that topics may lead to other destinations than these.
pub(super) fn asks(
    routes: &[Arc<Route>],
    elsewhere: bool,
    paused: &BTreeSet<String>,
    unrouted: &BTreeSet<String>,
    tenants: &[Limited],
    batch: u32,
) -> Asks {
    let (mut wide, mut small) = (Leave::new(unrouted), Leave::new(unrouted));
    let (mut narrow, mut most, mut in_all) = (Vec::new(), batch, u32::MAX);
    let mut busy = false;
    for route in routes {
        if let Some(room) = route.target.fast_room()
            && !paused.contains(&route.target.name)
        {
            route.widen();
            in_all = in_all.min(room);
            continue;
        }
        let (room, is_paused) = (route.target.room(), paused.contains(&route.target.name));
        busy |= !is_paused && route.target.is_busy();
        if is_paused || room == 0 {
            wide.leave(route);
            small.leave(route);
        } else if route.is_narrow() {
            wide.leave(route);
            if room < route.target.worthwhile() {
                small.leave(route);
            } else {
                most = most.min(room);
                narrow.push(route.clone());
            }
        }
    }
    let limited = wide.routes > 0 || !tenants.is_empty();
    // Where nothing has room there is nobody to claim for, and whatever is left by a claim must be put out of its way, soon to be brought
    // back for those that are only busy.
    let closed = busy && wide.routes == routes.len() && !elsewhere;
    let small = (!narrow.is_empty()).then_some((most, small, narrow));
    let wide = (!closed).then_some((batch, wide, Vec::new()));
    let shapes = small.into_iter().chain(wide);
    let not_tenants: Vec<_> = tenants.iter().map(|limited| limited.tenant.clone()).collect();
    let mut asks = Vec::new();
    for (most, leave, narrow) in shapes {
        for own in tenants.iter().filter(|limited| limited.worthwhile) {
            asks.push(Ask {
                most: most.min(own.room),
                not_topics: leave.topics.clone(),
                tenant: Some(own.tenant.clone()),
                not_tenants: Vec::new(),
                narrow: Vec::new(),
            });
        }
        asks.push(Ask {
            most,
            not_topics: leave.topics,
            tenant: None,
            narrow: if tenants.is_empty() { narrow } else { Vec::new() },
            not_tenants: not_tenants.clone(),
        });
    }
    Asks {
        asks,
        most: in_all,
        limited,
    }
}

struct Leave {
    topics: Vec<String>,
    routes: usize,
}

impl Leave {
    fn new(unrouted: &BTreeSet<String>) -> Self {
        Self {
            topics: unrouted.iter().cloned().collect(),
            routes: 0,
        }
    }

    fn leave(&mut self, route: &Route) {
        self.topics.extend(route.topics());
        self.routes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::{destination::Destination, local::local_delivery, route::Routes, target::Bounds};
    use std::time::Duration;

    fn routes(concurrency: u32) -> Routes {
        let to = |name: &str| Destination::new(name, local_delivery(|_| async {})).concurrency(concurrency);
        let routes = vec![("a".to_owned(), to("a")), ("b".to_owned(), to("b"))];
        let bounds = Bounds {
            lease: Duration::from_secs(15),
            // Only what is sent, and as many that wait.
            share: 0,
        };
        Routes::new(bounds, routes, Vec::new()).unwrap()
    }

    fn told(routes: &Routes, paused: &[&str]) -> (Vec<(u32, Vec<String>)>, bool) {
        let paused = paused.iter().map(|p| (*p).to_owned()).collect();
        let asks = asks(
            &routes.all(),
            false,
            &paused,
            &BTreeSet::from(["x".to_owned()]),
            &[],
            50,
        );
        let mut told: Vec<_> = asks.asks.into_iter().map(|ask| (ask.most, ask.not_topics)).collect();
        told.iter_mut().for_each(|(_, topics)| topics.sort());
        (told, asks.limited)
    }

    fn left(topics: &[&str]) -> Vec<String> {
        topics.iter().map(|t| (*t).to_owned()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn with_room_everywhere_there_is_one_large_claim() {
        assert_eq!(told(&routes(4), &[]), (vec![(50, left(&["x"]))], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_full_destination_is_left_and_then_asked_for_in_measure() {
        let routes = routes(4);
        let a = routes.find("a").unwrap();
        let mut places: Vec<_> = (0..8).map(|_| a.enter("a").unwrap()).collect();
        assert_eq!(told(&routes, &[]), (vec![(50, left(&["a", "x"]))], true));
        assert!(a.enter("a").is_none());
        places.pop();
        // One place is not worth a claim; two of eight are.
        assert_eq!(told(&routes, &[]).0, [(50, left(&["a", "x"]))]);
        places.pop();
        let both = vec![(2, left(&["x"])), (50, left(&["a", "x"]))];
        assert_eq!(told(&routes, &[]), (both, true));
        asks(&routes.all(), false, &BTreeSet::new(), &BTreeSet::new(), &[], 50).asks[0].found_all();
        assert_eq!(told(&routes, &[]), (vec![(50, left(&["x"]))], false));
    }

    /// It would find nothing, and put all that waits out of its way.
    #[tokio::test(start_paused = true)]
    async fn where_nothing_has_room_there_is_no_claim() {
        let routes = routes(4);
        let (a, b) = (routes.find("a").unwrap(), routes.find("b").unwrap());
        let mut full: Vec<_> = (0..8).map(|_| a.enter("a").unwrap()).collect();
        let _full = (0..8).map(|_| b.enter("b").unwrap()).collect::<Vec<_>>();
        assert_eq!(told(&routes, &[]), (vec![], true));
        let none = BTreeSet::new();
        assert_eq!(
            asks(&routes.all(), true, &none, &none, &[], 50).asks.len(),
            1,
            "for others"
        );
        assert_eq!(told(&routes, &["a", "b"]).0.len(), 1, "who is paused is not busy");
        // In measure, for the one that has room again.
        assert!(a.enter("a").is_none());
        full.truncate(6);
        assert_eq!(told(&routes, &[]), (vec![(2, left(&["b", "x"]))], true));
        assert_eq!(told(&routes, &["a"]), (vec![], true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_destination_is_left() {
        let routes = routes(4);
        routes.find("b").unwrap().enter("b");
        assert_eq!(told(&routes, &["b"]), (vec![(50, left(&["b", "x"]))], true));
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_tenant_is_left_and_has_claims_of_its_own() {
        let limited = |tenant: &str, room, worthwhile| Limited {
            tenant: tenant.into(),
            room,
            worthwhile,
        };
        let tenants = [limited("full", 0, false), limited("slow", 3, true)];
        let none = BTreeSet::new();
        let Asks { asks, limited, .. } = asks(&routes(4).all(), false, &none, &none, &tenants, 50);
        let told: Vec<_> = asks
            .iter()
            .map(|ask| (ask.most, ask.tenant.as_deref(), ask.not_tenants.len()))
            .collect();
        assert_eq!((told, limited), (vec![(3, Some("slow"), 0), (50, None, 2)], true));
    }
}
