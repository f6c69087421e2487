//! Faults on real processes: the program's relay, a real store, a real receiver, and things that go wrong.
//!
//! A test says what goes wrong; the [`judge`](World::judge) says afterwards whether the promises held, from the tables and from what
//! the receiver saw. Nothing is asserted about how long something takes: tests wait until it is so, with a generous limit.

mod answers;
mod changes;
mod connections;
#[cfg(feature = "failpoints")]
mod kills;
mod limits;
mod processes;
mod receiver;
#[cfg(feature = "failpoints")]
mod standing;
#[cfg(feature = "failpoints")]
mod trips;

use posthouse::{AnyStore, AttemptOutcome, AuditEntry, AuditFilter, Message, MessageId, MessageView, State};
use receiver::Receiver;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};
use std::{
    collections::HashMap,
    fs::File,
    future::Future,
    io::{Read, Write},
    net::TcpStream,
    os::unix::process::ExitStatusExt,
    path::PathBuf,
    process::{Child, ExitStatus},
    time::{Duration, Instant},
};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{Place, posthouse};

/// How long a test waits for something that must happen. Far more than it takes.
const PATIENCE: Duration = Duration::from_secs(60);

/// The store to try it on.
#[derive(Clone, Copy, Debug)]
pub enum On {
    Sqlite,
    Postgres,
}

/// A store, a receiver, and a folder for configurations and logs.
pub struct World {
    // Before the runtime on which it lives.
    pub receiver: Receiver,
    pub store: AnyStore,
    pub place: Place,
    pub folder: TempDir,
    pub runtime: Runtime,
}

/// What a relay is told; a few lines of its configuration each.
#[derive(Clone, Debug)]
pub struct Told {
    pub name: String,
    /// The store's address, where it is not the world's own.
    pub store: Option<String>,
    pub lease_ms: u32,
    pub grace_ms: u32,
    pub batch: u32,
    /// More of the outbox.
    pub outbox: String,
    /// More of a route that takes every topic.
    pub route: String,
    /// Routes in front of it.
    pub routes: String,
    /// Whether there is a route for every topic.
    pub last: bool,
    pub env: Vec<(String, String)>,
}

impl Told {
    /// A relay with a short lease.
    pub fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            store: None,
            lease_ms: 900,
            grace_ms: 5000,
            batch: 5,
            outbox: String::new(),
            route: "timeout_ms = 600\nretry = { max_attempts = 12, table_s = [0.05] }".to_owned(),
            routes: String::new(),
            last: true,
            env: Vec::new(),
        }
    }

    /// Which is killed when it comes by this point for the nth time.
    #[cfg(feature = "failpoints")]
    pub fn dies(mut self, point: &str, nth: u32) -> Self {
        let before = if nth > 1 {
            format!("{}*off->", nth - 1)
        } else {
            String::new()
        };
        self.env
            .push(("FAILPOINTS".to_owned(), format!("relay::{point}={before}return")));
        self
    }

    /// Where who comes by for the nth time stands still until the file is gone that it makes.
    #[cfg(feature = "failpoints")]
    pub fn stands(mut self, point: &str, nth: u32, file: &std::path::Path) -> Self {
        let (before, file) = (nth - 1, file.display());
        let action = format!("relay::{point}={before}*off->1*return({file})->off");
        self.env.push(("FAILPOINTS".to_owned(), action));
        self
    }
}

impl World {
    pub fn new(on: On) -> Self {
        Self::at(match on {
            On::Sqlite => Place::sqlite(),
            On::Postgres => Place::postgres(),
        })
    }

    pub fn at(place: Place) -> Self {
        place.run(&["migrate"]).ok();
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        Self {
            receiver: runtime.block_on(Receiver::start()),
            store: runtime.block_on(AnyStore::open(&place.url)).unwrap(),
            folder: tempfile::tempdir().unwrap(),
            place,
            runtime,
        }
    }

    /// The same, when its server has moved.
    pub fn moved(mut self, place: Place) -> Self {
        self.store = self.block(AnyStore::open(&place.url)).unwrap();
        self.place = place;
        self
    }

