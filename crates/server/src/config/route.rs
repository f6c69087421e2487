//! Where messages go, and under which rules: `[[route]]`.

use posthouse::{Invalid, OnDead, Rate, RetryPolicy, TopicPattern, presence};
use std::{ops::Range, time::Duration};
use toml::de::{DeTable, DeValue};

use super::{
    address::{self, Allowed},
    breaker::Breaker,
    outbox::{Outbox, read_backoff},
    problem::Problem,
    read::{Reader, Section, text_of},
    secret::{self, Secret},
    value::{Source, Value},
};

/// A route. The first whose pattern matches a topic serves it.
#[derive(Clone, Debug, PartialEq)]
pub struct Route {
    /// The topics, as a [`TopicPattern`].
    pub topic: String,
    /// Where they go.
    pub to: To,
    /// The destination's name. No two routes have the same.
    pub name: String,
    /// How often and how soon a message is tried again.
    pub retry: RetryPolicy,
    /// How long one send may take.
    pub timeout: Duration,
    /// How many sends may be under way at a time.
    pub concurrency: u32,
    /// The most sends in a time, by this relay.
    pub rate: Option<Rate>,
    /// What a dead message does to its order key; as the message says when absent.
    pub on_dead: Option<OnDead>,
    /// What signs: nothing, one secret, or two while receivers change from one to the other.
    pub secrets: Vec<Secret>,
    /// Whether private addresses may be sent to.
    pub allow_private: bool,
    /// What may be sent to although it is private.
    pub allow: Vec<Allowed>,
    /// Headers to send, by name.
    pub headers: Vec<(String, Secret)>,
    /// Answers that make a message dead at once.
    pub reject: Vec<u16>,
    /// Whether content that was delivered before is not sent again.
    pub reuse_receipts: bool,
    /// When the destination is left alone.
    pub breaker: Breaker,
}

/// A destination.
#[derive(Clone, Debug, PartialEq)]
pub enum To {
    /// A webhook at this URL, whose parameters may hold a secret.
    Http(Secret),
}

/// More than anybody writes by hand, and few enough to look through for each message.
const MOST: usize = 1000;

/// Reads all of them, and compares them with each other.
pub fn read(reader: &mut Reader<'_>, root: &DeTable<'_>, outbox: &Outbox, breaker: &Breaker) -> Vec<Route> {
    let Some((key, value)) = root.get_key_value("route") else {
        return Vec::new();
    };
    let DeValue::Array(all) = value.get_ref() else {
        let place = reader.text.place(&key.span());
        reader.wrong(place, "route", "is a list: begin each route with [[route]]");
        return Vec::new();
    };
    if all.len() > MOST {
        let place = reader.text.place(&key.span());
        reader.wrong(
            place,
            "route",
            format!("{} routes, and at most {MOST} are allowed", all.len()),
        );
    }
    let mut routes: Vec<Route> = Vec::new();
    for (n, value) in all.iter().enumerate().take(MOST) {
        let section = Section::open(reader, "route", format!("route[{n}]"), Some(value));
        let span = value.span();
        if value.get_ref().is_table()
            && let Some(route) = Route::read(reader, &section, &span, outbox, breaker)
        {
            compare(reader, &section, &routes, &route);
            routes.push(route);
        }
    }
    routes
}

