//! Signatures: the official vectors, both directions of an exchange of secrets, and what must be refused.

use posthouse_core::Transport;
use posthouse_testkit::page;
use posthouse_transports::webhook::{Refused, Secret, Verifier, Webhook, sign};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::receiver::{Receiver, Request, delivery, ok};

const OLD: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
const NEW: &str = "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oD";

fn secret(text: &str) -> Secret {
    Secret::parse(text).unwrap()
}

fn at(seconds: u64) -> SystemTime {
    UNIX_EPOCH + Duration::from_secs(seconds)
}

fn verify<'h>(verifier: &Verifier, headers: [&'h str; 3], body: &[u8], now: u64) -> Result<Webhook<'h>, Refused> {
    let names = ["webhook-id", "webhook-timestamp", "webhook-signature"];
    let header = |name: &str| names.iter().position(|n| *n == name).map(|i| headers[i]);
    verifier.verify(header, body, at(now))
}

/// The vectors of the reference implementations.
const VECTORS: [(&str, &str, u64, &str, &str); 2] = [
    (
        OLD,
        "msg_p5jXN8AQM9LWM0D4loKWxJek",
        1_614_265_330,
        r#"{"test": 2432232314}"#,
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
    ),
    (
        NEW,
        "msg_27UH4WbU6Z5A5EzD8u03UvzRbpk",
        1_649_367_553,
        r#"{"email":"test@example.com","username":"test_user"}"#,
        "v1,tZ1I4/hDygAJgO5TYxiSd6Sd0kDW6hPenDe+bTa3Kkw=",
    ),
];

#[test]
fn the_official_vectors_are_signed_and_verified() {
    for (key, id, time, body, signature) in VECTORS {
        assert_eq!(sign([&secret(key)], id, time, body.as_bytes()), signature);
        let stamp = time.to_string();
        let genuine = verify(
            &Verifier::new(secret(key)),
            [id, &stamp, signature],
            body.as_bytes(),
            time,
        )
        .unwrap();
        assert_eq!((genuine.id, genuine.timestamp), (id, time));
    }
}

#[test]
fn what_is_not_genuine_is_refused_with_the_reason() {
    let (key, id, time, body, signature) = VECTORS[0];
    let stamp = time.to_string();
    let verifier = Verifier::new(secret(key));
    let check = |headers, body: &str, now| verify(&verifier, headers, body.as_bytes(), now).map(|_| ());
    assert_eq!(check([id, &stamp, signature], body, time), Ok(()));
    assert_eq!(check([id, &stamp, signature], "{}", time), Err(Refused::Signature));
    assert_eq!(
        check(["msg_other", &stamp, signature], body, time),
        Err(Refused::Signature)
    );
    assert_eq!(
        check([id, "1614265331", signature], body, time),
        Err(Refused::Signature)
    );
    assert_eq!(
        check(["", &stamp, signature], body, time),
        Err(Refused::Missing("webhook-id"))
    );
    assert_eq!(
        check([id, "", signature], body, time),
        Err(Refused::Missing("webhook-timestamp"))
    );
    assert_eq!(
        check([id, &stamp, ""], body, time),
        Err(Refused::Missing("webhook-signature"))
    );
    for odd in [
        "soon",
        "+1614265330",
        "-1",
        "1614265330.0",
        "1e9",
        "16142653300000000000000",
        "１６",
        "1614265330 ",
    ] {
        assert_eq!(
            check([id, odd, signature], body, time),
            Err(Refused::Timestamp),
            "{odd}"
        );
    }
    for wrong in [
        "v1,",
        "v1",
        ",",
        " ",
        "v1,g0hM9SsE",
        "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OF=",
        "v1a,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "v2,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=",
        "v1,!!!",
    ] {
        assert_eq!(
            check([id, &stamp, wrong], body, time),
            Err(Refused::Signature),
            "{wrong}"
        );
    }
    let several = format!("v2,x v1,AAAA {signature} v1a,zz");
    assert_eq!(check([id, &stamp, &several], body, time), Ok(()));
}

#[test]
fn a_timestamp_may_be_five_minutes_off_either_way() {
    let (key, id, time, body, signature) = VECTORS[0];
    let stamp = time.to_string();
    let verifier = Verifier::new(secret(key));
    let check = |verifier: &Verifier, now| verify(verifier, [id, &stamp, signature], body.as_bytes(), now).map(|_| ());
    assert_eq!(check(&verifier, time + 300), Ok(()));
    assert_eq!(check(&verifier, time + 301), Err(Refused::TooOld));
    assert_eq!(check(&verifier, time - 300), Ok(()));
    assert_eq!(check(&verifier, time - 301), Err(Refused::TooNew));
    assert_eq!(check(&verifier, 0), Err(Refused::TooNew));
    assert_eq!(
        check(&verifier.tolerance(Duration::from_secs(1)), time + 2),
        Err(Refused::TooOld)
    );
    let far = u64::MAX.to_string();
    assert_eq!(
        verify(
            &Verifier::new(secret(key)),
            [id, &far, signature],
            body.as_bytes(),
            time
        ),
        Err(Refused::TooNew)
    );
}

