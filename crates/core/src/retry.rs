//! When to try again.

use std::time::Duration;

/// How often and how soon a message is tried again.
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    /// The attempt budget: leases in all; the failure of the last one is dead. None: the message's own budget applies, which its
    /// producer set, or else the store's default ([`StoreSettings::max_attempts`](crate::StoreSettings)).
    pub max_attempts: Option<u32>,
    /// The wait after each failure.
    pub backoff: Backoff,
    /// A destination's own wish (`Retry-After`) is honoured up to this.
    pub longest_wish: Duration,
}

/// The wait after the nth failure.
#[derive(Clone, Debug, PartialEq)]
pub enum Backoff {
    /// `max(floor, min(base * factor^(n-1), cap) * (1 + U(-jitter, +jitter)))`
    Exponential {
        /// The first wait.
        base: Duration,
        /// What each wait is multiplied by.
        factor: f64,
        /// The longest wait before jitter.
        cap: Duration,
        /// The part of the wait that chance may add or take, 0 to 1.
        jitter: f64,
        /// The shortest wait after jitter.
        floor: Duration,
    },
    /// The waits as listed; the last one repeats.
    Table(Vec<Duration>),
}

/// The message's own budget, with waits that double from half a second up to five minutes.
impl Default for RetryPolicy {
    fn default() -> Self {
        Self {
            max_attempts: None,
            backoff: Backoff::doubling(Duration::from_millis(500), Duration::from_secs(300)),
            longest_wish: Duration::from_secs(3600),
        }
    }
}

impl Backoff {
    /// Waits that double from `base` up to `cap`, with 30 % jitter.
    pub const fn doubling(base: Duration, cap: Duration) -> Self {
        Self::Exponential {
            base,
            factor: 2.0,
            cap,
            jitter: 0.3,
            floor: Duration::from_millis(1),
        }
    }
}

impl RetryPolicy {
    /// The waits as listed, without jitter; the last one repeats.
    pub fn table(max_attempts: u32, waits: impl IntoIterator<Item = Duration>) -> Self {
        Self {
            max_attempts: Some(max_attempts),
            backoff: Backoff::Table(waits.into_iter().collect()),
            ..Self::default()
        }
    }

    /// Waits that double from `base` up to `cap`, with the usual jitter.
    pub fn exponential(max_attempts: u32, base: Duration, cap: Duration) -> Self {
        Self {
            max_attempts: Some(max_attempts),
            backoff: Backoff::doubling(base, cap),
            ..Self::default()
        }
    }

    /// The budget that applies to a message stamped with `stamped`: this policy's where it sets one, else the message's own. A budget
    /// of 0 counts as 1.
    pub fn budget(&self, stamped: u32) -> u32 {
        self.max_attempts.unwrap_or(stamped).max(1)
    }

    /// The wait after the failure of attempt `n` (from 1). `roll` is the chance, from 0 to 1.
    pub fn wait(&self, n: u32, roll: f64) -> Duration {
        match &self.backoff {
            Backoff::Exponential {
                base,
                factor,
                cap,
                jitter,
                floor,
            } => {
                let steps = i32::try_from(n.saturating_sub(1)).unwrap_or(i32::MAX);
                let plain = (base.as_secs_f64() * factor.powi(steps)).min(cap.as_secs_f64());
                let shaken = plain * (1.0 + (2.0 * roll.clamp(0.0, 1.0) - 1.0) * jitter);
                // Whole milliseconds: every store keeps them, and the SQL form of this rule must agree to the digit.
                Duration::from_millis((shaken * 1000.0).round().max(0.0) as u64).max(*floor)
            }
            Backoff::Table(waits) => {
                let at = (n.saturating_sub(1) as usize).min(waits.len().saturating_sub(1));
                waits.get(at).copied().unwrap_or_default()
            }
        }
    }

