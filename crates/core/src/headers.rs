//! The small text map that travels with a message.

use std::collections::BTreeMap;

use crate::{Invalid, Limits, Message, ledger::Binding, saga::Ticket};

/// Headers of a message: trace context, correlation, the user's own.
pub type Headers = BTreeMap<String, String>;

/// Names that the relay writes itself on every delivery; a producer must not forge them.
const RESERVED: [&str; 5] = [
    "content-type",
    "content-length",
    "host",
    "authorization",
    "idempotency-key",
];
/// Name prefixes kept for the relay and for webhook signatures.
const RESERVED_PREFIXES: [&str; 2] = ["posthouse-", "webhook-"];

/// Under which name a message's entry in the ledger is kept with its headers. Reserved, and never sent.
pub const LEDGER: &str = "posthouse-ledger";

/// Under which name it is kept what a message of a saga is sent for. Reserved, and never sent as such.
pub const TICKET: &str = "posthouse-step";

/// As a store keeps those of a message: a JSON object of text, with its entry in the ledger and what it is sent for in a saga, if it has them; nothing if
/// there is nothing.
pub fn of_message(message: &Message) -> Option<String> {
    let reserved = [
        (LEDGER, message.ledger.as_ref().map(ToString::to_string)),
        (TICKET, message.ticket.as_ref().map(ToString::to_string)),
    ];
    with(&message.headers, reserved)
}

/// A JSON object of text; nothing if there is nothing.
pub fn to_json(headers: &Headers) -> Option<String> {
    with(headers, [])
}

fn with<const N: usize>(headers: &Headers, reserved: [(&str, Option<String>); N]) -> Option<String> {
    let mut all: serde_json::Map<_, _> = headers
        .iter()
        .map(|(name, value)| (name.clone(), value.as_str().into()))
        .collect();
    let reserved = reserved.into_iter().filter_map(|(name, value)| Some((name, value?)));
    all.extend(reserved.map(|(name, value)| (name.to_owned(), value.into())));
    (!all.is_empty()).then(|| serde_json::Value::Object(all).to_string())
}

/// Takes the entry in the ledger out of headers as a store keeps them: the rest is what is sent.
pub fn take_binding(headers: &mut Headers) -> Option<Binding> {
    let binding: Binding = headers.remove(LEDGER)?.parse().ok()?;
    binding.check().is_ok().then_some(binding)
}

/// The same of what a message of a saga is sent for.
pub fn take_ticket(headers: &mut Headers) -> Option<Ticket> {
    headers.remove(TICKET)?.parse().ok()
}

/// Checks a whole map: number, names, values.
pub fn check(headers: &Headers) -> Result<(), Invalid> {
    if headers.len() > Limits::HEADERS {
        return Err(Invalid::new(
            "headers",
            format!("{} headers, at most {} are allowed", headers.len(), Limits::HEADERS),
        ));
    }
    headers
        .iter()
        .try_for_each(|(name, value)| check_name(name).and_then(|()| check_value(name, value)))
}

fn check_name(name: &str) -> Result<(), Invalid> {
    let shown = crate::text::excerpt(name, 64);
    if name.is_empty() || name.len() > Limits::NAME_BYTES || !name.bytes().all(is_token_byte) {
        return Err(Invalid::new(
            "headers",
            format!(
                "{shown:?} is not a header name (1 to {} letters, digits or !#$%&'*+-.^_`|~)",
                Limits::NAME_BYTES
            ),
        ));
    }
    let lower = name.to_ascii_lowercase();
    if RESERVED.contains(&lower.as_str()) || RESERVED_PREFIXES.iter().any(|p| lower.starts_with(p)) {
        return Err(Invalid::new("headers", format!("{shown:?} is reserved for the relay")));
    }
    Ok(())
}

fn check_value(name: &str, value: &str) -> Result<(), Invalid> {
    let shown = crate::text::excerpt(name, 64);
    if value.len() > Limits::HEADER_BYTES {
        return Err(Invalid::new(
            "headers",
            format!(
                "the value of {shown:?} has {} bytes, at most {} are allowed",
                value.len(),
                Limits::HEADER_BYTES
            ),
        ));
    }
    if value.chars().any(|c| c.is_control() && c != '\t') {
        return Err(Invalid::new(
            "headers",
            format!("the value of {shown:?} holds a control character (CR, LF and NUL are never allowed)"),
        ));
    }
    Ok(())
}

fn is_token_byte(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&b)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(name: &str, value: &str) -> Result<(), Invalid> {
        check(&Headers::from([(name.to_owned(), value.to_owned())]))
    }

    #[test]
    fn trace_context_and_user_headers_pass() {
        one("traceparent", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        one("X-Shop", "größe\tXL").unwrap();
    }

    #[test]
    fn line_breaks_and_nul_are_refused() {
        for bad in ["a\r\nX: y", "a\nb", "a\0b"] {
            assert_eq!(one("x", bad).unwrap_err().field, "headers");
        }
    }

    #[test]
    fn reserved_names_are_refused_in_any_case() {
        for bad in [
            "Webhook-Signature",
            "posthouse-epoch",
            "Idempotency-Key",
            "CONTENT-TYPE",
        ] {
            assert!(one(bad, "x").unwrap_err().problem.contains("reserved"), "{bad}");
        }
    }

    #[test]
    fn limits_hold_at_the_edge() {
        one("x", &"v".repeat(4096)).unwrap();
        assert!(one("x", &"v".repeat(4097)).is_err());
        let many = |n: usize| (0..n).map(|i| (format!("h{i}"), String::new())).collect::<Headers>();
        check(&many(64)).unwrap();
        assert!(check(&many(65)).is_err());
        assert!(one("", "x").is_err());
        assert!(one("a b", "x").is_err());
    }
}
