//! What a sound file means.

use posthouse::{Backoff, RetryPolicy};
use std::time::Duration;

use super::*;

#[test]
fn nothing_is_the_defaults() {
    let config = sound("");
    assert_eq!(config.stores.len(), 1);
    assert_eq!(config.stores[0].url.expose(), "sqlite://posthouse.db");
    assert_eq!(config.outbox.retry, RetryPolicy::default());
    assert_eq!(config.outbox.max_attempts, 12);
    assert_eq!(config.outbox.limits, posthouse::Limits::default());
    assert_eq!((config.outbox.batch, config.outbox.concurrency), (500, 2000));
    assert_eq!(config.outbox.lease, Duration::from_secs(15));
    assert_eq!(config.outbox.grace, Duration::from_secs(25));
    assert_eq!(
        (config.retention.ended, config.retention.dead, config.retention.dedupe),
        (None, None, Some(Duration::from_secs(7 * 86_400)))
    );
    assert!(config.admin.bind.is_some_and(|address| address.ip().is_loopback()));
    assert!(config.routes.is_empty() && config.explicit.http.is_empty() && config.breaker.enabled);
}

/// What a profile says holds where nothing else is said.
#[test]
fn a_profile_sets_what_is_not_set() {
    let sizes = |text: &str| {
        let outbox = sound(text).outbox;
        (outbox.batch, outbox.concurrency, outbox.poll.as_millis())
    };
    assert_eq!(sizes("[outbox]\nprofile = \"balanced\""), sizes(""));
    assert_eq!(sizes("[outbox]\nprofile = \"throughput\""), (1000, 8000, 500));
    assert_eq!(sizes("[outbox]\nprofile = \"latency\"\nbatch = 7"), (7, 500, 100));
    assert_eq!(sizes("[outbox]\nconcurrency = 10\npoll_ms = 20"), (500, 10, 20));
}

/// The sample of the specification, but for what later parts bring.
#[test]
fn a_route_is_read_whole() {
    let text = route(
        "retry = { max_attempts = 6, table_s = [5, 10, 0.5] }\ntimeout_ms = 2500\nconcurrency = 8\nrate = \"100/s\"\non_dead = \"block\"\n\
         headers = { x-a = \"1\" }\nreject = [404]\nreuse_receipts = true\nbreaker = { failures = 2 }\nallow = [\"10.0.0.0/8\"]",
    );
    let config = sound(&format!("[breaker]\nopen_ms = 7\n{text}"));
    let route = &config.routes[0];
    assert_eq!(
        (route.topic.as_str(), route.name.as_str()),
        ("a.*", "https://a.example#d26afada")
    );
    assert_eq!(route.retry.max_attempts, Some(6));
    assert_eq!(
        route.retry.backoff,
        Backoff::Table([5000, 10_000, 500].map(Duration::from_millis).into())
    );
    assert_eq!((route.timeout, route.concurrency), (Duration::from_millis(2500), 8));
    assert_eq!(route.rate.map(|rate| rate.to_string()).as_deref(), Some("100/s"));
    assert_eq!(route.on_dead, Some(posthouse::OnDead::Block));
    assert_eq!((route.reject.as_slice(), route.reuse_receipts), (&[404][..], true));
    assert_eq!(
        (route.breaker.failures, route.breaker.open),
        (2, Duration::from_millis(7))
    );
    assert_eq!((route.headers.len(), route.allow.len(), route.secrets.len()), (1, 1, 0));
}

#[test]
fn a_route_inherits_what_it_does_not_say() {
    let text = format!(
        "[outbox]\nmax_attempts = 3\nbackoff.base_ms = 7\n{}",
        route("retry.cap_ms = 900")
    );
    let mut config = sound(&text);
    assert_eq!(config.outbox.max_attempts, 3);
    let retry = config.routes.remove(0).retry;
    let Backoff::Exponential { base, cap, .. } = retry.backoff else {
        panic!("a curve")
    };
    assert_eq!(
        (retry.max_attempts, base, cap),
        (None, Duration::from_millis(7), Duration::from_millis(900)),
        "the budget of [outbox] is the store's default, and no route's"
    );
    let table = sound(&format!("[outbox]\nbackoff.table_s = [4]\n{}", route("")));
    assert_eq!(table.routes[0].retry, table.outbox.retry);
}