    /// Where messages go, as a route says it.
    pub fn to(&self) -> String {
        format!("http://{}/hook", self.receiver.address)
    }

    /// Enqueues so many: half of them of two keys, the others without one.
    pub fn enqueue(&self, count: usize) -> Vec<MessageId> {
        let messages = (0..count).map(|n| {
            let message = Message::json("story.told", &n).unwrap();
            match n % 4 {
                0 => message.order_key("one"),
                1 => message.order_key("two"),
                _ => message,
            }
        });
        self.enqueue_all(messages.collect())
    }

    pub fn enqueue_all(&self, messages: Vec<Message>) -> Vec<MessageId> {
        let enqueued = self.block(self.store.enqueue(messages)).unwrap();
        enqueued.into_iter().map(posthouse::Enqueued::id).collect()
    }

    pub fn block<T>(&self, future: impl Future<Output = T>) -> T {
        self.runtime.block_on(future)
    }

    /// Writes the configuration of a relay, and answers where it is.
    pub fn write(&self, told: &Told) -> PathBuf {
        let path = self.path(told);
        let next = path.with_extension("next");
        std::fs::write(&next, self.configuration(told)).unwrap();
        std::fs::rename(&next, &path).unwrap();
        path
    }

    /// Where that is.
    pub fn path(&self, told: &Told) -> PathBuf {
        self.folder.path().join(format!("{}.toml", told.name))
    }

    fn configuration(&self, told: &Told) -> String {
        let Told {
            name,
            lease_ms,
            grace_ms,
            batch,
            outbox,
            route,
            routes,
            ..
        } = told;
        let (store, to) = (told.store.as_ref().unwrap_or(&self.place.url), self.to());
        let last = format!("[[route]]\ntopic = \"*\"\nname = \"all\"\nto = \"{to}\"\nallow_private = true\n{route}\n");
        let last = if told.last { &*last } else { "" };
        format!(
            "[store]\nurl = \"{store}\"\n\
             [outbox]\nname = \"{name}\"\nlease_ms = {lease_ms}\ngrace_ms = {grace_ms}\nbatch = {batch}\npoll_ms = 100\n{outbox}\n\
             [admin]\nbind = \"127.0.0.1:0\"\n\
             [log]\nlevel = \"debug\"\n\
             {routes}\n{last}"
        )
    }

    /// Starts a relay, which is ended with the value.
    pub fn relay(&self, told: &Told) -> Process {
        let config = self.write(told);
        let log = self
            .folder
            .path()
            .join(format!("{}.{}.log", told.name, uuid::Uuid::new_v4()));
        let mut command = posthouse();
        command
            .arg("--config")
            .arg(&config)
            .arg("relay")
            .env_remove("FAILPOINTS")
            .envs(told.env.iter().cloned())
            .stdout(std::process::Stdio::null())
            .stderr(File::create(&log).unwrap());
        let child = command.spawn().unwrap();
        Process { child, log }
    }

    /// Freezes a relay, but not in the middle of a write: on a SQLite file that would hold up everybody else, by its design.
    pub fn freeze(&self, relay: &Process) {
        relay.halt();
        while self.place.is_sqlite() && !self.can_write() {
            relay.signal(Signal::CONT);
            std::thread::sleep(Duration::from_millis(5));
            relay.halt();
        }
    }

    fn can_write(&self) -> bool {
        let path = self.place.url.strip_prefix("sqlite://").unwrap();
        let db = rusqlite::Connection::open(path).unwrap();
        db.busy_timeout(Duration::from_millis(300)).unwrap();
        db.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok()
    }

    pub fn view(&self, id: MessageId) -> MessageView {
        self.block(self.store.admin().find(id)).unwrap().unwrap()
    }

    /// One more relay brings all of them to an end, which is judged. Its own leases hold, however slow this machine is.
    #[track_caller]
    pub fn finish(&self, ids: &[MessageId]) {
        let mut last = self.relay(&Told {
            lease_ms: 20_000,
            ..Told::new("last")
        });
        self.ended(ids);
        last.stop();
        self.judge(ids);
    }