impl Route {
    fn read(
        reader: &mut Reader<'_>,
        section: &Section<'_>,
        span: &Range<usize>,
        outbox: &Outbox,
        breaker: &Breaker,
    ) -> Option<Self> {
        let topic = required(reader, section, span, "topic").and_then(|_| section.text(reader, "topic"));
        if let Some(topic) = &topic {
            check_topic(reader, section, topic);
        }
        let allow_private = section.switch(reader, "allow_private").unwrap_or_default();
        let allow = address::read_allowed(reader, section);
        let to = required(reader, section, span, "to").and_then(|_| read_to(reader, section, allow_private, &allow));
        let name = section.text(reader, "name");
        if let Some(Err(invalid)) = name.as_deref().map(presence::check_destination) {
            section.refuse(reader, "name", invalid.problem);
        }
        let retry = section.child(reader, "route.retry", "retry");
        let route = Self {
            name: name.or(to.as_ref().map(|(_, shown)| shown.clone())).unwrap_or_default(),
            topic: topic.clone().unwrap_or_default(),
            to: to.as_ref().map_or(To::Http(Secret::new("")), |(to, _)| to.clone()),
            retry: RetryPolicy {
                max_attempts: retry.whole(reader, "max_attempts").and_then(|n| u32::try_from(n).ok()),
                backoff: read_backoff(reader, &retry, &outbox.retry.backoff),
                longest_wish: outbox.retry.longest_wish,
            },
            timeout: section.millis(reader, "timeout_ms"),
            concurrency: section.number(reader, "concurrency"),
            rate: read_rate(reader, section),
            on_dead: section
                .text(reader, "on_dead")
                .and_then(|word| OnDead::ALL.iter().copied().find(|w| w.as_str() == word)),
            secrets: read_secrets(reader, section),
            allow_private,
            allow,
            headers: read_headers(reader, section),
            reject: read_reject(reader, section),
            reuse_receipts: section.switch(reader, "reuse_receipts").unwrap_or_default(),
            breaker: breaker.of_route(reader, section),
        };
        check_timeout(reader, section, &route, outbox.lease);
        topic.and(to).map(|_| route)
    }
}

/// Refuses a route without this key, at the route's beginning.
fn required(reader: &mut Reader<'_>, section: &Section<'_>, span: &Range<usize>, name: &str) -> Option<()> {
    if section.raw(name).is_some() {
        return Some(());
    }
    let place = reader.text.place(span);
    let problem = reader.wrong(
        place,
        format!("{}.{name}", section.path),
        "is missing, and every route has one",
    );
    problem.missing = true;
    None
}

fn check_topic(reader: &mut Reader<'_>, section: &Section<'_>, topic: &str) {
    let aimed = ["http:", "bus:", "fn:", "custom:"]
        .into_iter()
        .find(|prefix| topic.starts_with(prefix));
    if let Some(prefix) = aimed {
        let message = format!("topics that begin with {prefix} name their destination themselves and need no route");
        let help = "hosts that http: may name are listed in [explicit]";
        section.refuse(reader, "topic", message).help = Some(help.to_owned());
    } else if let Err(invalid) = TopicPattern::parse(topic) {
        section.refuse(reader, "topic", invalid.problem);
    } else if topic.len() > 255 || topic.chars().any(char::is_control) {
        section.refuse(
            reader,
            "topic",
            "has more than 255 bytes or a control character; no message has such a topic",
        );
    }
}

/// A send must end well before its lease does, so that its outcome can still be settled.
fn check_timeout(reader: &mut Reader<'_>, section: &Section<'_>, route: &Route, lease: Duration) {
    if route.timeout + lease / 10 >= lease {
        let message = format!(
            "a send may take {} ms, and the lease (outbox.lease_ms) of {} ms must be longer than that by more than a tenth",
            route.timeout.as_millis(),
            lease.as_millis()
        );
        section.refuse(reader, "timeout_ms", message);
    }
}

/// Refuses a second route for the same topic or of the same name, and says so of one that is never reached.
fn compare(reader: &mut Reader<'_>, section: &Section<'_>, before: &[Route], route: &Route) {
    if before.iter().any(|other| other.topic == route.topic) {
        section.refuse(
            reader,
            "topic",
            "is that of an earlier route, and the first one serves; take one of them out",
        );
    } else if let Some(other) = before.iter().find(|other| covers(&other.topic, &route.topic)) {
        let place = section.place(reader, "topic");
        let message = format!("is never reached: the earlier route {:?} takes all of it", other.topic);
        let problem = Problem::new(place, format!("{}.topic", section.path), message);
        let help = Some("put the narrower one first");
        reader.problems.push(Problem {
            warning: true,
            ..problem.help(help)
        });
    }
    if before.iter().any(|other| other.name == route.name) {
        let key = if section.raw("name").is_some() { "name" } else { "to" };
        let message = "gives the route the name of an earlier one, and operators pause destinations by name";
        section.refuse(reader, key, message).help = Some("give each route a name of its own".to_owned());
    }
}

