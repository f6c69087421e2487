//! Points in time as the store's clock told them.

use serde::{Serialize, Serializer};
use std::{fmt, time::Duration};
use time::{OffsetDateTime, format_description::well_known::Rfc3339};

/// Microseconds since 1970-01-01T00:00:00Z, by the clock of the store. Shown as RFC 3339.
///
/// Our own type, so that no date library becomes part of the public interface.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(i64);

impl Timestamp {
    /// From microseconds since the Unix epoch.
    pub const fn from_micros(micros: i64) -> Self {
        Self(micros)
    }

    /// Microseconds since the Unix epoch.
    pub const fn as_micros(self) -> i64 {
        self.0
    }

    /// This instant, later by `by`; saturates at the end of time.
    pub fn plus(self, by: Duration) -> Self {
        Self(self.0.saturating_add(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// This instant, earlier by `by`; saturates at the beginning of time.
    pub fn minus(self, by: Duration) -> Self {
        Self(self.0.saturating_sub(i64::try_from(by.as_micros()).unwrap_or(i64::MAX)))
    }

    /// How long after `earlier` this is; zero when it is not after.
    pub fn since(self, earlier: Self) -> Duration {
        Duration::from_micros(u64::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(0))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = OffsetDateTime::from_unix_timestamp_nanos(i128::from(self.0) * 1000)
            .ok()
            .and_then(|t| t.replace_nanosecond(t.nanosecond() / 1_000_000 * 1_000_000).ok())
            .and_then(|t| t.format(&Rfc3339).ok());
        match text {
            Some(text) => f.write_str(&text),
            None => write!(f, "{}us", self.0),
        }
    }
}

impl fmt::Debug for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Timestamp({self})")
    }
}

impl Serialize for Timestamp {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shows_rfc_3339_with_milliseconds() {
        assert_eq!(
            Timestamp::from_micros(1_700_000_000_123_456).to_string(),
            "2023-11-14T22:13:20.123Z"
        );
        assert_eq!(Timestamp::from_micros(0).to_string(), "1970-01-01T00:00:00Z");
    }

    #[test]
    fn a_time_beyond_every_calendar_is_still_shown() {
        assert_eq!(Timestamp::from_micros(i64::MAX).to_string(), format!("{}us", i64::MAX));
    }

    #[test]
    fn adding_and_subtracting_saturate() {
        assert_eq!(
            Timestamp::from_micros(i64::MAX).plus(Duration::MAX).as_micros(),
            i64::MAX
        );
        assert_eq!(Timestamp::from_micros(-5).minus(Duration::MAX).as_micros(), i64::MIN);
        assert_eq!(
            Timestamp::from_micros(5).since(Timestamp::from_micros(9)),
            Duration::ZERO
        );
    }
}