    /// Waits until all of them have ended.
    #[track_caller]
    pub fn ended(&self, ids: &[MessageId]) {
        let over = |id: &MessageId| matches!(self.view(*id).state, State::Done | State::Dead);
        wait("all messages have ended", || ids.iter().all(over));
    }

    /// The leases that were lost, by the audit.
    pub fn conflicts(&self) -> Vec<AuditEntry> {
        let filter = AuditFilter {
            action: Some("outbox_flush_conflict".to_owned()),
            limit: 1000,
            ..AuditFilter::default()
        };
        self.block(self.store.admin().audit(&filter)).unwrap()
    }

    /// How often each message was received.
    pub fn received(&self) -> HashMap<String, usize> {
        let mut received = HashMap::new();
        for request in self.receiver.requests() {
            *received.entry(request.id().to_owned()).or_default() += 1;
        }
        received
    }

    /// So many arrived more than once.
    pub fn duplicates(&self) -> usize {
        self.received().values().filter(|times| **times > 1).count()
    }

    /// All are done, none is lost, whatever came twice has a reason, and keys kept their order.
    #[track_caller]
    pub fn judge(&self, ids: &[MessageId]) {
        for id in ids {
            self.judge_one(*id);
        }
        self.judge_order(ids);
    }

    #[track_caller]
    fn judge_one(&self, id: MessageId) {
        let (view, attempts) = (self.view(id), self.block(self.store.admin().attempts(id)).unwrap());
        assert_eq!(view.state, State::Done, "{view:#?}\n{attempts:#?}");
        let requests = self.receiver.requests();
        let seen: Vec<_> = requests.iter().filter(|r| r.id() == id.to_string()).collect();
        let outcomes: Vec<_> = attempts.iter().map(|a| a.outcome).collect();
        let story = || format!("{view:#?}\n{attempts:#?}\n{seen:#?}");
        let gapless = (1..).zip(&attempts).all(|(n, a)| a.attempt == n && a.generation == 1);
        let rising = attempts.windows(2).all(|pair| pair[0].epoch < pair[1].epoch);
        assert!(gapless && rising, "{}", story());
        // Done, by one success, which is the last word; and the receiver has it under that lease.
        let (last, before) = outcomes
            .split_last()
            .unwrap_or_else(|| panic!("no attempt: {}", story()));
        assert_eq!(*last, AttemptOutcome::Delivered, "{}", story());
        assert!(!before.contains(&AttemptOutcome::Delivered), "{}", story());
        let won = attempts.last().unwrap().epoch;
        assert!(seen.iter().any(|r| r.epoch() == won), "lost: {}", story());
        // One request for each lease, and each request that did not win has its evidence.
        let mut epochs: Vec<_> = seen.iter().map(|r| r.epoch()).collect();
        epochs.sort_unstable();
        assert!(
            epochs.windows(2).all(|pair| pair[0] < pair[1]),
            "unexplained: {}",
            story()
        );
        for epoch in epochs.into_iter().filter(|epoch| *epoch != won) {
            let explained = attempts.iter().find(|a| a.epoch == epoch).map(|a| a.outcome);
            let reasons = [AttemptOutcome::LeaseExpired, AttemptOutcome::Retry];
            assert!(
                explained.is_some_and(|o| reasons.contains(&o)),
                "unexplained: {}",
                story()
            );
        }
    }

    /// Nothing of a key came before everything that was enqueued before it had its last say.
    #[track_caller]
    fn judge_order(&self, ids: &[MessageId]) {
        let requests = self.receiver.requests();
        let mut keys: HashMap<String, Vec<MessageId>> = HashMap::new();
        for id in ids {
            if let Some(key) = self.view(*id).order_key {
                keys.entry(key).or_default().push(*id);
            }
        }
        for (key, ids) in keys {
            let place = |request: &receiver::Request| ids.iter().position(|id| id.to_string() == request.id());
            let places: Vec<_> = requests.iter().filter_map(place).collect();
            assert!(places.is_sorted(), "the key {key} came in this order: {places:?}");
        }
    }
}

/// A relay that runs.
pub struct Process {
    child: Child,
    log: PathBuf,
}

