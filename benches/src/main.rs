//! The raw bench: ratios of our stores to hand-written SQL on the same tables, interleaved in one run.
//!
//! Absolute numbers depend on the machine and the hour; ratios within one run are what counts. Every run is verified
//! (counts, duplicates, order, evidence), and one that fails verification prints no number.

mod median;
mod postgres;
mod raw;
mod report;
mod sqlite;

use postgres::Offer;
use report::Report;

/// What is offered while a snapshot is held.
const OFFERS: [Offer; 3] = [
    Offer {
        name: "plain",
        words: "10k/s",
        keys: 0,
        tenants: 0,
    },
    Offer {
        name: "keys",
        words: "10k/s of 1,000 keys",
        keys: 1000,
        tenants: 0,
    },
    Offer {
        name: "tenants",
        words: "10k/s of 100 tenants",
        keys: 0,
        tenants: 100,
    },
];

/// What can be measured.
const BARS: [&str; 10] = ["B1", "B2", "B3", "B4", "B5", "B6", "B7", "B8", "B9", "B15"];

/// Ends the program if this is none of them: it would measure nothing, and not say so.
fn refuse_others(what: &str, word: &str, known: &[&str]) {
    if !known.contains(&word) {
        eprintln!("{what}: '{word}' is none of {}", known.join(", "));
        std::process::exit(2);
    }
}

/// How long a snapshot is held.
fn held_seconds() -> u64 {
    let Ok(text) = std::env::var("HELD_SECONDS") else {
        return 60;
    };
    text.parse().unwrap_or_else(|_| {
        eprintln!("HELD_SECONDS: '{text}' is not a number of seconds");
        std::process::exit(2);
    })
}

#[tokio::main]
async fn main() {
    let wanted: Vec<String> = std::env::args().skip(1).collect();
    let (seconds, only) = (held_seconds(), std::env::var("HELD").ok());
    for bar in &wanted {
        refuse_others("bar", bar, &BARS);
    }
    if let Some(only) = &only {
        refuse_others("HELD", only, &OFFERS.map(|offer| offer.name));
    }
    let wants = |bar: &str| wanted.is_empty() || wanted.iter().any(|w| w == bar);
    let mut report = Report::default();
    let pg = postgres::Bench::new().await;
    report.conditions(pg.conditions().await);
    if wants("B1") {
        pg.bulk_enqueue(&mut report).await;
    }
    if wants("B2") {
        pg.single_enqueue(&mut report).await;
    }
    if wants("B3") || wants("B4") {
        pg.drain(&mut report).await;
    }
    if wants("B5") {
        pg.claim_growth(&mut report).await;
    }
    if wants("B6") {
        // With keys and tenants only where there is time, or where they are asked for.
        let wanted = |offer: &&Offer| match &only {
            Some(only) => only == offer.name,
            None => seconds > 60 || offer.name == "plain",
        };
        for offer in OFFERS.iter().filter(wanted) {
            pg.held_snapshot(&mut report, seconds, *offer).await;
        }
    }
    if wants("B7") {
        pg.keyed_drain(&mut report).await;
    }
    if wants("B8") {
        pg.small_tenants(&mut report).await;
    }
    if wants("B9") {
        sqlite::drain(&mut report).await;
    }
    if wants("B15") {
        pg.ledger(&mut report).await;
        pg.sagas(&mut report).await;
    }
    report.print();
}
