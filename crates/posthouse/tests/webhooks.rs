//! A relay that sends to a URL: the message arrives signed, and what the receiver says is what is recorded.

use posthouse::{
    Admin, AttemptOutcome, Filter, Message, Relay, RetryPolicy, State,
    http::{Http, Secret},
    relay::Destination,
    webhook::Verifier,
};
use posthouse_testkit::{Memory, memory};
use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpListener,
};
use tokio_util::sync::CancellationToken;

/// Head and body of one request, which is answered so.
async fn receive(listener: &TcpListener, answer: &str) -> (String, Vec<u8>) {
    let (mut stream, _) = listener.accept().await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await.unwrap());
    }
    let head = String::from_utf8(head).unwrap();
    let mut body = vec![0; header(&head, "content-length").unwrap().parse().unwrap()];
    stream.read_exact(&mut body).await.unwrap();
    let answer = format!("HTTP/1.1 {answer}\r\nconnection: close\r\n\r\n");
    stream.write_all(answer.as_bytes()).await.unwrap();
    (head, body)
}

fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    let mut lines = head.lines().filter_map(|line| line.split_once(": "));
    lines
        .find(|(n, _)| n.eq_ignore_ascii_case(name))
        .map(|(_, value)| value)
}

#[tokio::test]
async fn a_message_arrives_signed_and_its_failures_are_recorded() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let secret = Secret::parse("whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD").unwrap();
    let http = Http::builder(&format!("http://{}/usage", listener.local_addr().unwrap()))
        .allow_private(true)
        .secret(secret.clone())
        .build()
        .unwrap();
    let start = std::time::Instant::now();
    let clock = Arc::new(move || memory::START.plus(start.elapsed()));
    let store = Memory::with_clock(memory::Options::default(), clock);
    let mut tx = store.begin();
    let message = Message::json("usage.snapshot", &42).unwrap();
    tx.enqueue_all(vec![message]).await.unwrap();
    tx.commit();
    let billing =
        Destination::new(http.name().to_owned(), http).retry(RetryPolicy::table(5, [Duration::from_millis(1)]));
    let cancel = CancellationToken::new();
    let relay = Relay::builder(Arc::new(store.clone())).route("usage.*", billing);
    let relay = tokio::spawn(relay.run(cancel.clone()));

    receive(&listener, "503 Busy").await;
    receive(&listener, "404 Not Found").await;
    let (head, body) = receive(&listener, "204 No Content").await;
    let verified = Verifier::new(secret).verify(|name| header(&head, name), &body, SystemTime::now());
    let found = || async { store.list(&Filter::default()).await.unwrap().messages.remove(0) };
    while found().await.state != State::Done {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    cancel.cancel();
    relay.await.unwrap().unwrap();

    let id = found().await.id;
    assert_eq!(verified.unwrap().id, id.to_string());
    assert_eq!(
        (body.as_slice(), header(&head, "posthouse-attempt")),
        (b"42".as_slice(), Some("3"))
    );
    let attempts = store.attempts(id).await.unwrap();
    let told: Vec<_> = attempts.iter().map(|a| (a.outcome, a.code.as_deref())).collect();
    assert_eq!(
        told,
        [
            (AttemptOutcome::Retry, Some("http_503")),
            (AttemptOutcome::Retry, Some("http_404")),
            (AttemptOutcome::Delivered, None)
        ]
    );
}
