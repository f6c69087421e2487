//! The relay as its users run it: processes of the real program on PostgreSQL, webhooks to a receiver in this process, and what both
//! of them saw at the end. A scenario that breaks a promise says so and ends with an error; times are told, never judged.

mod bare;
mod median;

use axum::{Router, body::Bytes, http::HeaderMap, http::StatusCode, routing::post};
use posthouse::{AnyStore, Message};
use std::{
    collections::{BTreeMap, HashMap},
    fmt::Write as _,
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};
use tokio::time::sleep;

use median::median;

/// One arrival: which message, which grant, what it said of itself, when.
struct Arrival {
    id: String,
    epoch: u64,
    tenant: String,
    path: String,
    payload: String,
    at: Instant,
}

#[derive(Clone, Default)]
struct Receiver(Arc<Mutex<Vec<Arrival>>>);

impl Receiver {
    /// Listens on a free port, and answers 200 to everything: at once, to `/slow` after two milliseconds, to `/hang` never.
    async fn start(&self) -> u16 {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let receiver = self.clone();
        let take = move |uri: axum::http::Uri, headers: HeaderMap, body: Bytes| {
            let receiver = receiver.clone();
            async move {
                receiver.take(uri.path(), &headers, &body);
                match uri.path() {
                    "/hang" => std::future::pending::<()>().await,
                    "/slow" => sleep(Duration::from_millis(2)).await,
                    _ => {}
                }
                StatusCode::OK
            }
        };
        let router = Router::new().route("/{*path}", post(take));
        tokio::spawn(async move { axum::serve(listener, router).await });
        port
    }

