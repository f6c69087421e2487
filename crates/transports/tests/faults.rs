//! What receivers do to us, each thing once: over real sockets, with nothing of ours replaced.

use posthouse_core::{
    Delivery, Outcome, Transport,
    saga::{Role, Ticket},
};
use posthouse_transports::http::{Http, MOST_READ};
use std::time::Duration;
use tokio::net::TcpListener;

use crate::receiver::{Receiver, SHORT, Then, answer, delivery, ok};

async fn send(http: &Http) -> Outcome {
    http.send(&delivery()).await
}

fn code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Delivered { .. } => "delivered",
        Outcome::Duplicate { .. } | Outcome::Pending { .. } => "not of a webhook",
        Outcome::Retry { code, .. } | Outcome::Reject { code, .. } | Outcome::Unknown { code, .. } => code,
    }
}

fn is_unknown(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Unknown { .. })
}

fn is_retry(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Retry { .. })
}

fn receipt(outcome: Outcome) -> String {
    match outcome {
        Outcome::Delivered { receipt, .. } => receipt.unwrap_or_default(),
        other => panic!("{other:?}"),
    }
}

/// The outcome of one send to one that does this; there was one request, whatever it did.
async fn after(then: Then) -> Outcome {
    // Only those that are waited for in vain are given little time.
    let timeout = match then {
        Then::Hang(_) | Then::Endless(..) => SHORT,
        _ => Duration::from_secs(60),
    };
    let receiver = Receiver::always(then).await;
    let outcome = send(&receiver.builder().timeout(timeout).build().unwrap()).await;
    assert_eq!(receiver.requests().len(), 1);
    outcome
}

async fn after_answer(status: u16, headers: &[&str], body: &str) -> Outcome {
    after(Then::Answer(answer(status, headers, body))).await
}

#[tokio::test]
async fn a_good_answer_is_delivered_with_its_body_as_the_receipt() {
    for status in [200, 201, 202, 204] {
        let body = if status == 204 { "" } else { "order 42 noted" };
        let bytes = match status {
            204 => b"HTTP/1.1 204 No Content\r\n\r\n".to_vec(),
            _ => answer(status, &[], body),
        };
        assert_eq!(receipt(after(Then::Answer(bytes)).await), body, "{status}");
    }
}

fn step() -> Delivery {
    Delivery {
        ticket: Some(Ticket {
            key: "s:flight#1:do".into(),
            saga: "trip".into(),
            step: "flight".into(),
            run: 1,
            role: Role::Do,
            timeout_ms: Some(60_000),
        }),
        ..delivery()
    }
}

/// Of a step a redirection may say where to look at what was done; that it was not done, only a refusal says.
#[tokio::test]
async fn nobody_knows_what_a_redirection_has_done() {
    for (status, unknown) in [(303, true), (302, true), (304, true), (404, false), (400, false)] {
        let receiver = Receiver::always(Then::Answer(answer(status, &["Location: /orders/42"], ""))).await;
        let url = format!("http://{}/orders", receiver.address);
        let to = Http::builder(&url).allow_private(true).build();
        let outcome = to.unwrap().send(&step()).await;
        assert_eq!(
            matches!(outcome, Outcome::Unknown { .. }),
            unknown,
            "{status}: {outcome:?}"
        );
        assert_eq!(code(&outcome), format!("http_{status}"));
    }
}