impl Process {
    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Returns when all of its threads stand still. The signal alone is only a request: a thread on another processor goes on for a
    /// moment, and may take an answer and write of it.
    fn halt(&self) {
        self.signal(Signal::STOP);
        let pid = Pid::from_child(&self.child);
        waitid(WaitId::Pid(pid), WaitIdOptions::STOPPED).unwrap();
    }

    /// What it has written so far.
    pub fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap()
    }

    /// What it answers there: status and text. It must be up, or come up.
    #[track_caller]
    pub fn get(&self, path: &str) -> (u16, String) {
        let mut address = None;
        wait_or(
            "the relay answers",
            || {
                let log = self.log();
                let said = log.split_once("answering at http://");
                address = said.and_then(|(_, rest)| rest.split_once('\n').map(|(at, _)| at.to_owned()));
                address.is_some()
            },
            || self.log(),
        );
        let mut stream = TcpStream::connect(address.unwrap()).unwrap();
        write!(
            stream,
            "GET {path} HTTP/1.1\r\nhost: relay\r\nconnection: close\r\n\r\n"
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        (head.split(' ').nth(1).unwrap().parse().unwrap(), body.to_owned())
    }

    /// The value of a measure, with its labels; zero when there is none yet.
    #[track_caller]
    pub fn measure(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        lines.next().map_or(0.0, |value| value.parse().unwrap())
    }

    /// How often it has asked for work.
    #[track_caller]
    pub fn claims(&self) -> u64 {
        self.measure("posthouse_phase_seconds_count{phase=\"claim\"}") as u64
    }

    /// Waits until it ends by itself.
    #[track_caller]
    pub fn end(&mut self) -> ExitStatus {
        let mut status = None;
        let log = self.log.clone();
        wait_or(
            "the relay has ended",
            || {
                status = self.child.try_wait().unwrap();
                status.is_some()
            },
            || std::fs::read_to_string(&log).unwrap(),
        );
        status.unwrap()
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().unwrap().is_some()
    }

    /// Waits until it was killed.
    #[track_caller]
    pub fn killed(&mut self) {
        let status = self.end();
        assert_eq!(status.signal(), Some(9), "{status:?}\n{}", self.log());
    }

    /// Tells it to stop, and waits until it has. It must be up, or come up: who does not listen for signals yet is ended by one.
    #[track_caller]
    pub fn stop(&mut self) {
        wait_or("the relay is up", || self.log().contains("relaying: "), || self.log());
        self.signal(Signal::TERM);
        let status = self.end();
        assert_eq!(status.code(), Some(0), "{status:?}\n{}", self.log());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            let _ = writeln!(std::io::stderr().lock(), "{}:\n{}", self.log.display(), self.log());
        }
    }
}

/// One test for each store.
macro_rules! both {
    ($($name:ident: $how:ident($($arg:expr),*);)*) => {
        mod sqlite {
            use super::*;
            $(#[test] fn $name() { $how(On::Sqlite, $($arg),*); })*
        }
        mod postgres {
            use super::*;
            $(#[test] fn $name() { $how(On::Postgres, $($arg),*); })*
        }
    };
}
use both;

/// Looks until it is so.
#[track_caller]
pub fn wait(what: &str, is_so: impl FnMut() -> bool) {
    wait_or(what, is_so, String::new);
}

/// The same for what takes its time.
#[cfg(feature = "failpoints")]
#[track_caller]
pub fn wait_for(patience: Duration, what: &str, is_so: impl FnMut() -> bool) {
    wait_until(patience, what, is_so, String::new);
}

#[track_caller]
fn wait_or(what: &str, is_so: impl FnMut() -> bool, more: impl Fn() -> String) {
    wait_until(PATIENCE, what, is_so, more);
}

#[track_caller]
fn wait_until(patience: Duration, what: &str, mut is_so: impl FnMut() -> bool, more: impl Fn() -> String) {
    let since = Instant::now();
    while !is_so() {
        assert!(since.elapsed() < patience, "waited in vain until {what}\n{}", more());
        std::thread::sleep(Duration::from_millis(20));
    }
}
