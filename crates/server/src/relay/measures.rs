//! What is measured, as Prometheus reads it.

use metrics::gauge;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use posthouse::{
    Count, Counts,
    relay::measures::{self, Measure},
};

use crate::exit::Failure;

/// Times from a quarter of a millisecond to ten minutes.
const BUCKETS: &[f64] = &[
    0.000_25, 0.001, 0.002_5, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 600.0,
];

/// What this program measures besides what the relay does.
pub const GAUGES: &[Measure] = &[
    Measure::new(
        "posthouse_backlog",
        "gauge",
        &["store", "state"],
        "Messages by state, counted up to 10,000; a lower bound where posthouse_backlog_capped is 1",
    ),
    Measure::new(
        "posthouse_backlog_capped",
        "gauge",
        &["store", "state"],
        "1 where posthouse_backlog stopped counting and there are more, or may be; else 0",
    ),
    Measure::new(
        "posthouse_oldest_due_seconds",
        "gauge",
        &["store"],
        "How long the oldest message that is due has waited",
    ),
    Measure::new(
        "posthouse_blocked_keys",
        "gauge",
        &["store"],
        "Order keys that a dead or quarantined message blocks, counted up to 10,000",
    ),
    Measure::new(
        "posthouse_configuration_sound",
        "gauge",
        &[],
        "1, or 0 while a changed configuration is not taken up because it is not sound",
    ),
    Measure::new(
        "posthouse_build_info",
        "gauge",
        &["version"],
        "1, with the version of this program",
    ),
];

/// Begins to measure.
pub fn begin() -> Result<PrometheusHandle, Failure> {
    let failed =
        |error: metrics_exporter_prometheus::BuildError| Failure::new(format!("nothing can be measured: {error}"));
    let builder = PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".into()), BUCKETS)
        .map_err(failed)?;
    let handle = builder.install_recorder().map_err(failed)?;
    measures::describe();
    GAUGES.iter().for_each(Measure::describe);
    gauge!("posthouse_build_info", "version" => env!("CARGO_PKG_VERSION")).set(1.0);
    configuration_sound(true);
    Ok(handle)
}

pub fn configuration_sound(sound: bool) {
    gauge!("posthouse_configuration_sound").set(if sound { 1.0 } else { 0.0 });
}

/// How a store is filled.
pub fn counts(store: &str, counts: &Counts) {
    let states: [(&str, &Count); 6] = [
        ("ready", &counts.ready),
        ("scheduled", &counts.scheduled),
        ("leased", &counts.leased),
        ("done", &counts.done),
        ("dead", &counts.dead),
        ("quarantined", &counts.quarantined),
    ];
    for (state, count) in states {
        gauge!("posthouse_backlog", "store" => store.to_owned(), "state" => state).set(count.value as f64);
        let capped = if count.exact { 0.0 } else { 1.0 };
        gauge!("posthouse_backlog_capped", "store" => store.to_owned(), "state" => state).set(capped);
    }
    gauge!("posthouse_blocked_keys", "store" => store.to_owned()).set(counts.blocked_keys.value as f64);
    let waited = counts
        .oldest_due
        .zip(counts.now)
        .map_or(0.0, |(due, now)| now.since(due).as_secs_f64());
    gauge!("posthouse_oldest_due_seconds", "store" => store.to_owned()).set(waited);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The guide lists what the program measures, and nothing that nobody measures.
    #[test]
    fn the_guide_lists_every_measure() {
        let guide = include_str!("../../../../docs/measures.md");
        let listed: Vec<_> = guide.lines().filter(|line| line.starts_with("| `posthouse_")).collect();
        for row in GAUGES.iter().map(Measure::row) {
            assert!(listed.contains(&row.as_str()), "docs/measures.md lacks:\n{row}");
        }
        assert_eq!(listed.len(), GAUGES.len() + measures::MEASURES.len());
    }
}
