//! Counts deliveries by destination: totals since the relay started, and the rate of the last minute.
//!
//! A rate that a reader computes from two heartbeats would need both of them; so the relay keeps one counter for each of the last 60
//! seconds and reports the rate itself.

use std::{collections::BTreeMap, time::Duration};

use crate::presence::{Delivered, Deliveries, MOST_LISTED, busiest_first};

/// The rate covers this many seconds.
const WINDOW: u64 = 60;
/// A relay that has run for less than this many seconds is treated as if it had run for as long: one delivery in the first second is
/// not 60 a minute.
const SHORTEST: u64 = 10;
/// Destinations that are counted one by one. A further one replaces the one with the lowest rate; the total still counts all.
const MOST_COUNTED: usize = 1000;

/// One counter with its last 60 seconds.
#[derive(Clone, Debug)]
struct Counter {
    total: u64,
    /// The second that was counted last, since the start of the relay.
    last: u64,
    seconds: [u64; WINDOW as usize],
}

impl Counter {
    const fn new() -> Self {
        Self {
            total: 0,
            last: 0,
            seconds: [0; WINDOW as usize],
        }
    }

    fn count(&mut self, second: u64) {
        self.clear_to(second);
        self.total += 1;
        self.seconds[(self.last % WINDOW) as usize] += 1;
    }

    /// Clears the slots of the seconds since the last count.
    fn clear_to(&mut self, second: u64) {
        let second = second.max(self.last);
        let passed = (second - self.last).min(WINDOW);
        for ago in 0..passed {
            self.seconds[((second - ago) % WINDOW) as usize] = 0;
        }
        self.last = second;
    }

    fn per_minute(&self, second: u64) -> u64 {
        let mut now = self.clone();
        now.clear_to(second);
        let ran = (second + 1).clamp(SHORTEST, WINDOW);
        now.seconds.iter().sum::<u64>() * WINDOW / ran
    }
}

/// The deliveries of one relay from one store. Times are since the relay's start.
#[derive(Clone, Debug)]
pub struct Tally {
    all: Counter,
    destinations: BTreeMap<String, Counter>,
    /// Whether a destination was dropped because there were too many.
    dropped: bool,
}

impl Default for Tally {
    fn default() -> Self {
        Self {
            all: Counter::new(),
            destinations: BTreeMap::new(),
            dropped: false,
        }
    }
}

impl Tally {
    /// Counts one delivery.
    pub fn count(&mut self, destination: &str, now: Duration) {
        let second = now.as_secs();
        self.all.count(second);
        if let Some(counter) = self.destinations.get_mut(destination) {
            return counter.count(second);
        }
        if self.destinations.len() >= MOST_COUNTED {
            self.drop_slowest(second);
        }
        let mut counter = Counter::new();
        counter.count(second);
        self.destinations.insert(destination.to_owned(), counter);
    }

    /// The report for a heartbeat.
    pub fn report(&self, now: Duration) -> Deliveries {
        let second = now.as_secs();
        let counted = self.destinations.iter().map(|(name, counter)| Delivered {
            destination: name.clone(),
            delivered: counter.total,
            per_minute: counter.per_minute(second),
        });
        let mut destinations: Vec<_> = counted.collect();
        destinations.sort_by(busiest_first);
        let more = self.dropped || destinations.len() > MOST_LISTED;
        destinations.truncate(MOST_LISTED);
        Deliveries {
            delivered: self.all.total,
            per_minute: self.all.per_minute(second),
            destinations,
            more,
        }
    }

    fn drop_slowest(&mut self, second: u64) {
        let key = |counter: &Counter| (counter.per_minute(second), counter.last);
        let slowest = self.destinations.iter().min_by_key(|(_, counter)| key(counter));
        if let Some(name) = slowest.map(|(name, _)| name.clone()) {
            self.destinations.remove(&name);
            self.dropped = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn rates(tally: &Tally, now: u64) -> (u64, u64) {
        let report = tally.report(secs(now));
        (report.delivered, report.per_minute)
    }

    #[test]
    fn the_rate_covers_the_last_minute_and_the_total_everything() {
        let mut tally = Tally::default();
        for second in 0..120 {
            tally.count("shop", secs(second));
            tally.count("shop", secs(second));
        }
        assert_eq!(rates(&tally, 119), (240, 120));
        assert_eq!(rates(&tally, 149), (240, 60), "half of the minute is silent");
        assert_eq!(rates(&tally, 179), (240, 0));
        assert_eq!(rates(&tally, 1_000_000), (240, 0));
        tally.count("shop", secs(1_000_000));
        assert_eq!(rates(&tally, 1_000_000), (241, 1));
    }

    #[test]
    fn a_young_relay_extrapolates_its_rate() {
        let mut tally = Tally::default();
        (0..100).for_each(|_| tally.count("shop", secs(0)));
        assert_eq!(rates(&tally, 0), (100, 600), "as if it had run for 10 s");
        assert_eq!(rates(&tally, 19), (100, 300));
        assert_eq!(rates(&tally, 59), (100, 100));
    }

    #[test]
    fn the_busiest_destinations_are_listed_and_the_total_counts_all() {
        let mut tally = Tally::default();
        for n in 0..MOST_LISTED + 5 {
            (0..=n).for_each(|_| tally.count(&format!("d{n}"), secs(59)));
        }
        let report = tally.report(secs(59));
        assert_eq!((report.destinations.len(), report.more), (MOST_LISTED, true));
        assert_eq!(report.destinations[0].destination, "d104");
        assert_eq!(report.destinations[0].per_minute, 105);
        assert_eq!(report.delivered, (1..=105).sum::<u64>());
    }

    #[test]
    fn the_number_of_counted_destinations_is_bounded() {
        let mut tally = Tally::default();
        for n in 0..MOST_COUNTED + 50 {
            tally.count(&format!("d{n}"), secs(n as u64));
        }
        assert_eq!(tally.destinations.len(), MOST_COUNTED);
        assert!(tally.report(secs(2000)).more);
        assert_eq!(tally.report(secs(2000)).delivered, 1050);
        assert!(tally.destinations.contains_key("d1049"));
    }
}
