//! When a destination that fails is left alone: `[breaker]` for all, `breaker` of a route for one.

use posthouse::BreakerPolicy;
use std::time::Duration;
use toml::de::{DeTable, DeValue};

use super::{
    read::{Reader, Section},
    value::{Source, Value},
};

/// The rules of a circuit breaker.
#[derive(Clone, Debug, PartialEq)]
pub struct Breaker {
    /// Whether it ever opens. The rest is kept, so that a route can switch it on.
    pub enabled: bool,
    /// So many failed sends in a row open it.
    pub failures: u32,
    /// How long nothing is sent then.
    pub open: Duration,
    /// The longest that nothing is sent.
    pub cap: Duration,
}

impl Breaker {
    /// Reads `[breaker]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "breaker", "breaker".to_owned(), root.get("breaker"));
        Self {
            enabled: section.switch(reader, "enabled").unwrap_or_default(),
            failures: section.number(reader, "failures"),
            open: section.millis(reader, "open_ms"),
            cap: section.millis(reader, "cap_ms"),
        }
        .checked(reader, &section)
    }

    /// Its first time must not be longer than its longest.
    fn checked(self, reader: &mut Reader<'_>, section: &Section<'_>) -> Self {
        // Told of the key that somebody wrote; what a route takes over from [breaker] is told there.
        let written = ["open_ms", "cap_ms"].into_iter().find(|key| section.raw(key).is_some());
        if let Some(key) = written.filter(|_| self.open > self.cap) {
            let (open, cap) = (self.open.as_millis(), self.cap.as_millis());
            section.refuse(reader, key, format!("makes open_ms ({open}) more than cap_ms ({cap})"));
        }
        self
    }

    /// As the relay wants it; none when it is off.
    pub fn policy(&self) -> Option<BreakerPolicy> {
        let Self {
            failures, open, cap, ..
        } = *self;
        self.enabled.then_some(BreakerPolicy { failures, open, cap })
    }

    /// Reads `breaker` of a route: a table, or `false` for none; what is not said is as for all.
    pub fn of_route(&self, reader: &mut Reader<'_>, route: &Section<'_>) -> Self {
        if let Some((_, value)) = route.raw("breaker")
            && let DeValue::Boolean(enabled) = *value.get_ref()
        {
            let (file, line) = (reader.text.file.to_owned(), reader.text.line(value.span().start));
            let section = route.nothing("route.breaker", "breaker");
            section.put(reader, "enabled", Value::Switch(enabled), Source::File { file, line });
            return Self {
                enabled,
                ..self.clone()
            };
        }
        let section = route.child(reader, "route.breaker", "breaker");
        let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
        Self {
            enabled: section.switch(reader, "enabled").unwrap_or(self.enabled),
            failures: section.whole(reader, "failures").map_or(self.failures, small),
            open: section
                .whole(reader, "open_ms")
                .map_or(self.open, Duration::from_millis),
            cap: section.whole(reader, "cap_ms").map_or(self.cap, Duration::from_millis),
        }
        .checked(reader, &section)
    }
}
