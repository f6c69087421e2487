//! A client that does nothing but post: what a relay's webhooks are compared with. A process of its own, as the relay is.

use reqwest::{Client, header::CONTENT_TYPE};
use std::{
    process::{Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

/// Runs this program as such a client, until it has posted so many.
pub fn process(url: &str, count: usize, at_a_time: usize) {
    let program = std::env::current_exe().expect("this program");
    let mut client = Command::new(program);
    client
        .args(["bare", url, &count.to_string(), &at_a_time.to_string()])
        .stdin(Stdio::null());
    let ended = client.status().expect("a client");
    assert!(ended.success(), "the bare client failed");
}

/// Posts the numbers below `count`, so many at a time, and waits for each answer as the relay does.
pub async fn post(url: String, count: usize, at_a_time: usize) {
    rustls::crypto::ring::default_provider().install_default().ok();
    let client = Client::builder().no_proxy().build().expect("a client");
    let next = Arc::new(AtomicUsize::new(0));
    let mut posting = tokio::task::JoinSet::new();
    for _ in 0..at_a_time {
        let (client, url, next) = (client.clone(), url.clone(), next.clone());
        posting.spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= count {
                    return;
                }
                let request = client.post(&url).header(CONTENT_TYPE, "text/plain").body(n.to_string());
                let answer = request.send().await.expect("an answer");
                assert!(answer.status().is_success(), "{}", answer.status());
                answer.bytes().await.expect("its body");
            }
        });
    }
    while let Some(ended) = posting.join_next().await {
        ended.expect("a client that posts");
    }
}
