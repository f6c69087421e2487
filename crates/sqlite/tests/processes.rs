//! Several processes on one file: this program runs itself.

use posthouse_core::{Admin, Claim, Filter, Message, Settlement, State, Store, Wake};
use posthouse_sqlite::Sqlite;
use rusqlite::Connection;
use std::{
    collections::BTreeSet,
    env,
    path::Path,
    process::{Child, Command, Stdio},
    time::{Duration, Instant},
};
use tempfile::TempDir;

/// Tells a child which file to work on.
const FILE: &str = "POSTHOUSE_TEST_FILE";

fn child(test: &str, file: &Path) -> Child {
    Command::new(env::current_exe().unwrap())
        .args(["--exact", &format!("processes::{test}"), "--nocapture"])
        .env(FILE, file)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

/// What the child told with lines that begin with `told `.
fn told(child: Child) -> Vec<String> {
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let lines = String::from_utf8(output.stdout).unwrap();
    lines
        .lines()
        .filter_map(|line| line.split_once("told "))
        .map(|(_, word)| word.to_owned())
        .collect()
}

// The output is how a child answers.
#[allow(clippy::print_stdout)]
fn tell(word: &str) {
    println!("\ntold {word}");
}

/// Claims and delivers until nothing is left, and tells each id.
async fn drain(path: &Path, worker: &str) -> usize {
    let store = Sqlite::open(path).unwrap();
    let mut count = 0;
    loop {
        let claimed = store
            .claim(&Claim::new(worker, 7, Duration::from_secs(60)))
            .await
            .unwrap();
        if claimed.is_empty() {
            return count;
        }
        for one in &claimed {
            tell(&one.lease.id.to_string());
        }
        count += claimed.len();
        let settlements: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
        assert!(store.settle(&settlements).await.unwrap().iter().all(|v| v.is_settled()));
    }
}

/// A quarter has an order key, so that both kinds of line are shared.
async fn filled(path: &Path, count: usize) -> BTreeSet<String> {
    Sqlite::migrate(path).unwrap();
    let message = |n: usize| match n % 4 {
        0 => Message::bytes("t", "text/plain", n.to_string()).order_key(format!("k{}", n % 12)),
        _ => Message::bytes("t", "text/plain", n.to_string()),
    };
    let store = Sqlite::open(path).unwrap();
    let enqueued = store.enqueue_now((0..count).map(message).collect()).await.unwrap();
    enqueued.into_iter().map(|one| one.id().to_string()).collect()
}

/// As a child of the next test, it drains that one's file.
#[tokio::test]
async fn one_process_drains_a_file() {
    if let Some(file) = env::var_os(FILE) {
        drain(file.as_ref(), &format!("process {}", std::process::id())).await;
        return;
    }
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    filled(&path, 50).await;
    assert_eq!(drain(&path, "w").await, 50);
}

#[tokio::test]
async fn three_processes_drain_one_file_exactly_once() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    let all = filled(&path, 600).await;
    let children: Vec<_> = (0..3).map(|_| child("one_process_drains_a_file", &path)).collect();
    let drained: Vec<String> = children.into_iter().flat_map(told).collect();
    assert_eq!(drained.len(), all.len(), "none twice");
    assert_eq!(drained.into_iter().collect::<BTreeSet<_>>(), all);
    let store = Sqlite::open(&path).unwrap();
    let done = Filter {
        state: Some(State::Done),
        limit: 1000,
        ..Filter::default()
    };
    assert_eq!(store.list(&done).await.unwrap().messages.len(), 600);
    let attempts: i64 = Connection::open(&path)
        .unwrap()
        .query_row(
            "SELECT count(*) FROM posthouse_attempt WHERE attempt = 1 AND outcome = 'delivered'",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(attempts, 600);
}

/// As a child of the next test, it migrates that one's file.
#[test]
fn one_process_migrates_a_file() {
    let dir = TempDir::new().unwrap();
    let file = env::var_os(FILE).map_or_else(|| dir.path().join("outbox.db"), Into::into);
    Sqlite::migrate(&file).unwrap();
    Sqlite::open(&file).unwrap();
}

#[test]
fn many_migrators_at_once_all_succeed() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    let children: Vec<_> = (0..3).map(|_| child("one_process_migrates_a_file", &path)).collect();
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let path = path.clone();
            std::thread::spawn(move || Sqlite::migrate(path))
        })
        .collect();
    threads
        .into_iter()
        .for_each(|thread| drop(thread.join().unwrap().unwrap()));
    children.into_iter().for_each(|child| drop(told(child)));
    let versions: i64 = Connection::open(&path)
        .unwrap()
        .query_row("SELECT count(*) FROM posthouse_schema", [], |row| row.get(0))
        .unwrap();
    assert_eq!(versions, 1);
}

/// As a child of the next test, it enqueues into that one's file after a while.
#[tokio::test]
async fn one_process_enqueues_one_message() {
    let dir = TempDir::new().unwrap();
    let given = env::var_os(FILE);
    let file = given.clone().map_or_else(|| dir.path().join("outbox.db"), Into::into);
    Sqlite::migrate(&file).unwrap();
    if given.is_some() {
        tokio::time::sleep(Duration::from_millis(300)).await;
    }
    let store = Sqlite::open(&file).unwrap();
    store
        .enqueue_now(vec![Message::bytes("t", "text/plain", "x")])
        .await
        .unwrap();
}

#[tokio::test]
async fn a_commit_in_another_process_wakes_a_sleeper() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("outbox.db");
    Sqlite::migrate(&path).unwrap();
    let store = Sqlite::open(&path).unwrap();
    let claim = Claim::new("w", 1, Duration::from_secs(60));
    store.asleep("w", Duration::from_secs(1)).await.unwrap();
    assert!(store.claim(&claim).await.unwrap().is_empty());
    assert_eq!(
        store.wake(Duration::from_millis(30)).await.unwrap(),
        Wake::Elapsed,
        "an empty claim wakes nobody"
    );
    let child = child("one_process_enqueues_one_message", &path);
    let since = Instant::now();
    // Migrating again commits nothing, but opening a database may; only a message counts.
    while store.claim(&claim).await.unwrap().is_empty() {
        assert!(since.elapsed() < Duration::from_secs(20), "it was never found");
        assert_eq!(store.wake(Duration::from_secs(20)).await.unwrap(), Wake::Rung);
    }
    told(child);
}