/// What a step of a saga is answered is what the next one is given: all of it that is kept, and nothing is hidden in it.
#[tokio::test]
async fn what_a_step_is_answered_is_its_output_byte_by_byte() {
    let (most, step) = (posthouse_core::saga::MOST_OUTPUT, step());
    let bodies = [
        (r#"{"self": "/orders/42", "id": 42}"#.to_owned(), false),
        ("x".repeat(most), false),
        ("x".repeat(most + 1), true),
    ];
    for (body, cut) in bodies {
        let receiver = Receiver::always(Then::Answer(answer(200, &[], &body))).await;
        let url = format!("http://{}/orders", receiver.address);
        let to = Http::builder(&url).allow_private(true).build();
        let outcome = to.unwrap().send(&step).await;
        let Outcome::Delivered { answer, .. } = outcome else {
            panic!("{outcome:?}")
        };
        let answer = answer.unwrap();
        assert_eq!(answer.cut, cut);
        assert!(
            answer.body == body.as_bytes()[..body.len().min(most)],
            "{} bytes",
            body.len()
        );
    }
}

#[tokio::test]
async fn a_good_answer_is_told_as_a_whole() {
    let outcome = after_answer(201, &["Content-Type: application/json"], " {\"order\": 42}\n").await;
    let Outcome::Delivered { answer, .. } = outcome else {
        panic!("{outcome:?}")
    };
    let answer = answer.unwrap();
    assert_eq!(
        (answer.status, answer.body.as_slice()),
        (Some(201), &b" {\"order\": 42}\n"[..])
    );
    let headers: Vec<_> = answer
        .headers
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(headers, [("content-type", "application/json")]);
}

#[tokio::test]
async fn server_errors_are_unknown() {
    for status in [500, 501, 502, 503, 504, 507, 520, 599] {
        let outcome = after_answer(status, &[], "oops").await;
        let (code, error) = (format!("http_{status}"), format!("answered {status}: oops"));
        assert_eq!(outcome, Outcome::Unknown { code, error });
    }
}

#[tokio::test]
async fn not_now_is_retried_when_it_is_asked_for() {
    for status in [408, 425, 429, 503] {
        let outcome = after_answer(status, &["Retry-After: 17"], "").await;
        let (code, error) = (format!("http_{status}"), format!("answered {status}"));
        let after = Some(Duration::from_secs(17));
        assert_eq!(outcome, Outcome::Retry { after, code, error });
    }
    let dates = [
        "Date: Sun, 06 Nov 1994 08:49:37 GMT",
        "Retry-After: Sun, 06 Nov 1994 08:50:37 GMT",
    ];
    let Outcome::Retry { after, .. } = after_answer(429, &dates, "").await else {
        panic!()
    };
    assert_eq!(after, Some(Duration::from_secs(60)));
}

#[tokio::test]
async fn an_odd_wish_does_no_harm() {
    for odd in ["-1", "soon", "", "1.5", "\u{ff}\u{fe}", "Sun, 99 Nov 1994 08:49:37 GMT"] {
        let outcome = after_answer(429, &[&format!("Retry-After: {odd}")], "").await;
        assert!(
            matches!(outcome, Outcome::Retry { after: None, .. }),
            "{odd}: {outcome:?}"
        );
        assert!(
            is_unknown(&after_answer(503, &[&format!("Retry-After: {odd}")], "").await),
            "{odd}"
        );
    }
    let day = Some(Duration::from_secs(86_400));
    for huge in ["99999999999999999999999999", "Fri, 31 Dec 9999 23:59:59 GMT"] {
        let Outcome::Retry { after, .. } = after_answer(429, &[&format!("Retry-After: {huge}")], "").await else {
            panic!()
        };
        assert_eq!(after, day);
    }
}

#[tokio::test]
async fn some_refusals_are_final_and_others_are_not() {
    for status in [400, 410, 422] {
        let outcome = after_answer(status, &[], "no").await;
        let (code, error) = (format!("http_{status}"), format!("answered {status}: no"));
        assert_eq!(outcome, Outcome::Reject { code, error });
        assert_eq!(outcome.says_gone(), status == 410);
    }
    for status in [401, 403, 404, 405, 409, 413, 418, 431, 451] {
        let outcome = after_answer(status, &[], "no").await;
        assert!(is_retry(&outcome), "{status}: {outcome:?}");
        assert_eq!(code(&outcome), format!("http_{status}"));
    }
}

#[tokio::test]
async fn a_destination_has_its_own_list_of_final_refusals() {
    let receiver = Receiver::script([400, 404].map(|s| Then::Answer(answer(s, &[], "")))).await;
    let http = receiver.builder().rejects([404]).build().unwrap();
    assert!(is_retry(&send(&http).await));
    assert!(matches!(send(&http).await, Outcome::Reject { .. }));
}

#[tokio::test]
async fn a_redirect_is_not_followed() {
    let inside = Receiver::always(ok()).await;
    for status in [301, 302, 303, 307, 308] {
        for to in [
            inside.url(),
            "http://169.254.169.254/latest".into(),
            "/other".into(),
            "file:///etc/passwd".into(),
        ] {
            let outcome = after_answer(status, &[&format!("Location: {to}")], "").await;
            assert!(is_retry(&outcome), "{outcome:?}");
            assert_eq!(code(&outcome), format!("http_{status}"));
        }
    }
    assert_eq!(inside.connections(), 0);
}

#[tokio::test]
async fn slow_headers_are_a_timeout_and_unknown() {
    for begun in ["", "HTTP/1.1 200 OK\r\n", "HTTP/1.1 200 OK\r\ncontent-length: 2\r\nx: "] {
        let outcome = after(Then::Hang(begun.into())).await;
        assert!(is_unknown(&outcome), "{outcome:?}");
        assert_eq!(code(&outcome), "timeout");
    }
    let outcome = after(Then::Endless("HTTP/1.1 200 OK\r\n".into(), "x: y\r\n".into())).await;
    assert!(is_unknown(&outcome), "endless headers: {outcome:?}");
    let outcome = after(Then::Endless(Vec::new(), "HTTP/1.1 103 Early Hints\r\n\r\n".into())).await;
    assert!(is_unknown(&outcome), "endless hints: {outcome:?}");
}

#[tokio::test]
async fn a_slow_body_does_not_undo_the_status() {
    let good = after(Then::Hang("HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhalf".into())).await;
    assert_eq!(receipt(good), "half");
    let bad = after(Then::Hang("HTTP/1.1 500 Oops\r\ncontent-length: 9\r\n\r\nhalf".into())).await;
    assert_eq!(code(&bad), "http_500");
}

#[tokio::test]
async fn of_an_endless_body_16_kib_are_read_and_the_connection_is_dropped() {
    let head = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
    let chunk = format!("400\r\n{}\r\n", "x".repeat(1024));
    let receiver = Receiver::always(Then::Endless(head.into(), chunk.into())).await;
    let http = receiver.http();
    assert_eq!(receipt(send(&http).await).len(), MOST_READ);
    assert_eq!(receipt(send(&http).await).len(), MOST_READ);
    assert_eq!(receiver.connections(), 2);
}

#[tokio::test]
async fn a_long_body_is_cut_at_16_kib() {
    let long = after_answer(200, &[], &"y".repeat(1 << 20)).await;
    assert_eq!(receipt(long).len(), MOST_READ);
    let exact = after_answer(200, &[], &"y".repeat(MOST_READ)).await;
    assert_eq!(receipt(exact).len(), MOST_READ);
}

#[tokio::test]
async fn a_gzip_bomb_is_not_unpacked() {
    // Ten megabytes of zeros would come of the real thing; the first bytes are enough to start an unpacker.
    let bomb = [&[0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3][..], &[0; 40_000]].concat();
    let mut bytes = format!(
        "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: {}\r\n\r\n",
        bomb.len()
    )
    .into_bytes();
    bytes.extend(bomb);
    let receiver = Receiver::always(Then::Answer(bytes)).await;
    assert_eq!(receipt(send(&receiver.http()).await), "");
    assert!(
        !receiver.request().headers.contains_key("accept-encoding"),
        "nothing asks for it"
    );
}

#[tokio::test]
async fn a_body_that_is_no_text_is_a_receipt_all_the_same() {
    let mut bytes = answer(200, &[], "....");
    let end = bytes.len();
    bytes[end - 4..].copy_from_slice(&[b'a', 0xff, 0, b'b']);
    assert_eq!(receipt(after(Then::Answer(bytes)).await), "a\u{fffd}\0b");
}

#[tokio::test]
async fn a_reset_before_the_answer_is_unknown() {
    for begun in ["", "HTTP/1.1 200 OK\r\ncontent-len"] {
        for then in [Then::Reset(begun.into()), Then::Close(begun.into())] {
            let outcome = after(then).await;
            assert!(is_unknown(&outcome), "{outcome:?}");
            assert_eq!(code(&outcome), "reset", "{outcome:?}");
        }
    }
}

#[tokio::test]
async fn a_reset_within_the_body_does_not_undo_the_status() {
    let cut = "HTTP/1.1 201 Created\r\ncontent-length: 900\r\n\r\nhalf";
    // What had come before a reset may be lost with it, but not the status.
    assert!("half".starts_with(&receipt(after(Then::Close(cut.into())).await)));
    let outcome = after(Then::Reset(cut.into())).await;
    assert!(
        code(&outcome) == "delivered" || code(&outcome) == "reset",
        "{outcome:?}"
    );
}

#[tokio::test]
async fn what_is_not_http_is_unknown() {
    for begun in [
        "SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "HTTP/9.9 200 OK\r\n\r\n",
        "HTTP/1.1 abc\r\n\r\n",
        "\0\0\0\r\n\r\n",
    ] {
        let outcome = after(Then::Close(begun.into())).await;
        assert!(is_unknown(&outcome), "{outcome:?}");
        assert_eq!(code(&outcome), "protocol", "{outcome:?}");
    }
}

#[tokio::test]
async fn nobody_there_is_a_retry() {
    // Taken and given back, so nobody listens there.
    let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
    let http = Http::builder(&format!("http://{free}/"))
        .allow_private(true)
        .build()
        .unwrap();
    let outcome = send(&http).await;
    assert!(is_retry(&outcome), "{outcome:?}");
    assert_eq!(code(&outcome), "connect");
}

#[tokio::test]
async fn one_that_is_gone_and_comes_back_is_reached_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let http = Http::builder(&format!("http://{address}/"))
        .allow_private(true)
        .build()
        .unwrap();
    assert_eq!(code(&send(&http).await), "connect");
    let listener = TcpListener::bind(address).await.unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        crate::receiver::read(&mut stream).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut stream, &answer(200, &[], "back"))
            .await
            .unwrap();
    });
    assert_eq!(receipt(send(&http).await), "back");
    serving.await.unwrap();
}

