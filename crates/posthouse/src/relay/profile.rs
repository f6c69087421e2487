//! What a relay is set for.

use std::time::Duration;

/// What a relay is set for: sizes that go together. Each can still be set by itself, after the profile.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// A bit of everything: 500 messages in a claim, 2000 in flight, a look every 500 ms when nobody wakes it.
    #[default]
    Balanced,
    /// Many messages that take little time each: 1000 in a claim, 8000 in flight. Each call of the database does more, at the price of
    /// more that waits for its lease to run out when a relay dies.
    Throughput,
    /// Few messages that must not wait: 50 in a claim, 500 in flight, a look every 100 ms when nobody wakes it.
    Latency,
}

impl Profile {
    /// The one of this name: `balanced`, `throughput` or `latency`.
    pub fn named(name: &str) -> Option<Self> {
        match name {
            "balanced" => Some(Self::Balanced),
            "throughput" => Some(Self::Throughput),
            "latency" => Some(Self::Latency),
            _ => None,
        }
    }

    /// The most messages of one claim.
    pub const fn batch(self) -> u32 {
        match self {
            Self::Balanced => 500,
            Self::Throughput => 1000,
            Self::Latency => 50,
        }
    }

    /// The most messages in flight.
    pub const fn concurrency(self) -> u32 {
        match self {
            Self::Balanced => 2000,
            Self::Throughput => 8000,
            Self::Latency => 500,
        }
    }

    /// How often it looks for work when nobody wakes it.
    pub const fn poll(self) -> Duration {
        match self {
            Self::Balanced | Self::Throughput => Duration::from_millis(500),
            Self::Latency => Duration::from_millis(100),
        }
    }
}
