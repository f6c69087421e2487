//! A database in a folder: what a crash leaves of it, and who may have it.

use posthouse_core::{Admin, Claim, Durability, Error, Fit, Message, Settlement, Store};
use posthouse_surreal::{Database, Options, SurrealDb};
use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::{Command, Stdio},
    time::Duration,
};

use crate::beside::{Process, program};

fn url(folder: &Path, sync: &str) -> String {
    format!("surrealkv://{}?sync={sync}", folder.join("shop.db").display())
}

/// A writer is killed while it writes, over and over. What it said is committed is there, in the order of its key, and at most one more: one that was
/// committed, and of which it could not say so any more.
async fn killed(sync: &str) {
    let folder = tempfile::tempdir().unwrap();
    let url = url(folder.path(), sync);
    for round in 1..=5 {
        let before = orders(&url).await;
        let mut writer = Command::new(program("writer"));
        let mut writer = Process(writer.arg(&url).stdout(Stdio::piped()).spawn().unwrap());
        let mut lines = BufReader::new(writer.0.stdout.take().unwrap()).lines();
        let mut said = 0;
        for _ in 0..(3 + fastrand::usize(0..20)) {
            said = lines.next().unwrap().unwrap().parse::<usize>().unwrap();
        }
        writer.0.kill().unwrap();
        // What it had said when it was killed.
        said = lines
            .map_while(Result::ok)
            .filter_map(|line| line.parse().ok())
            .last()
            .unwrap_or(said);
        drop(writer);
        let after = orders(&url).await;
        let added = after - before;
        assert!(
            (said..=said + 1).contains(&added),
            "round {round}: {said} were said to be committed, and {added} are there"
        );
    }
}

/// How many orders there are; each has its message, and nothing else has one.
async fn orders(url: &str) -> usize {
    let db = Database::connect(url).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let mut placed = db.client().query("SELECT VALUE number FROM placed").await.unwrap();
    let mut placed: Vec<i64> = placed.take(0).unwrap_or_default();
    let store = SurrealDb::open(db, Options::default()).await.unwrap();
    let mut told = Vec::new();
    // Ends: what is claimed is leased, and not claimed again.
    loop {
        let granted = store
            .claim(&Claim::new("reader", 100, Duration::from_secs(60)))
            .await
            .unwrap();
        if granted.is_empty() {
            break;
        }
        for one in &granted {
            told.push(String::from_utf8_lossy(&one.delivery.payload).parse::<i64>().unwrap());
        }
        let released: Vec<_> = granted
            .iter()
            .map(|one| Settlement::delivered(&one.lease, None))
            .collect();
        store.settle(&released).await.unwrap();
    }
    let done = usize::try_from(store.counts().await.unwrap().done.value).unwrap();
    assert_eq!(done, placed.len(), "each order has its message");
    placed.sort_unstable();
    assert!(told.is_sorted(), "in the order of their key: {told:?}");
    placed.len()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_committed_survives_its_process() {
    killed("every").await;
}

/// Not written to the disk by the process, but out of its hands: measured, and what `Durability::System` says.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_sync_too() {
    killed("never").await;
    killed("1s").await;
}

#[tokio::test]
async fn a_folder_is_one_process_s_at_a_time() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(folder.path(), "every");
    let mut writer = Command::new(program("writer"));
    let mut writer = Process(writer.arg(&url).stdout(Stdio::piped()).spawn().unwrap());
    let mut lines = BufReader::new(writer.0.stdout.take().unwrap()).lines();
    lines.next().unwrap().unwrap();
    let told = Database::connect(&url).await.map(drop).unwrap_err();
    assert!(matches!(told, Error::Unavailable(_)), "{told:?}");
    assert!(told.to_string().contains("another process has the folder"), "{told}");
    drop(writer);
    Database::connect(&url).await.unwrap();
}

#[tokio::test]
async fn one_process_has_it_as_often_as_it_likes() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(folder.path(), "every");
    let db = Database::connect(&url).await.unwrap();
    SurrealDb::migrate(&db).await.unwrap();
    let (one, other) = (
        SurrealDb::connect(&url, Options::default()).await.unwrap(),
        SurrealDb::connect(&url, Options::default()).await.unwrap(),
    );
    one.enqueue_now(vec![Message::bytes("t", "text/plain", b"one".to_vec())])
        .await
        .unwrap();
    assert_eq!(other.counts().await.unwrap().ready.value, 1);
    assert_eq!(other.capabilities().durability, Durability::Machine);
    // With another promise it would be a lie.
    let never = self::url(folder.path(), "never");
    let refused = Database::connect(&never).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
    drop((db, one, other));
    // Closed by the last one; another opens it.
    Database::connect(&never).await.unwrap();
}

#[tokio::test]
async fn to_look_at_a_folder_that_is_not_there_does_not_make_it() {
    let folder = tempfile::tempdir().unwrap();
    let url = url(folder.path(), "every");
    let refused = SurrealDb::connect(&url, Options::default())
        .await
        .map(drop)
        .unwrap_err();
    assert!(matches!(refused, Error::Schema(_)), "{refused:?}");
    assert!(refused.to_string().contains("there is no database"), "{refused}");
    let plan = SurrealDb::plan_migration(&url).await.unwrap();
    assert_eq!(plan.fit, Fit::Absent);
    assert!(!folder.path().join("shop.db").exists());
    let file = folder.path().join("file");
    std::fs::write(&file, "no folder").unwrap();
    let refused = Database::connect(&format!("surrealkv://{}", file.display()))
        .await
        .map(drop)
        .unwrap_err();
    assert!(matches!(refused, Error::Unavailable(_)), "{refused:?}");
}

/// However a path leads there that was not there before, the process knows again what it has open.
#[tokio::test]
async fn a_folder_that_was_made_behind_a_link_is_shared() {
    let folder = tempfile::tempdir().unwrap();
    let real = folder.path().join("real");
    std::fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, folder.path().join("link")).unwrap();
    for path in ["link/shop.db", "real/../other.db"] {
        let url = format!("surrealkv://{}", folder.path().join(path).display());
        let one = Database::connect(&url).await.unwrap();
        SurrealDb::migrate(&one).await.unwrap();
        let other = SurrealDb::connect(&url, Options::default()).await.unwrap();
        assert_eq!(other.counts().await.unwrap().ready.value, 0, "{path}");
    }
    // Another path to what is open is known as that.
    let by_link = format!("surrealkv://{}", folder.path().join("link/again.db").display());
    let _open = Database::connect(&by_link).await.unwrap();
    let by_name = format!("surrealkv://{}", real.join("again.db").display());
    let refused = Database::connect(&by_name).await.map(drop).unwrap_err();
    assert!(matches!(refused, Error::Invalid(_)), "{refused:?}");
}

/// Paths are taken as they are written.
#[tokio::test]
async fn a_path_may_have_spaces() {
    let folder = tempfile::tempdir().unwrap();
    let odd = folder.path().join("a b%20c.db");
    let url = format!("surrealkv://{}", odd.display());
    SurrealDb::migrate(&Database::connect(&url).await.unwrap())
        .await
        .unwrap();
    assert!(
        odd.is_dir(),
        "{:?}",
        std::fs::read_dir(folder.path()).unwrap().collect::<Vec<_>>()
    );
}
