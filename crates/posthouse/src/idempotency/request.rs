//! What is read of a request: its key, whose it is, and what it asks for.

use ::http::{
    HeaderMap, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE},
    request::Parts,
};
use posthouse_core::{Digest, Limits};

use super::response::Refusal;
use crate::ledger::Fingerprint;

/// The header.
pub const KEY: &str = "idempotency-key";

/// Whoever shows the same credentials is the same: by a hash of the `Authorization` header, with a secret of yours, so that nobody can guess them from what is kept. All that
/// serve the same keys must have the same secret. Without the header nobody knows who asks.
///
/// It checks nothing, and credentials that change from request to request are another caller each time. Where your own authentication has found out who asks, give a function that
/// looks there instead.
pub fn by_authorization(secret: impl Into<Vec<u8>>) -> impl Fn(&Parts) -> Option<String> + Send + Sync + 'static {
    let secret = secret.into();
    move |parts| {
        let shown = parts.headers.get(AUTHORIZATION)?;
        Some(Digest::of_fields(&[&secret, shown.as_bytes()]).to_string())
    }
}

/// What was asked for. Inside a nested router of axum that is not what a layer is shown.
fn uri(parts: &Parts) -> &Uri {
    #[cfg(feature = "axum")]
    if let Some(axum::extract::OriginalUri(uri)) = parts.extensions.get() {
        return uri;
    }
    &parts.uri
}

/// Method and path; of a long path, its hash.
pub(super) fn route(parts: &Parts) -> String {
    within(format!("{} {}", parts.method, uri(parts).path()))
}

/// A name that every store can keep: what is too long is told by its hash.
pub(crate) fn within(name: String) -> String {
    if name.len() <= Limits::NAME_BYTES {
        return name;
    }
    Digest::of_fields(&[name.as_bytes()]).to_string()
}

/// The key of a request, if it has one. It may stand in quotes, as the standard has it, or without, as most send it.
pub(super) fn key(headers: &HeaderMap) -> Result<Option<String>, Refusal> {
    let mut given = headers.get_all(KEY).iter();
    let Some(value) = given.next() else {
        return Ok(None);
    };
    let wrong = |detail| Err(Refusal::new(StatusCode::BAD_REQUEST, "key_malformed", detail));
    if given.next().is_some() {
        return wrong("Idempotency-Key is there more than once");
    }
    let Ok(text) = value.to_str() else {
        return wrong("Idempotency-Key holds something else than visible ASCII characters");
    };
    let text = text.trim();
    let quoted = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"'));
    let key = quoted.unwrap_or(text);
    if key.is_empty() {
        return wrong("Idempotency-Key is empty");
    }
    if key.len() > Limits::NAME_BYTES {
        return wrong("Idempotency-Key has more than 255 bytes");
    }
    if key.contains(|c: char| c.is_control()) {
        return wrong("Idempotency-Key holds a control character");
    }
    Ok(Some(key.to_owned()))
}

/// What is asked for. JSON counts as a document: spaces and the order of members do not matter.
pub(super) fn fingerprint(parts: &Parts, body: &[u8]) -> Fingerprint {
    let json = parts
        .headers
        .get(CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
            kind == "application/json" || kind.ends_with("+json")
        });
    let content = if json {
        Fingerprint::of_json(body)
    } else {
        Fingerprint::of_bytes(body)
    };
    let uri = uri(parts);
    Fingerprint::of_fields([
        ("method", parts.method.as_str().as_bytes()),
        ("path", uri.path().as_bytes()),
        ("query", uri.query().unwrap_or_default().as_bytes()),
        ("body", content.0.as_bytes()),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use ::http::{HeaderValue, Request};

    fn headers(values: &[&[u8]]) -> HeaderMap {
        let values = values.iter().map(|value| HeaderValue::from_bytes(value).unwrap());
        values.fold(HeaderMap::new(), |mut all, value| {
            all.append(KEY, value);
            all
        })
    }

    #[test]
    fn a_key_may_stand_in_quotes() {
        let read = |value: &[u8]| key(&headers(&[value])).map_err(|refusal| refusal.code);
        assert_eq!(read(b"abc"), Ok(Some("abc".to_owned())));
        assert_eq!(read(b" \"abc\" "), Ok(Some("abc".to_owned())));
        assert_eq!(read(b"a\"c"), Ok(Some("a\"c".to_owned())));
        assert_eq!(key(&headers(&[])).map_err(|refusal| refusal.code), Ok(None));
        for wrong in [&b""[..], b"\"\"", &[b'k'; 256], b"caf\xe9", b"a\tb"] {
            assert_eq!(read(wrong), Err("key_malformed"), "{wrong:?}");
        }
        assert!(key(&headers(&[b"a", b"a"])).is_err());
    }

    fn parts(method: &str, uri: &str, content_type: &str) -> Parts {
        let request = Request::builder()
            .method(method)
            .uri(uri)
            .header(CONTENT_TYPE, content_type);
        request.body(()).unwrap().into_parts().0
    }

    #[test]
    fn json_counts_as_a_document_and_all_else_as_it_is() {
        let json = parts("POST", "/orders?a=1", "application/json; charset=utf-8");
        let same = |one: &[u8], other: &[u8], parts| fingerprint(parts, one) == fingerprint(parts, other);
        assert!(same(br#"{"a":1,"b":2}"#, br#"{ "b": 2, "a": 1 }"#, &json));
        assert!(!same(br#"{"a":1}"#, br#"{"a":2}"#, &json));
        let other = parts("POST", "/orders?a=1", "text/plain");
        assert!(!same(br#"{"a":1}"#, br#"{ "a":1}"#, &other));
        for asked in [
            parts("PATCH", "/orders?a=1", "text/plain"),
            parts("POST", "/order?a=1", "text/plain"),
            parts("POST", "/orders?a=2", "text/plain"),
        ] {
            assert_ne!(fingerprint(&asked, b""), fingerprint(&other, b""));
        }
    }

    #[test]
    fn a_long_path_is_a_scope_too() {
        let long = parts("POST", &format!("/{}", "x".repeat(300)), "text/plain");
        assert_eq!(route(&long).len(), 64);
        assert_eq!(route(&parts("POST", "/orders?a=1", "text/plain")), "POST /orders");
    }

    #[test]
    fn callers_are_told_apart_by_what_they_show() {
        let with = |secret: &str, value: &str| {
            let request = Request::builder().header(AUTHORIZATION, value).body(()).unwrap();
            by_authorization(secret)(&request.into_parts().0)
        };
        assert_eq!(with("s", "Bearer a"), with("s", "Bearer a"));
        assert_ne!(with("s", "Bearer a"), with("s", "Bearer b"));
        assert_ne!(with("s", "Bearer a"), with("t", "Bearer a"));
        assert!(with("s", "Bearer a").is_some_and(|hash| !hash.contains("Bearer") && hash.len() == 64));
        assert_eq!(by_authorization("s")(&Request::new(()).into_parts().0), None);
    }
}