#[tokio::test]
async fn one_that_accepts_and_never_reads_is_unknown() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let http = Http::builder(&url).allow_private(true).timeout(SHORT).build().unwrap();
    let mut big = delivery();
    big.payload = vec![b'x'; 16 << 20];
    let outcome = http.send(&big).await;
    assert!(is_unknown(&outcome), "{outcome:?}");
    assert_eq!(code(&outcome), "timeout");
}

#[tokio::test]
async fn a_large_payload_arrives_whole() {
    let receiver = Receiver::always(ok()).await;
    let mut big = delivery();
    big.payload = (0..16 << 20).map(|i: u32| (i % 251) as u8).collect();
    assert_eq!(receipt(receiver.http().send(&big).await), "taken");
    assert!(receiver.request().body == big.payload);
    big.payload = Vec::new();
    assert_eq!(receipt(receiver.http().send(&big).await), "taken");
    assert!(receiver.requests()[1].body.is_empty());
}

#[tokio::test]
async fn an_answer_before_the_whole_request_was_read_counts() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let http = Http::builder(&url).allow_private(true).build().unwrap();
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let early = answer(413, &["connection: close"], "too large");
        tokio::io::AsyncWriteExt::write_all(&mut stream, &early).await.unwrap();
        let mut rest = Vec::new();
        tokio::io::AsyncReadExt::read_to_end(&mut stream, &mut rest).await.ok();
    });
    let mut big = delivery();
    big.payload = vec![b'x'; 4 << 20];
    let outcome = http.send(&big).await;
    assert!(["http_413", "reset"].contains(&code(&outcome)), "{outcome:?}");
    drop(http);
    serving.await.unwrap();
}

