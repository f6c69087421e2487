//! The circuit breaker: when a destination is left alone, and how it is tried again.
//!
//! Failures in a row open it. After a while it is half open: one message is sent to find out, and with each that arrives one more
//! at a time, until there are as many as usual; a failure opens it again, for twice as long. Time is how long ago anything you like
//! was, as long as it is the same thing in each call.

use std::time::Duration;

use crate::{Breaker, Invalid};

/// When a breaker opens, and for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BreakerPolicy {
    /// Failures in a row that open it.
    pub failures: u32,
    /// How long nothing is sent at first.
    pub open: Duration,
    /// How long nothing is sent at most; the time doubles with each trial that failed.
    pub cap: Duration,
}

impl Default for BreakerPolicy {
    fn default() -> Self {
        Self {
            failures: 10,
            open: Duration::from_secs(5),
            cap: Duration::from_secs(60),
        }
    }
}

impl BreakerPolicy {
    /// Refuses what would never open, or never close.
    pub fn check(&self) -> Result<(), Invalid> {
        if self.failures == 0 {
            return Err(Invalid::new("failures", "of a breaker must be at least 1"));
        }
        if self.open < Duration::from_millis(1) || self.open > self.cap || self.cap > Duration::from_secs(24 * 3600) {
            return Err(Invalid::new(
                "open",
                "of a breaker must be at least 1 ms, and at most its cap, which is at most a day",
            ));
        }
        Ok(())
    }
}

/// A breaker at work.
#[derive(Clone, Debug)]
pub struct Circuit {
    policy: BreakerPolicy,
    /// How many are sent at a time when all is well.
    full: u32,
    phase: Phase,
    /// How often it has opened. What was sent before says nothing about later.
    period: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Closed { failures: u32 },
    // Trials count those that failed since it was closed.
    Open { until: Duration, trials: u32 },
    HalfOpen { allowed: u32, trials: u32 },
}

/// When a send began, as its breaker counts. To be handed back with the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period(u64);

impl Circuit {
    /// A closed one, for a destination that takes so many at a time.
    pub const fn new(policy: BreakerPolicy, full: u32) -> Self {
        Self {
            policy,
            full,
            phase: Phase::Closed { failures: 0 },
            period: 0,
        }
    }

    /// How it is.
    pub fn state(&self, now: Duration) -> Breaker {
        match self.at(now) {
            Phase::Closed { .. } => Breaker::Closed,
            Phase::HalfOpen { .. } => Breaker::HalfOpen,
            Phase::Open { .. } => Breaker::Open,
        }
    }

    /// How many may be under way at a time; nothing when it does not matter.
    pub fn allows(&self, now: Duration) -> Option<u32> {
        match self.at(now) {
            Phase::Closed { .. } => None,
            Phase::HalfOpen { allowed, .. } => Some(allowed),
            Phase::Open { .. } => Some(0),
        }
    }

    /// When it will allow something again, if it allows nothing now.
    pub fn opens_again(&self, now: Duration) -> Option<Duration> {
        match self.at(now) {
            Phase::Open { until, .. } => Some(until),
            _ => None,
        }
    }

    /// The period in which a send begins.
    pub fn period(&mut self, now: Duration) -> Period {
        self.phase = self.at(now);
        Period(self.period)
    }

    /// Whether it has not opened since.
    pub const fn is_current(&self, began: Period) -> bool {
        began.0 == self.period
    }

    /// What became of a send. `roll` is the chance that spreads the trials of many relays, from 0 to 1.
    pub fn report(&mut self, began: Period, well: bool, now: Duration, roll: f64) {
        if !self.is_current(began) {
            return;
        }
        self.phase = match self.at(now) {
            Phase::Closed { .. } if well => Phase::Closed { failures: 0 },
            Phase::Closed { failures } if failures + 1 < self.policy.failures => {
                Phase::Closed { failures: failures + 1 }
            }
            Phase::Closed { .. } => self.open(0, now, roll),
            Phase::HalfOpen { allowed, .. } if well && allowed >= self.full => Phase::Closed { failures: 0 },
            Phase::HalfOpen { allowed, trials } if well => Phase::HalfOpen {
                allowed: allowed + 1,
                trials,
            },
            Phase::HalfOpen { trials, .. } => self.open(trials + 1, now, roll),
            open @ Phase::Open { .. } => open,
        };
    }