    fn take(&self, path: &str, headers: &HeaderMap, body: &[u8]) {
        let header = |name: &str| {
            headers
                .get(name)
                .and_then(|v| v.to_str().ok())
                .unwrap_or_default()
                .to_owned()
        };
        self.seen().push(Arrival {
            id: header("webhook-id"),
            epoch: header("posthouse-epoch").parse().unwrap_or_default(),
            tenant: header("posthouse-tenant"),
            path: path.to_owned(),
            payload: String::from_utf8_lossy(body).into_owned(),
            at: Instant::now(),
        });
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, Vec<Arrival>> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// A database of its own, a receiver, and relays.
struct World {
    url: String,
    store: AnyStore,
    receiver: Receiver,
    port: u16,
    config: PathBuf,
    relays: Vec<Child>,
    started: usize,
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set: run benches/relay"))
}

impl World {
    async fn new(name: &str) -> Self {
        let base = variable("POSTHOUSE_BENCH_POSTGRES");
        let separator = if base.contains('?') { '&' } else { '?' };
        let url = format!("{base}{separator}schema=relay_{name}");
        AnyStore::migrate(&url).await.expect("a schema");
        let receiver = Receiver::default();
        let port = receiver.start().await;
        Self {
            store: AnyStore::open(&url).await.expect("a store"),
            config: PathBuf::from(variable("POSTHOUSE_BENCH_FOLDER")).join(format!("{name}.toml")),
            url,
            receiver,
            port,
            relays: Vec::new(),
            started: 0,
        }
    }

    /// A configuration with these routes (topic and path), and what else it says.
    fn configure(&self, outbox: &str, routes: &[(&str, &str)], rules: &str) {
        let mut text = format!(
            "[store]\nurl = {:?}\n[admin]\nbind = \"off\"\n[log]\nlevel = \"error\"\n[outbox]\n{outbox}\n",
            self.url
        );
        for (topic, path) in routes {
            let port = self.port;
            let _ = write!(
                text,
                "[[route]]\ntopic = {topic:?}\nto = \"http://127.0.0.1:{port}{path}\"\nallow_private = true\n{rules}\n"
            );
        }
        std::fs::write(&self.config, text).expect("a configuration");
    }

    fn start_relay(&mut self) {
        self.started += 1;
        let child = Command::new(variable("POSTHOUSE_BENCH_PROGRAM"))
            .arg("--config")
            .arg(&self.config)
            .args(["--quiet", "relay"])
            .env("POSTHOUSE_OUTBOX__NAME", format!("relay-{}", self.started))
            .stdin(Stdio::null())
            .spawn()
            .expect("a relay");
        self.relays.push(child);
    }

    fn kill_relay(&mut self, at: usize) {
        let mut child = self.relays.remove(at);
        child.kill().expect("a relay to kill");
        child.wait().expect("its end");
    }

    async fn enqueue(&self, messages: Vec<Message>) {
        for chunk in messages.chunks(2000) {
            self.store.enqueue(chunk.to_vec()).await.expect("room for messages");
        }
    }

    async fn done(&self) -> u64 {
        let counts = self.store.admin().counts().await.expect("counts");
        counts.ready.value + counts.scheduled.value + counts.leased.value
    }

    /// Waits until so many have arrived in all. Asks nobody for it, so that it costs nothing.
    async fn arrived(&self, count: usize) {
        while self.receiver.seen().len() < count {
            sleep(Duration::from_millis(5)).await;
        }
    }

    /// Waits until nothing is on its way any more.
    async fn drained(&self) {
        while self.done().await > 0 {
            sleep(Duration::from_millis(200)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        while !self.relays.is_empty() {
            self.kill_relay(0);
        }
    }
}

/// Half of them with an order key, of ten tenants.
fn orders(count: usize) -> Vec<Message> {
    let order = |n: usize| {
        let message = Message::bytes("order.placed", "text/plain", n.to_string()).tenant(format!("t{}", n % 10));
        if n.is_multiple_of(2) {
            message.order_key(format!("k{}", n % 1000))
        } else {
            message
        }
    };
    (0..count).map(order).collect()
}

/// What is wrong with what arrived: lost, or again without a newer grant, or out of order.
fn judge(world: &World, count: usize, may_repeat: bool) -> (usize, usize, usize, usize) {
    let seen = world.receiver.seen();
    let mut grants: HashMap<&str, u64> = HashMap::new();
    let (mut repeated, mut unexplained) = (0, 0);
    let mut last: BTreeMap<String, usize> = BTreeMap::new();
    let mut disorder = 0;
    for arrival in seen.iter() {
        let n: usize = arrival.payload.parse().unwrap_or_default();
        match grants.insert(&arrival.id, arrival.epoch) {
            Some(before) => {
                repeated += 1;
                unexplained += usize::from(before >= arrival.epoch || !may_repeat);
            }
            None if n.is_multiple_of(2) => {
                let key = format!("{}/{}", arrival.tenant, n % 1000);
                let before = last.insert(key, n);
                disorder += usize::from(before.is_some_and(|before| before > n));
            }
            None => {}
        }
    }
    (count - grants.len(), repeated, unexplained, disorder)
}

async fn orders_through(name: &str, count: usize, kills: usize) {
    let mut world = World::new(name).await;
    world.configure(
        "lease_ms = 3000",
        &[("order.*", "/orders")],
        "timeout_ms = 2000\nconcurrency = 64",
    );
    world.enqueue(orders(count)).await;
    let began = Instant::now();
    world.start_relay();
    world.start_relay();
    for kill in 0..kills {
        // At a fifth, two fifths and so on of what there is to do.
        let at = count * (2 * kill + 1) / (2 * kills);
        while world.receiver.seen().len() < at {
            sleep(Duration::from_millis(5)).await;
        }
        world.kill_relay(0);
        world.start_relay();
    }
    world.drained().await;
    let took = began.elapsed();
    let (lost, repeated, unexplained, disorder) = judge(&world, count, kills > 0);
    let counts = world.store.admin().counts().await.expect("counts");
    println!(
        "{name}: {count} messages, 2 relays, {kills} killed: {:.1} s, {:.0} messages/s; lost {lost}, repeated {repeated}, without a newer grant {unexplained}, out of order {disorder}, dead {}",
        took.as_secs_f64(),
        count as f64 / took.as_secs_f64(),
        counts.dead.value
    );
    assert_eq!(
        (lost, unexplained, disorder, counts.dead.value),
        (0, 0, 0, 0),
        "a promise is broken"
    );
    assert!(kills > 0 || repeated == 0, "repeated without a fault");
}

/// One tenant has a flood, another one message.
async fn flood(count: usize) {
    let mut world = World::new("flood").await;
    world.configure("", &[("order.*", "/orders")], "concurrency = 64");
    let flood = (0..count).map(|n| Message::bytes("order.placed", "text/plain", n.to_string()).tenant("flood"));
    world.enqueue(flood.collect()).await;
    world.start_relay();
    while world.receiver.seen().len() < count / 20 {
        sleep(Duration::from_millis(5)).await;
    }
    let mut between = Vec::new();
    for n in 0..20 {
        let before = world.receiver.seen().len();
        let committed = Instant::now();
        world
            .enqueue(vec![
                Message::bytes("order.placed", "text/plain", "x").tenant(format!("small{n}")),
            ])
            .await;
        let arrived = loop {
            if let Some(at) = world
                .receiver
                .seen()
                .iter()
                .skip(before)
                .position(|a| a.tenant == format!("small{n}"))
            {
                break at;
            }
            sleep(Duration::from_millis(1)).await;
        };
        between.push((arrived, committed.elapsed()));
        sleep(Duration::from_millis(50)).await;
    }
    let left = world.done().await;
    between.sort();
    let (most, median) = (between[19], between[10]);
    println!(
        "flood: one tenant has {left} messages left; the single message of another goes out after {} of them (median; most {}), {:.1} ms after its commit (of the median one)",
        median.0,
        most.0,
        median.1.as_secs_f64() * 1000.0
    );
    // What the destination has in hand, half of 2000; the claim under way, and the next.
    assert!(
        left > 0 && most.0 <= 1000 + 2 * 500,
        "it did not go out in the next round"
    );
}

fn percentile(times: &mut [Duration], part: f64) -> f64 {
    times.sort();
    let at = ((times.len() as f64 - 1.0) * part) as usize;
    times[at].as_secs_f64() * 1000.0
}

/// Steady traffic to twenty destinations; then one more, which hangs, has traffic too.
async fn hang(count: usize) {
    let mut world = World::new("hang").await;
    let healthy: Vec<(String, String)> = (0..20).map(|n| (format!("d{n}"), format!("/d{n}"))).collect();
    let mut routes: Vec<(&str, &str)> = healthy.iter().map(|(t, p)| (t.as_str(), p.as_str())).collect();
    routes.push(("ill", "/hang"));
    world.configure("", &routes, "timeout_ms = 5000\nconcurrency = 8");
    world.start_relay();
    let mut lines = Vec::new();
    for ill in [false, true] {
        let from = world.receiver.seen().len();
        let mut committed: HashMap<String, Instant> = HashMap::new();
        for n in 0..count {
            let name = format!("{ill}-{n}");
            let mut messages = vec![Message::bytes(format!("d{}", n % 20), "text/plain", name.clone())];
            if ill {
                messages.push(Message::bytes("ill", "text/plain", "ill"));
            }
            world.store.enqueue(messages).await.expect("room");
            committed.insert(name, Instant::now());
            sleep(Duration::from_millis(5)).await;
        }
        while world
            .receiver
            .seen()
            .iter()
            .skip(from)
            .filter(|a| a.path != "/hang")
            .count()
            < count
        {
            sleep(Duration::from_millis(20)).await;
        }
        let seen = world.receiver.seen();
        let of = |a: &Arrival| committed.get(&a.payload).map(|at| a.at.saturating_duration_since(*at));
        let mut times: Vec<_> = seen.iter().skip(from).filter_map(of).collect();
        lines.push((percentile(&mut times, 0.5), percentile(&mut times, 0.99)));
    }
    let [(m0, p0), (m1, p1)] = [lines[0], lines[1]];
    println!(
        "hang: {count} messages to 20 destinations, commit to arrival: p50 {m0:.1} ms, p99 {p0:.1} ms; beside one that hangs: p50 {m1:.1} ms, p99 {p1:.1} ms: {:.2} times",
        p1 / p0
    );
}

/// What an idle relay costs, and how soon it is awake.
async fn idle(count: usize) {
    let mut world = World::new("idle").await;
    world.configure("", &[("order.*", "/orders")], "");
    world.start_relay();
    sleep(Duration::from_secs(3)).await;
    let (client, connection) = tokio_postgres::connect(&variable("POSTHOUSE_BENCH_POSTGRES"), tokio_postgres::NoTls)
        .await
        .expect("a connection");
    tokio::spawn(connection);
    let queries = async || -> i64 {
        client
            .execute("SELECT pg_stat_clear_snapshot()", &[])
            .await
            .expect("statistics");
        let sql = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()";
        client.query_one(sql, &[]).await.expect("statistics").get(0)
    };
    let pid = world.relays[0].id();
    let ticks = || -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let rest: Vec<_> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
        rest.iter().skip(11).take(2).filter_map(|t| t.parse::<u64>().ok()).sum()
    };
    let (q0, t0, since) = (queries().await, ticks(), Instant::now());
    sleep(Duration::from_secs(20)).await;
    let (q1, t1, took) = (queries().await, ticks(), since.elapsed().as_secs_f64());
    // Our own two questions are in it.
    let idle = format!(
        "{:.1} queries/s, {:.2} % of a core",
        ((q1 - q0 - 2) as f64) / took,
        (t1 - t0) as f64 / took
    );
    let mut times = Vec::new();
    for n in 0..count {
        sleep(Duration::from_millis(30)).await;
        let before = world.receiver.seen().len();
        world
            .store
            .enqueue(vec![Message::bytes("order.placed", "text/plain", n.to_string())])
            .await
            .expect("room");
        let committed = Instant::now();
        while world.receiver.seen().len() == before {
            tokio::task::yield_now().await;
        }
        times.push(world.receiver.seen()[before].at.saturating_duration_since(committed));
    }
    let (p50, p99) = (percentile(&mut times, 0.5), percentile(&mut times, 0.99));
    println!("idle: {idle}; {count} single messages, commit to arrival over HTTP: p50 {p50:.1} ms, p99 {p99:.1} ms");
}

/// Arrivals a second, from the first to the last of those after `from`.
fn arriving(world: &World, from: usize) -> f64 {
    let seen = world.receiver.seen();
    let (first, last) = (seen[from].at, seen[seen.len() - 1].at);
    (seen.len() - from - 1) as f64 / last.duration_since(first).as_secs_f64()
}

/// Webhooks beside a client that only posts, to the same receiver and with as many requests at a time, by turns.
async fn webhooks(count: usize) {
    for (path, words, at_a_time) in [
        ("/orders", "at once", 16),
        ("/orders", "at once", 64),
        ("/slow", "after 2 ms", 16),
        ("/slow", "after 2 ms", 64),
    ] {
        beside_bare(count, path, words, at_a_time).await;
    }
}

async fn beside_bare(count: usize, path: &str, words: &str, at_a_time: usize) {
    const ROUNDS: usize = 5;
    let mut world = World::new(&format!("webhooks_{}_{at_a_time}", &path[1..])).await;
    world.configure("", &[("order.*", path)], &format!("concurrency = {at_a_time}"));
    let (mut ours, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let numbers = (0..count).map(|n| Message::bytes("order.placed", "text/plain", n.to_string()));
        world.enqueue(numbers.collect()).await;
        let from = world.receiver.seen().len();
        world.start_relay();
        world.arrived(from + count).await;
        world.drained().await;
        world.kill_relay(0);
        assert_eq!(world.receiver.seen().len(), from + count, "not each of them once");
        ours.push(arriving(&world, from));

        let from = world.receiver.seen().len();
        let url = format!("http://127.0.0.1:{}{path}", world.port);
        let posting = tokio::task::spawn_blocking(move || bare::process(&url, count, at_a_time));
        posting.await.expect("a client");
        assert_eq!(world.receiver.seen().len(), from + count, "not each of them once");
        bare.push(arriving(&world, from));
    }
    let ratios: Vec<f64> = ours.iter().zip(&bare).map(|(ours, bare)| ours / bare).collect();
    let least = ratios.iter().copied().fold(f64::INFINITY, f64::min);
    let most = ratios.iter().copied().fold(0.0, f64::max);
    println!(
        "webhooks: {count} messages, {at_a_time} requests at a time, answered {words}: relay {:.0}/s, a client that only posts {:.0}/s (medians of {ROUNDS}): {:.2} times ({least:.2} to {most:.2})",
        median(&ours),
        median(&bare),
        median(&ratios)
    );
}

#[tokio::main]
async fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    if let [word, url, count, at_a_time] = &args[..]
        && word == "bare"
    {
        let number = |text: &String| text.parse().expect("a number");
        return bare::post(url.clone(), number(count), number(at_a_time)).await;
    }
    let wants = |name: &str| args.is_empty() || args[0] == name;
    let count = |usual: usize| args.get(1).and_then(|n| n.parse().ok()).unwrap_or(usual);
    if wants("idle") {
        idle(count(200)).await;
    }
    if wants("webhooks") {
        webhooks(count(20_000)).await;
    }
    if wants("hang") {
        hang(count(2000)).await;
    }
    if wants("flood") {
        flood(count(100_000)).await;
    }
    if wants("calm") {
        orders_through("calm", count(100_000), 0).await;
    }
    if wants("kills") {
        orders_through("kills", count(100_000), 5).await;
    }
}
