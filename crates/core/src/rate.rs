//! How many messages a destination takes in a time.

use std::{fmt, str::FromStr, time::Duration};

use crate::Invalid;

/// So many in a time, such as `100/s`. A tenth of them (at least one) may go at once; the rest is spread evenly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    count: u32,
    per: Duration,
}

const UNITS: [(&str, u64); 4] = [("s", 1), ("m", 60), ("h", 3600), ("d", 86_400)];

impl Rate {
    /// So many in a time.
    pub fn new(count: u32, per: Duration) -> Result<Self, Invalid> {
        if count == 0 || per.is_zero() {
            return Err(Invalid::new("rate", "must be at least 1 in some time"));
        }
        if per / count == Duration::ZERO {
            return Err(Invalid::new("rate", "is more than one in a nanosecond: leave it out"));
        }
        Ok(Self { count, per })
    }

    /// The time between two, spread evenly.
    fn step(self) -> Duration {
        self.per / self.count
    }

    /// How many may go at once.
    fn burst(self) -> u32 {
        (self.count / 10).max(1)
    }
}

impl FromStr for Rate {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let bad = || {
            Invalid::new(
                "rate",
                "must be a number and a unit, such as \"100/s\", \"10/m\", \"5/h\" or \"1/d\"",
            )
        };
        let (count, unit) = text.split_once('/').ok_or_else(bad)?;
        let count = count.trim().parse().map_err(|_| bad())?;
        let (_, secs) = UNITS.iter().find(|(name, _)| *name == unit.trim()).ok_or_else(bad)?;
        Self::new(count, Duration::from_secs(*secs))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match UNITS.iter().find(|(_, secs)| Duration::from_secs(*secs) == self.per) {
            Some((unit, _)) => write!(f, "{}/{unit}", self.count),
            None => write!(f, "{} in {:?}", self.count, self.per),
        }
    }
}

/// What was taken of a rate. Time is how long ago anything you like was, as long as it is the same thing in each call.
#[derive(Clone, Debug)]
pub struct Meter {
    rate: Rate,
    /// When the last one that was taken goes, had all been spread evenly.
    last: Option<Duration>,
}

impl Meter {
    /// Nothing was taken yet.
    pub const fn new(rate: Rate) -> Self {
        Self { rate, last: None }
    }

    /// How many may be taken now, by one who waits for them no longer than this.
    pub fn room(&self, now: Duration, patience: Duration) -> u32 {
        let until = now
            .saturating_add(patience)
            .saturating_add(self.rate.step() * (self.rate.burst() - 1));
        let next = self.next(now);
        if until < next {
            return 0;
        }
        u32::try_from((until - next).as_nanos() / self.rate.step().as_nanos() + 1).unwrap_or(u32::MAX)
    }

    /// Takes one, and says how long to wait before it goes. Whoever does not want to wait so long looks for [`room`](Self::room) first.
    pub fn take(&mut self, now: Duration) -> Duration {
        let next = self.next(now);
        self.last = Some(next);
        next.saturating_sub(now.saturating_add(self.rate.step() * (self.rate.burst() - 1)))
    }

    /// How long until somebody with this patience may take one.
    pub fn wait(&self, now: Duration, patience: Duration) -> Duration {
        let reach = now
            .saturating_add(patience)
            .saturating_add(self.rate.step() * (self.rate.burst() - 1));
        self.next(now).saturating_sub(reach)
    }

    fn next(&self, now: Duration) -> Duration {
        self.last.map_or(now, |last| (last + self.rate.step()).max(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ZERO: Duration = Duration::ZERO;

    fn rate(text: &str) -> Rate {
        text.parse().unwrap()
    }

    #[test]
    fn a_rate_reads_as_it_is_written() {
        for text in ["100/s", "10/m", "5/h", "1/d"] {
            assert_eq!(rate(text).to_string(), text);
        }
        assert_eq!(rate(" 7 / m ").to_string(), "7/m");
        for bad in [
            "",
            "100",
            "/s",
            "0/s",
            "-1/s",
            "1.5/s",
            "1/y",
            "1/",
            "99999999999/s",
            "4000000000/s",
            "1/s/s",
        ] {
            assert_eq!(bad.parse::<Rate>().unwrap_err().field, "rate", "{bad}");
        }
    }

    /// Greedy takers, who wait as told: never more than the rate and its burst in any stretch of its time.
    #[test]
    fn nobody_gets_more_than_the_rate() {
        for (text, total) in [("100/s", 1000), ("10/m", 100), ("1/h", 20), ("3/s", 50)] {
            let (mut meter, mut went) = (Meter::new(rate(text)), Vec::new());
            let mut now = ZERO;
            for n in 0..total {
                let wait = meter.take(now);
                now += wait;
                went.push(now);
                // Now and then nobody comes for a while: what was not taken is not saved up beyond the burst.
                if n % 17 == 0 {
                    now += rate(text).per * 3;
                }
            }
            let (per, most) = (rate(text).per, (rate(text).count + rate(text).burst()) as usize);
            for (at, first) in went.iter().enumerate() {
                let within = went[at..].iter().take_while(|t| **t < *first + per).count();
                assert!(within <= most, "{text}: {within} in one stretch");
            }
        }
    }

    #[test]
    fn room_is_what_can_be_taken_without_waiting_longer() {
        for patience in [ZERO, Duration::from_millis(25), Duration::from_secs(1)] {
            let mut meter = Meter::new(rate("100/s"));
            let now = Duration::from_secs(5);
            let room = meter.room(now, patience);
            assert_eq!(u128::from(room), 10 + patience.as_millis() / 10);
            for _ in 0..room {
                assert!(meter.room(now, patience) > 0);
                assert!(meter.take(now) <= patience);
            }
            assert_eq!(meter.room(now, patience), 0);
            let wait = meter.wait(now, patience);
            assert!(!wait.is_zero() && wait <= Duration::from_millis(10));
            assert_eq!(meter.room(now + wait, patience), 1);
        }
    }
}