    fn open(&mut self, trials: u32, now: Duration, roll: f64) -> Phase {
        self.period += 1;
        let wait = self
            .policy
            .open
            .saturating_mul(1_u32.checked_shl(trials).unwrap_or(u32::MAX));
        let wait = wait.min(self.policy.cap).mul_f64(0.9 + 0.2 * roll.clamp(0.0, 1.0));
        Phase::Open {
            until: now.saturating_add(wait),
            trials,
        }
    }

    /// Its phase now: an open one whose time is over is half open.
    fn at(&self, now: Duration) -> Phase {
        match self.phase {
            Phase::Open { until, trials } if now >= until => Phase::HalfOpen { allowed: 1, trials },
            phase => phase,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn circuit() -> Circuit {
        let policy = BreakerPolicy {
            failures: 3,
            open: secs(10),
            cap: secs(30),
        };
        Circuit::new(policy, 3)
    }

    fn one(circuit: &mut Circuit, well: bool, now: u64) {
        let period = circuit.period(secs(now));
        circuit.report(period, well, secs(now), 0.5);
    }

    #[test]
    fn failures_in_a_row_open_it() {
        let mut c = circuit();
        for well in [false, false, true, false, false] {
            one(&mut c, well, 0);
            assert_eq!((c.state(secs(0)), c.allows(secs(0))), (Breaker::Closed, None));
        }
        one(&mut c, false, 0);
        assert_eq!((c.state(secs(9)), c.allows(secs(9))), (Breaker::Open, Some(0)));
        assert_eq!(c.opens_again(secs(9)), Some(secs(10)));
    }

    #[test]
    fn it_comes_back_slowly() {
        let mut c = circuit();
        (0..3).for_each(|_| one(&mut c, false, 0));
        for allowed in 1..=3 {
            assert_eq!(
                (c.state(secs(10)), c.allows(secs(10))),
                (Breaker::HalfOpen, Some(allowed))
            );
            one(&mut c, true, 10);
        }
        assert_eq!((c.state(secs(10)), c.allows(secs(10))), (Breaker::Closed, None));
    }

    #[test]
    fn a_failed_trial_doubles_the_time_up_to_the_cap() {
        let mut c = circuit();
        (0..3).for_each(|_| one(&mut c, false, 0));
        let mut now = 0;
        for wait in [10, 20, 30, 30] {
            assert_eq!(c.opens_again(secs(now)), Some(secs(now + wait)));
            now += wait;
            one(&mut c, false, now);
        }
        // Once closed, it begins anew.
        let (mut c, well) = (c, 3);
        now += 30;
        (0..well).for_each(|_| one(&mut c, true, now));
        assert_eq!(c.state(secs(now)), Breaker::Closed);
        (0..3).for_each(|_| one(&mut c, false, now));
        assert_eq!(c.opens_again(secs(now)), Some(secs(now + 10)));
    }

    /// A send that hung since before must not count as a trial, neither way.
    #[test]
    fn an_answer_from_before_says_nothing() {
        let mut c = circuit();
        let old = c.period(secs(0));
        (0..3).for_each(|_| one(&mut c, false, 0));
        for well in [false, true] {
            c.report(old, well, secs(5), 0.5);
            assert_eq!(c.opens_again(secs(5)), Some(secs(10)));
            c.report(old, well, secs(11), 0.5);
            assert_eq!(c.allows(secs(11)), Some(1));
        }
    }

    #[test]
    fn chance_spreads_the_trials_and_never_the_cap_by_more_than_a_tenth() {
        for (roll, expected) in [(0.0, 9), (1.0, 11), (7.0, 11)] {
            let mut c = circuit();
            for _ in 0..3 {
                let period = c.period(secs(0));
                c.report(period, false, secs(0), roll);
            }
            assert_eq!(c.opens_again(secs(0)), Some(secs(expected)));
        }
    }

    #[test]
    fn a_policy_is_checked() {
        BreakerPolicy::default().check().unwrap();
        let field = |p: BreakerPolicy| p.check().unwrap_err().field;
        let sound = BreakerPolicy::default();
        assert_eq!(field(BreakerPolicy { failures: 0, ..sound }), "failures");
        assert_eq!(
            field(BreakerPolicy {
                open: Duration::ZERO,
                ..sound
            }),
            "open"
        );
        assert_eq!(
            field(BreakerPolicy {
                open: secs(61),
                ..sound
            }),
            "open"
        );
        assert_eq!(
            field(BreakerPolicy {
                cap: Duration::MAX,
                ..sound
            }),
            "open"
        );
    }
}