    /// The wait after the failure of attempt `n`, when the destination may have said how long it wants to be left alone.
    /// It is never shorter than our own backoff, and a wish beyond `longest_wish` is cut.
    pub fn wait_or_wish(&self, n: u32, roll: f64, wish: Option<Duration>) -> Duration {
        let own = self.wait(n, roll);
        wish.map_or(own, |wish| wish.min(self.longest_wish).max(own))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn secs(n: u64) -> Duration {
        Duration::from_secs(n)
    }

    fn memory_writeback() -> RetryPolicy {
        let backoff = Backoff::Exponential {
            base: secs(120),
            factor: 2.0,
            cap: secs(3600),
            jitter: 0.3,
            floor: secs(1),
        };
        RetryPolicy {
            backoff,
            ..RetryPolicy::default()
        }
    }

    /// The table published with the memory write-back protocol: wait, least and most with 30 % jitter.
    #[test]
    fn reproduces_the_memory_writeback_table() {
        let published = [
            (1, 120, 84, 156),
            (2, 240, 168, 312),
            (3, 480, 336, 624),
            (4, 960, 672, 1248),
            (5, 1920, 1344, 2496),
            (6, 3600, 2520, 4680),
            (7, 3600, 2520, 4680),
            (60, 3600, 2520, 4680),
        ];
        for (n, plain, least, most) in published {
            let policy = memory_writeback();
            assert_eq!(policy.wait(n, 0.5), secs(plain), "attempt {n}");
            assert_eq!(policy.wait(n, 0.0), secs(least), "attempt {n}, least");
            assert_eq!(policy.wait(n, 1.0), secs(most), "attempt {n}, most");
        }
    }

    /// The table published with the order worker protocol.
    #[test]
    fn reproduces_the_order_worker_table() {
        let policy = RetryPolicy::table(6, [5, 10, 20, 40, 80, 160].map(secs));
        let waits: Vec<_> = (1..=8).map(|n| policy.wait(n, 0.9).as_secs()).collect();
        assert_eq!(waits, [5, 10, 20, 40, 80, 160, 160, 160]);
    }

    #[test]
    fn the_default_is_the_documented_one() {
        let waits: Vec<_> = (1..=12)
            .map(|n| RetryPolicy::default().wait(n, 0.5).as_millis())
            .collect();
        assert_eq!(
            waits,
            [
                500, 1000, 2000, 4000, 8000, 16000, 32000, 64000, 128_000, 256_000, 300_000, 300_000
            ]
        );
    }

    #[test]
    fn a_policy_without_a_budget_keeps_the_messages_own() {
        assert_eq!(RetryPolicy::default().budget(2), 2);
        assert_eq!(RetryPolicy::table(5, []).budget(2), 5);
        assert_eq!(RetryPolicy::table(0, []).budget(7), 1);
    }

    #[test]
    fn the_floor_holds_and_huge_attempt_numbers_do_not_overflow() {
        let backoff = Backoff::Exponential {
            base: secs(1),
            factor: 10.0,
            cap: secs(60),
            jitter: 1.0,
            floor: secs(2),
        };
        let policy = RetryPolicy {
            backoff,
            ..RetryPolicy::default()
        };
        assert_eq!(policy.wait(1, 0.0), secs(2));
        assert_eq!(policy.wait(u32::MAX, 0.5), secs(60));
        assert_eq!(RetryPolicy::table(3, []).wait(5, 0.5), Duration::ZERO);
    }

    #[test]
    fn a_wish_is_honoured_and_clamped() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.wait_or_wish(1, 0.5, Some(secs(30))), secs(30));
        assert_eq!(
            policy.wait_or_wish(1, 0.5, Some(Duration::ZERO)),
            Duration::from_millis(500)
        );
        assert_eq!(policy.wait_or_wish(1, 0.5, Some(Duration::MAX)), secs(3600));
        assert_eq!(policy.wait_or_wish(1, 0.5, None), Duration::from_millis(500));
    }
}
