//! TLS towards the server, with a real one: `sslmode` and `sslrootcert` mean what they mean to libpq.

use posthouse_core::{Claim, Error, Message, Settlement, Store};
use posthouse_postgres::{Options, Postgres};
use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use crate::fixture::{PostgresFixture, url};

/// A private server with a certificate for `localhost`, made for it. It stops when its input is closed, so also when this
/// process is killed.
struct Server {
    folder: tempfile::TempDir,
    child: Child,
    port: String,
}

/// Makes two authorities, a certificate by the first, and starts the server with it. $1 is the folder.
const START: &str = r#"
set -euo pipefail
. scripts/postgres.sh
cd "$1"
for name in ca other; do
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj "/CN=$name" -keyout $name.key -out $name.crt
done
openssl req -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=server -keyout server.key -out server.csr
openssl x509 -req -in server.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile <(echo subjectAltName=DNS:localhost) -out server.crt
[ "$(id -u)" -ne 0 ] || chown postgres server.key
start_postgres "$1" fast -c ssl=on -c ssl_cert_file="$1/server.crt" -c ssl_key_file="$1/server.key"
trap stop_postgres EXIT
echo "$PG_URL" >&3
read -r _ || true
"#;

impl Server {
    fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        let log = std::fs::File::create(folder.path().join("log")).unwrap();
        let mut child = Command::new("bash")
            .args(["-c", &format!("exec 3>&1 >&2\n{START}"), "start"])
            .arg(folder.path())
            .current_dir(root)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .expect("bash is installed");
        let mut url = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut url)
            .unwrap();
        let log = || std::fs::read_to_string(folder.path().join("log")).unwrap();
        let port = url.trim().rsplit_once(':').and_then(|(_, rest)| rest.split_once('/'));
        let port = port
            .unwrap_or_else(|| panic!("no server with TLS: {}", log()))
            .0
            .to_owned();
        Self { folder, child, port }
    }

    fn url(&self, host: &str, parameters: &str) -> String {
        format!("postgres://postgres@{host}:{}/postgres?{parameters}", self.port)
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Which of our connections are encrypted, seen from one that is not.
    async fn encrypted(&self) -> Vec<bool> {
        let plain = self.url("127.0.0.1", "sslmode=disable");
        let (client, connection) = tokio_postgres::connect(&plain, tokio_postgres::NoTls).await.unwrap();
        let driver = tokio::spawn(connection);
        let sql = "SELECT DISTINCT s.ssl FROM pg_stat_ssl s JOIN pg_stat_activity a USING (pid) WHERE a.application_name = 'posthouse' ORDER BY 1";
        let rows = client.query(sql, &[]).await.unwrap();
        driver.abort();
        rows.iter().map(|row| row.get(0)).collect()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        self.child.wait().ok();
    }
}

async fn connect(url: &str) -> Result<Postgres, Error> {
    Postgres::connect_with(url, Options::default()).await
}

async fn refusal(url: &str) -> String {
    let refused = connect(url).await.err();
    match refused {
        Some(Error::Unavailable(e)) => e.to_string(),
        other => panic!("{url}: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn sslmode_and_sslrootcert_are_honoured() {
    let server = Server::start();
    let with = |name: &str| format!("sslrootcert={}", server.file(name).display());
    let (right, wrong) = (with("ca.crt"), with("other.crt"));

    // A whole round, with the bell, over connections that are all encrypted.
    let require = server.url("127.0.0.1", "sslmode=require");
    Postgres::open(&require, Options::default())
        .unwrap()
        .migrate()
        .await
        .unwrap();
    let store = connect(&require).await.unwrap();
    store.asleep("w", Duration::from_secs(60)).await.unwrap();
    let large = Message::bytes("t", "text/plain", vec![b'x'; 200_000]);
    store.enqueue_now(vec![large]).await.unwrap();
    store.wake(Duration::from_secs(30)).await.unwrap();
    let claimed = store.claim(&Claim::new("w", 1, Duration::from_secs(15))).await.unwrap();
    assert_eq!(claimed[0].delivery.payload.len(), 200_000);
    let done = Settlement::delivered(&claimed[0].lease, None);
    assert!(store.settle(&[done]).await.unwrap()[0].is_settled());
    assert_eq!(server.encrypted().await, [true]);
    drop(store);

    let accepted = [
        ("127.0.0.1", format!("sslmode=require&{right}")),
        ("127.0.0.1", format!("sslmode=verify-ca&{right}")),
        ("localhost", format!("sslmode=verify-full&{right}")),
        ("localhost", format!("{right}&sslmode=verify-full&connect_timeout=9")),
        ("127.0.0.1", "sslmode=prefer".to_owned()),
        ("127.0.0.1", String::new()),
    ];
    for (host, parameters) in accepted {
        let store = connect(&server.url(host, &parameters)).await;
        assert!(store.is_ok(), "{host} {parameters}: {:?}", store.err());
        assert_eq!(server.encrypted().await, [true], "{host} {parameters}");
    }
    // The server hears of a handle's end a moment after it.
    let gone = async {
        while !server.encrypted().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), gone)
        .await
        .expect("no connection is left");
    let plain = connect(&server.url("127.0.0.1", "sslmode=disable")).await.unwrap();
    assert_eq!(server.encrypted().await, [false]);
    drop(plain);

    let refused = [
        ("127.0.0.1", format!("sslmode=require&{wrong}"), "certificate"),
        ("127.0.0.1", format!("sslmode=verify-ca&{wrong}"), "certificate"),
        ("localhost", format!("sslmode=verify-full&{wrong}"), "certificate"),
        ("127.0.0.1", format!("sslmode=verify-full&{right}"), "not valid for"),
        // The system's own authorities do not know ours.
        ("localhost", "sslmode=verify-full".to_owned(), "certificate"),
    ];
    for (host, parameters, expected) in refused {
        let text = refusal(&server.url(host, &parameters)).await;
        assert!(
            text.contains("TLS handshake") && text.contains(expected),
            "{host} {parameters}: {text}"
        );
    }
}

/// The server of the other tests has no certificate.
#[tokio::test]
async fn a_server_without_tls_is_used_only_if_that_is_allowed() {
    let fx = PostgresFixture::new().await;
    let with = |parameters: &str| format!("{}?{parameters}", url());
    for parameters in ["sslmode=disable", "sslmode=prefer", ""] {
        let opened = Postgres::connect_with(&with(parameters), PostgresFixture::options(&fx.schema)).await;
        assert!(opened.is_ok(), "{parameters}: {:?}", opened.err());
    }
    let text = refusal(&with("sslmode=require")).await;
    assert!(text.contains("server does not support TLS"), "{text}");
}

#[test]
fn a_root_certificate_that_cannot_be_used_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("a certificate");
    std::fs::write(&empty, "nothing").unwrap();
    let refused = |file: &str| match Postgres::open(
        &format!("postgres://u@h/d?sslmode=verify-full&sslrootcert={file}"),
        Options::default(),
    ) {
        Err(Error::Invalid(invalid)) => invalid.to_string(),
        other => panic!("{:?}", other.err()),
    };
    let missing = refused("/nowhere/ca.crt");
    assert!(missing.starts_with("store: sslrootcert: /nowhere/ca.crt "), "{missing}");
    // Written as a URL must be.
    let none = refused(&empty.display().to_string().replace(' ', "%20"));
    assert!(
        none.contains("a certificate") && none.contains("no certificate"),
        "{none}"
    );
}
