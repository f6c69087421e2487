//! Another project at the same work as ours; one line of JSON. See README.md.

mod apalis;
mod awa;
mod graphile_worker;
mod outbox;
mod peer;
mod posthouse;
mod sqlxmq;

use peer::{Error, Order, Peer, Result, Seen, Work, session};
use serde::Serialize;
use std::{
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::time::{interval, sleep};
use tokio_postgres::Client;

const USAGE: &str = "usage: peers apalis|awa|graphile_worker|outbox|sqlxmq|posthouse[-throughput|-latency|-two] insert|insert-one|drain|latency --url postgres://... \
                     [--count N] [--seconds S] [--rate R]";
/// Messages in a transaction of `insert`.
const BATCH: usize = 1000;
/// A peer that makes no progress for so long is given up.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Serialize)]
struct Line {
    peer: String,
    version: String,
    work: String,
    #[serde(flatten)]
    figures: Figures,
    settings: &'static str,
}

#[derive(Serialize)]
#[serde(untagged)]
enum Figures {
    Rate {
        per_second: f64,
    },
    Latency {
        p50_ms: f64,
        p99_ms: f64,
        offered_per_second: f64,
    },
}

struct Arguments {
    peer: String,
    work: String,
    url: String,
    count: Option<usize>,
    seconds: usize,
    rate: usize,
}

impl Arguments {
    fn read() -> Result<Self> {
        let mut words = std::env::args().skip(1);
        let (peer, work) = (words.next().ok_or(USAGE)?, words.next().ok_or(USAGE)?);
        let mut read = Self {
            peer,
            work,
            url: String::new(),
            count: None,
            seconds: 10,
            rate: 500,
        };
        while let Some(name) = words.next() {
            let value = words.next().ok_or_else(|| format!("{name} needs a value; {USAGE}"))?;
            let number = || match value.parse() {
                Ok(0) | Err(_) => Err(format!("{name} needs a number above zero, not '{value}'")),
                Ok(n) => Ok(n),
            };
            match name.as_str() {
                "--url" => read.url = value,
                "--count" => read.count = Some(number()?),
                "--seconds" => read.seconds = number()?,
                "--rate" => read.rate = number()?,
                _ => return Err(format!("there is no option {name}; {USAGE}").into()),
            }
        }
        if read.url.is_empty() {
            return Err(format!("--url is missing; {USAGE}").into());
        }
        Ok(read)
    }
}

/// The same server, another database. Parameters behind a question mark stay.
fn with_database(url: &str, name: &str) -> Result<String> {
    let (address, parameters) = match url.split_once('?') {
        Some((address, parameters)) => (address, format!("?{parameters}")),
        None => (url, String::new()),
    };
    let (scheme, rest) = address
        .split_once("://")
        .ok_or("--url must look like postgres://host/database")?;
    let host = rest.split('/').next().unwrap_or_default();
    Ok(format!("{scheme}://{host}/{name}{parameters}"))
}

/// What a run needs to know of its peer and its database.
struct Run {
    peer: Box<dyn Peer>,
    control: Client,
}

impl Run {
    async fn load(&self, count: usize) -> Result<()> {
        for chunk in (0..count).step_by(BATCH) {
            self.peer
                .insert((chunk..count.min(chunk + BATCH)).map(Order::new).collect())
                .await?;
        }
        Ok(())
    }

    /// As many messages as were inserted stand in the tables, not yet done.
    async fn verify_loaded(&self, count: usize) -> Result<()> {
        let found = self.peer.undone().await?;
        if found != count as i64 {
            return Err(format!("{count} messages were inserted, the tables have {found}").into());
        }
        Ok(())
    }

    /// Waits until all were handled, then until the tables say so too. Answers when the question was asked that found none left: what
    /// the question itself costs is ours, not theirs.
    async fn finished(&self, seen: &Seen, count: usize) -> Result<Instant> {
        let (mut before, mut progress) = (0, Instant::now());
        while seen.all() < count {
            if seen.all() != before {
                (before, progress) = (seen.all(), Instant::now());
            }
            if progress.elapsed() > PATIENCE {
                return Err(format!("only {before} of {count} messages were handled").into());
            }
            sleep(Duration::from_micros(200)).await;
        }
        let since = Instant::now();
        loop {
            let asked = Instant::now();
            if self.peer.undone().await? == 0 {
                return Ok(asked);
            }
            if since.elapsed() > PATIENCE {
                return Err("all were handled, but not all are recorded as done".into());
            }
            sleep(Duration::from_millis(1)).await;
        }
    }

    /// Each handled exactly once; all done, none left.
    async fn verify_drained(&self, seen: &Seen, count: usize) -> Result<()> {
        seen.verify()?;
        let left = self.peer.undone().await?;
        if left != 0 {
            return Err(format!("{left} messages are left in the tables").into());
        }
        match self.peer.done().await? {
            Some(done) if done != count as i64 => {
                Err(format!("{done} of {count} messages are recorded as done").into())
            }
            _ => Ok(()),
        }
    }

    async fn insert(&self, count: usize) -> Result<Figures> {
        let start = Instant::now();
        self.load(count).await?;
        let took = start.elapsed();
        self.verify_loaded(count).await?;
        Ok(per_second(count, took))
    }

    async fn insert_one(&self, count: usize) -> Result<Figures> {
        let start = Instant::now();
        for n in 0..count {
            self.peer.insert_one(Order::new(n)).await?;
        }
        let took = start.elapsed();
        self.verify_loaded(count).await?;
        Ok(per_second(count, took))
    }

    async fn drain(&self, count: usize) -> Result<Figures> {
        self.load(count).await?;
        self.verify_loaded(count).await?;
        self.control.batch_execute("ANALYZE").await?;
        self.control.batch_execute("CHECKPOINT").await?;
        let seen = Seen::of(count);
        let start = Instant::now();
        let stop = self.peer.start(Work::Drain, seen).await?;
        let took = self.finished(seen, count).await?.duration_since(start);
        stop().await?;
        self.verify_drained(seen, count).await?;
        Ok(per_second(count, took))
    }

    async fn latency(&self, rate: usize, seconds: usize) -> Result<Figures> {
        // The first second fills pools and caches of statements, and is not counted.
        let (warm, count) = (rate, rate * (seconds + 1));
        let seen = Seen::of(count);
        let stop = self.peer.start(Work::Latency, seen).await?;
        sleep(Duration::from_secs(1)).await;
        let mut committed = Vec::with_capacity(count);
        let mut ticks = interval(Duration::from_secs(1) / rate as u32);
        for n in 0..count {
            ticks.tick().await;
            self.peer.insert_one(Order::new(n)).await?;
            committed.push(seen.now());
        }
        self.finished(seen, count).await?;
        stop().await?;
        self.verify_drained(seen, count).await?;
        let mut times: Vec<u64> = (warm..count).map(|n| seen.at(n).saturating_sub(committed[n])).collect();
        times.sort_unstable();
        let percentile = |part: f64| times[((times.len() - 1) as f64 * part) as usize] as f64 / 1e6;
        let took = Duration::from_nanos(committed[count - 1] - committed[warm - 1]);
        Ok(Figures::Latency {
            p50_ms: rounded(percentile(0.5), 3),
            p99_ms: rounded(percentile(0.99), 3),
            offered_per_second: rounded((count - warm) as f64 / took.as_secs_f64(), 1),
        })
    }
}

fn rounded(value: f64, digits: i32) -> f64 {
    let unit = 10f64.powi(digits);
    (value * unit).round() / unit
}

fn per_second(count: usize, took: Duration) -> Figures {
    Figures::Rate {
        per_second: rounded(count as f64 / took.as_secs_f64(), 1),
    }
}

async fn run(arguments: &Arguments) -> Result<Line> {
    let work = match arguments.work.as_str() {
        "insert" => Work::Insert,
        "insert-one" => Work::InsertOne,
        "drain" => Work::Drain,
        "latency" => Work::Latency,
        other => return Err(format!("there is no work '{other}'; {USAGE}").into()),
    };
    let database = format!("peers_{}", arguments.peer.replace('-', "_"));
    let ours = posthouse::KINDS.iter().find(|(name, _)| *name == arguments.peer);
    let url = with_database(&arguments.url, &database)?;
    let admin = session(&arguments.url).await?;
    let drop = format!("DROP DATABASE IF EXISTS {database} WITH (FORCE)");
    if ours.is_none() && !["apalis", "awa", "graphile_worker", "outbox", "sqlxmq"].contains(&arguments.peer.as_str()) {
        return Err(format!("there is no peer '{}'; {USAGE}", arguments.peer).into());
    }
    admin.batch_execute(&drop).await?;
    admin.batch_execute(&format!("CREATE DATABASE {database}")).await?;
    let peer: Box<dyn Peer> = match (arguments.peer.as_str(), ours) {
        (_, Some((_, kind))) => Box::new(posthouse::Posthouse::open(&url, *kind).await?),
        ("apalis", _) => Box::new(apalis::Apalis::open(&url).await?),
        ("awa", _) => Box::new(awa::Awa::open(&url).await?),
        ("graphile_worker", _) => Box::new(graphile_worker::GraphileWorker::open(&url).await?),
        ("outbox", _) => Box::new(outbox::Outbox::open(&url).await?),
        _ => Box::new(sqlxmq::Sqlxmq::open(&url).await?),
    };
    let run = Run {
        peer,
        control: session(&url).await?,
    };
    let figures = match work {
        Work::Insert => run.insert(arguments.count.unwrap_or(20_000)).await?,
        Work::InsertOne => run.insert_one(arguments.count.unwrap_or(2000)).await?,
        Work::Drain => run.drain(arguments.count.unwrap_or(20_000)).await?,
        Work::Latency => run.latency(arguments.rate, arguments.seconds).await?,
    };
    let line = Line {
        peer: arguments.peer.clone(),
        version: run.peer.version(),
        work: arguments.work.clone(),
        figures,
        settings: run.peer.settings(work),
    };
    admin.batch_execute(&drop).await?;
    Ok(line)
}

#[tokio::main]
async fn main() -> ExitCode {
    let line = async { Ok::<_, Error>(serde_json::to_string(&run(&Arguments::read()?).await?)?) };
    match line.await {
        Ok(line) => {
            println!("{line}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("peers: {error}");
            ExitCode::FAILURE
        }
    }
}