#[tokio::test]
async fn a_connection_is_kept_for_the_next_message() {
    let receiver = Receiver::always(ok()).await;
    let http = receiver.http();
    for _ in 0..3 {
        assert_eq!(receipt(send(&http).await), "taken");
    }
    assert_eq!((receiver.requests().len(), receiver.connections()), (3, 1));
}

#[tokio::test]
async fn a_kept_connection_that_was_closed_meanwhile_costs_no_message() {
    let receiver = Receiver::always(Then::Close(answer(200, &[], "taken"))).await;
    let http = receiver.http();
    for n in 1..=20 {
        let outcome = send(&http).await;
        let (code, requests) = (code(&outcome), receiver.requests().len());
        // Either the end of the old one was seen in time, and a new one was made; or the request met it, and nobody knows.
        assert!(code == "delivered" || code == "reset", "{outcome:?}");
        assert!(requests <= n, "{requests} requests for {n} sends");
    }
}

#[tokio::test]
async fn a_kept_connection_that_dies_of_the_next_request_is_not_tried_again() {
    for death in [Then::Reset(Vec::new()), Then::Close(Vec::new())] {
        let receiver = Receiver::script([ok(), death, ok()]).await;
        let http = receiver.http();
        assert_eq!(receipt(send(&http).await), "taken");
        let outcome = send(&http).await;
        assert!(is_unknown(&outcome), "{outcome:?}");
        assert_eq!(code(&outcome), "reset");
        assert_eq!(receiver.requests().len(), 2, "one request for each send");
        assert_eq!(receipt(send(&http).await), "taken");
        assert_eq!(receiver.requests().len(), 3);
    }
}

#[tokio::test]
async fn one_that_hangs_does_not_hold_others() {
    let hanging = Receiver::always(Then::Hang(Vec::new())).await;
    let stuck = hanging.builder().timeout(Duration::from_secs(600)).build().unwrap();
    let waiting = tokio::spawn(async move { send(&stuck).await });
    for _ in 0..50 {
        let healthy = Receiver::always(ok()).await;
        assert_eq!(receipt(send(&healthy.http()).await), "taken");
    }
    assert!(!waiting.is_finished());
    waiting.abort();
}
