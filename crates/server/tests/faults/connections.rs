//! PostgreSQL that goes away: restarted, its connections cut at one word, silent, slow. The relay goes on by itself.

use posthouse_testkit::proxy::{Lost, Proxy};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    net::SocketAddr,
    process::{Command, Stdio},
    time::Duration,
};
use tempfile::TempDir;

use super::{On, Told, World, receiver::Then, wait};
use crate::support::Place;

fn address(url: &str) -> SocketAddr {
    let after = url.split_once('@').unwrap().1;
    after.split_once('/').unwrap().0.parse().unwrap()
}

/// The store's URL, by way of somebody in between.
fn by(world: &World, through: SocketAddr) -> Option<String> {
    let url = &world.place.url;
    Some(url.replace(&address(url).to_string(), &through.to_string()))
}

/// A connection is cut whenever the relay says a word: before the server hears it, or before the relay hears the answer.
fn cut(word: &str, lost: Lost) {
    let world = World::new(On::Postgres);
    let proxy = world.block(Proxy::before(address(&world.place.url)));
    proxy.lose(word, lost, 4);
    let told = Told {
        store: by(&world, proxy.address),
        // What is settled is asked for again while its lease holds, however slow this machine is; a claim whose answer was lost must
        // run out.
        lease_ms: if word == ".settle" { 20_000 } else { 900 },
        ..Told::new("relay")
    };
    let ids = world.enqueue(24);
    let mut relay = world.relay(&told);
    wait("it was cut and went on", || {
        proxy.lost() == 4 || ids.iter().all(|id| world.view(*id).state == posthouse::State::Done)
    });
    world.ended(&ids);
    assert!(proxy.lost() > 0, "nothing was cut");
    relay.stop();
    world.judge(&ids);
    if word == ".settle" {
        // What was sent is settled by asking again: nothing is sent twice for it.
        assert_eq!(world.duplicates(), 0);
    }
}

#[test]
fn a_claim_that_the_server_never_hears() {
    cut(".grant_leases(", Lost::Request);
}

#[test]
fn a_claim_whose_answer_is_lost() {
    cut(".grant_leases(", Lost::Answer);
}

#[test]
fn a_settlement_that_the_server_never_hears() {
    cut(".settle", Lost::Request);
}

#[test]
fn a_settlement_whose_answer_is_lost() {
    cut(".settle", Lost::Answer);
}

/// The store falls silent, and nobody closes a connection: the relay says that it is not ready. When new connections are heard again, it
/// goes on with these.
#[test]
fn a_store_that_falls_silent() {
    let world = World::new(On::Postgres);
    let gate = world.block(Proxy::before(address(&world.place.url)));
    let told = Told {
        store: by(&world, gate.address),
        ..Told::new("relay")
    };
    let mut ids = world.enqueue(8);
    let mut relay = world.relay(&told);
    world.ended(&ids);
    wait("it is ready", || relay.get("/readyz").0 == 200);
    gate.fall_silent();
    ids.extend(world.enqueue(8));
    wait("it says that it is not ready", || relay.get("/readyz").0 == 503);
    let (_, text) = relay.get("/readyz");
    assert!(text.starts_with("not ready: store: no answer for "), "{text}");
    assert_eq!(relay.get("/livez"), (200, "ok\n".to_owned()));
    gate.hear_new_ones();
    world.ended(&ids);
    wait("it is ready again", || relay.get("/readyz") == (200, "ok\n".to_owned()));
    relay.stop();
    world.judge(&ids);
}

/// Slow is not broken: nothing comes twice.
#[test]
fn a_store_that_is_slow() {
    let world = World::new(On::Postgres);
    let gate = world.block(Proxy::before(address(&world.place.url)));
    gate.delay(Duration::from_millis(40));
    let told = Told {
        lease_ms: 10_000,
        store: by(&world, gate.address),
        ..Told::new("relay")
    };
    let ids = world.enqueue(24);
    let mut relay = world.relay(&told);
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
    assert_eq!(world.duplicates(), 0);
}

/// All connections are cut, again and again, while it works.
#[test]
fn connections_that_are_cut_over_and_over() {
    let world = World::new(On::Postgres);
    world.receiver.does(|_| Then::After(Duration::from_millis(30)));
    let gate = world.block(Proxy::before(address(&world.place.url)));
    let told = Told {
        store: by(&world, gate.address),
        ..Told::new("relay")
    };
    let ids = world.enqueue(40);
    let mut relay = world.relay(&told);
    for n in 1..=5 {
        wait("something is sent", || world.receiver.requests().len() >= 4 * n);
        gate.cut();
    }
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
}

/// A server of the test's own.
struct Server {
    folder: TempDir,
    pid: Option<Pid>,
    url: String,
}

impl Server {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let mut server = Self {
            folder,
            pid: None,
            url: String::new(),
        };
        server.run("start_postgres");
        server
    }

    /// With what is on its disk. A commit that was answered is there, whatever kills the process.
    fn run(&mut self, how: &str) {
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let folder = self.folder.path().display();
        let script = format!(
            ". {root}/scripts/postgres.sh; PG_BIN=$(find_postgres); {how} {folder} fast -c synchronous_commit=on -c full_page_writes=on \
             && echo \"$PG_PID $PG_URL\""
        );
        let mut command = Command::new("bash");
        let output = command.args(["-c", &script]).stdin(Stdio::null()).output().unwrap();
        let said = String::from_utf8(output.stdout).unwrap();
        let (pid, url) = said.trim().split_once(' ').unwrap_or_else(|| {
            panic!("no server: {}", String::from_utf8_lossy(&output.stderr));
        });
        self.pid = Pid::from_raw(pid.parse().unwrap());
        self.url = url.to_owned();
    }

    /// Ends it without any tidying up, and waits until it is gone.
    fn end(&mut self) {
        let Some(pid) = self.pid.take() else { return };
        kill_process(pid, Signal::QUIT).unwrap();
        wait("the server is gone", || {
            rustix::process::test_kill_process(pid).is_err()
        });
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// Its backends are terminated, and then the server itself, at once; it comes back elsewhere. The relay goes on with both.
#[test]
fn a_server_that_is_restarted() {
    let mut server = Server::new();
    let world = World::at(Place::elsewhere(server.url.clone()));
    world.receiver.does(|_| Then::After(Duration::from_millis(30)));
    let gate = world.block(Proxy::before(address(&server.url)));
    let told = Told {
        store: by(&world, gate.address),
        ..Told::new("relay")
    };
    let ids = world.enqueue(60);
    let mut relay = world.relay(&told);
    for n in 1..=3 {
        wait("something is sent", || world.receiver.requests().len() >= 5 * n);
        let terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'";
        world.place.sql(terminate);
    }
    wait("more is sent", || world.receiver.requests().len() >= 20);
    server.end();
    server.run("serve_postgres");
    gate.lead_to(address(&server.url));
    let world = world.moved(Place::elsewhere(server.url.clone()));
    world.ended(&ids);
    relay.stop();
    world.judge(&ids);
}
