//! What a receiver is told, and what a message cannot make it believe.

use posthouse_core::{Outcome, Transport};
use posthouse_transports::http::{Http, Secret};

use crate::receiver::{Receiver, Request, delivery, ok};

async fn sent(headers: &[(&str, &str)]) -> Request {
    let receiver = Receiver::always(ok()).await;
    let mut delivery = delivery();
    delivery.headers = headers
        .iter()
        .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
        .collect();
    let http = receiver
        .builder()
        .header("Authorization", "Bearer ours")
        .header("x-key", "ours")
        .build()
        .unwrap();
    assert!(matches!(http.send(&delivery).await, Outcome::Delivered { .. }));
    receiver.request()
}

#[tokio::test]
async fn the_message_travels_with_who_it_is() {
    let receiver = Receiver::always(ok()).await;
    let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
    let delivery = delivery();
    receiver.builder().secret(secret).build().unwrap().send(&delivery).await;
    let request = receiver.request();
    assert_eq!(request.line, "POST /hook HTTP/1.1");
    assert_eq!(request.body, delivery.payload);
    let id = delivery.id.to_string();
    for (name, value) in [
        ("webhook-id", id.as_str()),
        ("idempotency-key", &format!("{id}-2")),
        ("content-type", "application/json"),
        ("posthouse-epoch", "7"),
        ("posthouse-generation", "2"),
        ("posthouse-attempt", "3"),
        ("posthouse-tenant", "acme"),
        ("posthouse-namespace", "shop"),
        ("posthouse-topic", "order.placed"),
        ("host", &receiver.address.to_string()),
        ("user-agent", &format!("posthouse/{}", env!("CARGO_PKG_VERSION"))),
    ] {
        assert_eq!(request.headers.get(name).map(String::as_str), Some(value), "{name}");
    }
    assert!(request.headers["webhook-signature"].starts_with("v1,"));
    assert!(request.headers["webhook-timestamp"].parse::<u64>().unwrap() > 1_700_000_000);
    assert!(!request.headers.contains_key("posthouse-encoded"));
}

#[tokio::test]
async fn without_a_secret_nothing_is_signed_and_an_empty_tenant_is_not_told() {
    let receiver = Receiver::always(ok()).await;
    let mut delivery = delivery();
    delivery.tenant = String::new();
    receiver.http().send(&delivery).await;
    let headers = receiver.request().headers;
    assert!(!headers.contains_key("webhook-signature"));
    assert!(!headers.contains_key("posthouse-tenant"));
    assert!(headers.contains_key("webhook-id"));
}

#[tokio::test]
async fn trace_context_and_user_headers_pass() {
    let trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    let request = sent(&[
        ("traceparent", trace),
        ("tracestate", "a=1,b=2"),
        ("X-Shop", "100% cotton, \"XL\""),
        ("x-key", "theirs"),
    ])
    .await;
    assert_eq!(request.headers["traceparent"], trace);
    assert_eq!(request.headers["tracestate"], "a=1,b=2");
    assert_eq!(request.headers["x-shop"], "100% cotton, \"XL\"");
    assert_eq!(request.headers["x-key"], "ours", "the destination's own header stays");
}

#[tokio::test]
async fn a_message_sets_nothing_that_is_ours_or_the_connections() {
    let names = [
        "webhook-id",
        "Webhook-Signature",
        "webhook-anything",
        "posthouse-epoch",
        "POSTHOUSE-tenant",
        "posthouse-new",
        "Idempotency-Key",
        "content-type",
        "content-length",
        "host",
        "connection",
        "keep-alive",
        "transfer-encoding",
        "te",
        "trailer",
        "upgrade",
        "expect",
        "http2-settings",
        "proxy-authorization",
        "proxy-connection",
        "authorization",
        "cookie",
        "user-agent",
        "forwarded",
        "x-forwarded-for",
        "X-Forwarded-Host",
        "x-real-ip",
        "via",
        "origin",
        "referer",
    ];
    let headers: Vec<_> = names.iter().map(|name| (*name, "forged")).collect();
    let request = sent(&headers).await;
    assert!(!request.raw.contains("forged"), "{}", request.raw);
    assert_eq!(request.headers["authorization"], "Bearer ours");
    // And each of ours once.
    for name in [
        "webhook-id",
        "content-length",
        "host",
        "content-type",
        "authorization",
        "posthouse-epoch",
    ] {
        let lines = request
            .raw
            .lines()
            .filter(|line| line.to_ascii_lowercase().starts_with(&format!("{name}:")));
        assert_eq!(lines.count(), 1, "{name}");
    }
}

#[tokio::test]
async fn what_cannot_stand_in_a_header_is_encoded_or_left_out() {
    // A store refuses most of these; a row written by hand does not ask it.
    let request = sent(&[
        ("x-size", "größe 50%"),
        ("x-split", "a\r\nx-evil: 1\r\n\r\nGET / HTTP/1.1"),
        ("x-nul", "a\0b"),
        ("x-edge", " a "),
        ("x-empty", ""),
        ("x bad\r\nx-evil2", "1"),
        ("", "1"),
        ("größe", "1"),
    ])
    .await;
    assert_eq!(request.headers["x-size"], "gr%C3%B6%C3%9Fe%2050%25");
    assert_eq!(request.headers["x-nul"], "a%00b");
    assert_eq!(request.headers["x-edge"], "%20a%20");
    assert_eq!(request.headers["x-empty"], "");
    assert_eq!(request.headers["posthouse-encoded"], "x-edge, x-nul, x-size, x-split");
    assert!(!request.headers.contains_key("x-evil") && !request.headers.contains_key("x-evil2"));
    assert_eq!(
        request.headers["x-split"],
        "a%0D%0Ax-evil:%201%0D%0A%0D%0AGET%20/%20HTTP/1.1"
    );
}

#[tokio::test]
async fn no_tenant_topic_or_content_type_can_stop_a_send() {
    let receiver = Receiver::always(ok()).await;
    let mut delivery = delivery();
    delivery.tenant = "käse\r\nx-evil: 1".into();
    delivery.topic = "\u{0}\u{1f600}".into();
    delivery.namespace = "x".repeat(4000);
    delivery.content_type = "text/plain\r\nx-evil: 1".into();
    delivery.headers = (0..64).map(|i| (format!("h{i}"), "ü".repeat(2048))).collect();
    assert!(matches!(
        receiver.http().send(&delivery).await,
        Outcome::Delivered { .. }
    ));
    let request = receiver.request();
    assert_eq!(request.headers["posthouse-tenant"], "k%C3%A4se%0D%0Ax-evil:%201");
    assert_eq!(request.headers["content-type"], "application/octet-stream");
    assert!(!request.headers.contains_key("x-evil"));
}

#[test]
fn a_destination_sets_nothing_that_is_ours_either() {
    for name in [
        "webhook-id",
        "Posthouse-Epoch",
        "idempotency-key",
        "host",
        "content-length",
        "connection",
        "bad name",
        "",
        "transfer-encoding",
    ] {
        let refused = Http::builder("https://billing.example/")
            .header(name, "canary")
            .build()
            .unwrap_err();
        assert_eq!(refused.field, "header", "{name}");
        assert!(!refused.to_string().contains("canary"));
    }
    for value in ["a\r\nb: c", "a\0", "größe"] {
        let refused = Http::builder("https://billing.example/")
            .header("x-key", value)
            .build()
            .unwrap_err();
        assert_eq!(
            refused.to_string(),
            r#"header: "x-key" has a value that is not plain ASCII text"#
        );
    }
}