#[test]
fn secrets_are_exchanged_without_a_gap_whoever_goes_first() {
    let (body, id, time) = (b"{}".as_slice(), "msg_1", 1_700_000_000);
    let (old, new) = (secret(OLD), secret(NEW));
    let signed = |secrets: &[Secret]| sign(secrets, id, time, body);
    let receivers = [
        Verifier::new(old.clone()),
        Verifier::new(new.clone()),
        Verifier::new(old.clone()).also(new.clone()),
        Verifier::new(new.clone()).also(old.clone()),
    ];
    let accepts = |signature: &str| {
        let check = |v: &Verifier| verify(v, [id, "1700000000", signature], body, time).is_ok();
        receivers.iter().map(check).collect::<Vec<_>>()
    };
    assert_eq!(accepts(&signed(std::slice::from_ref(&old))), [true, false, true, true]);
    assert_eq!(accepts(&signed(std::slice::from_ref(&new))), [false, true, true, true]);
    assert_eq!(accepts(&signed(&[old.clone(), new.clone()])), [true; 4]);
    assert_eq!(accepts(&signed(&[new, old])), [true; 4]);
}

#[test]
fn secrets_are_read_in_both_forms_and_never_shown() {
    let bare = NEW.strip_prefix("whsec_").unwrap();
    let same = |text: &str| sign([&secret(text)], "a", 1, b"b");
    assert_eq!(same(NEW), same(bare));
    assert_eq!(same(NEW), same(&format!(" {NEW}\n")), "as a file has it");
    let unpadded = "whsec_AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGA";
    assert_eq!(same(unpadded), same(&format!("{unpadded}==")));
    assert_eq!(format!("{:?}", secret(NEW)), "Secret(..)");
    let canary = "Y2FuYXJ5";
    for wrong in [
        "",
        "whsec_",
        "whsec_Y2FuYXJ5",
        "whsec_Y2FuYXJ5*",
        "Y2FuYXJ5 Y2FuYXJ5",
        &canary.repeat(30),
    ] {
        let refused = Secret::parse(wrong).unwrap_err();
        assert_eq!(refused.field, "secret");
        assert!(!refused.to_string().contains(canary), "{refused}");
    }
}

#[test]
fn random_headers_never_panic_and_never_pass() {
    let mut dice = fastrand::Rng::with_seed(3);
    let verifier = Verifier::new(secret(NEW));
    let alphabet = b"v1,= 0123456789ABCabc+/\x00\xc3\xa9";
    for _ in 0..20_000 {
        let mut text = |most: usize| {
            let bytes: Vec<u8> = (0..dice.usize(..most))
                .map(|_| alphabet[dice.usize(..alphabet.len())])
                .collect();
            String::from_utf8_lossy(&bytes).into_owned()
        };
        let (id, stamp, signature) = (text(10), text(12), text(80));
        assert!(verify(&verifier, [&id, &stamp, &signature], b"x", 1_700_000_000).is_err());
    }
}

/// The code of the page, which knows nothing of ours, on what really went over the wire.
#[tokio::test]
async fn python_by_the_standard_accepts_what_is_sent() {
    let code = page::examples(include_str!("../../../docs/webhooks.md")).remove(0).code;
    let sent = |request: &Request, secrets: &[&str]| {
        let body: String = request.body.iter().map(|b| format!("{b:02x}")).collect();
        format!(
            "\nprint(verify({:?}, bytes.fromhex({body:?}), {secrets:?}, time.time()))",
            request.headers
        )
        // A map of Rust is shown as one of Python is written.
        .replace("\\'", "'")
    };
    let receiver = Receiver::always(ok()).await;
    let mut delivery = delivery();
    // Not text, so that nothing is signed but bytes.
    delivery.payload = vec![0, 255, 254, 10, 13, 46, 195, 40];
    for secrets in [&[OLD][..], &[NEW], &[OLD, NEW], &[NEW, OLD]] {
        let mut builder = receiver.builder().secret(secret(secrets[0]));
        if let Some(second) = secrets.get(1) {
            builder = builder.second_secret(secret(second));
        }
        builder.build().unwrap().send(&delivery).await;
    }
    let mut script = code;
    for request in receiver.requests() {
        assert_eq!(request.body, delivery.payload);
        script += &sent(&request, &[OLD]);
        script += &sent(&request, &[NEW]);
        script += &sent(&request, &[NEW, OLD]);
    }
    let printed = page::run(&page::python(), &["-"], &script);
    let said: Vec<&str> = printed.lines().skip(3).collect();
    let (yes, no) = ("genuine", "refused: no signature fits");
    assert_eq!(
        said,
        [yes, no, yes, no, yes, yes, yes, yes, yes, yes, yes, yes],
        "{printed}"
    );
}