/// Whether a pattern matches everything that another one does. No topic holds NUL, so only a star can have matched it.
fn covers(wide: &str, narrow: &str) -> bool {
    TopicPattern::parse(wide).is_ok_and(|wide| wide.matches(&narrow.replace('*', "\0")))
}

/// Kinds of destinations that are known, and why they are refused.
fn refusal(scheme: &str) -> Option<String> {
    match scheme {
        "nats" | "amqp" | "redis" | "kafka" | "mqtt" => Some(format!(
            "{scheme}: is not built yet in this version; send to a webhook (https://...) that passes it on"
        )),
        "fn" => Some(
            "local functions live in the application: run a relay in it, with Relay::builder(...).route(...)"
                .to_owned(),
        ),
        "bus" | "custom" => Some(format!(
            "{scheme}: is a transport of an application's own: run a relay in it"
        )),
        _ => None,
    }
}

/// The destination, and its name without parameters.
fn read_to(reader: &mut Reader<'_>, section: &Section<'_>, private: bool, allow: &[Allowed]) -> Option<(To, String)> {
    if section.raw("to").is_some_and(|(_, value)| value.get_ref().is_array()) {
        let message = "a list (fan-out) is not built yet in this version; name one destination";
        section.refuse(reader, "to", message);
        return None;
    }
    let (value, source) = section.look(reader, "to")?;
    let text = text_of(value)?;
    if let Some(why) = text.split_once(':').and_then(|(scheme, _)| refusal(scheme)) {
        section.refuse(reader, "to", why);
        return None;
    }
    let url = match address::check_url(&text) {
        Ok(url) => url,
        Err(problem) => {
            section.refuse(reader, "to", problem);
            return None;
        }
    };
    if !private && !address::may_be_sent_to(&url, allow) {
        let message = "is on this machine or in a private network, which is refused unless the route says otherwise";
        let help = "set allow_private = true, or name it in allow";
        section.refuse(reader, "to", message).help = Some(help.to_owned());
    }
    let mut shown = address::without_parameters(&url);
    if url.query().is_some() {
        shown.push_str("?***");
    }
    // A path may be a secret too, and a name is seen by more people.
    let name = posthouse::http::name(&url);
    section.put(reader, "to", Value::Hidden(Secret::new(text.clone()), shown), source);
    Some((To::Http(Secret::new(text)), name))
}

fn read_rate(reader: &mut Reader<'_>, section: &Section<'_>) -> Option<Rate> {
    match section.text(reader, "rate")?.parse() {
        Ok(rate) => Some(rate),
        Err(Invalid { problem, .. }) => {
            section.refuse(reader, "rate", problem);
            None
        }
    }
}

