//! Topics that this relay has claimed messages of, and has no route for: left out of its claims, and reported.

use posthouse_core::{
    presence::{self, MOST_LISTED, UnroutedTopic},
    topic::shown,
};
use std::collections::{BTreeMap, BTreeSet};

use super::{measures, route::Routes};

/// Topics that are remembered. Beyond it they are forgotten, and learnt again.
const MOST: usize = 10_000;

/// The topics, each with the namespace of the first message that was claimed of it.
pub(super) struct Unrouted {
    topics: BTreeMap<String, String>,
    /// The part of the gauge that is ours.
    measured: usize,
}

impl Unrouted {
    /// Exports the gauge as 0, so that an alert finds it.
    pub fn new() -> Self {
        measures::unrouted(0.0);
        Self {
            topics: BTreeMap::new(),
            measured: 0,
        }
    }

    /// Adds a topic. Answers whether it is new.
    pub fn add(&mut self, topic: &str, namespace: &str) -> bool {
        if self.topics.len() >= MOST && !self.topics.contains_key(topic) {
            self.topics.clear();
        }
        let before = self.topics.insert(topic.to_owned(), namespace.to_owned());
        self.measure();
        before.is_none()
    }

    /// Forgets the topics that have a route by now.
    pub fn forget_routed(&mut self, routes: &Routes) {
        self.topics.retain(|topic, _| routes.find(topic).is_none());
        self.measure();
    }

    pub fn topics(&self) -> BTreeSet<String> {
        self.topics.keys().cloned().collect()
    }

    /// The report for a heartbeat. A topic that holds an address is shortened: it may hold a secret.
    pub fn report(&self) -> presence::Unrouted {
        let listed = self.topics.iter().take(MOST_LISTED);
        presence::Unrouted {
            topics: listed
                .map(|(topic, namespace)| UnroutedTopic {
                    namespace: namespace.clone(),
                    topic: shown(topic).into_owned(),
                })
                .collect(),
            more: self.topics.len() > MOST_LISTED,
        }
    }

    /// The gauge is shared by the relay's stores, so it is moved and not set.
    fn measure(&mut self) {
        let now = self.topics.len();
        if now != self.measured {
            measures::unrouted(now as f64 - self.measured as f64);
            self.measured = now;
        }
    }
}

impl Drop for Unrouted {
    fn drop(&mut self) {
        if self.measured > 0 {
            measures::unrouted(-(self.measured as f64));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_heartbeat_lists_a_hundred_topics_and_says_that_there_are_more() {
        let mut unrouted = Unrouted::new();
        for n in 0..MOST_LISTED {
            assert!(unrouted.add(&format!("t{n}"), "default"));
        }
        assert!(!unrouted.add("t0", "default"));
        assert_eq!(
            (unrouted.report().topics.len(), unrouted.report().more),
            (MOST_LISTED, false)
        );
        unrouted.add("u", "own");
        assert_eq!(
            (unrouted.report().topics.len(), unrouted.report().more),
            (MOST_LISTED, true)
        );
        assert_eq!(unrouted.topics().len(), MOST_LISTED + 1);
    }

    #[test]
    fn an_address_is_not_reported() {
        let mut unrouted = Unrouted::new();
        unrouted.add("http:https://shop.example/hook?token=s3cret", "default");
        let topic = &unrouted.report().topics[0].topic;
        assert!(
            topic.starts_with("http:https://shop.example") && !topic.contains("s3cret"),
            "{topic}"
        );
    }
}
