//! Topics that name their destination themselves, such as `http:https://shop.example/hook`.
//!
//! A producer must not aim the relay: what such a topic may name is decided by a maker, which the relay is given. What it refuses is
//! rejected with the code [`Outcome::NOT_ALLOWED`]. Each address is a destination of its own, with its own name, limits and breaker.

use async_trait::async_trait;
use posthouse_core::{Delivery, Error, Outcome, Transport};
use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{
    destination::Destination,
    locked,
    route::Route,
    target::{Bounds, Target},
};

/// Addresses that are remembered. Beyond it those that were used longest ago, and are not in use, are forgotten with their breaker and
/// rate, and made anew when they come again.
const MOST_MADE: usize = 1000;

/// Makes the destination that is named behind a prefix, or says why it may not be named.
pub(super) type Maker = Arc<dyn Fn(&str) -> Result<Destination, Error> + Send + Sync>;

pub(super) struct Explicit(Mutex<State>);

struct State {
    makers: Vec<(String, Maker)>,
    /// By topic.
    made: HashMap<String, Made>,
    uses: u64,
}

struct Made {
    route: Arc<Route>,
    used: u64,
}

impl Explicit {
    pub fn new(makers: Vec<(String, Maker)>) -> Self {
        Self(Mutex::new(State {
            makers,
            made: HashMap::new(),
            uses: 0,
        }))
    }

    /// Puts these makers in the place of the others. What they made is forgotten.
    pub fn replace(&self, makers: Vec<(String, Maker)>) {
        let mut state = locked(&self.0);
        state.makers = makers;
        state.made.clear();
    }

    /// The way to what a topic names; none if it names nothing.
    pub fn find(&self, topic: &str, bounds: Bounds) -> Option<Arc<Route>> {
        let mut state = locked(&self.0);
        let (prefix, maker) = state
            .makers
            .iter()
            .find(|(prefix, _)| topic.starts_with(prefix))?
            .clone();
        state.uses += 1;
        let used = state.uses;
        if let Some(made) = state.made.get_mut(topic) {
            made.used = used;
            return Some(made.route.clone());
        }
        let (name, to) = make(&prefix, &maker, &topic[prefix.len()..], bounds.lease);
        let route = Arc::new(Route::to(topic, Arc::new(Target::new(name, to, bounds))));
        if state.made.len() >= MOST_MADE {
            state.forget();
        }
        let made = Made {
            route: route.clone(),
            used,
        };
        state.made.insert(topic.to_owned(), made);
        Some(route)
    }

    /// The ways that were made.
    pub fn made(&self) -> Vec<Arc<Route>> {
        locked(&self.0).made.values().map(|made| made.route.clone()).collect()
    }

    /// Whether topics may name destinations at all.
    pub fn is_any(&self) -> bool {
        !locked(&self.0).makers.is_empty()
    }

    pub fn prefixes(&self) -> Vec<String> {
        locked(&self.0)
            .makers
            .iter()
            .map(|(prefix, _)| prefix.clone())
            .collect()
    }
}

impl State {
    /// Forgets half of those that nobody uses.
    fn forget(&mut self) {
        let idle = |made: &Made| Arc::strong_count(&made.route) == 1 && made.route.target.is_idle();
        let mut used: Vec<_> = self
            .made
            .values()
            .filter(|made| idle(made))
            .map(|made| made.used)
            .collect();
        used.sort_unstable();
        if let Some(&last) = used.get(used.len() / 2) {
            self.made.retain(|_, made| made.used > last || !idle(made));
        }
    }
}

fn make(prefix: &str, maker: &Maker, address: &str, lease: Duration) -> (String, Destination) {
    let refused = |code: &'static str, retry: bool, error: &Error| {
        let refuse = Refuse {
            code,
            error: error.to_string(),
            retry,
        };
        // It answers at once, so that the shortest lease covers it.
        let refuse = Destination::from(refuse).without_breaker().timeout(lease / 10);
        (format!("{prefix}{code}"), refuse)
    };
    let to = match maker(address) {
        Ok(to) => to,
        Err(error @ Error::Invalid(_)) => return refused(Outcome::NOT_ALLOWED, false, &error),
        Err(error) => return refused("not_made", true, &error),
    };
    // Without a name it is not told apart from others, but its topic is not shown.
    let name = to.name.clone().unwrap_or_else(|| format!("{prefix}*"));
    match to.check(&name, lease) {
        Ok(()) => (name, to),
        Err(error) => refused("not_made", true, &error),
    }
}

/// The destination of what may not be named.
struct Refuse {
    code: &'static str,
    error: String,
    retry: bool,
}

#[async_trait]
impl Transport for Refuse {
    async fn send(&self, _: &Delivery) -> Outcome {
        if self.retry {
            return Outcome::retry(self.code, self.error.as_str());
        }
        Outcome::reject(self.code, self.error.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::local::local_delivery;

    const BOUNDS: Bounds = Bounds {
        lease: Duration::from_secs(15),
        share: 100,
    };

    fn explicit() -> Explicit {
        let maker = |address: &str| Ok(Destination::new(format!("to {address}"), local_delivery(|_| async {})));
        Explicit::new(vec![("x:".to_owned(), Arc::new(maker))])
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_is_made_once() {
        let explicit = explicit();
        let one = explicit.find("x:a", BOUNDS).unwrap();
        assert_eq!(one.target.name, "to a");
        assert!(Arc::ptr_eq(&one, &explicit.find("x:a", BOUNDS).unwrap()));
        assert!(!Arc::ptr_eq(&one, &explicit.find("x:b", BOUNDS).unwrap()));
        assert!(explicit.find("y:a", BOUNDS).is_none());
    }

    /// Whatever the lease, or it would be given back over and over.
    #[tokio::test(start_paused = true)]
    async fn a_refusal_fits_its_lease() {
        let maker = |_: &str| Err(posthouse_core::Invalid::new("topic", "names nobody we know").into());
        let explicit = Explicit::new(vec![("x:".to_owned(), Arc::new(maker))]);
        for lease in [Duration::from_millis(20), Duration::from_secs(10), BOUNDS.lease] {
            explicit.replace(vec![("x:".to_owned(), Arc::new(maker))]);
            let target = explicit.find("x:a", Bounds { lease, ..BOUNDS }).unwrap().target.clone();
            target.destination.check(&target.name, lease).unwrap();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn so_many_are_remembered_and_none_in_use_is_forgotten() {
        let explicit = explicit();
        let held = explicit.find("x:held", BOUNDS).unwrap();
        let place = explicit.find("x:busy", BOUNDS).unwrap().enter("x:busy").unwrap();
        for n in 0..3 * MOST_MADE {
            explicit.find(&format!("x:{n}"), BOUNDS).unwrap();
        }
        assert!(explicit.made().len() <= MOST_MADE);
        assert!(Arc::ptr_eq(&held, &explicit.find("x:held", BOUNDS).unwrap()));
        let busy = explicit.find("x:busy", BOUNDS).unwrap();
        assert!(!busy.target.is_idle());
        drop(place);
        assert!(busy.target.is_idle());
    }
}
