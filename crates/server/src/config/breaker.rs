//! When a destination that fails is left alone: `[breaker]` for all, `breaker` of a route for one.

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
    /// So many sends, one at a time, must then succeed before all are sent again.
    pub half_open: u32,
}

impl Breaker {
    /// Reads `[breaker]`.
    pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>) -> Self {
        let section = Section::open(reader, "breaker", "breaker".to_owned(), root.get("breaker"));
        Self {
            enabled: section.switch(reader, "enabled").unwrap_or_default(),
            failures: section.number(reader, "failures"),
            open: section.millis(reader, "open_ms"),
            half_open: section.number(reader, "half_open"),
        }
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
            half_open: section.whole(reader, "half_open").map_or(self.half_open, small),
        }
    }
}
