//! What a message costs a relay as things grow: what is pending, keys, tenants, payloads, relays.
//!
//! | call | what it does |
//! |---|---|
//! | `growth load MESSAGES KEYS TENANTS BYTES` | fills a new database, by the library's own bulk enqueue |
//! | `growth drain MESSAGES RELAYS` | lets relays with a local function deliver so many of them; one line of JSON |
//! | `growth tell RUNS FOLDER` | the table and the plots of such lines |
//!
//! Loading and draining are processes of their own, so that the memory told is that of the relays. Every run is verified: each message
//! reached the function once, and is recorded as delivered once.

mod bars;
mod median;

use bars::Row;
use median::median;
use posthouse::{
    Message, Relay,
    relay::{CancellationToken, local_delivery},
};
use posthouse_postgres::{Options, Postgres};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    error::Error,
    fs,
    path::Path,
    process::ExitCode,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};
use tokio::time::sleep;
use tokio_postgres::NoTls;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Messages in one transaction of the load.
const BATCH: usize = 1000;
/// Relays that deliver nothing for so long are given up.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a drain was measured at.
#[derive(Serialize, Deserialize)]
struct Drained {
    /// Microseconds of a message, from the first to the last that was wanted.
    each_us: f64,
    /// The most memory that the process of the relays had, in MB.
    peak_mb: f64,
}

/// The same with what the script says of it.
#[derive(Deserialize)]
struct Run {
    round: u32,
    /// What grows.
    what: String,
    /// How much of it there is, in words.
    much: String,
    #[serde(flatten)]
    drained: Drained,
}

fn url() -> Result<String> {
    std::env::var("POSTHOUSE_BENCH_POSTGRES").map_err(|_| "run benches/growth, which starts a private server".into())
}

fn number(words: &[String], at: usize, name: &str) -> Result<usize> {
    let word = words.get(at).ok_or_else(|| format!("{name} is missing"))?;
    word.parse()
        .map_err(|_| format!("{name}: not a number: '{word}'").into())
}

async fn load(messages: usize, keys: usize, tenants: usize, bytes: usize) -> Result<()> {
    let url = url()?;
    Postgres::open(&url, Options::default())?.migrate().await?;
    let store = Postgres::connect(&url).await?;
    let body = |n: usize| {
        let head = format!("{{\"order\":{n:10},\"pad\":\"");
        let pad = "x".repeat(bytes.saturating_sub(head.len() + 2));
        format!("{head}{pad}\"}}").into_bytes()
    };
    let message = |n: usize| {
        let mut message = Message::bytes("order.placed", "application/json", body(n));
        if keys > 0 {
            message = message.order_key(format!("key-{}", n % keys));
        }
        if tenants > 1 {
            message = message.tenant(format!("tenant-{}", n % tenants));
        }
        message
    };
    for from in (0..messages).step_by(BATCH) {
        let batch = (from..messages.min(from + BATCH)).map(message).collect();
        store.enqueue_now(batch).await?;
    }
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    // One after the other: a vacuum takes part in no transaction.
    client.batch_execute("VACUUM ANALYZE").await?;
    Ok(client.batch_execute("CHECKPOINT").await?)
}

async fn drain(wanted: usize, relays: usize) -> Result<Drained> {
    let url = url()?;
    let seen: Arc<AtomicUsize> = Arc::default();
    let cancel = CancellationToken::new();
    let mut running = Vec::new();
    for n in 0..relays {
        let seen = seen.clone();
        let count = move |_| {
            seen.fetch_add(1, Ordering::Relaxed);
            std::future::ready(())
        };
        let relay = Relay::builder(Arc::new(Postgres::connect(&url).await?))
            .name(format!("relay-{n}"))
            .route("order.*", local_delivery(count));
        running.push(tokio::spawn(relay.run(cancel.clone())));
    }
    let first = reached(&seen, 1).await?;
    let before = seen.load(Ordering::Relaxed);
    let last = reached(&seen, wanted).await?;
    let counted = seen.load(Ordering::Relaxed) - before;
    let each_us = last.duration_since(first).as_secs_f64() * 1e6 / counted.max(1) as f64;
    cancel.cancel();
    for relay in running {
        relay.await??;
    }
    let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
    tokio::spawn(connection);
    let sql = "SELECT count(*), count(DISTINCT seq) FROM posthouse.attempt WHERE outcome = 1 AND attempt = 1";
    let row = client.query_one(sql, &[]).await?;
    let (recorded, distinct): (i64, i64) = (row.get(0), row.get(1));
    let seen = seen.load(Ordering::Relaxed) as i64;
    if (recorded, distinct) != (seen, seen) {
        return Err(format!(
            "{seen} messages were delivered; {recorded} deliveries of {distinct} are recorded: no number"
        )
        .into());
    }
    Ok(Drained {
        each_us,
        peak_mb: peak()?,
    })
}

