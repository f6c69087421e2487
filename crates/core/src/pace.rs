//! How many messages wait at a destination: enough that the next is always at hand, and not more than are sent in a moment.
//!
//! What waits is held, and nobody else can send it. So a slow destination has as many waiting as it is sent at a time; one that takes
//! a message in microseconds has what it takes in a tenth of a second, because a claim for every few would cost more than they do.

use std::time::Duration;

/// How much may wait: what is sent in this time.
const MOMENT: Duration = Duration::from_millis(100);
/// What a send is taken to last, in seconds, before anything is known.
const NEW: f64 = 0.005;
/// Sends after which that is known.
const KNOWN: u32 = 16;
/// What a send lasts, as it were, of one that is not well.
const FAILED: f64 = 1.0;
/// Failures in a row that tell so: a few among many that arrive are in the nature of destinations.
const FAILURES: u32 = 3;

/// How fast a destination is, as far as that is known.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Pace {
    /// Seconds of a send, of late.
    average: f64,
    /// Failures since one went well.
    failures: u32,
    /// Sends that went well.
    sends: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Self {
            average: NEW,
            failures: 0,
            sends: 0,
        }
    }
}

impl Pace {
    /// A send went well, and took so long.
    pub fn sent(&mut self, took: Duration) {
        self.average += (took.as_secs_f64() - self.average) / 16.0;
        self.failures = 0;
        self.sends = self.sends.saturating_add(1);
    }

    /// A send failed: one that is not well is no fast one, however soon it says so.
    pub fn failed(&mut self) {
        self.failures = self.failures.saturating_add(1);
        if self.failures >= FAILURES {
            self.average = self.average.max(FAILED);
        }
    }

    /// Whether it is known to be so fast that so many are gone in a moment, when no send has ended for so long. What counts is how many
    /// it takes, not how long each lasts.
    pub fn is_done_soon(&self, with: u32, concurrency: u32, silent: Duration) -> bool {
        self.sends >= KNOWN && silent <= MOMENT && self.in_a_moment(concurrency) >= with.max(1)
    }

    /// How many are sent in a moment, so many at a time. What is too large for a number becomes the largest there is.
    fn in_a_moment(&self, concurrency: u32) -> u32 {
        let sends = MOMENT.as_secs_f64() / self.average.max(1e-6);
        (f64::from(concurrency) * sends).round() as u32
    }

    /// How many may be there, sent or waiting, when so many are sent at a time, and none of those that are has ended for so long.
    pub fn places(&self, concurrency: u32, silent: Duration) -> u32 {
        if silent > MOMENT {
            return least(concurrency);
        }
        self.in_a_moment(concurrency).max(least(concurrency))
    }
}

/// The places of a slow destination: as many wait as are sent.
pub const fn least(concurrency: u32) -> u32 {
    concurrency.saturating_mul(2)
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn millis(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn after(took: Duration) -> Pace {
        let mut pace = Pace::default();
        (0..200).for_each(|_| pace.sent(took));
        pace
    }

    #[test]
    fn a_fast_one_has_more_waiting_than_a_slow_one() {
        let places = |took| after(millis(took)).places(16, millis(0));
        assert_eq!([1, 10, 50, 900].map(places), [1600, 160, 32, 32]);
        assert_eq!(places(0), 1_600_000);
        assert_eq!(Pace::default().places(16, millis(0)), 320);
    }

    #[test]
    fn one_slow_send_does_not_matter_much_and_a_very_slow_one_does() {
        let mut pace = after(millis(1));
        pace.sent(millis(20));
        assert!(pace.places(16, millis(0)) > 700);
        pace.sent(millis(1000));
        assert_eq!(pace.places(16, millis(0)), 32);
        (0..100).for_each(|_| pace.sent(millis(1)));
        assert!(pace.places(16, millis(0)) > 1000);
    }

    #[test]
    fn who_fails_is_not_fast() {
        let mut pace = after(millis(1));
        (0..3).for_each(|_| pace.failed());
        assert_eq!(pace.places(16, millis(0)), 32);
        let mut slow = after(millis(5000));
        let places = slow.places(16, millis(0));
        (0..3).for_each(|_| slow.failed());
        assert_eq!(slow.places(16, millis(0)), places);
    }

    /// Claims of a few messages at a time would take longer than the sends.
    #[test]
    fn a_failure_among_many_that_arrive_does_not_matter() {
        let mut pace = after(millis(1));
        for n in 0..1000 {
            pace.sent(millis(1));
            if n % 3 == 0 {
                pace.failed();
                pace.failed();
            }
            assert_eq!(pace.places(16, millis(0)), 1600);
        }
    }

    /// It would be filled with what it had room for when it was well.
    #[test]
    fn who_is_silent_is_not_fast() {
        let pace = after(millis(1));
        assert_eq!([pace.places(16, millis(100)), pace.places(16, millis(101))], [1600, 32]);
        let soon = |silent| pace.is_done_soon(1000, 16, silent);
        assert_eq!([soon(millis(100)), soon(millis(101))], [true, false]);
    }

    #[test]
    fn many_at_a_time_are_as_fast_as_short_ones() {
        let soon = |took, concurrency| after(millis(took)).is_done_soon(1000, concurrency, millis(0));
        assert_eq!(
            [soon(1, 16), soon(2, 16), soon(6, 64), soon(7, 64)],
            [true, false, true, false]
        );
        assert!(!Pace::default().is_done_soon(0, 16, millis(0)), "nothing is known yet");
    }

    /// It has as many places as are sent at a time, and as many again, however slow it is.
    #[test]
    fn a_slow_one_with_few_places_is_not_done_soon() {
        assert!(!after(millis(300)).is_done_soon(32, 16, millis(0)));
        assert!(!after(millis(5000)).is_done_soon(0, 16, millis(0)));
    }

    #[test]
    fn the_largest_numbers_stay_in_bounds() {
        let places = after(millis(0)).places(u32::MAX, millis(0));
        assert_eq!((places, least(u32::MAX)), (u32::MAX, u32::MAX));
    }
}
