//! Programs that run beside the tests: those that were built with them, and SurrealDB's server.

use posthouse_surreal::Database;
use std::{
    net::TcpListener,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};

/// A program that was built beside this test: an example of this crate, or `posthouse`.
pub fn program(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let folder = own.parent().and_then(Path::parent).unwrap();
    let path = match name {
        "posthouse" => folder.join(name),
        example => folder.join("examples").join(example),
    };
    assert!(
        path.exists(),
        "{} is not there: build it first, as ./test.sh does (cargo build -p posthouse-surreal --examples -p posthouse-server --features posthouse-server/surreal)",
        path.display()
    );
    path
}

/// A process that ends with the test.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// SurrealDB's server, on a free port of this machine.
pub struct Server {
    port: u16,
    storage: String,
    /// The files of its certificate and key, if it encrypts.
    certificate: Option<[PathBuf; 2]>,
    process: Option<Process>,
}

impl Server {
    /// With what it keeps there: `mem://` or `surrealkv://FOLDER`.
    pub async fn start(storage: &str) -> Self {
        Self::start_with(storage, None).await
    }

    /// The same, with encrypted connections alone, by the certificate and the key in these files.
    pub async fn start_with(storage: &str, certificate: Option<[PathBuf; 2]>) -> Self {
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let mut server = Self {
            port,
            storage: storage.to_owned(),
            certificate,
            process: None,
        };
        server.up().await;
        server
    }

    /// Starts it again, with the same storage, and waits until it answers.
    pub async fn up(&mut self) {
        let mut server = Command::new(program("surreal_server"));
        server
            .args([
                "start",
                "--no-banner",
                "--log",
                "error",
                "--username",
                "root",
                "--password",
                "s3cret",
            ])
            .args(["--bind", &format!("127.0.0.1:{}", self.port), &self.storage])
            .stdout(Stdio::null());
        if let Some([certificate, key]) = &self.certificate {
            server.arg("--web-crt").arg(certificate).arg("--web-key").arg(key);
        }
        self.process = Some(Process(server.spawn().unwrap()));
        let since = Instant::now();
        // Ends: when it answers, or does not.
        while let Err(error) = Database::connect(&self.url("main/main")).await.map(drop) {
            assert!(
                since.elapsed() < Duration::from_secs(60),
                "the server does not answer: {error}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Kills it.
    pub fn down(&mut self) {
        self.process = None;
    }

    /// The URL of a database of it, `namespace/database`, for its root.
    pub fn url(&self, database: &str) -> String {
        self.url_of("root:s3cret", database)
    }

    /// The same for somebody else.
    pub fn url_of(&self, user: &str, database: &str) -> String {
        let url = format!("surrealdb://{user}@127.0.0.1:{}/{database}", self.port);
        match &self.certificate {
            Some([certificate, _]) => format!("{url}?tls=true&sslrootcert={}", certificate.display()),
            None => url,
        }
    }
}