/// When so many had been seen.
async fn reached(seen: &AtomicUsize, wanted: usize) -> Result<Instant> {
    let (mut before, mut since) = (0, Instant::now());
    loop {
        let now = seen.load(Ordering::Relaxed);
        if now >= wanted {
            return Ok(Instant::now());
        }
        if now > before {
            (before, since) = (now, Instant::now());
        }
        if since.elapsed() > PATIENCE {
            return Err(format!("only {now} of {wanted} messages were delivered: no number").into());
        }
        sleep(Duration::from_micros(200)).await;
    }
}

/// The most memory that this process has had, in MB.
fn peak() -> Result<f64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kb = line
        .and_then(|line| line.split_whitespace().next())
        .and_then(|kb| kb.parse::<f64>().ok());
    Ok(kb.ok_or("the system does not tell how much memory was used")? / 1024.0)
}

/// The table and the plots: by what grows, in the order in which it was run.
fn tell(file: &str, folder: &str) -> std::result::Result<(), Box<dyn Error>> {
    let lines = fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
    let mut runs = Vec::new();
    for (at, line) in lines.lines().enumerate() {
        runs.push(serde_json::from_str::<Run>(line).map_err(|error| format!("{file}, line {}: {error}", at + 1))?);
    }
    fs::create_dir_all(folder)?;
    let mut kinds: Vec<&str> = Vec::new();
    for run in &runs {
        if !kinds.contains(&&*run.what) {
            kinds.push(&run.what);
        }
    }
    println!(
        "| what | how much | microseconds a message | smallest to largest | to the first, by round | memory, MB |\n|---|---|---|---|---|---|"
    );
    for what in kinds {
        let of: Vec<&Run> = runs.iter().filter(|run| run.what == what).collect();
        let mut amounts: Vec<&str> = Vec::new();
        for run in &of {
            if !amounts.contains(&&*run.much) {
                amounts.push(&run.much);
            }
        }
        let by_round = |much: &str| -> BTreeMap<u32, f64> {
            of.iter()
                .filter(|run| run.much == much)
                .map(|run| (run.round, run.drained.each_us))
                .collect()
        };
        let first = by_round(amounts[0]);
        let mut rows = Vec::new();
        for much in amounts {
            let each = by_round(much);
            let times: Vec<f64> = each.values().copied().collect();
            let ratios: Vec<f64> = each
                .iter()
                .filter_map(|(round, each)| first.get(round).map(|first| each / first))
                .collect();
            let memory: Vec<f64> = of
                .iter()
                .filter(|run| run.much == much)
                .map(|run| run.drained.peak_mb)
                .collect();
            let range = (
                times.iter().copied().fold(f64::INFINITY, f64::min),
                times.iter().copied().fold(0.0, f64::max),
            );
            let ratio = if ratios.is_empty() {
                "-".to_owned()
            } else {
                format!("{:.2}", median(&ratios))
            };
            println!(
                "| {what} | {much} | {:.1} | {:.1} to {:.1} | {ratio} | {:.0} |",
                median(&times),
                range.0,
                range.1,
                median(&memory)
            );
            rows.push(Row {
                name: much.to_owned(),
                median: median(&times),
                range,
                stands_out: true,
            });
        }
        let title = format!("Time of a message by {what}");
        bars::draw(
            &title,
            "microseconds",
            &rows,
            &Path::new(folder).join(format!("growth-{what}.svg")),
        )?;
    }
    Ok(())
}

async fn run(words: &[String]) -> Result<()> {
    match words.first().map(String::as_str) {
        Some("load") => {
            let number = |at, name| number(words, at, name);
            load(
                number(1, "MESSAGES")?,
                number(2, "KEYS")?,
                number(3, "TENANTS")?,
                number(4, "BYTES")?,
            )
            .await
        }
        Some("drain") => {
            let drained = drain(number(words, 1, "MESSAGES")?, number(words, 2, "RELAYS")?).await?;
            println!("{}", serde_json::to_string(&drained)?);
            Ok(())
        }
        Some("tell") if words.len() == 3 => tell(&words[1], &words[2]).map_err(|error| error.to_string().into()),
        _ => Err("usage: growth load MESSAGES KEYS TENANTS BYTES | drain MESSAGES RELAYS | tell RUNS FOLDER".into()),
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    match run(&words).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let cause = error.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            eprintln!("growth: {error}{cause}");
            ExitCode::FAILURE
        }
    }
}
