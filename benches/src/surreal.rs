//! SurrealDB beside SQLite: the same work through the same contract, by turns in one run, as ratios.
//!
//! Every run is verified (each message delivered once, nothing left over), and one that is not prints no number.

mod median;

use median::median;
use posthouse::{
    Admin, AnyStore, Claim, Message, Settlement, Store,
    surreal::{Database, Options, SurrealDb},
};
use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

const RUNS: usize = 3;

/// What is measured: what it is called, how many messages, how many of them at a time, of how many order keys, and behind how many of a topic that claims leave, as if its destination were
/// paused.
const WORKS: [Work; 5] = [
    Work {
        name: "one at a time",
        messages: 2000,
        enqueue: 1,
        claim: 500,
        keys: 0,
        left: 0,
    },
    Work {
        name: "500 at a time",
        messages: 20_000,
        enqueue: 500,
        claim: 500,
        keys: 0,
        left: 0,
    },
    Work {
        name: "500 at a time, of 1,000 keys",
        messages: 20_000,
        enqueue: 500,
        claim: 500,
        keys: 1000,
        left: 0,
    },
    Work {
        name: "50 at a time",
        messages: 5000,
        enqueue: 50,
        claim: 50,
        keys: 0,
        left: 0,
    },
    Work {
        // No more than operators' counts are exact for, so that it can be verified.
        name: "500 at a time, behind 8,000 that are left",
        messages: 10_000,
        enqueue: 500,
        claim: 500,
        keys: 0,
        left: 8000,
    },
];

const ENGINES: [&str; 4] = ["SQLite", "surrealkv, sync=every", "surrealkv, sync=never", "mem"];

#[derive(Clone, Copy)]
struct Work {
    name: &'static str,
    messages: usize,
    enqueue: usize,
    claim: u32,
    keys: usize,
    left: usize,
}

/// Messages a second.
#[derive(Clone, Copy)]
struct Pace {
    enqueue: f64,
    drain: f64,
}

/// A store of either kind.
enum Bench {
    Sqlite(AnyStore),
    Surreal(Arc<SurrealDb>),
}

impl Bench {
    async fn open(engine: &str, folder: &Path) -> Self {
        std::fs::create_dir_all(folder).unwrap();
        let place = folder.join("bench.db");
        let url = match engine {
            "SQLite" => format!("sqlite://{}", place.display()),
            "mem" => "mem://".to_owned(),
            other => {
                let sync = other.rsplit('=').next().unwrap();
                format!("surrealkv://{}?sync={sync}", place.display())
            }
        };
        if engine == "SQLite" {
            AnyStore::migrate(&url).await.unwrap();
            return Self::Sqlite(AnyStore::open(&url).await.unwrap());
        }
        let db = Database::connect(&url).await.unwrap();
        SurrealDb::migrate(&db).await.unwrap();
        Self::Surreal(Arc::new(SurrealDb::open(db, Options::default()).await.unwrap()))
    }

    async fn enqueue(&self, messages: Vec<Message>) {
        match self {
            Self::Sqlite(any) => any.enqueue(messages).await.unwrap(),
            Self::Surreal(store) => store.enqueue_now(messages).await.unwrap(),
        };
    }

    fn store(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(any) => any.store(),
            Self::Surreal(store) => store.clone(),
        }
    }

    fn admin(&self) -> Arc<dyn Admin> {
        match self {
            Self::Sqlite(any) => any.admin(),
            Self::Surreal(store) => store.clone(),
        }
    }
}

fn message(n: usize, work: Work) -> Message {
    let body = format!("{{\"order\":{n:010},\"pad\":\"{}\"}}", "x".repeat(167));
    let message = Message::bytes("bench", "application/json", body.into_bytes());
    match work.keys {
        0 => message,
        keys => message.order_key(format!("key-{}", n % keys)),
    }
}

async fn measure(engine: &str, folder: &Path, work: Work) -> Pace {
    let bench = Bench::open(engine, folder).await;
    for _ in 0..work.left / 500 {
        bench
            .enqueue(vec![Message::bytes("left", "text/plain", b"left".to_vec()); 500])
            .await;
    }
    let all: Vec<_> = (0..work.messages).map(|n| message(n, work)).collect();
    let since = Instant::now();
    for some in all.chunks(work.enqueue) {
        bench.enqueue(some.to_vec()).await;
    }
    let enqueue = work.messages as f64 / since.elapsed().as_secs_f64();
    let (store, since, mut done) = (bench.store(), Instant::now(), 0);
    let claim = Claim::new("bench", work.claim, Duration::from_secs(600)).not_topic("left");
    loop {
        let claimed = store.claim(&claim).await.unwrap();
        if claimed.is_empty() {
            break;
        }
        let batch: Vec<_> = claimed.iter().map(|c| Settlement::delivered(&c.lease, None)).collect();
        assert!(
            claimed.iter().all(|c| c.lease.standing.epoch == 1),
            "granted twice: no number"
        );
        assert!(store.settle(&batch).await.unwrap().iter().all(|v| v.is_settled()));
        done += batch.len();
    }
    let drain = done as f64 / since.elapsed().as_secs_f64();
    let counts = bench.admin().counts().await.unwrap();
    let left = counts.ready.value + counts.leased.value + counts.scheduled.value;
    assert_eq!(
        (done, left),
        (work.messages, work.left as u64),
        "verification failed: no number"
    );
    Pace { enqueue, drain }
}

#[tokio::main]
async fn main() {
    let folder = PathBuf::from(std::env::var("POSTHOUSE_BENCH_FOLDER").expect("run benches/surreal"));
    println!(
        "{:<44} {:<24} {:>11} {:>7} {:>11} {:>7}",
        "work", "engine", "enqueue/s", "ratio", "drain/s", "ratio"
    );
    // Only those whose names have what was asked for.
    let wanted = std::env::args().nth(1).unwrap_or_default();
    for work in WORKS.into_iter().filter(|work| work.name.contains(&wanted)) {
        let mut paces = vec![Vec::new(); ENGINES.len()];
        for run in 0..RUNS {
            for (at, engine) in ENGINES.iter().enumerate() {
                let place = folder.join(format!("{run}-{at}"));
                paces[at].push(measure(engine, &place, work).await);
                let _ = std::fs::remove_dir_all(&place);
            }
        }
        let middle = |paces: &[Pace], of: fn(&Pace) -> f64| median(&paces.iter().map(of).collect::<Vec<_>>());
        let base = (middle(&paces[0], |p| p.enqueue), middle(&paces[0], |p| p.drain));
        for (engine, paces) in ENGINES.iter().zip(&paces) {
            let (enqueue, drain) = (middle(paces, |p| p.enqueue), middle(paces, |p| p.drain));
            println!(
                "{:<44} {engine:<24} {enqueue:>11.0} {:>7.2} {drain:>11.0} {:>7.2}",
                work.name,
                enqueue / base.0,
                drain / base.1
            );
        }
    }
}
