//! The headers of a request: what the message brought, under what the destination is given, under what is ours.

use percent_encoding::{AsciiSet, CONTROLS, utf8_percent_encode};
use posthouse_core::{Delivery, Invalid, lease::saga_of, saga::Role, text};
use reqwest::header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::webhook::{ID, SIGNATURE, Secret, TIMESTAMP, sign};

/// The message's id and its generation: a receiver that keeps answers by this key gives a replay a new one. Of a step of a saga, the step's key.
pub const IDEMPOTENCY_KEY: &str = "idempotency-key";
/// Names of headers whose values are percent-encoded here, because they could not travel as they are.
pub const ENCODED: &str = "posthouse-encoded";

/// Names that neither a message nor a destination may set: they are ours, or the connection's.
const OURS: [&str; 15] = [
    "connection",
    "content-length",
    "content-type",
    "expect",
    "host",
    "http2-settings",
    IDEMPOTENCY_KEY,
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "trailers",
    "transfer-encoding",
    "upgrade",
    "via",
];
const OUR_PREFIXES: [&str; 2] = ["posthouse-", "webhook-"];

/// Names that a destination may set and a message may not: who we are, and for whom.
const DESTINATIONS: [&str; 7] = [
    "authorization",
    "cookie",
    "forwarded",
    "origin",
    "referer",
    "user-agent",
    "x-real-ip",
];
const DESTINATION_PREFIXES: [&str; 2] = ["proxy-", "x-forwarded-"];

/// What cannot stand in a header as it is; also the percent sign, so that it can be read back.
const UNSAFE: &AsciiSet = &CONTROLS.add(b'%').add(b' ');

/// A header of the destination's own, such as `authorization`.
pub(super) fn own(name: &str, value: &str) -> Result<(HeaderName, HeaderValue), Invalid> {
    let shown = text::excerpt(name, 64);
    let refused = |problem: &str| Invalid::new("header", format!("{shown:?} {problem}"));
    let name: HeaderName = name.parse().map_err(|_| refused("is not a header name"))?;
    if is_ours(name.as_str()) {
        return Err(refused("is set by the relay"));
    }
    // The value may be a credential, so no word of it.
    let mut value = ascii(value).ok_or_else(|| refused("has a value that is not plain ASCII text"))?;
    value.set_sensitive(true);
    Ok((name, value))
}

/// What a receiver may know it by: of a step of a saga its own key, which is the same whatever message brings it.
fn idempotency_key(delivery: &Delivery) -> String {
    match &delivery.ticket {
        // A question is asked anew each time: an answer that was kept would be an old one.
        Some(ticket) if ticket.role == Role::Verify => format!("{}-{}-{}", ticket.key, delivery.id, delivery.epoch),
        Some(ticket) => ticket.key.clone(),
        None => format!("{}-{}", delivery.id, delivery.generation),
    }
}

/// All headers of one request. Nothing in a message can make this fail: what cannot be sent is encoded, or left out.
pub(super) fn headers(delivery: &Delivery, own: &HeaderMap, secrets: &[Secret], now: SystemTime) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let mut encoded = Vec::new();
    for (name, text) in &delivery.headers {
        let Ok(name) = name.parse::<HeaderName>() else { continue };
        if !is_ours(name.as_str()) && !is_destinations(name.as_str()) {
            put(&mut headers, &mut encoded, name, text);
        }
    }
    for (name, value) in own {
        headers.insert(name, value.clone());
    }
    let content_type = ascii(&delivery.content_type);
    headers.insert(
        CONTENT_TYPE,
        content_type.unwrap_or(HeaderValue::from_static("application/octet-stream")),
    );
    let timestamp = now.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
    let id = delivery.id.to_string();
    let ours = [
        (ID, id.clone()),
        (TIMESTAMP, timestamp.to_string()),
        (IDEMPOTENCY_KEY, idempotency_key(delivery)),
        ("posthouse-epoch", delivery.epoch.to_string()),
        ("posthouse-generation", delivery.generation.to_string()),
        ("posthouse-attempt", delivery.attempt.to_string()),
        ("posthouse-namespace", delivery.namespace.clone()),
        ("posthouse-tenant", delivery.tenant.clone()),
        ("posthouse-topic", delivery.topic.clone()),
        (
            "posthouse-saga",
            saga_of(delivery.kind, delivery.parent)
                .map(|id| id.to_string())
                .unwrap_or_default(),
        ),
        (
            "posthouse-step",
            delivery
                .ticket
                .as_ref()
                .map(|ticket| ticket.step.clone())
                .unwrap_or_default(),
        ),
    ];
    for (name, text) in ours.into_iter().filter(|(_, text)| !text.is_empty()) {
        put(&mut headers, &mut encoded, HeaderName::from_static(name), &text);
    }
    if !secrets.is_empty() {
        let signature = sign(secrets, &id, timestamp, &delivery.payload);
        put(
            &mut headers,
            &mut encoded,
            HeaderName::from_static(SIGNATURE),
            &signature,
        );
    }
    encoded.retain(|name| own.get(name).is_none());
    if !encoded.is_empty() {
        let names = encoded.iter().map(HeaderName::as_str).collect::<Vec<_>>().join(", ");
        headers.extend(
            HeaderValue::from_str(&names)
                .ok()
                .map(|names| (HeaderName::from_static(ENCODED), names)),
        );
    }
    headers
}

fn put(headers: &mut HeaderMap, encoded: &mut Vec<HeaderName>, name: HeaderName, text: &str) {
    let plain = ascii(text).filter(|_| text.trim() == text);
    let value = plain.or_else(|| {
        encoded.push(name.clone());
        ascii(&utf8_percent_encode(text, UNSAFE).to_string())
    });
    headers.extend(value.map(|value| (name, value)));
}

/// A value that travels as it is: other bytes are legal, and read differently by everybody.
fn ascii(text: &str) -> Option<HeaderValue> {
    HeaderValue::from_str(text).ok().filter(|_| text.is_ascii())
}

fn is_ours(name: &str) -> bool {
    OURS.contains(&name) || OUR_PREFIXES.iter().any(|p| name.starts_with(p))
}

fn is_destinations(name: &str) -> bool {
    DESTINATIONS.contains(&name) || DESTINATION_PREFIXES.iter().any(|p| name.starts_with(p))
}
