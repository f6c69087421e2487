//! Routes of the configuration as the relay's own.

use posthouse::{Invalid, http::Http, relay::Destination, webhook::Secret};
use std::time::Duration;

use crate::{
    config::{Allowed, Config, Route, To},
    exit::Failure,
};

/// What was planned last, so that what stays the same goes on with its connections, its breaker and its rate.
#[derive(Default)]
pub struct Routes(Vec<(Route, Destination)>);

impl Routes {
    /// The routes of this configuration.
    pub fn plan(&mut self, config: &Config) -> Result<Vec<(String, Destination)>, Failure> {
        let mut planned = Vec::with_capacity(config.routes.len());
        for route in &config.routes {
            let known = self.0.iter().find(|(before, _)| before == route);
            let to = match known {
                Some((_, destination)) => destination.clone(),
                None => destination(route)?,
            };
            planned.push((route.clone(), to));
        }
        self.0 = planned;
        let routes = self.0.iter().map(|(route, to)| (route.topic.clone(), to.clone()));
        Ok(routes.collect())
    }
}

fn destination(route: &Route) -> Result<Destination, Failure> {
    let To::Http(url) = &route.to;
    let http = http(route, url.expose()).map_err(|invalid| {
        Failure::from(Invalid::new(
            invalid.field,
            format!("of route {:?}: {}", route.name, invalid.problem),
        ))
    })?;
    let mut to = Destination::new(&*route.name, http)
        .timeout(route.timeout)
        .concurrency(route.concurrency)
        .retry(route.retry.clone())
        .without_breaker();
    if let Some(policy) = route.breaker.policy() {
        to = to.breaker(policy);
    }
    if let Some(rate) = route.rate {
        to = to.rate(rate);
    }
    if let Some(on_dead) = route.on_dead {
        to = to.on_dead(on_dead);
    }
    if route.reuse_receipts {
        to = to.reuse_receipts();
    }
    Ok(to)
}

fn http(route: &Route, url: &str) -> Result<Http, Invalid> {
    let mut http = Http::builder(url)
        .allow_private(route.allow_private)
        .allow(route.allow.iter().map(Allowed::to_string))
        // It answers before the relay gives up, because it knows more about what happened.
        .timeout(within(route.timeout));
    let mut secrets = route.secrets.iter().map(|secret| Secret::parse(secret.expose()));
    if let Some(secret) = secrets.next() {
        http = http.secret(secret?);
    }
    if let Some(secret) = secrets.next() {
        http = http.second_secret(secret?);
    }
    for (name, value) in &route.headers {
        http = http.header(name, value.expose());
    }
    if !route.reject.is_empty() {
        http = http.rejects(route.reject.iter().copied());
    }
    http.build()
}

fn within(timeout: Duration) -> Duration {
    timeout - timeout / 20
}
