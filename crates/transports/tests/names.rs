//! Names and the addresses they lead to: what is judged is what is dialled.

use posthouse_core::{Outcome, Transport};
use posthouse_transports::http::{Builder, Http};
use std::{
    io,
    net::IpAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::receiver::{Receiver, SHORT, Then, answer, delivery, ok};

/// A destination at this port of a name that has these addresses, one list for each time it is looked up; the last stays.
fn named(port: u16, answers: &[&[&str]]) -> (Builder, Arc<AtomicUsize>) {
    let answers: Vec<Vec<IpAddr>> = answers
        .iter()
        .map(|list| list.iter().map(|ip| ip.parse().unwrap()).collect())
        .collect();
    let asked = Arc::new(AtomicUsize::new(0));
    let counter = asked.clone();
    let builder = Http::builder(&format!("http://receiver.example:{port}/hook")).resolver(move |name| {
        assert_eq!(name, "receiver.example");
        let n = counter.fetch_add(1, Ordering::SeqCst);
        let answer = answers[n.min(answers.len() - 1)].clone();
        async move { Ok(answer) }
    });
    (builder, asked)
}

async fn send(builder: Builder) -> Outcome {
    builder.build().unwrap().send(&delivery()).await
}

fn blocked(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Retry {
            code,
            error,
            after: None,
        } if code == "blocked_address" => error,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_name_that_leads_inside_is_blocked_and_may_be_better_later() {
    let receiver = Receiver::always(ok()).await;
    let port = receiver.address.port();
    for inside in [
        "127.0.0.1",
        "10.0.0.1",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
        "fd00::1",
        "0.0.0.0",
    ] {
        let outcome = send(named(port, &[&[inside]]).0).await;
        assert!(blocked(&outcome).contains(inside), "{outcome:?}");
    }
    let outcome = send(named(port, &[&["127.0.0.1"]]).0).await;
    assert!(blocked(&outcome).contains("allow_private"), "{outcome:?}");
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn mixed_answers_are_blocked_whatever_their_order() {
    let receiver = Receiver::always(ok()).await;
    let port = receiver.address.port();
    for mixed in [
        ["127.0.0.1", "93.184.215.14"],
        ["93.184.215.14", "127.0.0.1"],
        ["2606:4700::1111", "::1"],
    ] {
        blocked(&send(named(port, &[&mixed]).0).await);
    }
    assert_eq!(receiver.connections(), 0);
}

#[tokio::test]
async fn a_name_that_changes_its_mind_is_judged_each_time() {
    let outside = Receiver::always(Then::Close(answer(200, &["connection: close"], ""))).await;
    let port = outside.address.port();
    let inside = tokio::net::TcpListener::bind(("127.0.0.2", port)).await.unwrap();
    // What is allowed stands for the public address of the first answer; the second leads elsewhere.
    let (builder, asked) = named(port, &[&["127.0.0.1"], &["127.0.0.2"]]);
    let http = builder.allow(["127.0.0.1/32"]).build().unwrap();
    let first = http.send(&delivery()).await;
    assert!(matches!(&first, Outcome::Delivered { .. }), "{first:?}");
    blocked(&http.send(&delivery()).await);
    assert_eq!((asked.load(Ordering::SeqCst), outside.connections()), (2, 1));
    let visited = tokio::time::timeout(std::time::Duration::ZERO, inside.accept()).await;
    assert!(visited.is_err(), "nobody came");
}

#[tokio::test]
async fn an_address_that_is_allowed_for_one_destination_is_not_for_another() {
    let receiver = Receiver::always(ok()).await;
    let port = receiver.address.port();
    let delivered = |outcome| matches!(outcome, Outcome::Delivered { .. });
    assert!(delivered(
        send(named(port, &[&["127.0.0.1"]]).0.allow_private(true)).await
    ));
    // A connection that the first left behind is not used by the second.
    blocked(&send(named(port, &[&["127.0.0.1"]]).0).await);
    assert!(delivered(
        send(named(port, &[&["127.0.0.1"]]).0.allow(["127.0.0.0/8"])).await
    ));
    assert!(delivered(
        send(named(port, &[&["127.0.0.1"]]).0.allow(["Receiver.Example"])).await
    ));
    blocked(&send(named(port, &[&["127.0.0.1"]]).0.allow(["10.0.0.0/8", "other.example"])).await);
    assert_eq!(receiver.connections(), 3);
}

#[tokio::test]
async fn metadata_services_are_blocked_even_where_private_addresses_are_not() {
    for metadata in ["169.254.169.254", "fd00:ec2::254", "::ffff:169.254.169.254"] {
        let outcome = send(
            named(80, &[&[metadata]])
                .0
                .allow_private(true)
                .allow(["0.0.0.0/0", "::/0"]),
        )
        .await;
        assert!(blocked(&outcome).contains("nothing is ever sent there"));
    }
}

#[tokio::test]
async fn each_connection_looks_the_name_up_anew() {
    let receiver = Receiver::always(Then::Close(answer(200, &["connection: close"], ""))).await;
    let (builder, asked) = named(receiver.address.port(), &[&["127.0.0.1"]]);
    let http = builder.allow_private(true).build().unwrap();
    for _ in 0..3 {
        assert!(matches!(http.send(&delivery()).await, Outcome::Delivered { .. }));
    }
    assert_eq!((asked.load(Ordering::SeqCst), receiver.connections()), (3, 3));
}

#[tokio::test]
async fn a_name_that_is_not_found_is_a_retry() {
    let failing = Http::builder("http://receiver.example/").resolver(|_| async { Err(io::Error::other("SERVFAIL")) });
    let empty = Http::builder("http://receiver.example/").resolver(|_| async { Ok(Vec::new()) });
    for builder in [failing, empty] {
        let outcome = send(builder).await;
        assert!(
            matches!(&outcome, Outcome::Retry { code, .. } if code == "dns"),
            "{outcome:?}"
        );
    }
}

#[tokio::test]
async fn the_system_looks_names_up_unless_told_otherwise() {
    let receiver = Receiver::always(ok()).await;
    let http = Http::builder(&format!("http://localhost:{}/", receiver.address.port()));
    let outcome = send(http.allow_private(true)).await;
    assert!(matches!(outcome, Outcome::Delivered { .. }), "{outcome:?}");
}

#[tokio::test]
async fn a_name_that_is_never_found_is_a_retry_too() {
    let hanging = Http::builder("http://receiver.example/")
        .timeout(SHORT)
        .resolver(|_| std::future::pending());
    let outcome = send(hanging).await;
    assert!(
        matches!(&outcome, Outcome::Retry { code, .. } if code == "connect"),
        "nothing was sent: {outcome:?}"
    );
}

#[tokio::test]
async fn a_proxy_of_the_environment_is_not_asked() {
    let proxy = Receiver::always(ok()).await;
    let url = format!("http://{}", proxy.address);
    // The environment of this process belongs to all tests; so another one has it, and runs one of them.
    let mut child = std::process::Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "faults::a_connection_is_kept_for_the_next_message"]);
    for name in [
        "http_proxy",
        "HTTP_PROXY",
        "https_proxy",
        "HTTPS_PROXY",
        "all_proxy",
        "ALL_PROXY",
    ] {
        child.env(name, &url);
    }
    let ran = tokio::task::spawn_blocking(move || child.output().unwrap())
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&ran.stdout);
    assert!(ran.status.success() && said.contains("1 passed"), "{said}");
    assert_eq!(proxy.connections(), 0);
}
