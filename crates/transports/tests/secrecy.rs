//! No secret, path, query or credential in anything that is shown.

use posthouse_core::{Outcome, Transport};
use posthouse_transports::http::{Http, Secret};

use crate::receiver::{Receiver, SHORT, Then, answer, delivery};

const SECRET: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktb25lIQ==";
const SECOND: &str = "whsec_Y2FuYXJ5LWNhbmFyeS1jYW5hcnktdHdvIQ==";

/// What must not be seen anywhere.
const CANARIES: [&str; 8] = [
    "path-canary",
    "path/canary",
    "query-canary",
    "Y2FuYXJ5LWNhbmFyeS1jYW5hcnktb25lIQ",
    "Y2FuYXJ5LWNhbmFyeS1jYW5hcnktdHdvIQ",
    "header-canary",
    "canary-canary",
    "hunter2",
];

fn assert_clean(shown: &str) {
    for canary in CANARIES {
        assert!(!shown.contains(canary), "{canary} in {shown}");
    }
}

fn destination(base: &str) -> Http {
    Http::builder(&format!("{base}/path-canary/path%2Fcanary?token=query-canary&b=2"))
        .allow_private(true)
        .secret(Secret::parse(SECRET).unwrap())
        .second_secret(Secret::parse(SECOND).unwrap())
        .header("authorization", "Bearer header-canary")
        .resolver(|_| async { Err(std::io::Error::other("SERVFAIL")) })
        .timeout(SHORT)
        .build()
        .unwrap()
}

#[tokio::test]
async fn outcomes_show_no_secret_even_when_the_answer_repeats_them() {
    let echo = format!(
        "cannot POST /path-canary/path%2Fcanary?token=query-canary&b=2, that is /path-canary/path/canary; query-canary; \
         {SECRET} {SECOND} Bearer header-canary"
    );
    for status in [200, 404, 422, 500] {
        let receiver = Receiver::always(Then::Answer(answer(status, &[], &echo))).await;
        let http = destination(&format!("http://{}", receiver.address));
        let outcome = http.send(&delivery()).await;
        assert!(receiver.request().line.contains("query-canary"), "it was sent");
        assert_clean(&format!("{outcome:?}"));
        assert!(format!("{outcome:?}").contains("cannot POST [hidden]"), "{outcome:?}");
        assert_clean(&format!("{http:?} {}", http.name()));
    }
}

#[tokio::test]
async fn failures_show_no_secret() {
    let mut shown = String::new();
    for then in [
        Then::Reset(Vec::new()),
        Then::Hang(Vec::new()),
        Then::Close("nonsense\r\n\r\n".into()),
    ] {
        let receiver = Receiver::always(then).await;
        shown += &format!(
            "{:?}",
            destination(&format!("http://{}", receiver.address))
                .send(&delivery())
                .await
        );
        shown += &format!(
            "{:?}",
            destination(&format!("https://{}", receiver.address))
                .send(&delivery())
                .await
        );
    }
    for base in ["http://127.0.0.1:1", "http://receiver.example"] {
        let outcome = destination(base).send(&delivery()).await;
        assert!(matches!(outcome, Outcome::Retry { .. }), "{outcome:?}");
        shown += &format!("{outcome:?}");
    }
    assert_clean(&shown);
}

#[test]
fn configuration_errors_show_no_secret() {
    for url in [
        "http://10.0.0.1/path-canary?query-canary",
        "http://user:hunter2@public.example/path-canary",
        "http://public.example/path-canary#query-canary",
        "http://public.example/path-canary query-canary",
        "ftp://public.example/path-canary",
        "http://[::1/path-canary",
        "path-canary",
    ] {
        assert_clean(&format!("{:?}", Http::to(url).unwrap_err()));
    }
}

#[test]
fn a_name_is_scheme_host_and_a_hash_that_tells_urls_apart() {
    let name = |url| Http::to(url).unwrap().name().to_owned();
    assert_eq!(
        name("https://Billing.Example/a?b=c"),
        name("https://billing.example:443/a?b=c")
    );
    assert_ne!(name("https://billing.example/a"), name("https://billing.example/b"));
    let (host, hash) = name("https://billing.example:8443/a")
        .split_once('#')
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .unwrap();
    assert_eq!(host, "https://billing.example:8443");
    assert!(hash.len() == 8 && hash.bytes().all(|b| b.is_ascii_hexdigit()), "{hash}");
}
