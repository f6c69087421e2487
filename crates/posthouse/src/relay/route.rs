//! Which messages go where.

use posthouse_core::{Error, Health, Invalid, TopicPattern, presence};
use std::{
    collections::BTreeSet,
    sync::{
        Arc, Mutex, PoisonError, RwLock,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{
    destination::{Destination, Way},
    explicit::{Explicit, Maker},
    target::{Bounds, Place, Target},
};

/// Topics of a route that are remembered. Beyond it they are forgotten, and learnt again.
const MOST_TOPICS: usize = 10_000;

/// Topics of some pattern, and where they go.
pub(super) struct Route {
    topics: Topics,
    text: String,
    pub target: Arc<Target>,
    /// More of it was claimed than there was room for: it has claims of its own, no larger than its room, until one finds less.
    narrow: AtomicBool,
    /// Topics that came this way: what a claim leaves when nothing more can be taken for it.
    seen: Mutex<BTreeSet<String>>,
}

enum Topics {
    Of(TopicPattern),
    /// This one, as it stands: it may hold a star.
    One,
}

impl Route {
    /// The way of one topic.
    pub fn to(topic: &str, target: Arc<Target>) -> Self {
        Self::new(Topics::One, topic.to_owned(), target)
    }

    fn new(topics: Topics, text: String, target: Arc<Target>) -> Self {
        Self {
            topics,
            text,
            target,
            narrow: AtomicBool::new(false),
            seen: Mutex::default(),
        }
    }

    pub fn serves(&self, topic: &str) -> bool {
        match &self.topics {
            Topics::Of(pattern) => pattern.matches(topic),
            Topics::One => self.text == topic,
        }
    }

    /// A place for a message of this topic.
    pub fn enter(&self, topic: &str) -> Option<Place> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= MOST_TOPICS {
            seen.clear();
        }
        if !seen.contains(topic) {
            seen.insert(topic.to_owned());
        }
        drop(seen);
        let place = self.target.enter();
        if place.is_none() {
            self.narrow.store(true, Ordering::Relaxed);
        }
        place
    }

    pub fn is_narrow(&self) -> bool {
        self.narrow.load(Ordering::Relaxed)
    }

    /// There was less of it than it had room for.
    pub fn widen(&self) {
        self.narrow.store(false, Ordering::Relaxed);
    }

    pub fn topics(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().cloned().collect()
    }

    fn told(&self) -> presence::Route {
        presence::Route {
            topic: self.text.clone(),
            destinations: vec![self.target.name.clone()],
            max_attempts: self.target.rules().retry.max_attempts,
        }
    }
}

/// All routes of a relay. They may be replaced while it runs.
pub(super) struct Routes {
    bounds: Bounds,
    pub explicit: Explicit,
    routes: RwLock<Arc<[Arc<Route>]>>,
}

impl Routes {
    pub fn new(
        bounds: Bounds,
        routes: Vec<(String, Destination)>,
        makers: Vec<(String, Maker)>,
    ) -> Result<Self, Error> {
        Ok(Self {
            bounds,
            explicit: Explicit::new(makers),
            routes: RwLock::new(plan(routes, &[], bounds)?),
        })
    }

    /// Puts these in the place of the others, if all of them are sound. What stays the same keeps its breaker and its rate.
    pub fn replace(&self, routes: Vec<(String, Destination)>) -> Result<(), Error> {
        let mut current = self.routes.write().unwrap_or_else(PoisonError::into_inner);
        *current = plan(routes, &current, self.bounds)?;
        Ok(())
    }

    /// All of them, and the ways that topics have named.
    pub fn all(&self) -> Vec<Arc<Route>> {
        let mut all = self.fixed().to_vec();
        all.extend(self.explicit.made());
        all
    }

    /// Whether any of them goes to a handler that settles by itself.
    pub fn any_handler(&self) -> bool {
        let handles = |route: &Arc<Route>| matches!(route.target.destination.way, Way::Handle(_));
        self.all().iter().any(handles)
    }

    /// Where a topic goes: to what it names itself, or by the first route that serves it.
    pub fn find(&self, topic: &str) -> Option<Arc<Route>> {
        let named = self.explicit.find(topic, self.bounds);
        named.or_else(|| self.fixed().iter().find(|route| route.serves(topic)).cloned())
    }

    /// What is told of them. Of topics that name their destination only the prefix, because an address may hold a secret.
    pub fn told(&self) -> Vec<presence::Route> {
        let named = self.explicit.prefixes().into_iter().map(|prefix| presence::Route {
            topic: format!("{prefix}*"),
            ..presence::Route::default()
        });
        named.chain(self.fixed().iter().map(|route| route.told())).collect()
    }

    fn fixed(&self) -> Arc<[Arc<Route>]> {
        self.routes.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How each destination is.
    pub fn health(&self) -> Vec<Health> {
        let mut told: Vec<Health> = Vec::new();
        for route in self.all().iter() {
            if !told.iter().any(|health| health.destination == route.target.name) {
                told.push(route.target.health());
            }
        }
        told
    }
}

fn plan(routes: Vec<(String, Destination)>, before: &[Arc<Route>], bounds: Bounds) -> Result<Arc<[Arc<Route>]>, Error> {
    let mut targets: Vec<Arc<Target>> = Vec::new();
    let mut planned = Vec::with_capacity(routes.len());
    for (topic, to) in routes {
        let name = to.name.clone().unwrap_or_else(|| format!("fn:{topic}"));
        to.check(&name, bounds.lease)?;
        let target = match targets.iter().find(|target| target.name == name) {
            Some(target) if target.destination.is(&to) => target.clone(),
            Some(_) => {
                let problem = format!("{name} is the name of two destinations; routes that share one get clones of it");
                return Err(Invalid::new("destination", problem).into());
            }
            None => {
                let same = |route: &&Arc<Route>| route.target.name == name && route.target.destination.is(&to);
                let kept = before.iter().find(same).map(|route| route.target.clone());
                kept.unwrap_or_else(|| Arc::new(Target::new(name, to, bounds)))
            }
        };
        targets.push(target.clone());
        let pattern = TopicPattern::parse(&topic)?;
        planned.push(Arc::new(Route::new(Topics::Of(pattern), topic, target)));
    }
    Ok(planned.into())
}
