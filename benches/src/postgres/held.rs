//! B6: messages keep coming while somebody holds an old snapshot.

use futures_util::future::join_all;
use posthouse_core::Message;
use posthouse_postgres::Outbox;
use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use super::{Bench, Round, WORKERS, body, drain_until, session};
use crate::{
    median::median,
    report::{Bar, Report},
};

/// Messages a second that are offered.
const RATE: usize = 10_000;

/// What is offered while a snapshot is held.
#[derive(Clone, Copy)]
pub struct Offer {
    pub name: &'static str,
    pub words: &'static str,
    pub keys: usize,
    pub tenants: usize,
}

impl Offer {
    fn message(&self, n: usize) -> Message {
        let mut message = Message::bytes("bench", "application/json", body(n));
        if self.keys > 0 {
            message = message.order_key(format!("key-{}", n % self.keys));
        }
        if self.tenants > 0 {
            message = message.tenant(format!("tenant-{}", n % self.tenants));
        }
        message
    }
}

impl Bench {
    /// So many messages a second offered while another session holds an old snapshot: the share that is done in time, and how claims
    /// grow meanwhile.
    pub async fn held_snapshot(&self, report: &mut Report, seconds: u64, offer: Offer) {
        self.clear().await;
        self.load(1, 0).await;
        let holder = session(&self.url).await;
        holder
            .batch_execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM posthouse.ready")
            .await
            .unwrap();
        let stop = Arc::new(AtomicBool::new(false));
        let start = Instant::now();
        let workers: Vec<_> = (0..WORKERS)
            .map(|n| tokio::spawn(drain_until(self.store.clone(), n, stop.clone(), start)))
            .collect();
        let mut client = session(&self.url).await;
        let outbox = Outbox::default();
        let mut offered = 0;
        // Ends: `offered` rises with the clock, which passes the bound.
        while start.elapsed() < Duration::from_secs(seconds) {
            let owed = (start.elapsed().as_secs_f64() * RATE as f64) as usize;
            if offered + 500 > owed {
                tokio::time::sleep(Duration::from_millis(5)).await;
                continue;
            }
            let messages = (offered..offered + 500).map(|n| offer.message(n)).collect();
            let mut tx = client.transaction().await.unwrap();
            outbox.enqueue_all(&mut tx, messages).await.unwrap();
            tx.commit().await.unwrap();
            offered += 500;
        }
        let over = start.elapsed();
        stop.store(true, Ordering::Relaxed);
        let rounds: Vec<Round> = join_all(workers).await.into_iter().flat_map(Result::unwrap).collect();
        holder.batch_execute("ROLLBACK").await.unwrap();
        self.verify_drained(offered + 1).await;
        if offer.keys > 0 {
            self.verify_order().await;
        }
        let done = |from: Duration| -> usize {
            let rounds = rounds.iter().filter(|round| round.at > from && round.at <= over);
            rounds.map(|round| round.count).sum()
        };
        let (last, promised) = (Duration::from_secs(10), |over: Duration| {
            RATE as f64 * over.as_secs_f64()
        });
        for (words, from) in [("", Duration::ZERO), (", the last 10 s", over.saturating_sub(last))] {
            let (finished, promised) = (done(from) as f64, promised(over - from));
            report.bound(
                "B6",
                &format!("held {seconds} s, {}{words}", offer.words),
                "k",
                (promised / 1e3, finished / 1e3),
                finished / promised,
                Bar::AtLeast(0.95),
            );
        }
        let claims = |from: Duration, to: Duration| -> Vec<f64> {
            let rounds = rounds.iter().filter(|round| round.at > from && round.at <= to);
            rounds.map(|round| round.claim_ms / round.count as f64 * 1e3).collect()
        };
        // The first ten seconds but for the very first, in which nothing is planned yet.
        let first = claims(Duration::from_secs(2), Duration::from_secs(12));
        let end = claims(over.saturating_sub(last), over);
        let (first, end) = (median(&first), median(&end));
        report.bound(
            "B6",
            "the same, claiming one message, at first and at the end",
            "us",
            (first, end),
            end / first,
            Bar::AtMost(1.5),
        );
    }
}
