//! A server that accepts connections and sends nothing: every command gives up in time and names it, and a signal stops a relay that is still connecting.

use crate::support::{Process, Run, posthouse};
use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::mpsc,
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// The last thing that the server sends.
#[derive(Clone, Copy)]
enum Says {
    /// Nothing at all.
    Nothing,
    /// Yes to TLS, and then nothing.
    YesToTls,
}

/// A listener that reports each connection.
struct Silent {
    address: SocketAddr,
    accepted: mpsc::Receiver<()>,
}

impl Silent {
    fn new(says: Says) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (report, accepted) = mpsc::channel();
        std::thread::spawn(move || {
            // Kept open: an end would be an answer.
            let mut open: Vec<TcpStream> = Vec::new();
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                if let Says::YesToTls = says {
                    stream.read_exact(&mut [0; 8]).unwrap();
                    stream.write_all(b"S").unwrap();
                }
                open.push(stream);
                // The test may have ended.
                _ = report.send(());
            }
        });
        Self { address, accepted }
    }

    fn url(&self, parameters: &str) -> String {
        format!("postgres://ann:s3cret@{}/shop?{parameters}", self.address)
    }

    /// The command gave up in time, with the exit code of an unavailable store, and named the server.
    #[track_caller]
    fn is_named_by(&self, run: &Run, since: Instant, seconds: u64) {
        let said = format!("{}{}", run.stdout, run.stderr);
        assert!(
            since.elapsed() < Duration::from_secs(seconds + 10),
            "{:?}: {run:#?}",
            since.elapsed()
        );
        assert_eq!(run.code, Some(5), "{run:#?}");
        assert!(
            said.contains(&format!("127.0.0.1 port {}", self.address.port())),
            "{run:#?}"
        );
        assert!(said.contains(&format!("within {seconds} seconds")), "{run:#?}");
        assert!(!said.contains("s3cret"), "{run:#?}");
    }
}

const COMMANDS: &[&[&str]] = &[
    &["stats"],
    &["migrate", "--check"],
    &["migrate", "--dry-run"],
    &["migrate"],
    &["migrate", "--roles"],
    &["messages", "list"],
    &["saga", "list"],
    &["enqueue", "t", "--data", "1"],
    &["prune", "--older-than", "1d", "--yes", "--note", "the disk is full"],
];

#[test]
fn every_command_gives_up_a_silent_server_and_names_it() {
    let silent = Silent::new(Says::Nothing);
    let url = silent.url("connect_timeout=1");
    for args in COMMANDS {
        let since = Instant::now();
        let run: Run = posthouse().args(["--store", &url]).args(*args).output().unwrap().into();
        silent.is_named_by(&run, since, 1);
    }
}

#[test]
fn a_server_that_is_silent_within_tls_is_given_up() {
    let silent = Silent::new(Says::YesToTls);
    for mode in ["require", "prefer"] {
        let url = silent.url(&format!("connect_timeout=1&sslmode={mode}"));
        let since = Instant::now();
        let run: Run = posthouse().args(["--store", &url, "stats"]).output().unwrap().into();
        silent.is_named_by(&run, since, 1);
    }
}

#[test]
fn without_a_time_in_the_url_it_is_ten_seconds() {
    let silent = Silent::new(Says::Nothing);
    let since = Instant::now();
    let run: Run = posthouse()
        .args(["--store", &silent.url(""), "stats"])
        .output()
        .unwrap()
        .into();
    silent.is_named_by(&run, since, 10);
}

#[test]
fn doctor_tells_of_a_silent_server() {
    let silent = Silent::new(Says::Nothing);
    let since = Instant::now();
    let url = silent.url("connect_timeout=1");
    let run: Run = posthouse().args(["--store", &url, "doctor"]).output().unwrap().into();
    assert!(since.elapsed() < Duration::from_secs(15), "{run:#?}");
    assert_ne!(run.code, Some(0), "{run:#?}");
    let said = format!("{}{}", run.stdout, run.stderr);
    assert!(
        said.contains(&format!("127.0.0.1 port {}", silent.address.port())),
        "{run:#?}"
    );
}

/// A folder with a configuration whose relay has one route and this store.
fn configured(url: &str) -> TempDir {
    let folder = TempDir::new().unwrap();
    let text = format!(
        "[store]\nurl = \"{url}\"\n[admin]\nbind = \"off\"\n[[route]]\ntopic = \"*\"\nto = \"http://127.0.0.1:9/\"\nallow_private = true\n"
    );
    std::fs::write(folder.path().join("posthouse.toml"), text).unwrap();
    folder
}

#[test]
fn a_relay_gives_up_a_silent_server_and_names_it() {
    let silent = Silent::new(Says::Nothing);
    let folder = configured(&silent.url("connect_timeout=1"));
    let since = Instant::now();
    let relay = Process::start(posthouse().current_dir(folder.path()).arg("relay"));
    silent.is_named_by(&relay.ended(), since, 1);
}

#[test]
fn a_signal_ends_a_relay_that_waits_for_a_silent_server() {
    for (says, parameters) in [
        (Says::Nothing, "connect_timeout=300"),
        (Says::YesToTls, "connect_timeout=300&sslmode=require"),
    ] {
        let silent = Silent::new(says);
        let folder = configured(&silent.url(parameters));
        for signal in ["TERM", "INT"] {
            let relay = Process::start(posthouse().current_dir(folder.path()).arg("relay"));
            silent
                .accepted
                .recv_timeout(Duration::from_secs(30))
                .expect("it connects");
            let since = Instant::now();
            relay.signal(signal);
            let run = relay.ended();
            assert_eq!(run.code, Some(0), "{signal}: {run:#?}");
            assert!(
                since.elapsed() < Duration::from_secs(5),
                "{signal}: {:?}",
                since.elapsed()
            );
        }
    }
}
