//! What a round asks the store for: as much as there is room for, and nothing that cannot be sent.
//!
//! A claim cannot say how much of each topic it wants. So a destination that got more than it had room for is left out of the large
//! claim from then on, and has a small one, which asks for no more in all than that destination has room for. When that finds less
//! than it asked for, there is nothing left to be careful about. Without it, a slow destination's messages would be claimed and
//! given back over and over.

use std::{collections::BTreeSet, sync::Arc};

use super::route::Route;

/// One claim.
pub(super) struct Ask {
    /// The most that it takes.
    pub most: u32,
    /// Topics that nothing can be sent of now.
    pub not_topics: Vec<String>,
    /// The routes that it is small for.
    narrow: Vec<Arc<Route>>,
}

impl Ask {
    /// It found less than it asked for.
    pub fn found_all(&self) {
        self.narrow.iter().for_each(|route| route.widen());
    }
}

/// The claims of a round.
pub(super) struct Asks {
    pub asks: Vec<Ask>,
    /// Something was left out that a send which ends may make room for.
    pub limited: bool,
}

/// What to ask for, at most so many at once.
pub(super) fn asks(routes: &[Arc<Route>], paused: &BTreeSet<String>, unrouted: &BTreeSet<String>, batch: u32) -> Asks {
    let (mut wide, mut small) = (Leave::new(unrouted), Leave::new(unrouted));
    let (mut narrow, mut most) = (Vec::new(), batch);
    for route in routes {
        let room = route.target.room();
        if paused.contains(&route.target.name) || room == 0 {
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
    let limited = wide.routes > 0;
    let small = (!narrow.is_empty()).then_some((most, small, narrow));
    let wide = (batch, wide, Vec::new());
    let asks = small.into_iter().chain([wide]);
    Asks {
        asks: asks
            .map(|(most, leave, narrow)| Ask {
                most,
                not_topics: leave.topics,
                narrow,
            })
            .collect(),
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
    use crate::relay::{destination::Destination, local::local_delivery, route::Routes};
    use std::time::Duration;

    fn routes(concurrency: u32) -> Routes {
        let to = |name: &str| Destination::new(name, local_delivery(|_| async {})).concurrency(concurrency);
        let routes = vec![("a".to_owned(), to("a")), ("b".to_owned(), to("b"))];
        Routes::new(Duration::from_secs(15), routes).unwrap()
    }

    fn told(routes: &Routes, paused: &[&str]) -> (Vec<(u32, Vec<String>)>, bool) {
        let paused = paused.iter().map(|p| (*p).to_owned()).collect();
        let asks = asks(&routes.all(), &paused, &BTreeSet::from(["x".to_owned()]), 50);
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
        asks(&routes.all(), &BTreeSet::new(), &BTreeSet::new(), 50).asks[0].found_all();
        assert_eq!(told(&routes, &[]), (vec![(50, left(&["x"]))], false));
    }

    #[tokio::test(start_paused = true)]
    async fn a_paused_destination_is_left() {
        let routes = routes(4);
        routes.find("b").unwrap().enter("b");
        assert_eq!(told(&routes, &["b"]), (vec![(50, left(&["b", "x"]))], true));
    }
}
