//! Encrypted connections, and HTTP/2 over them, with certificates made for the test.

use posthouse_core::{Outcome, Transport};
use posthouse_transports::http::{Builder, Http};
use std::{
    net::SocketAddr,
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};
use tokio::net::TcpListener;
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

use crate::receiver::{Receiver, answer, delivery, ok, read};

/// An authority, a certificate of it for `receiver.example`, and one that signs itself.
const MAKE: &str = r#"
set -euo pipefail
cd "$1"
new="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes"
openssl req -x509 $new -days 2 -subj /CN=ca -keyout ca.key -out ca.crt
openssl req $new -subj /CN=server -keyout server.key -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile <(echo subjectAltName=DNS:receiver.example) -out server.crt
openssl req -x509 $new -days 2 -subj /CN=receiver.example -addext subjectAltName=DNS:receiver.example -keyout self.key -out self.crt
"#;

struct Certificates(tempfile::TempDir);

impl Certificates {
    fn make() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let made = Command::new("bash")
            .args(["-c", MAKE, "make"])
            .arg(folder.path())
            .output();
        let made = made.expect("bash is installed");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Self(folder)
    }

    fn file(&self, name: &str) -> std::path::PathBuf {
        Path::new(self.0.path()).join(name)
    }

    fn acceptor(&self, name: &str, protocol: &str) -> TlsAcceptor {
        let chain = vec![CertificateDer::from_pem_file(self.file(&format!("{name}.crt"))).unwrap()];
        let key = PrivateKeyDer::from_pem_file(self.file(&format!("{name}.key"))).unwrap();
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()));
        let config = config.with_safe_default_protocol_versions().unwrap();
        let mut config = config.with_no_client_auth().with_single_cert(chain, key).unwrap();
        config.alpn_protocols = vec![protocol.as_bytes().to_vec()];
        TlsAcceptor::from(Arc::new(config))
    }

    fn builder(&self, host: &str, address: SocketAddr) -> Builder {
        Http::builder(&format!("https://{host}:{}/hook", address.port()))
            .allow_private(true)
            .authority(std::fs::read(self.file("ca.crt")).unwrap())
            .resolver(move |_| async move { Ok(vec![address.ip()]) })
    }
}

/// Answers by HTTP/1.1.
async fn plain_old(acceptor: TlsAcceptor) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            while read(&mut stream).await.is_some() {
                tokio::io::AsyncWriteExt::write_all(&mut stream, &answer(200, &[], "safe"))
                    .await
                    .unwrap();
            }
        }
    });
    address
}

/// Answers by HTTP/2, or refuses every request in a way that a client may take for leave to repeat it.
async fn two(acceptor: TlsAcceptor, refusal: Option<h2::Reason>) -> (SocketAddr, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, requests) = (listener.local_addr().unwrap(), Arc::new(AtomicUsize::new(0)));
    let counter = requests.clone();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let Ok(stream) = acceptor.accept(stream).await else {
                continue;
            };
            let counter = counter.clone();
            tokio::spawn(async move {
                let mut connection = h2::server::handshake(stream).await.unwrap();
                while let Some(Ok((request, mut respond))) = connection.accept().await {
                    counter.fetch_add(1, Ordering::SeqCst);
                    match refusal {
                        Some(h2::Reason::NO_ERROR) => {
                            drop(request);
                            connection.abrupt_shutdown(h2::Reason::NO_ERROR);
                        }
                        Some(reason) => respond.send_reset(reason),
                        None => {
                            // Empty headers, and 200 by default.
                            let head = Default::default();
                            respond
                                .send_response(head, false)
                                .unwrap()
                                .send_data("second".into(), true)
                                .unwrap();
                        }
                    }
                }
            });
        }
    });
    (address, requests)
}

async fn send(builder: Builder) -> Outcome {
    by(&builder.build().unwrap()).await
}

/// What it is told, but for the whole of the answer.
async fn by(http: &Http) -> Outcome {
    match http.send(&delivery()).await {
        Outcome::Delivered { receipt, .. } => Outcome::Delivered { receipt, answer: None },
        other => other,
    }
}

fn delivered(text: &str) -> Outcome {
    Outcome::receipt(text)
}

fn retry_code(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Retry { code, .. } => code,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn an_authority_that_is_named_is_trusted() {
    let made = Certificates::make();
    let address = plain_old(made.acceptor("server", "http/1.1")).await;
    assert_eq!(send(made.builder("receiver.example", address)).await, delivered("safe"));
}

#[tokio::test]
async fn http_2_is_spoken_where_it_is_offered() {
    let made = Certificates::make();
    let (address, requests) = two(made.acceptor("server", "h2"), None).await;
    let http = made.builder("receiver.example", address).build().unwrap();
    for _ in 0..3 {
        assert_eq!(by(&http).await, delivered("second"));
    }
    assert_eq!(requests.load(Ordering::SeqCst), 3);
}

#[tokio::test]
async fn a_refused_stream_is_not_repeated_behind_our_back() {
    let made = Certificates::make();
    for reason in [
        h2::Reason::REFUSED_STREAM,
        h2::Reason::NO_ERROR,
        h2::Reason::INTERNAL_ERROR,
    ] {
        let (address, requests) = two(made.acceptor("server", "h2"), Some(reason)).await;
        let outcome = send(made.builder("receiver.example", address)).await;
        assert!(matches!(outcome, Outcome::Unknown { .. }), "{reason:?}: {outcome:?}");
        assert_eq!(requests.load(Ordering::SeqCst), 1, "{reason:?}");
    }
}

#[tokio::test]
async fn a_certificate_that_is_not_trusted_is_a_retry_and_nothing_is_sent() {
    let made = Certificates::make();
    let itself = plain_old(made.acceptor("self", "http/1.1")).await;
    assert_eq!(retry_code(&send(made.builder("receiver.example", itself)).await), "tls");
    let other_host = plain_old(made.acceptor("server", "http/1.1")).await;
    assert_eq!(
        retry_code(&send(made.builder("other.example", other_host)).await),
        "tls"
    );
    let by_address = Http::builder(&format!("https://{other_host}/")).allow_private(true);
    assert_eq!(retry_code(&send(by_address).await), "tls");
}

#[tokio::test]
async fn one_that_speaks_no_tls_is_a_retry() {
    let made = Certificates::make();
    let receiver = Receiver::always(ok()).await;
    let outcome = send(
        made.builder("receiver.example", receiver.address)
            .timeout(crate::receiver::SHORT),
    )
    .await;
    assert!(["tls", "connect"].contains(&retry_code(&outcome)), "{outcome:?}");
    assert!(receiver.requests().is_empty());
}

#[test]
fn what_is_no_certificate_is_refused() {
    for pem in [
        "",
        "nonsense",
        "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n",
    ] {
        let refused = Http::builder("https://billing.example/")
            .authority(pem)
            .build()
            .unwrap_err();
        assert_eq!(refused.field, "authority", "{pem}");
    }
}