fn read_reject(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<u16> {
    let Some(Value::List(codes)) = section.get(reader, "reject") else {
        return Vec::new();
    };
    let code = |value| match value {
        Value::Whole(n) => u16::try_from(n).ok(),
        _ => None,
    };
    codes.into_iter().filter_map(code).collect()
}

/// The secrets that sign: the first, and a second one beside it.
fn read_secrets(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<Secret> {
    let first = read_secret(reader, section, "secret_env", "secret_file");
    let second = read_secret(reader, section, "second_secret_env", "second_secret_file");
    let is_set = |names: [&'static str; 2]| names.into_iter().find(|name| section.raw(name).is_some());
    if let (None, Some(name)) = (
        is_set(["secret_env", "secret_file"]),
        is_set(["second_secret_env", "second_secret_file"]),
    ) {
        section.refuse(
            reader,
            name,
            "there is a second secret and no first one; set secret_env or secret_file",
        );
    }
    first.into_iter().chain(second).collect()
}

fn read_secret(reader: &mut Reader<'_>, section: &Section<'_>, env: &str, file: &str) -> Option<Secret> {
    if section.raw(env).is_some() && section.raw(file).is_some() {
        section.refuse(reader, file, format!("says the same as {env}; take one of them out"));
        return None;
    }
    let name = if section.raw(env).is_some() { env } else { file };
    let (value, source) = section.look(reader, name)?;
    let text = text_of(value)?;
    let read = if name == env {
        reader.secret_in(&text)
    } else {
        reader.secret_at(&text)
    };
    match read {
        Ok(secret) => {
            section.put(reader, name, Value::Hidden(secret.clone(), text), source);
            Some(secret)
        }
        Err(problem) => {
            section.refuse(reader, name, problem);
            None
        }
    }
}

/// Headers whose value is a credential: not in a file that many read.
const CREDENTIALS: [&str; 3] = ["authorization", "proxy-authorization", "cookie"];

fn read_headers(reader: &mut Reader<'_>, section: &Section<'_>) -> Vec<(String, Secret)> {
    let Some((Value::Map(given), source)) = section.look(reader, "headers") else {
        return Vec::new();
    };
    let (mut headers, mut shown) = (Vec::new(), std::collections::BTreeMap::new());
    for (name, value) in given {
        match read_header(reader, &name, &value) {
            Ok(secret) => {
                let sight = match value {
                    Value::Map(place) => Value::Map(
                        place
                            .into_iter()
                            .map(|(word, place)| (word, hide(place, &secret)))
                            .collect(),
                    ),
                    plain => plain,
                };
                shown.insert(name.clone(), sight);
                headers.push((name, secret));
            }
            Err(problem) => {
                section.refuse(reader, "headers", problem);
            }
        }
    }
    if source != Source::Default {
        section.put(reader, "headers", Value::Map(shown), source);
    }
    headers
}

/// The place of a secret, with the secret, so that a change of it is seen.
fn hide(place: Value, secret: &Secret) -> Value {
    Value::Hidden(secret.clone(), text_of(place).unwrap_or_default())
}

fn read_header(reader: &mut Reader<'_>, name: &str, value: &Value) -> Result<Secret, String> {
    let lower = name.to_ascii_lowercase();
    let credential = CREDENTIALS.contains(&lower.as_str());
    let secret = match value {
        Value::Map(place) => match place.iter().next() {
            Some((word, Value::Text(place))) if word == "env" => reader.secret_in(place)?,
            Some((_, Value::Text(place))) => reader.secret_at(place)?,
            _ => return Err(format!("{name:?} says not where its value is")),
        },
        Value::Text(_) if credential => {
            return Err(format!(
                "{name:?} is a credential: write {{ env = \"NAME\" }} or {{ file = \"PATH\" }}"
            ));
        }
        Value::Text(text) => secret::fit(text).map_err(|problem| format!("the value of {name:?} {problem}"))?,
        _ => return Err(format!("{name:?} has no text")),
    };
    // The rules for what producers may set, but for credentials, which are the operator's to set.
    let checked = if credential { "x-credential" } else { name };
    let pair = [(checked.to_owned(), secret.expose().to_owned())].into();
    posthouse::headers::check(&pair).map_err(|invalid| invalid.problem)?;
    Ok(secret)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pattern_covers_another_when_it_takes_all_of_it() {
        for (wide, narrow, covered) in [
            ("*", "orders.*", true),
            ("orders.*", "orders.created", true),
            ("orders.*", "orders.*.eu", true),
            ("*.eu", "orders.*.eu", true),
            ("a*c", "a*b*c", true),
            ("a*b*c", "a*c", false),
            ("orders.created", "orders.*", false),
            ("orders.*", "orders*", false),
        ] {
            assert_eq!(covers(wide, narrow), covered, "{wide} over {narrow}");
        }
    }
}
